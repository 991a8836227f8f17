#!/usr/bin/env python3
"""./worklog grade against a class of which few mean well.

    python3 common/tests/grade_test.py BUILD      a configured cpu build, whose target grading_parts is built

One folder of submissions is graded: right in several styles, wrong in the ways that really happen, looping, crashing,
and attacking the grader in every way that we could think of. Then the attackers once more, without the vetting that
refuses them by their source: they reach the sandbox, and must gain nothing there. Isolation itself is tested with small
scripts, as this user and, where this user is root, as an ordinary one.
"""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "common/classroom"))
sys.dont_write_bytecode = True
import checked_assembly  # noqa: E402
import exercises  # noqa: E402
import grade  # noqa: E402
import isolation  # noqa: E402
import vetting  # noqa: E402
from toolchain import Recipe, Toolchain, replaced  # noqa: E402

BUILD = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else ROOT / "build/cpu"
GRADE = ROOT / "common/classroom/grade.py"
EXERCISE = exercises.find("02.1")[0]
SOLUTION = EXERCISE.solution()
SECRET = "the-solution-of-another-student"
NOBODY = 65534


def changed(*pairs: tuple[str, str]) -> str:
    """The solution with changes, each of which must find its place."""
    text = SOLUTION
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


TREE = SOLUTION[SOLUTION.index("  for (unsigned stride") : SOLUTION.index("  // [/task]")]
LAUNCHER = "  launch_block_per_row(layernorm_two_pass<tree_sum>, p, stream);\n"
END = "}  // namespace worklog::shared_reduction"


def tree(code: str) -> str:
    return changed((TREE, code))


def host(code: str) -> str:
    """Code that the launching function runs first."""
    return changed((LAUNCHER, code + "\n" + LAUNCHER))


def at_start(code: str, headers: str = "") -> str:
    """Code that runs before main()."""
    return f"{headers}\n" + changed((
        END,
        "inline int at_start() {\n" + code + "\n  return 0;\n}\ninline const int started = at_start();\n" + END,
    ))


