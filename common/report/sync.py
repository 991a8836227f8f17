#!/usr/bin/env python3
"""Fills the marked regions of the writeups from the code and the results, or says what has drifted.

    python3 common/report/sync.py                    every page of the repository
    python3 common/report/sync.py --check [paths]    writes nothing; exit code 1 where something is not as its source
    python3 common/report/sync.py --check --strict   also where a figure was measured on an earlier version
    python3 common/report/sync.py --why KEY          what has changed since a figure was measured: KEY as in sync:figure

Where it takes longer than 2 seconds, it says on stderr which file it is at. README.md in this folder describes the
markers. Needs nothing but Python 3.11.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import figures
import snippets
import tables
import why
from markdown import Problem, Region, regions_of, starts_html_block, title_of
from place import Place
from prose import dead_links, unknown_commands, unlisted_note
from results import DEFAULT_GPU, ROOT, ReportError, Repository

OPTIONS = {
    "code": {"file", "snippet"},
    "figure": {"key", "unit", "counter", "digits", "over", "over_counter", "over_gpu", "gpu"},
    "claim": {"key", "unit", "counter", "over", "over_counter", "over_gpu", "above", "below", "gpu"},
    "nav": set(),
}


PAGES = (
    "README.md", "CONTRIBUTING.md", "[0-9][0-9]_*/README.md",
    "[0-9][0-9]_*/notes/*.md", "[0-9][0-9]_*/exercise/README.md", "docs/*.md", "common/*/README.md",
    "common/library/python/README.md", "common/tests/*/README.md",
)

QUIET, BETWEEN = 2.0, 1.0  # seconds: before the first line of progress, and from one to the next


@dataclass(frozen=True)
class Content:
    text: str
    stale: bool = False


class Progress:
    """Says on stderr what is being done: nothing in the first seconds, then a line a second at most, and none twice."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = clock() + QUIET
        self._said = ""

    def __call__(self, doing: str) -> None:
        now = self._clock()
        if now >= self._due and doing != self._said:
            print(doing, file=sys.stderr, flush=True)
            self._due, self._said = now + BETWEEN, doing


def check_options(region: Region, allowed: set[str], words: int = 0) -> None:
    unknown = [*region.words[words:], *(key for key in region.options if key not in allowed)]
    if unknown:
        raise ReportError(f"'{unknown[0]}' is not an option here; there are: {', '.join(sorted(allowed)) or 'none'}")


def code(region: Region, file: Path, root: Path) -> Content:
    check_options(region, OPTIONS["code"])
    for name in ("file", "snippet"):
        if name not in region.options:
            raise ReportError(f"{name} is missing")
    name = region.options["file"]
    beside, from_root = (file.parent / name).resolve(), (root / name).resolve()
    path = beside if beside.is_file() else from_root
    if not path.is_relative_to(root):
        raise ReportError(f"{name} is not in the repository")
    return Content(snippets.code_block(path, region.options["snippet"], os.path.relpath(path, root)))


def stages_with_writeup(repository: Repository) -> list[str]:
    return [stage for stage in repository.stages() if (repository.root / stage / "README.md").is_file()]


def nav(region: Region, file: Path, repository: Repository) -> Content:
    """Links to the stage before, the overview and the stage after."""
    check_options(region, OPTIONS["nav"])
    stages = stages_with_writeup(repository)
    if file.parent.parent != repository.root or file.parent.name not in stages:
        raise ReportError("nav belongs into the README.md of a stage")
    here = stages.index(file.parent.name)

    def link(stage: str) -> str:
        title = title_of((repository.root / stage / "README.md").read_text(encoding="utf-8"))
        return f"[{title or stage}](../{stage}/README.md)"

    parts = [f"← {link(stages[here - 1])}"] if here > 0 else []
    parts += ["[The ladder](../README.md)"] if (repository.root / "README.md").is_file() else []
    parts += [f"{link(stages[here + 1])} →"] if here + 1 < len(stages) else []
    return Content(" · ".join(parts))


@lru_cache(None)
def table(kind: str, options: tuple[tuple[str, str], ...], gpu: str, file: Path, repository: Repository) -> Content:
    """Made once, though a page that is filled is looked at twice: some tables take a third of a second."""
    made = tables.TABLES[kind][0](Place(repository, file, dict(options), gpu))
    return Content(made.text, made.stale)


def content_of(region: Region, now: str, file: Path, repository: Repository) -> Content:
    """What belongs into a region. Raises ReportError with one sentence where its source does not have it.

    The words of a claim are the writer's, and stay as they are `now`."""
    gpu = region.options.get("gpu", DEFAULT_GPU)
    if region.kind == "code":
        return code(region, file, repository.root)
    if region.kind == "nav":
        return nav(region, file, repository)
    if region.kind == "figure":
        check_options(region, OPTIONS["figure"])
        return Content(*figures.figure(repository, region.options, gpu))
    if region.kind == "claim":
        check_options(region, OPTIONS["claim"])
        if not now.strip():
            raise ReportError("is empty: it holds the words that compare")
        return Content(now, figures.claim(repository, region.options, gpu))
    if region.kind == "table":
        kind = region.words[0] if region.words else ""
        if kind not in tables.TABLES:
            raise ReportError(f"there is no table '{kind}'; there are: {', '.join(tables.TABLES)}")
        check_options(region, tables.TABLES[kind][1], words=1)
        return table(kind, tuple(region.options.items()), gpu, file, repository)
    raise ReportError("there is no such marker; there are: sync:code, sync:table, sync:figure, sync:claim, sync:nav")


