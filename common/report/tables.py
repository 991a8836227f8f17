"""The tables of the writeups, made from results."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from compare_tables import against_peers, rotation
from counting_tables import counting_table
from grid import MODELS
from judging_tables import survey
from markdown import title_of
from place import Place, source_note
from prediction import predictions_table
from results import MODES, PACKAGE_SUITE, PEERS, Check, Launch, ReportError, ResultFile, Timing, baseline_of
from text import MISSING, Table, caption, dagger, markdown_table, percent, short_kernel, significant

BASELINES = {"copy": "a copy of the same bytes", "stream": "a stream of the same reads and writes"}
PEERS_EXCEPT = ("torch.copy_",)  # the baseline is not a rival

Entry = TypeVar("Entry", Timing, Check, Launch)


def shape_text(entry: Timing | Check) -> str:
    return entry.shape.replace("x", " x ").replace("-first", ", channels first")


def select(place: Place, entries: Iterable[Entry], file: Path) -> list[Entry]:
    """The entries that the options operation, dtype, shape, rows, cols, mib and variant leave."""
    wanted: list[tuple[str, Callable[[Entry], str]]] = [
        ("operation", lambda e: e.operation),
        ("dtype", lambda e: e.dtype),
        ("shape", lambda e: e.shape),
        ("rows", lambda e: str(e.rows)),
        ("cols", lambda e: str(e.cols)),
        ("variant", lambda e: e.variant),
    ]
    left = list(entries)
    for name, value_of in wanted:
        values = place.chosen(name)
        if not values:
            continue
        there = sorted({value_of(entry) for entry in left})
        left = [entry for entry in left if value_of(entry) in values]
        if not left:
            shown = file.relative_to(place.repository.root)
            has = ", ".join(there) or "none"
            raise ReportError(f"{shown} has nothing with {name} {place.option(name)}; it has: {has}")
    return left


def near_mib(place: Place, entries: list[Entry]) -> list[Entry]:
    """The entries whose tensor is of the size in the option mib, to within a twentieth (odd widths do not divide)."""
    if "mib" not in place.options:
        return entries
    try:
        size = float(place.option("mib"))
    except ValueError:
        raise ReportError(f"mib is '{place.option('mib')}'; it must be a number") from None
    near = [entry for entry in entries if abs(entry.tensor_mib - size) <= size / 20]
    if not near:
        raise ReportError(f"nothing has tensors of {place.option('mib')} MiB")
    return near


def peer_timings(place: Place, like: Iterable[Timing]) -> list[Timing]:
    """The peers' timings at the operations, types, shapes and modes that `like` has."""
    cases = {(case_of(t), t.mode) for t in like}
    rivals = [t for t in place.repository.peers(place.gpu).timings if t.variant not in PEERS_EXCEPT]
    return [t for t in rivals if (case_of(t), t.mode) in cases]


def case_of(entry: Timing | Check) -> tuple[str, str, str]:
    """What was computed: entries with the same case can be compared."""
    return entry.operation, entry.dtype, entry.shape


def time_unit(entries: Iterable[Timing]) -> tuple[str, float]:
    return ("ms", 1e-3) if min(t.seconds for t in entries) >= 1e-3 else ("µs", 1e-6)


