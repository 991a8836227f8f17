#!/usr/bin/env python3
"""What a call costs the host, beside PyTorch's own: microseconds of F.layer_norm's, F.batch_norm's and of ours at 64 x
4096.

    python3 common/library/python/tests/overhead.py [--json FILE]

On a GPU the kernels take about 2 us, so that back-to-back calls wait for the host: what is measured is the way from
Python to the end of the launch. Where the library is a CPU build, the tensors have no rows and steps have frozen
parameters, so that no kernel runs. The two take turns in short rounds, and of each the fastest round counts: other work
on the machine only ever adds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __package__ is None or __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F

import normworklog as nw

CALLS, ROUNDS = 200, 200


def take_turns(calls: dict[str, Callable[[], Any]], settle: Callable[[], None]) -> dict[str, float]:
    """Seconds of a call, the best round of each."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        for _ in range(CALLS):
            call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            settle()
            begun = time.perf_counter()
            for _ in range(CALLS):
                call()
            best[name] = min(best[name], (time.perf_counter() - begun) / CALLS)
            settle()
    return best


def measure(device: str) -> dict[str, dict[str, float]]:
    """For each case: torch_us, ours_us and their ratio."""
    rows = 64 if device == "cuda" else 0
    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    x = torch.zeros(rows, 4096, device=device)
    gamma, beta = torch.ones(4096, device=device), torch.zeros(4096, device=device)
    theirs = torch.nn.LayerNorm(4096, device=device)
    mine = nw.replace_norms(torch.nn.LayerNorm(4096, device=device))
    weight, bias = theirs.weight, theirs.bias
    residual = torch.zeros_like(x)
    tracked, dy = torch.zeros_like(x, requires_grad=True), torch.zeros_like(x)
    mean, var = torch.zeros(4096, device=device), torch.ones(4096, device=device)
    # Sums over no rows are zeros, which a kernel writes.
    scale, shift, inputs = (weight, bias, (tracked, weight, bias)) if device == "cuda" else (gamma, beta, (tracked,))

    def step(y: torch.Tensor) -> Any:
        return torch.autograd.grad(y, inputs, dy)

    cases: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "forward": (lambda: F.layer_norm(x, (4096,), gamma, beta), lambda: nw.layer_norm(x, gamma, beta)),
        "forward of parameters, for a backward pass": (
            lambda: F.layer_norm(x, (4096,), weight, bias),
            lambda: nw.layer_norm(x, weight, bias),
        ),
        "module": (lambda: theirs(x), lambda: mine(x)),
        "rms_norm": (lambda: F.rms_norm(x, (4096,), gamma, 1e-6), lambda: nw.rms_norm(x, gamma)),
        "step, forward and backward": (
            lambda: step(F.layer_norm(tracked, (4096,), scale, shift)),
            lambda: step(nw.layer_norm(tracked, scale, shift)),
        ),
        "add and norm": (
            lambda: F.layer_norm(x + residual, (4096,), gamma, beta),
            lambda: nw.add_layer_norm(x, residual, gamma, beta),
        ),
        "batch_norm in training": (
            lambda: F.batch_norm(x, mean, var, gamma, beta, True),
            lambda: nw.batch_norm(x, mean, var, gamma, beta, True),
        ),
        "batch_norm in inference": (
            lambda: F.batch_norm(x, mean, var, gamma, beta),
            lambda: nw.batch_norm(x, mean, var, gamma, beta),
        ),
        "batch_norm step, forward and backward": (
            lambda: step(F.batch_norm(tracked, mean, var, scale, shift, True)),
            lambda: step(nw.batch_norm(tracked, mean, var, scale, shift, True)),
        ),
    }
    found = {}
    for name, (torch_call, our_call) in cases.items():
        best = take_turns({"torch": torch_call, "ours": our_call}, settle)
        found[name] = {
            "torch_us": best["torch"] * 1e6,
            "ours_us": best["ours"] * 1e6,
            "ratio": best["ours"] / best["torch"],
        }
    return found


def document(found: dict[str, dict[str, float]], device: str) -> dict[str, Any]:
    """As the project's pages read figures: from docs/data/overhead_<gpu>.json."""
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    source = {
        "title": "What a call costs the host at 64 x 4096, fp32: back-to-back calls, the fastest of their rounds",
        "device": torch.cuda.get_device_name() if device == "cuda" else "no GPU: tensors without rows, on the CPU",
        "torch": torch.__version__, "python": sys.version.split()[0], "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": asked.stdout.strip() or os.environ.get("WORKLOG_COMMIT", "unknown"),
        "commit_note": "The tree whose library was measured",
    }
    figures = {}
    for case, values in found.items():
        name = case.partition(",")[0].replace(" ", "_")
        for key, side in (("torch_us", "PyTorch"), ("ours_us", "ours")):
            figures[f"{name}_{key.removesuffix('_us')}"] = {
                "value": values[key],
                "unit": "us",
                "meaning": f"{case}: {side}",
            }
    return {"source": source, "figures": figures}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    options = parser.parse_args()
    device = nw.backend() if nw.backend() == "cuda" else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        print("overhead.py: the library is a GPU build, and PyTorch sees no GPU here", file=sys.stderr)
        return 2
    if device == "cpu":
        torch.set_num_threads(1)
    found = measure(device)
    for name, figures in found.items():
        print(
            f"{name:45} PyTorch {figures['torch_us']:6.2f} us   ours {figures['ours_us']:6.2f} us   "
            f"{figures['ratio']:.2f} times"
        )
    if options.json:
        options.json.write_text(json.dumps(document(found, device), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
