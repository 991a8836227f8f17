#!/usr/bin/env python3
"""Every exercise and every bug, and what is said about wrong solutions.

    python3 common/tests/exercise_test.py BUILD      a configured cpu build, whose target exercise_parts is built

Each program is built once, a few at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "common/classroom"))
sys.dont_write_bytecode = True
import exercises  # noqa: E402
import judging  # noqa: E402
import regions  # noqa: E402
from exercises import SOURCE, Exercise, ExerciseError  # noqa: E402
from not_on_cpu import explain  # noqa: E402
from toolchain import Toolchain  # noqa: E402

BUILD = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else ROOT / "build/cpu"
ALL = exercises.all_exercises()
LADDER = [each for each in ALL if not each.is_bug]
BUGS = [each for each in ALL if each.is_bug]


def judge_text(
    exercise: Exercise, text: str, folder: Path, counts: bool = True, **options: object
) -> judging.Judgement:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SOURCE).write_text(text, encoding="utf-8")
    tools = Toolchain(ROOT, BUILD)
    counter = tools if counts else None
    return judging.judge(exercise, folder, folder / "work", tools, counter, **options)  # type: ignore[arg-type]


def judge_given(exercise: Exercise, folder: Path) -> judging.Judgement:
    """An exercise as it is copied. It is only counted where its results do not say already what they must."""
    text = exercise.skeleton.read_text()
    found = judge_text(exercise, text, folder, counts=False)
    kinds = {problem.kind for problem in found.problems}
    enough = exercise.reason.problem in kinds if exercise.reason else kinds
    return found if enough else judge_text(exercise, text, folder)


def said(judgement: judging.Judgement) -> str:
    return "\n".join(f"{problem.kind}: {problem.text}" for problem in judgement.problems)


class Everything(unittest.TestCase):
    """What holds for each exercise: built and run once, for all tests of this class."""

    given: dict[str, judging.Judgement]  # the exercise as it is copied
    solved: dict[str, judging.Judgement]  # its solution

    @classmethod
    def setUpClass(cls) -> None:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
            given = {each.id: pool.submit(judge_given, each, Path(folder) / "given" / each.id) for each in ALL}
            solved = {
                each.id: pool.submit(judge_text, each, each.solution(), Path(folder) / "solved" / each.id)
                for each in ALL
            }
            cls.given = {name: future.result() for name, future in given.items()}
            cls.solved = {name: future.result() for name, future in solved.items()}

    def test_every_exercise_is_whole(self) -> None:
        self.assertTrue(LADDER)
        for each in ALL:
            with self.subTest(each.id):
                self.assertTrue(each.hints(), "hints.md has no hint")
                self.assertTrue(each.is_bug or each.drawn, "no second shape is drawn")
                self.assertIn(each.difficulty, (1, 2, 3))
                self.assertIn(f'Program program("{each.id}"', each.main.read_text())
                self.assertEqual(each.skeleton.read_text().count("\t"), 0)
                for goal in each.goals:
                    judging.count_named(goal.count)
                if not each.is_bug:
                    self.assertIsNotNone(each.variant)
                    self.assertRegex((ROOT / each.stage / "variants.cu").read_text(), rf'"{each.variant}"')
        self.assertEqual(len({each.id for each in ALL}), len(ALL))

    def test_a_skeleton_compiles_without_a_warning_and_is_not_solved(self) -> None:
        for each in LADDER:
            with self.subTest(each.id):
                found = self.given[each.id]
                self.assertEqual(found.warnings, "")
                self.assertTrue(found.untouched)
                self.assertFalse(found.solved)
                self.assertEqual({problem.kind for problem in found.problems} - {"wrong", "goal"}, set(), said(found))

    def test_every_solution_passes(self) -> None:
        for each in ALL:
            with self.subTest(each.id):
                found = self.solved[each.id]
                self.assertTrue(found.solved, said(found))
                self.assertEqual(found.warnings, "")
                self.assertFalse(found.untouched)
                self.assertTrue(found.counted)
                self.assertGreater(found.checks, 0)

    def test_every_bug_is_rejected_with_its_reason(self) -> None:
        for each in BUGS:
            with self.subTest(each.id):
                found = self.given[each.id]
                assert each.reason is not None
                self.assertFalse(found.solved)
                self.assertEqual(found.warnings, "")
                alike = [problem.text for problem in found.problems if problem.kind == each.reason.problem]
                self.assertTrue(
                    any(all(re.search(pattern, text) for pattern in each.reason.says) for text in alike), said(found)
                )


class Regions(unittest.TestCase):
    def test_skeleton_and_stage_differ_in_the_tasks_alone(self) -> None:
        for each in LADDER:
            with self.subTest(each.id):
                self.assertEqual(
                    regions.difference(each.skeleton.read_text(), each.stage_texts(), each.id, each.stage), ""
                )

    def test_a_changed_skeleton_is_found(self) -> None:
        """Each line outside of the tasks is taken out in turn, and each number and word changed."""
        each = LADDER[0]
        stage, text = each.stage_texts(), each.skeleton.read_text()
        inside = {number for region in regions.regions_of(text, "") for number in range(region.first, region.last + 1)}
        lines = text.split("\n")
        changed = 0
        for number, line in enumerate(lines):
            code = line.split("//")[0].strip()
            if number in inside or not code or code.startswith("#"):
                continue
            for other in ([], [line.replace("(", "(1 + ", 1)] if "(" in code else ["other " + line]):
                mutated = "\n".join(lines[:number] + other + lines[number + 1 :])
                if not other and (is_a_whole_declaration(code) or "// namespace" in line):
                    continue  # a skeleton may leave out what it does not need
                changed += 1
                self.assertNotEqual(
                    regions.difference(mutated, stage, "skeleton", "stage"), "", f"line {number + 1}: {line}"
                )
        self.assertGreater(changed, 20)

    STAGE = (
        "namespace n {\nint f(int a) {\n  // [task: t]\n  a = 2;\n  // [/task]\n  return a;\n}\nstruct S {\n  int x;\n"
        "};\nint g();\n}\n"
    )

    def test_solutions_are_made_of_the_stage(self) -> None:
        skeleton = (
            "namespace n {\nint f(int a) {\n  // [task: t] Make it two,\n  // please.\n  a = 0;\n  // [/task]\n  "
            "return a;\n}\n}\n"
        )
        self.assertEqual(regions.difference(skeleton, [self.STAGE], "skeleton", "stage"), "")
        self.assertEqual(regions.solved(skeleton, self.STAGE, "", ""), skeleton.replace("a = 0", "a = 2"))

    def test_what_is_refused(self) -> None:
        for skeleton, sentence in (
            ("// [task: u]\n// [/task]", "has a task 'u', which stage has not"),
            ("// [task: t]", "has no \\[/task\\]"),
            ("// [/task]", "none is open"),
        ):
            with self.assertRaisesRegex(regions.RegionError, sentence):
                regions.solved(skeleton, self.STAGE, "skeleton", "stage")
        for skeleton in ("int f(int a) {\n// [task: t]\n// [/task]\nreturn 1;\n}", "int g();\nint f();", "int g();"):
            self.assertNotEqual(regions.difference(skeleton, [self.STAGE], "skeleton", "stage"), "")
        with self.assertRaisesRegex(regions.RegionError, "balanced"):
            regions.difference("int f(int a) {\n// [task: t]\n}\n// [/task]", [self.STAGE], "skeleton", "stage")


class NotOnTheCpu(unittest.TestCase):
    """Words of CUDA that the CPU layer does not have, where all compilers read them."""

    def about(self, text: str) -> list[str]:
        return [sentence.partition(" is ")[0].partition(" are ")[0] for sentence in explain(text, "k.cuh")]

    def test_each_is_named_with_its_first_line(self) -> None:
        for text, about in (
            ("void f() {\n  k<float><<<1, 2>>>();\n  k<<<1, 2>>>();\n}", "k.cuh:2: <<<...>>>"),
            ("extern __shared__ float tile[];", "k.cuh:1: an extern __shared__ array"),
            ("extern __align__(16)\n__shared__ float tile[];", "k.cuh:1: an extern __shared__ array"),
            ('asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));', "k.cuh:1: inline PTX (asm)"),
            ("\n#include <cub/block/block_scan.cuh>", "k.cuh:2: CUB"),
            ("# include <cuda/std/array>", "k.cuh:1: libcu++"),
            ("#include <mma.h>", "k.cuh:1: WMMA"),
            ("float x = tex2D<float>(t, 1, 2);", "k.cuh:1: textures and surfaces"),
        ):
            with self.subTest(text):
                self.assertEqual(self.about(text), [about])

    def test_what_only_nvcc_reads_or_nobody_is_left_alone(self) -> None:
        for text in (
            "// k<<<1, 2>>>();", 'auto text = "k<<<1, 2>>>()";', "a << b; v<v<int>> w;",
            'asm volatile("" ::: "memory");',
            "extern int a;\n__shared__ float tile[4];", "float texture = 1; int asm_lines;",
            '#ifdef __CUDA_ARCH__\n#if 1\nasm("trap;");\n#endif\n#endif', "#include <cuda_runtime.h>",
        ):
            with self.subTest(text):
                self.assertEqual(self.about(text), [])

    def test_the_stages_have_none(self) -> None:
        for file in [*ROOT.glob("[0-9][0-9]_*/**/*.cu"), *ROOT.glob("[0-9][0-9]_*/**/*.cuh")]:
            if "nccl.h" in file.read_text():
                continue  # the program for several GPUs, which nvcc alone compiles
            self.assertEqual(explain(file.read_text(), file.name), [])


def is_a_whole_declaration(code: str) -> bool:
    return code.startswith(("inline constexpr", "using ", "namespace"))


class Teacher(unittest.TestCase):
    """What is said about wrong solutions of stage 02's tree."""

    EXERCISE = next(each for each in ALL if each.id == "02.1")
    CHANGES = {
        "barrier": ("    __syncthreads();  // the next step", "    // the next step"),
        "typing": ("stride /= 2", "strid /= 2"),
        "host": ("if (p.rows == 0) return;", "for (volatile int spin = 1; spin; spin = 1) {\n  }"),
        "endless": ("stride /= 2", "stride /= 1"),
        "exit": ("if (p.rows == 0) return;", "std::_Exit(0);"),
        "abort": ("if (p.rows == 0) return;", "std::abort();"),
        "chevrons": ("launch(kernel, {.grid = blocks, .block = threads, .stream = stream}, p)",
                     "kernel<<<blocks, threads, 0, stream>>>(p)"),
        "extern": ("__shared__ float scratch[threads_per_block]", "extern __shared__ float scratch[]"),
        "assembly": ("    float sum = 0.0f;", '    float sum;\n    asm("mov.f32 %0, 0f00000000;" : "=f"(sum));'),
        "last": (  # adds up what all others have left: they have only where it comes last
            "  scratch[threadIdx.x] = value;\n  __syncthreads();\n",
            "  scratch[threadIdx.x] = value;\n  if (threadIdx.x == blockDim.x - 1) {\n"
            "    double sum = 0;\n    for (unsigned i = 0; i < blockDim.x; ++i) sum += scratch[i];\n"
            "    scratch[0] = static_cast<float>(sum);\n  }\n"
            "  __syncthreads();\n  value = scratch[0];\n  __syncthreads();\n  if (threadIdx.x < blockDim.x) "
            "return value;\n",
        ),
        "lazy": (
            "threadIdx.x < stride) scratch[threadIdx.x] +=",
            "threadIdx.x + stride < 256) scratch[threadIdx.x] +=",
        ),
    }

    @classmethod
    def setUpClass(cls) -> None:
        solution = cls.EXERCISE.solution()
        with (
            tempfile.TemporaryDirectory() as folder,
            ThreadPoolExecutor(2) as pool,
            mock.patch.object(judging, "BLOCK_SECONDS", 1),
        ):
            futures = {}
            for name, (old, new) in cls.CHANGES.items():
                assert old in solution, old
                text = solution.replace("#pragma once", "#pragma once\n#include <cstdlib>").replace(old, new, 1)
                futures[name] = pool.submit(
                    judge_text, cls.EXERCISE, text, Path(folder) / name,
                    limits=judging.Limits(cpu_seconds=2, wall_seconds=20),
                )
            cls.found = {name: future.result() for name, future in futures.items()}

    def kinds(self, name: str) -> set[str]:
        self.assertFalse(self.found[name].solved)
        return {problem.kind for problem in self.found[name].problems}

    def test_a_race_names_both_lines(self) -> None:
        self.assertIn("shared_race", self.kinds("barrier"))
        race = next(problem for problem in self.found["barrier"].problems if problem.kind == "shared_race")
        self.assertRegex(race.text, rf"{SOURCE}:\d+: .*{SOURCE}:\d+, and no barrier orders the two")
        self.assertTrue(race.places)

    def test_a_wrong_result_names_place_and_values(self) -> None:
        found = next(problem for problem in self.found["barrier"].problems if problem.kind == "wrong")
        self.assertRegex(found.text, r"on input normal, 3 x 33, fp32: \d+ of 105 elements are wrong")
        self.assertRegex(found.text, r"y at row 0, column 0 is [-\d.e]+, and should be [-\d.e]+")
        self.assertIn("What this usually means: ", found.text)

    def test_what_is_right_in_one_order_only_is_refused(self) -> None:
        self.assertIn("wrong", self.kinds("last"))
        found = next(problem for problem in self.found["last"].problems if problem.kind == "wrong")
        self.assertRegex(found.text, r"in reverse order \(--order reverse\), and not in the usual one")
        usual = next(problem for problem in self.found["barrier"].problems if problem.kind == "wrong")
        self.assertNotIn("reverse", usual.text)

    def test_a_typing_error_has_its_line(self) -> None:
        self.assertEqual(self.kinds("typing"), {"compile"})
        self.assertRegex(self.found["typing"].problems[0].text, rf"{SOURCE}:\d+:\d+: error: .*strid")

    def test_what_the_cpu_layer_does_not_have_is_said_in_front_of_the_compilers_words(self) -> None:
        for name, sentence in (
            ("chevrons", r"<<<\.\.\.>>> is read by nvcc alone; write launch\(kernel, "),
            ("extern", r"an extern __shared__ array is not on the CPU layer; write T\* name = dynamic_shared<T>\(\)"),
            ("assembly", r"inline PTX \(asm\) is not on the CPU layer"),
        ):
            with self.subTest(name):
                self.assertEqual(self.kinds(name), {"compile"})
                old, new = self.CHANGES[name]
                text = self.EXERCISE.solution().replace("#pragma once", "#pragma once\n").replace(old, new, 1)
                word = {"chevrons": "<<<", "extern": "extern", "assembly": "asm("}[name]
                line = text[: text.index(word)].count("\n") + 1
                said_first, _, rest = self.found[name].problems[0].text.partition("\n")
                self.assertRegex(said_first, rf"{SOURCE}:{line}: {sentence}")
                self.assertNotEqual(rest, "")  # what the compiler or the linker said

    def test_loops_that_do_not_end(self) -> None:
        self.assertEqual(self.kinds("host"), {"hang"})
        self.assertIn("error", self.kinds("endless"))
        self.assertRegex(said(self.found["endless"]), "no block has started or finished for 1000 ms")

    def test_programs_that_end_early(self) -> None:
        self.assertEqual(self.kinds("exit"), {"report"})
        self.assertIn("before it had written its report", said(self.found["exit"]))
        self.assertEqual(self.kinds("abort"), {"crash"})
        self.assertIn("SIGABRT", said(self.found["abort"]))

    def test_right_but_for_too_much(self) -> None:
        self.assertTrue(self.kinds("lazy") & {"shared_race", "goal"})


