"""Who is ahead in docs/compare/<gpu>.json, which compare.py writes, and the tables of it."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import launches
from cells import COPY, EVERYONE, MODES, OURS, SMALL_BYTES, STAGE_OF, TENSORS, Cell, case_of_cell, cell_of
from results import ELEMENT_BYTES, PEER_LABELS, ReportError, Repository

if TYPE_CHECKING:
    from tables import Place, Table

LEVEL = 0.02  # times that differ by less are level: medians of two runs of one kernel differ by as much
MOST_NOISE = 0.1  # a larger difference counts, whatever the spread
LONG = 20  # lines of a table, from which on it is folded
AUTOTUNE = "torch.compile max-autotune"
NOISY = "from Python, and between events on tensors of up to 16 MiB,"
TOTALS_NOTE = f"How many times as fast as the fastest other library in that cell. *Level*: within 2 %; {NOISY} also within half of the larger spread, up to 10 %"
SUMMARY_NOTE = f"{TOTALS_NOTE}. *Wrong*: results of other libraries that were off, and so were not timed"
LOST_NOTE = f"Cells where another library is faster by more than 2 %; {NOISY} by more than half of the larger spread, too, or by more than 10 %"


@dataclass(frozen=True)
class Verdict:
    """Us against the fastest of the others that computed the right thing."""

    cell: Cell
    mode: str
    seconds: float
    rival: str
    rival_seconds: float
    share_of_copy: float | None
    spread: float
    rival_spread: float

    @property
    def ahead(self) -> float:
        """How many times as fast as the best other we are."""
        return self.rival_seconds / self.seconds

    @property
    def noise(self) -> float:
        """Seconds that the two may differ by without a meaning. The host's clock counts whatever else the host did, and events
        are tenths of a microsecond off, which a small kernel shows. A few samples that are far off make no loss level."""
        if self.mode == "graph" or (self.mode != "python" and self.cell.tensor_bytes > SMALL_BYTES):
            return 0.0
        half_a_spread = max(self.seconds * self.spread, self.rival_seconds * self.rival_spread) / 2
        return min(half_a_spread, MOST_NOISE * min(self.seconds, self.rival_seconds))

    @property
    def outcome(self) -> str:
        if abs(self.ahead - 1) <= LEVEL or abs(self.rival_seconds - self.seconds) <= self.noise:
            return "level"
        return "won" if self.ahead > 1 else "lost"


def wrong_results(document: dict[str, Any]) -> set[tuple[str, str]]:
    """(contender, cell's name)"""
    return {(entry["variant"], entry["cell"]) for entry in document.get("checks", []) if entry["verdict"] != "passed"}


def verdicts(document: dict[str, Any]) -> list[Verdict]:
    """One for each cell and mode that we and at least one other have a right result in."""
    wrong = wrong_results(document)
    by_cell: dict[tuple[Cell, str], dict[str, dict[str, Any]]] = {}
    for entry in document["benchmarks"]:
        variant, cell, mode = cell_of(entry["name"])
        if variant != COPY and (variant, cell.name) not in wrong:
            by_cell.setdefault((cell, mode), {})[variant] = entry
    found = []
    for (cell, mode), entries in by_cell.items():
        others = {name: entry for name, entry in entries.items() if name != OURS}
        if OURS not in entries or not others:
            continue
        rival = min(others, key=lambda name: others[name]["median_seconds"])
        ours, best = entries[OURS], others[rival]
        found.append(Verdict(cell, mode, ours["median_seconds"], rival, best["median_seconds"], ours.get("share_of_copy"),
                             ours.get("spread", 0.0), best.get("spread", 0.0)))
    return found


def report(found: Sequence[Verdict]) -> Iterator[str]:
    """A line for each operation and mode, then the cells that are lost."""
    for (operation, mode), group in grouped(found).items():
        outcomes = [v.outcome for v in group]
        worst = min(group, key=lambda v: v.ahead)
        yield (f"{operation:24} {mode:6} won {outcomes.count('won'):3}, level {outcomes.count('level'):3}, lost {outcomes.count('lost'):3}; "
               f"worst {worst.ahead:.2f} times {worst.rival} at {worst.cell.dtype} {worst.cell.rows}x{worst.cell.cols}")
    for v in sorted((v for v in found if v.outcome == "lost"), key=lambda v: v.ahead):
        yield f"lost: {v.cell.name} {v.mode}: {v.seconds * 1e6:.2f} us, {v.rival} {v.rival_seconds * 1e6:.2f} us"


def grouped(found: Iterable[Verdict]) -> dict[tuple[str, str], list[Verdict]]:
    """By operation and way of timing, each in the order in which they are named."""
    groups: dict[tuple[str, str], list[Verdict]] = {(operation, mode): [] for operation in TENSORS for mode in MODES}
    for verdict in found:
        groups[verdict.cell.operation, verdict.mode].append(verdict)
    return {key: group for key, group in groups.items() if group}


# --- Where a cell comes from -------------------------------------------------------------------------------------------
class Runs:
    """The runs of compare.py that a document's cells come from: the last, and those before it of which cells were left as they were."""

    def __init__(self, document: dict[str, Any], repository: Repository) -> None:
        self.contexts = [document["context"], *(run["context"] for run in document.get("earlier", []))]
        self._run_of = {name: number for number, run in enumerate(document.get("earlier", []), 1) for name in run["cells"]}
        self._recorded = launches.recorded(document)
        timed = (cell_of(entry["name"]) for entry in document["benchmarks"])
        self._cells = {cell for variant, cell, _ in timed if variant == OURS}
        self._repository = repository

    def __repr__(self) -> str:  # all that a chart may take from it (redraw.py)
        stale = sorted(cell.name for cell in self._cells if self.is_stale(cell))
        return f"Runs({self.contexts}, {self._run_of}, {stale})"

    def is_stale(self, cell: Cell) -> bool:
        """Whether other kernels than those that were measured would be launched now."""
        context, stage = self.contexts[self._run_of.get(cell.name, 0)], STAGE_OF[cell.operation]
        sources = context.get("source_hashes", {}).get(stage)
        recorded, gpu = self._recorded.get(cell.name), context.get("gpu_short", "")
        return not self._repository.is_current(stage, gpu, case_of_cell(cell), recorded, sources)

    def of(self, cells: Iterable[Cell]) -> list[dict[str, Any]]:
        """The contexts of their runs, the last first."""
        return [self.contexts[number] for number in sorted({self._run_of.get(cell.name, 0) for cell in cells})]

    def origin(self, cells: Iterable[Cell]) -> str:
        return "; ".join(f"{context['date'][:10]}, commit {context.get('commit', '')[:10]}" for context in self.of(cells))


# --- Tables ------------------------------------------------------------------------------------------------------------
def against_peers(place: Place) -> Table:
    """Us against the best peer. show=summary: a line for each operation and way of timing; show=totals: one for each kind of
    operation; show=lost: the cells where we lose. operation, dtype and mode choose; limit=15 ends the lost ones after so many."""
    from tables import Table

    path, document = place.repository.comparison_path(place.gpu), place.repository.comparison(place.gpu)
    if document is None:
        return Table(f"*Nothing was compared on {place.gpu} yet.*", False)
    for option, known in (("operation", TENSORS), ("dtype", ELEMENT_BYTES), ("mode", MODES), ("show", ("summary", "totals", "lost"))):
        for word in place.chosen(option):
            if word not in known:
                raise ReportError(f"{option} is '{word}'; it must be of {', '.join(known)}")
    operations = place.chosen("operation") or TENSORS
    of_operations = [v for v in place.repository.verdicts(place.gpu).values() if v.cell.operation in operations]
    found = [v for v in of_operations if v.cell.dtype in (place.chosen("dtype") or ELEMENT_BYTES) and v.mode in (place.chosen("mode") or MODES)]
    if not found:
        return Table("*Nothing was compared yet.*", False)
    runs = place.repository.runs(place.gpu)
    if place.option("show", "summary") == "summary":
        return with_source(place, path, runs, summary_lines(found, wrong_results(document), runs), [SUMMARY_NOTE, *left_out(document)], found)
    if place.option("show", "summary") == "totals":
        return with_source(place, path, runs, totals_lines(found, runs), [TOTALS_NOTE, *left_out(document)], found)
    limit = place.option("limit", str(len(found)))
    if not limit.isdecimal():
        raise ReportError(f"limit is '{limit}'; it must be a number")
    lost = sorted((v for v in found if v.outcome == "lost"), key=lambda v: v.ahead)
    shown = lost[:int(limit)]
    more = sum(v.outcome == "lost" for v in of_operations) - len(shown)
    all_of_them = place.link(place.repository.root / "docs" / "compare.md")
    notes = [LOST_NOTE, f"{more} more, of all ways of timing, are in {all_of_them}" if more else ""]
    return with_source(place, path, runs, lost_lines(shown, runs), notes, shown)


def with_source(place: Place, path: Path, runs: Runs, text: str, notes: Sequence[str], shown: Sequence[Verdict]) -> Table:
    from results import ResultFile
    from tables import Table, caption, source_note

    stale = any(runs.is_stale(v.cell) for v in shown)
    contexts = runs.of(v.cell for v in shown) or runs.contexts[:1]
    sources = [ResultFile(path, {key: str(value) for key, value in context.items()}, (), ()) for context in contexts]
    return Table(text + caption([*notes, *source_note(place, sources)], stale), stale)


def label(name: str) -> str:
    return PEER_LABELS.get(name, name)


def case(v: Verdict) -> str:
    return f"{v.cell.dtype}, {v.cell.rows} x {v.cell.cols}"


def summary_lines(found: Sequence[Verdict], wrong: set[tuple[str, str]], runs: Runs) -> str:
    from tables import dagger, markdown_table

    head = ["operation", "timing", "cells", "won", "level", "lost", "median", "best", "worst", "worst at", "against", "wrong"]
    lines = []
    for (operation, mode), group in grouped(found).items():
        outcomes, ahead, worst = [v.outcome for v in group], [v.ahead for v in group], min(group, key=lambda v: v.ahead)
        names = {v.cell.name for v in group}
        lines.append([dagger(f"`{operation}`", any(runs.is_stale(v.cell) for v in group)), mode, str(len(group)), *[str(outcomes.count(o)) for o in ("won", "level", "lost")],
                      *[f"{x:.2f}x" for x in (statistics.median(ahead), max(ahead), min(ahead))], case(worst), label(worst.rival),
                      str(sum(cell in names for _, cell in wrong))])
    return markdown_table(head, lines, 2)


OVER_ROWS = [operation for operation in TENSORS if not operation.startswith("batchnorm")]
KINDS = {"norms over rows, forward": [operation for operation in OVER_ROWS if operation.endswith("_forward")],
         "norms over rows, backward": [operation for operation in OVER_ROWS if operation.endswith("_backward")],
         "BatchNorm": [operation for operation in TENSORS if operation not in OVER_ROWS]}


def totals_lines(found: Sequence[Verdict], runs: Runs) -> str:
    """A line for each kind of operation, size of a tensor (up to what a launch can hide, and more) and way of timing."""
    from tables import dagger, markdown_table

    lines = []
    for (kind, operations), large, mode in itertools.product(KINDS.items(), (True, False), MODES):
        group = [v for v in found if v.cell.operation in operations and (v.cell.tensor_bytes > SMALL_BYTES) == large and v.mode == mode]
        if not group:
            continue
        outcomes = [v.outcome for v in group]
        lines.append([dagger(kind, any(runs.is_stale(v.cell) for v in group)), f"{'more than' if large else 'up to'} 16 MiB", mode, str(len(group)),
                      *[str(outcomes.count(o)) for o in ("won", "level", "lost")], f"{statistics.median(v.ahead for v in group):.2f}x"])
    return markdown_table(["operations", "a tensor", "timing", "cells", "won", "level", "lost", "median"], lines, 3)


def lost_lines(lost: Sequence[Verdict], runs: Runs) -> str:
    """A table; folded into one for each operation where it is long."""
    from figures import percent, significant
    from tables import MISSING, dagger, markdown_table

    head = ["operation", "case", "timing", "ours, µs", "share of a copy", "the best other", "µs", "ours is"]

    def table(some: Sequence[Verdict]) -> str:
        return markdown_table(head, [
            [dagger(f"`{v.cell.operation}`", runs.is_stale(v.cell)), case(v), v.mode, significant(v.seconds * 1e6),
             percent(v.share_of_copy) if v.share_of_copy else MISSING, label(v.rival), significant(v.rival_seconds * 1e6), f"{v.ahead:.2f}x as fast"]
            for v in some], 2)

    if not lost:
        return "*No cell is lost.*"
    if len(lost) <= LONG:
        return table(lost)
    by_operation = {operation: [v for v in lost if v.cell.operation == operation] for operation in TENSORS}
    return "\n\n".join(f"<details>\n<summary><code>{operation}</code>: {len(some)} of the lost cells</summary>\n\n{table(some)}\n\n</details>"
                       for operation, some in by_operation.items() if some)


def left_out(document: dict[str, Any]) -> Iterator[str]:
    """Sentences on what the summary does not say: who was not there, and which cells are not."""
    context, absent = document["context"], document["absent"]
    if context.get("cells") != context.get("cells_of_grid"):
        yield f"{context['cells']} of {context['cells_of_grid']} cells were measured"
    timed = {cell_of(entry["name"])[0] for entry in document["benchmarks"]}
    not_here = dict.fromkeys(label(entry["variant"]) for entry in absent if "cannot be imported" in entry["reason"] and entry["variant"] not in timed)
    if not_here:
        yield f"Not there, since they could not be imported: {', '.join(not_here)}"
    if AUTOTUNE not in context.get("contenders", [AUTOTUNE]):
        yield "Inductor's max-autotune was not asked for"
    ended = sum(len(entry["cells"]) for entry in absent if entry["variant"] == EVERYONE)
    if ended:
        yield f"{ended} cells ended early"
    ours_off = sum(variant == OURS for variant, _ in wrong_results(document))
    if ours_off:
        yield f"In {ours_off} cells our own result was off, and they are not counted"
