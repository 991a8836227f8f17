#!/usr/bin/env python3
"""Whether a row comes out the same whatever the batch, bit for bit: batches of 1 to 65,536 rows, forward and dx.

    batches.py                  with batch_invariant set; exits with 1 where a bit differs
    batches.py --without        and without it: how many rows differ

Some rows are normalized one by one, and then in batches, each batch in another order. One of them is so large that its
squares overflow: it must not show in its neighbours. On the CPU layer the batches are smaller than on a GPU, where they
have up to 2^27 elements.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz_calls import _library
from fuzz_cases import BACKWARD, FORWARD
from fuzz_memory import Array, OnCpuLayer, OnGpu
from programs import write_json

NORMS = (*FORWARD, *BACKWARD)
KINDS = 13  # rows that differ; a number that no batch is a multiple of
WIDTHS = (1, 7, 33, 64, 100, 128, 200, 256, 257, 500, 512, 768, 1000, 1023, 1024, 1032, 1536, 2048, 4096, 4097, 5120,
          8192, 12288, 16384, 32768, 50257, 65536, 131072, 262144, 458760)
BATCHES = (1, 2, 3, 7, 8, 31, 64, 129, 256, 1000, 1024, 4096, 16384, 65536)
TYPES = (("fp32", "fp32"), ("bf16", "bf16"), ("fp16", "fp32"))
MOST = {True: 1 << 27, False: 1 << 20}  # elements of a batch, on a GPU or not


@dataclass(frozen=True)
class Case:
    operation: str
    dtype: str
    param_dtype: str
    cols: int

    def __str__(self) -> str:
        types = self.dtype if self.dtype == self.param_dtype else f"{self.dtype} with {self.param_dtype}"
        return f"{self.operation} {types} {self.cols} columns"


class Norm:
    """The rows of a case, and what a call makes of some of them."""

    def __init__(self, memory: Any, case: Case) -> None:
        self.memory, self.case = memory, case
        names = ["x", "residual"] if case.operation.startswith("add") else ["x"]
        names = ["dy", "x", "dh"] if case.operation.endswith("backward") else names
        self.rows = {name: memory.cast(self.values(seed), case.dtype) for seed, name in enumerate(names, 1)}
        self.parameters = {name: memory.cast(1 + memory.normal((case.cols,), seed) / 4, case.param_dtype)
                           for seed, name in enumerate(("gamma", "beta"), 7)}
        self.statistics = {}
        if case.operation.endswith("backward"):
            for seed, name in enumerate(("mean", "rstd"), 11):
                self.statistics[name] = memory.cast(abs(memory.normal((KINDS,), seed)) + 0.1, "fp32")

    def values(self, seed: int) -> Array:
        values = self.memory.normal((KINDS, self.case.cols), seed)
        if self.case.dtype != "fp16" and not self.case.operation.endswith("backward"):
            values[5] *= 1e30
        return values

    def of(self, kinds: Array) -> dict[str, Array]:
        """The outputs for these of the rows, as bytes: an array with a row for each."""
        memory, case = self.memory, self.case
        rows, cols = len(kinds), case.cols
        given = {name: values[kinds] for name, values in (*self.rows.items(), *self.statistics.items())}
        given |= self.parameters
        like = given["x"]
        if case.operation.endswith("backward"):
            written = {"dx": like * 0}
        else:
            written = {name: like * 0 for name in (("h", "y") if "residual" in given else ("y",))}
            moments = ("mean", "rstd") if "layernorm" in case.operation else ("rstd",)
            written |= {name: memory.cast(memory.counted(rows), "fp32") for name in moments}
        tensors = given | written

        def at(*names: str) -> list[int]:
            return [memory.address(tensors[name]) if name in tensors else 0 for name in names]

        types = (_library.DTYPES[case.dtype], _library.DTYPES[case.param_dtype])
        centered, summed = "layernorm" in case.operation, case.operation.startswith("add")

        def call(stream: int) -> None:
            if case.operation.endswith("backward"):
                size = _library.backward_workspace_bytes(centered, rows, cols, *types)
                room = memory.bytes(size, 1)
                function = _library.layer_norm_backward if centered else _library.rms_norm_backward
                function(*at("dy", "x", "dh", "gamma", "mean", "rstd", "dx"), 0, 0, memory.address(room), size, rows,
                         cols, cols, cols, cols, cols, *types, stream)
                return
            function = getattr(_library, ("add_" if summed else "") + ("layer_norm" if centered else "rms_norm"))
            heads = at("x", "residual", "gamma", "beta", "h", "y") if summed else at("x", "gamma", "beta", "y")
            strides = [cols] * (4 if summed else 2)
            function(*heads, *at("mean", "rstd"), rows, cols, *strides, 1e-5, False, *types, stream)

        memory.run(call, False)
        return {name: memory.bits(values).reshape(rows, -1) for name, values in written.items()}


def differing(memory: Any, case: Case, batches: Iterator[int]) -> dict[int, int]:
    """Of each batch, the rows that have other bits than by themselves."""
    norm = Norm(memory, case)
    order = [memory.integers([kind]) for kind in range(KINDS)]
    alone: dict[str, list[Array]] = {}
    for one in order:
        for name, found in norm.of(one).items():
            alone.setdefault(name, []).append(found)
    of_kind = {name: memory.stacked(found) for name, found in alone.items()}
    found = {}
    for rows in batches:
        kinds = memory.integers([(row * 5 + rows) % KINDS for row in range(min(rows, KINDS))])
        kinds = memory.repeated(kinds, rows)
        differs = sum((out != of_kind[name][kinds]).any(1) * 1 for name, out in norm.of(kinds).items())
        found[rows] = int((differs > 0).sum())
    return found


def cases(most: int) -> Iterator[Case]:
    for operation in NORMS:
        for dtype, param_dtype in TYPES:
            for cols in WIDTHS:
                if cols * KINDS <= most:
                    yield Case(operation, dtype, param_dtype, cols)


def run(memory: Any, flag: bool, most: int, every: int = 1) -> dict[str, dict[int, int]]:
    """For each case, of each batch the rows that differ."""
    _library.set_batch_invariant(flag)
    try:
        found = {}
        for number, case in enumerate(cases(most)):
            if number % every == 0:
                found[str(case)] = differing(memory, case, (b for b in BATCHES if b * case.cols <= most))
        return found
    finally:
        _library.set_batch_invariant(False)


def figures(found: dict[str, dict[int, int]]) -> dict[str, int]:
    rows = sum(rows for of in found.values() for rows in of)
    return {"cases": len(found), "batches": sum(len(of) for of in found.values()), "rows": rows,
            "differing_cases": sum(any(of.values()) for of in found.values()),
            "differing_rows": sum(sum(of.values()) for of in found.values())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", dest="built", type=Path, help="libnormworklog; else what normworklog finds")
    parser.add_argument("--without", action="store_true", help="also without the flag")
    parser.add_argument("--elements", type=int, metavar="N", help="no batch of more")
    parser.add_argument("--output", type=Path, help="what was found, as JSON")
    options = parser.parse_args()
    if options.built:
        _library._loaded = _library.Library(options.built)
    on_gpu = _library.load().on_gpu
    memory = OnGpu() if on_gpu else OnCpuLayer()
    with memory.quiet():
        found = {"with": run(memory, True, options.elements or MOST[on_gpu])}
        if options.without:
            found["without"] = run(memory, False, options.elements or MOST[on_gpu])
    tally = {f"{how}_{name}": value for how, of in found.items() for name, value in figures(of).items()}
    print(json.dumps(tally, indent=1))
    for case, batches in found["with"].items():
        if any(batches.values()):
            print(f"{case}: {', '.join(f'{rows} of {batch}' for batch, rows in batches.items() if rows)} rows differ")
    if options.output:
        write_json(options.output, {"figures": tally, "found": found})
    return 1 if tally["with_differing_rows"] else 0


if __name__ == "__main__":
    sys.exit(main())
