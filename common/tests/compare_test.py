#!/usr/bin/env python3
"""Tests of common/report/compare.py: the grid, the turns, what is kept, who is ahead, and the tables; without a GPU.

With PyTorch and a CPU build of the library (NORMWORKLOG_LIBRARY) the contenders themselves are run on the CPU as well.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable
from unittest import mock

SOURCE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "common/report"), str(SOURCE / "common/report/peers"), str(SOURCE / "common/library/python")]
sys.dont_write_bytecode = True

import compare
import results
import source_hash
import tables
from compare import Cell

CELL = Cell("layernorm_forward", "bf16", 1024, 4096)


def timing(variant: str, cell: Cell, mode: str, seconds: float) -> dict[str, Any]:
    return {"name": f"compare/{variant}/{cell.name}/{mode}", "median_seconds": seconds, "share_of_copy": 0.9}


def document(entries: list[dict[str, Any]], checks: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"context": {"gpu": "NVIDIA H200", "date": "2026-01-01", "source_hashes": {}}, "benchmarks": entries, "checks": checks or [], "absent": []}


class Grid(unittest.TestCase):
    def test_spans_what_it_promises(self) -> None:
        cells = compare.grid(True)
        self.assertEqual(len(cells), len(set(cells)))
        self.assertEqual({cell.operation for cell in cells}, set(compare.TENSORS))
        self.assertEqual({cell.dtype for cell in cells}, {"fp32", "fp16", "bf16"})
        rows = [cell for cell in cells if cell.operation == "layernorm_backward"]
        self.assertEqual((min(c.cols for c in rows), max(c.cols for c in rows)), (50, 262144))
        self.assertEqual((min(c.rows for c in rows), max(c.rows for c in rows)), (1, 2**20))
        self.assertTrue(any(c.cols % 2 for c in rows))
        self.assertTrue(all(cell.tensor_bytes <= 2**30 for cell in cells))

    def test_small_tensors_are_also_timed_from_graphs(self) -> None:
        self.assertIn("graph", Cell("layernorm_forward", "fp32", 1024, 1024).modes)
        self.assertNotIn("graph", Cell("layernorm_forward", "fp32", 65536, 4096).modes)
        self.assertTrue(all(cell.tensor_bytes <= 2**26 for cell in compare.grid(False)))


    def test_can_be_narrowed(self) -> None:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            self.assertEqual(compare.main(["--full", "--list", "--operation", "rmsnorm_backward", "--dtype", "fp16"]), 0)
        lines = printed.getvalue().splitlines()
        self.assertGreater(len(lines), len(compare.COLS))
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


class Ahead(unittest.TestCase):
    def test_the_fastest_other_counts(self) -> None:
        found = compare.verdicts(document([timing("ours", CELL, "cold", 10e-6), timing("torch", CELL, "cold", 30e-6), timing("liger", CELL, "cold", 20e-6),
                                           timing("copy", CELL, "cold", 1e-6)]))
        self.assertEqual([(v.rival, v.ahead, v.outcome) for v in found], [("liger", 2.0, "won")])

    def test_level_and_lost(self) -> None:
        for seconds, outcome in ((10.1e-6, "level"), (9.9e-6, "level"), (9e-6, "lost"), (11e-6, "won")):
            found = compare.verdicts(document([timing("ours", CELL, "warm", 10e-6), timing("torch", CELL, "warm", seconds)]))
            self.assertEqual(found[0].outcome, outcome)

    def test_a_wrong_result_wins_nothing(self) -> None:
        entries = [timing("ours", CELL, "cold", 10e-6), timing("torch", CELL, "cold", 30e-6), timing("apex", CELL, "cold", 1e-6)]
        found = compare.verdicts(document(entries, [{"variant": "apex", "cell": CELL.name, "verdict": "failed"}]))
        self.assertEqual(found[0].rival, "torch")

    def test_no_rival_no_verdict(self) -> None:
        self.assertEqual(compare.verdicts(document([timing("ours", CELL, "cold", 1e-6), timing("copy", CELL, "cold", 1e-6)])), [])
        self.assertEqual(compare.verdicts(document([timing("torch", CELL, "cold", 1e-6)])), [])

    def test_the_report_names_the_lost_cells(self) -> None:
        lines = list(compare.report(compare.verdicts(document([timing("ours", CELL, "cold", 10e-6), timing("torch", CELL, "cold", 5e-6)]))))
        self.assertIn("lost   1", lines[0])
        self.assertEqual(lines[1], "lost: layernorm_forward/bf16/1024x4096 cold: 10.00 us, torch 5.00 us")


class Kept(unittest.TestCase):
    def test_goes_on_where_it_stopped(self) -> None:
        cells = [Cell("layernorm_forward", "fp32", rows, 64) for rows in (1, 2, 3, 4)]
        clock, worked = [0.0], []

        def work(cell: Cell) -> dict[str, Any]:
            worked.append(cell.rows)
            clock[0] += 60
            return {"benchmarks": [timing("ours", cell, "cold", 1e-6)], "checks": [], "absent": [{"variant": "apex", "cell": cell.name, "reason": "not here"}]}

        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            parts, left_out = compare.run_cells(cells, Path(folder), work, 1.5, lambda: clock[0])
            self.assertEqual((worked, len(parts), left_out), ([1, 2], 2, True))
            parts, left_out = compare.run_cells(cells, Path(folder), work, None, lambda: clock[0])
            self.assertEqual((worked, len(parts), left_out), ([1, 2, 3, 4], 4, False))
        joined = compare.joined({"gpu": "x"}, parts)
        self.assertEqual(len(joined["benchmarks"]), 4)
        self.assertEqual(joined["absent"], [{"variant": "apex", "reason": "not here", "cells": 4, "first": cells[0].name}])


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
                parts, left_out = compare.run_cells(cells, folder, work, None)
            self.assertEqual((worked, len(parts), left_out), ([2], 1, True))
            parts, left_out = compare.run_cells(cells, folder, work, None)
            self.assertEqual((worked, len(parts), left_out), ([2, 1], 2, False))


class Tables(unittest.TestCase):
    def table(self, content: dict[str, Any] | None, **options: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            if content is not None:
                path = root / "docs" / "compare" / "h200.json"
                path.parent.mkdir(parents=True)
                path.write_text(json.dumps(content), encoding="utf-8")
            return compare.against_peers(tables.Place(results.Repository(root), root / "docs" / "compare.md", options, "h200")).text

    def test_nothing_measured(self) -> None:
        self.assertEqual(self.table(None), "*Nothing was compared on h200 yet.*")

    def test_summary_and_lost(self) -> None:
        wide = Cell("layernorm_forward", "bf16", 64, 65536)
        content = document([timing("ours", CELL, "cold", 10e-6), timing("torch", CELL, "cold", 20e-6), timing("ours", wide, "cold", 10e-6),
                            timing("torch.compile", wide, "cold", 8e-6)])
        self.assertIn("| `layernorm_forward` | cold | 2 | 1 | 0 | 1 | 1.40x | 2.00x | 0.80x | bf16, 64 x 65536 | Inductor |", self.table(content).replace("†", ""))
        lost = self.table(content, show="lost")
        self.assertIn("bf16, 64 x 65536 | cold | 10.0 | 90.0 % | Inductor | 8.00 | 0.80x as fast", lost)
        self.assertNotIn("1024 x 4096", lost)
        with self.assertRaises(results.ReportError):
            self.table(content, show="won")

    def test_no_cell_is_lost(self) -> None:
        content = document([timing("ours", CELL, "cold", 10e-6), timing("torch", CELL, "cold", 20e-6)])
        self.assertIn("*No cell is lost.*", self.table(content, show="lost"))


class Chart(unittest.TestCase):
    def test_draws_a_panel_for_each_operation(self) -> None:
        try:
            import charts
        except SystemExit as error:
            self.skipTest(str(error))
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            self.assertIsNone(charts.rivals_chart(results.Repository(root), "h200"))
            cells = [Cell(operation, "bf16", 64, cols) for operation in ("layernorm_forward", "layernorm_backward") for cols in (256, 4096)]
            content = document([timing(name, cell, "cold", 1e-6) for cell in cells for name in ("ours", "torch.compile", "copy")])
            (root / "docs/compare").mkdir(parents=True)
            (root / "docs/compare/h200.json").write_text(json.dumps(content), encoding="utf-8")
            chart = charts.rivals_chart(results.Repository(root), "h200")
            text = chart.render()
            self.assertEqual(chart.path.name, "compare_h200.svg")
            for word in ("layernorm_forward", "layernorm_backward", "Inductor", "ours"):
                self.assertIn(word, text)
            self.assertNotIn(">copy<", text)


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
                (root / "docs/data/gpt_h200.json").write_text(json.dumps({"context": context | more, "runs": runs}), encoding="utf-8")
                return charts.training_chart(results.Repository(root), "h200").render()

            before_seeds = drawn([3.5, 3.0, 2.5])
            now = drawn([[3.5, 3.0, 2.5], [3.6, 3.1, 2.4]], seeds=2, source_hashes=hashes)
            for text in (before_seeds, now):
                for word in ("a step, ms", "ours", "2 layers of width 32", "loss 3.500 to 2.500"):
                    self.assertIn(word, text)
            self.assertIn("losses of the first of 2 seeds", now)
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


class FakeGpu:
    """The CPU in the place of a GPU, with a clock of its own: `ours` takes 1 us, each other a microsecond more than the last."""

    device = "cpu"

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


class Contenders(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.contenders = contenders_or_skip()

    def test_ours_and_pytorch_agree_with_the_reference(self) -> None:
        for operation in compare.TENSORS:
            for dtype in ("fp32", "bf16"):
                cell = Cell(operation, dtype, 32, 96)
                found = compare.measure(cell, ["ours", "torch", "apex"], 3, FakeGpu())
                verdicts = {check["variant"]: check["verdict"] for check in found["checks"]}
                self.assertEqual(verdicts, {"ours": "passed", "torch": "passed"}, f"{cell} {found['checks']}")
                self.assertEqual([entry["variant"] for entry in found["absent"]], ["apex"])
                names = {entry["name"] for entry in found["benchmarks"]}
                self.assertEqual(names, {f"compare/{v}/{cell.name}/{m}" for v in ("ours", "torch", "copy") for m in compare.MODES})
                self.assertEqual({v.outcome for v in compare.verdicts(found)}, {"won"})

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
            found = compare.measure(Cell("add_layernorm_forward", "bf16", 256, 512), ["ours", "liger", "quack", "apex"], 3, FakeGpu())
        self.assertEqual({c["variant"]: c["verdict"] for c in found["checks"]}, {"ours": "passed", "liger": "passed", "quack": "passed", "apex": "failed"})

    def test_the_autotuner_tries_no_kernel_that_cannot_win(self) -> None:
        configs = [SimpleNamespace(num_warps=warps) for warps in (1, 2, 4, 8, 16, 32)]
        for cols, fewest in ((50, 1), (2048, 1), (4097, 4), (12289, 8), (262144, 32)):
            left = self.contenders._with_warps_enough(configs, {"N": cols}, BLOCK_N=cols)
            self.assertEqual([config.num_warps for config in left], [w for w in (1, 2, 4, 8, 16, 32) if w >= fewest], cols)

    def test_a_wrong_contender_is_not_timed(self) -> None:
        import torch

        with mock.patch.dict(self.contenders.CONTENDERS, liger=lambda problem: torch.full_like(problem.x, float("nan"))):
            found = compare.measure(Cell("layernorm_forward", "fp32", 4, 64), ["ours", "liger"], 3, FakeGpu())
        self.assertEqual({c["variant"]: (c["verdict"], c["largest_error"]) for c in found["checks"]}["liger"], ("failed", None))
        self.assertFalse(any("/liger/" in entry["name"] for entry in found["benchmarks"]))


if __name__ == "__main__":
    own = SOURCE / ".venv" / "bin" / "python"  # which has what draws the charts
    if own.exists() and Path(sys.prefix).resolve() != (SOURCE / ".venv").resolve() and importlib.util.find_spec("torch") is None:
        os.execv(own, [str(own), *sys.argv])
    unittest.main()
