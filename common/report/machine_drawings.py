"""Draws what the primer explains: the levels of a GPU's memory, and how a grid gets to lanes.

drawings.py writes them. They are narrow, so that their text can be read on a phone.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from svg import MUTED, PANEL, STROKES, Drawing

WIDTH, LEFT = 480, 28
INNER = WIDTH - 2 * LEFT
WARP = 32  # lanes
MULTIPROCESSOR_KIB = 256  # of registers, and again of shared memory and L1 cache: compute capability 9.0
L2_MIB = 60  # as the driver reports it (l2_bytes of results/h200.json)
FP32_LANES, OPERANDS, FLOAT = 128, 3, 4  # multiply-adds that begin in a cycle; what each reads; bytes
BANKS_BYTES = 128  # that shared memory or the L1 cache hands out in a cycle: 32 banks of 4 bytes
# Cycles that a load waits: an H100 PCIe at 1.755 GHz, by gpu-latency of github.com/te42kyfo/gpu-benches.
L1_CYCLES, L2_CYCLES, DRAM_CYCLES = 34, 265, 650


def two_digits(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{float(f'{value:.2g}'):.0f}"


def small_print(drawing: Drawing, y: float, text: str) -> float:
    """Lines as wide as the drawing, with room for wide fonts; returns where the next would stand."""
    for line in textwrap.wrap(text, 62):
        drawing.text(LEFT, y, line, size=12.5, color=MUTED)
        y += 18
    return y


def level(drawing: Drawing, y: float, color: str, name: str, wait: str, cycles: int, lines: tuple[str, ...]) -> float:
    """A box with a level's name, size and speed, and a bar as long as a load from it takes; returns where it ends."""
    height = 36.0 + 19 * len(lines) + (14 if cycles else 0)
    drawing.rect(LEFT, y, INNER, height, color, round=4, strong=True)
    drawing.text(LEFT + 12, y + 23, name, size=15, bold=True)
    drawing.text(LEFT + INNER - 12, y + 23, wait, size=14, anchor="end", bold=True)
    for index, line in enumerate(lines):
        drawing.text(LEFT + 12, y + 44 + 19 * index, line, size=14)
    if cycles:
        longest = INNER - 24
        drawing.rect(
            LEFT + 12, y + height - 16, longest * cycles / DRAM_CYCLES, 8, fill=STROKES[color], stroke=STROKES[color],
            round=1,
        )
    return y + height


def memory_levels() -> Drawing:
    """The levels of an H200's memory, with size, speed and distance."""
    gpu = json.loads(Path(__file__).with_name("gpus.json").read_text(encoding="utf-8"))["h200"]
    count, clock = gpu["multiprocessors"], gpu["clock_hz"]
    copied, copied_in_l2 = gpu["dram_bytes_per_second"] / 1e12, gpu["l2_bytes_per_second"] / 1e12
    in_all = f"{MULTIPROCESSOR_KIB} KiB each, {count * MULTIPROCESSOR_KIB // 1024} MiB in all {count}"
    registers = two_digits(count * clock * FP32_LANES * OPERANDS * FLOAT / 1e12)
    shared = two_digits(count * clock * BANKS_BYTES / 1e12)
    drawing = Drawing(
        WIDTH, 600,
        "The memory of an H200, from near to far",
        f"Registers, {in_all}, {registers} TB/s, no wait. Shared memory and L1 cache, {in_all}, {shared} TB/s, "
        f"{L1_CYCLES} cycles. L2 cache, {L2_MIB} MiB for all multiprocessors, {L2_CYCLES} cycles. DRAM, 141 GB, "
        f"4.8 TB/s, {DRAM_CYCLES} cycles.",
    )
    drawing.text(LEFT - 12, 30, "The memory of an H200, from near to far", size=16, bold=True)
    top = 46.0
    y = level(drawing, top + 32, "green", "Registers", "no wait", 0, (in_all, f"{registers} TB/s all together"))
    y = level(
        drawing, y + 10, "blue", "Shared memory and L1 cache", f"{L1_CYCLES} cycles", L1_CYCLES,
        (in_all, f"{shared} TB/s all together"),
    )
    drawing.rect(LEFT - 12, top, INNER + 24, y + 12 - top, fill="none", stroke=STROKES["plain"], round=6, dash="5 4")
    drawing.text(LEFT, top + 22, f"In each of the {count} multiprocessors", size=14, color=MUTED)
    middle = WIDTH / 2
    drawing.line(middle, y + 12, middle, y + 30, arrow=True, width=1.5)
    y = level(
        drawing, y + 32, "orange", "L2 cache", f"{L2_CYCLES} cycles", L2_CYCLES,
        (f"{L2_MIB} MiB, one for all multiprocessors", f"about {two_digits(copied_in_l2)} TB/s in a copy"),
    )
    drawing.line(middle, y, middle, y + 18, arrow=True, width=1.5)
    y = level(
        drawing, y + 20, "red", "DRAM", f"{DRAM_CYCLES} cycles", DRAM_CYCLES,
        ("141 GB of HBM3e, beside the chip", f"4.8 TB/s; a copy reaches {two_digits(copied)}"),
    )
    drawing.height = small_print(
        drawing, y + 24,
        "The bars show how long a load waits, to scale. Measured on an H100 PCIe, in cycles of 1.755 GHz.",
    ) - 2
    return drawing


