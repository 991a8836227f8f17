#!/usr/bin/env python3
"""How far results of fp32 are off, beside PyTorch's on the same values: inputs that make sums hard, rows up to 2^20.

    accuracy.py --write DIRECTORY     on a GPU with PyTorch: pytorch_errors.json, and accuracy.json with ours beside
    accuracy.py [--every N]           ours, by what is committed of PyTorch's; also on the CPU layer

fuzz.py says how far they may be off, and fuzz_reference.py what a last place is. The values are drawn by numpy, so that
a machine without a GPU has the same ones.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fuzz
import fuzz_cases
from fuzz_memory import Array, OnCpuLayer, OnGpu
from results import ROOT

COMMITTED = ROOT / "common/tests/fixtures/pytorch_errors.json"
INPUTS = ("normal", "equal", "bytes", "outlier", "one sign", "heavy", "large mean")
# (rows, columns); "apart": x lies otherwise than y, so that no vector is of both.
ROWS = ((3, 1048575), (2, 1048576), (14, 395536), (10, 190917), (4, 262144), (9, 114763), (19, 66992), (37, 50257),
        (24, 32768), (16, 44397), (64, 16384), (64, 12289), (64, 8192), (64, 4097), (64, 4096), (64, 1024), (64, 1023),
        (64, 768), (640, 129), (640, 128), (640, 100), (640, 33))
APART = ((19, 66992), (64, 4097), (64, 1024))
SIXTEEN_BITS = ((8, 976712), (24, 32768), (37, 50257), (64, 4096))
BACKWARD = ((3, 262143), (37, 50257), (64, 4096), (513, 4097), (4096, 1024), (20000, 129), (50000, 64))
# (samples, channels, pixels, whether the channels come first)
CHANNELS = ((37, 50257, 1, False), (100003, 129, 1, False), (17, 1000, 49, True), (64, 1192, 1, False),
            (337, 64, 1, False), (537, 53, 1, False), (8192, 44, 1, False), (1536, 43, 1, False),
            (4096, 1024, 1, False), (8, 64, 3136, True), (8, 64, 3136, False), (2, 3, 200001, True))


class OnGpuAsNumpy(OnGpu):
    """PyTorch's memory, with numpy's random numbers."""

    def normal(self, shape: Sequence[int], seed: int) -> Array:
        import numpy

        drawn = numpy.random.default_rng(seed).standard_normal(tuple(shape))
        return self.xp.from_numpy(drawn).to("cuda")


def case_of(operation: str, dtype: str, rows: int, cols: int, inputs: str, *, pixels: int = 1, first: bool = False,
            apart: bool = False) -> fuzz.Case:
    key = f"{operation} {dtype} {rows} {cols} {pixels} {inputs}"
    read, written = fuzz_cases.tensors_of(operation)
    names = (*read, *written)
    return fuzz.Case(
        operation=operation, dtype=dtype, param_dtype="fp32", rows=rows, cols=cols, pixels=pixels,
        channels_first=first, inputs=inputs, absent=frozenset({"dh"}), places={}, padding=dict.fromkeys(names, 0),
        offset={name: 1 if apart and name == "x" else 0 for name in (*names, "gamma", "beta", "dgamma", "dbeta")},
        eps=1e-5, momentum=0.1, round_before_gamma=False, graph=False, workspace=True,
        seed=zlib.crc32(key.encode()) % (1 << 30))


def cases() -> Iterator[tuple[str, fuzz.Case]]:
    """Each with its name."""
    for inputs in INPUTS:
        for norm in ("layernorm", "rmsnorm"):
            for rows, cols in ROWS:
                yield f"{norm} {rows} x {cols}, {inputs}", case_of(f"{norm}_forward", "fp32", rows, cols, inputs)
            for rows, cols in APART:
                case = case_of(f"{norm}_forward", "fp32", rows, cols, inputs, apart=True)
                yield f"{norm} {rows} x {cols} apart, {inputs}", case
            for rows, cols in SIXTEEN_BITS:
                yield f"{norm} {rows} x {cols} of bf16, {inputs}", case_of(
                    f"{norm}_forward", "bf16", rows, cols, inputs)
            for rows, cols in BACKWARD:
                yield f"{norm} backward {rows} x {cols}, {inputs}", case_of(
                    f"{norm}_backward", "fp32", rows, cols, inputs)
        for samples, channels, pixels, first in CHANNELS:
            shape = f"{samples} x {channels} x {pixels}" if first else f"{samples} x {pixels} x {channels}"
            for what in ("train", "inference", "backward"):
                yield f"batchnorm {what} {shape}, {inputs}", case_of(
                    f"batchnorm_{what}", "fp32", samples, channels, inputs, pixels=pixels, first=first)


def errors_of(memory: Any, case: fuzz.Case, with_pytorch: bool) -> tuple[dict[str, float], dict[str, float]]:
    """Ours, and PyTorch's, of each output that has fp32."""
    call = fuzz.Call(memory, case)
    memory.run(call.make, False)
    wanted = call.wanted()
    names = sorted(name for name in call.outputs() if call.buffers[name].dtype == "fp32" and name in wanted)
    ours = {name: call.error(name, call.found(name), wanted) for name in names}
    if not with_pytorch:
        return ours, {}
    found = call.of_pytorch()
    return ours, {name: call.error(name, found[name], wanted) for name in names if name in found}


