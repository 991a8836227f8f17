"""The shared library as a file, and as a Python process has it.

Arguments: the library, the C compiler, the C++ compiler, the backend ("cpu" or "gpu"), and whether it was built with
sanitizers ("ON"), for which a process has to be made.
"""

from __future__ import annotations

import ctypes
import math
import random
import re
import subprocess
import sys
import threading
import unittest
from array import array
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "common/library/norm_worklog.h"
LIBRARY, C_COMPILER, CXX_COMPILER, BACKEND, SANITIZED = sys.argv[1:]


def functions_of_header() -> set[str]:
    """The functions that the header declares."""
    text = re.sub(r"//.*", "", HEADER.read_text())
    return set(re.findall(r"\bNW_API\b[^;(]*?\b(nw_\w+)\s*\(", text))


class Symbols(unittest.TestCase):
    """What the library shows to a linker."""

    def test_exported_are_the_functions_of_the_header_and_no_more(self) -> None:
        lines = subprocess.run(
            ["nm", "--dynamic", "--defined-only", LIBRARY], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        kinds = {line.split()[-1]: line.split()[-2] for line in lines}
        version = {name for name, kind in kinds.items() if kind == "A"}
        self.assertEqual(version, {"NORM_WORKLOG_1"})
        exported = {name for name, kind in kinds.items() if kind != "A"}
        self.assertGreater(len(exported), 15)
        self.assertEqual(exported, {f"{name}@@NORM_WORKLOG_1" for name in functions_of_header()})

    def test_a_program_asks_for_the_library_by_its_abi(self) -> None:
        dynamic = subprocess.run(["readelf", "--dynamic", LIBRARY], capture_output=True, text=True, check=True).stdout
        version = re.search(r"#define NW_ABI_VERSION (\d+)", HEADER.read_text())
        assert version is not None
        self.assertIn(f"Library soname: [libnormworklog.so.{version.group(1)}]", dynamic)
        # Static thread-local storage is scarce in a process that loads libraries while it runs.
        self.assertNotIn("STATIC_TLS", dynamic)


class Header(unittest.TestCase):
    """The header by itself, as strict compilers see it."""

    def compiles(self, compiler: str, *flags: str) -> None:
        done = subprocess.run(
            [compiler, *flags, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", f"-I{ROOT}", "-"],
            input='#include "common/library/norm_worklog.h"\nint main(void) { return NW_OK; }\n',
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_is_c99(self) -> None:
        self.compiles(C_COMPILER, "-std=c99", "-xc")

    def test_is_cpp(self) -> None:
        self.compiles(CXX_COMPILER, "-std=c++11", "-xc++")


class LayerNormForward(ctypes.Structure):
    """nw_layernorm_forward_args."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("dtype", ctypes.c_int32),
        ("param_dtype", ctypes.c_int32),
        ("x", ctypes.c_void_p),
        ("gamma", ctypes.c_void_p),
        ("beta", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("mean", ctypes.c_void_p),
        ("rstd", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("cols", ctypes.c_int64),
        ("x_stride", ctypes.c_int64),
        ("y_stride", ctypes.c_int64),
        ("eps", ctypes.c_float),
    ]


@unittest.skipIf(BACKEND != "cpu", "arrays of Python are not memory of a GPU")
@unittest.skipIf(SANITIZED == "ON", "the sanitizers must be in the process before the library")
class Process(unittest.TestCase):
    """The library loaded while the process runs, in threads that began before and after."""

    def normalize(self, library: ctypes.CDLL, rows: int, cols: int, seed: int) -> None:
        values = random.Random(seed)
        x = array("f", (values.gauss(3, 1) for _ in range(rows * cols)))
        y = array("f", bytes(x.itemsize * len(x)))
        args = LayerNormForward(
            size=ctypes.sizeof(LayerNormForward),
            x=x.buffer_info()[0],
            y=y.buffer_info()[0],
            rows=rows,
            cols=cols,
            x_stride=cols,
            y_stride=cols,
            eps=1e-5,
        )
        if library.nw_layernorm_forward(ctypes.byref(args), None) != 0:
            raise RuntimeError(library.nw_last_error().decode())
        for row in range(rows):
            own = x[row * cols : (row + 1) * cols]
            mean = sum(own) / cols
            rstd = 1 / math.sqrt(sum((value - mean) ** 2 for value in own) / cols + 1e-5)
            off = max(abs((a - mean) * rstd - b) for a, b in zip(own, y[row * cols : (row + 1) * cols]))
            if off > 1e-4:
                raise RuntimeError(f"row {row} of {rows} x {cols} is off by {off}")

    def test_many_threads(self) -> None:
        loaded = threading.Event()
        libraries: list[ctypes.CDLL] = []
        faults: list[str] = []

        def work(number: int) -> None:
            loaded.wait()
            library = libraries[0]
            try:
                # A block's rows, a cluster's rows, and the sentence of a thread's own error.
                for rows, cols in ((4, 200 + number), (1, 40960)):
                    self.normalize(library, rows, cols, number)
                    wrong = LayerNormForward(size=ctypes.sizeof(LayerNormForward), rows=-1 - number, cols=1)
                    if library.nw_layernorm_forward(ctypes.byref(wrong), None) != 4:
                        raise RuntimeError("a negative number of rows is taken")
                    sentence = library.nw_last_error().decode()
                    if not sentence.endswith(f"it is {-1 - number}"):
                        raise RuntimeError(f"another thread's sentence: {sentence}")
            except RuntimeError as error:
                faults.append(f"thread {number}: {error}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        libraries.append(ctypes.CDLL(LIBRARY))
        libraries[0].nw_last_error.restype = ctypes.c_char_p
        loaded.set()
        later = [threading.Thread(target=work, args=(number,)) for number in range(12, 24)]
        for thread in later:
            thread.start()
        for thread in threads + later:
            thread.join()
        self.assertEqual(faults, [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