def ladder(place: Place) -> Table:
    """A stage's variants: time in each mode, then spread, GB/s and share of a copy in the first mode."""
    repository = place.repository
    results = repository.stage_results(place.stage(), place.gpu)
    # The articles' kernels stand in tables of their own, which name what they show.
    candidates = results.all_timings if place.chosen("variant") else results.timings
    entries = near_mib(place, select(place, candidates, results.path))
    sources = [results]
    modes = place.timings_named() or [mode for mode in MODES if any(t.mode == mode for t in entries)]
    entries = [t for t in entries if t.mode in modes]
    if not entries:
        raise ReportError(f"{results.path.relative_to(repository.root)} has no timings for this table")
    own = list(entries)

    if place.flag("previous"):
        before = [s for s in repository.stages() if s < place.stage() and repository.has_results(s, place.gpu)]
        if before:
            earlier = repository.stage_results(before[-1], place.gpu)
            wanted = {(case_of(t), t.mode) for t in own}
            same = [t for t in earlier.timings if (case_of(t), t.mode) in wanted]
            best = min((t for t in same if t.mode == modes[0]), key=lambda t: t.seconds, default=None)
            if best:
                entries = [t for t in same if t.variant == best.variant] + entries
                sources.insert(0, earlier)
    if place.flag("peers"):
        rivals = peer_timings(place, own)
        entries += rivals
        sources += [repository.peers(place.gpu)] if rivals else []

    # What is the same in every row goes into the caption.
    dimensions: list[tuple[str, Callable[[Timing], str]]] = [
        ("operation", lambda t: f"`{t.operation}`"),
        ("dtype", lambda t: t.dtype),
        ("shape", shape_text),
    ]
    varying = [(name, text) for name, text in dimensions if len({text(t) for t in entries}) > 1]
    common = [text(entries[0]) for name, text in dimensions if (name, text) not in varying]

    rows: dict[tuple[str, ...], dict[str, Timing]] = {}
    for t in entries:
        rows.setdefault((t.stage, t.variant, t.operation, t.dtype, shape_text(t)), {})[t.mode] = t
    unit, size = time_unit(entries)
    first = modes[0]
    own_stage = place.stage()
    fastest: dict[tuple[str, str, str], Timing] = {}
    for t in own:
        if t.mode == first:
            fastest[case_of(t)] = min(t, fastest.get(case_of(t), t), key=lambda t: t.seconds)
    rivals_of = Counter(case_of(t) for t in own if t.mode == first)
    cases = list(dict.fromkeys(case_of(t) for t in entries))

    lines = []
    for by_mode in sorted(rows.values(), key=lambda by_mode: cases.index(case_of(next(iter(by_mode.values()))))):
        some = next(iter(by_mode.values()))
        main = by_mode.get(first)
        name = some.label if some.stage == PEERS else f"`{some.variant}`"
        if some.stage not in (PEERS, own_stage):
            name += f" ({some.stage[:2]})"
        shown = [by_mode.get(mode) for mode in modes]
        times = [dagger(significant(t.seconds / size), t.stale) if t else MISSING for t in shown]
        if main is not None and main is fastest.get(case_of(main)) and rivals_of[case_of(main)] > 1:
            name, times[0] = f"**{name}**", f"**{times[0]}**"
        lines.append([
            name,
            *[text(some) for _, text in varying],
            *times,
            percent(main.spread) if main and main.spread is not None else MISSING,
            significant(main.bytes_per_second / 1e9) if main and main.bytes_per_second else MISSING,
            percent(main.share_of_copy) if main and main.share_of_copy else MISSING,
        ])
    if not varying:
        lines.append(copy_row(own, modes, size))
    head = ["variant", *[name for name, _ in varying], *[f"{mode}, {unit}" for mode in modes]]
    head += ["spread", "GB/s", f"share of a {baseline_of(t.operation for t in entries)}"]
    stale = any(t.stale for t in entries)
    what = ", ".join(common)
    of_first = f"Spread (the middle four fifths of the samples), GB/s and share are those of the {first} runs"
    text = markdown_table(head, lines, 1 + len(varying))
    return Table(text + caption([what, of_first, *source_note(place, sources)], stale), stale)


def copy_row(entries: Sequence[Timing], modes: Sequence[str], size: float) -> list[str]:
    """The baseline: a copy of the same bytes, as measured beside the variants."""
    times = []
    for mode in modes:
        seconds = [t.copy_seconds for t in entries if t.mode == mode and t.copy_seconds]
        times.append(significant(statistics.median(seconds) / size) if seconds else MISSING)
    timed = [t for t in entries if t.mode == modes[0] and t.bytes_per_second and t.share_of_copy]
    rates = [t.bytes_per_second / t.share_of_copy for t in timed]
    rate = significant(statistics.median(rates) / 1e9) if rates else MISSING
    name = BASELINES[baseline_of(t.operation for t in entries)]
    return [f"*{name}*", *times, "", rate, percent(1.0)]


