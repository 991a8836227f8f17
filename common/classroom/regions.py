"""The regions of a kernel's source that an exercise is about: what lies between [task: NAME] and [/task].

    // [task: tree] What is to be written here.
    ...
    // [/task]

What is to be written may go on in further lines of comment. An exercise's skeleton and the stage's file that it is made
of have regions of the same names. The solution is the skeleton with the stage's regions; what lies outside of them is
the stage's code in both.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "report"))
from source_hash import DIRECTIVE, tokens_of, without_comments  # noqa: E402

OPENING = re.compile(r"\s*//\s*\[task:\s*([\w-]+)\s*\].*")
CLOSING = re.compile(r"\s*//\s*\[/task\]\s*")
SNIPPET = re.compile(r"\s*//\s*\[/?snippet\b.*\]\s*")


class RegionError(ValueError):
    """Markers that do not fit together, or code that is not the stage's; one sentence."""


@dataclass(frozen=True)
class Region:
    """Lines `first` to `last` (counted from 0, markers included) of a file."""

    name: str
    first: int
    last: int


def regions_of(text: str, shown: str) -> list[Region]:
    """Every region of a file, in the order in which they open; one may lie within another. Raises RegionError."""
    found: list[Region] = []
    opened: list[tuple[str, int]] = []
    for number, line in enumerate(text.split("\n")):
        if opening := OPENING.fullmatch(line):
            opened.append((opening[1], number))
        elif CLOSING.fullmatch(line):
            if not opened:
                raise RegionError(f"{shown}:{number + 1} closes a task, and none is open")
            name, first = opened.pop()
            if any(region.name == name for region in found):
                raise RegionError(f"{shown}:{first + 1} opens a second task '{name}'")
            found.append(Region(name, first, number))
    if opened:
        raise RegionError(f"{shown}:{opened[-1][1] + 1} opens the task '{opened[-1][0]}', which has no [/task]")
    return sorted(found, key=lambda region: region.first)


def is_marker(line: str) -> bool:
    return OPENING.fullmatch(line) is not None or CLOSING.fullmatch(line) is not None


def solved(skeleton: str, stage: str, shown: str, stage_shown: str) -> str:
    """The skeleton with each of its regions as the stage has it. Raises RegionError."""
    in_stage = {region.name: region for region in regions_of(stage, stage_shown)}
    stage_lines = stage.split("\n")
    lines = skeleton.split("\n")
    for region in reversed(regions_of(skeleton, shown)):
        if region.name not in in_stage:
            raise RegionError(f"{shown} has a task '{region.name}', which {stage_shown} has not")
        theirs = in_stage[region.name]
        of_task = stage_lines[theirs.first + 1 : theirs.last]
        inside = [line for line in of_task if not is_marker(line) and not SNIPPET.fullmatch(line)]
        first = region.first + 1
        while first < region.last and lines[first].lstrip().startswith("//"):  # what the task says goes on
            first += 1
        lines[first : region.last] = inside
    return "\n".join(lines)


def declarations(text: str, tasks: set[str], shown: str) -> list[tuple[str, ...]]:
    """A file's code as its top-level declarations, each as its tokens, comments aside. A region of `tasks` is one
    token."""
    code = without_comments(collapsed(text, tasks, shown))
    found: list[tuple[str, ...]] = []
    pending: list[str] = []
    depth = 0  # of braces within the declaration
    for token in flat_tokens(code):
        pending.append(token)
        if token == "{":
            depth += 1
            if is_namespace(pending):
                found.append(tuple(pending))
                pending, depth = [], 0
        elif token == "}":
            depth -= 1
        if depth < 0:  # the end of a namespace
            found.append(tuple(pending))
            pending, depth = [], 0
        elif depth == 0 and (token == ";" or token == "}" and not is_type(pending) or is_whole_line(token)):
            found.append(tuple(pending))
            pending = []
    return found + [tuple(pending)] if pending else found


def collapsed(text: str, tasks: set[str], shown: str) -> str:
    """Each region of `tasks` as one line that no other code can be."""
    lines = text.split("\n")
    for region in reversed(regions_of(text, shown)):
        if region.name in tasks:
            check_braces(lines[region.first : region.last + 1], f"{shown}:{region.first + 1}")
            lines[region.first : region.last + 1] = [f"`{region.name}`"]
    return "\n".join(lines)


def check_braces(lines: list[str], place: str) -> None:
    depth = 0
    for token in tokens_of(without_comments("\n".join(lines))):
        depth += {"{": 1, "}": -1}.get(token, 0)
        if depth < 0:
            break
    if depth != 0:
        raise RegionError(f"{place}: the braces of a task must be balanced")


def flat_tokens(code: str) -> Iterator[str]:
    """Tokens; a line that is a directive, and a collapsed region, is one."""
    pending: list[str] = []
    for line in code.split("\n"):
        if DIRECTIVE.fullmatch(line) or line.strip().startswith("`"):
            yield from tokens_of("\n".join(pending))
            pending = []
            yield " ".join(line.split())
        else:
            pending.append(line)
    yield from tokens_of("\n".join(pending))


def is_whole_line(token: str) -> bool:
    return token.startswith(("#", "`")) and len(token) > 1


def is_namespace(tokens: list[str]) -> bool:
    return tokens[0] == "namespace" or tokens[:2] == ["inline", "namespace"]


def is_type(tokens: list[str]) -> bool:
    """Of a struct or a braced value, which goes on to a semicolon."""
    before = tokens[: tokens.index("{")]
    return "(" not in before and bool({"struct", "class", "enum", "=", "constexpr"} & set(before))


def difference(skeleton: str, stage: Sequence[str], shown: str, stage_shown: str) -> str:
    """Where the skeleton's code outside of its regions is not the stage's: a sentence; empty where it is.

    `stage` are the texts of one file or several. The skeleton may leave out whole declarations of theirs, and may
    change none; those of a file stand in the file's order."""
    tasks = {region.name for region in regions_of(skeleton, shown)}
    if not tasks:
        return f"{shown} has no task"
    of_skeleton = declarations(skeleton, tasks, shown)
    of_stage = [declarations(text, tasks, stage_shown) for text in stage]
    if all(of_skeleton[-1] != of_file[-1] for of_file in of_stage):
        return f"{shown} does not end as {stage_shown} does"
    left = [list(of_file) for of_file in of_stage]
    for declaration in of_skeleton:
        having = next((of_file for of_file in left if declaration in of_file), None)
        if having is None:
            return (
                f"{shown}: outside of its tasks, this is not what {stage_shown} has at its place: "
                f"{' '.join(declaration)[:200]}"
            )
        del having[: having.index(declaration) + 1]
    return ""
