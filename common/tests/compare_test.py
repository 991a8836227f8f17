#!/usr/bin/env python3
"""Tests of common/report/compare.py: the grid, the turns, what is kept, who is ahead, and the tables; without a GPU.

With PyTorch and a CPU build of the library (NORMWORKLOG_LIBRARY) the contenders themselves are run on the CPU as well.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import json
import os
import re
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable
from unittest import mock

SOURCE = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(SOURCE / "common/report"),
    str(SOURCE / "common/report/peers"),
    str(SOURCE / "common/library/python"),
]
sys.dont_write_bytecode = True

import compare
import compare_tables
import figures
import results
import rivals
import source_hash
from cells import COLS, DECODED_ROWS, MODEL_COLS, MODES, PUBLISHED, TENSORS, Cell, cell_of, grid
from place import Place

CELL = Cell("layernorm_forward", "bf16", 1024, 4096)


def timing(variant: str, cell: Cell, mode: str, seconds: float, spread: float = 0.0) -> dict[str, Any]:
    return {
        "name": f"compare/{variant}/{cell.name}/{mode}",
        "median_seconds": seconds,
        "share_of_copy": 0.9,
        "spread": spread,
    }


def document(entries: list[dict[str, Any]], checks: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {
        "context": {"gpu": "NVIDIA H200", "date": "2026-01-01", "source_hashes": {}},
        "benchmarks": entries,
        "checks": checks or [],
        "absent": [],
    }


class Grid(unittest.TestCase):
    def test_spans_what_it_promises(self) -> None:
        cells = grid(True)
        self.assertEqual(len(cells), len(set(cells)))
        self.assertGreater(len(cells), 900)
        self.assertEqual({cell.operation for cell in cells}, set(TENSORS))
        self.assertEqual({cell.dtype for cell in cells}, {"fp32", "fp16", "bf16"})
        rows = [cell for cell in cells if cell.operation == "layernorm_backward"]
        self.assertEqual((min(c.cols for c in rows), max(c.cols for c in rows)), (50, 262144))
        self.assertEqual((min(c.rows for c in rows), max(c.rows for c in rows)), (1, 2**20))
        self.assertTrue(any(c.cols % 2 for c in rows))
        self.assertTrue(all(cell.tensor_bytes <= 2**30 for cell in cells))

    def test_small_tensors_are_also_timed_from_graphs(self) -> None:
        self.assertIn("graph", Cell("layernorm_forward", "fp32", 1024, 1024).modes)
        self.assertNotIn("graph", Cell("layernorm_forward", "fp32", 65536, 4096).modes)
        self.assertTrue(all(cell.tensor_bytes <= 2**26 for cell in grid(False)))

    def test_a_run_that_ends_early_has_some_of_everything(self) -> None:
        """Each operation and type once; then all shapes that NVIDIA publishes figures of; and at each end in between
        about as many cells of each operation."""
        cells = grid(True)
        kinds = len(TENSORS) * 3
        self.assertEqual(len({(cell.operation, cell.dtype) for cell in cells[:kinds]}), kinds)
        over_rows = [cell for cell in cells if not cell.operation.startswith("batchnorm")]
        first = over_rows[:8 * 3 * len(PUBLISHED)]
        self.assertEqual({(cell.rows, cell.cols) for cell in first}, set(PUBLISHED))
        self.assertEqual({(cell.operation, cell.dtype, cell.rows, cell.cols) for cell in first},
                         {(o, d, *shape) for o, d in {(c.operation, c.dtype) for c in first} for shape in PUBLISHED})
        for end in range(kinds, 500, 25):
            counts = Counter(cell.operation for cell in cells[:end])
            self.assertLessEqual(max(counts.values()) - min(counts.values()), end // 10, end)
        late = [cell.cols for cell in over_rows[len(first):len(first) + 160]]
        self.assertLess(min(late), 256)
        self.assertGreater(max(late), 30000)

    def test_has_the_shapes_of_models(self) -> None:
        cells = grid(True)
        for operation in ("rmsnorm_forward", "add_layernorm_backward"):
            own = [cell for cell in cells if cell.operation == operation and cell.dtype == "bf16"]
            self.assertLessEqual(set(MODEL_COLS), {cell.cols for cell in own})
            self.assertLessEqual({*DECODED_ROWS, 2048, 8192, 16384}, {c.rows for c in own if c.cols in MODEL_COLS})

    def test_images_have_both_layouts(self) -> None:
        images = [cell for cell in grid(True) if cell.pixels > 1]
        self.assertEqual({cell.operation for cell in images}, {o for o in TENSORS if o.startswith("batchnorm")})
        self.assertEqual(len({(c.dtype, c.first) for c in images}), 6)
        one = Cell("batchnorm_train", "bf16", 32, 256, 3136, True)
        self.assertIn(one, images)
        self.assertEqual((one.shape, one.tensor_bytes), ("32x256x3136-first", 32 * 256 * 3136 * 2))
        self.assertTrue(all(cell_of(f"compare/ours/{cell.name}/cold") == ("ours", cell, "cold") for cell in grid(True)))
        self.assertEqual(len({compare.kept_in(Path("."), cell) for cell in images}), len(images))

    def test_can_be_narrowed(self) -> None:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            self.assertEqual(
                compare.main(["--full", "--list", "--operation", "rmsnorm_backward", "--dtype", "fp16"]), 0
            )
        lines = printed.getvalue().splitlines()
        self.assertGreater(len(lines), len(COLS))
        self.assertTrue(all(line.startswith("rmsnorm_backward/fp16/") for line in lines))


class Turns(unittest.TestCase):
    def test_each_begins_as_often(self) -> None:
        order: list[str] = []

        def sample(call: Callable[[], str]) -> Callable[[], float]:
            order.append(call())
            return lambda: float(len(order))

        calls = {name: (lambda name=name: name) for name in "abc"}
        samples = compare.take_turns(calls, sample, 6)
        self.assertEqual(order[:9], list("abcbcacab"))
        self.assertEqual([order[i] for i in range(0, 18, 3)].count("b"), 2)
        self.assertEqual({name: len(values) for name, values in samples.items()}, {"a": 6, "b": 6, "c": 6})

    def test_results_are_waited_for_after_the_round(self) -> None:
        events: list[str] = []

        def sample(call: Callable[[], str]) -> Callable[[], float]:
            name = call()
            events.append(f"begin {name}")
            return lambda: events.append(f"wait {name}") or 1.0

        compare.take_turns({"a": lambda: "a", "b": lambda: "b"}, sample, 1)
        self.assertEqual(events, ["begin a", "begin b", "wait a", "wait b"])

    def test_summary(self) -> None:
        found = compare.summary([1.0, 9.0, 2.0, 3.0, 2.0])
        self.assertEqual(found["median_seconds"], 2.0)
        self.assertEqual(found["samples"], 5)
        self.assertGreater(found["spread"], 0)


class Rotated(unittest.TestCase):
    def test_sets_of_tensors_have_their_turns(self) -> None:
        seen: list[int] = []
        call = compare.in_turn([lambda n=n: seen.append(n) for n in range(3)])
        for _ in range(7):
            call()
        self.assertEqual(seen, [0, 1, 2, 0, 1, 2, 0])

    def test_no_call_has_the_tensors_of_the_call_before_it(self) -> None:
        for contenders in range(1, 12):
            for sets in (2, 3, 8, 32):
                numbers: list[int] = []
                turns = itertools.count()
                calls = {
                    str(who): compare.in_turn([lambda n=n: numbers.append(n) for n in range(sets)], turns)
                    for who in range(contenders)
                }
                compare.take_turns(calls, lambda call: lambda called=call(): 0.0, 40)
                for first in range(len(numbers) - sets + 1):
                    self.assertEqual(len(set(numbers[first:first + sets])), sets)

    def test_four_times_the_cache_is_between_two_turns(self) -> None:
        for cell in (CELL, Cell("layernorm_forward", "bf16", 65536, 4096), Cell("rmsnorm_forward", "fp16", 1024, 1024)):
            sets = compare.sets_to_rotate(cell, 50 * 2**20)
            self.assertTrue((sets - 1) * cell.bytes >= 4 * 50 * 2**20 or sets == 32, (cell, sets))
            self.assertGreaterEqual(sets, 2)

    def test_a_gpu_has_the_name_that_its_results_have(self) -> None:
        for name, short in (
            ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200", "h200"), ("NVIDIA GeForce RTX 4090", "rtx4090"),
            ("NVIDIA A100-SXM4-40GB", "a100"), ("NVIDIA H100 PCIe", "h100"),
        ):
            self.assertEqual(compare.short_name_of(name), short)


class InShares(unittest.TestCase):
    def test_all_but_three_cells_are_compiled_ahead(self) -> None:
        cells = grid(True)[:100]
        shares = [compare.share_of(cells, f"{number}/8") for number in range(1, 9)]
        joint = [cell for share in shares for cell in share]
        self.assertEqual(len(joint), len(set(joint)))
        left = [cell for cell in cells if cell not in joint]
        self.assertEqual([cell.operation for cell in left], list(compare.SHOW_FIRST_CALLS))
        self.assertTrue(all(cell == next(c for c in cells if c.operation == cell.operation) for cell in left))
        self.assertLessEqual(max(map(len, shares)) - min(map(len, shares)), 1)

    def test_a_share_is_asked_for_in_words_that_are_understood(self) -> None:
        for words in ("0/8", "8", "one/8"):
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                compare.main(["--full", "--ahead", words])


class Ahead(unittest.TestCase):
    def test_the_fastest_other_counts(self) -> None:
        found = rivals.verdicts(
            document([
                timing("ours", CELL, "cold", 10e-6),
                timing("torch", CELL, "cold", 30e-6),
                timing("liger", CELL, "cold", 20e-6),
                timing("copy", CELL, "cold", 1e-6),
            ])
        )
        self.assertEqual([(v.rival, v.ahead, v.outcome) for v in found], [("liger", 2.0, "won")])

    def test_level_and_lost(self) -> None:
        for seconds, outcome in ((10.1e-6, "level"), (9.9e-6, "level"), (9e-6, "lost"), (11e-6, "won")):
            found = rivals.verdicts(
                document([timing("ours", CELL, "warm", 10e-6), timing("torch", CELL, "warm", seconds)])
            )
            self.assertEqual(found[0].outcome, outcome)

    def test_noise_is_level(self) -> None:
        """5 % behind, with spreads of 3 % and 12 %: that is less than half of the larger. From a graph, and of a large
        tensor, it counts."""
        large = Cell("layernorm_forward", "bf16", 65536, 4096)
        for cell, mode, outcome in (
            (CELL, "python", "level"), (CELL, "cold", "level"), (CELL, "warm", "level"), (CELL, "graph", "lost"),
            (large, "python", "level"), (large, "cold", "lost"),
        ):
            for spreads in ((0.03, 0.12), (0.12, 0.03)):
                found = rivals.verdicts(
                    document([
                        timing("ours", cell, mode, 10e-6, spreads[0]),
                        timing("torch", cell, mode, 9.5e-6, spreads[1]),
                    ])
                )
                self.assertEqual(found[0].outcome, outcome, (cell, mode, spreads))

    def test_more_than_noise_counts(self) -> None:
        """More than half of the larger spread; and however large a spread is, more than a tenth."""
        for spread, far in ((0.1, 0.06), (11.0, 0.12)):
            for seconds, outcome in ((10e-6 * (1 - far), "lost"), (10e-6 * (1 + far), "won")):
                for mode in ("python", "cold"):
                    found = rivals.verdicts(
                        document([
                            timing("ours", CELL, mode, 10e-6, 0.05),
                            timing("torch", CELL, mode, seconds, spread),
                        ])
                    )
                    self.assertEqual(found[0].outcome, outcome, (spread, mode))

    def test_a_wrong_result_wins_nothing(self) -> None:
        entries = [
            timing("ours", CELL, "cold", 10e-6),
            timing("torch", CELL, "cold", 30e-6),
            timing("apex", CELL, "cold", 1e-6),
        ]
        found = rivals.verdicts(document(entries, [{"variant": "apex", "cell": CELL.name, "verdict": "failed"}]))
        self.assertEqual(found[0].rival, "torch")

    def test_each_of_the_others_alone(self) -> None:
        found = rivals.by_contender(
            document([
                timing("ours", CELL, "cold", 10e-6),
                timing("torch", CELL, "cold", 30e-6),
                timing("cudnn", CELL, "cold", 8e-6),
                timing("copy", CELL, "cold", 1e-6),
            ], [{"variant": "liger", "cell": CELL.name, "verdict": "failed"}])
        )
        self.assertEqual({name: [v.outcome for v in group] for name, group in found.items()},
                         {"torch": ["won"], "cudnn": ["lost"]})

    def test_no_rival_no_verdict(self) -> None:
        self.assertEqual(
            rivals.verdicts(document([timing("ours", CELL, "cold", 1e-6), timing("copy", CELL, "cold", 1e-6)])), []
        )
        self.assertEqual(rivals.verdicts(document([timing("torch", CELL, "cold", 1e-6)])), [])

    def test_the_report_names_the_lost_cells(self) -> None:
        lines = list(
            rivals.report(
                rivals.verdicts(document([timing("ours", CELL, "cold", 10e-6), timing("torch", CELL, "cold", 5e-6)]))
            )
        )
        self.assertIn("lost   1", lines[0])
        self.assertEqual(lines[1], "lost: layernorm_forward/bf16/1024x4096 cold: 10.00 us, torch 5.00 us")


class Kept(unittest.TestCase):
    def test_first_calls_are_joined_and_kept(self) -> None:
        cells = [Cell("layernorm_forward", "fp32", rows, 64) for rows in (1, 2)]

        def run(seconds: float, *measured: Cell) -> dict[str, Any]:
            parts = [{
                "benchmarks": [timing("ours", cell, "cold", 1.0)], "checks": [], "absent": [],
                "first_calls": [{"variant": "ours", "cell": cell.name, "seconds": seconds}],
            } for cell in measured]
            return compare.joined({"date": "2026-01-01"}, parts)

        found = compare.added_to(run(1.0, *cells), run(2.0, cells[1]))
        self.assertEqual(rivals.first_calls(found), {"ours": {"layernorm_forward": [2.0, 1.0]}})
        self.assertEqual(rivals.first_calls(document([])), {})

    def test_is_told_after_each_cell(self) -> None:
        cells = [Cell("layernorm_forward", "fp32", rows, 64) for rows in (1, 2, 3)]
        told: list[int] = []
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            part = {"benchmarks": [], "checks": [], "absent": []}
            after = lambda: told.append(len(compare.kept(cells, Path(folder))))  # noqa: E731
            compare.run_cells(cells, Path(folder), lambda cell: part, None, after_each=after)
        self.assertEqual(told, [1, 2, 3])

    def test_goes_on_where_it_stopped(self) -> None:
        cells = [Cell("layernorm_forward", "fp32", rows, 64) for rows in (1, 2, 3, 4)]
        clock, worked = [0.0], []

        def work(cell: Cell) -> dict[str, Any]:
            worked.append(cell.rows)
            clock[0] += 60
            return {
                "benchmarks": [timing("ours", cell, "cold", 1e-6)],
                "checks": [],
                "absent": [{"variant": "apex", "cell": cell.name, "reason": "not here"}],
            }

        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            self.assertTrue(compare.run_cells(cells, Path(folder), work, 1.5, now=lambda: clock[0]))
            self.assertEqual(worked, [1, 2])
            self.assertFalse(compare.run_cells(cells, Path(folder), work, None, now=lambda: clock[0]))
            self.assertEqual(worked, [1, 2, 3, 4])
            parts = compare.kept(cells, Path(folder))
        joined = compare.joined({"gpu": "x"}, parts)
        self.assertEqual(len(joined["benchmarks"]), 4)
        self.assertEqual(
            joined["absent"], [{"variant": "apex", "reason": "not here", "cells": [cell.name for cell in cells]}]
        )

    def test_cells_that_are_not_measured_again_stay(self) -> None:
        cells = [Cell("layernorm_forward", "fp32", rows, 64) for rows in (1, 2, 3)]

        def run(commit: str, seconds: float, *measured: Cell, reason: str = "not here") -> dict[str, Any]:
            parts = [
                {
                    "benchmarks": [timing("ours", cell, "cold", seconds)],
                    "checks": [{"variant": "ours", "cell": cell.name, "verdict": "passed"}],
                    "absent": [{"variant": "apex", "cell": f"{cell.name}/graph", "reason": reason}],
                }
                for cell in measured
            ]
            return compare.joined({"date": "2026-01-01", "commit": commit, "source_hashes": {}}, parts)

        def seconds(found: dict[str, Any]) -> dict[str, float]:
            return {entry["name"].split("/")[4]: entry["median_seconds"] for entry in found["benchmarks"]}

        first = run("a", 1.0, *cells)
        # Nothing is left of the first.
        self.assertEqual(compare.added_to(first, run("b", 2.0, *cells)), run("b", 2.0, *cells))
        second = compare.added_to(first, run("b", 2.0, cells[1], reason="still not here"))
        self.assertEqual(seconds(second), {"2x64": 2.0, "1x64": 1.0, "3x64": 1.0})
        self.assertEqual(len(second["checks"]), 3)
        self.assertEqual(
            [(run["context"]["commit"], run["cells"]) for run in second["earlier"]],
            [("a", [cells[0].name, cells[2].name])],
        )
        self.assertEqual(
            [(entry["reason"], len(entry["cells"])) for entry in second["absent"]],
            [("still not here", 1), ("not here", 2)],
        )
        third = compare.added_to(second, run("c", 3.0, cells[0]))
        self.assertEqual(seconds(third), {"1x64": 3.0, "2x64": 2.0, "3x64": 1.0})
        self.assertEqual(
            [(run["context"]["commit"], run["cells"]) for run in third["earlier"]],
            [("b", [cells[1].name]), ("a", [cells[2].name])],
        )
        # A cell that ended early has been measured again, and has no times.
        ended = compare.joined(
            {"commit": "d"},
            [
                {
                    "benchmarks": [],
                    "checks": [],
                    "absent": [{"variant": "all", "cell": cells[2].name, "reason": "ValueError: no"}],
                }
            ],
        )
        self.assertEqual(seconds(compare.added_to(third, ended)), {"1x64": 3.0, "2x64": 2.0})

    def test_stops_where_the_gpu_is_lost(self) -> None:
        cells = [Cell("layernorm_forward", "fp32", rows, 64) for rows in (1, 2, 3)]
        worked: list[int] = []

        def work(cell: Cell) -> dict[str, Any]:
            worked.append(cell.rows)
            return {
                "benchmarks": [],
                "checks": [],
                "absent": [{"variant": "all", "cell": cell.name, "reason": "an illegal address"}],
            }

        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            self.assertTrue(compare.run_cells(cells, Path(folder), work, None, usable=lambda: len(worked) < 2))
            self.assertEqual((worked, len(compare.kept(cells, Path(folder)))), ([1, 2], 2))
            self.assertFalse(compare.run_cells(cells, Path(folder), work, None))
            self.assertEqual(worked, [1, 2, 3])

    def test_no_failure_goes_unsaid(self) -> None:
        check = {"variant": "ours", "cell": "b", "verdict": "failed", "largest_error": 2.5}
        parts = [
            {
                "checks": [check, check | {"variant": "apex"}, check | {"verdict": "passed"}],
                "absent": [
                    {"variant": "all", "cell": "a", "reason": "ValueError: no"},
                    {"variant": "all", "cell": "c", "reason": compare.NO_ROOM},
                    {"variant": "apex", "cell": "a", "reason": "not here"},
                    {"variant": "ours", "cell": "d/graph", "reason": "no capture"},
                ],
            }
        ]
        self.assertEqual(
            list(compare.failures(parts)),
            [
                "a ended early: ValueError: no",
                "ours was not timed at d/graph: no capture",
                "our own result is off at b: 2.5 times what is tolerated",
            ],
        )

    def test_leaves_others_what_they_are_at(self) -> None:
        cells = [Cell("layernorm_forward", "fp32", rows, 64) for rows in (1, 2)]
        worked = []

        def work(cell: Cell) -> dict[str, Any]:
            worked.append(cell.rows)
            return {"benchmarks": [], "checks": [], "absent": []}

        with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
            folder = Path(name) / "new"
            with compare.claimed(compare.kept_in(folder, cells[0])) as is_ours:
                self.assertTrue(is_ours)
                self.assertTrue(compare.run_cells(cells, folder, work, None))
            self.assertEqual((worked, len(compare.kept(cells, folder))), ([2], 1))
            self.assertFalse(compare.run_cells(cells, folder, work, None))
            self.assertEqual((worked, len(compare.kept(cells, folder))), ([2, 1], 2))


    def test_is_kept_apart_by_what_measures_it(self) -> None:
        context = {"gpu": "NVIDIA H200", "library": "a", "software": {"torch": "2.11"}, "contenders": ["ours", "torch"]}
        with tempfile.TemporaryDirectory() as folder:
            native = Path(folder) / "_native.so"
            native.write_bytes(b"one")
            told = [
                compare.fingerprint(context, None),
                compare.fingerprint(context, native),
                compare.fingerprint(context | {"contenders": ["ours"]}, native),
            ]
            native.write_bytes(b"two")
            told.append(compare.fingerprint(context, native))
            with mock.patch.object(Path, "read_bytes", return_value=b"another compare.py"):
                told.append(compare.fingerprint(context, native))
        self.assertEqual(len(set(told)), 5)
        self.assertEqual(compare.fingerprint(context | {"date": "today"}, None), told[0])


class Tables(unittest.TestCase):
    def table(self, content: dict[str, Any] | None, **options: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            if content is not None:
                path = root / "docs" / "compare" / "h200.json"
                path.parent.mkdir(parents=True)
                path.write_text(json.dumps(content), encoding="utf-8")
            return compare_tables.against_peers(
                Place(results.Repository(root), root / "docs" / "compare.md", options, "h200")
            ).text

    def test_nothing_measured(self) -> None:
        self.assertEqual(self.table(None), "*Nothing was compared on h200 yet.*")

    def test_summary_and_lost(self) -> None:
        wide = Cell("layernorm_forward", "bf16", 64, 65536)
        content = document([
            timing("ours", CELL, "cold", 10e-6),
            timing("torch", CELL, "cold", 20e-6),
            timing("ours", wide, "cold", 10e-6),
            timing("torch.compile", wide, "cold", 8e-6),
        ])
        self.assertIn(
            "| `layernorm_forward` | cold | 2 | 1 | 0 | 1 | 1.40x | 2.00x | 0.80x | bf16, 64 x 65536 | Inductor | 0 |",
            self.table(content).replace("†", ""),
        )
        lost = self.table(content, show="lost")
        self.assertIn("bf16, 64 x 65536 | cold | 10.0 | 90.0 % | Inductor | 8.00 | 25 % longer", lost)
        self.assertNotIn("1024 x 4096", lost)
        with self.assertRaises(results.ReportError):
            self.table(content, show="won")

    def test_totals_of_kinds(self) -> None:
        cells = {
            Cell("layernorm_forward", "bf16", 64, 4096): 20e-6, Cell("rmsnorm_forward", "fp16", 1, 4096): 10e-6,
            Cell("layernorm_forward", "bf16", 65536, 4096): 5e-6, Cell("add_rmsnorm_backward", "fp32", 64, 4096): 20e-6,
            Cell("batchnorm_inference", "fp32", 64, 4096): 5e-6,
        }
        content = document([
            timing(name, cell, mode, seconds) for cell, theirs in cells.items()
            for mode in ("python", "graph") for name, seconds in (("ours", 10e-6), ("torch", theirs))
        ])
        lines = self.table(content, show="totals", mode="graph").replace("†", "").splitlines()[2:6]
        self.assertEqual(lines, ["| norms over rows, forward | more than 16 MiB | graph | 1 | 0 | 0 | 1 | 0.50x |",
                                 "| norms over rows, forward | up to 16 MiB | graph | 2 | 1 | 1 | 0 | 1.50x |",
                                 "| norms over rows, backward | up to 16 MiB | graph | 1 | 1 | 0 | 0 | 2.00x |",
                                 "| BatchNorm | up to 16 MiB | graph | 1 | 0 | 0 | 1 | 0.50x |"])
        self.assertEqual(self.table(content, show="totals").count(" python "), 4)

    def test_a_line_to_each_of_the_others(self) -> None:
        image = Cell("batchnorm_train", "fp32", 32, 256, 196, True)
        content = document([
            timing(name, cell, mode, seconds) for cell in (CELL, image) for mode in ("cold", "python")
            for name, seconds in (("ours", 10e-6), ("torch", 20e-6), ("cudnn", 8e-6 if cell is image else 9.9e-6))
        ])
        content["first_calls"] = [
            {"variant": name, "cell": cell.name, "seconds": seconds} for cell in (CELL, image)
            for name, seconds in (("ours", 0.0002), ("cudnn", 0.05))
        ]
        text = self.table(content, show="rivals").replace("†", "")
        self.assertIn("| ours | – | – | – | – | – | – | 0.200 | – | 0.200 |", text)
        self.assertIn("| cuDNN | 2 | 0 | 1 | 1 | 0.89x | 0.80x | 50.0 | – | 50.0 |", text)
        self.assertIn("| PyTorch | 2 | 2 | 0 | 0 | 2.00x | 2.00x | – | – | – |", text)
        lost = self.table(content, show="lost").replace("†", "")
        self.assertIn("| `batchnorm_train` | fp32, 32 x 256 x 196 NCHW | cold |", lost)

    def test_tensors_in_rotation(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            place = Place(results.Repository(root), root / "docs" / "compare.md", {}, "h100")
            self.assertEqual(compare_tables.rotation(place).text, "*Tensors were not rotated on h100 yet.*")
            (root / "docs/data").mkdir(parents=True)
            (root / "docs/data/rotation_h100.json").write_text(json.dumps({
                "context": {"title": "Both.", "gpu": "NVIDIA H100", "date": "2026-01-01", "commit": "a" * 40},
                "figures": {
                    f"{who}/{CELL.name}/{way}": {"value": value, "unit": "us"}
                    for who, values in (("ours", (10.0, 10.1, 10.2)), ("cudnn", (11.0, 9.0, 11.0)))
                    for way, value in zip(("one", "in_step", "several"), values)
                },
            }), encoding="utf-8")
            place = Place(results.Repository(root), root / "docs" / "compare.md", {}, "h100")
            text = compare_tables.rotation(place).text
        self.assertIn("| operation | case | sets of tensors | ours, µs | cuDNN, µs |", text)
        self.assertIn("| `layernorm_forward` | bf16, 1024 x 4096 | several, in step | 10.1 | 9.00 |", text)

    def test_figures_of_a_cell(self) -> None:
        content = document([
            timing("ours", CELL, "cold", 10e-6),
            timing("torch", CELL, "cold", 30e-6),
            timing("liger", CELL, "cold", 20e-6),
        ])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder).resolve() / "docs" / "compare" / "h200.json"
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(content), encoding="utf-8")
            repository = results.Repository(path.parents[2])

            def figure(**options: str) -> str:
                return figures.figure(repository, options, "h200")[0].replace("†", "")

            ours, best = (f"compare/{side}/{CELL.name}/cold" for side in ("ours", "best"))
            self.assertEqual(figure(key=ours, unit="us"), "10.0 µs")
            self.assertEqual(figure(key=best, unit="us"), "20.0 µs")
            self.assertEqual(figure(key=best, over=ours, unit="x"), "2.00x")
            self.assertEqual(figure(key=ours, unit="percent"), "90.0 %")
            shares = {word: figure(key=f"compare/{word}", unit="percent") for word in ("won", "level", "lost")}
            self.assertEqual(shares, {"won": "100.0 %", "level": "0.0 %", "lost": "0.0 %"})
            self.assertEqual(figure(key="compare/won", unit="count"), "1")
            for options in (
                {"key": best, "unit": "percent"},
                {"key": f"compare/liger/{CELL.name}/cold", "unit": "us"},
                {"key": f"compare/ours/{CELL.name}/warm", "unit": "us"},
            ):
                with self.assertRaises(results.ReportError):
                    figure(**options)
            with self.assertRaises(results.ReportError):
                figures.figure(repository, {"key": ours, "unit": "us"}, "another")

    def test_the_summary_is_in_the_order_of_operations_and_timings(self) -> None:
        cells = [Cell(operation, "bf16", 64, 4096) for operation in ("rmsnorm_backward", "layernorm_forward")]
        content = document([
            timing(name, cell, mode, 10e-6) for cell in cells
            for mode in ("python", "graph", "cold") for name in ("ours", "torch")
        ])
        lines = [line.split(" | ")[:2] for line in self.table(content).splitlines()[2:8]]
        self.assertEqual(
            [" ".join(line) for line in lines],
            [
                f"| `{operation}`† {mode}"
                for operation in ("layernorm_forward", "rmsnorm_backward")
                for mode in ("cold", "graph", "python")
            ],
        )

    def test_chooses_types_and_timings(self) -> None:
        single = Cell("layernorm_forward", "fp32", 64, 4096)
        content = document([timing(name, cell, mode, seconds) for cell in (CELL, single) for mode in ("cold", "graph")
                            for name, seconds in (("ours", 10e-6), ("torch", 5e-6))])
        self.assertIn("| cold | 1 |", self.table(content, dtype="fp32"))
        self.assertIn("| cold | 2 |", self.table(content))
        lost = self.table(content, show="lost", mode="graph", dtype="fp32")
        self.assertEqual(lost.count(" longer |"), 1)
        self.assertIn("3 more, of all ways of timing, are in [lost-timings.md](lost-timings.md)", lost)
        for options in ({"mode": "hot"}, {"dtype": "int8"}, {"operation": "softmax"}, {"show": "lost", "limit": "few"}):
            with self.assertRaises(results.ReportError):
                self.table(content, **options)

    def test_a_dagger_is_a_cell_s_own(self) -> None:
        """Cells of a run before are of the kernels of then."""
        other = Cell("layernorm_forward", "bf16", 2048, 4096)
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            (root / "05_welford").mkdir()
            (root / "05_welford/kernels.cuh").write_text("int now;\n", encoding="utf-8")
            hashes = {"05_welford": source_hash.source_hash("05_welford", root)}
            content = document([
                timing(name, cell, "cold", seconds) for cell in (CELL, other)
                for name, seconds in (("ours", 10e-6), ("torch", 5e-6))
            ])
            content["context"] |= {"commit": "b" * 40, "source_hashes": hashes}
            content["earlier"] = [
                {
                    "context": {
                        "gpu": "NVIDIA H200",
                        "date": "2025-01-01",
                        "commit": "a" * 40,
                        "source_hashes": {"05_welford": "of then"},
                    },
                    "cells": [other.name],
                }
            ]
            (root / "docs/compare").mkdir(parents=True)
            (root / "docs/compare/h200.json").write_text(json.dumps(content), encoding="utf-8")
            repository = results.Repository(root)

            def table(**options: str) -> str:
                return compare_tables.against_peers(
                    Place(repository, root / "docs" / "compare.md", options, "h200")
                ).text

            lost = table(show="lost")
            self.assertIn("| `layernorm_forward` | bf16, 1024 x 4096 |", lost)
            self.assertIn("| `layernorm_forward`† | bf16, 2048 x 4096 |", lost)
            current = table(show="lost", current="yes")
            self.assertIn("| `layernorm_forward` | bf16, 1024 x 4096 |", current)
            self.assertNotIn("2048 x 4096", current)
            self.assertNotIn("†", current)
            counted = [figures.beside_others(repository, name, "count", "h200") for name in ("lost", "lost/current")]
            self.assertEqual([(figure.value, figure.stale) for figure in counted], [(2, True), (1, False)])
            for text in (lost, table(), table(show="totals")):
                for part in (
                    "2026-01-01, commit `bbbbbbbbbb`",
                    "2025-01-01, commit `aaaaaaaaaa`",
                    "† measured on an earlier version",
                ):
                    self.assertIn(part, text)
            self.assertIn("`layernorm_forward`†", table())
            one = table(show="lost", limit="0")
            self.assertNotIn("†", one)
            self.assertEqual(
                [
                    figures.beside_others(repository, f"ours/{cell.name}/cold", "time", "h200").stale
                    for cell in (CELL, other)
                ],
                [False, True],
            )

    def test_long_tables_are_folded_or_end(self) -> None:
        cells = [
            Cell(operation, "bf16", rows, 4096) for operation in ("layernorm_forward", "rmsnorm_forward")
            for rows in range(1, 15)
        ]
        content = document([
            timing(name, cell, "cold", seconds) for cell in cells
            for name, seconds in (("ours", 10e-6), ("torch", 5e-6))
        ])
        text = self.table(content, show="lost")
        self.assertEqual((text.count("<details>"), text.count(" longer |")), (2, 28))
        self.assertIn("<summary><code>rmsnorm_forward</code>: 14 lost timings</summary>", text)
        self.assertNotIn(" more, of all", text)
        text = self.table(content, show="lost", limit="15")
        self.assertEqual((text.count("<details>"), text.count(" longer |")), (0, 15))
        self.assertIn("13 more,", text)

    def test_an_operation_without_cells(self) -> None:
        content = document([timing("ours", CELL, "cold", 10e-6), timing("torch", CELL, "cold", 20e-6)])
        self.assertEqual(self.table(content, show="lost", operation="batchnorm_train"), "*Nothing was compared yet.*")

    def test_says_who_was_left_out(self) -> None:
        content = document(
            [timing("ours", CELL, "cold", 10e-6), timing("torch", CELL, "cold", 20e-6)],
            [
                {"variant": "liger", "cell": CELL.name, "verdict": "failed"},
                {"variant": "ours", "cell": "another", "verdict": "failed"},
            ],
        )
        content["context"] |= {"contenders": ["ours", "torch", "liger", "apex"], "cells": 1, "cells_of_grid": 9}
        content["absent"] = [
            {"variant": "apex", "reason": "apex.normalization cannot be imported: no", "cells": [CELL.name]},
            {"variant": "all", "reason": "ValueError: no", "cells": ["another", "a third", "a fourth"]},
        ]
        text = self.table(content)
        self.assertIn("| PyTorch | 1 |", text)
        for sentence in (
            "1 of 9 cells were measured. ", "Not installed there: apex. ",
            "Inductor's max-autotune was not asked for. ", "3 cells ended early. ", "In 1 cells our own result was off",
        ):
            self.assertIn(sentence, text)

    def test_cells_of_earlier_runs_are_measured_too(self) -> None:
        content = document([timing("ours", CELL, "cold", 10e-6), timing("torch", CELL, "cold", 20e-6)])
        content["context"] |= {"cells": 0, "cells_of_grid": 1}  # of the last run
        self.assertNotIn("cells were measured", self.table(content))

    def test_no_cell_is_lost(self) -> None:
        content = document([timing("ours", CELL, "cold", 10e-6), timing("torch", CELL, "cold", 20e-6)])
        self.assertIn("*No cell is lost.*", self.table(content, show="lost"))


class KeptComparison(unittest.TestCase):
    """A repository reads the comparison once, and has the same to say of it as when it is read anew."""

    def test_is_made_once_and_the_same(self) -> None:
        cells = [Cell("layernorm_forward", "bf16", 64, cols) for cols in (256, 4096)]
        entries = [timing(name, cell, mode, seconds) for cell in cells for mode in ("cold", "warm")
                   for name, seconds in (("ours", 10e-6), ("torch", 20e-6), ("liger", 15e-6))]
        content = document(entries) | {"earlier": [{"context": {"date": "2025-01-01"}, "cells": [cells[0].name]}]}
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            (root / "docs/compare").mkdir(parents=True)
            (root / "docs/compare/h200.json").write_text(json.dumps(content), encoding="utf-8")
            repository = results.Repository(root)
            self.assertEqual(list(repository.verdicts("h200").values()), rivals.verdicts(content))
            self.assertEqual(repr(repository.runs("h200")), repr(rivals.Runs(content, repository.is_current)))
            options = {"key": f"compare/best/{cells[1].name}/warm", "unit": "us"}
            first = figures.figure(repository, options, "h200")
            with mock.patch.object(rivals, "verdicts") as verdicts, mock.patch.object(rivals, "Runs") as runs:
                self.assertEqual(figures.figure(repository, options, "h200"), first)
            # No lock and no source says that it is current.
            self.assertEqual((first, verdicts.called, runs.called), (("15.0 µs†", True), False, False))

    def test_nothing_was_compared(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            repository = results.Repository(Path(folder))
            self.assertEqual((repository.verdicts("h200"), repository.runs("h200")), ({}, None))

    def test_runs_say_all_that_is_in_them(self) -> None:
        """A chart is drawn again where they say something else."""
        content = document([timing("ours", CELL, "cold", 1e-6)]) | {
            "earlier": [{"context": {"date": "2025-01-01"}, "cells": [CELL.name]}]
        }
        nowhere = results.Repository(Path("/nowhere"))
        said = {repr(rivals.Runs(content, nowhere.is_current))}
        with mock.patch.object(results.Repository, "is_current", return_value=True):
            said.add(repr(rivals.Runs(content, nowhere.is_current)))
        content["earlier"][0]["cells"] = []
        said.add(repr(rivals.Runs(content, nowhere.is_current)))
        content["earlier"][0]["context"]["date"] = "2025-01-02"
        said.add(repr(rivals.Runs(content, nowhere.is_current)))
        self.assertEqual(len(said), 4)


class Chart(unittest.TestCase):
    def test_draws_a_panel_for_each_operation(self) -> None:
        try:
            import charts
        except SystemExit as error:
            self.skipTest(str(error))
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            self.assertIsNone(charts.rivals_chart(results.Repository(root), "h200"))
            cells = [
                Cell(operation, "bf16", rows, cols) for operation in ("layernorm_forward", "layernorm_backward")
                for rows, cols in ((262144, 256), (65536, 4096), (64, 1600))
            ]
            content = document([
                timing(name, cell, "cold", 1e-6) for cell in cells for name in ("ours", "torch.compile", "copy")
            ])
            (root / "docs/compare").mkdir(parents=True)
            (root / "docs/compare/h200.json").write_text(json.dumps(content), encoding="utf-8")
            chart = charts.rivals_chart(results.Repository(root), "h200")
            text = chart.render()
            self.assertEqual(chart.path.name, "compare_h200.svg")
            for word in ("layernorm_forward", "layernorm_backward", "Inductor", "ours", "at least 128 MiB"):
                self.assertIn(word, text)
            self.assertNotIn(">copy<", text)

    def test_maps_how_far_ahead_each_width_is(self) -> None:
        try:
            import charts
        except SystemExit as error:
            self.skipTest(str(error))
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            self.assertIsNone(charts.rivals_map(results.Repository(root), "h200"))
            cells = [
                Cell("layernorm_forward", "bf16", 64, 256),
                Cell("layernorm_forward", "fp32", 65536, 4096),
                Cell("batchnorm_train", "fp32", 4096, 64),
            ]
            content = document([timing(name, cell, "cold", seconds) for cell in cells
                                for name, seconds in (("ours", 4e-6), ("torch", 3e-6 if cell.cols == 4096 else 5e-6))])
            (root / "docs/compare").mkdir(parents=True)
            (root / "docs/compare/h200.json").write_text(json.dumps(content), encoding="utf-8")
            chart = charts.rivals_map(results.Repository(root), "h200")
            text = chart.render()
            self.assertEqual(chart.path.name, "compare_map_h200.svg")
            for word in (
                "batchnorm_train",
                "bf16",
                "3 cells, of which 2 are won and these lost: fp32 layernorm_forward at 4096 columns 0.75",
            ):
                self.assertTrue(word in text, word)
            self.assertFalse("fp16" in text)

    def test_draws_the_training(self) -> None:
        try:
            import charts
        except SystemExit as error:
            self.skipTest(str(error))
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            self.assertIsNone(charts.training_chart(results.Repository(root), "h200"))
            (root / "docs/data").mkdir(parents=True)
            (root / "05_welford").mkdir()
            (root / "05_welford/kernels.cuh").write_text("int first;\n", encoding="utf-8")
            hashes = {"05_welford": source_hash.source_hash("05_welford", root)}
            size = {"layers": 2, "width": 32, "batch": 4, "context": 32}
            context = {"size": size, "dtype": "bf16", "torch": "2.11", "date": "2026-01-01"}

            def drawn(losses: list[Any], **more: Any) -> str:
                runs = {name: {"losses": losses, "step_seconds": 0.012} for name in ("torch", "ours")}
                (root / "docs/data/gpt_h200.json").write_text(
                    json.dumps({"context": context | more, "runs": runs}), encoding="utf-8"
                )
                return charts.training_chart(results.Repository(root), "h200").render()

            before_seeds = drawn([3.5, 3.0, 2.5])
            now = drawn([[3.5, 3.0, 2.5], [3.6, 3.1, 2.4]], seeds=2, source_hashes=hashes)
            for text in (before_seeds, now):
                for word in ("a step, ms", "ours", "2 layers of width 32", "loss 3.500 to 2.500"):
                    self.assertIn(word, text)
            # The footnote is broken into lines, so that it fits a phone. Each is a comment beside its outlines.
            self.assertIn("losses of the first of 2 seeds", " ".join(re.findall("<!-- (.*?) -->", now)))
            self.assertIn("ours†", before_seeds)  # it does not say which kernels it was
            self.assertNotIn("†", now)
            (root / "05_welford/kernels.cuh").write_text("int second;\n", encoding="utf-8")
            changed = drawn([[3.5, 3.0, 2.5]], seeds=1, source_hashes=hashes)
            self.assertIn("ours†", changed)
            self.assertNotIn("torch†", changed)
            self.assertIn(charts.STALE_NOTE, changed)


class WithoutAGpu(unittest.TestCase):
    def test_says_so(self) -> None:
        try:
            import torch

            if torch.cuda.is_available():
                self.skipTest("there is a GPU here")
        except ImportError:
            pass
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            self.assertEqual(compare.main([]), 2)
        self.assertTrue(errors.getvalue().startswith("./worklog compare: "), errors.getvalue())


def contenders_or_skip() -> Any:
    try:
        import contenders
        import normworklog

        if normworklog.backend() != "cpu":
            raise unittest.SkipTest("the library is a GPU build")
    except (ImportError, RuntimeError) as error:
        raise unittest.SkipTest(f"needs PyTorch and a CPU build of the library: {error}") from None
    return contenders


class RefusedLaunch(unittest.TestCase):
    def test_is_not_the_next_contenders(self) -> None:
        """CUDA keeps the error of such a launch, and PyTorch raises it at whatever it launches next."""
        class Refusing:
            refused = False

            def synchronize(self) -> None:
                pass

            def raise_refused(self) -> None:
                if self.refused:
                    self.refused = False
                    raise RuntimeError("CUDA error: invalid argument")

            def usable(self) -> bool:
                self.refused = False
                return True

        def prepare(name: str, problem: Any) -> tuple[Any, Any]:
            gpu.raise_refused()
            if name in ("flashinfer", "silent"):
                gpu.refused = True
            if name == "flashinfer":
                raise RuntimeError("too long for a launch")
            return (lambda: name), (lambda: None)

        gpu, contenders_in_order = Refusing(), ("flashinfer", "silent", "quack")
        found: dict[str, Any] = {"absent": [], "first_calls": []}
        cell = Cell("add_rmsnorm_forward", "bf16", 1, 65536)
        contenders = SimpleNamespace(Unavailable=type("Unavailable", (Exception,), {}), prepare=prepare)
        with mock.patch.dict(sys.modules, contenders=contenders):
            made = {name: compare.first_calls(cell, name, None, gpu, found) for name in contenders_in_order}
        self.assertIsNone(made["flashinfer"])
        self.assertIsNone(made["silent"], "whose library did not look")
        self.assertEqual(made["quack"][2], "quack")
        self.assertEqual(
            [(entry["variant"], entry["reason"]) for entry in found["absent"]],
            [
                ("flashinfer", "RuntimeError: too long for a launch"),
                ("silent", "RuntimeError: CUDA error: invalid argument"),
            ],
        )


class FakeGpu:
    """The CPU instead of a GPU, with a clock of its own: `ours` takes 1 us, each other a microsecond more than the
    last."""

    device = "cpu"
    AHEAD, AHEAD_OF_BACKWARD = compare.Gpu.AHEAD, compare.Gpu.AHEAD_OF_BACKWARD
    l2_bytes = 2**10

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def synchronize(self) -> None:
        pass

    def cold(self, call: Callable[[], Any]) -> Callable[[], float]:
        call()
        number = self.seen.setdefault(id(call), len(self.seen) + 1)
        return lambda: number * 1e-6

    warm = graph = python = cold

    def captured(self, call: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: call()

    def raise_refused(self) -> None:
        pass

    def usable(self) -> bool:
        return True


class FakeGraph:
    """cuDNN's graph as far as the contender uses it: the nodes are noted, and computed with PyTorch when it is run."""

    def __init__(self, **_: Any) -> None:
        self.steps: list[tuple[str, dict[str, Any], list[Any]]] = []
        self.finished = False

    @staticmethod
    def of_name(name: str) -> Any:
        tensor = mock.Mock()
        tensor.set_output.return_value = tensor.set_data_type.return_value = tensor.set_dim.return_value = tensor
        return tensor

    def tensor(self, name: str, **_: Any) -> Any:
        return self.of_name(name)

    def tensor_like(self, template: Any, name: str) -> Any:
        return self.of_name(name)

    def __getattr__(self, name: str) -> Any:
        outputs = {
            "add": 1, "sub": 1, "mul": 1, "layernorm": 3, "rmsnorm": 2, "layernorm_backward": 3, "rmsnorm_backward": 3,
            "batchnorm": 5, "batchnorm_backward": 3,
        }
        if name in outputs:
            def node(**given: Any) -> Any:
                made = [self.of_name(name) for _ in range(outputs[name])]
                if name == "rmsnorm_backward":
                    made[2] = None
                self.steps.append((name, given, made))
                return made[0] if len(made) == 1 else made
            return node
        if name in ("validate", "build_operation_graph", "check_support"):
            return lambda: None
        raise AttributeError(name)

    def create_execution_plans(self, modes: list[Any]) -> None:
        assert modes

    def build_plans(self) -> None:
        self.finished = True

    def get_workspace_size(self) -> int:
        return 0

    def execute(self, pack: dict[Any, Any], workspace: Any, handle: Any) -> None:
        assert self.finished
        values = dict(pack)
        for name, given, made in self.steps:
            tensors = {key: values[value] for key, value in given.items() if value in values}
            for tensor, result in zip(made, self.computed(name, tensors)):
                values[tensor] = result
                if tensor in pack:
                    assert pack[tensor].shape == result.shape, (name, pack[tensor].shape, result.shape)
                    pack[tensor].copy_(result)
                    values[tensor] = pack[tensor]

    @staticmethod
    def computed(name: str, t: dict[str, Any]) -> list[Any]:
        import torch

        t = {key: tensor.float() for key, tensor in t.items()}
        if name in ("add", "sub", "mul"):
            return [getattr(torch, name)(t["a"], t["b"])]
        over_rows = not name.startswith("batchnorm")
        dims = (1, 2, 3) if over_rows else (0, 2, 3)
        x = t["input"]
        if not name.endswith("_backward"):
            rms = name == "rmsnorm"
            mean = 0 * x.mean(dims, keepdim=True) if rms else x.mean(dims, keepdim=True)
            inverse = ((x - mean).square().mean(dims, keepdim=True) + t["epsilon"]).rsqrt()
            y = (x - mean) * inverse * t["scale"] + t.get("bias", 0)
            if over_rows:
                return [y, inverse] if rms else [y, mean, inverse]
            count, keep = x.numel() // x.shape[1], t["momentum"]
            unbiased = x.var(dims, keepdim=True, correction=0) * count / (count - 1)
            return [y, mean, inverse, t["in_running_mean"] * (1 - keep) + mean * keep,
                    t["in_running_var"] * (1 - keep) + unbiased * keep]
        normal = (x - t.get("mean", 0)) * t["inv_variance"]
        g = t["grad"] * t["scale"]
        of_mean = 0 if name == "rmsnorm_backward" else g.mean(dims, keepdim=True)
        dx = t["inv_variance"] * (g - of_mean - normal * (g * normal).mean(dims, keepdim=True))
        others = (0, 2, 3)
        return [dx, (t["grad"] * normal).sum(others, keepdim=True), t["grad"].sum(others, keepdim=True)]


