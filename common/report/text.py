"""How a figure and a table are written. Imports nothing of this folder."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

STALE_NOTE = "† measured on an earlier version of the kernel"
MISSING = "–"
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Table:
    text: str
    stale: bool


def significant(value: float, digits: int = 3) -> str:
    """`value` rounded to `digits` significant digits: 0.0817, 8.05, 4150, 4.10 × 10⁶."""
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".split("e")[1])  # after rounding: 9.999 has that of 10
    if exponent >= 6 or exponent < -4:
        return f"{value / 10.0**exponent:.{digits - 1}f} × 10{str(exponent).translate(SUPERSCRIPT)}"
    decimals = digits - 1 - exponent
    return f"{round(value, decimals):.{max(decimals, 0)}f}"


def percent(ratio: float) -> str:
    return f"{ratio * 100:.1f} %"


def dagger(text: str, stale: bool) -> str:
    return f"{text}†" if stale else text


def short_kernel(name: str) -> str:
    """Without the namespaces, also in template arguments: layernorm_two_pass<&tree_sum>."""
    return re.sub(r"(?:\w+::)+", "", name)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A pipe table: the first `left` columns flush left, the rest flush right."""
    lines = [head, ["---" if i < left else "---:" for i in range(len(head))], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def caption(parts: Iterable[str], stale: bool) -> str:
    sentences = [part for part in [*parts, STALE_NOTE if stale else ""] if part]
    return "\n\n<sub>" + ". ".join(sentences) + ".</sub>"
