"""For tests that need packages which the system's Python may lack, and .venv has after ./worklog setup."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[2] / ".venv/bin/python"
SKIPPED = 77  # CTest counts it as Skipped


def need(*modules: str) -> None:
    """Begins the test anew in .venv where one of these is missing, or skips it where that cannot help."""
    if all(importlib.util.find_spec(name) for name in modules):
        return
    if not PYTHON.is_file() or Path(sys.prefix) == PYTHON.parents[1]:
        print(f"one of {', '.join(modules)} is missing: ./worklog setup installs them")
        sys.exit(SKIPPED)
    os.execv(PYTHON, [PYTHON, *sys.argv])
