#!/usr/bin/env python3
"""./worklog judge on what learners write, and the rewriting of plain CUDA.

    python3 common/tests/judge_test.py BUILD      a configured cpu build, whose target judging_parts is built

common/tests/learners/ has kernels in the styles of people who learn CUDA, right ones and wrong ones, none of which
knows anything of this repository. Each is judged as a reader would have it judged, and must get the finding that it
deserves in less than SECONDS.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "common/classroom"))
sys.dont_write_bytecode = True
import isolation  # noqa: E402
import judge  # noqa: E402
import judge_gpu  # noqa: E402
import judging  # noqa: E402
import plain_cuda  # noqa: E402
import solve_entry  # noqa: E402
from exercises import ExerciseError  # noqa: E402
from toolchain import Recipe  # noqa: E402

import results  # noqa: E402

BUILD = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else ROOT / "build/cpu"
LEARNERS = ROOT / "common/tests/learners"
SECONDS = 120  # a verdict takes seconds; a machine with other work takes its time
RIGHT: list[tuple[str, str]] = []

# What each is judged as, with flags, and the problems that it must have: kind, and a pattern of the text.
EXPECTED = {
    "thread_per_row.cu": ("leetgpu-113", RIGHT),
    "shared_tree.cu": ("layernorm_forward", RIGHT),
    "warp_shuffle.cu": ("layernorm_forward", RIGHT),
    "welford.cu": ("layernorm_forward", RIGHT),
    "block_reduce.cu": ("layernorm_forward", RIGHT),
    "batch_norm.cu": ("leetgpu-40", RIGHT),
    "group_norm.cu": ("leetgpu-105", RIGHT),
    "first_group.cu": ("groupnorm_forward", [("wrong", "on input normal, 33 x 133")]),
    "missing_barrier.cu": (
        "layernorm_forward", [("shared_race", r"missing_barrier\.cu:15: .*no barrier orders"), ("wrong", "")]
    ),
    "squares.cu": ("layernorm_forward", [("wrong", r"cancellation, as E\[x\^2\] - E\[x\]\^2")]),
    "off_by_one.cu": (
        "layernorm_forward", [("out_of_bounds", r"off_by_one\.cu:12: writes 4 bytes 0 bytes past the end of y")]
    ),
    "float4.cu": ("layernorm_forward", [("misaligned", "reads 16 bytes at an address"), ("wrong", "never written")]),
    "plain_add.cu": ("layernorm_forward", [("global_race", r"kernel row_sums.*plain_add\.cu:7")]),
    "barrier_in_branch.cu": (
        "layernorm_forward", [("error", r"barrier_in_branch\.cu:1[25]: __syncthreads\(\) meets another barrier")]
    ),
    "not_cleared.cu": ("leetgpu-83", [("uninitialized_read", r"sum_squares.*that nobody has written")]),
    "touched_by_host.cu": ("layernorm_forward", [("crash", "host code has read or written device memory")]),
    "endless.cu": (
        "layernorm_forward --shapes 7x133",
        [("error", r"endless\.cu:6: no block has started or finished for|is there a loop that never ends\?")],
    ),
}
SOLVE = 'extern "C" void solve(const float* x, const float* g, const float* b, float* y, int N, int D, float eps)'


def judged(path: Path, operation: str, *flags: str) -> tuple[int, dict[str, object], str]:
    """The exit code, the JSON, and what was printed beside it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "verdict.json"
        printed, said = io.StringIO(), io.StringIO()
        arguments = [str(path), "--as", operation, "--build", str(BUILD), "--json", str(file), *flags]
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
            code = judge.main(arguments)
        return code, json.loads(file.read_text(encoding="utf-8")), printed.getvalue() + said.getvalue()


