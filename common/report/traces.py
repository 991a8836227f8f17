#!/usr/bin/env python3
"""The traces that the lessons show: of one block of each stage, beside the stage before it.

    python3 common/report/traces.py --programs build/cpu/bin             draws NN_*/traces/*.svg
    python3 common/report/traces.py --programs build/cpu/bin --check     compares them with what the programs do now
    python3 common/report/traces.py --stages 03                          which stages' programs the traces of 03 need

The pictures are committed; a test compares them with what the programs do. The pages that step through the same traces
are made when the site is built (pages.py), and by ./worklog trace NN --beside.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import trace_page
from animations import ring_in_time, shuffles_in_time, tree_in_time
from drawings import write_or_check
from results import ROOT, ReportError
from source_hash import stage_folders
from svg import INK, MUTED, PANEL, STROKES, Drawing, coordinate

FOLDER = "traces"  # of a stage
PICTURE = "block.svg"


@dataclass(frozen=True)
class Traced:
    """One block of a kernel, at a size at which its steps can be told apart."""

    stage: str
    variant: str
    shape: str
    operation: str = "layernorm_forward"

    @property
    def label(self) -> str:
        return f"{self.stage[:2]} {self.variant}"


# Of each stage: what came before its one change, where there is such a kernel, and the kernel with it.
TRACES: dict[str, tuple[Traced, ...]] = {
    "01_naive": (Traced("01_naive", "small_blocks", "32x64"),),
    "02_shared_reduction": (
        Traced("01_naive", "small_blocks", "32x256"), Traced("02_shared_reduction", "two_pass", "32x256"),
    ),
    "03_warp_shuffle": (
        Traced("02_shared_reduction", "two_pass", "4x512"), Traced("03_warp_shuffle", "block_per_row", "4x512"),
    ),
    "04_vectorized": (
        Traced("03_warp_shuffle", "block_per_row", "4x1024"), Traced("04_vectorized", "cached", "4x1024"),
    ),
    "05_welford": (Traced("04_vectorized", "cached", "4x1024"), Traced("05_welford", "held", "4x1024")),
    "06_fused_residual": (
        Traced("05_welford", "held", "4x1024"),
        Traced("06_fused_residual", "held", "4x1024", "add_layernorm_forward"),
    ),
    "07_backward": (
        Traced("07_backward", "separate", "64x512", "layernorm_backward"),
        Traced("07_backward", "staying", "64x512", "layernorm_backward"),
    ),
    "08_batchnorm": (
        Traced("08_batchnorm", "tile_2d", "512x64", "batchnorm_train"),
        Traced("08_batchnorm", "one_launch", "512x64", "batchnorm_train"),
    ),
}

RING = Traced("05_welford", "layer_norm", "8x40000")  # rows so wide that they pass through a ring in shared memory

# What a picture says, with what was counted in it: `before` and `after` are Counts.
MESSAGES = {
    "01": "One warp does 32 rows: {after.loads} loads, one after the other",
    "02": "A warp's loads, {before.loads_of_warp} for 32 rows, become {after.loads_of_warp} for one, with "
          "{after.barriers} barriers",
    "03": "{before.barriers} barriers become {after.barriers}, and {before.shared} uses of shared memory "
          "{after.shared}",
    "04": "{before.loads} loads become {after.loads}, and {before.stores} stores {after.stores}",
    "05": "Statistics that hold cost {more_shuffles} shuffles more in a row",
    "06": "The addition costs {more_loads} loads and {more_stores} stores, and no launch",
    "07": "{before.loads} loads for a row's dx become {after.loads} for {after.rows} rows' dx and the columns' sums",
    "08": "A tile's {before.rows} rows are split: a block loads {before.loads} times before, {after.loads} times now",
}

# Kinds of steps: what they are called, color, and where in a warp's row they stand (top and height, in parts of it), so
# that they are told apart without color too.
KINDS = {
    "load": ("load", "blue", 0.0, 1.0),
    "store": ("store", "orange", 0.45, 0.55),
    "shared": ("shared memory", "green", 0.0, 0.55),
    "shuffle": ("shuffle", "purple", 0.35, 0.3),
}
KIND_OF = {
    "global_load": "load", "async_copy_load": "load", "global_store": "store", "global_atomic": "store",
    "async_copy_store": "shared", "shared_load": "shared", "shared_store": "shared", "shared_atomic": "shared",
    "remote_shared": "shared", "shuffle": "shuffle", "vote": "shuffle",
}
BARRIERS = ("barrier", "group_barrier")


@dataclass(frozen=True)
class Counts:
    """What a block's steps come to."""

    loads: int
    stores: int
    shared: int
    shuffles: int
    barriers: int
    loads_of_warp: int  # of the warp that has most
    steps: int  # of a warp, with what it waits for others at barriers
    warps: int
    rows: int  # of x, which it reads


