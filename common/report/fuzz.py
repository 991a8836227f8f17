"""Random calls of the library: whatever a caller can choose, against doubles.

    verify.py --fuzz 60 --seed 1                       so many seconds of cases, on the GPU or on the CPU layer
    verify.py --fuzz 0 --seed 1 --case 4711            that one case again

A case is drawn from its seed and its number alone. Its tensors lie between guard zones, at any offset and stride; all
that is no element of an output must stay as it was. It is run twice, and must write the same bits. Types of 16 bits
must be rounded as they should. fp32 may be some last places off (see allowed(), and fuzz_reference.py for what one is),
or some times as far as PyTorch on the same values. Where there is no PyTorch, or it has no such output, 8 times as much
is allowed. On a GPU, 8 threads run cases on 8 streams.
"""

from __future__ import annotations

import math
import random
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz_memory import BYTES, Array, Buffer, OnCpuLayer, OnGpu
from fuzz_reference import Gradients, Norm, error_of, of_pytorch, root_mean_square, scaled
from results import ROOT

sys.path.insert(0, str(ROOT / "common/library/python"))
from normworklog import _library  # noqa: E402

FORWARD = ("layernorm_forward", "rmsnorm_forward", "add_layernorm_forward", "add_rmsnorm_forward")
BACKWARD = ("layernorm_backward", "rmsnorm_backward")
BATCHNORM = ("batchnorm_train", "batchnorm_inference", "batchnorm_backward")
OPERATIONS = (*FORWARD, *BACKWARD, *BATCHNORM)
INPUTS = ("normal", "normal", "large mean", "equal", "bytes", "outlier", "one sign", "heavy", "tiny", "zeros")
WIDTHS = (32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 5120, 8192, 12288, 16384, 32768, 65536, 131072)
ROUNDED = 0.51  # last places, of a type of 16 bits
ALONE = 8  # times as much is allowed where PyTorch has no answer


@dataclass(frozen=True)
class Case:
    """What a caller chooses. For BatchNorm rows are samples, cols channels."""

    operation: str
    dtype: str
    param_dtype: str
    rows: int
    cols: int
    pixels: int
    channels_first: bool
    inputs: str
    absent: frozenset[str]
    places: dict[str, str]  # an output that takes an input's place
    padding: dict[str, int]  # elements between rows
    offset: dict[str, int]  # elements past a 16-byte boundary
    eps: float
    momentum: float
    round_before_gamma: bool
    graph: bool
    workspace: bool
    seed: int

    def __str__(self) -> str:
        pixels = f" of {self.pixels} pixels, {'first' if self.channels_first else 'last'}" if self.pixels > 1 else ""
        chosen = [f"without {', '.join(sorted(self.absent))}" if self.absent else ""]
        chosen += [f"{output} in the place of {place}" for output, place in self.places.items()]
        chosen += [f"{name} {what}" for what, by in (("padded", self.padding), ("off", self.offset))
                   for name in by if by[name]]
        chosen += ["from a graph" if self.graph else "", "round before gamma" if self.round_before_gamma else ""]
        types = self.dtype if self.dtype == self.param_dtype else f"{self.dtype} with {self.param_dtype}"
        rest = "".join(f", {each}" for each in chosen if each)
        return f"{self.operation}, {types}, {self.rows} x {self.cols}{pixels}, {self.inputs}, eps {self.eps:g}{rest}"


def tensors_of(operation: str) -> tuple[list[str], list[str]]:
    """Those with rows: what is read, and what is written."""
    if operation.startswith("add"):
        return ["x", "residual"], ["h", "y"]
    if operation.endswith("backward"):
        return ["dy", "x"] + ["dh"] * (operation in BACKWARD), ["dx"]
    return ["x"], ["y"]


