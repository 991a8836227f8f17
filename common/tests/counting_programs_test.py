#!/usr/bin/env python3
"""--count of the stages' programs, and the tables that are made of it.

    python3 common/tests/counting_programs_test.py PROGRAMS     the folder of the stages' programs of a cpu build
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "common/report"))
import counting  # noqa: E402
import counting_tables  # noqa: E402
import ladder  # noqa: E402
from place import Place  # noqa: E402
from results import Launch, ReportError, Repository  # noqa: E402

PROGRAMS = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else ROOT / "build/cpu/bin"


def run(stage: str, *flags: str, order: str = "forward") -> tuple[int, str, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "counts.json"
        command = [str(PROGRAMS / stage), *flags, "--json", str(file)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | {"WORKLOG_SIMT_ORDER": order}, check=False
        )
        return done.returncode, done.stdout + done.stderr, json.loads(file.read_text()) if file.is_file() else {}


class Programs(unittest.TestCase):
    def test_the_counts_of_stage_01_by_hand(self) -> None:
        # 64 rows of 8 floats, 32 to a block: each of 2 warps reads x three times and gamma and beta once, for each of 8
        # columns. The rows lie 32 bytes apart: 32 sectors; gamma and beta are one.
        code, text, document = run(
            "01_naive", "--count", "--variant", "small_blocks", "--shapes", "64x8", "--input", "normal"
        )
        self.assertEqual(code, 0, text)
        entry = document["counts"][0]
        self.assertEqual(entry["name"], "01_naive/small_blocks/layernorm_forward/fp32/64x8")
        kernel = entry["kernels"][0]
        self.assertEqual(kernel["grid"], [2, 1, 1])
        loads = kernel["counts"]["global_load"]
        self.assertEqual((loads["requests"], loads["sectors"]), (2 * 8 * 5, 2 * 8 * (3 * 32 + 2)))
        stores = kernel["counts"]["global_store"]
        self.assertEqual((stores["requests"], stores["sectors"]), (2 * (8 + 2), 2 * (8 * 32 + 2 * 4)))
        self.assertEqual(kernel["dram_read_bytes"], 64 * 32 + 2 * 32)
        self.assertEqual(kernel["dram_write_bytes"], 64 * 32 + 2 * 64 * 4)
        x = next(memory for memory in kernel["memory"] if memory["name"] == "x")
        self.assertEqual(x["bytes_read"], 3 * x["bytes"])
        self.assertEqual(kernel["findings"], [])
        self.assertIn("nothing was found to be wrong", text)

    def test_lines_come_to_the_total(self) -> None:
        code, text, document = run("03_warp_shuffle", "--count", "--lines", "--shapes", "5x1000", "--input", "normal")
        self.assertEqual(code, 0, text)
        self.assertIn("03_warp_shuffle/kernels.cuh:", text)
        for entry in document["counts"]:
            for kernel in entry["kernels"]:
                for operation, total in kernel["counts"].items():
                    lines = [line["counts"].get(operation, {}) for line in kernel["lines"]]
                    self.assertEqual(sum(line.get("requests", 0) for line in lines), total["requests"])
                    of_stage = ("kernels.cuh", "article.cuh")
                    self.assertTrue(all(line["file"].endswith(of_stage) for line in kernel["lines"]))

    def test_the_same_in_every_order(self) -> None:
        first = None
        for order in ("forward", "reverse", "shuffle:1", "shuffle:2"):
            code, text, document = run(
                "05_welford", "--count", "--shapes", "3x1000,2x131072", "--input", "normal", "--dtype", "fp32",
                order=order,
            )
            self.assertEqual(code, 0, text)
            first = first or document
            self.assertEqual(document, first, order)

    def test_refusals(self) -> None:
        for flags, sentence in (
            (("--lines",), "--lines goes with --count"),
            (("--count", "--cols", "0"), "--cols takes whole numbers"),
        ):
            code, text, _ = run("01_naive", *flags)
            self.assertEqual(code, 2)
            self.assertIn(sentence, text)


class Ladder(unittest.TestCase):
    GPU = ladder.Gpu(
        "a GPU", multiprocessors=10, clock_hz=1e9, dram_bytes_per_second=1e12, l2_bytes_per_second=2e12,
        launch_seconds=1e-6,
    )

    def test_the_longest_floor_bounds(self) -> None:
        kernel = {
            "blocks": 100, "dram_read_bytes": 3e6, "dram_write_bytes": 1e6, "global_store_sectors": 1e6,
            "global_load_lines": 1000, "global_load_bytes_asked": 128 * 4000, "shared_load_wavefronts": 5000,
            "shuffle_requests": 1000,
        }
        floors = ladder.floors(kernel, self.GPU)
        self.assertAlmostEqual(floors["DRAM"], 4e-6)
        self.assertAlmostEqual(floors["L2"], (3e6 + 32e6) / 2e12)
        self.assertAlmostEqual(floors["L1"], (4000 + 5000 + 1000) / 10 / 1e9)
        self.assertEqual(ladder.Rung([kernel]).prediction(self.GPU)[1], "L2")
        self.assertAlmostEqual(ladder.Rung([kernel, kernel]).prediction(self.GPU)[0], 1e-6 + 2 * 17.5e-6)

    def test_one_block_has_one_multiprocessor(self) -> None:
        kernel = {"blocks": 1, "global_load_lines": 32_000, "global_load_bytes_asked": 0}
        self.assertAlmostEqual(ladder.floors(kernel, self.GPU)["L1"], 32e-6)

    def test_every_gpu_of_the_table_is_whole(self) -> None:
        for name in json.loads((ROOT / ladder.GPUS).read_text()):
            self.assertGreater(ladder.gpu_named(name).dram_bytes_per_second, 0)
        with self.assertRaisesRegex(ReportError, "--gpu is 'k80'; .* has: h200"):
            ladder.gpu_named("k80")


class Comparison(unittest.TestCase):
    def launch(self, kernel: str, **values: float) -> Launch:
        return Launch("04_vectorized", "v", "layernorm_forward", "fp32", 2, 8, kernel, 1, 32, 1, values)

    def cell(self, kernel: str, counter: str, counted: float, measured: float) -> str:
        return counting_tables.cell(
            counting_tables.Comparison(self.launch(kernel), self.launch(kernel)), counter, counted, measured
        )

    def test_cells(self) -> None:
        self.assertEqual(self.cell("k", "global_load_requests", 10240, 10240), "10 240")
        self.assertEqual(self.cell("k", "global_load_requests", 1000, 1010), "1 000 (+1.0 %)")
        self.assertEqual(self.cell("k", "global_load_requests", 1000, 1030), "**1 000, 1 030** (not explained)")
        self.assertEqual(self.cell("k", "shared_load_wavefronts", 1000, 1030), "**1 000, 1 030** (b)")
        self.assertEqual(self.cell("k", "shared_load_wavefronts", 1000, 2000), "**1 000, 2 000** (not explained)")
        # Turns are not lost by fewer.
        self.assertEqual(self.cell("k", "shared_load_wavefronts", 1030, 1000), "**1 030, 1 000** (not explained)")
        self.assertEqual(
            self.cell("n::layernorm_cached<float>", "global_store_sectors", 1000, 4000), "**1 000, 4 000** (a)"
        )

    def test_a_reason_that_another_launch_shows(self) -> None:
        """`f` and `g` are launched by two variants each; one launch of `f` has what is counted."""
        def comparison(kernel: str, counted: float, measured: float, shape: int = 8) -> counting_tables.Comparison:
            return counting_tables.Comparison(
                *(
                    dataclasses.replace(self.launch(kernel, shared_load_wavefronts=value), cols=shape)
                    for value in (counted, measured)
                )
            )

        found = counting_tables.with_other_launches([
            comparison("f", 1000, 1240), comparison("f", 1000, 1010), comparison("f", 1000, 1240, 16),
            comparison("g", 1000, 1240), comparison("g", 1000, 1300), comparison("f", 1000, 760),
        ])
        cells = [
            counting_tables.cell(c, counter, *values)
            for c in found for counter, *values in c.pairs()
            if counter == "shared_load_wavefronts"
        ]
        self.assertEqual(
            cells,
            [
                "**1 000, 1 240** (e)", "1 000 (+1.0 %)", "**1 000, 1 240** (not explained)",
                "**1 000, 1 240** (not explained)", "**1 000, 1 300** (not explained)",
                "**1 000, 760** (not explained)",
            ],
        )

    def test_nothing_is_left_unexplained(self) -> None:
        """Of the launches whose kernels are those that were counted and measured."""
        repository = Repository(ROOT)
        place = Place(repository, ROOT / "docs/counting.md", {}, "h200")
        left = [
            f"{c.counted.name}, {counter}: {counted:g} counted, {measured:g} measured"
            for c in counting_tables.comparisons(place)
            if not (c.counted.stale or c.measured.stale)
            for counter, counted, measured in c.pairs()
            if counting_tables.difference(counted, measured) > counting_tables.CLOSE
            and not counting_tables.reason_for(c, counter, counted, measured)
        ]
        self.assertEqual(left, [])

    def test_run_takes_committed_counts_where_they_hold(self) -> None:
        """The tree's own counts have every stage; none are taken for another GPU, shape or type, or other kernels."""
        repository = Repository(ROOT)
        stages = repository.stages()
        counted = ladder.committed_counts(repository, "1024x1024", "fp32", 132)
        self.assertEqual(counted.without(stages), [])
        for shape, dtype, multiprocessors in (
            ("1024x1024", "fp32", 108), ("1024x1000", "fp32", 132), ("1024x1024", "fp64", 132),
        ):
            left = ladder.committed_counts(repository, shape, dtype, multiprocessors)
            self.assertEqual(left.without(stages), stages, (shape, dtype, multiprocessors))
        edited = Repository(ROOT)
        edited.hash_now = lambda stage: "another" if stage == "03_warp_shuffle" else repository.hash_now(stage)
        left = ladder.committed_counts(edited, "1024x1024", "fp32", 132)
        self.assertEqual(left.without(stages), ["03_warp_shuffle"])

    def test_drift_names_the_figure(self) -> None:
        kernel = {
            "stage": "01_naive", "variant": "v", "operation": "o", "dtype": "fp32", "rows": 1, "cols": 2, "pixels": 1,
            "kernel": "k", "blocks": 1, "threads": 32, "cluster": 1, "global_load_requests": 5,
        }
        stages = [{"stage": "01_naive", "source_hash": "a"}]
        committed = {"stages": stages, "kernels": [kernel]}
        current, old = (lambda kernel: False), (lambda kernel: True)
        self.assertEqual(counting.drift(committed, committed, current), [])
        now = {"stages": stages, "kernels": [kernel | {"global_load_requests": 6}]}
        sentence = "01_naive/v/o/fp32/1x2, global_load_requests: 5 is committed, 6 is counted"
        self.assertEqual(counting.drift(committed, now, current), [sentence])
        self.assertEqual(counting.drift(committed, now, old), [])


if __name__ == "__main__":
    unittest.main()
