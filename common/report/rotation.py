#!/usr/bin/env python3
"""Whether what a call leaves in the L2 cache makes the next one faster in spite of the flush between them.

    python3 common/report/rotation.py --output docs/data/rotation_h200.json

`./worklog compare` flushes the cache before each cold call by writing zeros. Some kernels ask the cache to keep what
they read (evict_last), and such lines could outlive the flush. So the contenders are timed in three ways in a cell: on
one set of tensors; on several sets, in each round all on the same one (`in_step`); and on several, each call on another
set than the call before it (`several`), as the comparison does. A set has its turn again when four times the cache has
been read and written. Needs PyTorch with CUDA and a GPU build of the library.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import compare
from cells import COPY, Cell, cell_of
from programs import write_json
from results import ROOT, ReportError, Repository

CELLS = (
    Cell("rmsnorm_forward", "bf16", 4096, 2048),
    Cell("layernorm_forward", "bf16", 4096, 2048),
    Cell("rmsnorm_forward", "bf16", 16384, 4096),
    Cell("rmsnorm_forward", "bf16", 4096, 8192),
    Cell("layernorm_forward", "bf16", 8192, 5120),
    Cell("add_rmsnorm_forward", "bf16", 2048, 4096),
    Cell("rmsnorm_backward", "bf16", 4096, 6144),
    Cell("batchnorm_train", "bf16", 65536, 1024),
)
NAMES = ("ours", "torch", "torch.compile", "liger", "quack", "cudnn")
ROUNDS = 40
WAYS = ("one", "in_step", "several")
TITLE = "One set of tensors, and several in turn in two ways; the cache flushed before each call, in one process"


def figures_of(cell: Cell, gpu: Any) -> dict[str, dict[str, Any]]:
    """All ways of each contender, in microseconds."""
    several = compare.sets_to_rotate(cell, gpu.l2_bytes)
    figures: dict[str, dict[str, Any]] = {}
    for way in WAYS:
        sets = 1 if way == "one" else several
        measured = compare.measure(cell, NAMES, ROUNDS, gpu, sets, ("cold",), way == "in_step")
        for entry in measured["absent"]:
            print(f"{entry['variant']} is not there: {entry['reason']}")
        for entry in measured["benchmarks"]:
            name = cell_of(entry["name"])[0]
            if name != COPY:
                figures[f"{name}/{cell.name}/{way}"] = {
                    "value": entry["median_seconds"] * 1e6, "unit": "us", "spread": entry["spread"],
                    "meaning": f"{name}, {cell.name}, cold, sets of tensors: {sets}" + " in step" * (way == "in_step"),
                }
    timed = {name for name in figures if all(f"{name.rpartition('/')[0]}/{way}" in figures for way in WAYS)}
    return {key: figure for key, figure in figures.items() if key in timed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="file to write, docs/data/rotation_<gpu>.json")
    parser.add_argument("--minutes", type=float, help="begin no cell after so long")
    options = parser.parse_args()
    try:
        library, _ = compare.ready(False)
    except ReportError as error:
        print(f"rotation.py: {error}", file=sys.stderr)
        return 2
    begun, gpu = time.monotonic(), compare.Gpu()
    context = compare.context_of(NAMES, library)
    repository = Repository(ROOT)
    locks = {stage: repository.lock_now(stage, context["gpu_short"]) for stage in context["source_hashes"]}
    context["codes"] = {stage: lock.code for stage, lock in locks.items() if lock}
    document: dict[str, Any] = {"context": {"title": TITLE, **context}, "figures": {}}
    for cell in CELLS:
        if options.minutes is not None and time.monotonic() - begun > options.minutes * 60:
            break
        print(cell.name, flush=True)
        document["figures"] |= figures_of(cell, gpu)
        write_json(options.output, document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
