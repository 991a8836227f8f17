"""Checks of what is written by hand: links that lead nowhere, commands that do not exist, notes that no contents list.
"""

from __future__ import annotations

import re
import subprocess
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

from markdown import Problem, anchors_of, links_of, split_fences

SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//")
SHELLS = {"sh", "bash", "shell", "console", "shell-session", "zsh"}
COMMAND = re.compile(r"(?<![\w/.-])\./worklog\b(?:[ \t]+([^\s;&|)<>#]+))?")
VERB_IN_HELP = re.compile(r"^ {2,6}([a-z][a-z-]*)\b", re.MULTILINE)
NOTES, CONTENTS = "notes", "README.md"  # the folder in a stage's, and the page of it that lists the others


@lru_cache(None)
def anchors_in(path: Path) -> frozenset[str]:
    return frozenset(anchors_of(path.read_text(encoding="utf-8")))


def dead_links(file: Path, text: str, root: Path) -> list[Problem]:
    """Relative links and images whose file, or whose heading, is not there."""
    problems = []
    for line, target in links_of(text):
        if SCHEME.match(target):
            continue
        name, _, fragment = unquote(target).partition("#")
        path = file
        if name:
            path = root / name.lstrip("/") if name.startswith("/") else file.parent / name
        path = path.resolve()
        if not path.is_relative_to(root):
            problems.append(Problem(line, f"link {target}", "leads out of the repository"))
        elif not path.exists():
            problems.append(Problem(line, f"link {target}", "leads nowhere"))
        elif fragment and path.suffix == ".md" and fragment not in anchors_in(path):
            problems.append(Problem(line, f"link {target}", f"names no heading of {path.relative_to(root)}"))
    return problems


def listed_in(contents: Path) -> list[Path]:
    """The pages beside it that the contents link to, in their order; none where there are no contents."""
    if not contents.is_file():
        return []
    targets = [unquote(target).partition("#")[0] for _, target in links_of(contents.read_text(encoding="utf-8"))]
    pages = [(contents.parent / target).resolve() for target in targets if target and not SCHEME.match(target)]
    return [page for page in dict.fromkeys(pages) if page.parent == contents.parent.resolve() and page != contents]


def notes_of(stage: Path) -> list[Path]:
    """The notes of a stage's folder: the contents, what they list in their order, then what they leave out."""
    folder = stage.resolve() / NOTES
    there = sorted(folder.glob("*.md"), key=lambda path: (path.name != CONTENTS, path.name))
    contents = folder / CONTENTS
    order = [contents, *listed_in(contents)]
    return sorted(there, key=lambda path: order.index(path) if path in order else len(order))


def unlisted_note(file: Path) -> list[Problem]:
    """A note that its contents do not link to: nobody would find it."""
    contents = file.parent / CONTENTS
    if file.parent.name != NOTES or file == contents or file in listed_in(contents):
        return []
    return [Problem(1, "contents", f"{CONTENTS} beside it does not link to it")]


@lru_cache(None)
def verbs_of(script: Path) -> frozenset[str]:
    """The verbs that `./worklog help` lists, each at the start of a line indented by two to six spaces."""
    done = subprocess.run([script, "help"], capture_output=True, text=True, timeout=30, check=False)
    return frozenset(VERB_IN_HELP.findall(done.stdout))


def unknown_commands(text: str, root: Path) -> list[Problem]:
    """Lines of fenced shell blocks that call ./worklog with a verb that it does not have."""
    script = root / "worklog"
    problems = []
    for fence in split_fences(text)[1]:
        if fence.language not in SHELLS:
            continue
        for number, line in enumerate(fence.lines, start=fence.first_line):
            for match in COMMAND.finditer(line.split(" # ")[0]):
                verb = match.group(1)
                if not script.is_file():
                    problems.append(Problem(number, match.group(), "there is no ./worklog"))
                elif verb and not verb.startswith("-") and verb not in verbs_of(script):
                    known = ", ".join(sorted(verbs_of(script)))
                    problems.append(Problem(number, match.group(), f"there is no verb '{verb}'; there are: {known}"))
    return problems
