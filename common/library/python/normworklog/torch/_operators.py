"""The kernels as PyTorch operators, torch.ops.normworklog.*: with fake implementations for tracing, and with autograd.

Compiled code, tensor subclasses and function transforms go through these. They are functional: BatchNorm's operator
returns the new running statistics. The backward passes are operators of their own, and have no derivatives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, library

from . import _launch
from ._launch import pointer

NAMESPACE = "normworklog"
_definitions = library.Library(NAMESPACE, "DEF")


def _floats(like: Tensor, size: int) -> Tensor:
    return torch.empty(size, dtype=torch.float32, device=like.device)


def _rows(x: Tensor) -> int:
    rows = 1
    for size in x.shape[:-1]:
        rows *= size
    return rows


def _optional(tensor: Tensor | None, like: Tensor) -> Tensor:
    """Operators return tensors only: an empty one where there is none."""
    return like.new_empty(0) if tensor is None else tensor


def _define(schema: str, implementation: Any, fake: Any) -> None:
    name = schema.split("(")[0]
    _definitions.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for device in ("CUDA", "CPU"):  # where the library's build works on the other one, its check of x says so
        _definitions.impl(name, implementation, device)
    library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_definitions)


# --- Norms over rows --------------------------------------------------------------------------------------------------
def _norm(x: Tensor, residual: Tensor | None, gamma: Tensor | None, beta: Tensor | None, eps: float, centered: bool,
          round_before_gamma: bool, offset: float) -> tuple[Tensor, ...]:
    """(y, h if there is a residual, mean if centered, rstd)."""
    mean, rstd = _floats(x, _rows(x)) if centered else None, _floats(x, _rows(x))
    y, h = _launch.forward(
        x, residual, gamma, beta, eps, centered, round_before_gamma, offset, pointer(mean), rstd.data_ptr()
    )
    return tuple(t for t in (y, h, mean, rstd) if t is not None)


def _norm_fake(x: Tensor, residual: Tensor | None, centered: bool) -> tuple[Tensor, ...]:
    wide = [x.new_empty(x.shape) for _ in range(1 if residual is None else 2)]
    return *wide, *[x.new_empty(_rows(x), dtype=torch.float32) for _ in range(2 if centered else 1)]


def _norm_backward(
    dy: Tensor, x: Tensor, dh: Tensor | None, gamma: Tensor | None, mean: Tensor | None, rstd: Tensor, mask: list[bool],
    parameter_type: torch.dtype | None, offset: float,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = _rows(x)
    for name, vector in (("mean", mean), ("rstd", rstd)):
        if vector is not None and (
            vector.dtype != torch.float32
            or vector.numel() != rows
            or vector.device != x.device
            or not vector.is_contiguous()
        ):
            raise ValueError(
                f"{name} must be a contiguous tensor of {rows} float32 on {x.device}, as the forward pass wrote it"
            )
    found = _launch.backward(
        dy, x, dh, gamma, pointer(mean), rstd.data_ptr(), (mask[0], mask[1], mask[2]), parameter_type, mean is not None,
        offset,
    )
    return tuple(_optional(t, x) for t in found)  # type: ignore[return-value]


def _norm_backward_fake(
    dy: Tensor, x: Tensor, gamma: Tensor | None, mask: list[bool], parameter_type: torch.dtype | None
) -> tuple[Tensor, ...]:
    dtype = gamma.dtype if gamma is not None else parameter_type or x.dtype
    shapes = (x.shape, x.shape[-1:], x.shape[-1:])
    return tuple(
        x.new_empty(shape if wanted else (0,), dtype=t if wanted else x.dtype)
        for wanted, shape, t in zip(mask, shapes, (x.dtype, dtype, dtype))
    )


# `offset`, 0 or 1, is added to gamma.
_define(
    "layer_norm(Tensor x, Tensor? gamma, Tensor? beta, float eps, float offset=0.0) -> (Tensor y, Tensor mean, Tensor "
    "rstd)",
    lambda x, gamma, beta, eps, offset=0.0: _norm(x, None, gamma, beta, eps, True, False, offset),
    lambda x, gamma, beta, eps, offset=0.0: _norm_fake(x, None, True),
)
_define(
    "rms_norm(Tensor x, Tensor? gamma, float eps, bool round_before_gamma, float offset=0.0) -> (Tensor y, Tensor "
    "rstd)",
    lambda x, gamma, eps, rounded, offset=0.0: _norm(x, None, gamma, None, eps, False, rounded, offset),
    lambda x, gamma, eps, rounded, offset=0.0: _norm_fake(x, None, False),
)
_define(
    "add_layer_norm(Tensor x, Tensor residual, Tensor? gamma, Tensor? beta, float eps, float offset=0.0) -> (Tensor y, "
    "Tensor h, Tensor mean, Tensor rstd)",
    lambda x, residual, gamma, beta, eps, offset=0.0: _norm(x, residual, gamma, beta, eps, True, False, offset),
    lambda x, residual, gamma, beta, eps, offset=0.0: _norm_fake(x, residual, True),
)
_define(
    "add_rms_norm(Tensor x, Tensor residual, Tensor? gamma, float eps, bool round_before_gamma, float offset=0.0) -> "
    "(Tensor y, Tensor h, Tensor rstd)",
    lambda x, residual, gamma, eps, rounded, offset=0.0: _norm(
        x, residual, gamma, None, eps, False, rounded, offset
    ),
    lambda x, residual, gamma, eps, rounded, offset=0.0: _norm_fake(x, residual, False),
)
# `mask`: which of dx, dgamma, dbeta are wanted; the others come back empty. `parameter_type`: of dgamma and dbeta where
# there is no gamma to tell.
_define(
    "layer_norm_backward(Tensor dy, Tensor x, Tensor? dh, Tensor? gamma, Tensor mean, Tensor rstd, bool[] mask, "
    "ScalarType? parameter_type=None, float offset=0.0) -> (Tensor dx, Tensor dgamma, Tensor dbeta)",
    lambda dy, x, dh, gamma, mean, rstd, mask, parameter_type=None, offset=0.0: _norm_backward(
        dy, x, dh, gamma, mean, rstd, mask, parameter_type, offset
    ),
    lambda dy, x, dh, gamma, mean, rstd, mask, parameter_type=None, offset=0.0: _norm_backward_fake(
        dy, x, gamma, mask, parameter_type
    ),
)
_define(
    "rms_norm_backward(Tensor dy, Tensor x, Tensor? dh, Tensor? gamma, Tensor rstd, bool[] mask, float offset=0.0) -> "
    "(Tensor dx, Tensor dgamma)",
    lambda dy, x, dh, gamma, rstd, mask, offset=0.0: _norm_backward(
        dy, x, dh, gamma, None, rstd, [*mask, False], None, offset
    )[:2],
    lambda dy, x, dh, gamma, rstd, mask, offset=0.0: _norm_backward_fake(dy, x, gamma, mask, None),
)

operators = torch.ops.normworklog


def _save_norm(
    ctx: Any, normalized: Tensor, gamma: Tensor | None, beta: Tensor | None, mean: Tensor | None, rstd: Tensor,
    offset: float,
) -> None:
    ctx.save_for_backward(normalized, gamma, mean, rstd)
    ctx.offset = offset
    ctx.parameter_type = None if beta is None else beta.dtype
    ctx.set_materialize_grads(False)


def _norm_gradients(
    ctx: Any, dy: Tensor | None, dh: Tensor | None, want_dx: bool, want_dgamma: bool, want_dbeta: bool
) -> tuple[Tensor | None, ...]:
    """dx, dgamma, dbeta from the gradients of y and h."""
    normalized, gamma, mean, rstd = ctx.saved_tensors
    if dy is None:  # nothing depends on y: h = x + residual alone is left
        return dh if want_dx else None, None, None
    mask = [want_dx, want_dgamma, want_dbeta]
    if mean is None:
        found = (*operators.rms_norm_backward(dy, normalized, dh, gamma, rstd, mask[:2], ctx.offset), None)
    else:
        found = operators.layer_norm_backward(
            dy, normalized, dh, gamma, mean, rstd, mask, ctx.parameter_type, ctx.offset
        )
    return tuple(gradient if wanted else None for gradient, wanted in zip(found, mask))


def _layer_norm_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, gamma, beta, _, offset = inputs
    _save_norm(ctx, x, gamma, beta, output[1], output[2], offset)
    ctx.mark_non_differentiable(output[1], output[2])


def _layer_norm_gradient(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    want_x, want_gamma, want_beta = ctx.needs_input_grad[:3]
    return *_norm_gradients(ctx, dy, None, want_x, want_gamma, want_beta), None, None


def _rms_norm_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, gamma, _, _, offset = inputs
    _save_norm(ctx, x, gamma, None, None, output[1], offset)
    ctx.mark_non_differentiable(output[1])


def _rms_norm_gradient(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    want_x, want_gamma = ctx.needs_input_grad[:2]
    return *_norm_gradients(ctx, dy, None, want_x, want_gamma, False)[:2], None, None, None


def _add_layer_norm_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, gamma, beta, _, offset = inputs
    _, h, mean, rstd = output
    _save_norm(ctx, h, gamma, beta, mean, rstd, offset)
    ctx.mark_non_differentiable(mean, rstd)


def _add_layer_norm_gradient(ctx: Any, dy: Tensor | None, dh: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    want_x, want_residual, want_gamma, want_beta = ctx.needs_input_grad[:4]
    dx, dgamma, dbeta = _norm_gradients(ctx, dy, dh, want_x or want_residual, want_gamma, want_beta)
    return dx if want_x else None, dx if want_residual else None, dgamma, dbeta, None, None


def _add_rms_norm_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, gamma, _, _, offset = inputs
    _, h, rstd = output
    _save_norm(ctx, h, gamma, None, None, rstd, offset)
    ctx.mark_non_differentiable(rstd)


def _add_rms_norm_gradient(ctx: Any, dy: Tensor | None, dh: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    want_x, want_residual, want_gamma = ctx.needs_input_grad[:3]
    dx, dgamma, _ = _norm_gradients(ctx, dy, dh, want_x or want_residual, want_gamma, False)
    return dx if want_x else None, dx if want_residual else None, dgamma, None, None, None


# --- Heads of q and k -------------------------------------------------------------------------------------------------
def _tokens(q: Tensor) -> int:
    tokens = 1
    for size in q.shape[:-2]:
        tokens *= size
    return tokens


def _qk_norm(
    q: Tensor, k: Tensor | None, q_gamma: Tensor | None, k_gamma: Tensor | None, eps: float, offset: float,
    round_before_gamma: bool,
) -> tuple[Tensor, ...]:
    """(q_out, k_out, q_rstd, k_rstd); those of k are empty where there is none."""
    rstd = [None if t is None else torch.empty(t.shape[:-1].numel(), dtype=torch.float32, device=q.device).view(
        -1, t.shape[-2]) for t in (q, k)]
    q_out, k_out = _launch.heads_forward(
        q, k, q_gamma, k_gamma, eps, offset, round_before_gamma, False, pointer(rstd[0]), pointer(rstd[1])
    )
    assert rstd[0] is not None
    return q_out, _optional(k_out, q), rstd[0], _optional(rstd[1], rstd[0])


def _qk_norm_fake(
    q: Tensor, k: Tensor | None, q_gamma: Tensor | None, k_gamma: Tensor | None, eps: float, offset: float,
    round_before_gamma: bool,
) -> tuple[Tensor, ...]:
    k_shape, k_rows = ((0,), (0,)) if k is None else (k.shape, (_tokens(k), k.shape[-2]))
    return (q.new_empty(q.shape), q.new_empty(k_shape), q.new_empty((_tokens(q), q.shape[-2]), dtype=torch.float32),
            q.new_empty(k_rows, dtype=torch.float32))


def _qk_norm_in_place(
    q: Tensor, k: Tensor | None, q_gamma: Tensor | None, k_gamma: Tensor | None, eps: float, offset: float,
    round_before_gamma: bool,
) -> None:
    _launch.heads_forward(q, k, q_gamma, k_gamma, eps, offset, round_before_gamma, True, 0, 0)


def _qk_norm_backward(
    dq_out: Tensor, dk_out: Tensor | None, q: Tensor, k: Tensor | None, q_gamma: Tensor | None,
    k_gamma: Tensor | None, q_rstd: Tensor, k_rstd: Tensor | None, offset: float, mask: list[bool],
) -> tuple[Tensor, ...]:
    for name, vector, heads in (("q_rstd", q_rstd, q), ("k_rstd", k_rstd, k)):
        if heads is None:
            continue
        shape = (_tokens(heads), heads.shape[-2])
        if vector is None or vector.dtype != torch.float32 or tuple(vector.shape) != shape or (
            vector.device != q.device or not vector.is_contiguous()
        ):
            raise ValueError(
                f"{name} must be a contiguous tensor of {shape} float32 on {q.device}, as the forward pass wrote it"
            )
    found = _launch.heads_backward(
        dq_out, dk_out, q, k, q_gamma, k_gamma, q_rstd.data_ptr(), pointer(k_rstd), offset,
        (mask[0], mask[1], mask[2], mask[3]),
    )
    return tuple(_optional(t, q) for t in found)


def _qk_norm_backward_fake(
    dq_out: Tensor, dk_out: Tensor | None, q: Tensor, k: Tensor | None, q_gamma: Tensor | None,
    k_gamma: Tensor | None, q_rstd: Tensor, k_rstd: Tensor | None, offset: float, mask: list[bool],
) -> tuple[Tensor, ...]:
    some = q_gamma if q_gamma is not None else k_gamma
    dtype = q.dtype if some is None else some.dtype
    k_shapes = (None, None) if k is None else (k.shape, q.shape[-1:])
    shapes = (q.shape, k_shapes[0], q.shape[-1:], k_shapes[1])
    return tuple(
        q.new_empty(shape, dtype=t) if wanted and shape is not None else q.new_empty(0)
        for wanted, shape, t in zip(mask, shapes, (q.dtype, q.dtype, dtype, dtype))
    )


_define(
    "qk_norm(Tensor q, Tensor? k, Tensor? q_gamma, Tensor? k_gamma, float eps, float offset, bool round_before_gamma) "
    "-> (Tensor q_out, Tensor k_out, Tensor q_rstd, Tensor k_rstd)",
    _qk_norm,
    _qk_norm_fake,
)
_define(
    "qk_norm_(Tensor(a!) q, Tensor(b!)? k, Tensor? q_gamma, Tensor? k_gamma, float eps, float offset, bool "
    "round_before_gamma) -> ()",
    _qk_norm_in_place,
    lambda *_: None,
)
_define(
    "qk_norm_backward(Tensor dq_out, Tensor? dk_out, Tensor q, Tensor? k, Tensor? q_gamma, Tensor? k_gamma, Tensor "
    "q_rstd, Tensor? k_rstd, float offset, bool[] mask) -> (Tensor dq, Tensor dk, Tensor dq_gamma, Tensor dk_gamma)",
    _qk_norm_backward,
    _qk_norm_backward_fake,
)


def _qk_norm_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, q_gamma, k_gamma, _, ctx.offset, _ = inputs
    ctx.save_for_backward(q, k, q_gamma, k_gamma, output[2], output[3])
    ctx.mark_non_differentiable(*output[2:] if k is not None else output[1:])


def _qk_norm_gradient(ctx: Any, dq_out: Tensor, dk_out: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    q, k, q_gamma, k_gamma, q_rstd, k_rstd = ctx.saved_tensors
    mask = list(ctx.needs_input_grad[:4])
    found = operators.qk_norm_backward(
        dq_out, None if k is None else dk_out, q, k, q_gamma, k_gamma, q_rstd, None if k is None else k_rstd,
        ctx.offset, mask,
    )
    gradients = [gradient if wanted else None for gradient, wanted in zip(found, mask)]
    if k is None:
        gradients[1] = gradients[3] = None
    return *gradients, None, None, None


# --- Eight bits out ---------------------------------------------------------------------------------------------------
NO_GRADIENT = (
    "y in eight bits has no gradient: the quantized norms are for inference; call them under torch.no_grad() or on "
    "tensors that require none"
)


def _quantized_norm(
    x: Tensor, residual: Tensor | None, gamma: Tensor | None, beta: Tensor | None, scale: Tensor | None, eps: float,
    centered: bool, format: str, scaling: str,
) -> tuple[Tensor, Tensor, Tensor]:
    y, h, scales = _launch.quantized(x, residual, gamma, beta, scale, eps, centered, format, scaling)
    return y, _optional(h, x), x.new_empty(0, dtype=torch.float32) if scales is None else scales


def _quantized_norm_fake(
    x: Tensor, residual: Tensor | None, gamma: Tensor | None, beta: Tensor | None, scale: Tensor | None, eps: float,
    centered: bool, format: str, scaling: str,
) -> tuple[Tensor, Tensor, Tensor]:
    y = x.new_empty(x.shape, dtype=_launch.BYTES[format])
    h = x.new_empty(0 if residual is None else x.shape)
    shape = (0,) if scale is not None else _launch.shape_of_scales(x, scaling)
    return y, h, x.new_empty(shape, dtype=torch.float32)


_define(
    "quantized_norm(Tensor x, Tensor? residual, Tensor? gamma, Tensor? beta, Tensor? scale, float eps, bool centered, "
    "str format, str scaling) -> (Tensor y, Tensor h, Tensor scales)",
    _quantized_norm,
    _quantized_norm_fake,
)


def _no_gradient(ctx: Any, *_: Any) -> None:
    raise RuntimeError(NO_GRADIENT)


library.register_autograd(f"{NAMESPACE}::quantized_norm", _no_gradient, lib=_definitions)


# --- BatchNorm --------------------------------------------------------------------------------------------------------
def _batch_norm_train(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    momentum: float, eps: float,
) -> tuple[Tensor, ...]:
    save_mean, save_invstd = _floats(x, x.shape[1]), _floats(x, x.shape[1])
    new_mean = None if running_mean is None else running_mean.clone()
    new_var = None if running_var is None else running_var.clone()
    y = _launch.batch_norm_train(
        x, gamma, beta, new_mean, new_var, momentum, eps, save_mean.data_ptr(), save_invstd.data_ptr()
    )
    return y, save_mean, save_invstd, _optional(new_mean, save_mean), _optional(new_var, save_mean)


def _like(x: Tensor) -> Tensor:
    """As _launch lays out what it returns for x."""
    if x.is_contiguous() or not x.movedim(1, -1).is_contiguous():
        return x.new_empty(x.shape)
    return torch.empty_like(x)


def _batch_norm_train_fake(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    momentum: float, eps: float,
) -> tuple[Tensor, ...]:
    channels = x.shape[1]
    sizes = (channels, channels, 0 if running_mean is None else channels, 0 if running_var is None else channels)
    return _like(x), *[x.new_empty(size, dtype=torch.float32) for size in sizes]


def _batch_norm_backward(
    dy: Tensor, x: Tensor, gamma: Tensor | None, save_mean: Tensor, save_invstd: Tensor, mask: list[bool],
    parameter_type: torch.dtype | None = None,
) -> tuple[Tensor, ...]:
    for name, vector in (("save_mean", save_mean), ("save_invstd", save_invstd)):
        _launch.check_vector(name, vector, x.shape[1], x, torch.float32)
    found = _launch.batch_norm_backward(
        dy, x, gamma, save_mean.contiguous().data_ptr(), save_invstd.contiguous().data_ptr(),
        (mask[0], mask[1], mask[2]), parameter_type,
    )
    return tuple(_optional(t, x) for t in found)


def _batch_norm_backward_fake(
    dy: Tensor, x: Tensor, gamma: Tensor | None, save_mean: Tensor, save_invstd: Tensor, mask: list[bool],
    parameter_type: torch.dtype | None = None,
) -> tuple[Tensor, ...]:
    dtype = gamma.dtype if gamma is not None else parameter_type or x.dtype
    dx = _like(x) if mask[0] else x.new_empty(0)
    return dx, *[x.new_empty(x.shape[1], dtype=dtype) if wanted else x.new_empty(0) for wanted in mask[1:]]


_define(
    "batch_norm_train(Tensor x, Tensor? gamma, Tensor? beta, Tensor? running_mean, Tensor? running_var, float "
    "momentum, float eps) -> (Tensor y, Tensor save_mean, Tensor save_invstd, Tensor new_running_mean, Tensor "
    "new_running_var)",
    _batch_norm_train,
    _batch_norm_train_fake,
)
_define(
    "batch_norm_inference(Tensor x, Tensor? gamma, Tensor? beta, Tensor running_mean, Tensor running_var, float eps) "
    "-> Tensor",
    _launch.batch_norm_inference,
    lambda x, gamma, beta, running_mean, running_var, eps: _like(x),
)
_define(
    "batch_norm_backward(Tensor dy, Tensor x, Tensor? gamma, Tensor save_mean, Tensor save_invstd, bool[] mask, "
    "ScalarType? parameter_type=None) -> (Tensor dx, Tensor dgamma, Tensor dbeta)",
    _batch_norm_backward,
    _batch_norm_backward_fake,
)


def _batch_norm_train_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, gamma, beta, *_ = inputs
    ctx.save_for_backward(x, gamma, output[1], output[2])
    ctx.parameter_type = None if beta is None else beta.dtype
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _batch_norm_train_gradient(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if dy is None:
        return (None,) * 7
    x, gamma, save_mean, save_invstd = ctx.saved_tensors
    mask = list(ctx.needs_input_grad[:3])
    found = operators.batch_norm_backward(dy, x, gamma, save_mean, save_invstd, mask, ctx.parameter_type)
    return *[gradient if wanted else None for gradient, wanted in zip(found, mask)], None, None, None, None


def inference_gradients(
    dy: Tensor, x: Tensor, gamma: Tensor | None, running_mean: Tensor, running_var: Tensor, eps: float,
    mask: tuple[bool, ...], parameter_type: torch.dtype | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Of y = (x - running_mean) * invstd * gamma + beta, whose statistics are constants: too simple for a kernel of
    ours."""
    shape = (1, -1) + (1,) * (x.dim() - 2)
    axes = [axis for axis in range(x.dim()) if axis != 1]
    invstd = torch.rsqrt(running_var + eps)
    scale = invstd if gamma is None else invstd * gamma.float()
    dtype = gamma.dtype if gamma is not None else parameter_type or x.dtype
    dx = (dy.float() * scale.view(shape)).to(x.dtype) if mask[0] else None
    xhat = (x.float() - running_mean.view(shape)) * invstd.view(shape) if mask[1] else None
    dgamma = (dy.float() * xhat).sum(axes).to(dtype) if xhat is not None else None
    return dx, dgamma, dy.float().sum(axes).to(dtype) if mask[2] else None


