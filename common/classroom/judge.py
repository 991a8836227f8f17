#!/usr/bin/env python3
"""./worklog judge: judges a kernel from a file of plain CUDA, on the CPU layer.

    ./worklog judge my.cu --as layernorm_forward     any operation of the ladder; --as leetgpu-113 is the same
    ./worklog judge my.cu --as rmsnorm_forward --json verdict.json
    ./worklog judge my.cu --as layernorm_forward --time      and on this machine's GPU (judge_gpu.py)

my.cu has an entry, extern "C" void solve(...), with device pointers: docs/judging.md. It is compiled and run in the
sandbox of ./worklog grade, and another program judges its results. The exit code is 0 where it is right and nothing was
found, 1 where it is wrong, 2 where it cannot be judged: a file that is not there, no solve(), an error of the
compiler, or what the CPU layer has not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.dont_write_bytecode = True
import grade  # noqa: E402
from exercises import ROOT, ExerciseError  # noqa: E402
from isolation import MEBIBYTE, Outcome, Sandbox  # noqa: E402
from judge_gpu import KEPT_FROM_GPU, OnGpu, gpu_unit  # noqa: E402
from judging import ACCEPTED, COUNTS, count_named, last_lines, places_in, problems_of_checks  # noqa: E402
from not_on_cpu import uses  # noqa: E402
from plain_cuda import Rewritten, place, rewritten, with_headers  # noqa: E402
from solve_entry import LEETGPU, TENSORS, Entry, find_entry  # noqa: E402
from toolchain import Toolchain  # noqa: E402
from vetting import MOST_BYTES  # noqa: E402

from counting import COUNTS as COUNTED_LADDER, kernels_of  # noqa: E402
from ladder import HEAD, committed_counts, legend, line_of, table  # noqa: E402
from prediction import GPUS, Compared, Gpu, Rung, gpu_named, measured_seconds, rungs_of  # noqa: E402
from results import Repository, ReportError, Timing, read_json  # noqa: E402
from text import short_kernel, significant  # noqa: E402

SEED = 1
FIRST = "--input normal"
OTHERS = "--input uniform,arange,large_mean,constant,tiny_variance,outlier_channels,huge,nan_row"
# What must be right: every input at one shape, and ordinary values at shapes that are no power of two, shorter than a
# warp, and longer than a block has threads.
CHECKED = {
    True: ("33x133", "2x3,3x1000,5x4100"),
    False: ("1x133", "1x3,1x1000,1x4100"),  # of a solve() that takes one size
}
CALLED = "the call of solve()"  # where a compiler names a file
COUNTED = {True: "1024x1024", False: "1x65536"}
LADDER = "1024x1024"
# The kernels of the ladder in README.md: who writes a LayerNorm stands between two of them. Of the other operations it
# is two of all that there are.
RUNGS = (
    "01 small_blocks", "02 two_pass", "03 block_per_row", "04 cached", "05 held", "05 layer_norm",
)
# Its sums overflow in every kernel of the ladder before stage 05: told, and not counted against a kernel.
HARDEST = "huge"
SHOWN_COUNTS = (
    "load_sectors_per_request", "store_sectors_per_request", "lanes_per_load_request", "bank_conflicts",
    "barriers_per_row", "shuffles_per_row", "atomics_per_row", "launches",
)
# In the order in which they are told: what may be the cause of the others first.
KINDS = (
    "hang", "crash", "report", "error", "out_of_bounds", "misaligned", "uninitialized_read", "shared_race",
    "global_write_race", "global_race", "damage", "wrong",
)
UNDECLARED = re.compile(r"[‘'](cu(?:da|rand|blas|dnn|[A-Z])\w*|__\w+)[’'] (?:was not declared|does not name)")
LINE_OF_ERROR = re.compile(r"\(\d+\): (?:catastrophic )?error|:\d+: (?:fatal )?error|undefined reference|ptxas error")
ENDLESS = ("no block has started or finished", "std::bad_alloc")  # as the CPU layer says it
MOST_SHOWN = 6  # problems
LONGEST_NAME = 20  # in a table
Json = dict[str, Any]


@dataclass(frozen=True)
class Standing:
    """A kernel on the ladder."""

    name: str  # "03 block_per_row"; empty: the one that is judged
    predicted: float  # seconds
    measured: float | None
    line: list[str]  # of the table

    def document(self) -> Json:
        measured_us = None if self.measured is None else round(self.measured * 1e6, 2)
        return {"kernel": self.name, "predicted_us": round(self.predicted * 1e6, 2), "measured_us": measured_us}


@dataclass
class Verdict:
    """All that was found of a source."""

    file: str
    entry: Entry
    checks: list[Json] = field(default_factory=list)  # as the harness reports them
    problems: list[Json] = field(default_factory=list)  # kind, text, places
    found: set[tuple[str, int, str]] = field(default_factory=set)  # of the findings, those that are among them
    told: list[str] = field(default_factory=list)  # sentences that are no problems
    counts: dict[str, float] = field(default_factory=dict)
    kernels: list[str] = field(default_factory=list)
    ladder: list[Standing] = field(default_factory=list)  # by predicted time, the slowest first
    between: str = ""
    predicted_us: float | None = None
    gpu: Json = field(default_factory=dict)
    warnings: str = ""
    printed: str = ""
    isolation: str = ""
    seconds: float = 0

    @property
    def is_right(self) -> bool:
        return not self.problems and bool(self.checks)

    def document(self) -> Json:
        wrong = [each for each in self.checks if each["verdict"] not in ACCEPTED]
        return {
            "file": self.file,
            "operation": self.entry.operation,
            "solve": list(self.entry.words),
            "verdict": "right" if self.is_right else "wrong",
            "exit_code": 0 if self.is_right else 1,
            "results": {"right": len(self.checks) - len(wrong), "all": len(self.checks)},
            "fails_on": [{key: each[key] for key in ("input", "rows", "cols")} for each in wrong],
            "problems": self.problems,
            "told": self.told,
            "kernels": self.kernels,
            "counts": self.counts,
            "predicted_us": self.predicted_us,
            "between": self.between,
            "ladder": [each.document() for each in self.ladder],
            "gpu": self.gpu,
            "isolation": self.isolation,
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Ran:
    """What came of one run."""

    ending: Json  # kind and text, where it did not end as it should; else empty
    checks: list[Json]  # of what it came to
    counts: list[Json]  # of each task
    printed: str


# --- Making it ready --------------------------------------------------------------------------------------------------
def refuse_what_is_lacking(text: str, name: str) -> None:
    """Raises ExerciseError for what the CPU layer has not: one sentence with line and alternative."""
    for line, sentence in uses(text):
        raise ExerciseError(f"{place(text, line, name)}: {sentence}")


def unit_of(source: Rewritten, entry: Entry, name: str, gpu: Gpu) -> str:
    """What is compiled: the source between what stands for nvcc and the function that calls solve()."""
    names = "".join(f" struct {each};" for each in sorted(source.deduced))
    kernels = f"namespace worklog::plain::kernels {{{names} }}\n" if names else ""
    head = f'#undef NDEBUG\n#include "common/classroom/plain_cuda.h"\n{kernels}#line 1 "{name}"\n'
    device = f'extern "C" const unsigned worklog_multiprocessors = {gpu.multiprocessors};\n'
    return f'{head}{source.text}\n#line 1 "{CALLED}"\n{device}{entry.shim}'


class Holder(grade.Grader):
    """Builds and runs a source as a submission is built and run; what calls solve() is among the parts."""

    def parts(self, target: str) -> list[str]:
        return [*super().parts(target), *(super().parts("judging_solve") if target == "grading_submission" else [])]

    def build_unit(self, unit: str, folder: Path) -> grade.Build:
        made_ready = SimpleNamespace(main=unit, object_vetting=None)
        return self.build(made_ready, b"", 0, folder, self.toolchain.can_count, self.submission_parts)

    def run_tasks(self, program: Path, tasks: Path, slot: int, folder: Path) -> tuple[Outcome, Path, list[Json]]:
        """How it ended, the file of its outcomes, and what was counted of each task."""
        return self.run(program, tasks, slot, folder, self.toolchain.can_count)


class Uncounting(Toolchain):
    """As if nothing could be counted: of a loop that never ends, counting fills the memory, and hides the line."""

    @property
    def can_count(self) -> bool:
        return False


class Judge:
    """Judges one source: builds it, runs it, and has the results judged."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.options = options
        self.work = work
        of_gpu = grade.gpu_toolchain() if options.time else None  # says so at once where there is no GPU
        self.gpu_name = options.gpu or gpu_here(ROOT) if of_gpu else options.gpu or "h200"
        self.gpu = gpu_named(self.gpu_name)
        self.toolchain = Toolchain(ROOT, options.build)
        self.toolchain.make_parts(("judging_parts",))
        self.sandbox = Sandbox(options.isolation)
        if of_gpu and not self.sandbox.way.has_namespaces and options.isolation != "limits":
            raise ExerciseError(
                "--time needs bubblewrap: a program that uses the GPU cannot be kept apart by limits alone. Where you "
                "trust the file, --isolation limits will do"
            )
        self.holder = self.held(self.toolchain)
        self.on_gpu = OnGpu(of_gpu, self.holder, work) if of_gpu else None

    def held(self, toolchain: Toolchain) -> Holder:
        memory, work = self.options.memory * MEBIBYTE, self.work
        return Holder(toolchain, self.sandbox, work, work, SEED, self.options.timeout, memory, vets=False)

    def judge(self) -> Verdict:
        begun = time.monotonic()
        path, name = self.options.file, self.options.file.name
        self.source = with_headers(path, MOST_BYTES)
        self.entry = find_entry(self.source, self.options.operation, name)
        source = rewritten(self.source, name)
        refuse_what_is_lacking(source.text, name)
        verdict = Verdict(str(path), self.entry, told=list(self.entry.notes), isolation=self.sandbox.way.note)
        if not self.sandbox.way.has_namespaces:
            verdict.told.append(self.sandbox.way.note)
        self.unit = unit_of(source, self.entry, name, self.gpu)
        program = self.build(verdict)
        with ThreadPoolExecutor(1) as pool:
            try:
                counted = pool.submit(self.run, program, self.counted_at, FIRST, "counted", 1)
                self.check(verdict, program)
                self.take_counts(verdict, counted.result())
            except BaseException:  # Ctrl-C: the other thread need not go on
                self.sandbox.stop()
                raise
        verdict.problems.sort(key=lambda each: KINDS.index(each["kind"]) if each["kind"] in KINDS else len(KINDS))
        if self.on_gpu:
            self.judge_on_gpu(self.on_gpu, verdict)
        verdict.seconds = round(time.monotonic() - begun, 1)
        return verdict

    @property
    def has_rows(self) -> bool:
        return not {"rows", "groups"}.isdisjoint(self.entry.words)

    @property
    def runs(self) -> list[tuple[str, str]]:
        """Shapes and inputs of each run that must be right."""
        if self.options.shapes:
            return [(self.options.shapes, FIRST), (self.options.shapes, OTHERS)]
        every, others = CHECKED[self.has_rows]
        return [(every, FIRST), (every, OTHERS), (others, FIRST)]

    @property
    def counted_at(self) -> str:
        return (self.options.shapes or COUNTED[self.has_rows]).rpartition(",")[2]

    def flags(self, shapes: str, inputs: str) -> str:
        without = f" --without {','.join(self.entry.without)}" if self.entry.without else ""
        types = f"--dtype {self.entry.dtype} --param-dtype {self.entry.param_dtype}"
        return f"--shapes {shapes} {inputs} {types} --eps {self.options.eps}{without}"

    def plain(self, text: str) -> str:
        """As a message names the source's kernels and lines."""
        name = self.options.file.name
        return by_name_removed(grade.plain(text)).replace(f"./{name}", name)

    def build(self, verdict: Verdict) -> Path:
        """The program, where every access of its kernels is counted if this build can count. Raises ExerciseError."""
        built = self.holder.build_unit(self.unit, self.work / "program")
        said = self.plain(built.said)
        if built.program is None:
            unknown = dict.fromkeys(UNDECLARED.findall(said))
            lacking = "".join(f"\n{name} is not on the CPU layer (common/simt/README.md)." for name in unknown)
            raise ExerciseError(f"{self.options.file.name} does not compile:\n{said}{lacking}")
        verdict.warnings = said
        return built.program

    def call_judge(self, verb: str, path: Path, flags: str, report: Path | None = None) -> list[Json]:
        """The checks of the trusted program; none where it only prepares."""
        command = [str(self.toolchain.build / "bin/solve_judge"), verb, str(path), *flags.split(), "--seed", str(SEED)]
        command += ["--json", str(report)] if report else []
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=600, env=os.environ | {"WORKLOG_SOLVE": self.entry.told}, check=False,
        )
        if done.returncode not in (0, 1) or (report and not report.is_file()):
            raise ExerciseError(last_lines(done.stdout).removeprefix("solve: "))
        return json.loads(report.read_text(encoding="utf-8"))["checks"] if report else []

    def run(
        self, program: Path, shapes: str, inputs: str, name: str, slot: int, holder: Holder | None = None
    ) -> Ran:
        flags = self.flags(shapes, inputs)
        tasks = self.work / f"{name}.tasks"
        self.call_judge("prepare", tasks, flags)
        done, outcomes, counts = (holder or self.holder).run_tasks(program, tasks, slot, self.work / name)
        report = self.work / f"{name}.json"
        checks = self.call_judge("judge", outcomes, flags, report)
        for check in checks:
            check["error"] = self.plain(check["error"])
            check["without"] = []  # what solve() does not take
        ending = grade.ending_of(done, f"shapes {shapes}") or {}
        reached = [check for check in checks if check["error"] != grade.NOT_REACHED]
        if not ending and len(reached) < len(checks):
            said = last_lines(self.plain(done.output))
            ending = {"kind": "report", "text": f"solve() ended the program{': ' * bool(said)}{said}"}
        own = [line for line in done.output.strip().splitlines() if not line.startswith("simt: ")]  # checks have those
        return Ran(ending, reached, counts, "\n".join(own))

    def check(self, verdict: Verdict, program: Path) -> None:
        """What comes out for every input and at several shapes, and what is found meanwhile."""
        for number, (shapes, inputs) in enumerate(self.runs):
            ran = self.run(program, shapes, inputs, f"run-{number}", 0)
            if seems_endless(ran) and self.toolchain.can_count:
                ran = self.run_uncounted(shapes, inputs)
            verdict.checks += ran.checks
            verdict.printed = verdict.printed or ran.printed
            self.take_findings(verdict, ran)
            if ran.ending:
                add_problem(verdict, ran.ending["kind"], self.plain(ran.ending["text"]))
                return
            if all(check["error"] for check in ran.checks):  # and so it would be with the others
                break
        hardest = [check for check in verdict.checks if check["input"] == HARDEST and check["verdict"] not in ACCEPTED]
        held = [check for check in verdict.checks if check not in hardest]
        for problem in problems_of_checks(held):
            add_problem(verdict, problem.kind, self.plain(problem.text).removeprefix("solve "))
        if hardest and all(check["verdict"] in ACCEPTED for check in held):
            verdict.told.append(
                f"On input {HARDEST}, near the top of the type, it is not right: its sums overflow. So do those of the "
                "ladder before stage 05, and that does not count against it."
            )
        verdict.checks = held

    def run_uncounted(self, shapes: str, inputs: str) -> Ran:
        holder = self.held(Uncounting(ROOT, self.options.build))
        built = holder.build_unit(self.unit, self.work / "uncounted")
        if built.program is None:
            raise ExerciseError(f"{self.options.file.name} does not compile:\n{self.plain(built.said)}")
        return self.run(built.program, shapes, inputs, "run-uncounted", 0, holder)

    def take_findings(self, verdict: Verdict, ran: Ran) -> None:
        try:
            for finding in (each for entry in ran.counts for kernel in entry["kernels"] for each in kernel["findings"]):
                add_finding(verdict, finding, self.plain)
        except (KeyError, TypeError, AttributeError):
            pass  # the counts are told to be missing, where they are needed

    def take_counts(self, verdict: Verdict, ran: Ran) -> None:
        """Of the run that is counted: what it found, and what its kernels ask of memory."""
        self.take_findings(verdict, ran)
        if ran.ending and not verdict.problems:
            add_problem(verdict, ran.ending["kind"], self.plain(ran.ending["text"]))
        if not self.toolchain.can_count:
            verdict.told.append("Nothing was counted, and races were not looked for: that needs a build with g++.")
            return
        if not ran.checks or ran.checks[-1]["verdict"] not in ACCEPTED:
            for problem in [] if verdict.problems else problems_of_checks(ran.checks):
                add_problem(verdict, problem.kind, self.plain(problem.text).removeprefix("solve "))
            verdict.told.append("What it costs, and where that is on the ladder, is told once it is right.")
            return
        try:
            if not verdict.problems and (text := grade.made_elsewhere(ran.counts)):
                add_problem(verdict, "not by a kernel", text)
                return
            self.compare(verdict, self.described(ran.checks[-1]) | ran.counts[-1])
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError):
            if not verdict.problems:
                add_problem(verdict, "uncounted", "the program has written no counts, or none that can be read")

    def described(self, check: Json) -> Json:
        """A check as the reports name a launch."""
        known = {"stage": "", "variant": self.options.file.stem, "bytes": 0, "pixels": 1}
        return known | {key: check[key] for key in ("operation", "dtype", "rows", "cols")}

    def compare(self, verdict: Verdict, entry: Json) -> None:
        """What it costs, and where that stands on the ladder."""
        entry["kernels"] = [kernel | {"kernel": self.plain(kernel["kernel"])} for kernel in entry["kernels"]]
        verdict.kernels = [
            f"{short_kernel(kernel['kernel'])} <<<{extent(kernel['grid'])}, {extent(kernel['block'])}>>>"
            for kernel in entry["kernels"]
        ]
        verdict.counts = {name: round(COUNTS[name].of(entry), 4) for name in SHOWN_COUNTS}
        matrix = "x" if "x" in self.entry.words else "dy"
        verdict.counts[f"passes_over_{matrix}"] = round(count_named(f"passes_over_{matrix}").of(entry), 4)
        mine = Rung(list(kernels_of(entry)))
        seconds = mine.prediction(self.gpu).seconds
        verdict.predicted_us = round(seconds * 1e6, 2)
        line = line_of(f">>/{self.options.file.stem[:LONGEST_NAME]}/solve", mine, self.gpu, None)
        standings = [Standing("", seconds, None, line)]
        if f"{entry['rows']}x{entry['cols']}" == LADDER:
            standings += ladder(Repository(ROOT), self.entry, self.gpu, self.gpu_name)
        verdict.ladder = sorted(standings, key=lambda each: -each.predicted)
        verdict.between = between([each.name for each in verdict.ladder], "predicted")

    # --- On a GPU ---
    def judge_on_gpu(self, on_gpu: OnGpu, verdict: Verdict) -> None:
        """What comes out on this machine's GPU; and the time of what is right."""
        if any(problem["kind"] in KEPT_FROM_GPU for problem in verdict.problems):
            verdict.told.append("It was not run on the GPU: what does not run to its end here could hang there.")
            return
        program, against = on_gpu.build(gpu_unit(self.source, self.entry, self.options.file.name))
        if program is None and not LINE_OF_ERROR.search(against):  # it is not the source's fault
            verdict.told.append(f"It was not run on the GPU: {self.plain(against)}")
            return
        if program is None:
            add_problem(verdict, "gpu", self.plain(against))
            return
        found = on_gpu.check(program, [self.flags(*each) for each in self.runs], HARDEST)
        for problem in found.problems:
            text = self.plain(problem.text).removeprefix("solve ")
            add_problem(verdict, problem.kind, f"on this GPU: {text}")
        verdict.isolation += f" {on_gpu.note}"
        if found.checks and verdict.is_right:
            on_gpu.time(program, self.flags(self.counted_at, FIRST), found)
        verdict.told += found.told
        if not found.checks:
            return
        verdict.gpu = {"name": found.gpu, "results": {"right": found.right, "all": len(found.checks)}}
        if timing := found.timing:
            verdict.gpu |= {
                "shape": f"{timing.rows}x{timing.cols}", "us": round(timing.seconds * 1e6, 3),
                "share_of_copy": timing.share_of_copy, "ladder": self.measured_ladder(timing, found.short),
            }
            verdict.gpu["between"] = between([each["kernel"] for each in verdict.gpu["ladder"]], "measured")

    def measured_ladder(self, timing: Timing, gpu: str) -> list[Json]:
        """By measured time, the slowest first: the ladder's kernels, where there are results of such a GPU, and this
        one, which has no name."""
        repository = Repository(ROOT)
        of_source = {"kernel": "", "us": round(timing.seconds * 1e6, 3)}
        wanted = (timing.operation, timing.dtype, timing.shape, timing.mode)
        others = [
            {"kernel": f"{stage[:2]} {each.variant}", "us": round(each.seconds * 1e6, 3)}
            for stage in repository.stages() if repository.has_results(stage, gpu)
            for each in repository.stage_results(stage, gpu).timings
            if (each.operation, each.dtype, each.shape, each.mode) == wanted and "article_" not in each.variant
        ]
        return sorted([of_source, *others], key=lambda each: -float(each["us"]))