class Contenders(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.contenders = contenders_or_skip()

    def test_cudnn_is_given_what_its_graphs_take(self) -> None:
        """With a stand-in that computes what cuDNN says it does: shapes, names and places of the results."""
        import torch

        fake = mock.MagicMock(pygraph=FakeGraph)
        stream = mock.patch.object(torch.cuda, "current_stream", return_value=SimpleNamespace(cuda_stream=0))
        cells = [Cell(operation, "fp32", 6, 16) for operation in TENSORS if not operation.startswith("batchnorm")]
        cells += [Cell(operation, "fp32", 6, 16, *image) for operation in TENSORS if operation.startswith("batchnorm")
                  for image in ((), (12, False), (12, True))]
        with mock.patch.dict(sys.modules, cudnn=fake), stream:
            sys.modules.pop("cudnn_norms", None)
            self.contenders._imported.cache_clear()
            for cell in cells:
                found = compare.measure(cell, ["ours", "cudnn"], 3, FakeGpu())
                checks = {check["variant"]: check["verdict"] for check in found["checks"]}
                has_none = cell.operation in ("add_layernorm_backward", "add_rmsnorm_backward")
                self.assertEqual(checks, {"ours": "passed"} | ({} if has_none else {"cudnn": "passed"}), found)
            self.contenders._imported.cache_clear()
            sys.modules.pop("cudnn_norms", None)

    def test_images_of_both_layouts(self) -> None:
        for operation in ("batchnorm_train", "batchnorm_inference", "batchnorm_backward"):
            for first in (False, True):
                cell = Cell(operation, "bf16", 4, 16, 12, first)
                problem = compare.problem_of(cell, "cpu")
                self.assertEqual(problem.x.is_contiguous(), first)
                self.assertEqual(problem.x.shape, (4, 16, 3, 4))
                found = compare.measure(cell, ["ours", "torch"], 3, FakeGpu())
                self.assertEqual([check["verdict"] for check in found["checks"]], ["passed", "passed"], found)

    def test_what_is_written_over_is_checked_first(self) -> None:
        """FlashInfer leaves the sum and its norm where x and the residual were."""
        import torch.nn.functional as F

        def in_place(x: Any, residual: Any, gamma: Any, eps: float) -> None:
            residual += x
            x.copy_(F.rms_norm(residual, (x.shape[1],), gamma, eps))

        cell = Cell("add_rmsnorm_forward", "fp32", 8, 64)
        with mock.patch.object(self.contenders, "_imported", return_value=SimpleNamespace(fused_add_rmsnorm=in_place)):
            found = compare.measure(cell, ["ours", "torch", "flashinfer"], 3, FakeGpu())
        self.assertEqual({check["variant"]: check["verdict"] for check in found["checks"]},
                         {"ours": "passed", "torch": "passed", "flashinfer": "passed"})
        self.assertGreater(self.contenders.FRESH_CALLS, compare.FIRST_CALLS)

    def test_each_set_of_tensors_has_its_own_calls(self) -> None:
        import torch.nn.functional as F

        seen: list[int] = []

        def noted(p: Any) -> Any:
            seen.append(p.x.data_ptr())
            return F.layer_norm(p.x, (p.cols,), p.gamma, p.beta, self.contenders.EPS)

        cell = Cell("layernorm_forward", "fp32", 4, 64)
        with mock.patch.dict(self.contenders.CONTENDERS, liger=noted):
            found = compare.measure(cell, ["ours", "liger"], 6, FakeGpu(), 3, ("cold",))
        self.assertEqual(len(set(seen)), 3)
        self.assertEqual(seen[2:8], [seen[0], *seen[3:5], seen[0], *seen[3:5]])
        self.assertEqual({entry["name"].rpartition("/")[2] for entry in found["benchmarks"]}, {"cold"})
        for mode in ("warm", "graph", "python"):  # what is in the cache is of the call's own tensors there
            seen.clear()
            with mock.patch.dict(self.contenders.CONTENDERS, liger=noted):
                compare.measure(cell, ["ours", "liger"], 6, FakeGpu(), 3, (mode,))
            self.assertEqual(len(set(seen)), 1, mode)
        self.assertEqual({entry["variant"] for entry in found["first_calls"]}, {"ours", "liger"})
        self.assertTrue(all(entry["seconds"] > 0 for entry in found["first_calls"]))

    def test_ours_and_pytorch_agree_with_the_reference(self) -> None:
        for operation in TENSORS:
            for dtype in ("fp32", "bf16"):
                cell = Cell(operation, dtype, 32, 96)
                gpu = FakeGpu()
                found = compare.measure(cell, ["ours", "torch", "apex"], 3, gpu)
                self.assertEqual(
                    gpu.ahead, compare.Gpu.AHEAD_OF_BACKWARD if operation.endswith("backward") else compare.Gpu.AHEAD
                )
                verdicts = {check["variant"]: check["verdict"] for check in found["checks"]}
                self.assertEqual(verdicts, {"ours": "passed", "torch": "passed"}, f"{cell} {found['checks']}")
                self.assertEqual([entry["variant"] for entry in found["absent"]], ["apex"])
                names = {entry["name"] for entry in found["benchmarks"]}
                self.assertEqual(
                    names, {f"compare/{v}/{cell.name}/{m}" for v in ("ours", "torch", "copy") for m in MODES}
                )
                self.assertEqual({v.outcome for v in rivals.verdicts(found)}, {"won"})

    def test_running_statistics_are_each_contenders_own(self) -> None:
        """PyTorch's graph saves them, and cannot be differentiated again after another has written them."""
        found = compare.measure(
            Cell("batchnorm_backward", "fp32", 32, 96), ["ours", "torch", "torch.compile"], 3, FakeGpu()
        )
        self.assertEqual(
            {c["variant"]: c["verdict"] for c in found["checks"]},
            dict.fromkeys(("ours", "torch", "torch.compile"), "passed"),
        )
        timed = {entry["name"].split("/")[1] for entry in found["benchmarks"]}
        self.assertEqual(timed, {"ours", "torch", "torch.compile", "copy"})

    def test_running_statistics_are_checked(self) -> None:
        import torch.nn.functional as F

        def forgets_them(p: Any) -> Any:
            return F.batch_norm(p.x, None, None, p.gamma, p.beta, True, 0.0, self.contenders.EPS)

        with mock.patch.dict(self.contenders.CONTENDERS, apex=forgets_them):
            found = compare.measure(Cell("batchnorm_train", "fp32", 32, 96), ["ours", "torch", "apex"], 3, FakeGpu())
        self.assertEqual(
            {c["variant"]: c["verdict"] for c in found["checks"]},
            {"ours": "passed", "torch": "passed", "apex": "failed"},
        )

    def test_the_sum_may_be_normalized_before_it_is_rounded(self) -> None:
        """As flash-attention does; Inductor normalizes what is stored, with the statistics of what was rounded."""
        import torch
        import torch.nn.functional as F

        def unrounded(p: Any) -> Any:
            h = p.x.double() + p.residual.double()
            y = F.layer_norm(h, (p.cols,), p.gamma.double(), p.beta.double(), self.contenders.EPS)
            return y.to(p.x.dtype), h.to(p.x.dtype)

        def mixed(p: Any) -> Any:
            h = p.x.double() + p.residual.double()
            variance, mean = torch.var_mean(h, dim=1, correction=0, keepdim=True)
            stored = h.to(p.x.dtype)
            y = (stored.double() - mean) * (variance + self.contenders.EPS).rsqrt() * p.gamma.double() + p.beta.double()
            return y.to(p.x.dtype), stored

        def wrong(p: Any) -> Any:
            y, h = unrounded(p)
            return y * 1.05, h

        with mock.patch.dict(self.contenders.CONTENDERS, {"liger": unrounded, "quack": mixed, "apex": wrong}):
            found = compare.measure(
                Cell("add_layernorm_forward", "bf16", 256, 512), ["ours", "liger", "quack", "apex"], 3, FakeGpu()
            )
        self.assertEqual(
            {c["variant"]: c["verdict"] for c in found["checks"]},
            {"ours": "passed", "liger": "passed", "quack": "passed", "apex": "failed"},
        )

    def test_the_autotuner_tries_no_kernel_that_cannot_win(self) -> None:
        configs = [SimpleNamespace(num_warps=warps) for warps in (1, 2, 4, 8, 16, 32)]
        for cols, fewest in ((50, 1), (2048, 1), (4097, 4), (12289, 8), (262144, 32)):
            left = self.contenders._with_warps_enough(configs, {"N": cols}, BLOCK_N=cols)
            self.assertEqual(
                [config.num_warps for config in left], [w for w in (1, 2, 4, 8, 16, 32) if w >= fewest], cols
            )

    def test_what_is_raised_ends_the_cell_alone(self) -> None:
        import torch.nn.functional as F

        calls: list[int] = []

        def tires(p: Any) -> Any:
            calls.append(1)
            if len(calls) > compare.FIRST_CALLS:
                raise ValueError("no more")
            return F.layer_norm(p.x, (p.cols,), p.gamma, p.beta, self.contenders.EPS)

        cell = Cell("layernorm_forward", "fp32", 4, 64)
        for name in ("liger", "ours"):
            calls.clear()
            with (
                mock.patch.dict(self.contenders.CONTENDERS, {name: tires}),
                contextlib.redirect_stderr(io.StringIO()) as printed,
            ):
                found = compare.measure(cell, sorted({"ours", name}), 3, FakeGpu())
            self.assertEqual(found["absent"], [{"variant": "all", "cell": cell.name, "reason": "ValueError: no more"}])
            self.assertIn("Traceback", printed.getvalue())
            self.assertEqual(found["benchmarks"], [])

    def test_the_autotuner_gives_a_backward_pass_more_threads(self) -> None:
        configs = [SimpleNamespace(num_warps=warps) for warps in (1, 2, 4, 8, 16, 32)]
        for cols, fewest in ((50, 1), (1024, 1), (2048, 2), (4097, 8), (12289, 16), (262144, 32)):
            left = self.contenders._with_warps_enough(configs, {"N": cols, "DY": None}, BLOCK_N=cols)
            self.assertEqual(
                [config.num_warps for config in left], [w for w in (1, 2, 4, 8, 16, 32) if w >= fewest], cols
            )

    def test_a_library_is_imported_once(self) -> None:
        with mock.patch("importlib.import_module", return_value=SimpleNamespace()) as imports:
            self.contenders._imported.cache_clear()
            first, second = (self.contenders._imported("some.package") for _ in range(2))
            self.contenders._imported.cache_clear()
        self.assertIs(first, second)
        imports.assert_called_once()

    def test_a_module_is_made_before_what_is_timed(self) -> None:
        import torch

        made: list[int] = []

        def kind(cols: int, eps: float, device: Any, dtype: Any) -> Any:
            made.append(cols)
            return torch.nn.LayerNorm(cols, eps, device=device, dtype=dtype)

        problem = self.contenders.make_problem("layernorm_forward", torch.float32, 4, 64, "cpu")
        with mock.patch.object(self.contenders, "_imported", return_value=SimpleNamespace(LayerNorm=kind)):
            call, _ = self.contenders.prepare("transformer-engine", problem)
            outputs = [call() for _ in range(3)]
        self.assertEqual(made, [64])
        torch.testing.assert_close(outputs[2], self.contenders.pytorch(problem))

    def test_strict_ends_where_a_part_is_missing(self) -> None:
        with mock.patch.object(
            self.contenders, "missing", return_value=["quack cannot be imported: ImportError: none"]
        ):
            with self.assertRaisesRegex(results.ReportError, "--strict.*C\\+\\+ part.*; quack cannot"):
                compare.tell_missing(False, True)
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                compare.tell_missing(True, False)
        self.assertEqual(printed.getvalue(), "quack cannot be imported: ImportError: none\n")
        with mock.patch.object(self.contenders, "missing", return_value=[]):
            compare.tell_missing(True, True)

    def test_names_what_is_missing(self) -> None:
        def absent(name: str) -> Any:
            raise self.contenders.Unavailable(f"{name} cannot be imported: ModuleNotFoundError: none")

        with mock.patch.object(self.contenders, "_imported", absent):
            self.assertEqual(
                [reason.split()[0] for reason in self.contenders.missing()], list(self.contenders.EXPECTED)
            )

    def test_what_was_compiled_ahead_shows_no_first_calls(self) -> None:
        cells = [Cell("rmsnorm_forward", "fp32", rows, 64) for rows in (2, 4)]
        context = {"gpu": "x", "gpu_short": "x", "library": "a", "software": {}, "contenders": ["ours", "torch"]}
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(io.StringIO()),
            mock.patch.multiple(
                compare, ready=lambda strict: (Path("library"), None), context_of=lambda names, library: dict(context),
                Gpu=FakeGpu, grid=lambda full: cells,
            ),
            mock.patch.object(self.contenders, "NAMES", ("ours", "torch")),
            mock.patch.object(self.contenders, "KEPT_ON_DISK", ("torch",)),
        ):
            arguments = ["--work", f"{folder}/work", "--output", f"{folder}/out.json"]
            self.assertEqual(compare.main([*arguments, "--ahead", "1/1"]), 0)
            self.assertFalse(Path(f"{folder}/out.json").exists())
            self.assertEqual(compare.main(arguments), 0)
            found = json.loads(Path(f"{folder}/out.json").read_text(encoding="utf-8"))
        self.assertEqual(
            {(entry["variant"], entry["cell"]) for entry in found["first_calls"]},
            {("ours", cells[0].name), ("torch", cells[0].name), ("ours", cells[1].name)},
        )
        self.assertEqual({check["cell"] for check in found["checks"]}, {cell.name for cell in cells})

    def test_a_whole_call(self) -> None:
        """The file holds what earlier calls measured, and the exit code says what went wrong."""
        cells = [Cell(operation, "fp32", 4, 64) for operation in ("layernorm_forward", "rmsnorm_forward")]
        context = {
            "gpu": "NVIDIA H200", "gpu_short": "h200", "library": "a", "software": {}, "contenders": ["ours", "torch"],
        }

        def call(*arguments: str) -> tuple[int, dict[str, Any]]:
            output = Path(folder) / "out.json"
            code = compare.main(["--work", f"{folder}/work", "--output", str(output), *arguments])
            return code, json.loads(output.read_text(encoding="utf-8"))

        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()) as errors,
            mock.patch.multiple(
                compare, ready=lambda strict: (Path("library"), None), context_of=lambda names, library: dict(context),
                Gpu=FakeGpu, grid=lambda full: cells,
            ),
            mock.patch.object(self.contenders, "NAMES", ("ours", "torch")),
        ):
            code, found = call("--operation", "layernorm_forward")
            self.assertEqual((code, found["context"]["cells"], found["context"]["cells_of_grid"]), (0, 1, 2))
            code, found = call("--operation", "rmsnorm_forward")
            self.assertEqual((code, found["context"]["cells"]), (0, 2))
            self.assertEqual({check["cell"] for check in found["checks"]}, {cell.name for cell in cells})
            with mock.patch.object(FakeGpu, "usable", lambda self: False):
                self.assertEqual(call()[0], compare.GPU_LOST)
            with mock.patch.dict(self.contenders.CONTENDERS, ours=lambda problem: problem.x):
                cells.append(Cell("layernorm_forward", "bf16", 4, 64))
                self.assertEqual(call()[0], 1)
        self.assertIn("our own result is off at layernorm_forward/bf16/4x64", errors.getvalue())

    def test_a_wrong_contender_is_not_timed(self) -> None:
        import torch

        with mock.patch.dict(
            self.contenders.CONTENDERS, liger=lambda problem: torch.full_like(problem.x, float("nan"))
        ):
            found = compare.measure(Cell("layernorm_forward", "fp32", 4, 64), ["ours", "liger"], 3, FakeGpu())
        self.assertEqual(
            {c["variant"]: (c["verdict"], c["largest_error"]) for c in found["checks"]}["liger"], ("failed", None)
        )
        self.assertFalse(any("/liger/" in entry["name"] for entry in found["benchmarks"]))


if __name__ == "__main__":
    own = SOURCE / ".venv" / "bin" / "python"  # which has what draws the charts
    if (
        own.exists()
        and Path(sys.prefix).resolve() != (SOURCE / ".venv").resolve()
        and importlib.util.find_spec("torch") is None
    ):
        os.execv(own, [str(own), *sys.argv])
    unittest.main()
