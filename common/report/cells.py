"""The cells of `./worklog compare`: an operation, a type and a shape each."""

from __future__ import annotations

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
    operation: str
    dtype: str
    rows: int
    cols: int

    @property
    def name(self) -> str:
        return f"{self.operation}/{self.dtype}/{self.rows}x{self.cols}"

    @property
    def tensor_bytes(self) -> int:
        return self.rows * self.cols * ELEMENT_BYTES[self.dtype]

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


def filled(operation: str, dtype: str, mib: int, cols: int) -> Cell:
    """With as many rows as make a tensor of `mib` MiB, at most 1 M."""
    rows = max(1, min(2**20, mib * 2**20 // (cols * ELEMENT_BYTES[dtype])))
    return Cell(operation, dtype, rows, cols)


def grid(full: bool) -> list[Cell]:
    """The cells, those that tell most first. A cell stands in it once."""
    rows_operations = [operation for operation in TENSORS if not operation.startswith("batchnorm")]
    batch_operations = [operation for operation in TENSORS if operation.startswith("batchnorm")]
    cells: list[Cell] = []
    if not full:
        quick = ("layernorm_forward", "layernorm_backward", "add_rmsnorm_forward")
        cells += [filled(operation, "bf16", 64, cols) for operation in quick for cols in QUICK_COLS]
        cells += [Cell(operation, "fp32", 64, 4096) for operation in quick[:2]]
        cells += [Cell(operation, "fp32", 65536, 256) for operation in ("batchnorm_train", "batchnorm_backward")]
        return cells
    for dtype in ("bf16", "fp32", "fp16"):
        cells += [filled(operation, dtype, 512, cols) for cols in COLS for operation in rows_operations]
        cells += [Cell(operation, dtype, rows, cols) for rows, cols in BATCHES for operation in batch_operations]
        cells += [filled(operation, dtype, 512, cols) for cols in ODD_COLS for operation in rows_operations]
        cells += [Cell(operation, dtype, rows, cols) for rows, cols in FEW_ROWS for operation in rows_operations]
    return list(dict.fromkeys(cells))


def cell_of(name: str) -> tuple[str, Cell, str]:
    """(contender, cell, mode) of a timing's name."""
    _, variant, operation, dtype, shape, mode = name.split("/")
    rows, cols = map(int, shape.split("x"))
    return variant, Cell(operation, dtype, rows, cols), mode