class Learners(unittest.TestCase):
    results: dict[str, tuple[int, dict, str]] = {}

    @classmethod
    def setUpClass(cls) -> None:
        cls.results = {name: judged(LEARNERS / name, *flags.split()) for name, (flags, _) in EXPECTED.items()}

    def test_each_gets_its_finding(self) -> None:
        self.assertEqual(sorted(EXPECTED), sorted(path.name for path in LEARNERS.glob("*.cu")))
        for name, (_, problems) in EXPECTED.items():
            code, document, printed = self.results[name]
            with self.subTest(name):
                self.assertEqual(code, 1 if problems else 0, printed)
                if name != "endless.cu":  # which takes as long as the limits allow
                    self.assertLess(document["seconds"], SECONDS)
                found = [(problem["kind"], problem["text"]) for problem in document["problems"]]
                for kind, pattern in problems:
                    texts = [text for each, text in found if each == kind]
                    self.assertTrue(any(re.search(pattern, text, re.DOTALL) for text in texts), f"{kind}: {found}")
                if not problems:
                    self.assertEqual(found, [])

    def test_what_a_kernel_costs_is_counted(self) -> None:
        _, tree, printed = self.results["shared_tree.cu"]
        self.assertEqual(tree["counts"]["load_sectors_per_request"], 4)
        self.assertEqual(tree["counts"]["passes_over_x"], 3)
        self.assertEqual(tree["counts"]["barriers_per_row"], 20)  # of each of the two sums: 1 + 8 + 1
        self.assertEqual(tree["kernels"], ["layer_norm <<<1024, 256>>>"])
        self.assertIn("between 02 two_pass and 03 block_per_row", tree["between"])
        own = next(each for each in tree["ladder"] if not each["kernel"])
        self.assertEqual(own["predicted_us"], tree["predicted_us"])
        self.assertIsNone(own["measured_us"])
        measured = [each["measured_us"] for each in tree["ladder"] if each is not own]
        self.assertGreater(sum(time is not None for time in measured), 15)  # not all kernels were timed at this shape
        self.assertIn("Predicted for an NVIDIA H200", printed)
        _, rows, _ = self.results["thread_per_row.cu"]
        self.assertGreater(rows["counts"]["load_sectors_per_request"], 16)
        self.assertIn("behind 01 small_blocks", rows["between"])
        self.assertGreater(rows["predicted_us"], 10 * tree["predicted_us"])

    def test_a_kernel_that_is_called_has_its_name(self) -> None:
        _, document, _ = self.results["warp_shuffle.cu"]
        self.assertEqual(document["kernels"], ["layernorm_shuffle <<<1024, 256>>>"])

    def test_the_inputs_that_it_fails_on_are_named(self) -> None:
        _, document, printed = self.results["squares.cu"]
        inputs = {each["input"] for each in document["fails_on"]}
        self.assertEqual(inputs, {"arange", "large_mean", "tiny_variance"})
        self.assertIn("It fails on arange at 33 x 133, large_mean", printed)

    def test_the_page_shows_what_is_printed(self) -> None:
        page = (ROOT / "docs/judging.md").read_text(encoding="utf-8")
        shown = re.findall(r"```text\n(common/tests/learners/(\w+\.cu) .*?)```", page, re.DOTALL)
        self.assertEqual([name for _, name in shown], ["shared_tree.cu", "missing_barrier.cu"])
        for text, name in shown:
            printed = iter(self.results[name][2].replace(f"{LEARNERS}/", "common/tests/learners/").splitlines())
            for line in text.splitlines():  # those that are shown come in their order
                self.assertIn(line, printed, f"{name}: {line}")

    def test_the_rungs_are_those_of_the_front_page(self) -> None:
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        keys = re.findall(r"key=(\d\d)_\w+/(\w+)/layernorm_forward/fp32/1024x1024/cold unit=us -->", text)
        self.assertEqual(list(judge.RUNGS), [f"{stage} {variant}" for stage, variant in dict.fromkeys(keys)])


