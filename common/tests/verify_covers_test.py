#!/usr/bin/env python3
"""verify.py gets to every kernel of stages 05 to 07: for each kernel that is in a program, some sweep launches it on a
GPU with as many multiprocessors as an H200. Nothing is run here but --plan.

    verify_covers_test.py FOLDER NM     the folder of the CPU layer's programs, and the tool that lists their symbols
"""

import os
import re
import subprocess
import sys
import unittest
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "common/report"))

import verify  # noqa: E402
from programs import Program, programs_in  # noqa: E402

FOLDER, NM = Path(), ""
WITH_RULES = ("05_welford", "06_fused_residual", "07_backward")
OF_H200 = os.environ | {"WORKLOG_SIMT_MULTIPROCESSORS": "132"}
# Kernels that no sweep can get to.
LEFT_OUT = re.compile(
    # RMSNorm's backward pass with dh is the library's alone, and the harness has no such operation. The tests of the
    # library have it, and the random calls.
    r"Pass<\w+, (\w+|worklog::backward::AboutZero<\w+>), false, true>"
    # A sum over many partial rows of more than 32768 columns. Rows of fp32 that are so long, and rows of 16 bits with
    # weights of fp32, have clusters of eight blocks, and few partial rows.
    r"|^worklog::backward::sum_partials<float, 32, 8, (false|true)>$")
# Sweeps that get to no kernel of their own; and the largest, for which a plan asks for the memory.
ALIKE = ("inputs", "large mean", "empty")
LAUNCHED = re.compile(r"^    (worklog::\S.*)$", re.MULTILINE)


def flags_of_plan(sweep: verify.Sweep) -> list[str]:
    """--plan takes shapes only, and has no inputs."""
    flags, rest = {}, list(sweep.flags)
    while rest:
        name = rest.pop(0)
        flags[name] = None if not rest or rest[0].startswith("--") else rest.pop(0)
    flags.pop("--input")
    shapes = flags.pop("--shapes", None) or ",".join(
        f"{rows}x{cols}" for cols in flags.pop("--cols").split(",") for rows in flags["--rows"].split(","))
    flags.pop("--rows", None)
    return ["--plan", shapes] + [word for pair in flags.items() for word in pair if word is not None]


def launched_by(program: Program) -> set[str]:
    def launched(sweep: verify.Sweep) -> set[str]:
        flags = flags_of_plan(sweep)
        done = subprocess.run([program.path, *flags], env=OF_H200, capture_output=True, text=True, timeout=250)
        if done.returncode:
            raise AssertionError(f"{program.stage} {' '.join(flags)}: {done.stderr or done.stdout}")
        return set(LAUNCHED.findall(done.stdout))

    with ThreadPoolExecutor(2) as pool:
        sweeps = [s for s in verify.sweeps_of(program) if s.name not in ALIKE and not s.is_past_32_bits]
        return set().union(*pool.map(launched, sweeps))


def without_arguments(function: str) -> str:
    """The name and template arguments of a demangled function."""
    depth = 0
    for place, letter in enumerate(function):
        depth += (letter == "<") - (letter == ">" and function[place - 1] != "-")
        if letter == "(" and depth == 0:
            return function[:place].rstrip()
    return function


def functions_in(program: Program) -> Iterator[str]:
    symbols = subprocess.run([NM, "-C", "--defined-only", program.path], capture_output=True, text=True, check=True)
    for line in symbols.stdout.splitlines():
        yield line.split(" ", 2)[2].removeprefix("void ")


class Covers(unittest.TestCase):
    def test_every_kernel_is_launched_by_a_sweep(self) -> None:
        for program in programs_in(FOLDER, WITH_RULES):
            with self.subTest(program.stage):
                launched = launched_by(program)
                templates = {name.split("<")[0] for name in launched}
                kernels = {without_arguments(function) for function in functions_in(program)
                           if re.split("[<(]", function)[0] in templates and function.endswith(")")}
                kernels = {kernel for kernel in kernels if not LEFT_OUT.search(kernel)}
                self.assertGreater(len(kernels), 200)
                self.assertEqual(sorted(kernels - launched), [], "kernels that no sweep gets to")


if __name__ == "__main__":
    FOLDER, NM = Path(sys.argv.pop(1)), sys.argv.pop(1)
    unittest.main()
