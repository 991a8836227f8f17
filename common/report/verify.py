#!/usr/bin/env python3
"""Verifies every stage on a GPU, and keeps what was found: docs/verified/<gpu>.json.

    ./worklog verify                     builds first
    python3 common/report/verify.py --programs build/gpu/bin

Each stage's program checks every variant, operation and type against the fp64 reference, over the sweeps below; the
test suites with kernels run; so do the Python package's tests, where there is a Python with PyTorch (python3, or the
one that WORKLOG_PYTHON names) and the library lies beside the programs, in ../lib, or is the one that
NORMWORKLOG_LIBRARY names; then every program runs under the four tools of compute-sanitizer (common/tests/sanitize.sh).
What was found carries the hash of the kernels that it was found for. Nothing is written where something failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import fuzz
from launches import architecture_of
from machine_code import code_of_all, kernels_in
from programs import Failed, Program, programs_in, require_gpu, shown, tool, write_json
from results import PACKAGE_SUITE, ROOT, ReportError

NO_GPU = """there is no GPU here (or no CUDA Toolkit) to verify on. What can be done instead:
  ./worklog test    checks every kernel on the CPU layer, over the same shapes but the largest
  ./worklog run     shows the checks of one stage after the other"""

COLS = "1,2,31,32,33,127,768,1000,1023,1024,1025,4095,4096,4097,8192,12288,12289,16384,24576,50257,65536,131072"
PAST_32_BITS = "past 2^32 elements"
# The stages, and their variants, that take narrow rows by tiles.
WITH_TILES = {
    "05_welford": "layer_norm",
    "06_fused_residual": "unfused,fused,fused_inplace,norm",
    "07_backward": "persistent",
}
ACCEPTED = ("passed", "expected failure", "permitted failure")
PACKAGE = ROOT / "common/library/python"
PACKAGE_NEEDS = """import numpy, pytest, torch, normworklog
assert torch.cuda.is_available(), "PyTorch sees no GPU"
assert normworklog.backend() == "cuda", "the library is a CPU build"
"""
# How a suite prints a count: GoogleTest's, and pytest's.
# Stages that choose among kernels by what the device has, and what verify takes away from it.
WITH_TABLES = ("05_welford", "06_fused_residual", "07_backward", "08_batchnorm")
# By what is left out or set: shapes, and further flags. Found by trying: of many shapes, few that get to all.
OF_MIXED = ("--dtype", "fp16,bf16", "--param-dtype", "fp32")
RULES = {
    "forward": {
        "gamma and beta": (
            "1x8,1x16,1x40,1x72,1x136,1x257,1x262144,33x262144,600x72,600x136,600x264,2000x512,2000x1024,4096x511,"
            "20000x100,20000x129,100001x17,100001x18,600x20001,600x38921,1000003x2,1024x32,1024x64,1024x128,1024x256",
        ),
        "without": (
            "1x1500,1x3001,1x65544,1x131080,132x4104,132x16392,600x512,64x10000", "--without", "gamma,beta",
        ),
        "fp32 parameters": (
            "1x8,1x40,1x72,1x136,1x264,1x262144,600x72,600x136,600x264,600x1000,100001x17,100001x18,20000x100,400001x5,"
            "1000003x2,4096x510,4096x511,20000x127,20000x129,100000x33,100001x34,20000x250,64x131080", *OF_MIXED,
        ),
        "16 bits without": (
            "1x520,1x2056,1x8200,600x1000,132x4104,132x16392", *OF_MIXED, "--without", "gamma,beta",
        ),
        "rows that fit the cache": (
            "64x64,64x32,256x2880,256x1440,2048x384,2048x500,2048x768,2048x1000,128x12288",
        ),
        "rows that fill their warps": (
            "8x64,8x128,1x128,2x256,64x512,8x384,8x768,2048x340,2048x384,2048x680,4096x768,4096x512,4096x1024,"
            "9000x1024,2048x1600,600x14336,600x16384,300x12288",
        ),
        "persistent blocks": (
            "4096x1152,4096x2048,2500x3072,2048x4096,1000x7168,2048x7168,1500x10240,512x14336,1024x8192,1024x16384,"
            "512x12288",
        ),
        "rows that fit it, without": ("600x64,600x128,600x256,600x512", "--without", "gamma,beta"),
        "rows that fit it, fp32 parameters": ("128x12288,600x14336,3000x12288", *OF_MIXED),
        "any batch": ("1x520,1x1032,1x1288,1x2056,1x4104,1x8200,1x16392", "--batch-invariant"),
        "any batch, fp32 parameters": ("1x257,1x520,1x16383,1x16385", *OF_MIXED, "--batch-invariant"),
        "misaligned": ("1x1032", "--misalign", "1"),
        "misaligned, fp32 parameters": ("1x1032", *OF_MIXED, "--misalign", "1"),
    },
    "backward": {
        "gamma": (
            "1x72,1x129,1x136,1x28673,1x65537,600x72,600x136,600x1032,9x4104,2100x640,1500x4096,1000x5120,1000x8192,"
            "700x12288,20000x66,20000x129,100001x12,100001x17,100001x18",
        ),
        "fp32 parameters": (
            "1x72,1x129,1x136,1x256,1x257,1x131080,65x520,65x4104,600x72,600x136,2100x1024,4096x250,20000x33,20000x50,"
            "20000x66,20000x127,20000x129,100001x7,100001x12,100001x17,100001x18", *OF_MIXED,
        ),
        "any batch": ("1x136,1x16392", "--batch-invariant"),
        "any batch, fp32 parameters": ("1x129,1x264,1x520,1x4097,1x4104", *OF_MIXED, "--batch-invariant"),
        "misaligned, fp32 parameters": ("1x131080", *OF_MIXED, "--misalign", "1"),
    },
}
DENIED = {
    "clusters": "clusters",
    "a Turing's": "clusters,dependent_launch,shared=64,multiprocessors=40",
    "an Ada's": "clusters,dependent_launch,shared=99,multiprocessors=58",
    "shared memory over 48 KiB": "shared=48",
    "multiprocessors": "multiprocessors=8",
    "cooperative launch": "clusters,cooperative_launch",
    "dependent launch": "dependent_launch",
}
OF_GOOGLETEST, OF_PYTEST = r"\[ *{} *\] (\d+) test", r"(\d+) {}.* in [\d.]+s"


@dataclass(frozen=True)
class Sweep:
    """One run of a stage's program: what it covers, in words, and the flags."""

    name: str
    covers: str
    flags: tuple[str, ...]

    @property
    def is_past_32_bits(self) -> bool:
        return self.name.startswith(PAST_32_BITS)


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def sweeps_of(program: Program) -> Iterator[Sweep]:
    yield Sweep("inputs", "every input at 1024 x 1024", ("--shapes", "1024x1024", "--input", "all"))
    if program.is_batchnorm:
        yield from sweeps_of_batchnorm()
    else:
        yield from sweeps_of_rows(program)
    if program.dtypes_with_fp32_parameters:
        of_parameters = ("--dtype", ",".join(program.dtypes_with_fp32_parameters), "--param-dtype", "fp32")
        yield Sweep(
            "fp32 parameters",
            "gamma and beta in fp32 beside 16-bit elements",
            ("--rows", "3", "--cols", COLS, *of_parameters, "--input", "normal"),
        )
        yield Sweep(
            "fp32 parameters, many rows",
            "the same, with rows enough for blocks and persistent clusters",
            (
                "--shapes", "1000x4095,1000x16384,3x20000,3x20001,600x32768,600x50257,600x65536", *of_parameters,
                "--input", "normal",
            ),
        )
    if quantized := [operation for operation in program.operations if operation.endswith("_quantized")]:
        # The other sweeps have e4m3 with a scale of each row.
        for kind in ("e4m3:block", "e4m3:tensor", "int8:row", "int8:block", "int8:tensor"):
            yield Sweep(
                f"eight bits, {kind}",
                "y in eight bits with other scales, by 3 and 132 rows",
                (
                    "--rows", "3,132", "--cols", "1,127,129,1024,4097,12289,65536", "--quantize", kind, "--operation",
                    ",".join(quantized), "--input", "normal",
                ),
            )
    if "zero_centered" in program.variants:
        yield Sweep(
            "weights about zero",
            "1 + gamma, at the rows of each rule for such weights",
            (
                "--shapes", "1000x64,1000x256,300x520,1000x2304,300x5376,100x8200,20x16384,3x40000", "--gamma-offset",
                "1", "--input", "normal",
            ),
        )
        yield Sweep(
            "weights about zero, absent",
            "the same kernels where gamma is left out",
            ("--shapes", "7x1000,300x2304", "--gamma-offset", "1", "--without", "gamma", "--input", "normal"),
        )
    if any(operation.startswith("qk_norm") for operation in program.operations):
        yield from sweeps_of_heads(program)
    yield Sweep("empty", "no rows at all", ("--rows", "0", "--cols", "1,1024,131072", "--input", "normal"))
    if program.stage in WITH_TABLES:
        yield from sweeps_of_other_devices(program)
    if program.stage in WITH_TABLES and not program.is_batchnorm:
        yield Sweep("batch invariant", "the kernels that take a row whatever the batch",
                    ("--rows", "1,132,1000", "--cols", "33,512,1000,1023,4096,16384,50257,65536", "--input", "normal",
                     "--batch-invariant"))
        yield from sweeps_of_rules(program)
    # More than 2^32 elements, in the smallest type: 32-bit offsets would wrap around. Of the last variant only, which
    # is the stage's best: such tensors take a GPU's memory and minutes of a CPU. Heads have rows of another kind, and
    # the program takes them apart.
    dtype = program.dtypes[-1]
    of_rows = [(v, o) for v, o, d in program.implementations if d == dtype and not o.startswith("qk_norm")]
    variant = of_rows[-1][0]
    operation = next(o for v, o in of_rows if v == variant)
    one = ("--dtype", dtype, "--variant", variant, "--operation", operation, "--input", "normal")
    covers = f"1048592 rows of 4097 elements, 4.3 billion: {variant} alone, {operation} in {dtype}"
    yield Sweep(PAST_32_BITS, covers, ("--shapes", "1048592x4097", *one))
    if "qk_norm" in program.operations:
        yield Sweep(
            f"{PAST_32_BITS}, heads",
            f"2097153 tokens of 16 heads of 128, 4.3 billion elements: the final kernel in {dtype}",
            ("--heads", "16", "--shapes", "2097153x128", "--dtype", dtype, "--variant", "heads", "--input", "normal"),
        )
    if "rmsnorm_quantized" in program.operations:  # its rows of whole vectors have a kernel of their own
        yield Sweep(
            f"{PAST_32_BITS}, eight bits",
            f"1048592 rows of 4096 elements, 4.3 billion: rmsnorm_quantized in {dtype}",
            ("--shapes", "1048592x4096", "--dtype", dtype, "--variant", "quantized", "--operation", "rmsnorm_quantized",
             "--input", "normal"),
        )


