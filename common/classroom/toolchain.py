"""How a program of an exercise is built: as CMake would build it, but from any folder, in seconds, by two commands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from exercises import SOURCE, Exercise, ExerciseError
from not_on_cpu import explained

COMPILE_SECONDS = 120  # a source can keep a compiler busy for ever


@dataclass(frozen=True)
class Built:
    """A program, or what the compiler said against it."""

    program: Path | None
    errors: str  # of the compiler or the linker; empty where there is a program
    warnings: str  # of the compiler


@dataclass(frozen=True)
class Recipe:
    """The commands that build a program, as words. They run in the build folder."""

    folder: Path
    compile: tuple[str, ...]
    link: tuple[str, ...]


class Toolchain:
    """The compiler, the flags and the libraries of a configured build folder."""

    def __init__(self, root: Path, build: Path) -> None:
        """`build` is a configured build folder; the parts are not yet built there. Raises ExerciseError."""
        self.root = root
        self.build = build
        if not (build / "build.ninja").is_file():
            raise ExerciseError(f"{build} is not a build folder that is configured with Ninja")

    def make_parts(self, targets: Sequence[str] = ("exercise_parts",)) -> None:
        """Builds what all programs share, or other targets; quick where nothing has changed. In a build folder of
        another user's, where all must be there already, it only looks. Raises ExerciseError."""
        command = ["cmake", "--build", str(self.build), "--target", *targets]
        if not os.access(self.build, os.W_OK):
            command = ["ninja", "-n", "-C", str(self.build), *targets]
        done = subprocess.run(
            command, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode != 0:
            raise ExerciseError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}")
        if "-n" in command and "no work to do" not in done.stdout:
            raise ExerciseError(
                f"{self.build} is another user's, and not up to date: let that user make "
                f"{' and '.join(targets)} there"
            )

    @property
    def can_count(self) -> bool:
        return self._commands("bin/exercise_counting") != []

    @property
    def is_of_cpu_layer(self) -> bool:
        return "nvcc" not in Path(self.recipe(False).compile[0]).name

    def recipe(self, counting: bool) -> Recipe:
        """How the program `exercise`, or the one that counts, is built."""
        target = "exercise_counting" if counting else "exercise"
        commands = self._commands(f"bin/{target}")
        linking = shlex.split(commands[-1]) if commands else []  # : && g++ ... && :
        return Recipe(
            self.build, self._compiling(target, commands), tuple(word for word in linking if word not in (":", "&&"))
        )

    def guarded(self, counting: Recipe) -> Recipe:
        """The same, but for code that is checked before it is linked."""
        commands = self._commands("common/classroom/CMakeFiles/grading_guarded.dir/program.cu.o")
        return replace(counting, compile=self._compiling("grading_guarded", commands))

    def _compiling(self, target: str, commands: Sequence[str]) -> tuple[str, ...]:
        for line in commands:
            if "classroom/program.cu" in line and f"{target}.dir/" in line and " -c " in line:
                return tuple(shlex.split(line))
        raise ExerciseError(f"{self.build} has no target '{target}'")

    def _commands(self, output: str) -> list[str]:
        command = ["ninja", "-C", str(self.build), "-t", "commands", output]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.splitlines() if done.returncode == 0 else []


def build(
    exercise: Exercise, sources: Path, work: Path, recipe: Recipe, color: bool = False, prefix: Sequence[str] = ()
) -> Built:
    """Builds an exercise's program with the kernels.cuh that lies in `sources`. `work` is a folder for what is made.

    `prefix` goes in front of the compiler and the linker: a teacher's limits, say. Messages name files from the
    root."""
    work.mkdir(parents=True, exist_ok=True)
    main = work / "main.cu"  # apart from the exercise's own kernels.cuh, which its folder would give it
    line = f'#line 1 "{exercise.main.relative_to(exercise.root)}"\n'
    main.write_text(line + exercise.main.read_text(encoding="utf-8"), encoding="utf-8")
    shown = sources.relative_to(exercise.root) if sources.is_relative_to(exercise.root) else sources
    if not (sources / SOURCE).is_file():
        raise ExerciseError(f"there is no {shown / SOURCE}")
    unit = work / "main.o"
    program = work / exercise.id
    program.unlink(missing_ok=True)
    command = replaced(recipe.compile, str(unit), str(main))
    command[1:1] = [f"-I{shown}"]
    if "nvcc" not in Path(command[0]).name:
        command += ["-fmax-errors=3", f"-fdiagnostics-color={'always' if color else 'never'}"]
    code, said = run_tool([*prefix, *command], exercise.root)
    if code != 0:
        return Built(None, in_words(said or f"the compiler ended with {code}", sources, shown, recipe), "")
    code, problems = run_tool([*prefix, *linked(recipe.link, str(unit), str(program))], recipe.folder)
    if code != 0:
        return Built(None, in_words(problems, sources, shown, recipe), said)
    return Built(program, "", said)


def in_words(errors: str, sources: Path, shown: Path, recipe: Recipe) -> str:
    """What the compiler or the linker says; in front of it, on the CPU layer, what they have no words for."""
    if "nvcc" in Path(recipe.compile[0]).name:
        return errors
    text = (sources / SOURCE).read_text(encoding="utf-8", errors="replace")
    return explained(errors, text, str(shown / SOURCE))


def run_tool(command: Sequence[str], folder: Path) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=COMPILE_SECONDS, env=os.environ | {"LC_ALL": "C.UTF-8"}, check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f"the compiler did not end in {COMPILE_SECONDS} s"
    return done.returncode, done.stdout.strip()


def replaced(words: Sequence[str], output: str, source: str) -> list[str]:
    """A compile command with another source and output, without the files that tell Ninja of includes. A reader's
    warnings are told, and are no errors, even where those of the build are."""
    found: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in ("-MT", "-MF", "-o", "-c"):
            skip = True
        elif word == "-Werror":
            skip = "nvcc" in Path(words[0]).name  # whose next word says which warnings
        elif word not in ("-MD", "-MMD") and not re.search(r"classroom/program\.cu$", word):
            found.append(word)
    return [*found, "-o", output, "-c", source]


def linked(words: Sequence[str], unit: str, program: str) -> list[str]:
    """A link command with another object and output."""
    found = [unit if re.search(r"classroom/program\.cu\.o$|/program\.cu\.o$", word) else word for word in words]
    if "-o" in found:
        found[found.index("-o") + 1] = program
    return found


def libraries_of(recipe: Recipe) -> list[Path]:
    """The objects and libraries that a program is linked with, its own object aside."""
    words = [word for word in recipe.link if re.search(r"\.(o|a|so[\d.]*)$", word) and "program.cu.o" not in word]
    return [recipe.folder / word for word in words]
