#!/usr/bin/env python3
"""What stage 02 computes on the CPU layer without the barrier in its tree: the figures of its writeup.

    python3 common/report/missing_barrier.py --edit 02_shared_reduction TO    a copy of the stage without that one line
    python3 common/report/missing_barrier.py --program build/cpu/bin/missing_barrier
    python3 common/report/missing_barrier.py --program build/cpu/bin/missing_barrier --check

The build makes the program of an edited copy of the stage's kernels (common/tests/CMakeLists.txt). It runs here in each
order in which the CPU layer can take the threads of a block, and how many elements come out wrong goes into
docs/data/missing_barrier.json. The layer is deterministic: --check, which is a test, compares every figure. It lets a
few elements differ, those that are right by chance: whether they are depends on how a compiler fuses operations.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from origins import write_figures

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "docs/data/missing_barrier.json"
BARRIER = "    __syncthreads();  // the next step reads what other warps have written in this one\n"
ORDERS = {"forward": "forward", "reverse": "reverse", "shuffle": "shuffle:1"}
VARIANTS = ("two_pass", "one_pass")
BY_CHANCE = 20  # elements of a million


def edit(source: Path, target: Path) -> None:
    """Both are folders: the stage's program beside the kernels that it includes."""
    text = (source / "kernels.cuh").read_text(encoding="utf-8")
    if text.count(BARRIER) != 1:
        sys.exit(
            f"missing_barrier.py: {source}/kernels.cuh does not have the barrier of the tree's loop once, as the "
            "writeup quotes it"
        )
    target.mkdir(parents=True, exist_ok=True)
    (target / "kernels.cuh").write_text(text.replace(BARRIER, ""), encoding="utf-8")
    # The article's kernels, which the variants include, take what they need from the header without the barrier.
    article = (source / "article.cuh").read_text(encoding="utf-8")
    own = f'#include "{source.name}/kernels.cuh"'
    (target / "article.cuh").write_text(article.replace(own, '#include "kernels.cuh"'), encoding="utf-8")
    for name in ("main.cu", "variants.cu"):
        shutil.copyfile(source / name, target / name)


def checks_in_order(program: Path, order: str) -> dict[str, dict[str, Any]]:
    """By variant: the check of 1024 x 1024 normally distributed values. Every one must fail: exit code 1."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        flags = ["--check-only", "--shapes", "1024x1024", "--input", "normal", "--variant", ",".join(VARIANTS)]
        environment = os.environ | {"WORKLOG_SIMT_ORDER": order}
        done = subprocess.run(
            [program, *flags, "--json", file], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 1:
            sys.exit(
                f"missing_barrier.py: without the barrier, {program} was to fail in order {order}; its exit code is "
                f"{done.returncode}\n{done.stdout}{done.stderr}"
            )
        return {check["variant"]: check for check in json.loads(file.read_text(encoding="utf-8"))["checks"]}


def document(program: Path) -> dict[str, Any]:
    figures = {}
    for name, order in ORDERS.items():
        for variant, check in checks_in_order(program, order).items():
            ending = "" if check["max_ulp_error"] is not None else ", some not finite"
            figures[f"{name}_{variant}"] = {
                "value": check["differing"],
                "unit": "count",
                "meaning": f"wrong elements of {variant}, threads in order {order}{ending}",
            }
            figures["compared"] = {
                "value": check["compared"],
                "unit": "count",
                "meaning": "elements compared: y, mean and rstd",
            }
    return {
        "source": {
            "title": "Stage 02 without the barrier in tree_sum's loop, on the CPU layer",
            "shape": "1024x1024", "dtype": "fp32", "input": "normal",
            "note": "Made by common/report/missing_barrier.py; a test compares it with what the program gives now.",
        },
        "figures": figures,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--edit", nargs=2, type=Path, metavar=("FROM", "TO"), help="copy a stage's folder without the barrier, and stop"
    )
    parser.add_argument("--program", type=Path, help="the program of the edited kernels")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a figure differs")
    options = parser.parse_args()
    if options.edit:
        edit(*options.edit)
        return 0
    if not options.program:
        parser.error("--program is missing")
    found = document(options.program.resolve())
    if options.check:
        kept = json.loads(DATA.read_text(encoding="utf-8"))["figures"]
        differing = [
            f"{name}: {kept.get(name, {}).get('value')} in docs/data, {figure['value']} now"
            for name, figure in found["figures"].items()
            if abs(kept.get(name, {}).get("value", -1) - figure["value"]) > BY_CHANCE
        ]
        print("\n".join(differing) or f"{len(kept)} figures agree")
        return 1 if differing else 0
    write_figures(DATA, found["source"], found["figures"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
