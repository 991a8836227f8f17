#!/usr/bin/env python3
"""The hash of a stage's kernels as written: where nobody can compile them, it says whether they are as they were.

It is the sha256 over the tokens of the stage's kernels.cuh, of the other headers beside it and of its final kernels in
final/, with every file of the repository that they include, device headers of common/ among them, put in place of its
#include, once. Comments, white space between tokens and includes of anything else do not count. What ties a figure to
the code that ran is the hash of its machine code (machine_code.py).

    python3 common/report/source_hash.py 01_naive    prints the hash of one stage
    python3 common/report/source_hash.py             prints every stage with its hash
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STAGE_FOLDER = re.compile(r"\d\d_\w+")

# One token of C++, longest first. Comments and white space have no group: they are skipped.
TOKEN = re.compile(
    r"""
      //[^\n]* | /\*.*?\*/ | \s+
    | (?P<raw_string>   (?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\(.*?\)(?P=fence)")
    | (?P<string>       (?:u8|[uUL])?"(?:\\.|[^"\\\n])*")
    | (?P<character>    (?:u8|[uUL])?'(?:\\.|[^'\\\n])+')
    | (?P<number>       \.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])*)
    | (?P<word>         [^\W\d]\w*)
    | (?P<punctuation>  <<<|>>>|<=>|<<=|>>=|->\*|\.\.\.|::|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\#\#|.)
    """,
    re.VERBOSE | re.DOTALL,
)
DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(\w+)(.*)")
QUOTED_INCLUDE = re.compile(r'[ \t]*"([^"]+)"')


def stage_folders(root: Path) -> list[str]:
    """Names of the stage folders that hold kernels, in the order of the ladder."""
    return sorted(p.parent.name for p in root.glob("*/kernels.cuh") if STAGE_FOLDER.fullmatch(p.parent.name))


def tokens_of(text: str) -> list[str]:
    return [match.group() for match in TOKEN.finditer(text) if match.lastgroup]


def without_comments(text: str) -> str:
    """The text with each comment turned into a space (line ends within it kept) and literals left alone."""

    def blank(match: re.Match[str]) -> str:
        comment = match.group()
        if match.lastgroup or not comment.startswith(("//", "/*")):
            return comment
        return " " + "\n" * comment.count("\n")

    return TOKEN.sub(blank, text)


def included_file(name: str, includer: Path, root: Path) -> Path | None:
    """The file that #include "name" means, if it lies in the repository; None for anything else."""
    for folder in (includer.parent, root):
        path = (folder / name).resolve()
        if path.is_file() and path.is_relative_to(root):
            return path
    return None


def collect(path: Path, root: Path, seen: set[Path], tokens: list[str]) -> None:
    """Appends the tokens of `path`, following includes of the repository's files in the order in which they stand."""
    if path in seen:
        return
    seen.add(path)
    text = path.read_text(encoding="utf-8").replace("\r\n", "\n").replace("\\\n", "")
    code: list[str] = []
    for line in without_comments(text).split("\n"):
        directive = DIRECTIVE.fullmatch(line)
        if not directive:
            code.append(line)
            continue
        tokens += tokens_of("\n".join(code))
        code = []
        word, rest = directive.groups()
        if word == "include":
            quoted = QUOTED_INCLUDE.match(rest)
            included = included_file(quoted.group(1), path, root) if quoted else None
            if included:
                collect(included, root, seen, tokens)
        elif (word, rest.strip()) != ("pragma", "once"):
            tokens += [*tokens_of(line), "<end of directive>"]  # where a directive ends has a meaning
    tokens += tokens_of("\n".join(code))


def source_hash(stage: str, root: Path = ROOT) -> str:
    """The hash of `stage` (a folder name), 64 hexadecimal digits. Raises FileNotFoundError without kernels.cuh."""
    root = root.resolve()
    tokens: list[str] = []
    seen: set[Path] = set()
    beside = sorted((root / stage).glob("*.cuh"))
    final = sorted(path for path in (root / stage / "final").glob("*") if path.suffix in (".cuh", ".h", ".cu"))
    for path in (root / stage / "kernels.cuh", *beside, *final):
        collect(path.resolve(), root, seen, tokens)
    return hashlib.sha256("\n".join(tokens).encode()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Prints the hash of a stage's kernels, comments and white space aside."
    )
    parser.add_argument("stage", nargs="?", help="a stage folder, such as 01_naive (default: all, with their names)")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage is None:
        for stage in stage_folders(arguments.root):
            print(stage, source_hash(stage, arguments.root))
        return 0
    stage = arguments.stage.rstrip("/")
    if not (arguments.root / stage / "kernels.cuh").is_file():
        parser.error(f"{stage} has no kernels.cuh; stages here: {', '.join(stage_folders(arguments.root)) or 'none'}")
    print(source_hash(stage, arguments.root))
    return 0


if __name__ == "__main__":
    sys.exit(main())
