"""quack's kernels as its own autograd wrapper does not call them: tuned for the shape, and LayerNorm's backward pass.

quack's autotuner tries some 75 kernels for a forward pass and some hundreds for a backward pass, which takes minutes at
the first call of a shape.
"""

from __future__ import annotations

from typing import Any

import torch
from quack.rmsnorm import (
    get_sm_count,
    layernorm_bwd,
    layernorm_fwd,
    rmsnorm_bwd_tuned,
    rmsnorm_fwd_tuned,
)
from torch import Tensor


def statistic(x: Tensor) -> Tensor:
    """A value to each row."""
    return torch.empty(x.shape[0], dtype=torch.float32, device=x.device)


class LayerNorm(torch.autograd.Function):
    """gamma and beta in float32 beside, since the kernel takes no others."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, in_fp32: tuple[Tensor, Tensor], eps: float) -> Tensor:
        y, rstd, mean = layernorm_fwd(x, *in_fp32, eps=eps, return_rstd=True, return_mean=True)
        ctx.save_for_backward(x, gamma, rstd, mean)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, rstd, mean = ctx.saved_tensors
        return *layernorm_bwd(x, gamma, dy, rstd, mean), None, None


def tuned_forward(
    x: Tensor, residual: Tensor | None, gamma: Tensor, beta: Tensor | None, eps: float, with_statistics: bool
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """y, h, rstd and mean; RMSNorm where beta is None."""
    y = torch.empty_like(x)
    h = None if residual is None else torch.empty_like(x)
    rstd = statistic(x) if with_statistics else None
    mean = statistic(x) if with_statistics and beta is not None else None
    rmsnorm_fwd_tuned(x, gamma, y, beta, rstd, mean, residual, h, eps=eps, is_layernorm=beta is not None)
    return y, h, rstd, mean


class TunedNorm(torch.autograd.Function):
    """y, and h where there is a residual."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, gamma: Tensor, beta: Tensor | None, eps: float
    ) -> Tensor | tuple[Tensor, Tensor]:
        y, h, rstd, mean = tuned_forward(x, residual, gamma, beta, eps, True)
        ctx.save_for_backward(x if h is None else h, gamma, rstd, mean)
        return y if h is None else (y, h)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dh: Tensor | None = None) -> tuple[Tensor | None, ...]:
        h, gamma, rstd, mean = ctx.saved_tensors
        dx = torch.empty_like(h)
        blocks = get_sm_count(h.shape[1], h.device)
        dgamma = torch.empty(blocks, h.shape[1], dtype=torch.float32, device=h.device)
        dbeta = None if mean is None else torch.empty_like(dgamma)
        rmsnorm_bwd_tuned(
            h, gamma, dy, rstd, dx, dgamma, dbeta, dresidual_out=dh, sm_count=blocks, has_dw_partial=True,
            has_db_partial=dbeta is not None, mean=mean, is_layernorm=mean is not None,
        )
        sums = [None if partial is None else partial.sum(dim=0).to(gamma.dtype) for partial in (dgamma, dbeta)]
        return dx, None if dh is None else dx, *sums, None
