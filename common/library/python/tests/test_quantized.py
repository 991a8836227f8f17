"""Norms with y in eight bits: on numpy arrays against a list of what eight bits can hold, and on PyTorch tensors."""

from __future__ import annotations

from typing import Any

import pytest

np = pytest.importorskip("numpy")
import normworklog as nw

try:
    import torch
except ImportError:
    torch = None

CPU = nw.backend() == "cpu"
on_numpy = pytest.mark.skipif(not CPU, reason="numpy arrays are in the CPU's memory, and the library is a GPU build")
on_torch = pytest.mark.skipif(
    torch is None or not hasattr(torch, "float8_e4m3fn") or not (CPU or torch.cuda.is_available()),
    reason="needs a PyTorch with float8_e4m3fn that sees the library's device",
)
DEVICE = "cpu" if CPU else "cuda"
EPS = 1e-5
LARGEST = {"e4m3": 448.0, "int8": 127.0}
NORMS = ["rms_norm_quantized", "layer_norm_quantized", "add_rms_norm_quantized", "add_layer_norm_quantized"]


def values_of(format: str, y: Any) -> Any:
    """The numbers that the bytes stand for."""
    if format == "int8":
        return y.astype(np.float64)
    bits = y.astype(np.int64)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    magnitude = np.where(bits & 0x7F == 0x7F, np.nan, magnitude)
    return np.where(bits & 0x80, -magnitude, magnitude)


def norm(name: str, x: Any, residual: Any, gamma: Any, beta: Any) -> tuple[Any, Any]:
    h = x if residual is None else (x + residual).astype(x.dtype)
    wide = h.astype(np.float64)
    mean = wide.mean(-1, keepdims=True) if "layer" in name else 0.0
    y = (wide - mean) / np.sqrt(((wide - mean) ** 2).mean(-1, keepdims=True) + EPS) * gamma.astype(np.float64)
    return (y + beta if "layer" in name else y), h


def arguments(name: str, shape: tuple[int, ...], dtype: str = "float32") -> tuple[Any, Any, Any, Any]:
    generator = np.random.default_rng(sum(shape))
    x, residual = (generator.standard_normal(shape).astype(np.float32).astype(dtype) for _ in range(2))
    gamma, beta = (generator.standard_normal(shape[-1]).astype(np.float32).astype(dtype) for _ in range(2))
    return x, residual if name.startswith("add") else None, gamma, beta


def call(name: str, x: Any, residual: Any, gamma: Any, beta: Any, **how: Any) -> tuple[Any, ...]:
    given = [x] if residual is None else [x, residual]
    return getattr(nw, name)(*given, gamma, *([beta] if "layer" in name else []), eps=EPS, **how)


def expect(name: str, format: str, scaling: str, y: Any, scales: Any, want: Any) -> None:
    """Half a step away at most, with scales that are the largest |y| of their part."""
    cols = want.shape[-1]
    starts = range(0, cols, 128 if scaling == "block" else cols)
    largest = np.stack([np.abs(want[..., i : i + (128 if scaling == "block" else cols)]).max(-1) for i in starts], -1)
    of_part = scales if scaling == "block" else scales[..., None]
    assert of_part.shape == largest.shape
    np.testing.assert_allclose(of_part, largest / LARGEST[format], rtol=1e-5)
    scale = np.repeat(of_part, 128 if scaling == "block" else cols, -1)[..., :cols]
    got, wanted = values_of(format, y), want / scale
    step = np.maximum(2.0 ** np.floor(np.log2(np.maximum(np.abs(wanted), 2.0**-6)) - 3), 2.0**-9)
    step = step if format == "e4m3" else 1.0
    assert np.all(np.abs(got - wanted) <= 0.5 * step * (1 + 1e-3) + 1e-4), name
    assert np.abs(got).max() == LARGEST[format]  # the largest uses all of the range


