#!/usr/bin/env python3
"""Counts what the kernels do to memory, on the CPU layer, and holds it against what a GPU counted.

    python3 common/report/counting.py --programs build/cpu/bin            writes docs/data/counts.json
    python3 common/report/counting.py --programs build/cpu/bin --check    says whether it would be written differently

The counts are those of every stage and variant at the shapes that counters.py has measured, and they are the same on
every machine. docs/counting.md shows them beside docs/counters/<gpu>.json. --check leaves out the stages whose kernels
are not those that were counted: their figures are marked in the tables.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from counters import SMALL
from programs import Program, programs_in, write_json
from results import ROOT, Launch, Repository, ReportError, case_name, launch_of, read_json
from tables import Place, Table, caption, dagger, markdown_table, short_kernel, source_note

COUNTS = Path("docs/data/counts.json")

# What is compared: the name of the hardware's counter, its column, and how it is made of our counts.
COMPARED = {
    "global_load_requests": ("load requests", (("global_load", "requests"), ("async_copy_load", "requests"))),
    "global_load_sectors": ("load sectors", (("global_load", "sectors"), ("async_copy_load", "sectors"))),
    "global_store_requests": ("store requests", (("global_store", "requests"),)),
    "global_store_sectors": ("store sectors", (("global_store", "sectors"),)),
    "shared_load_wavefronts": ("shared load wavefronts", (("shared_load", "wavefronts"),)),
    "shared_store_wavefronts": ("shared store wavefronts", (("shared_store", "wavefronts"),)),
}
CLOSE = 0.02


@dataclass(frozen=True)
class Reason:
    """Why a GPU counts something else: for kernels and counters whose names match."""

    letter: str
    kernel: str
    counter: str
    text: str
    most: float | None = None  # the relative difference that it explains; None: any
    more: bool = False  # it explains only that the hardware counts more
    elsewhere: bool = False  # and only where another launch of that kernel has the figure that is counted

    def explains(self, comparison: Comparison, counter: str, counted: float, measured: float) -> bool:
        if not re.search(self.kernel, comparison.counted.kernel) or not re.search(self.counter, counter):
            return False
        if self.most is not None and abs(measured - counted) > self.most * measured:
            return False
        if self.more and measured <= counted:
            return False
        return not self.elsewhere or counter in comparison.agrees_elsewhere


REASONS = [
    Reason("a", r"(layernorm_(reload|cached|textbook|chan)|add_rows)<", r"global_store_(requests|sectors)",
           "The source stores a vector of 16 bytes where it is whole, and its elements one by one where it is not. nvcc merges the two "
           "branches, and what goes out is a store for each 4 bytes. The CPU's compiler keeps the 16-byte store that the source has"),
    Reason("b", r"", r"shared_(load|store)_wavefronts",
           "The banks of shared memory are those of the L1 cache. A pass that loses its turn to data arriving from L2 is counted again, "
           "so that the hardware's figure is a little higher, and not the same in every run", most=0.08, more=True),
    Reason("c", r"RmsNormSteps<", r"shared_load_wavefronts",
           "RMSNorm uses one float of the four that a warp's moments have. nvcc reads that one, in half the wavefronts; the CPU's compiler reads all"),
    Reason("d", r"dx_and_atomics<(__half|__nv_bfloat16)", r"global_load_(requests|sectors)",
           "The source reads an element of dy twice in a row. nvcc reads it once, the CPU's compiler only where it has 32 bits"),
    Reason("e", r"", r"shared_load_wavefronts",
           "As b, where it is more than 8 %. The same kernel, launched by another variant for the same shape, has the figure that is counted",
           more=True, elsewhere=True),
]


def kernels_of(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The launches of one counted run, each with its counts by flat names."""
    for kernel in entry["kernels"]:
        totals = kernel["counts"]
        flat = {f"{operation}_{key}": value for operation, counts in totals.items() for key, value in counts.items() if value}
        yield {
            **{key: entry[key] for key in ("stage", "variant", "operation", "dtype", "rows", "cols", "pixels", "bytes")},
            "kernel": kernel["kernel"],
            "blocks": kernel["grid"][0] * kernel["grid"][1] * kernel["grid"][2],
            "threads": kernel["block"][0] * kernel["block"][1] * kernel["block"][2],
            "cluster": kernel["cluster"],
            "dram_read_bytes": kernel["dram_read_bytes"],
            "dram_write_bytes": kernel["dram_write_bytes"],
            **{f"read_{memory['name']}_bytes": memory["bytes_read"] for memory in kernel["memory"] if memory["bytes_read"]},
            **flat,
        }