def sweep(place: Place) -> Table:
    """Variants (and peers) in rows, shapes in columns; one operation, type and mode."""
    repository = place.repository
    results = repository.stage_results(place.stage(), place.gpu)
    value = place.option("value", "share")
    texts: dict[str, tuple[str, Callable[[Timing], str | None]]] = {
        "share": ("share", lambda t: percent(t.share_of_copy) if t.share_of_copy else None),
        "time": ("µs", lambda t: significant(t.seconds * 1e6)),
        "rate": ("GB/s", lambda t: significant(t.bytes_per_second / 1e9) if t.bytes_per_second else None),
    }
    if value not in texts:
        raise ReportError(f"value is '{value}'; it must be one of {', '.join(texts)}")
    unit, text_of = texts[value]
    mode = place.option("timing", "cold")
    place.timings_named(mode)
    candidates = results.all_timings if place.chosen("variant") else results.timings
    entries = near_mib(place, select(place, [t for t in candidates if t.mode == mode], results.path))
    if not entries:
        raise ReportError(f"{results.path.relative_to(repository.root)} has no {mode} timings for this table")
    for name in ("operation", "dtype"):
        several = sorted({getattr(t, name) for t in entries})
        if len(several) > 1:
            raise ReportError(f"this table is for one {name}; choose from: {', '.join(several)}")
    sources = [results]
    if place.flag("peers"):
        rivals = peer_timings(place, entries)
        sources += [repository.peers(place.gpu)] if rivals else []
        entries = entries + rivals

    shapes = sorted({(t.cols, t.rows) for t in entries})
    by_cols = len({cols for cols, _ in shapes}) == len(shapes)
    cells: dict[str, dict[tuple[int, int], Timing]] = {}
    for t in entries:
        name = t.label if t.stage == PEERS else f"`{t.variant}`"
        cells.setdefault(name, {})[t.cols, t.rows] = t
    of_shape = {shape: [row[shape] for row in cells.values() if shape in row] for shape in shapes}
    fastest = {shape: min(timed, key=lambda t: t.seconds) for shape, timed in of_shape.items()}

    lines = []
    for name, row in cells.items():
        line = [name]
        for shape in shapes:
            text = text_of(row[shape]) if shape in row else None
            if text is None:
                line.append(MISSING)
                continue
            text = dagger(text, row[shape].stale)
            line.append(f"**{text}**" if row[shape] is fastest[shape] else text)
        lines.append(line)
    if value == "share":
        unit = f"share of a {baseline_of([entries[0].operation])}"
    columns = [str(cols) if by_cols else f"{rows} x {cols}" for cols, rows in shapes]
    head = [f"{unit} at cols" if by_cols else unit, *columns]
    stale = any(t.stale for t in entries)
    what = f"`{entries[0].operation}`, {entries[0].dtype}, {mode}"
    if "mib" in place.options:
        what += f", tensors of {place.option('mib')} MiB"
    return Table(markdown_table(head, lines) + caption([what, *source_note(place, sources)], stale), stale)


def numerics(place: Place) -> Table:
    """Inputs in rows, variants in columns: the largest error in units in the last place, and what failed."""
    repository = place.repository
    results = repository.stage_results(place.stage(), place.gpu)
    checks = results.all_checks if place.chosen("variant") else results.checks
    entries = select(place, checks, results.path)
    if not entries:
        raise ReportError(f"{results.path.relative_to(repository.root)} has no checks")
    sources = [results]
    if place.flag("peers"):
        cases = {(case_of(c), c.input) for c in entries}
        rivals = [c for c in repository.peers(place.gpu).checks if (case_of(c), c.input) in cases]
        entries += rivals
        sources += [repository.peers(place.gpu)] if rivals else []
    several_types = len({c.dtype for c in entries}) > 1

    columns: dict[tuple[str, str], dict[str, list[Check]]] = {}
    for check in entries:
        column = columns.setdefault((check.label if check.stage == PEERS else f"`{check.variant}`", check.dtype), {})
        column.setdefault(check.input, []).append(check)
    inputs = list(dict.fromkeys(check.input for check in entries))
    lines = []
    for name in inputs:
        line = [f"`{name}`"]
        for column in columns.values():
            line.append(numerics_cell(column.get(name, [])))
        lines.append(line)
    head = ["input", *[f"{variant}, {dtype}" if several_types else variant for variant, dtype in columns]]
    shapes = list(dict.fromkeys(shape_text(c) for c in entries))
    operations = ", ".join(f"`{name}`" for name in dict.fromkeys(c.operation for c in entries))
    over = shapes[0] if len(shapes) == 1 else f"the worst of {len(shapes)} shapes"
    types = "" if several_types else f", {entries[0].dtype}"
    what = f"Largest error in ulp against the fp64 reference: {operations}{types}, {over}"
    marks = "✗: outside the tolerance" if any(not c.right for c in entries) else ""
    if any(c.expected for c in entries):
        marks += "; (expected): known to fail there, and tested to"
    stale = any(c.stale for c in entries)
    return Table(markdown_table(head, lines) + caption([what, marks, *source_note(place, sources)], stale), stale)


def numerics_cell(checks: Sequence[Check]) -> str:
    if not checks:
        return MISSING
    errors = [c.max_ulp_error for c in checks]
    if not all(c.ran for c in checks):
        text = "did not run"
    else:
        text = "not finite" if None in errors else significant(max(e for e in errors if e is not None), 2)
    failed = [c for c in checks if not c.right]
    if failed:
        text += " ✗" + (" (expected)" if all(c.expected for c in failed) else "")
    return dagger(text, any(c.stale for c in checks))


