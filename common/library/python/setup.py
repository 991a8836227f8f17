"""Puts libnormworklog into the package.

It takes the file that NORMWORKLOG_LIBRARY names, else the newest build of the tree that this folder lies in, else it
builds one: for a GPU where nvcc and a GPU are here, else for the CPU; NORMWORKLOG_BACKEND=gpu or cpu decides otherwise.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parents[3]
LIBRARY_NAME = "libnormworklog.so"


def wanted_backend() -> str | None:
    backend = os.environ.get("NORMWORKLOG_BACKEND")
    if backend not in (None, "gpu", "cpu"):
        raise SystemExit(f"NORMWORKLOG_BACKEND is '{backend}'; it must be gpu or cpu")
    return backend


def has_gpu() -> bool:
    if not shutil.which("nvcc", path=os.environ.get("PATH", "") + os.pathsep + "/usr/local/cuda/bin"):
        return False
    smi = shutil.which("nvidia-smi")
    return smi is not None and subprocess.run([smi, "-L"], capture_output=True).returncode == 0


def library() -> Path:
    named = os.environ.get("NORMWORKLOG_LIBRARY")
    if named:
        if not Path(named).is_file():
            raise SystemExit(f"NORMWORKLOG_LIBRARY names {named}, and there is no such file")
        return Path(named)
    if not (ROOT / "CMakePresets.json").is_file():
        raise SystemExit(
            "the package is installed from its repository: pip install ./common/library/python there, or set "
            "NORMWORKLOG_LIBRARY"
        )
    backend = wanted_backend()
    built = [ROOT / "build" / name / "lib" / LIBRARY_NAME for name in ([backend] if backend else ["gpu", "cpu"])]
    built = [path for path in built if path.is_file()]
    if built:
        return max(built, key=lambda path: path.stat().st_mtime)
    backend = backend or ("gpu" if has_gpu() else "cpu")
    for command in (
        ["cmake", "--preset", backend],
        ["cmake", "--build", "--preset", backend, "--target", "normworklog"],
    ):
        try:
            subprocess.run(command, cwd=ROOT, check=True)
        except (OSError, subprocess.CalledProcessError):
            raise SystemExit(f"'{' '.join(command)}' failed; ./worklog setup installs what the build needs") from None
    return ROOT / "build" / backend / "lib" / LIBRARY_NAME


class BuildWithLibrary(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:  # the package stays in the tree, and finds the tree's build by itself
            return
        folder = Path(self.build_lib) / "normworklog" / "lib"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library(), folder / LIBRARY_NAME)
        header = ROOT / "common" / "library" / "norm_worklog.h"
        if header.is_file():
            shutil.copy2(header, folder / header.name)  # what normworklog.torch.build compiles against


class OfThisPlatform(Distribution):
    """The library is of this platform, so the package belongs where such packages are."""

    def has_ext_modules(self) -> bool:
        return True


class WheelOfAnyPython(bdist_wheel):
    """The library calls nothing of Python's."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(distclass=OfThisPlatform, cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelOfAnyPython})
