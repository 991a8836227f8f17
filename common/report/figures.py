"""Figures by name: where one is found, and how it is written.

A key is one of

    01_naive/thread_per_row/layernorm_forward/fp32/1024x1024/cold   a timing, as its benchmark is named
    01_naive/thread_per_row/layernorm_forward/fp32/1024x1024/arange a check on an input
    peers/torch.compile/layernorm_forward/bf16/262144x1024/cold     another library's timing
    data/article_worklog/naive                                      a figure in docs/data/
    context/01_naive/empty_launch_us                                what the stage's results file says of the machine
    counters/04_vectorized/cached/layernorm_forward/fp32/1024x1024  what the hardware counted of it, with counter=NAME
    compare/ours/layernorm_forward/bf16/65536x4096/cold             our time in docs/compare/, beside others in one
                                                                    process; compare/best: that of the fastest other
                                                                    library whose result was right
    compare/lost/layernorm_forward,rmsnorm_forward                  how many timings by the GPU's clock are lost there
                                                                    (or won, level); in percent, their share

`best` instead of a variant or peer is the fastest one (of a check: the one with the smallest error).
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass

from results import MODES, PEERS, Check, Repository, ReportError, Timing
from text import dagger, percent, significant

# unit: (what it measures, its size in the base unit, how it is written after the number)
UNITS = {
    "s": ("time", 1.0, " s"),
    "ms": ("time", 1e-3, " ms"),
    "us": ("time", 1e-6, " µs"),
    "ns": ("time", 1e-9, " ns"),
    "GB/s": ("rate", 1e9, " GB/s"),
    "TB/s": ("rate", 1e12, " TB/s"),
    "percent": ("ratio", 1e-2, " %"),
    "x": ("ratio", 1.0, "x"),
    "ulp": ("ulp", 1.0, " ulp"),
    "absolute": ("error", 1.0, ""),
    "count": ("count", 1.0, ""),
    "B": ("bytes", 1.0, " B"),
    "KiB": ("bytes", 2.0**10, " KiB"),
    "MiB": ("bytes", 2.0**20, " MiB"),
    "GiB": ("bytes", 2.0**30, " GiB"),
    "MB": ("bytes", 1e6, " MB"),
    "GB": ("bytes", 1e9, " GB"),
}

COUNTERS = {
    "median_seconds": "time",
    "copy_seconds": "time",
    "copy_bytes_per_second": "rate",
    "bytes_per_second": "rate",
    "share_of_copy": "ratio",
    "spread": "ratio",
    "bytes": "bytes",
    "samples": "count",
    "max_ulp_error": "ulp",
    "max_abs_error": "error",
    "differing": "count",
    "compared": "count",
}
# Of what a results file says of the machine, by the end of its name, else a count.
MACHINE = {"_us": ("time", 1e-6), "_bytes": ("bytes", 1.0)}
# Of the hardware's counters (counters.py): by the end of their name, else a count.
HARDWARE = {"_bytes": "bytes", "_percent": "ratio", "_ns": "time"}
HARDWARE_SIZE = {"bytes": 1.0, "ratio": 1e-2, "time": 1e-9, "count": 1.0}

DEFAULT_COUNTER = {
    "time": "median_seconds", "rate": "bytes_per_second", "ratio": "share_of_copy", "ulp": "max_ulp_error",
    "error": "max_abs_error", "count": "differing", "bytes": "bytes",
}


@dataclass(frozen=True)
class Figure:
    value: float  # in the base unit of `dimension`
    dimension: str
    stale: bool = False


def find(repository: Repository, key: str, gpu: str) -> Timing | Check:
    """The timing or check that `key` names."""
    parts = key.split("/")
    if len(parts) != 6:
        raise ReportError(f"'{key}' is not stage/variant/operation/dtype/shape/timing, nor data/file/name")
    stage = parts[0]
    results = repository.peers(gpu) if stage == PEERS else repository.stage_results(stage, gpu)
    entries: tuple[Timing | Check, ...]
    if parts[1] == "best":  # of the ladder's own kernels: an article's are beside it
        entries = results.timings if parts[5] in MODES else results.checks
    else:
        entries = results.all_timings if parts[5] in MODES else results.all_checks
    if parts[1] == "best":
        rivals = [e for e in entries if e.name.split("/")[2:] == parts[2:] and e.variant != "torch.copy_"]
        if rivals:
            return min(rivals, key=size_of)
    named = [entry for entry in entries if entry.name == key]
    if named:
        return max(named, key=size_of)  # a problem that was checked more than once: the worst
    near = difflib.get_close_matches(key, [e.name for e in entries], n=1, cutoff=0)
    hint = f"; the nearest there is '{near[0]}'" if near else ""
    raise ReportError(f"{results.path.relative_to(repository.root)} has no '{key}'{hint}")


def size_of(entry: Timing | Check) -> float:
    """What makes one entry better than another: the time, or the error."""
    if isinstance(entry, Timing):
        return entry.seconds
    return math.inf if entry.max_ulp_error is None else entry.max_ulp_error


def counter_of(entry: Timing | Check, counter: str) -> float | None:
    if isinstance(entry, Check):
        return getattr(entry, counter, None)
    if counter == "median_seconds":
        return entry.seconds
    if counter in ("copy_seconds", "bytes_per_second", "share_of_copy", "spread"):
        return getattr(entry, counter)
    if counter == "copy_bytes_per_second":
        moved = entry.counters.get("bytes")
        return moved / entry.copy_seconds if moved and entry.copy_seconds else None
    return entry.counters.get(counter)


def lookup(repository: Repository, key: str, dimension: str, counter: str | None, gpu: str) -> Figure:
    """The figure that `key` and `counter` name; without a counter, the usual one for what `dimension` measures."""
    if key.startswith("data/"):
        _, _, rest = key.partition("/")
        file, _, name = rest.partition("/")
        figures = repository.data(file).get("figures", {})
        if name not in figures:
            raise ReportError(f"docs/data/{file}.json has no figure '{name}'; it has: {', '.join(figures) or 'none'}")
        unit = figures[name]["unit"]
        if unit not in UNITS:
            raise ReportError(f"docs/data/{file}.json gives '{name}' in the unknown unit '{unit}'")
        measures, size, _ = UNITS[unit]
        return Figure(figures[name]["value"] * size, measures)
    if key.startswith("context/"):
        return of_machine(repository, key.removeprefix("context/"), gpu)
    if key.startswith("compare/"):
        return beside_others(repository, key.removeprefix("compare/"), dimension, gpu)
    if key.startswith("counters/"):
        return hardware_counter(repository, key.removeprefix("counters/"), counter, gpu)
    counter = counter or DEFAULT_COUNTER[dimension]
    if counter not in COUNTERS:
        raise ReportError(f"there is no counter '{counter}'; there are: {', '.join(COUNTERS)}")
    entry = find(repository, key, gpu)
    value = counter_of(entry, counter)
    if value is None:
        raise ReportError(f"'{key}' has no {counter}")
    return Figure(value, COUNTERS[counter], entry.stale)


def of_machine(repository: Repository, name: str, gpu: str) -> Figure:
    """What was read or measured of the machine before a stage's kernels were: stage/entry."""
    stage, _, entry = name.partition("/")
    results = repository.stage_results(stage, gpu)
    try:
        value = float(results.context[entry])
    except (KeyError, TypeError, ValueError):
        shown = results.path.relative_to(repository.root)
        raise ReportError(f"{shown} has no figure '{entry}' in its context") from None
    dimension, size = next((what for end, what in MACHINE.items() if entry.endswith(end)), ("count", 1.0))
    return Figure(value * size, dimension)


