#!/usr/bin/env python3
"""The rules that choose the final kernels (NN/final/tuning_sm_90.h; zero_centered.cuh for weights about zero), beside
what is measured: a rule that quotes a text says that some committed figure reaches it, and one without says that none
does. The locks, which hold the launches of every case that has a committed figure, know by which rule each was chosen.
"""

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "common/report"))

import launches  # noqa: E402
from results import read_json  # noqa: E402

# Where a table's kernels are launched. Stage 06 has the rules of stage 05.
TABLES = {
    ("05_welford/final/tuning_sm_90.h", "06_fused_residual/final/zero_centered.cuh"): (
        "05_welford",
        "06_fused_residual",
    ),
    ("07_backward/final/tuning_sm_90.h", "07_backward/final/zero_centered.cuh"): ("07_backward",),
}
RULE = re.compile(r"^    \{\w+, .*\)(?:, \"(?P<text>[^\"]+)\")?\},", re.MULTILINE)


def texts_of(tables: tuple[str, ...]) -> list[str]:
    """Of the rules that have one, in their order."""
    texts = []
    for table in tables:
        rules = list(RULE.finditer((ROOT / table).read_text(encoding="utf-8")))
        if len(rules) < 4:
            raise AssertionError(f"{table}: no rules are found as they are written today")
        texts += [rule["text"] for rule in rules if rule["text"]]
    return texts


def used_in(stages: tuple[str, ...]) -> dict[str, list[str]]:
    """The cases that each rule was taken for, by its text; by an empty one those of rules that have none."""
    found: dict[str, list[str]] = {}
    for stage in stages:
        for gpu in read_json(launches.lock_path(ROOT, stage, "sm_90"), ROOT)["gpus"]:
            for entry in gpu["launches"]:
                for launch in entry["launches"]:
                    if "rule" in launch:
                        found.setdefault(launch["rule"], []).append(f"{stage}/{entry['case']}")
    return found


class Rules(unittest.TestCase):
    def test_each_text_is_of_one_rule(self) -> None:
        for tables in TABLES:
            texts = texts_of(tables)
            self.assertEqual(sorted(texts), sorted(set(texts)), tables)

    def test_what_is_said_to_be_measured_is(self) -> None:
        for tables, stages in TABLES.items():
            with self.subTest(tables):
                unused = set(texts_of(tables)) - used_in(stages).keys()
                self.assertEqual(sorted(unused), [], "reached by no committed figure")

    def test_what_is_measured_is_said_to_be(self) -> None:
        for tables, stages in TABLES.items():
            with self.subTest(tables):
                self.assertEqual(used_in(stages).get("", []), [], "cases whose rule has no text")


if __name__ == "__main__":
    unittest.main()