# What must come of each: verdicts, one of which it is.
HONEST = {
    "right": (SOLUTION, {"solved"}),
    "right_shift": (
        tree("""  for (unsigned left = blockDim.x >> 1; left != 0; left >>= 1) {
    if (threadIdx.x < left) {
      const float mine = scratch[threadIdx.x];
      scratch[threadIdx.x] = mine + scratch[threadIdx.x + left];
    }
    __syncthreads();
  }
"""),
        {"solved"},
    ),
    "right_function": (
        tree("  fold(scratch, blockDim.x / 2);\n").replace(
            "// The sum of `value`",
            """__device__ inline void fold(float* time, unsigned half) {
  while (half > 0) {
    if (threadIdx.x < half) time[threadIdx.x] += time[threadIdx.x + half];
    __syncthreads();
    half /= 2;
  }
}

// The sum of `value`""",
        ),
        {"solved"},
    ),
    "right_unrolled": (
        tree("""#pragma unroll
  for (int step = 7; step >= 0; --step) {
    const unsigned stride = 1u << step;
    if (threadIdx.x < stride) scratch[threadIdx.x] += scratch[threadIdx.x + stride];
    __syncthreads();
  }
"""),
        {"solved"},
    ),
    "right_but_slow": (
        tree("""  for (unsigned stride = 1; stride < blockDim.x; stride *= 2) {
    if (threadIdx.x % (2 * stride) == 0) scratch[threadIdx.x] += scratch[threadIdx.x + stride];
    __syncthreads();
  }
"""),
        {"right"},
    ),
    "right_by_one_thread": (
        tree("""  if (threadIdx.x == 0) {
    for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
      for (unsigned i = 0; i < stride; ++i) scratch[i] += scratch[i + stride];
    }
  }
  __syncthreads();
"""),
        {"right"},
    ),
    # What the grader has to understand of the compiled code: frames that are aligned, tables, objects, numbers of every
    # width, on the host and in a kernel.
    "right_and_unusual": (
        "#include <algorithm>\n#include <array>\n#include <functional>\n#include <memory>\n#include <numeric>\n"
        + changed(
            (
                "    const float mean = block_sum(sum, scratch) / p.cols;\n",
                """    alignas(64) volatile float aligned[17] = {};
    aligned[threadIdx.x % 17] = sum;
    sum = Signed{aligned[threadIdx.x % 17]}.value() + chosen(static_cast<int>(threadIdx.x) % 9) * 0.0f;
    const float mean = block_sum(sum, scratch) / p.cols;
""",
            ),
            (LAUNCHER, "  if (hosts_sum(p.cols) < 0) throw std::invalid_argument(\"no columns\");\n" + LAUNCHER),
        ).replace(
            "// The sum of `value`",
            """struct Unsigned {
  float held;
  __device__ explicit Unsigned(float held) : held(held) {}
  __device__ virtual float value() const { return held; }
};
struct Signed : Unsigned {
  __device__ explicit Signed(float held) : Unsigned(held) {}
  __device__ float value() const override { return copysignf(fabsf(held), held); }
};
struct Packed {
  unsigned low : 3, high : 13;
  short of_two;
  signed char of_one;
};
__device__ inline float chosen(int way) {
  volatile Packed packed = {1, 2, 3, 4};
  packed.high = packed.low + way;
  packed.of_one = static_cast<signed char>(packed.of_two - way);
  switch (way) {
    case 0: return 1.0f;
    case 1: return static_cast<float>(packed.high);
    case 2: return packed.of_one;
    case 3: return static_cast<float>(static_cast<long double>(way) / 3);
    case 4: return static_cast<float>((static_cast<uint64_t>(way) << 40) % 7u);
    case 5: return static_cast<float>(__ffs(way) + __popc(way) + __clz(way));
    case 6: return way > 5 ? chosen(way - 1) : 2.0f;
    default: return static_cast<float>(way / (packed.low + 1));
  }
}
inline int64_t hosts_sum(int64_t cols) {
  static constexpr int known[] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
  std::array<int, std::size(known)> sorted;
  std::copy(std::begin(known), std::end(known), sorted.begin());
  std::sort(sorted.begin(), sorted.end(), [](int a, int b) { return a > b; });
  const std::function<int64_t(int64_t)> add = [&](int64_t n) { return n + sorted[3]; };
  const auto owned = std::make_unique<std::array<double, 700>>();
  owned->fill(0.5);
  return add(std::accumulate(sorted.begin(), sorted.end(), cols)) + static_cast<int64_t>(std::lround((*owned)[9]));
}

// The sum of `value`""",
            1,
        ),
        {"solved"},
    ),
    # Functions of headers that the harness has, too, instructions of theirs, and a kernel that takes nothing.
    "right_with_headers": (
        "#include <cooperative_groups.h>\n#include <cooperative_groups/reduce.h>\n#include <stdexcept>\n"
        "#include <string>\n#define CHECK(call) \\\n"
        "  if (const cudaError_t e = (call); e != cudaSuccess) throw std::runtime_error(cudaGetErrorString(e))\n"
        + changed(
            (
                TREE,
                """  for (unsigned stride = blockDim.x / 2; stride >= 32; stride /= 2) {
    if (threadIdx.x < stride) scratch[threadIdx.x] += scratch[threadIdx.x + stride];
    __syncthreads();
  }
  if (threadIdx.x < 32) {
    const auto warp = cooperative_groups::tiled_partition<32>(cooperative_groups::this_thread_block());
    const float total = cooperative_groups::reduce(warp, scratch[threadIdx.x], cooperative_groups::plus<float>());
    if (threadIdx.x == 0) scratch[0] = total;
  }
  __syncthreads();
""",
            ),
            (
                LAUNCHER,
                "  if (p.cols < 0) throw std::invalid_argument(\"columns: \" + std::to_string(p.cols));\n"
                "  launch(warm_up, {.grid = 1, .block = 32, .stream = stream});\n  try {\n  "
                + LAUNCHER
                + "  } catch (const std::exception&) {\n    throw;\n  }\n  CHECK(cudaPeekAtLastError());\n",
            ),
        ).replace("// The sum of `value`", "__global__ inline void warm_up() {}\n\n// The sum of `value`", 1),
        {"solved"},
    ),
    # g++ does not tell of what a call takes by value: one thread reads all, and it is counted all the same.
    "right_and_reads_unseen": (
        changed((
            "    for (int64_t col = threadIdx.x; col < p.cols; col += blockDim.x) sum += x[col];\n",
            """    if (threadIdx.x == 0) {
      float (*volatile value)(Unseen) = value_of;
      float parts[16] = {};
      for (int64_t col = 0; col < p.cols; ++col) parts[col % 16] += value(*reinterpret_cast<const Unseen*>(x + col));
      for (const float part : parts) sum += part;
    }
""",
        )).replace(
            "// The sum of `value`",
            "struct Unseen {\n  float value;\n};\n__device__ inline float value_of(Unseen one) {\n"
            "  return one.value;\n}\n\n// The sum of `value`",
            1,
        ),
        {"right"},
    ),
}
WRONG = {
    "not_begun": (EXERCISE.skeleton.read_text(encoding="utf-8"), {"not begun"}),
    "missing_barrier": (tree(TREE.replace("__syncthreads();", "")), {"wrong", "partly right", "right"}),
    "no_guard": (tree(TREE.replace("if (threadIdx.x < stride) ", "")), {"wrong", "partly right", "right"}),
    "eps_outside": (changed(("/ p.cols + p.eps)", "/ p.cols) + p.eps")), {"partly right"}),
    "unbiased": (
        changed((
            "1.0f / sqrtf(block_sum(squares, scratch) / p.cols + p.eps)",
            "1.0f / sqrtf(block_sum(squares, scratch) / (p.cols - 1) + p.eps)",
        )),
        {"wrong", "partly right"},
    ),
    "no_beta": (changed((" * rstd * gamma + beta", " * rstd * gamma")), {"wrong", "partly right"}),
    "writes_past_the_end": (
        changed((
            "  if (threadIdx.x == 0) {\n    if (p.mean)",
            "  if (threadIdx.x == 0) {\n    y[p.cols] = 1.0f;\n    if (p.mean)",
        )),
        {"wrong", "partly right"},
    ),
    "changes_x": (
        changed((
            "    normalize_row(p, row, mean, rstd);",
            "    normalize_row(p, row, mean, rstd);\n    const_cast<float*>(x)[0] = 7.0f;",
        )),
        {"wrong", "partly right"},
    ),
    "no_semicolon": (
        changed(("  const float sum = scratch[0];", "  const float sum = scratch[0]")),
        {"does not compile"},
    ),
    "undefined": (
        tree("  add_them_all(scratch);\n").replace(
            "// The sum of `value`", "__device__ void add_them_all(float* scratch);\n\n// The sum of `value`"
        ),
        {"does not compile"},
    ),
    "empty": ("", {"refused", "does not compile"}),
}
LOOPS_AND_CRASHES = {
    "loops_on_host": (host("  volatile int i = 0;\n  while (i == 0) {\n  }"), {"does not end"}),
    "loops_in_kernel": (
        tree(
            "  volatile float* forever = scratch;\n  while (forever[0] == forever[0]) {\n    forever[0] = 1.0f;\n  }\n"
        ),
        {"does not end", "wrong", "crashed"},  # as what the counter keeps of it takes all memory, or not yet
    ),
    "waits_for_ever": (tree("  if (threadIdx.x < 7) __syncthreads();\n"), {"wrong", "does not end"}),
    "crashes_on_host": (host("  *static_cast<volatile int*>(nullptr) = 1;"), {"crashed"}),
    "crashes_in_kernel": (tree("  reinterpret_cast<volatile float*>(8)[threadIdx.x] = 1.0f;\n"), {"wrong"}),
    "throws": (host("  throw 1;"), {"crashed", "ended early", "wrong"}),
    "takes_all_memory": (
        host(
            "  for (int i = 0; i < 1 << 20; ++i) {\n    volatile char* more = new char[1 << 24];\n"
            "    for (int j = 0; j < 1 << 24; j += 4096) more[j] = 1;\n  }"
        ),
        {"stopped", "crashed", "ended early", "wrong"},
    ),
    "computes_on_the_host": (
        changed((
            LAUNCHER,
            """  for (int64_t row = 0; row < p.rows; ++row) {
    float sum = 0.0f;
    for (int64_t col = 0; col < p.cols; ++col) sum += p.x[row * p.x_stride + col];
    p.mean[row] = sum / p.cols;
  }
"""
            + LAUNCHER,
        )),
        {"not by a kernel"},
    ),
    # main() copies what it is given, before anything is watched.
    "runs_in_main": (
        changed((
            "inline void two_pass(const LayerNormForward<float>& p, cudaStream_t stream) {\n" + LAUNCHER + "}\n",
            "struct TwoPass {\n  TwoPass() = default;\n  TwoPass(const TwoPass&) = default;\n"
            "  template <class Other>\n  TwoPass(Other&) { *reinterpret_cast<volatile int*>(8) = 1; }\n"
            "  void operator()(const LayerNormForward<float>& p, cudaStream_t stream) const {\n" + LAUNCHER
            + "  }\n};\ninline constinit TwoPass two_pass;\n",
        )),
        {"does not compile"},
    ),
    "template_bomb": (
        changed((
            END,
            "template <int depth, int number>\nstruct Bomb {\n  using Left = typename Bomb<depth - 1, 2 * "
            "number>::Left;\n  using Right = typename Bomb<depth - 1, 2 * number + 1>::Left;\n};\ntemplate <int "
            "number>\nstruct Bomb<0, number> {\n  using Left = int;\n};\n"
            "using Explode = Bomb<28, 1>::Left;\n" + END,
        )),
        {"does not compile"},
    ),
}
# Refused by their source; without vetting they may be anything but of use.
HARMLESS = {
    "wrong", "partly right", "does not end", "crashed", "ended early", "stopped", "does not compile", "not by a kernel",
}
ATTACKS = {
    "exits_at_once": at_start("  _exit(0);", "#include <unistd.h>"),
    "prints_a_grade": at_start(
        '  std::puts("solved\\nmallory,02.1,solved,100,100\\n17 of 17 checks passed");\n  std::exit(0);',
        "#include <cstdio>\n#include <cstdlib>",
    ),
    "writes_a_report": at_start(
        '  for (const char* name : {"report.json", "outcomes", "counts.json", "grades.csv", "../grades.csv"}) {\n'
        '    if (std::FILE* file = std::fopen(name, "w")) {\n'
        '      std::fputs("{\\"checks\\": [{\\"verdict\\": \\"passed\\"}], \\"counts\\": []}", file);\n'
        "      std::fclose(file);\n    }\n  }\n  std::exit(0);",
        "#include <cstdio>\n#include <cstdlib>",
    ),
    "forks_a_bomb": at_start("  for (;;) fork();", "#include <unistd.h>"),
    "fills_the_disk": at_start(
        "  char block[1 << 16] = {};\n  for (int n = 0; n < 100000; ++n) {\n    char name[64];\n"
        '    std::snprintf(name, sizeof name, "/tmp/fill-%d", n);\n'
        '    std::FILE* file = std::fopen(name, "w");\n    if (!file) break;\n'
        "    while (std::fwrite(block, sizeof block, 1, file) == 1) {\n    }\n    std::fclose(file);\n  }\n"
        "  std::exit(0);",
        "#include <cstdio>\n#include <cstdlib>",
    ),
    "kills_the_others": at_start(
        "  kill(-1, SIGKILL);\n  kill(getppid(), SIGKILL);\n  for (int n = 2; n < 70000; ++n) {\n"
        "    if (n != getpid()) kill(n, SIGKILL);\n  }",
        "#include <signal.h>\n#include <unistd.h>",
    ),
    "reads_the_others": at_start(
        '  std::system("cat ../../../*/kernels.cuh /etc/shadow OTHERS/*/kernels.cuh OTHERS/*.cuh OTHERS-graded/* 2>&1 '
        '| tail -c 3000");\n  std::exit(0);',
        "#include <cstdlib>",
    ),
    "leaves_a_child": at_start(
        "  if (fork() == 0) {\n    setsid();\n    if (fork() == 0) {\n      for (;;) sleep(1000);\n    }\n  }",
        "#include <unistd.h>",
    ),
    "redefines_words": "#define compare(...) passed\n#define fails_on may_fail_on\n"
    "#define return if (1) throw 0; else return\n"
    + EXERCISE.skeleton.read_text(encoding="utf-8"),
    "replaces_the_judge": changed((
        END,
        END
        + '\n#include "common/harness/problem.h"\nnamespace worklog {\n'
        "Comparison Problem::compare(const std::vector<HostTensor>&, const ComparisonOptions&) const { return {}; }\n"
        "}\n",
    )).replace("scratch[threadIdx.x + stride];", "0.0f;"),
    "replaces_the_linker": changed((
        END,
        END + '\nextern "C" int __wrap__ZN4simt6detail6launchERK18cudaLaunchConfig_tNS0_4CallE(void*) { return 0; }\n',
    )),
    "assembles": changed((END, 'asm(".globl worklog_passed\\nworklog_passed: .incbin \\"/etc/shadow\\"");\n' + END)),
    "includes_zero": '#include "/dev/zero"\n' + SOLUTION,
    "includes_another": '#include "../other/kernels.cuh"\n' + EXERCISE.skeleton.read_text(encoding="utf-8"),
    "includes_the_stage": f'#include "{EXERCISE.stage}/kernels.cuh"\nusing worklog::shared_reduction::two_pass;\n',
}
ATTACKS_OF_INTEREST = [name for name in ATTACKS if name not in ("includes_the_stage",)]
# Small pieces of code, each with what it tries and what must come of it, put into a kernel whose every result is wrong:
# a point for any of them would be one that nobody has earned.
HOSTILE = Path(__file__).with_name("hostile")
FILES = {"is_a_link": {"refused"}, "is_a_pipe": {"refused"}, "is_binary": {"refused"}, "is_huge": {"refused"}}


