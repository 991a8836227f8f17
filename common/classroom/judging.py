"""Judges an exercise's program: are its results right, what was found, what does it cost; on a GPU, how fast is it."""

from __future__ import annotations

import json
import os
import re
import resource
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from checked_assembly import checks_assembly
from exercises import SOURCE, Exercise, ExerciseError, Goal, figure_of
from objects import ObjectVetting
from toolchain import Built, Toolchain, build, libraries_of, replaced
from vetting import Vetting

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "report"))
from results import timings_of  # noqa: E402
from source_hash import tokens_of, without_comments  # noqa: E402

Json = dict[str, Any]
ACCEPTED = ("passed", "expected failure", "permitted failure")
SAME_EVERYWHERE = {"WORKLOG_SIMT_MULTIPROCESSORS": "4"}  # a grid may follow from it, and counts from the grid
BLOCK_SECONDS = 5  # a block of an exercise takes milliseconds


# --- Running -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Limits:
    """Of one run of a program."""

    cpu_seconds: int = 20
    wall_seconds: float = 60
    memory_bytes: int | None = None  # of address space


@dataclass(frozen=True)
class Run:
    """What became of one run of a program."""

    code: int | None  # None: it was ended by a signal
    signal: int | None
    timed_out: bool
    output: str  # both streams
    document: Json  # the report that it wrote; empty where it wrote none
    seconds: float