def first_difference(now: str, wanted: str) -> str:
    before, after = now.strip("\n").split("\n"), wanted.strip("\n").split("\n")
    for index in range(max(len(before), len(after))):
        has = before[index] if index < len(before) else "(nothing)"
        should = after[index] if index < len(after) else "(nothing)"
        if has != should:
            return f"has '{has.strip()}' where its source gives '{should.strip()}'"
    return "differs from its source in white space"


def sync_text(text: str, file: Path, repository: Repository,
              step: Callable[[], None]) -> tuple[str, list[Problem], list[Problem]]:
    """The text with its regions filled, what is wrong with it as it stands, and which regions show old figures.

    A region whose source is missing is left as it is. `step` is called at each region.
    """
    regions, problems = regions_of(text)
    stale: list[Problem] = []
    filled, position = "", 0
    for region in regions:
        step()
        try:
            if region.is_inline and starts_html_block(text, text.rfind("<!--", 0, region.begin)):
                raise ReportError(
                    "begins its line, which makes Markdown show the line unformatted; put a word before it"
                )
            now = text[region.begin : region.end]
            content = content_of(region, now, file, repository)
        except ReportError as error:
            problems.append(Problem(region.line, region.marker, str(error)))
            continue
        wanted = content.text if region.is_inline else f"\n\n{content.text}\n\n"
        if now != wanted:
            problems.append(Problem(region.line, region.marker, first_difference(now, wanted)))
        if content.stale:
            stale.append(Problem(region.line, region.marker, "was measured on an earlier version of the kernel"))
        filled += text[position : region.begin] + wanted
        position = region.end
    return filled + text[position:], problems, stale


def documents(root: Path) -> Iterator[Path]:
    """Every Markdown file with regions to fill."""
    for pattern in PAGES:
        yield from sorted(root.glob(pattern))


def check(file: Path, repository: Repository, strict: bool, step: Callable[[], None]) -> list[Problem]:
    text = file.read_text(encoding="utf-8")
    filled, problems, stale = sync_text(text, file, repository, step)
    problems += stale if strict else []
    problems += dead_links(file, text, repository.root)
    problems += unknown_commands(text, repository.root)
    problems += unlisted_note(file)
    if file.parent.name in repository.stages() and file.parent.parent == repository.root:
        if not any(region.kind == "nav" for region in regions_of(filled)[0]):
            problems.append(Problem(1, "sync:nav", "is missing: a stage's writeup links to its neighbors"))
    return sorted(problems, key=lambda problem: problem.line)


def fill(file: Path, repository: Repository, step: Callable[[], None]) -> tuple[bool, list[Problem]]:
    """Writes the file where its text changes; returns whether it did, and what it could not fill."""
    text = file.read_text(encoding="utf-8")
    filled, _, _ = sync_text(text, file, repository, step)
    if filled != text:
        file.write_text(filled, encoding="utf-8")
    return filled != text, sync_text(filled, file, repository, step)[1]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="./worklog sync", description="Fills the marked regions of the writeups, or checks them."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where something has drifted")
    parser.add_argument("--strict", action="store_true", help="with --check: figures of an earlier version fail too")
    parser.add_argument("--why", metavar="KEY", help="say what has changed since this figure was measured, and stop")
    parser.add_argument("--gpu", default=DEFAULT_GPU, help="with --why: of which GPU (default: %(default)s)")
    parser.add_argument("paths", nargs="*", type=Path, help="Markdown files (default: all of the ladder's and docs')")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.strict and not options.check:
        parser.error("--strict needs --check")

    repository = Repository(options.root)
    if options.why:
        try:
            print("\n".join(why.explain(repository, options.why, options.gpu)))
        except ReportError as error:
            print(f"sync --why: {error}", file=sys.stderr)
            return 2
        return 0
    files = [path.resolve() for path in options.paths] or list(documents(repository.root))
    for path in files:
        if not path.is_file() or path.suffix != ".md" or not path.is_relative_to(repository.root):
            parser.error(f"{path} is not a Markdown file of this repository")

    found = 0
    progress = Progress()
    for number, file in enumerate(files, 1):
        shown = file.relative_to(repository.root)
        step = partial(progress, f"{'checking' if options.check else 'filling'} {shown} ({number} of {len(files)})")
        step()
        if options.check:
            problems = check(file, repository, options.strict, step)
        else:
            changed, problems = fill(file, repository, step)
            if changed:
                print(f"wrote {shown}")
        for problem in problems:
            print(f"{shown}:{problem.line}: {problem.marker}: {problem.message}", file=sys.stderr)
        found += len(problems)
    if found:
        hint = "; ./worklog sync fills what can be filled" if options.check else ""
        print(f"{found} problem{'s' if found > 1 else ''} in {len(files)} files{hint}", file=sys.stderr)
    elif options.check:
        print(f"{len(files)} files agree with their sources")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
