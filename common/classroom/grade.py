#!/usr/bin/env python3
"""./worklog grade: grades a folder of submissions.

    ./worklog grade FOLDER                       every exercise that is found, of every student
    ./worklog grade FOLDER --exercise 02.1       one of them
    ./worklog grade FOLDER --jobs 8 --timeout 30 --memory 2048
    ./worklog grade FOLDER --time                and on this machine's GPU, one by one, the times of what is solved

A submission is one kernels.cuh. It lies in FOLDER/STUDENT/ under the path that it has in my/, such as
02_shared_reduction/1_finish_the_tree/kernels.cuh; where one exercise is named, FOLDER/STUDENT/kernels.cuh will do.

Next to FOLDER, in FOLDER-graded (or --out): grades.csv, a report for each student, and what was found, by which the
same command goes on where it was stopped. The exit code is 0 where all were graded, 1 where some could not be, 2 where
the request cannot be met, and 130 where it was stopped.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import os
import platform
import queue
import re
import secrets
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
from checked_assembly import AssemblyError, checks_assembly, rewritten
from exercises import ROOT, SOURCE, Exercise, ExerciseError, all_exercises, find
from isolation import MEBIBYTE, MOST_SLOTS, Cancelled, Limits, Outcome, Sandbox
from judging import (
    ACCEPTED, BLOCK_SECONDS, SAME_EVERYWHERE, compare_times, judge_goals, last_lines, problems_of_checks, run,
    same_code, signal_name, timings_of, with_order,
)
from not_on_cpu import explained
from objects import ObjectVetting
from regions import RegionError
from toolchain import Recipe, Toolchain, libraries_of, linked, replaced
from vetting import MOST_BYTES, Vetting

WRAPPED = (
    "_ZN4simt6detail6launchERK18cudaLaunchConfig_tNS0_4CallE",
    "_Z10cudaMemcpyPvPKvm14cudaMemcpyKind",
    "_Z15cudaMemcpyAsyncPvPKvm14cudaMemcpyKindP11CUstream_st",
    "_Z12cudaMemcpy2DPvmPKvmmm14cudaMemcpyKind",
    "_Z17cudaMemcpy2DAsyncPvmPKvmmm14cudaMemcpyKindP11CUstream_st",
    "_Z10cudaMemsetPvim",
    "_Z15cudaMemsetAsyncPvimP11CUstream_st",
    "_Z15cudaGraphLaunchP14CUgraphExec_stP11CUstream_st",
)
WRAPS = [f"-Wl,--wrap={symbol}" for symbol in WRAPPED]
# What the object of a submission calls in place of these: functions of guard.cpp, which look at what is written to.
GUARDED = {
    "_Znwm": "guarded_new", "_Znam": "guarded_new_array", "_ZdlPv": "guarded_delete", "_ZdaPv": "guarded_delete_array",
    "_ZdlPvm": "guarded_sized_delete", "_ZdaPvm": "guarded_sized_delete_array",
    "__cxa_allocate_exception": "guarded_allocate_exception", "memcpy": "guarded_memcpy",
    "memmove": "guarded_memmove", "memset": "guarded_memset", "mmap": "guarded_mmap", "munmap": "guarded_munmap",
    "mprotect": "guarded_mprotect", "__cxa_throw": "guarded_throw",
    "_ZSt17__throw_bad_allocv": "guarded_throw_bad_alloc",
    "_ZSt28__throw_bad_array_new_lengthv": "guarded_throw_array_length",
    "_ZSt25__throw_bad_function_callv": "guarded_throw_function_call",
    "_ZSt19__throw_logic_errorPKc": "guarded_throw_text", "_ZSt20__throw_length_errorPKc": "guarded_throw_length",
    "_ZSt24__throw_invalid_argumentPKc": "guarded_throw_invalid",
    "_ZSt20__throw_out_of_rangePKc": "guarded_throw_range",
    "_ZSt24__throw_out_of_range_fmtPKcz": "guarded_throw_range_of",
    "_Z21cudaStreamSynchronizeP11CUstream_st": "guarded_synchronize",
    "sincos": "guarded_sincos", "sincosf": "guarded_sincosf", "sincosl": "guarded_sincosl",
    "_Z13cudaGetDevicePi": "guarded_get_device",
    "_Z22cudaDeviceGetAttributePi14cudaDeviceAttri": "guarded_get_attribute",
    "_Z21cudaFuncGetAttributesP18cudaFuncAttributesPKv": "guarded_get_function",
    "_Z45cudaOccupancyMaxActiveBlocksPerMultiprocessorPiPKvim": "guarded_blocks",
    "_Z30cudaOccupancyMaxActiveClustersPiPKvPK18cudaLaunchConfig_t": "guarded_clusters",
    "_ZN4simt6detail10copy_laterEPvPKvmmNS0_4SiteE": "guarded_copy_later",
    "_ZN4simt6detail11map_to_rankEPKvjPKcNS0_4SiteE": "guarded_map_to_rank",
}
COUNTER_RESERVES = 1 << 43  # bytes of addresses, not of memory
MOST_ASSEMBLY = 32 * MEBIBYTE  # that of a kernel has one or two
TOUCHED_BY_HOST, CANNOT_FILTER, NOT_ITS_OWN = 86, 87, 88  # exit codes of submission.cpp, confine.cpp, guard.cpp
MOST_THREADS = 8  # of a run: each takes addresses for the stacks of a block, and others run at the same time
MOST_ENTRIES, MOST_DEPTH = 5000, 24  # of a student's folder, that are looked at
NOT_REACHED = "the program ended before it came to this"  # as judge.cpp says it
POINTS = {"results": 60, "findings": 15, "counts": 25}
BONUS = 10  # for the speed on a GPU
COLUMNS = (
    "student", "exercise", "verdict", "points", "of", "results_points", "findings_points", "counts_points", "bonus",
    "share_of_speed", "results_right", "results", "findings", "goals_met", "goals", "reason", "seconds",
    "source_sha256",
)
MEANINGS = {
    "solved": "every result is right, nothing was found, every goal is met",
    "right": "every result is right; something was found, or a goal was missed",
    "partly right": "some results are right",
    "wrong": "no result is right",
    "not begun": "it is the skeleton",
    "not found": "there is no file where an exercise's has to lie",
    "refused": "it holds what a kernel has no need of, and was not run",
    "does not compile": "the compiler or the linker refused it",
    "does not end": "it ran into the time limit",
    "stopped": "it took too much memory, or printed too much",
    "crashed": "it was ended by a signal, or for what it was about to do",
    "ended early": "it ended before its results were there",
    "not by a kernel": "the results were not made by a kernel",
    "not graded": "the grader itself failed here; the same command tries it again",
}

Json = dict[str, Any]
Times = dict[tuple[Any, ...], float]  # seconds, by operation, type, rows and columns


# --- Submissions -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Submission:
    student: str
    exercise: Exercise
    path: Path


@dataclass
class Grade:
    """What was found of one submission."""

    student: str
    exercise: str
    title: str
    key: str  # of all that it depends on
    sha256: str
    verdict: str = "wrong"
    right: int = 0  # results
    results: int = 0
    counted: bool = False
    findings: int = 0
    goals_met: int = 0
    goals: int = 0
    reached: list[str] = field(default_factory=list)  # the goals that are met, by what they count
    is_given: bool = False  # all that is right about it is so of the skeleton
    problems: list[Json] = field(default_factory=list)  # kind, text
    goal_lines: list[str] = field(default_factory=list)
    warnings: str = ""
    printed: str = ""  # the end of what it printed
    share: float | None = None  # on a GPU: of the speed of the stage's variant
    bonus: float = 0
    points: dict[str, float] = field(default_factory=dict)
    seconds: float = 0

    @property
    def total(self) -> float:
        return round(sum(self.points.values()) + self.bonus, 1)


@dataclass(frozen=True)
class Missing:
    """A student of whom nothing can be graded, or a file that no exercise looks for."""

    student: str
    reason: str


def submissions(folder: Path, chosen: Sequence[Exercise], single: bool) -> Iterator[Submission | Missing]:
    """Every submission below a folder, by student and exercise, and what lies where none can be."""
    places = {each.mine.relative_to(ROOT / "my"): each for each in all_exercises()}
    for student in sorted(path for path in folder.iterdir() if not path.name.startswith(".")):
        if student.is_symlink():
            yield Missing(student.name, "this is a link, which is not followed")
            continue
        if not student.is_dir():
            yield Missing(student.name, "this is a file, where a folder for each student is expected")
            continue
        taken: set[Path] = set()
        for exercise in chosen:
            inside = exercise.mine.relative_to(ROOT / "my")
            candidates = [student / inside, student / "my" / inside, *([student / SOURCE] if single else [])]
            if found := next((path for path in candidates if os.path.lexists(path)), None):
                taken.add(found)
                if link := link_above(found, student):
                    yield Missing(student.name, f"{link.relative_to(student)} is a link, which is not followed")
                else:
                    yield Submission(student.name, exercise, found)
        sources, complaint = sources_in(student)
        elsewhere = []
        for path in sources:
            inside = path.relative_to(student)
            inside = inside.relative_to("my") if inside.parts[0] == "my" else inside
            if path not in taken and inside not in places:
                elsewhere.append(path)
        example = next(iter(places)) if not single else chosen[0].mine.relative_to(ROOT / "my")
        for path in elsewhere[:5]:
            yield Missing(
                student.name,
                f"{path.relative_to(student)} lies where no exercise looks; a place would be {student.name}/{example}",
            )
        if len(elsewhere) > 5:
            yield Missing(student.name, f"{len(elsewhere) - 5} more files lie where no exercise looks")
        if complaint:
            yield Missing(student.name, complaint)
        elif not taken and not elsewhere and single:
            yield Missing(student.name, f"there is no {example}")
        elif not sources and not taken:
            yield Missing(student.name, f"there is no file of an exercise, such as {example}")


def link_above(path: Path, student: Path) -> Path | None:
    """Of the folders of a student's that a file lies in, one that is a link: it could lead to another's."""
    below = [each for each in path.parents if each != student and each.is_relative_to(student)]
    return next((each for each in below if each.is_symlink()), None)


def sources_in(student: Path) -> tuple[list[Path], str]:
    """Files of a student's that look like a submission; and, in a sentence, why not all have been looked at."""
    found: list[Path] = []
    waiting = [(student, 0)]
    entries, complaint = 0, ""
    while waiting:
        folder, depth = waiting.pop()
        try:
            with os.scandir(folder) as inside:
                for entry in inside:
                    entries += 1
                    if entries > MOST_ENTRIES:
                        return sorted(found), f"there are more than {MOST_ENTRIES} files, and not all were looked at"
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name.startswith("."):
                            continue
                        if depth < MOST_DEPTH:
                            waiting.append((Path(entry.path), depth + 1))
                        else:
                            complaint = f"the folders lie more than {MOST_DEPTH} deep in each other"
                    elif entry.name != "main.cu" and entry.name.lower().endswith((".cuh", ".cu")):
                        found.append(Path(entry.path))
        except OSError as error:
            complaint = f"{folder.name} cannot be read: {error.strerror}"
    return sorted(found), complaint


