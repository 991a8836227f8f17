#!/usr/bin/env python3
"""Runs every command that the pages show and that this machine can run; continuous integration does.

    python3 common/tests/documented_commands.py            runs them all, in the order of the pages, each once
    python3 common/tests/documented_commands.py --list     says what would be run, and what is left out and why

A command is a line of a fenced block marked sh in README.md, a writeup, its notes, docs/ or a room's README.md. Those
that need a GPU are run as well: here they must say that there is none, and what can be done instead. What would run
this very test again, or never ends, is left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "common/report"))
sys.dont_write_bytecode = True

from markdown import split_fences
from prose import SHELLS
from sync import documents

LEFT_OUT = {
    "./worklog test": "continuous integration runs it by itself",
    "ctest ": "likewise",
    "./worklog clean": "it would take away what the others need",
    "./worklog lock": "continuous integration runs it where nvcc is there",
    "./worklog docs": "it serves until it is stopped; continuous integration builds the site with --build",
    "python3 /usr/share/benchmark/compare.py": "it compares two files of times, which a GPU makes",
    "cmake --preset gpu": "continuous integration compiles the gpu preset where nvcc is",
    "cmake --build --preset gpu": "likewise",
    "./worklog build --preset gpu": "likewise",
    "./worklog exercise check": "it ends with 1 until the reader has solved the exercise; continuous integration "
    "runs the exercises by themselves",
    "./worklog exercise watch": "it checks whenever a file is saved, until it is stopped",
    "common/tests/sanitize.sh": "it needs compute-sanitizer and a GPU",
    "pip install": "it changes the machine's Python",
    "pip wheel": "the package's tests make a wheel offline",
    "auditwheel ": "it needs auditwheel",
    "python make_fixtures.py": "it needs PyTorch",
    "python -m normworklog": "likewise",
    "python common/library/python/": "likewise",
    "python3 common/report/peers/": "it needs PyTorch and a GPU",
    ".ci/run": "it is what runs this",
    "common/tests/aarch64.sh": "it installs a cross compiler, and emulated tests take minutes",
    "docker ": "it needs Docker",
    "git ": "it changes the checkout",
}
NEED_GPU = (
    "./worklog bench", "./worklog verify", "./worklog compare", "python3 common/report/counters.py",
    "python3 common/report/verify.py", "python3 common/report/bench.py",
    "./worklog judge common/tests/learners/warp_shuffle.cu", "python3 common/report/heads.py",
    "python3 common/report/quantized_peers.py", "python3 common/report/zero_centered.py",
)


@dataclass(frozen=True)
class Command:
    text: str
    file: Path
    line: int

    @property
    def place(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"

    @property
    def words(self) -> str:
        """Without variables that are set for it."""
        return " ".join(word for word in self.text.split() if not word.split("=")[0].isupper() or "=" not in word)


def commands() -> Iterator[Command]:
    """Each command once, a backslash at a line's end continued, without the comment behind it."""
    seen: set[str] = set()
    for file in documents(ROOT):
        for fence in split_fences(file.read_text(encoding="utf-8"))[1]:
            if fence.language not in SHELLS:
                continue
            pending, begun = "", 0
            for number, line in enumerate(fence.lines, start=fence.first_line):
                line = line.split(" #")[0].rstrip() if not line.lstrip().startswith("#") else ""
                begun = begun or number
                if line.endswith("\\"):
                    pending += line[:-1] + " "
                    continue
                text = " ".join((pending + line).split())
                command = Command(text, file, begun)
                pending, begun = "", 0
                if text and text not in seen:
                    seen.add(text)
                    yield command


def reason_to_leave_out(command: Command) -> str:
    if any(word in command.text for word in ("NN", "...", "<", "VERB")):
        return "it is a pattern"
    return next((reason for start, reason in LEFT_OUT.items() if command.words.startswith(start)), "")


def has_gpu() -> bool:
    done = subprocess.run("nvidia-smi -L && command -v nvcc", shell=True, capture_output=True, check=False)
    return done.returncode == 0


def run(command: Command, allowed: tuple[int, ...]) -> bool:
    begun = time.monotonic()
    # A program may fail on an input as recorded; that is exit code 0. The preset is the one that this machine has
    # built.
    done = subprocess.run(
        command.text, shell=True, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900,
        check=False, env=os.environ | {"PATH": os.environ["PATH"] + ":/usr/local/cuda/bin"},
    )
    good = done.returncode in allowed
    took = time.monotonic() - begun
    print(f"{'ok  ' if good else 'FAIL'} {command.place}: {command.text} ({took:.0f} s)", flush=True)
    if not good:
        print(
            f"exit code {done.returncode}, where {' or '.join(map(str, allowed))} was expected\n{done.stdout[-3000:]}",
            flush=True,
        )
    if good and allowed == (2,) and "no GPU" not in done.stdout and "--preset gpu builds them" not in done.stdout:
        print(
            f"FAIL {command.place}: does not say that there is no GPU, or nothing built for one\n{done.stdout[-1000:]}"
        )
        return False
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="say what would be run, and stop")
    options = parser.parse_args()
    gpu = has_gpu()
    failed = count = 0
    for command in commands():
        reason = reason_to_leave_out(command)
        needs_gpu = command.words.startswith(NEED_GPU) or " --time " in command.words
        if gpu and needs_gpu:
            reason = reason or "it takes long; this machine has a GPU, and can run it by hand"
        if options.list or reason:
            why = f" ({reason})" if reason else ""
            print(f"{'left out' if reason else 'run     '} {command.place}: {command.text}{why}")
            continue
        count += 1
        failed += not run(command, (2,) if needs_gpu else (0,))
    if not options.list:
        print(f"{count} documented commands run, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
