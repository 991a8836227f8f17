"""What a caller of the library can choose, and random choices of it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from fuzz_memory import BYTES

FORWARD = ("layernorm_forward", "rmsnorm_forward", "add_layernorm_forward", "add_rmsnorm_forward")
BACKWARD = ("layernorm_backward", "rmsnorm_backward")
BATCHNORM = ("batchnorm_train", "batchnorm_inference", "batchnorm_backward")
HEADS = ("qk_norm", "qk_norm_backward")
EIGHT_BITS = ("layernorm_quantized", "rmsnorm_quantized", "add_layernorm_quantized", "add_rmsnorm_quantized")
OPERATIONS = (*FORWARD, *BACKWARD, *BATCHNORM, *HEADS, *EIGHT_BITS)
INPUTS = ("normal", "normal", "large mean", "equal", "bytes", "outlier", "one sign", "heavy", "tiny", "zeros")
WIDTHS = (32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 5120, 8192, 12288, 16384, 32768, 65536, 131072)
WIDTHS_OF_HEADS = (64, 128, 128, 256, 80, 96, 32, 512)


@dataclass(frozen=True)
class Heads:
    """Of q and of k, which lie as each of their tensors has it: all heads of a token together, or all tokens of a
    head."""

    q: int
    k: int
    by_head: frozenset[str]
    gap: dict[str, int]  # elements between those that lie together and the next ones


@dataclass(frozen=True)
class EightBits:
    """How y is stored."""

    format: str
    scaling: str
    given: float  # the scale that is given, times what the largest value needs
    scales_padding: int  # floats between the scales of two rows


@dataclass(frozen=True)
class Case:
    """What a caller chooses. For BatchNorm rows are samples, cols channels; for heads rows are tokens."""

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
    gamma_offset: float = 0.0
    heads: Heads | None = None
    eight_bits: EightBits | None = None

    def __str__(self) -> str:
        pixels = f" of {self.pixels} pixels, {'first' if self.channels_first else 'last'}" if self.pixels > 1 else ""
        chosen = [f"without {', '.join(sorted(self.absent))}" if self.absent else ""]
        chosen += [f"{output} over {place}" for output, place in self.places.items()]
        chosen += [f"{name} {what}" for what, by in (("padded", self.padding), ("off", self.offset))
                   for name in by if by[name]]
        chosen += ["from a graph" if self.graph else "", "round before gamma" if self.round_before_gamma else "",
                   "1 + gamma" if self.gamma_offset else ""]
        if self.heads:
            chosen.append(f"{self.heads.q} + {self.heads.k} heads")
            chosen += [f"{name} by heads" for name in sorted(self.heads.by_head)]
        if self.eight_bits:
            chosen.append(f"{self.eight_bits.format}, scale {self.eight_bits.scaling}")
        types = self.dtype if self.dtype == self.param_dtype else f"{self.dtype} with {self.param_dtype}"
        rest = "".join(f", {each}" for each in chosen if each)
        return f"{self.operation}, {types}, {self.rows} x {self.cols}{pixels}, {self.inputs}, eps {self.eps:g}{rest}"


def tensors_of(operation: str) -> tuple[list[str], list[str]]:
    """Those with rows: what is read, and what is written."""
    if operation in HEADS:
        if operation.endswith("backward"):
            return ["dq_out", "dk_out", "q", "k"], ["dq", "dk"]
        return ["q", "k"], ["q_out", "k_out"]
    if operation.startswith("add"):
        return ["x", "residual"], ["h", "y"]
    if operation.endswith("backward"):
        return ["dy", "x"] + ["dh"] * (operation in BACKWARD), ["dx"]
    return ["x"], ["y"]


def size_of(chance: random.Random, most: int) -> int:
    most = max(1, most)
    kind = chance.random()
    if kind < 0.25:
        return chance.randint(1, min(most, 64))
    if kind < 0.5:
        return min(most, max(1, chance.choice(WIDTHS) + chance.choice((0, 0, 0, -1, 1, -2, 4, 8))))
    value = int(2 ** chance.uniform(0, most.bit_length() - 1))
    return min(most, value if chance.random() < 0.5 else (value + 7) // 8 * 8)


def optional_of(operation: str) -> set[str]:
    """What may be left out."""
    if operation in HEADS:
        backward = {"dq", "dk", "dq_gamma", "dk_gamma"} if operation.endswith("backward") else {"q_rstd", "k_rstd"}
        return {"q_gamma", "k_gamma"} | backward
    if operation in EIGHT_BITS or operation == "batchnorm_inference":
        return {"gamma", "beta"}
    if operation.endswith("backward"):
        return {"gamma", "dx", "dgamma", "dbeta", "dh"}
    return {"gamma", "beta"} | ({"running_mean", "running_var"} if operation in BATCHNORM else {"mean", "rstd"})


def places_of(operation: str, chance: random.Random) -> dict[str, str]:
    """Outputs that are written over inputs."""
    if operation == "qk_norm":
        return {f"{name}_out": name for name in ("q", "k") if chance.random() < 0.3}
    places: dict[str, str] = {}
    if operation in FORWARD or operation in EIGHT_BITS or operation == "batchnorm_inference":
        read, written = tensors_of(operation)
        for output in written:
            of_bytes = output == "y" and operation in EIGHT_BITS
            if chance.random() < 0.15 and not of_bytes:
                place = chance.choice(read)
                if place not in places.values():
                    places[output] = place
    return places


def draw(seed: int, number: int, most_elements: int, most_cols: int) -> Case:
    chance = random.Random(f"{seed}/{number}")
    operation = chance.choice(OPERATIONS)
    of_channels = operation in BATCHNORM
    dtype = chance.choice(("fp32", "fp32", "fp16", "bf16"))
    read, written = tensors_of(operation)
    heads = None
    if operation in HEADS:
        most = min(most_cols, most_elements // 2)
        cols = min(most, chance.choice(WIDTHS_OF_HEADS) if chance.random() < 0.7 else size_of(chance, min(most, 2048)))
        most_heads = max(1, min(48, most_elements // cols))
        q = min(most_heads, chance.choice((1, 2, 4, 8, 16, 32, chance.randint(1, 48))))
        k = min(most_heads, chance.choice((0, 1, 2, 4, 8, q, q, chance.randint(1, 48))))
        rows = size_of(chance, min(most_elements // (cols * max(q, k)), 1 << 18))
        heads = Heads(q, k, frozenset(name for name in (*read, *written) if chance.random() < 0.2),
                      {name: chance.choice((0, 0, 1, 8, cols, k * cols)) for name in (*read, *written)})
    else:
        cols = size_of(chance, min(most_cols, most_elements // 2))
        rows = size_of(chance, min(most_elements // cols, 1 << 20)) + (1 if operation == "batchnorm_train" else 0)
    pixels = 1
    if of_channels and chance.random() < 0.5:
        pixels = size_of(chance, min(3136, most_elements // (rows * cols)))
    odd = chance.random() < 0.4  # else all tensors lie well
    padding = {name: chance.choice((0, 0, 1, 3, 8, 16)) if odd and not of_channels else 0 for name in (*read, *written)}
    vectors = ("q_gamma", "k_gamma", "dq_gamma", "dk_gamma") if heads else ("gamma", "beta", "dgamma", "dbeta")
    offset = {name: chance.randrange(16 // BYTES[dtype]) if odd and chance.random() < 0.5 else 0
              for name in (*read, *written, *vectors)}
    leaves_out = chance.random() < 0.4
    absent = frozenset(
        name for name in sorted(optional_of(operation)) if leaves_out and chance.random() < 0.4)
    eight_bits = None
    if operation in EIGHT_BITS:
        eight_bits = EightBits(
            chance.choice(("e4m3", "int8")), chance.choice(("row", "block", "given")), chance.choice((0.5, 1.0, 4.0)),
            chance.choice((0, 3)) if odd else 0)
    rounds = (operation == "qk_norm" or "rmsnorm_forward" in operation) and chance.random() < 0.2
    has_offset = not of_channels and operation not in EIGHT_BITS and chance.random() < 0.25
    return Case(
        operation, dtype, chance.choice((dtype, "fp32")), rows, cols, pixels, chance.random() < 0.5,
        chance.choice(INPUTS), absent, places_of(operation, chance), padding, offset,
        chance.choice((1e-5, 1e-6, 1e-12, 1e-3)), chance.choice((0.0, 0.1, 1.0)), rounds, chance.random() < 0.1,
        chance.random() < 0.8, chance.randrange(1 << 30), 1.0 if has_offset else 0.0, heads, eight_bits)
