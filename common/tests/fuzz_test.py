"""Random calls (common/report/fuzz.py) find what they look for: each test spoils a right call in one way.

Needs numpy, ml_dtypes and pytest, which .venv has after ./worklog setup; without them it exits with 77, which CTest
counts as Skipped.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from venv_of_tests import need

ROOT = Path(__file__).resolve().parents[2]
need("ml_dtypes", "numpy", "pytest")

import pytest  # noqa: E402

sys.path.insert(0, str(ROOT / "common/report"))
import fuzz  # noqa: E402
import fuzz_cases  # noqa: E402
import verify  # noqa: E402
from fuzz_memory import OnCpuLayer  # noqa: E402

SEED, CASES, ELEMENTS, COLS = 1, 400, 1 << 13, 4096


@pytest.fixture
def memory() -> OnCpuLayer:
    return OnCpuLayer()


def plain(operation: str) -> fuzz.Case:
    """A case of the operation that leaves nothing out and has nothing in another's place."""
    drawn = (fuzz.draw(SEED, number, ELEMENTS, COLS) for number in range(1000))
    case = next(case for case in drawn if case.operation == operation and case.rows > 1 and case.cols > 8)
    return dataclasses.replace(case, absent=frozenset(), places={}, inputs="normal", dtype="fp32", param_dtype="fp32",
                               offset=dict.fromkeys(case.offset, 0), round_before_gamma=False)


def spoil(monkeypatch: pytest.MonkeyPatch, spoiling) -> None:
    """What a kernel would do wrong: spoiling(call, number of the call)."""
    calls = []
    for kind in (fuzz.Call, fuzz.HeadsCall, fuzz.EightBitsCall):

        def spoiled(call: fuzz.Call, stream: int, make=kind.make) -> None:
            make(call, stream)
            spoiling(call, len(calls))
            calls.append(call)

        monkeypatch.setattr(kind, "make", spoiled)


def test_random_calls_are_right() -> None:
    tally = fuzz.run(None, 0.0, SEED)
    assert (tally.cases, tally.found) == (1, [])
    for number in range(CASES):
        assert fuzz.run(None, 0.0, SEED, number, ELEMENTS, COLS).found == [], number


@pytest.mark.parametrize("operation", fuzz_cases.OPERATIONS)
def test_every_operation_is_drawn_and_right(memory: OnCpuLayer, operation: str) -> None:
    with memory.quiet():
        wrong, errors = fuzz.judge(memory, plain(operation))
    assert wrong == []
    assert errors


def test_a_case_is_its_seed_and_number() -> None:
    assert fuzz.draw(3, 4, ELEMENTS, COLS) == fuzz.draw(3, 4, ELEMENTS, COLS)
    assert fuzz.draw(3, 4, ELEMENTS, COLS) != fuzz.draw(3, 5, ELEMENTS, COLS)


