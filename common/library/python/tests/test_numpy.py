"""The package on numpy arrays and on DLPack, against fp64 in numpy. Needs the CPU build."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")
import normworklog as nw
from normworklog import _library

pytestmark = pytest.mark.skipif(
    nw.backend() != "cpu", reason="numpy arrays are in the CPU's memory, and the library is a GPU build"
)

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

DTYPES = [
    "float32",
    "float16",
    pytest.param("bfloat16", marks=pytest.mark.skipif(ml_dtypes is None, reason="bfloat16 needs ml_dtypes")),
]
# Of torch.testing.assert_close.
TOLERANCES = {"float32": (1.3e-6, 1e-5), "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5)}
SHAPES = [(1, 1), (3, 33), (4, 1024), (2, 3, 257), (5, 4097)]
EPS = 1e-5


def dtype_of(name: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def values(seed: int, shape: tuple[int, ...], dtype: str = "float32") -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype_of(dtype))


def wide(array: Any) -> Any:
    return array.astype(np.float64)


def close(got: Any, want: Any, dtype: str, factor: float = 1.0) -> None:
    rtol, atol = TOLERANCES[dtype]
    np.testing.assert_allclose(wide(got), want, rtol=rtol * factor, atol=atol * factor)


def norm(x: Any, gamma: Any = 1.0, beta: Any = 0.0, centered: bool = True) -> tuple[Any, Any, Any]:
    x = wide(x)
    mean = x.mean(-1, keepdims=True) if centered else 0.0
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + EPS)
    return (x - mean) * rstd * gamma + beta, mean, rstd


def norm_backward(dy: Any, x: Any, gamma: Any, centered: bool = True) -> tuple[Any, Any, Any]:
    _, mean, rstd = norm(x, centered=centered)
    xhat, wdy = (wide(x) - mean) * rstd, wide(dy) * gamma
    dx = rstd * (wdy - xhat * (wdy * xhat).mean(-1, keepdims=True) - (wdy.mean(-1, keepdims=True) if centered else 0))
    rows = tuple(range(x.ndim - 1))
    return dx, (wide(dy) * xhat).sum(rows), wide(dy).sum(rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm(shape: tuple[int, ...], dtype: str) -> None:
    x, gamma, beta = values(1, shape, dtype), values(2, shape[-1:], dtype), values(3, shape[-1:], dtype)
    want, mean, rstd = norm(x, wide(gamma), wide(beta))
    y = nw.layer_norm(x, gamma, beta, EPS)
    assert y.dtype == x.dtype and y.shape == x.shape
    close(y, want, dtype)
    y, got_mean, got_rstd = nw.layer_norm_forward(x, gamma, beta, EPS)
    close(y, want, dtype)
    close(got_mean, mean.reshape(-1), "float32")
    close(got_rstd, rstd.reshape(-1), "float32")


@pytest.mark.parametrize("dtype", DTYPES)
def test_parameters_in_float32(dtype: str) -> None:
    x, gamma, beta = values(1, (4, 257), dtype), values(2, (257,)), values(3, (257,))
    close(nw.layer_norm(x, gamma, beta, EPS), norm(x, wide(gamma), wide(beta))[0], dtype)
    y, mean, rstd = nw.layer_norm_forward(x, gamma, beta, EPS)
    _, dgamma, _ = nw.layer_norm_backward(x, x, mean, rstd, gamma)
    assert dgamma.dtype == np.float32


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(dtype: str) -> None:
    x, gamma = values(1, (7, 1000), dtype), values(2, (1000,), dtype)
    close(nw.rms_norm(x, gamma, EPS), norm(x, wide(gamma), centered=False)[0], dtype)
    rounded = wide(norm(x, centered=False)[0].astype(x.dtype)) * wide(gamma)
    close(nw.rms_norm(x, gamma, EPS, round_before_gamma=True), rounded, dtype, 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 33), (5, 256), (4, 2304)])
def test_weights_about_zero(shape: tuple[int, ...], dtype: str) -> None:
    x, residual, dy = (values(s, shape, dtype) for s in (1, 2, 3))
    gamma, beta = (values(s, shape[-1:], dtype) for s in (4, 5))
    about_one = 1 + wide(gamma)
    close(nw.layer_norm(x, gamma, beta, EPS, offset=1.0), norm(x, about_one, wide(beta))[0], dtype)
    close(nw.rms_norm(x, gamma, EPS, offset=1.0), norm(x, about_one, centered=False)[0], dtype)
    y, h = nw.add_rms_norm(x, residual, gamma, EPS, offset=1.0)
    close(y, norm(h, about_one, centered=False)[0], dtype)
    y, h = nw.add_layer_norm(x, residual, gamma, beta, EPS, offset=1.0)
    close(y, norm(h, about_one, wide(beta))[0], dtype)
    _, rstd = nw.rms_norm_forward(x, gamma, EPS, offset=1.0)
    for got, want in zip(nw.rms_norm_backward(dy, x, rstd, gamma, offset=1.0), norm_backward(dy, x, about_one, False)):
        close(got, want, dtype, 4)
    _, mean, rstd = nw.layer_norm_forward(x, gamma, beta, EPS, offset=1.0)
    for got, want in zip(
        nw.layer_norm_backward(dy, x, mean, rstd, gamma, offset=1.0), norm_backward(dy, x, about_one)
    ):
        close(got, want, dtype, 4)
    np.testing.assert_array_equal(wide(nw.rms_norm(x, None, EPS, offset=1.0)), wide(nw.rms_norm(x, None, EPS)))
    with pytest.raises(ValueError, match="gamma_offset must be 0 or 1; it is 3"):
        nw.rms_norm(x, gamma, EPS, offset=3.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_whatever_the_batch(dtype: str) -> None:
    x, gamma = values(1, (300, 1023), dtype), values(2, (1023,), dtype)
    assert not nw.is_batch_invariant()
    nw.set_batch_invariant(True)
    try:
        assert nw.is_batch_invariant()
        many, alone = nw.rms_norm(x, gamma, EPS), nw.rms_norm(x[200:201].copy(), gamma, EPS)
        dx_of_many, _, _ = nw.layer_norm_backward(x, x, *nw.layer_norm_forward(x, gamma, gamma, EPS)[1:], gamma)
        one = x[7:8].copy()
        dx_alone, _, _ = nw.layer_norm_backward(one, one, *nw.layer_norm_forward(one, gamma, gamma, EPS)[1:], gamma)
    finally:
        nw.set_batch_invariant(False)
    np.testing.assert_array_equal(wide(many[200:201]), wide(alone))
    np.testing.assert_array_equal(wide(dx_of_many[7:8]), wide(dx_alone))


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_norms(dtype: str) -> None:
    x, residual = values(1, (6, 129), dtype), values(2, (6, 129), dtype)
    gamma, beta = values(3, (129,), dtype), values(4, (129,), dtype)
    want_h = (wide(x) + wide(residual)).astype(np.float32).astype(x.dtype)
    y, h = nw.add_layer_norm(x, residual, gamma, beta, EPS)
    np.testing.assert_array_equal(wide(h), wide(want_h))
    close(y, norm(want_h, wide(gamma), wide(beta))[0], dtype)
    y, h, rstd = nw.add_rms_norm_forward(x, residual, gamma, EPS)
    np.testing.assert_array_equal(wide(h), wide(want_h))
    want, _, want_rstd = norm(want_h, wide(gamma), centered=False)
    close(y, want, dtype)
    close(rstd, want_rstd.reshape(-1), "float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 33), (40, 64), (2, 5, 1025)])
def test_backward(shape: tuple[int, ...], dtype: str) -> None:
    x, dy, gamma = values(1, shape, dtype), values(2, shape, dtype), values(3, shape[-1:], dtype)
    dh = values(4, shape, dtype)
    _, mean, rstd = nw.layer_norm_forward(x, gamma, None, EPS)
    dx, dgamma, dbeta = nw.layer_norm_backward(dy, x, mean, rstd, gamma)
    for got, want in zip((dx, dgamma, dbeta), norm_backward(dy, x, wide(gamma))):
        assert got.dtype == x.dtype
        close(got, want, dtype, 4)
    fused, _, _ = nw.layer_norm_backward(dy, x, mean, rstd, gamma, dh)
    close(fused, norm_backward(dy, x, wide(gamma))[0] + wide(dh), dtype, 4)
    _, rstd = nw.rms_norm_forward(x, gamma, EPS)
    dx, dgamma = nw.rms_norm_backward(dy, x, rstd, gamma)
    want_dx, want_dgamma, _ = norm_backward(dy, x, wide(gamma), centered=False)
    close(dx, want_dx, dtype, 4)
    close(dgamma, want_dgamma, dtype, 4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, axis", [((64, 50), 1), ((4, 16, 49), 1), ((3, 8, 5, 7), 1), ((3, 5, 7, 8), -1)])
def test_batch_norm(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    channels = shape[axis]
    x, dy = values(1, shape, dtype), values(2, shape, dtype)
    gamma, beta = values(3, (channels,)), values(4, (channels,))
    running_mean, running_var = values(5, (channels,)), np.abs(values(6, (channels,))) + 1
    xc, dyc = np.moveaxis(wide(x), axis, -1), np.moveaxis(wide(dy), axis, -1)
    over = tuple(range(xc.ndim - 1))
    n = xc.size // channels
    mean, var = xc.mean(over), xc.var(over)
    invstd = 1 / np.sqrt(var + EPS)
    xhat = (xc - mean) * invstd
    want_mean, want_var = wide(running_mean) * 0.9 + 0.1 * mean, wide(running_var) * 0.9 + 0.1 * var * n / (n - 1)
    want_inference = (xc - wide(running_mean)) / np.sqrt(wide(running_var) + EPS) * gamma + beta
    close(
        nw.batch_norm(x, running_mean, running_var, gamma, beta, eps=EPS, channel_axis=axis),
        np.moveaxis(want_inference, -1, axis),
        dtype,
    )
    y = nw.batch_norm(
        x, running_mean, running_var, gamma, beta, training=True, momentum=0.1, eps=EPS, channel_axis=axis
    )
    close(y, np.moveaxis(xhat * gamma + beta, -1, axis), dtype)
    close(running_mean, want_mean, "float32")
    close(running_var, want_var, "float32")
    _, save_mean, save_invstd = nw.batch_norm_forward(x, None, None, gamma, beta, eps=EPS, channel_axis=axis)
    dx, dgamma, dbeta = nw.batch_norm_backward(dy, x, save_mean, save_invstd, gamma, channel_axis=axis)
    want_dx = gamma * invstd * (dyc - dyc.mean(over) - xhat * (dyc * xhat).mean(over))
    close(dx, np.moveaxis(want_dx, -1, axis), dtype, 4)
    close(dgamma, (dyc * xhat).sum(over), "float32", 8)
    close(dbeta, dyc.sum(over), "float32", 8)


# --- What is not the plain case ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "cut", [np.s_[:, :100], np.s_[:, 1:101], np.s_[::2], np.s_[:, ::3], np.s_[::-1], np.s_[:, None, 5:50]]
)
def test_layouts(cut: Any) -> None:
    x = values(1, (6, 300))[cut]
    # Another alignment may take another kernel, which adds in another order.
    close(nw.layer_norm(x), nw.layer_norm(np.ascontiguousarray(x)), "float32")
    close(nw.add_rms_norm(x, x)[0], nw.add_rms_norm(x.copy(), x.copy())[0], "float32")
    close(nw.layer_norm(x.T), nw.layer_norm(np.ascontiguousarray(x.T)), "float32")


def test_broadcast_rows_and_vectors() -> None:
    x = np.broadcast_to(values(1, (1, 64)), (5, 64))
    close(nw.layer_norm(x), nw.layer_norm(x.copy()), "float32")
    gamma = values(2, (128,))[::2]
    np.testing.assert_array_equal(nw.layer_norm(x, gamma), nw.layer_norm(x, gamma.copy()))


@pytest.mark.parametrize("shape", [(0, 8), (0, 3, 8), (4, 0, 8)])
def test_empty(shape: tuple[int, ...]) -> None:
    x = values(1, shape)
    y, mean, rstd = nw.layer_norm_forward(x)
    assert y.shape == shape and mean.shape == rstd.shape == (0,)
    dx, dgamma, dbeta = nw.layer_norm_backward(x, x, mean, rstd)
    assert dx.shape == shape
    np.testing.assert_array_equal(dgamma, np.zeros(8, np.float32))
    np.testing.assert_array_equal(dbeta, np.zeros(8, np.float32))


def test_one_dimension_is_one_row() -> None:
    x = values(1, (77,))
    np.testing.assert_array_equal(nw.layer_norm(x), nw.layer_norm(x[None])[0])


def test_out() -> None:
    x = values(1, (3, 50))
    out = np.empty_like(x)
    assert nw.layer_norm(x, out=out) is out
    np.testing.assert_array_equal(out, nw.layer_norm(x))
    pair = (np.empty_like(x), np.empty_like(x))
    y, h = nw.add_layer_norm(x, x, out=pair)
    assert y is pair[0] and h is pair[1]


class Foreign:
    """An array that speaks DLPack and nothing else."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class OldForeign(Foreign):
    """Of before DLPack 1.0: it knows no max_version."""

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.array.__dlpack__()