def ladder_all(place: Place) -> Table:
    """Every stage's fastest variant at one shape and type: the ladder at a glance."""
    repository = place.repository
    shape, dtype = place.option("shape", "1024x1024"), place.option("dtype", "fp32")
    mode = place.option("timing", "cold")
    place.timings_named(mode)
    best: list[Timing] = []
    sources: list[ResultFile] = []
    without: list[str] = []
    for stage in repository.stages():
        if not repository.has_results(stage, place.gpu):
            without.append(stage)
            continue
        results = repository.stage_results(stage, place.gpu)
        here = [t for t in results.timings if t.shape == shape and t.dtype == dtype and t.mode == mode]
        # The last one in is the fastest.
        by_operation = {t.operation: t for t in sorted(here, key=lambda t: -t.seconds)}
        elsewhere = bool(by_operation)
        if "operation" in place.options:
            by_operation = {name: t for name, t in by_operation.items() if name in place.chosen("operation")}
        best += by_operation.values()
        if by_operation:
            sources.append(results)
        elif not elsewhere:
            without.append(stage)
    lines = []
    several = len({t.operation for t in best}) > 1
    first: dict[str, Timing] = {}
    for t in best:
        start = first.setdefault(t.operation, t)
        readme = repository.root / t.stage / "README.md"
        title = title_of(readme.read_text(encoding="utf-8")) if readme.is_file() else None
        lines.append([
            place.link(readme if readme.is_file() else repository.root / t.stage, title or t.stage),
            f"`{t.variant}`",
            *([f"`{t.operation}`"] if several else []),
            dagger(significant(t.seconds * 1e6), t.stale),
            significant(t.bytes_per_second / 1e9) if t.bytes_per_second else MISSING,
            percent(t.share_of_copy) if t.share_of_copy else MISSING,
            f"{significant(start.seconds / t.seconds)}x",
        ])
    stale = any(t.stale for t in best)
    missing = f"No results yet at this shape: {', '.join(without)}" if without else ""
    if not lines:
        return Table(f"*{missing or 'There is no stage yet'}.*", False)
    head = [
        "stage", "fastest variant", *(["operation"] if several else []), "µs", "GB/s",
        f"share of a {baseline_of(t.operation for t in best)}", "against the first",
    ]
    what = ", ".join([*([] if several else [f"`{best[0].operation}`"]), dtype, shape.replace("x", " x "), mode])
    text = markdown_table(head, lines, 3 if several else 2)
    return Table(text + caption([what, missing, *source_note(place, sources)], stale), stale)


def two_gpus(place: Place) -> Table:
    """Every variant of the ladder on two GPUs at one shape: how many times as long the second takes. A kernel that has
    changed since one of them was measured is left out: two kernels would be compared, not two GPUs."""
    repository = place.repository
    other = place.option("other", "h100")
    wanted = (place.option("operation"), place.option("dtype", "fp32"), place.option("shape"), "cold")
    sources: dict[str, list[ResultFile]] = {place.gpu: [], other: []}
    found: dict[str, dict[str, Timing]] = {place.gpu: {}, other: {}}
    for stage in repository.stages():
        for gpu in sources:
            results = repository.stage_results(stage, gpu)
            here = [t for t in results.timings if (t.operation, t.dtype, t.shape, t.mode) == wanted and t.share_of_copy]
            if place.chosen("stage"):
                here = [t for t in here if t.stage in place.chosen("stage")]
            found[gpu] |= {t.name: t for t in here}
            sources[gpu] += [results] if here else []
    first, second = found.values()
    pairs = [(t, second[name]) for name, t in first.items() if name in second]
    both = [(a, b) for a, b in pairs if not (a.stale or b.stale)]
    if not both:
        raise ReportError(f"{place.gpu} and {other} have no timing in common of {', '.join(wanted)}")
    changed = ", ".join(f"`{a.variant}` of {a.stage[:2]}" for a, b in pairs if (a, b) not in both)
    unit, size = time_unit([t for pair in both for t in pair])
    lines = [
        [
            a.stage[:2], f"`{a.variant}`", significant(a.seconds / size), significant(b.seconds / size),
            f"{b.seconds / a.seconds:.2f}", percent(a.share_of_copy), percent(b.share_of_copy),
        ]
        for a, b in both
    ]
    copies = [statistics.median(t.copy_seconds for t in column) for column in zip(*both)]
    lines.append([
        "", f"*{baseline_of([wanted[0]])}*", *[significant(seconds / size) for seconds in copies],
        f"{copies[1] / copies[0]:.2f}", "", "",
    ])
    names = [gpu.upper() for gpu in sources]
    head = ["", "kernel", *[f"{name}, {unit}" for name in names], "times as long"]
    head += [f"share of a {baseline_of([wanted[0]])}, {name}" for name in names]
    what = ", ".join([f"`{wanted[0]}`", wanted[1], wanted[2].replace("x", " x "), wanted[3]])
    notes = [
        what, f"Not measured on both since the kernel changed: {changed}" if changed else "",
        *source_note(place, [*sources[place.gpu], *sources[other]]),
    ]
    return Table(markdown_table(head, lines, 2) + caption(notes, False), False)