def read_untrusted(path: Path, most: int) -> bytes:
    """A file that others have made: no link, no device, not too long. Raises ValueError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{path.name} is no file")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            data = file.read(most + 1)
    finally:
        os.close(descriptor)
    if len(data) > most:
        raise ValueError(f"{path.name} has more than {most} bytes")
    return data


# --- What is the same for all submissions of an exercise --------------------------------------------------------------
class Examination:
    """An exercise made ready: the judge's program, the tasks, the vetting."""

    def __init__(self, exercise: Exercise, grader: Grader, folder: Path) -> None:
        self.exercise = exercise
        self.grader = grader
        self.folder = folder
        folder.mkdir()
        folder.chmod(0o755)
        self.runs = [f"{flags} --check-only" for flags in exercise.checks]
        counted = exercise.counted is not None and grader.counts
        self.counted_run = f"{exercise.counted_flags(grader.seed)} --input normal" if counted else None
        self.main = f'#line 1 "{exercise.main.relative_to(ROOT)}"\n' + exercise.main.read_text(encoding="utf-8")
        self.vetting = Vetting(exercise, replaced(grader.recipe.compile, "x", "x")[:-4]) if grader.vets else None
        self.object_vetting: ObjectVetting | None = None
        # The judge's program has the skeleton's kernels, which never run: it needs the names of the variants alone. It
        # is compiled as a submission is, which shows that this can be done here.
        skeleton = exercise.skeleton.read_bytes()
        built = grader.build(self, skeleton, 0, folder / "judge", grader.counts, grader.judge_parts)
        if built.program is None:
            raise ExerciseError(f"the judge of {exercise.id} cannot be built here:\n{built.said}")
        self.judge = built.program
        if grader.vets:
            others = [*libraries_of(grader.recipe), *map(Path, grader.submission_parts)]
            baseline = (folder / "judge/main.o").read_bytes()
            self.object_vetting = ObjectVetting(baseline, others, keeps_its_own=grader.counts and checks_assembly())
        self.of_skeleton: Grade | None = None
        self.one_at_a_time = threading.Lock()
        self.tasks: list[Path] = []
        for number, flags in enumerate([*self.runs, *([self.counted_run] if self.counted_run else [])]):
            tasks = folder / f"tasks-{number}"
            self.call_judge("prepare", tasks, flags)
            self.tasks.append(tasks)

    def call_judge(self, verb: str, path: Path, flags: str, report: Path | None = None) -> Json:
        command = [str(self.judge), verb, str(path), *shlex.split(flags), "--seed", str(self.grader.seed)]
        command += ["--json", str(report)] if report else []
        done = subprocess.run(
            command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", timeout=600, start_new_session=True, check=False,
        )
        if done.returncode not in (0, 1) or (report and not report.is_file()):
            raise ExerciseError(f"the judge of {self.exercise.id} failed with {flags}:\n{done.stdout}")
        if report is None:
            return {}
        document = json.loads(report.read_text(encoding="utf-8"))
        report.unlink()
        return document


@dataclass(frozen=True)
class Build:
    program: Path | None
    said: str
    refused: tuple[str, ...] = ()  # why what was compiled is not run


