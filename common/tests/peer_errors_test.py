#!/usr/bin/env python3
"""peers/errors.py compares results with float64 exactly as the harness does: on what a stage's program saved, both must
find the same errors and the same number of wrong elements.

    common/tests/peer_errors_test.py --program build/cpu/bin/04_vectorized

Needs numpy, of the project's virtual environment or this Python; exit code 77 (skipped) without it.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "common/report/peers"))
sys.dont_write_bytecode = True

from venv_of_tests import need

need("numpy")

import numpy
import errors


def difference(check: dict, folder: Path) -> str:
    """A sentence where the two do not agree, else nothing."""
    dtype = check["dtype"]

    def load(path: Path) -> numpy.ndarray:
        return errors.in_float64(numpy.load(path))

    outputs = {name: load(folder / check["variant"] / f"{name}.npy") for name in ("y", "mean", "rstd")}
    found = errors.examine(dtype, *(load(folder / f"{name}.npy") for name in ("x", "gamma", "beta")), outputs)
    largest = math.inf if check["max_ulp_error"] is None else check["max_ulp_error"]
    same = found.largest_ulp == largest or math.isclose(found.largest_ulp, largest, rel_tol=1e-6, abs_tol=1e-6)
    if same and (found.differing, found.compared) == (check["differing"], check["compared"]):
        return ""
    return (f"{check['name']} {check['input']}: {found.largest_ulp} ulp, {found.differing} wrong of {found.compared}; "
            f"the harness has {largest}, {check['differing']} of {check['compared']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [
            options.program.resolve(), "--check-only", "--operation", "layernorm_forward", "--shapes", "16x1024",
            "--input", "all", "--param-dtype", "same", "--save-tensors", folder, "--json", results,
        ]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        checks = json.loads(results.read_text(encoding="utf-8"))["checks"]
        problems = [
            difference(check, Path(folder) / f"{check['operation']}-{check['dtype']}-16x1024-{check['input']}")
            for check in checks
        ]
    sentences = [problem for problem in problems if problem]
    wrong = sum(check["differing"] > 0 for check in checks)
    print("\n".join(sentences) or f"{len(checks)} checks agree, {wrong} of them of wrong results")
    return 1 if sentences or not wrong else 0


if __name__ == "__main__":
    sys.exit(main())
