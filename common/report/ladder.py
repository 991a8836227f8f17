#!/usr/bin/env python3
"""The ladder by what its kernels ask of memory, counted on the CPU layer, and the time that this predicts for a GPU.

    python3 common/report/ladder.py --programs build/cpu/bin --gpu h200 [stages...]

./worklog run ends with this table where there is no GPU. What docs/data/counts.json has of a stage's kernels as they
are is taken from there; what it has not, because a kernel was edited or another GPU is asked for, is counted by the
stage's counting program, and --to-count names these stages. The predicted time is a floor: an empty launch, and then
the longest of what the counted traffic takes at the GPU's rates (gpus.json), each as if nothing else took time. Where
results/ has a measurement for that GPU, it stands beside.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from counting import COUNTS, count
from grid import ELEMENT_BYTES
from programs import programs_in
from results import ROOT, Repository, ReportError, launch_of, read_json
from text import dagger, significant

GPUS = Path("common/report/gpus.json")
LINE_LOOKUP_BYTES = 128  # what the L1 cache of a multiprocessor looks up and hands out in a cycle
MATRICES = ("x", "dy")  # of which an operation reads one at least


@dataclass(frozen=True)
class Gpu:
    """Rates of a GPU; None where neither a datasheet nor a measurement has one."""

    name: str
    multiprocessors: int
    clock_hz: float
    dram_bytes_per_second: float
    l2_bytes_per_second: float | None = None
    launch_seconds: float | None = None


def gpu_named(name: str, root: Path = ROOT) -> Gpu:
    document = read_json(root / GPUS, root)
    if name not in document:
        raise ReportError(f"--gpu is '{name}'; {GPUS} has: {', '.join(document)}")
    known = {field.name for field in fields(Gpu)}  # the file holds more than the prediction takes
    return Gpu(**{key: value for key, value in document[name].items() if key in known})


def floors(kernel: dict[str, Any], gpu: Gpu) -> dict[str, float]:
    """What a launch takes at least, in seconds, by what bounds it."""
    of = kernel.get
    found = {"DRAM": (of("dram_read_bytes", 0) + of("dram_write_bytes", 0)) / gpu.dram_bytes_per_second}
    written = of("global_store_sectors", 0) + of("global_atomic_sectors", 0)  # the L1 cache does not hold writes back
    if gpu.l2_bytes_per_second:
        found["L2"] = (of("dram_read_bytes", 0) + 32 * written) / gpu.l2_bytes_per_second
    # The load and store unit of a multiprocessor looks up a cache line, hands out 128 bytes, passes over the banks once
    # or shuffles a warp in a cycle. Blocks are spread over the multiprocessors; one block has one.
    in_shared = ("shared_load", "shared_store", "shared_atomic", "async_copy_store", "remote_shared")
    cycles = sum(of(f"{operation}_wavefronts", 0) for operation in in_shared)
    cycles += of("shuffle_requests", 0)
    for operation in ("global_load", "global_store", "global_atomic", "async_copy_load"):
        cycles += max(of(f"{operation}_lines", 0), of(f"{operation}_bytes_asked", 0) / LINE_LOOKUP_BYTES)
    found["L1"] = cycles / min(kernel["blocks"], gpu.multiprocessors) / gpu.clock_hz
    return found


@dataclass(frozen=True)
class Rung:
    """A variant: its launches, one after the other."""

    kernels: list[dict[str, Any]]

    def total(self, key: str) -> float:
        return sum(kernel.get(key, 0) for kernel in self.kernels)

    def prediction(self, gpu: Gpu) -> tuple[float, str]:
        """Seconds, and what bounds the longest launch."""
        longest = [max(floors(kernel, gpu).items(), key=lambda item: item[1]) for kernel in self.kernels]
        work = sum(seconds for _, seconds in longest)
        launch = gpu.launch_seconds or 0.0
        return launch + work, "launch" if launch > work else max(longest, key=lambda item: item[1])[0]


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


def rungs_of(kernels: list[dict[str, Any]]) -> dict[str, Rung]:
    found: dict[str, list[dict[str, Any]]] = {}
    for kernel in kernels:
        found.setdefault(launch_of(kernel, {}, False).name, []).append(kernel)
    return {name: Rung(launches) for name, launches in found.items()}


def measured_seconds(repository: Repository, gpu: str, name: str) -> tuple[float, bool] | None:
    stage = name.partition("/")[0]
    if not repository.has_results(stage, gpu):
        return None
    timings = repository.stage_results(stage, gpu).timings
    return next(((t.seconds, t.stale) for t in timings if t.name == f"{name}/cold"), None)


def lines_of(rungs: dict[str, Rung], gpu: Gpu, repository: Repository, gpu_name: str) -> list[list[str]]:
    lines = []
    for name, rung in rungs.items():
        stage, variant, operation, _, _ = name.split("/")
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
        seconds, bound = rung.prediction(gpu)
        measured = measured_seconds(repository, gpu_name, name)
        lines.append([
            stage[:2],
            variant,
            operation,
            f"{asked / elements:.1f}",
            f"{sectors / loads:.1f}" if loads else "-",
            f"{passes:.1f}",
            per_row("barrier_requests"),
            per_row("shuffle_requests"),
            significant(conflicts / rows, 2) if conflicts else "-",
            f"{seconds * 1e6:.1f}",
            bound,
            "" if measured is None else dagger(f"{measured[0] * 1e6:.1f}", measured[1]),
        ])
    return lines


def told_where(here: list[str], lines: list[list[str]]) -> str:
    numbers = [stage[:2] for stage in here]
    if not numbers:
        return f"as its kernels were counted on a CPU ({COUNTS})"
    if {line[0] for line in lines} == set(numbers):
        return "counted on this CPU"
    return f"counted on a CPU: stage {', '.join(numbers)} here, the others' kernels are as in {COUNTS}"


def table(head: list[str], lines: list[list[str]], left: int) -> str:
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]

    def row(line: list[str]) -> str:
        cells = enumerate(zip(line, widths))
        return "  ".join(cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in cells).rstrip()

    return "\n".join(row(line) for line in [head, *lines])


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
        "--gpu", default="h200", help="for which GPU the time is predicted: h200, rtx4050, t4 (default: h200)"
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
        lines = lines_of(rungs_of(kernels), gpu, repository, options.gpu)
    except ReportError as error:
        print(f"ladder.py: {error}", file=sys.stderr)
        return 2
    several = len({line[2] for line in lines}) > 1
    keep = [i for i in range(12) if (several or i != 2) and (i != 11 or any(line[11] for line in lines))]
    head = [
        "", "variant", "operation", "bytes/element", "sectors/load", "passes", "barriers/row", "shuffles/row",
        "conflicts/row", "predicted", "bound by", "measured",
    ]
    print(f"The ladder at {options.shape.replace('x', ' x ')} in {options.dtype}, {told_where(here, lines)}:\n")
    print(table([head[i] for i in keep], [[line[i] for i in keep] for line in lines], 3 if several else 2))
    empty_launch = "an empty launch, and " if gpu.launch_seconds else ""
    print(
        "\n"
        "bytes/element   what all threads ask of global memory, for each element; what must be moved is what the "
        "operation reads and writes\n"
        "sectors/load    32-byte sectors that a warp's load touches: 4 are enough for 32 floats, 16 for 32 vectors of "
        "4\n"
        "passes          how often the input matrix is read\n"
        f"predicted       microseconds on an {gpu.name}, not measured: {empty_launch}the longest of what DRAM, the L2 "
        "cache\n"
        "                and the L1 caches take for the counted traffic; a kernel is slower where latency or "
        "arithmetic bounds it"
    )
    if any(line[11] for line in lines):
        note = "; † on an earlier version of the kernel" if any("†" in line[11] for line in lines) else ""
        print(f"measured        microseconds, results/{options.gpu}.json, cold cache{note}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
