"""Which charts have to be drawn again: those whose inputs have changed.

What a chart shows follows from the code and the tools that draw it, and from what the repository answers to its
questions: results, comparison and data, each with what in it is stale. So each drawing is watched, and a note of its
answers goes to build/charts.json, which is not committed. Where code, tools and every answer are as noted, and the file
is what was drawn, drawing it again would give the same.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from results import ReportError, Repository

# What a chart may ask of the repository. The answers' repr() has to say all that is in them.
QUESTIONS = {"stages", "has_results", "stage_results", "has_peers", "peers", "has_counters", "counters", "comparison",
             "verdicts", "runs", "has_data", "data", "data_is_stale"}


def digest(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def digest_of_code(module: Path) -> str:
    """Of a Python file and of all that it imports from its folder, within functions too."""
    found: dict[str, str] = {}
    waiting = [module]
    while waiting:
        file = waiting.pop()
        if file.name in found or not file.is_file():
            continue
        text = file.read_bytes()
        found[file.name] = digest(text)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                waiting += [module.with_name(f"{alias.name}.py") for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                waiting.append(module.with_name(f"{node.module}.py"))
    return digest(repr(sorted(found.items())))


def digest_of_tools(families: Sequence[str]) -> str:
    """Of what makes SVG of a figure: Python, matplotlib with what it computes by, and the fonts that measure text."""
    import kiwisolver
    import matplotlib
    import numpy
    from matplotlib import font_manager, ft2font

    versions = [sys.version, platform.machine(), ft2font.__freetype_version__,
                *(module.__version__ for module in (matplotlib, numpy, kiwisolver))]
    looks = [font_manager.FontProperties(family=list(families), weight=weight) for weight in ("normal", "bold")]
    fonts = [digest(Path(font_manager.findfont(look)).read_bytes()) for look in looks]
    return digest(repr([versions, fonts]))


class Answers:
    """Digests of what the repository answers, each made once."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.digest = lru_cache(None)(self._digest)

    def _digest(self, question: str) -> str:
        """`question` is a JSON list: the name of a method of Repository, and its arguments."""
        name, *arguments = json.loads(question)
        return digest(repr(getattr(self.repository, name)(*arguments)))


class Watched:
    """Stands for the repository where a chart is drawn, and notes what it is asked. It has no root, so that no chart
    reads a file of the repository past it."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.asked: dict[str, str] = {}  # question, digest of the answer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in QUESTIONS:
            raise AttributeError(f"a chart cannot ask the repository for '{name}'; redraw.py lists what it can")

        def ask(*arguments: str) -> Any:
            question = json.dumps([name, *arguments])
            self.asked[question] = self._answers.digest(question)
            return getattr(self._answers.repository, name)(*arguments)

        return ask


@dataclass(frozen=True)
class Note:
    """How a chart was drawn."""

    file: str | None  # from the repository's root; None where there was nothing to draw
    drawn: str  # digest of the file's text
    asked: dict[str, str]


class Notes:
    """The notes of a repository's charts, by the name of the drawing. Those of other code or tools do not count."""

    def __init__(self, answers: Answers, drawn_by: str) -> None:
        self._answers = answers
        self._root = answers.repository.root
        self._file = self._root / "build" / "charts.json"
        self._drawn_by = drawn_by
        self._notes: dict[str, Note] = {}
        try:
            document = json.loads(self._file.read_text(encoding="utf-8"))
            if document["drawn_by"] == drawn_by:
                self._notes = {name: Note(**note) for name, note in document["notes"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # without notes everything is drawn, and noted again

    def up_to_date(self, name: str) -> Note | None:
        """The note of a drawing that would come out as it did, and whose file is as it was drawn."""
        note = self._notes.get(name)
        if note is None:
            return None
        try:
            if any(self._answers.digest(question) != answer for question, answer in note.asked.items()):
                return None
            if note.file and digest((self._root / note.file).read_bytes()) != note.drawn:
                return None
        except (OSError, ReportError):
            return None
        return note

    def keep(self, notes: dict[str, Note]) -> None:
        self._notes |= notes
        document = {"drawn_by": self._drawn_by, "notes": {name: asdict(note) for name, note in self._notes.items()}}
        whole = self._file.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # where nothing can be written, everything is drawn again
            self._file.parent.mkdir(exist_ok=True)
            whole.write_text(json.dumps(document, indent=1), encoding="utf-8")
            whole.replace(self._file)