def beside_others(repository: Repository, name: str, dimension: str, gpu: str) -> Figure:
    """Our time in a cell of the comparison (or our share of a copy), or that of the fastest other."""
    runs = repository.runs(gpu)
    if runs is None:
        raise ReportError(f"nothing was compared on {gpu} yet")
    side, _, cell = name.partition("/")
    if side in ("won", "level", "lost"):
        return outcomes(repository, side, cell.split(",") if cell else [], dimension, gpu)
    found = repository.verdicts(gpu).get(cell)
    if not found or side not in ("ours", "best"):
        raise ReportError(
            f"docs/compare/{gpu}.json has no '{name}': it is ours or best, and operation/dtype/shape/timing; or won, "
            "level or lost, alone or with operations, or with current"
        )
    stale = runs.is_stale(found.cell)
    if dimension != "ratio":
        return Figure(found.seconds if side == "ours" else found.rival_seconds, "time", stale)
    if side == "best" or not found.share_of_copy:
        raise ReportError(f"'compare/{name}' has no share of a copy")
    return Figure(found.share_of_copy, "ratio", stale)


CURRENT = "current"


def outcomes(repository: Repository, outcome: str, operations: list[str], dimension: str, gpu: str) -> Figure:
    """How many timings by the GPU's clock end so, or which share of them; of some operations, or of all. With `current`
    among the operations only those count whose kernels have not changed since."""
    is_stale = repository.runs(gpu).is_stale
    named = [operation for operation in operations if operation != CURRENT]
    timed = [v for v in repository.verdicts(gpu).values()
             if v.mode != "python" and (not named or v.cell.operation in named)
             and not (CURRENT in operations and is_stale(v.cell))]
    if not timed:
        raise ReportError(f"nothing was compared on {gpu} of {', '.join(operations)}")
    ended = sum(v.outcome == outcome for v in timed)
    stale = any(is_stale(v.cell) for v in timed)
    return Figure(ended / len(timed), "ratio", stale) if dimension == "ratio" else Figure(ended, "count", stale)


