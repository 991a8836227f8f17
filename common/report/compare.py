#!/usr/bin/env python3
"""Times the final kernels beside what people use, in one process on one GPU, and writes docs/compare/<gpu>.json.

    ./worklog compare                  three minutes: a few widths of each operation
    ./worklog compare --full           64 to 262144 columns, 1 to 1 M rows, odd widths, three types
    ./worklog compare --minutes 9      stops then, with cells of all operations and types; the same call goes on
    CUDA_VISIBLE_DEVICES=1 ./worklog compare --full    at the same time as others, on a GPU of its own: they share cells
    ./worklog compare --full --operation batchnorm_train --shape 1024x64    these cells again; the file keeps the others
    ./worklog compare --list           the cells in their order, and how they are timed
    ./worklog compare --full --ahead 2/8    compiles for the second eighth of the cells, and times nothing

A cell is an operation, a type and a shape. In each cell all contenders work on the same tensors. Their outputs are
compared with float64 first; one that is off is named, and its times do not count. Then they are timed in turns, and who
begins changes with every round. `cold`: the L2 cache flushed before each call; `warm`: not; `graph`: replayed from a
CUDA graph, so that no launcher's cost hides a small kernel; `python`: what the host's clock says for a whole step from
Python, launch and all. The contenders are in peers/contenders.py.

A cell that raises something is kept with the reason, and the next one is measured. The exit code is 1 where that
happened or one of our own results is off, 2 where nothing could be measured, and 3 where a kernel has broken the CUDA
context: what was measured is kept, and the same call goes on. Needs PyTorch with CUDA, and a GPU build of the library.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import hashlib
import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import source_hash
from cells import COPY, EVERYONE, MODES, OURS, STAGE, STAGE_OF, TENSORS, Cell, case_of_cell, cell_of, grid
from grid import ELEMENT_BYTES
from machine_code import kernels_in
from programs import shown, write_json
from results import ROOT, ReportError, Repository
from rivals import report, verdicts

NO_GPU = """there is no GPU here that PyTorch can use, and so nothing to compare. What can be done instead:
  ./worklog run       checks every kernel on the CPU layer
  ./worklog charts    draws the charts of the committed results"""

NO_NATIVE = (
    "the package's C++ part is not built (python -m normworklog.torch.build makes it), and our calls cost the host "
    "more without it"
)
NO_ROOM = "does not fit the device"
GPU_LOST = 3  # exit code
WRITE_EVERY = 20  # seconds, while cells are measured
SHOW_FIRST_CALLS = ("rmsnorm_forward", "layernorm_backward", "batchnorm_train")  # also where others are compiled ahead


# --- Taking turns -----------------------------------------------------------------------------------------------------
def rotated(names: Sequence[str], turn: int) -> list[str]:
    """Who comes when in a round: each begins as often as the others."""
    begin = turn % len(names) if names else 0
    return [*names[begin:], *names[:begin]]


def take_turns(
    calls: dict[str, Callable[[], Any]], sample: Callable[[Callable[[], Any]], Callable[[], float]], rounds: int
) -> dict[str, list[float]]:
    """Seconds of each call in each round. `sample` begins a measurement and returns what waits for its result."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        pending = [(name, sample(calls[name])) for name in rotated(list(calls), turn)]
        for name, wait in pending:
            samples[name].append(wait())
    return samples


def summary(samples: Sequence[float]) -> dict[str, float]:
    ordered = sorted(samples)
    median = statistics.median(ordered)
    low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.1, 0.9))
    return {"median_seconds": median, "spread": (high - low) / median if median else 0.0, "samples": len(ordered)}


