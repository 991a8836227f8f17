"""The functions on PyTorch tensors.

Eager calls on plain tensors go straight to the library, since PyTorch's way to an operator written in Python costs
several times what the rest of such a call does. Whatever watches or rewrites operators (compilation, tracing, tensor
subclasses, dispatch modes, function transforms) gets the operators of _operators.py, which compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.compiler import is_compiling

from .. import _library
from . import _launch, _native as native_part
from ._operators import NO_GRADIENT, inference_gradients, operators

_PLAIN = frozenset((Tensor, torch.nn.Parameter, type(None)))


def _watchers() -> tuple[Callable[[], Any], ...] | None:
    """What tells that something other than eager execution is going on. PyTorch keeps these to itself: None where it
    has none."""
    names = (
        "_len_torch_dispatch_stack",
        "_len_torch_function_stack",
        "_are_functorch_transforms_active",
        "_get_tracing_state",
    )
    found = tuple(getattr(torch._C, name, None) for name in names)
    return None if None in found else found  # type: ignore[return-value]


_found = _watchers()
_dispatch_modes, _function_modes, _transforms, _tracing = _found or (lambda: True,) * 4


def _direct(x: Tensor, gamma: Tensor | None, beta: Tensor | None, residual: Tensor | None = None) -> bool:
    """Whether a call on these tensors may go past the dispatcher. Raises TypeError where one is no tensor at all."""
    if type(x) in _PLAIN and type(gamma) in _PLAIN and type(beta) in _PLAIN and type(residual) in _PLAIN:
        return not (_dispatch_modes() or _function_modes() or _transforms() or _tracing())
    for name, tensor in (("gamma", gamma), ("beta", beta), ("residual", residual)):
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}; it must be a torch.Tensor")
    return False


def _differentiated(x: Tensor, gamma: Tensor | None, beta: Tensor | None, residual: Tensor | None = None) -> bool:
    return torch.is_grad_enabled() and (
        x.requires_grad
        or (gamma is not None and gamma.requires_grad)
        or (beta is not None and beta.requires_grad)
        or (residual is not None and residual.requires_grad)
    )


class _Native:
    """What build.py has built, loaded at the first call. Where it is not there, or is older than a function, it
    declines every call: None."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        module = native_part.load()
        for each in (
            "layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm", "batch_norm_train", "batch_norm_inference",
        ):
            setattr(self, each, getattr(module, each, lambda *_: None))
        return self.__dict__[name]


_native = _Native()