class Commands(unittest.TestCase):
    """The verbs, in a folder of the reader's own."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        # Everything as in the repository but for my/, which is empty.
        for entry in ROOT.iterdir():
            if entry.name not in ("my", ".git", "build"):
                (self.root / entry.name).symlink_to(entry)
        self.mine = self.root / "my/02_shared_reduction/1_finish_the_tree" / SOURCE

    def call(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(self.command(*words), capture_output=True, text=True, check=False, timeout=300)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def command(self, *words: str) -> list[str]:
        return [
            sys.executable, "-u", str(ROOT / "common/classroom/exercise.py"), "--root", str(self.root), "--build",
            str(BUILD), *words,
        ]

    def solve(self) -> None:
        self.mine.write_text(Teacher.EXERCISE.solution())

    def test_from_start_to_solved(self) -> None:
        self.assertIn("02.1", self.call("list"))
        text = self.call("start", "02.1")
        self.assertIn("Copied to my/02_shared_reduction/1_finish_the_tree/kernels.cuh", text)
        self.assertIn("./worklog exercise check 02.1", text)
        self.assertEqual(self.mine.read_text(), Teacher.EXERCISE.skeleton.read_text())

        self.assertIn("Not solved yet", self.call("check", "02.1", code=1))
        first, second = self.call("hint", "02.1"), self.call("hint", "02.1")
        self.assertIn("hint 1 of 3", first)
        self.assertIn("hint 2 of 3", second)
        self.call("hint", "02.1")
        self.assertIn("That was the last hint", self.call("hint", "02.1"))
        self.assertRegex(self.call("solution", "02.1"), r"(?m)^\+ .*scratch\[threadIdx.x \+ stride\]")

        self.mine.write_text("mine")
        self.assertIn("stays as it is", self.call("start", "02.1"))
        self.assertEqual(self.mine.read_text(), "mine")

        self.solve()
        text = self.call("check", "02.1")
        self.assertIn("Solved.", text)
        self.assertIn("barriers for each row: 20 (at most 20 wanted)", text)
        self.assertRegex(self.call("list"), r"02\.1 .* solved")
        self.assertIn("letter by letter", self.call("solution", "02"))  # of the one at hand, not of the next
        self.assertIn("02.2 ", self.call("start", "02"))
        self.assertIn("02.2 ", self.call("hint", "02"))

    def test_check_says_what_grade_would_refuse(self) -> None:
        self.call("start", "2.1")
        self.mine.write_text(
            Teacher.EXERCISE.solution().replace("  if (p.rows == 0) return;", "  std::system(nullptr);")
            .replace("#pragma once", "#pragma once\n#include <cstdlib>")
        )
        text = self.call("check", "2.1", code=1)
        self.assertRegex(text, r"\./worklog grade would refuse it, and not run it\.\n(.*\n)* +line \d+: .*system")
        hidden = "  namespace s = std;\n  s::system(nullptr);"  # from who reads the text
        self.mine.write_text(Teacher.EXERCISE.solution().replace("  if (p.rows == 0) return;", hidden))
        text = self.call("check", "2.1", code=1)
        self.assertRegex(text, r"\./worklog grade would refuse it, and not run it\.\n(.*\n)* +.*needs system, which")
        self.assertIn("Not solved yet.", text)

    def test_a_reader_who_stops_reading_ends_it_without_a_traceback(self) -> None:
        command = self.command("list")
        for words in (command, [word for word in command if word != "-u"]):  # line by line, and all at the end
            reader, writer = os.pipe()
            os.close(reader)
            done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
            os.close(writer)
            self.assertEqual((done.returncode, done.stderr), (128 + signal.SIGPIPE, ""))

    def test_watch_checks_whenever_the_file_is_saved(self) -> None:
        self.call("start", "02.1")
        with subprocess.Popen(
            self.command("watch", "02.1"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            self.addCleanup(process.kill)

            def read_to(words: str) -> str:
                text = ""
                assert process.stdout is not None
                while words not in text:
                    line = process.stdout.readline()
                    self.assertTrue(line, text)
                    text += line
                return text

            self.assertIn("Not solved yet", read_to("to be saved"))
            self.solve()
            self.assertIn("Solved.", read_to("to be saved"))
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(timeout=20), 130)

    def test_ctrl_c_ends_the_program_that_runs(self) -> None:
        self.call("start", "02.1")
        self.mine.write_text(
            Teacher.EXERCISE.solution().replace(
                "if (p.rows == 0) return;", "for (volatile int spin = 1; spin; spin = 1) {\n  }"
            )
        )
        with subprocess.Popen(
            self.command("check", "02.1"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            self.addCleanup(process.kill)
            program = str(BUILD / "exercises/02.1")
            until = time.monotonic() + 60
            while not running(program) and time.monotonic() < until:
                time.sleep(0.1)
            self.assertTrue(running(program))
            process.send_signal(signal.SIGINT)
            # The counted build beside it may still be compiling, which a signal to one process alone does not end.
            self.assertEqual(process.wait(timeout=60), 130)
            until = time.monotonic() + 10  # it has been told to end; a busy machine takes its time
            while running(program) and time.monotonic() < until:
                time.sleep(0.1)
            self.assertFalse(running(program))

    def test_requests_that_cannot_be_met(self) -> None:
        for words, sentence in (
            (("check", "99"), "there is no exercise '99'; there are: "), (("check",), "check needs an exercise"),
            (("dance", "02"), "there is no 'dance'; there are list, start"),
            (("check", "02.1"), "there is no my/02_shared_reduction/.* yet"),
            (("hint", "02.9"), "there is no exercise '02.9'"),
        ):
            text = self.call(*words, code=2)
            self.assertRegex(text, f"^worklog exercise: {sentence}")
            self.assertEqual(text.count("\n"), 1, text)


def running(program: str) -> bool:
    """Whether a process runs a program that lies under this path."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and os.readlink(folder / "exe").startswith(program):
                return True
    return False