def sweeps_of_heads(program: Program) -> Iterator[Sweep]:
    """The operations on heads, which the other sweeps leave out. Rows are tokens, cols those of a head."""
    yield Sweep(
        "heads",
        "6 heads, by 1, 5, 132 and 1000 tokens",
        (
            "--heads", "4+2", "--rows", "1,5,132,1000", "--cols", "1,32,33,64,80,96,127,128,129,256,512,1024",
            "--input", "normal,nan_row,huge",
        ),
    )
    yield Sweep(
        "heads, many",
        "heads and tokens enough for blocks of several heads that take one token after the other",
        ("--heads", "16+8", "--shapes", "8192x128,20011x64,3001x256,3001x80", "--input", "normal"),
    )
    yield Sweep("heads, of q", "no k", ("--heads", "5", "--shapes", "1000x128,1000x65,1x16384", "--input", "normal"))
    for what, flags in {
        "strides": ("--row-padding", "8"),
        "misaligned": ("--misalign", "3", "--row-padding", "5"),
        "weights about zero": ("--gamma-offset", "1"),
        "absent": ("--without", "q_gamma,k_rstd" if "qk_norm" in program.operations else "k_gamma,dk,dq_gamma"),
    }.items():
        yield Sweep(f"heads, {what}", f"5 heads: {what}",
                    ("--heads", "3+2", "--shapes", "7x64,1000x128,1000x65,132x256", "--input", "normal", *flags))
    of_parameters = ("--dtype", ",".join(program.dtypes_with_fp32_parameters), "--param-dtype", "fp32")
    yield Sweep("heads, fp32 parameters", "gamma in fp32 beside 16-bit elements",
                ("--heads", "3+2", "--shapes", "7x64,1000x128,1000x65,132x256,132x512,50x1024", "--input", "normal",
                 *of_parameters))


