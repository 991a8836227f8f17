#!/usr/bin/env python3
"""Tests of what ties a figure to the machine code that ran: machine_code.py, launches.py, lock.py, sync --why.

Where nvcc is there, kernels are compiled and changed; a copy of stage 05's `chan` is renamed, moved and reformatted.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
REPORT = SOURCE / "common" / "report"
sys.path.insert(0, str(REPORT))
sys.dont_write_bytecode = True

import launches
import lock
import machine_code
import results
import source_hash
import why

NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
needs_nvcc = unittest.skipUnless(NVCC, "there is no nvcc here")


def compiled(text: str, folder: Path, include: Path = SOURCE) -> dict[str, machine_code.Kernel]:
    """The kernels of a CUDA source, compiled for sm_90."""
    folder.mkdir(parents=True, exist_ok=True)
    source, cubin = folder / "kernels.cu", folder / "kernels.cubin"
    source.write_text(text, encoding="utf-8")
    assert NVCC
    subprocess.run(
        [
            NVCC,
            "-cubin",
            "-arch=sm_90",
            "-std=c++20",
            "-lineinfo",
            f"-I{include}",
            "-DWORKLOG_BACKEND_GPU",
            str(source),
            "-o",
            str(cubin),
        ],
        check=True,
        capture_output=True,
    )
    return machine_code.kernels_in(cubin, "sm_90")


def codes(kernels: dict[str, machine_code.Kernel]) -> list[str]:
    return sorted(kernel.code for kernel in kernels.values())


class Folder(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))


# --- The hash of a kernel ---------------------------------------------------------------------------------------------
SCALE = """
__device__ __noinline__ float scaled(float value) { return value * 2.0f; }
__global__ void scale(float* x) { x[threadIdx.x] = scaled(x[threadIdx.x]); }
__global__ void plain(float* x) { x[threadIdx.x] = 1.0f; }
"""


@needs_nvcc
class Hashes(Folder):
    def kernel(self, text: str, name: str, part: str = "") -> machine_code.Kernel:
        kernels = compiled(text, self.folder / (part or re.sub(r"\\W", "", name)))
        return next(kernel for symbol, kernel in kernels.items() if name in symbol)

    def test_a_name_and_a_place_do_not_count(self) -> None:
        here = self.kernel(SCALE, "scale", "a")
        renamed = re.sub(r"\bscale\b", "namespace_of_its_own_scale", SCALE.replace("value", "number"))
        there = self.kernel(
            "// moved down\n\n\n__global__ void first(int* i) { *i = 3; }\n" + renamed, "of_its_own_scale", "b"
        )
        self.assertEqual(here.code, there.code)

    def test_a_function_that_is_called_counts(self) -> None:
        before, after = (
            compiled(text, self.folder / part) for text, part in ((SCALE, "a"), (SCALE.replace("2.0f", "3.0f"), "b"))
        )
        changed = {name for name in before if before[name].code != after[name].code}
        self.assertEqual(len(changed), 1)
        self.assertIn("scale", changed.pop())

    def test_shared_memory_constants_and_parameters_count(self) -> None:
        text = (
            "__constant__ float table[4] = {{1, 2, 3, 4}};\n"
            "__global__ void kernel(float* x, int n) {{ __shared__ float s[{0}];"
            " s[threadIdx.x] = table[threadIdx.x & 3];"
            " __syncthreads(); x[threadIdx.x] = s[n - threadIdx.x]; }}\n"
        )
        base = self.kernel(text.format(64), "kernel", "a")
        self.assertEqual(base.shared_bytes, 256)
        self.assertGreater(base.registers, 0)
        self.assertNotEqual(base.code, self.kernel(text.format(96), "kernel", "b").code)
        self.assertNotEqual(base.code, self.kernel(text.format(64).replace("3, 4}", "3, 5}"), "kernel", "c").code)
        self.assertNotEqual(
            base.code, self.kernel(text.format(64).replace("int n)", "int other, int n)"), "kernel", "d").code
        )

    def test_an_object_for_two_architectures_has_the_code_of_its_cubin(self) -> None:
        cubin = compiled(SCALE, self.folder)
        made = self.folder / "kernels.o"
        assert NVCC
        subprocess.run(
            [
                NVCC,
                "-c",
                "-std=c++20",
                "-gencode",
                "arch=compute_75,code=[sm_75,compute_75]",
                "-gencode",
                "arch=compute_90,code=[sm_90,compute_90]",
                str(self.folder / "kernels.cu"),
                "-o",
                str(made),
            ],
            check=True,
        )
        self.assertEqual(codes(cubin), codes(machine_code.kernels_in(made, "sm_90")))
        self.assertEqual(len(machine_code.kernels_in(made, "sm_75")), 2)
        with self.assertRaisesRegex(machine_code.CodeError, "no code for sm_80; it has: sm_75, sm_90"):
            machine_code.kernels_in(made, "sm_80")
        text = machine_code.as_cpp(machine_code.cubins_in(made))
        for kernel in cubin.values():
            self.assertIn(f'{{"{kernel.symbol}", 90, "{kernel.code}"}}', text)


class Files(Folder):
    def test_what_is_no_gpu_build_is_refused_in_a_sentence(self) -> None:
        with self.assertRaisesRegex(machine_code.CodeError, "no device code"):
            machine_code.cubins_in(Path("/bin/sh").resolve())
        text = self.folder / "text"
        text.write_text("hello", encoding="utf-8")
        with self.assertRaisesRegex(machine_code.CodeError, "no 64-bit ELF"):
            machine_code.cubins_in(text)

    def test_what_cannot_be_decompressed_is_refused(self) -> None:
        entry = (
            struct.pack("<HHIQ", machine_code.ENTRY_ELF, 0x101, 64, 16)
            + bytes(24)
            + struct.pack("<I", 0x2011)
            + bytes(36)
        )
        fat = machine_code.CONTAINER.pack(machine_code.CONTAINER_MAGIC, 1, 16, len(entry)) + entry
        with self.assertRaisesRegex(machine_code.CodeError, "cannot decompress|compress-mode=none"):
            list(machine_code.entries(fat, Path("program")))


# --- Stage 05's `chan`, renamed, moved and reformatted ----------------------------------------------------------------
USES = """
#include "{0}"
using namespace worklog;
template __global__ void welford::layernorm_chan<float, float, 8>(LayerNormForward<float, float>);
template __global__ void welford::layernorm_chan<__nv_bfloat16, float, 8>(LayerNormForward<__nv_bfloat16, float>);
"""
LOCALS = (
    "scratch",
    "cols",
    "step",
    "row",
    "x",
    "y",
    "first",
    "held",
    "moments",
    "i",
    "col",
    "begin",
    "end",
    "rstd",
    "gamma",
    "beta",
)


@needs_nvcc
class Chan(Folder):
    def copy(self) -> Path:
        """The headers of the ladder and of common/device."""
        root = self.folder / "copy"
        for path in SOURCE.glob("0*/*.cuh"):
            target = root / path.relative_to(SOURCE)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        shutil.copytree(SOURCE / "common/device", root / "common/device")
        return root

    def test_names_places_and_layout_change_no_code(self) -> None:
        root = self.copy()
        before = compiled(USES.format("05_welford/kernels.cuh"), self.folder / "before", root)
        header = root / "05_welford/kernels.cuh"
        text = header.read_text(encoding="utf-8")
        begin, end = text.index("// [snippet: chan]"), text.index("// [/snippet]", text.index("// [snippet: chan]"))
        kernel = text[begin:end]
        for name in LOCALS:  # fields and members, behind a point or an arrow, keep theirs
            kernel = re.sub(rf"(?<![\w.])(?<!->){name}\b(?!\()", f"the_{name}", kernel)
        self.assertIn("the_moments.mean", kernel)
        kernel = re.sub(r"\s*\n\s*", "\n", kernel.replace("#pragma unroll", "\n#pragma unroll\n"))
        moved = root / "05_welford/moved.cuh"
        moved.write_text(
            f'#pragma once\n#include "05_welford/kernels.cuh"\nnamespace worklog::welford {{\n{kernel}\n}}\n',
            encoding="utf-8",
        )
        header.write_text(text[:begin] + text[end:], encoding="utf-8")
        after = compiled(USES.format("05_welford/moved.cuh"), self.folder / "after", root)
        self.assertEqual(sum("layernorm_chan" in symbol for symbol in before), 2)
        self.assertEqual(
            {symbol: kernel.code for symbol, kernel in before.items()},
            {symbol: kernel.code for symbol, kernel in after.items()},
        )

    def test_an_instruction_of_a_shared_header_is_noticed_where_it_is_used(self) -> None:
        root = self.copy()
        text = (
            '#include "common/device/launch.cuh"\n'
            "__global__ void waits(float* x) { worklog::wait_for_previous_kernel(); x[threadIdx.x] = 1.0f; }\n"
            "__global__ void alone(float* x) { x[threadIdx.x] = 1.0f; }\n"
        )
        before = compiled(text, self.folder / "before", root)
        header = root / "common/device/launch.cuh"
        changed = header.read_text(encoding="utf-8").replace(
            "  cudaGridDependencySynchronize();", "  __nanosleep(1);\n  cudaGridDependencySynchronize();"
        )
        header.write_text(changed, encoding="utf-8")
        after = compiled(text, self.folder / "after", root)
        self.assertEqual(
            ["waits" in symbol for symbol in sorted(before) if before[symbol].code != after[symbol].code], [True]
        )


# --- Launches ---------------------------------------------------------------------------------------------------------
def launch(code: str = "c0de", **shape: object) -> dict[str, object]:
    return {"code": code, "grid": "1024", "block": "256"} | shape


class Launches(unittest.TestCase):
    def test_code_and_shape_decide_and_names_do_not(self) -> None:
        self.assertTrue(launches.same([launch(kernel="a")], [launch(kernel="b")]))
        for other in (
            launch("beef"),
            launch(grid="1"),
            launch(block="1"),
            launch(cluster=2),
            launch(shared_bytes=4),
            launch(cooperative=True),
            launch(overlap=True),
        ):
            self.assertFalse(launches.same([launch()], [other]))
            self.assertEqual(len(launches.differences([launch()], [other], {})), 1)
        self.assertFalse(launches.same([launch()], [launch(), launch()]))
        self.assertFalse(launches.same(None, [launch()]))
        self.assertFalse(launches.same([launch()], None))

    def test_code_that_is_not_known_is_the_same_as_nothing(self) -> None:
        unknown = {"grid": "1024", "block": "256"}
        self.assertFalse(launches.same([unknown], [unknown]))

    def test_grids_are_not_compared_where_devices_hold_other_numbers_of_clusters(self) -> None:
        one = [launch(grid="120", cluster=8, at_once=15), launch(grid="3142")]
        self.assertTrue(launches.same(one, [launch(grid="128", cluster=8, at_once=16), launch(grid="394")]))
        self.assertTrue(launches.same(one, [launch(grid="128", cluster=8), launch(grid="394")]))
        self.assertFalse(launches.same(one, [launch(grid="128", cluster=8, at_once=15), launch(grid="3142")]))
        self.assertFalse(launches.same(one, [launch(grid="128", cluster=4, at_once=16), launch(grid="394")]))


# --- The lock of a repository -----------------------------------------------------------------------------------------
KERNELS = """
#include "common/harness/shared.cuh"
__global__ void alone(float* x) { x[threadIdx.x] = 1.0f; }
__global__ void shares(float* x) { x[threadIdx.x] = shared_part(x[threadIdx.x]); }
"""
SHARED = "__device__ inline float shared_part(float value) { return value + 1.0f; }\n"
CASES = ("alone/layernorm_forward/fp32/4x4", "shares/layernorm_forward/fp32/4x4", "shares/layernorm_forward/fp32/8x4")
# Stands for the CPU layer's program: each case launches the kernel that its variant is named after.
PROGRAM = """#!{python}
import json, sys
names = open(sys.argv[2]).read().split()
symbol = {{"alone": "_Z5alonePf", "shares": "_Z6sharesPf"}}