# --- The grader -------------------------------------------------------------------------------------------------------
class Grader:
    def __init__(
        self, toolchain: Toolchain, sandbox: Sandbox, work: Path, out: Path, seed: int, timeout: int, memory: int,
        vets: bool = True,
    ) -> None:
        """`timeout`: seconds of processor time of a run; `memory`: bytes. The toolchain's parts are made."""
        self.toolchain, self.sandbox, self.work, self.out = toolchain, sandbox, work, out
        self.seed, self.vets = seed, vets
        # One program for all: what is judged is what was counted, and where nothing was counted there is no result.
        self.counts = toolchain.can_count
        self.recipe = toolchain.recipe(self.counts)
        self.guarded = toolchain.guarded(self.recipe) if vets and self.counts else None  # a submission's own code
        # A machine that is busy with other submissions lets each wait: the time on the clock is only for what sleeps.
        self.compile_limits = Limits(timeout + 20, 4 * (timeout + 20), max(memory, 1024 * MEBIBYTE), processes=32)
        self.run_limits = Limits(timeout, 4 * timeout, memory)
        self.submission_parts = self.parts("grading_submission")
        self.judge_parts = self.parts("grading_judge")
        begin, end = self.parts("grading_bounds")
        self.bounds = (begin, end)
        self.ours = self.linked_together() if vets and self.counts else None
        self.fingerprint = hashlib.sha256()
        for path in sorted((ROOT / "common/classroom").glob("*.*")):
            if path.suffix in (".py", ".cpp", ".h", ".txt") and path.name != "exercise.py":
                self.fingerprint.update(path.read_bytes())
        self.fingerprint.update(f"{seed} {timeout} {memory} {vets}".encode())
        self.examinations: dict[str, Examination] = {}
        self.unprepared: dict[str, str] = {}  # exercises: why

    def linked_together(self) -> Path:
        """One object of all that is ours in a submission's program. It stands in front of the submission's, so that
        what both hold (functions of headers) is taken from ours."""
        objects = [str(path) for path in libraries_of(self.recipe) if path.suffix in (".o", ".a")]
        target = self.work / "ours.o"
        command = [self.recipe.link[0], "-r", "-nostdlib", "-o", str(target), *self.submission_parts, *objects, *WRAPS]
        done = subprocess.run(command, cwd=self.recipe.folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ExerciseError(f"the parts of the grader cannot be linked together:\n{done.stderr[-2000:]}")
        return target

    def parts(self, target: str) -> list[str]:
        found = sorted((self.toolchain.build / f"common/classroom/CMakeFiles/{target}.dir").glob("*.o"))
        if not found:
            raise ExerciseError(f"{self.toolchain.build} holds no {target}")
        return [str(path) for path in found]

    def prepare(self, chosen: Sequence[Exercise]) -> None:
        """An exercise that cannot be prepared is no submission's fault, and does not end the others' grading."""
        for exercise in chosen:
            try:
                self.examinations[exercise.id] = Examination(exercise, self, self.work / exercise.id)
            except ExerciseError as error:
                self.unprepared[exercise.id] = str(error)

    def key_of(self, exercise: Exercise, source: bytes) -> str:
        key = self.fingerprint.copy()
        for path in (exercise.main, exercise.skeleton, exercise.folder / "exercise.json"):
            key.update(path.read_bytes())
        key.update(source)
        return key.hexdigest()[:24]

    # --- Building and running, in the sandbox ---
    def compile(
        self, main: str, source: bytes, slot: int, folder: Path, recipe: Recipe, guarded: bool = False
    ) -> tuple[bytes | None, str]:
        """What the compiler makes of this source and an exercise's main.cu, or none; and what it said. `folder` is
        made. It is an object; with `guarded`, on x86-64, assembly that is to be checked."""
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        inputs, made = folder / "source", folder / "made"
        for each in (inputs, made):
            each.mkdir()
            each.chmod(0o755)
        (inputs / SOURCE).write_bytes(source)
        (inputs / "main.cu").write_text(main, encoding="utf-8")
        self.sandbox.give(made, slot)
        to_assembly = guarded and checks_assembly()
        unit = made / ("main.s" if to_assembly else "main.o")
        command = replaced(recipe.compile, str(unit), str(inputs / "main.cu"))
        command[1:1] = [f"-I{inputs}"]
        readable = toolkit_of(recipe.compile[0])
        if "nvcc" in Path(command[0]).name:
            host = host_compiler_of(command) or shutil.which("g++")
            if host is not None:
                # nvcc would look for it in a PATH that the sandbox does not have.
                command[1:1] = [] if host_compiler_of(command) else ["-ccbin", host]
                readable = [*readable, *toolkit_of(host)]
        if "nvcc" not in Path(command[0]).name:
            command = ["-Wno-tsan" if word == "-w" else word for word in command]
            if to_assembly:
                command.append("-S")
            command += [
                f"-ffile-prefix-map={inputs}=.", "-fmax-errors=3", "-fdiagnostics-color=never",
                "-ftemplate-depth=256", "-fconstexpr-ops-limit=5000000",
            ]
        for option, path in zip(command, command[1:]):  # headers that are compiled already
            if option == "-include" and Path(path).is_absolute():
                readable = [*readable, Path(path).parent]
        # The stages are there to be included by later ones; no folder above them is.
        readable = [inputs, ROOT / "common", *sorted(ROOT.glob("[0-9][0-9]_*")), *readable]
        against, said = self.call_compiler(command, slot, inputs, readable, made, folder / "compiler.txt")
        if against:
            return None, explained(against, source.decode(errors="replace"), SOURCE)
        try:
            return read_untrusted(unit, MOST_ASSEMBLY if to_assembly else 256 * MEBIBYTE), said
        except ValueError as error:
            return None, str(error)

    def call_compiler(
        self, command: Sequence[str], slot: int, inputs: Path, readable: Sequence[Path], made: Path, output: Path
    ) -> tuple[str, str]:
        """What is wrong, or nothing; and what the compiler said."""
        done = self.sandbox.run(command, slot, self.compile_limits, inputs, readable, [made], output=output)
        said = plain(done.output.replace(f"{inputs}/", "")).strip()
        if done.stopped_for:
            return f"the compiler was stopped: too much {done.stopped_for}", said
        if done.timed_out:
            return f"the compiler had not ended after {done.seconds:.0f} s", said
        if done.code != 0:
            ended_by = f"the compiler was ended by {signal_name(done.signal)}" if done.signal else ""
            return said or ended_by or "the compiler has failed", said
        return "", said

    def assemble(self, assembly: bytes | str, slot: int, folder: Path) -> bytes:
        """The object of assembly that the compiler has written. `folder` is made. Raises ValueError."""
        folder.mkdir()
        folder.chmod(0o755)
        source, made = folder / "main.s", folder / "made"
        made.mkdir()
        made.chmod(0o755)
        source.write_bytes(assembly.encode() if isinstance(assembly, str) else assembly)
        self.sandbox.give(made, slot)
        command = [self.recipe.compile[0], "-c", str(source), "-o", str(made / "main.o")]
        readable = [folder, *toolkit_of(self.recipe.compile[0])]
        against, _ = self.call_compiler(command, slot, folder, readable, made, folder.with_suffix(".txt"))
        if against:
            raise ValueError(against)
        return read_untrusted(made / "main.o", 256 * MEBIBYTE)

    def link(
        self, recipe: Recipe, unit: Path, program: Path, before: Sequence[str], after: Sequence[str], source: bytes
    ) -> str:
        """Of files of the grader's only. What the linker says against it, or nothing."""
        link = linked(recipe.link, str(unit), str(program))
        if self.ours and str(self.ours) in before:
            link = [word for word in link if not word.endswith(".o") or word == str(unit)]
        at = link.index(str(unit))
        link[at : at + 1] = [*before, str(unit), *after]
        done = subprocess.run(
            link, cwd=recipe.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", timeout=120, check=False,
        )
        if done.returncode != 0:
            return explained(plain(done.stdout[-3000:]), source.decode(errors="replace"), SOURCE) or "it is not linked"
        program.chmod(0o755)
        return ""

    def build(
        self, examination: Examination, source: bytes, slot: int, folder: Path, counting: bool, parts: Sequence[str]
    ) -> Build:
        """A program of this source and the exercise's main.cu, in `folder`, which is made."""
        is_submission = parts == self.submission_parts
        guarded = is_submission and counting and self.vets
        recipe = self.recipe if counting == self.counts else self.toolchain.recipe(counting)
        compiled = self.guarded if guarded and self.guarded else recipe
        data, said = self.compile(examination.main, source, slot, folder, compiled, guarded=guarded)
        if data is None:
            return Build(None, said)
        assembly = data if guarded and checks_assembly() else None
        try:
            data = data if assembly is None else self.assemble(assembly, slot, folder / "as-it-is")
            if examination.object_vetting and (reasons := examination.object_vetting.reasons(data)):
                return Build(None, said, tuple(reasons))
            if assembly is not None:
                data = self.assemble(rewritten(assembly.decode(), GUARDED), slot, folder / "checked")
        except AssemblyError as error:
            return Build(None, said, (f"the compiled code has {error}",))
        except ValueError as error:
            return Build(None, str(error))
        own, program = folder / "main.o", folder / "program"
        own.write_bytes(data)
        before, after = parts, ()
        if guarded:
            renames = [f"--redefine-sym={name}={other}" for name, other in GUARDED.items()]
            subprocess.run(["objcopy", *renames, str(own)], check=True, capture_output=True)
            before = (str(self.ours), self.bounds[0])
            after = (self.bounds[1], *WRAPS)
        elif is_submission:
            after = (*self.bounds, *WRAPS)
        against = self.link(recipe, own, program, before, after, source)
        return Build(None, against) if against else Build(program, said)

    def run(
        self, program: Path, tasks: Path, slot: int, folder: Path, counts: bool, in_reverse: bool = False
    ) -> tuple[Outcome, Path, list[Json]]:
        """Runs a submission's program on tasks: how it ended, the file of its outcomes, what was counted."""
        folder.mkdir()
        folder.chmod(0o755)
        box = folder / "box"
        box.mkdir()
        box.chmod(0o755)
        files = [box / "outcomes", *([box / "counts"] if counts else [])]
        for file in files:
            file.touch()
            self.sandbox.give(file, slot)
        self.sandbox.give(box, slot)
        limits = self.run_limits
        limits = Limits(
            limits.cpu_seconds, limits.wall_seconds, limits.memory_bytes,
            reserved_bytes=COUNTER_RESERVES if counts else 0, file_bytes=2 * tasks.stat().st_size + 64 * MEBIBYTE,
        )
        done = self.sandbox.run(
            [str(program), str(tasks), *map(str, files)], slot, limits, box, [program, tasks], files,
            output=folder / "printed.txt",
            environment={
                "WORKLOG_SIMT_BLOCK_LIMIT_MS": str(1000 * BLOCK_SECONDS),
                "WORKLOG_MEMORY_BYTES": str(limits.memory_bytes),
                "WORKLOG_SIMT_THREADS": str(min(os.cpu_count() or 1, MOST_THREADS)),
                "WORKLOG_GUARDED": str(int(self.vets)), **SAME_EVERYWHERE,
                **({"WORKLOG_SIMT_ORDER": "reverse"} if in_reverse else {}),
            },
        )
        if done.code == CANNOT_FILTER:
            raise ExerciseError("this machine's kernel filters no system calls (seccomp), and so nothing is run on it")
        trusted = folder / "outcomes"
        try:
            trusted.write_bytes(read_untrusted(files[0], limits.file_bytes))
        except ValueError:
            trusted.write_bytes(b"")
        entries: list[Json] = []
        if counts:
            try:
                for line in read_untrusted(files[1], 64 * MEBIBYTE).splitlines():
                    entries.append(json.loads(line))
            except (ValueError, RecursionError):
                pass  # the rest is missing
        return done, trusted, entries

    # --- One submission ---
    def grade(self, submission: Submission, slot: int) -> Grade:
        begun = time.monotonic()
        exercise = submission.exercise
        if exercise.id in self.unprepared:
            raise ExerciseError(self.unprepared[exercise.id])
        examination = self.examinations[exercise.id]
        try:
            source = read_untrusted(submission.path, MOST_BYTES)
        except ValueError as error:
            grade = Grade(
                submission.student, exercise.id, exercise.title, "", "", "refused",
                problems=[{"kind": "refused", "text": str(error)}],
            )
            return finished(grade, begun)
        grade = Grade(
            submission.student, exercise.id, exercise.title, self.key_of(exercise, source),
            hashlib.sha256(source).hexdigest(),
        )
        folder = self.work / f"slot-{slot}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        folder.chmod(0o755)
        try:
            if not self.is_refused(examination, source, folder, grade):
                self.examine(examination, source, slot, folder, grade)
                self.compare_with_skeleton(examination, slot, folder, grade)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return finished(grade, begun)

    def is_refused(self, examination: Examination, source: bytes, folder: Path, grade: Grade) -> bool:
        """By its text; or it is the skeleton still."""
        copy = folder / SOURCE
        copy.write_bytes(source)
        grade.goals = len(examination.exercise.goals)
        if examination.vetting and (reasons := examination.vetting.reasons(source)):
            grade.verdict = "refused"
            grade.problems = [{"kind": "refused", "text": reason} for reason in reasons]
        elif same_code(copy, examination.exercise.skeleton):  # takes its time where a comment does not end
            grade.verdict = "not begun"
        return grade.verdict in ("refused", "not begun")

    def compare_with_skeleton(self, examination: Examination, slot: int, folder: Path, grade: Grade) -> None:
        """Some skeletons are right already, and slow. What is right about them is nobody's merit."""
        if grade.right == 0 or grade.verdict == "solved":
            return
        exercise = examination.exercise
        with examination.one_at_a_time:
            if examination.of_skeleton is None:
                skeleton = exercise.skeleton.read_bytes()
                given = Grade("", exercise.id, exercise.title, "", "", goals=len(exercise.goals))
                (folder / "skeleton").mkdir()
                (folder / "skeleton").chmod(0o755)
                self.examine(examination, skeleton, slot, folder / "skeleton", given)
                examination.of_skeleton = given
        given = examination.of_skeleton
        if goes_beyond(grade, given):
            return
        grade.is_given = True
        reached = f" and meets {given.goals_met} of {given.goals} goals" if given.reached else ""
        grade.problems.insert(0, {
            "kind": "given",
            "text": f"nothing here goes beyond the skeleton, which has {given.right} of {given.results} results "
            f"right{reached}",
        })

    def examine(self, examination: Examination, source: bytes, slot: int, folder: Path, grade: Grade) -> None:
        built = self.build(examination, source, slot, folder / "built", self.counts, self.submission_parts)
        if built.refused:
            grade.verdict = "refused"
            grade.problems = [{"kind": "refused", "text": reason} for reason in built.refused]
            return
        if built.program is None:
            grade.verdict = "does not compile"
            grade.problems = [{"kind": "compile", "text": built.said}]
            return
        grade.warnings = built.said
        endings = self.check(examination, built.program, slot, folder, grade)
        if not endings and grade.right == grade.results:  # and in reverse order, as `check` does
            endings = self.check(examination, built.program, slot, folder, grade, in_reverse=True)
        if endings:
            of_host = [ending for ending in endings if ending["verdict"] == "not by a kernel"]
            grade.verdict = (of_host or endings)[0]["verdict"]
            grade.right = 0 if of_host else grade.right
            return
        if examination.counted_run:
            self.count(examination, source, built.program, slot, folder, grade)
        if grade.verdict == "not by a kernel":
            grade.right = 0
        elif grade.right < grade.results:
            grade.verdict = "partly right" if grade.right else "wrong"
        else:
            uncounted = any(problem["kind"] == "uncounted" for problem in grade.problems)
            clean = grade.findings == 0 and grade.goals_met == grade.goals and not uncounted
            grade.verdict = "solved" if clean else "right"

    def check(
        self, examination: Examination, program: Path, slot: int, folder: Path, grade: Grade, in_reverse: bool = False
    ) -> list[Json]:
        """Adds to the grade what comes of the runs that are checked. `in_reverse`: blocks, warps and lanes get their
        turns in reverse order, after all was right in the usual one. Returned are the ends that are wrong."""
        endings: list[Json] = []
        for number, plain_flags in enumerate(examination.runs):
            flags = f"{plain_flags} --order reverse" if in_reverse else plain_flags
            if endings and endings[-1]["kind"] == "hang":  # nor would it end with other flags, most likely
                (folder / "nothing").touch()
                report = examination.call_judge("judge", folder / "nothing", plain_flags, folder / "report.json")
                grade.results += 0 if in_reverse else len(report["checks"])
                grade.right -= len(report["checks"]) if in_reverse else 0
                continue
            where = folder / f"run-{number}{'-reverse' * in_reverse}"
            tasks = examination.tasks[number]
            done, outcomes, entries = self.run(program, tasks, slot, where, self.counts, in_reverse)
            grade.printed = plain(done.output) or grade.printed
            checks = examination.call_judge("judge", outcomes, plain_flags, folder / "report.json").get("checks", [])
            right = sum(check["verdict"] in ACCEPTED for check in checks)
            if in_reverse:
                grade.right -= len(checks) - right
            else:
                grade.right += right
                grade.results += len(checks)
            reached = [check for check in checks if check["error"] != NOT_REACHED]
            ending = ending_of(done, flags)
            if self.counts and (text := not_by_a_kernel(checks, entries)):
                ending = {"kind": "uncounted", "verdict": "not by a kernel", "text": f"with {flags} {text}"}
            if not ending and len(reached) < len(checks):
                ending = {
                    "kind": "report",
                    "verdict": "ended early",
                    "text": f"with {flags} the program ended with exit code 0, and {len(checks) - len(reached)} of "
                    f"{len(checks)} results were not there",
                }
            if ending:
                endings.append(ending)
                grade.problems.append(ending)
            if not ending or right:
                grade.problems += [
                    {"kind": problem.kind, "text": plain((with_order(problem) if in_reverse else problem).text)}
                    for problem in problems_of_checks(reached)
                ]
        return endings

    def count(
        self, examination: Examination, source: bytes, program: Path, slot: int, folder: Path, grade: Grade
    ) -> None:
        """What is found in the run that is counted."""
        flags = examination.counted_run or ""
        tasks, where = examination.tasks[-1], folder / "run-counting"
        done, outcomes, entries = self.run(program, tasks, slot, where, True)
        if ending := ending_of(done, f"{flags} --count"):
            grade.problems.append({"kind": "uncounted", "text": ending["text"]})
            return
        checks = examination.call_judge("judge", outcomes, flags, folder / "report.json").get("checks", [])
        try:
            if not entries or len(entries) != len(checks):
                raise ValueError
            self.take_counts(examination.exercise, entries, checks, source.decode(errors="replace"), grade)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError):
            grade.problems.append({
                "kind": "uncounted",
                "text": "the program has written no counts, or none that can be read",
            })

    def take_counts(
        self, exercise: Exercise, entries: list[Json], checks: list[Json], source: str, grade: Grade
    ) -> None:
        texts: list[str] = []
        for entry in entries:
            for kernel in entry["kernels"]:
                for finding in kernel["findings"]:
                    if finding["text"] not in texts:
                        texts.append(finding["text"])
                        grade.problems.append({"kind": str(finding["kind"]), "text": plain(str(finding["text"]))})
        grade.findings = len(texts)
        grade.counted = True
        are_right = all(check["verdict"] in ACCEPTED for check in checks)
        if are_right and not texts and (text := made_elsewhere(entries)):
            grade.verdict = "not by a kernel"
            grade.problems.append({"kind": "uncounted", "text": text})
            return
        if not are_right:
            grade.goal_lines = ["goals are checked on kernels whose results are right"]
            return
        for result in judge_goals(exercise, entries, source):
            grade.goals_met += result.met
            grade.reached += [result.goal.count] * result.met
            line = f"{'met' if result.met else 'missed'}: {result.text()}"
            grade.goal_lines.append(line + ("" if result.met else f" {result.goal.because}"))


