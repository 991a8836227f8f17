#!/usr/bin/env python3
"""Solutions as students write them, and what the grader makes of each.

    python3 common/tests/students.py --all                  grades every one of them (half an hour on two cores)
    python3 common/tests/students.py --sample 6 --seed 7    vets all, and grades six right ones and two wrong ones
    python3 common/tests/students.py --only 02.1.tile_macro
    python3 common/tests/students.py --check                they fit the exercises, and README.md lists them; no build
    python3 common/tests/students.py --write                makes the list in README.md

A solution is an entry of common/tests/students/NN.toml; common/tests/students/README.md has the fields. Those of
wrong.toml have right results without the exercise's idea, or wrong ones, and must not pass. Exit code 1 where one is
not graded as it has to be. The build folder (--build, build/cpu where none is given) has the target grading_parts.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "common/classroom"))
sys.dont_write_bytecode = True
import exercises  # noqa: E402
import regions  # noqa: E402
from toolchain import Toolchain, replaced  # noqa: E402
from vetting import Vetting  # noqa: E402

FOLDER = ROOT / "common/tests/students"
README = FOLDER / "README.md"
BEGIN, END = "<!-- begin: list -->", "<!-- end: list -->"
BY_ID = {each.id: each for each in exercises.all_exercises()}


class StudentError(Exception):
    """An entry that does not fit its exercise, in one sentence."""


@dataclass(frozen=True)
class Solution:
    exercise: str
    name: str
    style: str
    tasks: dict[str, str]  # what stands in each
    top: str = ""  # behind the last #include
    change: tuple[tuple[str, str], ...] = ()  # outside of the tasks: what is there once, and what it becomes
    bom: bool = False
    crlf: bool = False
    misses: tuple[str, ...] = field(default=())  # wrong.toml: what the report must say, a goal's phrase for example

    @property
    def id(self) -> str:
        return f"{self.exercise}.{self.name}"

    def source(self) -> bytes:
        """The whole kernels.cuh. Raises StudentError."""
        skeleton = BY_ID[self.exercise].skeleton.read_text(encoding="utf-8")
        if {region.name for region in regions.regions_of(skeleton, self.exercise)} != set(self.tasks):
            raise StudentError(f"{self.id} does not have the tasks of {self.exercise}")
        written = "".join(f"// [task: {name}]\n{text}// [/task]\n" for name, text in self.tasks.items())
        text = regions.solved(skeleton, written, self.exercise, self.id)
        for old, new in self.change:
            if text.count(old) != 1:
                raise StudentError(f"{self.id}: this is there {text.count(old)} times, not once: {old}")
            text = text.replace(old, new.removeprefix("\n"))
        at = text.index("\n", text.rindex("#include")) + 1
        text = text[:at] + self.top + text[at:]
        return (b"\xef\xbb\xbf" if self.bom else b"") + (text.replace("\n", "\r\n") if self.crlf else text).encode()


def solution_of(entry: dict[str, Any], is_wrong: bool) -> Solution:
    unknown = set(entry) - set(Solution.__dataclass_fields__)
    if unknown or entry.get("exercise") not in BY_ID or is_wrong != ("misses" in entry):
        raise StudentError(f"{entry.get('name')}: a field is unknown, missing or misplaced {sorted(unknown)}")
    entry["change"] = tuple((old, new) for old, new in entry.get("change", []))
    return Solution(**(entry | {"misses": tuple(entry.get("misses", ()))}))


def all_solutions() -> tuple[list[Solution], list[Solution]]:
    """The right ones, and those that must not pass."""
    right, wrong = [], []
    for file in sorted(FOLDER.glob("*.toml")):
        is_wrong = file.stem == "wrong"
        entries = tomllib.loads(file.read_text(encoding="utf-8"))["solution"]
        (wrong if is_wrong else right).extend(solution_of(entry, is_wrong) for entry in entries)
    return right, wrong


# --- Without a build -------------------------------------------------------------------------------------------------
def listed(right: Sequence[Solution], wrong: Sequence[Solution]) -> str:
    lines = [f"{len(right)} that are right:", "", "| exercise | name | style |", "| --- | --- | --- |"]
    lines += [f"| {each.exercise} | `{each.name}` | {each.style} |" for each in right]
    lines += ["", f"{len(wrong)} that must not pass:", "", "| exercise | name | what it does | what is said |"]
    lines += ["| --- | --- | --- | --- |"]
    lines += [f"| {each.exercise} | `{each.name}` | {each.style} | {'; '.join(each.misses)} |" for each in wrong]
    return "\n".join(lines)


def readme_with(text: str) -> str:
    readme = README.read_text(encoding="utf-8")
    return re.sub(rf"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{text}\n{END}", readme, flags=re.DOTALL)


def check(right: Sequence[Solution], wrong: Sequence[Solution]) -> list[str]:
    everything = [*right, *wrong]
    for each in everything:
        each.source()
    problems = []
    if len({each.id for each in everything}) != len(everything):
        problems.append("two solutions have one name")
    ladder = {name for name, exercise in BY_ID.items() if not exercise.is_bug}
    if missing := ladder - {each.exercise for each in right}:
        problems.append(f"no solution of {', '.join(sorted(missing))}")
    if readme_with(listed(right, wrong)) != README.read_text(encoding="utf-8"):
        problems.append(f"{README.relative_to(ROOT)} is not as --write makes it")
    return problems


# --- With a build ----------------------------------------------------------------------------------------------------
def vet(chosen: Sequence[Solution], build: Path) -> list[str]:
    """What is said against the text of those that are right or, with right results, wrong."""
    compiler = replaced(Toolchain(ROOT, build).recipe(False).compile, "x", "x")[:-4]
    of_exercise = cache(lambda name: Vetting(BY_ID[name], compiler))
    return [
        f"{each.id} is refused: {reason}" for each in chosen
        for reason in of_exercise(each.exercise).reasons(each.source())
    ]


def grade(chosen: Sequence[Solution], build: Path, jobs: int, seed: int) -> list[str]:
    """Grades them all, each as a student of its own: what is not as it has to be."""
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name) / "class", Path(name) / "graded"
        for each in chosen:
            path = folder / each.id / BY_ID[each.exercise].mine.relative_to(ROOT / "my")
            path.parent.mkdir(parents=True)
            path.write_bytes(each.source())
        command = [sys.executable, str(ROOT / "common/classroom/grade.py"), str(folder), "--out", str(out)]
        command += ["--build", str(build), "--jobs", str(jobs), "--seed", str(seed), "--timeout", "60"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            return [f"grade ended with {done.returncode}:\n{done.stdout[-3000:]}"]
        grades = [json.loads(path.read_text(encoding="utf-8")) for path in (out / "results").glob("*/*.json")]
        of_student = {each["student"]: each for each in grades}
        problems = []
        for each in chosen:
            found = of_student[each.id]
            missed = [line for line in found["goal_lines"] if line.startswith("missed")]
            said = "\n".join([*missed, *(problem["text"] for problem in found["problems"])])
            print(f"{each.id}: {found['verdict']}", flush=True)
            if not each.misses and found["verdict"] != "solved":
                problems.append(f"{each.id} is right, and was graded '{found['verdict']}':\n{said}")
            elif each.misses and found["verdict"] == "solved":
                problems.append(f"{each.id} must not pass, and was graded 'solved'")
            problems += [f"{each.id}: nothing is said of '{what}':\n{said}" for what in each.misses if what not in said]
        return problems


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--all", action="store_true", help="grade every solution")
    what.add_argument("--sample", type=int, metavar="N", help="vet all; grade N right ones, and a third as many wrong")
    what.add_argument("--only", metavar="NAME", help="grade those whose name has this in it")
    what.add_argument("--check", action="store_true", help="do they fit the exercises, and is the list current?")
    what.add_argument("--write", action="store_true", help="make the list in README.md")
    parser.add_argument("--build", type=Path, default=ROOT / "build/cpu")
    parser.add_argument("--jobs", type=int, default=2)
    today = int(time.time()) // 86400
    parser.add_argument("--seed", type=int, default=today, help="of the sample and of the grading; the day's otherwise")
    options = parser.parse_args(arguments)
    try:
        right, wrong = all_solutions()
        if options.write:
            README.write_text(readme_with(listed(right, wrong)), encoding="utf-8")
            return 0
        problems = check(right, wrong)
        chosen = [*right, *wrong]
        if options.only:
            chosen = [each for each in chosen if options.only in each.id]
        elif options.sample:
            draw = random.Random(options.seed)
            chosen = [*draw.sample(right, options.sample), *draw.sample(wrong, max(1, options.sample // 3))]
        if not options.check:
            print(f"seed {options.seed}", flush=True)
            problems += vet([*right, *wrong], options.build.resolve())
            problems += grade(chosen, options.build.resolve(), options.jobs, options.seed)
    except (StudentError, regions.RegionError) as error:
        problems = [str(error)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
