#!/usr/bin/env python3
"""What small public CUDA programs use, and what becomes of each on the CPU layer.

    python3 common/report/survey.py OWNER/NAME=FOLDER ...     of git clones; writes docs/data/learners_survey.json

Programs are the .cu files with a kernel and at most MOST_LINES lines, of each repository those MOST_FILES whose paths
have the smallest hashes: nobody has chosen them. Of each it is noted which names of CUDA its code has (comments and
strings aside), and whether it is taken as ./worklog judge takes a source: it compiles, it is refused in a sentence, or
it does not compile. The programs themselves are not kept. Needs a cpu build, and the headers of the CUDA Toolkit.
"""

from __future__ import annotations

import collections
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "common/classroom"))
sys.dont_write_bytecode = True
import judge  # noqa: E402
import plain_cuda  # noqa: E402
from exercises import ExerciseError  # noqa: E402
from toolchain import Toolchain, replaced  # noqa: E402

DATA = ROOT / "docs/data/learners_survey.json"
TOOLKIT = Path("/usr/local/cuda")
MOST_LINES, MOST_FILES = 300, 14
NAME = re.compile(
    r"cuda[A-Z]\w*|__\w+|atomic[A-Z]\w*|tex[123]D\w*|cublas[A-Z]\w*|cudnn[A-Z]\w*|curand\w+|"
    r"(?:cub|thrust|cg|wmma|cooperative_groups)"
)
# Of the compiler's and the preprocessor's, none of CUDA's.
NOT_CUDA = re.compile(
    r"__(?:VA_ARGS|FILE|LINE|func|FUNCTION|cplusplus|builtin_\w+|attribute|restrict|inline|asm|volatile)_*|__\w+_H_*"
)
SPACES = {"cub", "thrust", "cg", "wmma", "cooperative_groups"}  # what stands behind :: is the name
Json = dict[str, Any]


def git(folder: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, check=True).stdout


def programs_of(folder: Path) -> list[tuple[str, str]]:
    """Path and text of each that is chosen."""
    paths = [path for path in git(folder, "ls-tree", "-r", "--name-only", "-z", "HEAD").decode().split("\0")
             if path.endswith(".cu")]
    found: dict[str, tuple[str, str]] = {}
    for path in paths:
        text = git(folder, "show", f"HEAD:{path}").decode("utf-8-sig", errors="replace")
        is_exercise = "FIXME" in text  # which its reader has yet to write
        if "__global__" in text and not is_exercise and text.count("\n") <= MOST_LINES:
            found.setdefault(text, (path, text))
    return sorted(found.values(), key=lambda each: hashlib.sha256(each[0].encode()).hexdigest())[:MOST_FILES]


def toolkit_names(toolkit: Path) -> set[str]:
    """What the headers of the CUDA Toolkit name: whatever else begins like CUDA's is a program's own."""
    folder = toolkit / "include"
    headers = [*folder.glob("*.h"), *folder.glob("*.hpp"), *folder.glob("crt/*.h*"),
               *folder.glob("cooperative_groups/**/*.h")]
    return set(re.findall(r"\w+", "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in headers)))


def names_in(text: str, of_toolkit: set[str]) -> set[str]:
    tokens = [token for token in plain_cuda.lexed(text) if token.is_word or token.text == "::"]
    names = set()
    for i, token in enumerate(tokens):
        if not NAME.fullmatch(token.text) or NOT_CUDA.fullmatch(token.text):
            continue
        if token.text in SPACES:
            after = [each.text for each in tokens[i + 1 : i + 3]]
            space = "cooperative_groups" if token.text == "cg" else token.text
            if after[:1] == ["::"]:
                names.add(f"{space}::{after[1]}")
        elif token.text in of_toolkit:
            names.add(token.text)
    return names


def taken(folder: Path, path: str, text: str, toolchain: Toolchain, work: Path) -> str:
    """What becomes of a program: "compiles", the sentence that refuses it, or what the compiler says first."""
    beside = work / "sources"
    subprocess.run(["rm", "-rf", str(beside)], check=True)
    beside.mkdir()
    own = str(Path(path).parent)
    headers = [name for name in git(folder, "ls-tree", "-r", "--name-only", "-z", "HEAD").decode().split("\0")
               if name.endswith((".h", ".cuh", ".hpp"))]
    by_name = {Path(name).name: name for name in sorted(headers, key=lambda each: str(Path(each).parent) == own)}
    waiting = [text]
    while waiting:  # those that it includes, and those that they include
        for name in re.findall(r'#\s*include\s*"(?:[^"\n]*/)?([^"/\n]+)"', waiting.pop()):
            if name in by_name:
                data = git(folder, "show", f"HEAD:{by_name.pop(name)}")
                (beside / name).write_bytes(data)
                waiting.append(data.decode(errors="replace"))
    source = beside / "program.cu"
    source.write_text(text, encoding="utf-8")
    try:
        whole = plain_cuda.with_headers(source, 1 << 20)
        rewritten = plain_cuda.rewritten(whole, "program.cu")
        judge.refuse_what_is_lacking(rewritten.text, "program.cu")
    except ExerciseError as error:
        return re.sub(r"^\S+:\d+: ", "refused: ", str(error))
    names = "".join(f" struct {each};" for each in sorted(rewritten.deduced))
    head = f'#include "common/classroom/plain_cuda.h"\nnamespace worklog::plain::kernels {{{names} }}\n'
    unit = work / "unit.cu"
    unit.write_text(f'{head}#line 1 "program.cu"\n{rewritten.text}', encoding="utf-8")
    command = replaced(toolchain.recipe(False).compile, "/dev/null", str(unit))
    command += ["-fsyntax-only", "-w", "-fmax-errors=1", "-fdiagnostics-color=never"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return "compiles"
    return next((line.partition("error: ")[2] for line in done.stderr.splitlines() if "error: " in line), "fails")


def main(arguments: list[str]) -> int:
    toolchain = Toolchain(ROOT, ROOT / "build/cpu")
    header = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "common/simt/include").rglob("*"))
                       if path.is_file())
    known = set(re.findall(r"\w+", header + (ROOT / "common/classroom/plain_cuda.py").read_text(encoding="utf-8")))
    of_toolkit = toolkit_names(TOOLKIT)
    repositories, programs = [], []
    with tempfile.TemporaryDirectory() as work:
        for argument in arguments:
            name, _, folder = argument.partition("=")
            commit = git(Path(folder), "rev-parse", "HEAD").decode().strip()
            chosen = programs_of(Path(folder))
            repositories.append({"repository": f"https://github.com/{name}", "commit": commit, "programs": len(chosen)})
            for path, text in chosen:
                outcome = taken(Path(folder), path, text, toolchain, Path(work))
                names = sorted(names_in(text, of_toolkit))
                programs.append({"of": name, "path": path, "outcome": outcome, "names": names})
                print(f"{name}/{path}: {outcome}", flush=True)
    counts = collections.Counter(name for program in programs for name in program["names"])
    by_name = [{"name": name, "programs": count, "there": name.rpartition("::")[2] in known}
               for name, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))]
    commit = git(ROOT, "rev-parse", "HEAD").decode().strip()
    context = {"commit": commit, "made_by": "python3 common/report/survey.py", "repositories": repositories,
               "most_lines": MOST_LINES, "most_programs": MOST_FILES}
    document = {"context": context, "names": by_name, "programs": programs}
    DATA.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
