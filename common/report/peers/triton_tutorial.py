"""LayerNorm by the scheme of Triton's tutorial, written for this project: what many people start from.

Forward, a program to a row, which it reads three times in blocks: for the mean, for the variance, for y. Backward, a
program to a row as well, which holds it whole; it adds its share of dgamma and dbeta to one of a few partial rows,
behind a lock, and a second kernel sums these. A row must fit into 64 KiB, and the order of the additions depends on
who comes first, so that dgamma and dbeta differ in their last places from run to run.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

LONGEST_ROW_BYTES = 65536


class TooLong(ValueError):
    """The scheme keeps a row in one program's registers."""


@triton.jit
def _forward(x, gamma, beta, y, means, rstds, stride, cols, eps, block: tl.constexpr):
    row = tl.program_id(0)
    x += row.to(tl.int64) * stride
    y += row.to(tl.int64) * cols
    lanes = tl.arange(0, block)
    total = tl.zeros([block], dtype=tl.float32)
    for begin in range(0, cols, block):
        at = begin + lanes
        total += tl.load(x + at, mask=at < cols, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / cols
    squares = tl.zeros([block], dtype=tl.float32)
    for begin in range(0, cols, block):
        at = begin + lanes
        away = tl.where(at < cols, tl.load(x + at, mask=at < cols, other=0.0).to(tl.float32) - mean, 0.0)
        squares += away * away
    rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / cols + eps)
    tl.store(means + row, mean)
    tl.store(rstds + row, rstd)
    for begin in range(0, cols, block):
        at = begin + lanes
        inside = at < cols
        xhat = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - mean) * rstd
        tl.store(y + at, xhat * tl.load(gamma + at, mask=inside) + tl.load(beta + at, mask=inside), mask=inside)


@triton.jit
def _backward_rows(
    dy, x, gamma, means, rstds, dx, partial_gamma, partial_beta, locks, stride, cols, groups: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0)
    at = tl.arange(0, block)
    inside = at < cols
    x += row.to(tl.int64) * stride
    dy += row.to(tl.int64) * cols
    dx += row.to(tl.int64) * cols
    mean, rstd = tl.load(means + row), tl.load(rstds + row)
    gradient = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
    xhat = tl.where(inside, (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - mean) * rstd, 0.0)
    weighted = tl.where(inside, gradient * tl.load(gamma + at, mask=inside, other=0.0).to(tl.float32), 0.0)
    along = tl.sum(weighted * xhat, axis=0) / cols
    level = tl.sum(weighted, axis=0) / cols
    tl.store(dx + at, (weighted - xhat * along - level) * rstd, mask=inside)

    group = row % groups
    lock, used = locks + group, locks + groups + group
    partial_gamma += group * cols + at
    partial_beta += group * cols + at
    to_gamma, to_beta = gradient * xhat, gradient
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(used) == 0:
        tl.atomic_xchg(used, 1)
    else:
        to_gamma += tl.load(partial_gamma, mask=inside)
        to_beta += tl.load(partial_beta, mask=inside)
    tl.store(partial_gamma, to_gamma, mask=inside)
    tl.store(partial_beta, to_beta, mask=inside)
    tl.debug_barrier()  # all threads have stored before the next program may read
    tl.atomic_xchg(lock, 0)


@triton.jit
def _backward_columns(
    partial_gamma, partial_beta, dgamma, dbeta, groups, cols, rows_at_once: tl.constexpr, cols_at_once: tl.constexpr
):
    col = tl.program_id(0) * cols_at_once + tl.arange(0, cols_at_once)
    to_gamma = tl.zeros([rows_at_once, cols_at_once], dtype=tl.float32)
    to_beta = tl.zeros([rows_at_once, cols_at_once], dtype=tl.float32)
    for begin in range(0, groups, rows_at_once):
        row = begin + tl.arange(0, rows_at_once)
        inside = (row[:, None] < groups) & (col[None, :] < cols)
        place = row[:, None] * cols + col[None, :]
        to_gamma += tl.load(partial_gamma + place, mask=inside, other=0.0)
        to_beta += tl.load(partial_beta + place, mask=inside, other=0.0)
    tl.store(dgamma + col, tl.sum(to_gamma, axis=0), mask=col < cols)
    tl.store(dbeta + col, tl.sum(to_beta, axis=0), mask=col < cols)


def _block(x: torch.Tensor, cols: int) -> tuple[int, int]:
    """(elements that a program takes at once, its warps)."""
    block = triton.next_power_of_2(cols)
    if block * x.element_size() > LONGEST_ROW_BYTES:
        raise TooLong(f"rows of {cols} elements of {x.dtype} do not fit into {LONGEST_ROW_BYTES} bytes")
    return block, min(max(block // 256, 1), 8)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, eps: float) -> torch.Tensor:
        rows, cols = x.shape
        block, warps = _block(x, cols)
        y = torch.empty_like(x)
        means, rstds = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
        _forward[(rows,)](x, gamma, beta, y, means, rstds, x.stride(0), cols, eps, block=block, num_warps=warps)
        ctx.save_for_backward(x, gamma, means, rstds)
        ctx.block, ctx.warps = block, warps
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, gamma, means, rstds = ctx.saved_tensors
        rows, cols = x.shape
        groups = 256 if cols <= 1024 else 128 if cols <= 4096 else 96 if cols <= 8192 else 64
        locks = torch.zeros(2 * groups, dtype=torch.int32, device=x.device)
        partial = torch.zeros(2, groups, cols, dtype=torch.float32, device=x.device)
        dx, dgamma, dbeta = torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(gamma)
        _backward_rows[(rows,)](
            dy.contiguous(), x, gamma, means, rstds, dx, partial[0], partial[1], locks, x.stride(0), cols,
            groups=groups, block=ctx.block, num_warps=ctx.warps,
        )
        _backward_columns[(triton.cdiv(cols, 128),)](
            partial[0], partial[1], dgamma, dbeta, min(groups, rows), cols, rows_at_once=32, cols_at_once=128
        )
        return dx, dgamma, dbeta, None


def layer_norm(x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, eps: float) -> torch.Tensor:
    """x is [rows, cols]. Raises TooLong."""
    return _LayerNorm.apply(x, gamma, beta, eps)