def placed(steps: Sequence[dict[str, Any]]) -> tuple[list[int], int]:
    """Where each step stands where warps go side by side and wait for each other at barriers; and the end."""
    places: list[int] = []
    begin, of_warp = 0, Counter[int]()
    for step in steps:
        if step["operation"] in BARRIERS:
            places.append(begin + max(of_warp.values(), default=0))
            begin, of_warp = places[-1] + 1, Counter()
        else:
            places.append(begin + of_warp[step["warp"]])
            of_warp[step["warp"]] += 1
    return places, begin + max(of_warp.values(), default=0)


def counts_of(trace: dict[str, Any]) -> Counts:
    steps = trace["steps"]
    kinds = Counter(KIND_OF.get(step["operation"]) for step in steps)
    loads = Counter(step["warp"] for step in steps if KIND_OF.get(step["operation"]) == "load")
    threads = trace["block"][0] * trace["block"][1] * trace["block"][2]
    return Counts(
        kinds["load"], kinds["store"], kinds["shared"], kinds["shuffle"],
        sum(step["operation"] in BARRIERS for step in steps), max(loads.values(), default=0), placed(steps)[1],
        (threads + trace_page.WARP - 1) // trace_page.WARP, rows_of(trace),
    )


@lru_cache(None)
def record(programs: Path, traced: Traced) -> dict[str, Any]:
    flags = ["--row", "0", "--variant", traced.variant, "--shapes", traced.shape, "--dtype", "fp32"]
    return trace_page.record(programs / "counting" / traced.stage, [*flags, "--operation", traced.operation])


# --- The picture ------------------------------------------------------------------------------------------------------
WIDTH, LEFT, RIGHT = 480, 20, 20
WARPS_HEIGHT = 128.0
LEGIBLE = 8  # times as many steps: past it, each panel has a scale of its own


def panel(drawing: Drawing, y: float, traced: Traced, trace: dict[str, Any], steps_shown: int) -> float:
    """A row for each warp, a column for each step; returns where it ends."""
    counts = counts_of(trace)
    places, _ = placed(trace["steps"])
    unit = (WIDTH - LEFT - RIGHT) / steps_shown
    of_rows = "a row" if counts.rows == 1 else f"{counts.rows} rows"
    warps = "1 warp" if counts.warps == 1 else f"{counts.warps} warps"
    drawing.text(LEFT, y + 14, traced.label, size=14, bold=True)
    drawing.text(WIDTH - RIGHT, y + 14, f"{counts.steps} steps, {warps}", size=13, anchor="end")
    y += 22
    height = WARPS_HEIGHT if counts.warps > 1 else WARPS_HEIGHT / 4
    row = height / counts.warps
    drawing.rect(LEFT, y, unit * counts.steps, height, fill="#f6f8fa", stroke="none", round=0)
    spans: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}  # warp, begin, end
    last: dict[int, tuple[str, list[float]]] = {}
    for step, place in zip(trace["steps"], places):
        kind = KIND_OF.get(step["operation"])
        if kind is None:
            continue
        before = last.get(step["warp"])
        if before and before[0] == kind and before[1][2] == place:
            before[1][2] = place + 1
        else:
            span = [step["warp"], place, place + 1]
            spans[kind].append(span)
            last[step["warp"]] = (kind, span)
    for kind, (_, color, top, part) in KINDS.items():
        boxes = "".join(
            f"M{coordinate(LEFT + begin * unit)} {coordinate(y + (warp + 0.06 + 0.88 * top) * row)}"
            f"h{coordinate((end - begin) * unit)}v{coordinate(0.88 * part * row)}H{coordinate(LEFT + begin * unit)}z"
            for warp, begin, end in spans[kind]
        )
        if boxes:
            drawing.parts.append(f'<path d="{boxes}" fill="{STROKES[color]}"/>')
    for step, place in zip(trace["steps"], places):
        if step["operation"] in BARRIERS:
            x = LEFT + (place + 0.5) * unit
            drawing.line(x, y - 3, x, y + height + 3, color=INK, width=max(1.0, min(2.0, unit * 0.6)))
    y += height + 18
    parts = [(counts.loads, "load"), (counts.stores, "store"), (counts.shared, "of shared memory"),
             (counts.shuffles, "shuffle"), (counts.barriers, "barrier")]
    words = ", ".join(f"{n} {name}{'s' if n != 1 and ' ' not in name else ''}" for n, name in parts if n)
    for line in textwrap.wrap(f"For {of_rows}: {words}", 58):
        drawing.text(LEFT, y, line, size=12.5, color=MUTED)
        y += 17
    return y - 5


