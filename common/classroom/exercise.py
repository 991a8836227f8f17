#!/usr/bin/env python3
"""./worklog exercise: write a stage's kernel before you read it, and have it checked.

    ./worklog exercise list              every exercise, and how far you are
    ./worklog exercise start 02          copies the first one of stage 02 that is unsolved to my/; 02.2 means the second
    ./worklog exercise check 02          builds and runs what you wrote, and says what is wrong with it
    ./worklog exercise hint 02           one hint more
    ./worklog exercise solution 02       how your file differs from the solution
    ./worklog exercise watch 02          checks whenever you save; Ctrl-C ends it

check ends with 0 where the exercise is solved, with 1 where it is not yet, and with 2 where the request cannot be met.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
import judging
import regions
from exercises import ROOT, Exercise, ExerciseError, all_exercises, find
from judging import Judgement, Problem, judge, judge_speed
from toolchain import Toolchain

PROGRESS = Path("my/.progress.json")
POLL_SECONDS = 0.2
WIDTH = 100
MOST_PROBLEMS = 3
COLOR = sys.stdout.isatty() and "NO_COLOR" not in os.environ

HEADINGS = {
    "compile": "It does not compile",
    "wrong": "A result is wrong",
    "damage": "Memory was written that is not yours to write",
    "error": "The kernel was stopped",
    "crash": "The program crashed",
    "hang": "The program does not end",
    "report": "The program did not get to its end",
    "uncounted": "It could not be counted",
    "goal": "The results are right, and a goal is not reached yet",
    "speed": "It can be faster",
    "refused": "./worklog grade would refuse it, and not run it",
    "shared_race": "A race in shared memory",
    "global_write_race": "Two blocks write to one place",
    "global_race": "Two threads of a block are at one place without a barrier",
    "uninitialized_read": "Memory is read that nobody has written",
    "out_of_bounds": "An access outside of a tensor",
    "misaligned": "A vector access at an address that it may not have",
}


# --- What the reader has done --------------------------------------------------------------------------------------
def read_progress(root: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((root / PROGRESS).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def note(exercise: Exercise, **what: Any) -> None:
    progress = read_progress(exercise.root)
    progress.setdefault(exercise.id, {}).update(what)
    (exercise.root / PROGRESS).parent.mkdir(exist_ok=True)
    (exercise.root / PROGRESS).write_text(json.dumps(progress, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def is_solved(exercise: Exercise) -> bool:
    return bool(read_progress(exercise.root).get(exercise.id, {}).get("solved"))


def chosen(name: str, root: Path, begin: bool) -> Exercise:
    """The exercise that a word means. Of a stage: the first that is not solved yet, to begin it; else the one at
    hand."""
    candidates = find(name, root)
    unsolved = [each for each in candidates if not is_solved(each)]
    if begin:
        return [*unsolved, candidates[-1]][0]
    started = [each for each in candidates if each.mine.is_file()]
    return [*(each for each in started if each in unsolved), *reversed(started), *unsolved, candidates[-1]][0]


# --- Text ----------------------------------------------------------------------------------------------------------
def styled(text: str, code: str) -> str:
    return f"\033[{code}m{text}\033[0m" if COLOR else text


def wrapped(text: str, indent: str = "") -> str:
    whole_words = {"break_long_words": False, "break_on_hyphens": False}
    lines = text.splitlines()
    return "\n".join(
        textwrap.fill(line, WIDTH, initial_indent=indent, subsequent_indent=indent, **whole_words) for line in lines
    )


def shown(exercise: Exercise, path: Path | None = None) -> str:
    """A path from the root; of the reader's file, where none is given."""
    path = path or exercise.mine
    return str(path.relative_to(exercise.root)) if path.is_relative_to(exercise.root) else str(path)


def quoted(root: Path, places: tuple[tuple[str, int], ...]) -> str:
    """The source lines that a problem names."""
    lines = []
    for file, number in places:
        path = root / file
        if not path.is_file():
            continue
        source = path.read_text(encoding="utf-8", errors="replace").splitlines()
        if 1 <= number <= len(source):
            lines.append(f"    {file}:{number}\n        {source[number - 1].strip()}")
    return "\n".join(lines)


def print_problem(problem: Problem, root: Path, heading: bool) -> None:
    if heading:
        print("\n" + styled(HEADINGS.get(problem.kind, problem.kind) + ".", "1;31"))
    if problem.kind in ("compile", "crash", "report"):  # lines as a tool has printed them
        print(problem.text)
    else:
        print(wrapped(re.sub(r"worklog::(?:\w+::)*|^simt: |(?<= )simt: ", "", problem.text), "  "))
    if excerpt := quoted(root, problem.places):
        print(excerpt)


