"""The time that counted traffic predicts for a GPU, and how far predictions are off where there are measurements.

A launch is predicted to take the sum of
- the longest of what its traffic takes at the rates of DRAM, the L2 cache and the L1 caches (gpus.json),
- its instructions, at one a cycle for each of a multiprocessor's four schedulers: INSTRUCTIONS for each request, since
  the CPU layer counts requests and no instructions,
- its steps, one after the other, each step_seconds long: the loads and atomics of a warp, the barriers of its block and
  the warp's shuffles, times the rounds in which the multiprocessors get through all blocks.
An empty launch comes to the first, and a gap to each that follows. step_seconds is the one figure that is fitted to
times, and tests hold it to the committed measurements (counting_programs_test.py).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from pathlib import Path
from typing import Any

from counting import COUNTS
from place import Place, source_note
from results import ROOT, Repository, ReportError, ResultFile, launch_of, read_json
from text import Table, caption, dagger, markdown_table

GPUS = Path("common/report/gpus.json")
LINE_LOOKUP_BYTES = 128  # what the L1 cache of a multiprocessor looks up and hands out in a cycle
SCHEDULERS = 4  # of a multiprocessor, on every GPU since compute capability 7.0
INSTRUCTIONS = 11  # for each request that is counted: the median of the launches in docs/counters/h200.json
FITTED_ON = ("1024x1024", "fp32")
APART = 0.1  # kernels whose times differ by less have no order that a prediction could miss


@dataclass(frozen=True)
class Gpu:
    """Rates of a GPU; None where neither a datasheet nor a measurement has one."""

    name: str
    multiprocessors: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    clock_hz: float
    dram_bytes_per_second: float
    step_seconds: float
    l2_bytes_per_second: float | None = None
    launch_seconds: float | None = None
    next_launch_seconds: float | None = None


def gpu_named(name: str, root: Path = ROOT) -> Gpu:
    document = read_json(root / GPUS, root)
    if name not in document:
        raise ReportError(f"--gpu is '{name}'; {GPUS} has: {', '.join(document)}")
    known = {field.name for field in fields(Gpu)}  # the file holds more than the prediction takes
    return Gpu(**{key: value for key, value in document[name].items() if key in known})


def floors(kernel: dict[str, Any], gpu: Gpu) -> dict[str, float]:
    """What a launch's traffic takes at least, in seconds, by what bounds it."""
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


def warps_of_block(kernel: dict[str, Any]) -> int:
    return math.ceil(kernel["threads"] / 32)


def requests(kernel: dict[str, Any]) -> int:
    """What its warps ask for, in all: accesses, shuffles, and each warp's part in a barrier."""
    operations = (
        "global_load", "global_store", "global_atomic", "async_copy_load", "shared_load", "shared_store",
        "shared_atomic", "remote_shared", "shuffle", "vote",
    )
    asked = sum(kernel.get(f"{operation}_requests", 0) for operation in operations)
    return asked + kernel.get("barrier_requests", 0) * warps_of_block(kernel)


