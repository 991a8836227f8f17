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
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
from exercises import ROOT, SOURCE, Exercise, ExerciseError, all_exercises, find
from isolation import MEBIBYTE, MOST_SLOTS, Cancelled, Limits, Outcome, Sandbox
from judging import (
    ACCEPTED, BLOCK_SECONDS, SAME_EVERYWHERE, judge_goals, judge_speed, problems_of_checks, same_code, signal_name,
)
from not_on_cpu import explained
from regions import RegionError
from toolchain import Toolchain, build, linked, replaced
from vetting import MOST_BYTES, Vetting

WRAPPED = (
    "_ZN4simt6detail6launchERK18cudaLaunchConfig_tNS0_4CallE",
    "_ZN4simt6detail9copy_rowsEPvmPKvmmm14cudaMemcpyKind",
    "_ZN4simt6detail4fillEPvim",
)
COUNTER_RESERVES = 1 << 43  # bytes of addresses, not of memory
TOUCHED_BY_HOST = 86  # exit code of submission.cpp
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
    "refused": "the source holds what a kernel has no need of, and was not compiled",
    "does not compile": "the compiler or the linker refused it",
    "does not end": "it ran into the time limit",
    "stopped": "it took too much memory, or printed too much",
    "crashed": "it was ended by a signal",
    "ended early": "it ended before its results were there",
    "not by a kernel": "the results were not made by a kernel",
    "not graded": "the grader itself failed here; the same command tries it again",
}

Json = dict[str, Any]


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


def submissions(folder: Path, chosen: Sequence[Exercise], single: bool) -> Iterator[Submission]:
    """Every submission below a folder, by student and exercise."""
    students = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    for student in sorted(path for path in students if not path.name.startswith(".")):
        for exercise in chosen:
            inside = exercise.mine.relative_to(ROOT / "my")
            candidates = [student / inside, student / "my" / inside, *([student / SOURCE] if single else [])]
            if found := next((path for path in candidates if os.path.lexists(path)), None):
                yield Submission(student.name, exercise, found)


