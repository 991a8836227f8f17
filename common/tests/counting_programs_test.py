#!/usr/bin/env python3
"""--count of the stages' programs, and the tables that are made of it.

    python3 common/tests/counting_programs_test.py PROGRAMS     the folder of the stages' programs of a cpu build
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
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
import prediction  # noqa: E402
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
    GPU = prediction.Gpu(
        "a GPU", multiprocessors=10, threads_per_multiprocessor=2048, blocks_per_multiprocessor=32, clock_hz=1e9,
        dram_bytes_per_second=1e12, step_seconds=100e-9, l2_bytes_per_second=2e12, launch_seconds=1e-6,
        next_launch_seconds=0.5e-6,
    )

    def test_the_longest_floor_bounds_the_traffic(self) -> None:
        kernel = {
            "blocks": 100, "threads": 32, "dram_read_bytes": 3e6, "dram_write_bytes": 1e6,
            "global_store_sectors": 1e6, "global_load_lines": 1000, "global_load_bytes_asked": 128 * 4000,
            "shared_load_wavefronts": 5000, "shuffle_requests": 1000,
        }
        floors = prediction.floors(kernel, self.GPU)
        self.assertAlmostEqual(floors["DRAM"], 4e-6)
        self.assertAlmostEqual(floors["L2"], (3e6 + 32e6) / 2e12)
        self.assertAlmostEqual(floors["L1"], (4000 + 5000 + 1000) / 10 / 1e9)
        predicted = prediction.Rung([kernel, kernel]).prediction(self.GPU)
        self.assertEqual(predicted.bound, "L2")
        self.assertAlmostEqual(predicted.traffic, 2 * 17.5e-6)
        self.assertAlmostEqual(predicted.launching, 1.5e-6)

    def test_one_block_has_one_multiprocessor(self) -> None:
        kernel = {"blocks": 1, "threads": 32, "global_load_lines": 32_000, "global_load_bytes_asked": 0}
        self.assertAlmostEqual(prediction.floors(kernel, self.GPU)["L1"], 32e-6)
        loads = kernel | {"global_load_requests": 4000}
        issue = prediction.Rung([loads]).prediction(self.GPU).instructions
        self.assertAlmostEqual(issue, prediction.INSTRUCTIONS * 4000 / 4 / 1e9)

    def test_instructions_and_steps_by_hand(self) -> None:
        # 20 blocks of 2 warps. A warp makes 3 loads, 1 store, 5 shuffles and 2 barriers.
        kernel = {
            "blocks": 20, "threads": 64, "global_load_requests": 120, "global_store_requests": 40,
            "shuffle_requests": 200, "barrier_requests": 40,
        }
        self.assertEqual(prediction.requests(kernel), 120 + 40 + 200 + 2 * 40)
        self.assertAlmostEqual(prediction.steps(kernel, self.GPU), 3 + 5 + 2)
        predicted = prediction.Rung([kernel]).prediction(self.GPU)
        self.assertAlmostEqual(predicted.instructions, prediction.INSTRUCTIONS * 440 / 10 / 4 / 1e9)
        self.assertAlmostEqual(predicted.waits, 1e-6)
        self.assertAlmostEqual(predicted.seconds, 1e-6 + predicted.instructions + 1e-6)

    def test_more_blocks_than_there_is_room_for_come_in_rounds(self) -> None:
        for threads, at_once in ((1024, 2), (32, 32), (65, 31)):
            one_load = {"blocks": 10 * at_once, "threads": threads}
            one_load["global_load_requests"] = one_load["blocks"] * prediction.warps_of_block(one_load)
            self.assertAlmostEqual(prediction.steps(one_load, self.GPU), 1)
            three = {key: value if key == "threads" else 3 * value for key, value in one_load.items()}
            self.assertAlmostEqual(prediction.steps(three, self.GPU), 3)

    def test_every_gpu_of_the_table_is_whole(self) -> None:
        for name in json.loads((ROOT / prediction.GPUS).read_text()):
            gpu = prediction.gpu_named(name)
            self.assertGreater(gpu.dram_bytes_per_second, 0)
            self.assertGreater(gpu.step_seconds, 0)
        with self.assertRaisesRegex(ReportError, "--gpu is 'k80'; .* has: h200"):
            prediction.gpu_named("k80")

    def test_one_screen(self) -> None:
        def kernel(stage: str, variant: str, operation: str) -> dict[str, Any]:
            return {"stage": stage, "variant": variant, "operation": operation}

        forward = kernel("a", "v", "forward")
        several = [kernel("b", "v", "forward"), kernel("b", "v", "backward"), kernel("b", "w", "backward")]
        article = kernel("a", "article_first", "forward")
        self.assertEqual(ladder.main_ones([forward, article, *several]), [forward, *several[1:]])

    def test_what_the_reader_gets(self) -> None:
        """Without a GPU: predicted beside measured for each kernel, and a line that sums it up."""
        with tempfile.TemporaryDirectory() as folder:
            for stage in Repository(ROOT).stages():
                # No program is run: all kernels are counted in docs/data/counts.json.
                (Path(folder) / stage).write_text("#!/bin/sh\nexit 3\n")
                (Path(folder) / stage).chmod(0o755)
            command = [sys.executable, str(ROOT / "common/report/ladder.py"), "--programs", folder]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertLess(len(lines), 60, done.stdout)
        self.assertLess(max(map(len, lines)), 140)
        head = next(line for line in lines if "predicted" in line)
        self.assertRegex(head, r"predicted +measured +off$")
        kernels = [line for line in lines if line[:2].isdigit()]
        timed = [line for line in kernels if line.endswith("%")]  # the others have no measured time at this size
        self.assertGreater(len(timed), 25)
        for line in timed:
            predicted, measured, off = line.replace(" %", "").split()[-3:]
            expected = 100 * (float(predicted) / float(measured.rstrip("†")) - 1)
            self.assertAlmostEqual(float(off.replace("−", "-")), expected, delta=1.5, msg=line)
        worst = r"at worst by [+−]\d+ % \(\d\d \w+\)"
        self.assertRegex(done.stdout, rf"Off by \d+ % in the median, and {worst}; \d+ of \d+ pairs")


class Predictions(unittest.TestCase):
    """Held against the committed measurements; docs/counting.md states the bounds."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.repository = Repository(ROOT)
        cls.entries = prediction.committed(cls.repository, "h200", *prediction.FITTED_ON)

    def test_the_step_is_what_is_fitted(self) -> None:
        committed = prediction.gpu_named("h200").step_seconds
        self.assertAlmostEqual(prediction.fitted_step(self.entries) * 1e9, committed * 1e9, delta=2)

    def test_a_fit_finds_the_step_that_made_the_times(self) -> None:
        made = [
            dataclasses.replace(entry, measured=entry.predicted.with_step(75e-9)) for entry in self.entries
        ]
        self.assertAlmostEqual(prediction.fitted_step(made), 75e-9)
        self.assertTrue(all(step == prediction.fitted_step(made) for step, _ in prediction.left_out(made).values()))

    def test_instructions_are_the_median_of_those_counted(self) -> None:
        counters = {}
        for launch in self.repository.counters("h200").launches:
            counters.setdefault((launch.name, launch.kernel), []).append(launch.values["instructions"])
        ratios = []
        for kernel in json.loads((ROOT / counting.COUNTS).read_text())["kernels"]:
            beside = counters.get((counting.name_of(kernel), kernel["kernel"]), [])
            if len(beside) == 1:
                ratios.append(beside[0] / prediction.requests(kernel))
        self.assertGreater(len(ratios), 250)
        self.assertAlmostEqual(statistics.median(ratios), prediction.INSTRUCTIONS, delta=0.5)

    def test_how_far_off_it_is_on_stages_that_it_was_not_fitted_on(self) -> None:
        unseen = [off for _, offs in prediction.left_out(self.entries).values() for off in offs]
        self.assertGreater(len(unseen), 40)
        self.assertLess(prediction.median_off(unseen), 0.2)
        self.assertLess(max(unseen), 1.0)  # twice the measured time
        self.assertGreater(min(unseen), -0.7)  # three tenths of it: atomics, which the model does not know

    def test_how_far_off_it_is_in_types_that_it_was_not_fitted_on(self) -> None:
        narrow = prediction.committed(self.repository, "h200", prediction.FITTED_ON[0], "fp16", "bf16")
        self.assertGreater(len(narrow), 60)
        self.assertLess(prediction.median_off(entry.off() for entry in narrow), 0.2)

    def test_how_far_off_it_is_on_a_gpu_that_it_was_not_fitted_on(self) -> None:
        other = prediction.committed(self.repository, "h100", *prediction.FITTED_ON)
        self.assertGreater(len(other), 40)
        self.assertLess(prediction.median_off(entry.off() for entry in other), 0.25)
        right, pairs = prediction.in_order(other)
        self.assertGreaterEqual(right / pairs, 0.88)

    def test_the_order_of_the_ladder(self) -> None:
        right, pairs = prediction.in_order(self.entries)
        self.assertGreater(pairs, 150)
        self.assertGreaterEqual(right / pairs, 0.88)
        by_name = {entry.name: entry for entry in self.entries}
        for slower, faster, operation in (
            ("01_naive/one_big_block", "01_naive/thread_per_row", "layernorm_forward"),
            ("01_naive/thread_per_row", "01_naive/small_blocks", "layernorm_forward"),
            ("01_naive/small_blocks", "02_shared_reduction/two_pass", "layernorm_forward"),
            ("02_shared_reduction/two_pass", "03_warp_shuffle/block_per_row", "layernorm_forward"),
            ("03_warp_shuffle/warp_per_row", "03_warp_shuffle/block_per_row", "layernorm_forward"),
            ("03_warp_shuffle/block_per_row", "04_vectorized/reload", "layernorm_forward"),
            ("04_vectorized/reload", "04_vectorized/persistent", "layernorm_forward"),
            ("05_welford/textbook", "05_welford/chan", "layernorm_forward"),
            ("05_welford/held", "05_welford/layer_norm", "layernorm_forward"),
            ("06_fused_residual/unfused", "06_fused_residual/fused", "add_layernorm_forward"),
            ("06_fused_residual/held", "06_fused_residual/fused", "add_layernorm_forward"),
            ("07_backward/staying", "07_backward/persistent", "layernorm_backward"),
            ("08_batchnorm/channel_per_thread", "08_batchnorm/one_launch", "batchnorm_train"),
            ("08_batchnorm/tile_2d", "08_batchnorm/batch_norm", "batchnorm_train"),
        ):
            shape, dtype = prediction.FITTED_ON
            more, less = (by_name[f"{variant}/{operation}/{dtype}/{shape}"] for variant in (slower, faster))
            self.assertGreater(more.measured, less.measured, (slower, faster))
            self.assertGreater(more.predicted.seconds, less.predicted.seconds, (slower, faster))


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
