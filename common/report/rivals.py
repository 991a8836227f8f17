"""Who is ahead in docs/compare/<gpu>.json, which compare.py writes, and the tables of it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import source_hash
from cells import COPY, OURS, STAGE_OF, Cell, cell_of
from results import ReportError

if TYPE_CHECKING:
    from tables import Place, Table

LEVEL = 0.02  # times that differ by less are level: medians of two runs of one kernel differ by as much


@dataclass(frozen=True)
class Verdict:
    """Us against the fastest of the others that computed the right thing."""

    cell: Cell
    mode: str
    seconds: float
    rival: str
    rival_seconds: float
    share_of_copy: float | None

    @property
    def ahead(self) -> float:
        """How many times as fast as the best other we are."""
        return self.rival_seconds / self.seconds

    @property
    def outcome(self) -> str:
        return "lost" if self.ahead < 1 - LEVEL else "won" if self.ahead > 1 + LEVEL else "level"


def verdicts(document: dict[str, Any]) -> list[Verdict]:
    """One for each cell and mode that we and at least one other have a right result in."""
    wrong = {(entry["variant"], entry["cell"]) for entry in document.get("checks", []) if entry["verdict"] != "passed"}
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
        ours = entries[OURS]
        found.append(Verdict(cell, mode, ours["median_seconds"], rival, others[rival]["median_seconds"], ours.get("share_of_copy")))
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
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in found:
        groups.setdefault((verdict.cell.operation, verdict.mode), []).append(verdict)
    return groups


# --- Tables ------------------------------------------------------------------------------------------------------------
def stale_operations(document: dict[str, Any], root: Path) -> set[str]:
    """Those whose kernels have changed since."""
    hashes = document["context"].get("source_hashes", {})
    now = {stage: source_hash.source_hash(stage, root) for stage in hashes if (root / stage / "kernels.cuh").is_file()}
    return {operation for operation, stage in STAGE_OF.items() if hashes.get(stage) != now.get(stage)}


def read(place: Place) -> tuple[Path, dict[str, Any] | None]:
    path = place.repository.root / "docs" / "compare" / f"{place.gpu}.json"
    return path, json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def against_peers(place: Place) -> Table:
    """Us against the best peer. show=summary: a line for each operation and way of timing; show=lost: the cells where we lose."""
    from figures import percent, significant
    from tables import MISSING, Table, caption, dagger, markdown_table, source_note
    from results import PEER_LABELS, ResultFile

    path, document = read(place)
    if document is None:
        return Table(f"*Nothing was compared on {place.gpu} yet.*", False)
    old = stale_operations(document, place.repository.root)
    chosen = place.chosen("operation")
    found = [v for v in verdicts(document) if not chosen or v.cell.operation in chosen]
    show = place.option("show", "summary")
    if show not in ("summary", "lost"):
        raise ReportError(f"show is '{show}'; it must be summary or lost")
    label = lambda name: PEER_LABELS.get(name, name)  # noqa: E731
    where = lambda v: f"{v.cell.dtype}, {v.cell.rows} x {v.cell.cols}"  # noqa: E731
    if show == "lost":
        head = ["operation", "case", "timing", "ours, µs", "share of a copy", "the best other", "µs", "ours is"]
        lines = [[dagger(f"`{v.cell.operation}`", v.cell.operation in old), where(v), v.mode, significant(v.seconds * 1e6),
                  percent(v.share_of_copy) if v.share_of_copy else MISSING, label(v.rival), significant(v.rival_seconds * 1e6), f"{v.ahead:.2f}x as fast"]
                 for v in sorted(found, key=lambda v: v.ahead) if v.outcome == "lost"]
    else:
        head = ["operation", "timing", "cells", "won", "level", "lost", "median", "best", "worst", "worst at", "against"]
        lines = []
        for (operation, mode), group in grouped(found).items():
            outcomes, ahead, worst = [v.outcome for v in group], [v.ahead for v in group], min(group, key=lambda v: v.ahead)
            lines.append([dagger(f"`{operation}`", operation in old), mode, str(len(group)), *[str(outcomes.count(o)) for o in ("won", "level", "lost")],
                          *[f"{x:.2f}x" for x in (statistics.median(ahead), max(ahead), min(ahead))], where(worst), label(worst.rival)])
    note = "How many times as fast as the fastest other library in that cell; *level* is within 2 %"
    note = note if show == "summary" else "Cells where another library is more than 2 % faster"
    stale = any(v.cell.operation in old for v in found)
    source = ResultFile(path, {key: str(value) for key, value in document["context"].items()}, (), ())
    if not lines:
        return Table("*No cell is lost.*" + caption([*source_note(place, [source])], False), False)
    return Table(markdown_table(head, lines, 2) + caption([note, *source_note(place, [source])], stale), stale)