def most_for(case: fuzz.Case, name: str, theirs: dict[str, float]) -> float:
    """Of an output that PyTorch does not have, what it allows for y: it would be off by as much."""
    most, times = fuzz.allowed(case, name, "fp32")
    return max(most, times * theirs.get(name, theirs.get("y", 0.0)))


def short(errors: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.3g}") for name, value in errors.items()}


def write(memory: Any, folder: Path) -> None:
    import torch

    place = {"gpu": torch.cuda.get_device_name(), "pytorch": torch.__version__}
    pairs = {name: errors_of(memory, case, True) for name, case in cases()}
    folder.mkdir(parents=True, exist_ok=True)
    theirs = {"what": "Errors of PyTorch's norms in fp32, in last places: see common/report/accuracy.py", **place,
              "errors": {name: short(pair[1]) for name, pair in pairs.items()}}
    both = {**place, "errors": {name: {"ours": short(pair[0]), "pytorch": short(pair[1])}
                                for name, pair in pairs.items()}}
    for file, what in (("pytorch_errors.json", theirs), ("accuracy.json", both)):
        lines = json.dumps(what, indent=1)
        (folder / file).write_text(lines + "\n")


def check(memory: Any, every: int, most_elements: int | None) -> list[str]:
    """What is further off than it may be, of every so many cases."""
    committed = json.loads(COMMITTED.read_text())["errors"]
    wrong = []
    for number, (name, case) in enumerate(cases()):
        if number % every or (most_elements and case.rows * case.cols * case.pixels > most_elements):
            continue
        ours, _ = errors_of(memory, case, False)
        for output, error in ours.items():
            most = most_for(case, output, committed[name])
            if not error <= most:
                wrong.append(f"{name}: {output} is {error:.1f} last places off, and may be {most:.1f}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", dest="built", type=Path, help="libnormworklog; else what normworklog finds")
    parser.add_argument("--write", type=Path, metavar="DIRECTORY", help="PyTorch's errors and ours, as JSON")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one case of N")
    parser.add_argument("--elements", type=int, metavar="N", help="no case of more")
    options = parser.parse_args()
    if options.built:
        fuzz._library._loaded = fuzz._library.Library(options.built)
    memory = OnGpuAsNumpy() if fuzz._library.load().on_gpu else OnCpuLayer()
    with memory.quiet():
        if options.write:
            write(memory, options.write)
            return 0
        wrong = check(memory, options.every, options.elements)
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
