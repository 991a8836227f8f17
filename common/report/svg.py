"""A page to draw SVG on, with the look that all drawings share.

Each drawing stands on a light panel of its own. A page's dark mode cannot be trusted to reach into an image (GitHub's
theme and the browser's can differ, and MkDocs has a switch of its own), so a transparent drawing would sometimes be
dark on dark; a panel is legible everywhere. Text stays text, in a generic family, with room for wider fonts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

INK, MUTED, LINE, PANEL, EDGE = "#1f2328", "#59636e", "#8c959f", "#ffffff", "#d1d9e0"
# Told apart by lightness as well as by hue; every use has a label too.
FILLS = {
    "plain": "#f6f8fa", "blue": "#9ecae9", "orange": "#fdd0a2",
    "green": "#b7e1c0", "red": "#f4a8a0", "purple": "#d6c5ea",
}
STROKES = {
    "plain": "#afb8c1", "blue": "#0b5394", "orange": "#b35c00",
    "green": "#1a7f37", "red": "#b3261e", "purple": "#6639a6",
}
FONT = "-apple-system, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"
MONO = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def coordinate(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


@dataclass
class Drawing:
    """Coordinates are in CSS pixels at full size; the origin is the panel's upper left corner."""

    width: float
    height: float
    title: str
    description: str
    parts: list[str] = field(default_factory=list)

    def rect(
        self, x: float, y: float, width: float, height: float, color: str = "plain", *, strong: bool = False,
        round: float = 2, fill: str | None = None, stroke: str | None = None, stroke_width: float | None = None,
        dash: str = "",
    ) -> None:
        pattern = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<rect x="{coordinate(x)}" y="{coordinate(y)}" width="{coordinate(width)}" height="{coordinate(height)}" '
            f'rx="{coordinate(round)}" fill="{fill or FILLS[color]}" stroke="{stroke or STROKES[color]}" '
            f'stroke-width="{coordinate(stroke_width or (2 if strong else 1))}"{pattern}/>'
        )

    def text(
        self, x: float, y: float, text: str, *, size: float = 13, anchor: str = "start", color: str = INK,
        bold: bool = False, mono: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        family = f' font-family="{MONO}"' if mono else ""
        self.parts.append(
            f'<text x="{coordinate(x)}" y="{coordinate(y)}" font-size="{coordinate(size)}" text-anchor="{anchor}" '
            f'fill="{color}"{weight}{family}>{escape(text, quote=False)}</text>'
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, *, color: str = LINE, width: float = 1, arrow: bool = False,
        dash: str = "",
    ) -> None:
        end = ' marker-end="url(#arrow)"' if arrow else ""
        pattern = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<line x1="{coordinate(x1)}" y1="{coordinate(y1)}" x2="{coordinate(x2)}" y2="{coordinate(y2)}" '
            f'stroke="{color}" stroke-width="{coordinate(width)}"{pattern}{end}/>'
        )

    def bracket(self, x1: float, x2: float, y: float, *, depth: float = 5, color: str = MUTED) -> None:
        """A square bracket that holds what lies above it between x1 and x2."""
        corners = ((x1, y), (x1, y + depth), (x2, y + depth), (x2, y))
        points = " ".join(f"{coordinate(x)},{coordinate(dy)}" for x, dy in corners)
        self.parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1"/>')

    def render(self) -> str:
        width, height = coordinate(self.width), coordinate(self.height)
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'role="img" aria-labelledby="title description" font-family="{FONT}">',
            f'<title id="title">{escape(self.title)}</title>',
            f'<desc id="description">{escape(self.description)}</desc>',
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
            f'orient="auto"><path d="M0 0.5 L8 4 L0 7.5 z" fill="{MUTED}"/></marker></defs>',
            f'<rect x="0.5" y="0.5" width="{coordinate(self.width - 1)}" height="{coordinate(self.height - 1)}" rx="6" '
            f'fill="{PANEL}" stroke="{EDGE}"/>',
            *self.parts,
            "</svg>\n",
        ])
