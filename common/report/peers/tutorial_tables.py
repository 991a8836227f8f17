#!/usr/bin/env python3
"""The two tables of Triton's LayerNorm tutorial, measured here: docs/data/tutorial_tables_<gpu>.json.

    python3 common/report/peers/tutorial_tables.py --programs build/gpu/bin

4096 rows in fp16, at each of the tutorial's 30 widths: the forward and the backward pass of PyTorch's eager kernels and
of the tutorial's scheme as triton_tutorial.py has it, in turn in one process, and after that, on the same GPU, of the
stages' kernels by their programs. Nothing is timed before its results have passed. All times are medians with the L2
cache flushed before each call. GB/s as the tutorial counts them: two tensors forward, three backward.

Needs a GPU, PyTorch and Triton, and the GPU build of stages 05 and 07.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import compare  # noqa: E402
from cells import Cell  # noqa: E402
from programs import Failed, programs_in, shown, write_json  # noqa: E402
from results import ROOT, ReportError, Repository  # noqa: E402

ROWS, COLS = 4096, tuple(range(1024, 15873, 512))
PEERS = {"torch": "PyTorch's eager kernel", "triton tutorial": "the tutorial's scheme, triton_tutorial.py"}
# Of each pass the stage, the kernels, and the widest rows that each of them takes.
OURS = {
    "forward": ("05_welford", {"held": COLS[-1], "layer_norm": COLS[-1]}),
    "backward": (
        "07_backward",
        {"grouped": COLS[-1], "grouped_fp32": COLS[-1], "staying": 8192, "persistent": COLS[-1]},
    ),
}
ROUNDS = 40

Figure = tuple[str, float, str]  # its name, GB/s, what it is of


def of_peers(direction: str, gpu: compare.Gpu) -> Iterator[Figure]:
    """Raises Failed where a result is off."""
    for cols in COLS:
        cell = Cell(f"layernorm_{direction}", "fp16", ROWS, cols)
        document: dict[str, Any] = {"benchmarks": [], "checks": [], "absent": []}
        calls, _ = compare.right_calls(cell, list(PEERS), gpu, document)
        if missing := [name for name in PEERS if name not in calls]:
            raise Failed(f"{cell.name}: not timed: {', '.join(missing)}: {document['checks']} {document['absent']}")
        for name, samples in compare.take_turns(calls, gpu.cold, ROUNDS).items():
            rate = cell.bytes / compare.summary(samples)["median_seconds"] / 1e9
            yield f"{direction}_{cols}_{name.split()[0]}", rate, f"{PEERS[name]}, {direction}, {cols} columns"
        print(f"    {cell.name}", flush=True)


def of_programs(direction: str, folder: Path) -> Iterator[tuple[Figure, dict[str, Any]]]:
    """Each figure with the context of the run that it is of. Raises Failed, ReportError."""
    stage, kernels = OURS[direction]
    (program,) = programs_in(folder, [stage])
    for kernel, widest in kernels.items():
        shapes = ",".join(f"{ROWS}x{cols}" for cols in COLS if cols <= widest)
        flags = ["--shapes", shapes, "--dtype", "fp16", "--operation", f"layernorm_{direction}", "--variant", kernel]
        flags += ["--input", "normal", "--time", "cold", "--max-seconds-per-timing", "0.1"]
        code, printed, document = program.run(flags)
        if code != 0 or not document:
            raise Failed(f"{stage}, {kernel}: a check failed, or a timing could not be taken.\n{printed[-3000:]}")
        with tempfile.TemporaryDirectory() as kept:
            path = Path(kept) / f"{stage}.json"
            write_json(path, document)
            timings = Repository().results_in(path).all_timings
        for t in timings:
            if (t.variant, t.mode) == (kernel, "cold"):
                size = Cell(t.operation, t.dtype, t.rows, t.cols).bytes
                meaning = f"`{kernel}` of stage {stage[:2]}, {direction}, {t.cols} columns"
                yield (f"{direction}_{t.cols}_{kernel}", size / t.seconds / 1e9, meaning), document["context"]
        print(f"    {stage}, {kernel}", flush=True)


def measure(folder: Path) -> tuple[dict[str, Any], str]:
    """The document, and the GPU's short name."""
    gpu = compare.Gpu()
    figures: list[Figure] = []
    context: dict[str, Any] = {}
    for direction in OURS:
        figures += of_peers(direction, gpu)
        for figure, of_run in of_programs(direction, folder):
            figures.append(figure)
            context = of_run
    software = compare.context_of(list(PEERS), folder / OURS["forward"][0])
    source = {
        "title": "The widths of the Triton tutorial: PyTorch, the tutorial's scheme and this project's kernels",
        "gpu": software["gpu"],
        "driver": software["driver"],
        "date": software["date"][:10],
        "software": {name: software["software"].get(name, "") for name in ("torch", "triton")},
        "shape": f"{ROWS} rows",
        "dtype": "fp16",
        "note": "Medians, the L2 cache flushed before each call. PyTorch and the tutorial's scheme in turn in one "
        "process; the stages' kernels by their programs, on the same machine after them. Made by "
        "common/report/peers/tutorial_tables.py.",
        "commit": context["commit"],
        "commit_note": "The tree that the programs were built from",
    }
    named = {name: {"value": round(rate, 1), "unit": "GB/s", "meaning": meaning} for name, rate, meaning in figures}
    return {"source": source, "figures": named}, software["gpu_short"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--programs", type=Path, default=ROOT / "build/gpu/bin", help="folder of the GPU build's programs"
    )
    parser.add_argument("--output", type=Path, help="file to write, instead of docs/data/tutorial_tables_<gpu>.json")
    options = parser.parse_args(arguments)
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        print(f"tutorial_tables: {error}: PyTorch and Triton are measured, and have to be here", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("tutorial_tables: there is no GPU here that PyTorch can use", file=sys.stderr)
        return 2
    try:
        document, gpu = measure(options.programs)
    except ReportError as error:
        print(f"tutorial_tables: {error}", file=sys.stderr)
        return 2
    except Failed as error:
        print(f"tutorial_tables: {error}", file=sys.stderr)
        return 1
    path = options.output or ROOT / f"docs/data/tutorial_tables_{gpu}.json"
    write_json(path, document)
    print(f"wrote {shown(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