class OnGpu(unittest.TestCase):
    """What is made of a GPU's results, which a stand-in for the GPU has; and the source, compiled by nvcc."""

    def verdict_with(self, problems: list[tuple[str, str]], checks: list[str], us: float | None) -> judge.Verdict:
        checked = [
            {"verdict": each, "error": "", "damage": [], "without": [], "input": "normal", "tensors": []}
            for each in checks
        ]

        class StandIn:
            note = "On the GPU it ran here."

            def build(self, unit: str) -> tuple[Path | None, str]:
                return Path("program"), ""

            def check(self, program: Path, runs: list[str], hardest: str) -> judge_gpu.GpuVerdict:
                wrong = [judging.Problem("wrong", "solve is wrong")] * checks.count("failed")
                return judge_gpu.GpuVerdict(checked, wrong, gpu="NVIDIA H100 80GB HBM3", short="h100")

            def time(self, program: Path, flags: str, found: judge_gpu.GpuVerdict) -> None:
                found.timing = results.Timing(
                    "solve", "solve", "layernorm_forward", "fp32", 1024, 1024, "cold", us * 1e-6, share_of_copy=0.5
                )

        of_source = judge.Judge.__new__(judge.Judge)
        of_source.source = SOLVE + " {}"
        of_source.entry = solve_entry.find_entry(of_source.source, "layernorm_forward", "my.cu")
        of_source.options = argparse.Namespace(file=Path("my.cu"), shapes=None, eps=1e-5)
        verdict = judge.Verdict("my.cu", of_source.entry, [{"verdict": "passed"}])
        for kind, text in problems:
            judge.add_problem(verdict, kind, text)
        of_source.judge_on_gpu(StandIn(), verdict)
        return verdict

    def test_what_is_right_stands_among_the_measured(self) -> None:
        path = ROOT / "02_shared_reduction/results/h100.json"
        name = "02_shared_reduction/two_pass/layernorm_forward/fp32/1024x1024/cold"
        timings = results.timings_of(results.read_json(path, ROOT), False)
        of_two_pass = next(each for each in timings if each.name == name)
        verdict = self.verdict_with([], ["passed"] * 11, of_two_pass.seconds * 1e6 - 0.01)
        self.assertTrue(verdict.is_right)
        self.assertRegex(verdict.gpu["between"], "^By the measured time you are between 02 two_pass and ")
        printed = "\n".join(judge.lines_of_gpu(verdict))
        self.assertIn("NVIDIA H100 80GB HBM3: 11 of 11 results are right.", printed)
        self.assertIn("50% of the speed of a copy", printed)
        self.assertIn(", yours ", printed)

    def test_what_is_wrong_is_not_timed(self) -> None:
        verdict = self.verdict_with([], ["passed", "failed"], None)
        self.assertEqual([each["text"] for each in verdict.problems], ["on this GPU: is wrong"])
        self.assertEqual(verdict.gpu["results"], {"right": 1, "all": 2})
        self.assertNotIn("us", verdict.gpu)
        raced = self.verdict_with([("shared_race", "a race")], ["passed"], None)  # right by luck
        self.assertNotIn("us", raced.gpu)

    def test_what_does_not_end_is_kept_from_it(self) -> None:
        for kind in ("hang", "crash", "error"):
            verdict = self.verdict_with([(kind, "it does not end")], ["passed"], None)
            self.assertEqual(verdict.gpu, {})
            self.assertIn("It was not run on the GPU", verdict.told[-1])

    @unittest.skipUnless(shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists(), "there is no nvcc")
    def test_nvcc_takes_the_source_as_it_is(self) -> None:
        path = LEARNERS / "shared_tree.cu"  # it waits for the GPU, and has a main()
        source = plain_cuda.with_headers(path, 1 << 20)
        unit = judge_gpu.gpu_unit(source, solve_entry.find_entry(source, "layernorm_forward", path.name), path.name)
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        command = (nvcc, "-std=c++20", "-arch=sm_90", f"-I{ROOT}", "-c", "classroom/program.cu")
        grader = judge.Holder.__new__(judge.Holder)
        grader.compile_limits = isolation.Limits(120, 480, 2048 * isolation.MEBIBYTE, processes=32)
        for way in ("auto", "limits"):  # in the sandbox, of both kinds
            grader.sandbox = isolation.Sandbox(way)
            with self.subTest(way), tempfile.TemporaryDirectory(prefix="worklog-grade-") as folder:
                Path(folder).chmod(0o711)
                data, said = grader.compile(unit, b"", 0, Path(folder) / "made", Recipe(ROOT, command, ()))
                self.assertIsNotNone(data, said)
                made = Path(folder) / "unit.o"
                made.write_bytes(data or b"")
                names = subprocess.run(["nm", str(made)], capture_output=True, text=True, check=True).stdout
                self.check_names(names)

    def check_names(self, names: str) -> None:
        self.assertIn("U worklog_device_synchronize", names)
        self.assertNotIn("U cudaDeviceSynchronize", names)
        self.assertIn("T worklog_solve", names)

    def test_a_gpu_that_is_not_there_is_said(self) -> None:
        if shutil.which("nvidia-smi"):
            self.skipTest("there is one")
        code, document, _ = judged(LEARNERS / "shared_tree.cu", "layernorm_forward", "--time")
        self.assertEqual((code, document["reason"]), (2, "--time needs a GPU, and there is no GPU here"))


