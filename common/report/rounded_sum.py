#!/usr/bin/env python3
"""What becomes of a norm where the sum before it is rounded or is not, and of the two orders of rounding in RMSNorm.

    python3 common/report/rounded_sum.py            writes docs/data/rounded_sum.json
    python3 common/report/rounded_sum.py --check    compares it with what comes out now: a test

Figures of stage 06's writeup. Everything is computed here, in double precision, and rounded to bf16 only where it is
said; the values are normally distributed and always the same.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import struct
import sys
from pathlib import Path
from typing import Any

from origins import write_figures

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "docs/data/rounded_sum.json"
ROWS, COLS, EPS = 64, 1024, 1e-6
RESIDUAL_DEVIATION = 8.0  # a residual that has passed through many layers is larger than what the next one adds


def bf16(value: float) -> float:
    """`value` rounded to bf16, to nearest even. It must be finite, and normal in fp32."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 256), exponent - 8)


def fp32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def ulp(value: float) -> float:
    """The distance between neighboring bf16 numbers at `value`."""
    return math.ldexp(1.0, math.frexp(value)[1] - 8)


def layer_norm(h: list[float]) -> tuple[float, float]:
    mean = math.fsum(h) / len(h)
    return mean, 1.0 / math.sqrt(math.fsum((v - mean) ** 2 for v in h) / len(h) + EPS)


def rms(values: list[float]) -> float:
    return math.sqrt(math.fsum(v * v for v in values) / len(values))


def figures() -> dict[str, dict[str, Any]]:
    generator = random.Random(6)
    outputs, summed, xhat_off, once_off, twice_off, orders = 0, 0, [], [], [], 0
    dgamma_rounded, dgamma_other = [0.0] * COLS, [0.0] * COLS
    largest = 0.0
    for _ in range(ROWS):
        x = [bf16(generator.gauss(0.0, 1.0)) for _ in range(COLS)]
        residual = [bf16(generator.gauss(0.0, RESIDUAL_DEVIATION)) for _ in range(COLS)]
        gamma = [bf16(generator.gauss(1.0, 0.1)) for _ in range(COLS)]
        dy = [bf16(generator.gauss(0.0, 1.0)) for _ in range(COLS)]
        exact = [fp32(a + b) for a, b in zip(x, residual)]
        stored = [bf16(value) for value in exact]
        mean, rstd = layer_norm(stored)
        mean_exact, rstd_exact = layer_norm(exact)
        for j in range(COLS):
            # What a backward pass computes from the h that is stored, and what the forward pass had normalized.
            seen, used = (stored[j] - mean_exact) * rstd_exact, (exact[j] - mean_exact) * rstd_exact
            xhat_off.append(seen - used)
            y, y_exact = bf16((stored[j] - mean) * rstd), bf16(used)
            outputs += y != y_exact
            largest = max(largest, abs(y - y_exact) / ulp(max(abs(y_exact), 1.0)))
            summed += stored[j] != exact[j]
            dgamma_rounded[j] += dy[j] * seen
            dgamma_other[j] += dy[j] * used

        scale = 1.0 / math.sqrt(rms(stored) ** 2 + EPS)
        for value, weight in zip(stored, gamma):
            wanted = value * scale * weight
            once, twice = bf16(wanted), bf16(bf16(value * scale) * weight)
            once_off.append(abs(once - wanted) / ulp(wanted))
            twice_off.append(abs(twice - wanted) / ulp(wanted))
            orders += once != twice
    elements = ROWS * COLS

    def entry(value: float, unit: str, meaning: str) -> dict[str, Any]:
        return {"value": float(f"{value:.4g}"), "unit": unit, "meaning": meaning}

    return {
        "sums_rounded": entry(summed / elements, "x", "share of the sums that are no bf16 numbers"),
        "outputs_differing": entry(
            outputs / elements, "x", "share of the outputs that differ, x + residual rounded or not"
        ),
        "largest_difference": entry(largest, "ulp", "largest difference of two such outputs, in ulp at max(|y|, 1)"),
        "xhat_off": entry(
            rms(xhat_off), "absolute",
            "root mean square of what a backward pass would see amiss in xhat, whose own is 1",
        ),
        "dgamma_off": entry(
            rms([a - b for a, b in zip(dgamma_rounded, dgamma_other)]) / rms(dgamma_other),
            "x",
            "relative error of dgamma thereby",
        ),
        "orders_differing": entry(
            orders / elements, "x", "share of RMSNorm's outputs that differ with the order of rounding"
        ),
        "once_off": entry(max(once_off), "ulp", "largest error of RMSNorm rounded once"),
        "twice_off": entry(max(twice_off), "ulp", "largest error of RMSNorm rounded before gamma too"),
        "once_rms": entry(rms(once_off), "ulp", "root mean square of the error, rounded once"),
        "twice_rms": entry(rms(twice_off), "ulp", "root mean square of the error, rounded before gamma too"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a figure differs")
    options = parser.parse_args()
    found = figures()
    if options.check:
        kept = json.loads(DATA.read_text(encoding="utf-8"))["figures"]
        # The last digit may depend on the mathematics library.
        differing = [
            f"{name}: {kept.get(name, {}).get('value')} in docs/data, {figure['value']} now"
            for name, figure in found.items()
            if not math.isclose(kept.get(name, {}).get("value", -1.0), figure["value"], rel_tol=2e-3)
        ]
        print("\n".join(differing) or f"{len(kept)} figures agree")
        return 1 if differing else 0
    source = {
        "title": "A norm of x + residual with the sum rounded to bf16 and not, "
        "and RMSNorm with one rounding and with two",
        "shape": f"{ROWS}x{COLS}",
        "dtype": "bf16",
        "input": f"normal: x has deviation 1, the residual {RESIDUAL_DEVIATION:g}, gamma 0.1 around 1",
        "note": "Made by common/report/rounded_sum.py; a test compares it with what comes out now.",
    }
    write_figures(DATA, source, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