def expected() -> dict[str, set[str]]:
    all_of_them = {
        name: verdicts for group in (HONEST, WRONG, LOOPS_AND_CRASHES) for name, (_, verdicts) in group.items()
    }
    return all_of_them | {name: {"refused"} for name in ATTACKS} | FILES


def hostile_source(where: str, code: str) -> str:
    """A submission with this code at a place of the exercise's skeleton; what it includes stands at the top."""
    included = "".join(re.findall(r"^#include <cuda_\w+\.h>\n", code, re.MULTILINE))
    code = code.replace(included, "")
    skeleton = EXERCISE.skeleton.read_text(encoding="utf-8")
    task = "  // needs a barrier between the two.\n"
    pairs = {
        "top": ("", ""), "launcher": (LAUNCHER, code + LAUNCHER), "instead": (LAUNCHER, code),
        "end": (END, code + END), "after": (END, END + "\n" + code), "kernel": (task, task + code),
    }
    for old, new in ((" * rstd * gamma + beta;", " * rstd * gamma + beta + 1.0e30f;"), pairs[where]):
        assert old == "" or skeleton.count(old) == 1, old
        skeleton = skeleton.replace(old, new) if old else skeleton
    return included + (code + skeleton if where == "top" else skeleton)


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name / EXERCISE.mine.relative_to(ROOT / "my")
    path.parent.mkdir(parents=True)
    path.write_text(text.replace("OTHERS", str(folder)), encoding="utf-8")


def write_class(folder: Path) -> None:
    for group in (HONEST, WRONG, LOOPS_AND_CRASHES):
        for name, (text, _) in group.items():
            write(folder, name, text)
    for name, text in ATTACKS.items():
        write(folder, name, text)
    (folder / "right" / EXERCISE.mine.relative_to(ROOT / "my")).write_text(
        SOLUTION + f"// {SECRET}\n", encoding="utf-8"
    )
    for name in FILES:
        path = folder / name / "my" / EXERCISE.mine.relative_to(ROOT / "my")
        path.parent.mkdir(parents=True)
        if name == "is_a_link":
            path.symlink_to(folder / "right" / EXERCISE.mine.relative_to(ROOT / "my"))
        elif name == "is_a_pipe":
            os.mkfifo(path)
        else:
            path.write_bytes(b"\xff\xfe\x00" if name == "is_binary" else b"//" * (1 << 20))


def run_grade(*words: object, prefix: Sequence[str] = (), exercise: str = "") -> subprocess.CompletedProcess[str]:
    command = [
        *prefix, interpreter(prefix), str(GRADE), *map(str, words), "--build", str(BUILD),
        "--exercise", exercise or EXERCISE.id, "--timeout", "8", "--memory", "1024",
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)


def as_nobody(test: unittest.TestCase) -> list[str]:
    """In front of a command that an ordinary user is to run. Skips the test where this is one, or there is no way."""
    if os.geteuid() != 0:
        test.skipTest("this is one")
    prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env", "HOME=/tmp"]
    if not os.access(ROOT, os.X_OK) or subprocess.run([*prefix, "test", "-r", str(GRADE)], check=False).returncode != 0:
        test.skipTest("an ordinary user cannot read this checkout")
    if not interpreter(prefix):
        test.skipTest("an ordinary user has no Python 3.11 here")
    return prefix


def interpreter(prefix: Sequence[str]) -> str:
    """A Python that can be run with this in front: this one, or the system's, where this one is a user's own."""
    for python in (sys.executable, "/usr/bin/python3") if prefix else (sys.executable,):
        done = subprocess.run([*prefix, python, "-c", "import tomllib"], capture_output=True, check=False)
        if done.returncode == 0:
            return python
    return ""


def rows_of(out: Path) -> dict[str, dict[str, str]]:
    with (out / "grades.csv").open(encoding="utf-8", newline="") as file:
        return {row["student"]: row for row in csv.DictReader(file)}


