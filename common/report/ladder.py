#!/usr/bin/env python3
"""The ladder by what its kernels ask of memory, counted on the CPU layer, and the time that this predicts for a GPU.

    python3 common/report/ladder.py --programs build/cpu/bin --gpu h200 [stages...]

./worklog run ends with this table where there is no GPU. What docs/data/counts.json has of a stage's kernels as they
are is taken from there; what it has not, because a kernel was edited or another GPU is asked for, is counted by the
stage's counting program, and --to-count names these stages. How a time is predicted, prediction.py says. Where results/
has a measurement for that GPU, it stands beside. Without a stage's name there is one operation of each.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counting import COUNTS, count
from grid import ELEMENT_BYTES
from prediction import (
    APART, INSTRUCTIONS, Compared, Gpu, Rung, compared, gpu_named, in_order, median_off, rungs_of, signed,
)
from programs import programs_in
from results import ROOT, Repository, ReportError, read_json
from text import dagger, significant

HEAD = [
    "", "variant", "bytes", "sectors", "passes", "barriers", "shuffles", "conflicts", "traffic", "issue", "waits",
    "predicted", "measured", "off",
]
MATRICES = ("x", "dy")  # of which an operation reads one at least


@dataclass(frozen=True)
class Counted:
    """What has been counted already of the kernels as they are: the launches of each stage at one shape and type."""

    kernels: dict[str, list[dict[str, Any]]]

    def without(self, stages: list[str]) -> list[str]:
        return [stage for stage in stages if stage not in self.kernels]


def committed_counts(repository: Repository, shape: str, dtype: str, multiprocessors: int) -> Counted:
    document = read_json(repository.root / COUNTS, repository.root)
    if document["context"]["multiprocessors"] != str(multiprocessors) or shape not in document["context"]["shapes"]:
        return Counted({})
    rows, cols = (int(extent) for extent in shape.split("x"))
    current = {entry["stage"] for entry in document["stages"] if entry["source_hash"] == hash_of(repository, entry)}
    found: dict[str, list[dict[str, Any]]] = {}
    for kernel in document["kernels"]:
        if kernel["stage"] in current and (kernel["rows"], kernel["cols"], kernel["dtype"]) == (rows, cols, dtype):
            found.setdefault(kernel["stage"], []).append(kernel)
    return Counted(found)


def hash_of(repository: Repository, entry: dict[str, Any]) -> str | None:
    """Of the stage's kernels now; None where there is no such stage any more."""
    return repository.hash_now(entry["stage"]) if entry["stage"] in repository.stages() else None


def stages_named(names: list[str], all_stages: list[str]) -> list[str]:
    """Those that begin with one of the names; all where there is no name."""
    return [stage for stage in all_stages if not names or any(stage.startswith(name.rstrip("/")) for name in names)]


