#!/usr/bin/env python3
"""Counts what the kernels do to memory, on the CPU layer.

    python3 common/report/counting.py --programs build/cpu/bin            writes docs/data/counts.json
    python3 common/report/counting.py --programs build/cpu/bin --check    says whether it would be written differently
    ... --check --sample                                                  the same, of 256x4096 in fp32 alone

The counts are those of every stage and variant at the shapes that counters.py has measured, and they are the same on
every machine. docs/counting.md shows them beside docs/counters/<gpu>.json (counting_tables.py). --check leaves out the
stages whose kernels are not those that were counted: their figures are marked in the tables.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from grid import SMALL
from programs import Program, programs_in, write_json
from results import ROOT, Launch, Repository, ReportError, case_name, launch_of, read_json

COUNTS = Path("docs/data/counts.json")
SAMPLE = ("256x4096", "fp32")  # a quarter of the work, with every stage, variant and operation in it

def kernels_of(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The launches of one counted run, each with its counts by flat names."""
    for kernel in entry["kernels"]:
        totals = kernel["counts"]
        flat = {
            f"{operation}_{key}": value for operation, counts in totals.items()
            for key, value in counts.items()
            if value
        }
        yield {
            **{
                key: entry[key] for key in ("stage", "variant", "operation", "dtype", "rows", "cols", "pixels", "bytes")
            },
            "kernel": kernel["kernel"],
            "blocks": kernel["grid"][0] * kernel["grid"][1] * kernel["grid"][2],
            "threads": kernel["block"][0] * kernel["block"][1] * kernel["block"][2],
            "cluster": kernel["cluster"],
            "dram_read_bytes": kernel["dram_read_bytes"],
            "dram_write_bytes": kernel["dram_write_bytes"],
            **{
                f"read_{memory['name']}_bytes": memory["bytes_read"]
                for memory in kernel["memory"]
                if memory["bytes_read"]
            },
            **flat,
        }


def count(
    program: Program, flags: list[str], environment: dict[str, str]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The launches of a stage's program with these flags, and what it was built from: the hash of its kernels, and the
    commit. Raises ReportError where it finds something wrong."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "counts.json"
        command = [str(program.path), "--count", "--input", "normal", *flags, "--json", str(file)]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            env=os.environ | environment,
        )
        if done.returncode != 0:
            raise ReportError(f"{program.stage} {' '.join(flags)} ended with {done.returncode}:\n{done.stdout[-2000:]}")
        document = json.loads(file.read_text(encoding="utf-8"))
    built_from = {key: document["context"][key] for key in ("source_hash", "commit")}
    return [kernel for entry in document["counts"] for kernel in kernels_of(entry)], built_from


def measured_launches(repository: Repository, gpu: str) -> dict[str, list[Launch]]:
    found: dict[str, list[Launch]] = {}
    for launch in repository.counters(gpu).launches:
        found.setdefault(launch.name, []).append(launch)
    return found


def name_of(kernel: dict[str, Any]) -> str:
    return launch_of(kernel, {}, False).name


def collect(
    programs: list[Program], repository: Repository, gpu: str, wanted: tuple[str, ...] = ("--shapes", ",".join(SMALL))
) -> dict[str, Any]:
    """The counts of all stages at the shapes of counters.py, on as many multiprocessors as the GPU has.

    Where a kernel's grid follows from how many blocks a multiprocessor holds, which a CPU cannot know (it depends on
    registers), it is told what the GPU held."""
    measured = measured_launches(repository, gpu)
    multiprocessors = int(repository.counters(gpu).context["multiprocessors"])
    device = {"WORKLOG_SIMT_MULTIPROCESSORS": str(multiprocessors)}
    kernels, stages = [], []
    for program in programs:
        own, built_from = count(program, [*wanted], device)
        for index, kernel in enumerate(own):
            beside = measured.get(name_of(kernel), [])
            if len(beside) != 1 or beside[0].stale or beside[0].blocks == kernel["blocks"]:
                continue
            held = -(-beside[0].blocks // multiprocessors)
            flags = ["--shapes", f"{kernel['rows']}x{kernel['cols']}"]
            flags += ["--dtype", kernel["dtype"], "--variant", kernel["variant"]]
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


def is_of_sample(kernel: dict[str, Any]) -> bool:
    return (f"{kernel['rows']}x{kernel['cols']}", kernel["dtype"]) == SAMPLE


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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--programs",
        type=Path,
        default=ROOT / "build/cpu/bin",
        help="folder of the stages' programs (default: build/cpu/bin)",
    )
    parser.add_argument(
        "--gpu", default="h200", help="whose number of multiprocessors and blocks is taken (default: h200)"
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--sample", action="store_true", help=f"with --check: count {' in '.join(SAMPLE)} alone")
    options = parser.parse_args(arguments)
    if options.sample and not options.check:
        parser.error("--sample needs --check: what is written is counted whole")
    repository = Repository(ROOT)
    path = ROOT / COUNTS
    try:
        programs = programs_in(options.programs)
        if options.sample:
            shape, dtype = SAMPLE
            now = collect(programs, repository, options.gpu, ("--shapes", shape, "--dtype", dtype))
        else:
            now = collect(programs, repository, options.gpu)
        if not options.check:
            write_json(path, now)
            print(f"{len(now['kernels'])} launches of {len(now['stages'])} stages: {COUNTS}")
            return 0
        committed = read_json(path, ROOT)
        if options.sample:
            committed["kernels"] = [kernel for kernel in committed["kernels"] if is_of_sample(kernel)]
        found = drift(committed, now, repository.stale_cases(committed, options.gpu))
    except ReportError as error:
        print(f"counting.py: {error}", file=sys.stderr)
        return 2
    for sentence in found:
        print(sentence)
    drifted = f"{len(found)} figures have drifted; without --check they are written anew"
    print(f"{COUNTS}: {drifted if found else 'as it is counted now'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
