"""The cells of `./worklog compare`: an operation, a type and a shape each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from grid import ELEMENT_BYTES

STAGE = "compare"  # stands where a stage's name does in the names of the timings
OURS, COPY = "ours", "copy"
EVERYONE = "all"  # the contender of an absence that ended a cell
TENSORS = {  # tensors of the cell's size that must be read or written once
    "layernorm_forward": 2, "rmsnorm_forward": 2, "add_layernorm_forward": 4, "add_rmsnorm_forward": 4,
    "layernorm_backward": 3, "rmsnorm_backward": 3, "add_layernorm_backward": 4, "add_rmsnorm_backward": 4,
    "batchnorm_train": 2, "batchnorm_inference": 2, "batchnorm_backward": 3,
}
STAGE_OF = {
    "layernorm_forward": "05_welford", "rmsnorm_forward": "06_fused_residual",
    "add_layernorm_forward": "06_fused_residual", "add_rmsnorm_forward": "06_fused_residual",
    "layernorm_backward": "07_backward", "rmsnorm_backward": "07_backward",
    "add_layernorm_backward": "07_backward", "add_rmsnorm_backward": "07_backward",
    "batchnorm_train": "08_batchnorm", "batchnorm_inference": "08_batchnorm", "batchnorm_backward": "08_batchnorm",
}
# Our final kernels, as the stages' programs call them.
VARIANT_OF = {
    "layernorm_forward": "layer_norm", "rmsnorm_forward": "norm", "add_layernorm_forward": "fused",
    "add_rmsnorm_forward": "fused", "layernorm_backward": "persistent", "rmsnorm_backward": "persistent",
    "add_layernorm_backward": "persistent", "add_rmsnorm_backward": "persistent", "batchnorm_train": "batch_norm",
    "batchnorm_inference": "batch_norm", "batchnorm_backward": "batch_norm",
}
# What the package leaves null of an operation that needs no gradients.
WITHOUT = {
    "layernorm_forward": "mean,rstd", "rmsnorm_forward": "rstd", "add_layernorm_forward": "mean,rstd",
    "add_rmsnorm_forward": "rstd",
}
SMALL_BYTES = 16 * 2**20  # of a tensor: below it a launch takes as long as the kernel
MODES = ("cold", "warm", "graph", "python")


@dataclass(frozen=True)
class Cell:
    """`rows` are the samples where BatchNorm has images of so many `pixels`; `first`: the channels come first."""

    operation: str
    dtype: str
    rows: int
    cols: int
    pixels: int = 1
    first: bool = False

    @property
    def shape(self) -> str:
        """As the stages' programs write it (common/harness/launches.cpp)."""
        return f"{self.rows}x{self.cols}" + (f"x{self.pixels}" if self.pixels > 1 else "") + "-first" * self.first

    @property
    def name(self) -> str:
        return f"{self.operation}/{self.dtype}/{self.shape}"

    @property
    def tensor_bytes(self) -> int:
        return self.rows * self.cols * self.pixels * ELEMENT_BYTES[self.dtype]

    @property
    def bytes(self) -> int:
        return self.tensor_bytes * TENSORS[self.operation]

    @property
    def modes(self) -> tuple[str, ...]:
        return MODES if self.tensor_bytes <= SMALL_BYTES else ("cold", "python")


def case_of_cell(cell: Cell) -> str:
    """The cell as a case of our stage's program (common/harness/launches.h)."""
    without = f"/without={WITHOUT[cell.operation]}" if cell.operation in WITHOUT else ""
    return f"{VARIANT_OF[cell.operation]}/{cell.name}{without}"


COLS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
ODD_COLS = (50, 1023, 4095, 4097, 12289, 50257)
QUICK_COLS = (256, 1024, 4095, 4096, 16384, 65536)
FEW_ROWS = ((1, 4096), (1, 65536), (64, 4096), (1024, 1024), (4096, 8192))
BATCHES = (
    (1024, 64), (65536, 64), (1048576, 64), (65536, 256), (1048576, 256), (65536, 1000), (65536, 1024), (65536, 4096),
    (4096, 16384),
)
# Of the figures that NVIDIA publishes for cuDNN's norms (benchmark/norms of NVIDIA/cudnn-frontend).
PUBLISHED = (
    (16384, 4096), (8192, 8192), (4096, 16384), (8192, 5120), (8192, 4096), (4096, 6144), (4096, 8192), (2048, 4096),
    (131072, 128), (4096, 2048), (1024, 12288),
)
BATCHES_BESIDE = (
    (65536, 1024), (32, 256, 56 * 56, True), (65536, 256), (64, 512, 28 * 28), (1048576, 64), (128, 2048, 7 * 7, True),
    (65536, 4096), (32, 64, 112 * 112), (4096, 16384), (64, 1024, 14 * 14, True),
)
# Row lengths of models, and the rows of a step: one token to a sequence, or all of a prompt's.
MODEL_COLS = (128, 768, 1280, 1536, 1600, 2048, 2560, 2880, 3072, 3584, 5120, 6144, 7168, 12288, 14336, 18432)
DECODED_ROWS, PROMPT_ROWS = (1, 8, 32, 128, 512), (2048, 8192, 16384, 65536)
# Samples, channels and pixels of images: a ResNet's, from its first to its last layers.
IMAGES = ((32, 64, 112 * 112), (32, 256, 56 * 56), (64, 512, 28 * 28), (64, 1024, 14 * 14), (128, 2048, 7 * 7))
OVER_ROWS = tuple(operation for operation in TENSORS if not operation.startswith("batchnorm"))
OVER_BATCHES = tuple(operation for operation in TENSORS if operation.startswith("batchnorm"))
DTYPES = ("bf16", "fp32", "fp16")


