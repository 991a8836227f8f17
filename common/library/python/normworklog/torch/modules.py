"""torch.nn's norms on this library's kernels. Each is its namesake in all but the forward pass: the constructor, the
parameters and the state dict are torch.nn's own. LayerNorm and RMSNorm take an `offset` as well, which is added to the
weight: with 1.0 the weight lies about zero, as Gemma has it, and starts there."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from . import _functions
from ._definitions import as_defined


def _one_axis(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """x with the axes that are normalized joined into one. Raises ValueError where x does not end in them."""
    if tuple(x.shape[-len(shape):]) != shape:
        raise ValueError(f"x has the shape {tuple(x.shape)}; it must end in the module's normalized_shape, {shape}")
    return x if len(shape) == 1 else x.flatten(-len(shape))


def _flat(parameter: Tensor | None) -> Tensor | None:
    return parameter if parameter is None or parameter.dim() == 1 else parameter.flatten()


def _check_offset(offset: float) -> float:
    if offset not in (0.0, 1.0):
        raise ValueError(f"offset must be 0 or 1; it is {offset}")
    return float(offset)


class LayerNorm(nn.LayerNorm):
    offset = 0.0  # of a module that replace_norms has changed

    def __init__(self, *args: Any, offset: float = 0.0, **kwargs: Any) -> None:
        self.offset = _check_offset(offset)
        super().__init__(*args, **kwargs)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.offset and self.weight is not None:
            nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = _functions.layer_norm(
            _one_axis(x, self.normalized_shape), _flat(self.weight), _flat(self.bias), self.eps, offset=self.offset
        )
        return y if y.dim() == x.dim() else y.view(x.shape)


class RMSNorm(nn.RMSNorm):
    offset = 0.0  # of a module that replace_norms has changed

    def __init__(self, *args: Any, offset: float = 0.0, **kwargs: Any) -> None:
        self.offset = _check_offset(offset)
        super().__init__(*args, **kwargs)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.offset and self.weight is not None:
            nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps  # as torch.nn.RMSNorm takes it
        y = _functions.rms_norm(_one_axis(x, self.normalized_shape), _flat(self.weight), eps, offset=self.offset)
        return y if y.dim() == x.dim() else y.view(x.shape)


def _batch_norm(module: nn.modules.batchnorm._BatchNorm, x: Tensor) -> Tensor:
    module._check_input_dim(x)
    momentum = module.momentum
    if module.training and module.track_running_stats and module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
        if momentum is None:  # a cumulative average
            momentum = 1.0 / float(module.num_batches_tracked)
    mean, var = module.running_mean, module.running_var
    training = module.training or mean is None
    if training and not module.track_running_stats:
        mean = var = None
    if mean is None or mean.dtype == torch.float32:
        return _functions.batch_norm(x, mean, var, module.weight, module.bias, training, momentum or 0.0, module.eps)
    # A model that was cast as a whole has its running statistics in 16 bits, and the kernels keep them in 32.
    wide_mean, wide_var = mean.float(), var.float()
    y = _functions.batch_norm(x, wide_mean, wide_var, module.weight, module.bias, training, momentum or 0.0, module.eps)
    if training:
        mean.copy_(wide_mean)
        var.copy_(wide_var)
    return y


class BatchNorm1d(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return _batch_norm(self, x)


class BatchNorm2d(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return _batch_norm(self, x)


class BatchNorm3d(nn.BatchNorm3d):
    def forward(self, x: Tensor) -> Tensor:
        return _batch_norm(self, x)


REPLACEMENTS: dict[type[nn.Module], type[nn.Module]] = {
    nn.LayerNorm: LayerNorm,
    nn.RMSNorm: RMSNorm,
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
}

Model = TypeVar("Model", bound=nn.Module)


def replace_norms(model: Model) -> Model:
    """Makes every norm of `model` one of the above or, where it is a model's own RMSNorm, one that computes the same
    (Gemma's, LLaMA's and Qwen's kinds are known); returns `model`.

    A module changes its class in its place: parameters, buffers, hooks and every reference to it (an optimizer's, a
    tied module's) stay as they are. Subclasses of torch.nn's norms are left alone, since they may compute something
    else. A model's own RMSNorm is told by what it computes and not by its name: it is run on a few random rows, and
    left alone where it agrees with none of the definitions (_definitions.py).
    """
    for module in model.modules():
        replacement = REPLACEMENTS.get(type(module)) or as_defined(module)
        if replacement is not None:
            module.__class__ = replacement
    return model