def hardware_counter(repository: Repository, name: str, counter: str | None, gpu: str) -> Figure:
    """A counter of all the kernels that a variant launches: sums add up, and what is a share is that of the longest
    kernel."""
    results = repository.counters(gpu)
    launches = [launch for launch in results.launches if launch.name == name]
    if not launches:
        near = difflib.get_close_matches(name, [launch.name for launch in results.launches], n=1, cutoff=0)
        shown, nearest = results.path.relative_to(repository.root), near[0] if near else "nothing"
        raise ReportError(f"{shown} has no '{name}'; the nearest there is '{nearest}'")
    if not counter or any(counter not in launch.values for launch in launches):
        raise ReportError(f"'{counter or ''}' is no counter of {name}; there are: {', '.join(launches[0].values)}")
    dimension = next((what for end, what in HARDWARE.items() if counter.endswith(end)), "count")
    adds_up = dimension in ("bytes", "count", "time") and not counter.startswith("waits_")
    longest = max(launches, key=lambda launch: launch.values.get("duration_ns", 0))
    value = sum(launch.values[counter] for launch in launches) if adds_up else longest.values[counter]
    return Figure(value * HARDWARE_SIZE[dimension], dimension, any(launch.stale for launch in launches))


def measured(repository: Repository, options: dict[str, str], gpu: str) -> tuple[Figure, str]:
    """What the options key, unit, counter and gpu name, and the unit; over=KEY divides by a second figure, over_counter
    names its counter and over_gpu its GPU. over_gpu alone: by the same figure on that GPU."""
    unit = options.get("unit", "")
    if unit not in UNITS:
        raise ReportError(f"unit is '{unit}'; it must be one of {', '.join(UNITS)}")
    dimension = UNITS[unit][0]
    if "key" not in options:
        raise ReportError("key is missing: which figure?")

    if "over" in options or "over_gpu" in options:
        if dimension != "ratio":
            raise ReportError(f"a ratio of two figures has the unit x or percent, not {unit}")
        above = lookup(repository, options["key"], "time", options.get("counter"), gpu)
        over, over_gpu = options.get("over", options["key"]), options.get("over_gpu", gpu)
        below = lookup(repository, over, "time", options.get("over_counter", options.get("counter")), over_gpu)
        if above.dimension != below.dimension:
            raise ReportError(f"a {above.dimension} cannot be divided by a {below.dimension}")
        if below.value == 0:
            raise ReportError(f"'{over}' is zero")
        found = Figure(above.value / below.value, "ratio", above.stale or below.stale)
    else:
        found = lookup(repository, options["key"], dimension, options.get("counter"), gpu)
    if found.dimension != dimension:
        raise ReportError(f"'{options['key']}' is a {found.dimension}, and {unit} measures a {dimension}")
    return found, unit


def figure(repository: Repository, options: dict[str, str], gpu: str) -> tuple[str, bool]:
    """The text of a sync:figure marker, and whether it was measured on an earlier version. Options: those of measured,
    and digits."""
    digits = options.get("digits", "3")
    if not digits.isdigit() or not 1 <= int(digits) <= 9:
        raise ReportError(f"digits is '{digits}'; it must be from 1 to 9")
    found, unit = measured(repository, options, gpu)
    dimension, size, suffix = UNITS[unit]

    if unit == "percent" and "digits" not in options:
        text = percent(found.value)
    elif dimension in ("count", "bytes") and "digits" not in options and float(found.value / size).is_integer():
        whole = int(found.value / size)
        text = (f"{whole:,}".replace(",", "\u202f") if whole >= 10000 else f"{whole}") + suffix
    else:
        text = significant(found.value / size, int(digits)) + suffix
    return dagger(text, found.stale), found.stale


def claim(repository: Repository, options: dict[str, str], gpu: str) -> bool:
    """Raises ReportError where what a sync:claim marker says of a figure is not so; returns whether the figure was
    measured on an earlier version. Options: those of measured, where the unit is x unless it is named, and above and
    below, one at least: the figure lies between them."""
    bounds = {}
    for name in ("above", "below"):
        if name in options:
            try:
                bounds[name] = float(options[name])
            except ValueError:
                raise ReportError(f"{name} is '{options[name]}'; it must be a number") from None
    if not bounds:
        raise ReportError("above or below is missing: what is claimed?")
    found, unit = measured(repository, {"unit": "x"} | options, gpu)
    _, size, suffix = UNITS[unit]
    value = found.value / size
    inside = {"above": value > bounds.get("above", -math.inf), "below": value < bounds.get("below", math.inf)}
    for name, holds in inside.items():
        if not holds:
            raise ReportError(f"is not so: {significant(value)}{suffix} is not {name} {options[name]}")
    return found.stale
