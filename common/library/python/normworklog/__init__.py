"""The final kernels of norm-worklog on PyTorch tensors, DLPack arrays and (in a CPU build) numpy arrays.

    import normworklog
    y = normworklog.layer_norm(x, gamma, beta)
    y, h = normworklog.add_rms_norm(x, residual, gamma)   # h = x + residual, y = rms_norm(h)
    model = normworklog.replace_norms(model)              # torch.nn's norms become this library's

`backend()` says what the kernels run on, "cuda" or "cpu". PyTorch is not imported before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._functions import (
    add_layer_norm,
    add_layer_norm_forward,
    add_layer_norm_quantized,
    add_rms_norm,
    add_rms_norm_forward,
    add_rms_norm_quantized,
    batch_norm,
    batch_norm_backward,
    batch_norm_forward,
    layer_norm,
    layer_norm_backward,
    layer_norm_forward,
    layer_norm_quantized,
    qk_norm,
    qk_norm_backward,
    qk_norm_forward,
    rms_norm,
    rms_norm_backward,
    rms_norm_forward,
    rms_norm_quantized,
)
from ._library import Error, is_batch_invariant, load as _load, set_batch_invariant

if TYPE_CHECKING:
    from .torch import BatchNorm1d, BatchNorm2d, BatchNorm3d, LayerNorm, RMSNorm, replace_norms

__version__ = "0.2.0"

_NEED_TORCH = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "LayerNorm", "RMSNorm", "replace_norms")

__all__ = [
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Error", "LayerNorm", "RMSNorm", "add_layer_norm",
    "add_layer_norm_forward", "add_layer_norm_quantized", "add_rms_norm", "add_rms_norm_forward",
    "add_rms_norm_quantized", "backend", "batch_norm", "batch_norm_backward", "batch_norm_forward",
    "is_batch_invariant", "layer_norm", "layer_norm_backward", "layer_norm_forward", "layer_norm_quantized",
    "qk_norm", "qk_norm_backward", "qk_norm_forward", "replace_norms", "rms_norm", "rms_norm_backward",
    "rms_norm_forward", "rms_norm_quantized", "set_batch_invariant",
]


def backend() -> str:
    """What the kernels of the library that is loaded run on: "cuda", or "cpu" in a build on the CPU layer."""
    return _load().backend


def __getattr__(name: str) -> Any:
    if name in _NEED_TORCH:
        from . import torch as tensors

        return getattr(tensors, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