def main_ones(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One screen of them: of each stage the operation with most variants, and none of an article."""
    variants: dict[str, dict[str, set[str]]] = {}
    for kernel in kernels:
        variants.setdefault(kernel["stage"], {}).setdefault(kernel["operation"], set()).add(kernel["variant"])
    main = {stage: max(operations, key=lambda o: len(operations[o])) for stage, operations in variants.items()}
    return [
        kernel for kernel in kernels
        if kernel["operation"] == main[kernel["stage"]] and not kernel["variant"].startswith("article_")
    ]


def line_of(name: str, rung: Rung, gpu: Gpu, measured: Compared | None) -> list[str]:
    stage, variant = name.split("/")[:2]
    first = rung.kernels[0]
    rows, elements = first["rows"], first["rows"] * first["cols"] * first["pixels"]
    loads = rung.total("global_load_requests") + rung.total("async_copy_load_requests")
    sectors = rung.total("global_load_sectors") + rung.total("async_copy_load_sectors")
    in_global = ("global_load", "global_store", "global_atomic", "async_copy_load")
    asked = sum(rung.total(f"{kind}_bytes_asked") for kind in in_global)
    conflicts = rung.total("shared_load_conflicts") + rung.total("shared_store_conflicts")
    matrix = ELEMENT_BYTES[first["dtype"]] * elements
    passes = max(rung.total(f"read_{matrix_name}_bytes") for matrix_name in MATRICES) / matrix
    per_row = lambda key: significant(rung.total(key) / rows, 2) if rung.total(key) else "-"  # noqa: E731
    predicted = rung.prediction(gpu)
    in_us = lambda seconds: significant(seconds * 1e6) if seconds >= 1e-6 else f"{seconds * 1e6:.2f}"  # noqa: E731
    return [
        stage[:2],
        variant,
        f"{asked / elements:.1f}",
        f"{sectors / loads:.1f}" if loads else "-",
        f"{passes:.1f}",
        per_row("barrier_requests"),
        per_row("shuffle_requests"),
        significant(conflicts / rows, 2) if conflicts else "-",
        f"{predicted.bound} {in_us(predicted.traffic)}",
        in_us(predicted.instructions),
        in_us(predicted.waits),
        in_us(predicted.seconds),
        "" if measured is None else dagger(in_us(measured.measured), measured.stale),
        "" if measured is None else signed(measured.off()),
    ]


def summary(entries: list[Compared]) -> str:
    """How far the predictions are off: the median, and the worst."""
    worst = max(entries, key=lambda entry: abs(entry.off()))
    stage, variant = worst.name.split("/")[:2]
    sentence = (
        f"Off by {median_off(entry.off() for entry in entries) * 100:.0f} % in the median, and at worst by "
        f"{signed(worst.off())} ({stage[:2]} {variant})"
    )
    right, pairs = in_order(entries)
    if pairs > 1:
        sentence += f"; {right} of {pairs} pairs that differ by {APART * 100:.0f} % are in their order"
    return sentence + "."


def told_where(here: list[str], shown: set[str]) -> str:
    numbers = [stage[:2] for stage in here]
    if not numbers:
        return f"as its kernels were counted on a CPU ({COUNTS})"
    if shown == set(numbers):
        return "counted on this CPU"
    return f"counted on a CPU: stage {', '.join(numbers)} here, the others' kernels are as in {COUNTS}"


def table(head: list[str], lines: dict[str, list[list[str]]], left: int = 2) -> str:
    """By operation, which has a line of its own where there are several."""
    widths = [max(len(line[i]) for line in [head, *sum(lines.values(), [])]) for i in range(len(head))]

    def row(line: list[str]) -> str:
        cells = enumerate(zip(line, widths))
        return "  ".join(cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in cells).rstrip()

    text = [row(head)]
    for operation, of_operation in lines.items():
        text += [operation] if len(lines) > 1 else []
        text += [row(line) for line in of_operation]
    return "\n".join(text)


def legend(gpu: Gpu, is_measured: bool) -> str:
    """What the columns of a table of line_of() are."""
    launch = f"{gpu.launch_seconds * 1e6:.1f} for an empty launch, and " if gpu.launch_seconds else ""
    borrowed = "" if is_measured else "\n                (fitted to times of an H200; there are none of this GPU)"
    return (
        "bytes, sectors  what all threads ask of global memory for each element of the input; 32-byte sectors that a "
        "warp's\n"
        "                load touches: 4 are enough for 32 floats, 16 for 32 vectors of 4\n"
        "passes          how often the input matrix is read; barriers, shuffles, bank conflicts are those of a row\n"
        f"predicted       microseconds on an {gpu.name}: {launch}the sum of\n"
        "  traffic       the longest of what DRAM, the L2 cache and the L1 caches take for it\n"
        f"  issue         {INSTRUCTIONS} instructions for each access, shuffle and barrier of a warp\n"
        f"  waits         {gpu.step_seconds * 1e9:.0f} ns for each load, atomic, shuffle and barrier, one after the "
        f"other in a warp{borrowed}"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", help="by number or name; all where none is named")
    parser.add_argument(
        "--programs",
        type=Path,
        default=ROOT / "build/cpu/bin",
        help="folder of the stages' programs (default: build/cpu/bin)",
    )
    parser.add_argument(
        "--gpu", default="h200", help="for which GPU the time is predicted: h200, h100, rtx4050, t4 (default: h200)"
    )
    parser.add_argument("--shape", default="1024x1024", help="rows x cols (default: 1024x1024)")
    parser.add_argument("--dtype", default="fp32", help="default: fp32")
    parser.add_argument("--to-count", action="store_true", help="only name the stages that have to be counted")
    options = parser.parse_args(arguments)
    try:
        gpu = gpu_named(options.gpu)
        repository = Repository(ROOT)
        counted = committed_counts(repository, options.shape, options.dtype, gpu.multiprocessors)
        if options.to_count:
            print("\n".join(counted.without(stages_named(options.stages, repository.stages()))))
            return 0
        kernels, here = [], []
        flags = ["--shapes", options.shape, "--dtype", options.dtype]
        device = {"WORKLOG_SIMT_MULTIPROCESSORS": str(gpu.multiprocessors)}
        for program in programs_in(options.programs, options.stages):
            if program.stage not in counted.kernels:
                here.append(program.stage)
            kernels += counted.kernels.get(program.stage) or count(program, flags, device)[0]
        shown = kernels if options.stages else main_ones(kernels)
        rungs = rungs_of(shown)
        beside = {entry.name: entry for entry in compared(repository, options.gpu, rungs)}
        lines: dict[str, list[list[str]]] = {}
        for name, rung in rungs.items():
            operation = name.split("/")[2]
            lines.setdefault(operation, []).append(line_of(name, rung, gpu, beside.get(name)))
    except ReportError as error:
        print(f"ladder.py: {error}", file=sys.stderr)
        return 2
    keep = [i for i in range(len(HEAD)) if i < len(HEAD) - 2 or beside]
    where = told_where(here, {line[0] for of_operation in lines.values() for line in of_operation})
    print(f"The ladder at {options.shape.replace('x', ' x ')} in {options.dtype}, {where}:\n")
    print(table([HEAD[i] for i in keep], {o: [[line[i] for i in keep] for line in of] for o, of in lines.items()}))
    if beside:
        print(f"\n{summary(list(beside.values()))}")
    print(f"\n{legend(gpu, bool(beside))}")
    if beside:
        note = "; † on an earlier version of the kernel" if any(entry.stale for entry in beside.values()) else ""
        print(f"measured        microseconds, results/{options.gpu}.json, cold cache{note}")
    if not options.stages:
        print("./worklog run 06 shows all operations of a stage, in all types, and the kernels of the articles.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
