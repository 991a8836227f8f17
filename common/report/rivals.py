"""Who is ahead in docs/compare/<gpu>.json, which compare.py writes, and which run each of its cells comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import launches
from cells import COPY, MODES, OURS, SMALL_BYTES, STAGE_OF, TENSORS, Cell, case_of_cell, cell_of

LEVEL = 0.02  # times that differ by less are level: medians of two runs of one kernel differ by as much
MOST_NOISE = 0.1  # a larger difference counts, whatever the spread


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
        """Seconds that the two may differ by without a meaning. The host's clock counts whatever else the host did, and
        events are tenths of a microsecond off, which a small kernel shows. A few samples that are far off make no loss
        level."""
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
        found.append(Verdict(
            cell, mode, ours["median_seconds"], rival, best["median_seconds"], ours.get("share_of_copy"),
            ours.get("spread", 0.0), best.get("spread", 0.0),
        ))
    return found


def by_contender(document: dict[str, Any]) -> dict[str, list[Verdict]]:
    """Of each of the others, us against it alone: one for each cell and mode that both have a right result in."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for entry in document["benchmarks"]:
        by_name.setdefault(cell_of(entry["name"])[0], []).append(entry)
    ours = by_name.pop(OURS, [])
    by_name.pop(COPY, None)
    return {name: verdicts(document | {"benchmarks": [*ours, *entries]}) for name, entries in by_name.items()}


def first_calls(document: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Seconds that the first call of a shape took, by contender and operation."""
    found: dict[str, dict[str, list[float]]] = {}
    for entry in document.get("first_calls", []):
        operation = entry["cell"].partition("/")[0]
        found.setdefault(entry["variant"], {}).setdefault(operation, []).append(entry["seconds"])
    return found


def report(found: Sequence[Verdict]) -> Iterator[str]:
    """A line for each operation and mode, then the cells that are lost."""
    for (operation, mode), group in grouped(found).items():
        outcomes = [v.outcome for v in group]
        counts = ", ".join(f"{outcome} {outcomes.count(outcome):3}" for outcome in ("won", "level", "lost"))
        worst = min(group, key=lambda v: v.ahead)
        yield (
            f"{operation:24} {mode:6} {counts}; "
            f"worst {worst.ahead:.2f} times {worst.rival} at {worst.cell.dtype} {worst.cell.shape}"
        )
    for v in sorted((v for v in found if v.outcome == "lost"), key=lambda v: v.ahead):
        yield f"lost: {v.cell.name} {v.mode}: {v.seconds * 1e6:.2f} us, {v.rival} {v.rival_seconds * 1e6:.2f} us"


def grouped(found: Iterable[Verdict]) -> dict[tuple[str, str], list[Verdict]]:
    """By operation and way of timing, each in the order in which they are named."""
    groups: dict[tuple[str, str], list[Verdict]] = {(operation, mode): [] for operation in TENSORS for mode in MODES}
    for verdict in found:
        groups[verdict.cell.operation, verdict.mode].append(verdict)
    return {key: group for key, group in groups.items() if group}


# --- Where a cell comes from ------------------------------------------------------------------------------------------
class Runs:
    """The runs of compare.py that a document's cells come from: the last, and those before it of which cells were left
    as they were. `is_current` is that of the Repository."""

    def __init__(self, document: dict[str, Any], is_current: Callable[..., bool]) -> None:
        self.contexts = [document["context"], *(run["context"] for run in document.get("earlier", []))]
        earlier = enumerate(document.get("earlier", []), 1)
        self._run_of = {name: number for number, run in earlier for name in run["cells"]}
        self._recorded = launches.recorded(document)
        timed = (cell_of(entry["name"]) for entry in document["benchmarks"])
        self._cells = {cell for variant, cell, _ in timed if variant == OURS}
        self._is_current = is_current

    def __repr__(self) -> str:  # all that a chart may take from it (redraw.py)
        stale = sorted(cell.name for cell in self._cells if self.is_stale(cell))
        return f"Runs({self.contexts}, {self._run_of}, {stale})"

    def is_stale(self, cell: Cell) -> bool:
        """Whether other kernels than those that were measured would be launched now."""
        context, stage = self.contexts[self._run_of.get(cell.name, 0)], STAGE_OF[cell.operation]
        sources = context.get("source_hashes", {}).get(stage)
        recorded, gpu = self._recorded.get(cell.name), context.get("gpu_short", "")
        return not self._is_current(stage, gpu, case_of_cell(cell), recorded, sources)

    def of(self, cells: Iterable[Cell]) -> list[dict[str, Any]]:
        """The contexts of their runs, the last first."""
        return [self.contexts[number] for number in sorted({self._run_of.get(cell.name, 0) for cell in cells})]

    def origin(self, cells: Iterable[Cell]) -> str:
        runs = self.of(cells)
        return "; ".join(f"{run['date'][:10]}, commit {run.get('commit', '')[:10]}" for run in runs)
