#!/usr/bin/env python3
"""The stages' programs take the flags of bench.py's runs, quick and full, and of counters.py's: each is made on the CPU
layer with a small shape in place of its own, and nothing timed. Variants and operations are added to stages long before
a GPU is there.

    bench_runs_test.py FOLDER     the folder of the CPU layer's programs
"""

import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "common/report"))

import bench  # noqa: E402
import counters  # noqa: E402
from programs import Program, programs_in  # noqa: E402

FOLDER = Path()
INSTEAD = {"--shapes": "8x1024", "--pixels": "4", "--input": "normal"}
OF_TIMING = ("--time", "--max-seconds-per-timing")


def small(flags: tuple[str, ...]) -> tuple[str, ...]:
    """The same call of a small shape, without what times it."""
    kept, rest = [], [flag for flag in flags if flag != "--resources"]
    while rest:
        name, value = rest.pop(0), rest.pop(0)
        if name not in OF_TIMING:
            kept += [name, INSTEAD.get(name, value)]
    return tuple(kept)


def made(program: Program, flags: tuple[str, ...]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([program.path, "--check-only", *flags], capture_output=True, text=True, timeout=200)


class BenchRunsTest(unittest.TestCase):
    def check(self, program: Program) -> None:
        runs = [*bench.runs_of(program, False), *bench.runs_of(program, True), *counters.runs_of([program])]
        calls = {small(run.flags) for run in runs}
        self.assertTrue(calls)
        for flags in sorted(calls):
            with self.subTest(program.stage, flags=" ".join(flags)):
                done = made(program, flags)
                self.assertEqual(done.returncode, 0, done.stderr or done.stdout)

    def test_each_run_can_be_made(self) -> None:
        programs = programs_in(FOLDER)
        self.assertEqual(len(programs), 8)
        for program in programs:
            self.check(program)

    def test_a_variant_that_cannot_is_noticed(self) -> None:
        program = programs_in(FOLDER, ["04"])[0]
        flags = small(("--shapes", "1024x1024", "--variant", "reload,bare_thread_per_row", "--time", "cold"))
        done = made(program, flags)
        self.assertEqual(done.returncode, 2, done.stdout)


if __name__ == "__main__":
    FOLDER = Path(sys.argv.pop())
    unittest.main()