def sweeps_of_rules(program: Program) -> Iterator[Sweep]:
    """The kernels of rules that no other sweep gets to on an H200. A test holds that none is left."""
    kind = "backward" if program.stage == "07_backward" else "forward"
    for what, (shapes, *flags) in RULES[kind].items():
        yield Sweep(f"rules, {what}", "shapes that get to the kernels of the rules that are left",
                    ("--shapes", shapes, *flags, "--variant", WITH_TILES[program.stage], "--input", "normal"))


def sweeps_of_other_devices(program: Program) -> Iterator[Sweep]:
    """The kernels that other devices get, on this one: --deny takes away what they do not have."""
    cols = "1,64,1000,8192" if program.is_batchnorm else "33,1024,4097,16384,50257,65536"
    rows = "2,132,1000" if program.is_batchnorm else "3,132"
    for what, denied in DENIED.items():
        if program.is_batchnorm and denied == "shared=48":
            continue  # it needs 64 KiB, which a block can have on every device since Turing
        yield Sweep(f"denied: {what}", f"kernels chosen without: {denied}",
                    ("--rows", rows, "--cols", cols, "--input", "normal", "--deny", denied))


def sweeps_of_rows(program: Program) -> Iterator[Sweep]:
    yield Sweep("shapes", "22 row lengths from 1 to 131072 by 1, 3, 132 and 1000 rows",
                ("--rows", "1,3,132,1000", "--cols", COLS, "--input", "normal"))
    if variants := WITH_TILES.get(program.stage):
        yield Sweep(
            "narrow rows",
            "6 row lengths from 3 to 510 that are no whole vectors, with rows enough for tiles of them",
            (
                "--shapes", "2000001x3,300001x33,200003x50,80001x127,40001x250,20003x510",
                "--variant", variants, "--input", "normal",
            ),
        )
    yield Sweep("large mean", "the same row lengths by 3 rows, with a mean far from zero",
                ("--rows", "3", "--cols", COLS, "--input", "large_mean"))
    yield Sweep("strides", "rows with 3 elements between them, tensors that begin 1 element off their alignment",
                ("--rows", "5", "--cols", COLS, "--row-padding", "3", "--misalign", "1", "--input", "normal"))
    yield Sweep("misaligned", "tensors that begin 3 elements off their alignment, rows without gaps",
                ("--rows", "132", "--cols", "127,768,1024,4096,12289,65536", "--misalign", "3", "--input", "normal"))
    yield Sweep(
        "absent",
        "no gamma, no beta, no mean, no rstd",
        ("--rows", "7", "--cols", "33,1000,4096,16384", "--without", "gamma,beta,mean,rstd", "--input", "normal"),
    )
    if any(operation.endswith("backward") for operation in program.operations):
        yield Sweep(
            "dx alone",
            "no gradients of the weights",
            ("--rows", "7", "--cols", "33,1000,4096,16384", "--without", "dgamma,dbeta", "--input", "normal"),
        )
        yield Sweep(
            "longest rows",
            "rows of 262144 columns and more, by 1, 2, 9 and 40",
            ("--shapes", "1x262144,2x262144,9x300007,40x262145,40x262144", "--input", "normal"),
        )
        yield Sweep(
            "many rows",
            "a million rows, whose sums go down the columns",
            ("--shapes", "1000003x64", "--input", "normal"),
        )


