"""The tables of docs/counting.md: what the CPU layer counted, beside what a GPU's hardware counted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from counting import COUNTS, measured_launches
from place import Place, source_note
from results import Launch, ReportError, launch_of, read_json
from text import Table, caption, dagger, markdown_table, short_kernel

# What is compared: the name of the hardware's counter, its column, and how it is made of our counts.
COMPARED = {
    "global_load_requests": ("load requests", (("global_load", "requests"), ("async_copy_load", "requests"))),
    "global_load_sectors": ("load sectors", (("global_load", "sectors"), ("async_copy_load", "sectors"))),
    "global_store_requests": ("store requests", (("global_store", "requests"),)),
    "global_store_sectors": ("store sectors", (("global_store", "sectors"),)),
    "shared_load_wavefronts": ("shared load wavefronts", (("shared_load", "wavefronts"),)),
    "shared_store_wavefronts": ("shared store wavefronts", (("shared_store", "wavefronts"),)),
}
CLOSE = 0.02


@dataclass(frozen=True)
class Reason:
    """Why a GPU counts something else: for kernels and counters whose names match."""

    letter: str
    kernel: str
    counter: str
    text: str
    most: float | None = None  # the relative difference that it explains; None: any
    more: bool = False  # it explains only that the hardware counts more
    elsewhere: bool = False  # and only where another launch of that kernel has the figure that is counted

    def explains(self, comparison: Comparison, counter: str, counted: float, measured: float) -> bool:
        if not re.search(self.kernel, comparison.counted.kernel) or not re.search(self.counter, counter):
            return False
        if self.most is not None and abs(measured - counted) > self.most * measured:
            return False
        if self.more and measured <= counted:
            return False
        return not self.elsewhere or counter in comparison.agrees_elsewhere


REASONS = [
    Reason(
        "a",
        r"(layernorm_(reload|cached|textbook|chan)|add_rows|batchnorm_one_launch)<",
        r"global_store_(requests|sectors)",
        "The source stores a vector of 16 bytes where it is whole, and its elements one by one where it is not. nvcc "
        "merges the two branches, and what goes out is a store for each 4 bytes. The CPU's compiler keeps the 16-byte "
        "store that the source has",
    ),
    Reason(
        "b", r"",
        r"shared_(load|store)_wavefronts",
        "The banks of shared memory are those of the L1 cache. A pass that loses its turn to data arriving from L2 is "
        "counted again, so that the hardware's figure is a little higher, and not the same in every run",
        most=0.15, more=True,
    ),
    Reason(
        "c",
        r"RmsNormSteps<",
        r"shared_load_wavefronts",
        "RMSNorm uses one float of the four that a warp's moments have. nvcc reads that one, in half the wavefronts; "
        "the CPU's compiler reads all",
    ),
    Reason(
        "d",
        r"dx_and_atomics<(__half|__nv_bfloat16)",
        r"global_load_(requests|sectors)",
        "The source reads an element of dy twice in a row. nvcc reads it once, the CPU's compiler only where it has 32 "
        "bits",
    ),
    Reason(
        "e", r"",
        r"shared_load_wavefronts",
        "As b, where it is more than 15 %. The same kernel, launched by another variant for the same shape, has the "
        "figure that is counted",
        more=True, elsewhere=True,
    ),
    Reason(
        "f",
        r"batchnorm_one_launch<",
        r"shared_store_wavefronts",
        "A thread leaves the moments of its 4 or 8 channels side by side in shared memory. nvcc stores them four "
        "floats at a time (STS.128), with fewer threads in each pass and fewer conflicts; the CPU's compiler stores "
        "float by float",
    ),
    Reason(
        "g",
        r"batchnorm_block_per_channel",
        r"shared_store_wavefronts",
        "As b, and more of it: the kernel's loads are uncoalesced, so that eight times as many sectors arrive from L2",
        most=0.25, more=True,
    ),
    Reason(
        "h",
        r"normalize_channels<.*TrainSteps<",
        r"shared_load_wavefronts",
        "The loop asks for a vector of each of two tensors, as the backward pass needs it, and in training both are x. "
        "nvcc reads that once; the CPU's compiler reads it twice",
    ),
]


@dataclass(frozen=True)
class Comparison:
    counted: Launch
    measured: Launch
    # Counters that agree in another launch of this kernel, of the same shape.
    agrees_elsewhere: frozenset[str] = frozenset()

    def pairs(self) -> Iterator[tuple[str, float, float]]:
        for counter, (_, parts) in COMPARED.items():
            ours = sum(self.counted.values.get(f"{operation}_{key}", 0.0) for operation, key in parts)
            yield counter, ours, self.measured.values.get(counter, 0.0)


def comparisons(place: Place) -> list[Comparison]:
    repository = place.repository
    document = read_json(repository.root / COUNTS, repository.root)
    is_old = repository.stale_cases(document, place.gpu)
    left = {name: list(launches) for name, launches in measured_launches(repository, place.gpu).items()}
    found = []
    for entry in document["kernels"]:
        values = {key: value for key, value in entry.items() if key not in ("rows", "cols")}
        counted = launch_of(entry, values, is_old(entry))
        beside = left.get(counted.name, [])
        if not beside:
            continue
        measured = beside[0]
        current = not (measured.stale or counted.stale)  # both are of the code of today, whatever its name was then
        same_name = short_kernel(measured.kernel) == short_kernel(counted.kernel)
        if measured.blocks == counted.blocks and (current or same_name):
            found.append(Comparison(counted, beside.pop(0)))
        elif current:
            raise ReportError(f"{counted.name}: {measured.blocks} blocks of {measured.kernel} were measured, "
                              f"{counted.blocks} of {counted.kernel} were counted")
    return with_other_launches(found)


def with_other_launches(found: list[Comparison]) -> list[Comparison]:
    """Each with the counters that agree where another variant launches the same kernel."""
    def key(c: Comparison) -> tuple[str, str, str, str]:
        return c.counted.stage, c.counted.kernel, c.counted.shape, c.counted.dtype

    agreeing: dict[tuple[str, str, str, str], list[tuple[Comparison, str]]] = {}
    for comparison in found:
        for counter, counted, measured in comparison.pairs():
            if difference(counted, measured) <= CLOSE:
                agreeing.setdefault(key(comparison), []).append((comparison, counter))

    def elsewhere(c: Comparison) -> frozenset[str]:
        return frozenset(counter for other, counter in agreeing.get(key(c), []) if other is not c)

    return [replace(c, agrees_elsewhere=elsewhere(c)) for c in found]


def reason_for(comparison: Comparison, counter: str, counted: float, measured: float) -> Reason | None:
    return next((reason for reason in REASONS if reason.explains(comparison, counter, counted, measured)), None)


def difference(counted: float, measured: float) -> float:
    return abs(measured - counted) / measured if measured else float(counted != measured)


def number_text(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ")


def cell(comparison: Comparison, counter: str, counted: float, measured: float) -> str:
    if counted == measured:
        return number_text(counted)
    if difference(counted, measured) <= CLOSE:
        return f"{number_text(counted)} ({(measured - counted) / counted:+.1%})".replace("%", " %")
    reason = reason_for(comparison, counter, counted, measured)
    why = f"({reason.letter})" if reason else "(not explained)"
    return f"**{number_text(counted)}, {number_text(measured)}** {why}"


def counted_beside_measured(place: Place) -> Table:
    """A line for each launch, of one stage or all: what was counted, and the hardware's figure where it is another."""
    stages = [place.stage()] if "stage" in place.options else place.repository.stages()
    found = [c for c in comparisons(place) if c.counted.stage in stages]
    without = [stage for stage in stages if all(c.counted.stage != stage for c in found)]
    missing = f"Not read on {place.gpu} since the kernels changed: {', '.join(without)}" if without else ""
    if not found:
        return Table(f"*{missing}.*", False)
    lines, letters = [], set()
    for comparison in found:
        cells = []
        for counter, counted, measured in comparison.pairs():
            cells.append(cell(comparison, counter, counted, measured))
            if difference(counted, measured) > CLOSE and (reason := reason_for(comparison, counter, counted, measured)):
                letters.add(reason.letter)
        launch = comparison.counted
        lines.append([launch.stage[:2], dagger(f"`{launch.variant}`", launch.stale or comparison.measured.stale),
                      f"`{short_kernel(launch.kernel)}`", launch.dtype, launch.shape.replace("x", " x "), *cells])
    stale = any(c.counted.stale or c.measured.stale for c in found)
    head = ["", "variant", "kernel", "type", "shape", *(title for title, _ in COMPARED.values())]
    notes = [f"{reason.letter}: {reason.text}" for reason in REASONS if reason.letter in letters]
    what = (
        "One figure: counted and measured are the same; with a percentage: the hardware counted so much more; two: "
        "counted, measured"
    )
    return Table(markdown_table(head, lines, 5) + caption([what, *notes, missing], stale), stale)