def read_untrusted(path: Path, most: int) -> bytes:
    """A file that others have made: no link, no device, not too long. Raises ValueError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{path.name} is no file")
        data = file.read(most + 1)
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
        counted = exercise.counted is not None and grader.toolchain.can_count
        self.counted_run = f"{exercise.counted_flags(grader.seed)} --input normal" if counted else None
        self.main = f'#line 1 "{exercise.main.relative_to(ROOT)}"\n' + exercise.main.read_text(encoding="utf-8")
        self.vetting = Vetting(exercise, replaced(grader.recipe.compile, "x", "x")[:-4]) if grader.vets else None
        # The judge's program has the skeleton's kernels, which never run: it needs the names of the variants alone. It
        # is compiled as a submission is, which shows that this can be done here.
        built = grader.build(self, exercise.skeleton.read_bytes(), 0, folder / "judge", False, grader.judge_parts)
        if built.program is None:
            raise ExerciseError(f"the judge of {exercise.id} cannot be built here:\n{built.said}")
        self.judge = built.program
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


# --- The grader -------------------------------------------------------------------------------------------------------
class Grader:
    def __init__(
        self, toolchain: Toolchain, sandbox: Sandbox, work: Path, out: Path, seed: int, timeout: int, memory: int,
        vets: bool = True,
    ) -> None:
        """`timeout`: seconds of processor time of a run; `memory`: bytes. The toolchain's parts are made."""
        self.toolchain, self.sandbox, self.work, self.out = toolchain, sandbox, work, out
        self.seed, self.vets = seed, vets
        self.recipe = toolchain.recipe(False)
        self.counting_recipe = toolchain.recipe(True) if toolchain.can_count else None
        # A machine that is busy with other submissions lets each wait: the time on the clock is only for what sleeps.
        self.compile_limits = Limits(timeout + 20, 4 * (timeout + 20), max(memory, 1024 * MEBIBYTE), processes=32)
        self.run_limits = Limits(timeout, 4 * timeout, memory)
        self.submission_parts = self.parts("grading_submission")
        self.judge_parts = self.parts("grading_judge")
        self.fingerprint = hashlib.sha256()
        for path in sorted((ROOT / "common/classroom").glob("*.*")):
            if path.suffix in (".py", ".cpp", ".h") and path.name != "exercise.py":
                self.fingerprint.update(path.read_bytes())
        self.fingerprint.update(f"{seed} {timeout} {memory} {vets}".encode())
        self.examinations: dict[str, Examination] = {}

    def parts(self, target: str) -> list[str]:
        found = sorted((self.toolchain.build / f"common/classroom/CMakeFiles/{target}.dir").glob("*.o"))
        if not found:
            raise ExerciseError(f"{self.toolchain.build} holds no {target}")
        return [str(path) for path in found]

    def prepare(self, chosen: Sequence[Exercise]) -> None:
        for exercise in chosen:
            self.examinations[exercise.id] = Examination(exercise, self, self.work / exercise.id)

    def key_of(self, exercise: Exercise, source: bytes) -> str:
        key = self.fingerprint.copy()
        for path in (exercise.main, exercise.skeleton, exercise.folder / "exercise.json"):
            key.update(path.read_bytes())
        key.update(source)
        return key.hexdigest()[:24]

    # --- Building and running, in the sandbox ---
    def build(
        self, examination: Examination, source: bytes, slot: int, folder: Path, counting: bool, parts: Sequence[str]
    ) -> Build:
        """A program of this source and the exercise's main.cu, in `folder`, which is made."""
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        inputs, made = folder / "source", folder / "made"
        for each in (inputs, made):
            each.mkdir()
            each.chmod(0o755)
        (inputs / SOURCE).write_bytes(source)
        (inputs / "main.cu").write_text(examination.main, encoding="utf-8")
        self.sandbox.give(made, slot)
        recipe = self.counting_recipe if counting and self.counting_recipe else self.recipe
        unit, program = made / "main.o", folder / "program"
        command = replaced(recipe.compile, str(unit), str(inputs / "main.cu"))
        command[1:1] = [f"-I{inputs}", f"-ffile-prefix-map={inputs}=."]
        command += [
            "-fmax-errors=3",
            "-fdiagnostics-color=never",
            "-ftemplate-depth=256",
            "-fconstexpr-ops-limit=5000000",
        ]
        # The stages are there to be included by later ones; no folder above them is.
        readable = [inputs, ROOT / "common", *sorted(ROOT.glob("[0-9][0-9]_*"))]
        done = self.sandbox.run(
            command, slot, self.compile_limits, inputs, readable, [made], output=folder / "compiler.txt"
        )
        said = plain(done.output.replace(f"{inputs}/", "")).strip()
        if done.stopped_for:
            return Build(None, f"the compiler was stopped: too much {done.stopped_for}")
        if done.timed_out:
            return Build(None, f"the compiler had not ended after {done.seconds:.0f} s")
        if done.code != 0:
            ended_by = f"the compiler was ended by {signal_name(done.signal)}" if done.signal else ""
            return Build(None, explained(said or ended_by, source.decode(errors="replace"), SOURCE))
        # From here on only files of the grader's are used.
        own = folder / "main.o"
        try:
            own.write_bytes(read_untrusted(unit, 256 * MEBIBYTE))
        except ValueError as error:
            return Build(None, str(error))
        link = [*linked(recipe.link, str(own), str(program))]
        link[link.index(str(own)) + 1 : link.index(str(own)) + 1] = [*parts]
        if parts == self.submission_parts:
            link += [f"-Wl,--wrap={symbol}" for symbol in WRAPPED]
        linking = subprocess.run(
            link, cwd=recipe.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", timeout=120, check=False,
        )
        if linking.returncode != 0:
            return Build(None, explained(plain(linking.stdout[-3000:]), source.decode(errors="replace"), SOURCE))
        program.chmod(0o755)
        return Build(program, said)

    def run(self, program: Path, tasks: Path, slot: int, folder: Path, counts: bool) -> tuple[Outcome, Path, Json]:
        """Runs a submission's program on tasks: how it ended, the file of its outcomes, and what it counted."""
        folder.mkdir()
        folder.chmod(0o755)
        box = folder / "box"
        box.mkdir()
        box.chmod(0o755)
        files = [box / "outcomes", *([box / "counts.json"] if counts else [])]
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
            environment={"WORKLOG_SIMT_BLOCK_LIMIT_MS": str(1000 * BLOCK_SECONDS), **SAME_EVERYWHERE},
        )
        trusted = folder / "outcomes"
        try:
            trusted.write_bytes(read_untrusted(files[0], limits.file_bytes))
        except ValueError:
            trusted.write_bytes(b"")
        document: Json = {}
        if counts:
            try:
                read = json.loads(read_untrusted(files[1], 64 * MEBIBYTE))
                document = read if isinstance(read, dict) else {}
            except (ValueError, RecursionError):
                pass
        return done, trusted, document

    # --- One submission ---
    def grade(self, submission: Submission, slot: int) -> Grade:
        begun = time.monotonic()
        exercise = submission.exercise
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
            self.examine(examination, source, slot, folder, grade)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return finished(grade, begun)

    def examine(self, examination: Examination, source: bytes, slot: int, folder: Path, grade: Grade) -> None:
        exercise = examination.exercise
        grade.goals = len(exercise.goals)
        copy = folder / SOURCE
        copy.write_bytes(source)
        if same_code(copy, exercise.skeleton):
            grade.verdict = "not begun"
            return
        if examination.vetting and (reasons := examination.vetting.reasons(source)):
            grade.verdict = "refused"
            grade.problems = [{"kind": "refused", "text": reason} for reason in reasons]
            return
        built = self.build(examination, source, slot, folder / "ordinary", False, self.submission_parts)
        if built.program is None:
            grade.verdict = "does not compile"
            grade.problems = [{"kind": "compile", "text": built.said}]
            return
        grade.warnings = built.said
        endings = []
        for number, flags in enumerate(examination.runs):
            done, outcomes, _ = self.run(
                built.program, examination.tasks[number], slot, folder / f"run-{number}", False
            )
            grade.printed = plain(done.output) or grade.printed
            checks = examination.call_judge("judge", outcomes, flags, folder / "report.json").get("checks", [])
            right = sum(check["verdict"] in ACCEPTED for check in checks)
            grade.right += right
            grade.results += len(checks)
            reached = [check for check in checks if check["error"] != NOT_REACHED]
            ending = ending_of(done, flags)
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
                    {"kind": problem.kind, "text": plain(problem.text)} for problem in problems_of_checks(reached)
                ]
        if endings:
            grade.verdict = endings[0]["verdict"]
            grade.right = 0 if grade.verdict == "not by a kernel" else grade.right
            return
        if examination.counted_run:
            self.count(examination, source, slot, folder, grade)
        if grade.verdict == "not by a kernel":
            grade.right = 0
        elif grade.right < grade.results:
            grade.verdict = "partly right" if grade.right else "wrong"
        else:
            uncounted = any(problem["kind"] == "uncounted" for problem in grade.problems)
            clean = grade.findings == 0 and grade.goals_met == grade.goals and not uncounted
            grade.verdict = "solved" if clean else "right"

    def count(self, examination: Examination, source: bytes, slot: int, folder: Path, grade: Grade) -> None:
        """What the counting build finds."""
        exercise = examination.exercise
        built = self.build(examination, source, slot, folder / "counting", True, self.submission_parts)
        if built.program is None:
            grade.problems.append({"kind": "uncounted", "text": built.said})
            return
        flags = examination.counted_run or ""
        done, outcomes, document = self.run(built.program, examination.tasks[-1], slot, folder / "run-counting", True)
        if ending := ending_of(done, f"{flags} --count"):
            grade.problems.append({"kind": "uncounted", "text": ending["text"]})
            return
        checks = examination.call_judge("judge", outcomes, flags, folder / "report.json").get("checks", [])
        try:
            entries = document["counts"]
            if not entries or len(entries) != len(checks):
                raise ValueError
            self.take_counts(exercise, entries, checks, source.decode(errors="replace"), grade)
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
            line = f"{'met' if result.met else 'missed'}: {result.text()}"
            grade.goal_lines.append(line + ("" if result.met else f" {result.goal.because}"))


