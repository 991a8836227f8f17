#!/usr/bin/env python3
"""How long the lessons are: what each asks of a reader, and whether that is within its limits.

    python3 common/report/lessons.py             every lesson (NN/README.md) and note (NN/notes/*.md), and README.md
    python3 common/report/lessons.py 05 07       the lessons of these stages, and their notes
    python3 common/report/lessons.py --check     exit code 1 where a page is over a limit, or states other minutes

Words are those of the prose: paragraphs, lists and headings as a reader sees them, also what is folded. Code in fences,
tables with their notes, links to neighbours, pictures, comments and tags have none; a figure has those that it is
written with, a formula is one. Lines of code are all that stand in fences. `sentence` is the mean length of one in
words, headings and the bold words that begin a paragraph left out; `terms` are those that link to docs/glossary.md.

A lesson and a note link a term of the glossary where a sentence first uses it. Those that they do not link there are
listed; with one of the most basic terms among them, a page is over its limits.

The sections that all lessons have stand in one order.

Minutes are the words at 200 a minute and the lines of code at 20 a minute. A lesson states its own before its first
section, as "N minutes".
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from markdown import CODE_SPAN, COMMENT, HTML_ANCHOR, INLINE_LINK, MATH, blank, regions_of, split_fences
from prose import NOTES, notes_of
from results import ROOT
from source_hash import stage_folders

MOST_WORDS, MOST_LINES = 3000, 250  # of prose and of quoted code, in a lesson
WORDS_A_MINUTE, LINES_A_MINUTE = 200, 20
SHORTEST_SENTENCE = 3  # words; less is what begins a paragraph in bold
TOLERANCE = 0.3  # by which the minutes that a lesson states may differ from those computed
BASIC_TERMS = (
    "thread", "block", "warp", "lane", "multiprocessor", "register", "shared memory", "L2", "barrier", "sector")
# Of the glossary, what sentences use in other meanings, too, or what the formulas introduce.
EVERYDAY_TERMS = {
    "rows", "cols", "mean", "gamma", "beta", "trip", "fused", "host", "device", "kernel", "launch", "team", "vector",
    "request", "grid", "wave", "tail", "bandwidth", "stream", "ring", "cold", "warm", "graph", "spread", "median",
    "variant", "pivot", "Welford", "Chan"}

SECTIONS = (
    "What we predict", "What we measured", "What did not help", "What it fails on", "What the article said",
    "The final kernel", "Exercises", "Questions for paper", "The next question")

NOT_PROSE = {"code", "table", "nav"}  # regions that are filled with what is no prose
TABLE_LINE = re.compile(r"^[ \t>]*\|.*$", re.MULTILINE)
IMAGE = re.compile(r"!\[[^\]]*" + INLINE_LINK.pattern)
GLOSSARY_LINK = re.compile(r"\[([^\[\]]+)\]\([^()\s]*\bglossary\.md(?:#[^()\s]*)?\)")
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)" + INLINE_LINK.pattern)
GLOSSARY_ENTRY = re.compile(r"^((?:<a id=\"[^\"]+\"></a>)+)\*\*(.+?)\*\*", re.MULTILINE)
TAG = re.compile(r"</?[a-zA-Z][^>]*>")
ITEM = re.compile(r"^[ \t>]*(?:[-*+]|\d+[.)])[ \t]+", re.MULTILINE)
HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+.*$", re.MULTILINE)
SECTION = re.compile(r"^##[ \t]", re.MULTILINE)
MINUTES = re.compile(r"\b(\d+)[\s-]minutes?\b")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|cf|vs|etc)\.(?=\s+[a-z0-9(])")
END_OF_SENTENCE = re.compile(r"(?<![.\s])[.!?][\"'”’)\]]*\s+")


@dataclass(frozen=True)
class Size:
    words: int
    lines: int  # of code in fences
    tables: int
    sentence: float  # words of one, in the mean
    terms: int  # of the glossary that are linked
    stated: int | None  # minutes
    sections: tuple[str, ...]  # those of SECTIONS, as they stand

    @property
    def minutes(self) -> int:
        return max(1, round(self.words / WORDS_A_MINUTE + self.lines / LINES_A_MINUTE))


def words_in(text: str) -> int:
    """A number with a narrow space in it is one word; a sign alone is none."""
    return sum(any(letter.isalnum() for letter in word) for word in re.split(r"[ \t\n]+", text))


def without_regions(text: str) -> str:
    """The text without what sync fills in that is no prose."""
    for region in reversed(regions_of(text)[0]):
        if region.kind in NOT_PROSE:
            text = text[: region.begin] + text[region.end :]
    return text


def prose_of(text: str) -> str:
    """What a reader reads as sentences and headings; an item of a list is a paragraph."""
    text = split_fences(without_regions(text))[0]
    text = CODE_SPAN.sub(lambda span: " ".join(["code"] * max(1, words_in(span.group(2)))), text)
    text = MATH.sub("formula", COMMENT.sub("", text))
    text = INLINE_LINK.sub("]", IMAGE.sub("", text))
    text = TAG.sub("", TABLE_LINE.sub("", text))
    return re.sub(r"[*\[\]]", "", ITEM.sub("\n\n", text))


def sentences_in(prose: str) -> list[str]:
    """Without the headings."""
    text = ABBREVIATION.sub(r"\1", HEADING.sub("\n\n", prose))
    return [sentence for paragraph in re.split(r"\n[ \t>]*\n", text)
            for sentence in END_OF_SENTENCE.split(paragraph) if words_in(sentence) >= SHORTEST_SENTENCE]


def tables_in(text: str) -> int:
    shown = split_fences(text)[0].split("\n")
    rows = [TABLE_LINE.match(line) is not None for line in shown]
    return sum(row and not before for before, row in zip([False, *rows], rows))


def minutes_stated(text: str) -> int | None:
    """Before the first section."""
    top = SECTION.split(COMMENT.sub("", split_fences(text)[0]), maxsplit=1)[0]
    found = MINUTES.search(top)
    return int(found.group(1)) if found else None


def sections_in(text: str) -> tuple[str, ...]:
    headings = [heading.lstrip("# ") for heading in HEADING.findall(split_fences(text)[0])]
    return tuple(name for heading in headings for name in SECTIONS if heading.startswith(name))


def size_of(text: str) -> Size:
    prose = prose_of(text)
    sentences = sentences_in(prose)
    in_sentences = sum(map(words_in, sentences))
    terms = {term.casefold() for term in GLOSSARY_LINK.findall(split_fences(text)[0])}
    return Size(
        words=words_in(prose), lines=sum(len(fence.lines) for fence in split_fences(text)[1]), tables=tables_in(text),
        sentence=in_sentences / len(sentences) if sentences else 0.0, terms=len(terms), stated=minutes_stated(text),
        sections=sections_in(text))


def glossary_of(text: str) -> dict[str, set[str]]:
    """Each term that has an anchor of its name, and the anchors of its entry."""
    terms = {}
    for entry in GLOSSARY_ENTRY.finditer(text):
        anchors = set(HTML_ANCHOR.findall(entry.group(1)))
        names = INLINE_LINK.sub("", entry.group(2)).replace("[", "").rstrip(".").split(", ")
        terms |= {name: anchors for name in names if name.lower().replace("'", "").replace(" ", "-") in anchors}
    return terms


def sentences_alone(text: str) -> str:
    """The text, blanked out where no term can be linked: code, formulas, tables, figures, headings and pictures."""
    for region in regions_of(text)[0]:
        text = text[: region.begin] + blank(text[region.begin : region.end]) + text[region.end :]
    text = split_fences(text)[0]
    for pattern in (COMMENT, CODE_SPAN, MATH, IMAGE, TAG, TABLE_LINE, HEADING):
        text = pattern.sub(lambda found: blank(found.group()), text)
    return text


def unlinked_terms(text: str, glossary: dict[str, set[str]]) -> dict[str, int]:
    """The terms that the text uses before it links them to their entry, and where."""
    shown = sentences_alone(text)
    entries = {}  # by where the words of a link stand
    for link in LINK.finditer(shown):
        page, _, anchor = (link.group(2) or link.group(3) or "").partition("#")
        if page.endswith("glossary.md"):
            entries[link.span(1)] = anchor
            shown = shown[: link.end(1)] + blank(shown[link.end(1) : link.end()]) + shown[link.end() :]
        else:
            shown = shown[: link.start()] + blank(link.group()) + shown[link.end() :]
    found = {}
    for term in sorted(glossary, key=len, reverse=True):  # what a longer term has used up is no use of a shorter one
        if term in EVERYDAY_TERMS:
            continue
        pattern = re.compile(rf"(?<![\w-]){re.escape(term)}(?:e?s)?(?![\w-])", re.IGNORECASE)
        first = pattern.search(shown)
        if first and not any(begin <= first.start() < end and anchor in glossary[term]
                             for (begin, end), anchor in entries.items()):
            found[term] = first.start()
        if " " in term:
            shown = pattern.sub(lambda use: blank(use.group()), shown)
    return dict(sorted(found.items(), key=lambda item: item[1]))


def problems_of(size: Size) -> list[str]:
    """What is wrong with a lesson of this size."""
    found = []
    if size.words > MOST_WORDS:
        found.append(f"{size.words} words of prose; at most {MOST_WORDS}")
    if size.lines > MOST_LINES:
        found.append(f"{size.lines} lines of code; at most {MOST_LINES}")
    in_order = tuple(sorted(size.sections, key=SECTIONS.index))
    if size.sections != in_order:
        found.append(f"its sections stand in another order than in other lessons: {', '.join(in_order)}")
    if size.stated is None:
        found.append(f"does not state before its first section how long it takes; by its length {size.minutes} minutes")
    elif abs(size.stated - size.minutes) > TOLERANCE * size.minutes:
        found.append(f"states {size.stated} minutes; by its length {size.minutes}")
    return found


def problems_of_terms(unlinked: list[str]) -> list[str]:
    basic = [term for term in unlinked if term in BASIC_TERMS]
    return [f"does not link to the glossary where it first uses: {', '.join(basic)}"] if basic else []


def read(path: Path) -> Size:
    return size_of(path.read_text(encoding="utf-8"))


def line(name: str, *cells: object) -> str:
    return f"{name:<44}" + "".join(f"{cell:>10}" for cell in cells)


def show_lessons(lessons: dict[str, Size]) -> None:
    print(line("lesson", "words", "code", "minutes", "stated", "sentence", "terms"))
    for name, size in lessons.items():
        stated = "-" if size.stated is None else size.stated
        print(line(name, size.words, size.lines, size.minutes, stated, f"{size.sentence:.1f}", size.terms))
    print(line("at most", MOST_WORDS, MOST_LINES))


def show_notes(root: Path, stages: list[str]) -> None:
    notes = [path for stage in stages for path in notes_of(root / stage)]
    if notes:
        print("\n" + line("note", "words", "minutes"))
    for path in notes:
        size = read(path)
        print(line(path.relative_to(root).as_posix(), size.words, size.minutes))


def show_terms(unlinked: dict[str, list[str]]) -> None:
    if any(unlinked.values()):
        print("\nterms that are not linked to the glossary where a page first uses them")
    for name, terms in unlinked.items():
        if terms:
            print(f"{name}: {', '.join(terms)}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 where a page is over its limits")
    parser.add_argument("stages", nargs="*", metavar="NN", help=f"stages (default: all, with {NOTES} and README.md)")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    stages = [stage for stage in stage_folders(root) if (root / stage / "README.md").is_file()]
    for chosen in options.stages:
        if not any(stage.startswith(chosen) for stage in stages):
            parser.error(f"there is no lesson '{chosen}'; there are: {', '.join(stages) or 'none'}")
    stages = [stage for stage in stages if not options.stages or stage.startswith(tuple(options.stages))]
    if not stages:
        parser.error(f"there is no lesson in {root}")

    lessons = {f"{stage}/README.md": read(root / stage / "README.md") for stage in stages}
    show_lessons(lessons)
    show_notes(root, stages)
    glossary_file = root / "docs" / "glossary.md"
    glossary = glossary_of(glossary_file.read_text(encoding="utf-8")) if glossary_file.is_file() else {}
    notes = [path.relative_to(root).as_posix() for stage in stages for path in notes_of(root / stage)]
    unlinked = {name: list(unlinked_terms((root / name).read_text(encoding="utf-8"), glossary))
                for name in (*lessons, *notes)}
    show_terms(unlinked)
    if not options.stages and (root / "README.md").is_file():
        front = read(root / "README.md")
        print(f"\nREADME.md: {front.words} words, {front.tables} tables")
    sys.stdout.flush()
    problems = [f"{name}: {problem}" for name, terms in unlinked.items()
                for problem in [*(problems_of(lessons[name]) if name in lessons else []), *problems_of_terms(terms)]]
    if options.check and problems:
        print("\n" + "\n".join(problems), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
