"""The exercises: one folder each, in NN_name/exercise/ of a stage, and in bug_hunt/ here."""

from __future__ import annotations

import ast
import json
import operator
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regions

ROOT = Path(__file__).resolve().parents[2]
BUGS = "bugs"  # stands where a stage's number does
BUG_FOLDER = Path("common/classroom/bug_hunt")
SOURCE = "kernels.cuh"  # what the reader writes
SHAPE = re.compile(r"\b(\d+)x(\d+)\b")
FOLDER = re.compile(r"([1-9][0-9]?)_([a-z0-9_]+)")

KEYS = {"title": str, "task": str, "minutes": int, "difficulty": int, "variant": (str, type(None)), "checks": list,
        "counted": (str, type(None)), "goals": list, "speed": (dict, type(None))}


class ExerciseError(Exception):
    """A request that cannot be met, in one sentence."""


Bound = float | str  # a figure, or a formula of rows and cols such as "5 * (cols / 128 + 1)"

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
             ast.FloorDiv: operator.floordiv}


def figure_of(bound: Bound, rows: int, cols: int) -> float:
    """What a bound is at a shape. Raises ValueError where it is no formula."""

    def of(node: ast.expr) -> float:
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return node.value
        if isinstance(node, ast.Name) and node.id in ("rows", "cols"):
            return rows if node.id == "rows" else cols
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](of(node.left), of(node.right))
        raise ValueError(f"'{bound}' is no formula of rows and cols")

    try:
        return float(of(ast.parse(bound, mode="eval").body)) if isinstance(bound, str) else float(bound)
    except SyntaxError:
        raise ValueError(f"'{bound}' is no formula of rows and cols") from None


@dataclass(frozen=True)
class Goal:
    """A bound on what is counted: `count` is a name of judging.COUNTS."""

    count: str
    at_most: Bound | None
    at_least: Bound | None
    because: str  # one sentence, shown where it is missed

    def bounds(self) -> dict[str, Bound]:
        """In words, and as they stand in exercise.json."""
        both = {"at most": self.at_most, "at least": self.at_least}
        return {words: bound for words, bound in both.items() if bound is not None}


@dataclass(frozen=True)
class Speed:
    """On a GPU: the share of the speed of the stage's own variant that is to be reached."""

    flags: str
    at_least: float


@dataclass(frozen=True)
class Reason:
    """What a check must say of a bug: a problem of this kind, with a text that each pattern matches."""

    problem: str
    says: tuple[str, ...]


@dataclass(frozen=True)
class Exercise:
    """One exercise. Paths are absolute."""

    root: Path
    folder: Path
    stage: str  # "02_shared_reduction"; "bugs" for the bug hunt
    number: int
    title: str
    task: str
    minutes: int
    difficulty: int  # 1 to 3
    variant: str | None  # of the stage, that the solution is
    checks: tuple[str, ...]  # flags of the program, a run each
    counted: str | None  # flags of the run that is counted
    goals: tuple[Goal, ...]
    speed: Speed | None
    reason: Reason | None
    drawn: Mapping[str, tuple[int, int, int]] | None = None  # rows and cols of a second counted shape: from, to, step
    sources: tuple[str, ...] = (SOURCE,)  # in the stage's folder: the files that the skeleton is made of

    @property
    def id(self) -> str:
        return f"{self.stage if self.stage == BUGS else self.stage[:2]}.{self.number}"

    @property
    def is_bug(self) -> bool:
        return self.stage == BUGS

    @property
    def skeleton(self) -> Path:
        return self.folder / SOURCE

    @property
    def main(self) -> Path:
        return self.folder / "main.cu"

    @property
    def mine(self) -> Path:
        """The reader's copy."""
        return self.root / "my" / self.stage / self.folder.name / SOURCE

    @property
    def stage_sources(self) -> list[Path]:
        """The stage's files that have the lines which solve it, and what stands around them."""
        return [self.root / self.stage / source for source in self.sources]

    def stage_texts(self) -> list[str]:
        return [path.read_text(encoding="utf-8") for path in self.stage_sources]

    def solution(self) -> str:
        """The source that solves it: made of the skeleton and the stage's regions. Raises regions.RegionError."""
        if self.is_bug:
            return (self.folder / "fixed.cuh").read_text(encoding="utf-8")
        shown, *theirs = (str(path.relative_to(self.root)) for path in (self.skeleton, *self.stage_sources))
        skeleton = self.skeleton.read_text(encoding="utf-8")
        return regions.solved(skeleton, "\n".join(self.stage_texts()), shown, " or ".join(theirs))

    def counted_flags(self, seed: int) -> str:
        """Flags of the counted run, with a second shape behind the one that is known: a kernel that was made for that
        one alone does not get past it. The same seed draws the same shape."""
        assert self.counted is not None
        if self.drawn is None:
            return self.counted
        known = SHAPE.search(self.counted)
        assert known is not None
        draw = random.Random(f"{seed} {self.id}")
        sides = []
        for side, public in zip(("rows", "cols"), known.groups()):
            first, last, step = self.drawn[side]
            sides.append(draw.choice([n for n in range(first, last + 1, step) if n != int(public)]))
        return SHAPE.sub(f"{known[0]},{sides[0]}x{sides[1]}", self.counted)

    def hints(self) -> list[str]:
        """The hints in order, as Markdown."""
        text = (self.folder / "hints.md").read_text(encoding="utf-8")
        return [part.strip() for part in re.split(r"^## Hint \d+\s*$", text, flags=re.MULTILINE)[1:]]


