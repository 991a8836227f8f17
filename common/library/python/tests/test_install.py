"""A wheel made with pip, offline and from a copy of the package's folder; it installed, and a call through it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("numpy")
import normworklog as nw
from normworklog import _library

PACKAGE = Path(__file__).resolve().parents[1]
CALL = """
import numpy as np
import normworklog as nw
from normworklog import _library

shapes = enumerate([(3, 33), 33, 33])
x, gamma, beta = (np.random.default_rng(seed).standard_normal(shape).astype(np.float32) for seed, shape in shapes)
wide = x.astype(np.float64)
want = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5) * gamma + beta
np.testing.assert_allclose(nw.layer_norm(x, gamma, beta), want, rtol=1.3e-6, atol=1e-5)
print(nw.__file__, _library.load().path, sep="\\n")
"""


def version_of(package: str) -> int:
    """The first number of the version that is installed; 0 where there is none."""
    try:
        return int(importlib.metadata.version(package).split(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return 0


def setuptools_needed() -> int:
    found = re.search(r'"setuptools>=(\d+)"', (PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))
    assert found
    return int(found[1])


def output_of(*command: str | Path, cwd: Path, **variables: str) -> str:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("NORMWORKLOG_LIBRARY", "PYTHONPATH")
    } | variables
    done = subprocess.run(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.skipif(
    nw.backend() != "cpu", reason="numpy arrays are in the CPU's memory, and the library is a GPU build"
)
@pytest.mark.skipif(not version_of("pip"), reason="needs pip")
@pytest.mark.skipif(
    version_of("setuptools") < setuptools_needed(), reason=f"needs setuptools {setuptools_needed()} or newer"
)
def test_pip_installs_it(tmp_path: Path) -> None:
    library, target = _library.load().path, tmp_path / "installed"
    copy = tmp_path / "common" / "library" / "python"  # setuptools leaves folders of its own beside what it builds
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info", "_native_*.so"))
    shutil.copy(PACKAGE.parent / "norm_worklog.h", copy.parent)
    pip = (sys.executable, "-m", "pip")
    offline = ("--quiet", "--no-index", "--no-deps")
    output_of(
        *pip, "wheel", *offline, "--no-build-isolation", "-w", tmp_path, copy, cwd=tmp_path,
        NORMWORKLOG_LIBRARY=str(library),
    )
    (wheel,) = tmp_path.glob("*.whl")
    # One of this platform for any Python: a library among pure Python would be refused by auditwheel.
    assert re.fullmatch(rf"normworklog-{re.escape(nw.__version__)}-py3-none-linux_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        assert "normworklog/lib/" + _library.LIBRARY_NAME in archive.namelist()
    output_of(*pip, "install", *offline, "--target", target, wheel, cwd=tmp_path)
    module, loaded = map(
        Path, output_of(sys.executable, "-c", CALL, cwd=tmp_path, PYTHONPATH=str(target)).split("\n")[:2]
    )
    assert module == target / "normworklog" / "__init__.py"
    assert (
        loaded == target / "normworklog" / "lib" / _library.LIBRARY_NAME and loaded.read_bytes() == library.read_bytes()
    )
    for name in ("py.typed", "torch/native.cpp", "lib/norm_worklog.h"):
        assert (target / "normworklog" / name).is_file()