def run(
    program: Path,
    flags: Sequence[str],
    report: Path,
    limits: Limits = Limits(),
    environment: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> Run:
    """Runs a program in a process group of its own, all of which has ended when this returns. `report` is where it
    writes its results; `prefix` goes in front of the command."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_seconds, limits.cpu_seconds + 1))
        if limits.memory_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))

    report.unlink(missing_ok=True)
    report.parent.mkdir(parents=True, exist_ok=True)
    settings = {"WORKLOG_SIMT_BLOCK_LIMIT_MS": str(1000 * BLOCK_SECONDS), **(environment or {})}
    begun = time.monotonic()
    process = subprocess.Popen(
        [*prefix, str(program), *flags, "--json", str(report)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env=os.environ | settings, start_new_session=True, preexec_fn=limit,
    )
    running.add(process.pid)
    if stopped.is_set():  # between the start and the line above
        end_group(process.pid)
    timed_out = False
    try:
        output, _ = process.communicate(timeout=limits.wall_seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        end_group(process.pid)
        running.discard(process.pid)
    if timed_out:
        output, _ = process.communicate()
    ended_by = -process.returncode if process.returncode < 0 else None
    timed_out = timed_out or ended_by == signal.SIGXCPU
    return Run(process.returncode if ended_by is None else None, None if timed_out else ended_by, timed_out,
               output.decode(errors="replace"), read_report(report), time.monotonic() - begun)


running: set[int] = set()  # process groups
stopped = threading.Event()


def stop_running() -> None:
    """Ends all programs that other threads wait for, and those that they are about to start."""
    stopped.set()
    for group in tuple(running):
        end_group(group)


def end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def read_report(path: Path) -> Json:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


# --- What is counted -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Count:
    """A figure of a counted run, from its entry in the report."""

    phrase: str
    of: Callable[[Json], float]


def total(entry: Json, key: str, *operations: str) -> float:
    return sum(
        kernel["counts"].get(operation, {}).get(key, 0) for kernel in entry["kernels"] for operation in operations
    )


def per_request(operation: str) -> Callable[[Json], float]:
    return lambda entry: total(entry, "sectors", operation) / max(total(entry, "requests", operation), 1)


def per_row(key: str, *operations: str) -> Callable[[Json], float]:
    return lambda entry: total(entry, key, *operations) / max(entry["rows"], 1)


COUNTS = {
    "load_sectors_per_request": Count(
        "sectors of global memory for each load request of a warp", per_request("global_load")
    ),
    "store_sectors_per_request": Count(
        "sectors of global memory for each store request of a warp", per_request("global_store")
    ),
    "load_requests_per_row": Count("load requests to global memory for each row", per_row("requests", "global_load")),
    "store_requests_per_row": Count(
        "store requests to global memory for each row", per_row("requests", "global_store")
    ),
    "barriers_per_row": Count("barriers for each row", per_row("requests", "barrier")),
    "shuffles_per_row": Count("shuffles of a warp for each row", per_row("requests", "shuffle")),
    "shared_requests_per_row": Count(
        "requests to shared memory for each row", per_row("requests", "shared_load", "shared_store")
    ),
    "shared_wavefronts_per_row": Count(
        "passes over the banks of shared memory for each row", per_row("wavefronts", "shared_load", "shared_store")
    ),
    "bank_conflicts": Count("bank conflicts", lambda entry: total(entry, "conflicts", "shared_load", "shared_store")),
    "atomics_per_row": Count("atomic requests for each row", per_row("requests", "global_atomic", "shared_atomic")),
    "lanes_per_load_request": Count(
        "lanes of a warp that take part in a load from global memory",
        lambda entry: total(entry, "lanes", "global_load") / max(total(entry, "requests", "global_load"), 1),
    ),
    "blocks": Count(
        "blocks launched",
        lambda entry: sum(kernel["grid"][0] * kernel["grid"][1] * kernel["grid"][2] for kernel in entry["kernels"]),
    ),
    "launches": Count("kernels launched", lambda entry: len(entry["kernels"])),
    "threads_per_block": Count(
        "threads of a block",
        lambda entry: min((k["block"][0] * k["block"][1] * k["block"][2] for k in entry["kernels"]), default=0),
    ),
    "loads_of_busiest_thread": Count(
        "loads from global memory by the thread that has most of them",
        lambda entry: max((kernel["most_loads_of_thread"] for kernel in entry["kernels"]), default=0),
    ),
    "doubles": Count("doubles in the source", lambda entry: doubles_in(entry["source"]) - entry["doubles_given"]),
}
DOUBLES = {"double", "double2", "double3", "double4", "double_t", "float64_t"}
DOUBLE = re.compile(  # 1.0, not 1.0f
    r"(?:(?:\d[\d']*\.[\d']*|\.\d[\d']*)(?:[eE][+-]?\d+)?|\d[\d']*[eE][+-]?\d+|0[xX][\da-fA-F'.]+[pP][+-]?\d+)[lL]?"
)
OVER = {
    "passes_over_": ("times that {} is read", "bytes_read"),
    "written_over_": ("times that {} is written", "bytes_written"),
}


def count_named(name: str) -> Count:
    """A count of COUNTS; or passes_over_x, written_over_y and so on, for any tensor. Raises KeyError."""
    for start, (phrase, key) in OVER.items():
        if name.startswith(start):
            tensor = name.removeprefix(start)
            return Count(phrase.format(tensor), lambda entry: over_tensor(entry, tensor, key))
    return COUNTS[name]


def over_tensor(entry: Json, tensor: str, key: str) -> float:
    """How often a tensor is read, or written, over all launches."""
    found = [memory for kernel in entry["kernels"] for memory in kernel["memory"] if memory["name"] == tensor]
    return sum(memory[key] for memory in found) / found[0]["bytes"] if found else 0.0


def doubles_in(source: str) -> int:
    """How often a double is named or written down in a source."""
    words = tokens_of(without_comments(source))
    return sum(word in DOUBLES or DOUBLE.fullmatch(word) is not None for word in words)


# --- The judgement -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Problem:
    """One thing that keeps an exercise from being solved.

    `kind`: compile, wrong, damage, error, crash, hang, report, uncounted, goal, speed, refused; or a finding of the
    counter's: shared_race, global_write_race, global_race, uninitialized_read, out_of_bounds, misaligned."""

    kind: str
    text: str
    places: tuple[tuple[str, int], ...] = ()  # files and lines that it is about


@dataclass(frozen=True)
class GoalResult:
    """A goal where it is missed, or at the first shape where it is missed nowhere."""

    goal: Goal
    value: float
    met: bool
    bounds: Mapping[str, float]  # in words, at this shape
    at: str  # the shape, where it is not the one that is known

    def text(self) -> str:
        wanted = " and ".join(f"{words} {bound:.6g}" for words, bound in self.bounds.items())
        at = f" at {self.at}" if self.at else ""
        return f"{count_named(self.goal.count).phrase}{at}: {self.value:.4g} ({wanted} wanted)"


def judge_goals(exercise: Exercise, entries: Sequence[Json], source: str) -> list[GoalResult]:
    """Every goal, by the entries of a counted run, at one shape or several, and the source that was counted."""
    given = doubles_in(exercise.skeleton.read_text(encoding="utf-8"))
    results = []
    for goal in exercise.goals:
        at_shapes = []
        for entry in entries:
            value = float(count_named(goal.count).of(entry | {"source": source, "doubles_given": given}))
            rows, cols = int(entry["rows"]), int(entry["cols"])
            bounds = {words: figure_of(bound, rows, cols) for words, bound in goal.bounds().items()}
            met = bounds.get("at least", value) <= value <= bounds.get("at most", value)
            known = f"{rows}x{cols}" in (exercise.counted or "")
            at_shapes.append(GoalResult(goal, value, met, bounds, "" if known else f"{rows} x {cols}"))
        results.append(next((result for result in at_shapes if not result.met), at_shapes[0]))
    return results


@dataclass
class Judgement:
    problems: list[Problem] = field(default_factory=list)
    goals: list[GoalResult] = field(default_factory=list)
    warnings: str = ""  # of the compiler
    untouched: bool = False  # the reader's code is the skeleton's
    checks: int = 0  # results that were compared
    counted: bool = False  # whether there was a counting build to count with

    @property
    def solved(self) -> bool:
        return not self.problems


def judge(
    exercise: Exercise, sources: Path, work: Path, toolchain: Toolchain, counter: Toolchain | None,
    limits: Limits = Limits(), color: bool = False, prefix: Sequence[str] = (), seed: int | None = None,
    vets: bool = False,
) -> Judgement:
    """Builds the kernels.cuh in `sources` with the exercise's main.cu, runs it, and judges it.

    `seed` draws the second shape that is counted; None: another one each time. With `vets`, what the grader would
    refuse is a problem, too; it takes the counter's compiler.

    `toolchain` builds what is checked, on the CPU layer or for a GPU; `counter`, of a cpu build, what is counted (None:
    nothing is). Both have their parts made. `work` is a folder of this judgement's own."""
    if not (sources / SOURCE).is_file():
        raise ExerciseError(f"there is no {sources / SOURCE}")
    found = Judgement(untouched=same_code(sources / SOURCE, exercise.skeleton))
    counting = counter if exercise.counted and counter and counter.can_count else None
    with ThreadPoolExecutor(3) as pool, stopping_all():
        source = sources / SOURCE
        vetting = pool.submit(refusals, exercise, source, counter) if vets and counter else None
        same = vets and counter is not None and counter.build == toolchain.build
        baseline = pool.submit(object_vetting, exercise, work, toolchain) if same else None
        ordinary = pool.submit(build, exercise, sources, work, toolchain.recipe(False), color, prefix)
        counted = None
        if counting:
            recipe = counting.recipe(True)
            counted = pool.submit(build, exercise, sources, work / "counting", recipe, color, prefix)
        built = ordinary.result()
        found.warnings = built.warnings
        if built.program is None:
            found.problems = [Problem("compile", built.errors), *(vetting.result() if vetting else [])]
            return found
        checking = pool.submit(
            check_all, exercise, built.program, work, limits, prefix, toolchain.is_of_cpu_layer)
        if counted:
            drawn = exercise.counted_flags(secrets.randbits(32) if seed is None else seed)
            text = source.read_text(encoding="utf-8", errors="replace")
            count_all(exercise, counted.result(), work, limits, prefix, found, drawn, text)
        problems, found.checks = checking.result()
    twice = {problem.kind for problem in problems} & {"hang", "crash", "report", "wrong"}  # the same, in both runs
    found.problems = problems + [problem for problem in found.problems if problem.kind not in twice]
    found.problems += vetting.result() if vetting else []
    if baseline:
        reasons = baseline.result().reasons((work / "main.o").read_bytes())
        found.problems += [Problem("refused", reason) for reason in reasons]
    return found


def object_vetting(exercise: Exercise, work: Path, toolchain: Toolchain) -> ObjectVetting:
    """By what the skeleton's object has, which is compiled where it is not there, or older than what it is made of."""
    recipe = toolchain.recipe(False)
    made = work / "skeleton" / "main.o"
    of = [exercise.skeleton, exercise.main, *(path for path in libraries_of(recipe) if path.is_file())]
    if not made.is_file() or any(path.stat().st_mtime >= made.stat().st_mtime for path in of):
        build(exercise, exercise.folder, made.parent, recipe)
    keeps_its_own = toolchain.can_count and checks_assembly()
    return ObjectVetting(made.read_bytes(), libraries_of(recipe), keeps_its_own)


def refusals(exercise: Exercise, source: Path, toolchain: Toolchain) -> list[Problem]:
    """What the grader refuses a source for, without running it."""
    compiler = replaced(toolchain.recipe(False).compile, "x", "x")[:-4]
    shown = source.relative_to(exercise.root) if source.is_relative_to(exercise.root) else source
    problems = []
    for reason in Vetting(exercise, compiler).reasons(source.read_bytes()):
        line = re.match(r"line (\d+): ", reason)
        problems.append(Problem("refused", reason, ((str(shown), int(line[1])),) if line else ()))
    return problems


@contextmanager
def stopping_all() -> Iterator[None]:
    """Ctrl-C reaches this thread alone: the programs that the others wait for are ended, too."""
    stopped.clear()
    try:
        yield
    except BaseException:
        stop_running()
        raise


def same_code(one: Path, other: Path) -> bool:
    """Whether two sources differ in nothing but comments and white space."""
    first, second = one.read_text(encoding="utf-8", errors="replace"), other.read_text(encoding="utf-8")
    return tokens_of(without_comments(first)) == tokens_of(without_comments(second))


def check_all(
    exercise: Exercise, program: Path, work: Path, limits: Limits, prefix: Sequence[str], on_cpu_layer: bool
) -> tuple[list[Problem], int]:
    """The problems of the ordinary runs, and how many results were compared. Ends after the first run that has
    problems. A kernel that is right must be right in reverse order, too, where there is an order to choose."""
    compared = 0
    in_reverse = [f"{flags} --order reverse" for flags in exercise.checks if on_cpu_layer]
    for flags in [*exercise.checks, *in_reverse]:
        done = run(program, [*shlex.split(flags), "--check-only"], work / "report.json", limits, prefix=prefix)
        if problem := ending(done, exercise, flags):
            return [problem], compared
        checks = done.document.get("checks", [])
        compared += 0 if flags in in_reverse else len(checks)
        if problems := problems_of_checks(checks):
            return [with_order(each) for each in problems] if flags in in_reverse else problems, compared
        if done.code != 0 or not checks:
            text = (
                f"with {flags} the program ended with exit code {done.code}, and its report says nothing against it:\n"
                f"{last_lines(done.output)}"
            )
            return [Problem("report", text)], compared
    return [], compared


def with_order(problem: Problem) -> Problem:
    """Of a run in reverse order, after all were right in the usual one."""
    text = (
        f"{problem.text}\nThis is so where blocks, warps and lanes get their turns in reverse order (--order reverse), "
        "and not in the usual one: the result depends on who comes first. Is a barrier or a lock missing?"
    )
    return replace(problem, text=text)


def ending(done: Run, exercise: Exercise, flags: str) -> Problem | None:
    """What is wrong with the way that a run has ended, if it has no report."""
    if done.timed_out:
        return Problem(
            "hang",
            f"with {flags} the program had not ended after {done.seconds:.0f} s; is there a loop that never ends, or "
            "that takes far too many steps?",
        )
    if done.signal is not None:
        by = signal_name(done.signal)
        return Problem("crash", f"with {flags} the program was ended by {by}:\n{last_lines(done.output)}")
    if not done.document:
        return Problem(
            "report",
            f"with {flags} the program ended with exit code {done.code} before it had written its report:\n"
            f"{last_lines(done.output)}",
        )
    if done.document.get("context", {}).get("stage") != exercise.id:
        return Problem("report", f"with {flags} the program wrote a report that is not its own")
    return None


def signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} ({signal.strsignal(number)})"
    except ValueError:
        return f"signal {number}"