def load(folder: Path, root: Path = ROOT) -> Exercise:
    """The exercise in a folder. Raises ExerciseError where its exercise.json is not as it must be."""
    shown = (folder / "exercise.json").relative_to(root)
    try:
        data = json.loads((folder / "exercise.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ExerciseError(f"{shown} cannot be read: {error}") from None
    is_bug = folder.parent == root / BUG_FOLDER
    for key, kind in KEYS.items():
        if key not in data or not isinstance(data[key], kind):
            raise ExerciseError(f"{shown}: '{key}' is missing, or not of its type")
    if unknown := set(data) - set(KEYS) - {"reason", "source", "drawn"}:
        raise ExerciseError(f"{shown} has unknown keys: {', '.join(sorted(unknown))}")
    if is_bug != ("reason" in data):
        raise ExerciseError(f"{shown}: 'reason' belongs to the exercises of the bug hunt, and to each of them")
    sources = data.get("source", SOURCE)
    sources = [sources] if isinstance(sources, str) else sources
    if not (isinstance(sources, list) and sources and all(isinstance(source, str) for source in sources)):
        raise ExerciseError(f"{shown}: 'source' is a file of the exercise's stage, such as vectors.cuh, or several")
    if is_bug and "source" in data:
        raise ExerciseError(f"{shown}: 'source' is not for the bug hunt")
    if (drawn := data.get("drawn")) is not None:
        sides = isinstance(drawn, dict) and set(drawn) == {"rows", "cols"} and drawn.values()
        if not sides or any(not isinstance(side, list) or len(side) != 3 for side in sides):
            raise ExerciseError(f"{shown}: 'drawn' has rows and cols, each a first one, a last one and a step")
        if not SHAPE.search(data["counted"] or ""):
            raise ExerciseError(f"{shown}: 'drawn' stands beside one shape in 'counted'")
        drawn = {side: (bounds[0], bounds[1], bounds[2]) for side, bounds in drawn.items()}
    try:
        goals = tuple(map(goal_of, data["goals"]))
    except ValueError as error:
        raise ExerciseError(f"{shown}: {error}") from None
    match = FOLDER.fullmatch(folder.name)
    if not match:
        raise ExerciseError(f"{folder.relative_to(root)}: an exercise's folder is named as 1_finish_the_tree is")
    speed, reason = data["speed"], data.get("reason")
    return Exercise(
        root, folder, BUGS if is_bug else folder.parents[1].name, int(match[1]), data["title"], data["task"],
        data["minutes"], data["difficulty"], data["variant"], tuple(data["checks"]), data["counted"],
        goals, Speed(speed["flags"], speed["at_least"]) if speed else None,
        Reason(reason["problem"], tuple(reason["says"])) if reason else None, drawn, tuple(sources),
    )


def goal_of(data: Mapping[str, Any]) -> Goal:
    goal = Goal(data["count"], data.get("at_most"), data.get("at_least"), data["because"])
    for bound in goal.bounds().values():
        figure_of(bound, 1, 1)
    return goal


def all_exercises(root: Path = ROOT) -> list[Exercise]:
    """Every exercise, in the order of the ladder, the bug hunt last."""
    rooms = ("[0-9][0-9]_*/exercise", str(BUG_FOLDER))
    found = [load(file.parent, root) for room in rooms for file in root.glob(f"{room}/*/exercise.json")]
    return sorted(found, key=lambda each: (each.is_bug, each.stage, each.number))


def find(name: str, root: Path = ROOT) -> list[Exercise]:
    """The exercises that a name means: one for "02.1", "2.1" or "bugs.1", a stage's for "02" or its folder. Raises
    ExerciseError."""
    there = all_exercises(root)
    word = name.rstrip("/").removeprefix("my/")
    if re.fullmatch(r"[1-9](\.[0-9]+)?", word):
        word = f"0{word}"

    def names_of(each: Exercise) -> tuple[str, ...]:
        return each.id, each.id.partition(".")[0], each.stage, f"{each.stage}/{each.folder.name}"

    found = [each for each in there if word in names_of(each)]
    if not found:
        raise ExerciseError(f"there is no exercise '{name}'; there are: {', '.join(each.id for each in there)}")
    return found