def seems_endless(ran: Ran) -> bool:
    errors = " ".join(check["error"] for check in ran.checks)
    return ran.ending.get("kind") in ("memory", "hang") or any(words in errors for words in ENDLESS)


def extent(of: Sequence[int]) -> str:
    """As <<<>>> would be given it."""
    return str(of[0]) if list(of[1:]) == [1, 1] else f"dim3({', '.join(map(str, of))})"


def by_name_removed(text: str) -> str:
    """A kernel that is called rather than named has the name of plain_cuda.h's by_name<>."""
    return re.sub(r"(?:void )?by_name<(\w+)>(?:\(\))?", r"\1", text)


def add_problem(verdict: Verdict, kind: str, text: str) -> None:
    places = [{"file": file, "line": line} for file, line in places_in(text)]
    verdict.problems.append({"kind": kind, "text": text, "places": places})


def add_finding(verdict: Verdict, finding: Json, plain: Callable[[str], str]) -> None:
    """Once for each kind, line and array."""
    text = plain(str(finding["text"]))
    name = finding["file"], finding["line"], re.sub(r"\d+", "", text.partition(": ")[2])
    if name in verdict.found:
        return
    verdict.found.add(name)
    times = f" ({finding['count']} times)" if finding["count"] > 1 else ""
    add_problem(verdict, str(finding["kind"]), text + times)