# What students write, all of it at once: each is CUDA, and few of them are beautiful.
ODD_STYLE = """\ufeff#include <cub/cub.cuh>\r
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
// Gr\\xf6\\xdfe: a comment in Latin-1, \u2192 and one in UTF-8
#define LAUNCH(kernel, n, ...) kernel<<<n, 64>>>(__VA_ARGS__)
#define CHECK(call) do { cudaError_t e_ = (call); if (e_ != cudaSuccess) exit(1); } while (0)
__constant__ float c_eps;
__device__ float one = 1.f;
__device__ float sum_of(cg::thread_block_tile<32> warp, float v) { return cg::reduce(warp, v, cg::plus<float>()); }
template <typename T = float, int B = 64> __global__ void norm(const T* x, const T* g, const T* b, T* y, int d) {
\textern __shared__ double twice[];
  cg::thread_block_tile<32> warp = cg::tiled_partition<32>(cg::this_thread_block());
  const T* r = x + (size_t)blockIdx.x * d;
  T s = 0, v = 0;
  for (int i = warp.thread_rank(); i < d; i += 32) s += r[i];
  T m = sum_of(warp, s) / d;
  assert(d > 0);
  for (int i = warp.thread_rank(); i < d; i += 32) v += (r[i] - m) * (r[i] - m);
  T q = rsqrtf(sum_of(warp, v) / d + c_eps) * one;
  int zero = __dp4a(0x01010101, 0x01010101, -4) + (int)__byte_perm(0, 0, 0x3210);
  if (threadIdx.x == 0 && sizeof(twice[0]) == 8) printf("row %d%%\\n", (int)blockIdx.x + zero);
  for (int i = threadIdx.x; i < d; i += blockDim.x) y[(size_t)blockIdx.x * d + i] = (r[i] - m) * q * g[i] + b[i];
}
template <class F> __global__ void apply(F f, float* y, int n) {
  extern __shared__ float single[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  single[threadIdx.x] = 2.f;
  if (i < n) y[i] = f(i) * single[threadIdx.x];
}
static void helper(const float* x, const float* g, const float* b, float* y, int N, int D, cudaStream_t s) {
  norm<float, 32> /* here */ <<< /* grid */ N, // threads >>>
\t32 /* >>> */, 32 * sizeof(double), s>>> (x, g, b, y, D);
}
void CUDART_CB done(cudaStream_t, cudaError_t, void*) {}
int main() { return 0; }
SOLVE {
  int threads = 0, blocks = 0, device = 0;
  float* managed;
  CHECK(cudaMemcpyToSymbol(c_eps, &eps, sizeof(float)));
  CHECK(cudaMallocManaged(&managed, 4096));
  CHECK(cudaGetDevice(&device));
  CHECK(cudaMemAdvise(managed, 4096, cudaMemAdviseSetReadMostly, device));
  CHECK(cudaMemPrefetchAsync(managed, 4096, device));
  CHECK(cudaOccupancyMaxPotentialBlockSize(&blocks, &threads, norm<float, 64>, 0, 0));
  apply<<<(N * D + 255) / 256, 256, 1024>>>([=] __device__ (int i) { return 2.f * i; }, y, N * D);
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  helper(x, g, b, y, N, D, stream);
  CHECK(cudaStreamAddCallback(stream, done, nullptr, 0));
  CHECK(cudaStreamSynchronize(stream));
  void (*pointer)(const float*, const float*, const float*, float*, int) = norm<float>;
  pointer<<<dim3(N), threads > 64 ? 64 : 32>>>(x, g, b, y, D);
  auto go = [&](int n) { norm<<<n, (D >> 1) > 4 ? 64 : 32>>>(x, g, b, y, D); };
  go(N);
  LAUNCH(norm, N, x, g, b, y, D);
  void* args[] = {&x, &g, &b, &y, &D};
  CHECK(cudaLaunchCooperativeKernel((void*)norm<float, 64>, dim3(N), dim3(64), args, 512, 0));
  CHECK(cudaFree(managed));
}
"""