def print_task(exercise: Exercise) -> None:
    stars = "*" * exercise.difficulty
    print(styled(f"{exercise.id} {exercise.title}", "1") + f" ({stars}, about {exercise.minutes} minutes)")
    print(wrapped(exercise.task, "  "))
    for goal in exercise.goals:
        words = " and ".join(
            f"{words} {bound if isinstance(bound, str) else f'{bound:g}'}" for words, bound in goal.bounds().items()
        )
        print(wrapped(f"to reach: {words} {judging.count_named(goal.count).phrase}", "  "))
    if exercise.speed and exercise.variant:
        share = f"{exercise.speed.at_least:.0%} of the speed"
        print(wrapped(f"on a GPU: {share} of {exercise.variant} of stage {exercise.stage[:2]}", "  "))


# --- The verbs -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Workshop:
    """What exercises are built with: the build that is checked, and the one that counts."""

    checking: Toolchain
    counting: Toolchain


def worklog(root: Path, *words: str) -> None:
    """The project's script, for what may have to be installed and configured."""
    done = subprocess.run([str(root / "worklog"), *words], cwd=root, check=False)
    if done.returncode != 0:
        raise ExerciseError(f"./worklog {' '.join(words)} failed; what it says is above")


def workshop(root: Path, preset: str, folder: Path | None) -> Workshop:
    """Makes the parts of all programs, where they are not made: the first time takes a minute or two."""
    if folder is not None:
        checking = counting = Toolchain(root, folder)
        checking.make_parts()
        return Workshop(checking, counting)
    found = {}
    for name in dict.fromkeys((preset, "cpu")):
        build = root / "build" / name
        if not (build / "common/harness/libworklog_harness.a").is_file():
            said = f"Building the parts that all exercises share, into build/{name}: once, for a minute or two."
            print(said, flush=True)
            worklog(root, "build", "--preset", name, "exercise_parts")
        found[name] = Toolchain(root, build)
        found[name].make_parts()
    return Workshop(found[preset], found["cpu"])


def list_all(root: Path) -> int:
    there = all_exercises(root)
    width = max(len(each.title) for each in there)
    stage = ""
    for each in there:
        if each.stage != stage:
            stage = each.stage
            print(("\n" if each is not there[0] else "") + styled("bug hunt" if each.is_bug else stage, "1"))
        state = "solved" if is_solved(each) else "started" if each.mine.is_file() else ""
        stars = "*" * each.difficulty
        print(f"  {each.id:<7} {each.title:<{width}}  {stars:<3}  {each.minutes:>3} min  {state}".rstrip())
    first = next((each for each in there if not is_solved(each)), there[0])
    print(f"\n./worklog exercise start {first.id} begins one. * takes one idea, ** two, *** all that the stage has.")
    return 0


def start(exercise: Exercise, preset: str, folder: Path | None) -> int:
    if exercise.mine.exists():
        print(f"{shown(exercise)} is there already, and stays as it is.\n")
    else:
        exercise.mine.parent.mkdir(parents=True, exist_ok=True)
        with open(exercise.mine, "x", encoding="utf-8") as file:  # whatever is there is never overwritten
            file.write(exercise.skeleton.read_text(encoding="utf-8"))
        print(f"Copied to {shown(exercise)}.\n")
    print_task(exercise)
    workshop(exercise.root, preset, folder)
    what = "Look for what is wrong in" if exercise.is_bug else "Write what the comments marked [task] ask for in"
    print(f"\n{what} {shown(exercise)}, then: ./worklog exercise check {exercise.id}")
    return 0


def require_started(exercise: Exercise) -> None:
    if not exercise.mine.is_file():
        raise ExerciseError(f"there is no {shown(exercise)} yet; ./worklog exercise start {exercise.id} makes it")


def check(exercise: Exercise, tools: Workshop) -> int:
    """Prints what a check finds. Returns 0 where the exercise is solved, else 1."""
    begun = time.monotonic()
    work = tools.checking.build / "exercises" / exercise.id
    print(styled(f"{exercise.id} {exercise.title}", "1") + f": {shown(exercise)}", flush=True)
    found = judge(exercise, exercise.mine.parent, work, tools.checking, tools.counting, color=COLOR, vets=True)
    share = None
    if found.solved and exercise.speed and tools.checking is not tools.counting:
        share = time_it(exercise, tools, work, found)
    note(exercise, solved=found.solved)
    report(exercise, found, share)
    print(f"({time.monotonic() - begun:.1f} s)")
    return 0 if found.solved else 1


def time_it(exercise: Exercise, tools: Workshop, work: Path, found: Judgement) -> float | None:
    """On a GPU: against the stage's own variant."""
    tools.checking.make_parts((exercise.stage,))
    share, problem = judge_speed(exercise, work / exercise.id, tools.checking.build / "bin" / exercise.stage, work)
    found.problems += [problem] if problem else []
    return share