def ladder(repository: Repository, entry: Entry, gpu: Gpu, gpu_name: str) -> list[Standing]:
    """Of each variant of a stage that does the same, where it stands."""
    multiprocessors = read_json(ROOT / COUNTED_LADDER, ROOT)["context"]["multiprocessors"]  # on which it was counted
    counted = committed_counts(repository, LADDER, entry.dtype, int(multiprocessors)).kernels
    kernels = [
        kernel for of_stage in counted.values() for kernel in of_stage
        if kernel["operation"] == entry.judged_as and not kernel["variant"].startswith("article_")
    ]
    found = []
    for name, rung in rungs_of(kernels).items():
        predicted = rung.prediction(gpu)
        measured = measured_seconds(repository, gpu_name, name)
        beside = Compared(name, predicted, *measured) if measured else None
        stage, variant = name.split("/")[:2]
        line = line_of(name, rung, gpu, beside)
        found.append(Standing(f"{stage[:2]} {variant}", predicted.seconds, measured[0] if measured else None, line))
    return found


def between(all_names: Sequence[str], time: str) -> str:
    """Where the one without a name stands among the others, which are slower before it and faster behind it. `time`:
    which that is, predicted or measured."""
    names = [name for name in all_names if not name or name in RUNGS] if RUNGS[0] in all_names else all_names
    if len(names) < 2:
        return ""
    at = names.index("")
    if at == 0:
        return f"By the {time} time you are behind {names[1]}, the slowest of the ladder."
    if at == len(names) - 1:
        return f"By the {time} time you are ahead of {names[at - 1]}, the fastest of the ladder."
    return f"By the {time} time you are between {names[at - 1]} and {names[at + 1]}."