def plain(text: str) -> str:
    """Without the namespaces in front of names, and the grader's folders in front of the student's file."""
    in_front = r"worklog::(?:\w+::)*|(?:^|(?<= ))simt: |\./(?=kernels\.cuh|\./)|[^\s'`]*/worklog-grade-\w+/(?:[\w-]+/)*"
    return re.sub(in_front, "", text)


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


def time_on_gpu(submission: Submission, grade: Grade, toolchain: Toolchain, work: Path) -> None:
    """The time on this machine's GPU, taken by the program itself: only of what was vetted and is solved."""
    exercise = submission.exercise
    if exercise.speed is None or grade.verdict != "solved":
        return
    source = work / f"time-{file_name(submission.student)}-{exercise.id}"
    source.mkdir()
    (source / SOURCE).write_bytes(read_untrusted(submission.path, MOST_BYTES))
    built = build(exercise, source, source / "made", toolchain.recipe(False))
    if built.program is None:
        grade.problems.append({"kind": "speed", "text": f"it does not compile for this GPU:\n{built.errors[-2000:]}"})
        return
    toolchain.make_parts((exercise.stage,))
    grade.share, problem = judge_speed(exercise, built.program, toolchain.build / "bin" / exercise.stage, source)
    grade.bonus = bonus_of(grade.share, exercise.speed.at_least)
    if problem:
        grade.problems.append({"kind": "speed", "text": problem.text})


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


