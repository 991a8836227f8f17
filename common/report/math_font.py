#!/usr/bin/env python3
"""Makes the site's font for formulas: of Latin Modern Math, the characters that pages may use.

    python3 common/report/math_font.py latinmodern-math.otf     writes common/report/math_font/

Browsers place indices and roots by a font's MATH table, which few fonts have. The font is part of TeX distributions
(Debian: fonts-lmodern), under the GUST Font License, which lies beside what is made here. What is made is another font
than that: it has fewer characters and the name "Worklog Math". pages_hooks.py names what a formula needs and it lacks.
Needs fonttools and brotli.
"""

from __future__ import annotations

import argparse
import string
from pathlib import Path

FOLDER = Path(__file__).with_name("math_font")
NAME = "Worklog Math"
GREEK = "".join(map(chr, [*range(0x391, 0x3AA), *range(0x3B1, 0x3CA)])) + "ϑϕϖϱϵ"
SIGNS = "\u00a0µ·×±÷√∂∑∏∫∞≈≠≤≥≪≫−∓∈∉∀∃→←↔⇒⌈⌉⌊⌋⟨⟩…⋯′″∥∣‖∘∗⋅ℓℝ―—–¯ˆ˜"
WANTED = string.ascii_letters + string.digits + string.punctuation + " " + GREEK + SIGNS
# Of one letter alone, browsers take the slanted form, which is a character of its own.
SLANTED = (*range(0x1D434, 0x1D468), 0x210E, *range(0x1D6E2, 0x1D71C))
FULL_NAME, FAMILY, POSTSCRIPT_NAME = 4, 1, 6  # of the table of names


def make(source: Path) -> str:
    """Writes the font; returns its characters, the slanted ones left out."""
    from fontTools import subset
    from fontTools.ttLib import TTFont

    font = TTFont(source)
    there = font.getBestCmap()
    characters = "".join(sorted(letter for letter in set(WANTED) if ord(letter) in there))
    options = subset.Options(layout_features=["dtls"], name_IDs=[0, 1, 2, 4, 5, 6, 13, 14], hinting=False,
                             desubroutinize=True)
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=[*map(ord, characters), *(code for code in SLANTED if code in there)])
    subsetter.subset(font)
    for record in font["name"].names:
        if record.nameID in (FAMILY, FULL_NAME):
            record.string = NAME
        elif record.nameID == POSTSCRIPT_NAME:
            record.string = NAME.replace(" ", "")
    outlines = font["CFF "].cff
    outlines.fontNames = [NAME.replace(" ", "")]
    outlines.topDictIndex[0].FullName = outlines.topDictIndex[0].FamilyName = NAME
    font.flavor = "woff2"
    font.save(FOLDER / "math.woff2")
    return characters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="latinmodern-math.otf")
    characters = make(parser.parse_args().source)
    (FOLDER / "characters.txt").write_text(characters + "\n", encoding="utf-8")
    print(f"{len(characters)} characters, {(FOLDER / 'math.woff2').stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