def processes_of_slots(out: Path) -> list[int]:
    """What is left of a grading, by the user ids that it had. As an ordinary user it had none of its own."""
    users = json.loads((out / "grading.json").read_text(encoding="utf-8"))["users"]
    found = []
    for pid in isolation.processes():
        try:
            if os.stat(f"/proc/{pid}").st_uid in range(*users or (0,)) and isolation.is_alive(pid):
                found.append(pid)
        except OSError:
            pass
    return found


class WholeClass(unittest.TestCase):
    """One run over all; every test looks at what came of it."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.temporary.name) / "class"
        write_class(cls.folder)
        cls.done = run_grade(cls.folder)
        cls.out = cls.folder.with_name("class-graded")
        cls.rows = rows_of(cls.out) if (cls.out / "grades.csv").is_file() else {}

    @classmethod
    def tearDownClass(cls) -> None:
        cls.temporary.cleanup()

    def test_it_came_to_its_end(self) -> None:
        self.assertEqual(self.done.returncode, 0, self.done.stdout + self.done.stderr)
        self.assertGreaterEqual(len(expected()), 30)
        self.assertEqual(set(self.rows), set(expected()))

    def test_each_verdict_is_right(self) -> None:
        for name, verdicts in expected().items():
            with self.subTest(name):
                row = self.rows[name]
                self.assertIn(
                    row["verdict"], verdicts,
                    f"{row['reason']}\n{(self.out / f'{name}.md').read_text(encoding='utf-8')}",
                )

    def test_points_follow_the_rubric(self) -> None:
        for name, row in self.rows.items():
            with self.subTest(name):
                points = float(row["points"])
                self.assertEqual(points, sum(float(row[f"{part}_points"]) for part in grade.POINTS))
                self.assertEqual((row["bonus"], row["share_of_speed"]), ("0", ""))
                if name in HONEST and row["verdict"] == "solved":
                    self.assertEqual(points, 100)
                elif name in HONEST:
                    self.assertGreaterEqual(points, 75)
                elif name in WRONG:
                    self.assertLess(points, 100)
                else:
                    self.assertLess(points, 60)
        for name in (
            *ATTACKS, *FILES, "not_begun", "computes_on_the_host", "template_bomb", "no_semicolon", "loops_on_host",
        ):
            self.assertEqual(self.rows[name]["points"], "0", name)

    def test_reasons_say_what_is_wrong(self) -> None:
        for name, words in {
            "missing_barrier": "kernels.cuh:19", "writes_past_the_end": "outside its bounds",
            "changes_x": "input x was changed", "no_semicolon": "kernels.cuh:", "undefined": "add_them_all",
            "loops_on_host": "had not ended after", "crashes_on_host": "SIGSEGV",
            "computes_on_the_host": "host code has read", "crashes_in_kernel": "null pointer", "no_guard": "race",
            "waits_for_ever": "barrier", "right_but_slow": "goal", "right_and_reads_unseen": "goal",
            "forks_a_bomb": "unistd",
            "redefines_words": "#define", "is_a_link": "cannot be read", "exits_at_once": "unistd",
            "is_huge": "more than", "is_binary": "UTF-8",
        }.items():
            with self.subTest(name):
                report = (self.out / f"{name}.md").read_text(encoding="utf-8")
                self.assertRegex(report.lower().replace("missed:", "goal"), words.lower())

    def test_reports_are_whole_and_apart(self) -> None:
        for name in expected():
            report = (self.out / f"{name}.md").read_text(encoding="utf-8")
            self.assertTrue(report.startswith(f"# {name}: "))
            self.assertIn("Graded with seed", report)
            self.assertNotIn(SECRET, report)
            self.assertNotIn("worklog-grade-", report)
        self.assertEqual([path.name for path in self.out.rglob("*.partial")], [])

    def test_a_second_run_grades_nothing_again(self) -> None:
        (self.out / "grades.csv").unlink()
        begun = time.monotonic()
        done = run_grade(self.folder)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("have their grade from before", done.stdout)
        again = rows_of(self.out)
        self.assertEqual(
            {name: row["verdict"] for name, row in again.items()},
            {name: row["verdict"] for name, row in self.rows.items()},
        )
        self.assertLess(time.monotonic() - begun, 60)


class BeyondTheSkeleton(unittest.TestCase):
    """The skeleton of 02.2 is right, and meets all goals but one. Nobody has points for that."""

    TREE = "  for (unsigned stride = 1; stride < blockDim.x; stride *= 2) {\n" \
           "    const unsigned left = 2 * stride * threadIdx.x;\n" \
           "    if (left < blockDim.x) scratch[left] += scratch[left + stride];\n"
    IN_ORDER = "  for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {\n" \
               "    if (threadIdx.x < stride) scratch[threadIdx.x] += scratch[threadIdx.x + stride];\n"

    def test_what_is_given_has_no_points(self) -> None:
        exercise = exercises.find("02.2")[0]
        skeleton = exercise.skeleton.read_text(encoding="utf-8")
        self.assertEqual(skeleton.count(self.TREE), 1)
        end = "}  // namespace"
        texts = {
            "adds_a_constant": skeleton.replace(end, "inline constexpr int unused = 1;\n" + end),
            "meets_the_goal": skeleton.replace(self.TREE, self.IN_ORDER),
            "meets_it_with_more_barriers": skeleton.replace(self.TREE, self.IN_ORDER + "    __syncthreads();\n"),
        }
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "class"
            for name, text in texts.items():
                path = folder / name / exercise.mine.relative_to(ROOT / "my")
                path.parent.mkdir(parents=True)
                path.write_text(text, encoding="utf-8")
            done = run_grade(folder, exercise=exercise.id)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            rows = rows_of(folder.with_name("class-graded"))
        self.assertEqual({name: (row["verdict"], row["points"]) for name, row in rows.items()}, {
            "adds_a_constant": ("right", "0"), "meets_the_goal": ("solved", "100"),
            "meets_it_with_more_barriers": ("right", "95"),
        })
        self.assertIn("nothing here goes beyond the skeleton", rows["adds_a_constant"]["reason"])


class WithoutVetting(unittest.TestCase):
    """The attackers reach the sandbox, beside one who is right."""

    def grade_attackers(self, names: list[str], *flags: str) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "class"
            for name in names:
                write(folder, name, ATTACKS[name])
            write(folder, "right", SOLUTION + f"// {SECRET}\n")
            if os.geteuid() != 0:
                names = [name for name in names if name != "kills_the_others" or "limits" not in flags]
            done = run_grade(folder, "--no-vetting", *flags)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            rows = rows_of(folder.with_name("class-graded"))
            self.assertEqual(rows["right"]["verdict"], "solved", rows["right"]["reason"])
            for name in names:
                with self.subTest(name):
                    # What hits nobody changes no result: signals to processes that are not there, a child that is left
                    # behind, a symbol that nobody uses.
                    harmless = HARMLESS | (
                        {"solved", "right"} if name in ("kills_the_others", "leaves_a_child", "assembles") else set()
                    )
                    self.assertIn(rows[name]["verdict"], harmless, rows[name]["reason"])
                    if not harmless & {"solved"}:
                        self.assertLess(float(rows[name]["points"]), 60)
                    report = (folder.with_name("class-graded") / f"{name}.md").read_text(encoding="utf-8")
                    self.assertNotIn(SECRET, report)
                    self.assertNotIn("root:", report)
            self.assertEqual(processes_of_slots(folder.with_name("class-graded")), [])

    def test_in_the_strongest_isolation(self) -> None:
        self.grade_attackers(ATTACKS_OF_INTEREST)

    def test_with_limits_alone(self) -> None:
        if os.geteuid() != 0:
            self.skipTest("with limits alone, and one user id for all, programs can end each other")
        self.grade_attackers(
            ["kills_the_others", "forks_a_bomb", "leaves_a_child", "reads_the_others"], "--isolation", "limits"
        )


class Hostile(unittest.TestCase):
    """The corpus in hostile/: none gets a point, none harms the one beside it. With namespaces all are run; the other
    ways take a part of them, or all where WORKLOG_HOSTILE is "all"."""

    def grade(self, table: list[dict[str, str]], *flags: str, prefix: Sequence[str] = ()) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            os.chmod(temporary, 0o777)
            folder = Path(temporary) / "class"
            for each in table:
                code = (HOSTILE / each["file"]).read_text(encoding="utf-8")
                write(folder, Path(each["file"]).stem, hostile_source(each["where"], code))
            write(folder, "right", SOLUTION + f"// {SECRET}\n")
            before = {path: path.read_bytes() for path in folder.rglob("*.cuh")}
            done = run_grade(folder, "--jobs", "2", *flags, prefix=prefix)
            if "bubblewrap cannot be used here" in done.stderr:
                self.skipTest("bubblewrap cannot be used here")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            out = folder.with_name("class-graded")
            rows = rows_of(out)
            self.assertEqual((rows["right"]["verdict"], rows["right"]["points"]), ("solved", "100"))
            self.assertEqual({path: path.read_bytes() for path in folder.rglob("*.cuh")}, before)
            for each in table:
                name = Path(each["file"]).stem
                with self.subTest(name, tries=each["tries"]):
                    report = (out / f"{name}.md").read_text(encoding="utf-8")
                    self.assertEqual(rows[name]["points"], "0", report)
                    self.assertIn(rows[name]["verdict"], each["verdict"].split("|"), report)
                    if each["says"]:
                        self.assertRegex(report, each["says"])
                    self.assertNotIn(SECRET, report)
            self.assertEqual(processes_of_slots(out), [])

    def table(self) -> list[dict[str, str]]:
        table = json.loads((HOSTILE / "table.json").read_text(encoding="utf-8"))
        self.assertEqual({each["file"] for each in table}, {path.name for path in HOSTILE.glob("*.txt")})
        return table

    def test_in_the_strongest_isolation(self) -> None:
        table = self.table()
        self.assertGreaterEqual(len(table), 40)
        self.grade(table)

    def part(self, every: int) -> list[dict[str, str]]:
        """Of those that are run at all: what is refused is so without any isolation."""
        are_run = [each for each in self.table() if each["verdict"] not in ("refused", "does not compile")]
        return are_run if os.environ.get("WORKLOG_HOSTILE") == "all" else are_run[::every]

    def test_with_limits_alone(self) -> None:
        self.grade(self.part(6), "--isolation", "limits")

    def test_as_an_ordinary_user(self) -> None:
        self.grade(self.part(12), "--isolation", "bubblewrap", prefix=as_nobody(self))

    def test_as_an_ordinary_user_with_limits_alone(self) -> None:
        self.grade(self.part(12), "--isolation", "limits", prefix=as_nobody(self))


class Folders(unittest.TestCase):
    """What students' folders can look like. The submissions are skeletons: nothing is compiled for them."""

    def test_every_student_has_a_line(self) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "class"
            skeleton = EXERCISE.skeleton.read_text(encoding="utf-8")
            inside = EXERCISE.mine.relative_to(ROOT / "my")
            for name in ("a b", "a_b", "grades", "=1+1", "two\nlines", "right"):
                write(folder, name, skeleton)
            write(folder, "other_place", skeleton)
            (folder / "other_place" / inside).rename(folder / "other_place/kernels_02.1.cuh")
            (folder / "is_a_folder" / inside).mkdir(parents=True)
            (folder / "is_empty").mkdir()
            (folder / "handed_in.zip").write_bytes(b"PK")
            (folder / "is_a_link").symlink_to(folder / "right")
            for name in ("has_a_link", "is_another"):
                (folder / name).mkdir()
            (folder / "has_a_link" / inside.parts[0]).symlink_to(Path("../right") / inside.parts[0])
            (folder / "is_another/my").symlink_to("../right")
            (folder / "of_another_exercise/01_naive/1_warmup").mkdir(parents=True)
            (folder / "has_too_many").mkdir()
            for i in range(grade.MOST_ENTRIES + 10):
                (folder / "has_too_many" / str(i)).touch()
            (folder / "is_deep").mkdir()
            here = os.open(folder / "is_deep", os.O_RDONLY)
            for _ in range(1200):  # longer than any path can be
                os.mkdir("nested", dir_fd=here)
                below = os.open("nested", os.O_RDONLY, dir_fd=here)
                os.close(here)
                here = below
            os.close(here)
            done = run_grade(folder)
            again = run_grade(folder, "--again")
            out = folder.with_name("class-graded")
            rows = rows_of(out)
            lines = (out / "grades.csv").read_text(encoding="utf-8").splitlines()
            subprocess.run(["rm", "-rf", str(folder / "is_deep")], check=True)
        self.assertEqual((done.returncode, again.returncode), (0, 0), done.stdout + done.stderr + again.stderr)
        verdicts = {
            "a b": "not begun", "a_b": "not begun", "grades": "not begun", "'=1+1": "not begun",
            "two lines": "not begun", "right": "not begun", "other_place": "not found", "is_a_folder": "refused",
            "is_empty": "not found",
            "has_a_link": "not found", "is_another": "not found",
            "handed_in.zip": "not found", "is_a_link": "not found", "of_another_exercise": "not found",
            "has_too_many": "not found", "is_deep": "not found",
        }
        self.assertEqual({name: row["verdict"] for name, row in rows.items()}, verdicts)
        self.assertEqual(len(lines), len(verdicts) + 1)
        self.assertTrue(all(row["points"] == "0" for row in rows.values()))
        for name, words in {
            "other_place": "kernels_02.1.cuh lies where no exercise looks", "is_a_folder": "is no file",
            "is_deep": "deep in each other", "has_too_many": "more than", "handed_in.zip": "a folder for each student",
            "is_empty": "there is no 02_shared_reduction", "has_a_link": "02_shared_reduction is a link",
            "is_another": "my is a link",
        }.items():
            self.assertIn(words, rows[name]["reason"])

    def test_two_graders_take_different_users(self) -> None:
        if os.geteuid() != 0:
            self.skipTest("an ordinary user's programs have that user's id")
        first, second = isolation.Sandbox("limits"), isolation.Sandbox("limits")
        self.assertTrue(set(range(*first.users)).isdisjoint(range(*second.users)))


