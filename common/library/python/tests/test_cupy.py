"""The package on CuPy's arrays, which speak DLPack, on a GPU."""

from __future__ import annotations

import pytest

import normworklog as nw

if nw.backend() != "cuda":
    pytest.skip("the library is a CPU build", allow_module_level=True)
cupy = pytest.importorskip("cupy")
try:
    cupy.cuda.runtime.getDeviceCount()
except cupy.cuda.runtime.CUDARuntimeError:
    pytest.skip("there is no GPU here", allow_module_level=True)


def norm(x: "cupy.ndarray") -> "cupy.ndarray":
    x = x.astype(cupy.float64)
    return (x - x.mean(-1, keepdims=True)) / cupy.sqrt(x.var(-1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float16", 2e-3)])
def test_layer_norm(dtype: str, tolerance: float) -> None:
    x = cupy.random.default_rng(1).standard_normal((64, 1000)).astype(dtype)
    y = nw.layer_norm(x)
    assert isinstance(y, cupy.ndarray) and y.dtype == x.dtype
    cupy.testing.assert_allclose(y.astype("float64"), norm(x), rtol=tolerance, atol=tolerance)
    cupy.testing.assert_allclose(
        nw.layer_norm(x[:, 1:900]).astype("float64"), norm(x[:, 1:900]), rtol=tolerance, atol=tolerance
    )
    cupy.testing.assert_allclose(nw.layer_norm(x.T).astype("float64"), norm(x.T), rtol=tolerance, atol=tolerance)


def test_on_a_stream() -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.random.default_rng(2).standard_normal((4096, 4096)).astype("float32")
        y = nw.layer_norm(x, stream=stream.ptr)
        want = norm(x)
    stream.synchronize()
    cupy.testing.assert_allclose(y.astype("float64"), want, rtol=1e-5, atol=1e-5)


def test_backward_and_out() -> None:
    x, dy = (cupy.random.default_rng(seed).standard_normal((32, 257)).astype("float32") for seed in (3, 4))
    _, mean, rstd = nw.layer_norm_forward(x)
    dx, dgamma, dbeta = nw.layer_norm_backward(dy, x, mean, rstd)
    cupy.testing.assert_allclose(dbeta, dy.sum(0), rtol=1e-4, atol=1e-4)
    cupy.testing.assert_allclose(dx.sum(1), cupy.zeros(32), atol=1e-3)
    out = cupy.empty_like(x)
    assert nw.layer_norm(x, out=out) is out
    cupy.testing.assert_allclose(out, nw.layer_norm(x), rtol=1e-6)
