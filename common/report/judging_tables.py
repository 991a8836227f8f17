"""The tables of docs/judging.md: what was judged on a GPU, and what public programs use of CUDA."""

from __future__ import annotations

from collections import Counter

from place import Place
from results import ReportError
from text import Table, caption, markdown_table, significant

NONE = "–"
LIBRARIES = ("cublas", "cudnn", "curand", "thrust::")  # none of them is on the CPU layer


def said(kinds: list[str]) -> str:
    return ", ".join(kind.replace("_", " ") for kind in kinds) or "right"


def judged(place: Place) -> Table:
    """A line to each kernel of a learner's: what was found on the CPU layer and on a GPU, and its time there."""
    name = f"judged_{place.gpu}"
    document = place.repository.data(name)
    context = document["context"]
    lines = []
    for each in sorted(document["verdicts"], key=lambda each: (-("us" in each), -each.get("us", 0), each["file"])):
        on_gpu = "not run there"
        if each["was_on_gpu"]:
            results = f"{each['results']['right']} of {each['results']['all']} results right"
            on_gpu = f"{said(each['found_on_gpu'])}, {results}" if each["found_on_gpu"] else results
        share = each.get("share_of_copy")
        lines.append([
            f"`{each['file']}`", each["operation"].replace("_", " "), said(each["found_on_cpu"]), on_gpu,
            f"{significant(each['us'])} µs" if "us" in each else NONE, f"{share:.0%}" if share else NONE,
            each.get("between", "").removeprefix("By the measured time you are ").rstrip(".") or NONE,
        ])
    head = ["kernel", "as", "on the CPU layer", "on the GPU", "time", "of a copy", "on the ladder"]
    shape = next((each["shape"].replace("x", " x ") for each in document["verdicts"] if "shape" in each), "")
    note = [
        f"Kernels of common/tests/learners. Times: cold cache, {shape}, of what is right on both",
        f"{context['gpu']}, {context['date']}, commit `{context['commit'][:10]}`: "
        f"{place.link(place.repository.root / f'docs/data/{name}.json')}",
    ]
    return Table(markdown_table(head, lines, 4) + caption(note, False), False)


def survey(place: Place) -> Table:
    """The names of CUDA's that most of the public programs use, all of which the CPU layer has."""
    document = place.repository.data("learners_survey")
    context, programs = document["context"], document["programs"]
    own = [each for each in document["names"] if not each["name"].startswith(LIBRARIES)]
    by_count: dict[int, list[str]] = {}
    for each in own[: int(place.option("limit", "24"))]:
        if not each["there"]:
            raise ReportError(f"{each['name']} is used by {each['programs']} programs, and is not on the CPU layer")
        by_count.setdefault(each["programs"], []).append(f"`{each['name']}`")
    lines = [[", ".join(names), str(count)] for count, names in by_count.items()]
    outcomes = Counter(outcome_of(each["outcome"]) for each in programs)
    note = [
        f"{len(programs)} programs of {len(context['repositories'])} public repositories, of at most "
        f"{context['most_lines']} lines each: {outcomes['compiles']} compile on the CPU layer, "
        f"{outcomes['refused']} are refused in a sentence, {outcomes['fails']} do not compile",
        f"Commit `{context['commit'][:10]}`: {place.link(place.repository.root / 'docs/data/learners_survey.json')}",
    ]
    return Table(markdown_table(["names", "programs"], lines) + caption(note, False), False)


def outcome_of(text: str) -> str:
    return "compiles" if text == "compiles" else "refused" if text.startswith("refused: ") else "fails"
