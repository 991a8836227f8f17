#!/usr/bin/env python3
"""Draws the charts of the writeups from the committed results, as SVG.

    python3 common/report/charts.py                      every stage that has results: what has changed since
    python3 common/report/charts.py --gpu h200 --stage 04
    python3 common/report/charts.py --force              all of them
    python3 common/report/charts.py --check              writes none; compares bytes with what it draws, --force: of all
    python3 common/report/charts.py --compare A.json B.json   what two results files have in common, to my/compare.svg

A chart of a stage goes to NN_name/charts/NAME_GPU.svg, one of the whole ladder to docs/charts/NAME_GPU.svg. The
drawings of drawings.py, which depend on no GPU, are drawn along unless a GPU is named. redraw.py decides what has
changed, by what a chart was drawn from when it was last drawn or compared in this folder. Needs requirements.txt.

Every chart stands on a light panel of its own, for the reason that svg.py gives. Text stays text, in a generic family;
it is measured with DejaVu Sans, which matplotlib brings along and which is wider than most, so that it fits with others
and the bytes are the same on every machine with the pinned version. <title> and <desc> say in words what a chart shows.
Variants differ by marker, hatching and label, not by color alone.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import re
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from html import escape
from pathlib import Path

import drawings
import redraw
from cells import COPY, OURS, TENSORS, Cell, cell_of
from figures import size_of
from grid import ELEMENT_BYTES
from results import (
    DEFAULT_GPU, LAST, MODES, PEER_LABELS, PEERS, ROOT, Check, Launch, ReportError, Repository, ResultFile, Timing,
    baseline_of,
)
from rivals import Verdict
from svg import EDGE, INK, MUTED, PANEL
from tables import BASELINES, case_of
from text import STALE_NOTE, dagger, percent, significant

# Before matplotlib is imported, which takes a while: what is edited meanwhile is drawn again.
CODE = redraw.digest_of_code(Path(__file__))

try:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap, LogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter
except ImportError as error:
    sys.exit(f"charts.py needs matplotlib ({error}): ./worklog charts installs it into .venv and runs this there.")

OPERATION, DTYPE, SHAPE = "layernorm_forward", "fp32", "1024x1024"  # of the charts that show one case
SHAPE_WORDS = SHAPE.replace("x", " x ")
BAR_MOST = 5  # a bar of more than this many times the median bar of its stage is cut

# Okabe and Ito's palette, which stays apart for color-blind eyes; each entry has a marker, a dash and a hatch too.
STYLES = [
    ("#0072B2", "o", "-", ""),
    ("#D55E00", "s", "--", "///"),
    ("#009E73", "^", "-.", "---"),
    ("#8E5C9E", "D", ":", "xxx"),
    ("#B8860B", "v", (0, (5, 1)), "\\\\\\"),
    ("#444444", "P", (0, (1, 1)), "+++"),
    ("#CC3377", "X", (0, (3, 1, 1, 1)), "ooo"),
    ("#56B4E9", "*", (0, (8, 2)), "..."),
]
RIVAL_STYLES = [*STYLES, ("#7A4B2A", "p", (0, (2, 2)), ""), ("#6F8F2F", "d", (0, (4, 2, 1, 2)), "")]
MANY = 4  # charts: what pays for a process of its own
LARGE_SHAPE = "131072x1024"  # 512 MiB of fp32
LARGE_MIB = 128  # a tensor: far more than the L2 cache
SCHEDULERS, SECTOR = 4, 32  # of a multiprocessor; bytes
ASYNC_COLS = 32768  # fp32: from here on the final kernel of stage 05 copies rows to shared memory asynchronously
SHOWN_DTYPES = ("fp32", "bf16")  # fp16 was timed on smaller tensors
PEER_MARKERS = {"PyTorch": "x", "PyTorch, two calls": "+", "Inductor": "s", "flash-attn": "^", "Liger": "D"}

SETTINGS = {
    "svg.hashsalt": "worklog",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": PANEL,
    "axes.facecolor": PANEL,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "path.simplify": False,
}


def numbered_clips(text: str) -> str:
    """matplotlib names a clip path by its corners to the last bit, which the layout's solver does not give twice
    alike."""
    numbers: dict[str, str] = {}
    names = r"(?<=url\(#)p[0-9a-f]{10}(?=\))|(?<=clipPath id=\")p[0-9a-f]{10}"
    return re.sub(names, lambda found: numbers.setdefault(found[0], f"clip{len(numbers) + 1}"), text)


@dataclass(frozen=True)
class Chart:
    path: Path  # from the repository's root
    title: str
    description: str  # what it shows, in words, for those who cannot see it
    figure: Figure

    def render(self) -> str:
        buffer = io.StringIO()
        nothing = {key: None for key in ("Creator", "Date", "Format", "Type")}
        # savefig() draws twice, the first time for the layout alone, which every drawing begins with.
        self.figure.canvas.print_svg(buffer, metadata=nothing)
        plt.close(self.figure)
        text = numbered_clips(buffer.getvalue())
        begin = text.index("<svg ")
        end = text.index(">", begin)
        title = f'<title id="title">{escape(self.title)}</title>'
        words = f'{title}\n <desc id="description">{escape(self.description)}</desc>'
        opening = text[begin:end] + ' role="img" aria-labelledby="title description"'
        return text[:begin] + opening + ">\n " + words + "\n" + text[end + 1 :].lstrip("\n")


def page(width: float, height: float, rows: int = 1, cols: int = 1, **options: object) -> tuple[Figure, list[Axes]]:
    """A panel of `width` x `height` inches with a grid of axes."""
    figure, axes = plt.subplots(rows, cols, figsize=(width, height), squeeze=False, layout="constrained", **options)
    figure.patch.set(edgecolor=EDGE, linewidth=1.5)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)
    return figure, [ax for line in axes for ax in line]


PHONE = 4.9  # inches: text of 9 points is 10 pixels high where the chart is 400 wide


def wrapped_title(title: str) -> str:
    return textwrap.fill(title, int(PHONE * 9), break_on_hyphens=False)


def headline(figure: Figure, title: str) -> None:
    figure.suptitle(wrapped_title(title), x=0.01, ha="left", fontsize=11, fontweight="bold")


def footnote(figure: Figure, *parts: str) -> None:
    """A line of small print, wrapped to the panel: about 14 characters fit on an inch."""
    text = " · ".join(part for part in parts if part)
    wrapped = textwrap.fill(text, int(figure.get_figwidth() * 14), break_long_words=False, break_on_hyphens=False)
    figure.supxlabel(wrapped, fontsize=8, color=MUTED, x=0.01, ha="left")


def legend_under_title(figure: Figure, title: str, handles: dict[str, object], columns: int) -> None:
    """Over the panels, which then have the whole width."""
    figure.legend(
        handles.values(), handles.keys(), loc="outside upper left", ncols=columns, title=wrapped_title(title),
        alignment="left", columnspacing=1.2, handlelength=1.8,
        title_fontproperties={"size": 11, "weight": "bold"},
    )


def provenance(repository: Repository, stage: str, gpu: str) -> str:
    context = repository.stage_results(stage, gpu).context
    commit = context.get("commit", "")
    origin = f"commit {commit[:10]}" + (" with changes" if context.get("dirty") == "true" else "") if commit else ""
    return ", ".join(word for word in (context.get("date", "")[:10], origin) if word)


def name_of(entry: Timing | Check) -> str:
    return dagger(entry.label, entry.stale)


def stale_note(entries: Sequence[Timing | Check]) -> str:
    return STALE_NOTE if any(entry.stale for entry in entries) else ""


def cold_rivals(repository: Repository, gpu: str) -> list[Timing]:
    """The other libraries' timings, of those that have a marker."""
    peers = repository.peers(gpu).timings if repository.has_peers(gpu) else ()
    return [t for t in peers if t.mode == "cold" and t.label in PEER_MARKERS]


def baseline_label(operations: Iterable[str]) -> str:
    return BASELINES[baseline_of(operations)].removeprefix("a ")


def operation_of(repository: Repository, stage: str, gpu: str) -> str:
    """What a stage is about: of the operations that no stage before it has, the one with the most variants."""
    known: set[str] = set()
    for each in measured_stages(repository, gpu):
        variants: dict[str, set[str]] = {}
        for t in repository.stage_results(each, gpu).timings:
            variants.setdefault(t.operation, set()).add(t.variant)
        if each == stage and variants:
            new = [operation for operation in variants if operation not in known] or list(variants)
            return max(new, key=lambda operation: (len(variants[operation]), -list(FLOPS).index(operation)))
        known |= variants.keys()
    return OPERATION


def stage_before(repository: Repository, stage: str, gpu: str) -> str | None:
    earlier = [s for s in repository.stages() if s < stage and repository.has_results(s, gpu)]
    return earlier[-1] if earlier else None


