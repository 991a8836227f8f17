"""The stages' programs on a GPU, for the scripts that measure and verify: found, run, and their results read.

Nothing here depends on how they were built: a folder of programs is all that is needed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from results import ROOT, ReportError

SCHEMA_ORDER = ("fp32", "fp16", "bf16")


class NoGpu(ReportError):
    """There is no GPU here, or the programs were built for the CPU layer."""


class Failed(ReportError):
    """A program found something wrong, or could not do what it was asked for."""


class Children:
    """The programs that run now, of all threads. After stop() none runs, and no other begins: Ctrl-C reaches the main
    thread and what runs then, but not what another thread is about to start."""

    def __init__(self) -> None:
        self.running: set[subprocess.Popen[str]] = set()
        self.lock, self.stopped = threading.Lock(), False

    def run(self, command: Sequence[str], timeout: float | None) -> tuple[int, str]:
        """The exit code, and what was printed."""
        with self.lock:
            if self.stopped:
                raise Failed("stopped before it began")
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.running.add(process)
        with process:
            try:
                printed, _ = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
            finally:
                with self.lock:
                    self.running.discard(process)
        return process.returncode, printed

    def stop(self) -> None:
        with self.lock:
            self.stopped = True
            for process in self.running:
                process.terminate()


CHILDREN = Children()


@dataclass(frozen=True)
class Program:
    """A stage's program in a folder of programs."""

    path: Path

    @property
    def stage(self) -> str:
        return self.path.name

    @cached_property
    def fingerprint(self) -> str:
        """Of the program's bytes: what it was built from, with which compiler and flags."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]

    @cached_property
    def listing(self) -> str:
        return subprocess.run([self.path, "--list"], capture_output=True, text=True, check=True).stdout

    @cached_property
    def variants(self) -> list[str]:
        return re.findall(r"^  (\w+): ", self.listing.partition("\ninputs\n")[0], re.MULTILINE)

    @cached_property
    def implementations(self) -> list[tuple[str, str, str]]:
        """(variant, operation, dtype) of all that the program can run."""
        found = []
        variant = ""
        for line in self.listing.partition("\ninputs\n")[0].splitlines():
            if match := re.match(r"  (\w+): ", line):
                variant = match[1]
            elif match := re.match(r"    (\w+) in (\w+) with parameters in \w+", line):
                found.append((variant, match[1], match[2]))
        return list(dict.fromkeys(found))

    @cached_property
    def dtypes_with_fp32_parameters(self) -> list[str]:
        """The 16-bit types for which the program also has kernels with gamma and beta in fp32."""
        there = set(re.findall(r"^    \w+ in (fp16|bf16) with parameters in fp32", self.listing, re.MULTILINE))
        return [dtype for dtype in SCHEMA_ORDER if dtype in there]

    @property
    def operations(self) -> list[str]:
        return list(dict.fromkeys(operation for _, operation, _ in self.implementations))

    @property
    def dtypes(self) -> list[str]:
        there = {dtype for _, _, dtype in self.implementations}
        return [dtype for dtype in SCHEMA_ORDER if dtype in there]

    @property
    def is_batchnorm(self) -> bool:
        return any(operation.startswith("batchnorm") for operation in self.operations)

    def run(
        self, flags: Sequence[str], prefix: Sequence[str] = (), timeout: float | None = None
    ) -> tuple[int, str, dict[str, Any]]:
        """The exit code, what was printed, and the results (empty where none were written)."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "results.json"
            command = [*prefix, str(self.path), *flags, "--json", str(file)]
            code, printed = CHILDREN.run(command, timeout)
            document = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return code, printed, document


def programs_in(folder: Path, stages: Sequence[str] = ()) -> list[Program]:
    """The stages' programs in a folder; `stages` picks by number or name. Raises ReportError where one is not there."""
    # A folder's main.cu makes a stage's program. Others lie beside them, such as 08_batchnorm_sync, with other flags.
    of_stages = [path for path in sorted(folder.glob("[0-9][0-9]_*")) if (ROOT / path.name / "main.cu").is_file()]
    found = [Program(path) for path in of_stages if os.access(path, os.X_OK)]
    if not found:
        raise ReportError(f"there is no stage's program in {shown(folder)}; ./worklog build --preset gpu builds them")
    if not stages:
        return found
    chosen = []
    for name in stages:
        own_name, begin = name.rstrip("/"), f"{name}_"
        matching = [program for program in found if program.stage == own_name or program.stage.startswith(begin)]
        if not matching:
            raise ReportError(f"there is no stage '{name}'; there are: {', '.join(program.stage for program in found)}")
        chosen += matching
    return chosen


def require_gpu(program: Program, instead: str) -> dict[str, Any]:
    """The context of a small run. Raises NoGpu, with what can be done instead, where there is nothing to run on."""
    variant, operation, dtype = program.implementations[0]
    flags = ["--check-only", "--shapes", "8x128", "--input", "normal"]
    flags += ["--variant", variant, "--operation", operation, "--dtype", dtype]
    code, printed, document = program.run(flags)
    if "no CUDA device" in printed or (document and document["context"]["backend"] != "gpu"):
        raise NoGpu(instead)
    if code != 0:
        raise Failed(f"{program.stage} fails already on 8 x 128:\n{printed.rstrip()}")
    return document["context"]


def tool(name: str, why: str) -> str:
    """The path of a tool of the CUDA Toolkit. Raises ReportError."""
    for candidate in (shutil.which(name), f"/usr/local/cuda/bin/{name}"):
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise ReportError(f"{name} is not here; it comes with the CUDA Toolkit, and {why}")


def write_json(path: Path, document: dict[str, Any]) -> None:
    """As a whole or not at all. Lists of small objects get a line for each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half_written = path.with_name(f"{path.name}.{os.getpid()}.part")
    half_written.write_text(compact(document) + "\n", encoding="utf-8")
    os.replace(half_written, path)


LONGEST_LINE = 500  # characters of an entry that has lists or objects in it, and still gets one line


def compact(value: Any, indent: int = 0) -> str:
    """JSON with a line for each entry of a list of objects, so that a diff shows which one changed."""
    line = json.dumps(value, ensure_ascii=False)
    if indent > 1 and len(line) <= LONGEST_LINE:
        return line
    pad = " " * (indent + 1)
    has_inner = isinstance(value, dict) and any(isinstance(each, (dict, list)) and each for each in value.values())
    if has_inner and indent < 4:
        entries = [f"{pad}{json.dumps(key)}: {compact(each, indent + 1)}" for key, each in value.items()]
        return "{\n" + ",\n".join(entries) + "\n" + " " * indent + "}"
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        return "[\n" + ",\n".join(pad + compact(each, indent + 1) for each in value) + "\n" + " " * indent + "]"
    return line


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
