"""The example: its text, and that both kinds of norm train the same model the same way."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import normworklog

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import gpt

pytestmark = pytest.mark.skipif(normworklog.backend() == "cuda" and not torch.cuda.is_available(), reason="the library is a GPU build, and PyTorch sees no GPU")


def test_text_is_the_same_everywhere() -> None:
    text = gpt.make_text(2000, seed=1)
    assert len(text) == 2000 and text == gpt.make_text(3000, seed=1)[:2000] and text != gpt.make_text(2000, seed=2)
    for line in text.splitlines()[:-1]:
        assert line.count("(") == line.count(")") and line.endswith(".")


def test_both_train_alike(tmp_path: Path) -> None:
    file = tmp_path / "gpt.json"
    assert gpt.main(["--tiny", "--steps", "4", "--dtype", "fp32", "--json", str(file)]) == 0
    found = json.loads(file.read_text(encoding="utf-8"))
    losses = {name: run["losses"] for name, run in found["runs"].items()}
    assert losses["torch"][-1] < losses["torch"][0]
    assert losses["ours"] == pytest.approx(losses["torch"], abs=1e-3)
    assert found["apart"]["ours"]["largest"] < 1e-3