def draw(seed: int, number: int, most_elements: int, most_cols: int) -> Case:
    chance = random.Random(f"{seed}/{number}")
    operation = chance.choice(OPERATIONS)
    of_channels = operation in BATCHNORM
    dtype = chance.choice(("fp32", "fp32", "fp16", "bf16"))

    def size(most: int) -> int:
        most = max(1, most)
        kind = chance.random()
        if kind < 0.25:
            return chance.randint(1, min(most, 64))
        if kind < 0.5:
            return min(most, max(1, chance.choice(WIDTHS) + chance.choice((0, 0, 0, -1, 1, -2, 4, 8))))
        value = int(2 ** chance.uniform(0, most.bit_length() - 1))
        return min(most, value if chance.random() < 0.5 else (value + 7) // 8 * 8)

    cols = size(min(most_cols, most_elements // 2))
    rows = size(min(most_elements // cols, 1 << 20)) + (1 if operation == "batchnorm_train" else 0)
    pixels = size(min(3136, most_elements // (rows * cols))) if of_channels and chance.random() < 0.5 else 1
    read, written = tensors_of(operation)
    odd = chance.random() < 0.4  # else all tensors lie well
    padding = {name: chance.choice((0, 0, 1, 3, 8, 16)) if odd and not of_channels else 0 for name in (*read, *written)}
    offset = {name: chance.randrange(16 // BYTES[dtype]) if odd and chance.random() < 0.5 else 0
              for name in (*read, *written, "gamma", "beta", "dgamma", "dbeta")}
    optional = {"gamma", "beta", "mean", "rstd"}
    if operation.endswith("backward"):
        optional = {"gamma", "dx", "dgamma", "dbeta", "dh"}
    elif of_channels:
        optional = {"gamma", "beta", "running_mean", "running_var"}
        if operation == "batchnorm_inference":
            optional -= {"running_mean", "running_var"}
    leaves_out = chance.random() < 0.4
    absent = frozenset(name for name in sorted(optional) if leaves_out and chance.random() < 0.4)
    places: dict[str, str] = {}
    if operation in FORWARD or operation == "batchnorm_inference":
        for output in written:
            if chance.random() < 0.15:
                place = chance.choice(read)
                if place not in places.values():
                    places[output] = place
    inputs = chance.choice(INPUTS)
    return Case(
        operation, dtype, chance.choice((dtype, "fp32")), rows, cols, pixels, chance.random() < 0.5, inputs, absent,
        places, padding, offset, chance.choice((1e-5, 1e-6, 1e-12, 1e-3)), chance.choice((0.0, 0.1, 1.0)),
        "rmsnorm" in operation and operation in FORWARD and chance.random() < 0.2, chance.random() < 0.1,
        chance.random() < 0.8, chance.randrange(1 << 30))


def values_of(memory: Any, kind: str, shape: tuple[int, int], dtype: str, seed: int) -> Array:
    """Doubles, some of which the type may round."""
    normal = memory.normal(shape, seed)
    count = memory.counted(shape[0] * shape[1]).reshape(shape)
    few_digits = dtype != "fp32"
    if kind == "large mean":
        return normal + (30.0 if few_digits else 1e4)
    if kind == "equal":
        return normal * 0 + 3.3
    if kind == "bytes":
        return count % 256
    if kind == "outlier":
        where = (count * 7 + seed) % max(1, min(shape[1], 44397)) == 0
        return memory.xp.where(where, normal * 0 + 3e4, normal * 0 + 1e-3)
    if kind == "one sign":
        return memory.xp.abs(normal) + 0.5
    if kind == "heavy":
        return normal * normal * normal
    if kind == "tiny":
        return normal * (1e-3 if dtype == "fp16" else 1e-15)
    return normal * 0 if kind == "zeros" else normal


class Call:
    """The tensors of a case, the call, and what it should have written."""

    def __init__(self, memory: Any, case: Case) -> None:
        self.memory, self.case = memory, case
        self.seed = case.seed
        self.buffers: dict[str, Buffer] = {}
        self.read, self.written = tensors_of(case.operation)
        shape = self.shape()
        for name in self.read:
            kind = case.inputs if name != "dy" else "normal"
            if name not in case.absent:
                self.add(name, case.dtype, *shape).fill(values_of(memory, kind, shape, case.dtype, self.next_seed()))
        for name in ("gamma", "beta"):
            unused = name == "beta" and case.operation.endswith("backward")
            if name not in case.absent and self.takes(name) and not unused:
                values = memory.normal((1, case.cols), self.next_seed())
                self.add(name, case.param_dtype, 1, case.cols).fill(values + (1 if name == "gamma" else 0))
        self.add_statistics()
        for name in self.written:
            if name in case.places:
                self.buffers[name] = self.buffers[case.places[name]]
            elif name not in case.absent:
                self.add(name, case.dtype, *shape)
        for name in ("dgamma", "dbeta"):
            if case.operation.endswith("backward") and name not in case.absent and self.takes(name):
                self.add(name, case.param_dtype, 1, case.cols)
        self.inputs = {name: buffer.values() for name, buffer in self.buffers.items()}
        self.bytes_before = {name: memory.copy(buffer.all) for name, buffer in self.buffers.items()}
        self.workspace = self.room() if case.workspace or case.graph else None

    def next_seed(self) -> int:
        self.seed += 1
        return self.seed

    def takes(self, name: str) -> bool:
        return name not in ("beta", "dbeta") or "rmsnorm" not in self.case.operation

    def shape(self) -> tuple[int, int]:
        case = self.case
        if case.operation not in BATCHNORM:
            return case.rows, case.cols
        if case.channels_first:
            return case.rows * case.cols, case.pixels
        return case.rows * case.pixels, case.cols

    def add(self, name: str, dtype: str, rows: int, cols: int) -> Buffer:
        stride = cols + self.case.padding.get(name, 0)
        offset = self.case.offset.get(name, 0) % (16 // BYTES[dtype])
        self.buffers[name] = Buffer(self.memory, dtype, rows, cols, stride, offset, self.next_seed())
        return self.buffers[name]

    def add_statistics(self) -> None:
        case = self.case
        if case.operation in BATCHNORM:
            if case.operation != "batchnorm_backward":
                for name in ("running_mean", "running_var"):
                    if name not in case.absent:
                        values = self.memory.normal((1, case.cols), self.next_seed())
                        self.add(name, "fp32", 1, case.cols).fill(values * values + 0.1)
            if case.operation != "batchnorm_inference":
                names = ("save_mean", "save_invstd")
                given = self.norm_of_input() if case.operation.endswith("backward") else None
                for name, values in zip(names, (given.mean, given.rstd) if given else (None, None), strict=True):
                    buffer = self.add(name, "fp32", 1, case.cols)
                    if values is not None:
                        buffer.fill(values.T)
            return
        given = self.norm_of_input() if case.operation in BACKWARD else None
        for name in ("mean", "rstd"):
            if name in case.absent or (name == "mean" and "rmsnorm" in case.operation):
                continue
            buffer = self.add(name, "fp32", 1, case.rows)
            if given:
                buffer.fill((given.mean if name == "mean" else given.rstd).T)

    def as_rows(self, values: Array) -> Array:
        """Of BatchNorm, a row for each channel."""
        case = self.case
        if case.operation not in BATCHNORM:
            return values
        if case.channels_first:
            swapped = values.reshape(case.rows, case.cols, case.pixels).swapaxes(0, 1)
            return swapped.reshape(case.cols, case.rows * case.pixels)
        return values.T

    def norm_of_input(self) -> Norm:
        x = self.as_rows(self.buffers["x"].values())
        return Norm(self.memory, x, self.case.eps, "rmsnorm" not in self.case.operation)

    def room(self) -> Array | None:
        case, types = self.case, (_library.DTYPES[self.case.dtype], _library.DTYPES[self.case.param_dtype])
        if case.operation in BACKWARD:
            centered = "layernorm" in case.operation
            size = _library.backward_workspace_bytes(centered, case.rows, case.cols, *types)
        elif case.operation in ("batchnorm_train", "batchnorm_backward"):
            size = _library.batch_norm_workspace_bytes(
                case.operation.endswith("backward"), case.rows, case.cols, case.pixels, case.channels_first, *types)
        else:
            return None
        return self.memory.bytes(size, self.next_seed())

    def make(self, stream: int) -> None:
        case = self.case
        types = (_library.DTYPES[case.dtype], _library.DTYPES[case.param_dtype])

        def at(*names: str) -> list[int]:
            return [self.buffers[name].address if name in self.buffers else 0 for name in names]

        def strides(*names: str) -> list[int]:
            return [self.buffers[name].stride if name in self.buffers else case.cols for name in names]

        work = [self.memory.address(self.workspace), len(self.workspace)] if self.workspace is not None else [0, 0]
        if case.operation in FORWARD:
            summed = case.operation.startswith("add")
            rows = ("x", "residual", "h", "y") if summed else ("x", "y")
            function = getattr(_library, ("add_" if summed else "") + (
                "layer_norm" if "layernorm" in case.operation else "rms_norm"))
            heads = at("x", "residual", "gamma", "beta", "h", "y") if summed else at("x", "gamma", "beta", "y")
            function(*heads, *at("mean", "rstd"), case.rows, case.cols, *strides(*rows), case.eps,
                     case.round_before_gamma, *types, stream)
        elif case.operation in BACKWARD:
            centered = "layernorm" in case.operation
            function = _library.layer_norm_backward if centered else _library.rms_norm_backward
            function(*at("dy", "x", "dh", "gamma", "mean", "rstd", "dx", "dgamma", "dbeta"), *work, case.rows,
                     case.cols, *strides("dy", "x", "dh", "dx"), *types, stream)
        else:
            sizes = (case.rows, case.cols, case.pixels, case.channels_first)
            if case.operation == "batchnorm_train":
                _library.batch_norm_train(
                    *at("x", "gamma", "beta", "y", "running_mean", "running_var", "save_mean", "save_invstd"), *work,
                    *sizes, case.momentum, case.eps, *types, stream)
            elif case.operation == "batchnorm_inference":
                _library.batch_norm_inference(*at("x", "gamma", "beta", "running_mean", "running_var", "y"), *sizes,
                                              case.eps, *types, stream)
            else:
                _library.batch_norm_backward(
                    *at("dy", "x", "gamma", "save_mean", "save_invstd", "dx", "dgamma", "dbeta"), *work, *sizes, *types,
                    stream)

    def outputs(self) -> set[str]:
        case = self.case
        names = {*self.written, "dgamma", "dbeta"}
        if case.operation in FORWARD:
            names |= {"mean", "rstd"}
        if case.operation == "batchnorm_train":
            names |= {"save_mean", "save_invstd", "running_mean", "running_var"}
        return names & set(self.buffers)

    def restore(self) -> None:
        for name, buffer in self.buffers.items():
            buffer.all[:] = self.bytes_before[name]

    def wanted(self) -> dict[str, tuple[Array, Array]]:
        """Of each output: the values, as its rows are compared, and the scale of an error."""
        case, memory = self.case, self.memory
        outputs = self.outputs() - set(self.read)
        given = {name: values for name, values in self.inputs.items() if name not in outputs}
        gamma, beta = given.get("gamma"), given.get("beta")
        of_channels = case.operation in BATCHNORM
        if of_channels:
            gamma, beta = (None if each is None else each.T for each in (gamma, beta))
        x = self.as_rows(given["x"])
        if case.operation.endswith("backward"):
            names = ("save_mean", "save_invstd") if of_channels else ("mean", "rstd")
            mean, rstd = (None if name not in given else given[name].T for name in names)
            dh = given.get("dh")
            dy = self.as_rows(given["dy"])
            found = Gradients(memory, dy, x, dh, gamma, mean, rstd)
            if of_channels:  # the sums are over a row here
                terms = dy * (x - mean) * rstd
                sums = {"dgamma": terms, "dbeta": dy}
                wanted = {name: (of.sum(1)[None, :], memory.xp.sqrt((of * of).sum(1))[None, :])
                          for name, of in sums.items()}
            else:
                wanted = {"dgamma": (found.dgamma, found.dgamma_scale), "dbeta": (found.dbeta, found.dbeta_scale)}
            return wanted | {"dx": (found.dx, found.scale)}
        wanted = {}
        if case.operation.startswith("add"):
            total = given["x"] + given["residual"]
            wanted["h"] = (total, memory.xp.abs(total))
            x = memory.double(memory.cast(memory.cast(total, "fp32"), case.dtype))
        if case.operation == "batchnorm_inference":
            rstd = 1 / memory.xp.sqrt(given["running_var"].T + case.eps)
            xhat = (x - given["running_mean"].T) * rstd
            y = scaled(memory, xhat, gamma, beta, None)
            terms = memory.xp.maximum(memory.xp.abs(x), memory.xp.abs(given["running_mean"].T) + 0 * x) * rstd
            terms = terms if gamma is None else terms * gamma
            return {"y": (y, memory.xp.maximum(root_mean_square(memory, y), root_mean_square(memory, terms)))}
        norm = Norm(memory, x, case.eps, "rmsnorm" not in case.operation)
        y = scaled(memory, norm.xhat, gamma, beta, case.dtype if case.round_before_gamma else None)
        size = root_mean_square(memory, x)
        # Where all of a row is one value, y is nothing, and what is left of the mean's rounding. And where beta takes
        # nearly all of a value away, what is left is as exact as beta.
        scale = memory.xp.maximum(root_mean_square(memory, y), size * norm.rstd * 2.0**-18)
        wanted["y"] = (y, scale if beta is None else memory.xp.maximum(scale + 0 * y, 8 * memory.xp.abs(beta) + 0 * y))
        wanted["mean"] = wanted["save_mean"] = (norm.mean.T, size.T)
        wanted["rstd"] = wanted["save_invstd"] = (norm.rstd.T, norm.rstd.T)
        for name, new in (("running_mean", norm.mean), ("running_var", norm.variance * x.shape[1] / max(
                1, x.shape[1] - 1))):
            if name in self.inputs:
                old = self.inputs[name]
                scale = memory.xp.abs(old) + memory.xp.abs(new.T) + (size.T if name == "running_mean" else 0)
                wanted[name] = (old + case.momentum * (new.T - old), scale)
        return wanted

    def error(self, name: str, values: Array, wanted: dict[str, tuple[Array, Array]]) -> float:
        return error_of(self.memory, values, *wanted[name], self.buffers[name].dtype)

    def found(self, name: str) -> Array:
        values = self.buffers[name].values()
        return self.as_rows(values) if name in ("y", "dx") else values

    def of_pytorch(self) -> dict[str, Array]:
        """PyTorch's outputs, compared as ours are. Empty where it has no such operation."""
        if isinstance(self.memory, OnCpuLayer) or self.case.round_before_gamma:
            return {}
        memory, case = self.memory, self.case
        tensors = {}
        for name, values in self.inputs.items():
            typed = memory.cast(values, self.buffers[name].dtype)
            is_wide = name in ("x", "dy", "dh", "residual")
            tensors[name] = memory.cast(self.as_rows(memory.double(typed)), case.dtype) if is_wide else typed[0]
        if case.operation.startswith("add"):
            tensors["x"] = tensors["x"] + tensors["residual"]
        for name in ("gamma", "beta"):  # PyTorch wants one type, where ours may be wider
            if name in tensors and case.operation not in BATCHNORM:
                tensors[name] = tensors[name].to(tensors["x"].dtype)
        found = of_pytorch(case.operation, tensors, case.eps)
        values = {}
        for name, each in found.items():
            each = memory.double(each)
            values[name] = each if name in ("y", "dx") else each.reshape(1, -1)
        return values


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
    the mean of eight, and that is rounded to a last place of itself: sqrt(n) of those that are counted here, eighths of
    the root mean square. The variance is what is left of n / 64 times as much: n / 64 last places, of which rstd has
    half. BatchNorm in fp32 is further off than PyTorch's (docs/verified.md), and so may sums over a batch be."""
    if dtype != "fp32":
        # What is rounded twice may fall to the other side the first time: that is a last place, times gamma, or up to
        # two of y's. Where it takes y past a power of two, the second rounding is twice as large.
        return ROUNDED + (2.5 if case.round_before_gamma else 0.0), 1.5
    if case.operation in BATCHNORM:
        return (128.0, 12.0) if case.dtype == "fp32" else (256.0, 8.0)
    if name in ("dgamma", "dbeta"):
        return 32.0, 3.0
    of_16_bits = max(24.0, {"mean": math.sqrt(case.cols), "rstd": case.cols / 128}.get(name, 0.0))
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
    call = Call(memory, case)
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
        if errors[name] <= allowed(case, name, dtype)[0]:
            continue
        pytorch = call.of_pytorch() if pytorch is None else pytorch
        theirs = call.error(name, pytorch[name], wanted) if name in pytorch else None
        most = limit_of(case, name, dtype, theirs)
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
        most_cols: int = 1 << 20, most_found: int = 20) -> Tally:
    """Prints what is found, as a command that repeats it. Ends early where much is."""
    if library:
        _library._loaded = _library.Library(library)
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
                    tally.found.append(f"{case}: {'; '.join(wrong)}")
                    print(f"{tally.found[-1]}\n  again: common/report/verify.py --fuzz 0 --seed {seed} --case {number}"
                          f"{limits}", flush=True)

    threads = memory.threads if only is None else 1
    with ThreadPoolExecutor(max_workers=threads) as pool:
        for done in [pool.submit(work) for _ in range(threads)]:
            done.result()
    tally.seconds = time.monotonic() - begun
    return tally
