"""RMSNorm of the heads of q and k, which are views of the projection that they come out of: on numpy arrays and on
PyTorch's tensors, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normworklog as nw
from normworklog import _library

CPU = nw.backend() == "cpu"
needs_cpu = pytest.mark.skipif(not CPU, reason="numpy arrays are in the CPU's memory, and the library is a GPU build")
EPS = 1e-6
SHAPES = [
    ((5,), 4, 2, 128), ((2, 3), 3, 1, 64), ((7,), 2, 2, 80), ((3,), 3, 2, 65), ((4,), 5, 0, 128), ((1,), 2, 1, 32),
]


def projection(leading: tuple[int, ...], q_heads: int, k_heads: int, dim: int, interleaved: bool = False) -> Any:
    """The whole, and its parts as views: q, k and v of a token side by side, or those of each head."""
    rng = np.random.default_rng(dim + q_heads)
    if interleaved:
        whole = rng.standard_normal((*leading, q_heads, 3, dim)).astype(np.float32)
        return whole, whole[..., 0, :], whole[..., 1, :] if k_heads else None
    whole = rng.standard_normal((*leading, q_heads + 2 * max(k_heads, 1), dim)).astype(np.float32)
    return whole, whole[..., :q_heads, :], whole[..., q_heads : q_heads + k_heads, :] if k_heads else None


def gamma(dim: int, seed: int) -> Any:
    return (0.1 * np.random.default_rng(seed).standard_normal(dim)).astype(np.float32)


def wanted(x: Any, weight: Any, offset: float) -> Any:
    x = x.astype(np.float64)
    factor = 1.0 if weight is None else weight.astype(np.float64) + offset
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * factor


def wanted_gradients(dy: Any, x: Any, weight: Any, offset: float) -> tuple[Any, Any]:
    dy, x = dy.astype(np.float64), x.astype(np.float64)
    rstd = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
    wdy, xhat = dy * (weight.astype(np.float64) + offset), x * rstd
    dx = rstd * (wdy - xhat * (wdy * xhat).mean(-1, keepdims=True))
    return dx, (dy * xhat).sum(tuple(range(dy.ndim - 1)))


def close(got: Any, want: Any, factor: float = 1.0) -> None:
    np.testing.assert_allclose(got, want, rtol=1.3e-6 * factor, atol=1e-5 * factor)


@needs_cpu
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("leading, q_heads, k_heads, dim", SHAPES)
def test_of_numpy(
    leading: tuple[int, ...], q_heads: int, k_heads: int, dim: int, offset: float, interleaved: bool
) -> None:
    if interleaved and k_heads not in (0, q_heads):
        k_heads = q_heads
    whole, q, k = projection(leading, q_heads, k_heads, dim, interleaved)
    before = whole.copy()
    weights = gamma(dim, 1), gamma(dim, 2)
    want = [wanted(x, w, offset) for x, w in zip((q, k), weights) if x is not None]
    found = nw.qk_norm(q, k, *weights, EPS, offset)
    for mine, theirs in zip((found,) if k is None else found, want):
        assert mine.flags.c_contiguous
        close(mine, theirs)
    np.testing.assert_array_equal(whole, before)
    for x, theirs in zip((q, k), want):
        close(nw.qk_norm(x, q_gamma=None, eps=EPS), wanted(x, None, offset))
    out = nw.qk_norm(q, k, *weights, EPS, offset, inplace=True)
    assert out is q if k is None else out[0] is q and out[1] is k
    for x, theirs in zip((q, k), want):
        close(x, theirs)
    v = (slice(None),) * len(leading) + ((slice(None), 2) if interleaved else (slice(q_heads + k_heads, None),))
    np.testing.assert_array_equal(whole[v], before[v])


@needs_cpu
@pytest.mark.parametrize("leading, q_heads, k_heads, dim", SHAPES)
def test_gradients_of_numpy(leading: tuple[int, ...], q_heads: int, k_heads: int, dim: int) -> None:
    _, q, k = projection(leading, q_heads, k_heads, dim)
    _, dq_out, dk_out = projection(leading, q_heads, k_heads, dim, False)
    dq_out, dk_out = dq_out[..., ::-1].copy(), None if k is None else dk_out[..., ::-1].copy()
    weights = gamma(dim, 1), gamma(dim, 2) if k is not None else None
    found = nw.qk_norm_forward(q, k, *weights, EPS, 1.0)
    statistics = (found[1], None) if k is None else found[2:]
    got = nw.qk_norm_backward(dq_out, dk_out, q, k, *statistics, *weights, 1.0)
    again = nw.qk_norm_backward(dq_out, dk_out, q, k, *statistics, *weights, 1.0)
    want = [wanted_gradients(dq_out, q, weights[0], 1.0)]
    if k is not None:
        want.append(wanted_gradients(dk_out, k, weights[1], 1.0))
    for mine, once_more, theirs in zip(got, again, [w[0] for w in want] + [w[1] for w in want]):
        close(mine, theirs, 4)
        np.testing.assert_array_equal(mine, once_more)


@needs_cpu
def test_rms_norm_of_a_view_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, q, _ = projection((6,), 3, 1, 64)
    weight = gamma(64, 3) + np.float32(1)
    called = []
    function = _library.qk_norm
    monkeypatch.setattr(_library, "qk_norm", lambda *a: (called.append(1), function(*a)))
    close(nw.rms_norm(q, weight, EPS), wanted(q, weight, 0.0))
    y, rstd = nw.rms_norm_forward(q, weight, EPS)
    close(y, wanted(q, weight, 0.0))
    assert rstd.shape == (18,)
    assert len(called) == 2
    nw.rms_norm(whole, weight, EPS)
    assert len(called) == 2


@needs_cpu
def test_what_is_refused() -> None:
    _, q, k = projection((5,), 4, 2, 64)
    for arguments, sentence in (
        ((q[0],), "q has the shape"),
        ((q, k[:4]), "k has the shape"),
        ((q, k.astype(np.float16)), "k is fp16"),
        ((q, k, gamma(63, 1)), "q_gamma has the shape"),
        ((q, k, None, None, -1.0), "eps must be"),
        ((q, k, None, None, EPS, 0.5), "gamma_offset must be 0 or 1; it is 0.5"),
    ):
        with pytest.raises((TypeError, ValueError), match=sentence):
            nw.qk_norm(*arguments)
    with pytest.raises(ValueError, match="q cannot be written in place"):
        nw.qk_norm(q[::-1][..., ::2], inplace=True)
    with pytest.raises(ValueError, match="out is given"):
        nw.qk_norm(q, inplace=True, out=q)
    with pytest.raises(ValueError, match="dq_out has 2 heads; it must have those of q, 4"):
        nw.qk_norm_backward(k, None, q, None, nw.qk_norm_forward(q)[1])
    with pytest.raises(ValueError, match=r"q_rstd must be contiguous float32 of the shape \(5, 4\)"):
        nw.qk_norm_backward(q, None, q, None, np.ones(20, np.float32))


# --- PyTorch ----------------------------------------------------------------------------------------------------------
try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]
needs_torch = pytest.mark.skipif(
    torch is None or not (CPU or torch.cuda.is_available()), reason="needs PyTorch, and the device of the library"
)
TYPES = [("float32", "float32"), ("float16", "float16"), ("bfloat16", "float32"), ("bfloat16", "bfloat16")]


def tensors(leading: tuple[int, ...], q_heads: int, k_heads: int, dim: int, dtype: str = "float32",
            parameters: str = "float32", interleaved: bool = False) -> Any:
    whole, _, _ = projection(leading, q_heads, k_heads, dim, interleaved)
    packed = torch.from_numpy(whole).to("cpu" if CPU else "cuda", getattr(torch, dtype))
    weights = [torch.from_numpy(gamma(dim, s)).to(packed.device, getattr(torch, parameters)) for s in (1, 2)]
    if interleaved:
        return packed, packed[..., 0, :], packed[..., 1, :], weights
    return packed, packed[..., :q_heads, :], packed[..., q_heads : q_heads + k_heads, :] if k_heads else None, weights


def theirs(x: Any, weight: Any, offset: float) -> Any:
    x = x.double()
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
    return y if weight is None else y * (weight.double() + offset)


def near(got: Any, want: Any, factor: float = 1.0) -> None:
    rtol = {torch.float32: 1.3e-6, torch.float16: 1e-3, torch.bfloat16: 1.6e-2}[got.dtype]
    torch.testing.assert_close(got.double(), want, rtol=rtol * factor, atol=1e-5 * factor)


@needs_torch
@pytest.mark.parametrize("way", ["direct", "operator"])
@pytest.mark.parametrize("dtype, parameters", TYPES)
@pytest.mark.parametrize("leading, q_heads, k_heads, dim", SHAPES)
def test_of_tensors(leading: tuple[int, ...], q_heads: int, k_heads: int, dim: int, dtype: str, parameters: str,
                    way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from normworklog.torch import _functions

    if way == "operator":
        monkeypatch.setattr(_functions, "_direct", lambda *_: False)
    packed, q, k, weights = tensors(leading, q_heads, k_heads, dim, dtype, parameters)
    both = [(x, w) for x, w in zip((q, k), weights) if x is not None]
    for offset in (0.0, 1.0):
        found = nw.qk_norm(q, k, *weights, EPS, offset)
        for mine, (x, w) in zip((found,) if k is None else found, both):
            assert mine.is_contiguous()
            near(mine, theirs(x, w, offset))
    # The gradient reaches the projection itself, and the weights.
    leaf = packed.detach().clone().requires_grad_()
    parts = [leaf[..., :q_heads, :], leaf[..., q_heads : q_heads + k_heads, :] if k_heads else None]
    own = [w.clone().requires_grad_() for _, w in both]
    found = nw.qk_norm(*parts, *own, *([None] if k is None else []), EPS, 1.0)
    outputs = (found,) if k is None else found
    slopes = [torch.randn(y.shape, generator=torch.Generator().manual_seed(9)).to(y.device, y.dtype) for y in outputs]
    got = torch.autograd.grad(outputs, [leaf, *own], slopes)
    leaf64, own64 = leaf.detach().double().requires_grad_(), [w.detach().double().requires_grad_() for w in own]
    parts64 = [leaf64[..., :q_heads, :], leaf64[..., q_heads : q_heads + k_heads, :]]
    want = torch.autograd.grad(
        [theirs(x, w, 1.0) for x, w in zip(parts64, own64)], [leaf64, *own64], [s.double() for s in slopes]
    )
    for mine, wide in zip(got, want):
        near(mine, wide, 4)
    before, version = packed.clone(), packed._version
    wide_before = [theirs(x, w, 0.0) for x, w in both]
    result = nw.qk_norm(q, k, *weights, EPS, inplace=True)
    assert (result if k is None else result[0]) is q and packed._version > version
    for (x, _), want_of_x in zip(both, wide_before):
        near(x, want_of_x)
    v = (..., slice(q_heads + k_heads, None), slice(None))
    assert torch.equal(packed[v], before[v])


@needs_torch
def test_of_interleaved_tensors_and_other_layouts() -> None:
    _, q, k, weights = tensors((2, 5), 3, 3, 64, interleaved=True)
    want = [theirs(x, w, 0.0) for x, w in zip((q, k), weights)]
    for mine, wide in zip(nw.qk_norm(q, k, *weights, EPS), want):
        near(mine, wide)
    turned = q.transpose(1, 2)  # [batch, heads, sequence, head_dim]: no evenly spaced tokens, so a copy
    near(nw.qk_norm(turned, None, weights[0], eps=EPS), theirs(turned, weights[0], 0.0))
    with pytest.raises(ValueError, match="q cannot be written in place"):
        nw.qk_norm(turned, inplace=True)
    nw.qk_norm(q, k, *weights, EPS, inplace=True)
    near(q, want[0]), near(k, want[1])
    with pytest.raises(ValueError, match="a gradient is wanted"):
        nw.qk_norm(torch.ones(2, 3, 8, device=q.device, requires_grad=True) * 1, inplace=True)
    empty = nw.qk_norm(q[:0], k[:0], *weights)
    assert empty[0].shape == (0, 5, 3, 64)


@needs_torch
def test_rms_norm_of_a_view_of_a_tensor_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    packed, q, _, weights = tensors((2, 6), 3, 1, 64)
    called: list[str] = []
    for name in ("qk_norm", "qk_norm_backward"):
        function = getattr(_library, name)
        monkeypatch.setattr(_library, name, lambda *a, n=name, f=function: (called.append(n), f(*a)))
    near(nw.rms_norm(q, weights[0], EPS), theirs(q, weights[0], 0.0))
    leaf, weight = packed.clone().requires_grad_(), weights[0].clone().requires_grad_()
    y = nw.rms_norm(leaf[..., :3, :], weight, EPS)
    got = torch.autograd.grad(y, (leaf, weight), torch.ones_like(y))
    assert called == ["qk_norm", "qk_norm", "qk_norm_backward"]
    leaf64, weight64 = leaf.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    want64 = theirs(leaf64[..., :3, :], weight64, 0.0)
    for mine, wide in zip(got, torch.autograd.grad(want64, (leaf64, weight64), torch.ones_like(want64))):
        near(mine, wide, 4)
    nw.rms_norm(packed, weights[0], EPS)
    assert len(called) == 3


@needs_torch
def test_opcheck_of_heads() -> None:
    from torch import library

    _, q, k, weights = tensors((2, 3), 2, 1, 8)
    q, k = q.detach().clone().requires_grad_(), k.detach().clone().requires_grad_()
    own = [w.requires_grad_() for w in weights]
    ops = torch.ops.normworklog
    library.opcheck(ops.qk_norm.default, (q, k, *own, EPS, 1.0, False))
    library.opcheck(ops.qk_norm.default, (q, None, own[0], None, EPS, 0.0, True))
    plain = [t.detach() for t in (q, k, *own)]
    library.opcheck(ops.qk_norm_.default, (*[t.clone() for t in plain[:2]], *plain[2:], EPS, 0.0, False))
    rstd = [torch.ones(6, t.shape[-2], device=t.device) for t in plain[:2]]
    library.opcheck(ops.qk_norm_backward.default, (*plain[:2], *plain, *rstd, 0.0, [True, True, True, True]))
    library.opcheck(
        ops.qk_norm_backward.default,
        (plain[0], None, plain[0], None, plain[2], None, rstd[0], None, 0.0, [True, False, True, False]),
    )


@needs_torch
def test_compile_of_heads() -> None:
    def step(packed: Any, q_weight: Any, k_weight: Any) -> Any:
        q, k = nw.qk_norm(packed[..., :4, :], packed[..., 4:6, :], q_weight, k_weight, offset=1.0)
        return (q.sum(-2) * k.sum(-2)).sum()

    packed, _, _, weights = tensors((2, 3), 4, 2, 16)
    inputs = [t.clone().requires_grad_() for t in (packed, *weights)]
    want = torch.autograd.grad(step(*inputs), inputs)
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager" if CPU else "inductor")
    for mine, wide in zip(torch.autograd.grad(compiled(*inputs), inputs), want):
        torch.testing.assert_close(mine, wide)
