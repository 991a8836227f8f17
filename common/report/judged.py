#!/usr/bin/env python3
"""Keeps what ./worklog judge --time has found of the learners' kernels on a GPU.

    python3 common/report/judged.py FOLDER COMMIT      writes docs/data/judged_<gpu>.json

FOLDER has a verdict (--json) of each, COMMIT is the tree that judged them.
"""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LEARNERS = Path("common/tests/learners")
ON_GPU = "on this GPU: "  # as judge.py begins what it found there
Json = dict[str, Any]


def verdict_of(document: Json) -> Json:
    problems = document["problems"]
    of_cpu = [problem["kind"] for problem in problems if not problem["text"].startswith(ON_GPU)]
    of_gpu = [problem["kind"] for problem in problems if problem["text"].startswith(ON_GPU)]
    gpu = document["gpu"]
    kept = {
        "file": Path(document["file"]).name, "operation": document["operation"], "verdict": document["verdict"],
        "found_on_cpu": list(dict.fromkeys(of_cpu)), "was_on_gpu": bool(gpu),
    }
    if not gpu:
        return kept
    kept |= {"found_on_gpu": list(dict.fromkeys(of_gpu)), "results": gpu["results"]}
    timed = ("shape", "us", "share_of_copy", "between")
    return kept | {key: gpu[key] for key in timed if key in gpu}


def main(arguments: list[str]) -> int:
    folder, commit = Path(arguments[0]), arguments[1]
    known = {path.name for path in (ROOT / LEARNERS).glob("*.cu")}
    documents: dict[str, Json] = {}
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("verdict") in ("right", "wrong") and path.stem + ".cu" in known:
            documents[path.stem] = document
    names = {document["gpu"]["name"] for document in documents.values() if document["gpu"]}
    if len(names) != 1:
        print(f"judged.py: these are verdicts of {len(names)} GPUs", file=sys.stderr)
        return 2
    known_gpus = json.loads((ROOT / "common/report/gpus.json").read_text(encoding="utf-8"))
    gpu = names.pop()
    short = next(key for key, entry in known_gpus.items() if entry["name"] == gpu)
    context = {
        "gpu": gpu, "commit": commit, "date": datetime.date.today().isoformat(),
        "made_by": "./worklog judge FILE --as OPERATION --time, of each file; common/report/judged.py",
    }
    verdicts = ",\n".join(f"  {json.dumps(verdict_of(each))}" for each in documents.values())
    shown = json.dumps(context, indent=1).replace("\n", "\n ")
    text = f'{{\n "context": {shown},\n "verdicts": [\n{verdicts}\n ]\n}}\n'
    (ROOT / f"docs/data/judged_{short}.json").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