def count(program: Program, flags: list[str], environment: dict[str, str]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The launches of a stage's program with these flags, and what it was built from: the hash of its kernels, and the
    commit. Raises ReportError where it finds something wrong."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "counts.json"
        command = [str(program.path), "--count", "--input", "normal", *flags, "--json", str(file)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | environment, check=False)
        if done.returncode != 0:
            raise ReportError(f"{program.stage} {' '.join(flags)} ended with {done.returncode}:\n{done.stdout[-2000:]}")
        document = json.loads(file.read_text(encoding="utf-8"))
    return [kernel for entry in document["counts"] for kernel in kernels_of(entry)], {key: document["context"][key] for key in ("source_hash", "commit")}


def measured_launches(repository: Repository, gpu: str) -> dict[str, list[Launch]]:
    found: dict[str, list[Launch]] = {}
    for launch in repository.counters(gpu).launches:
        found.setdefault(launch.name, []).append(launch)
    return found


def name_of(kernel: dict[str, Any]) -> str:
    return launch_of(kernel, {}, False).name


def collect(programs: list[Program], repository: Repository, gpu: str) -> dict[str, Any]:
    """The counts of all stages at the shapes of counters.py, on as many multiprocessors as the GPU has.

    Where a kernel's grid follows from how many blocks a multiprocessor holds, which a CPU cannot know (it hangs on
    registers), it is told what the GPU held."""
    measured = measured_launches(repository, gpu)
    multiprocessors = int(repository.counters(gpu).context["multiprocessors"])
    device = {"WORKLOG_SIMT_MULTIPROCESSORS": str(multiprocessors)}
    kernels, stages = [], []
    for program in programs:
        own, built_from = count(program, ["--shapes", ",".join(SMALL)], device)
        for index, kernel in enumerate(own):
            beside = measured.get(name_of(kernel), [])
            if len(beside) != 1 or beside[0].stale or beside[0].blocks == kernel["blocks"]:
                continue
            held = -(-beside[0].blocks // multiprocessors)
            flags = ["--shapes", f"{kernel['rows']}x{kernel['cols']}", "--dtype", kernel["dtype"], "--variant", kernel["variant"]]
            again, _ = count(program, flags, device | {"WORKLOG_SIMT_BLOCKS_PER_MULTIPROCESSOR": str(held)})
            same = [k for k in again if name_of(k) == name_of(kernel)]
            if len(same) == 1:
                own[index] = same[0]
        kernels += own
        stages.append({"stage": program.stage} | built_from)
    cases = dict.fromkeys((kernel["stage"], case_name(kernel)) for kernel in kernels)
    found = {f"{stage}/{case}": repository.launches_now(stage, gpu, case) for stage, case in cases}
    launches = [{"case": case, "launches": made} for case, made in found.items() if made]
    context = {"shapes": list(SMALL), "multiprocessors": str(multiprocessors)}
    return {"context": context, "stages": stages, "kernels": kernels, "launches": launches}


def drift(committed: dict[str, Any], now: dict[str, Any], is_old: Callable[[dict[str, Any]], bool]) -> list[str]:
    """What is counted differently now, for stages whose kernels are the same. How often a lock is tried is chance."""
    old = {kernel["stage"] for kernel in committed["kernels"] if is_old(kernel)}
    same = {entry["stage"] for entry in committed["stages"]} & {entry["stage"] for entry in now["stages"]} - old
    of = [[kernel for kernel in document["kernels"] if kernel["stage"] in same] for document in (committed, now)]
    found = []
    for stage in sorted(same):
        before, after = ([kernel for kernel in kernels if kernel["stage"] == stage] for kernels in of)
        if len(before) != len(after):
            found.append(f"{stage}: {len(before)} launches were counted, and now there are {len(after)}")
        for old, new in zip(before, after):
            keys = [key for key in old | new if old.get(key) != new.get(key) and not key.startswith("global_atomic_")]
            found += [f"{name_of(old)}, {key}: {old.get(key)} is committed, {new.get(key)} is counted" for key in keys]
    return found


# --- The tables of docs/counting.md ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Comparison:
    counted: Launch
    measured: Launch
    agrees_elsewhere: frozenset[str] = frozenset()  # counters that agree in another launch of this kernel, of the same shape

    def pairs(self) -> Iterator[tuple[str, float, float]]:
        for counter, (_, parts) in COMPARED.items():
            ours = sum(self.counted.values.get(f"{operation}_{key}", 0.0) for operation, key in parts)
            yield counter, ours, self.measured.values.get(counter, 0.0)


def comparisons(place: Place) -> list[Comparison]:
    repository = place.repository
    document = read_json(repository.root / COUNTS, repository.root)
    is_old = repository.stale_cases(document, place.gpu)
    left = {name: list(launches) for name, launches in measured_launches(repository, place.gpu).items()}
    found = []
    for entry in document["kernels"]:
        values = {key: value for key, value in entry.items() if key not in ("rows", "cols")}
        counted = launch_of(entry, values, is_old(entry))
        beside = left.get(counted.name, [])
        if not beside:
            continue
        measured = beside[0]
        current = not (measured.stale or counted.stale)  # both are of the code of today, whatever its name was then
        same_name = short_kernel(measured.kernel) == short_kernel(counted.kernel)
        if measured.blocks == counted.blocks and (current or same_name):
            found.append(Comparison(counted, beside.pop(0)))
        elif current:
            raise ReportError(f"{counted.name}: {measured.blocks} blocks of {measured.kernel} were measured, "
                              f"{counted.blocks} of {counted.kernel} were counted")
    return with_other_launches(found)


def with_other_launches(found: list[Comparison]) -> list[Comparison]:
    """Each with the counters that agree where another variant launches the same kernel."""
    def key(c: Comparison) -> tuple[str, str, str, str]:
        return c.counted.stage, c.counted.kernel, c.counted.shape, c.counted.dtype

    agreeing: dict[tuple[str, str, str, str], list[tuple[Comparison, str]]] = {}
    for comparison in found:
        for counter, counted, measured in comparison.pairs():
            if difference(counted, measured) <= CLOSE:
                agreeing.setdefault(key(comparison), []).append((comparison, counter))
    return [replace(c, agrees_elsewhere=frozenset(counter for other, counter in agreeing.get(key(c), []) if other is not c)) for c in found]


def reason_for(comparison: Comparison, counter: str, counted: float, measured: float) -> Reason | None:
    return next((reason for reason in REASONS if reason.explains(comparison, counter, counted, measured)), None)


def difference(counted: float, measured: float) -> float:
    return abs(measured - counted) / measured if measured else float(counted != measured)


def number_text(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ")


def cell(comparison: Comparison, counter: str, counted: float, measured: float) -> str:
    if counted == measured:
        return number_text(counted)
    if difference(counted, measured) <= CLOSE:
        return f"{number_text(counted)} ({(measured - counted) / counted:+.1%})".replace("%", " %")
    reason = reason_for(comparison, counter, counted, measured)
    return f"**{number_text(counted)}, {number_text(measured)}** {f'({reason.letter})' if reason else '(not explained)'}"


def counted_beside_measured(place: Place) -> Table:
    """A line for each launch, of one stage or all: what was counted, and the hardware's figure where it is another."""
    stages = [place.stage()] if "stage" in place.options else place.repository.stages()
    found = [c for c in comparisons(place) if c.counted.stage in stages]
    without = [stage for stage in stages if all(c.counted.stage != stage for c in found)]
    missing = f"Not read on {place.gpu} since the kernels changed: {', '.join(without)}" if without else ""
    if not found:
        return Table(f"*{missing}.*", False)
    lines, letters = [], set()
    for comparison in found:
        cells = []
        for counter, counted, measured in comparison.pairs():
            cells.append(cell(comparison, counter, counted, measured))
            if difference(counted, measured) > CLOSE and (reason := reason_for(comparison, counter, counted, measured)):
                letters.add(reason.letter)
        launch = comparison.counted
        lines.append([launch.stage[:2], dagger(f"`{launch.variant}`", launch.stale or comparison.measured.stale),
                      f"`{short_kernel(launch.kernel)}`", launch.dtype, launch.shape.replace("x", " x "), *cells])
    stale = any(c.counted.stale or c.measured.stale for c in found)
    head = ["", "variant", "kernel", "type", "shape", *(title for title, _ in COMPARED.values())]
    notes = [f"{reason.letter}: {reason.text}" for reason in REASONS if reason.letter in letters]
    what = "One figure: counted and measured are the same; with a percentage: the hardware counted so much more; two: counted, measured"
    return Table(markdown_table(head, lines, 5) + caption([what, *notes, missing], stale), stale)


def counted_summary(place: Place) -> Table:
    """A line for each stage: how many figures agree."""
    lines, totals, stale = [], [0] * 5, False
    found = comparisons(place)
    for stage in place.repository.stages():
        of_stage = [c for c in found if c.counted.stage == stage]
        if not of_stage:
            lines.append([stage, "0", *["–"] * 4])
            continue
        old = any(c.counted.stale or c.measured.stale for c in of_stage)
        stale = stale or old
        row = [0] * 5
        for comparison in of_stage:
            for counter, counted, measured in comparison.pairs():
                kind = 1 if counted == measured else 2 if difference(counted, measured) <= CLOSE else 3 if reason_for(comparison, counter, counted, measured) else 4
                row[0] += 1
                row[kind] += 1
        totals = [a + b for a, b in zip(totals, row)]
        lines.append([dagger(stage, old), *map(str, row)])
    lines.append(["all", *map(str, totals)])
    head = ["stage", "figures compared", "equal", "within 2 %", "explained", "not explained"]
    origin = source_note(place, [place.repository.counters(place.gpu)])
    return Table(markdown_table(head, lines) + caption(["Counted on the CPU layer: " + place.link(place.repository.root / COUNTS), *origin], stale), stale)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, default=ROOT / "build/cpu/bin", help="folder of the stages' programs (default: build/cpu/bin)")
    parser.add_argument("--gpu", default="h200", help="whose number of multiprocessors and blocks is taken (default: h200)")
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    repository = Repository(ROOT)
    path = ROOT / COUNTS
    try:
        now = collect(programs_in(options.programs), repository, options.gpu)
        if not options.check:
            write_json(path, now)
            print(f"{len(now['kernels'])} launches of {len(now['stages'])} stages: {COUNTS}")
            return 0
        committed = read_json(path, ROOT)
        found = drift(committed, now, repository.stale_cases(committed, options.gpu))
    except ReportError as error:
        print(f"counting.py: {error}", file=sys.stderr)
        return 2
    for sentence in found:
        print(sentence)
    print(f"{COUNTS}: {'as it is counted now' if not found else f'{len(found)} figures have drifted; without --check they are written anew'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
