#!/usr/bin/env python3
"""Times norms with weights about zero, in one process on one GPU: ours beside ours with plain weights, Gemma's code in
PyTorch as it stands and compiled, Liger's and quack's kernels, and what one does without an offset, weight + 1 before
each norm.

    zero_centered.py             a table
    zero_centered.py FILE.json   the same figures to a file

Timed as in compare.py: cold and in turns. Outputs are compared with float64 first. Needs PyTorch with CUDA and a GPU
build of the library; a rival that cannot be imported, or is wrong, is named and left out.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compare import SETS, Gpu, calls_that_are_right, on_sets, ready, take_turns, write_microseconds
from results import ROOT, ReportError

EPS = 1e-6
SHAPES = ((4096, 2304), (16384, 5376), (8192, 2048))  # Gemma 2 2B, Gemma 3 27B, Gemma 2B
ROUNDS = 25
# Of rows x cols elements, in bf16, that must move.
TENSORS = {"forward": 2, "add": 4, "backward": 3}


def gemma(x: Any, weight: Any) -> Any:
    """As transformers has it."""
    wide = x.float()
    output = wide * (wide.pow(2).mean(-1, keepdim=True) + EPS).rsqrt()
    return (output * (1.0 + weight.float())).type_as(x)


def add_gemma(x: Any, residual: Any, weight: Any) -> tuple[Any, Any]:
    h = x + residual
    return gemma(h, weight), h


def contenders(rows: int, cols: int, seed: int) -> dict[str, dict[str, Callable[[], Any]]]:
    """Of each operation the calls, and under "exact" the outputs in float64."""
    import normworklog as nw
    import torch
    import torch._functorch.config

    generator = torch.Generator("cuda").manual_seed(seed)
    x, residual, dy = (
        torch.randn(rows, cols, generator=generator, device="cuda", dtype=torch.bfloat16) for _ in range(3)
    )
    weight = torch.randn(cols, generator=generator, device="cuda").mul(0.2).bfloat16()
    rstd = nw.rms_norm_forward(x, weight, EPS)[1]
    torch._functorch.config.donated_buffer = False  # a backward pass is timed more than once
    compiled, add_compiled = torch.compile(gemma, dynamic=False), torch.compile(add_gemma, dynamic=False)

    def gradients(function: Callable[..., Any]) -> Callable[[], Any]:
        inputs = [t.detach().clone().requires_grad_() for t in (x, weight)]
        y = function(*inputs)
        return lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True)

    calls: dict[str, dict[str, Callable[[], Any]]] = {
        "forward": {
            "ours": lambda: nw.rms_norm(x, weight, EPS, offset=1.0),
            "plain": lambda: nw.rms_norm(x, weight, EPS),
            "plus_one": lambda: nw.rms_norm(x, weight.float() + 1, EPS),
            "eager": lambda: gemma(x, weight),
            "compiled": lambda: compiled(x, weight),
        },
        "add": {
            "ours": lambda: nw.add_rms_norm(x, residual, weight, EPS, offset=1.0),
            "plain": lambda: nw.add_rms_norm(x, residual, weight, EPS),
            "plus_one": lambda: nw.add_rms_norm(x, residual, weight.float() + 1, EPS),
            "eager": lambda: add_gemma(x, residual, weight),
            "compiled": lambda: add_compiled(x, residual, weight),
        },
        "backward": {
            "ours": lambda: nw.rms_norm_backward(dy, x, rstd, weight, offset=1.0),
            "plain": lambda: nw.rms_norm_backward(dy, x, rstd, weight),
            "plus_one": lambda: nw.rms_norm_backward(dy, x, rstd, weight.float() + 1),
            "eager": gradients(gemma),
            "compiled": gradients(compiled),
        },
    }
    try:
        from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    except ImportError as error:
        print(f"without Liger: {error}", file=sys.stderr)
    else:
        liger = lambda x, weight: LigerRMSNormFunction.apply(x, weight, EPS, 1.0, "gemma", False)  # noqa: E731
        calls["forward"]["liger"] = lambda: liger(x, weight)
        calls["add"]["liger"] = lambda: LigerFusedAddRMSNormFunction.apply(
            x, residual, weight, EPS, 1.0, "gemma", False
        )
        calls["backward"]["liger"] = gradients(liger)
    try:
        from quack import rmsnorm as quack
    except ImportError as error:
        print(f"without quack: {error}", file=sys.stderr)
    else:
        calls["forward"]["quack"] = lambda: quack(x, weight, eps=EPS, weight_offset=1.0)
        calls["add"]["quack"] = lambda: quack(x, weight, residual=residual, eps=EPS, prenorm=True, weight_offset=1.0)
        calls["backward"]["quack"] = gradients(lambda x, weight: quack(x, weight, eps=EPS, weight_offset=1.0))

    wide, about_one = x.double().requires_grad_(), (1 + weight.double()).requires_grad_()
    norm = lambda h: torch.nn.functional.rms_norm(h, (cols,), about_one, EPS)  # noqa: E731
    calls["forward"]["exact"] = lambda: (norm(wide).detach(),)
    calls["add"]["exact"] = lambda: (norm((x + residual).double()).detach(), (x + residual).double())
    calls["backward"]["exact"] = lambda: torch.autograd.grad(norm(wide), (wide, about_one), dy.double())
    return calls


def main() -> int:
    sys.path.insert(0, str(ROOT / "common/library/python"))
    try:
        ready(False)
    except ReportError as error:
        print(f"zero_centered.py: {error}", file=sys.stderr)
        return 2
    gpu = Gpu()
    figures: dict[str, float] = {}
    for rows, cols in SHAPES:
        sets = [contenders(rows, cols, 1 + number) for number in range(SETS)]
        for operation in sets[0]:
            gpu.ahead = gpu.AHEAD_OF_BACKWARD if operation == "backward" else gpu.AHEAD
            # The sum before the norm is rounded by some and not by others: then a few elements are a place apart.
            tolerated = 1 if operation == "forward" else 4
            calls = on_sets([calls_that_are_right(each[operation], operation, tolerated, ("plain",)) for each in sets])
            samples = take_turns(calls, gpu.cold, ROUNDS)
            for name, seconds in samples.items():
                figures[f"{operation}_{rows}x{cols}_{name}"] = round(statistics.median(seconds) * 1e6, 3)
            megabytes = TENSORS[operation] * rows * cols * 2 / 1e6
            shown = ", ".join(f"{name} {statistics.median(s) * 1e6:.2f}" for name, s in samples.items())
            print(f"{operation:<9}{rows} x {cols} bf16, {megabytes:.0f} MB, us: {shown}", flush=True)
    if len(sys.argv) > 1:
        write_microseconds(Path(sys.argv[1]), figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