# --- What the kernels take, and what the hardware counted -------------------------------------------------------------
def launches_table(
    place: Place,
    launches: Sequence[Launch],
    files: Sequence[ResultFile],
    columns: Sequence[tuple[str, Callable[[Launch], str]]],
    what: str,
) -> Table:
    """A line for each launch: the variant, what is not the same in all lines, the kernel, then `columns`."""
    dimensions: list[tuple[str, Callable[[Launch], str]]] = [
        ("operation", lambda e: f"`{e.operation}`"),
        ("dtype", lambda e: e.dtype),
        ("shape", lambda e: e.shape.replace("x", " x ")),
    ]
    varying = [(name, text) for name, text in dimensions if len({text(e) for e in launches}) > 1]
    common = [text(launches[0]) for name, text in dimensions if (name, text) not in varying]
    several_stages = len({e.stage for e in launches}) > 1
    lines = [
        [
            *([e.stage[:2]] if several_stages else []),
            dagger(f"`{e.variant}`", e.stale),
            *[text(e) for _, text in varying],
            *[text(e) for _, text in columns],
        ]
        for e in launches
    ]
    head = [
        *(["stage"] if several_stages else []),
        "variant",
        *[name for name, _ in varying],
        *[name for name, _ in columns],
    ]
    stale = any(e.stale for e in launches)
    left = int(several_stages) + 1 + len(varying) + sum(name == "kernel" for name, _ in columns)
    text = markdown_table(head, lines, left)
    return Table(text + caption([what, ", ".join(common), *source_note(place, files)], stale), stale)


def resources(place: Place) -> Table:
    """Registers, shared memory, spills and occupancy of a stage's kernels, as the compiler and the driver give them."""
    results = place.repository.stage_results(place.stage(), place.gpu)
    files = [results]
    found = list(results.launches)
    if place.repository.has_counters(place.gpu):
        # The profiler's runs are of more shapes. What both have is told once: they may be of different versions.
        there = {e.name for e in found}
        counted = [e for e in place.repository.counters(place.gpu).launches if "registers" in e.values]
        of_stage = [e for e in counted if e.stage == place.stage()]
        found += [e for e in of_stage if e.name not in there]
        files += [place.repository.counters(place.gpu)] if of_stage else []
    launches = select(place, found, results.path)
    if not launches:
        shown = results.path.relative_to(place.repository.root)
        raise ReportError(f"{shown} has no resources: time the stage with --resources")
    count = lambda key: lambda e: f"{e.values[key]:.0f}"  # noqa: E731
    clusters = lambda e: f", clusters of {e.cluster}" if e.cluster > 1 else ""  # noqa: E731
    columns = [
        ("kernel", lambda e: f"`{short_kernel(e.kernel)}`"),
        ("blocks x threads", lambda e: f"{e.blocks} x {e.threads}{clusters(e)}"),
        ("registers", count("registers")),
        ("spilled, B", count("local_bytes")),
        ("shared, B", lambda e: f"{e.values['static_shared_bytes'] + e.values['dynamic_shared_bytes']:.0f}"),
        ("blocks per SM", count("blocks_per_multiprocessor")),
        ("occupancy", lambda e: f"{e.values['occupancy'] * 100:.0f} %"),
    ]
    what = (
        "Registers and spilled bytes are a thread's, shared memory a block's; occupancy is the share of a "
        "multiprocessor's threads that can be there at once"
    )
    return launches_table(place, launches, files, columns, what)


