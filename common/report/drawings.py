#!/usr/bin/env python3
"""Draws the explanations of the writeups as SVG: who reads which address, how sums travel.

    python3 common/report/drawings.py            writes NN_name/charts/*.svg for the stages that are there
    python3 common/report/drawings.py --check    redraws and compares bytes

What is drawn is computed (sectors, banks, merged triples, row starts, schedules), not placed by hand. Needs nothing but
Python 3.11.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from math import gcd
from pathlib import Path

from machine_drawings import grid_to_lanes, memory_levels
from source_hash import ROOT, stage_folders
from svg import INK, MUTED, PANEL, STROKES, Drawing

WARP = 32  # lanes
SECTOR = 32  # bytes: what the memory system fetches at once
BANKS = 32  # of shared memory, 4 bytes wide each
FLOAT = 4  # bytes
BF16 = 2  # bytes
VECTOR = 16  # bytes: the most that a thread reads at once

WIDTH = 760
LEFT = 24
NARROW, SIDE = 480, 20  # a drawing that can be read on a phone: no text under 12.5


def sectors_of(addresses: list[int], size: int) -> int:
    """How many sectors a request touches that reads `size` bytes at each address."""
    return len({sector for a in addresses for sector in range(a // SECTOR, (a + size - 1) // SECTOR + 1)})


def lines(drawing: Drawing, y: float, text: str, *, bold: bool = False) -> float:
    """Words over the width of a narrow drawing; returns where the next line would stand."""
    for line in textwrap.wrap(text, 56 if bold else 62):
        drawing.text(SIDE, y, line, size=13 if bold else 12.5, bold=bold, color=INK if bold else MUTED)
        y += 18
    return y


def efficiency_note(drawing: Drawing, y: float, addresses: list[int], size: int, rest: str = "") -> float:
    """The sum below an access drawing: sectors fetched, bytes used of the bytes fetched."""
    sectors = sectors_of(addresses, size)
    used, fetched = len(addresses) * size, sectors * SECTOR
    found = f"One request of the warp: {sectors} sectors of {SECTOR} bytes, {used} of {fetched} bytes used"
    y = lines(drawing, y, found, bold=True)
    return lines(drawing, y, rest)


def named_box(drawing: Drawing, x: float, y: float, width: float, height: float, text: str, color: str = "plain", *,
              size: float = 11, strong: bool = False, bold: bool = False) -> None:
    """A box with its name in the middle."""
    drawing.rect(x, y, width, height, color, strong=strong)
    drawing.text(x + width / 2, y + height / 2 + 0.36 * size, text, size=size, anchor="middle", bold=bold)


def access_thread_per_row() -> Drawing:
    """01: lane i reads row i, so that neighbours in the warp are a row apart in memory."""
    cols, shown, cell, height = 1024, 11, 24, 24
    drawing = Drawing(
        NARROW, 0,
        "One thread per row: which lane reads which address",
        "A matrix with one row for each lane of a warp. In one request each lane reads one float in its own row, "
        "4096 bytes from its neighbour's; each touches a sector of its own, 32 sectors in all.",
    )
    drawing.text(SIDE, 30, "One thread per row, 1024 columns of fp32", size=15, bold=True)
    left, top = 110, 74
    drawing.text(left, top - 12, "col 0", size=12.5, color=MUTED)
    drawing.text(left + 8 * cell, top - 12, "col 8", size=12.5, color=MUTED)
    lanes: list[int | None] = [0, 1, 2, 3, None, 31]
    for index, lane in enumerate(lanes):
        y = top + index * (height + 8)
        if lane is None:
            drawing.text(SIDE + 34, y + 16, "⋮", anchor="middle")
            drawing.text(left + 4 * cell, y + 16, "⋮", anchor="middle")
            continue
        drawing.text(SIDE, y + 17, f"lane {lane}", bold=True)
        drawing.line(SIDE + 60, y + 12, left - 3, y + 12, arrow=True)
        for col in range(shown):
            color = "orange" if col == 0 else "blue" if col < SECTOR // FLOAT else "plain"
            drawing.rect(left + col * cell, y, cell, height, color, strong=col == 0)
        drawing.text(left + shown * cell + 8, y + 17, f"⋯ row {lane}", size=12.5, color=MUTED)
    bottom = top + len(lanes) * (height + 8) - 4
    drawing.bracket(left, left + 8 * cell, bottom)
    drawing.text(left, bottom + 22, "one sector: 8 floats fetched, 1 read now (orange)", size=12.5, color=MUTED)
    addresses = [lane * cols * FLOAT for lane in range(WARP)]
    end = efficiency_note(
        drawing, bottom + 50, addresses, FLOAT,
        "The next request wants col 1 of the same rows: it helps only if all 32 sectors are still in the cache.",
    )
    drawing.height = end + 2
    return drawing


def lane_cells(drawing: Drawing, y: float, floats_per_lane: int, floats: range, cell: float) -> None:
    """A line of memory, a box to a float: the lane that reads it above, the sector below."""
    height, per_sector = 26, SECTOR // FLOAT
    for place, index in enumerate(floats):
        lane = index // floats_per_lane
        drawing.rect(SIDE + place * cell, y, cell, height, "orange" if lane % 2 == 0 else "green")
        drawing.text(SIDE + (place + 0.5) * cell, y + 18, str(index), size=12.5, anchor="middle", color=MUTED)
    for place in range(len(floats) // floats_per_lane):
        lane = floats[0] // floats_per_lane + place
        x, width = SIDE + place * floats_per_lane * cell, floats_per_lane * cell
        if floats_per_lane > 1:
            drawing.rect(
                x, y, width, height, stroke=STROKES["orange" if lane % 2 == 0 else "green"], fill="none", strong=True
            )
        name = f"lane {lane}" if floats_per_lane > 1 else str(lane)
        drawing.text(x + width / 2, y - 7, name, size=12.5, anchor="middle", bold=True)
    for place in range(len(floats) // per_sector):
        x = SIDE + place * per_sector * cell
        drawing.bracket(x + 2, x + per_sector * cell - 2, y + height + 4)
        drawing.text(
            x + per_sector * cell / 2, y + height + 25, f"sector {floats[0] // per_sector + place}", size=12.5,
            anchor="middle", color=MUTED,
        )


CELL = 27.5  # of half a warp's floats, side by side


def access_block_per_row() -> Drawing:
    """02: neighbours in the warp read neighbours in the row."""
    drawing = Drawing(
        NARROW, 0,
        "One block per row: which lane reads which address",
        "A line of 32 floats of one row. Lane i of the warp reads float i: 4 full sectors, every byte used. Below, the "
        "whole row of 1024 floats in four passes of 256 threads.",
    )
    drawing.text(SIDE, 30, "One block per row: neighbours read neighbours", size=15, bold=True)
    lines(drawing, 56, "The first request of warp 0. Boxes: floats of the row; above them, the lane that reads each:")
    lane_cells(drawing, 106, 1, range(WARP // 2), CELL)
    lane_cells(drawing, 186, 1, range(WARP // 2, WARP), CELL)
    end = efficiency_note(drawing, 264, [lane * FLOAT for lane in range(WARP)], FLOAT)

    threads, cols = 256, 1024
    end = lines(drawing, end + 16, f"The row of {cols} floats, {threads} threads: each takes every {threads}th element")
    warps, passes = threads // WARP, cols // threads
    for part in range(passes):
        left, top = SIDE + part % 2 * warps * CELL, end - 4 + part // 2 * 92
        for warp in range(warps):
            drawing.rect(left + warp * CELL, top, CELL, 28, "orange" if warp % 2 == 0 else "green", round=1)
            drawing.text(left + (warp + 0.5) * CELL, top + 19, f"w{warp}", size=12.5, anchor="middle")
        drawing.bracket(left + 2, left + warps * CELL - 2, top + 32)
        middle = left + warps * CELL / 2
        drawing.text(middle, top + 54, f"pass {part + 1}", anchor="middle", bold=True)
        drawing.text(middle, top + 72, f"cols {part * threads} to {(part + 1) * threads - 1}", size=12.5,
                     anchor="middle", color=MUTED)
    note = "Each box is a warp of 32 threads and 4 sectors: 128 bytes side by side."
    end = lines(drawing, end + passes // 2 * 92 + 14, note)
    drawing.height = end + 2
    return drawing


def access_vectorized() -> Drawing:
    """04: each lane reads 16 bytes."""
    drawing = Drawing(
        NARROW, 0,
        "16-byte loads: which lane reads which address",
        "A line of 32 floats. Each lane reads four floats in one instruction, so eight lanes cover the 4 sectors "
        "that took 32 lanes before, and a warp's request covers 16 sectors.",
    )
    drawing.text(SIDE, 30, "16 bytes to a lane: four floats, or eight", size=15, bold=True)
    drawing.text(SIDE, 50, "values of a 16-bit type", size=15, bold=True)
    lines(drawing, 76, "The first request of warp 0. Boxes: floats of the row; lanes 8 to 31 read the 12 sectors that "
          "follow.")
    lane_cells(drawing, 126, 4, range(WARP // 2), CELL)
    lane_cells(drawing, 206, 4, range(WARP // 2, WARP), CELL)
    note = "The bytes are the same as with 4-byte loads; the requests are not. For a row of 1024 floats:"
    end = efficiency_note(drawing, 284, [VECTOR * lane for lane in range(WARP)], VECTOR, note)
    left, step = SIDE + 106, 9.5
    for index, (size, name) in enumerate(((4, "4-byte loads"), (16, "16-byte loads"))):
        requests = 1024 * FLOAT // (WARP * size)
        y = end - 4 + index * 36
        drawing.text(SIDE, y + 16, name, bold=True)
        for request in range(requests):
            drawing.rect(left + request * step, y, step - 2.5, 22, "orange" if index == 0 else "green")
        drawing.text(left + requests * step + 5, y + 16, str(requests), bold=True)
    drawing.height = end + 80
    return drawing


def sequential_pairs(count: int, stride: int) -> list[tuple[int, int]]:
    """(to, from) per active thread: thread t adds slot t + stride to slot t."""
    return [(t, t + stride) for t in range(stride)]


def interleaved_pairs(count: int, stride: int) -> list[tuple[int, int]]:
    """(to, from) per active thread: thread t adds slot 2 * stride * t + stride to slot 2 * stride * t."""
    return [(2 * stride * t, 2 * stride * t + stride) for t in range(count // (2 * stride))]


def tree(drawing: Drawing, left: float, top: float, count: int, strides: list[int],
         pairs_of: Callable[[int, int], list[tuple[int, int]]]) -> None:
    """Slots of shared memory, one line per step; arrows show what is added to what."""
    cell, gap, height = 40, 62, 24
    held = [{slot} for slot in range(count)]
    for step in range(len(strides) + 1):
        y = top + step * gap
        pairs = pairs_of(count, strides[step]) if step < len(strides) else []
        targets = {to for to, _ in pairs} if pairs else {0}
        for slot in range(count):
            alive = step == 0 or len(held[slot]) == 2**step
            color = "orange" if alive and (slot in targets) else "blue" if alive else "plain"
            drawing.rect(left + slot * cell, y, cell, height, color, strong=slot in targets and alive)
            drawing.text(
                left + (slot + 0.5) * cell, y + 17, f"{len(held[slot])}" if alive else "·", size=12.5, anchor="middle"
            )
        for thread, (to, source) in enumerate(pairs):
            drawing.line(
                left + (source + 0.5) * cell, y + height + 1, left + (to + 0.5) * cell + 3, y + gap - 2, arrow=True
            )
            drawing.line(left + (to + 0.5) * cell, y + height + 1, left + (to + 0.5) * cell, y + gap - 2)
        for thread, (to, _) in enumerate(pairs):
            x = left + (to + 0.5) * cell
            drawing.rect(x - 9, y + gap / 2 + height / 2 - 9, 18, 15, fill=PANEL, stroke=PANEL)
            drawing.text(
                x, y + gap / 2 + height / 2 + 3, f"t{thread}", size=12.5, anchor="middle", color=STROKES["orange"],
                bold=True,
            )
        if pairs:
            drawing.text(
                left + count * cell + 10, y + gap / 2 + height / 2 + 4, f"stride {strides[step]}", size=12.5,
                color=MUTED,
            )
        for to, source in pairs:
            held[to] |= held[source]


def bank_grid(drawing: Drawing, left: float, top: float, threads: int, strides: list[int],
              pairs_of: Callable[[int, int], list[tuple[int, int]]]) -> None:
    """For each step, how many different slots the first warp asks of each bank when it reads its target."""
    cell, height = 10, 18
    for bank in (0, 8, 16, 24, 31):
        drawing.text(left + (bank + 0.5) * cell, top - 5, str(bank), size=12.5, anchor="middle", color=MUTED)
    for row, stride in enumerate(strides):
        pairs = pairs_of(threads, stride)[:WARP]
        asked = Counter(to % BANKS for to, _ in pairs)
        y = top + row * height
        drawing.text(left - 6, y + 14, f"stride {stride}", size=12.5, anchor="end", color=MUTED)
        # The asked ones last, so that their edges show.
        for bank in sorted(range(BANKS), key=lambda bank: asked[bank] > 0):
            count = asked[bank]
            color = "plain" if count == 0 else "green" if count == 1 else "red"
            drawing.rect(left + bank * cell, y, cell, height, color, round=0)
            if count:
                drawing.text(left + (bank + 0.5) * cell, y + 14, str(count), size=12.5, anchor="middle", bold=count > 1)
        worst = max(asked.values())
        text = "at once" if worst == 1 else f"{worst} turns"
        drawing.text(
            left + BANKS * cell + 6, y + 14, text, size=12.5, bold=worst > 1,
            color=STROKES["red"] if worst > 1 else MUTED,
        )


def reduction_tree() -> Drawing:
    """02: the same tree with two ways to number its slots."""
    count, threads = 8, 256
    halving, doubling = [4, 2, 1], [1, 2, 4]
    drawing = Drawing(
        NARROW, 0,
        "A reduction tree in shared memory, sequential and interleaved",
        "Two trees that add eight partial sums. With sequential addressing the active threads use neighbouring slots; "
        "with interleaved addressing the slots are 2, 4, 8 apart. Below, for 256 threads: how many slots of each of "
        "the 32 banks a warp asks for in each step; the sequential tree never asks a bank for more than one, the "
        "interleaved one for up to eight.",
    )
    y = 30.0
    for name, formula, strides, pairs_of in (
        ("Sequential", "scratch[t] += scratch[t + stride]", halving, sequential_pairs),
        ("Interleaved", "scratch[2*stride*t] += scratch[2*stride*t + stride]", doubling, interleaved_pairs),
    ):
        drawing.text(SIDE, y, name, size=15, bold=True)
        drawing.text(SIDE, y + 20, formula, size=12.5, mono=True, color=MUTED)
        tree(drawing, SIDE, y + 36, count, strides, pairs_of)
        y += 292
    y = lines(drawing, y - 12, "A number is how many partial sums a slot holds; t0, t1 ... is the thread that adds.")

    halving = [2**k for k in range(7, -1, -1)]
    asked = f"{threads} threads, warp 0: how many slots it asks of each of the {BANKS} banks"
    y = lines(drawing, y + 20, asked, bold=True)
    for strides, pairs_of, words in (
        (halving, sequential_pairs, "Sequential: neighbours lie in different banks, and all are served at once."),
        (halving[::-1], interleaved_pairs,
         "Interleaved: a bank serves one slot at a time, so the warp waits for its turns."),
    ):
        bank_grid(drawing, 96, y + 14, threads, strides, pairs_of)
        y = lines(drawing, y + 14 + 18 * len(strides) + 24, words) + 12
    drawing.height = y - 8
    return drawing


def shuffle_steps() -> Drawing:
    """03: a warp's sum by exchanging registers, then the block's over shared memory."""
    drawing = Drawing(
        NARROW, 0,
        "Sums by warp shuffles",
        "Top: five steps in which each of the 32 lanes adds the register of the lane whose number differs in one bit: "
        "16, 8, 4, 2, 1. After them every lane holds the sum of all 32. Bottom: a block of eight warps writes one sum "
        "per warp to shared memory, and every warp adds up the eight.",
    )
    drawing.text(SIDE, 30, "warp_sum: each lane adds the register of the", size=15, bold=True)
    drawing.text(SIDE, 50, "lane whose number differs in one bit", size=15, bold=True)
    left, top, step, gap = 92.0, 92.0, 11.5, 62.0
    offsets = [16, 8, 4, 2, 1]
    drawing.text(SIDE, top - 8, "lane", size=12.5, color=MUTED)
    for lane in (*range(0, WARP, 4), WARP - 1):
        drawing.text(left + (lane + 0.5) * step, top - 8, str(lane), size=12.5, anchor="middle", color=MUTED)
    for row in range(len(offsets) + 1):
        y = top + row * gap
        drawing.text(SIDE, y + 13, f"sums of {2**row}" if row else "values", size=12.5, color=MUTED)
        if row < len(offsets):
            offset = offsets[row]
            drawing.text(SIDE, y + 42, f"xor {offset}", bold=True)
            for lane in range(WARP):
                # Lane 0's own sum is followed in a strong color, the exchange of the others faintly.
                reached = {0 ^ sum(bits) for bits in subsets(offsets[row + 1 :])}
                follows = lane in reached
                color = STROKES["orange"] if follows else "#c6ccd2"
                x = left + (lane + 0.5) * step
                drawing.line(
                    left + ((lane ^ offset) + 0.5) * step, y + 17, x, y + gap - 1, color=color,
                    width=1.6 if follows else 0.8,
                )
                drawing.line(x, y + 17, x, y + gap - 1, color=color, width=1.6 if follows else 0.8)
        feeds = {0 ^ sum(bits) for bits in subsets(offsets[row:])}
        for lane in range(WARP):
            drawing.rect(left + lane * step + 0.5, y, step - 1, 16, "orange" if lane in feeds else "plain")
    end = lines(
        drawing, top + len(offsets) * gap + 42,
        "Orange: what reaches lane 0. All other lanes do the same, so that all 32 end with the same sum, and nobody "
        "has to send it around.")

    top = end + 22
    drawing.text(SIDE, top, "block_sum: one hop through shared memory,", size=15, bold=True)
    drawing.text(SIDE, top + 20, "for a block of 8 warps", size=15, bold=True)
    warps, width, top = 8, 46.0, top + 36
    for warp in range(warps):
        x = left + warp * width
        drawing.rect(x, top, width - 6, 26, "orange")
        drawing.text(x + (width - 6) / 2, top + 18, f"w{warp}", size=12.5, anchor="middle")
        drawing.line(x + (width - 6) / 2, top + 27, x + (width - 6) / 2, top + 50, arrow=True)
        drawing.rect(x, top + 52, width - 6, 26, "blue")
        drawing.text(x + (width - 6) / 2, top + 70, f"[{warp}]", size=12.5, anchor="middle")
    drawing.text(SIDE, top + 18, "registers", size=12.5, color=MUTED)
    drawing.text(SIDE, top + 70, "scratch", size=12.5, color=MUTED)
    end = lines(
        drawing, top + 106,
        "__syncthreads(), then every warp loads the 8 sums from scratch, in shared memory, into its first 8 lanes and "
        "calls warp_sum again.")
    drawing.height = end + 2
    return drawing


def subsets(bits: list[int]) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for bit in bits:
        found += [chosen + [bit] for chosen in found]
    return found


Triple = tuple[int, float, float]  # count, mean, M2: the sum of squared deviations from the mean


def triple_of(values: list[float]) -> Triple:
    mean = sum(values) / len(values)
    return len(values), mean, sum((v - mean) ** 2 for v in values)


def merge(a: Triple, b: Triple) -> Triple:
    """[Chan, Golub, LeVeque 1979]"""
    count = a[0] + b[0]
    delta = b[1] - a[1]
    return count, a[1] + delta * b[0] / count, a[2] + b[2] + delta * delta * a[0] * b[0] / count


def merge_of_triples() -> Drawing:
    """05: how (count, mean, M2) of two parts becomes that of the whole."""
    values = [[2.0, 4.0, 4.0, 6.0], [5.0, 7.0, 9.0, 7.0], [1.0, 3.0, 1.0, 3.0], [8.0, 8.0, 4.0, 4.0]]
    drawing = Drawing(
        NARROW, 0,
        "Merging count, mean and M2",
        "Four threads hold four values each and the count, mean and M2 of them. Two merges and then one more give the "
        "triple of all sixteen values, without going back to the values.",
    )
    drawing.text(SIDE, 30, "Each thread: count, mean, and M2 = Σ (x − mean)²;", size=15, bold=True)
    drawing.text(SIDE, 50, "then pairs merge", size=15, bold=True)
    box, gap, height, top = 104.0, 8.0, 66.0, 114.0
    level: list[tuple[float, Triple]] = []

    def show(x: float, y: float, triple: Triple, color: str) -> None:
        drawing.rect(x - box / 2, y, box, height, color, strong=True, round=4)
        for line, (name, value) in enumerate(zip(("count", "mean", "M2"), triple)):
            drawing.text(x - 12, y + 18 + line * 19, name, anchor="end", color=MUTED, size=12.5)
            drawing.text(x + 2, y + 18 + line * 19, f"{value:g}", bold=True, size=13)

    for index, own in enumerate(values):
        x = SIDE + box / 2 + index * (box + gap)
        drawing.text(x, top - 29, f"thread {index}", anchor="middle", bold=True)
        drawing.text(x, top - 11, "  ".join(f"{v:g}" for v in own), anchor="middle")
        level.append((x, triple_of(own)))
    y = top
    colors = ["orange", "green", "blue"]
    depth = 0
    while True:
        for x, triple in level:
            show(x, y, triple, colors[depth])
        if len(level) == 1:
            break
        merged = []
        for (xa, a), (xb, b) in zip(level[::2], level[1::2]):
            middle = (xa + xb) / 2
            drawing.line(xa, y + height + 1, middle - 14, y + height + 42, arrow=True)
            drawing.line(xb, y + height + 1, middle + 14, y + height + 42, arrow=True)
            drawing.text(
                middle, y + height + 24, f"δ = {b[1] - a[1]:g}".replace("-", "−"), size=12.5, anchor="middle",
                color=MUTED,
            )
            merged.append((middle, merge(a, b)))
        level = merged
        y += height + 46
        depth += 1
    whole = triple_of([v for own in values for v in own])
    same = all(abs(got - want) < 1e-12 for got, want in zip(level[0][1], whole))
    assert same, "the merge must give what the values give"
    y += height + 30
    for formula in ("δ = mean_b − mean_a", "mean = mean_a + δ · n_b / n", "M2 = M2_a + M2_b + δ² · n_a · n_b / n"):
        drawing.text(SIDE, y, formula, size=12.5, mono=True)
        y += 20
    drawing.text(SIDE, y + 6, f"variance = M2 / n = {whole[2] / whole[0]:g}", bold=True)
    drawing.height = lines(drawing, y + 26, "no sum of squares anywhere: nothing large is subtracted") + 2
    return drawing


def paragraph(drawing: Drawing, y: float, text: str) -> float:
    """Small print over the whole width, with room for wide fonts; returns where the next line would stand."""
    for line in textwrap.wrap(text, 106):
        drawing.text(LEFT, y, line, size=12, color=MUTED)
        y += 17
    return y


ROW_COLORS = ("orange", "green")  # of rows that are neighbours


def past_boundary(row: int, row_bytes: int) -> int:
    """How many bytes past a boundary of vectors a row starts, where the rows follow each other without gaps."""
    return row * row_bytes % VECTOR


def vectors_of_two_rows(rows: int, row_bytes: int) -> list[int]:
    """The vectors in which one row ends and the next begins."""
    return sorted({row * row_bytes // VECTOR for row in range(1, rows) if past_boundary(row, row_bytes)})


def stretch_of_rows(drawing: Drawing, y: float, rows: int, row_bytes: int) -> None:
    """Rows one after the other, the vectors below them, and where among the vectors each row starts."""
    byte = (WIDTH - 2 * LEFT) / (rows * row_bytes)
    height = 24
    for row in range(rows):
        named_box(
            drawing, LEFT + row * row_bytes * byte, y, row_bytes * byte, height, f"row {row}", ROW_COLORS[row % 2]
        )
    straddling = vectors_of_two_rows(rows, row_bytes)
    # Those of two rows last, so that their edges show.
    for vector in sorted(range(rows * row_bytes // VECTOR), key=straddling.count):
        marked = vector in straddling
        drawing.rect(
            LEFT + vector * VECTOR * byte, y + height + 4, VECTOR * byte, height, "purple" if marked else "plain",
            strong=marked, round=1,
        )
    for row in range(rows + 1):
        x = LEFT + row * row_bytes * byte
        whole = past_boundary(row, row_bytes) == 0
        drawing.line(x, y, x, y + 2 * height + 10, color=STROKES["green"] if whole else MUTED, width=2 if whole else 1,
                     dash="" if whole else "3 2")
        anchor = "start" if row == 0 else "end" if row == rows else "middle"
        drawing.text(x, y + 2 * height + 23, f"{row * row_bytes / VECTOR:g}", size=11, anchor=anchor, bold=whole,
                     color=STROKES["green"] if whole else MUTED)


def vectors_by_element(drawing: Drawing, y: float, first: int, count: int, cols: int) -> None:
    """Some vectors of the stretch, a box to an element, with its column."""
    each = VECTOR // BF16
    cell, height = (WIDTH - 2 * LEFT) / (count * each), 24
    elements = range(first * each, (first + count) * each)
    for index, element in enumerate(elements):
        row, col = divmod(element, cols)
        named_box(drawing, LEFT + index * cell, y, cell, height, str(col), ROW_COLORS[row % 2], size=10.5)
    rows_of = {vector: sorted({element // cols for element in range(vector * each, (vector + 1) * each)})
               for vector in range(first, first + count)}
    # Those of two rows last, so that their edges show.
    for vector, rows in sorted(rows_of.items(), key=lambda entry: len(entry[1])):
        x = LEFT + (vector - first) * each * cell
        drawing.rect(
            x, y, each * cell, height, stroke=STROKES["purple"] if len(rows) > 1 else MUTED, fill="none",
            stroke_width=2.5,
        )
        held = " and ".join(f"row {row}" for row in rows)
        drawing.text(
            x + each * cell / 2, y - 8, f"vector {vector}: {held}", size=12, anchor="middle", bold=len(rows) > 1
        )


def packed_rows() -> Drawing:
    """05: odd rows without gaps between them are one even stretch."""
    rows, cols = 8, 50
    row_bytes = cols * BF16
    vectors, straddling = rows * row_bytes // VECTOR, vectors_of_two_rows(rows, row_bytes)
    first_whole = next(row for row in range(1, rows + 1) if past_boundary(row, row_bytes) == 0)
    drawing = Drawing(
        WIDTH, 470,
        "Odd rows without gaps are one stretch of whole vectors",
        f"{rows} rows of {cols} columns of bf16 lie one after the other over a ruler of {vectors} vectors of {VECTOR} "
        f"bytes. Most rows start inside a vector, and {len(straddling)} vectors hold the end of a row and the start of "
        "the next; but the end of the last row is the end of the last vector. Below, vectors around the start of row 1 "
        f"by element, and how many loads the {rows} rows take one by one, by pairs, and by vectors.",
    )
    drawing.text(
        LEFT, 30,
        f"{rows} rows of {cols} columns of bf16: {rows} × {row_bytes} bytes are {vectors} vectors of {VECTOR} bytes",
        size=15, bold=True,
    )
    drawing.text(
        LEFT, 54,
        f"The rows as they lie in memory, vectors of {VECTOR} bytes below, and where among them each row starts:",
        color=MUTED,
    )
    stretch_of_rows(drawing, 68, rows, row_bytes)
    drawing.bracket(LEFT, WIDTH - LEFT, 148)
    drawing.text(
        WIDTH / 2, 170, f"a tile: starts and ends on a boundary, {vectors} whole vectors", anchor="middle", bold=True
    )
    drawing.text(
        WIDTH / 2, 188, f"{len(straddling)} of them (purple) hold parts of two rows", size=12, anchor="middle",
        color=MUTED,
    )

    drawing.text(LEFT, 222, "Around the start of row 1, element by element. Boxes: columns.", color=MUTED)
    vectors_by_element(drawing, 252, straddling[0] - 1, 3, cols)

    top, left = 318, LEFT + 208
    drawing.text(LEFT, top - 10, f"Loads for the {rows} rows:", bold=True)
    at_once = gcd(row_bytes, VECTOR)  # what every row's start allows
    ways = (("row by row, single elements", BF16), ("row by row, pairs", at_once), ("the tile, vectors", VECTOR))
    for index, (name, size) in enumerate(ways):
        loads, y = rows * row_bytes // size, top + index * 28
        drawing.text(LEFT, y + 15, name)
        drawing.rect(left, y, loads * 0.94, 20, "green" if size == VECTOR else "orange")
        drawing.text(left + loads * 0.94 + 8, y + 15, f"{loads} of {size} bytes", size=12, bold=True)
    starts = ", ".join(str(start) for start in sorted({past_boundary(row, row_bytes) for row in range(rows)}))
    end = paragraph(
        drawing, top + 108,
        f"The rows start {starts} bytes past a boundary: a lane that takes the same columns of each reads {at_once} "
        "bytes at a time at most. A tile goes from memory to shared memory in whole vectors, and only there it falls "
        f"into rows. At this width {first_whole} rows are whole vectors already; {VECTOR // BF16} rows of bf16 are, "
        "whatever their width.",
    )
    drawing.height = end + 6
    return drawing


def fused_trips() -> Drawing:
    """06: what crosses the memory's bus, with a kernel for the sum and one for the norm, and with one for both."""
    drawing = Drawing(
        NARROW, 0,
        "The trips to memory of a residual and a norm, in two kernels and in one",
        "With two kernels, x and the residual are read, h is written, h is read again, and y is written: five trips. "
        "With one kernel h is still there when the norm needs it: four trips.",
    )
    drawing.text(SIDE, 30, "h = x + residual, y = norm(h): each box is a", size=15, bold=True)
    drawing.text(SIDE, 50, "tensor on its way to or from memory", size=15, bold=True)
    box, gap, height = 84.0, 8.0, 42.0

    def kernel(y: float, name: str, tensors: list[tuple[str, str]]) -> None:
        for index, (tensor, way) in enumerate(tensors):
            x = SIDE + index * (box + gap)
            drawing.rect(x, y, box, height, "blue" if way == "read" else "orange", round=4)
            drawing.text(x + box / 2, y + 18, tensor, anchor="middle", bold=True)
            drawing.text(x + box / 2, y + 34, way, anchor="middle", size=12.5, color=MUTED)
        end = SIDE + len(tensors) * (box + gap) - gap
        drawing.bracket(SIDE, end, y + height + 5)
        drawing.text((SIDE + end) / 2, y + height + 27, name, anchor="middle", size=12.5, color=MUTED)

    of_sum, of_norm = [("x", "read"), ("residual", "read"), ("h", "written")], [("h", "read"), ("y", "written")]
    in_one = [("x", "read"), ("residual", "read"), ("h", "written"), ("y", "written")]
    unfused, fused = len(of_sum) + len(of_norm), len(in_one)
    drawing.text(SIDE, 82, f"Two kernels: {unfused} trips", bold=True)
    kernel(92, "a kernel for the sum", of_sum)
    kernel(174, "a kernel for the norm", of_norm)
    drawing.text(SIDE, 276, f"One kernel: {fused} trips", bold=True)
    kernel(286, "the sum in the norm's load step", in_one)
    end = lines(
        drawing, 382,
        f"h is written in both: the next residual needs it. What is saved is its way back, 1 trip of {unfused}: at the "
        f"memory's speed, {fused}/{unfused} of the time. One launch less is saved as well, which is what counts on "
        "small tensors. And h reaches the norm rounded as it is stored, so that both ways normalize the same numbers.",
    )
    drawing.height = end + 2
    return drawing


