#!/usr/bin/env python3
"""Times every stage on this machine's GPU and writes NN_name/results/<gpu>.json.

    ./worklog bench                  the quick grid: two minutes on one GPU
    ./worklog bench --full           the grid of the committed results
    ./worklog bench --stage 07       one stage
    ./worklog bench --full --gpus 4  four GPUs of one kind share the runs
    python3 common/report/bench.py --programs build/gpu/bin --output my/run

Each stage's program checks its kernels before and after it times them. Where a check fails, or the GPU's clocks sink
while it is timed, nothing is written for that stage. Stopped with Ctrl-C, the next call goes on where this one was.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import merge_results
from grid import ELEMENT_BYTES, FEW_COLS, MODELS, SWEEPS, is_in_grid
from programs import CHILDREN, Failed, Program, programs_in, require_gpu, shown
from results import ROOT, ReportError, Repository, Timing

NO_GPU = """there is no GPU here (or no CUDA Toolkit), and so nothing to time. What can be done instead:
  ./worklog run       checks every kernel on the CPU layer
  ./worklog charts    draws the charts of the committed results"""

WITH_MODELS, TOKENS = "06_fused_residual", (1, 32, 4096)  # the stage whose kernels real models have, and rows
LARGE_FP32 = ("131072x1000", "65536x4095", "65536x4096")
# What peers were measured at besides: of a stage variant, operation, type, shapes and timings.
PEER_CELLS = {
    "05_welford": (
        ("layer_norm", "layernorm_forward", "fp16", ("4096x1024", "4096x4096"), ("graph",)),
        ("layer_norm", "layernorm_forward", "fp32", LARGE_FP32, ("cold",)),
    ),
    "06_fused_residual": (
        ("norm", "rmsnorm_forward", "fp16", ("4096x1024", "4096x4096"), ("cold", "graph")),
        ("norm", "rmsnorm_forward", "fp16", ("4096x8192", "4096x15872"), ("cold",)),
        ("norm", "rmsnorm_forward", "bf16", ("1x8192", "64x4096"), ("graph",)),
        ("norm", "rmsnorm_forward", "fp32", LARGE_FP32, ("cold",)),
        ("fused", "add_layernorm_forward", "fp16", ("4096x1024", "4096x4096"), ("graph",)),
    ),
    "07_backward": (
        ("persistent", "layernorm_backward", "fp16", ("4096x1024", "4096x4096"), ("graph",)),
        ("persistent", "layernorm_backward", "fp32", LARGE_FP32, ("cold",)),
    ),
}
# The Triton tutorial's: 4096 rows, fp16.
TRITON_COLS = (1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 10240, 12288, 15872)
# Pixels, and channels, of its layers.
RESNET_50 = ((12544, (64,)), (3136, (64, 256)), (784, (128, 512)), (196, (256, 1024)), (49, (512, 2048)))
SUNK = 0.9  # of the highest clock seen: below it, a run was slowed down by heat or power


@dataclass(frozen=True)
class Run:
    """One call of a stage's program."""

    program: Program
    name: str
    flags: tuple[str, ...]
    weight: float  # about its seconds, to tell how much is left

    def kept(self, folder: Path) -> Path:
        """Where the run's results wait until all of the stage's are there. Another build has other names."""
        words = re.sub(r"[^a-z0-9]+", "-", self.name)
        return folder / f"{self.program.stage}-{words}-{self.program.fingerprint}.json"


def widths(mib: int, dtype: str, all_cols: Sequence[int]) -> str:
    """As many rows of each length as fill `mib` MiB, as --shapes takes them."""
    return ",".join(f"{mib * 2**20 // (cols * ELEMENT_BYTES[dtype])}x{cols}" for cols in all_cols)


