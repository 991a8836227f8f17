"""What the library's results are worth: how far off they are beside PyTorch's (common/report/accuracy.py), and that a
row does not depend on its batch (common/report/batches.py).

Needs numpy, ml_dtypes and pytest, which .venv has after ./worklog setup; without them it exits with 77, which CTest
counts as Skipped.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from venv_of_tests import need

ROOT = Path(__file__).resolve().parents[2]
need("ml_dtypes", "numpy", "pytest")

import numpy  # noqa: E402
import pytest  # noqa: E402

sys.path.insert(0, str(ROOT / "common/report"))
import accuracy  # noqa: E402
import batches  # noqa: E402
import fuzz  # noqa: E402
from fuzz_memory import OnCpuLayer  # noqa: E402

EVERY = 3  # one case of so many


@pytest.fixture
def memory() -> OnCpuLayer:
    return OnCpuLayer()


def test_results_are_as_near_as_pytorchs(memory: OnCpuLayer) -> None:
    with memory.quiet():
        assert accuracy.check(memory, EVERY, 1 << 20) == []


def test_every_case_has_its_error_of_pytorchs() -> None:
    committed = json.loads(accuracy.COMMITTED.read_text())["errors"]
    assert sorted(committed) == sorted(name for name, _ in accuracy.cases())


def test_a_result_that_is_off_is_found(memory: OnCpuLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    make = fuzz.Call.make

    def spoiled(call: fuzz.Call, stream: int) -> None:
        make(call, stream)
        for name in ("y", "dx"):
            if name in call.buffers:
                values = call.buffers[name].values()
                call.buffers[name].fill(values * (1 + 2.0**-18))

    monkeypatch.setattr(fuzz.Call, "make", spoiled)
    with memory.quiet():
        assert len(accuracy.check(memory, 30, 1 << 16)) > 2


def test_a_row_does_not_depend_on_its_batch(memory: OnCpuLayer) -> None:
    with memory.quiet():
        found = batches.run(memory, True, 1 << 16, every=4)
    assert batches.figures(found)["differing_rows"] == 0
    assert max(max(of) for of in found.values()) == 65536


def test_without_the_flag_it_does(memory: OnCpuLayer) -> None:
    with memory.quiet():
        found = batches.run(memory, False, 1 << 16, every=9)
    assert batches.figures(found)["differing_rows"] > 0


def test_every_width_is_asked_for() -> None:
    widths = {dataclasses.astuple(case)[3] for case in batches.cases(1 << 30)}
    assert widths == set(batches.WIDTHS)
    assert numpy.all(numpy.diff(batches.BATCHES) > 0)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", "-p", "no:cacheprovider"]))