def backward_axes() -> Drawing:
    """07: sums along rows and sums along columns over the same data, and how blocks that stay serve both."""
    drawing = Drawing(
        NARROW, 0,
        "The two axes of the backward pass",
        "Above: a matrix in which dx needs two sums along each row, and dgamma and dbeta a sum down each column. "
        "Below: three blocks walk the rows in turn; each keeps a running dgamma and dbeta for the columns in its "
        "registers and writes them once at the end as a partial row; a second stage adds the partial rows in a fixed "
        "order.",
    )
    drawing.text(SIDE, 30, "Two axes over one layout", size=15, bold=True)
    rows, cols, cell = 9, 8, 26.0
    left, top = SIDE + 20.0, 74.0
    chosen_row, chosen_col = 3, 5
    drawing.text(SIDE, top - 20, "dy and x: a row is a row of the batch", size=12.5, color=MUTED)
    for row in range(rows):
        for col in range(cols):
            color = "orange" if row == chosen_row else "green" if col == chosen_col else "plain"
            if (row, col) == (chosen_row, chosen_col):
                color = "purple"
            drawing.rect(left + col * cell, top + row * cell, cell, cell, color)
    y = top + (chosen_row + 0.5) * cell
    drawing.line(left + cols * cell + 2, y, left + cols * cell + 30, y, arrow=True)
    drawing.text(left + cols * cell + 36, y - 3, "dx of this row:", bold=True)
    drawing.text(left + cols * cell + 36, y + 15, "2 sums along it", size=12.5, color=MUTED)
    x, y = left + (chosen_col + 0.5) * cell, top + rows * cell
    drawing.line(x, y + 2, x, y + 26, arrow=True)
    drawing.text(x, y + 44, "dgamma, dbeta of this column:", bold=True, anchor="middle")
    drawing.text(x, y + 62, "2 sums over all rows", size=12.5, color=MUTED, anchor="middle")

    # The blocks that stay.
    top = y + 112
    blocks = 3
    colors = ["orange", "green", "blue"]
    drawing.text(SIDE, top, "Persistent blocks", size=15, bold=True)
    top = lines(drawing, top + 24, "A block walks its rows. dx leaves at once; dgamma and dbeta grow in registers.") - 4
    for row in range(rows):
        block = row % blocks
        drawing.rect(left, top + row * cell, cols * cell, cell - 3, colors[block], round=2)
        drawing.text(left + cols * cell + 10, top + row * cell + 16, f"block {block}", size=12.5, color=MUTED)
    middle, y = left + cols * cell / 2, top + rows * cell
    drawing.line(middle, y + 2, middle, y + 26, arrow=True)
    drawing.text(middle + 10, y + 20, "once, at the end", size=12.5, color=MUTED)
    partial = y + 36
    for block in range(blocks):
        drawing.rect(left, partial + block * 28, cols * cell, 24, colors[block], strong=True)
        drawing.text(middle, partial + block * 28 + 17, f"partial row of block {block}", size=12.5, anchor="middle")
    end = partial + blocks * 28
    drawing.line(middle, end, middle, end + 24, arrow=True)
    drawing.text(middle + 10, end + 17, "added in a fixed order", size=12.5, color=MUTED)
    drawing.rect(left, end + 30, cols * cell, 24, "purple", strong=True)
    drawing.text(middle, end + 47, "dgamma (and dbeta)", size=12.5, anchor="middle", bold=True)
    below = lines(
        drawing, end + 84,
        "A kernel for each axis reads dy and x twice. One kernel reads them once, and has to bring sums together that "
        "different blocks hold: by atomics, in whatever order they come, or by few partial rows and a second stage "
        "that always adds in the same order, so that every run gives the same bits.",
    )
    drawing.height = below + 2
    return drawing