def warning_of_processor() -> str:
    if checks_assembly():
        return ""
    return (
        f"on {platform.machine()} a submission's writes are checked only where g++ tells of them, so what is counted "
        "could be falsified; on x86-64 it could not"
    )


def plain(text: str) -> str:
    """Without the namespaces in front of names, and the grader's folders in front of the student's file."""
    in_front = r"worklog::(?:\w+::)*|(?:^|(?<= ))simt: |\./(?=kernels\.cuh|\./)|[^\s'`]*/worklog-grade-\w+/(?:[\w-]+/)*"
    return re.sub(in_front, "", text)


def not_by_a_kernel(checks: Sequence[Json], entries: Sequence[Json]) -> str:
    """Why a right result among these cannot come from a kernel: none was launched, or none has read the input."""
    for number, check in enumerate(checks):
        is_empty = check["rows"] * check["cols"] * check.get("pixels", 1) == 0  # nothing has to be launched for it
        if check["verdict"] not in ACCEPTED or check["error"] or is_empty:
            continue
        try:
            kernels = entries[number]["kernels"]
            memory = [each for kernel in kernels for each in kernel["memory"]]
            read = {each["name"] for each in memory if each["bytes_read"] > 0}
            inputs = {each["name"] for each in memory} & {"x", "dy"}
        except (KeyError, TypeError, IndexError, AttributeError):
            return "a result is right, and nothing was counted of what has made it"
        if not kernels:
            return "a result is right, but no kernel was launched"
        if inputs and not inputs & read:
            return f"a result is right, but no kernel has read {' or '.join(sorted(inputs))}"
    return ""