class _Norm(torch.autograd.Function):
    """All four norms over rows. Mean and rstd lie in one tensor, [2, rows]: one allocation less."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, gamma: Tensor | None, beta: Tensor | None, eps: float,
        centered: bool, round_before_gamma: bool, offset: float,
    ) -> Any:
        cols = x.shape[-1] if x.dim() else 1
        rows = x.numel() // cols if cols else 0
        statistics = torch.empty(2 * rows if centered else rows, dtype=torch.float32, device=x.device)
        address = statistics.data_ptr()
        y, h = _launch.forward(
            x, residual, gamma, beta, eps, centered, round_before_gamma, offset, address,
            address + 4 * rows if centered else address,
        )
        ctx.save_for_backward(x if h is None else h, gamma, statistics)
        ctx.centered, ctx.offset = centered, offset
        ctx.parameter_type = None if beta is None else beta.dtype
        if h is None:
            return y
        ctx.set_materialize_grads(False)
        return y, h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dh: Tensor | None = None) -> tuple[Tensor | None, ...]:
        normalized, gamma, statistics = ctx.saved_tensors
        want_x, want_residual, want_gamma, want_beta, *_ = ctx.needs_input_grad
        if dy is None:  # nothing depends on y: h = x + residual alone is left
            return dh if want_x else None, dh if want_residual else None, *[None] * 6
        address = statistics.data_ptr()
        mean, rstd = (address, address + 2 * statistics.numel()) if ctx.centered else (0, address)
        dx, dgamma, dbeta = _launch.backward(
            dy, normalized, dh, gamma, mean, rstd, (want_x or want_residual, want_gamma, want_beta), ctx.parameter_type,
            ctx.centered, ctx.offset,
        )
        return dx if want_x else None, dx if want_residual else None, dgamma, dbeta, *[None] * 4


def layer_norm(
    x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, eps: float = 1e-5, *, offset: float = 0.0
) -> Tensor:
    if is_compiling() or not _direct(x, gamma, beta):
        return operators.layer_norm(x, gamma, beta, eps, offset)[0]
    y = _native.layer_norm(x, gamma, beta, eps, offset)
    if y is not None:
        return y
    if _differentiated(x, gamma, beta):
        return _Norm.apply(x, None, gamma, beta, eps, True, False, offset)
    return _launch.forward(x, None, gamma, beta, eps, True, False, offset, 0, 0)[0]


def rms_norm(
    x: Tensor, gamma: Tensor | None = None, eps: float = 1e-6, round_before_gamma: bool = False, *, offset: float = 0.0
) -> Tensor:
    if is_compiling() or not _direct(x, gamma, None):
        return operators.rms_norm(x, gamma, eps, round_before_gamma, offset)[0]
    y = _native.rms_norm(x, gamma, eps, round_before_gamma, offset)
    if y is not None:
        return y
    if _differentiated(x, gamma, None):
        return _Norm.apply(x, None, gamma, None, eps, False, round_before_gamma, offset)
    return _launch.forward(x, None, gamma, None, eps, False, round_before_gamma, offset, 0, 0)[0]


def add_layer_norm(
    x: Tensor, residual: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, eps: float = 1e-5, *,
    offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    if residual is None:
        raise TypeError("residual is None; it must be a torch.Tensor")
    if is_compiling() or not _direct(x, gamma, beta, residual):
        y, h, _, _ = operators.add_layer_norm(x, residual, gamma, beta, eps, offset)
        return y, h
    outputs = _native.add_layer_norm(x, residual, gamma, beta, eps, offset)
    if outputs is not None:
        return outputs
    if _differentiated(x, gamma, beta, residual):
        return _Norm.apply(x, residual, gamma, beta, eps, True, False, offset)
    return _launch.forward(x, residual, gamma, beta, eps, True, False, offset, 0, 0)  # type: ignore[return-value]


def add_rms_norm(
    x: Tensor, residual: Tensor, gamma: Tensor | None = None, eps: float = 1e-6, round_before_gamma: bool = False, *,
    offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    if residual is None:
        raise TypeError("residual is None; it must be a torch.Tensor")
    if is_compiling() or not _direct(x, gamma, None, residual):
        y, h, _ = operators.add_rms_norm(x, residual, gamma, eps, round_before_gamma, offset)
        return y, h
    outputs = _native.add_rms_norm(x, residual, gamma, eps, round_before_gamma, offset)
    if outputs is not None:
        return outputs
    if _differentiated(x, gamma, None, residual):
        return _Norm.apply(x, residual, gamma, None, eps, False, round_before_gamma, offset)
    return _launch.forward(  # type: ignore[return-value]
        x, residual, gamma, None, eps, False, round_before_gamma, offset, 0, 0
    )


def layer_norm_forward(
    x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, eps: float = 1e-5, *, offset: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    return operators.layer_norm(x, gamma, beta, eps, offset)


def rms_norm_forward(
    x: Tensor, gamma: Tensor | None = None, eps: float = 1e-6, round_before_gamma: bool = False, *, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    return operators.rms_norm(x, gamma, eps, round_before_gamma, offset)


def add_layer_norm_forward(x: Tensor, residual: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None,
                           eps: float = 1e-5, *, offset: float = 0.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return operators.add_layer_norm(x, residual, gamma, beta, eps, offset)


def add_rms_norm_forward(x: Tensor, residual: Tensor, gamma: Tensor | None = None, eps: float = 1e-6,
                         round_before_gamma: bool = False, *, offset: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    return operators.add_rms_norm(x, residual, gamma, eps, round_before_gamma, offset)


def layer_norm_backward(dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, gamma: Tensor | None = None,
                        dh: Tensor | None = None, *, offset: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    return operators.layer_norm_backward(dy, x, dh, gamma, mean, rstd, [True, True, True], None, offset)


def rms_norm_backward(
    dy: Tensor, x: Tensor, rstd: Tensor, gamma: Tensor | None = None, dh: Tensor | None = None, *, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    return operators.rms_norm_backward(dy, x, dh, gamma, rstd, [True, True], offset)


# --- Heads of q and k -------------------------------------------------------------------------------------------------
class _QkNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor | None, q_gamma: Tensor | None, k_gamma: Tensor | None, eps: float,
        offset: float, round_before_gamma: bool,
    ) -> Any:
        q_rows = q.numel() // q.shape[-1] if q.dim() and q.shape[-1] else 0
        k_rows = k.numel() // k.shape[-1] if k is not None and k.dim() and k.shape[-1] else 0
        rstd = torch.empty(q_rows + k_rows, dtype=torch.float32, device=q.device)
        ctx.rstd_at = rstd.data_ptr(), rstd.data_ptr() + 4 * q_rows
        q_out, k_out = _launch.heads_forward(
            q, k, q_gamma, k_gamma, eps, offset, round_before_gamma, False, *ctx.rstd_at
        )
        ctx.save_for_backward(q, k, q_gamma, k_gamma, rstd)
        ctx.offset = offset
        return q_out if k_out is None else (q_out, k_out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq_out: Tensor, dk_out: Tensor | None = None) -> tuple[Tensor | None, ...]:
        q, k, q_gamma, k_gamma, _ = ctx.saved_tensors
        found = _launch.heads_backward(
            dq_out, dk_out, q, k, q_gamma, k_gamma, *ctx.rstd_at, ctx.offset, tuple(ctx.needs_input_grad[:4])
        )
        return *found, None, None, None


def qk_norm(
    q: Tensor, k: Tensor | None = None, q_gamma: Tensor | None = None, k_gamma: Tensor | None = None,
    eps: float = 1e-6, offset: float = 0.0, round_before_gamma: bool = False, inplace: bool = False,
) -> Any:
    direct = not is_compiling() and _direct(q, q_gamma, k_gamma, k)
    differentiated = _differentiated(q, q_gamma, k_gamma, k)
    if inplace:
        if differentiated:
            raise ValueError("inplace is True, and a gradient is wanted: that needs q and k as they are")
        if direct:
            _launch.heads_forward(q, k, q_gamma, k_gamma, eps, offset, round_before_gamma, True, 0, 0)
        else:
            operators.qk_norm_(q, k, q_gamma, k_gamma, eps, offset, round_before_gamma)
        return q if k is None else (q, k)
    if not direct:
        q_out, k_out, _, _ = operators.qk_norm(q, k, q_gamma, k_gamma, eps, offset, round_before_gamma)
        return q_out if k is None else (q_out, k_out)
    if differentiated:
        return _QkNorm.apply(q, k, q_gamma, k_gamma, eps, offset, round_before_gamma)
    q_out, k_out = _launch.heads_forward(q, k, q_gamma, k_gamma, eps, offset, round_before_gamma, False, 0, 0)
    return q_out if k_out is None else (q_out, k_out)


def qk_norm_forward(
    q: Tensor, k: Tensor | None = None, q_gamma: Tensor | None = None, k_gamma: Tensor | None = None,
    eps: float = 1e-6, offset: float = 0.0, round_before_gamma: bool = False,
) -> tuple[Tensor, ...]:
    q_out, k_out, q_rstd, k_rstd = operators.qk_norm(q, k, q_gamma, k_gamma, eps, offset, round_before_gamma)
    return (q_out, q_rstd) if k is None else (q_out, k_out, q_rstd, k_rstd)


def qk_norm_backward(
    dq_out: Tensor, dk_out: Tensor | None, q: Tensor, k: Tensor | None, q_rstd: Tensor, k_rstd: Tensor | None = None,
    q_gamma: Tensor | None = None, k_gamma: Tensor | None = None, offset: float = 0.0,
) -> tuple[Tensor, ...]:
    dq, dk, dq_gamma, dk_gamma = operators.qk_norm_backward(
        dq_out, dk_out, q, k, q_gamma, k_gamma, q_rstd, k_rstd, offset, [True, k is not None, True, k is not None]
    )
    return (dq, dq_gamma) if k is None else (dq, dk, dq_gamma, dk_gamma)


# --- Eight bits out ---------------------------------------------------------------------------------------------------
def _quantized(
    x: Tensor, residual: Tensor | None, gamma: Tensor | None, beta: Tensor | None, scale: Tensor | None, eps: float,
    centered: bool, format: str, scaling: str,
) -> tuple[Tensor, ...]:
    if is_compiling() or not _direct(x, gamma, beta, residual):
        _library.check_quantized(format, scaling, scale is not None)
        y, h, scales = operators.quantized_norm(x, residual, gamma, beta, scale, eps, centered, format, scaling)
        return tuple(t for t, wanted in ((y, True), (h, residual is not None), (scales, scale is None)) if wanted)
    if _differentiated(x, gamma, beta, residual):
        raise RuntimeError(NO_GRADIENT)
    found = _launch.quantized(x, residual, gamma, beta, scale, eps, centered, format, scaling)
    return tuple(t for t in found if t is not None)


def rms_norm_quantized(
    x: Tensor, gamma: Tensor | None = None, eps: float = 1e-6, *, format: str = "e4m3", scaling: str = "row",
    scale: Tensor | None = None,
) -> tuple[Tensor, ...]:
    return _quantized(x, None, gamma, None, scale, eps, False, format, scaling)


def layer_norm_quantized(
    x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, eps: float = 1e-5, *, format: str = "e4m3",
    scaling: str = "row", scale: Tensor | None = None,
) -> tuple[Tensor, ...]:
    return _quantized(x, None, gamma, beta, scale, eps, True, format, scaling)


def add_rms_norm_quantized(
    x: Tensor, residual: Tensor, gamma: Tensor | None = None, eps: float = 1e-6, *, format: str = "e4m3",
    scaling: str = "row", scale: Tensor | None = None,
) -> tuple[Tensor, ...]:
    if residual is None:
        raise TypeError("residual is None; it must be a torch.Tensor")
    return _quantized(x, residual, gamma, None, scale, eps, False, format, scaling)


def add_layer_norm_quantized(
    x: Tensor, residual: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, eps: float = 1e-5, *,
    format: str = "e4m3", scaling: str = "row", scale: Tensor | None = None,
) -> tuple[Tensor, ...]:
    if residual is None:
        raise TypeError("residual is None; it must be a torch.Tensor")
    return _quantized(x, residual, gamma, beta, scale, eps, True, format, scaling)


# --- BatchNorm --------------------------------------------------------------------------------------------------------
class _BatchNormTrain(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: Tensor | None, beta: Tensor | None, running_mean: Tensor | None,
        running_var: Tensor | None, momentum: float, eps: float,
    ) -> Tensor:
        y, statistics = _train(x, gamma, beta, running_mean, running_var, momentum, eps)
        ctx.save_for_backward(x, gamma, statistics)
        ctx.parameter_type = None if beta is None else beta.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, statistics = ctx.saved_tensors
        address = statistics.data_ptr()
        wanted = ctx.needs_input_grad
        found = _launch.batch_norm_backward(
            dy, x, gamma, address, address + 2 * statistics.numel(), (wanted[0], wanted[1], wanted[2]),
            ctx.parameter_type,
        )
        return *found, None, None, None, None


class _BatchNormInference(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: Tensor | None, beta: Tensor | None, running_mean: Tensor, running_var: Tensor,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(x, gamma, running_mean, running_var)
        ctx.eps, ctx.parameter_type = eps, None if beta is None else beta.dtype
        return _launch.batch_norm_inference(x, gamma, beta, running_mean, running_var, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[:3]
        x, gamma, running_mean, running_var = ctx.saved_tensors
        found = inference_gradients(dy, x, gamma, running_mean, running_var, ctx.eps, wanted, ctx.parameter_type)
        return *found, None, None, None


def _train(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    momentum: float, eps: float,
) -> tuple[Tensor, Tensor]:
    """y, and the mean and 1 / deviation of each channel as one tensor, [2, channels]."""
    channels = x.shape[1] if x.dim() > 1 else 0
    statistics = torch.empty(2 * channels, dtype=torch.float32, device=x.device)
    address = statistics.data_ptr()
    y = _launch.batch_norm_train(
        x, gamma, beta, running_mean, running_var, momentum, eps, address, address + 4 * channels
    )
    for vector in (running_mean, running_var):
        if vector is not None:
            torch.autograd.graph.increment_version(vector)
    return y, statistics


def batch_norm(
    x: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, gamma: Tensor | None = None,
    beta: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:
    if not training and (running_mean is None or running_var is None):
        raise ValueError(
            f"{'running_mean' if running_mean is None else 'running_var'} is None; it must be given where training is "
            "False"
        )
    direct = not is_compiling() and _direct(x, gamma, beta)
    if direct and type(running_mean) in _PLAIN and type(running_var) in _PLAIN:
        y = (_native.batch_norm_train(x, running_mean, running_var, gamma, beta, momentum, eps) if training else
             _native.batch_norm_inference(x, running_mean, running_var, gamma, beta, eps))
        if y is not None:
            return y
    differentiated = _differentiated(x, gamma, beta)
    if not training:
        if not direct:
            return operators.batch_norm_inference(x, gamma, beta, running_mean, running_var, eps)
        if differentiated:
            return _BatchNormInference.apply(x, gamma, beta, running_mean, running_var, eps)
        return _launch.batch_norm_inference(x, gamma, beta, running_mean, running_var, eps)  # type: ignore[arg-type]
    if not direct:
        y, _, _, new_mean, new_var = operators.batch_norm_train(
            x, gamma, beta, running_mean, running_var, momentum, eps
        )
        if running_mean is not None and running_var is not None:
            running_mean.copy_(new_mean)
            running_var.copy_(new_var)
        return y
    if differentiated:
        return _BatchNormTrain.apply(x, gamma, beta, running_mean, running_var, momentum, eps)
    return _train(x, gamma, beta, running_mean, running_var, momentum, eps)[0]


def batch_norm_forward(
    x: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, gamma: Tensor | None = None,
    beta: Tensor | None = None, momentum: float = 0.1, eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    y, save_mean, save_invstd, new_mean, new_var = operators.batch_norm_train(
        x, gamma, beta, running_mean, running_var, momentum, eps
    )
    if running_mean is not None and running_var is not None:
        running_mean.copy_(new_mean)
        running_var.copy_(new_var)
    return y, save_mean, save_invstd


def batch_norm_backward(
    dy: Tensor, x: Tensor, save_mean: Tensor, save_invstd: Tensor, gamma: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    return operators.batch_norm_backward(dy, x, gamma, save_mean, save_invstd, [True, True, True])
