#!/usr/bin/env python3
"""Tests of common/report/: markers, tables, figures, links, commands, the source hash, charts and drawings.

Each test makes a small repository of its own with invented results, and runs the scripts as a reader runs them; but
ready.py spares it most of the waiting for Python to start.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from graphlib import CycleError, TopologicalSorter
from io import StringIO
from itertools import count
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

SOURCE = Path(__file__).resolve().parents[2]
REPORT = SOURCE / "common" / "report"
sys.path.insert(0, str(REPORT))
sys.dont_write_bytecode = True

import bench
import counters
import drawings
import figures
import grid
import lessons
import machine_drawings
import markdown
import offset_error
import pages
import place
import prose
import redraw
import results
import slides
import source_hash
import sync
import tables
from ready import Ready
from text import significant

SCRIPTS = Ready(sys.executable, REPORT)

KERNELS_01 = """\
// One thread per row.
#pragma once
#include "common/device/arguments.h"

namespace worklog::naive {
  // [snippet: kernel]
  __global__ void normalize(float* x) {
    x[0] = 1.0f;  // a comment
    // [snippet: inner]
    x[1] = 1'000.0f;
    // [/snippet]
  }
  // [/snippet]
}
"""
KERNELS_02 = '#pragma once\n#include "01_naive/kernels.cuh"\n__global__ void tree(float* x);\n'

README_01 = """\
# 01 · One thread per row

<!-- sync:nav -->
<!-- /sync -->