def made_elsewhere(entries: Sequence[Json]) -> str:
    """Why the right results of a counted run cannot come from its kernels; empty where they can."""
    for entry in entries:
        if entry["not_written"]:
            return (
                f"the results are right, but no kernel has written {entry['not_written']} of their bytes, as far as "
                "was counted"
            )
        read: dict[str, float] = {}
        for kernel in entry["kernels"]:
            for memory in kernel["memory"]:
                read[memory["name"]] = read.get(memory["name"], 0.0) + memory["bytes_read"] / max(memory["bytes"], 1)
        for name in ("x", "dy"):
            if read.get(name, 1.0) < 1:
                return f"the results are right, but the kernels have read only {read[name]:.0%} of {name}"
        if not entry["kernels"]:
            return "the results are right, but no kernel was launched"
    return ""


def ending_of(done: Outcome, flags: str) -> Json | None:
    """What is wrong with the way that a run has ended, with the verdict that it means."""
    printed = f"\n{plain(done.output.strip())[-800:]}" if done.output.strip() else ""
    if done.timed_out:
        return {
            "kind": "hang",
            "verdict": "does not end",
            "text": f"with {flags} the program had not ended after {done.seconds:.0f} s",
        }
    if done.stopped_for:
        what = "took too much memory" if done.stopped_for == "memory" else "printed too much"
        return {"kind": done.stopped_for, "verdict": "stopped", "text": f"with {flags} the program {what}"}
    if done.code == TOUCHED_BY_HOST:
        return {
            "kind": "crash",
            "verdict": "not by a kernel",
            "text": f"with {flags}: host code has read or written device memory; on a GPU that is a crash, since only "
            "kernels can reach it",
        }
    if done.code == NOT_ITS_OWN:
        return {
            "kind": "crash",
            "verdict": "crashed",
            "text": f"with {flags} the program was ended: {last_lines(plain(done.output), 1)}",
        }
    if done.signal is not None:
        return {
            "kind": "crash",
            "verdict": "crashed",
            "text": f"with {flags} the program was ended by {signal_name(done.signal)}{printed}",
        }
    if done.code != 0:
        return {
            "kind": "report",
            "verdict": "ended early",
            "text": f"with {flags} the program ended with exit code {done.code}{printed}",
        }
    return None