COUNTER_TITLES = {
    "dram_read_bytes": "DRAM read, MB", "dram_write_bytes": "DRAM written, MB", "l2_to_sm_bytes": "L2 to SM, MB",
    "sm_to_l2_bytes": "SM to L2, MB", "global_load_requests": "load requests", "global_load_sectors": "load sectors",
    "global_store_requests": "store requests", "global_store_sectors": "store sectors",
    "shared_wavefronts": "shared wavefronts", "shared_bank_conflicts": "bank conflicts",
    "instructions": "warp instructions", "issue_active_percent": "issue slots used", "occupancy_percent": "warps there",
    "dram_percent": "DRAM used", "l2_percent": "L2 used", "l1_percent": "L1 used", "l2_hit_percent": "L2 hits",
    "l1_hit_percent": "L1 hits", "waits_memory": "waiting for memory", "waits_shared": "for shared memory",
    "waits_barrier": "at a barrier", "waits_queue": "for the load queue", "waits_dispatch": "not selected",
    "duration_ns": "µs", "sectors_per_load": "sectors per load", "sectors_per_store": "sectors per store",
}
RATIOS = {
    "sectors_per_load": ("global_load_sectors", "global_load_requests"),
    "sectors_per_store": ("global_store_sectors", "global_store_requests"),
}


def counter_text(launch: Launch, name: str) -> str:
    if name in RATIOS:
        above, below = (launch.values.get(key) for key in RATIOS[name])
        return f"{above / below:.2f}" if above is not None and below else MISSING
    value = launch.values.get(name)
    if value is None:
        return MISSING
    if name.endswith("_bytes"):
        return f"{value / 1e6:.2f}" if value < 1e8 else f"{value / 1e6:.0f}"
    if name.endswith("_percent"):
        return f"{value:.0f} %"
    if name.endswith("_ns"):
        return significant(value / 1e3)
    return f"{value:.1f}" if name.startswith("waits_") else f"{value:.0f}"


def counters(place: Place) -> Table:
    """What Nsight Compute counted: the counters that `show` names, for all stages or one."""
    results = place.repository.counters(place.gpu)
    launches = list(results.launches)
    if "stage" in place.options:
        launches = [e for e in launches if e.stage == place.stage()]
    launches = near_mib(place, select(place, launches, results.path))
    names = place.chosen("show")
    known = [*COUNTER_TITLES]
    for name in names:
        if name not in known:
            raise ReportError(f"there is no counter '{name}'; there are: {', '.join(known)}")
    if not names:
        raise ReportError("show is missing: which counters?")
    if not launches:
        raise ReportError(f"{results.path.relative_to(place.repository.root)} has no such launches")
    columns = [(COUNTER_TITLES[name], lambda e, name=name: counter_text(e, name)) for name in names]
    what = "Counted by Nsight Compute, with the L2 cache flushed before each kernel"
    return launches_table(place, launches, [results], columns, what)


def traffic(place: Place) -> Table:
    """The bytes that DRAM moved for all kernels of a variant, beside those that must move: each input read, each result
    written once."""
    counted = place.repository.counters(place.gpu)
    results = place.repository.stage_results(place.stage(), place.gpu)
    must_move = {t.name.rpartition("/")[0]: t.counters["bytes"] for t in results.timings if "bytes" in t.counters}
    of_stage = [e for e in counted.launches if e.stage == place.stage() and e.name in must_move]
    launches = select(place, of_stage, counted.path)
    passes: dict[str, list[Launch]] = {}
    for launch in near_mib(place, launches):
        passes.setdefault(launch.name, []).append(launch)
    if not passes:
        one, other = (file.path.relative_to(place.repository.root) for file in (counted, results))
        raise ReportError(f"{one} and {other} have no such case in common")

    def order(kernels: list[Launch]) -> tuple[str, str, str, int]:
        return kernels[0].dtype, kernels[0].variant, kernels[0].operation, kernels[0].cols

    lines = []
    for name, kernels in sorted(passes.items(), key=lambda item: order(item[1])):
        first = kernels[0]
        read = sum(kernel.values["dram_read_bytes"] for kernel in kernels)
        written = sum(kernel.values["dram_write_bytes"] for kernel in kernels)
        lines.append([
            dagger(f"`{first.variant}`", any(kernel.stale for kernel in kernels)), f"`{first.operation}`", first.dtype,
            first.shape.replace("x", " x "), f"{must_move[name] / 1e6:.1f}", f"{read / 1e6:.1f}",
            f"{written / 1e6:.1f}", f"{(read + written) / must_move[name]:.3f}",
        ])
    stale = any(launch.stale for kernels in passes.values() for launch in kernels)
    head = ["variant", "operation", "dtype", "shape", "must move, MB", "read, MB", "written, MB", "moved / must"]
    what = (
        "Counted by Nsight Compute at the memory itself, with the L2 cache flushed before each kernel. What a kernel "
        "wrote last may still lie in the L2 cache when the count ends, so that the ratio can be below 1"
    )
    notes = [what, *source_note(place, [counted, results])]
    return Table(markdown_table(head, lines, 4) + caption(notes, stale), stale)


