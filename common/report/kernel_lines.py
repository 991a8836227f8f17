#!/usr/bin/env python3
"""How many lines of code a variant is made of: its function, its kernels, and all that they call in the stages, down to
CUDA. Blank lines and comments aside.

    kernel_lines.py                         every variant of every stage
    kernel_lines.py 05_welford held         what the lines of one variant are
    kernel_lines.py --write                 docs/data/kernel_lines.json, for the chart

What the stages share in common/device counts for nobody: every kernel is launched by it. A definition counts where its
name appears in one that counts. Overloads share a name, and so count together.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from programs import write_json
from results import ROOT

DATA = ROOT / "docs/data/kernel_lines.json"

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
NAMESPACE = re.compile(r"\s*(?:inline\s+)?namespace\b[\w\s:]*$")
WORD = re.compile(r"(?<![\w.])(?<!->)([A-Za-z_]\w*)(?=\s*(.?))")  # a name that is no member's, and what follows it
NO_FUNCTION = re.compile(r"(?:struct|class|union|enum|using|inline constexpr|constexpr)\b")
VARIANT = re.compile(r'\badd\(\s*"(\w+)"')


@dataclass(frozen=True)
class Definition:
    name: str
    is_function: bool
    text: str  # without comments
    file: Path

    @property
    def lines(self) -> int:
        return sum(bool(line.strip()) for line in self.text.splitlines())


def named(text: str) -> str | None:
    """What a definition defines. None for what defines nothing: a using-declaration, a declaration of a function."""
    text = without_template(text)
    head = re.split(r"[{;]", text, maxsplit=1)[0]
    if found := re.search(r"\b(?:struct|class|union|enum class|enum)\s+(?:alignas\(\d+\)\s*)?(\w+)", head):
        if "(" not in head or head.index("(") > found.start() and "alignas" in head:
            return found[1]
    if found := re.match(r"\s*using\s+(\w+)\s*=", text):
        return found[1]
    if "constexpr" in head and (found := re.search(r"(\w+)(?:\[\])?(?:<[^=]*>)?\s*=", head)):
        if "(" not in head[:found.end()]:
            return found[1]
    without = re.sub(r"__launch_bounds__\((?:[^()]|\([^()]*\))*\)", "", head)
    if "{" in text and (found := re.search(r"(\w+)\s*\(", without)):
        return found[1]
    if found := re.search(r"(\w+)\s*=?\s*$", head):
        return found[1] if "constexpr" in head else None
    return None


def without_template(text: str) -> str:
    """Without `template <...>` before it."""
    text = text.lstrip()
    while text.startswith("template"):
        depth, place = 0, text.find("<")
        if place < 0:
            return text
        while True:
            depth += {"<": 1, ">": -1}.get(text[place], 0)
            place += 1
            if depth == 0:
                break
        text = text[place:].lstrip()
    return text


def is_function(text: str) -> bool:
    head = re.split(r"[{;]", without_template(text), maxsplit=1)[0]
    return "(" in head and "__global__" not in head and not NO_FUNCTION.match(head)


def words(text: str) -> Iterator[tuple[str, bool]]:
    """The names in some code, and whether each is called, or has template arguments: where it does not, it is no
    function's, but perhaps a kernel's, which is handed to launch()."""
    for found in WORD.finditer(STRING.sub("", text)):
        yield found[1], found[2] in ("(", "<")


@cache
def definitions(file: Path) -> tuple[Definition, ...]:
    """What a source file defines in its namespaces."""
    code = COMMENT.sub("", file.read_text(encoding="utf-8"))
    code = "\n".join("" if line.startswith("#") else line for line in code.splitlines())
    blank = STRING.sub(lambda found: '"' + "_" * (len(found[0]) - 2) + '"', code)
    found: list[Definition] = []
    begin = depth = 0
    for place, sign in enumerate(blank):
        if sign == "{":
            if depth == 0 and NAMESPACE.match(blank[begin:place]):
                begin = place + 1
                continue
            depth += 1
        elif sign == "}" and depth == 0:  # of a namespace
            begin = place + 1
        elif sign == "}":
            depth -= 1
        if depth == 0 and begin <= place and (sign == ";" or sign == "}" and not continues(blank, place)):
            text = code[begin:place + 1]
            if (name := named(text)) and name != "program":
                found.append(Definition(name, is_function(text), text.strip("\n"), file))
            begin = place + 1
    return tuple(found)


def continues(code: str, place: int) -> bool:
    """True where a definition goes on behind this brace: `} name;`, `};`, `}, ...`."""
    return code[place + 1:].lstrip()[:1] in (";", ",", ")", "}") and code[place + 1:place + 2] in (";", ",", ")")


@cache
def included(file: Path) -> frozenset[Path]:
    """The file and what it includes of the stages."""
    found = {file}
    for name in INCLUDE.findall(file.read_text(encoding="utf-8")):
        for folder in (ROOT, file.parent):
            other = folder / name
            if other.is_file() and not other.is_relative_to(ROOT / "common"):
                found |= included(other)
                break
    return frozenset(found)


def closure(seeds: Iterable[str], files: Iterable[Path]) -> list[Definition]:
    """The definitions of these names, and of all names in them."""
    known: dict[str, list[Definition]] = {}
    for file in sorted(files):
        for definition in definitions(file):
            known.setdefault(definition.name, []).append(definition)
    counted: dict[str, list[Definition]] = {}
    waiting = [name for name in seeds if name in known]
    while waiting:
        name = waiting.pop()
        if name in counted:
            continue
        counted[name] = known[name]
        for definition in known[name]:
            for word, is_called in words(definition.text):
                if any(is_called or not other.is_function for other in known.get(word, ())):
                    waiting.append(word)
    return [definition for group in counted.values() for definition in group]


# --- The variants -----------------------------------------------------------------------------------------------------
def stages() -> list[Path]:
    return sorted(path.parent for path in ROOT.glob("0?_*/variants.cu"))


def variants(stage: Path) -> Iterator[tuple[str, str]]:
    """(variant, the arguments of its add()) as the stage's list has them."""
    text = COMMENT.sub("", (stage / "variants.cu").read_text(encoding="utf-8"))
    for found in VARIANT.finditer(text):
        depth, end = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        yield found[1], text[found.end():end]


