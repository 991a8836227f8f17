#!/usr/bin/env python3
"""How the lines of a variant are counted (common/report/kernel_lines.py), and how two builds of the library are
compared (common/report/before_after.py) as far as no GPU is needed for it."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "common/report"
sys.path.insert(0, str(REPORT))
import before_after  # noqa: E402
import kernel_lines  # noqa: E402

SOURCE = """
// A comment.
#pragma once
namespace n {
inline constexpr int lanes = 32;  // counts

template <class T, int size = (4 > 2 ? 1 : 2)>
struct Row {
  T at[size];

  T sum() const { return unused(at[0]); }
};
using Name = Row<float>;
float helper(float a) {
  return a;  // and here
}
float helper(int a);
float other() { return 1.0f; }
template <class T>
__global__ void __launch_bounds__(lanes * 2) kernel(T* x) {
  Row<T> other;
  x[0] = other.at[0] + helper(x[0]);
}
template <class T>
void variant(T* x) {
  launch(kernel<T>, x);
}
}  // namespace n
"""


class Lines(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name) / "kernels.cuh"
        self.file.write_text(SOURCE, encoding="utf-8")

    def test_definitions_and_their_lines(self) -> None:
        found = {d.name: d.lines for d in kernel_lines.definitions(self.file)}
        self.assertEqual(
            found, {"lanes": 1, "Row": 5, "Name": 1, "helper": 3, "other": 1, "kernel": 5, "variant": 4}
        )

    def test_what_a_variant_needs_and_nothing_else(self) -> None:
        """A local variable with a function's name is no call of it."""
        counted = kernel_lines.closure(["variant"], [self.file])
        self.assertEqual({d.name for d in counted}, {"variant", "kernel", "lanes", "Row", "helper"})

    def test_every_variant_is_counted(self) -> None:
        counts = kernel_lines.counts()
        self.assertGreater(min(counts.values()), 10)
        for lesson, final in (
            ("05_welford/held", "05_welford/layer_norm"), ("07_backward/staying", "07_backward/persistent"),
            ("08_batchnorm/one_launch", "08_batchnorm/batch_norm"),
        ):
            self.assertLess(counts[lesson] * 4, counts[final], lesson)

    def test_what_is_committed_is_current(self) -> None:
        committed = json.loads(kernel_lines.DATA.read_text(encoding="utf-8"))["lines"]
        self.assertEqual(committed, kernel_lines.counts(), "python3 common/report/kernel_lines.py --write")


class BeforeAfter(unittest.TestCase):
    def test_cases_are_of_all_kinds_and_stand_once(self) -> None:
        cases = before_after.cases()
        self.assertEqual(len(cases), len(set(cases)))
        self.assertEqual({case.kind for case in cases}, set(before_after.KINDS))
        self.assertEqual({case.operation for case in cases}, set(before_after.TENSORS))
        self.assertEqual({case.pixels > 1 and case.first for case in cases}, {False, True})  # images, too
        self.assertEqual(len({case.name for case in cases}), len(cases))

    def test_drift_cancels(self) -> None:
        """Each turn is twice as slow as the one before, for both alike."""
        samples = {"old": [1.0, 2.0, 4.0], "new": [1.1, 2.2, 4.4]}
        self.assertAlmostEqual(before_after.ratio(samples), 1.1)

    def test_the_summary_names_what_is_slower(self) -> None:
        def entry(case: str, ratio: float) -> dict[str, object]:
            return {"case": case, "ratio": ratio, "old_seconds": 1e-6, "new_seconds": ratio * 1e-6}

        said = "\n".join(before_after.summary([entry("a/cold", 1.2), entry("b/cold", 1.0), entry("c/graph", 0.9)]))
        self.assertIn("cold: 2 cases, median of new / old 1.1000; 1 more than 1 % slower, 0 more than 1 % faster", said)
        self.assertIn("graph: 1 cases, median of new / old 0.9000; 0 more than 1 % slower, 1 more than 1 %", said)
        self.assertIn("a/cold", said)
        self.assertNotIn("b/cold", said)

    def test_a_file_that_is_no_library(self) -> None:
        command = [sys.executable, str(REPORT / "before_after.py"), "none.so", "none.so"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, r"^before_after\.py: none\.so cannot be loaded")


if __name__ == "__main__":
    unittest.main()