def runs_of_batchnorm(
    run: Callable[..., Run], program: Program, count: dict[str, int], full: bool, seconds: float
) -> Iterator[Run]:
    """Rows are samples and cols channels. Where a tensor is large, only what has all operations is timed: the final
    kernel."""
    variants = [variant for variant, _, dtype in program.implementations if dtype == program.dtypes[0]]
    final = variants[-1]
    alone = ("--variant", final, "--input", "normal", "--time", "cold")
    each = variants.count(final)
    if not full:
        for pixels, shapes in ((1, "65536x1024"), (49, "512x2048"), (3136, "64x64")):
            for dtype in program.dtypes:
                flags = ("--shapes", shapes, "--pixels", str(pixels), "--dtype", dtype, *alone)
                yield run(f"{pixels} pixels, {dtype}", flags, each, seconds / 2, 2)
        return
    for dtype in ("fp32", "bf16"):
        of_type = ("--dtype", dtype, "--input", "normal")
        small = ("--shapes", "4096x1024,10000x1024", *of_type, "--time", "cold,warm,graph")
        yield run(f"small, {dtype}", small, 6 * count[dtype], seconds / 2, 4)
        large = ("--shapes", "65536x1024", *of_type, "--time", "cold")
        yield run(f"65536 x 1024, {dtype}", large, count[dtype], seconds / 2, 6)
        for shape in ("262144x512", "1048576x256", "1048576x64"):
            yield run(f"{shape}, {dtype}", ("--shapes", shape, "--dtype", dtype, *alone), each, seconds / 2, 6)
        for layout in ("channels_first", "channels_last"):
            for pixels, channels in RESNET_50:
                shapes = ",".join(f"64x{c}" for c in channels)
                flags = ("--shapes", shapes, "--pixels", str(pixels), "--layout", layout, "--dtype", dtype, *alone)
                name = f"ResNet-50, {pixels} pixels, {layout}, {dtype}"
                yield run(name, flags, each * len(channels), seconds / 2, 4)


def runs_of(program: Program, full: bool) -> Iterator[Run]:
    seconds = 0.2 if full else 0.08
    mib = 512 if full else 64
    count = {
        dtype: sum(d == dtype and is_in_grid(v, o) for v, o, d in program.implementations)
        for dtype in program.dtypes
    }

    def run(name: str, flags: Sequence[str], timings: int, each: float, host: float = 0.0) -> Run:
        return Run(program, name, (*flags, "--max-seconds-per-timing", str(each)), 1 + timings * (each + 0.15) + host)

    if program.is_batchnorm:
        yield from runs_of_batchnorm(run, program, count, full, seconds)
    square = count[program.dtypes[0]] * 3 * len(program.dtypes)
    in_grid = [(variant, operation) for variant, operation, _ in program.implementations
               if is_in_grid(variant, operation)]
    every = ("--variant", ",".join(dict.fromkeys(variant for variant, _ in in_grid)),
             "--operation", ",".join(dict.fromkeys(operation for _, operation in in_grid)),
             "--dtype", "all", "--input", "all", "--time", "cold,warm,graph", "--resources")
    yield run("1024 x 1024", ("--shapes", "1024x1024", *every), square, seconds, 3)
    if program.is_batchnorm:
        return
    bare = sorted({variant for variant, _, _ in program.implementations if variant.startswith("bare_")})
    if bare:  # they can be checked and timed without gamma, beta and statistics only
        flags = ("--shapes", "1024x1024", "--without", "gamma,beta,mean,rstd", "--variant", ",".join(bare),
                 "--input", "normal", "--time", "cold,warm,graph")
        yield run("1024 x 1024, bare", flags, 3 * len(bare), seconds)
    sweeps = SWEEPS.get(program.stage, ()) if full else ()
    for variants, operations, dtypes, all_cols in sweeps:
        of_sweep = ("--variant", variants, "--operation", operations, "--input", "normal", "--time", "cold")
        of_type = [(v, o) for v, o, d in program.implementations if d == dtypes[0]]
        each = sum(v in variants.split(",") and o in operations.split(",") for v, o in of_type)
        for dtype in dtypes:
            for cols in all_cols:  # one call for each: what is done is kept when the rest is stopped
                name = f"{mib} MiB, {dtype}, {variants}, {operations}, {cols} columns"
                flags = ("--shapes", widths(mib, dtype, (cols,)), "--dtype", dtype, *of_sweep)
                yield run(name, flags, each, seconds / 2, 2.5 * each)
    if sweeps:
        variant, operations = sweeps[0][:2]
        final = ("--variant", variant, "--operation", operations, "--input", "normal")
        each = len(operations.split(","))
        shapes = ",".join(f"4096x{cols}" for cols in TRITON_COLS)
        flags = ("--shapes", shapes, "--dtype", "fp16", *final, "--time", "cold")
        yield run("4096 rows, fp16", flags, 12 * each, seconds / 2, 4)
        shapes = "1x8192,64x4096,128x8192"
        flags = ("--shapes", shapes, "--dtype", "bf16", *final, "--time", "cold,warm,graph")
        yield run("few rows, bf16", flags, 9 * each, seconds / 2)
        if program.stage == WITH_MODELS:
            cols = sorted({model.cols for model in MODELS})
            shapes = ",".join(f"{rows}x{width}" for rows in TOKENS for width in cols)
            flags = ("--shapes", shapes, "--dtype", "bf16", *final, "--time", "cold,graph")
            yield run("models, bf16", flags, 2 * each * len(cols) * len(TOKENS), seconds / 4)
            flags = (
                "--shapes", "1x4096,8x4096,64x4096,512x4096,4096x4096,65536x4096", "--dtype", "bf16",
                "--variant", f"{variant},unfused", "--operation", operations, "--input", "normal",
                "--time", "cold,graph",
            )
            yield run("rows, bf16", flags, 24 * each, seconds / 2)
        for variant, operation, dtype, cells, timings in PEER_CELLS.get(program.stage, ()):
            flags = (
                "--shapes", ",".join(cells), "--dtype", dtype, "--variant", variant, "--operation", operation,
                "--input", "normal", "--time", ",".join(timings),
            )
            name = f"peers, {dtype}, {operation}, {','.join(timings)}"
            host = 2.5 * len(cells) if dtype == "fp32" else 0
            yield run(name, flags, len(cells) * len(timings), seconds / 2, host)
        return
    for dtype in ("fp32", "bf16"):
        if dtype in program.dtypes:
            shapes, timings = widths(mib, dtype, FEW_COLS), count[dtype] * len(FEW_COLS)
            flags = ("--shapes", shapes, "--dtype", dtype, "--input", "normal", "--time", "cold")
            host = 1.5 * len(FEW_COLS) * count[dtype] * mib / 512
            yield run(f"{mib} MiB, {dtype}", flags, timings, seconds / 2, host)


