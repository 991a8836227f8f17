"""What MkDocs calls while it builds the site: headings get GitHub's anchors, formulas become MathML."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r"<(span|div) class=\"arithmatex\">(?:\\\((.*?)\\\)|\\\[(.*?)\\\])</\1>", re.DOTALL)


def slug(text: str, separator: str) -> str:
    """As GitHub makes an anchor of a heading, so that one link serves both."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"<[^>]+>", "", text).lower()).strip().replace(" ", separator)


def on_config(config: Any) -> Any:
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def math(match: re.Match[str]) -> str:
    inline, block = match.group(2), match.group(3)
    if inline is not None:
        return convert(unescape(inline), display="inline")
    return convert(unescape(block), display="block")


def on_page_content(html: str, **_: Any) -> str:
    return FORMULA.sub(math, html)
