"""What has changed since a figure was measured: the code of which kernel, or which launch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import launches
from cells import STAGE_OF, case_of_cell, cell_of
from results import MODES, ReportError, Repository, case_name, read_json


def explain(repository: Repository, key: str, gpu: str) -> Iterator[str]:
    """Lines about the figure that `key` names, as sync:figure names it. Raises ReportError where there is none."""
    if key.startswith("data/"):
        yield "a figure of docs/data was measured by hand, and says in its file of which commit"
        return
    if key.startswith("compare/"):
        yield from of_comparison(repository, key, gpu)
        return
    hardware = key.startswith("counters/")
    stage, _, case = key.removeprefix("counters/").partition("/")
    if stage not in repository.stages():
        raise ReportError(f"there is no stage '{stage}'; there are: {', '.join(repository.stages())}")
    path = repository.root / "docs/counters" / f"{gpu}.json" if hardware else repository.results_path(stage, gpu)
    document = read_json(path, repository.root)
    case = case.rsplit("/", 1)[0] if case.rsplit("/", 1)[-1] in MODES else case
    recorded = launches.recorded(document)
    if hardware:
        there = any(entry["stage"] == stage and case_name(entry) == case for entry in document["kernels"])
    else:
        there = any(timing.case == case for timing in repository.stage_results(stage, gpu).timings)
    if not there:
        raise ReportError(f"{path.relative_to(repository.root)} has no '{case}'")
    found = recorded.get(f"{stage}/{case}" if hardware else case)
    yield from of_case(repository, stage, gpu, case, found, launches.kernel_names(document))


def of_comparison(repository: Repository, key: str, gpu: str) -> Iterator[str]:
    """`key` is compare/ours/operation/type/shape/timing."""
    document = repository.comparison(gpu)
    try:
        _, cell, _ = cell_of(key.replace("compare/best/", "compare/ours/"))
        stage = STAGE_OF[cell.operation]
    except (ValueError, KeyError):
        raise ReportError(
            f"'{key}' is no cell of the comparison: it is compare/ours, and operation/type/shape/timing"
        ) from None
    if document is None or not any(cell_of(entry["name"])[1] == cell for entry in document["benchmarks"]):
        raise ReportError(f"docs/compare/{gpu}.json has no '{cell.name}'")
    found = launches.recorded(document).get(cell.name)
    yield from of_case(repository, stage, gpu, case_of_cell(cell), found, launches.kernel_names(document))


def of_case(
    repository: Repository,
    stage: str,
    gpu: str,
    case: str,
    recorded: Sequence[launches.Launch] | None,
    names: dict[str, str],
) -> Iterator[str]:
    yield f"{stage}/{case} on {gpu}"
    lock = repository.lock(stage, gpu)
    if recorded is None:
        yield "  its file does not say which code ran: it is current while the sources are the same to the token"
        return
    if lock is None:
        yield f"  {stage} has no lock that says what it launches now: ./worklog lock makes it"
        return
    if repository.lock_now(stage, gpu) is None:
        shown = lock.path.relative_to(repository.root)
        yield f"  the sources have changed since {shown} was made: ./worklog lock says whether the code has"
    now = lock.launches(gpu, case)
    if now is None:
        yield f"  {lock.path.relative_to(repository.root)} does not have this case: ./worklog lock adds it"
        return
    different = launches.differences(recorded, now, names | lock.names)
    yield from (f"  {sentence}" for sentence in different)
    if not different:
        yield f"  current: {'; '.join(described(launch, lock.names) for launch in now)}"


def described(launch: launches.Launch, names: dict[str, str]) -> str:
    shape = {key: launch[key] for key in launches.SHAPE if key in launch}
    return f"{names.get(launch.get('code', ''), '?')}, code {launch.get('code')}, {json.dumps(shape)}"