# --- The GPU ----------------------------------------------------------------------------------------------------------
class Gpu:
    """Measurements on the current CUDA device."""

    device = "cuda"
    # Cycles that the GPU sleeps before a call, so that the host has launched all of it by then; a backward pass is more
    # to launch.
    AHEAD, AHEAD_OF_BACKWARD = 800_000, 2_000_000
    IN_A_GRAPH = 20
    STEPS, SECONDS = 30, 0.008  # of a sample by the host's clock: at most so many, and no more than fill so long

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.ahead = self.AHEAD
        properties = torch.cuda.get_device_properties(0)
        # PyTorch runs a backward pass on the stream of its forward pass, and the default stream cannot be captured.
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.l2_bytes = properties.L2_cache_size
        self.waste = torch.empty(max(256 * 2**20, 4 * properties.L2_cache_size), dtype=torch.uint8, device="cuda")

    def usable(self) -> bool:
        """False once a kernel has broken the CUDA context, which nothing in this process can mend."""
        try:
            return self.torch.zeros(1, device="cuda").add(1).item() == 1
        except Exception:  # noqa: BLE001
            return False

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def raise_refused(self) -> None:
        """Raises what CUDA keeps of a launch that it refused and whose library did not look."""
        self.torch.zeros(1, device="cuda").add(1)

    def _timed(self, call: Callable[[], Any], before: Callable[[], Any] | None) -> Callable[[], float]:
        torch = self.torch
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if before:
            before()
        torch.cuda._sleep(self.ahead)
        begin.record()
        call()
        end.record()

        def wait() -> float:
            end.synchronize()
            return begin.elapsed_time(end) * 1e-3

        return wait

    def cold(self, call: Callable[[], Any]) -> Callable[[], float]:
        return self._timed(call, self.waste.zero_)

    def warm(self, call: Callable[[], Any]) -> Callable[[], float]:
        return self._timed(call, call)

    def captured(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """A CUDA graph of some calls. Raises what the capture raises."""
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=self.stream):
            for _ in range(self.IN_A_GRAPH):
                call()
        graph.replay()
        return graph.replay

    def graph(self, replay: Callable[[], Any]) -> Callable[[], float]:
        wait = self._timed(replay, replay)
        return lambda: wait() / self.IN_A_GRAPH

    def python(self, step: Callable[[], Any]) -> Callable[[], float]:
        def run(steps: int) -> float:
            self.torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(steps):
                step()
            self.torch.cuda.synchronize()
            return (time.perf_counter() - begun) / steps

        seconds = run(max(3, min(self.STEPS, int(self.SECONDS / run(1)))))
        return lambda: seconds


# --- Checking ---------------------------------------------------------------------------------------------------------
FIRST_CALLS = 2  # of each contender, before it is timed; what the last of them returns is checked
TOLERANCES = {"fp32": (1.3e-6, 1e-5), "fp16": (1e-3, 1e-5), "bf16": (1.6e-2, 1e-5)}  # of torch.testing.assert_close


def reference(problem: Any) -> list[Any]:
    """The outputs in float64: y (and h), or the gradients of problem.inputs()."""
    import torch
    import torch.nn.functional as F

    from contenders import EPS, forward_of

    p, forward = problem, forward_of(problem.operation)
    h = summed(p).requires_grad_()
    gamma = p.gamma.detach().double().requires_grad_()
    beta = None if p.beta is None else p.beta.detach().double().requires_grad_()
    if forward == "batchnorm_train":
        y = F.batch_norm(h, None, None, gamma, beta, True, 0.0, EPS)
    elif forward == "batchnorm_inference":
        y = F.batch_norm(h, p.running_mean.double(), p.running_var.double(), gamma, beta, False, 0.0, EPS)
    else:
        is_rms = "rmsnorm" in forward
        y = F.rms_norm(h, (p.cols,), gamma, EPS) if is_rms else F.layer_norm(h, (p.cols,), gamma, beta, EPS)
    if not p.gradients:
        return [y.detach()] if p.residual is None else [y.detach(), h.detach()]
    dh, *rest = torch.autograd.grad(y, [t for t in (h, gamma, beta) if t is not None], p.gradients[0].double())
    if p.residual is None:
        return [dh, *rest]
    dh = dh + p.gradients[1].double()
    return [dh, dh, *rest]


def summed(problem: Any) -> Any:
    """What is normalized, in float64: the sum as it is rounded to be stored, where there is a residual."""
    return (problem.x if problem.residual is None else problem.x + problem.residual).detach().double()


def running_statistics(problem: Any) -> list[Any]:
    """BatchNorm's running mean and variance in float64 after the first calls of training; empty for all else."""
    from contenders import MOMENTUM

    if problem.operation != "batchnorm_train":
        return []
    left = (1 - MOMENTUM) ** FIRST_CALLS
    x = problem.x.double()
    pixels = [dim for dim in range(x.dim()) if dim != 1]
    return [left * old.double() + (1 - left) * new
            for old, new in ((problem.running_mean, x.mean(dim=pixels)), (problem.running_var, x.var(dim=pixels)))]


def slack_of_sum(problem: Any) -> Any:
    """How far y may be off besides, where there is a residual. The sum is stored rounded: some normalize what is
    stored, others the sum before that (flash-attention), or what is stored with the statistics of the sum before
    (Inductor)."""
    import torch
    from contenders import EPS

    if problem.residual is None or problem.gradients:
        return 0.0
    h = summed(problem)
    mean = 0.0 if "rmsnorm" in problem.operation else h.mean(dim=1, keepdim=True)
    rstd = ((h - mean).square().mean(dim=1, keepdim=True) + EPS).rsqrt()
    # Relative: an element moves by so much, and the mean with the elements.
    half_a_place = torch.finfo(problem.x.dtype).eps / 2
    size = h.abs()
    return half_a_place * (size + size.mean(dim=1, keepdim=True)) * rstd * problem.gamma.double().abs()


