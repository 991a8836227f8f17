"""Random calls of the library: whatever a caller can choose, against doubles.

    verify.py --fuzz 60 --seed 1                       so many seconds of cases, on the GPU or on the CPU layer
    verify.py --fuzz 0 --seed 1 --case 4711            that one case again
    verify.py --fuzz 60 --seed 1 --batch-invariant     norms over rows are asked for the same bits whatever the batch

A case is drawn from its seed and its number alone. Its tensors lie between guard zones, at any offset and stride; all
that is no element of an output must stay as it was. It is run twice, and must write the same bits. Types of 8 and 16
bits must be rounded as they should. fp32 may be some last places off (see allowed(), and fuzz_reference.py for what one
is), or some times as far as PyTorch on the same values. Where there is no PyTorch, or it has no such output, 8 times as
much is allowed. On a GPU, 8 threads run cases on 8 streams.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz_calls import ALONE, Call, _library
from fuzz_cases import BATCHNORM, EIGHT_BITS, HEADS, Case, draw
from fuzz_eight_bits import EightBitsCall, most_off
from fuzz_heads import HeadsCall
from fuzz_memory import Array, OnCpuLayer, OnGpu

ROUNDED = 0.51  # last places, of a type of 8 or 16 bits


def call_of(memory: Any, case: Case) -> Call:
    if case.operation in HEADS:
        return HeadsCall(memory, case)
    return (EightBitsCall if case.operation in EIGHT_BITS else Call)(memory, case)


@dataclass
class Tally:
    """What a run came to."""

    cases: int = 0
    without_memory: int = 0  # calls that were left out
    seconds: float = 0.0
    worst: dict[str, float] = field(default_factory=dict)  # by operation, type and output
    found: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def allowed(case: Case, name: str, dtype: str) -> tuple[float, float]:
    """How many last places an output may be off, and how many times as far as PyTorch's, where that is more.

    Twenty are two and a half at the root mean square of a row: y is two or three roundings of that size, and the mean
    of a million values has some more. dx is a difference of terms that may be several times as large as it, most of all
    in rows of few columns. Of 16-bit elements, mean and rstd are found in fewer operations: 24 last places of fp32 are
    little beside what x has been rounded by, and so are BatchNorm's 256. And where rows are few, such a mean is found
    from that of the row's first eight values. One of n values may be sqrt(n) root mean squares, an eighth of it is in
    the mean of eight. Each difference from that is rounded to a last place of it, and so is their sum: 2 sqrt(n) of
    those that are counted here, eighths of the root mean square. The variance is what is left of n / 64 times as much:
    n / 64 last places, of which rstd has half. BatchNorm in fp32 is further off than PyTorch's (docs/verified.md), and
    so may sums over a batch be. Those over the heads of all tokens, up to millions of rows, most: a lane adds them up
    one after the other."""
    if dtype != "fp32":
        # What is rounded twice may fall to the other side the first time: that is a last place, times gamma, or up to
        # two of y's. Where it takes y past a power of two, the second rounding is twice as large.
        return ROUNDED + (2.5 if case.round_before_gamma else 0.0), 1.5
    if name == "scales":
        return most_off(case.cols) / ALONE, 1.0
    if case.operation in BATCHNORM:
        return (128.0, 12.0) if case.dtype == "fp32" else (256.0, 8.0)
    if name in ("dgamma", "dbeta"):
        return (128.0, 12.0) if case.operation in HEADS else (48.0, 3.0)
    of_16_bits = max(24.0, {"mean": 2 * math.sqrt(case.cols), "rstd": case.cols / 128}.get(name, 0.0))
    least = of_16_bits if case.dtype != "fp32" else 32.0 if name == "dx" else 20.0
    return least + (2.0 if case.round_before_gamma else 0.0), 4.0


def limit_of(case: Case, name: str, dtype: str, theirs: float | None) -> float:
    """`theirs`: how far PyTorch is off, if it has such an output."""
    most, times = allowed(case, name, dtype)
    if theirs is not None:
        return max(most, times * theirs)
    return most * ALONE if dtype == "fp32" else most


def judge(memory: Any, case: Case) -> tuple[list[str], dict[str, float]]:
    """What is wrong with a case, and the errors of its outputs."""
    call = call_of(memory, case)
    memory.run(call.make, case.graph)
    first = {name: memory.copy(buffer.all) for name, buffer in call.buffers.items()}
    wrong = []
    outputs = call.outputs()
    written = {id(call.buffers[name]) for name in outputs}
    for name, buffer in call.buffers.items():
        if not buffer.was_left_alone(id(buffer) in written):
            wrong.append(f"{name}: memory was written that is no element of an output")
    errors = {}
    wanted = call.wanted()
    lost = {"h"} if call.buffers.get("h") is call.buffers.get("y") else set()
    pytorch: dict[str, Array] | None = None
    for name in sorted(outputs - lost):
        dtype = call.buffers[name].dtype
        errors[name] = call.error(name, call.found(name), wanted)
        kind = call.kind(name)
        if errors[name] <= allowed(case, kind, dtype)[0]:
            continue
        pytorch = call.of_pytorch() if pytorch is None else pytorch
        theirs = call.error(name, pytorch[name], wanted) if name in pytorch else None
        most = limit_of(case, kind, dtype, theirs)
        if errors[name] > most:
            beside = "" if theirs is None else f"; PyTorch {theirs:.2f}"
            wrong.append(f"{name} is {errors[name]:.2f} last places off, and may be {most:.2f}{beside}")
    call.restore()
    memory.run(call.make, False)
    for name in sorted(outputs):
        if not memory.same_bytes(call.buffers[name].all, first[name]):
            wrong.append(f"{name} differs from run to run")
    return wrong, errors


def numbers(only: int | None, until: float) -> Iterator[int]:
    number = 0
    while only is None and (time.monotonic() < until or number == 0):
        yield number
        number += 1
    if only is not None:
        yield only


def run(library: Path | None, seconds: float, seed: int, only: int | None = None, most_elements: int | None = None,
        most_cols: int = 1 << 20, most_found: int = 20, batch_invariant: bool = False) -> Tally:
    """Prints what is found, as a command that repeats it. Ends early where much is."""
    if library:
        _library._loaded = _library.Library(library)
    _library.set_batch_invariant(batch_invariant)
    memory = OnGpu() if _library.load().on_gpu else OnCpuLayer()
    most_elements = most_elements or (1 << 23 if isinstance(memory, OnGpu) else 1 << 16)
    tally = Tally()
    begun = time.monotonic()
    drawn = numbers(only, begun + seconds)

    def work() -> None:
        while True:
            with tally.lock:
                number = next(drawn, None)
            if number is None or len(tally.found) >= most_found:
                return
            case = draw(seed, number, most_elements, most_cols)
            try:
                with memory.quiet():
                    wrong, errors = judge(memory, case)
                memory.give_back()
            except (ValueError, RuntimeError, MemoryError) as error:
                if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # PyTorch's
                    with tally.lock:
                        tally.without_memory += 1
                    memory.give_back()
                    continue
                wrong, errors = [f"{type(error).__name__}: {error}"], {}
            with tally.lock:
                tally.cases += 1
                for name, value in errors.items():
                    key = f"{case.operation} {case.dtype} {name}"
                    tally.worst[key] = max(tally.worst.get(key, 0.0), value)
                if wrong:
                    limits = f" --elements {most_elements} --cols {most_cols}"
                    limits += " --batch-invariant" * batch_invariant
                    tally.found.append(f"{case}: {'; '.join(wrong)}")
                    print(f"{tally.found[-1]}\n  again: common/report/verify.py --fuzz 0 --seed {seed} --case {number}"
                          f"{limits}", flush=True)

    threads = memory.threads if only is None else 1
    with ThreadPoolExecutor(max_workers=threads) as pool:
        for done in [pool.submit(work) for _ in range(threads)]:
            done.result()
    tally.seconds = time.monotonic() - begun
    return tally
