#!/usr/bin/env python3
"""What y in eight bits loses: rounded once, from fp32, or after it was rounded to bf16; scales of rows and of blocks.

    python3 common/report/quantized_error.py            writes docs/data/quantized_error.json
    python3 common/report/quantized_error.py --check    compares it with what comes out now: a test

Figures of stage 06's page on eight bits. The rows are RMSNorm's y of normally distributed values, always the same; a
second kind has a column in 128 that is 20 times the rest, as activations of transformers have them.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from offset_error import differing
from origins import write_figures
from rounded_sum import bf16, fp32

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "docs/data/quantized_error.json"
ROWS, COLS, BLOCK = 16, 1024, 128


def e4m3(value: float) -> float:
    """Rounded to nearest even: 4 significant bits, steps of 2^-9 below 2^-6, 448 at most."""
    exponent = max(math.frexp(value)[1] - 4, -9)
    rounded = math.ldexp(round(math.ldexp(value, -exponent)), exponent)
    return max(-448.0, min(448.0, rounded))


def int8(value: float) -> float:
    return float(max(-128, min(127, round(value))))


def quantized(y: Sequence[float], largest: float, rounding: Callable[[float], float], length: int) -> list[float]:
    """y as who multiplies by the scale has it, with a scale of each `length` columns."""
    found: list[float] = []
    for first in range(0, len(y), length):
        block = y[first : first + length]
        scale = fp32(max(abs(value) for value in block) / largest)
        found += [rounding(value / scale) * scale for value in block]
    return found


def rows_of(outliers: bool) -> list[list[float]]:
    generator = random.Random(11)
    rows = []
    for _ in range(ROWS):
        x = [generator.gauss(0.0, 1.0) * (20 if outliers and col % BLOCK == 5 else 1) for col in range(COLS)]
        rms = math.sqrt(math.fsum(value * value for value in x) / COLS)
        rows.append([fp32(value / rms) for value in x])
    return rows


def off(got: Sequence[Sequence[float]], want: Sequence[Sequence[float]]) -> float:
    """The root mean square of the error over that of y."""
    pairs = [(a, b) for one, other in zip(got, want) for a, b in zip(one, other)]
    error = math.fsum((a - b) ** 2 for a, b in pairs)
    return math.sqrt(error / math.fsum(b * b for _, b in pairs))


def figures() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}

    def add(name: str, value: float, meaning: str) -> None:
        found[name] = {"value": float(f"{value:.4g}"), "unit": "x", "meaning": meaning}

    for kind, outliers in (("plain", False), ("outliers", True)):
        rows = rows_of(outliers)
        for name, largest, rounding in (("e4m3", 448.0, e4m3), ("int8", 127.0, int8)):
            for scaling, length in (("row", COLS), ("block", BLOCK)):
                once = [quantized(row, largest, rounding, length) for row in rows]
                meaning = f"{kind} rows, {name}, a scale of each {scaling}: error of y over y, root mean square"
                add(f"{kind}_{name}_{scaling}", off(once, rows), meaning)
    rows = rows_of(False)
    once = [quantized(row, 448.0, e4m3, COLS) for row in rows]
    twice = [quantized([bf16(value) for value in row], 448.0, e4m3, COLS) for row in rows]
    add("twice", off(twice, rows), "plain rows, e4m3, a scale of each row, y rounded to bf16 before: the same")
    add("apart", off(twice, once), "what the two differ by, in the same measure")
    steps = 0
    for row in rows:
        own = fp32(max(abs(value) for value in row) / 448.0)
        rounded = [bf16(value) for value in row]
        other = fp32(max(abs(value) for value in rounded) / 448.0)
        steps += sum(e4m3(a / own) != e4m3(b / other) for a, b in zip(row, rounded))
    add("differing", steps / (ROWS * COLS), "share of the bytes that differ, y rounded to bf16 before or not")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where the file differs")
    arguments = parser.parse_args(argv)
    found = figures()
    if arguments.check:
        kept = json.loads(DATA.read_text(encoding="utf-8"))["figures"]
        problems = differing(kept, found)
        print("\n".join(problems) or f"{len(kept)} figures agree")
        return 1 if problems else 0
    source = {
        "title": "What y in eight bits loses", "shape": f"{ROWS}x{COLS}", "dtype": "fp32",
        "input": "normal; outliers: a column in 128 is 20 times the rest",
        "note": "Made by common/report/quantized_error.py; a test compares it with what comes out now.",
    }
    write_figures(DATA, source, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
