"""What MkDocs calls while it builds the site: headings get GitHub's anchors, formulas become MathML, code and drawings
are told how wide they are (pages.css makes them fit)."""

from __future__ import annotations

import posixpath
import re
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r"<(span|div) class=\"arithmatex\">(?:\\\((.*?)\\\)|\\\[(.*?)\\\])</\1>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")
IN_FONT = set((Path(__file__).with_name("math_font") / "characters.txt").read_text(encoding="utf-8"))
CODE = re.compile(r"<pre([^>]*)>(.*?)</pre>", re.DOTALL)
DRAWING = re.compile(r"<img (?=[^>]*src=\"([^\"]+\.svg)\")")
WIDTH = re.compile(r"<svg[^>]*\bwidth=\"([0-9.]+)\"")
WIDE = 600  # pixels: a drawing of more would be too small to read on a phone


def slug(text: str, separator: str) -> str:
    """As GitHub makes an anchor of a heading, so that one link serves both."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"<[^>]+>", "", text).lower()).strip().replace(" ", separator)


def on_config(config: Any) -> Any:
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def math(match: re.Match[str]) -> str:
    inline, block = match.group(2), match.group(3)
    formula = unescape(block if inline is None else inline)
    made = convert(formula, display="block" if inline is None else "inline")
    missing = sorted(set(unescape(TAG.sub("", made))) - IN_FONT)
    if missing:
        raise ValueError(f"the font for formulas has no {' '.join(missing)}, in: {formula}; see math_font.py")
    return made


def with_columns(match: re.Match[str]) -> str:
    lines = unescape(TAG.sub("", match.group(2))).split("\n")
    return f'<pre style="--columns:{max(map(len, lines))}"{match.group(1)}>{match.group(2)}</pre>'


def on_page_content(html: str, page: Any, config: Any, **_: Any) -> str:
    def with_width(match: re.Match[str]) -> str:
        name = posixpath.normpath(posixpath.join(page.url, match.group(1)))
        width = WIDTH.search((Path(config["docs_dir"]) / name).read_text(encoding="utf-8"))
        return '<img class="worklog-wide" ' if width and float(width.group(1)) > WIDE else match.group()

    return DRAWING.sub(with_width, CODE.sub(with_columns, FORMULA.sub(math, html)))