def points_of(grade: Grade) -> dict[str, float]:
    """By the rubric of docs/teaching.md."""
    points = dict.fromkeys(POINTS, 0.0)
    if grade.results == 0 or grade.verdict in ("not begun", "refused", "not by a kernel", "does not compile"):
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


def cell(value: object) -> str:
    """For CSV: no line ends, and nothing that a spreadsheet takes for a formula."""
    text = " ".join(printable(str(value)).split())
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
            grade.student, grade.exercise, grade.verdict, number(grade.total), sum(POINTS.values()),
            *(number(grade.points[name]) for name in POINTS), number(grade.bonus),
            "" if grade.share is None else f"{grade.share:.3f}", grade.right, grade.results, grade.findings,
            grade.goals_met, grade.goals, reason[:300], grade.seconds, grade.sha256,
        )
        writer.writerow([cell(each) for each in row])
    return sink.getvalue()


def report_of(student: str, grades: Sequence[Grade], sandbox: Sandbox, seed: int) -> str:
    total, most = sum(grade.total for grade in grades), len(grades) * sum(POINTS.values())
    lines = [
        f"# {printable(student)}: {number(total)} of {most} points",
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
    return re.sub(r"[^\w.@+-]", "_", student).lstrip(".") or "_"


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
        help="compile sources that hold macros, other includes and calls of the C library",
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
    found = list(submissions(options.folder.resolve(), chosen, len(chosen) == 1))
    if not found:
        raise ExerciseError(
            f"there is no submission in {options.folder}: STUDENT/{chosen[0].mine.relative_to(ROOT / 'my')} is where "
            "one would lie"
        )
    if options.time and options.no_vetting:
        raise ExerciseError(
            "--time runs programs outside of the sandbox, and so only those that were vetted: it does not go with "
            "--no-vetting"
        )
    timing = gpu_toolchain() if options.time else None
    toolchain = Toolchain(ROOT, options.build)
    toolchain.make_parts(("grading_parts",))
    sandbox = Sandbox(options.isolation)
    students = {each.student for each in found}
    print(f"{len(found)} submissions of {len(students)} students. {sandbox.way.note}", flush=True)
    seed = seed_of(options, out)
    out.mkdir(parents=True, exist_ok=True)
    out.chmod(0o700)
    told = {
        "seed": seed, "isolation": sandbox.way.name, "as_root": sandbox.way.as_root,
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
            except (ExerciseError, OSError, subprocess.SubprocessError, ValueError) as error:
                if sandbox.cancelled.is_set():
                    raise Cancelled from None
                exercise = submission.exercise
                problems = [{"kind": "not graded", "text": str(error)}]
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
                    print(f"{printable(grade.student)} {grade.exercise}: {grade.verdict}, {points}", flush=True)
            except BaseException:
                sandbox.stop()
                pool.shutdown(cancel_futures=True)
                raise
        for each in found if timing else ():
            grade = grades[each.student, each.exercise.id]
            if timing and grade.share is None:
                time_on_gpu(each, grade, timing, work)
                write_whole(result_file(out, each), json.dumps(asdict(grade), indent=1) + "\n")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    ordered = [grades[each.student, each.exercise.id] for each in found]
    for student in dict.fromkeys(each.student for each in found):
        of_student = [grade for grade in ordered if grade.student == student]
        write_whole(out / f"{file_name(student)}.md", report_of(student, of_student, sandbox, seed))
    write_whole(out / "grades.csv", csv_of(ordered))
    print(f"{out / 'grades.csv'}: {sum(grade.verdict == 'solved' for grade in ordered)} of {len(ordered)} solved")
    return 1 if any(grade.verdict == "not graded" for grade in ordered) else 0


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
