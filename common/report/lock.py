#!/usr/bin/env python3
"""Writes NN_name/results/code_<arch>.json: the code and the shapes that the tree as it stands launches in each case
that has a committed figure. It needs nvcc's programs and the CPU layer's, and no GPU.

    ./worklog lock             make the locks of the stages whose sources have changed
    ./worklog lock --all       of all stages
    ./worklog lock --check     write nothing; exit code 1 where a lock is not what the tree gives

nvcc's program of a stage holds the machine code that a GPU would run. Which kernels a case launches is asked of the CPU
layer's program, which is told what the GPU has (its multiprocessors, its L2 cache) and what each kernel takes of it
(registers, shared memory), and runs none.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import launches
from cells import OURS, STAGE_OF, case_of_cell, cell_of
from machine_code import CodeError, Kernel, code_of_all, kernels_in
from programs import write_json
from results import ROOT, ReportError, Repository, case_name, read_json

NO_NVCC = """there is no nvcc here, which the lock is made with. Without it, a figure is current while the kernels'
sources are as they were when the lock was made."""

SHOWN = 40  # differences of a lock


def stages_of(repository: Repository, wanted: list[str]) -> list[str]:
    stages = repository.stages()
    for name in wanted:
        if not any(stage.startswith(name) for stage in stages):
            raise ReportError(f"there is no stage '{name}'; there are: {', '.join(stages)}")
    return [stage for stage in stages if not wanted or any(stage.startswith(name) for name in wanted)]


def gpus_with_results(repository: Repository, stage: str) -> dict[str, dict[str, str]]:
    """The context of each GPU's results."""
    found = {}
    for path in sorted((repository.root / stage / "results").glob("*.json")):
        if not path.name.startswith("code_"):
            found[path.stem] = read_json(path, repository.root)["context"]
    return found


def architectures_with_results(repository: Repository) -> list[str]:
    """Of all stages, as CMake names them: 90 for sm_90."""
    contexts = (context for stage in repository.stages() for context in gpus_with_results(repository, stage).values())
    return sorted({launches.architecture_of(c["compute_capability"]).removeprefix("sm_") for c in contexts})


def cases_of(repository: Repository, stage: str, gpu: str) -> list[str]:
    """Every case of the stage that some committed figure was measured in, in the order of their names."""
    document = read_json(repository.results_path(stage, gpu), repository.root)
    names = {name.split("/", 1)[1].rsplit("/", 1)[0] for name in benchmarks_in(document)}
    entries = [*document.get("checks", []), *document.get("resources", [])]
    for path in (repository.root / "docs/counters" / f"{gpu}.json", repository.root / "docs/data/counts.json"):
        if path.is_file():
            entries += read_json(path, repository.root)["kernels"]
    names |= {case_name(entry) for entry in entries if entry["stage"] == stage and not is_special(entry)}
    comparison = repository.comparison(gpu)
    for entry in comparison["benchmarks"] if comparison else []:
        variant, cell, _ = cell_of(entry["name"])
        if variant == OURS and STAGE_OF[cell.operation] == stage:
            names.add(case_of_cell(cell))
    return sorted(names)


def benchmarks_in(document: dict[str, Any]) -> Iterator[str]:
    """stage/variant/operation/type/shape/mode of each timing."""
    for entry in document.get("benchmarks", []):
        yield "/".join(str(entry.get("run_name", entry["name"])).split("/")[:6])


def is_special(entry: dict[str, Any]) -> bool:
    """A check that was not made as a timing is: of other types, strides or alignments."""
    return bool(entry.get("row_padding") or entry.get("misalign") or entry.get("without"))


def clusters_of(context: dict[str, str]) -> dict[str, int]:
    """How many clusters the GPU holds at once, as far as it was asked."""
    gpus = json.loads((Path(__file__).with_name("gpus.json")).read_text(encoding="utf-8"))
    return gpus.get(context.get("gpu_short", ""), {}).get("clusters_at_once", {})