def rows_of(trace: dict[str, Any]) -> int:
    """How many rows of x the block reads."""
    x = next(tensor for tensor in trace["tensors"] if tensor["name"] == "x")
    return len({
        step["offset"][lane] // (x["element_bytes"] * x["stride"])
        for step in trace["steps"] if step["operation"] == "global_load" and step["memory"] == "x"
        for lane in range(trace_page.WARP) if step["lanes"] >> lane & 1
    })


def message_of(stage: str, counts: Sequence[Counts]) -> str:
    before, after = counts[0], counts[-1]
    return MESSAGES[stage[:2]].format(
        before=before, after=after, more_loads=after.loads - before.loads, more_stores=after.stores - before.stores,
        more_shuffles=after.shuffles - before.shuffles,
    )


def block_picture(stage: str, programs: Path) -> Drawing:
    """The stage's blocks, step by step, one below the other."""
    pair = TRACES[stage]
    traces = [record(programs, traced) for traced in pair]
    counts = [counts_of(trace) for trace in traces]
    lengths = [each.steps for each in counts]
    own_scale = max(lengths) > LEGIBLE * min(lengths)
    title = message_of(stage, counts)
    told = "; ".join(
        f"{traced.label}: {each.warps} warps, {each.steps} steps, {each.loads} loads, {each.stores} stores, "
        f"{each.shared} uses of shared memory, {each.shuffles} shuffles, {each.barriers} barriers"
        for traced, each in zip(pair, counts)
    )
    drawing = Drawing(WIDTH, 0, title, f"Blocks of real runs on the CPU layer, step by step. {told}.")
    y = 12.0
    for line in textwrap.wrap(title, 46):
        y += 19
        drawing.text(LEFT, y, line, size=15, bold=True)
    y += 16
    for traced, trace in zip(pair, traces):
        y = panel(drawing, y, traced, trace, counts_of(trace).steps if own_scale else max(lengths)) + 14
    x = float(LEFT)
    for kind, (words, color, top, part) in KINDS.items():
        if any(KIND_OF.get(step["operation"]) == kind for trace in traces for step in trace["steps"]):
            drawing.rect(x, y, 14, 14, fill=PANEL, stroke=STROKES["plain"], round=0)
            drawing.rect(x, y + 14 * top, 14, 14 * part, fill=STROKES[color], stroke="none", round=0)
            drawing.text(x + 19, y + 12, words, size=12.5)
            x += 34 + 7.2 * len(words)
    if any(each.barriers for each in counts):
        drawing.line(x + 4, y - 2, x + 4, y + 16, color=INK, width=2)
        drawing.text(x + 12, y + 12, "barrier", size=12.5)
    y += 34
    note = "A row for each warp, a column for each step."
    drawing.text(LEFT, y, f"{note}{' Scales differ.' if own_scale else ''}", size=12.5, color=MUTED)
    drawing.height = y + 16
    return drawing


