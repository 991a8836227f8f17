#!/usr/bin/env python3
"""Times RMSNorm with y in eight bits, in one process on one GPU: ours beside PyTorch's norm and a quantization, eager
and compiled, and the kernels of vLLM and FlashInfer where they can be imported.

    quantized_peers.py                    a table
    quantized_peers.py --json FILE.json   the same figures to a file too

Timed as in compare.py: in turns, cold, and the small shapes from a CUDA graph too. What each gives is compared first:
y times its scale with float64, and no further from it than half a step of e4m3 and bf16's rounding. Needs PyTorch with
CUDA and a GPU build of the library; who cannot be imported, or is wrong, is named and left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compare import SETS, Gpu, on_sets, ready, take_turns, write_microseconds
from results import ROOT, ReportError

EPS, BLOCK, LARGEST = 1e-6, 128, 448.0
SHAPES = ((16384, 4096), (8192, 8192), (128, 7168), (1, 7168))
ROUNDS, SMALL = 25, 1 << 20  # elements: timed from a graph too
Call = Callable[[], Any]


def rms_norm(x: Any, gamma: Any) -> Any:
    import torch

    return torch.nn.functional.rms_norm(x, (x.shape[-1],), gamma, EPS)


def by_row(x: Any, gamma: Any) -> tuple[Any, Any]:
    import torch

    y = rms_norm(x, gamma).float()
    scales = (y.abs().amax(-1, keepdim=True) / LARGEST).clamp(min=2.0**-126)
    return (y / scales).to(torch.float8_e4m3fn), scales


def by_block(x: Any, gamma: Any) -> tuple[Any, Any]:
    import torch

    y = rms_norm(x, gamma).float().view(x.shape[0], -1, BLOCK)
    scales = (y.abs().amax(-1, keepdim=True) / LARGEST).clamp(min=2.0**-126)
    return (y / scales).to(torch.float8_e4m3fn).view(x.shape), scales.squeeze(-1)


def given(x: Any, gamma: Any, scale: Any) -> tuple[Any, Any]:
    import torch

    y = rms_norm(x, gamma).float() / scale
    return y.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scale


def converted(x: Any) -> Any:
    import torch

    return x.to(torch.float8_e4m3fn)


def add_vllm(calls: dict[str, dict[str, Call]], x: Any, gamma: Any, scale: Any) -> None:
    import torch
    from vllm import _custom_ops  # noqa: F401  registers torch.ops._C

    y = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    scales = torch.empty(x.shape[0], 1, dtype=torch.float32, device=x.device)

    def row() -> tuple[Any, Any]:
        torch.ops._C.rms_norm_dynamic_per_token_quant(y, x, gamma, scales, EPS, None, None)
        return y, scales

    def tensor() -> tuple[Any, Any]:
        torch.ops._C.rms_norm_static_fp8_quant(y, x, gamma, scale, EPS)
        return y, scale

    calls["row"]["vllm"] = row
    calls["tensor"]["vllm"] = tensor


def add_flashinfer(calls: dict[str, dict[str, Call]], x: Any, gamma: Any, scale: Any) -> None:
    import torch
    from flashinfer.norm import rmsnorm_quant

    y = torch.empty_like(x, dtype=torch.float8_e4m3fn)

    def tensor() -> tuple[Any, Any]:
        rmsnorm_quant(y, x, gamma, scale, EPS)
        return y, scale

    calls["tensor"]["flashinfer"] = tensor


def contenders(rows: int, cols: int, seed: int) -> tuple[dict[str, dict[str, Call]], Any]:
    """Of each kind of scale the calls; and y in float64."""
    import normworklog as nw
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(rows, cols, generator=generator, device="cuda", dtype=torch.bfloat16)
    gamma = (1 + torch.randn(cols, generator=generator, device="cuda") * 0.1).bfloat16()
    scale = torch.full((1,), 0.02, device="cuda")
    compiled = {f: torch.compile(f, dynamic=False) for f in (by_row, by_block, given, converted)}
    y = torch.empty_like(x)
    calls: dict[str, dict[str, Call]] = {
        "row": {
            "ours": lambda: nw.rms_norm_quantized(x, gamma, EPS),
            "eager": lambda: by_row(x, gamma), "compiled": lambda: compiled[by_row](x, gamma),
        },
        "block": {
            "ours": lambda: nw.rms_norm_quantized(x, gamma, EPS, scaling="block"),
            "eager": lambda: by_block(x, gamma), "compiled": lambda: compiled[by_block](x, gamma),
        },
        "tensor": {
            "ours": lambda: (nw.rms_norm_quantized(x, gamma, EPS, scale=scale)[0], scale),
            "eager": lambda: given(x, gamma, scale), "compiled": lambda: compiled[given](x, gamma, scale),
        },
        # No rivals: the norm with y in bf16; a copy of x, which moves 4 bytes for an element; and what moves the same 3
        # bytes and does nothing else, x converted to eight bits.
        "copy": {
            "norm": lambda: (nw.rms_norm(x, gamma, EPS),), "copy": lambda: (y.copy_(x),),
            "conversion": lambda: (compiled[converted](x),), "conversion_eager": lambda: (converted(x),),
        },
    }
    for add in (add_vllm, add_flashinfer):
        try:
            add(calls, x, gamma, scale)
        except Exception as error:  # noqa: BLE001  a rival's import may fail in any way
            print(f"{add.__name__}: {type(error).__name__}: {error}".split("\n")[0], file=sys.stderr)
    wide = x.double()
    exact = wide * (wide.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * gamma.double()
    return calls, exact


def is_right(outputs: Any, exact: Any) -> bool:
    """Whether y times its scale is within half a step of e4m3 and what y in bf16 is off by; where it does not
    saturate."""
    y, scales = outputs
    rows, cols = exact.shape
    scales = scales.double().reshape(-1, 1) if scales.numel() in (1, rows) else scales.double()
    scale = scales.repeat_interleave(BLOCK, 1)[:, :cols] if scales.shape[1] > 1 else scales
    want = exact / scale
    step = want.abs().clamp(min=2.0**-6).log2().floor().exp2() / 8
    off = (y.double() - want.clamp(-LARGEST, LARGEST)).abs()
    return bool((off <= step * 0.55 + want.abs() * 2.0**-7).all())


def right_calls(kind: str, calls: dict[str, Call], exact: Any) -> dict[str, Call]:
    """Those of `calls` that run and whose results are right; of the others the reason is said."""
    right = {}
    for name, call in calls.items():
        try:
            call()
            if kind != "copy" and not is_right(call(), exact):
                raise ValueError("its results are wrong")
            right[name] = call
        except Exception as error:  # noqa: BLE001
            print(f"{kind}: {name}: {type(error).__name__}: {error}".split("\n")[0], file=sys.stderr)
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to it too")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "common/library/python"))
    try:
        ready(False)
    except ReportError as error:
        print(f"quantized_peers.py: {error}", file=sys.stderr)
        return 2
    gpu = Gpu()
    figures: dict[str, float] = {}
    for rows, cols in SHAPES:
        sets = [contenders(rows, cols, 1 + number) for number in range(SETS)]
        for kind in sets[0][0]:
            right = [right_calls(kind, calls[kind], exact) for calls, exact in sets]
            ways: list[tuple[str, Any, dict[str, Call]]] = [("cold", gpu.cold, on_sets(right))]
            if rows * cols <= SMALL:
                ways.append(("graph", gpu.graph, {name: gpu.captured(call) for name, call in right[0].items()}))
            for way, sample, timed in ways:
                samples = take_turns(timed, sample, ROUNDS)
                for name, seconds in samples.items():
                    figures[f"{kind}_{rows}x{cols}_{way}_{name}"] = round(statistics.median(seconds) * 1e6, 3)
                shown = ", ".join(f"{name} {statistics.median(s) * 1e6:.2f}" for name, s in samples.items())
                print(f"{kind:<7}{rows} x {cols} bf16, {way}, us: {shown}", flush=True)
    if options.json:
        write_microseconds(options.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
