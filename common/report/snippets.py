"""Named pieces of source files: what lies between the comments [snippet: NAME] and [/snippet]. The marks of exercises'
regions, [task: NAME] and [/task], are left out."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from results import ReportError

OPENING = re.compile(r"\s*(?://|#)\s*\[snippet:\s*([\w-]+)\s*\]\s*")
CLOSING = re.compile(r"\s*(?://|#)\s*\[/snippet\]\s*")
TASK = re.compile(r"\s*//\s*\[(?:task:\s*[\w-]+\s*|/task)\]\s*")

MOST_OPEN_LINES = 100  # a longer piece of code is folded, so that a page can be read past it

LANGUAGES = {
    ".cuh": "cuda", ".cu": "cuda", ".c": "c", ".h": "cpp", ".cpp": "cpp",
    ".py": "python", ".cmake": "cmake", ".sh": "sh",
}


def snippets_of(text: str, shown: str) -> dict[str, str]:
    """Every snippet of a file by name, without common indentation; a snippet may lie within another."""
    found: dict[str, list[str]] = {}
    opened: list[tuple[str, int]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        opening = OPENING.fullmatch(line)
        if opening:
            name = opening.group(1)
            if name in found:
                raise ReportError(f"{shown}:{number} opens a second snippet '{name}'")
            found[name] = []
            opened.append((name, number))
        elif CLOSING.fullmatch(line):
            if not opened:
                raise ReportError(f"{shown}:{number} closes a snippet, and none is open")
            opened.pop()
        elif not TASK.fullmatch(line):
            for name, _ in opened:
                found[name].append(line)
    if opened:
        name, number = opened[-1]
        raise ReportError(f"{shown}:{number} opens the snippet '{name}', which has no [/snippet]")
    return {name: textwrap.dedent("\n".join(lines)).strip("\n") for name, lines in found.items()}


def code_block(path: Path, name: str, shown: str) -> str:
    """The snippet as a fenced block, folded if it is long."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ReportError(f"there is no {shown}") from None
    found = snippets_of(text, shown)
    if name not in found:
        raise ReportError(f"{shown} has no snippet '{name}'; it has: {', '.join(found) or 'none'}")
    ticks = max((len(run) for run in re.findall(r"`+", found[name])), default=0)
    fence = "`" * max(3, ticks + 1)
    block = f"{fence}{LANGUAGES.get(path.suffix, '')}\n{found[name]}\n{fence}"
    lines = found[name].count("\n") + 1
    if lines <= MOST_OPEN_LINES:
        return block
    return f"<details>\n<summary>The code: {lines} lines of <code>{path.name}</code></summary>\n\n{block}\n\n</details>"