def gpu_here(root: Path) -> str:
    """The short name of this machine's GPU, where gpus.json knows it; else that of the one that is predicted for."""
    asked = "nvidia-smi --query-gpu=name --format=csv,noheader"
    names = subprocess.run(asked, shell=True, capture_output=True, text=True, check=False).stdout.splitlines()
    known = {entry["name"]: name for name, entry in read_json(root / GPUS, root).items()}
    return next((known[name.strip()] for name in names if name.strip() in known), "h200")


# --- What is said -----------------------------------------------------------------------------------------------------
def report_of(verdict: Verdict, gpu: Gpu) -> str:
    right = sum(check["verdict"] in ACCEPTED for check in verdict.checks)
    headline = "RIGHT" if verdict.is_right else "WRONG"
    lines = [f"{verdict.file} as {verdict.entry.operation}: {headline}"]
    lines.append(f"{right} of {len(verdict.checks)} results are right.{failing(verdict)}")
    for problem in verdict.problems[:MOST_SHOWN]:
        text = problem["text"].strip().replace("\n", "\n  ")
        lines += ["", f"{problem['kind'].replace('_', ' ').upper()}", f"  {text}"]
    if len(verdict.problems) > MOST_SHOWN:
        lines += ["", f"{len(verdict.problems) - MOST_SHOWN} more problems are in what --json writes."]
    lines += ["", *verdict.told] if verdict.told else []
    if verdict.warnings and not verdict.is_right:
        lines += ["", "The compiler warned:", *verdict.warnings.splitlines()[:6]]
    if verdict.printed:
        lines += ["", "It printed:", *verdict.printed.splitlines()[-8:]]
    lines += lines_of_gpu(verdict)
    if verdict.counts:
        lines += ["", f"Counted on this CPU, {verdict.entry.dtype}:"]
        lines += [f"  {kernel}" for kernel in verdict.kernels]
        shown = {name: value for name, value in verdict.counts.items() if value or name == "bank_conflicts"}
        lines += [f"  {value:>10,.6g}  {count_named(name).phrase}" for name, value in shown.items()]
    if verdict.predicted_us is not None:
        predicted = f"Predicted for an {gpu.name}: {significant(verdict.predicted_us)} µs. {verdict.between}"
        lines += ["", predicted.strip(), ""]
        is_measured = any(each.measured for each in verdict.ladder)
        of_all = {verdict.entry.operation: [each.line for each in verdict.ladder]}
        lines += [table(HEAD, of_all), "", legend(gpu, is_measured)]
    return "\n".join(lines)


