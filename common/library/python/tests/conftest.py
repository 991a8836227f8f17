"""What the tests of the package share. They run on whatever library is found: a CPU build, or a GPU build with its
GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this tree, where none is installed

import normworklog


@pytest.fixture(scope="session")
def on_gpu() -> bool:
    return normworklog.backend() == "cuda"
