"""The example: its text, and that both kinds of norm train the same model the same way."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import normworklog

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import gpt

pytestmark = pytest.mark.skipif(
    normworklog.backend() == "cuda" and not torch.cuda.is_available(),
    reason="the library is a GPU build, and PyTorch sees no GPU",
)


def test_text_is_the_same_everywhere() -> None:
    text = gpt.make_text(2000, seed=1)
    assert len(text) == 2000 and text == gpt.make_text(3000, seed=1)[:2000] and text != gpt.make_text(2000, seed=2)
    for line in text.splitlines()[:-1]:
        assert line.count("(") == line.count(")") and line.endswith(".")


def trained(file: Path, *arguments: str) -> dict[str, Any]:
    assert gpt.main(["--tiny", "--steps", "4", "--dtype", "fp32", "--json", str(file), *arguments]) == 0
    return json.loads(file.read_text(encoding="utf-8"))


def test_both_train_alike(tmp_path: Path) -> None:
    found = trained(tmp_path / "gpt.json")
    assert found["context"]["seeds"] == 1
    losses = {name: run["losses"] for name, run in found["runs"].items()}
    assert [len(of_seeds) for of_seeds in losses.values()] == [1, 1]
    assert losses["torch"][0][-1] < losses["torch"][0][0]
    assert losses["ours"][0] == pytest.approx(losses["torch"][0], abs=1e-3)
    assert found["apart"]["ours"]["largest"] < 1e-3


def test_each_seed_is_another_run(tmp_path: Path) -> None:
    one, two = trained(tmp_path / "one.json", "--runs", "torch"), trained(tmp_path / "two.json", "--seeds", "2")
    first, second = two["runs"]["torch"]["losses"]
    assert first == pytest.approx(one["runs"]["torch"]["losses"][0], abs=1e-3)
    assert second != pytest.approx(first, abs=1e-3)
    gap = two["apart"]["ours"]
    assert gap["largest"] == max(of_seed["largest"] for of_seed in gap["seeds"]) and len(gap["seeds"]) == 2


def test_the_gap_is_said_beside_that_of_rounding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    curves = {
        "torch": [[3.0, 2.0], [3.0, 2.5]],
        "ours": [[3.0, 2.1], [3.0, 2.7]],
        gpt.ROUNDING: [[3.0, 2.3], [3.0, 2.5]],
    }
    of = {
        function: {"losses": curves[name], "step_seconds": 1.0} for name, function in gpt.RUNS.items() if name in curves
    }
    monkeypatch.setattr(gpt, "train_seeds", lambda size, device, dtype, norms, seeds: of[norms])
    assert gpt.main(["--tiny", "--seeds", "2", "--runs", ";".join(curves)]) == 0
    assert "the largest gap over 2 seeds: ours from torch 0.2000, by rounding alone 0.3000" in capsys.readouterr().out


def test_says_which_kernels_it_trained_with() -> None:
    hashes = gpt.source_hashes()
    assert set(hashes) == {"05_welford", "06_fused_residual", "07_backward"}
    assert all(len(value) == 64 for value in hashes.values())