def largest_excess(
    outputs: Sequence[Any], wanted: Sequence[Any], dtype: str, backward: bool, slack: Any = 0.0
) -> float:
    """The largest error, in units of what is tolerated: 1 and less is right. NaN counts as infinite. `slack` is the
    first output's."""
    worst = 0.0
    rtol, atol = TOLERANCES[dtype]
    for got, want in zip(outputs, wanted, strict=True):
        got = got.detach().double().reshape(want.shape)
        # A gradient is a sum whose terms cancel: its error is that of the terms.
        level = float(want.square().mean().sqrt()) if backward and want.numel() else 0.0
        allowed = (atol + rtol * (want.abs() + level)) * (4 if backward else 1) + slack
        slack = 0.0
        excess = ((got - want).abs() / allowed).max().item() if want.numel() else 0.0
        worst = max(worst, excess if math.isfinite(excess) else math.inf)
    return worst


def calls_that_are_right(
    calls: dict[str, Callable[[], Any]], title: str, tolerated: float, unchecked: Sequence[str]
) -> dict[str, Callable[[], Any]]:
    """Those of `calls` that run, after two calls of each; what is off by more than `tolerated` tolerances of bf16 from
    what "exact" gives is said. `unchecked` compute something else."""
    exact = calls.pop("exact")()
    kept = {}
    for name, call in calls.items():
        try:
            call()
            outputs = call()
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            off = 0.0 if name in unchecked else largest_excess(outputs, exact, "bf16", title == "backward")
        except Exception as error:  # noqa: BLE001
            print(f"{title}: {name} failed: {type(error).__name__}: {error}".split("\n")[0], file=sys.stderr)
            continue
        if off > tolerated:
            print(f"{title}: {name} is off by {off:.1f} tolerances", file=sys.stderr)
        kept[name] = call
    return kept


def write_microseconds(path: Path, figures: dict[str, float]) -> None:
    import torch

    write_json(path, {
        "commit": command_output("git", "rev-parse", "--short=10", "HEAD"),
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "microseconds": figures,
    })


# --- Running ----------------------------------------------------------------------------------------------------------
def measure(
    cell: Cell, names: Sequence[str], rounds: int, gpu: Gpu, sets: int = 1, modes: Sequence[str] = MODES,
    in_step: bool = False,
) -> dict[str, Any]:
    """The cell's checks, timings, first calls and absences. What ends the cell early is an absence of everyone, beside
    what was measured till then. With more than one set of tensors, cold calls take them in turn; `in_step`: as for
    right_calls."""
    import torch

    document: dict[str, Any] = {"benchmarks": [], "checks": [], "absent": [], "first_calls": []}
    try:
        right = right_calls(cell, names, gpu, document, sets, in_step)
        time_calls(cell, right, rounds, gpu, document, sets, [mode for mode in cell.modes if mode in modes])
    except torch.cuda.OutOfMemoryError:
        document["absent"].append({"variant": EVERYONE, "cell": cell.name, "reason": NO_ROOM})
        torch.cuda.empty_cache()
    except Exception as error:  # noqa: BLE001: the other cells are still measured
        traceback.print_exc()
        document["absent"].append({"variant": EVERYONE, "cell": cell.name, "reason": why(error)})
    return document


def why(error: Exception) -> str:
    """In a line, without the colours that some write for a terminal."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    return f"{type(error).__name__}: {' '.join(plain.split())[:200]}"


Calls = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Right:
    """By contender, of those whose results are right: what is timed, on one set of tensors and on all sets in turn; and
    a whole step. `turns` counts the calls on sets in turn, of all contenders together, or of each by itself."""

    turns: Iterator[int] | None = field(default_factory=itertools.count)
    calls: Calls = field(default_factory=dict)
    in_turn: Calls = field(default_factory=dict)
    steps: Calls = field(default_factory=dict)

    def of(self, mode: str) -> Calls:
        """A warm cache, and one that a graph's calls leave, hold the tensors of the call: those modes have one set."""
        return {"cold": self.in_turn, "python": self.steps}.get(mode, self.calls)


def in_turn(calls: Sequence[Callable[[], Any]], turns: Iterator[int] | None = None) -> Callable[[], Any]:
    """A call that is another of these each time. With `turns` that all contenders share, it is on another set of
    tensors than the call before it, whoever's that was: a contender may have asked the cache to keep what it read."""
    if len(calls) == 1:
        return calls[0]
    numbers = itertools.count() if turns is None else turns
    return lambda: calls[next(numbers) % len(calls)]()


SETS = 4  # of tensors, for the scripts that time a few large cases: the cache is read through before a set comes again