def multiprocessor_of(block: int, multiprocessors: int, room: int) -> int | None:
    """Which multiprocessor takes a block when the launch begins, in turn; None for one that waits."""
    return block % multiprocessors if block < multiprocessors * room else None


def block_box(drawing: Drawing, x: float, y: float, width: float, block: int, shown: int, waits: bool) -> None:
    color = "orange" if block == shown else "plain" if waits else "blue"
    drawing.rect(x, y, width, 28, color, strong=block == shown, round=3)
    drawing.text(x + width / 2, y + 19, str(block), size=14, anchor="middle", bold=block == shown)


def magnify(drawing: Drawing, left: float, right: float, y: float, below: float) -> None:
    """Lines from the two ends of a box to the ends of the row that shows it larger."""
    drawing.line(left, y, LEFT, below, color=STROKES["orange"], dash="3 3")
    drawing.line(right, y, LEFT + INNER, below, color=STROKES["orange"], dash="3 3")


def grid_to_lanes() -> Drawing:
    """A grid's blocks on multiprocessors, a block's warps, a warp's lanes."""
    blocks, threads, multiprocessors, room = 12, 256, 4, 2
    shown, shown_warp = 5, 6
    warps = threads // WARP
    places = [multiprocessor_of(block, multiprocessors, room) for block in range(blocks)]
    waiting = [block for block, place in enumerate(places) if place is None]
    drawing = Drawing(
        WIDTH, 520,
        "From a grid to a lane",
        f"A launch of {blocks} blocks of {threads} threads. {multiprocessors} multiprocessors take {room} blocks each, "
        f"and {len(waiting)} blocks wait. Block {shown} has {warps} warps; warp {shown_warp} has {WARP} lanes.",
    )
    drawing.text(LEFT - 12, 30, "From a grid to a lane", size=16, bold=True)

    y = 76.0
    drawing.text(LEFT, y - 12, f"A launch: a grid of {blocks} blocks of {threads} threads", size=14)
    cell = INNER / blocks
    for block, place in enumerate(places):
        block_box(drawing, LEFT + block * cell + 2, y, cell - 4, block, shown, place is None)

    y = 154.0
    drawing.text(LEFT, y - 30, f"{multiprocessors} multiprocessors (SM), with room for {room} blocks each;", size=14)
    drawing.text(LEFT, y - 11, f"blocks {waiting[0]} to {waiting[-1]} wait until one ends", size=14)
    wide = INNER / multiprocessors
    chosen = (0.0, 0.0)
    for number in range(multiprocessors):
        x = LEFT + number * wide
        drawing.rect(x + 3, y, wide - 6, 66, fill=PANEL, stroke=STROKES["plain"], round=5, strong=True)
        drawing.text(x + wide / 2, y + 20, f"SM {number}", size=13, anchor="middle", color=MUTED)
        for slot, block in enumerate(b for b, place in enumerate(places) if place == number):
            width = (wide - 18) / room
            left = x + 9 + slot * width
            block_box(drawing, left + 2, y + 30, width - 4, block, shown, False)
            if block == shown:
                chosen = (left + 2, left + width - 2)

    below = 250.0
    magnify(drawing, *chosen, y + 59, below)
    y, part = below + 4, INNER / warps
    for warp in range(warps):
        strong = warp == shown_warp
        x = LEFT + warp * part
        drawing.rect(x + 2, y, part - 4, 30, "orange" if strong else "blue", strong=strong, round=3)
        drawing.text(x + part / 2, y + 20, f"warp {warp}", size=12.5, anchor="middle", bold=strong)
    drawing.text(LEFT, y + 51, f"Block {shown}: {warps} warps, which have a", size=14)
    drawing.text(LEFT, y + 70, "shared memory, and can wait", size=14)
    drawing.text(LEFT, y + 89, "for each other", size=14)

    below = y + 106
    middle = LEFT + (shown_warp + 0.5) * part
    drawing.line(middle, y + 32, middle, below, color=STROKES["orange"], width=1.5, arrow=True)
    y, width = below + 4, INNER / WARP
    for lane in range(WARP):
        drawing.rect(LEFT + lane * width + 1, y, width - 2, 26, "orange", round=2)
        if lane % 8 == 0 or lane == WARP - 1:
            drawing.text(LEFT + (lane + 0.5) * width, y + 43, str(lane), size=12.5, anchor="middle", color=MUTED)
    first = shown_warp * WARP
    threads_of_warp = f"threads {first} to {first + WARP - 1} of the block."
    drawing.text(LEFT, y + 66, f"Warp {shown_warp}: {WARP} lanes, {threads_of_warp}", size=14)
    drawing.text(LEFT, y + 85, "They execute each instruction together", size=14)
    drawing.height = y + 102
    return drawing