def report(exercise: Exercise, found: Judgement, share: float | None) -> None:
    if found.warnings:
        print(styled("The compiler remarks:", "33") + f"\n{found.warnings}")
    graver = [problem for problem in found.problems if problem.kind not in ("goal", "speed", "refused")]
    if not graver:
        print(f"  {found.checks} results compared with the reference: all right")
        if found.counted:
            print("  no race, no access out of bounds, nothing read that was not written")
    for goal in found.goals if not graver else ():
        print(f"  {'ok ' if goal.met else 'NOT'} {goal.text()}")
    if share is not None:
        print(f"  {share:.0%} of the speed of {exercise.variant} of stage {exercise.stage[:2]}")
    kind = ""
    refused = [problem for problem in found.problems if problem.kind == "refused"]
    for problem in [*graver[:MOST_PROBLEMS], *refused] if graver else found.problems[:MOST_PROBLEMS]:
        print_problem(problem, exercise.root, problem.kind != kind)
        kind = problem.kind
    if len(graver) > MOST_PROBLEMS:
        print(f"\n{len(graver) - MOST_PROBLEMS} more problems were found; they may go away with these.")
    print()
    if found.solved:
        print(styled("Solved.", "1;32") + f" ./worklog exercise solution {exercise.id} shows how the stage has it.")
    elif found.untouched:
        where = "nothing is changed yet" if exercise.is_bug else "the parts marked [task] are still to be written"
        print(styled("Not solved yet", "1") + f": {where} in {shown(exercise)}")
    else:
        print(styled("Not solved yet.", "1") + f" ./worklog exercise hint {exercise.id} gives a hint.")


def watch(exercise: Exercise, tools: Workshop) -> int:
    """Checks whenever the reader's file is saved. Ends with Ctrl-C."""
    seen: tuple[int, int] | None = None
    while True:
        now = stamp(exercise.mine)
        if now is None or now == seen:  # some editors take the file away for a moment
            time.sleep(POLL_SECONDS)
            continue
        seen = now
        check(exercise, tools)
        print(f"\nWaiting for {shown(exercise)} to be saved; Ctrl-C ends this.\n", flush=True)


def stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size


def hint(exercise: Exercise) -> int:
    hints = exercise.hints()
    given = min(int(read_progress(exercise.root).get(exercise.id, {}).get("hints", 0)), len(hints))
    if given == len(hints):
        print(
            f"That was the last hint; here it is again. ./worklog exercise solution {exercise.id} shows the solution.\n"
        )
        given -= 1
    print(styled(f"{exercise.id} {exercise.title}: hint {given + 1} of {len(hints)}", "1") + "\n")
    for paragraph in hints[given].split("\n\n"):
        print((paragraph if paragraph.startswith("```") else wrapped(paragraph)) + "\n")
    note(exercise, hints=given + 1)
    return 0


def solution(exercise: Exercise) -> int:
    mine = exercise.mine if exercise.mine.is_file() else exercise.skeleton
    target = exercise.folder / "fixed.cuh" if exercise.is_bug else exercise.stage_sources[0]
    own, theirs = mine.read_text(encoding="utf-8", errors="replace"), exercise.solution()
    names = (shown(exercise, mine), f"as {shown(exercise, target)} has it")
    lines = list(difflib.unified_diff(own.splitlines(), theirs.splitlines(), *names, lineterm=""))
    for line in lines:
        print(styled(line, {"+": "32", "-": "31", "@": "36"}.get(line[0], "0")) if line else line)
    if not lines:
        print(f"{shown(exercise, mine)} is the solution, letter by letter.")
    return 0


def perform(options: argparse.Namespace) -> int:
    if options.verb == "list":
        return list_all(options.root)
    if options.verb not in ("start", "check", "hint", "solution", "watch"):
        raise ExerciseError(f"there is no '{options.verb}'; there are list, start, check, hint, solution and watch")
    if options.exercise is None:
        raise ExerciseError(
            f"{options.verb} needs an exercise: ./worklog exercise {options.verb} "
            f"{all_exercises(options.root)[0].id} (list names them)"
        )
    exercise = chosen(options.exercise, options.root, options.verb == "start")
    if options.verb == "start":
        return start(exercise, options.preset, options.build)
    if options.verb == "hint":
        return hint(exercise)
    if options.verb == "solution":
        return solution(exercise)
    require_started(exercise)
    tools = workshop(options.root, options.preset, options.build)
    return check(exercise, tools) if options.verb == "check" else watch(exercise, tools)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="./worklog exercise", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=("cpu", "gpu"), default="cpu", help=argparse.SUPPRESS)
    parser.add_argument(
        "--build", type=Path, help="a configured build folder to use, in place of build/cpu or build/gpu"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument("verb", nargs="?", default="list", help="list, start, check, hint, solution or watch")
    parser.add_argument("exercise", nargs="?", help="02 or 02.1; bugs.1 of the bug hunt")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = perform(options)
        sys.stdout.flush()
        return code
    except (ExerciseError, regions.RegionError) as error:
        print(f"worklog exercise: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever reads, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


if __name__ == "__main__":
    sys.exit(main())
