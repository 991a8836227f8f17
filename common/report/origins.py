#!/usr/bin/env python3
"""Says where a figure comes from: the file that holds it, and the commit that made it.

    python3 common/report/origins.py data/wide_rows/persistent_most     of one figure, by the key of its marker
    python3 common/report/origins.py                                    of every file, and what is missing

A program's results name the commit that the program was built from. What was taken by hand names the commit that first
kept it, or the tree that it was built on, and says which (`commit_note`, or an entry of `commits`). The second form
ends with 1 where a file or a figure names no commit, or one that the history does not have.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from results import PEERS, ROOT, ReportError, read_json

FILES = (
    "[0-9][0-9]_*/results/*.json", "docs/data/*.json", "docs/counters/*.json", "docs/verified/*.json",
    "docs/compare/*.json", "common/report/peers/*.json",
)
COMMIT = re.compile(r"[0-9a-f]{10,40}")
BY_HAND = "docs/data"  # figures by name are kept there, some of them by hand


@dataclass(frozen=True)
class Origin:
    commit: str
    note: str = ""


def origins_of(document: dict[str, Any]) -> dict[str, Origin]:
    """By the name of a figure, else by stage, else one for the whole file under ""."""
    source = document.get("source") or document.get("context") or document
    own = Origin(source.get("commit") or source.get("kept_in") or "", source.get("commit_note", ""))
    if "figures" in document:
        notes = source.get("commits", {})
        return {name: Origin(figure["commit"], notes.get(figure["commit"], "")) if "commit" in figure else own
                for name, figure in document["figures"].items()}
    if "stages" in document:
        return {entry["stage"]: Origin(entry.get("commit", "")) for entry in document["stages"]}
    return {"": own}


def origins_in(path: Path, root: Path) -> dict[str, Origin]:
    return origins_of(read_json(path, root))


def git(root: Path, *words: str) -> str:
    """What git says, or nothing where it is not there or finds no repository."""
    try:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def commit_now(root: Path = ROOT) -> str:
    """The commit that is checked out: what is measured now is of it."""
    return git(root, "rev-parse", "HEAD") or os.environ.get("WORKLOG_COMMIT", "")


def write_figures(path: Path, source: dict[str, Any], figures: dict[str, Any]) -> None:
    """A file of docs/data that a test makes anew at each commit: a line to a figure."""
    source = source | {
        "commit": commit_now(), "commit_note": "The tree that they were made in. A test makes them anew at every other",
    }
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(figure)}" for name, figure in figures.items())
    shown = json.dumps(source, indent=2).replace("\n", "\n  ")
    path.write_text(f'{{\n  "source": {shown},\n  "figures": {{\n{lines}\n  }}\n}}\n', encoding="utf-8")


def history_of(root: Path) -> Callable[[str], bool] | None:
    """Whether a commit is in the history; None where that is not all there (a copy without it, or a shallow clone)."""
    if git(root, "rev-parse", "--is-shallow-repository") != "false":
        return None
    commits = git(root, "rev-list", "HEAD").split()
    return lru_cache(None)(lambda commit: any(known.startswith(commit) for known in commits))


def files_with_figures(root: Path) -> Iterator[Path]:
    for pattern in FILES:
        # A lock, and lines that were counted, are of the tree that they stand in, and of no run.
        yield from (path for path in sorted(root.glob(pattern)) if not path.name.startswith(("code_", "kernel_lines")))


def problems(root: Path, is_known: Callable[[str], bool] | None) -> list[str]:
    """A sentence for each figure, stage or file that cannot be traced."""
    found = []
    for path in files_with_figures(root):
        shown = path.relative_to(root).as_posix()
        document = read_json(path, root)
        for name, origin in origins_of(document).items():
            where = f"{shown}, {name}" if name else shown
            if not origin.commit:
                found.append(f"{where}: names no commit")
            elif not COMMIT.fullmatch(origin.commit):
                found.append(f"{where}: '{origin.commit}' is no commit: 10 to 40 hexadecimal digits")
            elif is_known and not is_known(origin.commit):
                found.append(f"{where}: the history has no commit {origin.commit}")
            elif shown.startswith(BY_HAND) and "figures" in document and not origin.note:
                found.append(f"{where}: no note says what commit {origin.commit} is to the figure")
    return found


def origin_of(
    root: Path, key: str, gpu: str, read: Callable[[Path, Path], dict[str, Origin]] = origins_in
) -> tuple[Path, Origin]:
    """The file and the commit of the figure that a marker's key names. Who asks for many reads each file once."""
    head, _, rest = key.partition("/")
    if head == "data":
        file, _, name = rest.partition("/")
        path = root / "docs/data" / f"{file}.json"
    elif head == "counters":
        path, name = root / "docs/counters" / f"{gpu}.json", rest.partition("/")[0]
    elif head == "compare":
        path, name = root / "docs/compare" / f"{gpu}.json", ""
    elif head == PEERS:
        path, name = root / "common/report/peers" / f"{gpu}.json", ""
    elif head == "context":
        path, name = root / rest.partition("/")[0] / "results" / f"{gpu}.json", ""
    else:
        path, name = root / head / "results" / f"{gpu}.json", ""
    found = read(path, root)
    if name not in found:
        raise ReportError(f"{path.relative_to(root)} has no '{name}'")
    return path, found[name]


def sentence(root: Path, path: Path, name: str, origin: Origin) -> str:
    where = path.relative_to(root).as_posix() + (f", {name}" if name else "")
    return f"{where}: commit {origin.commit or 'not named'}" + (f". {origin.note}" if origin.note else "")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("key", nargs="?", help="a figure's key, as its marker has it")
    parser.add_argument("--gpu", default="h200", help="whose results (default: h200)")
    options = parser.parse_args(arguments)
    try:
        if options.key:
            path, origin = origin_of(ROOT, options.key, options.gpu)
            print(sentence(ROOT, path, "", origin))
            return 0
        for path in files_with_figures(ROOT):
            of_file: dict[Origin, list[str]] = {}
            for name, origin in origins_in(path, ROOT).items():
                of_file.setdefault(origin, []).append(name)
            for origin, names in of_file.items():
                print(sentence(ROOT, path, "" if len(of_file) == 1 else ", ".join(names), origin))
        found = problems(ROOT, history_of(ROOT))
    except ReportError as error:
        print(f"origins.py: {error}", file=sys.stderr)
        return 2
    print("\n".join(["", *found]) if found else "\nnothing is missing")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
