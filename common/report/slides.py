#!/usr/bin/env python3
"""Makes slides of the lecture that docs/teaching.md plans: one HTML file that needs no other, and no network.

    python3 common/report/slides.py                 writes slides.html
    python3 common/report/slides.py --output PATH

A row of the plan becomes a slide with its minutes, and each thing that it shows one more: a figure, a section of a
lesson with its code, a lesson with its question, its block step by step, and the times that were measured. So the
slides say what the lessons say now.
"""

from __future__ import annotations

import argparse
import base64
import re
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

from markdown import COMMENT, INLINE_LINK, title_of
from results import DEFAULT_GPU, ROOT, ReportError

PLAN = "## A lecture"
PAGE = "docs/teaching.md"
LINK = re.compile(r"\[([^\[\]]+)\]\(([^()\s]+)\)")
QUESTION = re.compile(r"^\*\*Question\.\*\*\s*(.+)$", re.MULTILINE)
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SVG_TITLE = re.compile(r"<title[^>]*>([^<]*)</title>")


@dataclass(frozen=True)
class Part:
    """A row of the plan."""

    minutes: int
    what: str  # Markdown
    shown: str


def section_of(text: str, heading: str) -> str:
    """What stands below a heading, up to the next of its level."""
    begin = text.find(f"\n{heading}\n")
    if begin < 0:
        raise ReportError(f"there is no section '{heading}'")
    end = text.find("\n## ", begin + 1)
    return text[begin + len(heading) + 2 : end if end >= 0 else len(text)]


def plan(text: str) -> tuple[str, list[Part]]:
    """The sentence that opens the plan, and its rows."""
    section = section_of(text, PLAN).strip()
    opening, _, table = section.partition("\n\n")
    parts = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 3 and cells[0].isdigit():
            parts.append(Part(int(cells[0]), cells[1], cells[2]))
    if not parts:
        raise ReportError(f"'{PLAN}' of {PAGE} has no rows")
    return opening, parts


def inline(text: str) -> str:
    """A sentence of Markdown as HTML; a link becomes its words."""
    text = LINK.sub(r"\1", COMMENT.sub("", text))
    text = escape(INLINE_LINK.sub("]", text), quote=False)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    text = re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", text)
    return re.sub(r"\*([^*]+)\*", r"<i>\1</i>", text).replace("$", "")


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def figure(path: Path, words: str) -> str:
    """A slide with a drawing, which stands in the file itself."""
    data = base64.b64encode(path.read_bytes()).decode()
    titled = SVG_TITLE.search(path.read_text(encoding="utf-8"))
    alternative = titled[1] if titled else words
    return f'<h2>{inline(words)}</h2><img alt="{alternative}" src="data:image/svg+xml;base64,{data}">'


def lesson_slides(path: Path) -> list[str]:
    """A lesson: its question, its block step by step, and the times of its kernels."""
    text = path.read_text(encoding="utf-8")
    question = QUESTION.search(text)
    name = title_of(text) or path.parent.name
    slides = [f"<h2>{inline(name)}</h2><p>{inline(question[1])}</p>"] if question else []
    for picture, words in ((path.parent / "traces/block.svg", "Step by step"),
                           (path.parent / f"charts/time_{DEFAULT_GPU}.svg", "Measured")):
        if picture.is_file():
            slides.append(figure(picture, f"{words}: {name}"))
    return slides


def section_slide(path: Path, anchor: str) -> str:
    """A section of a page: its heading, its first paragraph and its first code."""
    text = path.read_text(encoding="utf-8")
    heading = next((line for line in text.splitlines() if line.startswith("## ") and slug(line[3:]) == anchor), None)
    if heading is None:
        raise ReportError(f"{path.name} of {path.parent.name} has no section '{anchor}'")
    section = section_of(text, heading)
    paragraph = section.strip().partition("\n\n")[0]
    code = FENCE.search(section)
    shown = f"<pre>{escape(code[2].rstrip(), quote=False)}</pre>" if code else ""
    return f"<h2>{inline(heading[3:])}</h2><p>{inline(paragraph)}</p>{shown}"