def last_lines(text: str, count: int = 12) -> str:
    return "\n".join(text.strip().splitlines()[-count:])


def problems_of_checks(checks: Sequence[Json]) -> list[Problem]:
    """One problem for each kind: the first check that has it, with how many others have it, too."""
    found: dict[str, list[Problem]] = {}
    for check in checks:
        if check["verdict"] not in ACCEPTED:
            problem = problem_of_check(check)
            found.setdefault(problem.kind, []).append(problem)
    problems = []
    for alike in found.values():
        others = f"\n({len(alike) - 1} more of the {len(checks)} checks of this run fail.)" if len(alike) > 1 else ""
        problems.append(Problem(alike[0].kind, alike[0].text + others, alike[0].places))
    return problems


def problem_of_check(check: Json) -> Problem:
    variant = f", {', '.join(check['without'])} null" if check["without"] else ""
    variant += f", rows padded by {check['row_padding']}" if check["row_padding"] else ""
    variant += f", moved {check['misalign']} elements off their alignment" if check["misalign"] else ""
    shape = f"{check['rows']} x {check['cols']}" + (f" x {check['pixels']}" if "pixels" in check else "")
    name = f"{check['variant']} on input {check['input']}, {shape}, {check['dtype']}{variant}"
    if check["error"]:
        return Problem("error", f"{name}: {check['error']}", places_in(check["error"]))
    if check["damage"]:
        return Problem("damage", f"{name}: {'; '.join(check['damage'])}")
    if check["verdict"] == "unexpected pass":
        return Problem("wrong", f"{name}: right, where its program says that it {check['expectation']}")
    lines = [f"{name}: {check['differing']} of {check['compared']} elements are wrong."]
    if check.get("mismatches"):
        first = check["mismatches"][0]
        got = "was never written" if first["never_written"] else f"is {figure(first['got'])}"
        lines.append(
            f"The first: {first['tensor']} at row {first['row']}, column {first['col']} {got}, and should be "
            f"{figure(first['want'])}."
        )
    if check["likely_cause"]:
        lines.append(f"What this usually means: {check['likely_cause']}")
    return Problem("wrong", "\n".join(lines))