def units() -> dict[str, Path]:
    """The final kernels' translation units, by the functions that each defines: two stages' may share a name."""
    return {
        definition.name: path
        for path in sorted(ROOT.glob("0?_*/final/*.cu")) for definition in definitions(path) if definition.is_function
    }


def lines_of(stage: Path, entry: str) -> list[Definition]:
    """Of a variant, by its entry in the list. A function that is defined in a unit of its own is followed there."""
    seeds = [word for word, _ in words(entry)]
    files = set(included(stage / "variants.cu"))
    while True:
        counted = closure(seeds, files)
        called = {word for d in counted for word, is_called in words(d.text) if is_called} | set(seeds)
        more = {file for name, unit in units().items() if name in called for file in included(unit)}
        if more <= files:
            return counted
        files |= more


def counts() -> dict[str, int]:
    """Lines of every variant, by stage/variant."""
    return {
        f"{stage.name}/{variant}": sum(definition.lines for definition in lines_of(stage, entry))
        for stage in stages() for variant, entry in variants(stage)
    }


def show(stage: Path, wanted: str) -> None:
    for variant, entry in variants(stage):
        if variant == wanted:
            for definition in sorted(lines_of(stage, entry), key=lambda d: (d.file, d.name)):
                print(f"{definition.lines:6d}  {definition.file.relative_to(ROOT)}  {definition.name}")


def main(arguments: list[str]) -> None:
    if arguments == ["--write"]:
        write_json(DATA, {"lines": counts()})
    elif len(arguments) == 2:
        show(ROOT / arguments[0], arguments[1])
    else:
        for variant, lines in counts().items():
            print(f"{lines:6d}  {variant}")


if __name__ == "__main__":
    main(sys.argv[1:])
