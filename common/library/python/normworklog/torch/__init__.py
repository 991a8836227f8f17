"""The package's PyTorch side: functions on tensors, operators (torch.ops.normworklog), and modules.

normworklog's own functions call these where they are given a torch.Tensor; torch is imported no earlier.
"""

from torch import Tensor

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
from .modules import BatchNorm1d, BatchNorm2d, BatchNorm3d, LayerNorm, RMSNorm, replace_norms

__all__ = [
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "LayerNorm", "RMSNorm", "add_layer_norm", "add_layer_norm_forward",
    "add_layer_norm_quantized", "add_rms_norm", "add_rms_norm_forward", "add_rms_norm_quantized", "batch_norm",
    "batch_norm_backward", "batch_norm_forward", "layer_norm", "layer_norm_backward", "layer_norm_forward",
    "layer_norm_quantized", "qk_norm", "qk_norm_backward", "qk_norm_forward", "replace_norms", "rms_norm",
    "rms_norm_backward", "rms_norm_forward", "rms_norm_quantized",
]