def bonus_of(share: float | None, wanted: float) -> float:
    """Ten points where the share of the speed that is wanted is reached, in proportion above half of it, none below."""
    if share is None:
        return 0.0
    return round(BONUS * min(1.0, max(0.0, 2 * share / wanted - 1)), 1)


class Timing:
    """Times on this machine's GPU what is solved, one by one, in the sandbox, of the bytes that were graded."""

    def __init__(self, toolchain: Toolchain, grader: Grader) -> None:
        self.toolchain, self.grader = toolchain, grader
        self.recipe = toolchain.recipe(False)
        self.of_stage: dict[str, Times] = {}  # by exercise
        self.vettings: dict[str, ObjectVetting] = {}

    def of(self, submission: Submission, grade: Grade) -> None:
        """Adds the share of the speed, and the points for it, to what is solved."""
        exercise = submission.exercise
        grade.problems = [each for each in grade.problems if each["kind"] != "speed"]
        if exercise.speed is None or grade.verdict != "solved":
            return
        source = read_untrusted(submission.path, MOST_BYTES)
        if hashlib.sha256(source).hexdigest() != grade.sha256:
            raise ExerciseError("the file has changed since it was graded; the same command grades it again")
        folder = self.grader.work / f"time-{file_name(submission.student)}-{exercise.id}"
        program, against = self.build(exercise, source, folder)
        if program is None:
            grade.problems.append({"kind": "speed", "text": against})
            return
        times, against = self.take(exercise, program, folder)
        if not times:
            grade.problems.append({"kind": "speed", "text": against})
            return
        grade.share, problem = compare_times(exercise, times, self.stage_times(exercise, folder), exercise.stage)
        grade.bonus = bonus_of(grade.share, exercise.speed.at_least)
        if problem:
            grade.problems.append({"kind": "speed", "text": problem.text})

    def build(self, exercise: Exercise, source: bytes, folder: Path) -> tuple[Path | None, str]:
        main = exercise.main.read_text(encoding="utf-8")
        if exercise.id not in self.vettings:
            skeleton = exercise.skeleton.read_bytes()
            where = self.grader.work / f"skeleton-{exercise.id}"
            baseline, said = self.grader.compile(main, skeleton, 0, where, self.recipe)
            if baseline is None:
                raise ExerciseError(f"the skeleton of {exercise.id} does not compile for this GPU:\n{said[-2000:]}")
            self.vettings[exercise.id] = ObjectVetting(baseline, libraries_of(self.recipe))
        data, said = self.grader.compile(main, source, 0, folder, self.recipe)
        if data is None:
            return None, f"it does not compile for this GPU:\n{said[-2000:]}"
        if reasons := self.vettings[exercise.id].reasons(data):
            return None, f"it is not run on this GPU: {reasons[0]}"
        own, program = folder / "main.o", folder / exercise.id
        own.write_bytes(data)
        against = self.grader.link(self.recipe, own, program, (), (), source)
        return (None, f"it cannot be linked for this GPU:\n{against[-2000:]}") if against else (program, "")

    def take(self, exercise: Exercise, program: Path, folder: Path) -> tuple[Times, str]:
        """By the submission's program itself."""
        done, document = run_on_gpu(self.grader.sandbox, program, self.flags(exercise), folder)
        try:
            return times_in(document), f"it could not be timed:\n{last_lines(plain(done.output))}"
        except (KeyError, TypeError, ValueError, AttributeError):
            return {}, f"it could not be timed:\n{last_lines(plain(done.output))}"

    def stage_times(self, exercise: Exercise, folder: Path) -> Times:
        if exercise.id not in self.of_stage:
            self.toolchain.make_parts((exercise.stage,))
            program = self.toolchain.build / "bin" / exercise.stage
            flags = [*self.flags(exercise), "--variant", str(exercise.variant)]
            done = run(program, flags, folder / "stage.json")
            times = times_in(done.document)
            if not times:
                raise ExerciseError(f"{program.name} could not be timed:\n{last_lines(done.output)}")
            self.of_stage[exercise.id] = times
        return self.of_stage[exercise.id]

    def flags(self, exercise: Exercise) -> list[str]:
        return [*shlex.split(exercise.speed.flags if exercise.speed else ""), "--input", "normal", "--time", "cold"]


def run_on_gpu(
    sandbox: Sandbox, program: Path, flags: Sequence[str], folder: Path, wall_seconds: float = 300,
    environment: dict[str, str] | None = None,
) -> tuple[Outcome, Json]:
    """Runs a program that is built for this machine's GPU in the sandbox: how it ended, and the report that it wrote,
    empty where there is none that can be read. A folder `box` is made in `folder`."""
    box = folder / "box"
    box.mkdir()
    box.chmod(0o755)
    sandbox.give(box, 0)
    # The driver reserves addresses for all memory that there is, and starts threads of its own.
    limits = Limits(120, wall_seconds, 8192 * MEBIBYTE, reserved_bytes=1 << 46, processes=512)
    command = [str(program), *flags, "--json", str(box / "report.json")]
    done = sandbox.run(
        command, 0, limits, box, [program], [box], environment, output=folder / "printed.txt", gpu=True
    )
    try:
        document = json.loads(read_untrusted(box / "report.json", 4 * MEBIBYTE))
    except (ValueError, RecursionError):
        document = {}
    return done, document if isinstance(document, dict) else {}


def toolkit_of(command: str) -> list[Path]:
    """The folders of a compiler, or of the CUDA Toolkit, that the sandbox does not show anyway."""
    compiler = Path(shutil.which(command) or command).absolute()
    folders = {path.parents[1] for path in (compiler, compiler.resolve()) if len(path.parts) > 3}
    folders |= installed_in(compiler)
    return sorted(folder for folder in folders if not folder.is_relative_to("/usr"))