# --- One stage ------------------------------------------------------------------------------------------------------
def time_chart(repository: Repository, stage: str, gpu: str) -> Chart | None:
    """Bars: the stage's variants at 1024 x 1024, the fastest of the stage before, and a copy of the same bytes."""
    results = repository.stage_results(stage, gpu)

    def wanted(entries: Sequence[Timing]) -> list[Timing]:
        return [t for t in entries if t.mode == "cold" and t.shape == SHAPE and t.dtype == DTYPE]

    own = wanted(results.timings)
    if not own:
        return None
    operation = operation_of(repository, stage, gpu)
    own = [t for t in own if t.operation == operation]
    if not own:
        return None
    bars: list[tuple[str, float, str, str]] = []  # label, seconds, color, hatch
    before = stage_before(repository, stage, gpu)
    timings_before = repository.stage_results(before, gpu).timings if before else ()
    earlier = [t for t in wanted(timings_before) if t.operation == operation]
    shown = list(own)
    if earlier:
        fastest = min(earlier, key=lambda t: t.seconds)
        bars.append((f"{name_of(fastest)}\n(stage {before[:2]})", fastest.seconds, "#b8c0c8", ""))
        shown.append(fastest)
    for index, t in enumerate(own):
        color, _, _, hatch = STYLES[index % len(STYLES)]
        bars.append((name_of(t), t.seconds, color, hatch))
    copies = [t.copy_seconds for t in own if t.copy_seconds]
    if copies:
        label = baseline_label([operation]).replace(" of", "\nof")
        bars.append((label, sorted(copies)[len(copies) // 2], "#ffffff", "||||"))

    # A variant that takes many times as long as the stage's others would make theirs too short to compare: it is cut.
    most = BAR_MOST * sorted(t.seconds for t in own)[len(own) // 2]
    cut = {t.seconds for t in own if t.seconds > most}
    longest = max(seconds for _, seconds, _, _ in bars if seconds not in cut)
    figure, (ax,) = page(PHONE, 1.6 + 0.42 * len(bars))
    positions = range(len(bars), 0, -1)
    for y, (_, seconds, color, hatch) in zip(positions, bars):
        length = min(seconds, longest * 1.1) * 1e6
        ax.barh(
            y, length, height=0.66, color=color, hatch=hatch, edgecolor="white" if color != "#ffffff" else MUTED,
            linewidth=0.8,
        )
        said = f"{significant(seconds * 1e6)} µs" + (" (cut)" if seconds in cut else "")
        ax.annotate(said, (length, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
    ax.set_yticks(list(positions), [bar[0] for bar in bars])
    ax.set_xlim(0, longest * 1e6 * (1.45 if cut else 1.25))
    ax.set_xlabel("time, µs (shorter is better)")
    best = min(own, key=lambda t: t.seconds)
    title = f"{stage}, {SHAPE_WORDS}, {DTYPE}: {best.label} takes {significant(best.seconds * 1e6)}\u00a0µs"
    if copies:
        copy = sorted(copies)[len(copies) // 2] * 1e6
        title += f", a {baseline_of([operation])} {significant(copy)}\u00a0µs"
    headline(figure, title)
    footnote(
        figure, gpu.upper(), operation, "cold L2 cache, median", provenance(repository, stage, gpu), stale_note(shown)
    )
    described = "; ".join(
        f"{label} {significant(seconds * 1e6)} microseconds".replace("\n", " ") for label, seconds, _, _ in bars
    )
    return Chart(Path(f"{stage}/charts/time_{gpu}.svg"), title, f"Bars on {gpu.upper()}: {described}.", figure)


def over_cols(entries: Sequence[Timing]) -> list[Timing]:
    """One timing per width, that of the largest tensor, in the order of widths: what shows the memory's speed."""
    largest: dict[int, Timing] = {}
    for t in entries:
        if t.share_of_copy and (t.cols not in largest or t.rows > largest[t.cols].rows):
            largest[t.cols] = t
    return [largest[cols] for cols in sorted(largest)]


def series_of(entries: Sequence[Timing]) -> dict[str, list[Timing]]:
    by_variant: dict[str, list[Timing]] = {}
    for t in entries:
        by_variant.setdefault(t.variant, []).append(t)
    return {variant: over_cols(ts) for variant, ts in by_variant.items()}


def cols_axis(ax: Axes, cols: Sequence[int], ticks: int = 8) -> None:
    """A logarithmic axis with about `ticks` ticks at powers of two."""
    ax.set_xscale("log", base=2)
    low, high = math.floor(math.log2(min(cols))), math.ceil(math.log2(max(cols)))
    step = max(1, math.ceil((high - low) / ticks))
    ax.xaxis.set_major_locator(FixedLocator([2**k for k in range(low, high + 1, step)]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1024:g}K" if x >= 1024 else f"{x:g}"))
    ax.set_xlabel("cols")


def draw_line(ax: Axes, line: Sequence[Timing], style: int, label: str, handles: dict[str, object]) -> None:
    """A variant over the columns. Odd widths are another problem than their neighbours: they stand beside the line,
    hollow."""
    color, marker, dash, _ = STYLES[style % len(STYLES)]
    even, odd = [t for t in line if t.cols % 8 == 0], [t for t in line if t.cols % 8 != 0]
    (handles[label],) = ax.plot(
        [t.cols for t in even], [t.share_of_copy for t in even], color=color, marker=marker, linestyle=dash,
        markersize=5, linewidth=1.5,
    )
    if odd:
        (handles["hollow: not a multiple of 8"],) = ax.plot(
            [t.cols for t in odd], [t.share_of_copy for t in odd], color=color, marker=marker, linestyle="none",
            markersize=6, fillstyle="none",
        )


def share_chart(repository: Repository, stage: str, gpu: str) -> Chart | None:
    """Lines: share of a copy over cols on large tensors, per variant, one panel for each operation and type. Of other
    libraries PyTorch alone; the others are in the comparison's charts."""
    cold = [t for t in repository.stage_results(stage, gpu).timings if t.mode == "cold" and t.pixels == 1]
    # BatchNorm has passes_chart in its place.
    of_rows = [t for t in cold if t.dtype in SHOWN_DTYPES and t.operation not in PASSES]
    large = [t for t in of_rows if t.tensor_mib >= LARGE_MIB]
    sizes = f"tensors of {LARGE_MIB} MiB and more" if large else "the largest tensor at each width"
    groups: dict[tuple[str, str], dict[str, list[Timing]]] = {}
    for key in sorted({(t.operation, t.dtype) for t in of_rows},
                      key=lambda key: (list(FLOPS).index(key[0]), SHOWN_DTYPES.index(key[1]))):
        series = series_of([t for t in large or of_rows if (t.operation, t.dtype) == key])
        if any(len(line) > 1 for line in series.values()):
            groups[key] = series
    if not groups:
        return None
    # A variant looks the same in every panel and in the time chart, whatever was measured first.
    order = list(dict.fromkeys(t.variant for t in [*(t for t in cold if t.shape == SHAPE), *cold]))
    before = stage_before(repository, stage, gpu)
    peers = repository.peers(gpu).timings if repository.has_peers(gpu) else ()
    operations = list(dict.fromkeys(operation for operation, _ in groups))
    baseline = baseline_of(operations)
    columns = 1 if len(groups) <= 2 else 2
    rows = math.ceil(len(groups) / columns)
    figure, axes = page(PHONE, 2.3 * rows + 1.7, rows, columns, sharey=True)
    stale = {t.variant for series in groups.values() for line in series.values() for t in line if t.stale}
    handles: dict[str, object] = {}
    sentences, shown = [], []
    for ax, ((operation, dtype), series) in zip(axes, groups.items()):
        own = [t for line in series.values() for t in line]
        shown += own
        of_all = f"{baseline} of the same reads and writes"
        handles[of_all if len(operations) > 1 else baseline_label(operations)] = ax.axhline(
            1.0, color=INK, linewidth=1.2)
        if before:
            widths = {(t.rows, t.cols) for t in own}
            same = [t for t in repository.stage_results(before, gpu).timings
                    if t.mode == "cold" and (t.operation, t.dtype) == (operation, dtype)]
            best = {t.cols: t for t in over_cols_of_best(same) if (t.rows, t.cols) in widths}
            line = [best[cols] for cols in sorted(best)]
            if line:
                shown += line
                (handles[dagger(f"fastest of stage {before[:2]}", any(t.stale for t in line))],) = ax.plot(
                    [t.cols for t in line], [t.share_of_copy for t in line], color="#9aa3ad", linewidth=3.2, zorder=1)
        for variant, line in series.items():
            if line:
                draw_line(ax, line, order.index(variant), dagger(line[0].label, variant in stale), handles)
                shares = ", ".join(f"{percent(t.share_of_copy)} at {t.cols}" for t in line)
                sentences.append(f"{operation} {dtype} {variant}: {shares}")
        cases = {case_of(t) for t in own}
        for label in ("PyTorch", "PyTorch, two calls"):
            points = [t for t in peers
                      if t.label == label and t.mode == "cold" and t.share_of_copy and case_of(t) in cases]
            if points:
                (handles[label],) = ax.plot(
                    [t.cols for t in points], [t.share_of_copy for t in points], linestyle="none",
                    marker=PEER_MARKERS[label], color=INK, fillstyle="none", markersize=6, markeredgewidth=1.1)
        cols_axis(ax, [t.cols for t in own], 8 // columns)
        of_panel = operation.replace("_forward", "\nforward").replace("_backward", "\nbackward")
        ax.set_title(f"{of_panel}, {dtype}" if len(operations) > 1 else dtype, fontsize=10)
        ax.grid(axis="y", color="#e4e8ec", linewidth=0.8)
        ax.set_axisbelow(True)
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    for ax in axes[len(groups):]:
        ax.set_visible(False)
    for ax in axes[::columns]:
        ax.set_ylabel(f"share of a {baseline}'s speed")
    if max(t.share_of_copy for t in shown) < 0.25:  # on a straight axis they would all lie on the ground
        axes[0].set_yscale("log")
        axes[0].set_ylim(min(t.share_of_copy for t in shown) / 1.5, 1.3)
        axes[0].yaxis.set_major_locator(FixedLocator([0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]))
        axes[0].yaxis.set_minor_locator(NullLocator())
        axes[0].yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g} %"))
    else:
        axes[0].set_ylim(0, max(1.08, *(1.03 * t.share_of_copy for t in shown)))
    title = f"{stage}: {span_of_fastest(groups)} of a {baseline}'s speed"
    legend_under_title(figure, title, handles, 2)
    footnote(figure, gpu.upper(), operations[0] if len(operations) == 1 else "",
             f"cold L2 cache, {sizes}", provenance(repository, stage, gpu), stale_note(shown))
    return Chart(Path(f"{stage}/charts/share_{gpu}.svg"), title,
                 f"On {gpu.upper()}. " + "; ".join(sentences) + ".", figure)


def span_of_fastest(groups: dict[tuple[str, str], dict[str, list[Timing]]]) -> str:
    """What the chart says, for its title: the fastest variants, and from what share to what share they come."""
    fastest = []
    for series in groups.values():
        lines = [line for line in series.values() if line]
        common = set.intersection(*({t.cols for t in line} for line in lines))
        fastest.append(max(lines, key=lambda line: statistics.fmean(t.share_of_copy for t in line if t.cols in common)))
    names = " and ".join(dict.fromkeys(line[0].label for line in fastest))
    shares = [t.share_of_copy for line in fastest for t in line]
    return f"{names} at {100 * min(shares):.0f} to {100 * max(shares):.0f} %"


def over_cols_of_best(entries: Sequence[Timing]) -> list[Timing]:
    """The fastest variant at each shape."""
    best: dict[tuple[int, int], Timing] = {}
    for t in entries:
        if t.share_of_copy and ((t.rows, t.cols) not in best or t.seconds < best[t.rows, t.cols].seconds):
            best[t.rows, t.cols] = t
    return list(best.values())


def showcase(own: Sequence[Timing], rivals: Sequence[Timing]) -> tuple[str, str, str] | None:
    """The case that shows an operation best: a large tensor, of those the one that most variants and libraries were
    timed on, then rows of about 4096. None where no tensor is large."""

    def worth(case: tuple[str, str, str]) -> tuple[int, float, bool, float]:
        here = [t for t in own if case_of(t) == case]
        return (
            sum(case_of(t) == case for t in rivals) + len(here),
            -abs(math.log2(here[0].cols / 4096)),
            here[0].dtype == "bf16",
            here[0].tensor_mib,
        )

    large = dict.fromkeys(case_of(t) for t in own if t.tensor_mib >= 100)
    return max(large, key=worth, default=None)


def large_chart(repository: Repository, stage: str, gpu: str) -> Chart | None:
    """Bars, a panel for each operation past the plain forward pass: time on a large tensor, with the other
    libraries."""
    cold = [t for t in repository.stage_results(stage, gpu).timings if t.mode == "cold" and t.share_of_copy]
    operations = [name for name in dict.fromkeys(t.operation for t in cold) if name != OPERATION]
    rivals = cold_rivals(repository, gpu)
    order = list(dict.fromkeys(t.variant for t in cold))
    panels: list[tuple[str, list[Timing]]] = []
    for operation in operations:
        own = [t for t in cold if t.operation == operation]

        case = showcase(own, rivals)
        if case is None:
            continue
        panels.append((operation, [t for t in own + rivals if case_of(t) == case]))
    if not panels:
        return None
    heights = [len(bars) + 2.2 for _, bars in panels]
    figure, axes = page(PHONE, 1.2 + 0.36 * sum(heights), len(panels), 1, height_ratios=heights)
    sentences = []
    for ax, (operation, bars) in zip(axes, panels):
        unit, size = ("ms", 1e-3) if min(t.seconds for t in bars) >= 1e-3 else ("µs", 1e-6)
        # A bar that is many times the fastest would leave nothing to see of the others: it ends at the panel's edge.
        most = max(t.seconds for t in bars if t.seconds < 8 * min(t.seconds for t in bars)) / size
        for y, t in zip(range(len(bars), 0, -1), bars):
            style = ("#dde2e7", "", "", "") if t.stage == PEERS else STYLES[order.index(t.variant) % len(STYLES)]
            color, _, _, hatch = style
            ax.barh(
                y, t.seconds / size, height=0.66, color=color, hatch=hatch,
                edgecolor=MUTED if t.stage == PEERS else "white", linewidth=0.8,
            )
            text = f"{significant(t.seconds / size)} {unit}"
            # Other libraries' shares are of copies timed beside them, in another run.
            text += f" · {percent(t.share_of_copy)}" if t.share_of_copy and t.stage != PEERS else ""
            cut = t.seconds / size > most * 1.7
            ax.annotate(
                f"{text} →" if cut else text, (most * 1.68 if cut else t.seconds / size, y),
                xytext=(0 if cut else 4, 0), textcoords="offset points", va="center",
                ha="right" if cut else "left", fontsize=8.5,
                bbox={"facecolor": PANEL, "edgecolor": "none", "pad": 1.5} if cut else None,
            )
        ideal = sorted(t.copy_seconds for t in bars if t.stage != PEERS)[0] / size
        ax.axvline(ideal, color=INK, linewidth=1.2)
        ax.annotate(
            f"a {baseline_of([operation])}", (ideal, 1), xycoords=("data", "axes fraction"), xytext=(3, 2),
            textcoords="offset points", fontsize=8,
        )
        ax.set_yticks(range(len(bars), 0, -1), [name_of(t) for t in bars])
        ax.set_xlim(0, most * 1.7)
        ax.set_ylim(0.4, len(bars) + 0.6)
        ax.set_title(f"{operation}\n{bars[0].dtype}, {bars[0].shape.replace('x', ' x ')}", fontsize=10, pad=15)
        times = ", ".join(f"{t.label} {significant(t.seconds / size)} {unit}" for t in bars)
        sentences.append(f"{operation} {bars[0].dtype} {bars[0].shape}: {times}")
    finals = [max((t for t in bars if t.stage != PEERS), key=lambda t: t.share_of_copy) for _, bars in panels]
    shares = [t.share_of_copy for t in finals]
    names = " and ".join(dict.fromkeys(t.label for t in finals))
    title = f"{stage}, large tensors: {names} at {100 * min(shares):.0f} to {100 * max(shares):.0f}\u00a0% of a stream"
    headline(figure, title)
    footnote(
        figure, gpu.upper(), "cold L2 cache, median; the share is that of a stream of the same reads and writes",
        provenance(repository, stage, gpu), stale_note([t for _, bars in panels for t in bars]),
    )
    return Chart(Path(f"{stage}/charts/large_{gpu}.svg"), title,
                 f"On {gpu.upper()}. " + "; ".join(sentences) + ".", figure)


def draw_prediction(ax: Axes, pairs: Sequence[tuple[Timing, Timing]], launch: float) -> tuple[object, str]:
    """The ratio of five trips and two launches to four trips and one, over rows, and where a launch costs as much as a
    trip.

    `launch` is in seconds. A row's trip is a quarter of what a stream of four tensors takes for it, in the largest of
    `pairs`.
    """
    largest = max((t for t, _ in pairs if t.copy_seconds), key=lambda t: t.rows)
    trip = largest.copy_seconds / 4 / largest.rows
    measured = sorted({t.rows for t, _ in pairs})

    def ratio(rows: float) -> float:
        return (2 * launch + 5 * trip * rows) / (launch + 4 * trip * rows)

    steps = range(math.floor(4 * math.log2(measured[0])), math.ceil(4 * math.log2(measured[-1])) + 1)
    (curve,) = ax.plot(
        [2 ** (k / 4) for k in steps], [ratio(2 ** (k / 4)) for k in steps], color=MUTED, linestyle=(0, (4, 2)),
        linewidth=1.5, zorder=1.5,
    )
    even = launch / trip
    meeting = f"{significant(even, 2)} rows"
    ax.axvline(even, color=MUTED, linewidth=0.8, zorder=1)
    ax.annotate(
        f"a launch costs a trip:\n{meeting}", (even, 1), xycoords=("data", "axes fraction"), xytext=(5, -2),
        textcoords="offset points", va="top", fontsize=8.5, bbox={"facecolor": PANEL, "edgecolor": "none", "pad": 1.5},
    )
    ratios = ", ".join(f"{significant(ratio(rows))} at {rows}" for rows in measured)
    return curve, f"{ratios}; a launch costs a trip at {meeting}"


def fused_chart(repository: Repository, stage: str, gpu: str) -> Chart | None:
    """Lines: how many times as long the unfused variant takes, over cols on large tensors and over rows, beside what we
    predict."""
    both = [t for t in repository.stage_results(stage, gpu).timings if t.variant in ("fused", "unfused")]
    timings = [t for t in both if t.dtype == "bf16"]
    unfused = {(t.operation, t.shape, t.mode): t for t in timings if t.variant == "unfused"}
    fused = [t for t in timings if t.variant == "fused" and (t.operation, t.shape, t.mode) in unfused]
    pairs = [(t, unfused[t.operation, t.shape, t.mode]) for t in fused]
    by_rows = [pair for pair in pairs if pair[0].cols == 4096]
    ascending = sorted((t for t, _ in pairs), key=lambda t: t.rows)
    large = {t.cols: t.rows for t in ascending if t.tensor_mib >= 100 and t.mode == "cold"}
    by_cols = [pair for pair in pairs if pair[0].mode == "cold" and large.get(pair[0].cols) == pair[0].rows]
    if len({t.rows for t, _ in by_rows}) < 2 or len(large) < 2:
        return None
    operations = list(dict.fromkeys(t.operation for t, _ in pairs))
    figure, (cols_ax, rows_ax) = page(PHONE, 6.6, 2, 1, height_ratios=(2, 3))
    handles: dict[str, object] = {}
    sentences = []

    def draw_line(
        ax: Axes, line: list[tuple[Timing, Timing]], place: Callable[[Timing], int], style: int, label: str,
        hollow: bool,
    ) -> None:
        line = sorted(line, key=lambda pair: place(pair[0]))
        color, marker, dash, _ = STYLES[style]
        points = [(place(t), other.seconds / t.seconds) for t, other in line]
        (handles[label],) = ax.plot(
            *zip(*points), color=color, marker=marker, linestyle=dash, markersize=5, linewidth=1.5,
            fillstyle="none" if hollow else "full",
        )
        sentences.append(f"{label}: " + ", ".join(f"{significant(ratio)} at {at}" for at, ratio in points))

    for style, operation in enumerate(operations):
        line = [pair for pair in by_cols if pair[0].operation == operation]
        draw_line(cols_ax, line, lambda t: t.cols, style, f"{operation}, cold", False)
        for mode in ("cold", "graph"):
            line = [pair for pair in by_rows if pair[0].operation == operation and pair[0].mode == mode]
            if line:
                own_style = style if mode == "cold" else style + len(operations)
                draw_line(rows_ax, line, lambda t: t.rows, own_style, f"{operation}, {mode}", mode == "graph")
    for ax, name in ((cols_ax, "large tensors, over cols"), (rows_ax, "4096 cols, over rows")):
        handles["5/4: by the bytes"] = ax.axhline(1.25, color=INK, linewidth=1.2)
        ax.set_title(name, fontsize=10)
        ax.grid(axis="y", color="#e4e8ec", linewidth=0.8)
        ax.set_axisbelow(True)
    basis = ""
    launch = repository.stage_results(stage, gpu).context.get("empty_graph_launch_us")
    if launch and any(t.copy_seconds for t, _ in by_rows):
        handles["predicted for a graph"], words = draw_prediction(rows_ax, by_rows, float(launch) * 1e-6)
        sentences.append(f"predicted for a graph: {words}")
        basis = (
            f"predicted: the rate of a stream, and {significant(float(launch))} µs for a launch, as an empty kernel in "
            "a graph takes"
        )
    cols_axis(cols_ax, [*large])
    cols_axis(rows_ax, [t.rows for t, _ in by_rows])
    rows_ax.set_xlabel("rows")
    for ax in (cols_ax, rows_ax):
        ax.set_ylabel("time unfused / time fused")
    cols_ax.set_ylim(1.0, 1.1 * max(1.25, *(other.seconds / t.seconds for t, other in by_cols)))
    ratios = [other.seconds / t.seconds for t, other in by_cols], [other.seconds / t.seconds for t, other in by_rows]
    title = f"{stage}: two kernels take {min(ratios[0]):.2f} to {max(ratios[0]):.2f} times as long as one on large " \
            f"tensors, up to {max(ratios[1]):.2f} times where rows are few"
    legend_under_title(figure, title, handles, 1)
    footnote(
        figure, gpu.upper(), "bf16, median", basis, provenance(repository, stage, gpu),
        stale_note([t for t, _ in pairs]),
    )
    return Chart(Path(f"{stage}/charts/fused_{gpu}.svg"), title,
                 f"On {gpu.upper()}. " + "; ".join(sentences) + ".", figure)


# What BatchNorm's passes must move, as a ratio of the stream's bytes that their times are compared with: training
# reads x twice and writes y; backward reads dy and x twice and writes dx.
PASSES = {"batchnorm_train": 3 / 2, "batchnorm_inference": 1.0, "batchnorm_backward": 5 / 3}


def shape_label(t: Timing) -> str:
    if t.pixels == 1:
        return f"{t.rows} x {t.cols}"
    return f"{t.rows} x {t.cols} x {t.pixels}\nchannels {'last' if t.layout == LAST else 'first'}"


def passes_chart(repository: Repository, stage: str, gpu: str) -> Chart | None:
    """Points over shapes, a panel for each of BatchNorm's operations: the share of a copy's rate at which its passes
    move their bytes."""
    of_passes = [t for t in repository.stage_results(stage, gpu).timings if t.operation in PASSES]
    cold = [t for t in of_passes if t.mode == "cold" and t.share_of_copy]
    final = cold[-1].variant if cold else ""
    own = [t for t in cold if t.variant == final and t.dtype in ("fp32", "bf16") and t.rows * t.cols * t.pixels > 2**22]

    def order(t: Timing) -> tuple[bool, str, int, int]:
        return t.pixels > 1, t.layout, -t.cols if t.pixels == 1 else t.cols, t.rows

    shapes = list(dict.fromkeys(t.shape for t in sorted(own, key=order)))
    if len(shapes) < 2:
        return None
    rivals = cold_rivals(repository, gpu)
    operations = [operation for operation in PASSES if any(t.operation == operation for t in own)]
    labels = {t.shape: shape_label(t) for t in own}
    height = 0.9 + 0.3 * len(shapes)
    figure, axes = page(PHONE, 1.9 + height * len(operations), len(operations), 1, sharex=True, sharey=True)
    handles: dict[str, object] = {}
    sentences = []
    for ax, operation in zip(axes, operations):
        handles["a copy's rate"] = ax.axvline(1.0, color=INK, linewidth=1.2)
        for style, dtype in enumerate(("fp32", "bf16")):
            color, marker, _, _ = STYLES[style]
            points = [t for t in own if (t.operation, t.dtype) == (operation, dtype)]
            drawn = [(points, {"color": color, "marker": marker, "markersize": 6})]
            others = [t for t in rivals if (t.operation, t.dtype) == (operation, dtype)]
            others = [t for t in others if t.shape in labels and t.share_of_copy]
            for label, mark in PEER_MARKERS.items():
                look = {"color": INK, "marker": mark, "fillstyle": "none", "markersize": 6}
                drawn.append(([t for t in others if t.label == label], look))
            for entries, options in drawn:
                if not entries:
                    continue
                places = [shapes.index(t.shape) + (style - 0.5) * 0.3 for t in entries]
                shares = [t.share_of_copy * PASSES[operation] for t in entries]
                (handles[f"{name_of(entries[0])}, {dtype}"],) = ax.plot(shares, places, linestyle="none", **options)
                at_shapes = ", ".join(f"{percent(s)} at {t.shape}" for t, s in zip(entries, shares))
                sentences.append(f"{operation} {dtype} {entries[0].label}: {at_shapes}")
        ax.set_title(operation, fontsize=10)
        ax.grid(color="#e4e8ec", linewidth=0.8)
        ax.set_axisbelow(True)
        ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    words = [labels[shape].replace("\nchannels", ",") for shape in shapes]
    for ax in axes:
        ax.set_yticks(range(len(shapes)), words, fontsize=8.5)
        ax.tick_params(axis="x", labelbottom=True)
    axes[0].set_ylim(len(shapes) - 0.4, -0.6)
    rates = [t.share_of_copy * PASSES[t.operation] for t in own]
    span = f"{100 * min(rates):.0f} to {100 * max(rates):.0f} %"
    title = f"{stage}: its passes move their bytes at {span} of a copy's rate"
    legend_under_title(figure, title, handles, 2)
    footnote(
        figure, gpu.upper(),
        "bytes counted as the passes need them: training two reads and one write, backward four reads and one write",
        "first, last: where the channels stand", "cold L2 cache, tensors of more than 4 Mi elements",
        provenance(repository, stage, gpu), stale_note(own),
    )
    return Chart(Path(f"{stage}/charts/passes_{gpu}.svg"), title,
                 f"On {gpu.upper()}. " + "; ".join(sentences) + ".", figure)


def small_chart(repository: Repository, stage: str, gpu: str) -> Chart | None:
    """Bars, a panel for each small shape: time of BatchNorm's training pass, with the other libraries and a copy."""
    of_training = [t for t in repository.stage_results(stage, gpu).timings if t.operation == "batchnorm_train"]
    cold = [t for t in of_training if t.mode == "cold" and t.dtype == DTYPE and t.pixels == 1]
    rivals = cold_rivals(repository, gpu)
    order = list(dict.fromkeys(t.variant for t in cold))
    panels: list[tuple[str, list[Timing]]] = []
    for shape in dict.fromkeys(t.shape for t in sorted(cold, key=lambda t: t.tensor_mib) if t.tensor_mib <= 64):
        own = [t for t in cold if t.shape == shape and t.share_of_copy]
        panels.append((shape, own + [t for t in rivals if case_of(t) == case_of(own[0])]))
    if not panels:
        return None
    heights = [len(bars) + 1.6 for _, bars in panels]
    figure, axes = page(PHONE, 1.2 + 0.34 * sum(heights), len(panels), 1, height_ratios=heights)
    sentences = []
    for ax, (shape, bars) in zip(axes, panels):
        most = max(t.seconds for t in bars if t.seconds < 6 * min(t.seconds for t in bars)) * 1e6
        for y, t in zip(range(len(bars), 0, -1), bars):
            style = ("#dde2e7", "", "", "") if t.stage == PEERS else STYLES[order.index(t.variant) % len(STYLES)]
            color, _, _, hatch = style
            ax.barh(
                y, t.seconds * 1e6, height=0.66, color=color, hatch=hatch,
                edgecolor=MUTED if t.stage == PEERS else "white", linewidth=0.8,
            )
            cut = t.seconds * 1e6 > most * 1.35
            ax.annotate(
                f"{significant(t.seconds * 1e6)} µs" + (" →" if cut else ""),
                (most * 1.33 if cut else t.seconds * 1e6, y), xytext=(0 if cut else 4, 0), textcoords="offset points",
                va="center", ha="right" if cut else "left", fontsize=8.5,
                bbox={"facecolor": PANEL, "edgecolor": "none", "pad": 1.5} if cut else None,
            )
        ideal = sorted(t.copy_seconds for t in bars if t.stage != PEERS)[0] * 1e6
        ax.axvline(ideal, color=INK, linewidth=1.2)
        ax.annotate(
            "a copy", (ideal, 1), xycoords=("data", "axes fraction"), xytext=(3, 2), textcoords="offset points",
            fontsize=8,
        )
        ax.set_yticks(range(len(bars), 0, -1), [name_of(t) for t in bars])
        ax.set_xlim(0, most * 1.35)
        ax.set_ylim(0.4, len(bars) + 0.6)
        ax.set_title(shape.replace("x", " x "), fontsize=10, pad=15)
        sentences.append(f"{shape}: " + ", ".join(f"{t.label} {significant(t.seconds * 1e6)} µs" for t in bars))
    axes[-1].set_xlabel("time, µs (shorter is better)")
    fastest = [min((t for t in bars if t.stage != PEERS), key=lambda t: t.seconds) for _, bars in panels]
    spans = [t.seconds / t.copy_seconds for t in fastest if t.copy_seconds]
    title = f"{stage}: training on small tensors, {DTYPE}, takes {min(spans):.2f} to {max(spans):.2f} copies' time"
    headline(figure, title)
    footnote(
        figure, gpu.upper(), "batchnorm_train", "cold L2 cache, median", provenance(repository, stage, gpu),
        stale_note([t for _, bars in panels for t in bars]),
    )
    return Chart(Path(f"{stage}/charts/small_{gpu}.svg"), title,
                 f"On {gpu.upper()}. " + "; ".join(sentences) + ".", figure)


# --- The whole ladder -----------------------------------------------------------------------------------------------
def measured_stages(repository: Repository, gpu: str) -> list[str]:
    return [stage for stage in repository.stages() if repository.has_results(stage, gpu)]


def ladder_entries(
    repository: Repository, gpu: str, modes: Sequence[str], shape: str = SHAPE
) -> list[Timing]:
    return [
        t
        for stage in measured_stages(repository, gpu)
        for t in repository.stage_results(stage, gpu).timings
        if t.mode in modes and t.operation == OPERATION and t.dtype == DTYPE and t.shape == shape
    ]


def stage_bands(axes: Sequence[Axes], stages: Sequence[str]) -> None:
    """Shades every other stage, so that the eye keeps the rows of a stage together. `stages`: one per row, from the
    top."""
    groups = list(dict.fromkeys(stages))
    for row, stage in enumerate(stages):
        if groups.index(stage) % 2:
            for ax in axes:
                ax.axhspan(len(stages) - row - 0.5, len(stages) - row + 0.5, color="#f3f5f7", linewidth=0, zorder=0)


def ladder_chart(repository: Repository, gpu: str) -> Chart | None:
    """Time of every stage and variant at one shape, logarithmic, as points, and the share of a copy as a number."""
    entries = ladder_entries(repository, gpu, ["cold"])
    if not entries:
        return None
    rows = len(entries)
    figure, (ax,) = page(PHONE, 1.8 + 0.3 * rows)
    ys = [rows - i for i in range(rows)]
    stages = [t.stage for t in entries]
    stage_bands((ax,), stages)
    order = list(dict.fromkeys(stages))
    in_margin = ax.get_yaxis_transform()  # x from 0 at the left edge of the axes to 1 at the right one, y as the data's
    for y, t in zip(ys, entries):
        color, marker, _, _ = STYLES[order.index(t.stage) % len(STYLES)]
        ax.plot([t.seconds * 1e6], [y], marker=marker, color=color, markersize=7, linestyle="none")
        ax.annotate(
            significant(t.seconds * 1e6), (t.seconds * 1e6, y), xytext=(8, 0), textcoords="offset points", va="center",
            fontsize=9,
        )
        if t.share_of_copy:
            ax.text(1.0, y, percent(t.share_of_copy), ha="right", va="center", fontsize=9, transform=in_margin)
    ax.text(1.0, rows + 1.1, "share of a copy", ha="right", va="center", fontsize=9, color=MUTED, transform=in_margin)
    copies = sorted(t.copy_seconds for t in entries if t.copy_seconds)
    copy = copies[len(copies) // 2] * 1e6 if copies else 0.0
    if copies:
        ax.axvline(copy, color=INK, linewidth=1.2)
        ax.annotate("a copy", (copy, rows + 1.1), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ax.set_xlim(low / 1.1, high * 20)
    ax.xaxis.set_major_locator(FixedLocator([10**k for k in range(math.floor(math.log10(high)) + 1)]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.set_yticks(ys, [f"{t.stage[:2]}  {name_of(t)}" for t in entries])
    ax.set_ylim(0.4, rows + 1.6)
    ax.set_xlabel("time, µs, logarithmic")
    ax.grid(axis="x", color="#e4e8ec", linewidth=0.8)
    ax.set_axisbelow(True)
    times = [t.seconds * 1e6 for t in entries]
    title = f"The ladder at {SHAPE_WORDS}: from {significant(max(times))}\u00a0µs to " \
            f"{significant(min(times))}\u00a0µs"
    title += f"; a copy takes {significant(copy)}\u00a0µs" if copies else ""
    headline(figure, title)
    footnote(figure, gpu.upper(), f"{OPERATION}, {DTYPE}", "cold L2 cache, median", stale_note(entries))
    words = "; ".join(f"{t.stage} {t.variant} {significant(t.seconds * 1e6)} microseconds"
                      + (f", {percent(t.share_of_copy)} of a copy" if t.share_of_copy else "") for t in entries)
    return Chart(Path(f"docs/charts/ladder_{gpu}.svg"), title, f"On {gpu.upper()}: {words}.", figure)


def large_ladder_chart(repository: Repository, gpu: str) -> Chart | None:
    """Bars: share of a copy of every stage and variant on a tensor of 512 MiB, with the time beside each."""
    entries = [t for t in ladder_entries(repository, gpu, ["cold"], LARGE_SHAPE) if t.share_of_copy]
    if len({t.stage for t in entries}) < 2:
        return None
    small = [(t.stage, t.variant) for t in ladder_entries(repository, gpu, ["cold"])]  # in which order they stand there
    entries.sort(key=lambda t: (t.stage, small.index(t_key) if (t_key := (t.stage, t.variant)) in small else -1))
    figure, (ax,) = page(PHONE, 1.7 + 0.3 * len(entries))
    ys = [len(entries) - i for i in range(len(entries))]
    stages = [t.stage for t in entries]
    stage_bands((ax,), stages)
    order = list(dict.fromkeys(stages))
    for y, t in zip(ys, entries):
        color, _, _, hatch = STYLES[order.index(t.stage) % len(STYLES)]
        ax.barh(y, t.share_of_copy, height=0.62, color=color, hatch=hatch, edgecolor="white", linewidth=0.6)
        ax.text(1.27, y, percent(t.share_of_copy), ha="right", va="center", fontsize=9)
        ax.text(1.53, y, f"{significant(t.seconds * 1e6)} µs", ha="right", va="center", fontsize=9)
    ax.axvline(1.0, color=INK, linewidth=1.2)
    ax.set_yticks(ys, [f"{t.stage[:2]}  {name_of(t)}" for t in entries])
    ax.set_ylim(0.4, len(entries) + 0.6)
    ax.set_xlim(0, 1.55)
    ax.xaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    ax.set_xlabel("share of a copy's speed", x=0, ha="left")
    ax.set_axisbelow(True)
    best = [max(t.share_of_copy for t in entries if t.stage == stage) for stage in order]
    title = f"At 512 MiB: from {percent(best[0])} of a copy's speed in {order[0][:2]} to " \
            f"{percent(best[-1])} in {order[-1][:2]}"
    headline(figure, title)
    footnote(figure, gpu.upper(), f"{OPERATION}, {DTYPE}, {LARGE_SHAPE.replace('x', ' x ')}", "cold L2 cache, median",
             stale_note(entries))
    words = "; ".join(f"{t.stage} {t.variant} {significant(t.seconds * 1e6)} microseconds, "
                      f"{percent(t.share_of_copy)} of a copy" for t in entries)
    return Chart(Path(f"docs/charts/ladder_large_{gpu}.svg"), title, f"On {gpu.upper()}: {words}.", figure)


def cold_warm_chart(repository: Repository, gpu: str) -> Chart | None:
    """Points on a line per variant: the same kernel with a flushed cache, a warm one, and replayed from a graph."""
    entries = ladder_entries(repository, gpu, MODES)
    by_variant: dict[tuple[str, str], dict[str, Timing]] = {}
    for t in entries:
        by_variant.setdefault((t.stage, t.variant), {})[t.mode] = t
    lines = {key: modes for key, modes in by_variant.items() if len(modes) > 1}
    if not lines:
        return None
    figure, (ax,) = page(PHONE, 2.1 + 0.3 * len(lines))
    looks = {"cold": ("#0072B2", "o", "full"), "warm": ("#D55E00", "s", "full"), "graph": ("#009E73", "D", "none")}
    ys = [len(lines) - i for i in range(len(lines))]
    stage_bands((ax,), [stage for stage, _ in lines])
    for y, modes in zip(ys, lines.values()):
        times = [t.seconds * 1e6 for t in modes.values()]
        ax.plot([min(times), max(times)], [y, y], color="#9aa3ad", linewidth=1.5, zorder=1)
        for mode, t in modes.items():
            color, marker, fill = looks[mode]
            ax.plot([t.seconds * 1e6], [y], color=color, marker=marker, fillstyle=fill, markersize=7, linestyle="none")
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.set_yticks(ys, [f"{stage[:2]}  {name_of(next(iter(modes.values())))}" for (stage, _), modes in lines.items()])
    ax.set_ylim(0.4, len(lines) + 0.6)
    ax.set_xlabel("time, µs, logarithmic")
    ax.grid(axis="x", color="#e4e8ec", linewidth=0.8)
    ax.set_axisbelow(True)
    labels = {"cold": "cold: L2 flushed", "warm": "warm: data in L2", "graph": "graph: warm, no launch cost"}
    for mode, (color, marker, fill) in looks.items():
        if any(mode in modes for modes in lines.values()):
            ax.plot(
                [], [], color=color, marker=marker, fillstyle=fill, markersize=7, linestyle="none", label=labels[mode]
            )
    each = {mode: min(found, default=0.0) for mode in looks
            for found in [[modes[mode].seconds * 1e6 for modes in lines.values() if mode in modes]]}
    words_of = {"cold": "cold", "warm": "warm", "graph": "from a graph"}
    title = "The fastest kernel: " + ", ".join(
        f"{significant(us)}\u00a0µs {words_of[mode]}" for mode, us in each.items() if us)
    by_label = dict(zip(*reversed(ax.get_legend_handles_labels())))
    legend_under_title(figure, title, by_label, 2)
    footnote(figure, gpu.upper(), f"{OPERATION}, {SHAPE_WORDS}, {DTYPE}", "medians",
             stale_note([t for modes in lines.values() for t in modes.values()]))
    words = "; ".join(
        f"{stage} {variant} " + ", ".join(f"{mode} {significant(t.seconds * 1e6)}" for mode, t in modes.items())
        for (stage, variant), modes in lines.items()
    )
    return Chart(Path(f"docs/charts/cold_warm_{gpu}.svg"), title, f"Microseconds on {gpu.upper()}: {words}.", figure)


def numerics_chart(repository: Repository, gpu: str) -> Chart | None:
    """A heat map per type: the largest error in ulp of every stage and variant on every input."""
    checks = [
        c
        for stage in measured_stages(repository, gpu)
        for c in repository.stage_results(stage, gpu).checks
        if c.operation == OPERATION and c.shape == SHAPE
    ]
    if not checks:
        return None
    if repository.has_peers(gpu):
        cases = {(case_of(c), c.input) for c in checks}
        checks += [c for c in repository.peers(gpu).checks if (case_of(c), c.input) in cases]
    inputs = list(dict.fromkeys(c.input for c in checks))
    dtypes = [dtype for dtype in ELEMENT_BYTES if any(c.dtype == dtype for c in checks)]
    variants = {
        dtype: list(dict.fromkeys((c.stage, c.variant) for c in checks if c.dtype == dtype)) for dtype in dtypes
    }
    heights = [len(variants[dtype]) for dtype in dtypes]
    figure, axes = page(PHONE, 1.5 + 1.3 * len(dtypes) + 0.27 * sum(heights), len(dtypes), 1, height_ratios=heights)
    finite = [c.max_ulp_error for c in checks if c.max_ulp_error]
    norm = LogNorm(vmin=0.5, vmax=max([10.0, *finite]))
    colors = plt.get_cmap("YlOrRd")
    sentences = []
    for ax, dtype in zip(axes, dtypes):
        # Where a problem was checked more than once, the worst counts.
        found = {(c.stage, c.variant, c.input): c for c in sorted(checks, key=size_of) if c.dtype == dtype}
        for row, (stage, variant) in enumerate(variants[dtype]):
            for col, name in enumerate(inputs):
                check = found.get((stage, variant, name))
                heat_cell(ax, row, col, check, norm, colors)
                if check and not check.right:
                    sentences.append(f"{dtype} {stage} {variant} fails on {name}")
        labels = []
        for stage, variant in variants[dtype]:
            one = next(c for c in found.values() if (c.stage, c.variant) == (stage, variant))
            labels.append(name_of(one) if stage == PEERS else f"{stage[:2]}  {name_of(one)}")
        ax.set_yticks(range(len(labels)), labels)
        ax.set_xticks(range(len(inputs)), inputs, rotation=60, ha="left", rotation_mode="anchor")
        ax.xaxis.tick_top()
        ax.tick_params(length=0)
        ax.tick_params(axis="x", labelsize=8.5)
        ax.set_xlim(-0.5, len(inputs) - 0.5)
        ax.set_ylim(len(labels) - 0.5, -0.5)
        ax.spines[:].set_visible(False)
        ax.set_title(dtype, x=-0.3)
    known = dict.fromkeys((c.stage, c.variant) for c in checks if c.stage != PEERS)
    wrong = {(c.stage, c.variant) for c in checks if not c.right}
    names = ", ".join(f"{variant} ({stage[:2]})" for stage, variant in known if (stage, variant) not in wrong)
    title = f"Right on every input: {names or 'none'}"
    headline(figure, title)
    footnote(
        figure, gpu.upper(), f"largest error in units in the last place, {OPERATION}, {SHAPE_WORDS}",
        "framed: outside the tolerance", "inf: not finite where the reference is",
        stale_note(checks),
    )
    words = "; ".join(sentences) or "nothing fails"
    return Chart(Path(f"docs/charts/numerics_{gpu}.svg"), title, f"On {gpu.upper()}: {words}.", figure)


def heat_cell(ax: Axes, row: int, col: int, check: Check | None, norm: LogNorm, colors: Callable) -> None:
    """One square of the heat map: color for the size of the error, its number, a frame where it is too large."""
    corner = (col - 0.48, row - 0.46)
    if check is None:
        ax.add_patch(plt.Rectangle(corner, 0.96, 0.92, facecolor="#f3f5f7", edgecolor="none"))
        ax.text(col, row, "–", ha="center", va="center", fontsize=8.5, color=MUTED)
        return
    error = check.max_ulp_error
    color = colors(1.0) if error is None else colors(float(norm(max(error, norm.vmin))))
    ax.add_patch(plt.Rectangle(corner, 0.96, 0.92, facecolor=color, edgecolor=INK, linewidth=0 if check.right else 2.2))
    if not check.ran:
        text = "no run"
    elif error is None:
        text = "inf"
    elif error >= 1000:
        exponent = math.floor(math.log10(error))
        text = f"{error / 10**exponent:.0f}e{exponent}" if round(error / 10**exponent) < 10 else f"1e{exponent + 1}"
    else:
        text = significant(error, 2)
    ax.text(col, row, text, ha="center", va="center", fontsize=8.5, color=ink_on(color))


def ink_on(color: Sequence[float]) -> str:
    dark = sum(weight * channel for weight, channel in zip((0.299, 0.587, 0.114), color)) < 0.5
    return "#ffffff" if dark else INK


# Arithmetic for each element, counted from the formulas: a sum's addition is one, a multiplication and an addition are
# two.
FLOPS = {
    "layernorm_forward": 8,  # mean 1, deviation 1, its square and sum 2, times rstd 1, gamma and beta 2, mean's place 1
    "rmsnorm_forward": 4,
    "add_layernorm_forward": 9,
    "add_rmsnorm_forward": 5,
    "layernorm_backward": 16,  # xhat 2, dy gamma 1, its two sums 3, dx 5, dgamma 2, dbeta 1, and two products shared
    "rmsnorm_backward": 12,
    "add_layernorm_backward": 17,
    "batchnorm_train": 8,
    "batchnorm_inference": 2,
    "batchnorm_backward": 16,
}
FP32_LANES = {"7.5": 64, "8.0": 64}  # of a multiprocessor; 128 on all others


def label_points(
    ax: Axes, points: Sequence[tuple[float, float, str]], color: str, column: float | None = None
) -> None:
    """A label for each of (x, y, label); those whose points touch are one label. It stands beside its point, or in a
    column at x, with a line to it. Both axes are logarithmic."""
    labels: list[tuple[float, float, str]] = []
    left = sorted(points)
    while left:
        x, y, _ = left[0]
        near = [p for p in left if p[0] < 1.25 * x and max(p[1] / y, y / p[1]) < 1.22]
        left = [p for p in left if p not in near]
        labels.append((max(near)[0], y, ", ".join(sorted(label for *_, label in near))))
    labels.sort(key=lambda label: -label[1])
    heights = spread([math.log10(y) for _, y, _ in labels], 0.17)
    for (x, y, text), height in zip(labels, heights):
        looks = {"va": "center", "fontsize": 8.5, "color": color}
        if column is None:
            ax.annotate(text, (x, y), xytext=(7, 0), textcoords="offset points", **looks)
        else:
            ax.annotate(text, (x, y), xytext=(column, 10**height), textcoords="data", **looks, arrowprops={
                "arrowstyle": "-", "color": "#b8c0c8", "linewidth": 0.7, "shrinkB": 4})


def roofline_chart(repository: Repository, gpu: str) -> Chart | None:
    """Points under two roofs: arithmetic per byte against arithmetic per second, the fastest kernel of each stage in
    the operation that is new in it, in fp32."""
    stages = measured_stages(repository, gpu)
    points: list[Timing] = []
    for stage in stages:
        operation = operation_of(repository, stage, gpu)
        here = [t for t in repository.stage_results(stage, gpu).timings
                if t.mode == "cold" and (t.operation, t.dtype) == (operation, DTYPE) and "bytes" in t.counters]
        large, small = [t for t in here if t.tensor_mib >= 100], [t for t in here if t.shape == SHAPE]
        points += [max(chosen, key=lambda t: t.bytes_per_second) for chosen in (large, small) if chosen]
    context = repository.stage_results(stages[0], gpu).context if stages else {}
    if not points or "multiprocessors" not in context or "max_clock_khz" not in context:
        return None
    lanes = FP32_LANES.get(context.get("compute_capability", ""), 128)
    peak = int(context["multiprocessors"]) * lanes * 2 * float(context["max_clock_khz"]) * 1e3
    memory = max(t.bytes_per_second / t.share_of_copy for t in points if t.share_of_copy)

    def place(t: Timing) -> tuple[float, float]:
        flops = FLOPS[t.operation] * t.rows * t.cols * t.pixels
        return flops / t.counters["bytes"], flops / t.seconds

    figure, (ax,) = page(PHONE, 4.6)
    low, high = 0.3, 40.0
    ridge = peak / memory
    ax.plot([low, ridge, high], [low * memory, peak, peak], color=INK, linewidth=1.6)
    ax.annotate(
        f"memory: a copy's {significant(memory / 1e12)} TB/s", (1.1 * low, 1.1 * low * memory), rotation=45,
        rotation_mode="anchor", xytext=(0, 7), textcoords="offset points", fontsize=8.5,
    )
    ax.annotate(
        f"arithmetic: {significant(peak / 1e12)} TFLOP/s in fp32", (high, peak), xytext=(-4, 5),
        textcoords="offset points", ha="right", fontsize=8.5,
    )
    sentences = []
    for t in points:
        large = t.shape != SHAPE
        x, y = place(t)
        ax.plot([x], [y], marker="o" if large else "s", color="#0072B2" if large else "#D55E00",
                markersize=6 if large else 5, fillstyle="full" if large else "none", linestyle="none")
        spot = f"{significant(y / 1e12)} TFLOP/s at {significant(x, 2)} FLOP per byte"
        sentences.append(f"{t.stage} {t.operation} {t.dtype} {t.shape}: {spot}")
    for is_large in (True, False):
        label_points(ax, [(*place(t), dagger(t.stage[:2], t.stale)) for t in points if (t.shape != SHAPE) == is_large],
                     "#0072B2" if is_large else "#D55E00", None if is_large else 4.0)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(low, high)
    ax.set_ylim(min(place(t)[1] for t in points) / 2, peak * 2)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y / 1e12:g}"))
    ax.set_xlabel("operations for each byte that must be moved")
    ax.set_ylabel("TFLOP/s")
    ax.grid(color="#e4e8ec", linewidth=0.8)
    ax.set_axisbelow(True)
    title = "Roofline: how near the fastest kernel of each stage comes to the slope of the memory"
    headline(figure, title)
    ax.annotate("full: large tensors", (high, ax.get_ylim()[0]), xytext=(-6, 26), textcoords="offset points",
                ha="right", fontsize=8.5, color="#0072B2")
    ax.annotate("hollow: 1024 x 1024", (high, ax.get_ylim()[0]), xytext=(-6, 12), textcoords="offset points",
                ha="right", fontsize=8.5, color="#D55E00")
    footnote(
        figure, gpu.upper(), "the fastest kernel of each stage in the operation that is new in it", DTYPE,
        "operations counted from the formulas, cold L2 cache", stale_note(points),
    )
    return Chart(Path(f"docs/charts/roofline_{gpu}.svg"), title,
                 f"On {gpu.upper()}. " + "; ".join(sentences) + ".", figure)


def rivals_chart(repository: Repository, gpu: str) -> Chart | None:
    """Against other libraries, as ./worklog compare found it: the share of a copy over the columns, a panel to an
    operation. Of large tensors alone: shares of small ones are those of launches, and jump from width to width."""
    document = repository.comparison(gpu)
    if document is None:
        return None
    runs = repository.runs(gpu)
    timed = [(*cell_of(entry["name"]), entry) for entry in document["benchmarks"]]
    shown = [
        (variant, cell, entry["share_of_copy"]) for variant, cell, mode, entry in timed
        if mode == "cold" and cell.dtype == "bf16" and variant != COPY and not cell.operation.startswith("batchnorm")
    ]
    if not shown:
        return None
    large = max(cell.tensor_bytes for _, cell, _ in shown) / 4
    # Operation, contender, cols: the largest tensor's bytes and share.
    lines: dict[str, dict[str, dict[int, tuple[float, float]]]] = {}
    drawn: set[Cell] = set()
    for variant, cell, share in shown:
        if cell.tensor_bytes >= large:
            drawn.add(cell)
            of_variant = lines.setdefault(cell.operation, {}).setdefault(variant, {})
            of_variant[cell.cols] = max(of_variant.get(cell.cols, (0.0, 0.0)), (cell.tensor_bytes, share))
    lines = {operation: lines[operation] for operation in TENSORS if operation in lines}
    old = {cell.operation for cell in drawn if runs.is_stale(cell)}
    names = list(dict.fromkeys(name for by_variant in lines.values() for name in by_variant))
    columns = min(2, len(lines))
    rows = math.ceil(len(lines) / columns)
    figure, axes = page(PHONE, 2.6 * rows + 1.6, rows, columns, sharey=True)
    sentences = []
    for ax, (operation, by_variant) in zip(axes, lines.items()):
        for name, shares in by_variant.items():
            color, marker, dash, _ = RIVAL_STYLES[names.index(name) % len(RIVAL_STYLES)]
            whole, odd = ([c for c in sorted(shares) if (c % 8 == 0) == is_whole] for is_whole in (True, False))
            zorder = 3 if name == OURS else 2
            ax.plot(
                whole, [shares[c][1] for c in whole], color=color, marker=marker, linestyle=dash, markersize=4,
                linewidth=2.2 if name == OURS else 1.2, label=PEER_LABELS.get(name, name), zorder=zorder,
            )
            ax.plot(
                odd, [shares[c][1] for c in odd], color=color, marker=marker, fillstyle="none", linestyle="none",
                markersize=5, zorder=zorder,
            )
        of_panel = operation.replace("_forward", "\nforward").replace("_backward", "\nbackward")
        ax.set_title(dagger(of_panel, operation in old), fontsize=10)
        cols_axis(ax, [c for shares in by_variant.values() for c in shares], 4)
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        ax.set_ylim(0, 1.1)
        ax.grid(axis="y", color="#e4e8ec", linewidth=0.8)
        widest = {name: max(shares) for name, shares in by_variant.items()}
        shares_there = {PEER_LABELS.get(n, n): (by_variant[n][c][1], c) for n, c in widest.items()}
        at_widest = [f"{label} {percent(share)} at {c} columns" for label, (share, c) in shares_there.items()]
        sentences.append(f"{operation}: {', '.join(at_widest)}")
    for ax in axes[len(lines):]:
        ax.set_visible(False)
    handles = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels())}
    title = "The final kernels beside other libraries: share of a copy of the same bytes"
    legend_under_title(figure, title, handles, 2)
    footnote(
        figure, gpu.upper(), "bf16, cold L2 cache, the largest tensor at each width; hollow: no multiple of 8 columns",
        f"tensors of at least {large / 2**20:.0f} MiB",
        runs.origin(drawn), STALE_NOTE if old else "",
    )
    return Chart(Path(f"docs/charts/compare_{gpu}.svg"), title,
                 f"On {gpu.upper()}. " + "; ".join(sentences) + ".", figure)


def rivals_map(repository: Repository, gpu: str) -> Chart | None:
    """Against the best other library, as ./worklog compare found it: how many times as fast ours is, columns by
    operations, a panel to a type."""
    # The largest tensor at each width.
    by_rows = sorted(repository.verdicts(gpu).values(), key=lambda v: v.cell.rows)
    found = {(v.cell.dtype, v.cell.operation, v.cell.cols): v for v in by_rows if v.mode == "cold"}
    if not found:
        return None
    runs = repository.runs(gpu)
    old = {v.cell.operation for v in found.values() if runs.is_stale(v.cell)}
    dtypes = [dtype for dtype in ELEMENT_BYTES if any(dtype in key for key in found)]
    operations = [operation for operation in TENSORS if any(operation in key for key in found)]
    widths_of = {dtype: sorted({cols for of, _, cols in found if of == dtype}) for dtype in dtypes}
    lines = [len(widths) for widths in widths_of.values()]
    figure, axes = page(PHONE, 1.6 + 1.9 * len(dtypes) + 0.24 * sum(lines), len(dtypes), 1,
                        gridspec_kw={"height_ratios": lines})
    for ax, (dtype, widths) in zip(axes, widths_of.items()):
        for col, operation in enumerate(operations):
            for row, cols in enumerate(widths):
                ahead_cell(ax, row, col, found.get((dtype, operation, cols)))
        ax.set_xticks(range(len(operations)), [dagger(operation, operation in old) for operation in operations],
                      rotation=60, ha="left", rotation_mode="anchor")
        ax.set_yticks(range(len(widths)), [str(cols) for cols in widths])
        ax.xaxis.tick_top()
        ax.tick_params(length=0, labelsize=8.5)
        ax.set_xlim(-0.5, len(operations) - 0.5)
        ax.set_ylim(len(widths) - 0.5, -0.5)
        ax.spines[:].set_visible(False)
        ax.set_title(dtype, x=-0.17)
    lost = [v for v in found.values() if v.outcome == "lost"]
    title = f"How many times as fast as the fastest other library: of {len(found)} cases {len(lost)} are lost"
    headline(figure, title)
    footnote(
        figure, gpu.upper(), "cold L2 cache, the largest tensor at each number of columns",
        "framed: another is faster; gray: not measured", runs.origin(v.cell for v in found.values()),
        STALE_NOTE if old else "",
    )
    at = sorted(f"{v.cell.dtype} {v.cell.operation} at {v.cell.cols} columns {v.ahead:.2f}" for v in lost)
    won = sum(v.outcome == "won" for v in found.values())
    words = f"{len(found)} cells, of which {won} are won and these lost: {', '.join(at) or 'none'}"
    return Chart(Path(f"docs/charts/compare_map_{gpu}.svg"), title, f"On {gpu.upper()}: {words}.", figure)


BEHIND_TO_AHEAD = LinearSegmentedColormap.from_list("behind_to_ahead", ["#D55E00", "#ffffff", "#0072B2"])


def ahead_cell(ax: Axes, row: int, col: int, verdict: Verdict | None) -> None:
    """One square: full blue where we are twice as fast or more, full orange where the other is, a frame where the cell
    is lost."""
    corner = (col - 0.48, row - 0.46)
    if verdict is None:
        ax.add_patch(plt.Rectangle(corner, 0.96, 0.92, facecolor="#e3e7eb", edgecolor="none"))
        return
    depth = max(-1.0, min(math.log2(verdict.ahead), 1.0))
    color = BEHIND_TO_AHEAD((depth + 1) / 2)
    lost = verdict.outcome == "lost"
    edge, width = (INK, 1.2) if lost else ("#e4e8ec", 0.6)
    ax.add_patch(plt.Rectangle(corner, 0.96, 0.92, facecolor=color, edgecolor=edge, linewidth=width))
    text = f"{verdict.ahead:.2f}" if verdict.ahead < 9.995 else f"{verdict.ahead:.1f}"
    ax.text(col, row, text, ha="center", va="center", fontsize=8, color=ink_on(color))


def training_chart(repository: Repository, gpu: str) -> Chart | None:
    """A small GPT trained with PyTorch's norms and with ours, as examples/gpt.py found it: the losses of the first
    seed, and the time of a step."""
    data = f"gpt_{gpu}"
    if not repository.has_data(data):
        return None
    document = repository.data(data)
    figure, (losses, times) = page(PHONE, 6.4, 2, 1, height_ratios=(3, 2))
    context = document["context"]
    old = repository.data_is_stale(data)
    runs = {dagger(name, old and name.startswith("ours")): run for name, run in document["runs"].items()}
    losses_of = {name: run["losses"] for name, run in runs.items()}
    curves = {name: found[0] if isinstance(found[0], list) else found for name, found in losses_of.items()}
    for index, (name, run) in enumerate(runs.items()):
        color, marker, dash, hatch = STYLES[index % len(STYLES)]
        every = max(1, len(curves[name]) // 12)
        losses.plot(
            range(1, len(curves[name]) + 1), curves[name], color=color, linestyle=dash, linewidth=1.3, marker=marker,
            markersize=4, markevery=(index * every // len(runs), every), label=name,
        )
        times.barh([index], [run["step_seconds"] * 1e3], color=color, hatch=hatch, edgecolor=PANEL, height=0.62)
        step = run["step_seconds"] * 1e3
        times.annotate(
            significant(step), (step, index), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8.5
        )
    losses.set_xlabel("step")
    losses.set_title("loss")
    losses.grid(axis="y", color="#e4e8ec", linewidth=0.8)
    losses.legend()
    times.set_title("a step, ms")
    times.set_yticks(range(len(runs)), list(runs))
    times.invert_yaxis()
    times.margins(x=0.18)
    size = context["size"]
    steps = [f"{name} {significant(run['step_seconds'] * 1e3)}" for name, run in runs.items()]
    title = f"A small GPT with PyTorch's norms and with ours, ms a step: {', '.join(steps[:2])}"
    headline(figure, title)
    model = f"{size['layers']} layers of width {size['width']}"
    footnote(
        figure, gpu.upper(),
        f"{model}, {size['batch']} x {size['context']} tokens a step, {context['dtype']}",
        f"losses of the first of {context['seeds']} seeds" if context.get("seeds", 1) > 1 else "",
        f"PyTorch {context['torch']}", context["date"], STALE_NOTE if old else "",
    )
    words = "; ".join(
        f"{name}: loss {curves[name][0]:.3f} to {curves[name][-1]:.3f}, a step "
        f"{significant(run['step_seconds'] * 1e3)} ms"
        for name, run in runs.items()
    )
    return Chart(Path(f"docs/charts/gpt_{gpu}.svg"), title, f"On {gpu.upper()}. {words}.", figure)


# Our lines of each panel: the end of the figure's name, and what it is called.
TUTORIAL_LINES = {
    "forward": (("held", "held (05)"), ("layer_norm", "layer_norm (05)")),
    "backward": (("grouped", "grouped (07)"), ("staying", "staying (07)"), ("persistent", "persistent (07)")),
}


SCHEME = "the tutorial's scheme"


def tutorial_chart(repository: Repository, gpu: str) -> Chart | None:
    """GB/s over the columns: what the Triton tutorial prints, and what was measured here at its widths."""
    data = f"tutorial_tables_{gpu}"
    if not repository.has_data(data) or not repository.has_data("article_triton"):
        return None
    document = repository.data(data)
    here, own = document["figures"], repository.data("article_triton")["figures"]
    figure, axes = page(PHONE, 8.4, 2, 1, sharey=True)
    told = []
    widest: dict[tuple[str, str], float] = {}  # GB/s
    for ax, (direction, kernels) in zip(axes, TUTORIAL_LINES.items()):
        lines = [(own, "", "the tutorial's kernel, its GPU", "#9aa3ad", "-", "")]
        lines += [(own, "_torch", "PyTorch, the tutorial's GPU", "#9aa3ad", ":", "")]
        lines += [(here, "_torch", "PyTorch", "#444444", ":", "x")]
        lines += [(here, "_triton", SCHEME, INK, "-", "")]
        for (key, name), (color, marker, dash, _) in zip(kernels, STYLES):
            lines.append((here, f"_{key}", name, color, dash, marker))
        for figures, end, name, color, dash, marker in lines:
            cols = [c for c in range(1024, 15873, 512) if f"{direction}_{c}{end}" in figures]
            rates = [figures[f"{direction}_{c}{end}"]["value"] for c in cols]
            ax.plot(
                cols, rates, color=color, linestyle=dash, marker=marker, markersize=4, markevery=3, linewidth=1.5,
                label=name,
            )
            widest[direction, name] = rates[-1]
            told.append(f"{direction}, {name}: {rates[0]:.0f} GB/s at {cols[0]} columns, {rates[-1]:.0f} at {cols[-1]}")
        ax.set_title(f"{direction}", fontsize=10)
        ax.set_xlabel("columns")
        ax.set_xticks(range(2048, 16385, 2048), [f"{cols // 1024}K" for cols in range(2048, 16385, 2048)])
        ax.grid(color="#e4e8ec", linewidth=0.8)
        ax.set_axisbelow(True)
        ax.set_ylabel("GB/s")
        ax.legend(loc="upper left", ncols=2, columnspacing=1.0, handlelength=1.8)
    axes[0].set_ylim(0, 5800)
    finals = [(direction, kernels[-1][1]) for direction, kernels in TUTORIAL_LINES.items()]
    reached = [f"{name} {widest[direction, name]:.0f}, its scheme {widest[direction, SCHEME]:.0f}"
               for direction, name in finals]
    title = f"The Triton tutorial's widths, 4096 rows in fp16. GB/s at the widest: {'; '.join(reached)}"
    headline(figure, title)
    source = document["source"]
    footnote(
        figure, f"{gpu.upper()}, but for the grey lines", "cold L2 cache, median",
        f"PyTorch {source['software']['torch']}, Triton {source['software']['triton']}", source["date"],
    )
    return Chart(Path(f"docs/charts/tutorial_{gpu}.svg"), title, f"On {gpu.upper()}. {'; '.join(told)}.", figure)


# What the last percent costs: an operation, type and shape of 512 MiB in each panel, and the stages that have it.
PANELS = (
    ("LayerNorm", "layernorm_forward", "fp32", "131072x1024", ("01", "02", "03", "04", "05")),
    ("its backward pass", "layernorm_backward", "bf16", "262144x1024", ("07",)),
    ("BatchNorm, training", "batchnorm_train", "fp32", "65536x1024", ("08",)),
)
LESSONS_END = ("held", "staying", "one_launch")  # the kernels that lessons end with


def lines_chart(repository: Repository, gpu: str) -> Chart | None:
    """Lines of kernel code against the share of a copy, a point for each variant."""
    if not repository.has_data("kernel_lines"):
        return None
    lines = repository.data("kernel_lines")["lines"]
    stages = measured_stages(repository, gpu)
    figure, axes = page(PHONE, 9.4, len(PANELS), 1, sharey=True, height_ratios=(1.4, 1, 1))
    told, drawn = [], []
    for ax, (name, operation, dtype, shape, numbers) in zip(axes, PANELS):
        points = [
            (lines[f"{t.stage}/{t.variant}"], t)
            for stage in stages if stage[:2] in numbers for t in repository.stage_results(stage, gpu).timings
            if (t.operation, t.dtype, t.shape, t.mode) == (operation, dtype, shape, "cold") and t.share_of_copy
        ]
        points.sort(key=lambda point: (point[0], point[1].share_of_copy))
        most = {t.stage: count for count, t in points}  # lines of the stage's final kernel, where it has one
        sides: dict[str, list[tuple[int, Timing]]] = {"above": [], "right": [], "left": []}
        for count, t in points:
            is_end, is_final = t.variant in LESSONS_END, t.stage[:2] >= "05" and count == most[t.stage]
            color = STYLES[int(t.stage[:2]) % len(STYLES)][0]
            ax.plot(
                [count], [t.share_of_copy], color=color, marker="*" if is_end else "s" if is_final else "o",
                linestyle="none", markersize=13 if is_end else 7, fillstyle="full" if is_end or is_final else "none",
            )
            told.append(f"{t.stage} {t.variant} {count} lines, {percent(t.share_of_copy)} of a copy")
            drawn.append(t)
            hidden = any(
                other is not t and abs(lines_ - count) < 3 and 0 < other.share_of_copy - t.share_of_copy < 0.03
                for lines_, other in points
            )
            if hidden:  # its neighbour's name is in this place
                continue
            # On the side where it has room.
            to_left = any(
                count < lines_ < (6 if abs(other.share_of_copy - t.share_of_copy) < 0.03 else 1.7) * count
                and abs(other.share_of_copy - t.share_of_copy) < 0.06 for lines_, other in points
            )
            sides["above" if is_final else "right" if to_left else "left"].append((count, t))
        for align, named in sides.items():
            named.sort(key=lambda point: -point[1].share_of_copy)
            heights = spread([max(t.share_of_copy, 0.06) for _, t in named], 0.055 if ax is axes[0] else 0.075)
            for (count, t), height in zip(named, heights):
                offset = {"above": (0, 9), "right": (-7, 0), "left": (7, 0)}[align]
                ax.annotate(
                    f"{t.stage[:2]} {name_of(t)}", (count, height), xytext=offset, textcoords="offset points",
                    ha="center" if align == "above" else align, va="center", fontsize=8,
                )
        ax.axhline(1.0, color=INK, linewidth=1.2)
        ax.set_xscale("log")
        ax.set_xlim(3, 8000)
        ax.xaxis.set_major_locator(FixedLocator([10, 30, 100, 300, 1000, 3000]))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        ax.set_title(f"{name}: {shape.replace('x', ' x ')}, {dtype}", fontsize=10)
        ax.set_ylabel("share of a copy's speed")
        ax.grid(color="#e4e8ec", linewidth=0.8)
        ax.set_axisbelow(True)
    if not drawn:
        plt.close(figure)
        return None
    axes[0].set_ylim(0, 1.12)
    axes[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    axes[-1].set_xlabel("lines of kernel code, logarithmic")
    costs = {t.variant: f"{t.label} {lines[f'{t.stage}/{t.variant}']} lines, {percent(t.share_of_copy)}" for t in drawn}
    ends = [costs[name] for name in ("held", "layer_norm") if name in costs]
    title = "What the last percent costs" + "".join(f"{', ' if i else ': '}{end}" for i, end in enumerate(ends))
    headline(figure, title)
    footnote(
        figure, gpu.upper(), "cold L2 cache, median", "star: the kernel that a lesson ends with; square: the final one",
        "lines: the variant's function, its kernels and all that they call, without comments",
        "BatchNorm reads x twice, so that a copy's time is out of its reach", stale_note(drawn),
    )
    return Chart(Path(f"docs/charts/lines_{gpu}.svg"), title, f"On {gpu.upper()}: {'; '.join(told)}.", figure)


SECOND_GPU = "h100"  # the same chip as the first, with less memory bandwidth
TWO_GPUS = ("01", "02", "03", "04", "05")  # the stages whose variants are compared on both


def two_gpus_chart(repository: Repository, gpu: str) -> Chart | None:
    """How many times as long each forward kernel takes on the second GPU, against its share of a copy on the first."""
    operation, dtype, shape = PANELS[0][1:4]
    if gpu != DEFAULT_GPU or not all(repository.has_results(s, SECOND_GPU) for s in measured_stages(repository, gpu)):
        return None

    def large(of: str) -> dict[str, Timing]:
        timings = [t for s in measured_stages(repository, of) for t in repository.stage_results(s, of).timings]
        wanted = (operation, dtype, shape, "cold")
        return {
            t.name: t for t in timings
            if t.stage[:2] in TWO_GPUS and (t.operation, t.dtype, t.shape, t.mode) == wanted and t.share_of_copy
        }

    first, second = large(gpu), large(SECOND_GPU)
    both = [(t, second[name]) for name, t in first.items() if name in second and not (t.stale or second[name].stale)]
    slower = statistics.median(b.copy_seconds / a.copy_seconds for a, b in both)
    figure, (ax,) = page(PHONE, 5.4)
    handles: dict[str, object] = {}
    order = list(dict.fromkeys(a.stage for a, _ in both))
    for a, b in both:
        color, marker, _, _ = STYLES[order.index(a.stage) % len(STYLES)]
        dot, = ax.plot([a.share_of_copy], [b.seconds / a.seconds], marker=marker, color=color, markersize=8,
                       linestyle="none")
        handles.setdefault(a.stage, dot)
    points = sorted((a.share_of_copy, b.seconds / a.seconds, name_of(a)) for a, b in both)
    while points:  # those near each other have one label, a line each
        near = [points.pop(0)]
        while points and points[0][0] - near[-1][0] < 0.045 and abs(points[0][1] - near[-1][1]) < 0.06:
            near.append(points.pop(0))
        close = points and points[0][0] - near[-1][0] < 0.1 and abs(points[0][1] - near[-1][1]) < 0.05
        left = near[0][0] > 0.85 or close
        names = "\n".join(name for _, _, name in sorted(near, key=lambda point: -point[1]))
        low = min(y for _, y, _ in near)
        if len(near) > 3:  # below, where there is room for so many
            ax.annotate(names, (near[0][0], low), xytext=(-4, -8), textcoords="offset points", va="top", fontsize=8.5)
            continue
        ax.annotate(
            names, (near[0 if left else -1][0], low), xytext=(-8 if left else 8, -4), textcoords="offset points",
            ha="right" if left else "left", va="bottom", fontsize=8.5,
        )
    ax.plot([0, 1 / slower, 1.02], [1, 1, 1.02 * slower], color=INK, linewidth=1.2)
    ax.annotate("not memory: 1", (0.01, 1), xytext=(0, -13), textcoords="offset points", fontsize=8.5)
    ax.annotate(
        f"memory: {slower:.2f}", (0.9, 0.9 * slower), xytext=(10, -10), textcoords="offset points", fontsize=8.5,
    )
    ax.set_xlim(0, 1.15)
    ax.set_ylim(0.65, 1.8)
    ax.xaxis.set_major_locator(FixedLocator([0, 0.2, 0.4, 0.6, 0.8, 1]))
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    ax.set_xlabel(f"share of a copy's speed on {gpu.upper()}")
    ax.set_ylabel(f"time on {SECOND_GPU.upper()} / time on {gpu.upper()}")
    ax.grid(color="#e4e8ec", linewidth=0.8)
    ax.set_axisbelow(True)
    title = "Less memory bandwidth slows down only what memory limits"
    legend_under_title(figure, title, handles, 2)
    what = f"{operation}, {shape.replace('x', ' x ')}, {dtype}, cold L2 cache, median"
    line = "line: what limits the kernel, if none beats the copy of its GPU and none gets faster"
    shown = [t for pair in both for t in pair]
    footnote(figure, f"{gpu.upper()} and {SECOND_GPU.upper()}", what, line, stale_note(shown))
    told = "; ".join(
        f"{a.stage} {a.variant}, {percent(a.share_of_copy)} of a copy, takes {b.seconds / a.seconds:.2f} times as long"
        for a, b in both
    )
    described = f"On {SECOND_GPU.upper()} against {gpu.upper()}: {told}."
    return Chart(Path("docs/charts/two_gpus.svg"), title, described, figure)


# --- Why --------------------------------------------------------------------------------------------------------------
# Why a warp cannot issue its next instruction: the counter, what it is called, color and hatch.
WAITS = (
    ("waits_memory", "memory", "#0072B2", ""),
    ("waits_shared", "shared memory", "#E69F00", "///"),
    ("waits_barrier", "a barrier", "#009E73", "xx"),
    ("waits_queue", "room for a request", "#8E5C9E", "..."),
    ("waits_dispatch", "its turn: it could go on", "#c9d0d6", ""),
)


def lesson_launches(repository: Repository, gpu: str) -> list[Launch]:
    """What was counted at 1024 x 1024: of each stage the fastest kernel, from 05 on the one that the lesson ends with;
    of a variant's kernels the longest."""
    found: dict[str, Launch] = {}
    for stage in measured_stages(repository, gpu):
        operation = operation_of(repository, stage, gpu)
        kernels: dict[str, Launch] = {}
        for launch in repository.counters(gpu).launches:
            if (launch.stage, launch.operation, launch.dtype, launch.shape) != (stage, operation, DTYPE, SHAPE):
                continue
            if not {"duration_ns", *(key for key, *_ in WAITS)} <= launch.values.keys():  # not every GPU counts all
                continue
            longest = kernels.get(launch.variant)
            if longest is None or launch.values["duration_ns"] > longest.values["duration_ns"]:
                kernels[launch.variant] = launch
        ends = [launch for variant, launch in kernels.items() if variant in LESSONS_END]
        if kernels:
            found[stage] = ends[0] if ends else min(kernels.values(), key=lambda launch: launch.values["duration_ns"])
    return list(found.values())


def waits_chart(repository: Repository, gpu: str) -> Chart | None:
    """Bars: of the cycles that a warp waits between two instructions, which part is for what."""
    launches = lesson_launches(repository, gpu) if repository.has_counters(gpu) else []
    if not launches:
        return None
    figure, (ax,) = page(PHONE, 2.2 + 0.42 * len(launches))
    ys = range(len(launches), 0, -1)
    told = []
    shares = [[launch.values[key] for key, *_ in WAITS] for launch in launches]
    for y, launch, waits in zip(ys, launches, shares):
        left = 0.0
        for (_, words, color, hatch), cycles in zip(WAITS, waits):
            share = cycles / sum(waits)
            ax.barh(y, share, left=left, height=0.66, color=color, hatch=hatch, edgecolor="white", linewidth=0.8,
                    label=words if launch is launches[0] else None)
            left += share
        ax.annotate(significant(sum(waits)), (1.0, y), xytext=(6, 0), textcoords="offset points", va="center",
                    annotation_clip=False)
        parts = ", ".join(f"{words} {100 * c / sum(waits):.0f} %" for (_, words, *_), c in zip(WAITS, waits))
        told.append(f"{launch.stage} {launch.variant}: {significant(sum(waits))} cycles for each instruction, {parts}")
    names = [dagger(f"{launch.stage[:2]}  {launch.variant}", launch.stale) for launch in launches]
    ax.set_yticks(list(ys), names)
    ax.tick_params(axis="y", length=0)
    ax.set_xlim(0, 1)
    ax.set_ylim(0.5, len(launches) + 0.9)
    ax.annotate("cycles", (1.0, len(launches) + 0.62), xytext=(6, 0), textcoords="offset points", va="center",
                fontsize=9, color=MUTED, annotation_clip=False)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    ax.set_xlabel("of a warp's waiting between two instructions")
    memory = [waits[0] / sum(waits) for waits in shares]
    title = f"What warps wait for is memory: {100 * memory[0]:.0f} % of it in {launches[0].stage[:2]}, " \
            f"{100 * min(memory):.0f} to {100 * max(memory[1:] or memory):.0f} % later"
    handles = dict(zip([words for _, words, *_ in WAITS], ax.get_legend_handles_labels()[0]))
    seen = {words: handles[words] for i, (_, words, *_) in enumerate(WAITS)
            if max(waits[i] / sum(waits) for waits in shares) > 0.005}
    legend_under_title(figure, title, seen, 2)
    footnote(figure, gpu.upper(), f"{SHAPE_WORDS}, {DTYPE}", "Nsight Compute",
             "at the right: cycles for each instruction", STALE_NOTE if any(x.stale for x in launches) else "")
    return Chart(Path(f"docs/charts/waits_{gpu}.svg"), title, f"On {gpu.upper()}. {'; '.join(told)}.", figure)


BYTES_COUNTERS = {
    "waits_memory", "issue_active_percent", "global_load_sectors", "global_load_requests", "l2_to_sm_bytes",
    "duration_ns",
}


def bytes_under_way(launch: Launch) -> float:
    """What Nsight Compute counted says at least: a request for each warp that waits for memory."""
    values, multiprocessors = launch.values, int(min(launch.blocks, launch.values["multiprocessors"]))
    warps = values["waits_memory"] * values["issue_active_percent"] / 100 * SCHEDULERS
    request = SECTOR * values["global_load_sectors"] / values["global_load_requests"]
    return warps * request * multiprocessors


def bytes_chart(repository: Repository, gpu: str) -> Chart | None:
    """Points: bytes that warps wait for, against the bytes a second that they get."""
    if not repository.has_counters(gpu):
        return None
    counters = repository.counters(gpu)
    multiprocessors = float(counters.context.get("multiprocessors", 0))
    # Stage 01's loads are mostly the L1 cache's to answer. Where rows are wider than ASYNC_COLS, warps wait for copies
    # to shared memory, which is another state than these counters'.
    wanted = [
        replace(launch, values=launch.values | {"multiprocessors": multiprocessors}) for launch in counters.launches
        if launch.operation == OPERATION and launch.stage[:2] in ("02", "03", "04", "05") and launch.dtype == DTYPE
        and launch.cols < ASYNC_COLS and BYTES_COUNTERS <= launch.values.keys()
    ]
    small = [launch for launch in wanted if launch.shape == SHAPE]
    large = [launch for launch in wanted if launch.rows * launch.cols * ELEMENT_BYTES[DTYPE] >= LARGE_MIB * 2**20]
    if not small or not multiprocessors:
        return None

    def place(launch: Launch) -> tuple[float, float]:
        return bytes_under_way(launch) / 1e3, launch.values["l2_to_sm_bytes"] / launch.values["duration_ns"]

    figure, (ax,) = page(PHONE, 5.0)
    seconds = sorted(x / y for x, y in map(place, small))  # kB by GB/s: microseconds
    middle = seconds[len(seconds) // 2]
    xs = [40.0, 4000.0]
    ax.plot(xs, [x / middle for x in xs], color=INK, linewidth=1.4)
    ax.annotate(f"a latency of {significant(middle, 2)} µs", (1700, 1700 / middle), xytext=(7, -4),
                textcoords="offset points", fontsize=9)
    copies = [t.bytes_per_second / t.share_of_copy / 1e9
              for stage in measured_stages(repository, gpu) if stage[:2] in ("04", "05")
              for t in repository.stage_results(stage, gpu).timings
              if (t.operation, t.dtype, t.mode) == (OPERATION, DTYPE, "cold") and t.share_of_copy
              and t.tensor_mib >= LARGE_MIB]
    if copies:
        half = statistics.median(copies) / 2
        ax.axhline(half, color="#D55E00", linewidth=1.4, linestyle="--")
        ax.annotate("a large copy reads as much", (45, half), xytext=(0, 5), textcoords="offset points",
                    fontsize=9, color="#D55E00")
    told = []
    for launches, marker, fill, color in ((small, "o", "full", "#0072B2"), (large, "s", "none", "#D55E00")):
        for launch in launches:
            x, y = place(launch)
            ax.plot([x], [y], marker=marker, fillstyle=fill, color=color, markersize=7, linestyle="none")
            told.append(f"{launch.stage} {launch.variant} {launch.shape}: {significant(x)} kB, {significant(y)} GB/s")
    # Names in a column at the right of the cloud, in the order of their heights, a line to each.
    ordered = sorted(small, key=lambda launch: -place(launch)[1])
    for launch, height in zip(ordered, spread([math.log10(place(launch)[1]) for launch in ordered], 0.07)):
        x, y = place(launch)
        ax.annotate(
            dagger(f"{launch.stage[:2]} {launch.variant}", launch.stale), (x, y), xytext=(1400, 10**height),
            textcoords="data", va="center", fontsize=9,
            arrowprops={"arrowstyle": "-", "color": "#b8c0c8", "linewidth": 0.7, "shrinkB": 4},
        )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(xs[0], 9000)
    ax.set_ylim(120, 4000)
    for axis, ticks in ((ax.xaxis, (50, 100, 200, 500, 1000, 2000, 5000)), (ax.yaxis, (200, 500, 1000, 2000))):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    ax.set_xlabel("kB that warps wait for, on all multiprocessors")
    ax.set_ylabel("GB/s that reach the multiprocessors")
    ax.grid(color="#e4e8ec", linewidth=0.8)
    ax.set_axisbelow(True)
    (few, slow), (many, fast) = min(map(place, small)), max(map(place, small), key=lambda point: point[1])
    title = f"More bytes under way, more bandwidth: {significant(slow)} GB/s with {significant(few)} kB, " \
            f"{significant(fast)} GB/s with {significant(many)} kB"
    headline(figure, title)
    footnote(figure, gpu.upper(), f"{OPERATION}, {DTYPE}", f"full: {SHAPE_WORDS}; hollow: 512 MiB", "Nsight Compute",
             "kB: a request for each warp that waits, at least",
             STALE_NOTE if any(x.stale for x in (*small, *large)) else "")
    return Chart(Path(f"docs/charts/bytes_under_way_{gpu}.svg"), title, f"On {gpu.upper()}. {'; '.join(told)}.", figure)


def spread(heights: Sequence[float], least: float) -> list[float]:
    """Falling heights, moved as little as leaves `least` between neighbors: those that touch share what they move."""
    groups: list[list[float]] = []
    for height in heights:
        groups.append([height])
        while len(groups) > 1:
            above, below = groups[-2], groups[-1]
            bottom = statistics.fmean(above) - least * (len(above) - 1) / 2
            top = statistics.fmean(below) + least * (len(below) - 1) / 2
            if bottom - top >= least:
                break
            groups[-2:] = [above + below]
    return [statistics.fmean(group) + least * ((len(group) - 1) / 2 - i) for group in groups for i in range(len(group))]


def size_chart(repository: Repository, gpu: str) -> Chart | None:
    """Lines: a copy's time over the bytes that it moves, cold and from a graph; points: LayerNorm beside it."""
    document = repository.comparison(gpu)
    if document is None:
        return None
    times: dict[tuple[str, str], dict[int, list[float]]] = {}
    for entry in document["benchmarks"]:
        who, cell, mode = cell_of(entry["name"])
        ours = who == OURS and cell.operation == OPERATION
        if mode in ("cold", "graph") and (ours or (who == COPY and TENSORS[cell.operation] == 2)):
            by_bytes = times.setdefault((who, mode), {})
            by_bytes.setdefault(cell.bytes, []).append(entry["median_seconds"] * 1e6)
    copies = {mode: times.get((COPY, mode), {}) for mode in ("cold", "graph")}
    if len(copies["cold"]) < 3:
        return None
    figure, (ax,) = page(PHONE, 4.6)
    looks = {"cold": ("#0072B2", "o", "-"), "graph": ("#009E73", "D", "-.")}
    words = {"cold": "cold: L2 flushed", "graph": "from a graph, data in L2"}
    handles: dict[str, object] = {}
    told = []
    for mode, (color, marker, dash) in looks.items():
        line = sorted((size, statistics.median(found)) for size, found in copies[mode].items())
        if line:
            (handles[f"copy, {words[mode]}"],) = ax.plot(
                [size / 2**20 for size, _ in line], [time for _, time in line], color=color, linestyle=dash,
                linewidth=1.8)
            told += [f"copy {mode} of {significant(size / 2**20)} MiB: {significant(time)} microseconds"
                     for size, time in line]
        points = sorted(times.get((OURS, mode), {}).items())
        if points:
            (handles[f"LayerNorm, {words[mode]}"],) = ax.plot(
                [size / 2**20 for size, found in points for _ in found],
                [time for _, found in points for time in found],
                color=color, marker=marker, fillstyle="none", markersize=5, linestyle="none")
    largest = max(copies["cold"])
    rate = largest / statistics.median(copies["cold"][largest])  # bytes in a microsecond
    xs = [2**20 * 1.5, largest * 1.4]
    (handles[f"bytes at {significant(rate / 1e6)} TB/s, no more"],) = ax.plot(
        [x / 2**20 for x in xs], [x / rate for x in xs], color=MUTED, linewidth=1, linestyle=":")
    l2 = l2_mib(repository, gpu)
    if l2:
        ax.axvline(l2, color="#D55E00", linewidth=1.2, linestyle="--")
        ax.annotate(f"L2: {l2:g} MiB", (l2, 0.015), xycoords=("data", "axes fraction"), xytext=(-4, 4),
                    textcoords="offset points", ha="right", fontsize=9, color="#D55E00")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ticks = [0.01, 0.1, 1, 10, 100, 1000]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_locator(FixedLocator([1, 3, 10, 30, 100, 300]))
    ax.yaxis.set_minor_locator(NullLocator())
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    ax.set_xlabel("MiB read and written, logarithmic")
    ax.set_ylabel("time, µs, logarithmic")
    ax.grid(color="#e4e8ec", linewidth=0.8)
    ax.set_axisbelow(True)
    first = min(copies["cold"])
    begin = statistics.median(copies["cold"][first])
    flat = max(size for size, found in copies["cold"].items() if statistics.median(found) < 1.5 * begin)
    title = f"Up to {float(significant(flat / 2**20, 2)):g} MiB a launch is most of the time, then bytes are"
    legend_under_title(figure, title, handles, 1)
    footnote(figure, gpu.upper(), "all types and shapes of the comparison with as many bytes", "medians")
    return Chart(Path(f"docs/charts/size_{gpu}.svg"), title, f"On {gpu.upper()}. {'; '.join(told)}.", figure)


def l2_mib(repository: Repository, gpu: str) -> float | None:
    for stage in measured_stages(repository, gpu):
        bytes_of_l2 = repository.stage_results(stage, gpu).context.get("l2_bytes")
        if bytes_of_l2:
            return int(bytes_of_l2) / 2**20
    return None


OFFSET_WAYS = (("one_pass", "E[x²] − E[x]²"), ("welford", "Welford"), ("two_pass", "two passes"),
               ("split_mean", "the mean in two floats"))
FP32_TOLERANCE = 1e-5  # of the harness's checks and of torch.testing, at values near zero


def offset_chart(repository: Repository) -> Chart | None:
    """Lines: the largest error of an output over the mean, in deviations, for each way to the statistics."""
    if not repository.has_data("offset_error"):
        return None
    figures = repository.data("offset_error")["figures"]
    figure, (ax,) = page(PHONE, 4.6)
    told, outside = [], {}
    for style, (way, words) in enumerate(OFFSET_WAYS):
        color, marker, dash, _ = STYLES[style]
        names = [name for name in figures if name.startswith(f"{way}_") and not name.endswith("_lost")]
        points = sorted((float(name.rpartition("_")[2]), figures[name]["value"]) for name in names)
        ax.plot([x for x, _ in points], [y for _, y in points], color=color, marker=marker, linestyle=dash,
                markersize=5, linewidth=1.6, label=words)
        lost = [x for x, _ in points if f"{way}_{x:.0f}_lost" in figures]
        if lost:
            ax.plot(lost, [12.0] * len(lost), color=color, marker="x", markersize=7, linestyle="none")
            ax.annotate("✗: rows that become NaN", (lost[0], 12.0), xytext=(-8, 0), textcoords="offset points",
                        ha="right", va="center", fontsize=9, color=color)
        outside[way] = next((x for x, y in points if y > FP32_TOLERANCE), None)
        told.append(f"{words}: " + ", ".join(f"{y:.2g} at {x:g}" for x, y in points))
    ax.axhline(FP32_TOLERANCE, color=INK, linewidth=1.1)
    ax.annotate("what a test of fp32 lets pass near 0", (1.4e6, FP32_TOLERANCE), xytext=(0, -11),
                textcoords="offset points", ha="right", fontsize=9)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(1e-7, 40)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}" if x < 1e5 else f"{x / 1e6:g} M"))
    ax.xaxis.set_major_locator(FixedLocator([1, 10, 100, 1000, 10000, 100000, 1000000]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_locator(FixedLocator([10.0**k for k in range(-7, 2)]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("mean of a row, in deviations")
    ax.set_ylabel("largest error of an output near 1")
    ax.grid(color="#e4e8ec", linewidth=0.8)
    ax.set_axisbelow(True)
    starts = [f"{words} at a mean of {outside[way]:.0f} deviations" if first else f"{words} at {outside[way]:.0f}"
              for first, (way, words) in ((True, OFFSET_WAYS[0]), (False, OFFSET_WAYS[2])) if outside[way]]
    title = f"Off by more than 10⁻⁵: {', '.join(starts) or 'none of the ways'}"
    handles, labels = ax.get_legend_handles_labels()
    legend_under_title(figure, title, dict(zip(labels, handles)), 2)
    footnote(figure, "rows of 1024 values in fp32", "computed on the CPU in the order of the stages' kernels")
    return Chart(Path("docs/charts/offset_error.svg"), title, f"{'; '.join(told)}.", figure)


def tail_chart(repository: Repository) -> Chart | None:
    """Lines: time over the number of rows that a block holds, by a block to a row and by persistent blocks."""
    if not repository.has_data("persistent_blocks_h200"):
        return None
    figures = repository.data("persistent_blocks_h200")["figures"]
    ways = (("block", "a block to a row: 396 run at once"), ("stay", "264 persistent blocks"))
    figure, (ax,) = page(PHONE, 4.0)
    told, at = [], {}
    for style, (way, words) in enumerate(ways):
        names = [name for name in figures if name.startswith("tail_") and name.endswith(f"_{way}")]
        points = sorted((int(name.split("_")[1]), figures[name]["value"]) for name in names)
        color, marker, dash, _ = STYLES[style]
        ax.plot([x for x, _ in points], [y for _, y in points], color=color, marker=marker, linestyle=dash,
                markersize=3.5, linewidth=1.6, label=words)
        at[way] = dict(points)
        told.append(f"{words}: " + ", ".join(f"{y:.3g} us for {x} rows" for x, y in points[::4]))
    for rows in (396, 792, 1188):
        ax.axvline(rows, color=MUTED, linewidth=0.8, linestyle=":")
    ax.annotate("a wave of 396 is full", (396, 1.2), xytext=(5, 0), textcoords="offset points", fontsize=9)
    ax.set_xlim(0, max(at["block"]) * 1.03)
    ax.set_ylim(0, max(at["block"].values()) * 1.08)
    ax.set_xlabel("rows")
    ax.set_ylabel("time, µs")
    ax.grid(color="#e4e8ec", linewidth=0.8)
    ax.set_axisbelow(True)
    title = (f"396 rows take {at['block'][396]:.1f} µs, the 397th {at['block'][397] - at['block'][396]:.1f} more; "
             f"512 take {at['block'][512]:.1f} or, by persistent blocks, {at['stay'][512]:.1f}")
    handles, labels = ax.get_legend_handles_labels()
    legend_under_title(figure, title, dict(zip(labels, handles)), 2)
    footnote(figure, "LayerNorm of rows of 14336 columns, bf16, cold cache, by hand", "NVIDIA H200")
    return Chart(Path("05_welford/charts/tail.svg"), title, f"{'; '.join(told)}.", figure)


# --- Two files beside each other --------------------------------------------------------------------------------------
def compare_chart(repository: Repository, first: Path, second: Path, output: Path) -> Chart:
    """Points on a line for each timing that both files have, and how many times faster the second is."""
    files = [repository.results_in(path) for path in (first, second)]

    def name_of_file(file: ResultFile) -> str:
        return f"{file.context.get('gpu_short', file.path.stem)}, {file.context.get('date', '')[:16].replace('T', ' ')}"

    names = [name_of_file(file) for file in files]
    if names[0] == names[1]:
        names = [f"{name} ({path.name})" for name, path in zip(names, (first, second))]
    seconds = [{t.name: t for t in file.timings} for file in files]
    both = [t for t in files[0].timings if t.name in seconds[1]]
    if not both:
        raise ReportError(f"{first} and {second} have no timing in common")
    both.sort(key=lambda t: (MODES.index(t.mode), t.operation, t.dtype, t.cols, t.rows, t.variant))
    figure, (ax,) = page(9.0, 1.6 + 0.25 * len(both))
    ys = range(len(both), 0, -1)
    for y, t in zip(ys, both):
        a, b = t.seconds * 1e6, seconds[1][t.name].seconds * 1e6
        ax.plot([a, b], [y, y], color="#9aa3ad", linewidth=1.5, zorder=1)
        ax.plot(
            [a], [y], color="#0072B2", marker="o", markersize=6, linestyle="none",
            label=names[0] if y == len(both) else None,
        )
        ax.plot(
            [b], [y], color="#D55E00", marker="s", markersize=6, fillstyle="none", linestyle="none",
            label=names[1] if y == len(both) else None,
        )
        ax.annotate(
            f"{significant(a / b)}x", (1.0, y), xycoords=("axes fraction", "data"), xytext=(5, 0),
            textcoords="offset points", va="center", fontsize=8,
        )
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.set_yticks(list(ys), [f"{t.variant}, {t.operation}, {t.dtype}, {t.shape}, {t.mode}" for t in both], fontsize=8)
    ax.set_ylim(0.3, len(both) + 0.7)
    ax.set_xlabel("time, µs, logarithmic; at the right, how many times as fast the second is")
    ax.grid(axis="x", color="#e4e8ec", linewidth=0.8)
    ax.set_axisbelow(True)
    title = f"{both[0].stage}: {names[0]} against {names[1]}"
    headline(figure, title)
    figure.legend(loc="outside lower right")
    pairs = [(t.name, t.seconds, seconds[1][t.name].seconds) for t in both]
    words = "; ".join(f"{name} {significant(a * 1e6)} and {significant(b * 1e6)}" for name, a, b in pairs)
    return Chart(output, title, f"Microseconds: {words}.", figure)


STAGE_CHARTS = (time_chart, share_chart, large_chart, fused_chart, passes_chart, small_chart)
LADDER_CHARTS = (
    ladder_chart, large_ladder_chart,
    cold_warm_chart, roofline_chart, numerics_chart, rivals_chart, rivals_map, training_chart,
    lines_chart, tutorial_chart, waits_chart, bytes_chart, size_chart, two_gpus_chart,
)
GENERAL_CHARTS = (offset_chart, tail_chart)  # drawn from what docs/data has


def gpus_with_results(repository: Repository) -> list[str]:
    found = {path.stem for path in repository.root.glob("[0-9][0-9]_*/results/*.json")}
    return sorted(found, key=lambda gpu: (gpu != DEFAULT_GPU, gpu))


@dataclass(frozen=True)
class Task:
    """A chart to draw: of a stage, or of the whole ladder."""

    make: Callable[..., Chart | None]
    arguments: tuple[str, ...]  # the stage, where it is of one, and the GPU, where it is of one

    @property
    def name(self) -> str:
        return " ".join((self.make.__name__, *self.arguments))


def tasks(
    repository: Repository, gpus: Sequence[str], stages: Sequence[str], with_general: bool
) -> Iterator[Task]:
    """The charts of these GPUs: of these stages, and of the ladder where all stages are meant; and those of no GPU."""
    for gpu in gpus:
        measured = measured_stages(repository, gpu)
        for stage in stages:
            if stage in measured:
                yield from (Task(make, (stage, gpu)) for make in STAGE_CHARTS)
        if list(stages) == repository.stages():
            yield from (Task(make, (gpu,)) for make in LADDER_CHARTS)
    if with_general and list(stages) == repository.stages():
        yield from (Task(make, ()) for make in GENERAL_CHARTS)


@dataclass
class Outcome:
    """Which files."""

    drawn: list[Path] = field(default_factory=list)
    up_to_date: list[Path] = field(default_factory=list)
    differ: list[Path] = field(default_factory=list)  # of those drawn: the file was another


def draw(answers: redraw.Answers, task: Task) -> tuple[redraw.Note, str]:
    """A chart's text, which is empty where there is nothing to draw, and how it came about."""
    repository = redraw.Watched(answers)
    chart = task.make(repository, *task.arguments)
    text = chart.render() if chart else ""
    return redraw.Note(chart.path.as_posix() if chart else None, redraw.digest(text), repository.asked), text


@lru_cache(None)
def answers_of_process(root: Path) -> redraw.Answers:
    set_up()
    return redraw.Answers(Repository(root))


def draw_in_process(root: Path, task: Task) -> tuple[redraw.Note, str]:
    return draw(answers_of_process(root), task)


def draw_all(answers: redraw.Answers, wanted: Sequence[Task]) -> Iterator[tuple[redraw.Note, str]]:
    """Draws these, in order; many of them in several processes, each of which needs a second to begin."""
    processes = min(os.cpu_count() or 1, len(wanted) // MANY)
    if processes < 2:
        yield from (draw(answers, task) for task in wanted)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(partial(draw_in_process, answers.repository.root), wanted)


def set_up() -> None:
    plt.rcdefaults()
    plt.rcParams.update(SETTINGS)


def draw_what_changed(repository: Repository, wanted: Sequence[Task], check: bool, force: bool) -> Outcome:
    """Draws the charts whose inputs have changed, or all with `force`; writes them, or compares them with `check`."""
    answers = redraw.Answers(repository)
    notes = redraw.Notes(answers, redraw.digest(CODE + redraw.digest_of_tools(SETTINGS["font.sans-serif"])))
    as_noted = {} if force else {task.name: note for task in wanted if (note := notes.up_to_date(task.name))}
    changed = [task for task in wanted if task.name not in as_noted]
    outcome = Outcome(up_to_date=[repository.root / note.file for note in as_noted.values() if note.file])
    for task, (note, text) in zip(changed, draw_all(answers, changed)):
        if note.file:
            path = repository.root / note.file
            differ = drawings.write_or_check({path: text}, repository.root, check)
            if not differ and not check:
                print(f"drew {note.file}, which is as it was", flush=True)
            outcome.drawn.append(path)
            outcome.differ += differ
        as_noted[task.name] = note
    if changed:
        notes.keep(as_noted)
    return outcome


def left_over(root: Path, drawn: set[Path]) -> list[Path]:
    """Files that look like charts and are none any more, such as those of results that are gone."""
    there = {path for folder in ("[0-9][0-9]_*", "docs") for path in root.glob(f"{folder}/charts/*.svg")}
    return sorted(there - drawn)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="./worklog charts",
        description="Draws the charts of the writeups from the committed results, or checks them.",
    )
    parser.add_argument("--gpu", help=f"as its results file is named: h200 (default: all but {SECOND_GPU})")
    parser.add_argument(
        "--stage", help="a stage's folder or its number: 04 (default: all, and the charts of the whole ladder)"
    )
    parser.add_argument("--check", action="store_true", help="write no chart; exit with 1 where one differs")
    parser.add_argument("--force", action="store_true", help="draw also what has the inputs that it had the last time")
    parser.add_argument(
        "--compare", nargs=2, type=Path, metavar=("A.json", "B.json"),
        help="draw what two results files have in common, beside each other",
    )
    parser.add_argument("--output", type=Path, help="where --compare draws to (default: my/compare.svg)")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)

    repository = Repository(options.root)
    stages = repository.stages()
    if options.compare:
        set_up()
        output = (options.output or repository.root / "my/compare.svg").resolve()
        try:
            text = compare_chart(repository, *options.compare, output).render()
        except ReportError as error:
            parser.error(str(error))
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
        print(f"wrote {output}")
        return 0
    if options.output:
        parser.error("--output is for --compare")
    if options.stage:
        own_name, begin = options.stage.rstrip("/"), f"{options.stage}_"
        stages = [stage for stage in stages if stage == own_name or stage.startswith(begin)]
        if not stages:
            parser.error(f"there is no stage '{options.stage}'; there are: {', '.join(repository.stages()) or 'none'}")
    gpus = gpus_with_results(repository)
    if options.gpu:
        if options.gpu not in gpus:
            there = ", ".join(gpus) or "no GPU yet"
            parser.error(f"no stage has results of '{options.gpu}'; there are results of: {there}")
        gpus = [options.gpu]
    else:
        gpus = [gpu for gpu in gpus if gpu != SECOND_GPU]  # one chart has it beside the first; its own: --gpu

    set_up()
    try:
        wanted = list(tasks(repository, gpus, stages, with_general=not options.gpu))
        outcome = draw_what_changed(repository, wanted, options.check, options.force)
    except ReportError as error:
        sys.exit(f"charts.py: {error}")
    if not options.gpu:
        folders = stages if options.stage else [*stages, drawings.OF_NO_STAGE]
        texts = drawings.pictures(repository.root, folders)
        differ = drawings.write_or_check(texts, repository.root, options.check)
        outcome.drawn += differ
        outcome.differ += differ
        outcome.up_to_date += texts.keys() - differ
    for stage in stages:
        if not any(repository.has_results(stage, gpu) for gpu in gpus):
            print(f"{stage} has no results{f' of {options.gpu}' if options.gpu else ''} yet, and so no charts")
    left = [] if options.gpu or options.stage else left_over(repository.root, {*outcome.drawn, *outcome.up_to_date})
    for path in left:
        print(f"{path.relative_to(repository.root)}: nothing draws it now: delete it", file=sys.stderr)
    drawn = f"{len(outcome.drawn)} drawn{' to compare' if options.check else ''}"
    print(f"{drawn}, {len(outcome.up_to_date)} up to date")
    return 1 if options.check and (outcome.differ or left) else 0


if __name__ == "__main__":
    sys.exit(main())