def backward_groups() -> Drawing:
    """07: the tutorial's scheme for 4 rows and 2 groups, and who waits for whom."""
    drawing = Drawing(
        NARROW, 0,
        "Rows that share a partial row share its lock",
        "Four rows and two groups. Rows 0 and 2 add to partial row 0, rows 1 and 3 to partial row 1, one at a time. "
        "The first to come writes; the second reads, adds and writes. A second kernel adds up the partial rows.",
    )
    rows, groups, height = 4, 2, 30.0
    colors = ["orange", "green"]
    title = f"{rows} rows, {groups} groups: row i adds to partial row i mod {groups}"
    drawing.text(SIDE, 30, title, size=15, bold=True)
    left, top, middle, right = SIDE, 92.0, 162.0, 346.0
    for x, words in ((left, "a block to a row"), (middle - 28, "partial rows, locks"), (right, "a second kernel")):
        drawing.text(x, top - 14, words, size=12.5, color=MUTED)
    gap, of_row, of_partial, of_result = 44.0, 72.0, 112.0, 114.0
    place = [top + 24 + 2 * gap * group for group in range(groups)]
    for row in range(rows):
        y = top + row * gap
        drawing.rect(left, y, of_row, height, colors[row % groups])
        drawing.text(left + of_row / 2, y + 20, f"row {row}", size=12.5, anchor="middle")
        end = place[row % groups] + (height / 4 if row < groups else 3 * height / 4)
        drawing.line(left + of_row + 4, y + height / 2, middle - 32, end, arrow=True)
    for group in range(groups):
        drawing.rect(middle - 28, place[group], 22, height, "red", strong=True, round=4)
        drawing.text(middle - 17, place[group] + 20, f"{group}", size=12.5, anchor="middle", bold=True)
        drawing.rect(middle, place[group], of_partial, height, colors[group], strong=True)
        drawing.text(middle + of_partial / 2, place[group] + 20, f"partial row {group}", size=12.5, anchor="middle")
        drawing.line(
            middle + of_partial + 4, place[group] + height / 2, right - 6, top + 1.5 * gap + height / 2, arrow=True
        )
    drawing.rect(right, top + 1.5 * gap, of_result, height, "purple", strong=True)
    drawing.text(right + of_result / 2, top + 1.5 * gap + 20, "dgamma, dbeta", size=12.5, anchor="middle", bold=True)

    # In time: a turn of a lock, then the next one's.
    y = top + rows * gap + 30
    turn, begin = 186.0, left + 62
    drawing.text(left, y - 4, "In time, where all rows come at once:", bold=True)
    for group in range(groups):
        line = y + 12 + group * 38
        drawing.text(left, line + 20, f"lock {group}", size=12.5, color=MUTED)
        for index, row in enumerate(range(group, rows, groups)):
            x = begin + index * (turn + 4)
            what = "writes" if index == 0 else "reads, adds, writes"
            drawing.rect(x, line, turn, height, colors[group], strong=index == 0)
            drawing.text(x + turn / 2, line + 20, f"row {row} {what}", size=12.5, anchor="middle")
    below = lines(
        drawing, y + 12 + groups * 38 + 24,
        f"{rows // groups} turns, one after the other, whatever the memory could do. With R rows and G groups a lock "
        "has R / G turns. More groups make the queue shorter, and leave more partial rows for the second kernel to add "
        "up.",
    )
    drawing.height = below + 2
    return drawing