# --- All of them ------------------------------------------------------------------------------------------------------
def pictures(root: Path, programs: Path) -> dict[Path, str]:
    found = {root / stage / FOLDER / PICTURE: block_picture(stage, programs).render() for stage in TRACES}
    tree = record(programs, TRACES["02_shared_reduction"][-1])
    found[root / "02_shared_reduction" / FOLDER / "tree.svg"] = tree_in_time(tree)
    shuffles = record(programs, TRACES["03_warp_shuffle"][-1])
    found[root / "03_warp_shuffle" / FOLDER / "shuffles.svg"] = shuffles_in_time(shuffles)
    found[root / "05_welford" / FOLDER / "ring.svg"] = ring_in_time(record(programs, RING))
    return found


def left_over(root: Path, drawn: Sequence[Path]) -> list[Path]:
    there = {path for stage in stage_folders(root) for path in (root / stage / FOLDER).glob("*")}
    return sorted(there - set(drawn))


def pages(programs: Path) -> dict[str, str]:
    """By the name of the file: of each stage the page of its own trace, and that of both side by side."""
    found = {}
    for stage, pair in TRACES.items():
        found[own_page(stage)] = trace_page.page(record(programs, pair[-1]))
        if len(pair) > 1:
            found[pair_page(stage)] = page_of(stage, programs)
    return found


def own_page(stage: str) -> str:
    return f"{stage}.html"


def pair_page(stage: str) -> str:
    """The page that a stage's picture leads to."""
    return f"{stage}_beside.html" if len(TRACES[stage]) > 1 else own_page(stage)


def page_of(stage: str, programs: Path) -> str:
    """Before and after side by side, where there is a before."""
    recorded = [(traced.label, record(programs, traced)) for traced in TRACES[stage]]
    pages_of_pair = [(label, trace_page.page(trace)) for label, trace in recorded]
    if len(recorded) == 1:
        return pages_of_pair[0][1]
    message = message_of(stage, [counts_of(trace) for _, trace in recorded])
    return trace_page.beside(f"Stage {stage[:2]}, before and after: {message}", pages_of_pair)


def are_there(programs: Path) -> bool:
    """Whether all programs have been built that the traces need."""
    return all((programs / "counting" / traced.stage).is_file() for pair in TRACES.values() for traced in pair)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, help="the folder of the stages' programs of a cpu build")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a picture differs")
    parser.add_argument("--stages", metavar="NN", help="print the stages whose programs the traces of this one need")
    parser.add_argument("--beside", metavar="NN", help="write the page of this stage's trace beside the one before")
    options = parser.parse_args(arguments)
    wanted = options.stages or options.beside
    stage = next((name for name in TRACES if wanted and name.startswith(wanted)), "")
    if wanted and not stage:
        parser.error(f"there is no stage '{wanted}'; there are: {', '.join(TRACES)}")
    if options.stages:
        print(" ".join(sorted({traced.stage for traced in TRACES[stage]})))
        return 0
    if not options.programs:
        parser.error("--programs is needed: the folder of the stages' programs of a cpu build")
    try:
        if options.beside:
            output = Path(f"trace_{pair_page(stage)}")
            output.write_text(page_of(stage, options.programs), encoding="utf-8")
            print(f"{output}: {' beside '.join(traced.label for traced in TRACES[stage])}; open it in a browser")
            return 0
        drawn = pictures(ROOT, options.programs)
        differ = write_or_check(drawn, ROOT, options.check)
        left = left_over(ROOT, list(drawn))
    except (ReportError, OSError) as error:
        print(f"traces.py: {error}", file=sys.stderr)
        return 2
    for path in left:
        print(f"{path.relative_to(ROOT)}: nothing draws it now: delete it", file=sys.stderr)
    print(f"{len(drawn)} pictures of traces, {len(differ)} {'differ' if options.check else 'drawn'}")
    return 1 if left or (options.check and differ) else 0


if __name__ == "__main__":
    sys.exit(main())
