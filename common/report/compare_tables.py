"""The tables of docs/compare/<gpu>.json: the final kernels beside other libraries."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cells import EVERYONE, MODES, OURS, SMALL_BYTES, TENSORS, cell_of
from grid import ELEMENT_BYTES
from place import Place, source_note
from results import PEER_LABELS, ReportError, ResultFile
from rivals import Runs, Verdict, by_contender, first_calls, grouped, wrong_results
from text import MISSING, Table, caption, dagger, markdown_table, percent, significant

LONG = 20  # lines of a table, from which on it is folded
AUTOTUNE = "torch.compile max-autotune"
TOTALS_NOTE = (
    "How many times as fast as the fastest other library in that cell. *Level*: within 2 %; where times are noisy, "
    "also within half of the larger spread, up to 10 %"
)
RIVALS_NOTE = (
    "Each of the others alone, in the cells that both have a right result in, by the GPU's time (cold, warm, graph). "
    "*Level* as above"
)
FIRST_NOTE = (
    "*First call* of a new shape, compiling included; for a backward pass, its forward pass too. Median over the cells "
    "that nothing was compiled ahead for; code that other shapes had compiled was there"
)
SUMMARY_NOTE = f"{TOTALS_NOTE}. *Wrong*: results of other libraries that were off, and so were not timed"
LOST_NOTE = (
    "Listed where another library is faster by more than 2 %. Timings from Python, and cold or warm ones of tensors of "
    "up to 16 MiB, are noisier: there it has to be more than half of the larger spread, too, or more than 10 %"
)


def against_peers(place: Place) -> Table:
    """Us against the best peer. show=summary: a line for each operation and way of timing; show=totals: one for each
    kind of operation; show=lost: the timings that we lose; show=rivals: a line for each of the others. operation, dtype
    and mode choose; limit=15 ends the lost ones after so many; brief=yes leaves out what the words mean; current=yes
    leaves out the timings whose kernels have changed since."""
    path, document = place.repository.comparison_path(place.gpu), place.repository.comparison(place.gpu)
    if document is None:
        return Table(f"*Nothing was compared on {place.gpu} yet.*", False)
    shows = ("summary", "totals", "lost", "rivals")
    for option, known in {"operation": TENSORS, "dtype": ELEMENT_BYTES, "mode": MODES, "show": shows}.items():
        for word in place.chosen(option):
            if word not in known:
                raise ReportError(f"{option} is '{word}'; it must be of {', '.join(known)}")
    operations = place.chosen("operation") or TENSORS
    runs = place.repository.runs(place.gpu)
    of_operations = [v for v in place.repository.verdicts(place.gpu).values() if v.cell.operation in operations
                     and not (place.flag("current") and runs.is_stale(v.cell))]
    dtypes, modes = place.chosen("dtype") or ELEMENT_BYTES, place.chosen("mode") or MODES
    found = [v for v in of_operations if v.cell.dtype in dtypes and v.mode in modes]
    if not found:
        return Table("*Nothing was compared yet.*", False)
    if place.option("show", "summary") == "summary":
        text = summary_lines(found, wrong_results(document), runs)
        return with_source(place, path, runs, text, [SUMMARY_NOTE, *left_out(document)], found)
    if place.option("show", "summary") == "totals":
        return with_source(place, path, runs, totals_lines(found, runs), [TOTALS_NOTE, *left_out(document)], found)
    if place.option("show", "summary") == "rivals":
        text = rivals_lines(document, found, runs)
        return with_source(place, path, runs, text, [RIVALS_NOTE, FIRST_NOTE if first_calls(document) else ""], found)
    limit = place.option("limit", str(len(found)))
    if not limit.isdecimal():
        raise ReportError(f"limit is '{limit}'; it must be a number")
    lost = sorted((v for v in found if v.outcome == "lost"), key=lambda v: v.ahead)
    shown = lost[:int(limit)]
    more = sum(v.outcome == "lost" for v in of_operations) - len(shown)
    all_of_them = place.link(place.repository.root / "docs" / "lost-timings.md")
    elsewhere = more and place.file.name != "lost-timings.md"
    notes = [LOST_NOTE, f"{more} more, of all ways of timing, are in {all_of_them}" if elsewhere else ""]
    return with_source(place, path, runs, lost_lines(shown, runs), notes, shown)


def with_source(
    place: Place, path: Path, runs: Runs, text: str, notes: Sequence[str], shown: Sequence[Verdict]
) -> Table:
    stale = any(runs.is_stale(v.cell) for v in shown)
    notes = [] if place.flag("brief") else notes
    contexts = runs.of(v.cell for v in shown) or runs.contexts[:1]
    sources = [ResultFile(path, {key: str(value) for key, value in context.items()}, (), ()) for context in contexts]
    return Table(text + caption([*notes, *source_note(place, sources)], stale), stale)


def label(name: str) -> str:
    return PEER_LABELS.get(name, name)


def case(v: Verdict) -> str:
    size = " x ".join(v.cell.shape.removesuffix("-first").split("x"))
    layout = "" if v.cell.pixels == 1 else " NCHW" if v.cell.first else " NHWC"
    return f"{v.cell.dtype}, {size}{layout}"


def summary_lines(found: Sequence[Verdict], wrong: set[tuple[str, str]], runs: Runs) -> str:
    head = ["operation", "timing", "cells", "won", "level", "lost"]
    head += ["median", "best", "worst", "worst at", "against", "wrong"]
    lines = []
    for (operation, mode), group in grouped(found).items():
        outcomes, ahead, worst = [v.outcome for v in group], [v.ahead for v in group], min(group, key=lambda v: v.ahead)
        names = {v.cell.name for v in group}
        lines.append([
            dagger(f"`{operation}`", any(runs.is_stale(v.cell) for v in group)),
            mode,
            str(len(group)),
            *[str(outcomes.count(o)) for o in ("won", "level", "lost")],
            *[f"{x:.2f}x" for x in (statistics.median(ahead), max(ahead), min(ahead))],
            case(worst),
            label(worst.rival),
            str(sum(cell in names for _, cell in wrong)),
        ])
    return markdown_table(head, lines, 2)


OVER_ROWS = [operation for operation in TENSORS if not operation.startswith("batchnorm")]
KINDS = {"norms over rows, forward": [operation for operation in OVER_ROWS if operation.endswith("_forward")],
         "norms over rows, backward": [operation for operation in OVER_ROWS if operation.endswith("_backward")],
         "BatchNorm": [operation for operation in TENSORS if operation not in OVER_ROWS]}


def totals_lines(found: Sequence[Verdict], runs: Runs) -> str:
    """A line for each kind of operation, size of a tensor (up to what a launch can hide, and more) and timing."""
    lines = []
    for (kind, operations), large, mode in itertools.product(KINDS.items(), (True, False), MODES):
        of_kind = [v for v in found if v.cell.operation in operations and v.mode == mode]
        group = [v for v in of_kind if (v.cell.tensor_bytes > SMALL_BYTES) == large]
        if not group:
            continue
        outcomes = [v.outcome for v in group]
        lines.append([
            dagger(kind, any(runs.is_stale(v.cell) for v in group)),
            f"{'more than' if large else 'up to'} 16 MiB",
            mode,
            str(len(group)),
            *[str(outcomes.count(o)) for o in ("won", "level", "lost")],
            f"{statistics.median(v.ahead for v in group):.2f}x",
        ])
    return markdown_table(["operations", "a tensor", "timing", "cells", "won", "level", "lost", "median"], lines, 3)


def rivals_lines(document: dict[str, Any], found: Sequence[Verdict], runs: Runs) -> str:
    """A line for each of the others, and one for us, which has the first calls alone."""
    head = ["the other", "timings", "won", "level", "lost", "median", "slowest"]
    chosen = {(v.cell, v.mode) for v in found if v.mode != "python"}
    first = first_calls(document)
    kinds = KINDS if first else {}
    head += [f"first call, {kind.rpartition(', ')[2]}, ms" for kind in kinds]
    lines = []
    for name, against in [(OURS, []), *sorted(by_contender(document).items(), key=lambda item: label(item[0]).lower())]:
        group = [v for v in against if (v.cell, v.mode) in chosen]
        if not group and (name != OURS or not first):
            continue
        outcomes, ahead = [v.outcome for v in group], [v.ahead for v in group]
        cells = [MISSING] * 6
        if group:
            cells = [str(len(group)), *[str(outcomes.count(o)) for o in ("won", "level", "lost")]]
            cells += [f"{x:.2f}x" for x in (statistics.median(ahead), min(ahead))]
        for operations in kinds.values():
            seconds = [x for operation in operations for x in first.get(name, {}).get(operation, [])]
            cells.append(significant(statistics.median(seconds) * 1e3) if seconds else MISSING)
        lines.append([dagger(label(name), any(runs.is_stale(v.cell) for v in group)), *cells])
    return markdown_table(head, lines, 1)


def rotation(place: Place) -> Table:
    """Cold times with one set of tensors and with several, in two ways (common/report/rotation.py). It is an experiment
    about the flush, with the kernels of its commit, and stays one when they change: nothing in it is stale."""
    name = f"rotation_{place.gpu}"
    if not place.repository.has_data(name):
        return Table(f"*Tensors were not rotated on {place.gpu} yet.*", False)
    data = place.repository.data(name)
    cases: dict[tuple[str, str], dict[str, dict[str, float]]] = {}  # case: contender: way: microseconds
    for key, figure in data["figures"].items():
        contender, operation, dtype, shape, way = key.split("/")
        case_of = f"`{operation}`", f"{dtype}, {shape.replace('x', ' x ')}"
        cases.setdefault(case_of, {}).setdefault(contender, {})[way] = figure["value"]
    names = list(dict.fromkeys(name for by_contender in cases.values() for name in by_contender))
    lines = []
    for (operation, of_shape), found in cases.items():
        for way, words in (("one", "one"), ("in_step", "several, in step"), ("several", "several")):
            times = [significant(found[name][way]) if way in found.get(name, {}) else MISSING for name in names]
            lines.append([operation, of_shape, words, *times])
    head = ["operation", "case", "sets of tensors", *(f"{label(name)}, µs" for name in names)]
    source = ResultFile(place.repository.root / "docs/data" / f"{name}.json",
                        {key: str(value) for key, value in data["context"].items()}, (), ())
    notes = [f"Cold. {data['context']['title']}", *source_note(place, [source])]
    return Table(markdown_table(head, lines, 3) + caption(notes, False), False)


def lost_lines(lost: Sequence[Verdict], runs: Runs) -> str:
    """A table; folded into one for each operation where it is long."""
    head = ["operation", "case", "timing", "ours, µs", "share of a copy", "the best other", "µs", "ours takes"]

    def line(v: Verdict) -> list[str]:
        return [
            dagger(f"`{v.cell.operation}`", runs.is_stale(v.cell)),
            case(v),
            v.mode,
            significant(v.seconds * 1e6),
            percent(v.share_of_copy) if v.share_of_copy else MISSING,
            label(v.rival),
            significant(v.rival_seconds * 1e6),
            f"{significant(100 / v.ahead - 100, 2)} % longer",
        ]

    def table(some: Sequence[Verdict]) -> str:
        return markdown_table(head, [line(v) for v in some], 2)

    def folded(operation: str, some: Sequence[Verdict]) -> str:
        timings = "1 lost timing" if len(some) == 1 else f"{len(some)} lost timings"
        summary = f"<summary><code>{operation}</code>: {timings}</summary>"
        return f"<details>\n{summary}\n\n{table(some)}\n\n</details>"

    if not lost:
        return "*No cell is lost.*"
    if len(lost) <= LONG:
        return table(lost)
    by_operation = {operation: [v for v in lost if v.cell.operation == operation] for operation in TENSORS}
    return "\n\n".join(folded(operation, some) for operation, some in by_operation.items() if some)


def left_out(document: dict[str, Any]) -> Iterator[str]:
    """Sentences on what the summary does not say: who was not there, and which cells are not."""
    context, absent = document["context"], document["absent"]
    measured = {cell_of(entry["name"])[1].name for entry in document["benchmarks"]}
    ended_early = {name for entry in absent if entry["variant"] == EVERYONE for name in entry["cells"]}
    if len(measured | ended_early) < (grid := context.get("cells_of_grid", 0)):
        yield f"{len(measured)} of {grid} cells were measured"
    timed = {cell_of(entry["name"])[0] for entry in document["benchmarks"]}
    not_here = dict.fromkeys(
        label(entry["variant"]) for entry in absent
        if "cannot be imported" in entry["reason"] and entry["variant"] not in timed
    )
    if not_here:
        yield f"Not installed there: {', '.join(not_here)}"
    if AUTOTUNE not in context.get("contenders", [AUTOTUNE]):
        yield "Inductor's max-autotune was not asked for"
    if ended_early:
        yield f"{len(ended_early)} cells ended early"
    ours_off = sum(variant == OURS for variant, _ in wrong_results(document))
    if ours_off:
        yield f"In {ours_off} cells our own result was off, and they are not counted"
