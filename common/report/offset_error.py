#!/usr/bin/env python3
"""How far LayerNorm is off where a row's mean is large against its deviation: four ways to the statistics, in fp32.

    python3 common/report/offset_error.py            writes docs/data/offset_error.json
    python3 common/report/offset_error.py --check    compares it with what comes out now: a test

The chart of docs/numerics.md. Each operation is computed in double precision and rounded to fp32, in the order of the
stages' kernels: 256 threads, each with every 256th value of the row, then a tree. A multiplication and an addition that
a GPU does in one instruction are rounded once.
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

from origins import write_figures
from rounded_sum import fp32

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "docs/data/offset_error.json"
ROWS, COLS, THREADS, EPS = 8, 1024, 256, 1e-5
RATIOS = tuple(10 ** (step / 2) for step in range(13))  # of the mean to the deviation: 1 to a million

Statistics = tuple[tuple[float, ...], float]  # the mean, as a sum of floats, and the variance
Moments = tuple[float, float, float]  # count, mean, sum of the squared deviations


def tree(values: Sequence[Any], add: Callable[[Any, Any], Any]) -> Any:
    """The upper half of what is left is added to the lower half."""
    left = list(values)
    while len(left) > 1:
        half = len(left) // 2
        left = [add(left[i], left[i + half]) for i in range(half)]
    return left[0]


def sum_of(row: Sequence[float], term: Callable[[float, float], float]) -> float:
    """`term` adds what a value contributes to what a thread has."""
    sums = []
    for thread in range(THREADS):
        own = 0.0
        for value in row[thread::THREADS]:
            own = fp32(term(own, value))
        sums.append(own)
    return tree(sums, lambda a, b: fp32(a + b))


def mean_of(row: Sequence[float]) -> float:
    return fp32(sum_of(row, lambda own, value: own + value) / COLS)


def one_pass(row: Sequence[float]) -> Statistics:
    mean = mean_of(row)
    square = fp32(sum_of(row, lambda own, value: own + value * value) / COLS)
    return (mean,), fp32(square - mean * mean)


def two_pass(row: Sequence[float]) -> Statistics:
    mean = mean_of(row)
    deviations = [fp32(value - mean) for value in row]
    return (mean,), fp32(sum_of(deviations, lambda own, value: own + value * value) / COLS)


def add_value(moments: Moments, value: float) -> Moments:
    count, mean, squares = moments
    count += 1.0
    difference = fp32(value - mean)
    mean = fp32(mean + fp32(difference / count))
    return count, mean, fp32(squares + difference * fp32(value - mean))


def merge(a: Moments, b: Moments) -> Moments:
    count = a[0] + b[0]
    share = fp32(b[0] / count)
    difference = fp32(b[1] - a[1])
    squares = fp32(fp32(a[2] + b[2]) + fp32(fp32(difference * difference) * a[0]) * share)
    return count, fp32(a[1] + difference * share), squares


def welford(row: Sequence[float]) -> Statistics:
    """Stage 05's `textbook`: Welford's step for each value, Chan's merge of the threads."""
    threads: list[Moments] = []
    for thread in range(THREADS):
        moments: Moments = (0.0, 0.0, 0.0)
        for value in row[thread::THREADS]:
            moments = add_value(moments, value)
        threads.append(moments)
    count, mean, squares = tree(threads, merge)
    return (mean,), fp32(squares / count)


def split_mean(row: Sequence[float]) -> Statistics:
    """The mean in two floats: what the first is off by is the mean of the deviations from it."""
    mean = mean_of(row)
    deviations = [fp32(value - mean) for value in row]
    rest = mean_of(deviations)
    return (mean, rest), two_pass([fp32(value - rest) for value in deviations])[1]


WAYS: dict[str, Callable[[Sequence[float]], Statistics]] = {
    "one_pass": one_pass, "two_pass": two_pass, "welford": welford, "split_mean": split_mean,
}


def error_of(row: Sequence[float], statistics: Statistics) -> float:
    """The largest error of an output, of which the root mean square is 1; not finite where an output is not."""
    means, variance = statistics
    if variance + EPS <= 0.0:
        return math.inf
    rstd = fp32(1.0 / fp32(math.sqrt(fp32(variance + EPS))))
    true_mean = math.fsum(row) / COLS
    true_rstd = 1.0 / math.sqrt(math.fsum((value - true_mean) ** 2 for value in row) / COLS + EPS)
    largest = 0.0
    for value in row:
        deviation = value
        for mean in means:
            deviation = fp32(deviation - mean)
        largest = max(largest, abs(fp32(deviation * rstd) - (value - true_mean) * true_rstd))
    return largest


def rows_of(ratio: float) -> list[list[float]]:
    """As stored in fp32: what they lose by it is no kernel's error."""
    generator = random.Random(5)
    return [[fp32(ratio + generator.gauss(0.0, 1.0)) for _ in range(COLS)] for _ in range(ROWS)]


def name_of(way: str, ratio: float) -> str:
    return f"{way}_{ratio:.0f}"


def figures() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for ratio in RATIOS:
        rows = rows_of(ratio)
        for way, statistics in WAYS.items():
            errors = [error_of(row, statistics(row)) for row in rows]
            kept = [error for error in errors if math.isfinite(error)]
            words = f"{way.replace('_', ' ')}, mean {ratio:.4g} times the deviation"
            name = name_of(way, ratio)
            if kept:
                meaning = f"{words}: largest error of an output, in the row's deviation"
                found[name] = {"value": float(f"{max(kept):.4g}"), "unit": "absolute", "meaning": meaning}
            if len(kept) < ROWS:
                meaning = f"{words}: rows of {ROWS} that are lost, their variance being negative"
                found[f"{name}_lost"] = {"value": ROWS - len(kept), "unit": "count", "meaning": meaning}
    return found


def differing(kept: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> list[str]:
    """The last digit may depend on the mathematics library."""
    return [
        f"{name}: {kept.get(name, {}).get('value')} in docs/data, {now.get(name, {}).get('value')} now"
        for name in sorted(kept.keys() | now.keys())
        if name not in kept or name not in now
        or not math.isclose(kept[name]["value"], now[name]["value"], rel_tol=2e-3)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a figure differs")
    options = parser.parse_args()
    found = figures()
    if options.check:
        kept = json.loads(DATA.read_text(encoding="utf-8"))["figures"]
        problems = differing(kept, found)
        print("\n".join(problems) or f"{len(kept)} figures agree")
        return 1 if problems else 0
    source = {
        "title": "LayerNorm in fp32 by four ways to the statistics, by how large the mean is against the deviation",
        "shape": f"{ROWS}x{COLS}",
        "dtype": "fp32",
        "input": "normal: deviation 1 around each mean",
        "note": "Made by common/report/offset_error.py; a test compares it with what comes out now.",
    }
    write_figures(DATA, source, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
