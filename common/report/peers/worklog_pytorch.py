#!/usr/bin/env python3
"""How the CUDA worklog times PyTorch, and what of that time is PyTorch's: docs/data/worklog_pytorch_<gpu>.json.

    python3 common/report/peers/worklog_pytorch.py

The article's loop copies its input from the host's memory to the GPU in every iteration, and normalizes it there. Here
that loop runs as it stands; then the copy alone; then LayerNorm alone, on an input that is on the GPU already. Each is
the mean of 1000 iterations by the host's clock, three times in turn, of which the median is kept. Needs a GPU and
PyTorch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from compare import context_of  # noqa: E402
from programs import shown, write_json  # noqa: E402
from results import ROOT  # noqa: E402

ROWS, COLS = 1024, 1024
WARM_UP, ITERATIONS, TURNS = 10, 1000, 3
MEANINGS = {
    "with_copy": "the article's loop: the copy from the host and LayerNorm in each iteration",
    "copy": "the copy alone",
    "norm": "LayerNorm alone, its input on the GPU",
}


def mean_seconds(step: Callable[[], Any]) -> float:
    import torch

    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(ITERATIONS):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / ITERATIONS


def measure() -> dict[str, float]:
    """Seconds of an iteration of each loop."""
    import torch

    on_host = torch.arange(1, ROWS * COLS + 1).reshape(ROWS, COLS).float()
    on_gpu = on_host.cuda()
    norm = torch.nn.LayerNorm(COLS, elementwise_affine=False, eps=1e-6).cuda()
    loops = {"with_copy": lambda: norm(on_host.cuda()), "copy": on_host.cuda, "norm": lambda: norm(on_gpu)}
    with torch.no_grad():
        turns = [{name: mean_seconds(step) for name, step in loops.items()} for _ in range(TURNS)]
    return {name: statistics.median(turn[name] for turn in turns) for name in loops}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="file to write, instead of docs/data/worklog_pytorch_<gpu>.json")
    options = parser.parse_args(arguments)
    try:
        import torch
    except ImportError as error:
        print(f"worklog_pytorch: {error}: PyTorch is what is measured", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("worklog_pytorch: there is no GPU here that PyTorch can use", file=sys.stderr)
        return 2
    context = context_of([], Path(__file__))
    seconds = measure()
    source = {
        "title": "PyTorch's LayerNorm, timed as the CUDA worklog times it, and without the copy from the host",
        "gpu": context["gpu"],
        "driver": context["driver"],
        "date": context["date"][:10],
        "software": {"torch": context["software"].get("torch", "")},
        "shape": f"{ROWS}x{COLS}",
        "dtype": "fp32",
        "input": "arange: 1, 2, ... 1048576",
        "note": f"The host's clock, means of {ITERATIONS} iterations, the median of {TURNS} turns. "
        "common/report/peers/worklog_pytorch.py.",
        "commit": context["commit"],
        "commit_note": "The tree that the script is of",
    }
    figures = {
        name: {"value": round(value * 1e3, 5), "unit": "ms", "meaning": MEANINGS[name]}
        for name, value in seconds.items()
    }
    path = options.output or ROOT / f"docs/data/worklog_pytorch_{context['gpu_short']}.json"
    write_json(path, {"source": source, "figures": figures})
    for name, value in seconds.items():
        print(f"{value * 1e6:9.1f} us  {MEANINGS[name]}")
    print(f"wrote {shown(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