def filled(operation: str, dtype: str, mib: int, cols: int) -> Cell:
    """With as many rows as make a tensor of `mib` MiB, at most 1 M."""
    rows = max(1, min(2**20, mib * 2**20 // (cols * ELEMENT_BYTES[dtype])))
    return Cell(operation, dtype, rows, cols)


def grid(full: bool) -> list[Cell]:
    """The cells, in the order in which they are measured, so that a run that ends early tells most. A cell stands in it
    once."""
    if not full:
        quick = ("layernorm_forward", "layernorm_backward", "add_rmsnorm_forward")
        cells = [filled(operation, "bf16", 64, cols) for operation in quick for cols in QUICK_COLS]
        cells += [Cell(operation, "fp32", 64, 4096) for operation in quick[:2]]
        cells += [Cell(operation, "fp32", 65536, 256) for operation in ("batchnorm_train", "batchnorm_backward")]
        return cells
    of_operation = [list(spread(cells_over_rows(operation))) for operation in OVER_ROWS]
    of_operation += [list(spread(cells_over_batches(operation))) for operation in OVER_BATCHES]
    return list(dict.fromkeys([*published(), *in_turns(of_operation)]))


def published() -> Iterator[Cell]:
    """At the shapes that NVIDIA publishes figures of, and BatchNorm at some as large: each operation and type once, at
    one shape or another, then each once more, until all have had all."""
    kinds = [*itertools.product(OVER_ROWS, DTYPES)]
    batch_kinds = [*itertools.product(OVER_BATCHES, DTYPES)]
    for turn in range(len(PUBLISHED)):
        for number, (operation, dtype) in enumerate(kinds):
            yield Cell(operation, dtype, *PUBLISHED[(turn + number) % len(PUBLISHED)])
        for number, (operation, dtype) in enumerate(batch_kinds if turn < len(BATCHES_BESIDE) else ()):
            yield Cell(operation, dtype, *BATCHES_BESIDE[(turn + number) % len(BATCHES_BESIDE)])


def cells_over_rows(operation: str) -> Iterator[Cell]:
    for dtype in DTYPES:
        yield from (filled(operation, dtype, 512, cols) for cols in (*COLS, *ODD_COLS))
        yield from (Cell(operation, dtype, rows, cols) for rows, cols in FEW_ROWS)
    for number, cols in enumerate(MODEL_COLS):
        decoded, prompt = DECODED_ROWS[number % len(DECODED_ROWS)], PROMPT_ROWS[number % len(PROMPT_ROWS)]
        most = filled(operation, "bf16", 512, cols).rows
        yield from (Cell(operation, "bf16", min(rows, most), cols) for rows in (decoded, prompt))


def cells_over_batches(operation: str) -> Iterator[Cell]:
    for dtype in DTYPES:
        yield from (Cell(operation, dtype, rows, cols) for rows, cols in BATCHES)
        yield from (Cell(operation, dtype, *image, first) for first in (False, True) for image in IMAGES)


def spread(cells: Iterable[Cell]) -> Iterator[Cell]:
    """In an order of which each beginning holds some of everything: steps of the golden section through them."""
    left = list(cells)
    step = round(len(left) * 0.618) or 1
    at = 0
    while left:
        at = (at + step) % len(left)
        yield left.pop(at)


def in_turns(lists: Iterable[list[Cell]]) -> Iterator[Cell]:
    """One of each, until all are at their ends."""
    for turn in itertools.zip_longest(*lists):
        yield from (cell for cell in turn if cell is not None)


def cell_of(name: str) -> tuple[str, Cell, str]:
    """(contender, cell, mode) of a timing's name."""
    _, variant, operation, dtype, shape, mode = name.split("/")
    size = shape.removesuffix("-first")
    return variant, Cell(operation, dtype, *map(int, size.split("x")), first=size != shape), mode
