"""A random call of a norm over rows or channels: its tensors, the call, and what it should have written."""

from __future__ import annotations

import sys
from typing import Any

from fuzz_cases import BACKWARD, BATCHNORM, FORWARD, Case, tensors_of
from fuzz_memory import BYTES, Array, Buffer, OnCpuLayer
from fuzz_reference import Gradients, Norm, error_of, of_pytorch, root_mean_square, scaled
from results import ROOT

sys.path.insert(0, str(ROOT / "common/library/python"))
from normworklog import _library  # noqa: E402

ALONE = 8  # times as much is allowed where PyTorch has no answer


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
        self.add_inputs()
        self.add_statistics()
        self.add_outputs()
        self.inputs = {name: buffer.values() for name, buffer in self.buffers.items()}
        self.bytes_before = {name: memory.copy(buffer.all) for name, buffer in self.buffers.items()}
        self.workspace = self.room() if case.workspace or case.graph else None

    def add_inputs(self) -> None:
        case, shape = self.case, self.shape()
        for name in self.read:
            kind = case.inputs if name != "dy" else "normal"
            if name not in case.absent:
                values = values_of(self.memory, kind, shape, case.dtype, self.next_seed())
                self.add(name, case.dtype, *shape).fill(values)
        for name in ("gamma", "beta"):
            unused = name == "beta" and case.operation.endswith("backward")
            if name not in case.absent and self.takes(name) and not unused:
                self.add_parameter(name, about=1.0 - case.gamma_offset if name == "gamma" else 0.0)

    def add_parameter(self, name: str, about: float) -> None:
        values = self.memory.normal((1, self.case.cols), self.next_seed())
        self.add(name, self.case.param_dtype, 1, self.case.cols).fill(values + about)

    def add_outputs(self) -> None:
        case = self.case
        for name in self.written:
            if name in case.places:
                self.buffers[name] = self.buffers[case.places[name]]
            elif name not in case.absent:
                self.add(name, self.dtype_of(name), *self.shape())
        for name in ("dgamma", "dbeta"):
            if case.operation.endswith("backward") and name not in case.absent and self.takes(name):
                self.add(name, case.param_dtype, 1, case.cols)

    def dtype_of(self, output: str) -> str:
        del output
        return self.case.dtype

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
        self.buffers[name] = Buffer(self.memory, dtype, (rows, cols), (stride,), offset, self.next_seed())
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

    def types(self) -> tuple[int, int]:
        return _library.DTYPES[self.case.dtype], _library.DTYPES[self.case.param_dtype]

    def at(self, *names: str) -> list[int]:
        """Addresses, 0 of what is not there."""
        return [self.buffers[name].address if name in self.buffers else 0 for name in names]

    def strides(self, *names: str) -> list[int]:
        """From a row to the next."""
        return [self.buffers[name].stride if name in self.buffers else self.case.cols for name in names]

    def work(self) -> list[int]:
        """The workspace's address and size."""
        return [self.memory.address(self.workspace), len(self.workspace)] if self.workspace is not None else [0, 0]

    def room(self) -> Array | None:
        case, types = self.case, self.types()
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
        case, at, strides, types, work = self.case, self.at, self.strides, self.types(), self.work()
        if case.operation in FORWARD:
            summed = case.operation.startswith("add")
            rows = ("x", "residual", "h", "y") if summed else ("x", "y")
            function = getattr(_library, ("add_" if summed else "") + (
                "layer_norm" if "layernorm" in case.operation else "rms_norm"))
            heads = at("x", "residual", "gamma", "beta", "h", "y") if summed else at("x", "gamma", "beta", "y")
            function(*heads, *at("mean", "rstd"), case.rows, case.cols, *strides(*rows), case.eps,
                     case.round_before_gamma, *types, stream, case.gamma_offset)
        elif case.operation in BACKWARD:
            centered = "layernorm" in case.operation
            function = _library.layer_norm_backward if centered else _library.rms_norm_backward
            function(*at("dy", "x", "dh", "gamma", "mean", "rstd", "dx", "dgamma", "dbeta"), *work, case.rows,
                     case.cols, *strides("dy", "x", "dh", "dx"), *types, stream, case.gamma_offset)
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

    def weights(self, given: dict[str, Array], name: str) -> Array | None:
        return given[name] + self.case.gamma_offset if name in given else None

    def wanted(self) -> dict[str, tuple[Array, Array]]:
        """Of each output: the values, as its rows are compared, and the scale of an error."""
        case, memory = self.case, self.memory
        outputs = self.outputs() - set(self.read)
        given = {name: values for name, values in self.inputs.items() if name not in outputs}
        gamma, beta = self.weights(given, "gamma"), given.get("beta")
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

    def kind(self, name: str) -> str:
        """What an output is, by the names of a norm over rows."""
        return name

    def of_pytorch(self) -> dict[str, Array]:
        """PyTorch's outputs, compared as ours are. Empty where it has no such operation."""
        if isinstance(self.memory, OnCpuLayer) or self.case.round_before_gamma:
            return {}
        memory, case = self.memory, self.case
        tensors = {}
        for name, values in self.inputs.items():
            if name == "gamma":  # PyTorch has no weights about zero
                values = values + case.gamma_offset
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
