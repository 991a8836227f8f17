"""What a picture that stands still cannot show: the tree, the shuffles and the ring of real traces, as they go.

Each step is a band of the picture, and stays; the animation only leads the eye from one to the next. So a reader who
wants no motion (prefers-reduced-motion) sees all of it, and so does a program that draws SVG without CSS.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from svg import INK, MUTED, STROKES, Drawing, coordinate

WIDTH, LEFT = 480, 20
LANES = 32
ALL_LANES = 0xFFFFFFFF
SECONDS = 1.4  # that a step is in front


def style(steps: int) -> str:
    """Each band `.step` is in front for its part of the turn; what moves in it is `.moves`."""
    part = 100 / steps
    turn = steps * SECONDS
    delays = "".join(
        f".s{i},.s{i} .moves{{animation-delay:{coordinate(i * SECONDS)}s}}" for i in range(steps)
    )
    return (
        "<style>@media (prefers-reduced-motion:no-preference){"
        f"@keyframes front{{0%,{coordinate(part)}%{{opacity:1}}{coordinate(part * 1.15)}%,96%{{opacity:.45}}}}"
        f"@keyframes move{{0%{{transform:translate(var(--x),var(--y))}}"
        f"{coordinate(part * 0.75)}%,100%{{transform:none}}}}"
        f".step{{opacity:.45;animation:front {coordinate(turn)}s linear infinite}}"
        f".moves{{animation:move {coordinate(turn)}s ease-in-out infinite}}{delays}}}</style>"
    )


def heading(drawing: Drawing, y: float, lines: Sequence[str]) -> float:
    for line in lines:
        drawing.text(LEFT, y, line, size=15, bold=True)
        y += 19
    return y


def tree_steps(trace: dict[str, Any]) -> list[dict[int, int]]:
    """The first tree of the trace, between its barriers: which threads add in a step, by warp as a mask of lanes."""
    found: list[dict[int, int]] = [{}]
    for step in trace["steps"]:
        if step["operation"] == "barrier":
            if len(found) > 1 and not found[-1]:
                break
            found.append({})
        elif step["operation"] == "shared_store":
            found[-1][step["warp"]] = found[-1].get(step["warp"], 0) | step["lanes"]
    return [step for step in found if step]


def tree_in_time(trace: dict[str, Any]) -> str:
    """Stage 02's tree: who writes shared memory, from the values of all threads to one sum."""
    threads = trace["block"][0]
    warps = threads // LANES
    steps = tree_steps(trace)
    at_work = [sum(mask.bit_count() for mask in step.values()) for step in steps]
    title = f"From {at_work[0]} values to one in {len(steps) - 1} steps"
    drawing = Drawing(
        WIDTH, 0, title,
        f"A block of {threads} threads on the CPU layer: {', '.join(map(str, at_work))} of them write shared memory, "
        "with a barrier after each step.",
    )
    y = heading(drawing, 32, textwrap.wrap(title, 46))
    drawing.text(LEFT, y, "A row is a warp, a filled square a thread that adds.", size=13, color=MUTED)
    y += 16
    cell, gap = 7.6, 14.0
    for index, step in enumerate(steps):
        drawing.parts.append(f'<g class="step s{index}">')
        shown = [warp for warp in range(warps) if index == 0 or warp in steps[index - 1]]
        words = f"{at_work[0]} write" if index == 0 else f"{at_work[index]} add" if at_work[index] > 1 else "1 adds"
        drawing.text(WIDTH - LEFT, y + 12, words, size=13, anchor="end")
        for row, warp in enumerate(shown):
            mask = step.get(warp, 0)
            # An outline for the warp, and a bar for each run of lanes at work.
            drawing.rect(LEFT, y + row * 8, 32 * cell, 6, fill="#f6f8fa", stroke=STROKES["plain"], round=0,
                         stroke_width=0.5)
            runs = "".join(
                f"M{coordinate(LEFT + lane * cell + 0.4)} {coordinate(y + row * 8 + 0.6)}h{coordinate(cell - 0.8)}"
                f"v4.8h-{coordinate(cell - 0.8)}z" for lane in range(LANES) if mask >> lane & 1
            )
            if runs:
                drawing.parts.append(f'<path d="{runs}" fill="{STROKES["green"]}"/>')
        drawing.text(LEFT + 32 * cell + 14, y + 12, f"{len(step)} warp{'s' if len(step) > 1 else ''}",
                     size=13, bold=True)
        drawing.parts.append("</g>")
        y += max(len(shown) * 8, 16) + gap
    drawing.height = y + 4
    drawing.parts.insert(0, style(len(steps)))
    return drawing.render()