def steps(kernel: dict[str, Any], gpu: Gpu) -> float:
    """One after the other, until the last block is done."""
    of = kernel.get
    warps = kernel["blocks"] * warps_of_block(kernel)
    of_warps = ("global_load", "async_copy_load", "global_atomic", "shuffle")
    of_warp = sum(of(f"{operation}_requests", 0) for operation in of_warps) / warps
    # A CPU knows no registers: as many blocks are taken to be there at once as their threads allow.
    at_once = max(1, min(gpu.blocks_per_multiprocessor, gpu.threads_per_multiprocessor // kernel["threads"]))
    rounds = max(1.0, kernel["blocks"] / (gpu.multiprocessors * at_once))
    return rounds * (of_warp + of("barrier_requests", 0) / kernel["blocks"])


@dataclass(frozen=True)
class Predicted:
    """The parts of a variant's time, in seconds."""

    launching: float
    traffic: float
    bound: str  # what bounds the traffic of the launch that has most
    instructions: float
    steps: float  # a number
    step_seconds: float

    @property
    def waits(self) -> float:
        return self.steps * self.step_seconds

    @property
    def seconds(self) -> float:
        return self.with_step(self.step_seconds)

    def with_step(self, step_seconds: float) -> float:
        return self.launching + self.traffic + self.instructions + self.steps * step_seconds


@dataclass(frozen=True)
class Rung:
    """A variant: its launches, one after the other."""

    kernels: list[dict[str, Any]]

    def total(self, key: str) -> float:
        return sum(kernel.get(key, 0) for kernel in self.kernels)

    def prediction(self, gpu: Gpu) -> Predicted:
        longest = [max(floors(kernel, gpu).items(), key=lambda item: item[1]) for kernel in self.kernels]
        a_second = SCHEDULERS * gpu.clock_hz
        issued = [
            INSTRUCTIONS * requests(kernel) / min(kernel["blocks"], gpu.multiprocessors) / a_second
            for kernel in self.kernels
        ]
        return Predicted(
            (gpu.launch_seconds or 0.0) + (len(self.kernels) - 1) * (gpu.next_launch_seconds or 0.0),
            sum(seconds for _, seconds in longest),
            max(longest, key=lambda item: item[1])[0],
            sum(issued),
            sum(steps(kernel, gpu) for kernel in self.kernels),
            gpu.step_seconds,
        )


def rungs_of(kernels: Iterable[dict[str, Any]]) -> dict[str, Rung]:
    found: dict[str, list[dict[str, Any]]] = {}
    for kernel in kernels:
        found.setdefault(launch_of(kernel, {}, False).name, []).append(kernel)
    return {name: Rung(launches) for name, launches in found.items()}


# --- Against measurements ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Compared:
    """A variant whose time was predicted and measured."""

    name: str
    predicted: Predicted
    measured: float
    stale: bool

    @property
    def stage(self) -> str:
        return self.name.partition("/")[0]

    def off(self, step_seconds: float | None = None) -> float:
        step = self.predicted.step_seconds if step_seconds is None else step_seconds
        return self.predicted.with_step(step) / self.measured - 1


def measured_seconds(repository: Repository, gpu: str, name: str) -> tuple[float, bool] | None:
    """With a cold cache, and whether of an earlier version of the kernel."""
    stage = name.partition("/")[0]
    if not repository.has_results(stage, gpu):
        return None
    timings = repository.stage_results(stage, gpu).timings
    return next(((t.seconds, t.stale) for t in timings if t.name == f"{name}/cold"), None)


def compared(repository: Repository, gpu_name: str, rungs: dict[str, Rung]) -> list[Compared]:
    """Those that were measured."""
    gpu = gpu_named(gpu_name, repository.root)
    found = []
    for name, rung in rungs.items():
        measured = measured_seconds(repository, gpu_name, name)
        if measured:
            found.append(Compared(name, rung.prediction(gpu), *measured))
    return found


def committed(repository: Repository, gpu_name: str, shape: str, *dtypes: str) -> list[Compared]:
    """Every variant that was counted and measured."""
    rows, cols = (int(extent) for extent in shape.split("x"))
    kernels = [
        kernel for kernel in read_json(repository.root / COUNTS, repository.root)["kernels"]
        if (kernel["rows"], kernel["cols"]) == (rows, cols) and kernel["dtype"] in dtypes
    ]
    return compared(repository, gpu_name, rungs_of(kernels))


def fitted_step(entries: Sequence[Compared]) -> float:
    """Seconds: the whole number of nanoseconds for which the squares of log(predicted / measured) are least."""
    def squares(nanoseconds: int) -> float:
        return sum(math.log(e.predicted.with_step(nanoseconds * 1e-9) / e.measured) ** 2 for e in entries)

    return min(range(1, 1000), key=squares) * 1e-9


def left_out(entries: Sequence[Compared]) -> dict[str, tuple[float, list[float]]]:
    """For each stage: the step as fitted on all other stages, and how far that is off for each of its kernels."""
    found = {}
    for stage in dict.fromkeys(entry.stage for entry in entries):
        step = fitted_step([entry for entry in entries if entry.stage != stage])
        found[stage] = step, [entry.off(step) for entry in entries if entry.stage == stage]
    return found


def apart(a: Compared, b: Compared) -> bool:
    return max(a.measured, b.measured) >= (1 + APART) * min(a.measured, b.measured)


def in_order(entries: Sequence[Compared]) -> tuple[int, int]:
    """Of the pairs that do the same and differ by APART at least: how many are predicted in their order, and all."""
    right = pairs = 0
    for a, b in combinations(entries, 2):
        if a.name.split("/")[2:] != b.name.split("/")[2:] or not apart(a, b):
            continue
        pairs += 1
        right += (a.predicted.seconds < b.predicted.seconds) == (a.measured < b.measured)
    return right, pairs


def median_off(offs: Iterable[float]) -> float:
    return statistics.median(abs(off) for off in offs)


def signed(off: float) -> str:
    return f"{off * 100:+.0f} %".replace("-", "−")


def predictions_table(place: Place) -> Table:
    """How far predictions are off, by stage, with the step of gpus.json and with one fitted on the other stages. What
    was counted is of today's kernels, so that a time of an earlier one has no place beside it."""
    def of_today(*dtypes: str) -> list[Compared]:
        return [entry for entry in committed(place.repository, place.gpu, shape, *dtypes) if not entry.stale]

    shape, dtype = FITTED_ON
    entries = of_today(dtype)
    if not entries:
        raise ReportError(f"no kernel was counted and measured on {place.gpu} at {shape} in {dtype}")
    others = left_out(entries)

    def line(label: str, own: Sequence[Compared], step: float, unseen: Sequence[float]) -> list[str]:
        worst = max(own, key=lambda entry: abs(entry.off()))
        return [
            label, f"`{worst.name.split('/')[1]}`", str(len(own)),
            f"{median_off(entry.off() for entry in own) * 100:.0f} %", signed(worst.off()), f"{step * 1e9:.0f} ns",
            f"{median_off(unseen) * 100:.0f} %", signed(max(unseen, key=abs)),
        ]

    lines = []
    for stage, (step, offs) in others.items():
        own = [entry for entry in entries if entry.stage == stage]
        lines.append(line(stage, own, step, offs))
    unseen = [off for _, offs in others.values() for off in offs]
    lines.append(line("all", entries, entries[0].predicted.step_seconds, unseen))
    head = ["stage", "worst kernel", "kernels", "median", "worst", "step", "median, left out", "worst, left out"]
    right, pairs = in_order(entries)
    narrow = [entry.off() for entry in of_today("fp16", "bf16")]
    notes = [
        f"{dtype}, {shape.replace('x', ' x ')}, cold: the predicted time against the measured one, median of the sizes "
        "of the differences, and the largest. Left out: with the step that is fitted on the other stages alone",
        f"Of {pairs} pairs of kernels of one operation whose times differ by {APART * 100:.0f} % or more, {right} are "
        "predicted in their order",
    ]
    if narrow:
        notes.append(
            f"On {len(narrow)} kernels in fp16 and bf16, on which nothing was fitted, the median is "
            f"{median_off(narrow) * 100:.0f} %, the worst {signed(max(narrow, key=abs))}"
        )
    files: list[ResultFile] = [place.repository.stage_results(stage, place.gpu) for stage in others]
    counted = f"Counted on the CPU layer: {place.link(place.repository.root / COUNTS)}"
    return Table(markdown_table(head, lines, 2) + caption([*notes, counted, *source_note(place, files)], False), False)