def verified(place: Place) -> Table:
    """What was verified on a GPU: checks by verdict and the sanitizers, a line for each stage. Where that was of
    earlier kernels, and another GPU has verified those of today, the line is that GPU's."""
    repository = place.repository
    if not repository.has_verified(place.gpu):
        return Table(f"*Nothing was verified on {place.gpu} yet.*", False)
    folder = repository.root / "docs" / "verified"
    gpus = [path.stem for path in sorted(folder.glob("*.json"), key=lambda path: path.stem != place.gpu)]
    documents = {gpu: repository.verified(gpu) for gpu in gpus}
    lines, used, stale, missing = [], {place.gpu: None}, False, []
    for name in repository.stages():
        entries = [(gpu, entry) for gpu in gpus for entry in documents[gpu]["stages"] if entry["stage"] == name]
        if not entries:
            missing.append(name)
            continue
        gpu, stage = next((found for found in entries if not repository.is_stale(found[1], found[0])), entries[0])
        used[gpu] = None
        old = repository.is_stale(stage, gpu)
        stale = stale or old
        results_of = [line for sweep in stage["sweeps"] for line in sweep.get("results", [])]
        total = {
            key: sum(line[key] for line in results_of)
            for key in ("passed", "expected_failure", "permitted_failure", "compared")
        }
        clean = {entry["tool"]: entry["summary"] for entry in stage["sanitizers"]}
        lines.append([
            dagger(name, old),
            gpu.upper(),
            f"`{stage['source_hash'][:10]}`",
            f"{sum(sweep.get('checks', 0) for sweep in stage['sweeps'])}",
            f"{total['passed']}",
            f"{total['expected_failure']}",
            f"{total['permitted_failure']}",
            f"{total['compared'] / 1e9:.1f}",
            *[re.match(r"\d+", clean[tool])[0] if tool in clean else MISSING for tool in SANITIZERS],
        ])
    head = ["stage", "on an", "hash of kernels", "checks", "passed", "fail, as recorded", "fail, and may",
            "elements, 10⁹", *SANITIZERS]
    suites = [suite for suite in documents[place.gpu]["suites"] if suite["suite"] != PACKAGE_SUITE]
    of_suites = f"The test suites with kernels: {sum(s['passed'] for s in suites)} tests passed" if suites else ""
    package = next((s for s in documents[place.gpu]["suites"] if s["suite"] == PACKAGE_SUITE), None)
    of_package = ""
    if package:
        tests = f"{package['passed']} passed, {package['skipped']} skipped"
        of_package = f"The Python package's tests with PyTorch, {package['date'][:10]}: {tests}"
    origins = []
    for gpu in used:
        context = documents[gpu]["context"]
        origins.append(f"{context['gpu']}, driver {context.get('driver', 'unknown')}, {context['date'][:10]}: "
                       f"{place.link(folder / f'{gpu}.json')}")
    parts = [
        "The four tools of compute-sanitizer: errors found",
        of_suites,
        of_package,
        f"Not verified yet: {', '.join(missing)}" if missing else "",
        *origins,
    ]
    return Table(markdown_table(head, lines, 3) + caption(parts, stale), stale)


SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")


def models(place: Place) -> Table:
    """A variant at the widths of real models, each with its norm: time and share of a stream, by number of tokens."""
    results = place.repository.stage_results(place.stage(), place.gpu)
    entries = select(place, results.timings, results.path)
    modes = place.timings_named("cold")
    if len(modes) != 1 or len({t.variant for t in entries}) > 1:
        raise ReportError("this table is for one variant and one timing")
    own = {
        (t.operation, t.cols, t.rows): t for t in entries
        if t.mode == modes[0] and t.dtype == place.option("dtype", "bf16")
    }
    # The numbers of tokens that every model was timed at, so that a line can be read along.
    per_model = [
        {rows for operation, cols, rows in own if (operation, cols) == (model.operation, model.cols)}
        for model in MODELS
    ]
    tokens = sorted(set.intersection(*per_model))
    if not tokens:
        path = results.path.relative_to(place.repository.root)
        raise ReportError(f"{path} has no number of rows that all of the models' widths were timed at")
    lines, shown = [], []
    for model in MODELS:
        line = [own[model.operation, model.cols, rows] for rows in tokens]
        shown += line
        norm = "LayerNorm" if "layernorm" in model.operation else "RMSNorm"
        lines.append([model.name, norm, f"{model.cols}", *[dagger(significant(t.seconds * 1e6), t.stale) for t in line],
                      *[percent(t.share_of_copy) if t.share_of_copy else MISSING for t in line]])
    named = [f"{rows} token{'s' if rows > 1 else ''}" for rows in tokens]
    head = ["model", "norm", "cols", *[f"{name}, µs" for name in named], *[f"share, {name}" for name in named]]
    stale = any(t.stale for t in shown)
    of_all = f"`{shown[0].variant}`, {shown[0].dtype}, {modes[0]}"
    what = f"{of_all}; the share is that of a stream of the same reads and writes"
    return Table(markdown_table(head, lines, 2) + caption([what, *source_note(place, [results])], stale), stale)


