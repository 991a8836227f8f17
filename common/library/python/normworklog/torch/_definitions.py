"""A model's own RMSNorm, known by what it computes.

transformers has an RMSNorm in every model, under many names, and two definitions of it: LLaMA's, Qwen's and T5's round
x * rstd to x's type and then multiply by the weight; Gemma's and Qwen3-Next's multiply in float32 by 1 + weight, and
round once. A name says nothing reliable. So a module is run on a few random rows with a random weight, and what it
gives is compared with the definitions.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import _functions, _launch

EPS_NAMES = ("eps", "variance_epsilon", "epsilon", "norm_eps")


class Definition(NamedTuple):
    eps_name: str  # the module's attribute
    offset: float  # of the weight
    round_before_gamma: bool
    mixed: bool  # in 16 bits with a weight in float32 as well: else the module may give float32, as LLaMA's does

    def __call__(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        xhat = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        if self.round_before_gamma:
            xhat = xhat.to(x.dtype).float()
        return (xhat * (self.offset + weight.float())).to(x.dtype)


def _candidates(module: nn.Module) -> list[tuple[str, float]]:
    """Its attributes that may be eps, where it has one vector as its only parameter and no more of state."""
    has_state = module._modules or any(buffer is not None for buffer in module._buffers.values())
    parameters = {name: p for name, p in module._parameters.items() if p is not None}
    if has_state or list(parameters) != ["weight"] or "forward" in module.__dict__:
        return []
    weight = parameters["weight"]
    if weight.dim() != 1 or weight.numel() < 2 or isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return []
    found = [(name, getattr(module, name, None)) for name in EPS_NAMES]
    return [(name, eps) for name, eps in found if isinstance(eps, float) and 0 < eps < 1]


def _output(module: nn.Module, x: Tensor, weight: Tensor) -> Tensor | None:
    """What the module's code gives for x with this weight. It runs on a copy of the module, without its hooks."""
    twin = copy.copy(module)
    twin.__dict__["_parameters"] = {"weight": nn.Parameter(weight, requires_grad=False)}
    try:
        with torch.no_grad():
            y = type(module).forward(twin, x)
    except Exception:  # it wants other arguments, or whatever else: it is none of ours
        return None
    return y if isinstance(y, Tensor) and y.shape == x.shape else None


def _rows(cols: int, eps: float) -> tuple[Tensor, Tensor]:
    """Rows of which some are so small that it shows where eps is, and a weight."""
    generator = torch.Generator().manual_seed(cols)
    x = torch.randn(8, cols, generator=generator)
    x[4:] *= eps ** 0.5
    return x * torch.tensor([1.0, 30.0, 0.1, 3.0, 1.0, 3.0, 0.3, 1.0])[:, None], torch.randn(cols, generator=generator)


def _differing(got: Tensor | None, want: Tensor) -> float:
    """The share of elements that differ; 1 where the type does."""
    return 1.0 if got is None or got.dtype != want.dtype else (got != want).float().mean().item()


def definition_of(module: nn.Module) -> Definition | None:
    """The definition that the module agrees with; None where there is none."""
    for name, eps in _candidates(module):
        x, weight = _rows(module.weight.numel(), eps)
        y = _output(module, x, weight)
        for offset in (0.0, 1.0):
            want = Definition(name, offset, False, False)(x, weight, eps)
            if y is None or y.dtype != x.dtype or not torch.allclose(y, want, rtol=1e-5, atol=1e-6):
                continue
            x16, weight16 = x.bfloat16(), weight.bfloat16()
            # Another order of the sum moves one element in a thousand to the next value, the other rounding
            # every third.
            y16 = _output(module, x16, weight16)
            for rounded in (False, True):
                found = Definition(name, offset, rounded, False)
                if _differing(y16, found(x16, weight16, eps)) < 0.02:
                    mixed = _differing(_output(module, x16, weight), found(x16, weight, eps)) < 0.02
                    return found._replace(mixed=mixed)
    return None


class DefinedRMSNorm(nn.Module):
    """Before the module's own class among the bases of a new one: the same module in all but the forward pass."""

    definition: Definition

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        found, weight = self.definition, self.weight
        as_checked = x.dtype == weight.dtype or (found.mixed and weight.dtype == torch.float32)
        if args or kwargs or not as_checked or x.dtype not in _launch.DTYPES:
            return super().forward(x, *args, **kwargs)
        eps = getattr(self, found.eps_name)
        return _functions.rms_norm(x, weight, eps, found.round_before_gamma, offset=found.offset)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles name the module's own class: that of the replacement is made where they are read."""
        return _made_again, (type(self).__bases__[1], self.definition), self.__dict__.copy()


_classes: dict[tuple[type[nn.Module], Definition], type[nn.Module]] = {}


def _class_for(own: type[nn.Module], definition: Definition) -> type[nn.Module]:
    """A subclass of the module's own class, of its name: code that asks for either finds it."""
    made = _classes.get((own, definition))
    if made is None:
        body = {"definition": definition, "__module__": own.__module__, "__qualname__": own.__qualname__}
        made = _classes[own, definition] = type(own.__name__, (DefinedRMSNorm, own), body)
    return made


def _made_again(own: type[nn.Module], definition: Definition) -> nn.Module:
    made = _class_for(own, definition)
    return made.__new__(made)


def as_defined(module: nn.Module) -> type[nn.Module] | None:
    """The class that the module can become; None where it is no RMSNorm, or one already."""
    if isinstance(module, DefinedRMSNorm):
        return None
    definition = definition_of(module)
    return None if definition is None else _class_for(type(module), definition)
