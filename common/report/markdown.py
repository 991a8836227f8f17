"""The parts of Markdown that sync.py has to see: marked regions, fences, code spans, links and headings.

Everything works on the whole text with what is not to be seen blanked out (same length, line ends kept), so that an
offset in the blanked text is an offset in the file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

FENCE = re.compile(r"^[ \t>]*(`{3,}|~{3,})[ \t]*([^\s`]*)")
CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)((?:(?!\n[ \t]*\n).)+?)(?<!`)\1(?!`)", re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
MARKER = re.compile(r"<!--\s*(?:sync:(?P<kind>[\w-]*)\s*(?P<arguments>.*?)|(?P<end>/sync)\s*)-->", re.DOTALL)
MATH = re.compile(r"\$\$.+?\$\$|\$[^$\n]+\$", re.DOTALL)
HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.+?)(?:[ \t]+#+)?[ \t]*$", re.MULTILINE)
HTML_ANCHOR = re.compile(r"<a\s[^>]*?(?:id|name)\s*=\s*[\"']([^\"']+)[\"']", re.IGNORECASE)
INLINE_LINK = re.compile(
    r"\]\(\s*(?:<([^>\n]*)>|([^\s()]*(?:\([^\s()]*\)[^\s()]*)*))(?:\s+(?:\"[^\"]*\"|'[^']*'))?\s*\)"
)
REFERENCE_LINK = re.compile(r"^ {0,3}\[[^\]\n]+\]:[ \t]*<?([^\s>]+)>?", re.MULTILINE)
HTML_LINK = re.compile(r"<(?:img|a|source)\s[^>]*?(?:src|href|srcset)\s*=\s*[\"']([^\"']+)[\"']", re.IGNORECASE)


def blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


@dataclass(frozen=True)
class Fence:
    language: str
    first_line: int  # number in the file of the first line inside
    lines: tuple[str, ...]


def split_fences(text: str) -> tuple[str, list[Fence]]:
    """The text with fenced code blanked out, and the fenced blocks."""
    shown: list[str] = []
    fences: list[Fence] = []
    open_fence = ""
    language, start, inside = "", 0, []
    for index, line in enumerate(text.split("\n"), start=1):
        match = FENCE.match(line)
        if open_fence:
            shown.append(blank(line))
            closes = match and match.group(1).startswith(open_fence) and not match.group(2)
            if closes:
                fences.append(Fence(language, start, tuple(inside)))
                open_fence = ""
            else:
                inside.append(line)
        elif match:
            shown.append(blank(line))
            open_fence, language, start, inside = match.group(1), match.group(2).lower(), index + 1, []
        else:
            shown.append(line)
    if open_fence:
        fences.append(Fence(language, start, tuple(inside)))
    return "\n".join(shown), fences


def without_code(text: str) -> str:
    """The text with fenced code and code spans blanked out."""
    return CODE_SPAN.sub(lambda match: blank(match.group()), split_fences(text)[0])


@dataclass(frozen=True)
class Region:
    """<!-- sync:KIND ... --> content <!-- /sync -->; the offsets are those of the content."""

    kind: str
    words: tuple[str, ...]
    options: dict[str, str]
    begin: int
    end: int
    line: int
    marker: str  # as an error names it

    @property
    def is_inline(self) -> bool:
        return self.kind in ("figure", "claim")


@dataclass(frozen=True)
class Problem:
    line: int
    marker: str
    message: str


def regions_of(text: str) -> tuple[list[Region], list[Problem]]:
    """The marked regions in order, and what is wrong with the markers."""
    regions: list[Region] = []
    problems: list[Problem] = []
    opened: re.Match[str] | None = None

    def name(match: re.Match[str]) -> str:
        return " ".join(f"sync:{match['kind']} {match['arguments']}".split())

    for match in MARKER.finditer(without_code(text)):
        line = line_of(text, match.start())
        if match["end"]:
            if opened is None:
                problems.append(Problem(line, "/sync", "closes nothing: its opening marker is missing"))
                continue
            start, opened = opened, None
            words, options = [], {}
            try:
                for word in shlex.split(start["arguments"]):
                    key, equals, value = word.partition("=")
                    if equals:
                        options[key] = value
                    else:
                        words.append(word)
            except ValueError as error:
                problems.append(Problem(line_of(text, start.start()), name(start), f"cannot be read: {error}"))
                continue
            first = line_of(text, start.start())
            regions.append(
                Region(start["kind"], tuple(words), options, start.end(), match.start(), first, name(start))
            )
        else:
            if opened is not None:
                first = line_of(text, opened.start())
                problems.append(Problem(first, name(opened), "has no <!-- /sync --> before the next marker"))
            opened = match
    if opened is not None:
        problems.append(Problem(line_of(text, opened.start()), name(opened), "has no <!-- /sync -->"))
    return regions, problems


def starts_html_block(text: str, offset: int) -> bool:
    """Whether a comment at `offset` begins its line, where Markdown takes the whole line as HTML."""
    before = text[text.rfind("\n", 0, offset) + 1 : offset]
    return re.fullmatch(r"[ \t>]*(?:(?:[-*+]|\d+[.)])[ \t]+)?", before) is not None


def links_of(text: str) -> Iterator[tuple[int, str]]:
    """(line, target) of every link and image; code, comments and mathematics aside."""
    shown = COMMENT.sub(lambda match: blank(match.group()), without_code(text))
    shown = MATH.sub(lambda match: blank(match.group()), shown)
    for pattern in (INLINE_LINK, REFERENCE_LINK, HTML_LINK):
        for match in pattern.finditer(shown):
            target = next((group for group in match.groups() if group), "")
            yield line_of(text, match.start()), target


def anchors_of(text: str) -> set[str]:
    """The fragments that a link into this text may name, as GitHub makes them from the headings."""
    anchors: set[str] = set()
    visible, _ = split_fences(text)
    for match in HEADING.finditer(COMMENT.sub("", visible)):
        title = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", match.group(1))
        slug = re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
        unique, count = slug, 0
        while unique in anchors:
            count += 1
            unique = f"{slug}-{count}"
        anchors.add(unique)
    return anchors | set(HTML_ANCHOR.findall(visible))


def title_of(text: str) -> str | None:
    """The first heading, as plain text."""
    match = HEADING.search(COMMENT.sub("", split_fences(text)[0]))
    return re.sub(r"[`*]", "", match.group(1)) if match else None
