"""./worklog judge --time: the source on this machine's GPU.

nvcc compiles the source as it is, the harness checks it there, and times what is right. Compiler and program run in the
sandbox, which is given NVIDIA's devices. Only what the CPU layer has run to its end gets so far: a kernel that hangs or
crashes there is not run on a GPU, which others may share. The program that times itself is the learner's, so that its
figures are for whoever wrote it, and for nobody's marks.
"""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

sys.dont_write_bytecode = True
import grade  # noqa: E402
from judging import ACCEPTED, Problem, last_lines, problems_of_checks, signal_name  # noqa: E402
from solve_entry import Entry  # noqa: E402
from toolchain import Toolchain  # noqa: E402

from results import Timing, timings_of  # noqa: E402

NO_DEVICE = "no CUDA device"  # as the harness says it
WALL_SECONDS = 60  # of a run, which takes one or two
# What may never end on a GPU, or take the device with it. A kernel of these is not run there.
KEPT_FROM_GPU = ("hang", "crash", "report", "error", "memory", "output")
# A wait for the GPU at the end of solve() would be timed, with the host's way there and back. What judge.py defines
# in front of the source calls these, and solve.cpp leaves the wait out while it is timed.
WAITS = MappingProxyType({
    "cudaDeviceSynchronize": "worklog_device_synchronize", "cudaStreamSynchronize": "worklog_stream_synchronize",
})
Json = dict[str, Any]


@dataclass
class GpuVerdict:
    """What came of a source on a GPU."""

    checks: list[Json] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    gpu: str = ""  # its name
    short: str = ""  # as files of results are named
    timing: Timing | None = None

    @property
    def right(self) -> int:
        return sum(check["verdict"] in ACCEPTED for check in self.checks)


def gpu_unit(source: str, entry: Entry, name: str) -> str:
    """What nvcc compiles: the source as it is, and behind it the function that calls solve()."""
    declared = "".join(
        f'extern "C" cudaError_t {ours}({"cudaStream_t" * theirs.startswith("cudaStream")});\n'
        for theirs, ours in WAITS.items()
    )
    names = {"main": "worklog_learners_main", **WAITS}
    defined = "".join(f"#define {theirs} {ours}\n" for theirs, ours in names.items())
    undefined = "".join(f"#undef {theirs}\n" for theirs in names)
    return f'#undef NDEBUG\n#include <cassert>\n{declared}{defined}#line 1 "{name}"\n{source}\n{undefined}{entry.shim}'


class OnGpu:
    """Builds, checks and times one source."""

    def __init__(self, toolchain: Toolchain, grader: grade.Grader, work: Path) -> None:
        """The parts of the gpu build are made here. `grader`: what compiles and links in its sandbox."""
        toolchain.make_parts(("judging_parts",))
        self.toolchain, self.grader, self.work = toolchain, grader, work
        self.recipe = toolchain.recipe(False)

    @property
    def note(self) -> str:
        """How the program was kept apart, for whoever reads the verdict."""
        if self.grader.sandbox.way.has_namespaces:
            return "On the GPU it ran in such namespaces, with NVIDIA's devices; its system calls were not filtered."
        return "On the GPU it ran with limits alone, and could read what its user can."

    def build(self, unit: str) -> tuple[Path | None, str]:
        """The program, or what was said against it."""
        data, said = self.grader.compile(unit, b"", 0, self.work / "gpu", self.recipe)
        if data is None:
            return None, f"nvcc does not take it:\n{last_lines(said)}"
        own, program = self.work / "gpu/main.o", self.work / "gpu/program"
        own.write_bytes(data)
        parts = sorted((self.toolchain.build / "common/classroom/CMakeFiles/judging_solve.dir").glob("*.o"))
        against = self.grader.link(self.recipe, own, program, (), tuple(map(str, parts)), b"")
        return (None, f"it cannot be linked for this GPU:\n{last_lines(against)}") if against else (program, "")

    def run(self, program: Path, flags: str, name: str, timed: str = "") -> tuple[grade.Outcome, Json]:
        folder = self.work / f"gpu-{name}"
        folder.mkdir()
        folder.chmod(0o755)
        return grade.run_on_gpu(
            self.grader.sandbox, program, flags.split(), folder, WALL_SECONDS,
            {"WORKLOG_SOLVE_TIMED": timed} if timed else {},
        )

    def check(self, program: Path, runs: Sequence[str], hardest: str) -> GpuVerdict:
        """What comes out for flags of the harness; what fails on the input `hardest` alone is left out."""
        found = GpuVerdict()
        for number, flags in enumerate(runs):
            done, document = self.run(program, f"{flags} --check-only", f"check-{number}")
            try:
                checks = [check for check in document["checks"] if kept(check, hardest)]
                found.gpu, found.short = document["context"]["gpu"], document["context"]["gpu_short"]
                problems = problems_of_checks(checks)
            except (KeyError, TypeError, ValueError, AttributeError):
                if NO_DEVICE in done.output:
                    found.told.append(f"It was not run on the GPU, which the sandbox does not reach: {ended(done)}")
                    return found
                checks, problems = [], [Problem("crash", ended(done))]
            found.checks += checks
            found.problems += problems
            if problems:
                break
        return found

    def time(self, program: Path, flags: str, found: GpuVerdict) -> None:
        """The time with a cold cache, of what is right."""
        with self.alone():
            for waits in (False, True):
                done, document = self.run(
                    program, f"{flags} --time cold", f"time-{waits}", "with waits" if waits else "without waits"
                )
                try:
                    is_right = all(check["verdict"] in ACCEPTED for check in document["checks"])
                    timings = timings_of(document, False)
                except (KeyError, TypeError, ValueError, AttributeError):
                    is_right, timings = False, []
                if timings and (is_right or waits):
                    found.timing = timings[0]
                    break
        if found.timing is None:
            found.told.append(f"It could not be timed on this GPU: {ended(done)}")
        elif waits:
            found.told.append("Its time holds the waits for the GPU in solve(), without which it is not right.")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No two are timed at once."""
        with (self.toolchain.build / "timing.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def kept(check: Json, hardest: str) -> bool:
    return check["input"] != hardest or check["verdict"] in ACCEPTED


def ended(done: grade.Outcome) -> str:
    """How a program ended that has written no report."""
    said = last_lines(grade.plain(done.output))
    if done.timed_out:
        return f"the program had not ended after {done.seconds:.0f} s"
    if done.stopped_for:
        return f"the program was stopped: too much {done.stopped_for}"
    if done.signal is not None:
        return f"the program was ended by {signal_name(done.signal)}\n{said}".strip()
    return said or f"the program ended with exit code {done.code}, and has written no report"