class Speed(unittest.TestCase):
    """On a GPU: what is made of the times that two programs write."""

    def share(self, mine: float, theirs: float, dtype: str = "fp32") -> tuple[float | None, judging.Problem | None]:
        def times(program: Path, *_: object, **__: object) -> judging.Run:
            seconds = theirs if program.name == "02_shared_reduction" else mine
            # A stage has types that an exercise has not: bf16 moves half the bytes, and is no measure for fp32.
            of_stage = {"fp32": seconds, "bf16": seconds / 2}
            dtypes = of_stage if program.name == "02_shared_reduction" else {dtype: seconds}
            case, end = f"{program.name}/two_pass/layernorm_forward", "65536x1024/cold/iterations:1/manual_time"
            entries = [{"name": f"{case}/{of}/{end}", "median_seconds": taken} for of, taken in dtypes.items()]
            return judging.Run(0, None, False, "", {"benchmarks": entries}, 1.0)

        with mock.patch.object(judging, "run", times):
            return judging.judge_speed(Teacher.EXERCISE, Path("02.1"), Path("02_shared_reduction"), Path("work"))

    def test_share_of_the_stage(self) -> None:
        share, problem = self.share(100e-6, 95e-6)
        self.assertAlmostEqual(share or 0, 0.95)
        self.assertIsNone(problem)
        share, problem = self.share(200e-6, 100e-6)
        self.assertAlmostEqual(share or 0, 0.5)
        self.assertRegex(
            problem.text if problem else "",
            "200 µs, where two_pass of stage 02 takes 100 µs: 50% of its speed, and 90% is wanted",
        )

    def test_only_the_same_work_is_compared(self) -> None:
        share, problem = self.share(100e-6, 95e-6, "fp16")
        self.assertIsNone(share)
        self.assertRegex(problem.text if problem else "", "times no layernorm_forward fp16 65536 1024")


