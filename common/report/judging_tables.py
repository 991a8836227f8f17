"""The table of docs/judging.md: what public programs use of CUDA."""

from __future__ import annotations

from collections import Counter

from place import Place
from results import ReportError
from text import Table, caption, markdown_table

LIBRARIES = ("cublas", "cudnn", "curand", "thrust::")  # none of them is on the CPU layer


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
