#!/usr/bin/env python3
"""Every committed figure names a commit of the repository's history (common/report/origins.py)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import unittest
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "common/report"))
import origins  # noqa: E402
from results import ReportError  # noqa: E402
from sync import documents  # noqa: E402

OLD, NEW = "0123456789" * 4, "abcdef0123" * 4
KEY = re.compile(r"<!-- sync:figure key=(\S+)(?: .*?over=(\S+))?")


class Committed(unittest.TestCase):
    def test_every_figure_names_a_commit_of_the_history(self) -> None:
        """In a shallow clone, which has no history, only what a commit looks like is tested."""
        self.assertEqual(origins.problems(ROOT, origins.history_of(ROOT)), [])

    def test_every_marker_of_every_page_leads_to_a_commit(self) -> None:
        keys = {
            key for page in documents(ROOT) for match in KEY.finditer(page.read_text(encoding="utf-8"))
            for key in match.groups()
            if key
        }
        self.assertGreater(len(keys), 100)
        read = lru_cache(None)(origins.origins_in)
        for key in sorted(keys):
            self.assertRegex(origins.origin_of(ROOT, key, "h200", read)[1].commit, r"^[0-9a-f]{10,40}$", key)


class Files(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def write(self, name: str, document: dict[str, Any]) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document), encoding="utf-8")

    def problems(self) -> list[str]:
        return origins.problems(self.root, OLD.startswith)

    def test_results(self) -> None:
        self.write("01_naive/results/h200.json", {"context": {"commit": OLD}, "benchmarks": []})
        self.write(
            "docs/verified/h200.json",
            {"context": {}, "stages": [{"stage": "01_naive", "commit": OLD}, {"stage": "02_tree", "commit": OLD}]},
        )
        self.assertEqual(self.problems(), [])
        self.write("01_naive/results/h200.json", {"context": {"commit": "unknown"}})
        self.write(
            "docs/verified/h200.json",
            {"context": {}, "stages": [{"stage": "01_naive", "commit": NEW}, {"stage": "02_tree"}]},
        )
        self.assertEqual(self.problems(), [
            "01_naive/results/h200.json: 'unknown' is no commit: 10 to 40 hexadecimal digits",
            f"docs/verified/h200.json, 01_naive: the history has no commit {NEW}",
            "docs/verified/h200.json, 02_tree: names no commit",
        ])

    def test_figures(self) -> None:
        def document(figure: dict[str, str], **source: Any) -> dict[str, Any]:
            return {"source": {"title": "t", **source}, "figures": {"a": {"value": 1, "unit": "us"} | figure}}

        for figure, source, problem in (
            ({}, {"commit": OLD, "commit_note": "built from it"}, None),
            ({"commit": OLD[:10]}, {"commits": {OLD[:10]: "first kept here"}}, None),
            (
                {"commit": OLD[:10]},
                {"commit": NEW, "commit_note": "of others", "commits": {OLD[:10]: "first kept here"}},
                None,
            ),
            ({}, {}, "names no commit"),
            ({}, {"commits": {OLD[:10]: "of others"}}, "names no commit"),
            ({}, {"commit": OLD}, f"no note says what commit {OLD} is to the figure"),
            (
                {"commit": OLD[:10]},
                {"commit": OLD, "commit_note": "of others"},
                f"no note says what commit {OLD[:10]} is to the figure",
            ),
            ({"commit": NEW[:10]}, {"commits": {NEW[:10]: "first kept here"}}, f"the history has no commit {NEW[:10]}"),
            (
                {"commit": OLD[:9]},
                {"commits": {OLD[:9]: "short"}},
                f"'{OLD[:9]}' is no commit: 10 to 40 hexadecimal digits",
            ),
        ):
            self.write("docs/data/tried.json", document(figure, **source))
            self.assertEqual(self.problems(), [f"docs/data/tried.json, a: {problem}"] if problem else [])

    def test_a_key_leads_to_its_file(self) -> None:
        self.write(
            "docs/data/tried.json", {"source": {"commits": {OLD: "n"}}, "figures": {"a": {"commit": OLD}, "b": {}}}
        )
        self.write("docs/counters/h200.json", {"stages": [{"stage": "01_naive", "commit": NEW}]})
        self.assertEqual(
            origins.origin_of(self.root, "data/tried/a", "h200"),
            (self.root / "docs/data/tried.json", origins.Origin(OLD, "n")),
        )
        self.assertEqual(origins.origin_of(self.root, "data/tried/b", "h200")[1], origins.Origin(""))
        self.assertEqual(origins.origin_of(self.root, "counters/01_naive/v/o/fp32/1x1", "h200")[1].commit, NEW)
        with self.assertRaisesRegex(ReportError, "tried.json has no 'c'"):
            origins.origin_of(self.root, "data/tried/c", "h200")


class History(unittest.TestCase):
    def git(self, root: Path, *words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", *who, "-C", str(root), *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    def test_commits_are_known_but_in_a_shallow_clone(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            whole, shallow = Path(folder) / "whole", Path(folder) / "shallow"
            whole.mkdir()
            self.assertIsNone(origins.history_of(whole))
            self.git(whole, "init", "-q")
            for message in ("one", "two"):
                self.git(whole, "commit", "-q", "--allow-empty", "-m", message)
            is_known = origins.history_of(whole)
            assert is_known is not None
            self.assertTrue(is_known(self.git(whole, "rev-parse", "HEAD~1")[:10]))
            self.assertFalse(is_known(NEW))
            self.git(whole, "clone", "-q", "--depth", "1", whole.as_uri(), str(shallow))
            self.assertIsNone(origins.history_of(shallow))


if __name__ == "__main__":
    unittest.main()
