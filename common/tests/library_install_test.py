"""The library installed into a folder, and found there by CMake, by pkg-config, and by a compiler.

Arguments: the build folder, cmake, the C compiler, and whether it was built with sanitizers ("ON"), which a program
that uses the library would need as well.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BUILD, CMAKE, C_COMPILER, SANITIZED = sys.argv[1:]
CMAKE_LISTS = Path(__file__).resolve().parents[2] / "CMakeLists.txt"
VERSION = re.search(r"project\(norm_worklog VERSION (\S+)", CMAKE_LISTS.read_text(encoding="utf-8"))[1]

PROGRAM = """
#include <norm_worklog.h>
#include <stdio.h>
int main(void) { return printf("%s %d", nw_version(), nw_kernel_count() > 0) < 0; }
"""
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES C)
find_package(normworklog SERIES REQUIRED)
add_executable(user user.c)
target_link_libraries(user PRIVATE normworklog)
"""


def run(*command: str | Path, environment: dict[str, str] | None = None) -> str:
    """What the command prints; its errors are the test's."""
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True, check=False,
    )
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


@unittest.skipIf(SANITIZED == "ON", "a program that uses the library would need the sanitizers as well")
class Installed(unittest.TestCase):
    """Three ways from an installed library to a program."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.prefix = cls.folder / "installed"
        run(CMAKE, "--install", BUILD, "--prefix", cls.prefix, "--component", "normworklog")
        (cls.folder / "user.c").write_text(PROGRAM)
        (cls.folder / "CMakeLists.txt").write_text(PROJECT.replace("SERIES", VERSION.rpartition(".")[0]))

    def libraries(self) -> Path:
        found = list(self.prefix.rglob("libnormworklog.so"))
        self.assertEqual(len(found), 1)
        return found[0].parent

    def expect_runs(self, program: Path) -> None:
        self.assertEqual(run(program, environment={"LD_LIBRARY_PATH": str(self.libraries())}), f"{VERSION} 1")

    def test_holds_the_header_and_nothing_of_the_sources(self) -> None:
        headers = [path.name for path in self.prefix.rglob("*.h*")]
        self.assertEqual(headers, ["norm_worklog.h"])

    def test_a_compiler_finds_it(self) -> None:
        program = self.folder / "by_compiler"
        include = self.prefix / "include"
        run(C_COMPILER, f"-I{include}", self.folder / "user.c", f"-L{self.libraries()}", "-lnormworklog", "-o", program)
        self.expect_runs(program)

    def test_cmake_finds_it(self) -> None:
        build = self.folder / "by_cmake"
        run(
            CMAKE, "-S", self.folder, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}",
            f"-DCMAKE_C_COMPILER={C_COMPILER}",
        )
        run(CMAKE, "--build", build)
        self.expect_runs(build / "user")

    @unittest.skipUnless(shutil.which("pkg-config"), "there is no pkg-config")
    def test_pkg_config_finds_it(self) -> None:
        packages = {"PKG_CONFIG_PATH": str(self.libraries() / "pkgconfig")}
        flags = run("pkg-config", "--cflags", "--libs", "normworklog", environment=packages).split()
        program = self.folder / "by_pkg_config"
        run(C_COMPILER, self.folder / "user.c", *flags, "-o", program)
        self.expect_runs(program)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