class OddStyle(unittest.TestCase):
    def judged(self, text: str | bytes, *flags: str) -> tuple[int, dict[str, object], str]:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "my.cu"
            source.write_bytes(text if isinstance(text, bytes) else text.encode())
            return judged(source, "layernorm_forward", "--shapes", "7x133", *flags)

    def test_what_students_write_is_taken(self) -> None:
        text = ODD_STYLE.replace("SOLVE", SOLVE).encode().replace(b"\\xf6\\xdf", b"\xf6\xdf")
        code, document, printed = self.judged(text)
        self.assertEqual(code, 0, printed)
        self.assertEqual(document["results"], {"right": 8, "all": 8})
        self.assertIn("row 0%", printed)

    def test_an_assertion_is_told_with_its_line(self) -> None:
        kernel = "__global__ void k(float* y) {\n  assert(y == nullptr);\n}\n"
        code, document, printed = self.judged(f"{kernel}{SOLVE} {{ k<<<1, 1>>>(y); }}\n")
        self.assertEqual(code, 1)
        self.assertRegex(document["problems"][0]["text"], r"my\.cu:2: assertion failed: y == nullptr")


class Hostile(unittest.TestCase):
    def test_it_is_held_as_a_submission_is(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            secret = Path(folder) / "secret.txt"
            secret.write_text("the word that nobody must know\n", encoding="utf-8")
            source = Path(folder) / "my.cu"
            source.write_text(
                "#include <cstdio>\n#include <cstdlib>\n#include <fstream>\n#include <iostream>\n#include <unistd.h>\n"
                f"{SOLVE} {{\n"
                f'  std::ifstream file("{secret}");\n'
                "  std::cout << file.rdbuf() << std::endl;\n"
                f'  std::ofstream("{folder}/written.txt") << "here";\n'
                '  if (system("kill -9 -1") == 0) puts("it ended something");\n'
                "  _exit(0);\n"
                "}\n",
                encoding="utf-8",
            )
            code, document, printed = judged(source, "layernorm_forward")
            self.assertEqual(code, 1, printed)
            self.assertEqual(document["results"]["right"], 0)
            self.assertIn(document["problems"][0]["kind"], ("report", "crash"))
            self.assertFalse((Path(folder) / "written.txt").exists())
            if judge.Sandbox().way.has_namespaces:
                self.assertNotIn("nobody must know", printed + json.dumps(document))


class Refused(unittest.TestCase):
    """Exit code 2, and one sentence with the line."""

    def refused(self, text: str, operation: str = "layernorm_forward", **others: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in {"my.cu": text, **others}.items():
                (Path(folder) / name.replace("_h", ".h")).write_text(content, encoding="utf-8")
            code, document, printed = judged(Path(folder) / "my.cu", operation)
        self.assertEqual(code, 2, printed)
        self.assertEqual(document["verdict"], "refused")
        return str(document["reason"])

    def test_what_the_layer_lacks(self) -> None:
        for line, sentence in (
            ("#include <cub/block/block_scan.cuh>", "CUB is not on the CPU layer; write it in CUDA C++"),
            ("typedef cub::BlockScan<float, 128> Scan;", "which has BlockReduce and WarpReduce of CUB"),
            ("texture<float, 1> t;", "textures and surfaces are not on the CPU layer; read through"),
            ("__device__ cudaTextureObject_t t;", "textures and surfaces are not on the CPU layer; read through"),
            ('__device__ void f(int& x) { asm("mov.u32 %0, %laneid;" : "=r"(x)); }', "inline PTX (asm) is not on"),
            ("__device__ float f(float x) { return __shfl_down(x, 1); }", "write __shfl_down_sync(0xffffffff, ...)"),
            ("#include <curand_kernel.h>", "cuRAND is not on the CPU layer"),
            ("#include <cufft.h>", "cuFFT is not on the CPU layer"),
            ("void f() { CUresult r = cuInit(0); }", "the driver API (CUresult) is not on the CPU layer; write"),
        ):
            with self.subTest(line):
                reason = self.refused(f"// a comment\n\n{line}\n{SOLVE} {{}}\n")
                self.assertRegex(reason, r"^my\.cu:3: ")
                self.assertIn(sentence, reason)

    def test_a_line_of_a_header(self) -> None:
        reason = self.refused(f'#include "own.h"\n{SOLVE} {{}}\n', own_h="#pragma once\n\n#include <thrust/sort.h>\n")
        self.assertRegex(reason, r"^own\.h:3: Thrust is not")

    def test_what_nobody_can_read(self) -> None:
        launches = f"{SOLVE} {{\n  k CONFIG(x);\n}}\n"
        for text, where, sentence in (
            (f"#define CONFIG <<<1, 2>>>\n{launches}", "my.cu:1", "this <<< has no kernel in front of it"),
            (f"#define CONFIG(n) <<<n, 2>>>\n{launches}", "my.cu:1", "this <<< has no kernel in front of it"),
            (f"__global__ void k(float* y) {{\n  k<<<1, 1>>>(y);\n}}\n{SOLVE} {{}}\n", "my.cu:2",
             "a launch from a kernel (dynamic parallelism) is not on the CPU layer"),
            (f"namespace a::b {{\n{SOLVE} {{}}\n}}\n", "my.cu:2", "stands in a namespace"),
            (f"__global__ void k() {{\n{SOLVE} {{}}\n", "my.cu:2", "is a brace missing above?"),
            ("\0\1\2", "my.cu", "is no text, and so no source"),
        ):
            with self.subTest(text):
                reason = self.refused(text)
                self.assertTrue(reason.startswith(where), reason)
                self.assertIn(sentence, reason)

    def test_an_entry_that_cannot_be_called(self) -> None:
        self.assertIn("has no solve(); it needs one: extern", self.refused("__global__ void k() {}\n"))
        self.assertIn("more than one solve()", self.refused(f"{SOLVE} {{}}\nvoid solve(int a) {{}}\n"))
        self.assertRegex(self.refused("\nvoid solve(float* a, float* b, int n, int m) {}"), r"^my\.cu:2: .*2 pointers")
        self.assertRegex(self.refused("void solve(double* x, double* y, int n, int m) {}"), r"double\*")

    def test_what_does_not_compile(self) -> None:
        reason = self.refused(f"{SOLVE} {{\n  cudaBindTexture(0);\n}}\n")
        self.assertIn("my.cu:2:", reason)
        self.assertIn("cudaBindTexture is not on the CPU layer", reason)


class Rewriting(unittest.TestCase):
    def rewritten(self, text: str) -> str:
        found = plain_cuda.rewritten(text, "my.cu").text
        self.assertEqual(found.count("\n"), text.count("\n"))
        return found.replace("::worklog::plain::", "")

    def test_launches(self) -> None:
        for text, wanted in (
            ("k<<<1, 2>>>(x);", "of_kernel(k).with(1, 2)(x);"),
            ("k<<<(n + 1) / 2, t, sizeof(A<B<C<int>>>), s>>>(x);",
             "of_kernel(k).with((n + 1) / 2, t, sizeof(A<B<C<int>>>), s)(x);"),
            ("k<A<B<int>>><<<1, 2>>>(x);", "of_kernel(k<A<B<int>>>).with(1, 2)(x);"),
            ("a::b::k<(2 > 1)><<<1, 2>>>(x);", "of_kernel(a::b::k<(2 > 1)>).with(1, 2)(x);"),
            ("if (a) k<<<1, 2>>>(x); else k<<<3, 4>>>(x);",
             "if (a) of_kernel(k).with(1, 2)(x); else of_kernel(k).with(3, 4)(x);"),
            ("(*f)<<<1, 2>>>(); all[i]<<<1, 2>>>();", "of_kernel((*f)).with(1, 2)(); of_kernel(all[i]).with(1, 2)();"),
            ("#define GO(k) k<<<1, \\\n  2>>>(x)\n", "#define GO(k) of_kernel(k).with(1, \\\n  2)(x)\n"),
            ("k<<<1,\\\n2>>>(x);", "of_kernel(k).with(1,\\\n2)(x);"),
        ):
            self.assertEqual(self.rewritten(text), wanted)

    def test_a_kernel_that_is_cast(self) -> None:
        for cast in ("(void*)k", "(const void *) k", "reinterpret_cast<void*>(k)", "static_cast<const void*>(k)"):
            found = "".join(self.rewritten(f"cudaLaunchCooperativeKernel({cast}, 1, 2, args);").split())
            self.assertIn(found.replace("(k)", "k"), "cudaLaunchCooperativeKernel(k,1,2,args);")
        self.assertEqual(self.rewritten("cudaLaunchKernel(k, (void*)x);"), "cudaLaunchKernel(k, (void*)x);")

    def test_what_is_no_launch(self) -> None:
        for text in (
            "// k<<<1, 2>>>(x);", "/* k<<<1,\n2>>>(x); */", 's = "k<<<1, 2>>>(x)";', 'R"a(k<<<1, 2>>>(x)))a"',
            "// this goes on \\\n k<<<1, 2>>>(x);", "a << b >> c; A<B<C<int>>> d;", "'\"'; // k<<<1, 2>>>",
        ):
            self.assertEqual(self.rewritten(text), text)

    def test_kernels_whose_arguments_are_deduced(self) -> None:
        one = "template <class T, int n = 4> __global__ void __launch_bounds__(256) k(T* x) {}\n"
        called = "deduced<kernels::k>([=](auto... its) { k(its...); }).with(1, 2)(x);"
        self.assertEqual(self.rewritten(f"{one}k<<<1, 2>>>(x);"), one + called)
        self.assertEqual(self.rewritten(f"{one}k<float><<<1, 2>>>(x);"), f"{one}of_kernel(k<float>).with(1, 2)(x);")
        in_macro = called.replace("k>", "kernel_of_a_macro>").replace("k(", "kernel(").removesuffix(";")
        self.assertEqual(self.rewritten(f"{one}#define GO(kernel) kernel<<<1, 2>>>(x)\n"),
                         f"{one}#define GO(kernel) {in_macro}\n")
        self.assertIn("deduced", self.rewritten("__global__ void k(int n = 3) {}\nvoid f() { k<<<1, 2>>>(); }"))

    def test_dynamic_shared_memory(self) -> None:
        inside = self.rewritten("void f() { extern __shared__ __align__(16) float s[], t[][33]; }")
        self.assertEqual(" ".join(inside.split()),
                         "void f() { float (&s)[] = DynamicShared(), (&t)[][33] = DynamicShared(); }")
        outside = self.rewritten("namespace n { extern __shared__ float s[]; }")
        self.assertIn('extern __thread  float s[] __asm__("worklog_dynamic_shared");', outside)
        for text in ('extern "C" void f();', "extern int n;", "void f() { __shared__ float s[4]; }"):
            self.assertEqual(self.rewritten(text), text)

    def test_a_main_of_its_own(self) -> None:
        self.assertEqual(self.rewritten("int main() { main_loop(); }"), "int worklog_learners_main() { main_loop(); }")


class Entries(unittest.TestCase):
    def words(self, parameters: str, operation: str = "layernorm_forward") -> str:
        return " ".join(solve_entry.find_entry(f"void solve({parameters}) {{}}", operation, "my.cu").words)

    def test_by_name_and_by_order(self) -> None:
        self.assertEqual(self.words("const float* input, const float* weight, const float* bias, float* output, int N, "
                                    "int C, float eps"), "x gamma beta y rows cols eps")
        self.assertEqual(self.words("float* out, float* mean, float* rstd, const float* inp, const float* weight, "
                                    "const float* bias, size_t B, size_t C"), "y mean rstd x gamma beta rows cols")
        self.assertEqual(self.words("const float* p, const float* q, const float* s, float* t, int N, int D, float e"),
                         "x gamma beta y rows cols eps")
        self.assertEqual(self.words("const float* x, const float* residual, const float* weight, float* out, int N, "
                                    "int C, float eps", "add_rmsnorm_forward"), "x residual gamma y rows cols eps")
        self.assertEqual(self.words("const float* input, float gamma, float beta, float* output, int N, float eps",
                                    "rmsnorm_forward"), "x one zero y cols eps")

    def test_group_norm(self) -> None:
        pointers = "const float* X, const float* gamma, const float* beta, float* Y, "
        words = "x gamma beta y samples channels height width groups eps"
        for sizes in ("int N, int C, int H, int W, int G", "int a, int b, int c, int d, int e"):
            self.assertEqual(self.words(f"{pointers}{sizes}, float eps", "groupnorm_forward"), words)
        self.assertEqual(self.words(f"{pointers}int G, int HW, int C, int N, float eps", "groupnorm_forward"),
                         "x gamma beta y groups pixels channels samples eps")
        entry = solve_entry.find_entry(
            f"void solve({pointers}int N, int C, int HW, int G, float* mean, float* rstd, float eps) {{}}",
            "groupnorm_forward", "my.cu",
        )
        self.assertEqual(entry.without, ["gamma", "beta"])  # taken out before the comparison
        self.assertTrue(entry.told.startswith("layernorm_forward fp32 fp32 x gamma beta y samples channels pixels"))
        for parameters in ("const half* X, const half* g, const half* b, half* Y, int N, int C, int H, int W, int G",
                           f"{pointers}int N, int C, float eps"):
            with self.assertRaises(ExerciseError):
                self.words(parameters, "groupnorm_forward")

    def test_types(self) -> None:
        entry = solve_entry.find_entry(
            "void solve(const __half* x, const float* w, const float* b, half* y, int n, int d, cudaStream_t s) {}",
            "layernorm_forward", "my.cu",
        )
        self.assertEqual((entry.dtype, entry.param_dtype), ("fp16", "fp32"))
        self.assertIn("solve((const __half*)pointers[0], (const float*)pointers[1]", entry.call)
        self.assertIn(", stream);", entry.call)

    def test_the_struct_of_the_library(self) -> None:
        entry = solve_entry.find_entry(
            '#include "common/library/norm_worklog.h"\n'
            "void solve(const nw_rmsnorm_forward_args* args, cudaStream_t stream) {}", "rmsnorm_forward", "my.cu",
        )
        self.assertEqual(entry.told, "rmsnorm_forward fp32 fp32 x gamma y rstd rows cols eps")
        self.assertIn("args.x_stride = sizes[1];", entry.call)
        with self.assertRaises(ExerciseError):
            solve_entry.find_entry("void solve(const nw_rmsnorm_forward_args* a) {}", "layernorm_forward", "my.cu")

    def test_every_operation_has_an_entry(self) -> None:
        for operation in solve_entry.TENSORS:
            declared = solve_entry.expected(operation)
            entry = solve_entry.find_entry(declared + " {}", operation, "my.cu")
            required = solve_entry.TENSORS[operation][0].split()
            self.assertEqual([word for word in entry.words if word in required], required)


if __name__ == "__main__":
    unittest.main(verbosity=2)