def figure(value: float | str | None) -> str:
    return f"{value:.7g}" if isinstance(value, (int, float)) else str(value)


def places_in(text: str) -> tuple[tuple[str, int], ...]:
    """The source lines that a sentence names."""
    found = [(file, int(line)) for file, line in re.findall(r"([\w./-]+\.(?:cuh|cu|h)):(\d+)", text)]
    return tuple(dict.fromkeys(found))


def count_all(
    exercise: Exercise, built: Built, work: Path, limits: Limits, prefix: Sequence[str], found: Judgement, drawn: str,
    source: str,
) -> None:
    """Adds what the counting build finds: first what is wrong, then the goals."""
    if built.program is None:
        found.problems.append(Problem("compile", built.errors))
        return
    flags = [*shlex.split(drawn), "--input", "normal", "--count"]
    done = run(built.program, flags, work / "counts.json", limits, SAME_EVERYWHERE, prefix)
    if problem := ending(done, exercise, f"{drawn} --count"):
        found.problems.append(problem)
        return
    found.counted = True
    entries = done.document.get("counts", [])
    for kernel in (kernel for entry in entries for kernel in entry["kernels"]):
        for finding in kernel["findings"]:
            places = ((finding["file"], finding["line"]), (finding["other_file"], finding["other_line"]))
            times = f" ({finding['count']} times)" if finding["count"] > 1 else ""
            known = tuple(dict.fromkeys(place for place in places if place[0]))
            problem = Problem(finding["kind"], finding["text"] + times, known)
            if all(problem.text != other.text for other in found.problems):
                found.problems.append(problem)
    for line in re.findall(r"NOT COUNTED: (.*)", done.output)[:1]:
        found.problems.append(Problem("uncounted", line))
    if not entries or any(entry["verdict"] not in ACCEPTED for entry in entries):
        if all(entry["error"] for entry in entries):
            return  # there is nothing to count; the ordinary run says what is wrong
        wrong = next(entry for entry in entries if entry["verdict"] not in ACCEPTED)
        text = f"the results are wrong at {wrong['rows']} x {wrong['cols']}, {wrong['dtype']}, where it is counted."
        found.problems.append(Problem("wrong", text))
        return
    found.goals = judge_goals(exercise, entries, source)
    for result in found.goals:
        if not result.met:
            found.problems.append(Problem("goal", f"{result.text()}\n{result.goal.because}"))


