"""Where a table is wanted, and what is written below it about where its figures come from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from results import MODES, ReportError, Repository, ResultFile


@dataclass(frozen=True)
class Place:
    """Where a table is wanted: in which file, with which options."""

    repository: Repository
    file: Path
    options: dict[str, str]
    gpu: str

    def option(self, name: str, default: str = "") -> str:
        return self.options.get(name, default)

    def chosen(self, name: str) -> list[str]:
        """A comma-separated option; empty where all are meant."""
        return [word for word in self.option(name).split(",") if word]

    def flag(self, name: str) -> bool:
        value = self.option(name, "no")
        if value not in ("yes", "no"):
            raise ReportError(f"{name} is '{value}'; it must be yes or no")
        return value == "yes"

    def stage(self) -> str:
        """The stage option, else the stage in whose folder the file lies, its notes among it."""
        stages = self.repository.stages()
        inside = self.file.is_relative_to(self.repository.root)
        own = self.file.relative_to(self.repository.root).parts[0] if inside else ""
        stage = self.option("stage", own if own in stages else "")
        if not stage:
            raise ReportError("stage is missing: this file lies in no stage's folder")
        if stage not in stages:
            raise ReportError(f"there is no stage '{stage}'; there are: {', '.join(stages)}")
        return stage

    def link(self, path: Path, text: str | None = None) -> str:
        target = os.path.relpath(path, self.file.parent)
        return f"[{text or target}]({target})"

    def timings_named(self, default: str = "") -> list[str]:
        modes = [mode for mode in self.option("timing", default).split(",") if mode]
        for mode in modes:
            if mode not in MODES:
                raise ReportError(f"timing is '{mode}'; it must be of {', '.join(MODES)}")
        return modes


def origin_of(place: Place, results: ResultFile) -> tuple[str, str]:
    """("H200", "2026-07-30, commit `0123456789`"): which GPU, and of which run, as the file says."""
    context = results.context
    commit = context.get("commit", "")
    changes = " with changes" if context.get("dirty") == "true" else ""
    run = (context.get("date", "")[:10], f"commit `{commit[:10]}`{changes}" if commit else "")
    return context.get("device") or context.get("gpu") or place.gpu, ", ".join(word for word in run if word)


MOST_RUNS = 2  # that a caption names one by one


def of_runs(runs: Sequence[str]) -> str:
    """Each run's date and commit; of more than MOST_RUNS how many, and from when to when. The file has the commits."""
    if len(runs) <= MOST_RUNS:
        return "; ".join(runs)
    dates = sorted({run.split(",")[0] for run in runs})
    return f"{len(runs)} runs, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}"


def source_note(place: Place, files: Sequence[ResultFile]) -> list[str]:
    """Which GPU, when, at which commit, and where the data is: one sentence for all files that agree in it, and for all
    runs whose data is in one file."""
    of_run: dict[tuple[str, str], dict[Path, None]] = {}
    for results in files:
        of_run.setdefault(origin_of(place, results), {})[results.path] = None
    of_files: dict[tuple[str, tuple[Path, ...]], list[str]] = {}
    for (gpu, run), paths in of_run.items():
        of_files.setdefault((gpu, tuple(paths)), []).append(run)
    notes = []
    for (gpu, paths), runs in of_files.items():
        links = [place.link(path, f"stage {path.parent.parent.name[:2]}" if len(paths) > 1 else None) for path in paths]
        origin = ", ".join(word for word in (gpu, of_runs([run for run in runs if run])) if word)
        notes.append(f"{origin}: {', '.join(links)}")
    return notes