@on_numpy
@pytest.mark.parametrize("format", ["e4m3", "int8"])
@pytest.mark.parametrize("scaling", ["row", "block"])
@pytest.mark.parametrize("name", NORMS)
def test_numpy(name: str, format: str, scaling: str) -> None:
    for shape in ((3, 33), (2, 2, 300), (4, 1024)):
        for dtype in ("float32", "float16"):
            x, residual, gamma, beta = arguments(name, shape, dtype)
            y, *h, scales = call(name, x, residual, gamma, beta, format=format, scaling=scaling)
            want, sums = norm(name, x, residual, gamma, beta)
            assert y.shape == shape and y.dtype == ("uint8" if format == "e4m3" else "int8")
            assert scales.dtype == np.float32
            expect(name, format, scaling, y, scales, want)
            if residual is not None:
                assert h[0].dtype == x.dtype
                np.testing.assert_array_equal(h[0], sums)


@on_numpy
def test_a_scale_that_is_given() -> None:
    x, _, gamma, _ = arguments("rms_norm_quantized", (5, 200))
    scale = np.array([0.01], np.float32)
    for format in ("e4m3", "int8"):
        (y,) = nw.rms_norm_quantized(x, gamma, eps=EPS, format=format, scale=scale)
        want = norm("rms_norm_quantized", x, None, gamma, None)[0] / 0.01
        got = values_of(format, y)
        assert np.all(np.abs(got - np.clip(want, -448 if format == "e4m3" else -128, LARGEST[format])) <= 16)
        assert (np.abs(want) > LARGEST[format]).any()  # and so it saturates


@on_numpy
def test_rows_of_zeros_and_of_nan() -> None:
    x = np.ones((3, 256), np.float32)
    x[0] = 0
    x[1, 7] = np.nan
    for format, scaling in (("e4m3", "row"), ("int8", "row"), ("e4m3", "block")):
        y, scales = nw.rms_norm_quantized(x, format=format, scaling=scaling)
        assert np.all(scales[0] == 2.0**-126) and np.all(y[0] == 0)
        assert np.isnan(scales[1]).all() and np.all(y[1] == (0x7F if format == "e4m3" else 0))
        assert np.isfinite(scales[2]).all()


@on_numpy
@pytest.mark.parametrize("value", [3.3, 1e9, 1e30, 0.51 * 2.0**127, -0.99 * 2.0**127])
def test_equal_values_leave_nothing(value: float) -> None:
    """However large they are, and however their sum is rounded: y is 0, or beta."""
    for cols in (41, 1000, 3000, 4097, 12289, 50257):
        x = np.full((2, cols), value, np.float32)
        assert np.all(nw.layer_norm_quantized(x)[0] & 0x7F == 0)
        y, scales = nw.layer_norm_quantized(x, None, np.full(cols, 7, np.float32))
        assert np.all(y == 0x7E) and np.all(scales == np.float32(7) * np.float32(1 / 448))


@on_numpy
@pytest.mark.parametrize("scaling", ["row", "block"])
@pytest.mark.parametrize("name", ["rms_norm_quantized", "add_rms_norm_quantized"])
def test_rows_whose_products_are_no_use(name: str, scaling: str) -> None:
    """RMSNorm takes the largest |y| from x gamma. Rows where that overflows or loses digits take another way, with the
    same result; and what the others are must not change a row."""
    x, residual, gamma, _ = arguments(name, (5000, 256))
    kinds = [1, 1e-30, 1e30, 1e-12] if scaling == "row" else [1, 1e-20, 1e30, 1e-12]
    x *= np.array(kinds, np.float32)[np.arange(5000) % 4, None]
    if residual is not None:
        residual *= np.array(kinds, np.float32)[np.arange(5000) % 4, None]
        residual[0, 128:] = 0
    if scaling == "block":  # products that overflow in one, and are small in the other
        gamma[:128] *= np.float32(1e10)
        gamma[128:] *= np.float32(1e-14)
    x[0, 128:] = 0
    y, *_, scales = call(name, x, residual, gamma, None, scaling=scaling)
    want, _ = norm(name, x, residual, gamma, None)
    for rows in (slice(0, 1), slice(1, 5000)):
        filled = want[rows, :128] if scaling == "block" and rows.stop == 1 else want[rows]
        of_filled = scales[rows, :1] if scaling == "block" and rows.stop == 1 else scales[rows]
        expect(name, "e4m3", scaling, y[rows, : filled.shape[-1]], of_filled, filled)
    for i in range(8):
        of_row = None if residual is None else residual[i : i + 1]
        alone = call(name, x[i : i + 1], of_row, gamma, None, scaling=scaling)
        np.testing.assert_array_equal(alone[0][0], y[i])
        np.testing.assert_array_equal(alone[-1][0], scales[i])