# What the tutorial's tables are compared with: the ends of the figures' names in docs/data/tutorial_tables_<gpu>.json.
OF_TUTORIAL = {
    "forward": {"torch": "PyTorch", "triton": "its scheme", "held": "`held`", "layer_norm": "`layer_norm`"},
    "backward": {
        "torch": "PyTorch", "triton": "its scheme", "grouped": "`grouped`", "grouped_fp32": "`grouped_fp32`",
        "staying": "`staying`", "persistent": "`persistent`",
    },
}


def tutorial(place: Place) -> Table:
    """GB/s over the columns: the Triton tutorial's own figures, and what was measured here at its widths."""
    direction = place.option("direction", "forward")
    if direction not in OF_TUTORIAL:
        raise ReportError(f"direction is '{direction}'; there are: {', '.join(OF_TUTORIAL)}")
    own, name = place.repository.data("article_triton")["figures"], f"tutorial_tables_{place.gpu}"
    document = place.repository.data(name)
    here, source = document["figures"], document["source"]
    widths = sorted(int(key.split("_")[1]) for key in own if key.startswith(f"{direction}_") and key.count("_") == 1)
    lines = []
    for cols in widths:
        of_width = [own[f"{direction}_{cols}"], own[f"{direction}_{cols}_torch"]]
        of_width += [here.get(f"{direction}_{cols}_{key}") for key in OF_TUTORIAL[direction]]
        lines.append([f"{cols}", *[significant(figure["value"]) if figure else MISSING for figure in of_width]])
    head = ["GB/s at cols", "the tutorial", "its PyTorch", *OF_TUTORIAL[direction].values()]
    slower = sum(here[f"{direction}_{c}_triton"]["value"] < here[f"{direction}_{c}_torch"]["value"] for c in widths)
    notes = [
        f"LayerNorm {direction}, fp16, 4096 rows. The first two columns are the tutorial's figures, from its own GPU",
        f"Here its scheme is slower than PyTorch at {slower} of {len(widths)} widths",
        f"{source['gpu']}, {source['date']}, PyTorch {source['software']['torch']}, Triton "
        f"{source['software']['triton']}, commit `{source['commit'][:10]}`: "
        f"{place.link(place.repository.root / f'docs/data/{name}.json')}",
    ]
    return Table(markdown_table(head, lines, 1) + caption(notes, False), False)


ENTRY_OPTIONS = {"stage", "gpu", "operation", "dtype", "shape", "rows", "cols", "variant"}
TABLES: dict[str, tuple[Callable[[Place], Table], set[str]]] = {
    "ladder": (ladder, ENTRY_OPTIONS | {"timing", "mib", "previous", "peers"}),
    "sweep": (sweep, ENTRY_OPTIONS | {"timing", "mib", "value", "peers"}),
    "numerics": (numerics, ENTRY_OPTIONS | {"peers"}),
    "resources": (resources, ENTRY_OPTIONS),
    "counters": (counters, ENTRY_OPTIONS | {"mib", "show"}),
    "traffic": (traffic, ENTRY_OPTIONS | {"mib"}),
    "counting": (counting_table, {"stage", "gpu", "sum"}),
    "predictions": (predictions_table, {"gpu"}),
    "verified": (verified, {"gpu"}),
    "compare": (against_peers, {"gpu", "operation", "dtype", "mode", "show", "limit", "brief", "current"}),
    "rotation": (rotation, {"gpu"}),
    "models": (models, {"stage", "gpu", "dtype", "variant", "timing"}),
    "tutorial": (tutorial, {"gpu", "direction"}),
    "survey": (survey, {"limit"}),
    "two-gpus": (two_gpus, {"gpu", "other", "stage", "operation", "dtype", "shape"}),
    "ladder-all": (ladder_all, {"gpu", "operation", "dtype", "shape", "timing"}),
}
