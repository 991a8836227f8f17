#!/usr/bin/env python3
"""Reads the hardware's counters for every stage and variant with Nsight Compute, on a GPU.

    python3 common/report/counters.py --programs build/gpu/bin --output docs/counters

writes docs/counters/<gpu>.json: what each kernel moved, asked for and waited for, at the shapes below.
docs/profiling.md says which counter answers which question. Of other shapes and flags than these, a call such as

    python3 common/report/counters.py --stage 06_fused_residual --flags "--shapes 8192x4096 --variant quantized"

prints them, and writes nothing. Nsight Compute runs each kernel several times, with a
flushed cache and serialized launches: its counts are those of the kernel as it stands, its times are not the ones that
results/ hold.

Needs ncu of the CUDA Toolkit, and the right to read counters (as root, or with NVreg_RestrictProfilingToAdminUsers=0).
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grid import ELEMENT_BYTES, SMALL, SWEEPS, is_in_grid, is_of_article
from programs import Failed, Program, programs_in, require_gpu, tool, write_json
from results import ROOT, ReportError

# What is asked of each kernel, by the name that tables and figures use.
METRICS = {
    # Memory: what went through each level, in bytes.
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "l2_to_sm_bytes": "l1tex__m_xbar2l1tex_read_bytes.sum",
    "sm_to_l2_bytes": "l1tex__m_l1tex2xbar_write_bytes.sum",
    "l2_hit_percent": "lts__t_sector_hit_rate.pct",
    "l1_hit_percent": "l1tex__t_sector_hit_rate.pct",
    # What the warps asked for: requests, and the 32-byte sectors that they touch.
    "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global_store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "global_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    # Shared memory: turns of the data banks, and those that conflicts added.
    "shared_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "shared_bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    # Instructions, and how busy the schedulers were with them.
    "instructions": "smsp__inst_executed.sum",
    "issue_active_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_percent": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1_percent": "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
    # Why warps waited: warps in that state for each instruction issued.
    "waits_memory": "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
    "waits_shared": "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio",
    "waits_barrier": "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
    "waits_queue": "smsp__average_warps_issue_stalled_lg_throttle_per_issue_active.ratio",
    "waits_dispatch": "smsp__average_warps_issue_stalled_not_selected_per_issue_active.ratio",
    "cycles": "smsp__cycles_elapsed.max",
    "duration_ns": "gpu__time_duration.sum",
}

# What an entry says of its launch, and what that takes of a multiprocessor, as the harness tells both.
OF_LAUNCH = (
    "stage", "variant", "operation", "dtype", "rows", "cols", "pixels", "kernel", "blocks", "threads", "cluster",
)
OF_KERNEL = (
    "registers", "local_bytes", "static_shared_bytes", "dynamic_shared_bytes", "blocks_per_multiprocessor",
    "occupancy",
)
# Tensors of 512 MiB: every step of the ladder at one row length, the kernel that it ends with at all, what is built on
# that at two.
LADDER = "131072x1024"
WIDE_STAGE, WIDE_VARIANT, WIDE_COLS = "05_welford", "layer_norm", (256, 1024, 4096, 8192, 16384, 65536, 131072)
LATER_COLS = (1024, 8192)
FINAL_COLS = (4095, 65536)  # of the variant that a stage ends with: odd rows, and very long ones


@dataclass(frozen=True)
class Run:
    program: Program
    flags: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.program.stage} {' '.join(self.flags)}"


def ladder_of(program: Program) -> tuple[str, ...]:
    """The flags that choose what is counted of a stage: of the grid, what is not an article's own kernel."""
    counted = [(v, o) for v, o, _ in program.implementations if is_in_grid(v, o) and not is_of_article(v)]
    variants, operations = (",".join(dict.fromkeys(names)) for names in zip(*counted))
    return ("--variant", variants, "--operation", operations)


