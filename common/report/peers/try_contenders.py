#!/usr/bin/env python3
"""Which contenders of `./worklog compare` work on this machine: each is called at one cell of each operation.

    python3 common/report/peers/try_contenders.py                   all of them
    python3 common/report/peers/try_contenders.py --name cudnn --name quack --operation layernorm_backward
    python3 common/report/peers/try_contenders.py --minutes 1       begins nothing after that

A line to each: right, wrong (how many times the error that is tolerated) or the exception with the end of its
traceback; what the first call took; and whether a CUDA graph can be made of the calls. Nothing is timed. Needs PyTorch
with CUDA and a GPU build of the library.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import compare  # noqa: E402
from cells import TENSORS, Cell  # noqa: E402
from results import ReportError  # noqa: E402

CELLS = (
    *(Cell(operation, "bf16", 2048, 4096) for operation in TENSORS if not operation.startswith("batchnorm")),
    *(Cell(operation, "bf16", 64, 256, 784) for operation in TENSORS if operation.startswith("batchnorm")),
    *(Cell(operation, "bf16", 4096, 1024) for operation in TENSORS if operation.startswith("batchnorm")),
    *(Cell(operation, "bf16", 64, 256, 784, True) for operation in TENSORS if operation.startswith("batchnorm")),
    Cell("rmsnorm_forward", "fp32", 1024, 12288),
    Cell("layernorm_backward", "fp32", 1024, 12288),
)
LINES = 6  # of a traceback


def told(cell: Cell, name: str, problem: Any, gpu: Any) -> Iterator[str]:
    """What happens, a part at a time, so that what was found stays where a later part fails."""
    from contenders import Unavailable, prepare

    try:
        begun = time.perf_counter()
        own = problem.with_own_statistics()
        call, _ = prepare(name, own)
        outputs = call()
        gpu.synchronize()
        took = time.perf_counter() - begun
        outputs = call()
        gpu.synchronize()
        outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        slack, running = compare.slack_of_sum(problem), compare.running_statistics(problem)
        backward = bool(problem.gradients)
        excess = compare.largest_excess(outputs, compare.reference(problem), cell.dtype, backward, slack)
        if running:
            own_running = [own.running_mean, own.running_var]
            excess = max(excess, compare.largest_excess(own_running, running, "fp32", False))
        yield f"{'right' if excess <= 1 else 'WRONG'} ({excess:.3g}), first call {took * 1e3:.0f} ms"
        gpu.captured(call)
        gpu.synchronize()
        yield "in a graph"
    except Unavailable as reason:
        yield f"takes no part: {reason}"
    except Exception:  # noqa: BLE001: what it raises is what is asked for
        yield "RAISES\n    " + "\n    ".join(traceback.format_exc().strip().splitlines()[-LINES:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", action="append", default=[], help="only this contender")
    parser.add_argument("--operation", action="append", default=[], choices=list(TENSORS), help="only this operation")
    parser.add_argument("--cells", type=int, default=len(CELLS), help="only so many of the cells")
    parser.add_argument("--minutes", type=float, help="begin nothing after so long")
    options = parser.parse_args()
    begun = time.monotonic()
    try:
        compare.ready(False)
    except ReportError as error:
        print(f"try_contenders.py: {error}", file=sys.stderr)
        return 2
    import contenders

    gpu = compare.Gpu()
    for cell in CELLS[:options.cells]:
        if options.operation and cell.operation not in options.operation:
            continue
        problem = compare.problem_of(cell, gpu.device)
        for name in options.name or contenders.NAMES:
            gone = time.monotonic() - begun
            if options.minutes is not None and gone > options.minutes * 60:
                print("time is up")
                return 0
            print(f"{gone:5.1f} s  {cell.name}  {name}: ", end="", flush=True)
            print("; ".join(told(cell, name, problem, gpu)), flush=True)
            if not gpu.usable():
                print("the CUDA context is broken")
                return compare.GPU_LOST
    return 0


if __name__ == "__main__":
    sys.exit(main())