def sweeps_of_batchnorm() -> Iterator[Sweep]:
    """Rows are samples and cols channels; training has no single row."""
    channels = "1,3,16,31,50,64,256,1000,1024,4096,8192,50257"
    yield Sweep("shapes", "12 numbers of channels from 1 to 50257 by 2, 3, 132 and 1000 samples",
                ("--rows", "2,3,132,1000", "--cols", channels, "--input", "normal"))
    yield Sweep(
        "large mean",
        "the same, with a mean far from zero",
        ("--rows", "3,1000", "--cols", channels, "--input", "large_mean"),
    )
    yield Sweep("many samples", "up to a million samples", ("--shapes", "1000003x3,1048576x64", "--input", "normal"))
    yield Sweep("misaligned", "tensors that begin 1 element off their alignment",
                ("--rows", "5,132", "--cols", channels, "--misalign", "1", "--input", "normal"))
    yield Sweep(
        "absent",
        "no gamma, no beta, no running statistics, no gradients of the weights",
        (
            "--rows", "7,300", "--cols", "50,1000",
            "--without", "gamma,beta,running_mean,running_var,dgamma,dbeta", "--input", "normal",
        ),
    )
    for layout in ("channels_last", "channels_first"):
        yield Sweep(
            f"images, {layout}",
            "images of 49 pixels",
            (
                "--shapes", "2x1,32x64,8x257,64x100", "--pixels", "49",
                "--layout", layout, "--input", "normal,large_mean",
            ),
        )
        yield Sweep(f"large images, {layout}", "images of 3136 pixels",
                    ("--shapes", "4x3,32x64", "--pixels", "3136", "--layout", layout, "--input", "normal"))