@pytest.mark.parametrize("kind", [Foreign, OldForeign])
def test_dlpack(kind: type) -> None:
    x, gamma = values(1, (5, 300))[:, :257], values(2, (257,))
    y = np.empty((5, 257), np.float32)
    nw.layer_norm(kind(x), kind(gamma), out=kind(y))
    close(y, nw.layer_norm(x, gamma), "float32")
    with pytest.raises(TypeError, match="out"):
        nw.layer_norm(kind(x), kind(gamma))
    with pytest.raises(ValueError, match="x is not contiguous"):
        nw.layer_norm(kind(values(1, (4, 4)).T), out=kind(np.empty((4, 4), np.float32)))


def test_read_only() -> None:
    x = values(1, (2, 8))
    x.flags.writeable = False
    nw.layer_norm(x)  # read only is what an input may be
    with pytest.raises(ValueError, match=r"out \(y\) is read-only"):
        nw.layer_norm(x, out=x)


X = values(1, (4, 16))
ONES, SHORT, PLANE = np.ones(16, np.float32), np.ones(15, np.float32), np.ones((1, 16), np.float32)


@pytest.mark.parametrize("error, message, call", [
    (TypeError, "x is a list", lambda: nw.layer_norm([1.0])),
    (TypeError, "x is of type float64", lambda: nw.layer_norm(X.astype(np.float64))),
    (TypeError, "x is of type int32", lambda: nw.layer_norm(X.astype(np.int32))),
    (TypeError, "x is of type >f4", lambda: nw.layer_norm(X.astype(">f4"))),
    (ValueError, "x has the shape", lambda: nw.layer_norm(np.array(1.0, np.float32))),
    (ValueError, "x has the shape", lambda: nw.layer_norm(X[:, :0])),
    (TypeError, "gamma is a str", lambda: nw.layer_norm(X, "ones")),
    (TypeError, "gamma is fp16", lambda: nw.layer_norm(X, ONES.astype(np.float16))),
    (ValueError, "gamma has the shape", lambda: nw.layer_norm(X, SHORT)),
    (ValueError, "gamma has the shape", lambda: nw.layer_norm(X, PLANE)),
    (ValueError, "beta has the shape", lambda: nw.layer_norm(X, ONES, SHORT)),
    (TypeError, "beta is fp32", lambda: nw.layer_norm(X.astype(np.float16), ONES.astype(np.float16), ONES)),
    (ValueError, "residual has the shape", lambda: nw.add_layer_norm(X, X[:2])),
    (TypeError, "residual is fp16", lambda: nw.add_rms_norm(X, X.astype(np.float16))),
    (TypeError, "residual is None", lambda: nw.add_rms_norm(X, None)),
    (ValueError, "eps", lambda: nw.layer_norm(X, eps=-1.0)),
    (ValueError, "eps", lambda: nw.rms_norm(X, eps=float("nan"))),
    (ValueError, "dy has the shape", lambda: nw.layer_norm_backward(X[:2], X, ONES[:4], ONES[:4])),
    (ValueError, "mean has the shape", lambda: nw.layer_norm_backward(X, X, ONES, ONES[:4])),
    (TypeError, "rstd is None", lambda: nw.rms_norm_backward(X, X, None)),
    (ValueError, r"out \(y\) has the shape", lambda: nw.layer_norm(X, out=X[:2])),
    (TypeError, "out has 1 arrays", lambda: nw.add_layer_norm(X, X, out=X)),
    (ValueError, "x has the shape", lambda: nw.batch_norm(X[:1], training=True)),
    (ValueError, "running_mean is None", lambda: nw.batch_norm(X)),
    (ValueError, "running_var is None", lambda: nw.batch_norm(X, ONES)),
    (ValueError, "running_var is None", lambda: nw.batch_norm(X, ONES, training=True)),
    (
        ValueError, "channel_axis is 2",
        lambda: nw.batch_norm(np.ones((2, 3, 4, 5), np.float32), ONES, ONES, channel_axis=2),
    ),
    (ValueError, "momentum", lambda: nw.batch_norm(X, ONES.copy(), ONES.copy(), training=True, momentum=2.0)),
])
def test_errors_name_the_argument(error: type[Exception], message: str, call: Any) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_missing_gpu_is_said() -> None:
    with pytest.raises(nw.Error, match="^NW_ERROR_NO_DEVICE: there is no CUDA device here, or no driver for it"):
        _library.load().fail(12)


def test_torch_is_imported_late() -> None:
    code = (
        "import sys, numpy, normworklog as nw; nw.layer_norm(numpy.ones((2, 8), numpy.float32)); assert 'torch' not in "
        "sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(nw.__file__).parents[1])


def test_a_missing_library_is_said() -> None:
    code = "import normworklog as nw; nw.backend()"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(nw.__file__).parents[1], env={"NORMWORKLOG_LIBRARY": "/nowhere/lib.so"},
        capture_output=True, text=True,
    )
    assert ran.returncode != 0 and "there is no libnormworklog.so (looked for: /nowhere/lib.so)" in ran.stderr
