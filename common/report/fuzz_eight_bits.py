"""A random call of a norm whose y has eight bits."""

from __future__ import annotations

from typing import Any

from fuzz_calls import ALONE, Call, _library
from fuzz_cases import EightBits
from fuzz_memory import Array, Buffer
from fuzz_reference import root_mean_square, unit_at

LARGEST = {"e4m3": 448.0, "int8": 127.0}
SMALLEST_SCALE = 2.0**-126
BLOCK = 128  # columns that share a scale
THREADS = 352  # of the largest block


def most_off(cols: int) -> float:
    """Last places of fp32 that y and a scale may be off, where a thread adds up cols / THREADS values one after the
    other. In a row that repeats itself, as bytes that count up do, all roundings may have one sign: half a last place
    of the sum each. In eighths of a root mean square, as they are counted here, that is up to 4 for each value in the
    sum of deviations, and less in that of squares. PyTorch has no such operation to compare with."""
    return 24 * ALONE + 4 * cols / THREADS


class EightBitsCall(Call):
    """y is judged by the scale that was written, or given; that scale by what it should be."""

    @property
    def bits(self) -> EightBits:
        assert self.case.eight_bits
        return self.case.eight_bits

    def add_statistics(self) -> None:
        """There are none to be written."""

    def add_outputs(self) -> None:
        super().add_outputs()
        if self.bits.scaling == "given":
            self.inputs = {name: buffer.values() for name, buffer in self.buffers.items()}
            y = super().wanted()["y"][0]
            needed = float(self.memory.xp.abs(y).max()) / LARGEST[self.bits.format]
            self.add("scale", "fp32", 1, 1).fill(y[:1, :1] * 0 + max(needed * self.bits.given, 1e-30))
        else:
            shape = self.case.rows, _library.scales_of_row(self.bits.scaling, self.case.cols)
            strides = (shape[1] + self.bits.scales_padding,)
            self.buffers["scales"] = Buffer(self.memory, "fp32", shape, strides, 0, self.next_seed())

    def dtype_of(self, output: str) -> str:
        return "byte" if output == "y" else self.case.dtype

    def outputs(self) -> set[str]:
        return {"y", "h", "scales"} & set(self.buffers)

    def make(self, stream: int) -> None:
        case = self.case
        packed = _library._QUANTIZED.pack(
            _library._QUANTIZED.size, *self.types(),
            *self.at("x", "residual", "gamma", "beta", "h", "y", "scale", "scales"), case.rows, case.cols,
            *self.strides("x", "residual", "h", "y", "scales"), case.eps, "layernorm" in case.operation,
            _library.FORMATS[self.bits.format], _library.SCALINGS[self.bits.scaling])
        if status := _library._c.quantized_norm(packed, stream):
            _library.load().fail(status)

    def of_pytorch(self) -> dict[str, Array]:
        return {}

    def wanted(self) -> dict[str, tuple[Array, Array]]:
        xp, wanted = self.memory.xp, super().wanted()
        y = wanted["y"][0]
        if self.bits.scaling != "given":
            width, magnitude = self.width(), xp.abs(y)
            largest = [xp.amax(magnitude[:, first:first + width], 1) for first in range(0, y.shape[1], width)]
            scales = xp.stack(largest, 1) / LARGEST[self.bits.format]
            scales = xp.maximum(scales, scales * 0 + SMALLEST_SCALE)
            wanted["scales"] = scales, root_mean_square(self.memory, y) / LARGEST[self.bits.format]
        return wanted

    def width(self) -> int:
        """Columns that share a scale."""
        return BLOCK if self.bits.scaling == "block" else self.case.cols

    def scales(self) -> Array:
        """That of each element, or the one of all."""
        if self.bits.scaling == "given":
            return self.buffers["scale"].values()
        of_column = self.memory.integers([column // self.width() for column in range(self.case.cols)])
        return self.buffers["scales"].values()[:, of_column]

    def error(self, name: str, values: Array, wanted: dict[str, tuple[Array, Array]]) -> float:
        """Of y in steps of its format, less what it may be off before it is rounded."""
        if name != "y":
            return super().error(name, values, wanted)
        xp, format = self.memory.xp, self.bits.format
        y, size = wanted["y"]
        if 0 in y.shape:
            return 0.0
        scales = self.scales()
        want = y / scales
        want = xp.minimum(want, want * 0 + LARGEST[format])
        want = xp.maximum(want, want * 0 - (128.0 if format == "int8" else LARGEST[format]))
        off = most_off(self.case.cols) * unit_at(self.memory, xp.maximum(xp.abs(y), size / 8 + 0 * y), "fp32") / scales
        step = unit_at(self.memory, xp.abs(want), "e4m3") if format == "e4m3" else want * 0 + 1.0
        error = (xp.abs(decoded(self.memory, values, format) - want) - off) / step
        worst = float(error.max())
        return max(worst, 0.0) if worst == worst else float("inf")


def decoded(memory: Any, codes: Array, format: str) -> Array:
    """What bytes stand for: e4m3 has a sign, 4 bits of exponent with a bias of 7, and 3 of mantissa."""
    xp = memory.xp
    if format == "int8":
        return xp.where(codes >= 128, codes - 256, codes)
    magnitude = codes % 128
    exponent, mantissa = xp.floor(magnitude / 8), magnitude % 8
    value = xp.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    value = xp.where(magnitude == 127, value * float("nan"), value)
    return xp.where(codes >= 128, -value, value)