def host_compiler_of(command: Sequence[str]) -> str | None:
    """What nvcc is told to compile the host's code with: -ccbin=PATH or -ccbin PATH."""
    for word, following in zip(command, [*command[1:], ""]):
        if word.startswith(("-ccbin=", "--compiler-bindir=")):
            return word.split("=", 1)[1]
        if word in ("-ccbin", "--compiler-bindir"):
            return following
    return None


def installed_in(compiler: Path) -> set[Path]:
    """Where GCC's own parts lie: the command may be a script that calls a compiler somewhere else."""
    if "g++" not in compiler.name and "gcc" not in compiler.name:
        return set()
    done = subprocess.run([compiler, "-print-search-dirs"], capture_output=True, text=True, timeout=10, check=False)
    found = re.search(r"^install: (/.*)/lib\w*/gcc/", done.stdout, re.MULTILINE)
    return {Path(found[1]).resolve()} if found else set()


def times_in(document: Json) -> Times:
    found = timings_of(document, False)
    return {(each.operation, each.dtype, each.rows, each.cols): each.seconds for each in found}


def gpu_toolchain() -> Toolchain:
    """Of the gpu build, whose parts are made. Raises ExerciseError, also where there is no GPU."""
    if subprocess.run("nvidia-smi -L", shell=True, capture_output=True, check=False).returncode != 0:
        raise ExerciseError("--time needs a GPU, and there is no GPU here")
    if not (ROOT / "build/gpu/build.ninja").is_file():
        raise ExerciseError(
            "--time needs the gpu build: ./worklog build --preset gpu exercise_parts makes what it takes"
        )
    toolchain = Toolchain(ROOT, ROOT / "build/gpu")
    toolchain.make_parts()
    return toolchain


def finished(grade: Grade, begun: float) -> Grade:
    grade.points = points_of(grade)
    grade.seconds = round(time.monotonic() - begun, 1)
    return grade


def goes_beyond(grade: Grade, given: Grade) -> bool:
    """More results are right than the skeleton's, a goal is met that it misses, or what was found in it is gone."""
    if grade.right != given.right or grade.results != given.results:
        return grade.right * given.results > given.right * grade.results
    is_cleared = given.counted and grade.counted and given.findings > 0 and grade.findings == 0
    return is_cleared or not set(grade.reached) <= set(given.reached)


def points_of(grade: Grade) -> dict[str, float]:
    """By the rubric of docs/teaching.md."""
    points = dict.fromkeys(POINTS, 0.0)
    without = ("not begun", "not found", "refused", "not by a kernel", "does not compile", "not graded")
    if grade.results == 0 or grade.verdict in without or grade.is_given:
        return points
    points["results"] = round(POINTS["results"] * grade.right / grade.results, 1)
    if grade.right == grade.results and grade.counted:
        points["findings"] = POINTS["findings"] if grade.findings == 0 else 0.0
        points["counts"] = round(POINTS["counts"] * (grade.goals_met / grade.goals if grade.goals else 1.0), 1)
    return points


# --- What is written --------------------------------------------------------------------------------------------------
def write_whole(path: Path, text: str) -> None:
    """As a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def printable(text: str) -> str:
    return "".join(
        character if character.isprintable() or character in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )


def fenced(text: str) -> str:
    text = printable(text).strip()
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{ticks}text\n{text}\n{ticks}"


def in_a_line(text: str) -> str:
    return " ".join(printable(text).split())


def cell(value: object) -> str:
    """For CSV: no line ends, and nothing that a spreadsheet takes for a formula."""
    text = in_a_line(str(value))
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def number(value: float) -> str:
    return f"{value:g}"


def csv_of(grades: Sequence[Grade]) -> str:
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(COLUMNS)
    for grade in grades:
        missed = (line for line in grade.goal_lines if line.startswith("missed"))
        reason = grade.problems[0]["text"] if grade.problems else next(missed, "")
        row = (
            grade.student, grade.exercise, grade.verdict, number(grade.total),
            sum(POINTS.values()) if grade.exercise else 0,
            *(number(grade.points[name]) for name in POINTS), number(grade.bonus),
            "" if grade.share is None else f"{grade.share:.3f}", grade.right, grade.results, grade.findings,
            grade.goals_met, grade.goals, reason[:300], grade.seconds, grade.sha256,
        )
        writer.writerow([cell(each) for each in row])
    return sink.getvalue()


def report_of(student: str, grades: Sequence[Grade], sandbox: Sandbox, seed: int) -> str:
    total = sum(grade.total for grade in grades)
    most = sum(grade.exercise != "" for grade in grades) * sum(POINTS.values())
    lines = [
        f"# {in_a_line(student)}: {number(total)} of {most} points",
        "",
        "| exercise | verdict | points | results | findings | goals |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for grade in grades:
        lines.append(
            f"| {grade.exercise} {grade.title} | {grade.verdict} | {number(grade.total)} | {grade.right} of "
            f"{grade.results} | {grade.findings if grade.counted else '–'} | {grade.goals_met} of {grade.goals} |"
        )
    for grade in grades:
        parts = ", ".join(f"{name} {number(grade.points[name])} of {most}" for name, most in POINTS.items())
        meaning = f"{MEANINGS[grade.verdict].capitalize()}. Points: {parts}."
        lines += ["", f"## {grade.exercise} {grade.title}: {grade.verdict}", ""]
        lines += [meaning.replace("Points: results", "Points for results")]
        if grade.share is not None:
            lines += [
                "",
                f"On this machine's GPU: {grade.share:.0%} of the speed of the stage's own variant, "
                f"{number(grade.bonus)} of {BONUS} points more.",
            ]
        for problem in grade.problems:
            lines += ["", f"**{problem['kind'].replace('_', ' ')}**", "", fenced(problem["text"][-3000:])]
        if grade.goal_lines:
            lines += ["", *(f"- {line}" for line in grade.goal_lines)]
        if grade.warnings:
            lines += ["", "The compiler warned:", "", fenced(grade.warnings[:1500])]
        if grade.printed.strip() and grade.verdict != "solved":
            lines += ["", "The end of what the program printed, none of which counts:", ""]
            lines += [fenced(grade.printed[-800:])]
    lines += ["", "---", "", f"Graded with seed {seed}. {sandbox.way.note}", ""]
    return "\n".join(lines)


def file_name(student: str) -> str:
    """A name for a student's files, another one for each student."""
    plain_name = re.sub(r"[^\w.@+-]", "_", student).lstrip(".")[:100] or "_"
    if plain_name == student and not re.search(r"-[0-9a-f]{8}$", student):
        return student
    return f"{plain_name}-{hashlib.sha256(student.encode(errors='surrogateescape')).hexdigest()[:8]}"