def counted_summary(place: Place) -> Table:
    """A line for each stage: how many figures agree."""
    lines, totals, stale = [], [0] * 5, False
    found = comparisons(place)
    for stage in place.repository.stages():
        of_stage = [c for c in found if c.counted.stage == stage]
        if not of_stage:
            lines.append([stage, "0", *["–"] * 4])
            continue
        old = any(c.counted.stale or c.measured.stale for c in of_stage)
        stale = stale or old
        row = [0] * 5
        for comparison in of_stage:
            for counter, counted, measured in comparison.pairs():
                row[0] += 1
                if counted == measured:
                    row[1] += 1
                elif difference(counted, measured) <= CLOSE:
                    row[2] += 1
                elif reason_for(comparison, counter, counted, measured):
                    row[3] += 1
                else:
                    row[4] += 1
        totals = [a + b for a, b in zip(totals, row)]
        lines.append([dagger(stage, old), *map(str, row)])
    lines.append(["all", *map(str, totals)])
    head = ["stage", "figures compared", "equal", "within 2 %", "explained", "not explained"]
    origin = source_note(place, [place.repository.counters(place.gpu)])
    notes = ["Counted on the CPU layer: " + place.link(place.repository.root / COUNTS), *origin]
    return Table(markdown_table(head, lines) + caption(notes, stale), stale)


def counting_table(place: Place) -> Table:
    """What the CPU layer counts beside what the hardware counted, for a stage or, with sum=yes, for all."""
    return counted_summary(place) if place.flag("sum") else counted_beside_measured(place)