def launch(kernel, operation, dtype, shape):
    return {{"kernel": kernel, "grid": shape.split("x")[0], "block": "32", "symbol": symbol[kernel]}}

print(json.dumps([{{"case": name, "launches": [launch(*name.split("/"))]}} for name in names]))
"""


@needs_nvcc
class Locks(Folder):
    def setUp(self) -> None:
        super().setUp()
        self.root = self.folder / "repository"
        self.stage = self.root / "01_tiny"
        (self.stage / "results").mkdir(parents=True)
        (self.root / "common/harness").mkdir(parents=True)
        self.write(KERNELS, SHARED)
        cpu = self.folder / "cpu"
        cpu.mkdir()
        (cpu / "01_tiny").write_text(PROGRAM.format(python=sys.executable), encoding="utf-8")
        (cpu / "01_tiny").chmod(0o755)
        names = [f"01_tiny/{case}/cold" for case in CASES]
        context = {"gpu_short": "h200", "compute_capability": "9.0", "multiprocessors": "132", "l2_bytes": "1024"}
        self.results = {
            "context": context,
            "benchmarks": [{"name": name, "median_seconds": 1e-6} for name in names],
            "checks": [],
        }
        self.save()
        self.make()
        document = json.loads((self.stage / "results/code_sm_90.json").read_text(encoding="utf-8"))
        self.results |= {"launches": document["gpus"][0]["launches"], "kernel_names": document["kernel_names"]}
        self.save()

    def write(self, kernels: str, shared: str) -> None:
        (self.stage / "kernels.cuh").write_text(kernels, encoding="utf-8")
        (self.root / "common/harness/shared.cuh").write_text(shared, encoding="utf-8")

    def save(self) -> None:
        (self.stage / "results/h200.json").write_text(json.dumps(self.results), encoding="utf-8")

    def make(self, *flags: str) -> int:
        """Builds the kernels, and runs ./worklog lock."""
        programs = self.folder / "gpu/bin"
        compiled((self.stage / "kernels.cuh").read_text(encoding="utf-8"), programs, self.root)
        (programs / "kernels.cubin").rename(programs / "01_tiny")
        provenance = self.folder / "gpu/provenance"
        provenance.mkdir(exist_ok=True)
        (provenance / "01_tiny.cpp").write_text(
            '.flags = "-O3, architectures 90", .compiler = "nvcc 13"', encoding="utf-8"
        )
        return lock.main(["--root", str(self.root), "--nvcc", str(programs), "--cpu", str(self.folder / "cpu"), *flags])

    def old(self) -> list[str]:
        """The cases whose figures carry the dagger."""
        repository = results.Repository(self.root)
        return sorted(timing.case for timing in repository.stage_results("01_tiny", "h200").timings if timing.stale)

    def explained(self, case: str) -> str:
        return "\n".join(why.explain(results.Repository(self.root), f"01_tiny/{case}/cold", "h200"))

    def test_all_is_current_as_it_was_measured(self) -> None:
        self.assertEqual(self.old(), [])
        self.assertEqual(self.make("--check", "--all"), 0)
        self.assertIn("current: alone, code", self.explained(CASES[0]))

    def test_a_rename_costs_nothing(self) -> None:
        self.write(KERNELS.replace("float* x", "float* row").replace("x[", "row["), SHARED.replace("value", "number"))
        self.assertEqual(self.old(), sorted(CASES))  # until somebody has looked at the code
        self.assertIn("the sources have changed", self.explained(CASES[0]))
        self.assertEqual(self.make("--check"), 1)  # the committed lock is of other sources
        self.assertEqual(self.make(), 0)
        self.assertEqual(self.old(), [])

    def test_a_change_of_a_shared_header_marks_the_cases_that_run_it(self) -> None:
        self.write(KERNELS, SHARED.replace("+ 1.0f", "+ 2.0f"))
        self.make()
        self.assertEqual(self.old(), sorted(CASES[1:]))
        self.assertRegex(
            self.explained(CASES[1]), r"the launch: the code of shares was [0-9a-f]{16}, and is [0-9a-f]{16}"
        )
        self.assertIn("current", self.explained(CASES[0]))

    def test_another_launch_marks_its_case(self) -> None:
        self.results["launches"][0]["launches"][0]["grid"] = "2"
        self.save()
        self.assertEqual(self.old(), [CASES[0]])
        self.assertIn("the launch: the grid was 2, and is 4", self.explained(CASES[0]))

    def test_an_old_file_without_launches_goes_by_the_sources(self) -> None:
        del self.results["launches"], self.results["kernel_names"]
        self.save()
        self.assertEqual(self.old(), sorted(CASES))
        self.results["context"]["source_hash"] = source_hash.source_hash("01_tiny", self.root)
        self.save()
        self.assertEqual(self.old(), [])

    def test_a_new_case_is_not_in_the_lock_yet(self) -> None:
        self.results["benchmarks"].append(
            {"name": "01_tiny/alone/layernorm_forward/fp32/16x4/cold", "median_seconds": 1e-6}
        )
        self.save()
        self.assertEqual(self.make("--check"), 1)
        self.assertEqual(self.make(), 0)
        self.assertEqual(self.make("--check"), 0)


# --- What a stage's program tells of its launches ---------------------------------------------------------------------
class Told(Folder):
    """Of the CPU layer's programs, in the folder that the call names."""

    programs: Path | None = None

    def setUp(self) -> None:
        super().setUp()
        if self.programs is None or not (self.programs / "03_warp_shuffle").is_file():
            self.skipTest("no folder of programs was named")

    def tell(self, stage: str, *cases: str, **environment: str) -> subprocess.CompletedProcess[str]:
        assert self.programs
        names = self.folder / "cases"
        names.write_text("\n".join(cases) + "\n", encoding="utf-8")
        return subprocess.run(
            [str(self.programs / stage), "--launches", str(names)],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"WORKLOG_SIMT_MULTIPROCESSORS": "132"} | environment,
        )

    def test_tells_of_tensors_that_no_machine_here_holds(self) -> None:
        case = "block_per_row/layernorm_forward/fp32/16777216x65536"  # 4 TiB
        done = self.tell("03_warp_shuffle", case)
        self.assertEqual(done.returncode, 0, done.stderr)
        told = json.loads(done.stdout)
        self.assertEqual([entry["case"] for entry in told], [case])
        self.assertEqual([(l["grid"], l["block"]) for l in told[0]["launches"]], [("16777216", "256")])
        self.assertTrue(
            told[0]["launches"][0]["symbol"].startswith("_ZN7worklog12warp_shuffle23layernorm_block_per_row")
        )

    def test_as_many_blocks_as_the_registers_let_a_multiprocessor_hold(self) -> None:
        case = "persistent/layernorm_forward/fp32/131072x1024"
        found = {}
        for registers in (32, 128, 255):
            symbol = json.loads(self.tell("04_vectorized", case).stdout)[0]["launches"][0]["symbol"]
            kernels = self.folder / "kernels"
            kernels.write_text(f"{symbol} {registers} 0\n", encoding="utf-8")
            launched = json.loads(self.tell("04_vectorized", case, WORKLOG_SIMT_KERNELS=str(kernels)).stdout)[0][
                "launches"
            ][0]
            found[registers] = int(launched["grid"]) // 132 * int(launched["block"])
        self.assertEqual(found, {32: 2048, 128: 512, 255: 256})

    def test_what_names_no_case_is_refused(self) -> None:
        for case, words in (
            ("block_per_row/layernorm_forward/fp32", "takes lines such as"),
            ("block_per_row/layernorm_forward/fp32/0x0", "cols must be from 1"),
            ("block_per_row/layernorm_forward/fp32/4x4/without=x", "'x' is no optional tensor"),
            ("none/layernorm_forward/fp32/4x4", "has nothing that does"),
        ):
            done = self.tell("03_warp_shuffle", case)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(words, done.stderr)
        assert self.programs
        done = subprocess.run(
            [str(self.programs / "03_warp_shuffle"), "--launches", str(self.folder / "none")],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 2)
        self.assertIn("cannot be read", done.stderr)


if __name__ == "__main__":
    if len(sys.argv) > 1 and Path(sys.argv[1]).is_dir():
        Told.programs = Path(sys.argv.pop(1))
    unittest.main()