def summary(checks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each variant, operation, type and input: how many shapes were right, and which were wrong as
    recorded."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for check in checks:
        groups.setdefault(tuple(check[key] for key in ("variant", "operation", "dtype", "input")), []).append(check)
    lines = []
    for (variant, operation, dtype, name), group in groups.items():
        line: dict[str, Any] = {"variant": variant, "operation": operation, "dtype": dtype, "input": name}
        line["shapes"] = len(group)
        for verdict in ACCEPTED:
            of_verdict = [check for check in group if check["verdict"] == verdict]
            line[verdict.replace(" ", "_")] = len(of_verdict)
            if verdict != "passed" and of_verdict and len(group) > 1:
                line[f"{verdict.replace(' ', '_')}_at"] = [f"{check['rows']}x{check['cols']}" for check in of_verdict]
        passed = [check for check in group if check["verdict"] == "passed"]
        errors = [check["max_ulp_error"] for check in passed if check["max_ulp_error"] is not None]
        line["max_ulp_error"] = max(errors) if errors else None
        line["compared"] = sum(check["compared"] for check in group)
        lines.append(line)
    return lines


@dataclass(frozen=True)
class Checked:
    """What a sweep came to: its entry in the document, the program's context, and what to tell."""

    entry: dict[str, Any]
    context: dict[str, Any]
    says: str


def check(program: Program, sweep: Sweep) -> Checked:
    """Runs a sweep. Raises Failed with what the program printed."""
    begun = time.monotonic()
    code, printed, document = program.run(["--check-only", *sweep.flags])
    entry = {"name": sweep.name, "covers": sweep.covers, "flags": " ".join(sweep.flags)}
    if code == 2 and "does not fit the device" in printed:
        entry["left_out"] = "the device's memory is too small"
        return Checked(entry, {}, f"not here: {printed.strip().splitlines()[-1]}")
    if code != 0 or not document:
        wrong = [line for line in printed.splitlines() if line.endswith("FAILED")]  # they may stand far above the end
        what = f"{program.stage}, {sweep.name} ({' '.join(sweep.flags)}), exit code {code}:"
        raise Failed("\n".join([what, *wrong[:20], "...", printed.rstrip()[-6000:]]))
    checks = document["checks"]
    counts = {verdict: sum(check["verdict"] == verdict for check in checks) for verdict in ACCEPTED}
    rest = "".join(f", {count} {verdict}s" for verdict, count in counts.items() if verdict != "passed" and count)
    entry |= {"checks": len(checks), "results": summary(checks)}
    took = time.monotonic() - begun
    said = f"{len(checks)} checks, {counts['passed']} passed{rest} ({took:.0f} s)"
    return Checked(entry, document["context"], said)


def check_stages(programs: list[Program], only: set[str], jobs: int) -> list[dict[str, Any]]:
    """Every sweep of every stage, several at a time: most of a check is the reference, on the host. Raises Failed."""
    tasks = [(program, sweep) for program in programs for sweep in sweeps_of(program) if not only or sweep.name in only]
    found: dict[tuple[str, str], Checked] = {}

    def tell(program: Program, sweep: Sweep, checked: Checked) -> None:
        found[program.stage, sweep.name] = checked
        print(f"[{len(found)}/{len(tasks)}] {program.stage}, {sweep.name}: {checked.says}", flush=True)

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        together = [(task, pool.submit(check, *task)) for task in tasks if not task[1].is_past_32_bits]
        try:
            for task, future in together:
                tell(*task, future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    for task in tasks:  # these take much of the device's and of the host's memory, and so go alone
        if task[1].is_past_32_bits:
            tell(*task, check(*task))
    stages = []
    for program in programs:
        of_stage = [found[program.stage, sweep.name] for p, sweep in tasks if p is program]
        unknown = {"source_hash": "", "commit": "", "dirty": ""}
        context = next((checked.context for checked in of_stage if checked.context), unknown)
        told = {key: context[key] for key in ("source_hash", "commit", "dirty")}
        if capability := context.get("compute_capability"):
            told["code"] = code_of_all(kernels_in(program.path, architecture_of(capability)).values())
        stages.append({"stage": program.stage, **told, "sweeps": [c.entry for c in of_stage]})
    return stages


def suites_in(folder: Path) -> list[Path]:
    """The test suites with kernels: those whose source is CUDA, without the CPU layer's own."""
    names = sorted(path.stem for path in (ROOT / "common/tests").glob("*_test.cu") if not path.stem.startswith("simt_"))
    return [folder / name for name in names if (folder / name).is_file()]


def run_suite(name: str, command: Sequence[str | Path], pattern: str, **environment: str) -> dict[str, Any]:
    """Runs a suite, which prints counts as `pattern` has them. Raises Failed."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | environment, check=False
    )
    if done.returncode != 0:
        raise Failed(f"{name}:\n{done.stdout.rstrip()[-6000:]}")
    count = {}
    for word in ("passed", "skipped"):
        match = re.search(pattern.format(word), done.stdout, re.IGNORECASE)
        count[word] = int(match[1]) if match else 0
    skipped = f", {count['skipped']} skipped" if count["skipped"] else ""
    print(f"  {name}: {count['passed']} passed{skipped}", flush=True)
    return {"suite": name, **count, "date": now()}


def why_no_package(library: Path, python: str) -> str:
    """What the Python package's tests lack; nothing where they can run."""
    if not library.is_file():
        return f"there is no {shown(library)}"
    if not (path := shutil.which(python)):
        return f"there is no {python}"
    environment = os.environ | {"NORMWORKLOG_LIBRARY": str(library), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [os.path.abspath(path), "-c", PACKAGE_NEEDS]
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=PACKAGE, env=environment, check=False
    )
    said = done.stderr.strip() or f"exit code {done.returncode}"
    return f"{python}: {said.splitlines()[-1]}" if done.returncode else ""


def package_suite(folder: Path) -> list[dict[str, Any]]:
    """The Python package's tests, on the library that lies beside the programs; an empty list where they cannot run."""
    library = Path(os.environ.get("NORMWORKLOG_LIBRARY") or folder.resolve().parent / "lib/libnormworklog.so").resolve()
    python = os.environ.get("WORKLOG_PYTHON") or "python3"
    if why := why_no_package(library, python):
        print(f"left out: the Python package's tests with PyTorch ({why})", file=sys.stderr, flush=True)
        return []
    command = [sys.executable, ROOT / "common/tests" / f"{PACKAGE_SUITE}.py", "--library", library]
    return [run_suite(PACKAGE_SUITE, command, OF_PYTEST, WORKLOG_PYTHON=python)]


def sanitize(folder: Path, programs: list[Program]) -> list[dict[str, Any]]:
    """What the four tools of compute-sanitizer say of each program."""
    tool("compute-sanitizer", "looks for bad accesses, races, reads of unwritten memory and wrong barriers")
    command = [ROOT / "common/tests/sanitize.sh", folder, *[program.stage for program in programs]]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found: list[dict[str, Any]] = []
    printed = []
    assert process.stdout
    for line in process.stdout:
        printed.append(line)
        if match := re.match(r"== (\w+) (\w+)", line):
            found.append({"stage": match[1], "tool": match[2], "checks": 0, "summary": ""})
        elif found and (match := re.match(r"(\d+) checks?: ", line)):
            found[-1]["checks"] += int(match[1])
        elif found and "SUMMARY: " in line:  # of each call of the program: what counts is the first that is not clean
            summary = line.partition("SUMMARY: ")[2].strip()
            if re.match(r"0 |$", found[-1]["summary"]):
                found[-1]["summary"] = summary
            print(f"  {found[-1]['stage']} {found[-1]['tool']}: {summary}", flush=True)
    if process.wait() != 0:
        raise Failed("compute-sanitizer found something, or a result was wrong under it:\n" + "".join(printed)[-6000:])
    return found


def run_fuzz(options: argparse.Namespace) -> int:
    try:
        tally = fuzz.run(options.built, options.fuzz, options.seed, options.case, options.elements, options.cols,
                         options.found, options.batch_invariant)
    except (fuzz._library.Error, ImportError) as error:
        print(f"verify.py: {error}", file=sys.stderr)
        return 2
    for key, value in sorted(tally.worst.items()):
        print(f"  {key:<40} {value:6.2f} last places at most")
    if tally.without_memory:
        print(f"  left out: {tally.without_memory} calls, for which there was no memory")
    print(f"{tally.cases} random calls of seed {options.seed} in {tally.seconds:.0f} s: {len(tally.found)} wrong")
    return 1 if tally.found or not tally.cases else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./worklog verify", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--programs",
        type=Path,
        default=ROOT / "build/gpu/bin",
        help="folder of programs and suites (default: build/gpu/bin)",
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "docs/verified", help="folder for <gpu>.json (default: docs/verified)"
    )
    parser.add_argument(
        "--stage",
        action="append",
        default=[],
        help="only this stage, added to what is there (may be given more than once)",
    )
    parser.add_argument("--sweep", action="append", default=[], help="only this sweep; nothing is written")
    parser.add_argument("--no-sanitizers", action="store_true", help="leave out compute-sanitizer; nothing is written")
    parser.add_argument(
        "--jobs", type=int, default=max(1, min(6, (os.cpu_count() or 1) // 2)), help="programs at the same time"
    )
    parser.add_argument("--fuzz", type=float, metavar="SECONDS", help="random calls of the library instead (fuzz.py)")
    parser.add_argument("--seed", type=int, default=1, help="of the random calls")
    parser.add_argument("--case", type=int, help="only the random call of this number")
    parser.add_argument("--library", dest="built", type=Path, help="for random calls (default: that of the build)")
    parser.add_argument("--elements", type=int, help="random calls: most elements of a tensor")
    parser.add_argument("--cols", type=int, default=1 << 20, help="random calls: most columns")
    parser.add_argument("--found", type=int, default=20, help="random calls: end after so many that are wrong")
    parser.add_argument("--batch-invariant", action="store_true", help="random calls: ask for it of norms over rows")
    options = parser.parse_args(arguments)
    if options.fuzz is not None:
        return run_fuzz(options)
    begun = time.monotonic()
    try:
        programs = programs_in(options.programs, options.stage)
        context = require_gpu(programs[0], NO_GPU)
        path = options.output / f"{context['gpu_short']}.json"
        print(f"{context['gpu']}, driver {context.get('driver', 'unknown')}", flush=True)
        stages = check_stages(programs, set(options.sweep), options.jobs)
        print("test suites", flush=True)
        suites = [run_suite(suite.name, [suite], OF_GOOGLETEST) for suite in suites_in(options.programs)]
        suites += package_suite(options.programs)
        if options.no_sanitizers or options.sweep:
            print("everything asked for is right; not all was asked for, and so nothing is written")
            return 0
        print("compute-sanitizer", flush=True)
        sanitizers = sanitize(options.programs, programs)
    except Failed as error:
        print(f"verify.py: {error}\n\nNothing was written.", file=sys.stderr)
        return 1
    except ReportError as error:
        print(f"verify.py: {error}", file=sys.stderr)
        return 2
    for stage in stages:
        of_stage = [entry for entry in sanitizers if entry["stage"] == stage["stage"]]
        stage["sanitizers"] = [{key: entry[key] for key in ("tool", "checks", "summary")} for entry in of_stage]
    shared = (
        "gpu", "gpu_short", "compute_capability", "multiprocessors", "memory_bytes", "driver", "driver_cuda",
        "cuda_runtime", "compiler", "flags",
    )
    document = {
        "context": {key: context[key] for key in shared if key in context} | {"date": now()},
        "suites": suites,
        "stages": stages,
    }
    write_json(path, merged(path, document) if options.stage else document)
    print(f"everything is right ({(time.monotonic() - begun) / 60:.1f} minutes); written to {shown(path)}")
    return 0


def merged(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    """The stages just verified and the suites just run, instead of what the file says of them."""
    if not path.is_file():
        return document
    before = json.loads(path.read_text(encoding="utf-8"))
    stages = {stage["stage"]: stage for stage in [*before["stages"], *document["stages"]]}
    suites = {suite["suite"]: suite for suite in [*before["suites"], *document["suites"]]}
    return document | {
        "suites": [suites[name] for name in sorted(suites)],
        "stages": [stages[name] for name in sorted(stages)],
    }


if __name__ == "__main__":
    sys.exit(main())
