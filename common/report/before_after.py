#!/usr/bin/env python3
"""Times two builds of the library in one process on one GPU, to show what a change of the kernels costs or gains.

    before_after.py OLD.so NEW.so                     the shapes of the comparison, few rows, and what is seldom asked
    before_after.py OLD.so NEW.so --operation rmsnorm_forward --minutes 3
    before_after.py OLD.so NEW.so --output docs/data/before_after_h200.json
    before_after.py OLD.so NEW.so --list              the cases
    before_after.py ONE.so ONE.so --batch-invariant   what batch_invariant costs: the second works with it

Both builds work on the same tensors, in turns, and who begins changes with every turn. What they write is compared
first. `cold`: the L2 cache flushed before each call; `graph`: replayed from a CUDA graph, for tensors up to 16 MiB. A
case that looks more than 1 % slower is timed again, four times as long, and the second answer counts. Needs PyTorch
with CUDA.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from cells import SMALL_BYTES, TENSORS, Cell
from cells import grid as cells_of
from compare import Gpu, context_of, take_turns
from programs import write_json
from results import ROOT, ReportError

sys.path.insert(0, str(ROOT / "common/library/python"))
from normworklog import _library  # noqa: E402

EPS = 1e-5
SLOWER = 1.01
ROUNDS, SECOND_LOOK = 16, 4
AHEAD = 300_000  # cycles that the GPU sleeps before a call: these calls are short

# What a case may leave out or do otherwise than most.
USUAL, BARE, MIXED, MISALIGNED, CROSSED = "", "bare", "mixed", "misaligned", "crossed"
KINDS = {
    USUAL: "gamma and beta of the elements' type, tensors aligned to 16 bytes",
    BARE: "no gamma, no beta",
    MIXED: "gamma and beta in fp32, elements of 16 bits",
    MISALIGNED: "every tensor starts one element past a boundary of 16 bytes",
    CROSSED: "each tensor starts at another place past a boundary",
}


@dataclass(frozen=True)
class Case(Cell):
    kind: str = USUAL

    @property
    def name(self) -> str:
        return super().name + (f"/{self.kind}" if self.kind else "")

    @property
    def modes(self) -> tuple[str, ...]:
        return ("cold", "graph") if self.tensor_bytes <= SMALL_BYTES else ("cold",)


# --- The cases --------------------------------------------------------------------------------------------------------
FEW = [(rows, cols) for rows in (1, 4, 8, 64, 256, 1024) for cols in (768, 1024, 4096, 5120, 8192, 16384, 65536)]
SELDOM = (
    1, 7, 24, 33, 50, 100, 200, 257, 300, 500, 768, 1000, 1032, 1500, 2056, 3000, 6000, 10000, 20000, 50000, 200000,
)


def cases() -> list[Case]:
    """Those of the full comparison; few rows; then widths, parameters and alignments that nothing else measures."""
    found = [Case(*astuple(cell)) for cell in cells_of(full=True)]
    by_row = [operation for operation in TENSORS if not operation.startswith("batchnorm")]
    for operation in by_row:
        for dtype in ("bf16", "fp32"):
            found += [Case(operation, dtype, rows, cols) for rows, cols in FEW if rows * cols <= 2**26]
            for cols in SELDOM:
                found.append(filled(operation, dtype, 128, cols))
            for cols in (128, 1024, 4096, 16384, 65536):
                found.append(filled(operation, dtype, 128, cols, BARE))
                found.append(filled(operation, dtype, 128, cols, MISALIGNED))
                found.append(filled(operation, dtype, 128, cols, CROSSED))
            for rows, cols in ((64, 1024), (64, 4096), (1024, 1024), (1, 65536)):
                found.append(Case(operation, dtype, rows, cols, kind=BARE))
        for cols in (64, 128, 512, 1000, 1024, 1023, 4096, 8192, 16384, 32768, 65536):
            found.append(filled(operation, "bf16", 128, cols, MIXED))
        for rows, cols in ((1, 4096), (64, 4096), (256, 1024), (1024, 1024), (1, 65536)):
            found.append(Case(operation, "bf16", rows, cols, kind=MIXED))
    return list(dict.fromkeys(found))


def filled(operation: str, dtype: str, mib: int, cols: int, kind: str = USUAL) -> Case:
    rows = max(1, min(2**20, mib * 2**20 // (cols * (4 if dtype == "fp32" else 2))))
    return Case(operation, dtype, rows, cols, kind=kind)


# --- A call -----------------------------------------------------------------------------------------------------------
class Call:
    """The arguments of a case, packed as the C interface has them, and the tensors behind them."""

    def __init__(self, case: Case, builds: Sequence[Build], gpu: Gpu) -> None:
        import torch

        self.case, self.stream = case, gpu.stream.cuda_stream
        types = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
        self.element = types[case.dtype]
        is_batch = case.operation.startswith("batchnorm")
        self.parameter = torch.float32 if case.kind == MIXED or is_batch else self.element
        self.kept: list[Any] = []
        self.outputs: list[Any] = []
        self.name, self.bytes = (self._batch if is_batch else self._rows)(builds)

    def _tensor(self, *shape: int, kind: Any = None, written: bool = False) -> int:
        """A tensor of normally distributed values, or one to write; its address."""
        import torch

        kind = kind or self.element
        count = 1
        for size in shape:
            count *= size
        memory = torch.empty(count + 16, dtype=kind, device="cuda")
        shift = {MISALIGNED: 1, CROSSED: len(self.kept) % 4}.get(self.case.kind, 0) if kind == self.element else 0
        tensor = memory[shift:shift + count]
        if written:
            tensor.zero_()
            self.outputs.append(tensor)
        else:
            tensor.normal_()
        self.kept.append(memory)
        return tensor.data_ptr()

    def _gamma(self, cols: int) -> int:
        if self.case.kind == BARE:
            return 0
        address = self._tensor(cols, kind=self.parameter)
        self.kept[-1].mul_(0.1).add_(1)
        return address

    def _beta(self, cols: int) -> int:
        return 0 if self.case.kind == BARE else self._tensor(cols, kind=self.parameter)

    def _workspace(self, builds: Sequence[Build], operation: int, args: bytes) -> tuple[int, int]:
        import torch

        size = max(build.workspace_bytes(operation, args) for build in builds)
        self.kept.append(torch.zeros(size + 16, dtype=torch.uint8, device="cuda"))
        return self.kept[-1].data_ptr(), size

    def _types(self) -> tuple[int, int]:
        dtype = _library.DTYPES[self.case.dtype]
        import torch

        return dtype, _library.FP32 if self.parameter == torch.float32 else dtype

    def _rows(self, builds: Sequence[Build]) -> tuple[str, bytes]:
        import torch

        case, rows, cols = self.case, self.case.rows, self.case.cols
        centered, fused = "layernorm" in case.operation, case.operation.startswith("add")
        dtype, parameter = self._types()
        x, f32 = self._tensor(rows, cols), torch.float32
        if case.operation.endswith("forward"):
            residual = [self._tensor(rows, cols)] if fused else []
            weights = [self._gamma(cols)] + ([self._beta(cols)] if centered else [])
            written = [self._tensor(rows, cols, written=True) for _ in range(1 + fused)]
            statistics_ = [self._tensor(rows, kind=f32, written=True) for _ in range(1 + centered)]
            layout = {
                (True, False): _library._LAYERNORM, (False, False): _library._RMSNORM,
                (True, True): _library._ADD_LAYERNORM, (False, True): _library._ADD_RMSNORM,
            }[centered, fused]
            fields = [x, *residual, *weights, *written, *statistics_, rows, cols, *[cols] * (4 if fused else 2), EPS]
            fields += [0, 0.0] if centered else [0, 0, 0.0]  # batch_invariant and gamma_offset are the last
            return f"nw_{case.operation}", layout.pack(layout.size, dtype, parameter, *fields)
        dy, dh = self._tensor(rows, cols), self._tensor(rows, cols) if fused else 0
        mean, rstd = self._tensor(rows, kind=f32), self._tensor(rows, kind=f32)
        self.kept[-1].abs_()
        gamma = self._gamma(cols)
        dx = self._tensor(rows, cols, written=True)
        sums = [self._tensor(cols, kind=self.parameter, written=True) for _ in range(1 + centered)]
        layout = _library._LAYERNORM_GRAD if centered else _library._RMSNORM_GRAD
        moments = [mean, rstd] if centered else [rstd]
        tensors = [dy, x, dh, gamma, *moments, dx, *sums]
        sizes = [rows, cols, cols, cols, cols, cols, 0, 0.0]
        operation = _library._LAYERNORM_BACKWARD + (not centered)
        empty = layout.pack(layout.size, dtype, parameter, *tensors, 0, 0, *sizes)
        workspace = self._workspace(builds, operation, empty)
        name = "nw_layernorm_backward" if centered else "nw_rmsnorm_backward"
        return name, layout.pack(layout.size, dtype, parameter, *tensors, *workspace, *sizes)

    def _batch(self, builds: Sequence[Build]) -> tuple[str, bytes]:
        import torch

        case, f32 = self.case, torch.float32
        elements, channels = case.rows * case.cols * case.pixels, case.cols
        dtype, parameter = self._types()
        x = self._tensor(elements)
        gamma = self._gamma(channels)
        sizes = [case.rows, channels, case.pixels, int(case.first)]
        if case.operation == "batchnorm_backward":
            dy, mean, invstd = self._tensor(elements), *(self._tensor(channels, kind=f32) for _ in range(2))
            self.kept[-1].abs_()
            dx = self._tensor(elements, written=True)
            sums = [self._tensor(channels, kind=self.parameter, written=True) for _ in range(2)]
            layout, tensors = _library._BATCHNORM_GRAD, [dy, x, gamma, mean, invstd, dx, *sums]
            empty = layout.pack(layout.size, dtype, parameter, *tensors, 0, 0, *sizes)
            workspace = self._workspace(builds, _library._BATCHNORM_TRAIN + 2, empty)
            return "nw_batchnorm_backward", layout.pack(layout.size, dtype, parameter, *tensors, *workspace, *sizes)
        beta = self._beta(channels)
        mean, variance = self._tensor(channels, kind=f32), self._tensor(channels, kind=f32)
        self.kept[-1].abs_().add_(0.1)
        y = self._tensor(elements, written=True)
        if case.operation == "batchnorm_inference":
            layout = _library._BATCHNORM_INFERENCE_ARGS
            return "nw_batchnorm_inference", layout.pack(
                layout.size, dtype, parameter, x, gamma, beta, mean, variance, y, *sizes, EPS
            )
        layout = _library._BATCHNORM_TRAIN_ARGS
        saved = [self._tensor(channels, kind=f32, written=True) for _ in range(2)]
        tensors = [x, gamma, beta, y, 0, 0, *saved]
        empty = layout.pack(layout.size, dtype, parameter, *tensors, 0, 0, *sizes, 0.1, EPS)
        workspace = self._workspace(builds, _library._BATCHNORM_TRAIN, empty)
        return "nw_batchnorm_train", layout.pack(
            layout.size, dtype, parameter, *tensors, *workspace, *sizes, 0.1, EPS
        )


class Build:
    """One build of the library."""

    def __init__(self, name: str, path: Path, batch_invariant: bool = False) -> None:
        self.name, self.loaded, self.batch_invariant = name, _library.Library(path), batch_invariant
        if not self.loaded.on_gpu:
            raise ReportError(f"{path} is a CPU build")

    def workspace_bytes(self, operation: int, args: bytes) -> int:
        size = ctypes.c_size_t()
        status = self.loaded.functions.nw_workspace_size(operation, args, ctypes.byref(size))
        if status:
            self.loaded.fail(status)
        return size.value

    def bound(self, call: Call) -> Callable[[], None]:
        function, args, stream = self.loaded.operation(call.name), call.bytes, call.stream
        if self.batch_invariant:
            args = args[:-16] + struct.pack("@q", 1) + args[-8:]  # the last field but one

        def launch() -> None:
            if status := function(args, stream):
                self.loaded.fail(status)

        return launch


# --- Measuring --------------------------------------------------------------------------------------------------------
def same_results(call: Call, launches: dict[str, Callable[[], None]], gpu: Gpu) -> bool:
    """True where both write the same bits. They need not: sums may be taken in another order."""
    written = []
    for launch in launches.values():
        launch()
        gpu.synchronize()
        written.append([tensor.clone() for tensor in call.outputs])
    return all(bool((a == b).logical_or(a.isnan() & b.isnan()).all()) for a, b in zip(*written, strict=True))


def turns(launches: dict[str, Callable[[], None]], mode: str, rounds: int, gpu: Gpu) -> dict[str, list[float]]:
    if mode == "graph":
        return take_turns({name: gpu.captured(launch) for name, launch in launches.items()}, gpu.graph, rounds)
    return take_turns(launches, gpu.cold, rounds)


def ratio(samples: dict[str, list[float]]) -> float:
    """The new time over the old: the median over the turns, so that a drift of the clocks cancels."""
    before, after = samples.values()
    return statistics.median(b / a for a, b in zip(before, after, strict=True))


def measure(case: Case, builds: Sequence[Build], gpu: Gpu) -> Iterator[dict[str, Any]]:
    call = Call(case, builds, gpu)
    launches = {build.name: build.bound(call) for build in builds}
    is_same = same_results(call, launches, gpu)
    for mode in case.modes:
        samples = turns(launches, mode, ROUNDS, gpu)
        looks = 1
        if ratio(samples) > SLOWER:
            samples, looks = turns(launches, mode, ROUNDS * SECOND_LOOK, gpu), 2
        yield {
            "case": f"{case.name}/{mode}",
            **{f"{name}_seconds": statistics.median(taken) for name, taken in samples.items()},
            "ratio": ratio(samples), "looks": looks, "same_bits": is_same,
        }


def summary(entries: Sequence[dict[str, Any]]) -> Iterator[str]:
    for mode in ("cold", "graph"):
        ratios = sorted(e["ratio"] for e in entries if e["case"].endswith(f"/{mode}"))
        if ratios:
            slower = sum(value > SLOWER for value in ratios)
            faster = sum(value < 1 / SLOWER for value in ratios)
            yield (
                f"{mode}: {len(ratios)} cases, median of new / old {statistics.median(ratios):.4f}; "
                f"{slower} more than 1 % slower, {faster} more than 1 % faster"
            )
    for entry in sorted(entries, key=lambda e: -e["ratio"]):
        if entry["ratio"] <= SLOWER:
            break
        before, after = (entry[f"{name}_seconds"] * 1e6 for name in ("old", "new"))
        yield f"  {entry['ratio']:.3f}  {before:8.2f} -> {after:8.2f} us  {entry['case']}"


def run(options: argparse.Namespace) -> int:
    chosen = [c for c in cases() if not options.operation or c.operation in options.operation]
    if options.batch_invariant:
        chosen = [c for c in chosen if not c.operation.startswith("batchnorm")]
    if options.list:
        print(*(f"{case.name} {' '.join(case.modes)}" for case in chosen), sep="\n")
        return 0
    builds = [Build("old", options.old), Build("new", options.new, options.batch_invariant)]
    gpu, entries, begun = Gpu(), [], time.monotonic()
    gpu.ahead = AHEAD
    for case in chosen:
        if options.minutes and time.monotonic() - begun > options.minutes * 60:
            print(f"stopped after {options.minutes} minutes: not all of the {len(chosen)} cases were timed")
            break
        try:
            entries += measure(case, builds, gpu)
            gpu.synchronize()
        except Exception as error:
            raise ReportError(f"{case.name}: {str(error).splitlines()[0]}") from error
    context = context_of([], options.new) | {"kinds": KINDS, "rounds": ROUNDS, "second_look": SECOND_LOOK}
    if options.output:
        write_json(options.output, {"context": context, "entries": entries})
    print(*summary(entries), sep="\n")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="before_after.py", description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, help="libnormworklog.so as it was")
    parser.add_argument("new", type=Path, help="libnormworklog.so as it is")
    parser.add_argument("--operation", action="append", default=[], choices=list(TENSORS), help="only this operation")
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--output", type=Path, help="file to write")
    parser.add_argument("--batch-invariant", action="store_true", help="NEW works with batch_invariant, OLD without")
    parser.add_argument("--list", action="store_true", help="print the cases, and stop")
    try:
        return run(parser.parse_args(arguments))
    except (ReportError, _library.Error) as error:
        print(f"before_after.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