def ask(
    program: Path, cases: Iterable[str], kernels: dict[str, Kernel], context: dict[str, str]
) -> list[dict[str, Any]]:
    """The launches of each case, as the CPU layer's program tells them. Raises ReportError."""
    with tempfile.TemporaryDirectory() as folder:
        names, taken = Path(folder) / "cases", Path(folder) / "kernels"
        names.write_text("".join(f"{name}\n" for name in cases), encoding="utf-8")
        taken.write_text(
            "".join(f"{k.symbol} {k.registers} {k.shared_bytes}\n" for k in kernels.values()), encoding="utf-8"
        )
        told = {
            "WORKLOG_SIMT_MULTIPROCESSORS": context["multiprocessors"],
            "WORKLOG_SIMT_L2_BYTES": context["l2_bytes"],
            "WORKLOG_SIMT_KERNELS": str(taken),
            "WORKLOG_SIMT_CLUSTERS": ",".join(f"{shape}={count}" for shape, count in clusters_of(context).items()),
        }
        done = subprocess.run(
            [str(program), "--launches", str(names)], capture_output=True, text=True, env=os.environ | told, check=False
        )
    if done.returncode != 0:
        raise ReportError(f"{program} could not tell what is launched: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout)


def with_code(told: list[dict[str, Any]], kernels: dict[str, Kernel], names: dict[str, str]) -> list[dict[str, Any]]:
    """The cases with the code of their kernels in place of the symbols."""
    found = []
    for entry in told:
        of_case = []
        for launch in entry["launches"]:
            symbol = launch.pop("symbol")
            if symbol not in kernels:  # nvcc leaves out the L of a name that is private to its file
                symbol = re.sub(r"L(?=\d)", "", symbol, count=1)
            if symbol not in kernels:
                raise ReportError(
                    f"{entry['case']} launches {symbol} on the CPU layer, which nvcc's program does not have"
                )
            of_case.append({"kernel": launch.pop("kernel"), "code": kernels[symbol].code, **launch})
        found.append({"case": entry["case"], "launches": launches.with_names_apart(of_case, names)})
    return found


def toolchain_of(programs: Path, stage: str) -> dict[str, str]:
    """What nvcc's program says that it was built with (common/harness/provenance.cmake)."""
    text = (programs.parent / "provenance" / f"{stage}.cpp").read_text(encoding="utf-8")
    found = {
        key: match[1] if (match := re.search(rf'\.{key} = "([^"]*)"', text)) else "" for key in ("compiler", "flags")
    }
    return {"compiler": found["compiler"], "flags": found["flags"].partition(", architectures")[0]}


def locks_of(repository: Repository, stage: str, nvcc: Path, cpu: Path) -> dict[Path, dict[str, Any]]:
    """The stage's locks as they should be, one for each architecture that it has results of."""
    by_architecture: dict[str, dict[str, dict[str, str]]] = {}
    for gpu, context in gpus_with_results(repository, stage).items():
        by_architecture.setdefault(launches.architecture_of(context["compute_capability"]), {})[gpu] = context
    found = {}
    for architecture, gpus in by_architecture.items():
        kernels = kernels_in(nvcc / stage, architecture)
        names: dict[str, str] = {}
        of_gpus = []
        for gpu, context in gpus.items():
            told = ask(cpu / stage, cases_of(repository, stage, gpu), kernels, context)
            device = {key: context[key] for key in ("multiprocessors", "l2_bytes")}
            of_gpus.append({"gpu": gpu, **device, "launches": with_code(told, kernels, names)})
        found[launches.lock_path(repository.root, stage, architecture)] = {
            "architecture": architecture,
            **toolchain_of(nvcc, stage),
            "source_hash": repository.hash_now(stage),
            "code": code_of_all(kernels.values()),
            "kernel_names": [{"code": code, "kernel": names[code]} for code in sorted(names)],
            "gpus": of_gpus,
        }
    return found


def is_unchanged(repository: Repository, stage: str) -> bool:
    """Whether the stage's locks are of these sources, and have every case that they should have."""
    gpus = gpus_with_results(repository, stage)
    locks = {gpu: repository.lock(stage, gpu) for gpu in gpus}
    return all(
        lock is not None
        and lock.source_hash == repository.hash_now(stage)
        and set(lock.cases[gpu]) == set(cases_of(repository, stage, gpu))
        for gpu, lock in locks.items()
    )


def differences(lock: launches.Lock | None, wanted: dict[str, Any]) -> list[str]:
    """A sentence for each case in which the committed lock is not what the tree gives."""
    if lock is None:
        return ["there is none yet"]
    if lock.toolchain["flags"] != wanted["flags"]:
        return [f"it was made with {lock.toolchain['flags']}, and now with {wanted['flags']}"]
    found = []
    names = lock.names | launches.kernel_names(wanted)
    for gpu in wanted["gpus"]:
        before, now = lock.cases.get(gpu["gpu"], {}), launches.recorded(gpu)
        found += [
            f"{gpu['gpu']}, {case}: {'no longer' if case in before else 'not yet'} in it"
            for case in sorted(before.keys() ^ now)
        ]
        for case in sorted(before.keys() & now):
            found += [
                f"{gpu['gpu']}, {case}: {sentence}" for sentence in launches.differences(before[case], now[case], names)
            ]
    for key in ("source_hash", "code"):
        if not found and getattr(lock, key) != wanted[key]:
            found.append(
                "no case has changed, but " + ("the sources have" if key == "source_hash" else "other kernels have")
            )
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./worklog lock", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 where a lock is not what the tree gives"
    )
    parser.add_argument("--all", action="store_true", help="also stages whose sources are as they were")
    parser.add_argument(
        "--stage", action="append", default=[], help="only this stage: 07, or 07_backward (may be repeated)"
    )
    parser.add_argument("--list", action="store_true", help="print the stages that would be made, and stop")
    parser.add_argument("--architectures", action="store_true", help="print those that there are results of, and stop")
    parser.add_argument(
        "--nvcc", type=Path, default=ROOT / "build/gpu/bin", help="folder of nvcc's programs (default: build/gpu/bin)"
    )
    parser.add_argument(
        "--cpu", type=Path, default=ROOT / "build/cpu/bin", help="folder of the CPU layer's (default: build/cpu/bin)"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    repository = Repository(options.root)
    wrong = 0
    try:
        if options.architectures:
            print(*architectures_with_results(repository), sep="\n")
            return 0
        for stage in stages_of(repository, options.stage):
            if not options.all and is_unchanged(repository, stage):
                print(
                    f"{stage}: its sources are as they were when its lock was made",
                    file=sys.stderr if options.list else sys.stdout,
                )
                continue
            if options.list:
                print(stage)
                continue
            for path, wanted in locks_of(repository, stage, options.nvcc, options.cpu).items():
                shown, lock = path.relative_to(repository.root), launches.read_lock(path)
                if options.check and lock and lock.toolchain["compiler"] != wanted["compiler"]:
                    made_with, here = lock.toolchain["compiler"], wanted["compiler"]
                    print(f"{shown}: made with {made_with}, and here is {here}, whose code is another: not compared")
                    continue
                found = differences(lock, wanted)
                cases = sum(len(gpu["launches"]) for gpu in wanted["gpus"])
                print(f"{shown}: {cases} cases, {len(found)} differences" + (":" if found else ""))
                print(*(f"  {sentence}" for sentence in found[:SHOWN]), sep="\n", end="\n" if found else "")
                if len(found) > SHOWN:
                    print(f"  and {len(found) - SHOWN} more")
                wrong += len(found)
                if not options.check:
                    write_json(path, wanted)
    except (ReportError, CodeError, OSError) as error:
        print(f"./worklog lock: {error}", file=sys.stderr)
        return 2
    return 1 if options.check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