# --- Speed, on a GPU -----------------------------------------------------------------------------------------------
def judge_speed(
    exercise: Exercise, program: Path, stage_program: Path, work: Path, limits: Limits = Limits()
) -> tuple[float | None, Problem | None]:
    """The share of the speed of the stage's variant that the program reaches on this GPU, and what there is against
    it."""
    if exercise.speed is None:
        return None, None
    # Of the exercise's program, and of the stage's; by operation, type and shape.
    times: list[dict[tuple[Any, ...], float]] = []
    for path, flags in ((program, ""), (stage_program, f"--variant {exercise.variant}")):
        words = [*shlex.split(f"{exercise.speed.flags} {flags}"), "--input", "normal", "--time", "cold"]
        done = run(path, words, work / "times.json", limits)
        timings = timings_of(done.document, False)
        times.append({(timing.operation, timing.dtype, timing.rows, timing.cols): timing.seconds for timing in timings})
        if not timings:
            return None, Problem("speed", f"{path.name} could not be timed:\n{last_lines(done.output)}")
    return compare_times(exercise, times[0], times[1], stage_program.name)


def compare_times(
    exercise: Exercise, mine: Mapping[tuple[Any, ...], float], theirs: Mapping[tuple[Any, ...], float], stage: str
) -> tuple[float, Problem | None] | tuple[None, Problem]:
    """The share of the speed of the stage's program, where it is least, by times in seconds."""
    assert exercise.speed is not None
    # The stage has more types and operations than the exercise: its bf16 says nothing about the exercise's fp32.
    if missing := mine.keys() - theirs.keys():
        what = " ".join(map(str, min(missing)))
        return None, Problem("speed", f"{stage} times no {what}, and so there is nothing to compare the time with")
    slowest = min(mine, key=lambda what: theirs[what] / mine[what])
    seconds = (mine[slowest], theirs[slowest])
    share = seconds[1] / seconds[0]
    if share >= exercise.speed.at_least:
        return share, None
    return share, Problem(
        "speed",
        f"{seconds[0] * 1e6:.4g} µs, where {exercise.variant} of stage {exercise.stage[:2]} takes "
        f"{seconds[1] * 1e6:.4g} µs: {share:.0%} of its speed, and {exercise.speed.at_least:.0%} is wanted",
    )