def lines_of_gpu(verdict: Verdict) -> list[str]:
    of = verdict.gpu
    if not of:
        return []
    lines = ["", f"On this machine's GPU, {of['name']}: {of['results']['right']} of {of['results']['all']} results are "
             "right."]
    if "us" not in of:
        return lines
    share = f", {of['share_of_copy']:.0%} of the speed of a copy" if of["share_of_copy"] else ""
    lines.append(f"At {of['shape'].replace('x', ' x ')}, with a cold cache: {of['us']:.4g} µs{share}. {of['between']}")
    others = ", ".join(f"{each['kernel'] or 'yours'} {each['us']:.4g}" for each in of["ladder"])
    return [*lines, f"Measured, in µs: {others}"] if len(of["ladder"]) > 1 else lines


def failing(verdict: Verdict) -> str:
    """The inputs that it fails on, or those few that it is right on."""
    halves: dict[bool, list[str]] = {True: [], False: []}
    for check in verdict.checks:
        halves[check["verdict"] in ACCEPTED].append(f"{check['input']} at {check['rows']} x {check['cols']}")
    if not halves[True] or not halves[False]:
        return ""
    if len(halves[True]) < len(halves[False]):
        return f" It is right only on {', '.join(halves[True])}."
    return f" It fails on {', '.join(halves[False])}."