def slides_of(part: Part, folder: Path) -> list[str]:
    """The first says what the part is about; those after it are what is shown."""
    slides = [f"<h2>{inline(part.what)}</h2>"]
    for _, target in LINK.findall(part.what):
        path = (folder / target).resolve()
        if path.name == "README.md" and path.parent != ROOT:
            slides += lesson_slides(path)
    links = LINK.findall(part.shown)
    for words, target in links:
        file, _, anchor = target.partition("#")
        path = (folder / file).resolve()
        slides.append(figure(path, words) if path.suffix == ".svg" else section_slide(path, anchor))
    if not links:
        slides[0] += f"<p>Shown: {inline(part.shown)}.</p>"
    return slides


TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>@TITLE@</title>
<style>
  :root { color-scheme: light dark; }
  body { margin: 0; font: clamp(18px, 2.6vmin, 34px)/1.4 system-ui, sans-serif;
         background: light-dark(#fbfaf7, #14181d); color: light-dark(#1d2733, #e6e8ea); }
  section { box-sizing: border-box; min-height: 100vh; padding: 5vmin 7vmin 9vmin; display: none;
            flex-direction: column; justify-content: center; gap: 2.5vmin; position: relative; }
  section.now { display: flex; }
  h1, h2 { margin: 0; font-size: 1.7em; line-height: 1.2; text-wrap: balance; }
  h1 { font-size: 2.4em; }
  p { margin: 0; max-width: 50em; }
  img { max-width: 100%; max-height: 72vh; object-fit: contain; align-self: center; flex: 1 1 auto; min-height: 0;
        width: 100%; }
  pre { margin: 0; font-size: .75em; line-height: 1.35; overflow: auto; padding: 1em; border-radius: 6px;
        background: light-dark(#f0eee8, #1b2027); }
  footer { position: absolute; left: 7vmin; right: 7vmin; bottom: 3vmin; font-size: .6em; opacity: .7;
           display: flex; justify-content: space-between; }
  @media print { section { display: flex; break-after: page; } }
</style>
</head>
<body>
@SLIDES@
<script>
"use strict";
// Arrow keys, space, a click or a touch go on; the address keeps the place.
const slides = [...document.querySelectorAll("section")];
let now = 0;
function go(to) {
  now = Math.min(Math.max(to, 0), slides.length - 1);
  slides.forEach((slide, i) => slide.classList.toggle("now", i === now));
  history.replaceState(null, "", `#${now + 1}`);
}
const STEPS = { ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1 };
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Home") go(0);
  else if (event.key === "End") go(slides.length - 1);
  else if (event.key in STEPS) go(now + STEPS[event.key]);
  else return;
  event.preventDefault();
});
document.addEventListener("click", event => go(now + (event.clientX < innerWidth / 4 ? -1 : 1)));
const fromAddress = () => go((parseInt(location.hash.slice(1)) || 1) - 1);
addEventListener("hashchange", fromAddress);
fromAddress();
</script>
</body>
</html>
"""


def deck(root: Path) -> str:
    page = root / PAGE
    opening, parts = plan(page.read_text(encoding="utf-8"))
    total = sum(part.minutes for part in parts)
    slides = [("", f"<h1>{inline(title_of((root / 'README.md').read_text(encoding='utf-8')) or '')}</h1>"
                   f"<p>{inline(opening)}</p>")]
    begun = 0
    for part in parts:
        when = f"minutes {begun} to {begun + part.minutes} of {total}"
        slides += [(when, slide) for slide in slides_of(part, page.parent)]
        begun += part.minutes
    sections = "\n".join(
        f"<section>{slide}<footer><span>{when}</span><span>{number} of {len(slides)}</span></footer></section>"
        for number, (when, slide) in enumerate(slides, 1)
    )
    return TEMPLATE.replace("@TITLE@", "Ninety minutes" if total == 90 else f"{total} minutes").replace(
        "@SLIDES@", sections)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("slides.html"), help="the file (default: slides.html)")
    options = parser.parse_args(arguments)
    try:
        options.output.write_text(deck(ROOT), encoding="utf-8")
    except (ReportError, OSError) as error:
        print(f"slides.py: {error}", file=sys.stderr)
        return 2
    print(f"{options.output}: open it in a browser; the arrow keys turn its pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
