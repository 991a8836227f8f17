"""A random call of QK norm: heads of q and of k, in tensors with two strides."""

from __future__ import annotations

from typing import Any

from fuzz_calls import Call, _library, values_of
from fuzz_memory import BYTES, Array, Buffer, OnCpuLayer
from fuzz_reference import Gradients, Norm, of_pytorch, root_mean_square, scaled

KINDS = {"out": "y", "rstd": "rstd", "gamma": "dgamma"}  # by the last word of an output's name


class HeadsCall(Call):
    """Each head of each token is a row of its own."""

    def add_inputs(self) -> None:
        for name in self.read:
            kind = "normal" if name.startswith("d") else self.case.inputs
            if heads := self.heads_of(name):
                shape = (self.case.rows * heads, self.case.cols)
                values = values_of(self.memory, kind, shape, self.case.dtype, self.next_seed())
                self.add_heads(name, heads).fill(values)
        for name in self.parts():
            if f"{name}_gamma" not in self.case.absent:
                self.add_parameter(f"{name}_gamma", about=1.0 - self.case.gamma_offset)

    def add_statistics(self) -> None:
        for part in self.parts():
            if f"{part}_rstd" not in self.case.absent:
                rstd = self.add(f"{part}_rstd", "fp32", 1, self.case.rows * self.heads_of(part))
                if self.is_backward:
                    rstd.fill(self.norm_of(self.buffers[part].values()).rstd.T)

    def add_outputs(self) -> None:
        case = self.case
        for name in self.written:
            if not (heads := self.heads_of(name)) or name in case.absent:
                continue
            if name in case.places:
                self.buffers[name] = self.buffers[case.places[name]]
            else:
                self.add_heads(name, heads)
        for part in self.parts():
            if self.is_backward and f"d{part}_gamma" not in case.absent:
                self.add(f"d{part}_gamma", case.param_dtype, 1, case.cols)

    @property
    def is_backward(self) -> bool:
        return self.case.operation.endswith("backward")

    def parts(self) -> list[str]:
        return ["q", "k"] if self.heads_of("k") else ["q"]

    def heads_of(self, name: str) -> int:
        assert self.case.heads
        return self.case.heads.q if "q" in name else self.case.heads.k

    def add_heads(self, name: str, heads: int) -> Buffer:
        case = self.case
        assert case.heads
        row = case.cols + case.padding[name]
        if name in case.heads.by_head:
            strides = row, case.rows * row + case.heads.gap[name]
        else:
            strides = heads * row + case.heads.gap[name], row
        offset = case.offset[name] % (16 // BYTES[case.dtype])
        shape = case.rows, heads, case.cols
        self.buffers[name] = Buffer(self.memory, case.dtype, shape, strides, offset, self.next_seed())
        return self.buffers[name]

    def norm_of(self, rows: Array) -> Norm:
        return Norm(self.memory, rows, self.case.eps, centered=False)

    def room(self) -> Array | None:
        if not self.is_backward:
            return None
        return self.memory.bytes(_library.qk_norm_workspace_bytes(self.case.cols, *self.types()), self.next_seed())

    def strides(self, *names: str) -> list[int]:
        """From a token to the next and from a head to the next."""
        found: list[int] = []
        for name in names:
            dense = self.heads_of(name) * self.case.cols, self.case.cols  # of what is not there
            found += self.buffers[name].strides[:2] if name in self.buffers else dense
        return found

    def make(self, stream: int) -> None:
        case, at, strides, types = self.case, self.at, self.strides, self.types()
        assert case.heads
        sizes = (case.rows, case.heads.q, case.heads.k, case.cols)
        if not self.is_backward:
            names = ("q", "k", "q_gamma", "k_gamma", "q_out", "k_out", "q_rstd", "k_rstd")
            _library.qk_norm(at(*names), *sizes, strides("q", "k", "q_out", "k_out"), case.eps, case.gamma_offset,
                             case.round_before_gamma, *types, stream)
            return
        names = ("dq_out", "dk_out", "q", "k", "q_gamma", "k_gamma", "q_rstd", "k_rstd", "dq", "dk", "dq_gamma",
                 "dk_gamma")
        _library.qk_norm_backward(at(*names), *self.work(), *sizes,
                                  strides("dq_out", "dk_out", "q", "k", "dq", "dk"), case.gamma_offset, *types, stream)

    def outputs(self) -> set[str]:
        names = {*self.written, "dq_gamma", "dk_gamma"}
        if not self.is_backward:
            names |= {"q_rstd", "k_rstd"}
        return names & set(self.buffers)

    def kind(self, name: str) -> str:
        return KINDS.get(name.rpartition("_")[2], "dx")

    def wanted(self) -> dict[str, tuple[Array, Array]]:
        wanted = {}
        rounded_to = self.case.dtype if self.case.round_before_gamma else None
        for part in self.parts():
            x, gamma = self.inputs[part], self.weights(self.inputs, f"{part}_gamma")
            if self.is_backward:
                rstd = self.inputs[f"{part}_rstd"].T
                found = Gradients(self.memory, self.inputs[f"d{part}_out"], x, None, gamma, None, rstd)
                wanted[f"d{part}"] = found.dx, found.scale
                wanted[f"d{part}_gamma"] = found.dgamma, found.dgamma_scale
            else:
                norm = self.norm_of(x)
                y = scaled(self.memory, norm.xhat, gamma, None, rounded_to)
                wanted[f"{part}_out"] = y, root_mean_square(self.memory, y)
                wanted[f"{part}_rstd"] = norm.rstd.T, norm.rstd.T
        return wanted

    def of_pytorch(self) -> dict[str, Array]:
        memory, case = self.memory, self.case
        if isinstance(memory, OnCpuLayer) or case.round_before_gamma:
            return {}
        values = {}
        for part in self.parts():
            tensors: dict[str, Any] = {"x": memory.cast(self.inputs[part], case.dtype)}
            if (gamma := self.weights(self.inputs, f"{part}_gamma")) is not None:
                tensors["gamma"] = memory.cast(gamma[0], case.dtype)
            if self.is_backward:
                tensors["dy"] = memory.cast(self.inputs[f"d{part}_out"], case.dtype)
            found = of_pytorch("rmsnorm_backward" if self.is_backward else "rmsnorm_forward", tensors, case.eps)
            names = {"y": f"{part}_out", "dx": f"d{part}", "dgamma": f"d{part}_gamma"}
            for name, each in found.items():
                each = memory.double(each)
                values[names[name]] = each.reshape(1, -1) if name == "dgamma" else each
        return values