def on_sets(sets: Sequence[Calls]) -> Calls:
    """Of the contenders that are in each of these, calls that take one set after the other, as in_turn() does."""
    turns = itertools.count()
    in_all = [name for name in sets[0] if all(name in calls for calls in sets)]
    return {name: in_turn([calls[name] for calls in sets], turns) for name in in_all}


def sets_to_rotate(cell: Cell, l2_bytes: int) -> int:
    """Sets of tensors such that four times the L2 cache is read and written before a set has its turn again."""
    return max(2, min(32, 2 + 4 * l2_bytes // cell.bytes))


def right_calls(
    cell: Cell, names: Sequence[str], gpu: Gpu, document: dict[str, Any], sets: int = 1, in_step: bool = False
) -> Right:
    """What of the contenders is timed. Those whose results are wrong are named in `document`, and what the first call
    of each took. `in_step`: in each round all contenders have the same set of tensors."""
    from contenders import prepare

    problems = [problem_of(cell, gpu.device, number) for number in range(sets)]
    problem = problems[0]
    gpu.ahead = gpu.AHEAD_OF_BACKWARD if problem.gradients else gpu.AHEAD
    wanted, slack, statistics_wanted = reference(problem), slack_of_sum(problem), running_statistics(problem)
    right = Right(turns=None) if in_step else Right()
    for name in names:
        own = problem.with_own_statistics()
        made = first_calls(cell, name, own, gpu, document)
        if made is None:
            continue
        call, step, outputs = made
        outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        excess = largest_excess(outputs, wanted, cell.dtype, bool(problem.gradients), slack)
        if statistics_wanted:
            excess = max(excess, largest_excess([own.running_mean, own.running_var], statistics_wanted, "fp32", False))
        verdict = "passed" if excess <= 1 else "failed"
        largest = excess if math.isfinite(excess) else None
        document["checks"].append({"variant": name, "cell": cell.name, "verdict": verdict, "largest_error": largest})
        if verdict == "passed":
            others = [prepare(name, other.with_own_statistics())[0] for other in problems[1:]]
            right.calls[name], right.steps[name] = call, step
            right.in_turn[name] = in_turn([call, *others], right.turns)
    return right


def problem_of(cell: Cell, device: str, number: int = 0) -> Any:
    """The cell's tensors; those of another `number` hold other values."""
    import torch
    from contenders import make_problem

    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[cell.dtype]
    return make_problem(cell.operation, dtype, cell.rows, cell.cols, device, cell.pixels, cell.first, number)


def first_calls(
    cell: Cell, name: str, problem: Any, gpu: Gpu, document: dict[str, Any]
) -> tuple[Callable[[], Any], Callable[[], Any], Any] | None:
    """What is timed, the whole step, and the outputs of the last of the first calls; None where there are none, with
    the reason in `document`."""
    from contenders import Unavailable, prepare

    try:
        gpu.synchronize()
        begun = time.perf_counter()
        call, step = prepare(name, problem)
        outputs = call()
        gpu.synchronize()
        seconds = time.perf_counter() - begun
        for _ in range(FIRST_CALLS - 1):
            outputs = call()
        gpu.synchronize()
        gpu.raise_refused()
    except Unavailable as error:
        document["absent"].append({"variant": name, "cell": cell.name, "reason": str(error)})
        return None
    except Exception as error:  # noqa: BLE001: whatever another library raises, the others are still timed
        if name == OURS:
            raise
        document["absent"].append({"variant": name, "cell": cell.name, "reason": why(error)})
        gpu.usable()  # a launch that CUDA refused stays its last error until somebody asks: here, and not the next one
        return None
    document["first_calls"].append({"variant": name, "cell": cell.name, "seconds": seconds})
    return call, step, outputs


def time_calls(
    cell: Cell, right: Right, rounds: int, gpu: Gpu, document: dict[str, Any], sets: int, modes: Sequence[str]
) -> None:
    """In each of these ways of timing, beside a copy of the same bytes."""
    import torch

    source = [torch.empty(max(1, cell.bytes // 2), dtype=torch.uint8, device=gpu.device) for _ in range(sets)]
    target = [torch.empty_like(part) for part in source]
    copies = [functools.partial(to.copy_, part) for to, part in zip(target, source)]
    right.calls[COPY], right.in_turn[COPY], right.steps[COPY] = copies[0], in_turn(copies, right.turns), copies[0]
    for mode in modes:
        timed = right.of(mode)
        if mode == "graph":
            timed = {}
            for name, call in right.calls.items():
                try:
                    timed[name] = gpu.captured(call)
                except Exception as error:  # noqa: BLE001
                    gpu.synchronize()
                    gpu.usable()  # as above
                    document["absent"].append({"variant": name, "cell": f"{cell.name}/graph", "reason": why(error)})
        samples = take_turns(timed, getattr(gpu, mode), max(3, rounds // 3) if mode == "python" else rounds)
        figures = {name: summary(values) for name, values in samples.items()}
        copy = figures[COPY]["median_seconds"] if COPY in figures and mode != "python" else None
        for name, figure in figures.items():
            entry = {"name": f"{STAGE}/{name}/{cell.name}/{mode}", "run_type": "iteration"}
            entry |= {**figure, "bytes": cell.bytes}
            entry["bytes_per_second"] = cell.bytes / figure["median_seconds"]
            if copy:
                entry["share_of_copy"] = copy / figure["median_seconds"]
            document["benchmarks"].append(entry)


def command_output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def clocks() -> str:
    # Of several GPUs, the one that is measured.
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0] or "0"
    query = "--query-gpu=clocks.sm,clocks.mem,temperature.gpu,power.draw"
    return command_output("nvidia-smi", "-i", first, query, "--format=csv,noheader")


# Words of a GPU's name that say nothing of its model, as common/harness/device.cpp has them.
NO_MODEL = re.compile(r"nvidia|geforce|quadro|tesla|laptop|gpu|pcie|nvl|with|max|q|design|.*gb|hbm.*|sxm.*")


def short_name_of(gpu: str) -> str:
    """h100 of NVIDIA H100 80GB HBM3."""
    return "".join(word for word in re.findall(r"[a-z0-9]+", gpu.lower()) if not NO_MODEL.fullmatch(word))


def context_of(names: Sequence[str], library: Path) -> dict[str, Any]:
    import importlib.metadata

    import torch

    gpu = torch.cuda.get_device_name()
    versions = {}
    for package in (
        "torch", "triton", "liger-kernel", "flash-attn", "quack-kernels", "nvidia-cudnn-frontend", "flashinfer-python",
        "nvidia-cutlass-dsl", "transformer-engine", "apex",
    ):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if torch.backends.cudnn.is_available():
        versions["cudnn"] = str(torch.backends.cudnn.version())
    drivers = command_output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()
    return {
        "gpu": gpu,
        "gpu_short": short_name_of(gpu),
        "driver": drivers[0] if drivers else "unknown",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": command_output("git", "rev-parse", "HEAD") or os.environ.get("WORKLOG_COMMIT", "unknown"),
        "dirty": "true" if command_output("git", "status", "--porcelain", "--untracked-files=no") else "false",
        "source_hashes": {stage: source_hash.source_hash(stage) for stage in sorted(set(STAGE_OF.values()))},
        "library": hashlib.sha256(library.read_bytes()).hexdigest(),
        "software": versions,
        "contenders": list(names),
        "clocks_before": clocks(),
    }


def fingerprint(context: dict[str, Any], native: Path | None) -> str:
    """Of all that cells kept together have in common: the GPU, the libraries, the contenders, and the code that
    measures and calls."""
    here, package = Path(__file__).resolve().parent, ROOT / "common/library/python/normworklog"
    files = [here / "compare.py", here / "cells.py"]
    files += [*sorted((here / "peers").glob("*.py")), *sorted(package.rglob("*.py"))]
    files += [native] if native else []
    told = hashlib.sha256(json.dumps([context[key] for key in ("gpu", "library", "software", "contenders")]).encode())
    for file in files:
        told.update(hashlib.sha256(file.read_bytes()).digest())
    return told.hexdigest()[:12]


def joined(context: dict[str, Any], parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The cells' documents as one."""
    document: dict[str, Any] = {"context": context, "benchmarks": [], "checks": [], "absent": [], "first_calls": []}
    absent: dict[tuple[str, str], list[str]] = {}
    for part in parts:
        for key in ("benchmarks", "checks", "first_calls"):
            document[key] += part.get(key, [])
        for entry in part["absent"]:
            absent.setdefault((entry["variant"], entry["reason"]), []).append(entry["cell"])
    document["absent"] = [
        {"variant": variant, "reason": reason, "cells": cells} for (variant, reason), cells in absent.items()
    ]
    return document


def added_to(before: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """`document`, and as they were `before` the cells that it has not: under `earlier`, each run that they come
    from."""
    def cells_of(some: dict[str, Any]) -> dict[str, list[str]]:
        """The cell of each timing and of each check."""
        return {
            "benchmarks": [cell_of(entry["name"])[1].name for entry in some["benchmarks"]],
            "checks": [entry["cell"] for entry in some["checks"]],
            "first_calls": [entry["cell"] for entry in some.get("first_calls", [])],
        }

    def cell_in(name: str) -> str:  # of what is absent: of a cell, or of a cell's graph
        return "/".join(name.split("/")[:3])

    measured = {name for names in cells_of(document).values() for name in names}
    measured |= {cell_in(name) for entry in document["absent"] for name in entry["cells"]}
    joint = dict(document)
    for key, names in cells_of(before).items():
        left = [entry for entry, name in zip(before.get(key, []), names) if name not in measured]
        joint[key] = document.get(key, []) + left
    absent = {(entry["variant"], entry["reason"]): list(entry["cells"]) for entry in document["absent"]}
    for entry in before["absent"]:
        left = [name for name in entry["cells"] if cell_in(name) not in measured]
        absent.setdefault((entry["variant"], entry["reason"]), []).extend(left)
    joint["absent"] = [
        {"variant": variant, "reason": reason, "cells": names} for (variant, reason), names in absent.items() if names
    ]

    of_earlier = {name for run in before.get("earlier", []) for name in run["cells"]}
    of_last = dict.fromkeys(name for names in cells_of(before).values() for name in names if name not in of_earlier)
    of_before = [entry for entry in before.get("launches", []) if entry["case"] not in measured]
    launches = document.get("launches", []) + of_before
    names = {entry["code"]: entry for some in (before, document) for entry in some.get("kernel_names", [])}
    joint |= {"launches": launches, "kernel_names": list(names.values())} if launches else {}
    runs = [{"context": before["context"], "cells": list(of_last)}, *before.get("earlier", [])]
    earlier = [
        run | {"cells": left} for run in runs if (left := [name for name in run["cells"] if name not in measured])
    ]
    return joint | ({"earlier": earlier} if earlier else {})


def launches_in(library: Path, cells: Iterable[Cell], gpu: str) -> dict[str, Any]:
    """What the library launches in these cells, by the stages' locks, as far as these are of the sources as they stand
    and the library holds the code that they name."""
    repository = Repository(ROOT)
    made, names, held = [], {}, None
    for cell in cells:
        stage = STAGE_OF[cell.operation]
        launches = repository.launches_now(stage, gpu, case_of_cell(cell))
        lock = repository.lock_now(stage, gpu)
        if launches is None or lock is None:
            continue
        if held is None:
            held = {kernel.code for kernel in kernels_in(library, lock.toolchain["architecture"]).values()}
        if all(launch["code"] in held for launch in launches):
            made.append({"case": cell.name, "launches": launches})
            names |= {launch["code"]: lock.names[launch["code"]] for launch in launches}
    return {"launches": made, "kernel_names": [{"code": code, "kernel": names[code]} for code in sorted(names)]}


def kept_in(folder: Path, cell: Cell) -> Path:
    return folder / (cell.name.replace("/", "-") + ".json")


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """True in one process at a time. Whoever ends, in whichever way, gives up what it had claimed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def run_cells(
    cells: Sequence[Cell], folder: Path, work: Callable[[Cell], dict[str, Any]], minutes: float | None,
    usable: Callable[[], bool] = lambda: True, now: Callable[[], float] = time.monotonic,
    after_each: Callable[[], None] = lambda: None,
) -> bool:
    """Measures the cells that `folder` does not have yet. True where some are not there at the end: time ran out,
    another process is at them, or the GPU could not be used after a cell."""
    begun, late = now(), False
    for number, cell in enumerate(cells, 1):
        path = kept_in(folder, cell)
        late = late or (minutes is not None and now() - begun > minutes * 60)
        if late or path.is_file():
            continue
        with claimed(path) as is_ours:
            if is_ours and not path.is_file():
                print(f"[{number}/{len(cells)}] {cell.name} · {int(now() - begun)} s gone", flush=True)
                write_json(path, work(cell))
                late = not usable()
                after_each()
    return not all(kept_in(folder, cell).is_file() for cell in cells)


def compile_ahead(
    cells: Sequence[Cell], folder: Path, names_of: Callable[[Cell], Sequence[str]], gpu: Gpu, minutes: float | None
) -> None:
    """The first calls of cells that are not measured yet, of the contenders that keep on disk what they compile. What
    their first calls take is not what a first call takes then, and so the cells are marked."""
    from contenders import KEPT_ON_DISK

    begun = time.monotonic()
    for cell in cells:
        if minutes is not None and time.monotonic() - begun > minutes * 60:
            return
        if kept_in(folder, cell).is_file():
            continue
        try:
            problem = problem_of(cell, gpu.device)
        except RuntimeError:  # no room beside the other shares
            continue
        for name in names_of(cell):
            if name in KEPT_ON_DISK:
                first_calls(cell, name, problem.with_own_statistics(), gpu, joined({}, []))
        folder.mkdir(parents=True, exist_ok=True)
        compiled_ahead(folder, cell).touch()


def compiled_ahead(folder: Path, cell: Cell) -> Path:
    return kept_in(folder, cell).with_suffix(".ahead")


def share_of(cells: Sequence[Cell], share: str) -> list[Cell]:
    """`share` is 2/8 for the second eighth. The first cells of some operations are in none: their first calls are to
    show what they take."""
    number, shares = map(int, share.split("/"))
    first = {cell.operation: cell for cell in reversed(cells) if cell.operation in SHOW_FIRST_CALLS}
    return [cell for cell in cells if cell != first.get(cell.operation)][number - 1::shares]


def kept(cells: Iterable[Cell], folder: Path) -> list[dict[str, Any]]:
    """The documents of those that were measured."""
    return [json.loads(path.read_text(encoding="utf-8")) for cell in cells if (path := kept_in(folder, cell)).is_file()]


def failures(parts: Iterable[dict[str, Any]]) -> Iterator[str]:
    """A line for each cell that ended early, and for each that we have no right result or no time in. Those that are
    too large for the GPU are none of these."""
    for part in parts:
        for entry in part["absent"]:
            if entry["variant"] == EVERYONE and entry["reason"] != NO_ROOM:
                yield f"{entry['cell']} ended early: {entry['reason']}"
            if entry["variant"] == OURS:
                yield f"ours was not timed at {entry['cell']}: {entry['reason']}"
        for check in part["checks"]:
            if check["variant"] == OURS and check["verdict"] != "passed":
                yield f"our own result is off at {check['cell']}: {check['largest_error']} times what is tolerated"


def ready(strict: bool) -> tuple[Path, Path | None]:
    """The library and the package's C++ part. Raises ReportError where there is nothing to compare with, or less than
    `strict` asks for."""
    try:
        import torch
    except ImportError:
        if not command_output("nvidia-smi", "-L"):
            raise ReportError(NO_GPU) from None
        raise ReportError(
            "this Python has no PyTorch, which the comparison is with; WORKLOG_PYTHON names another Python"
        ) from None
    if not torch.cuda.is_available():
        raise ReportError(NO_GPU)
    sys.path[:0] = [str(ROOT / "common/library/python"), str(Path(__file__).parent / "peers")]
    import normworklog
    from normworklog import _library
    from normworklog.torch import _native

    try:
        if normworklog.backend() != "cuda":
            raise ReportError(
                f"{_library.load().path} is a CPU build; ./worklog build --preset gpu makes one for this GPU"
            )
    except normworklog.Error as error:
        raise ReportError(str(error)) from None
    native = _native.load()
    tell_missing(native is not None, strict)
    return _library.load().path, Path(native.__file__) if native else None


def tell_missing(has_native: bool, strict: bool) -> None:
    """Prints what a comparison should have and this one has not; raises ReportError where `strict`."""
    import contenders

    missing = [*([] if has_native else [NO_NATIVE]), *contenders.missing()]
    if missing and strict:
        raise ReportError("not all is here that --strict asks for: " + "; ".join(missing))
    for line in missing:
        print(line)


def chosen(cells: Sequence[Cell], options: argparse.Namespace) -> list[Cell]:
    found = [
        cell for cell in cells
        if (not options.operation or cell.operation in options.operation)
        and (not options.dtype or cell.dtype in options.dtype)
        and (not options.shape or cell.shape in options.shape)
    ]
    if not found:
        raise ReportError(
            "no cell of the grid is of the operations, types and shapes that were asked for "
            "(--list shows what there is)"
        )
    return found


def compare(options: argparse.Namespace) -> int:
    whole = grid(options.full)
    cells = chosen(whole, options)
    kind = "full" if options.full else "quick"
    if options.list:
        for cell in cells:
            print(cell.name, *cell.modes)
        return 0
    library, native = ready(options.strict)
    import contenders

    names = [name for name in contenders.NAMES if options.tuned_cells or name not in contenders.TUNED]
    tuned = set(whole[:options.tuned_cells])

    def names_of(cell: Cell) -> list[str]:
        return [name for name in names if cell in tuned or name not in contenders.TUNED]

    context = context_of(names, library) | {
        "calls": "C++" if native else "Python", "grid": kind,
        "tensors": "one set" if options.one_set else "another set with each call",
    }
    output = options.output or ROOT / "docs" / "compare" / f"{context['gpu_short']}.json"
    before = json.loads(output.read_text(encoding="utf-8")) if output.is_file() else None
    if kind == "quick" and not options.output and before and before["context"].get("grid") == "full":
        raise ReportError(
            f"{shown(output)} holds a full run, which a quick one would replace: keep the quick run elsewhere with "
            "--output my/compare.json"
        )
    kept_apart = f"{context['gpu_short']}-{kind}-{fingerprint(context, native)}"
    folder = options.work / (kept_apart + "-one-set" * options.one_set)
    gpu = Gpu()
    if options.ahead:
        compile_ahead(share_of(cells, options.ahead), folder, names_of, gpu, options.minutes)
        return 0
    rounds = 40 if options.full else 15

    def work(cell: Cell) -> dict[str, Any]:
        sets = 1 if options.one_set else sets_to_rotate(cell, gpu.l2_bytes)
        part = measure(cell, names_of(cell), rounds, gpu, sets)
        left_out = contenders.KEPT_ON_DISK if compiled_ahead(folder, cell).is_file() else ()
        part["first_calls"] = [entry for entry in part["first_calls"] if entry["variant"] not in left_out]
        return part

    written = time.monotonic()

    def write_now_and_then() -> None:
        """A call that is killed leaves what it has measured till then."""
        nonlocal written
        if time.monotonic() - written > WRITE_EVERY:
            write_json(output, joint({}))
            written = time.monotonic()

    def joint(launches: dict[str, Any]) -> dict[str, Any]:
        parts = kept(whole, folder)  # those of earlier calls as well, whatever this one was narrowed to
        document = joined(context | {"clocks_after": clocks()}, parts) | launches
        if before and before["context"].get("grid") == kind:
            document = added_to(before, document)
        left = sum(len(run["cells"]) for run in document.get("earlier", []))
        document["context"] |= {"cells": len(parts) + left, "cells_of_grid": len(whole)}
        return document

    left_out = run_cells(cells, folder, work, options.minutes, gpu.usable, after_each=write_now_and_then)
    write_json(output, joint({}))
    measured = [cell for cell in whole if kept_in(folder, cell).is_file()]
    parts, document = kept(whole, folder), joint(launches_in(library, measured, context["gpu_short"]))
    left = sum(len(run["cells"]) for run in document.get("earlier", []))
    write_json(output, document)
    for line in report(verdicts(document)):
        print(line)
    print(
        f"{len(parts)} of {len(whole)} cells {f'(and {left} of earlier runs) ' if left else ''}written to "
        f"{shown(output)}"
        + ("; the same call goes on from here" if left_out else "")
    )
    bad = list(failures(parts))
    if bad:
        print(
            *bad,
            f"what is kept of a cell is in {shown(folder)}: remove its file there to measure it again",
            sep="\n", file=sys.stderr,
        )
    if not gpu.usable():
        print(
            "a kernel has broken the CUDA context: the same call, started again, measures the other cells",
            file=sys.stderr,
        )
        return GPU_LOST
    return 1 if bad else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./worklog compare", description=__doc__.splitlines()[0])
    grids = parser.add_mutually_exclusive_group()
    grids.add_argument(
        "--quick", action="store_true", help="three minutes: a few widths of each operation (the default)"
    )
    grids.add_argument("--full", action="store_true", help="all shapes and types, and torch.compile's max-autotune")
    parser.add_argument("--minutes", type=float, help="stop after so long; the same call goes on from there")
    parser.add_argument(
        "--operation", action="append", default=[], choices=list(TENSORS),
        help="only this operation (may be given more than once)",
    )
    parser.add_argument(
        "--dtype", action="append", default=[], choices=list(ELEMENT_BYTES),
        help="only this type (may be given more than once)",
    )
    parser.add_argument(
        "--shape", action="append", default=[], metavar="RxC",
        help="only this shape, rows x cols; of images samples x channels x pixels, and -first behind it where their "
             "channels come first (may be given more than once)",
    )
    parser.add_argument(
        "--tuned-cells", type=int, metavar="N",
        help="cells, the first of the grid, in which torch.compile's max-autotune and quack's tuned kernels take part "
             "(default: 30 of a full run, none of a quick one)",
    )
    parser.add_argument(
        "--one-set", action="store_true",
        help="one set of tensors for cold calls, where otherwise several are taken in turn, so that nothing of a call "
             "is in a cache when its tensors are used again",
    )
    parser.add_argument(
        "--ahead", metavar="I/N",
        help="time nothing, and compile for the I-th of N shares of the cells; three cells are left to show what a "
             "first call takes",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="time nothing where the package's C++ part or one of the libraries that published runs have is missing",
    )
    parser.add_argument("--list", action="store_true", help="print the cells and how they are timed, and stop")
    parser.add_argument("--output", type=Path, help="file to write, instead of docs/compare/<gpu>.json")
    parser.add_argument(
        "--work",
        type=Path,
        default=ROOT / "build/compare",
        help="folder for what was measured (default: build/compare)",
    )
    options = parser.parse_args(arguments)
    if options.ahead and not re.fullmatch(r"[1-9]\d*/[1-9]\d*", options.ahead):
        parser.error("--ahead takes I/N, as in 2/8")
    if options.tuned_cells is None:
        options.tuned_cells = 30 if options.full else 0
    try:
        return compare(options)
    except KeyboardInterrupt:
        print("\nstopped. The same call goes on from here.", file=sys.stderr)
        return 130
    except ReportError as error:
        print(f"./worklog compare: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