TEAM_COLORS = {0: "orange", 1: "green"}  # those that are followed


def row_of_vectors(
    drawing: Drawing, left: float, y: float, cell: float, height: float, start: int, count: int, color: str
) -> None:
    """The first vectors of a row that starts `start` elements past a boundary. Dashed: elements of the row before."""
    each = VECTOR // BF16
    for place in range(count * each):
        x = left + place * cell
        if place < start:
            drawing.rect(x, y, cell, height, fill=PANEL, dash="2 2", round=0)
        else:
            named_box(drawing, x, y, cell, height, str(place - start), color, size=12.5)
    for vector in range(count):
        drawing.rect(left + vector * each * cell, y, each * cell, height, stroke=MUTED, fill="none", strong=True)


def row_starts() -> Drawing:
    """07: where rows that are no whole vectors start, and which teams meet which."""
    cols, rows, shown = 4095, 10, 2
    row_bytes, each = cols * BF16, VECTOR // BF16
    period = VECTOR // gcd(row_bytes, VECTOR)
    starts = [past_boundary(row, row_bytes) for row in range(rows)]
    unfit = 6  # teams: no multiple of the period
    drawing = Drawing(
        NARROW, 0,
        f"Where rows of {cols} columns start, and which team takes which",
        f"Rows 0 to {rows - 1} of {cols} columns of bf16. They start {', '.join(map(str, starts))} bytes past a "
        f"{VECTOR}-byte boundary: the pattern repeats after {period} rows. The columns in a thread's vector differ "
        f"from row to row. With {period} teams that take turns, a team's rows all start alike; with {unfit} teams they "
        "do not.",
    )
    drawing.text(SIDE, 30, f"Rows of {cols} columns of bf16: a thread's", size=15, bold=True)
    drawing.text(SIDE, 50, "vector holds other columns in each", size=15, bold=True)
    lines(drawing, 76, "The first vectors of each row. Boxes: its columns; dashed: elements of the row before.")
    left, right, top, cell, height, step, chip = 98.0, 92.0, 150.0, 15.5, 22, 27, 56
    drawing.text(right, top - 28, "bytes past", size=12.5, anchor="end", color=MUTED)
    drawing.text(right, top - 11, "a boundary", size=12.5, anchor="end", color=MUTED)
    for thread in range(shown):
        middle = left + (thread + 0.5) * each * cell
        drawing.text(middle, top - 28, "vector", size=12.5, anchor="middle", color=MUTED)
        drawing.text(middle, top - 11, f"of thread {thread}", size=12.5, anchor="middle", bold=True)
    chips = {period: NARROW - SIDE - 2 * chip + 4, unfit: NARROW - SIDE - chip + 8}
    for teams, x in chips.items():
        drawing.text(x + chip / 2, top - 28, "team", size=12.5, anchor="middle", color=MUTED)
        drawing.text(x + chip / 2, top - 11, f"of {teams}", size=12.5, anchor="middle", bold=True)
    for row, start in enumerate(starts):
        y = top + row * step + row // period * 8
        drawing.text(SIDE, y + 16, f"row {row}", size=12.5, bold=True)
        drawing.text(right, y + 16, str(start), size=12.5, anchor="end", bold=True)
        row_of_vectors(drawing, left, y, cell, height, start // BF16, shown, TEAM_COLORS.get(row % period, "plain"))
        for teams, x in chips.items():
            named_box(drawing, x, y, chip, height, f"team {row % teams}", TEAM_COLORS.get(row % teams, "plain"),
                      size=12.5)
    y = top + period * step + 1.5
    drawing.line(SIDE, y, NARROW - SIDE, y, dash="4 3")

    y = top + rows * step + 38
    for teams, outcome in ((period, "their sums stay in its registers."), (unfit, "the sums would have to move.")):
        begins = {row: each - starts[row] // BF16 for row in (0, teams)}
        held = " and ".join(f"{begin} to {begin + each - 1} in row {row}" for row, begin in begins.items())
        y = lines(
            drawing, y,
            f"Of {teams} teams, team 0 has rows 0, {teams}, …: {starts[0]} and {starts[teams]} bytes past a boundary.",
            bold=True,
        )
        y = lines(drawing, y, f"Its thread 1 has columns {held}: {outcome}") + 10
    missing = VECTOR - row_bytes % VECTOR
    end = lines(
        drawing, y + 4,
        f"A row has {row_bytes} bytes, {missing} less than whole vectors, so each row starts {missing} bytes earlier "
        f"in its vector than the row before it, and row {period} starts like row 0. With {period} teams, or any "
        f"multiple of {period}, a team meets one kind of row only.",
    )
    drawing.height = end + 2
    return drawing


GROUP = 8  # multiprocessors among which a cluster must find its own, in the schematic drawing
CLUSTER = 4  # multiprocessors side by side


def cluster_starts(free_from: list[float], clusters: int, share: float) -> list[tuple[float, int]]:
    """(when, first multiprocessor) of each cluster: it takes the first neighbours of one group that are free
    together."""
    free_from = list(free_from)
    places = [first for first in range(len(free_from)) if first % GROUP + CLUSTER <= GROUP]
    begun = []
    for _ in range(clusters):
        begin, first = min((max(free_from[place : place + CLUSTER]), place) for place in places)
        free_from[first : first + CLUSTER] = [begin + share] * CLUSTER
        begun.append((begin, first))
    return begun


def left_over(count: int, firsts: list[int]) -> list[list[int]]:
    """Runs of neighbours that are in none of the clusters which begin with these multiprocessors."""
    taken = {first + i for first in firsts for i in range(CLUSTER)}
    runs: list[list[int]] = []
    for multiprocessor in sorted(set(range(count)) - taken):
        if runs and runs[-1][-1] == multiprocessor - 1:
            runs[-1].append(multiprocessor)
        else:
            runs.append([multiprocessor])
    return runs


def multiprocessor_timeline(
    drawing: Drawing, left: float, top: float, freed: list[float], begun: list[tuple[float, int]], share: float
) -> float:
    """A line to a multiprocessor, with the kernel before in grey, then the clusters; returns the lower end."""
    line, gap = 10.0, 8.0

    def y_of(multiprocessor: int) -> float:
        return top + multiprocessor * line + multiprocessor // GROUP * gap

    for multiprocessor, end in enumerate(freed):
        drawing.rect(left, y_of(multiprocessor) + 1, end, line - 2, fill=STROKES["plain"], round=0)
    for group in range(len(freed) // GROUP):
        drawing.text(
            left - 10, y_of(group * GROUP) + GROUP * line / 2 + 4, f"group {group}", size=12, anchor="end", color=MUTED
        )
    first_end = min(begin for begin, _ in begun) + share
    for cluster, (begin, first) in enumerate(begun):
        late = begin >= first_end
        name = f"cluster {cluster}, which found no room" if late else f"cluster {cluster}: its share of the rows"
        named_box(
            drawing, left + begin, y_of(first) + 1, share, CLUSTER * line - 2, name, "red" if late else "green",
            bold=late,
        )
    for run in left_over(len(freed), [first for begin, first in begun if begin < first_end]):
        middle = (y_of(run[0]) + y_of(run[-1]) + line) / 2
        drawing.text(
            left + max(freed) + 12, middle + 4, f"{len(run)} neighbours free: too few", size=11, color=STROKES["red"]
        )
    bottom = y_of(len(freed) - 1) + line
    end = left + max(begin for begin, _ in begun) + share
    drawing.line(end, top - 8, end, bottom + 6, color=INK, width=1.5, dash="4 3")
    drawing.text(end + 8, top + 4, "end", size=12, bold=True)
    return bottom


def clusters_start() -> Drawing:
    """07: what a launch with overlap does to persistent clusters."""
    # Which multiprocessor falls free after which; of group 1 the middle comes first.
    order = [11, 2, 10, 0, 12, 3, 13, 1, 5, 15, 4, 8, 7, 6, 14, 9]
    clusters, share, earliest, step = len(order) // CLUSTER, 228.0, 26.0, 7.0
    freed = [earliest + step * order.index(multiprocessor) for multiprocessor in range(len(order))]
    overlapped = cluster_starts(freed, clusters, share)
    afterwards = cluster_starts([max(freed)] * len(freed), clusters, share)
    drawing = Drawing(
        WIDTH, 560,
        "Clusters launched before the kernel ahead of them has ended, and after",
        "Two schematic timelines of sixteen multiprocessors in two groups. Top, launched with overlap: three clusters "
        "of four begin as soon as four neighbours are free; the fourth finds only pairs of free multiprocessors and "
        "begins when another cluster has ended, so that the kernel takes twice as long. Bottom, launched afterwards: "
        "all four begin and end together.",
    )
    left = LEFT + 70.0
    drawing.text(
        LEFT, 30, "Persistent clusters: four free neighbours each, and a fixed share of the rows", size=15, bold=True
    )
    drawing.text(LEFT, 64, "Launched with overlap", bold=True)
    drawing.text(
        WIDTH - LEFT, 64, "A line for each multiprocessor. Grey: the kernel before", size=12, anchor="end", color=MUTED
    )
    bottom = multiprocessor_timeline(drawing, left, 84, freed, overlapped, share)
    drawing.text(LEFT, bottom + 44, "Launched when the kernel before has ended", bold=True)
    bottom = multiprocessor_timeline(drawing, left, bottom + 64, freed, afterwards, share)
    drawing.line(left, bottom + 16, WIDTH - LEFT - 40, bottom + 16, arrow=True)
    drawing.text(WIDTH - LEFT, bottom + 20, "time", size=12, anchor="end", color=MUTED)
    end = paragraph(
        drawing, bottom + 48,
        "Schematic, not measured: that a cluster finds no room is how we explain a doubled time, and which "
        "multiprocessors can be a cluster is made simple. On top, the middle of group 1 falls free first, and a "
        "cluster takes it. The four that are left there are not side by side, so that the last cluster waits until "
        "another has ended. Its rows are its own share, which nobody takes off it: the kernel takes two shares' time. "
        "Below, all begin later, and the kernel ends earlier.",
    )
    drawing.height = end + 6
    return drawing


BLOCK_COLORS = ("orange", "green", "blue")


def message_times(work: list[list[float]], look: list[float]) -> tuple[list[list[float]], list[list[float]]]:
    """When each block sends its message of each turn, and when it has read those of all.

    In a turn a block works on its piece of a row, sends, and looks until it has a message of that turn from everybody.
    """
    sent: list[list[float]] = []
    read: list[list[float]] = []
    now = [0.0] * len(look)
    for of_turn in work:
        sent.append([begin + own for begin, own in zip(now, of_turn)])
        now = [max(sent[-1]) + own for own in look]
        read.append(now)
    return sent, read


def messages_at(now: float, sent: list[list[float]], parity: int) -> list[int]:
    """The turn whose message lies in each sender's place for even turns (0) or odd ones (1); 0 where none has been
    sent."""
    senders = range(len(sent[0]))
    return [max((turn for turn, times in enumerate(sent, 1) if turn % 2 == parity and times[sender] <= now), default=0)
            for sender in senders]


def shared_row(drawing: Drawing, y: float, places: list[int], multiprocessors: int) -> None:
    """A row in pieces, and the multiprocessors on which the blocks are that have them."""
    width = (WIDTH - 2 * LEFT) / len(places)
    cell = (WIDTH - 2 * LEFT) / multiprocessors
    for block, place in enumerate(places):
        named_box(drawing, LEFT + block * width, y, width, 24, f"piece of block {block}", BLOCK_COLORS[block], size=12)
        drawing.line(LEFT + (block + 0.5) * width, y + 26, LEFT + (place + 0.5) * cell, y + 58, arrow=True)
    for place in range(multiprocessors):
        color = BLOCK_COLORS[places.index(place)] if place in places else "plain"
        drawing.rect(LEFT + place * cell + 1, y + 60, cell - 2, 20, color, strong=place in places)


def message_places(drawing: Drawing, y: float, now: float, sent: list[list[float]], notes: tuple[str, str]) -> None:
    """What lies where each sender was, for even turns and for odd ones."""
    left, width, height = LEFT + 92.0, 200.0, 26
    for sender in range(len(sent[0])):
        drawing.text(
            left + sender * (width + 10) + width / 2, y - 8, f"from block {sender}", size=12, anchor="middle", bold=True
        )
    for parity, name in enumerate(("even turns", "odd turns")):
        line = y + parity * 62
        drawing.text(LEFT, line + 17, name, bold=True)
        for sender, turn in enumerate(messages_at(now, sent, parity)):
            x, color = left + sender * (width + 10), BLOCK_COLORS[sender]
            named_box(drawing, x, line, width / 2, height, f"turn {turn}", color, size=12, strong=True, bold=True)
            named_box(drawing, x + width / 2, line, width / 2, height, f"sum of turn {turn}", color, strong=True)
        drawing.text(left, line + height + 17, notes[parity], size=12, color=MUTED)


def turns_of_blocks(drawing: Drawing, top: float, now: float, sent: list[list[float]], read: list[list[float]]) -> None:
    """A line to a block: its work, the message at the end of it, and how long it looks for those of all."""
    left, step, height = LEFT + 64.0, 34, 22
    for block in range(len(sent[0])):
        y, begin = top + block * step, 0.0
        drawing.text(LEFT, y + 15, f"block {block}", size=12, bold=True)
        for turn, (sent_at, read_at) in enumerate(zip(sent, read), 1):
            done, known = sent_at[block], read_at[block]
            named_box(drawing, left + begin, y, done - begin, height, f"turn {turn}", BLOCK_COLORS[block])
            drawing.rect(left + done, y, known - done, height, fill=PANEL, dash="3 2")
            drawing.text(left + (done + known) / 2, y + 15, f"reads {turn}", size=11, anchor="middle", color=MUTED)
            drawing.rect(left + done - 2, y - 3, 4, height + 6, fill=INK, stroke=INK, round=0)
            begin = known
    drawing.line(
        left + now, top - 10, left + now, top + len(sent[0]) * step, color=STROKES["red"], width=1.5, dash="4 3"
    )
    drawing.text(left + now, top - 15, "now", size=12, anchor="middle", bold=True, color=STROKES["red"])


def grid_messages() -> Drawing:
    """07: sums of a row whose blocks can be anywhere, by messages in global memory."""
    work = [[60.0, 90.0, 75.0], [75.0, 85.0, 60.0], [65.0, 80.0, 70.0]]  # of each turn, of each block
    look = [55.0, 60.0, 140.0]  # until a block has found the last message of a turn
    sent, read = message_times(work, look)
    now = (sent[2][0] + read[1][2]) / 2  # block 0 has sent turn 3, and block 2 has not read turn 2 yet
    assert sent[2][0] < now < min(sent[2][1:]), "of turn 3 there is one message now"
    drawing = Drawing(
        WIDTH, 640,
        "Mail between blocks that share a row",
        "Three blocks on multiprocessors anywhere on the device have a piece each of one row. For each sender there "
        "are two places in global memory, for even turns and for odd ones, and a message there is one word with the "
        "turn's number and a sum. Below, when each block works, sends, and has read the messages of all: block 0 sends "
        "turn 3 while block 2 still reads turn 2, but all have read turn 1, whose place turn 3 takes.",
    )
    drawing.text(LEFT, 30, "One row, blocks anywhere on the device, and messages in global memory", size=15, bold=True)
    shared_row(drawing, 50, [17, 3, 10], 24)
    drawing.text(
        LEFT, 150, "The device's multiprocessors: which of them have the row's blocks does not matter.", size=12,
        color=MUTED,
    )

    drawing.text(LEFT, 190, "The messages now: two places for each sender", bold=True)
    drawing.text(LEFT, 209, "A message is one word of 64 bits: the number of its turn and a sum.", size=12, color=MUTED)
    message_places(
        drawing, 244, now, sent,
        (
            "Turn 3 may not come here: block 2 still reads turn 2.",
            "Turn 3 takes the place of turn 1, which all have read. Blocks 1 and 2 have yet to send it.",
        ),
    )
    drawing.text(
        LEFT, 386,
        "Turn by turn. The black mark is the message that a block sends; then it reads those of all",
        bold=True,
    )
    turns_of_blocks(drawing, 426, now, sent, read)
    end = paragraph(
        drawing, 554,
        "Schematic. A block sends turn t + 1 when it has read turn t from all. They all sent turn t after they had "
        "read turn t − 1, so that nobody reads turn t − 1 any more, and its place is free. Who finds another number "
        "than that of the turn looks again; who finds the number has the sum, for a word arrives whole. (Of the two "
        "sums of a turn one is drawn; the other has a message of its own.)",
    )
    drawing.height = end + 6
    return drawing


def batchnorm_tiles() -> Drawing:
    """08: sums down the columns, read along the rows."""
    drawing = Drawing(
        NARROW, 0,
        "BatchNorm: sums down the channels, read along the rows",
        "A matrix with samples as rows and channels as columns. A warp reads 32 neighbouring channels of one row, so "
        "that its request is 4 full sectors, and goes down the rows; each lane sums its own channel. The rows of a "
        "column of tiles are split among several blocks, whose count, mean and M2 are merged by Chan's formula.",
    )
    drawing.text(SIDE, 30, "Statistics for each column, of a matrix", size=15, bold=True)
    drawing.text(SIDE, 50, "that lies in memory row by row", size=15, bold=True)
    left, top, cell = SIDE + 62, 108.0, 15.5
    rows, tile, tiles = 12, 8, 3
    split = 4  # rows of a block
    colors = ["orange", "green", "blue"]
    drawing.text(left, top - 26, "channels: neighbours in memory", size=12.5, color=MUTED)
    drawing.line(left + 200, top - 30, left + 270, top - 30, arrow=True)
    for row in range(rows):
        for col in range(tile * tiles):
            block = row // split
            inside = col // tile == 1
            drawing.rect(left + col * cell, top + row * cell, cell, cell, colors[block] if inside else "plain", round=0)
    for block in range(rows // split):
        y = top + block * split * cell
        drawing.rect(
            left + tile * cell, y, tile * cell, split * cell, fill="none", stroke=STROKES[colors[block]],
            stroke_width=2.5, round=0,
        )
        drawing.text(left - 10, y + split * cell / 2 + 4, f"block {block}", anchor="end", bold=True)
    # The warp in block 0: one row of the tile at a time.
    drawing.rect(
        left + tile * cell, top, tile * cell, cell, fill="none", stroke=STROKES["red"], stroke_width=2.5, round=0
    )
    lane_x = left + tile * cell + 3.5 * cell
    drawing.line(lane_x, top + cell + 2, lane_x, top + split * cell - 3, arrow=True, color=STROKES["red"], width=1.5)

    y = top + rows * cell + 22
    box, gap = 116.0, 12.0
    for block in range(rows // split):
        x = left + block * (box + gap)
        drawing.rect(x, y + 18, box, 30, colors[block], strong=True, round=4)
        drawing.text(x + box / 2, y + 38, "count, mean, M2", size=12.5, anchor="middle")
        drawing.text(x + box / 2, y + 10, f"of block {block}", size=12.5, anchor="middle", color=MUTED)
        drawing.line(x + box / 2, y + 50, left + 1.5 * box + gap + (block - 1) * 20, y + 76, arrow=True)
    middle = left + box + gap
    drawing.rect(middle, y + 80, box, 30, "purple", strong=True, round=4)
    drawing.text(middle + box / 2, y + 100, "channel's own", size=12.5, anchor="middle", bold=True)
    drawing.text(middle + box / 2, y + 130, "merged by Chan's formula, always in the same order", size=12.5,
                 anchor="middle", color=MUTED)
    end = y + 162
    sectors = sectors_of([FLOAT * lane for lane in range(WARP)], FLOAT)
    for words, rest in (
        ("A request: 32 neighbouring channels", f"of one row, {sectors} full sectors (red)."),
        ("A lane goes down its own channel,", "and adds up in its registers."),
        ("Few channels, many rows: the rows of", "one column of tiles go to many blocks."),
    ):
        end = lines(drawing, lines(drawing, end, words, bold=True), rest) + 4
    end = lines(
        drawing, end + 8,
        "A thread to a channel without the split would leave the GPU nearly empty: 64 channels are two warps. A thread "
        "to a row would read a sector for each element. So a tile is as wide as a request, and as tall as it takes to "
        "give every multiprocessor work.",
    )
    drawing.height = end + 2
    return drawing


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "01_naive/charts/access.svg": access_thread_per_row,
    "02_shared_reduction/charts/access.svg": access_block_per_row,
    "02_shared_reduction/charts/tree.svg": reduction_tree,
    "03_warp_shuffle/charts/shuffles.svg": shuffle_steps,
    "04_vectorized/charts/access.svg": access_vectorized,
    "05_welford/charts/merge.svg": merge_of_triples,
    "05_welford/charts/packed_rows.svg": packed_rows,
    "06_fused_residual/charts/trips.svg": fused_trips,
    "07_backward/charts/axes.svg": backward_axes,
    "07_backward/charts/groups.svg": backward_groups,
    "07_backward/charts/row_starts.svg": row_starts,
    "07_backward/charts/clusters_start.svg": clusters_start,
    "07_backward/charts/grid_messages.svg": grid_messages,
    "08_batchnorm/charts/tiles.svg": batchnorm_tiles,
    "docs/charts/grid_to_lanes.svg": grid_to_lanes,
    "docs/charts/memory_levels.svg": memory_levels,
}
OF_NO_STAGE = "docs"


def pictures(root: Path, stages: list[str]) -> dict[Path, str]:
    """The text of each drawing of these stages, by file; OF_NO_STAGE is a stage here."""
    return {root / name: draw().render() for name, draw in DRAWINGS.items() if name.split("/")[0] in stages}


def write_or_check(texts: dict[Path, str], root: Path, check: bool) -> list[Path]:
    """Writes each file that differs, or names it where `check`; returns these."""
    differ = []
    for path, text in texts.items():
        shown = path.relative_to(root)
        there = path.read_text(encoding="utf-8") if path.is_file() else None
        if there == text:
            continue
        differ.append(path)
        if check:
            print(f"{shown}: {'is missing' if there is None else 'differs from what is drawn now'}", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"drew {shown}", flush=True)
    return differ


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Draws the explanations of the writeups, or checks them.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a file differs")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    differ = write_or_check(pictures(root, [*stage_folders(root), OF_NO_STAGE]), root, options.check)
    return 1 if options.check and differ else 0


if __name__ == "__main__":
    sys.exit(main())