# --- The command ------------------------------------------------------------------------------------------------------
def operation_named(name: str) -> str:
    number = name.removeprefix("leetgpu-")
    if name in TENSORS:
        return name
    if number in LEETGPU:
        return LEETGPU[number]
    numbers = ", ".join(f"leetgpu-{each}" for each in LEETGPU)
    raise argparse.ArgumentTypeError(f"'{name}' is not known; there are {', '.join(TENSORS)}, {numbers}")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./worklog judge", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="a .cu file with an entry solve()")
    parser.add_argument(
        "--as", dest="operation", type=operation_named, required=True, metavar="OPERATION",
        help="what it computes: layernorm_forward, rmsnorm_forward and so on, or leetgpu-113",
    )
    parser.add_argument("--json", metavar="FILE", help="write the verdict there; - for the standard output, alone")
    parser.add_argument(
        "--gpu", help="for which GPU the time is predicted: h200, h100, rtx4050, t4 (h200; with --time this machine's)"
    )
    parser.add_argument("--shapes", help="judge it at these alone, such as 8x1024,1024x768; the last one is counted")
    parser.add_argument("--eps", type=float, default=1e-5, help="what solve() is given (1e-5)")
    parser.add_argument("--time", action="store_true", help="check and time it on this machine's GPU too")
    parser.add_argument("--timeout", type=int, default=12, help="seconds of processor time of a run (12)")
    parser.add_argument("--memory", type=int, default=2048, help="MiB that a run may take (2048)")
    parser.add_argument("--isolation", choices=("auto", "bubblewrap", "limits"), default="auto", help="as for grade")
    parser.add_argument("--build", type=Path, default=ROOT / "build/cpu", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not options.file.is_file():
        parser.error(f"there is no file {options.file}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    work = Path(tempfile.mkdtemp(prefix="worklog-grade-"))  # which grade.plain() takes out of messages
    work.chmod(0o711)
    try:
        judge = Judge(options, work)
        verdict = judge.judge()
    except (ExerciseError, ReportError, ValueError) as error:
        document = {"file": str(options.file), "verdict": "refused", "exit_code": 2, "reason": str(error)}
        write_json(options.json, document)
        print(f"worklog: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if options.json != "-":
        print(report_of(verdict, judge.gpu))
    write_json(options.json, verdict.document())
    return verdict.document()["exit_code"]


def write_json(path: str | None, document: Json) -> None:
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    if path == "-":
        sys.stdout.write(text)
    elif path:
        Path(path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
