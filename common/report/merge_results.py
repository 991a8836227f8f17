#!/usr/bin/env python3
"""Joins the results of several runs of one program into one file, as `NN_name/results/<gpu>.json` holds them.

    python3 common/report/merge_results.py --output 05_welford/results/h200.json square.json wide.json

All runs must come from one commit, one kernel source and one model of GPU. Where two runs timed or checked the same
thing, the later file's figures count, all of them: medians and percentiles of one run stay together. The context is the
first run's; every run's date and clocks are kept in it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

MUST_AGREE = ("backend", "gpu", "gpu_short", "commit", "dirty", "source_hash", "compiler", "flags", "driver", "runtime")
OF_A_RUN = ("date", "clocks_before", "clocks_after", "empty_launch_us")


class MergeError(Exception):
    """One sentence on why these runs do not belong together."""


def check_key(check: dict[str, Any]) -> tuple[Any, ...]:
    keys = ("stage", "variant", "operation", "dtype", "rows", "cols", "pixels", "layout", "input")
    return tuple(check.get(key) for key in keys)


def timing_key(entry: dict[str, Any]) -> str:
    """Stage, variant, operation, type, shape and mode; what follows in a benchmark's name is Google Benchmark's own."""
    return "/".join(entry["name"].split("/")[:6])


def whole(entry: dict[str, Any]) -> str:
    return json.dumps(entry, sort_keys=True)


# What two entries have in common that are of the same thing, by the list that they stand in; else they are the same
# throughout.
KEYS = {
    "benchmarks": timing_key,
    "checks": check_key,
    "streams": lambda entry: entry.get("timing") or whole(entry),
}


def merge(runs: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """The runs, each with a name for messages, as one."""
    first_name, first = runs[0]
    context = dict(first["context"])
    for name, run in runs[1:]:
        for key in MUST_AGREE:
            one, other = run["context"].get(key), context.get(key)
            if one != other:
                raise MergeError(f"{name} and {first_name} differ in {key}: {one!r} against {other!r}")
    context["runs"] = [{key: run["context"][key] for key in OF_A_RUN if key in run["context"]} for _, run in runs]

    merged = {key: value for key, value in first.items() if not isinstance(value, list)} | {"context": context}
    lists = {key for _, run in runs for key, value in run.items() if isinstance(value, list)}
    for key in sorted(lists):
        same = KEYS.get(key, whole)
        entries: dict[Any, list[dict[str, Any]]] = {}
        for _, run in runs:
            of_run: dict[Any, list[dict[str, Any]]] = {}
            for entry in run.get(key, []):
                of_run.setdefault(same(entry), []).append(entry)
            # The statistics of a benchmark are entries of one key. Of what is told twice the last counts.
            entries |= of_run if key == "benchmarks" else {each: found[-1:] for each, found in of_run.items()}
        merged[key] = [entry for found in entries.values() for entry in found]
    return merged


def text_of(document: dict[str, Any]) -> str:
    """As the programs write it: each entry of a list, and each key of the context, has a line of its own."""

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    parts = []
    for key, value in document.items():
        if value and isinstance(value, dict):
            text = "{\n" + ",\n".join(f"  {line(name)}: {line(each)}" for name, each in value.items()) + "\n }"
        elif value and isinstance(value, list) and isinstance(value[0], (dict, list)):
            text = "[\n" + ",\n".join(f"  {line(each)}" for each in value) + "\n ]"
        else:
            text = line(value)
        parts.append(f" {line(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def write(path: Path, document: dict[str, Any]) -> None:
    """As a whole or not at all."""
    half_written = path.with_suffix(".part")
    half_written.write_text(text_of(document), encoding="utf-8")
    os.replace(half_written, path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("runs", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    try:
        runs = [(str(path), json.loads(path.read_text(encoding="utf-8"))) for path in options.runs]
        write(options.output, merge(runs))
    except (OSError, ValueError, KeyError, MergeError) as error:
        print(f"merge_results: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
