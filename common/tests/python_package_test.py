#!/usr/bin/env python3
"""Runs the Python package's own tests on a build of the library.

    python3 common/tests/python_package_test.py --library build/cpu/lib/libnormworklog.so [pytest's arguments]

They need numpy and pytest, which .venv has after ./worklog setup; without them it exits with 77, which CTest counts as
Skipped. What needs PyTorch or a GPU skips where there is none; WORKLOG_PYTHON names a Python that has PyTorch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "common" / "library" / "python"


def interpreter() -> str | None:
    for name in (os.environ.get("WORKLOG_PYTHON", ""), str(ROOT / ".venv" / "bin" / "python"), sys.executable):
        candidate = shutil.which(name)
        if candidate and subprocess.run([candidate, "-c", "import numpy, pytest"], capture_output=True).returncode == 0:
            return os.path.abspath(candidate)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--library", dest="build", required=True, type=Path, help="the build of libnormworklog to test on"
    )
    options, arguments = parser.parse_known_args()
    python = interpreter()
    if python is None:
        print("no Python with numpy and pytest is here: ./worklog setup")
        return 77
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(arguments or ["tests"])]
    environment = os.environ | {"NORMWORKLOG_LIBRARY": str(options.build.resolve()), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=PACKAGE, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