def clocks_of(text: str) -> list[float]:
    """[SM clock, memory clock] in MHz from '1980 MHz, 3201 MHz, 34, 187.59 W'; empty where nvidia-smi did not say."""
    return [float(value) for value in re.findall(r"([\d.]+) MHz", text)]


class Clocks:
    """The highest clocks seen so far, which a run is compared with."""

    def __init__(self) -> None:
        self.highest: list[float] = []

    def sank(self, context: dict[str, Any]) -> str:
        """A sentence where the GPU was slower after the run than it had been before, else nothing."""
        before, after = clocks_of(context.get("clocks_before", "")), clocks_of(context.get("clocks_after", ""))
        if not before or len(before) != len(after):
            return ""
        # An idle GPU's clock is low before the run: what counts is the highest that it has reached.
        self.highest = [max(values) for values in zip(before, after, self.highest or before)]
        for what, most, now in zip(("multiprocessors'", "memory's"), self.highest, after):
            if now < SUNK * most:
                return f"the {what} clock sank from {most:.0f} to {now:.0f} MHz while it was timed"
        return ""


def clock_text(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def measure(run: Run, clocks: Clocks, pause: int, prefix: Sequence[str] = ()) -> dict[str, Any]:
    """The results of one run. Raises Failed where they must not be used."""
    for attempt in (1, 2):
        code, printed, document = run.program.run(run.flags, prefix)
        if code == 2 and "does not fit the device" in printed:
            return {}
        if code != 0 or not document:
            raise Failed(
                f"{run.program.stage}, {run.name}: a check failed, or a timing could not be taken (exit code {code}).\n"
                f"{printed.rstrip()[-5000:]}"
            )
        sentence = clocks.sank(document["context"])
        if not sentence:
            return document
        if attempt == 1:
            print(f"    {sentence}; once more in {pause} seconds", flush=True)
            time.sleep(pause)
    raise Failed(
        f"{run.program.stage}, {run.name}: {sentence}, twice. Times taken so would not be comparable: let the GPU cool "
        "down, or raise its power limit; `nvidia-smi -q -d PERFORMANCE` says what holds it back."
    )


def destination(program: Program, gpu: str, output: Path | None) -> Path:
    return output / f"{program.stage}.json" if output else ROOT / program.stage / "results" / f"{gpu}.json"


def refuse_to_replace(program: Program, path: Path, full: bool) -> None:
    """A quick run does not take the place of a full one of the same kernel."""
    if full or not path.is_file():
        return
    context = json.loads(path.read_text(encoding="utf-8")).get("context", {})
    if context.get("grid", "full") == "full":
        raise ReportError(
            f"{shown(path)} holds a full run, which a quick one would replace: run with --full, or keep the quick run "
            "elsewhere with --output my/run"
        )


def finish_stage(program: Program, runs: Sequence[Run], kept: Path, path: Path, grid: str) -> None:
    documents = [(run.name, json.loads(run.kept(kept).read_text(encoding="utf-8"))) for run in runs]
    documents = [(name, document) for name, document in documents if document]
    merged = merge_results.merge(documents)
    merged["context"]["grid"] = grid
    path.parent.mkdir(parents=True, exist_ok=True)
    merge_results.write(path, merged)
    timings = Repository().results_in(path).timings
    print(f"  {program.stage}: {len(timings)} timings written to {shown(path)}", flush=True)
    show_best(timings)


def show_best(timings: Sequence[Timing]) -> None:
    """The fastest variant at 1024 x 1024, as a word on the way."""
    cold = [t for t in timings if (t.dtype, t.shape, t.mode) == ("fp32", "1024x1024", "cold")]
    if cold:
        best = min(cold, key=lambda t: t.seconds)
        share = f", {best.share_of_copy * 100:.0f} % of a copy's speed" if best.share_of_copy else ""
        print(f"    fastest at 1024 x 1024, fp32, cold: {best.variant}, {best.seconds * 1e6:.2f} us{share}", flush=True)


class Work:
    """The runs that are left, of which each GPU takes one after the other. A timing and the copy that it is compared
    with come from one run, and so from one GPU."""

    def __init__(self, everything: Sequence[Run], kept: Path, options: argparse.Namespace) -> None:
        self.number = {run: number for number, run in enumerate(everything, 1)}
        self.kept, self.pause, self.gpus = kept, options.pause, options.gpus
        self.begun, self.done = time.monotonic(), 0.0
        self.left = sum(run.weight for run in everything if not run.kept(kept).is_file())
        self.clocks, self.lock = Clocks(), threading.Lock()
        self.failed: dict[str, Failed] = {}  # of each stage, the first
        self.prefixes: queue.SimpleQueue[tuple[str, ...]] = queue.SimpleQueue()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        for i in range(options.gpus):
            device = visible[i] if i < len(visible) and visible[i] else str(i)
            self.prefixes.put(("env", f"CUDA_VISIBLE_DEVICES={device}") if options.gpus > 1 else ())

    def take(self, run: Run) -> None:
        """Does a run, if it is not kept from before and nothing of its stage has failed."""
        if run.kept(self.kept).is_file():
            return
        with self.lock:
            if run.program.stage in self.failed:
                self.left -= run.weight
                return
            gone = time.monotonic() - self.begun
            # What the weights promise, corrected by how the runs so far kept to it.
            pace = gone / self.done if self.done > 20 else 1.0 / self.gpus
            print(f"[{self.number[run]}/{len(self.number)}] {run.program.stage}, {run.name} · {clock_text(gone)} gone, "
                  f"about {clock_text(self.left * pace)} left", flush=True)
        prefix = self.prefixes.get()
        try:
            document = measure(run, self.clocks, self.pause, prefix)
        except Failed as error:
            with self.lock:
                self.failed.setdefault(run.program.stage, error)
                self.left -= run.weight
            return
        finally:
            self.prefixes.put(prefix)
        if not document:
            print("    does not fit the device; left out", flush=True)
        half_written = run.kept(self.kept).with_suffix(".part")
        half_written.write_text(json.dumps(document), encoding="utf-8")
        half_written.replace(run.kept(self.kept))
        with self.lock:
            self.done += run.weight
            self.left -= run.weight


def bench(options: argparse.Namespace) -> int:
    programs = programs_in(options.programs, options.stage)
    grid = "full" if options.full else "quick"
    plan = {program: list(runs_of(program, options.full)) for program in programs}
    if options.plan:
        for program, runs in plan.items():
            for run in runs:
                print(f"{program.stage} {' '.join(run.flags)}")
        return 0
    context = require_gpu(programs[0], NO_GPU)
    gpu = context["gpu_short"]
    for program in programs:
        refuse_to_replace(program, destination(program, gpu, options.output), options.full)
    kept = options.work / f"{gpu}-{grid}"
    if options.fresh and kept.exists():
        shutil.rmtree(kept)
    kept.mkdir(parents=True, exist_ok=True)

    everything = [run for runs in plan.values() for run in runs]
    work = Work(everything, kept, options)
    before = sum(run.kept(kept).is_file() for run in everything)
    resumed = f"; {before} of {len(everything)} runs were done before and are kept" if before else ""
    minutes = max(1, round(work.left / options.gpus / 60))
    driver = context.get("driver", "unknown")
    print(f"{context['gpu']}, driver {driver}: the {grid} grid, about {minutes} minutes{resumed}", flush=True)
    failed, finished = [], []
    with ThreadPoolExecutor(max_workers=options.gpus) as pool:
        try:
            taken = {program: [pool.submit(work.take, run) for run in runs] for program, runs in plan.items()}
            for program, runs in plan.items():
                for future in taken[program]:
                    future.result()
                if error := work.failed.get(program.stage):
                    failed.append(program.stage)
                    print(f"\n{error}\nNothing is written for {program.stage}.\n", file=sys.stderr, flush=True)
                    continue
                path = destination(program, gpu, options.output)
                finish_stage(program, runs, kept, path, grid)
                finished += runs
        except BaseException:
            CHILDREN.stop()
            pool.shutdown(cancel_futures=True)
            raise
    for run in finished:  # not before the end: stopped in a later stage, the same call does not begin with the first
        run.kept(kept).unlink()
    if failed:
        print(f"no results for: {', '.join(failed)}", file=sys.stderr)
        return 1
    done = f"done in {clock_text(time.monotonic() - work.begun)}"
    if options.output:
        print(f"{done}; ./worklog charts --compare draws two files beside each other")
    else:
        print(f"{done}. ./worklog lock notes their machine code, ./worklog charts --gpu {gpu} draws them.")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./worklog bench", description=__doc__.splitlines()[0])
    grids = parser.add_mutually_exclusive_group()
    grids.add_argument(
        "--quick", action="store_true", help="two minutes: 1024 x 1024, and tensors of 64 MiB (the default)"
    )
    grids.add_argument("--full", action="store_true", help="all shapes of the committed results, tensors of 512 MiB")
    parser.add_argument(
        "--stage", action="append", default=[], help="only this stage: 07, or 07_backward (may be given more than once)"
    )
    parser.add_argument("--fresh", action="store_true", help="forget what an interrupted run has kept")
    parser.add_argument("--plan", action="store_true", help="print the calls that would be made, and stop")
    parser.add_argument(
        "--output", type=Path, help="folder to write NN_name.json to, instead of NN_name/results/<gpu>.json"
    )
    parser.add_argument(
        "--programs",
        type=Path,
        default=ROOT / "build/gpu/bin",
        help="folder of the stages' programs (default: build/gpu/bin)",
    )
    parser.add_argument("--gpus", type=int, default=1, help="so many GPUs of one kind share the runs (default: 1)")
    parser.add_argument(
        "--pause", type=int, default=20, help="seconds to let the GPU cool down where its clocks sank (default: 20)"
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=ROOT / "build/bench",
        help="folder for what an interrupted run keeps (default: build/bench)",
    )
    options = parser.parse_args(arguments)
    if options.gpus < 1:
        parser.error("--gpus: at least one")
    try:
        return bench(options)
    except KeyboardInterrupt:
        print("\nstopped. The same call goes on from here; --fresh begins anew.", file=sys.stderr)
        return 130
    except (ReportError, merge_results.MergeError) as error:
        print(f"./worklog bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