@on_numpy
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_gamma_that_is_no_number(value: float) -> None:
    x, _, gamma, _ = arguments("rms_norm_quantized", (5, 256))
    gamma[7] = value
    y, scales = nw.rms_norm_quantized(x, gamma, eps=EPS, scaling="block")
    assert not np.isfinite(scales[:, 0]).any() and np.isfinite(scales[:, 1]).all()
    assert np.all(y[:, 7] == 0x7F) and not np.any(y[:, 128:] & 0x7F == 0x7F)


@on_numpy
def test_what_is_refused() -> None:
    x = np.ones((2, 8), np.float32)
    with pytest.raises(ValueError, match="format is 'e5m2'; it must be 'e4m3' or 'int8'"):
        nw.rms_norm_quantized(x, format="e5m2")
    with pytest.raises(ValueError, match="scaling is 'tensor'; it must be 'row' or 'block', or `scale` must be given"):
        nw.rms_norm_quantized(x, scaling="tensor")
    with pytest.raises(ValueError, match=r"scale has the shape \(2,\); it must be \(1,\)"):
        nw.rms_norm_quantized(x, scale=np.ones(2, np.float32))
    with pytest.raises(TypeError, match="residual is None"):
        nw.add_rms_norm_quantized(x, None)
    with pytest.raises(TypeError, match="int8"):
        nw.rms_norm_quantized(x.astype(np.int8))


# --- PyTorch ----------------------------------------------------------------------------------------------------------
def tensors(name: str, shape: tuple[int, ...], dtype: Any) -> list[Any]:
    return [None if a is None else torch.from_numpy(a).to(DEVICE, dtype) for a in arguments(name, shape)]


@on_torch
@pytest.mark.parametrize("format", ["e4m3", "int8"])
@pytest.mark.parametrize("scaling", ["row", "block"])
@pytest.mark.parametrize("name", NORMS)
def test_tensors(name: str, format: str, scaling: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x, residual, gamma, beta = tensors(name, (3, 5, 300), dtype)
        y, *h, scales = call(name, x, residual, gamma, beta, format=format, scaling=scaling)
        assert y.dtype is (torch.float8_e4m3fn if format == "e4m3" else torch.int8)
        assert y.shape == x.shape and scales.dtype is torch.float32
        assert scales.shape == ((3, 5) if scaling == "row" else (3, 5, 3))
        sums = x if residual is None else x + residual
        if residual is not None:
            assert torch.equal(h[0], sums)
        want = norm(name, sums.cpu().double().numpy(), None, gamma.cpu().double().numpy(), beta.cpu().double().numpy())
        bits = y.cpu().view(torch.uint8).numpy() if format == "e4m3" else y.cpu().numpy()
        expect(name, format, scaling, bits, scales.cpu().numpy(), want[0])


@on_torch
def test_no_gradient() -> None:
    x = torch.ones(2, 64, device=DEVICE, requires_grad=True)
    with pytest.raises(RuntimeError, match="the quantized norms are for inference"):
        nw.rms_norm_quantized(x)
    with torch.no_grad():
        nw.rms_norm_quantized(x)
    y, _, scales = torch.ops.normworklog.quantized_norm(x, None, None, None, None, EPS, False, "e4m3", "row")
    with pytest.raises(RuntimeError, match="the quantized norms are for inference"):
        scales.sum().backward()


@on_torch
def test_the_operator() -> None:
    from torch import library

    for scaling, given in (("row", False), ("block", False), ("row", True)):
        x, residual, gamma, beta = tensors("add_layer_norm_quantized", (4, 200), torch.float32)
        scale = torch.full((1,), 0.05, device=DEVICE) if given else None
        operands = (x, residual, gamma, beta, scale, EPS, True, "e4m3", scaling)
        found = library.opcheck(torch.ops.normworklog.quantized_norm, operands, raise_exception=False)
        assert found["test_schema"] == found["test_faketensor"] == "SUCCESS", found  # it has no gradient to look at