def shuffle_steps(trace: dict[str, Any]) -> list[list[int]]:
    """The first sum of warp 0: from which lane each lane reads, in each shuffle."""
    found: list[list[int]] = []
    for step in trace["steps"]:
        if step["warp"] == 0 and step["operation"] == "shuffle":
            found.append(list(step["offset"]))
        elif found and step["warp"] == 0:
            break
    return found


def shuffles_in_time(trace: dict[str, Any]) -> str:
    """Stage 03's sum: each value travels to the lane that reads it."""
    steps = shuffle_steps(trace)
    title = f"{len(steps)} shuffles, and all {LANES} lanes have the sum"
    distances = [abs(step[0] - 0) for step in steps]
    drawing = Drawing(
        WIDTH, 0, title,
        f"A warp on the CPU layer: each lane reads the register of a lane {', '.join(map(str, distances))} away.",
    )
    y = heading(drawing, 32, textwrap.wrap(title, 46))
    drawing.text(LEFT, y, "A dot is a lane's value on its way to the lane that reads it.", size=13, color=MUTED)
    y += 14
    cell = (WIDTH - 2 * LEFT) / LANES
    summed = [{lane} for lane in range(LANES)]
    height = 62.0
    for index, (step, distance) in enumerate(zip(steps, distances)):
        drawing.parts.append(f'<g class="step s{index}">')
        summed = [summed[lane] | summed[step[lane]] for lane in range(LANES)]
        drawing.text(LEFT, y + 14, f"from {distance} lane{'s' if distance > 1 else ''} away", size=13, bold=True)
        drawing.text(WIDTH - LEFT, y + 14, f"each has the sum of {len(summed[0])}", size=13, anchor="end")
        for lane in range(LANES):
            x = LEFT + lane * cell
            for top in (22, 46):
                drawing.rect(x + 1, y + top, cell - 2, 9, fill="#f6f8fa", stroke=STROKES["plain"], round=1,
                             stroke_width=0.6)
        paths = "".join(
            f"M{coordinate(LEFT + (source + 0.5) * cell)} {coordinate(y + 31)}"
            f"L{coordinate(LEFT + (lane + 0.5) * cell)} {coordinate(y + 46)}" for lane, source in enumerate(step)
        )
        drawing.parts.append(f'<path d="{paths}" stroke="{STROKES["purple"]}" stroke-width="0.6" opacity="0.45"/>')
        for lane, source in enumerate(step):
            x = LEFT + (lane + 0.5) * cell
            drawing.parts.append(
                f'<circle class="moves" cx="{coordinate(x)}" cy="{coordinate(y + 50.5)}" r="3" '
                f'fill="{STROKES["purple"]}" style="--x:{coordinate((source - lane) * cell)}px;--y:-24px"/>'
            )
        drawing.parts.append("</g>")
        y += height + 6
    drawing.text(LEFT, y + 8, "Lanes 0 to 31 from left to right. No barrier.", size=13,
                 color=INK)
    drawing.height = y + 24
    drawing.parts.insert(0, style(len(steps)))
    return drawing.render()


@dataclass(frozen=True)
class RowInRing:
    """When a warp's steps reach a row, as numbers of steps: first and last of each kind."""

    copied: tuple[int, int]  # its copies to shared memory start
    read: tuple[int, int]  # for its moments
    stored: tuple[int, int]