def runs_of(programs: list[Program]) -> list[Run]:
    runs = []
    for program in programs:
        of_ladder = ladder_of(program)
        runs += [Run(program, ("--shapes", shape, *of_ladder)) for shape in SMALL]
        if program.stage <= WIDE_STAGE:
            runs.append(Run(program, ("--shapes", LADDER, "--dtype", "fp32", *of_ladder)))
        if program.stage == WIDE_STAGE and WIDE_VARIANT in program.variants:
            for dtype in ("fp32", "bf16"):
                for cols in WIDE_COLS:
                    rows = 2**29 // (cols * ELEMENT_BYTES[dtype])
                    flags = ("--shapes", f"{rows}x{cols}", "--dtype", dtype, "--variant", WIDE_VARIANT)
                    runs.append(Run(program, flags))
        elif program.stage > WIDE_STAGE and "bf16" in program.dtypes:
            runs += [
                Run(program, ("--shapes", f"{2**28 // cols}x{cols}", "--dtype", "bf16", *of_ladder))
                for cols in LATER_COLS
            ]
            if program.stage in SWEEPS:
                final = SWEEPS[program.stage][0][0]
                runs += [
                    Run(program, ("--shapes", f"{2**28 // cols}x{cols}", "--dtype", "bf16", "--variant", final))
                    for cols in FINAL_COLS
                ]
    return runs


def known_metrics(ncu: str) -> set[str]:
    """The base names of the counters that this GPU has; empty where ncu does not list them."""
    done = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, check=False)
    return set(re.findall(r"^(\w+__\w+)\s", done.stdout, re.MULTILINE))


def number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None  # "n/a": the counter does not apply to this kernel


def launches_in(printed: str) -> list[dict[str, Any]]:
    """The kernels of ncu's raw CSV page, in the order of their launches."""
    lines = printed.splitlines()
    head = next((index for index, line in enumerate(lines) if line.startswith('"ID"')), None)
    if head is None:
        return []
    table = list(csv.reader(io.StringIO("\n".join(lines[head:]))))
    names = table[0]
    launches = []
    for row in table[2:]:  # table[1] holds the units: bytes and nanoseconds, as --print-units base has them
        if len(row) != len(names):
            continue
        entry = dict(zip(names, row))
        launches.append({
            "kernel": entry["Kernel Name"],
            "grid": entry["Grid Size"],
            "block": entry["Block Size"],
            "metrics": {name: number(entry[metric]) for name, metric in METRICS.items() if metric in entry},
        })
    return launches


def product(dimensions: str) -> int:
    """'(1024, 1, 1)' as 1024."""
    result = 1
    for word in re.findall(r"\d+", dimensions):
        result *= int(word)
    return result


