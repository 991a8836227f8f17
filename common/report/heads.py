#!/usr/bin/env python3
"""Times QK norm in one process on one GPU: ours in one call, in place, and in two calls with copies and without, beside
PyTorch's norm, the same compiled, FlashInfer's and quack's.

    heads.py             a table
    heads.py FILE.json   the same figures to a file

Timed as in compare.py: cold and in turns. Outputs are compared with float64 first. Needs PyTorch with CUDA and a GPU
build of the library; a rival that cannot be imported, or fails, is named and left out.
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
SHAPES = ((8192, 16, 16, 128), (8192, 32, 8, 128), (8192, 16, 16, 64), (64, 32, 8, 128))  # tokens, heads, head_dim
ROUNDS = 25
IN_PLACE = ("ours_inplace", "compiled_inplace")  # what they give is not compared: each call normalizes it again


def contenders(tokens: int, q_heads: int, k_heads: int, dim: int, seed: int) -> dict[str, dict[str, Callable[[], Any]]]:
    """Of each pass the calls, and under "exact" the outputs in float64."""
    import normworklog as nw
    import torch
    import torch._functorch.config
    from torch.nn.functional import rms_norm

    generator = torch.Generator("cuda").manual_seed(seed)

    def random(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)

    packed = random(tokens, q_heads + 2 * k_heads, dim)
    q, k = packed[:, :q_heads], packed[:, q_heads : q_heads + k_heads]
    over = packed.clone()
    q_over, k_over = over[:, :q_heads], over[:, q_heads : q_heads + k_heads]
    gammas = random(dim), random(dim)
    slopes = random(tokens, q_heads, dim), random(tokens, k_heads, dim)
    rstd = nw.qk_norm_forward(q, k, *gammas, EPS)[2:]
    torch._functorch.config.donated_buffer = False  # a backward pass is timed more than once

    def norms(q: Any, k: Any, q_gamma: Any, k_gamma: Any) -> tuple[Any, Any]:
        return rms_norm(q, (dim,), q_gamma, EPS), rms_norm(k, (dim,), k_gamma, EPS)

    def overwrite(q: Any, k: Any, q_gamma: Any, k_gamma: Any) -> None:
        for x, gamma in ((q, q_gamma), (k, k_gamma)):
            x.copy_(rms_norm(x, (dim,), gamma, EPS))

    compiled, compiled_inplace = torch.compile(norms, dynamic=False), torch.compile(overwrite, dynamic=False)

    def gradients(function: Callable[..., Any], *tensors: Any) -> Callable[[], Any]:
        inputs = [t.detach().requires_grad_() for t in tensors or (q, k, *gammas)]
        outputs = function(*inputs)
        found = [slope.to(outputs[0].dtype) for slope in slopes]
        return lambda: torch.autograd.grad(outputs, inputs, found, retain_graph=True)

    wide = [t.double() for t in (q, k, *gammas)]
    calls: dict[str, dict[str, Callable[[], Any]]] = {
        "forward": {
            "ours": lambda: nw.qk_norm(q, k, *gammas, EPS),
            "ours_inplace": lambda: nw.qk_norm(q_over, k_over, *gammas, EPS, inplace=True),
            "ours_on_copies": lambda: tuple(nw.rms_norm(x.contiguous(), g, EPS) for x, g in zip((q, k), gammas)),
            "ours_in_two_calls": lambda: tuple(nw.rms_norm(x, g, EPS) for x, g in zip((q, k), gammas)),
            "eager": lambda: norms(q, k, *gammas),
            "compiled": lambda: compiled(q, k, *gammas),
            "compiled_inplace": lambda: compiled_inplace(q_over, k_over, *gammas),
            "exact": lambda: norms(*wide),
        },
        "backward": {
            "ours": lambda: nw.qk_norm_backward(*slopes, q, k, *rstd, *gammas),
            "eager": gradients(norms),
            "compiled": gradients(compiled),
            "exact": gradients(norms, *wide),
        },
    }
    try:
        from flashinfer.norm import rmsnorm
    except ImportError as error:
        print(f"without FlashInfer: {error}", file=sys.stderr)
    else:
        calls["forward"]["flashinfer"] = lambda: tuple(rmsnorm(x, g, EPS) for x, g in zip((q, k), gammas))
    try:
        from quack import rmsnorm as quack
    except ImportError as error:
        print(f"without quack: {error}", file=sys.stderr)
    else:
        # It has a gamma for each head: here all are the same.
        def of_heads(gamma: Any, x: Any) -> Any:
            return gamma.expand(x.shape[1], dim).contiguous()

        given = of_heads(gammas[0], q), of_heads(gammas[1], k)
        calls["forward"]["quack"] = lambda: tuple(quack(x, g, eps=EPS) for x, g in zip((q, k), given))
        calls["backward"]["quack"] = gradients(
            lambda q, k, *gammas: tuple(quack(x, of_heads(g, x), eps=EPS) for x, g in zip((q, k), gammas))
        )
    return calls


def main() -> int:
    sys.path.insert(0, str(ROOT / "common/library/python"))
    try:
        ready(False)
    except ReportError as error:
        print(f"heads.py: {error}", file=sys.stderr)
        return 2
    gpu = Gpu()
    figures: dict[str, float] = {}
    for tokens, q_heads, k_heads, dim in SHAPES:
        sets = [contenders(tokens, q_heads, k_heads, dim, 1 + number) for number in range(SETS)]
        for of_pass in sets[0]:
            gpu.ahead = gpu.AHEAD_OF_BACKWARD if of_pass == "backward" else gpu.AHEAD
            tolerated = 1 if of_pass == "forward" else 4
            calls = on_sets([calls_that_are_right(each[of_pass], of_pass, tolerated, IN_PLACE) for each in sets])
            samples = take_turns(calls, gpu.cold, ROUNDS)
            for name, seconds in samples.items():
                figures[f"{of_pass}_{tokens}x{q_heads}+{k_heads}x{dim}_{name}"] = round(
                    statistics.median(seconds) * 1e6, 3
                )
            megabytes = (2 if of_pass == "forward" else 3) * tokens * (q_heads + k_heads) * dim * 2 / 1e6
            shown = ", ".join(f"{name} {statistics.median(s) * 1e6:.2f}" for name, s in samples.items())
            line = f"{of_pass:<9}{tokens} x {q_heads}+{k_heads} x {dim} bf16, {megabytes:.0f} MB, us: {shown}"
            print(line, flush=True)
    if len(sys.argv) > 1:
        write_microseconds(Path(sys.argv[1]), figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