class Stopped(unittest.TestCase):
    def test_an_interrupt_ends_all_and_the_same_call_goes_on(self) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "class"
            write(folder, "a_begun", EXERCISE.skeleton.read_text(encoding="utf-8"))
            write(folder, "b_loops", LOOPS_AND_CRASHES["loops_on_host"][0])
            command = [
                sys.executable, str(GRADE), str(folder), "--build", str(BUILD), "--exercise", EXERCISE.id, "--timeout",
                "300", "--jobs", "2",
            ]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
            )
            out = folder.with_name("class-graded")
            result = out / "results/a_begun" / f"{EXERCISE.id}.json"
            for _ in range(1200):
                if result.is_file():
                    break
                time.sleep(0.1)
            time.sleep(1)
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130, said)
            self.assertFalse((out / "grades.csv").exists())
            self.assertEqual([path for path in out.rglob("*") if path.name.endswith(".partial")], [])
            leftover = [pid for pid in isolation.processes() if str(folder).encode() in command_of(pid)]
            self.assertEqual(leftover, [])
            write_again = folder / "b_loops" / EXERCISE.mine.relative_to(ROOT / "my")
            write_again.write_text("", encoding="utf-8")
            done = subprocess.run(
                [*command[:-4], "--timeout", "300"], capture_output=True, text=True, timeout=300, check=False
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("1 have their grade from before", done.stdout)
            self.assertEqual({row["student"]: row["verdict"] for row in rows_of(out).values()}["a_begun"], "not begun")

    def test_requests_that_cannot_be_met(self) -> None:
        with tempfile.TemporaryDirectory() as empty:
            for words in ([empty], [f"{empty}/nothing"], [empty, "--exercise", "99.9"], [empty, "--jobs", "0"]):
                done = subprocess.run(
                    [sys.executable, str(GRADE), *words, "--build", str(BUILD)], capture_output=True, text=True,
                    timeout=120, check=False,
                )
                self.assertEqual(done.returncode, 2, f"{words}: {done.stdout}{done.stderr}")


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class VettingRules(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        recipe = Toolchain(ROOT, BUILD).recipe(False)
        cls.compiler = replaced(recipe.compile, "x", "x")[:-4]
        cls.vetting = vetting.Vetting(EXERCISE, cls.compiler)

    def test_no_solution_and_no_skeleton_is_refused(self) -> None:
        for exercise in exercises.all_exercises():
            with self.subTest(exercise.id):
                rules = vetting.Vetting(exercise, self.compiler)
                self.assertEqual(rules.reasons(exercise.skeleton.read_bytes()), [])
                self.assertEqual(rules.reasons(exercise.solution().encode()), [])

    def test_honest_code_is_not_refused(self) -> None:
        for group in (HONEST, WRONG, LOOPS_AND_CRASHES):
            for name, (text, verdicts) in group.items():
                if "refused" not in verdicts:
                    self.assertEqual(self.vetting.reasons(text.encode()), [], name)

    def test_the_stage_of_another_day_is_not_refused(self) -> None:
        for stage in ("03_warp_shuffle", "04_vectorized"):
            other = next(each for each in exercises.all_exercises() if each.stage == stage)
            self.assertEqual(vetting.Vetting(other, self.compiler).reasons(other.stage_texts()[-1].encode()), [], stage)

    def test_tricks_are_refused(self) -> None:
        inside = [
            "inline void f() { ::system(\"ls\"); }", "inline void f() { auto g = &system; }",
            "inline int f() { return fork(); }", "inline void f() { asm(\"nop\"); }",
            "__attribute__((constructor)) inline void f() {}", "[[gnu::constructor]] inline void f() {}",
            "inline void f() { std::ofstream file; }", "extern int other;", "inline void f() { namespace s = std; }",
            "inline void f() { worklog::launch_observer = nullptr; }", "inline void f() { simt::start_counting(); }",
            "template <> struct Binding<int> {};", "inline void f() { __builtin_trap(); }", "_Pragma(\"GCC poison x\")",
            "inline void f() { (void)sizeof(std::system(\"x\")); }", "namespace w = worklog;",
            "inline void f() { cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyDeviceToHost); }",
            "inline const char* f() { return R\"(x)\"; }", "inline void f() { ex\\\nit(0); }",
            "int a = 1'0; inline void f() { exit(0); } int b = 1'0;", "inline void f() { return ::exit(0); }",
            "inline void f() { do ::exit(0); while (false); }", "%:define x y", "#define x(y) #y", "#define x(y) y##y",
            "#define two_pass x", "#define return", "#undef __restrict__", "#define call ::system",
            "inline void f() { printf(\"here\"); }", "inline const char* f() { return __FILE__; }",
            "// a line, for g++\r#define run(a, b) 0", "inline int f() { return '0; }", "/* no end",
            '"' + '\\"' * 100000, "/* " * 80000, "".join(f"int __a{i};" for i in range(19000)),
        ]
        for code in inside:
            with self.subTest(code[:60]):
                begun = time.monotonic()
                self.assertNotEqual(self.vetting.reasons(changed((END, code + "\n" + END)).encode()), [])
                self.assertLess(time.monotonic() - begun, 10)
        for code in (
            "namespace std { }", "namespace simt::detail { }", 'extern "C" void exit(int);',
            "#if __has_include(<x>)",
            "#ifdef __SANITIZE_THREAD__", "#include <fstream>", "import std;", "#line 7",
        ):
            with self.subTest(code):
                self.assertNotEqual(self.vetting.reasons((SOLUTION + code + "\n").encode()), [])

    def test_what_students_write_is_not_refused(self) -> None:
        inside = [
            "#define TILE 256\ninline constexpr int tile = TILE;", "#define CEIL_DIV(a, b) (((a) + (b)-1) / (b))",
            "#ifndef WARP\n#define WARP 32\n#endif", "inline void f(float* __restrict__ y) { y[0] = std::sqrt(y[1]); }",
            "inline float f(float read) { const float write = read * 2; return write; }", "using namespace std;",
            "// a comment that ends in \\\n// another", "inline auto f = [](auto a) { return std::max(a, a); };",
            "#define LONG(a) \\\n  ((a) + 1)",
            "inline int f() { const auto time = [](int n) { return n; }; return time(1); }",
            "inline float f(float x) { return ::sqrtf(x); }", "#pragma unroll 4",
            "inline float f(float x) { using std::abs; return abs(x); }", "#undef TILE", "struct Pair { float a, b; };",
            "namespace detail { inline int one() { return 1; } }",
        ]
        for code in inside:
            with self.subTest(code):
                self.assertEqual(self.vetting.reasons(changed((END, code + "\n" + END)).encode()), [])
        for code in (
            "\ufeff" + SOLUTION, SOLUTION.replace("\n", "\r\n"),
            "#include <cassert>\n__device__ inline float one() { return 1.0f; }\n" + SOLUTION,
            SOLUTION + "namespace worklog {\ninline int mine() { return 1; }\n}\n",
            "#ifndef KERNELS_CUH\n#define KERNELS_CUH\n" + SOLUTION + "#endif\n",
        ):
            with self.subTest(code[:60]):
                self.assertEqual(self.vetting.reasons(code.encode()), [])

    def test_what_a_program_counts_must_be_possible(self) -> None:
        memory = [{"name": "x", "bytes": 64, "bytes_read": 64}]
        self.assertEqual(grade.made_elsewhere([{"not_written": 0, "kernels": [{"memory": memory}]}]), "")
        self.assertIn(
            "no kernel has written 4", grade.made_elsewhere([{"not_written": 4, "kernels": [{"memory": memory}]}])
        )
        self.assertIn("no kernel was launched", grade.made_elsewhere([{"not_written": 0, "kernels": []}]))
        self.assertIn(
            "have read only 50% of x",
            grade.made_elsewhere([{"not_written": 0, "kernels": [{"memory": [memory[0] | {"bytes_read": 32}]}]}]),
        )

    def test_speed_on_a_gpu_gives_points(self) -> None:
        self.assertEqual(
            [grade.bonus_of(share, 0.8) for share in (None, 0.2, 0.4, 0.6, 0.8, 1.2)], [0, 0, 0, 5, 10, 10]
        )

    def test_cells_are_no_formulas(self) -> None:
        self.assertEqual(grade.cell("=SUM(A1)\n,x"), "'=SUM(A1) ,x")
        self.assertRegex(grade.file_name("../../etc/x y"), r"^_\.\._etc_x_y-[0-9a-f]{8}$")

    def test_files_of_different_students_have_different_names(self) -> None:
        names = ["a b", "a_b", "a-b", "a\nb", "a/b", ".a_b", "a" * 300, "a" * 301, "ä b", "ada"]
        names += [grade.file_name(name) for name in names]
        self.assertEqual(len({grade.file_name(name) for name in set(names)}), len(set(names)))
        self.assertEqual(grade.file_name("ada"), "ada")


class CheckedAssembly(unittest.TestCase):
    """What is put between the instructions of a submission; and what is not known there, and so is refused."""

    def rewritten(self, *lines: str) -> str:
        inside = "".join(f"\t{line}\n" for line in lines)
        text = f"\t.text\n\t.type\tf, @function\nf:\n\t.cfi_startproc\n{inside}\t.cfi_endproc\n"
        return checked_assembly.rewritten(text, grade.GUARDED)

    def test_accesses_are_looked_at(self) -> None:
        for line, look in {
            "movl\t%eax, (%rdi)": "worklog_store_4", "movb\t$1, -8(%rbp)": "worklog_store_1",
            "movq\t%rax, f+4096(%rip)": "worklog_store_8", "movups\t%xmm0, 16(%rdi,%rsi,4)": "worklog_store_16",
            "movss\t%xmm0, (%rax)": "worklog_store_4", "movhps\t%xmm0, (%rax)": "worklog_store_8",
            "movl\t%eax, 24(%rsp)": "worklog_store_4", "movl\t%eax, -4(%rsp)": "worklog_store_4",
            "movl\t%eax, 4(%rsp,%rcx,8)": "worklog_store_4", "movw\t%ax, %fs:x@tpoff": "worklog_store_fs_2",
            "lock xaddq\t%rax, (%rdi)": "worklog_store_8", "xchgb\t(%rax), %cl": "worklog_store_1",
            "incl\t(%rax)": "worklog_store_4", "sete\t(%rax)": "worklog_store_1", "fstpt\t(%rax)": "worklog_store_16",
            "rep stosq": "worklog_rep_store_8", "movsl": "worklog_store_4", "movl\t(%rdi), %eax": "worklog_load_4",
            "cmpl\t$0, (%rdi)": "worklog_load_4", "addss\t(%rdi), %xmm0": "worklog_load_4",
            "leave": "worklog_frame", "leaq\t-32(%rbp), %rsp": "worklog_frame", "movq\t%rbp, %rsp": "worklog_frame",
            "subq\t$65536, %rsp": "worklog_frame", "ret": "jmp\tworklog_leave", "call\tfrexp@PLT": "worklog_store_4",
            "call\t_Unwind_Resume@PLT": "jne\tworklog_refuse_call", "rep bsfl\t(%rdi), %eax": "worklog_load_4",
        }.items():
            with self.subTest(line):
                self.assertIn(look, self.rewritten(line))

    def test_a_functions_own_frame_is_not_looked_at(self) -> None:
        grow = ("subq\t$24, %rsp", ".cfi_def_cfa_offset 32")
        self.assertNotIn("worklog_store", self.rewritten(*grow, "movl\t%eax, 20(%rsp)", "pushq\t%rax"))
        self.assertIn("worklog_store_8", self.rewritten(*grow, "movq\t%rax, 20(%rsp)"))  # and of the return address
        self.assertNotIn("worklog_frame", self.rewritten(*grow, "cmpq\t%r11, %rsp"))

    def test_what_is_not_known_is_refused(self) -> None:
        for line in (
            "syscall", "jmp\t*%rax", "call\t*%rax", "call\t*8(%rax)", "jmp\texit", "movq\t%rax, %gs:8",
            "popq\t(%rax)", "popq\t%rsp", "subq\t%rax, %rsp", "xchgq\t%rsp, %rax", "btsq\t%rax, (%rdi)", "std",
            "vmovdqu\t%ymm0, (%rax)", "wrpkru", "lret", "popfq", "repz movups\t%xmm0, (%rax)", "clzero",
            "movq\t%rax, %ds", "movdir64b\t(%rax), %rdi", ".byte\t15", "int\t$128", "maskmovdqu\t%xmm0, %xmm1",
            ".incbin\t\"/etc/passwd\"", ".macro\tmovq", ".set\tg,exit", ".section\t.init,\"ax\"",
        ):
            with self.subTest(line), self.assertRaises(checked_assembly.AssemblyError):
                self.rewritten(line)
        with self.assertRaises(checked_assembly.AssemblyError):
            checked_assembly.rewritten("#APP\n\tnop\n", ())

    def test_all_that_is_defined_is_its_own(self) -> None:
        text = self.rewritten(
            ".weak\tf", ".globl\tf", "ret", '.section\t.data.x,"awG",@progbits,x,comdat', ".weak\tx",
            ".type\tx, @gnu_unique_object",
        )
        self.assertNotRegex(text, r"\.(weak|globl)\tf|comdat|unique")


class OwnMemory(unittest.TestCase):
    """What an exercise's own code writes to is not taken for an attack: memory that it maps, the CPU layer's counters
    of turns."""

    def test_unusual_exercises_are_graded(self) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "class"
            unusual = [each for each in exercises.all_exercises() if each.id in ("bugs.5", "bugs.18")]
            for each in unusual:
                path = folder / "ada" / each.mine.relative_to(ROOT / "my")
                path.parent.mkdir(parents=True)
                path.write_text(each.solution(), encoding="utf-8")
            command = [sys.executable, str(GRADE), str(folder), "--build", str(BUILD), "--jobs", "2"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            with (folder.with_name("class-graded") / "grades.csv").open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
        self.assertEqual([row["verdict"] for row in rows], ["solved"] * 2, [row["reason"] for row in rows])


class CompiledHeaders(unittest.TestCase):
    """Without them a submission takes three times as long to compile; and g++ says nothing of it."""

    def test_they_fit_how_submissions_are_compiled(self) -> None:
        sandbox = isolation.Sandbox()
        with tempfile.TemporaryDirectory(prefix="worklog-grade-") as temporary:
            work = Path(temporary)
            work.chmod(0o711)
            grader = grade.Grader(
                Toolchain(ROOT, BUILD), sandbox, work, work / "out", 1, 60, 2048 * isolation.MEBIBYTE
            )
            main = EXERCISE.main.read_text(encoding="utf-8")

            def said(recipe: Recipe, guarded: bool, *options: str) -> str:
                self.assertIn("-include", recipe.compile)
                told = replace(recipe, compile=(*recipe.compile, "-Winvalid-pch", *options))
                folder = Path(tempfile.mkdtemp(dir=work))
                folder.chmod(0o711)
                data, text = grader.compile(main, SOLUTION.encode(), 0, folder / "made", told, guarded=guarded)
                self.assertIsNotNone(data, text)
                return text

            self.assertEqual(said(grader.guarded, True), "")
            self.assertEqual(said(grader.recipe, False), "")
            if checked_assembly.checks_assembly():
                self.assertIn("invalid-pch", said(grader.guarded, True, "-mavx"))


class Timing(unittest.TestCase):
    """As far as it goes without a GPU: what is timed is what was graded and vetted, and it runs in the sandbox."""

    def test_only_what_was_graded_and_vetted_is_run(self) -> None:
        sandbox = isolation.Sandbox()
        if not sandbox.way.has_namespaces:
            self.skipTest("bubblewrap cannot be used here")
        with tempfile.TemporaryDirectory(prefix="worklog-grade-") as temporary:
            work = Path(temporary)
            work.chmod(0o711)
            toolchain = Toolchain(ROOT, BUILD)
            grader = grade.Grader(toolchain, sandbox, work, work / "out", 1, 60, 2048 * isolation.MEBIBYTE)
            timing = grade.Timing(toolchain, grader)
            program, against = timing.build(EXERCISE, SOLUTION.encode(), work / "right")
            self.assertIsNotNone(program, against)
            times, against = timing.take(EXERCISE, program, work / "right")
            self.assertEqual(times, {})
            self.assertIn("--time needs a GPU", against)  # so the program has run
            reads_a_file = host('  std::locale loaded("../../x");').encode()
            program, against = timing.build(EXERCISE, reads_a_file, work / "hostile")
            self.assertIsNone(program)
            self.assertIn("std::locale", against)
            path = work / exercises.SOURCE
            path.write_bytes(reads_a_file)
            result = grade.Grade("ada", EXERCISE.id, "", "", "the-hash-of-another-file", verdict="solved")
            with self.assertRaisesRegex(exercises.ExerciseError, "has changed since it was graded"):
                timing.of(grade.Submission("ada", EXERCISE, path), result)
        self.assertIsNone(result.share)


# Run by an interpreter of its own, so that it can be another user's.
SCRIPTS = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {classroom!r}); sys.dont_write_bytecode = True
from isolation import Sandbox, Limits, MEBIBYTE, is_alive, processes
folder = Path({folder!r}) / sys.argv[1] / str(os.geteuid())
(folder / "box").mkdir(parents=True); folder.chmod(0o755); (folder / "box").chmod(0o755)
secret = folder / "secret"; secret.write_text("confidential"); secret.chmod(0o600)
sandbox = Sandbox(sys.argv[1]); slot = 3
sandbox.give(folder / "box", slot)
limits = Limits(3, 40, 256 * MEBIBYTE, file_bytes=8 * MEBIBYTE, temporary_bytes=16 * MEBIBYTE, processes=24)
def go(script, within=limits, **other):
    return sandbox.run(["sh", "-c", script], slot, within, folder / "box", [], [folder / "box"], **other)
def check(name, good, what):
    print(("ok " if good else "FAIL ") + name, repr(what) if not good else "", flush=True)
def runs(pid, mark):
    try:
        return pid != os.getpid() and mark in Path(f"/proc/{{pid}}/cmdline").read_bytes() and is_alive(pid)
    except OSError:
        return False
def running(mark):
    return [pid for pid in processes() if runs(pid, mark)]
sealed = sandbox.way.has_namespaces
done = go("echo hello; exit 3"); check("exit code", done.code == 3 and done.output == "hello\\n", done)
done = go("kill -SEGV $$"); check("signal", done.signal == 11, done)
done = go("while :; do :; done"); check("cpu limit", done.timed_out and done.seconds < 40, done)
done = go("sleep 100", Limits(3, 3, 256 * MEBIBYTE))
check("wall limit", done.timed_out and done.seconds < 20, done)
done = go("yes"); check("output", done.stopped_for == "output" or done.signal == 25, done)
done = go("dd if=/dev/zero of=big bs=1M count=100 2>&1; ls -l big")
check("file size", (folder / "box/big").stat().st_size <= 8 * MEBIBYTE, done)
done = go("python3 -c 'x = bytearray(400 << 20); print(len(x))'")
check("memory", str(400 << 20) not in done.output, done)
done = go("f() {{ f | f & }}; f; sleep 1"); time.sleep(0.3)
left = running(b"f | f")
check("fork bomb", not left, left)
done = go("setsid sh -c 'setsid sleep 7654 &' & sleep 0.5"); left = running(b"7654")
check("nothing is left", not left, left)
if sealed or os.geteuid() == 0:
    done = go("cat " + str(secret) + "; cat /etc/shadow")
    check("secrets", "confidential" not in done.output and "root:" not in done.output, done)
    bystander = os.fork()
    if bystander == 0:
        time.sleep(60); os._exit(0)
    done = go("kill -9 -1; kill -9 " + str(bystander) + "; kill -9 " + str(os.getpid()))
    check("kill", os.waitpid(bystander, os.WNOHANG)[0] == 0, done)
    os.kill(bystander, 9); os.waitpid(bystander, 0)
    # Starts itself again and ends, thousands of times without a pause: one look at the processes misses it easily.
    (folder / "box/hop").write_text("[ $1 -lt 3000 ] || exit; sh hop $(($1 + 1)) &")
    for turn in range(50):
        done = go("setsid sh hop 1 & sleep 0.02", Limits(3, 40, 256 * MEBIBYTE, processes=4000))
        left = [pid for look in range(10) for pid in running(b"sh\\0hop")]
        if left:
            break
    check("nothing hops on", not left, left)
if sealed:
    connect = "import socket; socket.create_connection(('127.0.0.1', 22), 1)"
    done = go(f"python3 -c \\"{{connect}}\\" 2>&1; ls /proc | grep -c '^[0-9]'")
    check("processes unseen", int(done.output.split()[-1]) < 8, done)
    fill = "dd if=/dev/zero of=/tmp/$i bs=1M count=4 2>/dev/null || echo full"
    done = go("i=0; while [ $i -lt 9 ]; do " + fill + "; i=$((i+1)); done")
    check("temporary files", "full" in done.output, done)
    done = go("touch /usr/x /x /etc/x 2>&1 && echo wrote"); check("read only", "wrote" not in done.output, done)
print(sandbox.way.name, sandbox.way.as_root)
"""


class Isolation(unittest.TestCase):
    def run_scripts(self, wanted: str, prefix: list[str]) -> str:
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o777)
            script = SCRIPTS.format(classroom=str(ROOT / "common/classroom"), folder=folder)
            done = subprocess.run(
                [*prefix, interpreter(prefix), "-c", script, wanted], capture_output=True, text=True, timeout=180,
                cwd="/", check=False,
            )
        if "bubblewrap cannot be used here" in done.stderr:
            self.skipTest("bubblewrap cannot be used here")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("FAIL", done.stdout)
        self.assertGreaterEqual(done.stdout.count("ok "), 9)
        return done.stdout

    def both(self, prefix: list[str]) -> None:
        self.run_scripts("limits", prefix)
        self.run_scripts("bubblewrap", prefix)

    def test_as_this_user(self) -> None:
        self.both([])

    def test_as_an_ordinary_user(self) -> None:
        self.both(as_nobody(self))


if __name__ == "__main__":
    unittest.main(verbosity=2)