def rows_in_ring(trace: dict[str, Any]) -> tuple[list[RowInRing], int]:
    """What warp 0 does with each row of the block, and how many steps it has."""
    x = next(tensor for tensor in trace["tensors"] if tensor["name"] == "x")
    row_bytes = x["stride"] * x["element_bytes"]
    steps = [step for step in trace["steps"] if step["warp"] == 0 and "barrier" not in step["operation"]]
    copies: dict[int, list[int]] = {}
    stores: dict[int, list[int]] = {}
    reads = []
    for place, step in enumerate(steps):
        lane = (step["lanes"] & -step["lanes"]).bit_length() - 1
        row = step["offset"][lane] // row_bytes if step["offset"] else 0
        if step["operation"] == "async_copy_load" and step["memory"] == "x":
            copies.setdefault(row, []).append(place)
        elif step["operation"] == "global_store" and step["memory"] == "y":
            stores.setdefault(row, []).append(place)
        elif step["operation"] == "shared_load" and step["bytes"] == 16 and step["lanes"] == ALL_LANES:
            following = steps[place + 1] if place + 1 < len(steps) else None
            if not following or following["operation"] != "global_store":  # else it is read for the output
                reads.append(place)
    rows = []
    for row, copied in copies.items():  # the moments are found in the rows' order, a read for each copy
        of_row, reads = reads[: len(copied)], reads[len(copied) :]
        rows.append(RowInRing((copied[0], copied[-1]), (of_row[0], of_row[-1]), (stores[row][0], stores[row][-1])))
    return rows, len(steps)


def ring_in_time(trace: dict[str, Any]) -> str:
    """Stage 05's ring: rows on their way while another is computed."""
    rows, steps = rows_in_ring(trace)
    places = sum(row.copied[0] < rows[0].stored[0] for row in rows)
    title = f"While a row is stored, {places - 1} more are here or on their way"
    told = "; ".join(
        f"row {number}: copies start at step {row.copied[0]}, moments from {row.read[0]}, stored from {row.stored[0]} "
        f"to {row.stored[1]}" for number, row in enumerate(rows)
    )
    drawing = Drawing(WIDTH, 0, title, f"A warp of a block on the CPU layer, with {places} stages. {told}.")
    y = heading(drawing, 32, textwrap.wrap(title, 46))
    drawing.text(LEFT, y, "From left to right, the steps of a warp.", size=13, color=MUTED)
    y += 14
    begin = y
    unit = (WIDTH - 2 * LEFT) / steps
    height = 46.0
    for place in range(places):
        drawing.text(LEFT, y + 13, f"stage {place}", size=13, bold=True)
        of_place = list(enumerate(rows))[place::places]
        # A row's copies follow its predecessor's stores one by one, so that the two bars share a height.
        for first, last, color, top, high, fill in (
            bar for _, row in of_place for bar in (
                (row.copied[0], row.stored[1], "plain", 20, 20, None),
                (row.copied[0], row.read[0] - 1, "blue", 20, 20, None),
                (*row.read, "purple", 25, 10, STROKES["purple"]),
            )
        ):
            drawing.rect(LEFT + first * unit, y + top, (last - first + 1) * unit, high, color, round=0, fill=fill,
                         stroke_width=0.8)
        for number, row in of_place:
            first, last = row.stored
            drawing.rect(LEFT + first * unit, y + 30, (last - first + 1) * unit, 10, "orange", round=0,
                         fill=STROKES["orange"], stroke_width=0.8)
            drawing.text(LEFT + (row.copied[1] + 1) * unit + 3, y + 35, str(number), size=13, bold=True)
        y += height
    y += 6
    x = float(LEFT)
    for words, color, strong in (("on its way", "blue", False), ("here", "plain", False), ("moments", "purple", True),
                                 ("normalized, stored", "orange", True)):
        drawing.rect(x, y, 14, 14, color, round=0, fill=STROKES[color] if strong else None)
        drawing.text(x + 19, y + 12, words, size=13)
        x += 36 + 7.4 * len(words)
    drawing.parts.append(
        f'<path class="time" d="M{LEFT} {coordinate(begin + 16)}V{coordinate(y - 8)}" stroke="{INK}" '
        'stroke-width="1.5"/>'
    )
    drawing.height = y + 30
    seconds = 2 * len(rows)
    drawing.parts.insert(0, (
        "<style>.time{visibility:hidden}@media (prefers-reduced-motion:no-preference){"
        f"@keyframes time{{to{{transform:translateX({WIDTH - 2 * LEFT}px)}}}}"
        f".time{{visibility:visible;animation:time {seconds}s linear infinite}}}}</style>"
    ))
    return drawing.render()