class Drawing(unittest.TestCase):
    """The second shape that is counted, and the bounds there."""

    def test_a_seed_draws_one_shape_and_others_draw_others(self) -> None:
        for each in LADDER:
            assert each.counted is not None and each.drawn is not None
            drawn = {each.counted_flags(seed) for seed in range(20)}
            self.assertGreater(len(drawn), 10, each.id)
            self.assertEqual(each.counted_flags(7), each.counted_flags(7))
            known = re.search(r"(\d+)x(\d+)", each.counted)
            assert known is not None
            for flags in drawn:
                shapes = re.findall(r"(\d+)x(\d+)", flags)
                self.assertEqual(shapes[0], known.groups(), flags)
                rows, cols = map(int, shapes[1])
                self.assertNotEqual(rows, int(known[1]))
                self.assertNotEqual(cols, int(known[2]))
                for side, value in (("rows", rows), ("cols", cols)):
                    first, last, step = each.drawn[side]
                    self.assertIn(value, range(first, last + 1, step))
                self.assertEqual(flags.replace(f",{rows}x{cols}", ""), each.counted)

    def test_bounds_are_formulas(self) -> None:
        for bound, figure in ((3, 3), ("rows", 8), ("5 * (cols / 128 + 1)", 45), ("(rows + 255) // 256 - 1", 0)):
            self.assertEqual(exercises.figure_of(bound, 8, 1024), figure)
        for bound in ("min(rows, 2)", "rows +", "x", "__import__('os')", "'a' * 3", "rows ** 9"):
            with self.assertRaises(ValueError):
                exercises.figure_of(bound, 8, 1024)

    def test_a_goal_is_told_where_it_is_missed(self) -> None:
        each = Teacher.EXERCISE
        kernel = {"grid": [8, 1, 1], "block": [256, 1, 1], "memory": [], "most_loads_of_thread": 30, "counts": {}}
        entries = [{"rows": rows, "cols": cols, "kernels": [kernel]} for rows, cols in ((8, 1024), (9, 520))]
        found = judging.judge_goals(each, entries, each.solution())
        busiest = next(result for result in found if result.goal.count == "loads_of_busiest_thread")
        self.assertFalse(busiest.met)
        self.assertRegex(busiest.text(), r"most of them at 9 x 520: 30 \(at most 25\.3125 wanted\)")

    def test_doubles_are_counted_in_the_source(self) -> None:
        for text, count in (("float a = 1.0f;", 0), ("double a = 1.0;", 2), ("a = .5e3 + 1e-5; // double 1.0", 2),
                            ("a = 1 + 0x10 + 1.5F + 2.0f;", 0), ("static_cast<double>(x)", 1),
                            ("double_t a = 0x1p-3 + 1.0L + 0x1.8p0f;", 3)):
            self.assertEqual(judging.doubles_in(text), count, text)


class Loading(unittest.TestCase):
    def test_a_wrong_exercise_json_is_named(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            folder = root / "02_x/exercise/1_y"
            folder.mkdir(parents=True)
            data = json.loads((Teacher.EXERCISE.folder / "exercise.json").read_text())
            wrong_goal = {"count": "blocks", "at_most": "max(rows, 1)", "because": ""}
            for change, sentence in (
                ({"goals": [wrong_goal]}, r"'max\(rows, 1\)' is no formula of rows and cols"),
                ({"drawn": {"rows": [1, 2, 1]}}, "'drawn' has rows and cols"),
                ({"title": 1}, "'title' is missing, or not of its type"),
                ({"color": "red"}, "unknown keys: color"),
                ({"reason": {}}, "'reason' belongs"),
            ):
                (folder / "exercise.json").write_text(json.dumps(data | change))
                with self.assertRaisesRegex(ExerciseError, sentence):
                    exercises.all_exercises(root)


if __name__ == "__main__":
    unittest.main()