Text before the code, with a link to [the kernels](kernels.cuh) and [a section](#what-we-measured).

<!-- sync:code file=kernels.cuh snippet=kernel -->
<!-- /sync -->

## What we measured

It takes <!-- sync:figure key=01_naive/plain/layernorm_forward/fp32/1024x1024/cold unit=ms --><!-- /sync --> here.

<!-- sync:table ladder dtype=fp32 shape=1024x1024 -->
<!-- /sync -->

```sh
./worklog run 01
```
"""
WORKLOG = (
    "#!/bin/sh\ncat <<'EOT'\nusage: ./worklog VERB\n\n  run [NN]   run it\n             wrapped text\n  sync       "
    "fill\nEOT\n"
)


def benchmark(stage: str, variant: str, microseconds: float, *, dtype: str = "fp32", shape: str = "1024x1024",
              mode: str = "cold", operation: str = "layernorm_forward", share: float = 0.5) -> dict:
    rows, cols = (int(n) for n in shape.split("x")[:2])
    size = 2 * rows * cols * (4 if dtype == "fp32" else 2)
    name = f"{stage}/{variant}/{operation}/{dtype}/{shape}/{mode}"
    return {
        "name": name + "/manual_time", "run_name": name, "run_type": "iteration", "real_time": microseconds,
        "time_unit": "us", "bytes": size, "bytes_per_second": size / (microseconds * 1e-6), "share_of_copy": share,
        "median_seconds": microseconds * 1e-6, "spread": 0.0123, "samples": 100, "max_ulp_error": 1.5,
    }


def sampled(
    stage: str, variant: str, microseconds: float, *, mode: str = "cold", repetitions: int = 40, stream: float = 5.0
) -> tuple[list[dict], dict]:
    """A benchmark as programs write it since a repetition is a sample, and the stream beside it."""
    name = f"{stage}/{variant}/layernorm_forward/fp32/1024x1024/{mode}"
    run_name = f"{name}/iterations:1/manual_time"
    of = {"mean": 1.02, "median": 1.0, "stddev": 0.05, "cv": 0.05 / microseconds, "p10": 0.96, "p90": 1.06, "min": 0.95}
    entries = [
        {
            "name": f"{run_name}_{statistic}",
            "family_index": 0,
            "per_family_instance_index": 0,
            "run_name": run_name,
            "run_type": "aggregate",
            "repetitions": repetitions,
            "threads": 1,
            "aggregate_name": statistic,
            "aggregate_unit": "percentage" if statistic == "cv" else "time",
            "iterations": repetitions,
            "real_time": microseconds * ratio,
            "cpu_time": 3.0 * ratio,
            "time_unit": "us",
            "bytes": 8404992,
            "bytes_per_second": 8404992 / (microseconds * 1e-6),
            "label": "stream 1r1w, input normal, blocks x threads 1024 x 256",
        }
        for statistic, ratio in of.items()
    ]
    beside = {
        "timing": name,
        "stream": "1r1w",
        "mode": mode,
        "bytes": 8404992,
        "way": "kernel",
        "median_seconds": stream * 1e-6,
        "spread": 0.02,
        "drift": 0.01,
        "bytes_per_second": 8404992 / (stream * 1e-6),
    }
    return entries, beside


def check(stage: str, variant: str, name: str, ulp: float | None, *, right: bool = True, expected: str = "",
          dtype: str = "fp32") -> dict:
    verdict = "passed" if right else "expected failure" if expected else "failed"
    return {
        "stage": stage, "variant": variant, "operation": "layernorm_forward", "dtype": dtype, "rows": 1024,
        "cols": 1024, "input": name, "verdict": verdict, "max_ulp_error": ulp, "max_abs_error": 0.25,
        "differing": 0 if right else 979, "compared": 1048576, "expectation": expected,
    }


class Playground(unittest.TestCase):
    """A repository in a temporary folder: two stages with results, a third without."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()
        self.write("01_naive/kernels.cuh", KERNELS_01)
        self.write("02_tree/kernels.cuh", KERNELS_02)
        self.write("03_later/kernels.cuh", "// nothing measured yet\n")
        self.write("01_naive/README.md", README_01)
        self.write("02_tree/README.md", "# 02 · A tree\n\n<!-- sync:nav -->\n<!-- /sync -->\n")
        self.write("README.md", "# The worklog\n")
        self.write("worklog", WORKLOG)
        (self.root / "worklog").chmod(0o755)
        self.results("01_naive", [
            benchmark("01_naive", "plain", 2388.6, share=0.0101),
            benchmark("01_naive", "plain", 2000.0, mode="warm", share=0.005),
            benchmark("01_naive", "small", 1000.0, share=0.02),
            benchmark("01_naive", "small", 9000.0, shape="1024x4096", share=0.03),
            {"name": "BigO", "run_type": "aggregate"},
        ])
        self.results("02_tree", [
            benchmark("02_tree", "two_pass", 81.68, share=0.25),
            benchmark("02_tree", "one_pass", 70.0, share=0.3),
        ],
        [
            check("02_tree", "one_pass", "normal", 1.25),
            check("02_tree", "one_pass", "arange", 4.1e9, right=False, expected="fails on arange"),
            check("02_tree", "two_pass", "normal", 0.75),
            check("02_tree", "two_pass", "arange", None, right=False),
        ])

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def read(self, name: str) -> str:
        return (self.root / name).read_text(encoding="utf-8")

    def edit(self, name: str, old: str, new: str) -> None:
        text = self.read(name)
        self.assertIn(old, text)
        self.write(name, text.replace(old, new, 1))

    def results(
        self, stage: str, benchmarks: list[dict], checks: list[dict] | None = None, gpu: str = "h200"
    ) -> None:
        context = {"gpu": gpu, "device": "Invented GPU", "commit": "0123456789abcdef", "date": "2026-11-21T01:02:03",
                   "source_hash": source_hash.source_hash(stage, self.root), "caches": []}
        document = {"context": context, "benchmarks": benchmarks, "checks": checks or []}
        self.write(f"{stage}/results/{gpu}.json", json.dumps(document))

    def script(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return SCRIPTS.call(name, "--root", self.root, *arguments)

    def sync(self, *arguments: str, expect: int = 0) -> str:
        done = self.script("sync.py", *arguments)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stderr

    def filled(self, marker: str, name: str = "docs/page.md") -> str:
        """What sync puts between `marker` and its end."""
        self.write(
            name,
            f"# Page\n\nA word {marker}<!-- /sync -->\n"
            if "sync:figure" in marker
            else f"# Page\n\n{marker}\n<!-- /sync -->\n",
        )
        self.sync(str(self.root / name))
        match = re.search(r"-->(.*)<!-- /sync -->", self.read(name), re.DOTALL)
        assert match
        return match.group(1).strip()

    def refused(self, marker: str, name: str = "docs/page.md") -> str:
        """The message with which sync refuses `marker`."""
        self.write(name, f"# Page\n\nA word {marker}<!-- /sync -->\n")
        message = self.sync(str(self.root / name), expect=1)
        self.assertIn(f"{name}:3: ", message)
        return message


class Sync(Playground):
    def test_fills_and_is_then_content(self) -> None:
        self.sync("--check", expect=1)
        self.sync()
        text = self.read("01_naive/README.md")
        self.assertIn(
            "```cuda\n__global__ void normalize(float* x) {\n  x[0] = 1.0f;  // a comment\n  x[1] = 1'000.0f;\n}\n```",
            text,
        )
        self.assertIn("-->2.39 ms<!-- /sync -->", text)
        self.assertIn("| **`small`** | **1.00** |", text)
        self.assertIn("[02 · A tree](../02_tree/README.md) →", text)
        self.sync("--check")

    def test_filling_twice_changes_nothing(self) -> None:
        self.sync()
        once = self.read("01_naive/README.md")
        self.sync()
        self.assertEqual(self.read("01_naive/README.md"), once)

    def test_emptied_regions_come_back_the_same(self) -> None:
        self.sync()
        once = self.read("01_naive/README.md")
        emptied = re.sub(r"(<!-- sync:.*?-->).*?(<!-- /sync -->)", r"\1\2", once, flags=re.DOTALL)
        self.assertNotIn("2.39", emptied)
        self.write("01_naive/README.md", emptied)
        self.sync()
        self.assertEqual(self.read("01_naive/README.md"), once)

    def test_folds_long_code(self) -> None:
        self.edit("01_naive/kernels.cuh", "    x[0] = 1.0f;  // a comment\n", "    x[0] = 1.0f;\n" * 97)
        self.sync()
        self.assertNotIn("<details>", self.read("01_naive/README.md"))  # 100 lines
        self.edit("01_naive/kernels.cuh", "    x[0] = 1.0f;\n", "    x[0] = 1.0f;\n\n")
        self.sync()
        text = self.read("01_naive/README.md")
        self.assertIn(
            "<details>\n<summary>The code: 101 lines of <code>kernels.cuh</code></summary>\n\n```cuda\n__global__ void",
            text,
        )
        self.assertIn("}\n```\n\n</details>", text)
        self.sync("--check")

    def test_check_writes_nothing(self) -> None:
        before = self.read("01_naive/README.md")
        self.sync("--check", expect=1)
        self.assertEqual(self.read("01_naive/README.md"), before)

    def drift(self, name: str, old: str, new: str, *expected: str) -> None:
        """Syncs, edits, and expects --check to complain with these words, and sync to put it right unless it cannot."""
        self.sync()
        self.edit(name, old, new)
        message = self.sync("--check", expect=1)
        for words in expected:
            self.assertIn(words, message)

    def line(self, name: str, words: str) -> int:
        return self.read(name).split(words)[0].count("\n") + 1

    def test_finds_a_changed_digit_in_prose(self) -> None:
        self.drift(
            "01_naive/README.md", "-->2.39 ms", "-->2.38 ms", "sync:figure key=01_naive/plain",
            "'2.38 ms' where its source gives '2.39 ms'",
        )
        self.assertIn(
            f"01_naive/README.md:{self.line('01_naive/README.md', '2.38 ms')}: ", self.sync("--check", expect=1)
        )

    def test_finds_a_changed_digit_in_a_table(self) -> None:
        self.drift("01_naive/README.md", "| 2.39 |", "| 2.38 |", "sync:table ladder", "2.38", "2.39")

    def test_finds_a_changed_result(self) -> None:
        self.drift("01_naive/results/h200.json", "0.0023886", "0.0024886", "sync:figure", "sync:table")

    def test_finds_an_edited_snippet_in_the_writeup(self) -> None:
        self.drift(
            "01_naive/README.md",
            "x[0] = 1.0f", "x[0] = 2.0f",
            "01_naive/README.md:11: sync:code file=kernels.cuh snippet=kernel",
        )

    def test_finds_an_edited_kernel(self) -> None:
        self.drift(
            "01_naive/kernels.cuh", "x[0] = 1.0f", "x[0] = 2.0f", "sync:code file=kernels.cuh snippet=kernel", "2.0f"
        )

    def test_finds_a_missing_snippet(self) -> None:
        self.drift(
            "01_naive/kernels.cuh",
            "[snippet: kernel]",
            "[snippet: colonel]",
            "has no snippet 'kernel'; it has: colonel, inner",
        )

    def test_finds_a_snippet_left_open(self) -> None:
        self.drift(
            "01_naive/kernels.cuh",
            "  }\n  // [/snippet]\n",
            "  }\n",
            "opens the snippet 'kernel', which has no [/snippet]",
        )

    def test_finds_missing_results(self) -> None:
        self.sync()
        (self.root / "01_naive/results/h200.json").unlink()
        self.assertIn("there is no 01_naive/results/h200.json", self.sync("--check", expect=1))

    def test_finds_a_missing_end(self) -> None:
        self.drift(
            "01_naive/README.md", "ms<!-- /sync -->", "ms", "sync:figure", "no <!-- /sync --> before the next marker"
        )

    def test_finds_a_missing_beginning(self) -> None:
        self.drift(
            "01_naive/README.md", "<!-- sync:code file=kernels.cuh snippet=kernel -->", "", "/sync: closes nothing"
        )

    def test_finds_a_missing_nav(self) -> None:
        self.drift("02_tree/README.md", "<!-- sync:nav -->", "<!-- -->", "02_tree/README.md:1: sync:nav: is missing")

    def test_finds_a_dead_link(self) -> None:
        self.drift(
            "01_naive/README.md",
            "(kernels.cuh)",
            "(colonels.cuh)",
            "01_naive/README.md:9: link colonels.cuh: leads nowhere",
        )

    def test_finds_a_dead_image(self) -> None:
        self.drift(
            "02_tree/README.md",
            "# 02",
            "![chart](charts/none.svg)\n\n# 02",
            "02_tree/README.md:1: link charts/none.svg",
        )
        self.drift("02_tree/README.md", "# 02", '<img src="none.svg">\n\n# 02', "link none.svg: leads nowhere")

    def test_finds_a_dead_heading(self) -> None:
        self.drift(
            "01_naive/README.md", "(#what-we-measured)", "(#what-we-meant)", "names no heading of 01_naive/README.md"
        )

    def test_finds_a_link_out_of_the_repository(self) -> None:
        self.drift("02_tree/README.md", "# 02", "[out](../../etc)\n\n# 02", "leads out of the repository")

    def test_leaves_addresses_and_code_alone(self) -> None:
        self.sync()
        self.edit(
            "02_tree/README.md",
            "# 02",
            "[a](https://example.org/x) `[b](none.md)` $f[i](x)$\n\n```\n[c](none.md)\n```\n\n# 02",
        )
        self.sync("--check")

    def test_finds_an_unknown_verb(self) -> None:
        self.drift(
            "01_naive/README.md",
            "./worklog run 01",
            "./worklog ruin 01",
            "./worklog ruin: there is no verb 'ruin'; there are: run, sync",
        )
        message = self.sync("--check", expect=1)
        self.assertIn(f"01_naive/README.md:{self.line('01_naive/README.md', './worklog ruin')}: ", message)

    def test_reads_only_shell_blocks_for_verbs(self) -> None:
        self.sync()
        self.edit("02_tree/README.md", "# 02", "```text\n./worklog ruin\n```\n\n# 02")
        self.sync("--check")

    def test_finds_an_unknown_marker(self) -> None:
        self.drift("02_tree/README.md", "sync:nav", "sync:knave", "there is no such marker")

    def test_ignores_markers_in_code(self) -> None:
        self.sync()
        self.edit("02_tree/README.md", "# 02", "`<!-- sync:what -->`\n\n```html\n<!-- sync:what -->\n```\n\n# 02")
        self.sync("--check")

    def test_refuses_a_figure_that_begins_its_line(self) -> None:
        marker = "<!-- sync:figure key=01_naive/plain/layernorm_forward/fp32/1024x1024/cold unit=ms -->"
        self.write("docs/page.md", f"Words\n{marker}<!-- /sync -->\n- {marker}<!-- /sync -->\n")
        message = self.sync(str(self.root / "docs/page.md"), expect=1)
        self.assertIn("docs/page.md:2: ", message)
        self.assertIn("docs/page.md:3: ", message)
        self.assertIn("put a word before it", message)

    def said_in(self, clock: Callable[[], float]) -> list[str]:
        """What a check says on stderr, by a clock of our own."""
        with (mock.patch.object(sync, "Progress", partial(sync.Progress, clock)), redirect_stderr(StringIO()) as said,
              redirect_stdout(StringIO())):
            sync.main(["--check", "--root", str(self.root)])
        return said.getvalue().splitlines()

    def test_says_what_it_does_once_that_takes_long(self) -> None:
        self.sync()
        self.assertEqual(self.said_in(lambda: 0.0), [])
        seconds = count(start=0.0, step=1.9)
        self.assertEqual(self.said_in(lambda: next(seconds)), [
            f"checking {name} ({number} of 3)"
            for number, name in enumerate(("README.md", "01_naive/README.md", "02_tree/README.md"), 1) if number > 1])

    def test_progress_keeps_quiet_and_does_not_chatter(self) -> None:
        now = 0.0
        with redirect_stderr(StringIO()) as said:
            progress = sync.Progress(lambda: now)
            for now, doing in ((0, "a"), (1.9, "b"), (2, "c"), (2.1, "d"), (2.9, "e"), (3, "f"), (9, "f"), (9.1, "g")):
                progress(doing)
        self.assertEqual(said.getvalue(), "c\nf\ng\n")

    def test_problems_stand_beside_the_progress_as_they_do_without(self) -> None:
        quick = self.said_in(lambda: 0.0)
        seconds = count(start=0.0, step=1.9)
        slow = self.said_in(lambda: next(seconds))
        self.assertGreater(len(quick), 1)
        self.assertGreater(len(slow), len(quick))
        self.assertEqual([line for line in slow if not line.startswith("checking ")], quick)

    def test_wrong_usage_has_exit_code_2(self) -> None:
        for arguments in (["--what"], ["none.md"], ["--strict"], [str(self.root / "worklog")]):
            self.sync(*arguments, expect=2)

    def test_marks_figures_of_an_earlier_kernel(self) -> None:
        self.edit("01_naive/kernels.cuh", "x[0] = 1.0f", "x[0] = 2.0f")
        self.sync()
        text = self.read("01_naive/README.md")
        self.assertIn("-->2.39 ms†<!-- /sync -->", text)
        self.assertIn("| 2.39† |", text)
        self.assertIn("† measured on an earlier version of the kernel", text)
        self.sync("--check")
        message = self.sync("--check", "--strict", expect=1)
        self.assertIn("sync:figure key=01_naive/plain", message)
        self.assertIn("was measured on an earlier version of the kernel", message)

    def test_a_comment_in_the_kernel_makes_nothing_old(self) -> None:
        self.edit("01_naive/kernels.cuh", "// One thread per row.", "// One thread for each row.")
        self.sync()
        self.sync("--check", "--strict")


class Notes(Playground):
    """NN/notes/*.md: pages as the lesson is, but for the links to neighbours."""

    NOTE = (
        "# A tile\n\nOf [the kernels](../kernels.cuh), [the lesson](../README.md#what-we-measured).\n\n"
        "<!-- sync:code file=../kernels.cuh snippet=inner -->\n<!-- /sync -->\n\n"
        "It takes <!-- sync:figure key=01_naive/plain/layernorm_forward/fp32/1024x1024/cold unit=ms --><!-- /sync -->"
        ".\n\n<!-- sync:table ladder dtype=fp32 shape=1024x1024 -->\n<!-- /sync -->\n\n"
        "```sh\n./worklog run 01\n```\n"
    )

    def setUp(self) -> None:
        super().setUp()
        self.write("01_naive/notes/README.md", "# Notes\n\n[Tiles](tiles.md#a-tile), [first](./a%20b.md)\n")
        self.write("01_naive/notes/tiles.md", self.NOTE)
        self.write("01_naive/notes/a b.md", "# Not the first\n")

    def found(self, name: str, old: str, new: str) -> str:
        """What --check says of a note where `old` has become `new` in it, once all was filled and well."""
        self.sync()
        self.sync("--check")
        self.edit(name, old, new)
        return self.sync("--check", expect=1)

    def test_regions_are_filled_and_checked(self) -> None:
        self.sync()
        text = self.read("01_naive/notes/tiles.md")
        self.assertIn("\n```cuda\nx[1] = 1'000.0f;\n```\n", text)
        self.assertIn("-->2.39 ms<!--", text)
        self.assertIn("`small`", text)  # the ladder of the stage in whose folder the notes lie
        self.assertIn("(../results/h200.json)", text)
        message = self.found("01_naive/notes/tiles.md", "2.39 ms", "2.38 ms")
        self.assertIn("01_naive/notes/tiles.md:13: sync:figure", message)
        self.sync()
        self.sync("--check")

    def test_figures_of_an_earlier_kernel_get_their_dagger(self) -> None:
        self.sync()
        self.edit("01_naive/kernels.cuh", "x[0] = 1.0f;", "x[0] = 2.0f;")
        self.sync()
        self.assertIn("2.39 ms†", self.read("01_naive/notes/tiles.md"))
        self.assertIn("01_naive/notes/tiles.md:13: ", self.sync("--check", "--strict", expect=1))

    def test_links_headings_and_commands_are_checked(self) -> None:
        for old, new, words in (
            ("(../kernels.cuh)", "(kernels.cuh)", "tiles.md:3: link kernels.cuh: leads nowhere"),
            ("#what-we-measured", "#what-we-meant", "names no heading of 01_naive/README.md"),
            ("./worklog run 01", "./worklog ruin 01", "./worklog ruin: there is no verb 'ruin'"),
            ("file=../kernels.cuh", "file=kernels.cuh", "there is no kernels.cuh"),
        ):
            with self.subTest(new):
                self.write("01_naive/notes/tiles.md", self.NOTE)
                self.assertIn(words, self.found("01_naive/notes/tiles.md", old, new))

    def test_a_note_that_the_contents_leave_out_is_named(self) -> None:
        message = self.found("01_naive/notes/README.md", "[Tiles](tiles.md#a-tile), ", "tiles.md, ")
        self.assertEqual(message.count("does not link to it"), 1)
        self.assertIn("01_naive/notes/tiles.md:1: contents: README.md beside it does not link to it", message)
        (self.root / "01_naive/notes/README.md").unlink()
        self.assertEqual(self.sync("--check", expect=1).count("does not link to it"), 2)

    def test_their_order_is_that_of_the_contents(self) -> None:
        self.write("01_naive/notes/0.md", "# Listed nowhere\n")
        names = [path.name for path in prose.notes_of(self.root / "01_naive")]
        self.assertEqual(names, ["README.md", "tiles.md", "a b.md", "0.md"])
        self.assertEqual(prose.notes_of(self.root / "02_tree"), [])


class Lessons(Playground):
    """How long a lesson is."""

    def lesson(self, words: int, lines: int, minutes: str = "") -> str:
        """A lesson of so many words and lines of code; the minutes that it states are two of its words."""
        words -= 1 + len(minutes.split())
        code = "".join(f"x[{i}] = 1.0f;\n" for i in range(lines))
        return f"# Lesson\n\n{minutes}\n\n```cuda\n{code}```\n\n{'word ' * words}\n"

    def called(self, *arguments: str, expect: int = 0) -> tuple[str, str]:
        done = self.script("lessons.py", *arguments)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout, done.stderr

    def test_prose_is_what_a_reader_reads(self) -> None:
        for text, words in {
            "# A title\n\nTwo words.\n": 4,
            "- an item\n1. another item\n": 4,
            "It takes <!-- sync:figure key=a/b unit=us -->6.56 µs†<!-- /sync --> here.\n": 5,
            "None <!-- of these\nwords --> but two\n": 3,
            "```sh\n./worklog run 01\n```\n": 0,
            "Call `launch<T>(a, b)` twice\n": 4,
            "| a | b |\n| --- | --- |\n| c | d |\n\nAfter it\n": 2,
            "<!-- sync:table rotation -->\n\n| a |\n| --- |\n\n<sub>Cold. An H200.</sub>\n\n<!-- /sync -->\n": 0,
            "<!-- sync:nav -->\n\n[The ladder](../README.md) · [02](../02/README.md) →\n\n<!-- /sync -->\n": 0,
            "<!-- sync:code file=a snippet=b -->\n\n<details>\n<summary>The code: 120 lines</summary>\n\n"
            "```cuda\nint a;\n```\n\n</details>\n\n<!-- /sync -->\n": 0,
            "<details>\n<summary>Answers</summary>\n\nIt is 4.\n\n</details>\n": 4,
            "![A picture of it](a.svg) and [a link](b.md#c \"d\") to it\n": 5,
            "Of $n$ values: $$\\frac{1}{n} \\sum x$$ = 10\u202f000 x 3.\n": 7,
        }.items():
            with self.subTest(text):
                self.assertEqual(lessons.size_of(text).words, words, lessons.prose_of(text))

    def test_sentences(self) -> None:
        text = (
            "# A heading of six words here\n\n**Bytes.** One, two, 3.5 and `code`. Is it e.g. five words?\n\n"
            "- An item (in brackets.) And lanes 0, 1, 2 ... of a warp\n"
        )
        sentences = lessons.sentences_in(lessons.prose_of(text))
        self.assertEqual([lessons.words_in(sentence) for sentence in sentences], [5, 5, 4, 8])
        self.assertEqual(lessons.size_of(text).sentence, 5.5)
        self.assertEqual(lessons.size_of("# Nothing\n").sentence, 0.0)

    def test_code_terms_and_tables(self) -> None:
        size = lessons.size_of(
            "```cuda\nint a;\n\nint b;\n```\n\nA [warp](../docs/glossary.md#the-machine), another "
            "[Warp](../docs/glossary.md), a [lane](../docs/glossary.md#the-machine), a [barrier](barrier.md).\n\n"
            "| a |\n| --- |\n| b |\n\n| c |\n| --- |\n\n```text\n| no table |\n[x](glossary.md)\n```\n"
        )
        self.assertEqual((size.lines, size.terms, size.tables), (5, 2, 2))

    def test_minutes_are_stated_before_the_first_section(self) -> None:
        for text, minutes in {
            "# A\n\nAbout 25 minutes; then 40 minutes of exercises.\n": 25,
            "# A\n\nA 25-minute lesson.\n": 25,
            "# A\n\n| takes | 12 minutes |\n": 12,
            "# A\n\nMinutes.\n\n## B\n\n25 minutes\n": None,
            "# A\n\n<!-- 25 minutes -->\n\n```text\n25 minutes\n```\n": None,
        }.items():
            with self.subTest(text):
                self.assertEqual(lessons.size_of(text).stated, minutes)

    def test_check_knows_the_limits(self) -> None:
        self.write("02_tree/README.md", self.lesson(200, 0, "1 minute"))
        for words, lines, minutes, problems in (
            (3000, 250, "28 minutes", []),
            (3001, 250, "28 minutes", ["3001 words of prose; at most 3000"]),
            (3000, 251, "28 minutes", ["251 lines of code; at most 250"]),
            (2000, 200, "14 minutes", []),
            (2000, 200, "26 minutes", []),
            (2000, 200, "13 minutes", ["states 13 minutes; by its length 20"]),
            (2000, 200, "27 minutes", ["states 27 minutes; by its length 20"]),
            (4000, 400, "20 minutes", [
                "4000 words of prose; at most 3000", "400 lines of code; at most 250",
                "states 20 minutes; by its length 40"]),
            (2000, 200, "", ["does not state before its first section how long it takes; by its length 20 minutes"]),
        ):
            with self.subTest(words=words, lines=lines, minutes=minutes):
                self.write("01_naive/README.md", self.lesson(words, lines, minutes))
                said, problem = self.called("--check", expect=1 if problems else 0)
                self.assertEqual(problem.split("\n")[1:-1], [f"01_naive/README.md: {text}" for text in problems])
                self.assertRegex(said, rf"01_naive/README.md +{words} +{lines} ")
                self.called()  # without --check they are only said

    def test_notes_have_no_limits(self) -> None:
        self.write("01_naive/README.md", self.lesson(200, 0, "1 minute"))
        self.write("02_tree/README.md", self.lesson(400, 0, "2 minutes"))
        self.write("README.md", "# Front page\n\n| a |\n| --- |\n")
        self.write("02_tree/notes/README.md", self.lesson(9000, 100))
        said, _ = self.called("--check")
        self.assertRegex(said, r"02_tree/notes/README.md +9000 +50\n")
        self.assertIn("README.md: 2 words, 1 tables\n", said)

    def test_sections_stand_in_one_order(self) -> None:
        self.write("02_tree/README.md", self.lesson(200, 0, "1 minute"))
        text = self.lesson(190, 0, "1 minute")
        sections = "\n## What we predict for a row\n\nA\n\n## {}\n\nB\n\n## {}\n\nC\n".format
        names = ("What did not help", "What it fails on")
        self.write("01_naive/README.md", text + sections(*names))
        self.called("--check")
        self.write("01_naive/README.md", text + sections(*reversed(names)))
        self.assertIn(
            "01_naive/README.md: its sections stand in another order than in other lessons: What we predict, "
            "What did not help, What it fails on\n", self.called("--check", expect=1)[1])

    def test_stages_can_be_chosen(self) -> None:
        self.write("01_naive/README.md", self.lesson(200, 0, "1 minute"))
        self.write("02_tree/README.md", self.lesson(5000, 0, "25 minutes"))
        said, _ = self.called("--check", "01")
        self.assertNotIn("02_tree", said)
        self.assertIn("5000 words", self.called("--check", "02", expect=1)[1])
        self.assertIn("there is no lesson '04'", self.called("04", expect=2)[1])

    GLOSSARY = (
        '# Glossary\n\nWords.\n\n<a id="warp"></a><a id="lane"></a>**warp, lane.** 32 threads; one of them.\n\n'
        '<a id="littles-law"></a>**[Little\'s law](primer.md#law).** Bytes under way.\n\n'
        '<a id="graph"></a><a id="cuda-graph"></a>**CUDA graph, replay.** A series of launches.\n\n'
        '<a id="barrier"></a>**barrier.** A wait.\n\n<a id="mean"></a>**mean.** Of a row.\n'
    )

    def test_terms_are_those_with_an_anchor(self) -> None:
        warp = {"warp", "lane"}
        self.assertEqual(lessons.glossary_of(self.GLOSSARY), {
            "warp": warp, "lane": warp, "Little's law": {"littles-law"}, "CUDA graph": {"graph", "cuda-graph"},
            "barrier": {"barrier"}, "mean": {"mean"}})

    def test_terms_are_linked_at_first_use(self) -> None:
        glossary = lessons.glossary_of(self.GLOSSARY)
        link = "[{}](../docs/glossary.md#{})".format
        for text, unlinked in {
            "Each warp waits.\n": ["warp"],
            "Lanes of a WARP, or warpage.\n": ["lane", "warp"],
            f"Each {link('warp', 'warp')} has lanes: a warp waits.\n": ["lane"],
            f"{link('Lanes', 'lane')} of a {link('warp', 'lane')}\n": [],
            f"A warp; later a {link('warp', 'warp')}\n": ["warp"],
            f"{link('warp', 'barrier')}\n": ["warp"],
            f"{link('warp', 'the-machine')}\n": ["warp"],
            f"The {link('whole warp', 'warp')} at its {link('barriers', 'barrier')}\n": [],
            "A [sum over a warp](../01_naive/README.md), the mean\n": [],
            "# A warp\n\n`warp` $lane$ <!-- barrier -->\n\n| warp |\n| --- |\n": [],
            "```text\nlane\n```\n\n![A lane](a.svg)\n": [],
            "From a CUDA graph, by Little's law\n": ["CUDA graph", "Little's law"],
            "<!-- sync:figure key=a/b -->1 warp<!-- /sync -->\n": [],
        }.items():
            with self.subTest(text):
                self.assertEqual(list(lessons.unlinked_terms(text, glossary)), unlinked)
        self.assertEqual(lessons.unlinked_terms("`lane`: a lane\n", glossary), {"lane": 10})

    def test_basic_terms_must_be_linked(self) -> None:
        self.write("docs/glossary.md", self.GLOSSARY)
        self.write("02_tree/README.md", self.lesson(200, 0, "1 minute"))
        text = self.lesson(180, 0, "1 minute")
        self.write("01_naive/README.md", f"{text}\nA warp, replayed from a CUDA graph.\n")
        said, problem = self.called("--check", expect=1)
        self.assertIn("\n01_naive/README.md: warp, CUDA graph\n", said)
        self.assertEqual(problem, "\n01_naive/README.md: does not link to the glossary where it first uses: warp\n")
        linked = "A [warp](../docs/glossary.md#warp), replayed from a CUDA graph."
        self.write("01_naive/README.md", f"{text}\n{linked}\n")
        self.assertIn("\n01_naive/README.md: CUDA graph\n", self.called("--check")[0])
        self.write("02_tree/notes/README.md", "# Notes\n\nA warp.\n")
        problem = "\n02_tree/notes/README.md: does not link to the glossary where it first uses: warp\n"
        self.assertEqual(self.called("--check", expect=1)[1], problem)

    def test_no_lesson_is_no_success(self) -> None:
        for stage in ("01_naive", "02_tree"):
            (self.root / stage / "README.md").unlink()
        self.assertIn("there is no lesson in ", self.called("--check", expect=2)[1])


class Figures(Playground):
    def figure(self, arguments: str) -> str:
        return self.filled(f"<!-- sync:figure {arguments} -->")

    def test_units(self) -> None:
        key = "key=01_naive/plain/layernorm_forward/fp32/1024x1024/cold"
        self.assertEqual(self.figure(f"{key} unit=ms"), "2.39 ms")
        self.assertEqual(self.figure(f"{key} unit=us"), "2390 µs")
        self.assertEqual(self.figure(f"{key} unit=ms digits=5"), "2.3886 ms")
        self.assertEqual(self.figure(f"{key} unit=GB/s"), "3.51 GB/s")
        self.assertEqual(self.figure(f"{key} unit=percent"), "1.0 %")
        self.assertEqual(self.figure(f"{key} unit=percent counter=spread"), "1.2 %")
        self.assertEqual(self.figure(f"{key} unit=us counter=copy_seconds"), "24.1 µs")
        self.assertEqual(self.figure(f"{key} unit=GB/s counter=copy_bytes_per_second"), "348 GB/s")
        self.assertEqual(self.figure(f"{key} unit=MiB counter=bytes"), "8 MiB")
        self.assertEqual(self.figure(f"{key} unit=count counter=samples"), "100")

    def test_figure_of_the_machine(self) -> None:
        path = "01_naive/results/h200.json"
        self.edit(path, '"caches": []', '"caches": [], "empty_launch_us": "2.880", "l2_bytes": "62914560"')
        self.assertEqual(self.figure("key=context/01_naive/empty_launch_us unit=us"), "2.88 µs")
        self.assertEqual(self.figure("key=context/01_naive/l2_bytes unit=MiB"), "60 MiB")
        with self.assertRaisesRegex(results.ReportError, "has no figure 'caches' in its context"):
            figures.lookup(results.Repository(self.root), "context/01_naive/caches", "count", None, "h200")

    def test_ratio_of_two(self) -> None:
        slow, fast = (f"{s}/layernorm_forward/fp32/1024x1024/cold" for s in ("01_naive/plain", "02_tree/best"))
        self.assertEqual(self.figure(f"key={slow} over={fast} unit=x"), "34.1x")
        self.assertEqual(self.figure(f"key={fast} over={slow} unit=percent"), "2.9 %")
        self.assertEqual(self.figure(f"key={slow} over={fast} unit=percent counter=share_of_copy"), "3.4 %")

    def test_check_figure(self) -> None:
        self.assertEqual(
            self.figure("key=02_tree/one_pass/layernorm_forward/fp32/1024x1024/arange unit=ulp"), "4.10 × 10⁹ ulp"
        )
        self.assertEqual(self.figure("key=02_tree/one_pass/layernorm_forward/fp32/1024x1024/arange unit=count"), "979")

    def test_data_figure(self) -> None:
        self.write("docs/data/article.json", '{"figures": {"naive": {"value": 2.3886, "unit": "ms"}}}')
        self.assertEqual(self.figure("key=data/article/naive unit=ms digits=5"), "2.3886 ms")
        ours = "01_naive/plain/layernorm_forward/fp32/1024x1024/cold"
        self.assertEqual(self.figure(f"key=data/article/naive over={ours} unit=x"), "1.00x")
        self.assertIn(
            "no figure 'native'; it has: naive", self.refused("<!-- sync:figure key=data/article/native unit=ms -->")
        )

    def test_peer_figure(self) -> None:
        self.write("common/report/peers/h200.json", (REPORT / "peers/h200.json").read_text(encoding="utf-8"))
        self.assertEqual(self.figure('key="peers/torch/layernorm_forward/fp32/1024x1024/cold" unit=us'), "10.2 µs")
        self.assertEqual(self.figure("key=peers/best/layernorm_forward/bf16/262144x1024/cold unit=percent"), "100.5 %")

    def test_refusals(self) -> None:
        key = "key=01_naive/plain/layernorm_forward/fp32/1024x1024/cold"
        for arguments, words in {
            f"{key} unit=parsec": "unit is 'parsec'",
            f"{key} unit=GB/s counter=median_seconds": "is a time, and GB/s measures a rate",
            f"{key} unit=ms digits=0": "digits is '0'",
            f"{key} unit=ms over=01_naive/small/layernorm_forward/fp32/1024x1024/cold": "has the unit x or percent",
            f"{key} unit=ms colour=red": "'colour' is not an option here",
            f"{key} unit=count counter=luck": "no counter 'luck'",
            "unit=ms": "key is missing",
            "key=01_naive/plane/layernorm_forward/fp32/1024x1024/cold unit=ms": "the nearest there is '01_naive/plain/",
            "key=03_later/x/layernorm_forward/fp32/1024x1024/cold unit=ms": "there is no 03_later/results/h200.json",
            f"{key} unit=ms gpu=abacus": "there is no 01_naive/results/abacus.json",
        }.items():
            with self.subTest(arguments):
                self.assertIn(words, self.refused(f"<!-- sync:figure {arguments} -->"))

    def test_significant_digits(self) -> None:
        for value, text in {
            0.081684: "0.0817", 8.0456: "8.05", 9.999: "10.0", 999.9: "1000", 4153.2: "4150", 0.0: "0",
            1e6: "1.00 × 10⁶", 2.5e-7: "2.50 × 10⁻⁷", float("nan"): "not finite", -12.345: "-12.3",
        }.items():
            self.assertEqual(significant(value), text)


class Claims(Playground):
    PLAIN = "01_naive/plain/layernorm_forward/fp32/1024x1024/cold"  # 2.3886 ms

    def claim(self, arguments: str, expect: int, words: str = "slower than") -> str:
        text = f"# Page\n\nIt is <!-- sync:claim {arguments} -->{words}<!-- /sync --> it was.\n"
        self.write("docs/page.md", text)
        message = self.sync("--check", str(self.root / "docs/page.md"), expect=expect)
        self.sync(str(self.root / "docs/page.md"), expect=expect)
        self.assertEqual(self.read("docs/page.md"), text)  # the words are the writer's
        return message

    def test_a_claim_holds_or_is_named(self) -> None:
        small = f"key={self.PLAIN} over=01_naive/small/layernorm_forward/fp32/1024x1024/cold"
        self.claim(f"{small} above=2.3", 0)
        self.claim(f"{small} above=2.3 below=2.5", 0)
        self.claim(f"key={self.PLAIN} unit=ms below=2.4", 0)
        self.assertIn("docs/page.md:3: ", self.claim(f"{small} above=2.5", 1))
        self.assertIn("is not so: 2.39x is not above 2.5", self.claim(f"{small} above=2.5", 1))
        self.assertIn("is not so: 2.39x is not below 1", self.claim(f"{small} above=0.5 below=1", 1))
        self.assertIn("is not so: 2.39 ms is not above 2.4", self.claim(f"key={self.PLAIN} unit=ms above=2.4", 1))

    def test_refusals(self) -> None:
        key = f"key={self.PLAIN}"
        for arguments, words in {
            f"{key} unit=ms": "above or below is missing: what is claimed?",
            f"{key} unit=ms above=much": "above is 'much'; it must be a number",
            f"{key} over={self.PLAIN} unit=ms above=1": "a ratio of two figures has the unit x or percent",
            "above=1": "key is missing",
            f"{key} unit=ms above=1 digits=3": "'digits' is not an option here",
        }.items():
            with self.subTest(arguments):
                self.assertIn(words, self.claim(arguments, 1))
        self.assertIn("is empty", self.claim(f"{key} unit=ms above=1", 1, words=""))

    def test_a_claim_of_an_earlier_kernel_is_named_by_strict(self) -> None:
        self.sync()
        self.edit("01_naive/kernels.cuh", "x[0] = 1.0f", "x[0] = 2.0f")
        self.write(
            "docs/page.md", f"# Page\n\nIt is <!-- sync:claim key={self.PLAIN} unit=ms above=2 -->slow<!-- /sync -->.\n"
        )
        self.sync("--check", str(self.root / "docs/page.md"))
        message = self.sync("--check", "--strict", str(self.root / "docs/page.md"), expect=1)
        self.assertIn("was measured on an earlier version of the kernel", message)


class Tables(Playground):
    def table(self, arguments: str, name: str = "docs/page.md") -> list[str]:
        return self.filled(f"<!-- sync:table {arguments} -->", name).split("\n")

    def test_ladder(self) -> None:
        lines = self.table("ladder stage=01_naive dtype=fp32 shape=1024x1024")
        self.assertEqual(lines[0], "| variant | cold, ms | warm, ms | spread | GB/s | share of a copy |")
        self.assertEqual(lines[2], "| `plain` | 2.39 | 2.00 | 1.2 % | 3.51 | 1.0 % |")
        self.assertEqual(lines[3], "| **`small`** | **1.00** | – | 1.2 % | 8.39 | 2.0 % |")
        self.assertTrue(lines[4].startswith("| *a copy of the same bytes* | 0.0221 | 0.0100 |"), lines[4])
        self.assertIn("`layernorm_forward`, fp32, 1024 x 1024", lines[-1])
        self.assertIn("Invented GPU, 2026-11-21, commit `0123456789`: [../01_naive/results/h200.json]", lines[-1])

    def test_says_where_the_sources_had_changes(self) -> None:
        self.edit(
            "02_tree/results/h200.json", '"commit": "0123456789abcdef"', '"commit": "0123456789abcdef", "dirty": "true"'
        )
        self.assertIn("commit `0123456789` with changes", self.table("ladder stage=02_tree")[-1])

    def test_ladder_over_shapes(self) -> None:
        lines = self.table("ladder stage=01_naive timing=cold variant=small")
        self.assertEqual(lines[0].split(" | ")[:3], ["| variant", "shape", "cold, ms"])
        self.assertIn("| `small` | 1024 x 4096 | 9.00 |", lines[3])

    def test_ladder_with_previous_and_peers(self) -> None:
        self.write("common/report/peers/h200.json", (REPORT / "peers/h200.json").read_text(encoding="utf-8"))
        text = "\n".join(self.table("ladder stage=02_tree previous=yes peers=yes timing=cold"))
        self.assertIn("| `small` (01) | 1000 |", text)
        self.assertIn("| PyTorch | 10.2 |", text)
        self.assertIn("| **`one_pass`** |", text)
        self.assertNotIn("torch.copy_", text)
        self.assertIn("../01_naive/results/h200.json", text)
        self.assertIn("../common/report/peers/h200.json", text)

    def test_ladder_of_the_folder(self) -> None:
        self.assertIn("`two_pass`", "\n".join(self.table("ladder", "02_tree/README.md")))

    def test_sweep(self) -> None:
        lines = self.table("sweep stage=01_naive value=rate")
        self.assertEqual(lines[0], "| GB/s at cols | 1024 | 4096 |")
        self.assertEqual(lines[2], "| `plain` | 3.51 | – |")
        self.assertEqual(lines[3], "| `small` | **8.39** | **3.73** |")

    def test_numerics(self) -> None:
        lines = self.table("numerics stage=02_tree")
        self.assertEqual(lines[0], "| input | `one_pass` | `two_pass` |")
        self.assertEqual(lines[2], "| `normal` | 1.2 | 0.75 |")
        self.assertEqual(lines[3], "| `arange` | 4.1 × 10⁹ ✗ (expected) | not finite ✗ |")

    def test_numerics_takes_the_verdict_and_the_worst(self) -> None:
        crashed = check("02_tree", "crashed", "normal", 0.0) | {
            "verdict": "failed",
            "error": "no launch",
            "compared": 0,
        }
        small = check("02_tree", "small", "normal", 9.0, right=False) | {"verdict": "permitted failure"}
        surprise = check("02_tree", "surprise", "normal", 0.5) | {"verdict": "unexpected pass"}
        again = [check("02_tree", "again", "normal", ulp) for ulp in (3.0, 7.0, 5.0)]
        self.results("02_tree", [], [crashed, small, surprise, *again])
        lines = self.table("numerics stage=02_tree")
        self.assertEqual(lines[2], "| `normal` | did not run ✗ | 9.0 ✗ (expected) | 0.50 | 7.0 |")
        key = "02_tree/again/layernorm_forward/fp32/1024x1024/normal"
        self.assertEqual(self.filled(f"A <!-- sync:figure key={key} unit=ulp -->"), "7.00 ulp")

    def test_other_operations_are_held_against_a_stream(self) -> None:
        self.results("02_tree", [
            benchmark("02_tree", "tile", 50.0, operation="batchnorm_train", shape="32x64x49", share=0.8),
            benchmark("02_tree", "line", 80.0, operation="batchnorm_train", shape="32x64x49", share=0.5),
        ])
        lines = self.table("ladder stage=02_tree shape=32x64x49")
        self.assertTrue(lines[0].endswith("| share of a stream |"), lines[0])
        self.assertTrue(lines[4].startswith("| *a stream of the same reads and writes* | 40.0 |"), lines[4])
        self.assertIn("`batchnorm_train`, fp32, 32 x 64 x 49", lines[-1])
        self.results(
            "02_tree",
            [
                benchmark("02_tree", "tile", 50.0, operation="batchnorm_train", shape=shape)
                for shape in ("32x64x49", "32x64x49-first")
            ],
        )
        self.assertIn("32 x 64 x 49, channels first", self.table("ladder stage=02_tree shape=32x64x49-first")[-1])
        key = "02_tree/best/batchnorm_train/fp32/32x64x49/cold"
        self.assertEqual(self.filled(f"A <!-- sync:figure key={key} unit=us -->"), "50.0 µs")

    def launch(self, stage: str, variant: str, **values: float) -> dict:
        return {
            "stage": stage, "variant": variant, "operation": "layernorm_forward", "dtype": "fp32", "rows": 1024,
            "cols": 1024, "pixels": 1, "kernel": f"worklog::x::{variant}<&worklog::x::sum, 4>", "blocks": 1024,
            "threads": 256, "cluster": 1,
        } | values

    def with_counters(self) -> None:
        stages = [
            {
                "stage": stage,
                "source_hash": source_hash.source_hash(stage, self.root),
                "commit": "0123",
                "dirty": "false",
            }
            for stage in ("01_naive", "02_tree")
        ]
        kernels = [
            self.launch("01_naive", "plain")
            | {
                "metrics": {
                    "global_load_requests": 10, "global_load_sectors": 320, "dram_read_bytes": 4.2e6,
                    "issue_active_percent": 66.6, "duration_ns": 1500.0,
                }
            },
            self.launch("02_tree", "one_pass")
            | {
                "metrics": {
                    "global_load_requests": 10, "global_load_sectors": 40, "dram_read_bytes": 5.37e8,
                    "issue_active_percent": 5.0, "duration_ns": None,
                }
            },
            self.launch("02_tree", "one_pass")
            | {
                "kernel": "second",
                "metrics": {
                    "global_load_requests": 5, "global_load_sectors": 20, "dram_read_bytes": 0,
                    "issue_active_percent": 50.0, "duration_ns": 9.0,
                },
            },
        ]
        self.write(
            "docs/counters/h200.json",
            json.dumps({
                "context": {"gpu": "Invented GPU", "date": "2026-11-21"},
                "metrics": {},
                "stages": stages,
                "kernels": kernels,
            }),
        )

    def test_counters(self) -> None:
        self.with_counters()
        lines = self.table("counters show=sectors_per_load,dram_read_bytes,issue_active_percent,duration_ns")
        self.assertEqual(lines[0], "| stage | variant | sectors per load | DRAM read, MB | issue slots used | µs |")
        self.assertEqual(lines[2], "| 01 | `plain` | 32.00 | 4.20 | 67 % | 1.50 |")
        self.assertEqual(lines[3], "| 02 | `one_pass` | 4.00 | 537 | 5 % | – |")
        self.assertIn("[counters/h200.json](counters/h200.json)", lines[-1])
        self.edit("02_tree/kernels.cuh", "float* x", "float* y")
        self.assertIn("`one_pass`†", self.table("counters stage=02_tree show=duration_ns")[2])

    def test_traffic(self) -> None:
        self.with_counters()
        path = self.root / "docs/counters/h200.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        # A variant of two kernels.
        for kernel, read, written in zip(document["kernels"][1:], (4.2e6, 1.0e6), (4.0e6, 0.5e6)):
            kernel["metrics"] |= {"dram_read_bytes": read, "dram_write_bytes": written}
        path.write_text(json.dumps(document), encoding="utf-8")
        self.results("02_tree", [benchmark("02_tree", "one_pass", 10.0) | {"bytes": 9.7e6}])
        lines = self.table("traffic stage=02_tree")
        self.assertEqual(
            lines[0], "| variant | operation | dtype | shape | must move, MB | read, MB | written, MB | moved / must |"
        )
        self.assertEqual(
            lines[2], "| `one_pass` | `layernorm_forward` | fp32 | 1024 x 1024 | 9.7 | 5.2 | 4.5 | 1.000 |"
        )

    def test_counters_as_figures(self) -> None:
        self.with_counters()
        key = "key=counters/02_tree/one_pass/layernorm_forward/fp32/1024x1024"
        # Of both kernels.
        self.assertEqual(self.filled(f"A <!-- sync:figure {key} counter=global_load_requests unit=count -->"), "15")
        self.assertEqual(self.filled(f"A <!-- sync:figure {key} counter=dram_read_bytes unit=MB -->"), "537 MB")
        # Of the longer one.
        self.assertEqual(
            self.filled(f"A <!-- sync:figure {key} counter=issue_active_percent unit=percent -->"), "50.0 %"
        )
        self.assertIn("is no counter of", self.refused(f"<!-- sync:figure {key} counter=wishes unit=count -->"))
        self.assertIn(
            "the nearest there is",
            self.refused("<!-- sync:figure key=counters/02_tree/two/x/fp32/1x1 counter=a unit=count -->"),
        )

    def test_resources(self) -> None:
        takes = {
            "registers": 32, "local_bytes": 0, "static_shared_bytes": 128, "dynamic_shared_bytes": 1024,
            "blocks_per_multiprocessor": 8, "occupancy": 1.0,
        }
        document = json.loads(self.read("02_tree/results/h200.json"))
        self.write(
            "02_tree/results/h200.json",
            json.dumps(document | {"resources": [self.launch("02_tree", "one_pass", **takes)]}),
        )
        lines = self.table("resources stage=02_tree")
        self.assertEqual(lines[2], "| `one_pass` | `one_pass<&sum, 4>` | 1024 x 256 | 32 | 0 | 1152 | 8 | 100 % |")
        self.assertIn("has no resources", self.refused("<!-- sync:table resources stage=01_naive -->"))

    def test_verified(self) -> None:
        self.assertEqual(self.table("verified"), ["*Nothing was verified on h200 yet.*"])
        line = {"variant": "plain", "passed": 8, "expected_failure": 1, "permitted_failure": 0, "compared": 2.5e9}
        stage = {
            "stage": "01_naive", "source_hash": source_hash.source_hash("01_naive", self.root), "commit": "0",
            "dirty": "false",
            "sweeps": [{"name": "shapes", "checks": 9, "results": [line]}, {"name": "past", "left_out": "too large"}],
            "sanitizers": [{"tool": "memcheck", "checks": 3, "summary": "0 errors"}],
        }
        self.write(
            "docs/verified/h200.json",
            json.dumps({
                "context": {"gpu": "Invented GPU", "date": "2026-11-21T00:00:00Z"},
                "suites": [{"suite": "a", "passed": 4}],
                "stages": [stage],
            }),
        )
        lines = self.table("verified")
        row = r"^\| 01_naive \| H200 \| `\w{10}` \| 9 \| 8 \| 1 \| 0 \| 2.5 \| 0 \| – \| – \| – \|$"
        self.assertRegex(lines[2], row)
        self.assertIn("4 tests passed. Not verified yet: 02_tree, 03_later", lines[-1])
        package = {"suite": "python_package_test", "passed": 12, "skipped": 3, "date": "2026-11-20T00:00:00Z"}
        self.edit("docs/verified/h200.json", '"suites": [', f'"suites": [{json.dumps(package)}, ')
        self.assertIn(
            "4 tests passed. The Python package's tests with PyTorch, 2026-11-20: 12 passed, 3 skipped. Not",
            self.table("verified")[-1],
        )
        self.edit("01_naive/kernels.cuh", "x[0] = 1.0f", "x[0] = 2.0f")
        self.assertIn("01_naive†", self.table("verified")[2])
        # Where another GPU has verified today's kernels, the line is of that.
        stage["source_hash"] = source_hash.source_hash("01_naive", self.root)
        other = {"gpu": "Another", "date": "2026-11-22T00:00:00Z"}
        self.write("docs/verified/h100.json", json.dumps({"context": other, "suites": [], "stages": [stage]}))
        lines = self.table("verified")
        self.assertIn("| 01_naive | H100 |", lines[2])
        self.assertIn("Another, driver unknown, 2026-11-22", lines[-1])

    def test_models(self) -> None:
        widths = [(model.operation, model.cols) for model in grid.MODELS]
        timings = [
            benchmark(
                "02_tree", "fused", rows + cols / 1000, operation=operation, dtype="bf16", shape=f"{rows}x{cols}",
                share=0.25,
            )
            for operation, cols in widths for rows in (1, 4096)
        ]
        # Of one model only.
        odd = benchmark("02_tree", "fused", 7.0, operation=widths[0][0], dtype="bf16", shape=f"8x{widths[0][1]}")
        self.results("02_tree", [*timings, odd])
        lines = self.table("models stage=02_tree variant=fused timing=cold")
        self.assertEqual(
            lines[0], "| model | norm | cols | 1 token, µs | 4096 tokens, µs | share, 1 token | share, 4096 tokens |"
        )
        self.assertEqual(lines[2], "| GPT-2 | LayerNorm | 768 | 1.77 | 4100 | 25.0 % | 25.0 % |")
        self.results("02_tree", timings[2:])
        self.assertIn("no number of rows", self.refused("<!-- sync:table models stage=02_tree variant=fused -->"))

    def test_two_gpus(self) -> None:
        wanted = "two-gpus operation=layernorm_forward shape=1024x1024 stage=01_naive"
        self.assertIn("there is no 01_naive/results/h100.json", self.refused(f"<!-- sync:table {wanted} -->"))
        slower = [
            benchmark("01_naive", "plain", 2388.6, share=0.0141),
            benchmark("01_naive", "small", 1410.0, share=0.02),
        ]
        self.results("01_naive", slower, gpu="h100")
        self.results("02_tree", [benchmark("02_tree", "best", 1.0, share=0.9)], gpu="h100")
        self.results("03_later", [])
        self.results("03_later", [], gpu="h100")
        lines = self.table(wanted)
        self.assertIn("| H200, ms | H100, ms | times as long |", lines[0])
        self.assertEqual(lines[2], "| 01 | `plain` | 2.39 | 2.39 | 1.00 | 1.0 % | 1.4 % |")
        self.assertEqual(lines[3], "| 01 | `small` | 1.00 | 1.41 | 1.41 | 2.0 % | 2.0 % |")
        self.assertEqual(len([line for line in lines if line.startswith("|")]), 5)  # and the copy
        key = "key=01_naive/small/layernorm_forward/fp32/1024x1024/cold"
        self.assertEqual(self.filled(f"<!-- sync:figure {key} gpu=h100 over_gpu=h200 unit=x -->"), "1.41x")

    def test_ladder_all(self) -> None:
        lines = self.table("ladder-all")
        self.assertIn("[01 · One thread per row](../01_naive/README.md) | `small` | 1000 |", lines[2])
        self.assertIn("| `one_pass` | 70.0 |", lines[3])
        self.assertIn("| 14.3x |", lines[3])
        self.assertIn("No results yet at this shape: 03_later", lines[-1])

    def test_tutorial(self) -> None:
        def data(name: str, source: dict, **rates: float) -> None:
            figures = {key: {"value": rate, "unit": "GB/s", "meaning": key} for key, rate in rates.items()}
            path = self.root / f"docs/data/{name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"source": source, "figures": figures}), encoding="utf-8")

        data("article_triton", {}, backward_1024=300, backward_1024_torch=350, backward_2048=400,
             backward_2048_torch=390)
        software = {"torch": "2", "triton": "3"}
        source = {"gpu": "A GPU", "date": "2026-11-24", "software": software, "commit": "0123456789ab"}
        data("tutorial_tables_h200", source, backward_1024_torch=800, backward_1024_triton=440,
             backward_2048_torch=1100, backward_2048_triton=1200, backward_2048_staying=1840)
        lines = self.table("tutorial direction=backward")
        self.assertEqual(lines[2], "| 1024 | 300 | 350 | 800 | 440 | – | – | – | – |")
        self.assertEqual(lines[3], "| 2048 | 400 | 390 | 1100 | 1200 | – | – | 1840 | – |")
        self.assertIn("slower than PyTorch at 1 of 2 widths", lines[-1])

    def test_refusals(self) -> None:
        for arguments, words in {
            "": "there is no table ''",
            "chart": "there is no table 'chart'; there are: ladder, sweep, numerics, resources, counters, traffic, "
            "counting, predictions, verified, compare, rotation, models, tutorial, survey, two-gpus, "
            "ladder-all",
            "ladder": "stage is missing",
            "ladder stage=07_x": "there is no stage '07_x'",
            "ladder stage=01_naive dtype=bf16": "nothing with dtype bf16; it has: fp32",
            "ladder stage=01_naive timing=hot": "timing is 'hot'",
            "ladder stage=01_naive peers=maybe": "it must be yes or no",
            "ladder stage=01_naive flavour=x": "'flavour' is not an option here",
            "ladder stage=01_naive mib=512": "nothing has tensors of 512 MiB",
            "numerics stage=01_naive": "has no checks",
            "sweep stage=01_naive value=price": "value is 'price'",
            "tutorial direction=sideways": "direction is 'sideways'; there are: forward, backward",
        }.items():
            with self.subTest(arguments):
                self.assertIn(words, self.refused(f"<!-- sync:table {arguments} -->"))


class Markdown(unittest.TestCase):
    def test_anchors_are_those_of_github(self) -> None:
        text = "# What we `measured`, twice\n## A_b · c\n## A_b · c\n<a id=\"here\"></a>\n```\n# not this\n```\n"
        self.assertEqual(markdown.anchors_of(text), {"what-we-measured-twice", "a_b--c", "a_b--c-1", "here"})

    def test_links(self) -> None:
        text = '[a](b.md "title") ![c](<d e.svg>)\n[ref]: f.md\n[![x](y.svg)](z_(1).md)\n'
        found = sorted(target for _, target in markdown.links_of(text))
        self.assertEqual(found, ["b.md", "d e.svg", "f.md", "y.svg", "z_(1).md"])


class Pictures(unittest.TestCase):
    def test_every_chart_is_on_a_page(self) -> None:
        root = Path(__file__).resolve().parents[2]
        shown = {
            (page.parent / target.partition("#")[0]).resolve()
            for page in sync.documents(root) for _, target in markdown.links_of(page.read_text(encoding="utf-8"))
        }
        charts = sorted(root.glob("*/charts/*.svg"))
        self.assertGreater(len(charts), 30)
        self.assertEqual([str(chart.relative_to(root)) for chart in charts if chart.resolve() not in shown], [])

    def test_charts_can_be_read_on_a_phone(self) -> None:
        exponent = 6.65  # pixels, of a power of ten on an axis
        # Of the site, these scroll on a phone (pages.css).
        too_wide = {"packed_rows.svg", "clusters_start.svg", "grid_messages.svg"}
        root = Path(__file__).resolve().parents[2]
        for chart in sorted(root.glob("*/charts/*.svg")):
            text = chart.read_text(encoding="utf-8")
            width = re.search(r"<svg[^>]*\bwidth=\"([0-9.]+)(?:pt)?\"", text)
            sizes = set(map(float, re.findall(r"font-size(?:: |=\")([0-9.]+)", text))) - {exponent}
            is_legible = min(sizes) * 400 / float(width[1]) >= 9
            self.assertEqual(is_legible, chart.name not in too_wide, chart)


class SourceHash(Playground):
    def hash(self, stage: str = "01_naive") -> str:
        done = self.script("source_hash.py", stage)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^[0-9a-f]{64}\n$")
        return done.stdout

    def test_ignores_comments_and_white_space(self) -> None:
        before = self.hash()
        tighter = (
            KERNELS_01.replace(" = ", "=").replace("\n    ", "\n\t").replace("// a comment", "/* another\n one */")
        )
        self.write("01_naive/kernels.cuh", tighter.replace("\n", "\r\n"))
        self.assertEqual(self.hash(), before)

    def test_sees_code(self) -> None:
        before = self.hash()
        for old, new in {"1'000.0f": "1'000.5f", "x[0]": "x[2]", "float* x": "float*x, int y"}.items():
            self.write("01_naive/kernels.cuh", KERNELS_01.replace(old, new))
            self.assertNotEqual(self.hash(), before, new)

    def test_words_and_operators_do_not_run_together(self) -> None:
        seen = set()
        for code in ("a + +b;", "a ++ b;", "a+b;", "ab;", "a b;", '"a  b";', '"a b";', '"//";', '"";', "'\"' + '\"';"):
            self.write("01_naive/kernels.cuh", code + "\n")
            seen.add(self.hash())
        self.assertEqual(len(seen), 10)

    def test_what_looks_like_a_comment_in_a_string_is_code(self) -> None:
        self.write("01_naive/kernels.cuh", 'f("/* " + 1 + " */");\n')
        before = self.hash()
        self.write("01_naive/kernels.cuh", 'f("/* " + 2 + " */");\n')
        self.assertNotEqual(self.hash(), before)

    def test_the_end_of_a_directive_counts(self) -> None:
        self.write("01_naive/kernels.cuh", "#define A b\nc;\n")
        before = self.hash()
        self.write("01_naive/kernels.cuh", "#define A \\\n  b\nc;\n")
        self.assertEqual(self.hash(), before)
        self.write("01_naive/kernels.cuh", "#define A b c;\n")
        self.assertNotEqual(self.hash(), before)

    def test_follows_includes_of_the_repository(self) -> None:
        self.write("common/device/arguments.h", "struct Arguments;\n")
        before, alone = self.hash("02_tree"), self.hash("01_naive")
        self.write("common/device/arguments.h", "struct OtherArguments;\n")
        self.assertNotEqual(self.hash("02_tree"), before)
        self.write("common/device/arguments.h", "struct Arguments;  // a comment\n")
        self.assertEqual(self.hash("02_tree"), before)
        self.edit("01_naive/kernels.cuh", "x[0]", "x[3]")
        self.assertNotEqual(self.hash("02_tree"), before)
        self.assertNotEqual(self.hash("01_naive"), alone)

    def test_includes_each_file_once(self) -> None:
        once = self.hash("02_tree")
        self.edit("02_tree/kernels.cuh", "__global__", '#include "../01_naive/kernels.cuh"\n__global__')
        self.assertEqual(self.hash("02_tree"), once)

    def test_a_commented_include_is_none(self) -> None:
        self.edit("02_tree/kernels.cuh", "#include", "// #include")
        before = self.hash("02_tree")
        self.edit("01_naive/kernels.cuh", "x[0]", "x[3]")
        self.assertEqual(self.hash("02_tree"), before)

    def test_lists_every_stage(self) -> None:
        done = self.script("source_hash.py")
        self.assertEqual([line.split()[0] for line in done.stdout.splitlines()], ["01_naive", "02_tree", "03_later"])

    def test_unknown_stage_has_exit_code_2(self) -> None:
        done = self.script("source_hash.py", "09_none")
        self.assertEqual(done.returncode, 2)
        self.assertIn("09_none has no kernels.cuh; stages here: 01_naive", done.stderr)


def python_that_draws() -> str | None:
    """An interpreter with the pinned matplotlib: that of the project's virtual environment, or this one."""
    pinned = re.search(r"^matplotlib==(\S+)", (REPORT / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned
    for candidate in (SOURCE / ".venv" / "bin" / "python", Path(sys.executable)):
        if candidate.exists():
            command = [candidate, "-c", "import matplotlib, numpy; print(matplotlib.__version__)"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.stdout.strip() == pinned.group(1):
                return str(candidate)
    return None


PLOTTER = python_that_draws()
PLOTS = Ready(str(PLOTTER), REPORT)
NO_PLOTTER = "charts need the matplotlib of requirements.txt, which neither .venv nor this Python has: ./worklog setup"


class Drawings(Playground):
    def setUp(self) -> None:
        super().setUp()
        for stage in sorted({name.split("/")[0] for name in drawings.DRAWINGS} - {"01_naive", drawings.OF_NO_STAGE}):
            self.write(f"{stage}/kernels.cuh", "int nothing;\n")

    def draw(self, *arguments: str, expect: int = 0) -> str:
        done = self.script("drawings.py", *arguments)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_draws_the_stages_that_are_there(self) -> None:
        written = self.draw().splitlines()
        self.assertEqual(len(written), len(drawings.DRAWINGS), written)
        for line in written:
            tree = ElementTree.fromstring(self.read(line.removeprefix("drew ")))
            names = [child.tag.rpartition("}")[2] for child in tree]
            self.assertEqual(names[:2], ["title", "desc"])
            self.assertGreater(len(names), 20, line)

    def texts(self) -> dict[str, list[tuple[ElementTree.Element, float, float]]]:
        """Of each drawing's texts where they begin and end, in a wide font."""
        found = {}
        for line in self.draw().splitlines():
            name = line.removeprefix("drew ")
            found[name] = []
            for text in ElementTree.fromstring(self.read(name)).iter("{http://www.w3.org/2000/svg}text"):
                wide = "Mono" in text.get("font-family", "") or text.get("font-weight")
                letter = 0.6 if wide else 0.54  # of a wide font, in the mean
                length = len(text.text or "") * float(text.get("font-size", 0)) * letter
                start = (
                    float(text.get("x", 0))
                    - length * {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor", "start")]
                )
                found[name].append((text, start, start + length))
        return found

    def test_text_stays_on_the_panel(self) -> None:
        for name, texts in self.texts().items():
            tree = ElementTree.fromstring(self.read(name))
            width, height = float(tree.get("width", 0)), float(tree.get("height", 0))
            for text, start, end in texts:
                self.assertGreaterEqual(start, 0, (name, text.text))
                self.assertLessEqual(end, width, (name, text.text))
                self.assertLess(float(text.get("y", 0)), height - 4, (name, text.text))

    def test_texts_do_not_overlap(self) -> None:
        for name, texts in self.texts().items():
            areas = [(start, end, y - 0.75 * size, y + 0.2 * size, text.text) for text, start, end in texts
                     for y, size in [(float(text.get("y", 0)), float(text.get("font-size", 0)))]]
            for index, (left, right, top, bottom, text) in enumerate(areas):
                for other in areas[:index]:
                    apart = right <= other[0] or other[1] <= left or bottom <= other[2] or other[3] <= top
                    self.assertTrue(apart, (name, text, other[4]))

    def test_check_finds_what_is_missing_or_changed(self) -> None:
        self.assertIn("01_naive/charts/access.svg: is missing", self.draw("--check", expect=1))
        self.draw()
        self.assertEqual(self.draw("--check"), "")
        self.edit("05_welford/charts/merge.svg", "4.75", "4.76")
        self.assertIn("05_welford/charts/merge.svg: differs", self.draw("--check", expect=1))

    def test_counted_sectors_are_those_of_the_hardware(self) -> None:
        self.assertEqual(drawings.sectors_of([4096 * lane for lane in range(32)], 4), 32)
        self.assertEqual(drawings.sectors_of([4 * lane for lane in range(32)], 4), 4)
        self.assertEqual(drawings.sectors_of([4 + 4 * lane for lane in range(32)], 4), 5)
        self.assertEqual(drawings.sectors_of([16 * lane for lane in range(32)], 16), 16)

    def test_both_trees_add_every_slot_once(self) -> None:
        for pairs_of, strides in ((drawings.sequential_pairs, (4, 2, 1)), (drawings.interleaved_pairs, (1, 2, 4))):
            slots = [2**i for i in range(8)]
            for stride in strides:
                for to, source in pairs_of(8, stride):
                    slots[to] += slots[source]
            self.assertEqual(slots[0], 255)

    def test_rows_start_amid_vectors(self) -> None:
        self.assertEqual(
            [drawings.past_boundary(row, 2 * 4095) for row in range(10)], [0, 14, 12, 10, 8, 6, 4, 2, 0, 14]
        )
        self.assertEqual([drawings.past_boundary(row, 100) for row in range(9)], [0, 4, 8, 12, 0, 4, 8, 12, 0])
        self.assertEqual(drawings.vectors_of_two_rows(8, 100), [6, 12, 18, 31, 37, 43])
        self.assertEqual(drawings.vectors_of_two_rows(8, 128), [])
        self.assertEqual(drawings.vectors_of_two_rows(8, 2), [0])

    def test_a_cluster_takes_the_first_neighbors_that_are_free(self) -> None:
        together = [3.0] * 16
        self.assertEqual(drawings.cluster_starts(together, 4, 10.0), [(3.0, 0), (3.0, 4), (3.0, 8), (3.0, 12)])
        middle_first = [3.0] * 10 + [1.0] * 4 + [3.0] * 2
        begun = drawings.cluster_starts(middle_first, 4, 10.0)
        self.assertEqual([begin for begin, _ in begun], [1.0, 3.0, 3.0, 11.0])
        self.assertEqual([first for _, first in begun[:3]], [10, 0, 4])
        self.assertEqual(drawings.left_over(16, [10, 0, 4]), [[8, 9], [14, 15]])
        self.assertEqual(drawings.left_over(16, [0, 4, 8, 12]), [])
        across_groups = [9.0] * 6 + [1.0] * 4 + [9.0] * 6  # neighbors, but in two groups
        self.assertEqual(drawings.cluster_starts(across_groups, 1, 10.0)[0][0], 9.0)

    def test_messages_need_two_places_for_each_sender(self) -> None:
        sent, read = drawings.message_times([[60.0, 90.0], [10.0, 20.0], [10.0, 20.0], [1.0, 1.0]], [5.0, 50.0])
        self.assertEqual(sent[:2], [[60.0, 90.0], [105.0, 160.0]])
        self.assertEqual(read[0], [95.0, 140.0])
        for turn in range(1, len(sent) - 1):
            self.assertGreater(min(sent[turn + 1]), max(read[turn - 1]), "two places are enough")
        self.assertLess(min(sent[1]), max(read[0]), "and one is not")
        self.assertEqual([drawings.messages_at(110.0, sent, parity) for parity in (0, 1)], [[2, 0], [1, 1]])


    def test_the_primers_drawings_can_be_read_on_a_phone(self) -> None:
        for drawing in (machine_drawings.grid_to_lanes(), machine_drawings.memory_levels()):
            sizes = [float(size) for size in re.findall(r'font-size="([0-9.]+)"', drawing.render())]
            self.assertGreaterEqual(min(sizes) * 400 / drawing.width, 10, drawing.title)

    def test_blocks_go_to_multiprocessors_in_turn_while_there_is_room(self) -> None:
        places = [machine_drawings.multiprocessor_of(block, 4, 2) for block in range(10)]
        self.assertEqual(places, [0, 1, 2, 3, 0, 1, 2, 3, None, None])
        self.assertEqual([machine_drawings.two_digits(rate) for rate in (4.27, 33.45, 401.4)], ["4.3", "33", "400"])


class Redraw(Playground):
    def test_what_is_drawn_can_ask_and_is_watched(self) -> None:
        answers = redraw.Answers(results.Repository(self.root))
        watched = redraw.Watched(answers)
        self.assertEqual(watched.stage_results("02_tree", "h200").timings[0].variant, "two_pass")
        self.assertTrue(watched.has_results("01_naive", "h200"))
        asked = {'["stage_results", "02_tree", "h200"]', '["has_results", "01_naive", "h200"]'}
        self.assertEqual(set(watched.asked), asked)
        for name in ("root", "results_path", "comparison_path"):  # ways to a file that nobody would see it read
            with self.assertRaisesRegex(AttributeError, name):
                getattr(watched, name)

    def test_every_question_is_a_method(self) -> None:
        for name in redraw.QUESTIONS:
            self.assertTrue(callable(getattr(results.Repository(self.root), name)), name)

    def test_notes_hold_while_the_answers_do(self) -> None:
        self.write("a.svg", "<svg/>")

        def notes(drawn_by: str = "this code") -> redraw.Notes:
            return redraw.Notes(redraw.Answers(results.Repository(self.root)), drawn_by)

        watched = redraw.Watched(redraw.Answers(results.Repository(self.root)))
        watched.stage_results("01_naive", "h200")
        note = redraw.Note("a.svg", redraw.digest("<svg/>"), watched.asked)
        self.assertIsNone(notes().up_to_date("a"))
        notes().keep({"a": note})
        self.assertEqual(notes().up_to_date("a"), note)
        self.assertIsNone(notes("other code").up_to_date("a"))
        text = self.read("01_naive/results/h200.json")
        self.write("01_naive/results/h200.json", text.replace(", ", ",\n"))  # says the same
        self.assertEqual(notes().up_to_date("a"), note)
        self.write("01_naive/results/h200.json", text.replace("0.0101", "0.0102"))
        self.assertIsNone(notes().up_to_date("a"))
        self.write("01_naive/results/h200.json", "{")
        self.assertIsNone(notes().up_to_date("a"))
        self.write("01_naive/results/h200.json", text)
        self.assertEqual(notes().up_to_date("a"), note)
        self.edit("01_naive/kernels.cuh", "x[0] = 1.0f", "x[0] = 2.0f")
        self.assertIsNone(notes().up_to_date("a"))

    def test_code_is_a_file_and_what_it_imports(self) -> None:
        first = self.write("code/first.py", "import os\nimport second\n")
        self.write("code/second.py", "def late():\n    from third import thing\n")
        self.write("code/third.py", "import first\nthing = 1\n")
        self.write("code/other.py", "")
        seen = {redraw.digest_of_code(first)}
        self.edit("code/other.py", "", "import first\n")
        self.assertEqual({redraw.digest_of_code(first)}, seen)
        for name in ("first", "second", "third"):
            self.write(f"code/{name}.py", self.read(f"code/{name}.py") + "# more\n")
            self.assertNotIn(redraw.digest_of_code(first), seen)
            seen.add(redraw.digest_of_code(first))


@unittest.skipUnless(PLOTTER, NO_PLOTTER)
class OffsetError(unittest.TestCase):
    def test_merges_as_chan_does(self) -> None:
        threads = []
        for values in ((2.0, 4.0), (4.0, 6.0), (1.0, 3.0), (8.0, 8.0)):
            moments: offset_error.Moments = (0.0, 0.0, 0.0)
            for value in values:
                moments = offset_error.add_value(moments, value)
            threads.append(moments)
        self.assertEqual(threads, [(2.0, 3.0, 2.0), (2.0, 5.0, 2.0), (2.0, 2.0, 2.0), (2.0, 8.0, 0.0)])
        self.assertEqual(offset_error.tree(threads, offset_error.merge), (8.0, 4.5, 48.0))

    def test_a_mean_in_two_floats_loses_nothing(self) -> None:
        row = offset_error.rows_of(10000.0)[0]
        errors = {way: offset_error.error_of(row, statistics(row)) for way, statistics in offset_error.WAYS.items()}
        self.assertLess(errors["split_mean"], 1e-6)
        for way in ("two_pass", "welford"):
            self.assertTrue(1e-5 < errors[way] < 1e-2, errors)
        self.assertGreater(errors["one_pass"], 0.1)

    def test_a_figure_that_is_gone_or_new_differs(self) -> None:
        one = {"a": {"value": 1.0}}
        self.assertEqual(offset_error.differing(one, {"a": {"value": 1.001}}), [])
        self.assertEqual(len(offset_error.differing(one, {"a": {"value": 1.1}, "b": {"value": 2.0}})), 2)


class Charts(Playground):
    def setUp(self) -> None:
        super().setUp()
        self.write("common/report/peers/h200.json", (REPORT / "peers/h200.json").read_text(encoding="utf-8"))

    def charts(self, *arguments: str, expect: int = 0, **variables: str) -> str:
        """What is said. With variables, some of which count as Python starts, by a process of its own."""
        if variables:
            command = [str(PLOTTER), REPORT / "charts.py", "--root", self.root, *arguments]
            environment = {**os.environ, **variables}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        else:
            done = PLOTS.call("charts.py", "--root", self.root, *arguments)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def svgs(self) -> dict[str, bytes]:
        return {str(p.relative_to(self.root)): p.read_bytes() for p in sorted(self.root.glob("**/*.svg"))}

    def test_draws_the_same_bytes_again(self) -> None:
        self.charts()
        first = self.svgs()
        self.assertEqual(list(first), [
            "01_naive/charts/access.svg", "01_naive/charts/share_h200.svg", "01_naive/charts/time_h200.svg",
            "02_tree/charts/time_h200.svg", "docs/charts/cold_warm_h200.svg", "docs/charts/grid_to_lanes.svg",
            "docs/charts/ladder_h200.svg", "docs/charts/memory_levels.svg", "docs/charts/numerics_h200.svg",
        ])
        for name in first:
            (self.root / name).unlink()
        self.charts(PYTHONHASHSEED="7", TZ="Asia/Tokyo", LC_ALL="C", SOURCE_DATE_EPOCH="0")
        self.assertEqual(self.svgs(), first)
        self.assertEqual(self.charts("--check").splitlines()[-1], "0 drawn to compare, 9 up to date")
        self.assertEqual(self.charts("--check", "--force").splitlines()[-1], "6 drawn to compare, 3 up to date")

    def test_says_in_words_what_it_shows(self) -> None:
        self.charts()
        for name, text in self.svgs().items():
            tree = ElementTree.fromstring(text)
            self.assertEqual([child.tag.rpartition("}")[2] for child in tree][:2], ["title", "desc"], name)
        described = ElementTree.fromstring(self.svgs()["01_naive/charts/time_h200.svg"])[1].text or ""
        self.assertIn("plain 2390 microseconds; small 1000 microseconds; copy of the same bytes", described)
        self.assertIn(
            "fails on arange", ElementTree.fromstring(self.svgs()["docs/charts/numerics_h200.svg"])[1].text or ""
        )

    def test_passes_count_what_they_must_move(self) -> None:
        shapes = {"65536x1024": 0.6, "64x256x3136": 0.5, "64x256x3136-first": 0.4}
        self.results(
            "02_tree",
            [
                *[
                    benchmark("02_tree", "tile", 500.0, operation="batchnorm_train", shape=shape, share=share)
                    for shape, share in shapes.items()
                ],
                *[
                    benchmark("02_tree", "tile", 400.0, operation="batchnorm_backward", shape=shape, share=0.6)
                    for shape in shapes
                ],
                benchmark("02_tree", "tile", 20.0, operation="batchnorm_train", shape="4096x1024", share=0.5),
            ],
        )
        self.charts("--stage", "02")
        words = {name: ElementTree.fromstring(text)[1].text or "" for name, text in self.svgs().items()}
        passes = words["02_tree/charts/passes_h200.svg"]
        self.assertIn(
            "batchnorm_train fp32 tile: 90.0 % at 65536x1024, 75.0 % at 64x256x3136, 60.0 % at 64x256x3136-first;",
            passes,
        )
        self.assertIn("batchnorm_train fp32 Inductor: 93.3 % at 65536x1024", passes)
        self.assertIn("batchnorm_backward fp32 tile: 100.0 % at 65536x1024", passes)
        small = words["02_tree/charts/small_h200.svg"]
        self.assertIn("4096x1024: tile 20.0 µs, PyTorch 33.4 µs", small)
        self.assertNotIn("65536x1024", small)

    def test_two_kernels_against_one_are_predicted_from_bytes_and_launches(self) -> None:
        # The stream takes 500 * 0.512 = 256 µs for four tensors of 65536 rows: 1/1024 µs for the trip of a row.
        times = {"1x4096": 2.0, "1024x4096": 8.0, "65536x4096": 500.0, "131072x2048": 500.0}
        self.results(
            "02_tree",
            [
                benchmark(
                    "02_tree", variant, microseconds * factor, operation="add_rmsnorm_forward", dtype="bf16",
                    shape=shape, share=0.512 / factor,
                )
                for shape, microseconds in times.items() for variant, factor in (("fused", 1.0), ("unfused", 1.25))
            ],
        )
        self.charts("--stage", "02")
        chart = "02_tree/charts/fused_h200.svg"
        self.assertNotIn("predicted", self.read(chart))
        self.edit("02_tree/results/h200.json", '"caches"', '"empty_graph_launch_us": "0.5", "caches"')
        self.charts("--stage", "02")
        described = ElementTree.fromstring(self.read(chart))[1].text or ""
        self.assertIn("add_rmsnorm_forward, cold: 1.25 at 1, 1.25 at 1024, 1.25 at 65536", described)
        self.assertIn(
            "predicted for a graph: 1.99 at 1, 1.33 at 1024, 1.25 at 65536; a launch costs a trip at 510 rows",
            described,
        )

    def test_the_ladder_on_a_large_tensor(self) -> None:
        self.charts()
        self.assertNotIn("docs/charts/ladder_large_h200.svg", self.svgs())
        for stage, share in (("01_naive", 0.1), ("02_tree", 0.9)):
            self.results(stage, [
                benchmark(stage, "one", 400.0, shape="131072x1024", share=share),
                benchmark(stage, "two", 500.0, shape="131072x1024", share=share / 2),
            ])
        self.charts()
        title, described = ElementTree.fromstring(self.read("docs/charts/ladder_large_h200.svg"))[:2]
        self.assertEqual(title.text, "At 512 MiB: from 10.0 % of a copy's speed in 01 to 90.0 % in 02")
        self.assertIn("02_tree two 500 microseconds, 45.0 % of a copy", described.text or "")

    def counted(self, stage: str, variant: str, kernel: str, nanoseconds: float, waits: tuple[float, ...]) -> dict:
        names = ("waits_memory", "waits_shared", "waits_barrier", "waits_queue", "waits_dispatch")
        return {
            "stage": stage, "variant": variant, "kernel": kernel, "operation": "layernorm_forward", "dtype": "fp32",
            "rows": 1024, "cols": 1024, "pixels": 1, "blocks": 1024, "threads": 256, "cluster": 1,
            "metrics": {
                **dict(zip(names, waits)), "duration_ns": nanoseconds, "issue_active_percent": 50.0,
                "global_load_sectors": 40, "global_load_requests": 10, "l2_to_sm_bytes": 4000.0,
            },
        }

    def test_waits_and_bytes_under_way(self) -> None:
        kernels = [
            self.counted("01_naive", "plain", "a", 900.0, (30.0, 0.0, 0.0, 0.0, 0.0)),
            self.counted("01_naive", "small", "a", 400.0, (9.0, 0.0, 1.0, 0.0, 0.0)),
            self.counted("02_tree", "two_pass", "short", 100.0, (1.0, 0.0, 0.0, 0.0, 0.0)),
            self.counted("02_tree", "two_pass", "long", 200.0, (2.0, 1.0, 1.0, 0.0, 4.0)),
        ]
        del kernels[0]["metrics"]["waits_queue"]  # what was not counted is not drawn
        document = {"context": {"multiprocessors": "100"}, "metrics": {}, "stages": [], "kernels": kernels}
        self.write("docs/counters/h200.json", json.dumps(document))
        self.charts()
        waits = ElementTree.fromstring(self.read("docs/charts/waits_h200.svg"))
        self.assertEqual(waits[0].text, "What warps wait for is memory: 90 % of it in 01, 25 to 25 % later")
        self.assertIn("01_naive small: 10.0 cycles for each instruction, memory 90 %", waits[1].text or "")
        self.assertIn("02_tree two_pass: 8.00 cycles for each instruction, memory 25 %", waits[1].text or "")
        described = ElementTree.fromstring(self.read("docs/charts/bytes_under_way_h200.svg"))[1].text or ""
        # 2 warps for each instruction, half of the cycles with one, 4 schedulers: 4 warps, 128 bytes each, 100 times.
        self.assertIn("02_tree two_pass 1024x1024: 51.2 kB, 20.0 GB/s", described)
        self.assertNotIn("01_naive", described)

    def test_names_that_would_touch_are_spread(self) -> None:
        code = f"""
import sys
sys.path.insert(0, {str(REPORT)!r})
from charts import spread
apart = spread([5.0, 4.9, 4.8, 1.0], 0.5)
assert apart[3] == 1.0 and abs(sum(apart[:3]) - 14.7) < 1e-9, apart
assert all(abs(a - b - 0.5) < 1e-9 for a, b in zip(apart[:2], apart[1:3])), apart
"""
        subprocess.run([str(PLOTTER), "-c", code], check=True)

    def test_error_over_the_mean(self) -> None:
        errors = {"one_pass": 3e-5, "two_pass": 2e-6, "welford": 2e-6, "split_mean": 4e-7}
        figures = {f"{way}_{mean}": {"value": error * mean / 10} for way, error in errors.items() for mean in (10, 100)}
        figures["one_pass_100_lost"] = {"value": 2}
        self.write("docs/data/offset_error.json", json.dumps({"figures": figures}))
        self.charts()
        chart = self.read("docs/charts/offset_error.svg")
        title = "Off by more than 10⁻⁵: E[x²] − E[x]² at a mean of 10 deviations, two passes at 100"
        self.assertEqual(ElementTree.fromstring(chart)[0].text, title)
        self.assertIn("rows that become NaN", chart)
        (self.root / "docs/charts/offset_error.svg").unlink()
        self.charts("--gpu", "h200")
        self.assertNotIn("docs/charts/offset_error.svg", self.svgs())

    def test_check_finds_a_changed_result(self) -> None:
        self.charts()
        self.edit("01_naive/results/h200.json", "0.0023886", "0.0024886")
        found = self.charts("--check", expect=1)
        self.assertIn("01_naive/charts/time_h200.svg: differs", found)
        self.assertIn("docs/charts/ladder_h200.svg: differs", found)

    def test_check_finds_an_edited_and_a_missing_chart(self) -> None:
        self.charts()
        self.edit("02_tree/charts/time_h200.svg", "tree", "three")
        (self.root / "docs/charts/ladder_h200.svg").unlink()
        found = self.charts("--check", expect=1)
        self.assertIn("02_tree/charts/time_h200.svg: differs", found)
        self.assertIn("docs/charts/ladder_h200.svg: is missing", found)

    def test_marks_what_an_earlier_kernel_took(self) -> None:
        self.edit("02_tree/kernels.cuh", "tree(float* x)", "tree(float* y)")
        self.charts()
        for name, text in self.svgs().items():
            old = "02_tree" in name or name.startswith(("docs/charts/ladder", "docs/charts/numerics"))
            self.assertEqual("†" in text.decode(), old, name)

    def drew(self, *arguments: str) -> set[str]:
        """What is drawn, of what had been drawn before."""
        lines = self.charts(*arguments).splitlines()
        found = {line.removeprefix("drew ") for line in lines if line.startswith("drew ")}
        self.assertEqual(lines[-1], f"{len(found)} drawn, {9 - len(found)} up to date")
        return found

    def test_draws_what_has_changed(self) -> None:
        self.assertEqual(self.drew(), set(self.svgs()))
        self.assertEqual(self.drew(), set())
        both = {"docs/charts/cold_warm_h200.svg, which is as it was", "docs/charts/ladder_h200.svg"}
        numerics = "docs/charts/numerics_h200.svg, which is as it was"
        self.edit("02_tree/results/h200.json", "8.168e-05", "8.268e-05")
        self.assertEqual(self.drew(), {"02_tree/charts/time_h200.svg", numerics, *both})
        self.edit("02_tree/kernels.cuh", "tree(float* x)", "tree(float* y)")  # daggers
        self.assertEqual(self.drew(), {"02_tree/charts/time_h200.svg", numerics.split(",")[0], *both})
        (self.root / "01_naive/results/h200.json").rename(self.root / "aside.json")
        self.assertIn("02_tree/charts/time_h200.svg", self.charts())  # which shows the stage before
        (self.root / "aside.json").rename(self.root / "01_naive/results/h200.json")
        self.charts()
        self.charts("--check", "--force")

    def test_draws_again_what_was_edited_or_deleted(self) -> None:
        self.charts()
        first = self.svgs()
        self.edit("02_tree/charts/time_h200.svg", "tree", "three")
        (self.root / "docs/charts/ladder_h200.svg").unlink()
        self.assertEqual(self.drew(), {"02_tree/charts/time_h200.svg", "docs/charts/ladder_h200.svg"})
        self.assertEqual(self.svgs(), first)
        self.write("build/charts.json", '{"drawn_by": 7')
        self.assertEqual(len(self.drew()), 6)
        charts = {name for name in first if name.endswith("_h200.svg")}
        self.assertEqual(self.drew("--force"), {f"{name}, which is as it was" for name in charts})

    def test_draws_again_with_other_code(self) -> None:
        for file in REPORT.glob("*.py"):
            shutil.copy(file, self.write(f"code/{file.name}", ""))

        def last_line() -> str:
            command = [str(PLOTTER), self.root / "code/charts.py", "--root", self.root, "--stage", "02"]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        self.assertEqual(last_line(), "drew 02_tree/charts/time_h200.svg\n1 drawn, 0 up to date\n")
        self.edit("code/sync.py", "import argparse", "import argparse  # which draws nothing")
        self.assertEqual(last_line(), "0 drawn, 1 up to date\n")
        self.edit("code/svg.py", '"#1f2328"', '"#000000"')  # the ink
        self.assertEqual(last_line(), "drew 02_tree/charts/time_h200.svg\n1 drawn, 0 up to date\n")

    def test_another_gpu_gets_charts_of_its_own(self) -> None:
        other = self.read("01_naive/results/h200.json")
        self.write("01_naive/results/rtx4050.json", other)
        self.charts("--gpu", "rtx4050")
        self.assertEqual({name for name in self.svgs() if not name.endswith("rtx4050.svg")}, set())
        self.assertIn("01_naive/charts/time_rtx4050.svg", self.svgs())

    def test_one_stage_only(self) -> None:
        self.charts("--stage", "02")
        self.assertEqual(list(self.svgs()), ["02_tree/charts/time_h200.svg"])

    def test_names_a_chart_that_nothing_draws(self) -> None:
        self.charts()
        (self.root / "01_naive/results/h200.json").unlink()
        left = [f"01_naive/charts/{name}_h200.svg: nothing draws it now" for name in ("share", "time")]
        for arguments, expect in (([], 0), (["--check"], 1)):
            found = self.charts(*arguments, expect=expect)
            for words in left:
                self.assertIn(words, found)
        self.assertNotIn("nothing draws", self.charts("--check", "--stage", "02"))

    def test_says_what_has_no_results(self) -> None:
        self.assertIn("03_later has no results yet, and so no charts", self.charts())

    def test_wrong_usage_has_exit_code_2(self) -> None:
        self.assertIn(
            "no stage has results of 'abacus'; there are results of: h200", self.charts("--gpu", "abacus", expect=2)
        )
        self.assertIn("there is no stage '09'", self.charts("--stage", "09", expect=2))


def run_of(
    stage: str,
    *,
    commit: str = "c0ffee",
    benchmarks: list[dict] | None = None,
    checks: list[dict] | None = None,
    **context: str,
) -> dict:
    """What a stage's program writes."""
    base = {
        "stage": stage, "backend": "gpu", "gpu": "Invented GPU", "gpu_short": "invented", "commit": commit,
        "dirty": "false", "source_hash": "f00d", "compiler": "nvcc", "flags": "-O3", "driver": "1.2",
        "date": "2026-11-21T01:02:03", "clocks_before": "1980 MHz, 3201 MHz, 34, 187.59 W",
        "clocks_after": "1980 MHz, 3201 MHz, 38, 321.99 W",
    }
    return {
        "context": base | context, "benchmarks": benchmarks or [], "checks": checks or [], "streams": [],
        "resources": [],
    }


class Reading(unittest.TestCase):
    """A results file as a program writes it now."""

    def read(self, document: dict) -> tuple[results.Timing, ...]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "results.json"
            path.write_text(json.dumps(document), encoding="utf-8")
            return results.Repository().results_in(path).timings

    def test_repetitions_are_samples(self) -> None:
        entries, stream = sampled("01_naive", "plain", 10.0)
        checked = check("01_naive", "plain", "normal", 1.5) | {
            "name": "01_naive/plain/layernorm_forward/fp32/1024x1024"
        }
        (timing,) = self.read(
            {
                "benchmarks": entries,
                "streams": [stream],
                "checks": [checked | {"after_timing": False, "max_ulp_error": 9.0}, checked | {"after_timing": True}],
            }
        )
        self.assertEqual(timing.name, "01_naive/plain/layernorm_forward/fp32/1024x1024/cold")
        self.assertAlmostEqual(timing.seconds, 10e-6)
        self.assertAlmostEqual(timing.spread or 0, 0.10)
        self.assertAlmostEqual(timing.share_of_copy or 0, 0.5)
        self.assertAlmostEqual(timing.copy_seconds or 0, 5e-6)
        self.assertEqual(timing.samples, 40)
        self.assertAlmostEqual((timing.bytes_per_second or 0) * 1e-9, 840.4992)
        self.assertEqual(
            set(timing.counters),
            {
                "median_seconds",
                "min_seconds",
                "samples",
                "bytes",
                "bytes_per_second",
                "spread",
                "share_of_copy",
                "stream_median_seconds",
                "stream_drift",
                "max_ulp_error",
            },
        )
        self.assertAlmostEqual(timing.counters["min_seconds"], 9.5e-6)
        self.assertEqual(timing.counters["max_ulp_error"], 1.5)

    def test_single_repetitions_that_are_in_the_file_too_change_nothing(self) -> None:
        entries, stream = sampled("01_naive", "plain", 10.0)
        single = [
            {key: value for key, value in entries[0].items() if not key.startswith("aggregate")}
            | {"name": entries[0]["run_name"], "run_type": "iteration", "repetition_index": i, "real_time": 50.0}
            for i in range(3)
        ]
        self.assertEqual(
            self.read({"benchmarks": single + entries, "streams": [stream]}),
            self.read({"benchmarks": entries, "streams": [stream]}),
        )

    def test_one_repetition_is_the_figure(self) -> None:
        entry = {
            "name": "01_naive/plain/layernorm_forward/fp32/1024x1024/warm/manual_time",
            "run_type": "iteration",
            "repetitions": 1,
            "iterations": 1000,
            "real_time": 0.25,
            "time_unit": "ms",
            "bytes": 64.0,
            "bytes_per_second": 256e3,
        }
        (timing,) = self.read({"benchmarks": [entry | {"run_name": entry["name"]}]})
        self.assertAlmostEqual(timing.seconds, 250e-6)
        self.assertEqual((timing.mode, timing.spread, timing.share_of_copy, timing.samples), ("warm", None, None, 1))

    def test_what_failed_has_no_time(self) -> None:
        entries, _ = sampled("01_naive", "plain", 10.0)
        self.assertEqual(self.read({"benchmarks": [entries[0] | {"error_occurred": True, "error_message": "no"}]}), ())
        self.assertEqual(self.read({"benchmarks": [entry | {"run_name": "someone/elses"} for entry in entries]}), ())

    def test_a_summary_of_old_is_read_as_ever(self) -> None:
        (timing,) = self.read({"benchmarks": [benchmark("01_naive", "plain", 10.0)]})
        self.assertEqual(
            (timing.samples, timing.spread, timing.share_of_copy, timing.counters["max_ulp_error"]),
            (100, 0.0123, 0.5, 1.5),
        )
        self.assertAlmostEqual(timing.seconds, 10e-6)


class SourceNote(unittest.TestCase):
    """What a table says of where its figures come from."""

    def note(self, *runs: tuple[str, str]) -> list[str]:
        """Of runs, each with its file and commit, below a table in docs/."""
        where = place.Place(mock.Mock(), Path("/tree/docs/page.md"), {}, "h200")
        day = {"gpu": "H200", "date": "2026-07-30"}
        files = [results.ResultFile(Path("/tree", path), day | {"commit": commit}, (), ()) for path, commit in runs]
        return place.source_note(where, files)

    def test_runs_of_one_file_name_it_once(self) -> None:
        first, second = ("docs/compare/h200.json", "a" * 40), ("docs/compare/h200.json", "b" * 40)
        self.assertEqual(self.note(first, first, second), [
            "H200, 2026-07-30, commit `aaaaaaaaaa`; 2026-07-30, commit `bbbbbbbbbb`: "
            "[compare/h200.json](compare/h200.json)"
        ])

    def test_many_runs_are_named_by_their_number(self) -> None:
        runs = [("docs/compare/h200.json", letter * 40) for letter in "abc"]
        self.assertEqual(self.note(*runs), [
            "H200, 3 runs, 2026-07-30: [compare/h200.json](compare/h200.json)"
        ])

    def test_files_of_one_run_are_named_by_their_stages(self) -> None:
        runs = [(f"{stage}/results/h200.json", "a" * 40) for stage in ("01_naive", "05_welford")]
        self.assertEqual(self.note(*runs), [
            "H200, 2026-07-30, commit `aaaaaaaaaa`: [stage 01](../01_naive/results/h200.json), "
            "[stage 05](../05_welford/results/h200.json)"
        ])


class Merge(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def merge(self, *runs: dict, expect: int = 0) -> tuple[dict, str]:
        for index, run in enumerate(runs):
            (self.root / f"{index}.json").write_text(json.dumps(run), encoding="utf-8")
        files = [self.root / f"{i}.json" for i in range(len(runs))]
        done = SCRIPTS.call("merge_results.py", "--output", self.root / "out.json", *files)
        self.assertEqual(done.returncode, expect, done.stderr)
        out = self.root / "out.json"
        return json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}, done.stderr

    def test_joins_runs_and_keeps_what_each_was(self) -> None:
        first = run_of(
            "01_naive",
            benchmarks=[benchmark("01_naive", "plain", 10.0)],
            checks=[check("01_naive", "plain", "normal", 1.0)],
        )
        second = run_of(
            "01_naive",
            benchmarks=[benchmark("01_naive", "plain", 20.0, shape="64x64")],
            date="2026-11-21T02:00:00",
            checks=[check("01_naive", "plain", "huge", None, right=False)],
        )
        merged, _ = self.merge(first, second)
        self.assertEqual([round(b["median_seconds"] * 1e6) for b in merged["benchmarks"]], [10, 20])
        self.assertEqual([c["input"] for c in merged["checks"]], ["normal", "huge"])
        self.assertEqual(
            [run["date"] for run in merged["context"]["runs"]], ["2026-11-21T01:02:03", "2026-11-21T02:00:00"]
        )
        self.assertEqual(merged["context"]["commit"], "c0ffee")

    def test_the_later_figure_counts(self) -> None:
        runs = [
            run_of(
                "01_naive",
                benchmarks=[benchmark("01_naive", "plain", us)],
                checks=[check("01_naive", "plain", "normal", us)],
            )
            for us in (10.0, 30.0)
        ]
        merged, _ = self.merge(*runs)
        self.assertEqual([round(b["median_seconds"] * 1e6) for b in merged["benchmarks"]], [30])
        self.assertEqual([c["max_ulp_error"] for c in merged["checks"]], [30.0])

    def test_statistics_of_a_benchmark_stay_together(self) -> None:
        documents = []
        for microseconds, repetitions in ((10.0, 40), (12.0, 41)):
            entries, stream = sampled("01_naive", "plain", microseconds, repetitions=repetitions)
            documents.append(
                run_of("01_naive", benchmarks=entries)
                | {"streams": [stream | {"median_seconds": microseconds / 2 * 1e-6}]}
            )
        documents[0]["benchmarks"] += sampled("01_naive", "plain", 20.0, mode="warm")[0]
        merged, _ = self.merge(*documents)
        self.assertEqual(len(merged["benchmarks"]), 14)
        self.assertEqual({entry["repetitions"] for entry in merged["benchmarks"] if "/cold/" in entry["name"]}, {41})
        self.assertEqual([entry["median_seconds"] for entry in merged["streams"]], [6e-6])
        # One that was timed by its mean alone takes the place of all statistics, and the other way round.
        alone = documents[1]["benchmarks"][0] | {
            "name": "01_naive/plain/layernorm_forward/fp32/1024x1024/cold/manual_time",
            "run_type": "iteration",
        }
        merged, _ = self.merge(documents[0], run_of("01_naive", benchmarks=[alone]))
        self.assertEqual(sum("/cold/" in entry["name"] for entry in merged["benchmarks"]), 1)
        self.assertEqual(len(self.merge(run_of("01_naive", benchmarks=[alone]), documents[1])[0]["benchmarks"]), 7)

    def test_an_entry_has_a_line(self) -> None:
        entries, stream = sampled("01_naive", "plain", 10.0)
        checks = [check("01_naive", "plain", "normal", 1.0) | {"without": ["gamma"], "damage": ["µ"]}]
        self.merge(run_of("01_naive", benchmarks=entries, checks=checks) | {"streams": [stream]})
        lines = (self.root / "out.json").read_text(encoding="utf-8").splitlines()
        self.assertEqual(sum(line.startswith('  {"') for line in lines), 7 + 1 + 1)
        self.assertTrue(any(line.startswith('  "commit":"') or line.startswith('  "commit": "') for line in lines))
        self.assertTrue(any('"damage":["µ"]' in line for line in lines))

    def test_checks_of_other_problems_are_others(self) -> None:
        one = check("08_batchnorm", "tile", "normal", 1.0)
        merged, _ = self.merge(
            run_of("08_batchnorm", checks=[one]),
            run_of(
                "08_batchnorm",
                checks=[
                    one | {"pixels": 49},
                    one | {"dtype": "bf16"},
                    one | {"pixels": 49, "layout": "channels_first"},
                ],
            ),
        )
        self.assertEqual(len(merged["checks"]), 4)

    def test_refuses_runs_that_do_not_belong_together(self) -> None:
        for key in ("commit", "source_hash", "gpu", "driver", "flags", "dirty"):
            with self.subTest(key):
                _, message = self.merge(run_of("01_naive"), run_of("01_naive", **{key: "another"}), expect=2)
                self.assertIn(f"differ in {key}: 'another' against", message)
                self.assertEqual(list(self.root.glob("out*")), [])

    def test_refuses_what_is_not_there_or_no_json(self) -> None:
        self.merge(run_of("01_naive"))
        (self.root / "1.json").write_text("{", encoding="utf-8")
        for name in ("1.json", "none.json"):
            out, first = self.root / "out2.json", self.root / "0.json"
            done = SCRIPTS.call("merge_results.py", "--output", out, first, self.root / name)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertFalse((self.root / "out2.json").exists())


# A stage's program as the scripts see one: it answers --list, and writes the results that `answers` prepares. It is
# started a hundred times in a test, and needs no packages.
FAKE_PROGRAM = """#!{python} -IS
import json, os, sys
stage = os.path.basename(sys.argv[0])
folder = os.path.dirname(os.path.abspath(sys.argv[0]))
with open(os.path.join(folder, "calls"), "a") as calls:
    calls.write(stage + " " + " ".join(sys.argv[1:]) + "\\n")
with open(os.path.join(folder, "devices"), "a") as devices:
    devices.write(os.environ.get("CUDA_VISIBLE_DEVICES", "all") + "\\n")
if "--list" in sys.argv:
    print(f"{{stage}}: a fake\\n\\nvariants\\n  plain: nothing")
    print("    layernorm_forward in fp32 with parameters in fp32\\n\\ninputs\\n  normal   x")
    sys.exit(0)
answer = json.load(open(os.path.join(folder, "answer-" + stage)))
if "8x128" in sys.argv:
    answer["code"] = 0 if answer["gpu"] else 2
if not answer["gpu"]:
    print("no CUDA device: none")
    sys.exit(2)
if answer.get("sleeps") and "1024x1024" not in sys.argv and "8x128" not in sys.argv:
    import time
    time.sleep(60)
document = answer["document"]
shape = sys.argv[sys.argv.index("--shapes") + 1].split(",")[0] if "--shapes" in sys.argv else "3x3"
for entry in document["benchmarks"]:
    entry["name"] = f"{{stage}}/plain/layernorm_forward/fp32/{{shape}}/cold"
json.dump(document, open(sys.argv[sys.argv.index("--json") + 1], "w"))
print(answer.get("says", "1 check: 1 passed"))
sys.exit(answer["code"])
"""


# A Python that has what the package's tests need, or says what it lacks, and only says how they went.
FAKE_PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then
  echo "{lacks}" >&2
  [ -z "{lacks}" ]
  exit
fi
echo "$NORMWORKLOG_LIBRARY $*" >>"$0-calls"
echo "{says}"
exit {code}
"""
FAKE_SANITIZER = '#!/bin/sh\necho "1 check: 1 passed"\necho "========= ERROR SUMMARY: 0 errors"\n'


class Programs(unittest.TestCase):
    """bench.py and verify.py, with programs that only say what they would have measured."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()
        self.programs, self.output = self.root / "bin", self.root / "out"
        self.programs.mkdir()
        self.enterContext(mock.patch.dict(os.environ))
        for name in ("NORMWORKLOG_LIBRARY", "WORKLOG_PYTHON"):
            os.environ.pop(name, None)
        for stage in ("01_naive", "02_shared_reduction"):
            path = self.programs / stage
            path.write_text(FAKE_PROGRAM.format(python=sys.executable), encoding="utf-8")
            path.chmod(0o755)
            self.answer(stage)
        # No stage's program: it times two GPUs.
        (self.programs / "08_batchnorm_sync").write_text("#!/bin/sh\nexit 2\n", encoding="utf-8")
        (self.programs / "08_batchnorm_sync").chmod(0o755)

    def answer(self, stage: str, code: int = 0, gpu: bool = True, **context: str) -> None:
        document = run_of(
            stage,
            benchmarks=[benchmark(stage, "plain", 10.0)],
            checks=[check(stage, "plain", "normal", 1.0)],
            **context,
        )
        (self.programs / f"answer-{stage}").write_text(
            json.dumps({"code": code, "gpu": gpu, "document": document}), encoding="utf-8"
        )

    def calls(self) -> list[str]:
        """The calls that timed or checked something, since last asked."""
        path = self.programs / "calls"
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        path.write_text("", encoding="utf-8")
        return [line for line in text.splitlines() if "--list" not in line and "8x128" not in line]

    def script(self, name: str, *arguments: str, expect: int = 0) -> str:
        done = SCRIPTS.call(name, "--programs", self.programs, "--output", self.output, *arguments)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def bench(self, *arguments: str, expect: int = 0) -> str:
        return self.script("bench.py", "--work", str(self.root / "work"), "--pause", "0", *arguments, expect=expect)

    def test_bench_writes_results_of_every_stage(self) -> None:
        said = self.bench("--quick")
        self.assertIn("Invented GPU", said)
        self.assertRegex(said, r"\[1/4\] 01_naive, 1024 x 1024 · 0:00 gone, about \d+:\d\d left")
        for stage in ("01_naive", "02_shared_reduction"):
            document = json.loads((self.output / f"{stage}.json").read_text(encoding="utf-8"))
            self.assertEqual(document["context"]["grid"], "quick")
            self.assertEqual([b["name"].split("/")[4] for b in document["benchmarks"]], ["1024x1024", "65536x256"])
        self.assertEqual(list((self.root / "work").rglob("*.json")), [])

    def test_bench_takes_a_stage(self) -> None:
        self.bench("--stage", "02")
        self.assertEqual([path.name for path in self.output.iterdir()], ["02_shared_reduction.json"])
        self.assertIn(
            "there is no stage '09'; there are: 01_naive, 02_shared_reduction", self.bench("--stage", "09", expect=2)
        )

    def test_bench_shares_the_runs_among_gpus(self) -> None:
        self.bench()
        alone = {
            path.name: json.loads(path.read_text(encoding="utf-8"))["benchmarks"] for path in self.output.iterdir()
        }
        (self.programs / "devices").unlink()
        self.bench("--gpus", "2")
        self.assertEqual(
            {path.name: json.loads(path.read_text(encoding="utf-8"))["benchmarks"] for path in self.output.iterdir()},
            alone,
        )
        self.assertLessEqual({"0", "1"}, set((self.programs / "devices").read_text(encoding="utf-8").split()))
        self.answer("01_naive", code=1)
        self.assertIn("Nothing is written for 01_naive", self.bench("--gpus", "2", expect=1))
        self.assertIn("at least one", self.bench("--gpus", "0", expect=2))

    def test_bench_refuses_a_failed_check(self) -> None:
        self.answer("01_naive", code=1)
        said = self.bench(expect=1)
        self.assertIn("a check failed", said)
        self.assertIn("Nothing is written for 01_naive", said)
        self.assertEqual([path.name for path in self.output.iterdir()], ["02_shared_reduction.json"])

    def test_bench_refuses_clocks_that_sink(self) -> None:
        self.answer("01_naive", clocks_after="1500 MHz, 3201 MHz, 88, 700.00 W")
        said = self.bench("--stage", "01", expect=1)
        self.assertIn("the multiprocessors' clock sank from 1980 to 1500 MHz while it was timed; once more", said)
        self.assertFalse(self.output.exists())
        self.assertEqual(len(self.calls()), 2)

    def test_bench_lets_an_idle_clock_rise(self) -> None:
        self.answer("01_naive", clocks_before="345 MHz, 3201 MHz, 30, 80.00 W")
        self.bench("--stage", "01")

    def test_bench_goes_on_where_it_was_stopped(self) -> None:
        self.answer("02_shared_reduction", code=1)
        self.bench(expect=1)
        self.assertEqual(len(self.calls()), 3)  # two of stage 01, and the one of stage 02 that failed
        work = self.root / "work" / "invented-quick"
        self.answer("02_shared_reduction")
        first = next(line for line in self.bench("--plan").splitlines() if line.startswith("02"))
        self.calls()
        # As if it had been stopped after the first run of stage 02.
        fingerprint = hashlib.sha256((self.programs / "02_shared_reduction").read_bytes()).hexdigest()[:16]
        kept = work / f"02_shared_reduction-1024-x-1024-{fingerprint}.json"
        kept.write_text(
            json.dumps(run_of("02_shared_reduction", benchmarks=[benchmark("02_shared_reduction", "plain", 7.0)])),
            encoding="utf-8",
        )
        said = self.bench("--stage", "02")
        self.assertIn("1 of 2 runs were done before and are kept", said)
        self.assertIn("1024x1024", first)
        self.assertEqual(len(self.calls()), 1)
        document = json.loads((self.output / "02_shared_reduction.json").read_text(encoding="utf-8"))
        self.assertEqual([round(b["median_seconds"] * 1e6) for b in document["benchmarks"]], [7, 10])

    def stopped_at(self, run: str, *arguments: str) -> None:
        """Benches as Ctrl-C ends it once `run` has begun."""
        command = [
            sys.executable, REPORT / "bench.py", "--programs", self.programs, "--output", self.output, "--work",
            self.root / "work", *arguments,
        ]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        assert process.stdout
        while run not in process.stdout.readline():
            self.assertIsNone(process.poll())
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 130, said)
        self.assertIn("The same call goes on from here", said)

    def sleeps(self, stage: str) -> None:
        path = self.programs / f"answer-{stage}"
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"sleeps": True}), encoding="utf-8")

    def test_bench_can_be_stopped(self) -> None:
        self.sleeps("01_naive")
        self.stopped_at("[2/2]", "--stage", "01")
        self.assertFalse(self.output.exists())
        self.answer("01_naive")
        self.calls()
        self.assertIn("1 of 2 runs were done before and are kept", self.bench("--stage", "01"))
        self.assertEqual(len(self.calls()), 1)

    def test_bench_stopped_in_a_later_stage_keeps_the_first(self) -> None:
        self.sleeps("02_shared_reduction")
        self.stopped_at("[4/4]")
        self.answer("02_shared_reduction")
        self.calls()
        self.assertIn("3 of 4 runs were done before and are kept", self.bench())
        self.assertEqual(len(self.calls()), 1)
        self.assertEqual(list((self.root / "work").rglob("*.json")), [])

    def test_bench_keeps_a_full_run(self) -> None:
        self.bench("--full", "--stage", "01")
        before = (self.output / "01_naive.json").read_text(encoding="utf-8")
        self.assertIn("holds a full run, which a quick one would replace", self.bench("--stage", "01", expect=2))
        self.assertEqual((self.output / "01_naive.json").read_text(encoding="utf-8"), before)
        self.bench("--full", "--stage", "01")

    def test_without_a_gpu_both_say_what_can_be_done_instead(self) -> None:
        for stage in ("01_naive", "02_shared_reduction"):
            self.answer(stage, gpu=False)
        self.assertIn("./worklog run ", self.bench(expect=2))
        self.assertIn("./worklog test ", self.script("verify.py", expect=2))
        self.assertFalse(self.output.exists())

    def test_verify_checks_every_sweep_and_writes_nothing_by_halves(self) -> None:
        said = self.script("verify.py", "--no-sanitizers")
        self.assertIn("nothing is written", said)
        flags = " ".join(self.calls())
        for words in (
            "--input all", "--row-padding 3 --misalign 1", "--without gamma,beta,mean,rstd", "--rows 0", "1048592x4097",
            "131072",
        ):
            self.assertIn(words, flags)
        self.assertFalse(self.output.exists())

    def test_verify_fails_where_a_check_does(self) -> None:
        self.answer("02_shared_reduction", code=1)
        said = self.script("verify.py", "--no-sanitizers", expect=1)
        self.assertIn("02_shared_reduction, inputs", said)
        self.assertIn("Nothing was written.", said)

    def executable(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        return path

    def with_package(
        self, lacks: str = "", says: str = "12 passed, 3 skipped, 1 warning in 75.50s (0:01:15)", code: int = 0
    ) -> Path:
        """A library beside the programs, and a Python for the package's tests. Returns the library."""
        os.environ["WORKLOG_PYTHON"] = str(
            self.executable("python", FAKE_PYTHON.format(lacks=lacks, says=says, code=code))
        )
        return self.executable("lib/libnormworklog.so", "")

    def test_verify_keeps_what_the_packages_tests_came_to(self) -> None:
        library = self.with_package()
        os.environ["PATH"] = f"{self.executable('tools/compute-sanitizer', FAKE_SANITIZER).parent}:{os.environ['PATH']}"
        suite = {"suite": "python_package_test", "passed": 12, "skipped": 3}

        def kept() -> dict:
            suites = json.loads((self.output / "invented.json").read_text(encoding="utf-8"))["suites"]
            self.assertEqual(len(suites), 1)
            return {key: suites[0][key] for key in suite}

        self.assertIn("python_package_test: 12 passed, 3 skipped", self.script("verify.py"))
        self.assertEqual(
            (self.root / "python-calls").read_text(encoding="utf-8"),
            f"{library} -m pytest -q -p no:cacheprovider tests\n",
        )
        self.assertEqual(kept(), suite)
        library.unlink()
        self.script("verify.py", "--stage", "01")
        self.assertEqual(kept(), suite)  # as other suites that ran before
        os.environ["NORMWORKLOG_LIBRARY"] = str(self.executable("elsewhere.so", ""))
        self.with_package(says="13 passed in 0.50s")
        self.script("verify.py", "--stage", "01")
        self.assertIn(str(self.root / "elsewhere.so"), (self.root / "python-calls").read_text(encoding="utf-8"))
        self.assertEqual(kept(), suite | {"passed": 13, "skipped": 0})

    def test_verify_fails_where_a_test_of_the_package_does(self) -> None:
        self.with_package(says="1 failed, 11 passed in 0.50s", code=1)
        said = self.script("verify.py", expect=1)
        self.assertIn("python_package_test:\n1 failed, 11 passed", said)
        self.assertIn("Nothing was written.", said)

    def test_verify_says_why_it_leaves_the_packages_tests_out(self) -> None:
        left_out = "left out: the Python package's tests with PyTorch"
        self.with_package(lacks="ModuleNotFoundError: No module named 'torch'")
        self.assertIn(
            f"{left_out} ({self.root}/python: ModuleNotFoundError: No module named 'torch')",
            self.script("verify.py", "--no-sanitizers"),
        )
        os.environ["WORKLOG_PYTHON"] = "no-such-python"
        self.assertIn(f"{left_out} (there is no no-such-python)", self.script("verify.py", "--no-sanitizers"))
        (self.root / "lib/libnormworklog.so").unlink()
        self.assertIn(
            f"{left_out} (there is no {self.root}/lib/libnormworklog.so)", self.script("verify.py", "--no-sanitizers")
        )


class Plan(unittest.TestCase):
    """What bench.py would call."""

    @staticmethod
    def cells(run: bench.Run) -> set[tuple[str, str, str, str]]:
        """What a run times: operation, type, shape and timing."""

        def chosen(flag: str) -> list[str]:
            words = run.flags[run.flags.index(flag) + 1].split(",") if flag in run.flags else ["all"]
            return [] if words == ["all"] else words

        there = {
            (operation, dtype) for variant, operation, dtype in run.program.implementations
            if all(
                not chosen(flag) or word in chosen(flag)
                for flag, word in (("--variant", variant), ("--operation", operation), ("--dtype", dtype))
            )
        }
        return {(*each, shape, mode) for each in there for shape in chosen("--shapes") for mode in chosen("--time")}

    def test_the_full_plan_covers_every_cell_that_a_peer_has(self) -> None:
        repository = results.Repository()
        of_stage = {
            "05_welford": ("layernorm_forward",),
            "06_fused_residual": ("rmsnorm_forward", "add_layernorm_forward", "add_rmsnorm_forward"),
            "07_backward": ("layernorm_backward", "rmsnorm_backward", "add_layernorm_backward"),
        }
        for stage, operations in of_stage.items():
            program = bench.Program(Path(stage))
            there = dict.fromkeys(
                (t.variant, t.operation, t.dtype) for t in repository.stage_results(stage, "h200").timings
            )
            program.__dict__["implementations"] = list(there)  # as its --list would say
            runs = list(bench.runs_of(program, full=True))
            self.assertEqual(len({run.name for run in runs}), len(runs))
            planned = set().union(*map(self.cells, runs))
            wanted = {
                (*tables.case_of(t), t.mode) for t in repository.peers("h200").timings if t.operation in operations
            }
            self.assertGreater(len(wanted), 20)
            self.assertEqual(sorted(wanted - planned), [])


class Counters(unittest.TestCase):
    def test_reads_the_profilers_table(self) -> None:
        printed = "\n".join([
            "==PROF== Connected",
            '"ID","Kernel Name","Block Size","Grid Size","dram__bytes_read.sum","smsp__inst_executed.sum"',
            '"","","","","byte","inst"',
            '"0","naive(float *)","(256, 1, 1)","(1,024, 2, 1)","4,194,304","n/a"',
        ])
        self.assertEqual(
            counters.launches_in(printed),
            [
                {
                    "kernel": "naive(float *)",
                    "grid": "(1,024, 2, 1)",
                    "block": "(256, 1, 1)",
                    "metrics": {"dram_read_bytes": 4194304.0, "instructions": None},
                }
            ],
        )
        self.assertEqual(counters.launches_in("no table"), [])
        self.assertEqual(counters.product("(1024, 2, 1)"), 2048)

    def test_a_stage_takes_the_place_of_what_was_captured_before(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "h200.json"
            entry = lambda stage, value: {"stage": stage, "value": value}  # noqa: E731
            path.write_text(
                json.dumps({
                    "context": 1,
                    "stages": [entry("01", 1), entry("02", 1)],
                    "kernels": [entry("01", 1), entry("02", 1), entry("02", 2)],
                })
            )
            new = {"context": 2, "stages": [entry("01", 9)], "kernels": [entry("01", 8), entry("01", 9)]}
            merged = counters.merged(path, new)
            self.assertEqual([e["value"] for e in merged["kernels"]], [8, 9, 1, 2])
            self.assertEqual((merged["context"], [e["value"] for e in merged["stages"]]), (2, [9, 1]))
            self.assertEqual(counters.merged(Path(folder) / "none.json", new), new)


class Pages(Playground):
    """What pages.py makes of the repository's Markdown before MkDocs sees it."""

    def staged(self, text: str, name: str = "01_naive/README.md") -> tuple[str, pages.Staging]:
        before, pages.ROOT = pages.ROOT, self.root
        self.addCleanup(setattr, pages, "ROOT", before)
        staging = pages.Staging()
        staging.add(self.write(name, text))
        return staging.written[name], staging

    def test_a_stages_code_stands_in_tabs(self) -> None:
        text, _ = self.staged("Read [the kernels](kernels.cuh) and [the next](../02_tree/README.md#a-tree).\n")
        self.assertEqual(text, "Read [the kernels](code.md) and [the next](../02_tree/README.md#a-tree).\n")
        code = pages.stage_code("01_naive")
        self.assertIn('=== "kernels.cuh"\n\n    ```cuda\n    // One thread per row.', code)

    def test_a_linked_source_file_becomes_a_page(self) -> None:
        self.write("common/x/y.cpp", "int y = 1; // ```\n")
        text, staging = self.staged(
            "See [y](../common/x/y.cpp), [data](results/h200.json) and [far](https://example.org/y.cpp).\n"
        )
        self.assertEqual(
            text, "See [y](../common/x/y.cpp.md), [data](results/h200.json) and [far](https://example.org/y.cpp).\n"
        )
        self.assertEqual(staging.written["common/x/y.cpp.md"], "# common/x/y.cpp\n\n````cpp\nint y = 1; // ```\n````\n")
        self.assertEqual([path.name for path in staging.copied], ["h200.json"])

    def test_a_stages_picture_leads_to_its_page_where_that_is_made(self) -> None:
        text = "![Steps](traces/block.svg) ![Tree](traces/tree.svg)\n"
        self.assertEqual(self.staged(text)[0], text)
        before, pages.ROOT = pages.ROOT, self.root
        self.addCleanup(setattr, pages, "ROOT", before)
        staging = pages.Staging(with_traces=True)
        staging.add(self.write("02_shared_reduction/README.md", text))
        self.assertEqual(
            staging.written["02_shared_reduction/README.md"],
            "[![Steps](traces/block.svg)](../traces/02_shared_reduction_beside.html) ![Tree](traces/tree.svg)\n",
        )

    def test_exercises_are_those_that_their_pages_list(self) -> None:
        self.write("01_naive/exercise/README.md", "| task | what |\n| --- | --- |\n| 01.1 A | x |\n| bugs.2 B | y |\n")
        before, pages.ROOT = pages.ROOT, self.root
        self.addCleanup(setattr, pages, "ROOT", before)
        self.write(pages.BUG_HUNT, "# The bug hunt\n\n| bugs.2 | B |\n| bugs.3 | C |\n\n| bugs.3 | why |\n")
        self.assertEqual(pages.exercises(), ["01.1", "bugs.2", "bugs.3"])
        found = pages.documents()
        nav = pages.navigation(found, {path.relative_to(self.root).as_posix(): "" for path in found})
        self.assertIn({"The bug hunt": pages.BUG_HUNT}, nav)

    def test_what_stands_in_a_fence_is_left_alone(self) -> None:
        text = "```md\n[the kernels](kernels.cuh)\n```\n"
        self.assertEqual(self.staged(text)[0], text)

    def test_answers_can_be_folded(self) -> None:
        self.assertIn(
            '<details markdown="1">\n<summary>', self.staged("<details>\n<summary>A</summary>\n\n1. b\n</details>\n")[0]
        )

    def test_every_page_has_its_place(self) -> None:
        self.write("docs/method.md", "# Method\n")
        self.write("common/report/README.md", "# common/report: data\n")
        self.write("common/library/python/README.md", "# In Python\n")
        self.write("01_naive/exercise/README.md", "# Exercises of 01\n")
        self.write("02_tree/notes/README.md", "# Notes\n\n[T](tiles.md) [A](a.md)\n")
        self.write("02_tree/notes/a.md", "# An afterthought\n")
        self.write("02_tree/notes/tiles.md", "# Tiles\n")
        before, pages.ROOT = pages.ROOT, self.root
        self.addCleanup(setattr, pages, "ROOT", before)
        staging = pages.Staging()
        found = pages.documents()
        for path in found:
            staging.add(path)
        staging.written["01_naive/code.md"] = "code"
        nav = pages.navigation(found, staging.written)
        self.assertEqual(nav[0], {"Start": "README.md"})
        self.assertEqual(
            nav[1]["Lessons 01 to 08"][0],
            {"01 · One thread per row": [
                "01_naive/README.md", {"The code": "01_naive/code.md"}, {"Exercises": "01_naive/exercise/README.md"}]},
        )
        self.assertEqual(nav[1]["Lessons 01 to 08"][1:], [{"02 · A tree": ["02_tree/README.md", {"Notes": [
            "02_tree/notes/README.md", {"Tiles": "02_tree/notes/tiles.md"},
            {"An afterthought": "02_tree/notes/a.md"}]}]}])
        self.assertEqual(nav[2], {"Method, numerics, teaching": [{"Method": "docs/method.md"}]})
        self.assertEqual(nav[3], {"How the code is built": [
            {"common/report: data": "common/report/README.md"}, {"In Python": "common/library/python/README.md"}]})
        staging.written["traces/README.md"] = "# Step\n"
        self.assertEqual(pages.navigation(found, staging.written)[2], {"Step through the kernels": "traces/README.md"})
        del staging.written["traces/README.md"]
        self.write("docs/primer.md", "# A GPU in ten minutes\n")
        self.write("docs/security.md", "# Security\n")
        self.write("docs/changelog.md", "# Changes\n")
        nav = pages.navigation(pages.documents(), staging.written)
        self.assertEqual(nav[1], {"A GPU in ten minutes": "docs/primer.md"})
        self.assertEqual(nav[3], {"Method, numerics, teaching": [{"Method": "docs/method.md"}]})
        self.assertEqual(nav[5], {"The project": [{"Changes": "docs/changelog.md"}, {"Security": "docs/security.md"}]})


class Slides(Playground):
    """Of the lecture that docs/teaching.md plans."""

    PLAN = """# Teaching

## A lecture

Thirty minutes, *one* question.

| minutes | what | shown |
| ---: | --- | --- |
| 10 | bytes on the board | nothing: `let` them count |
| 20 | [01](../01_naive/README.md): a row | [asks](../01_naive/charts/a.svg), [why](../01_naive/README.md#the-fault) |

## A week
"""

    def setUp(self) -> None:
        super().setUp()
        self.write("docs/teaching.md", self.PLAN)
        self.write("01_naive/charts/a.svg", "<svg><title>What a warp asks for</title></svg>")
        self.write(
            "01_naive/README.md",
            "# 01 · One\n\n**Question.** What does *it* cost?\n\n"
            "## The fault\n\nA < b.\n\n```cuda\nx < 1;\n```\n\n## C\n",
        )

    def test_a_row_makes_a_slide_and_one_for_each_thing_shown(self) -> None:
        deck = slides.deck(self.root)
        found = re.findall(r"<section>(.*?)<footer><span>(.*?)</span>", deck, re.DOTALL)
        self.assertEqual([when for _, when in found], ["", "minutes 0 to 10 of 30", *["minutes 10 to 30 of 30"] * 4])
        self.assertIn("<p>Thirty minutes, <i>one</i> question.</p>", found[0][0])
        self.assertEqual(
            found[1][0], "<h2>bytes on the board</h2><p>Shown: nothing: <code>let</code> them count.</p>")
        self.assertEqual(found[3][0], "<h2>01 · One</h2><p>What does <i>it</i> cost?</p>")
        self.assertIn('<img alt="What a warp asks for" src="data:image/svg+xml;base64,', found[4][0])
        self.assertEqual(found[5][0], "<h2>The fault</h2><p>A &lt; b.</p><pre>x &lt; 1;</pre>")

    def test_a_plan_that_names_what_is_not_there_is_refused(self) -> None:
        self.edit("docs/teaching.md", "#the-fault", "#no-fault")
        with self.assertRaisesRegex(results.ReportError, "README.md of 01_naive has no section 'no-fault'"):
            slides.deck(self.root)
        self.edit("docs/teaching.md", "## A lecture", "## Another")
        with self.assertRaisesRegex(results.ReportError, "no section '## A lecture'"):
            slides.deck(self.root)

    def test_the_lectures_minutes_are_ninety(self) -> None:
        _, parts = slides.plan((SOURCE / "docs/teaching.md").read_text(encoding="utf-8"))
        self.assertEqual(sum(part.minutes for part in parts), 90)
        self.assertNotRegex(slides.deck(SOURCE), r"(?:src|href)=\"(?!data:)")


class Lines(unittest.TestCase):
    MOST = 120  # columns
    CONFLICT = ("<" * 7 + " ", ">" * 7 + " ")  # what git begins a line with where two changes meet

    def lines(self, *patterns: str) -> Iterator[tuple[str, str]]:
        """Those of the files that are committed, each with its place."""
        listed = subprocess.run(
            ["git", "-C", SOURCE, "ls-files", *patterns], capture_output=True, text=True, check=False
        )
        if listed.returncode != 0:
            self.skipTest("this is no git checkout")
        self.assertIn("common/tests/report_test.py", listed.stdout)
        for name in listed.stdout.split():
            content = (SOURCE / name).read_bytes() if (SOURCE / name).is_file() else b"\0"
            if b"\0" not in content:  # the site's font is no text
                for number, line in enumerate(content.decode().splitlines(), 1):
                    yield f"{name}:{number}", line

    def test_none_of_python_or_of_a_script_is_too_long(self) -> None:
        lines = self.lines("*.py", "*.sh", "*.yml", "*.yaml", ".ci/run", "worklog")
        self.assertEqual([place for place, line in lines if len(line) > self.MOST], [])

    def test_none_is_what_git_leaves_of_a_conflict(self) -> None:
        self.assertEqual([place for place, line in self.lines() if line.startswith(self.CONFLICT)], [])


class FrontDoor(unittest.TestCase):
    """What ./worklog does before it does anything."""

    def test_help_builds_and_removes_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            script, kept = Path(folder, "worklog"), Path(folder, "build/kept")
            shutil.copy(SOURCE / "worklog", script)
            kept.parent.mkdir()
            kept.touch()
            for verb in ("run", "trace", "test", "build", "docs", "setup", "clean"):
                for flag in ("--help", "-h"):
                    with self.subTest(verb=verb, flag=flag):
                        done = subprocess.run([script, verb, flag], capture_output=True, text=True, check=False)
                        self.assertEqual((done.returncode, done.stderr), (0, ""))
                        self.assertTrue(done.stdout.startswith("usage: ./worklog VERB"))
            refused = subprocess.run([script, "clean", "all"], capture_output=True, text=True, check=False)
            self.assertEqual(refused.returncode, 2)
            self.assertIn("clean takes no arguments", refused.stderr)
            self.assertTrue(kept.exists())
            subprocess.run([script, "clean"], check=True)
            self.assertFalse(kept.exists())


class Release(unittest.TestCase):
    """What is said of the version, at every place that says it."""

    def found(self, name: str, pattern: str) -> str:
        match = re.search(pattern, (SOURCE / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
        self.assertIsNotNone(match, f"{name} has no {pattern}")
        return match[1]

    def test_it_is_the_same_version(self) -> None:
        version = self.found("CMakeLists.txt", r"^project\(norm_worklog VERSION (\S+)")
        self.assertEqual(self.found("CITATION.cff", r"^version: (\S+)"), version)
        self.assertEqual(self.found("docs/changelog.md", r"^## (\S+)"), version)
        self.assertEqual(self.found("common/library/python/normworklog/__init__.py", r'^__version__ = "(.*)"'), version)

    def test_it_is_of_the_same_day(self) -> None:
        day = self.found("CITATION.cff", r"^date-released: (\S+)")
        self.assertEqual(self.found("docs/changelog.md", r"^## \S+ · (\S+)"), day)


class Imports(unittest.TestCase):
    """The modules of common/report import each other at the top of their files, and in one direction."""

    def test_none_is_hidden_in_a_function(self) -> None:
        modules = {path.stem: ast.parse(path.read_bytes()) for path in REPORT.glob("*.py")}
        functions = [
            (name, node)
            for name, tree in modules.items()
            for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]
        hidden = [
            f"{name}.{function.name} imports {imported}"
            for name, function in functions
            for imported in sorted(modules_imported_in(function) & set(modules))
        ]
        self.assertEqual(hidden, [])

    def test_they_make_no_circle(self) -> None:
        modules = {path.stem: ast.parse(path.read_bytes()) for path in REPORT.glob("*.py")}
        graph = {name: modules_imported_in(tree) & set(modules) for name, tree in modules.items()}
        self.assertIn("text", graph["tables"])
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            self.fail(" imports ".join(reversed(error.args[1])))

    def test_no_module_defines_a_name_twice(self) -> None:
        """The second would be what the callers of the first get."""
        twice = []
        for path in sorted((SOURCE / "common").rglob("*.py")):
            names = [
                node.name for node in ast.parse(path.read_bytes()).body
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            ]
            twice += [f"{path.relative_to(SOURCE)}: {name}" for name in sorted(set(names)) if names.count(name) > 1]
        self.assertEqual(twice, [])

    def test_what_all_share_imports_nothing_of_the_others(self) -> None:
        modules = {path.stem for path in REPORT.glob("*.py")}
        for name in ("text", "grid"):
            self.assertEqual(modules_imported_in(ast.parse((REPORT / f"{name}.py").read_bytes())) & modules, set())


def modules_imported_in(code: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    return found


class Committed(unittest.TestCase):
    """What is committed beside the results is what would be drawn from them now."""

    def test_drawings(self) -> None:
        done = subprocess.run(
            [sys.executable, REPORT / "drawings.py", "--check"], capture_output=True, text=True, check=False
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    @unittest.skipUnless(PLOTTER, NO_PLOTTER)
    def test_all_that_is_generated_comes_back(self) -> None:
        listed = subprocess.run(["git", "-C", SOURCE, "ls-files", "-z"], capture_output=True, text=True, check=False)
        if listed.returncode != 0:
            self.skipTest("this is no git checkout")
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            names = [name for name in listed.stdout.split("\0") if name and (SOURCE / name).is_file()]
            for name in names:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(SOURCE / name, root / name)
            pages = [
                name for name in names if name.endswith(".md") and "sync:" in (root / name).read_text(encoding="utf-8")
            ]
            # Pictures of traces come from a run of the programs: report.trace compares them.
            drawn = [name for name in names if name.endswith(".svg") and "/traces/" not in name]
            self.assertGreater(len(pages), 5)
            self.assertGreater(len(drawn), 10)
            for name in drawn:
                (root / name).unlink()
            emptied = 0
            for name in pages:
                text = (root / name).read_text(encoding="utf-8")
                regions, _ = markdown.regions_of(text)
                for region in reversed(regions):
                    if region.kind == "claim":  # its words are written by hand
                        continue
                    text = text[: region.begin] + text[region.end :]
                    emptied += 1
                (root / name).write_text(text, encoding="utf-8")
            self.assertGreater(emptied, 50)
            for command in ([str(PLOTTER), REPORT / "charts.py"], [sys.executable, REPORT / "sync.py"]):
                done = subprocess.run([*command, "--root", root], capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            for name in pages:
                self.assertEqual((root / name).read_bytes(), (SOURCE / name).read_bytes(), name)
            for name in drawn:
                self.assertTrue((root / name).is_file(), f"{name} did not come back")
                self.assert_same_drawing((root / name).read_text(encoding="utf-8"), name)

    # Another processor's logarithm may end in another digit: the sixth behind the point, of positions in pixels.
    POSITION = re.compile(r"-?\d+\.\d{4,}")

    def assert_same_drawing(self, drawn: str, name: str) -> None:
        committed = (SOURCE / name).read_text(encoding="utf-8")
        self.assertEqual(self.POSITION.split(drawn), self.POSITION.split(committed), name)
        for left, right in zip(self.POSITION.findall(drawn), self.POSITION.findall(committed), strict=True):
            self.assertLess(abs(float(left) - float(right)), 1e-3, name)

    def test_lessons_are_measured(self) -> None:
        stages = source_hash.stage_folders(SOURCE)
        self.assertEqual(len(stages), 8)
        glossary = lessons.glossary_of((SOURCE / "docs/glossary.md").read_text(encoding="utf-8"))
        self.assertLessEqual({*lessons.BASIC_TERMS, *lessons.EVERYDAY_TERMS}, set(glossary))
        for stage in stages:
            with self.subTest(stage):
                size = lessons.read(SOURCE / stage / "README.md")
                self.assertGreater(size.words, 1000)
                self.assertGreater(size.lines, 20)
                self.assertTrue(8 < size.sentence < 25, size.sentence)

    def test_peers_and_data_can_be_read(self) -> None:
        repository = results.Repository()
        self.assertGreater(len(repository.peers("h200").timings), 200)
        self.assertEqual(repository.data("article_worklog")["figures"]["naive"], {
            "value": 2.3886, "unit": "ms", "meaning": "kernel 1, one thread per row"})


if __name__ == "__main__":
    unittest.main()