def profile(run: Run, ncu: str, metrics: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The document of the run, and an entry for each kernel that a variant launched."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        log = Path(folder) / "counters.csv"
        # The clocks are left as they are: the counts do not depend on them, and a shared machine's are not ours.
        command = [
            ncu, "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log),
            "--metrics", ",".join(metrics), str(run.program.path), *run.flags, "--check-only", "--input", "normal",
            "--resources", "--json", str(file),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        printed = log.read_text(encoding="utf-8") if log.is_file() else ""
        if not file.is_file():
            raise Failed(f"{run.title}: {done.stdout[-2000:]}\n{printed[-2000:]}")
        document = json.loads(file.read_text(encoding="utf-8"))
    measured = launches_in(printed)
    made = document["resources"]
    # The harness and the profiler have seen the same launches, in the same order; anything else would mix up names.
    if [(product(l["grid"]), product(l["block"])) for l in measured] != [(r["blocks"], r["threads"]) for r in made]:
        seen = [(l["kernel"], l["grid"], l["block"]) for l in measured]
        raise Failed(
            f"{run.title}: Nsight Compute saw {len(measured)} launches, the harness made {len(made)}; they do not "
            f"match\n{seen}\n{printed[-1500:] if not measured else ''}"
        )
    entries = []
    for launch, resources in zip(measured, made):
        entry = {key: resources[key] for key in OF_LAUNCH}
        takes = {key: resources[key] for key in OF_KERNEL}
        entries.append(entry | {"resources": takes, "metrics": launch["metrics"]})
    return document, entries


def merged(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    """The stages just captured, instead of what the file has of them."""
    if not path.is_file():
        return document
    before = json.loads(path.read_text(encoding="utf-8"))
    new = {stage["stage"] for stage in document["stages"]}
    result = document | {
        key: [entry for entry in before[key] if entry["stage"] not in new] + document[key]
        for key in ("stages", "kernels")
    }
    of_others = [entry for entry in before.get("launches", []) if entry["case"].partition("/")[0] not in new]
    result["launches"] = sorted(of_others + document.get("launches", []), key=lambda entry: entry["case"])
    for key in ("stages", "kernels"):
        result[key].sort(key=lambda entry: entry["stage"])  # stable: within a stage, the order of its launches
    return result


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--programs",
        type=Path,
        default=ROOT / "build/gpu/bin",
        help="folder of the stages' programs (default: build/gpu/bin)",
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "docs/counters", help="folder for <gpu>.json (default: docs/counters)"
    )
    parser.add_argument(
        "--stage",
        action="append",
        default=[],
        help="only this stage, added to what is there (may be given more than once)",
    )
    parser.add_argument(
        "--flags", help="print the counters of one call of each program with these flags, and write nothing"
    )
    options = parser.parse_args(arguments)
    try:
        programs = programs_in(options.programs, options.stage)
        instead = "there is no GPU here, and so no counters to read; docs/counters holds those of an H200."
        context = require_gpu(programs[0], instead)
        ncu = tool("ncu", "reads the hardware's counters")
        known = known_metrics(ncu)
        asked = [metric for metric in METRICS.values() if not known or metric.split(".")[0] in known]
        for metric in METRICS.values():
            if metric not in asked:
                print(f"this GPU has no {metric}; it is left out")
        asked_version = subprocess.run([ncu, "--version"], capture_output=True, text=True, check=False)
        version = asked_version.stdout.strip().splitlines()
        if options.flags is not None:
            for program in programs:
                entries = profile(Run(program, tuple(shlex.split(options.flags))), ncu, asked)[1]
                print(json.dumps(entries, indent=1))
            return 0
        shared = (
            "gpu", "gpu_short", "compute_capability", "multiprocessors", "l2_bytes", "driver", "cuda_runtime",
            "compiler", "flags", "date",
        )
        of_gpu = {key: context[key] for key in shared if key in context}
        path = options.output / f"{context['gpu_short']}.json"
        of_stages = [(program, runs_of([program])) for program in programs]
        count, done = sum(len(runs) for _, runs in of_stages), 0
        for program, runs in of_stages:
            kernels, launches, built_from = [], [], {}
            for run in runs:
                done += 1
                print(f"[{done}/{count}] {run.title}", flush=True)
                of_run, entries = profile(run, ncu, asked)
                built_from = {key: of_run["context"][key] for key in ("source_hash", "commit", "dirty")}
                kernels += entries
                for entry in of_run.get("launches", []):
                    launches.append(entry | {"case": f"{program.stage}/{entry['case']}"})
            # Stage by stage: what is captured stays, should the next one be cut off.
            write_json(path, merged(path, {
                "context": of_gpu | {"profiler": version[-1] if version else "ncu"},
                "metrics": {name: metric for name, metric in METRICS.items() if metric in asked},
                "stages": [{"stage": program.stage} | built_from],
                "kernels": kernels,
                "launches": launches,
            }))
            print(f"counters of {len(kernels)} launches of {program.stage} written to {path}", flush=True)
    except ReportError as error:
        print(f"counters.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