def kept(path: Path) -> Grade | None:
    try:
        return Grade(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


# --- The command ------------------------------------------------------------------------------------------------------
def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./worklog grade", description="Grades a folder of submissions.")
    parser.add_argument("folder", type=Path, help="a folder with a folder for each student")
    parser.add_argument("--exercise", help="one exercise, such as 02.1, or a stage's, 02; all that are found otherwise")
    parser.add_argument("--out", type=Path, help="where the grades go (FOLDER-graded)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="submissions at the same time")
    parser.add_argument(
        "--timeout",
        type=int,
        default=20,
        help="seconds of processor time for a run, and four times as many on the clock; 20 more for the compiler",
    )
    parser.add_argument("--memory", type=int, default=2048, help="MiB that a run may take")
    parser.add_argument(
        "--isolation", choices=("auto", "bubblewrap", "limits"), default="auto", help="how programs are kept apart"
    )
    parser.add_argument("--seed", type=int, help="of the inputs; drawn where none is given, and kept")
    parser.add_argument(
        "--time", action="store_true", help="time what is solved on this machine's GPU, for up to 10 points more"
    )
    parser.add_argument(
        "--no-vetting",
        action="store_true",
        help="compile sources that hold assembly, other includes and calls of the C library",
    )
    parser.add_argument("--again", action="store_true", help="grade what has a grade already")
    parser.add_argument("--build", type=Path, default=ROOT / "build/cpu", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"there is no folder {options.folder}")
    for name, least in (("jobs", 1), ("timeout", 1), ("memory", 256)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}")
    if options.jobs > MOST_SLOTS:
        parser.error(f"--jobs must be at most {MOST_SLOTS}")
    return options


def seed_of(options: argparse.Namespace, out: Path) -> int:
    """Asked for; or as the last time, so that a run which goes on judges all by the same inputs; or drawn."""
    if options.seed is not None:
        return options.seed
    try:
        return int(json.loads((out / "grading.json").read_text(encoding="utf-8"))["seed"])
    except (OSError, ValueError, KeyError, TypeError):
        return secrets.randbelow(1 << 48)


def grade_all(options: argparse.Namespace) -> int:
    out = options.out or options.folder.resolve().with_name(options.folder.resolve().name + "-graded")
    chosen = find(options.exercise) if options.exercise else all_exercises()
    there = list(submissions(options.folder.resolve(), chosen, len(chosen) == 1))
    found = [each for each in there if isinstance(each, Submission)]
    missing = [each for each in there if isinstance(each, Missing)]
    if not found:
        for each in missing:
            print(f"{in_a_line(each.student)}: {in_a_line(each.reason)}", flush=True)
        raise ExerciseError(
            f"there is no submission in {options.folder}: STUDENT/{chosen[0].mine.relative_to(ROOT / 'my')} is where "
            "one would lie"
        )
    if options.time and options.no_vetting:
        raise ExerciseError("--time runs only what was vetted: it does not go with --no-vetting")
    of_gpu = gpu_toolchain() if options.time else None
    toolchain = Toolchain(ROOT, options.build.resolve())
    toolchain.make_parts(("grading_parts",))
    sandbox = Sandbox(options.isolation)
    if of_gpu and not sandbox.way.has_namespaces:
        raise ExerciseError("--time needs bubblewrap: a program that uses the GPU cannot be kept apart by limits alone")
    students = {each.student for each in found}
    print(f"{len(found)} submissions of {len(students)} students. {sandbox.way.note}", flush=True)
    for warning in (sandbox.way.warning, warning_of_processor()):
        if warning:
            print(f"Note: {warning}", file=sys.stderr, flush=True)
    seed = seed_of(options, out)
    out.mkdir(parents=True, exist_ok=True)
    out.chmod(0o700)
    told = {
        "seed": seed, "isolation": sandbox.way.name, "as_root": sandbox.way.as_root, "users": sandbox.users,
        "vetting": not options.no_vetting, "timeout_seconds": options.timeout, "memory_mib": options.memory,
    }
    write_whole(out / "grading.json", json.dumps(told, indent=1) + "\n")
    work = Path(tempfile.mkdtemp(prefix="worklog-grade-"))
    work.chmod(0o711)
    try:
        memory = options.memory * MEBIBYTE
        grader = Grader(toolchain, sandbox, work, out, seed, options.timeout, memory, not options.no_vetting)
        grades: dict[tuple[str, str], Grade] = {}
        waiting: list[Submission] = []
        for each in found:
            before = None if options.again else kept(result_file(out, each))
            if before and before.key and before.key == key_now(grader, each):
                grades[each.student, each.exercise.id] = before
            else:
                waiting.append(each)
        if grades:
            print(f"{len(grades)} have their grade from before")
        grader.prepare([exercise for exercise in chosen if any(each.exercise.id == exercise.id for each in waiting)])
        slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(options.jobs):
            slots.put(slot)

        def one(submission: Submission) -> Grade:
            slot = slots.get()
            begun = time.monotonic()
            try:
                return grader.grade(submission, slot)
            except Cancelled:
                raise
            except Exception as error:  # whatever it is, it is this submission's line, and the others go on
                if sandbox.cancelled.is_set():
                    raise Cancelled from None
                exercise = submission.exercise
                problems = [{"kind": "not graded", "text": str(error) or type(error).__name__}]
                what = (submission.student, exercise.id, exercise.title, "", "", "not graded")
                return finished(Grade(*what, problems=problems), begun)
            finally:
                slots.put(slot)

        with ThreadPoolExecutor(options.jobs) as pool:
            futures = {pool.submit(one, each): each for each in waiting}
            try:
                for done in as_completed(futures):
                    grade, submission = done.result(), futures[done]
                    grades[grade.student, grade.exercise] = grade
                    write_whole(result_file(out, submission), json.dumps(asdict(grade), indent=1) + "\n")
                    points = f"{number(grade.total)} points ({grade.seconds:.0f} s)"
                    print(f"{in_a_line(grade.student)} {grade.exercise}: {grade.verdict}, {points}", flush=True)
            except BaseException:
                sandbox.stop()
                pool.shutdown(cancel_futures=True)
                raise
        timing = Timing(of_gpu, grader) if of_gpu else None
        for each in found if timing else ():
            grade = grades[each.student, each.exercise.id]
            if timing and grade.share is None:
                try:
                    timing.of(each, grade)
                except Cancelled:
                    raise
                except Exception as error:
                    grade.problems.append({"kind": "speed", "text": f"not timed: {error or type(error).__name__}"})
                write_whole(result_file(out, each), json.dumps(asdict(grade), indent=1) + "\n")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    ordered = [
        grades[each.student, each.exercise.id] if isinstance(each, Submission) else grade_of_missing(each)
        for each in there
    ]
    for each in missing:
        print(f"{in_a_line(each.student)}: {in_a_line(each.reason)}", flush=True)
    for student in dict.fromkeys(each.student for each in there):
        of_student = [grade for grade in ordered if grade.student == student]
        write_whole(out / f"{file_name(student)}.md", report_of(student, of_student, sandbox, seed))
    write_whole(out / "grades.csv", csv_of(ordered))
    print(f"{out / 'grades.csv'}: {sum(grade.verdict == 'solved' for grade in ordered)} of {len(ordered)} solved")
    return 1 if any(grade.verdict == "not graded" for grade in ordered) else 0


def grade_of_missing(missing: Missing) -> Grade:
    problems = [{"kind": "not found", "text": missing.reason}]
    return finished(Grade(missing.student, "", "", "", "", "not found", problems=problems), time.monotonic())


def result_file(out: Path, submission: Submission) -> Path:
    return out / "results" / file_name(submission.student) / f"{submission.exercise.id}.json"


def key_now(grader: Grader, submission: Submission) -> str:
    try:
        return grader.key_of(submission.exercise, read_untrusted(submission.path, MOST_BYTES))
    except ValueError:
        return ""


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
    try:
        return grade_all(options)
    except (ExerciseError, RegionError, ValueError) as error:
        print(f"worklog: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, Cancelled):
        print("stopped; the same command goes on with what is left", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