def _batch_norm_inference_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, gamma, beta, running_mean, running_var, ctx.eps = inputs
    ctx.save_for_backward(x, gamma, running_mean, running_var)
    ctx.parameter_type = None if beta is None else beta.dtype


def _batch_norm_inference_gradient(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, gamma, running_mean, running_var = ctx.saved_tensors
    mask = ctx.needs_input_grad[:3]
    found = inference_gradients(dy, x, gamma, running_mean, running_var, ctx.eps, mask, ctx.parameter_type)
    return *found, None, None, None


for _name, _setup, _gradient in (
    ("layer_norm", _layer_norm_setup, _layer_norm_gradient),
    ("rms_norm", _rms_norm_setup, _rms_norm_gradient),
    ("add_layer_norm", _add_layer_norm_setup, _add_layer_norm_gradient),
    ("add_rms_norm", _add_rms_norm_setup, _add_rms_norm_gradient),
    ("qk_norm", _qk_norm_setup, _qk_norm_gradient),
    ("batch_norm_train", _batch_norm_train_setup, _batch_norm_train_gradient),
    ("batch_norm_inference", _batch_norm_inference_setup, _batch_norm_inference_gradient),
):
    library.register_autograd(f"{NAMESPACE}::{_name}", _gradient, setup_context=_setup, lib=_definitions)