def test_a_wrong_element_is_found(memory: OnCpuLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiling(call: fuzz.Call, _: int) -> None:
        call.buffers["y"].rows[1, 3] += 1e-4

    spoil(monkeypatch, spoiling)
    with memory.quiet():
        wrong, _ = fuzz.judge(memory, plain("layernorm_forward"))
    assert len(wrong) == 1 and "y is" in wrong[0] and "last places off" in wrong[0]


def test_a_nan_is_found(memory: OnCpuLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiling(call: fuzz.Call, _: int) -> None:
        call.buffers["dx"].rows[0, 0] = float("nan")

    spoil(monkeypatch, spoiling)
    with memory.quiet():
        wrong, _ = fuzz.judge(memory, plain("rmsnorm_backward"))
    assert any("dx is inf" in each for each in wrong)


def test_a_wrong_head_is_found(memory: OnCpuLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiling(call: fuzz.Call, _: int) -> None:
        call.buffers["q_out"].elements[0, -1, 3] += 1e-3

    spoil(monkeypatch, spoiling)
    with memory.quiet():
        wrong, _ = fuzz.judge(memory, plain("qk_norm"))
    assert len(wrong) == 1 and "q_out is" in wrong[0] and "last places off" in wrong[0]


def test_a_write_between_tokens_is_found(memory: OnCpuLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    case = plain("qk_norm")
    case = dataclasses.replace(case, heads=fuzz_cases.Heads(2, 1, frozenset(), dict.fromkeys(case.padding, 8)))

    def spoiling(call: fuzz.Call, _: int) -> None:
        q_out = call.buffers["q_out"]
        q_out.all[q_out.begin + 4 * (q_out.strides[0] - 1)] ^= 1  # the last byte but three before the second token

    spoil(monkeypatch, spoiling)
    with memory.quiet():
        wrong, _ = fuzz.judge(memory, case)
    assert wrong == ["q_out: memory was written that is no element of an output"]


@pytest.mark.parametrize("format", ["e4m3", "int8"])
@pytest.mark.parametrize("scaling", ["row", "block", "given"])
def test_a_byte_that_is_one_step_off_is_found(
    memory: OnCpuLayer, monkeypatch: pytest.MonkeyPatch, format: str, scaling: str
) -> None:
    case = plain("rmsnorm_quantized")
    case = dataclasses.replace(case, eight_bits=fuzz_cases.EightBits(format, scaling, 1.0, 0))
    with memory.quiet():
        assert fuzz.judge(memory, case)[0] == []

    def spoiling(call: fuzz.Call, _: int) -> None:
        call.buffers["y"].rows[1, 3] ^= 1

    spoil(monkeypatch, spoiling)
    with memory.quiet():
        wrong, _ = fuzz.judge(memory, case)
    assert len(wrong) == 1 and "y is" in wrong[0]


def test_a_wrong_scale_is_found(memory: OnCpuLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    case = plain("add_layernorm_quantized")
    case = dataclasses.replace(case, eight_bits=fuzz_cases.EightBits("e4m3", "row", 1.0, 0))

    def spoiling(call: fuzz.Call, _: int) -> None:
        call.buffers["scales"].rows[0, 0] *= 1 + 2**-12

    spoil(monkeypatch, spoiling)
    with memory.quiet():
        wrong, _ = fuzz.judge(memory, case)
    assert any("scales is" in each for each in wrong)


def test_batch_invariance_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def judged(_: OnCpuLayer, __: fuzz.Case) -> tuple[list[str], dict[str, float]]:
        asked.append(fuzz._library.is_batch_invariant())
        return [], {}

    monkeypatch.setattr(fuzz, "judge", judged)
    fuzz.run(None, 0.0, SEED, 1, ELEMENTS, COLS, batch_invariant=True)
    fuzz.run(None, 0.0, SEED, 1, ELEMENTS, COLS)
    assert asked == [True, False]


@pytest.mark.parametrize("at", [0, -1])
def test_a_write_into_a_guard_zone_is_found(memory: OnCpuLayer, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    def spoiling(call: fuzz.Call, _: int) -> None:
        call.buffers["y"].all[at] ^= 1

    spoil(monkeypatch, spoiling)
    with memory.quiet():
        wrong, _ = fuzz.judge(memory, plain("rmsnorm_forward"))
    assert "y: memory was written that is no element of an output" in wrong


def test_a_write_into_an_input_is_found(memory: OnCpuLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiling(call: fuzz.Call, _: int) -> None:
        call.buffers["gamma"].rows[0, 0] += 1

    spoil(monkeypatch, spoiling)
    with memory.quiet():
        wrong, _ = fuzz.judge(memory, plain("batchnorm_train"))
    assert "gamma: memory was written that is no element of an output" in wrong


def test_what_differs_from_run_to_run_is_found(memory: OnCpuLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiling(call: fuzz.Call, number: int) -> None:
        if number == 1:
            call.buffers["dgamma"].rows[0, 0] *= 1 + 2**-23

    spoil(monkeypatch, spoiling)
    with memory.quiet():
        wrong, _ = fuzz.judge(memory, plain("layernorm_backward"))
    assert wrong == ["dgamma differs from run to run"]


def test_a_finding_is_printed_as_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(fuzz, "judge", lambda memory, case: (["y is wrong"], {}))
    assert verify.main(["--fuzz", "0", "--seed", "7", "--case", "12", "--elements", "64"]) == 1
    said = capsys.readouterr().out
    assert "again: common/report/verify.py --fuzz 0 --seed 7 --case 12 --elements 64" in said
    assert "1 random calls of seed 7" in said


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
