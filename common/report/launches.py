"""What ties a figure to the machine code that ran: the launches that were made when it was measured, compared with
those that the tree as it stands would make.

A launch is a kernel's code, by its hash (machine_code.py), and the shape that it is launched in. Results hold the
launches of each case; NN_name/results/code_<arch>.json, the lock, holds those of the tree (lock.py makes it). A figure
is current while the two agree, whatever names the kernels have and wherever they stand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Launch = dict[str, Any]
SHAPE = ("grid", "block", "cluster", "shared_bytes", "cooperative", "overlap")
IN_WORDS = {
    "grid": "the grid",
    "block": "the block",
    "cluster": "the cluster",
    "shared_bytes": "the dynamic shared memory",
    "cooperative": "the cooperative launch",
    "overlap": "the programmatic dependent launch",
}


def lock_path(root: Path, stage: str, architecture: str) -> Path:
    return root / stage / "results" / f"code_{architecture}.json"


def architecture_of(compute_capability: str) -> str:
    """sm_90 for 9.0."""
    return f"sm_{compute_capability.replace('.', '')}"


def compared_keys(one: Sequence[Launch], other: Sequence[Launch]) -> tuple[str, ...]:
    """What of the shapes is compared. Two GPUs of one model may hold different numbers of clusters at once: where they
    do, or where it is not known, grids that may follow from it are not."""
    alike = all(a.get("at_once") == b.get("at_once") for a, b in zip(one, other))
    return SHAPE if alike else tuple(key for key in SHAPE if key != "grid")


def same(one: Sequence[Launch] | None, other: Sequence[Launch] | None) -> bool:
    """Whether two cases launch the same code in the same shapes. Code that is not known is the same as nothing."""
    if one is None or other is None or len(one) != len(other):
        return False
    keys = compared_keys(one, other)
    return all(
        a.get("code") and a["code"] == b.get("code") and all(a.get(key) == b.get(key) for key in keys)
        for a, b in zip(one, other)
    )


def differences(then: Sequence[Launch], now: Sequence[Launch], names: dict[str, str]) -> list[str]:
    """A sentence for each way in which the launches of now differ from those of then. `names`: kernels by code."""
    if len(then) != len(now):
        return [f"{len(then)} kernels were launched, and now {len(now)}"]
    found, keys = [], compared_keys(then, now)
    for number, (a, b) in enumerate(zip(then, now), 1):
        launch = f"launch {number} of {len(then)}" if len(then) > 1 else "the launch"
        if not a.get("code") or a["code"] != b.get("code"):
            before, after = (names.get(x.get("code", ""), "a kernel that is not known") for x in (a, b))
            renamed = "" if before == after else f" ({before} when it was measured)"
            found.append(f"{launch}: the code of {after}{renamed} was {a.get('code')}, and is {b.get('code')}")
        found += [
            f"{launch}: {IN_WORDS[key]} was {a.get(key, 'none')}, and is {b.get(key, 'none')}"
            for key in keys
            if a.get(key) != b.get(key)
        ]
    return found


def recorded(document: dict[str, Any]) -> dict[str, list[Launch]]:
    """The launches of each case in a document of results."""
    return {entry["case"]: entry["launches"] for entry in document.get("launches", [])}


def kernel_names(document: dict[str, Any]) -> dict[str, str]:
    """Kernels by their code."""
    return {entry["code"]: entry["kernel"] for entry in document.get("kernel_names", [])}


@dataclass(frozen=True)
class Lock:
    """What a stage of the tree would launch on the GPUs of one architecture."""

    path: Path
    source_hash: str  # of the sources that it was made from
    code: str  # a hash of all the stage's kernels
    toolchain: dict[str, str]
    cases: dict[str, dict[str, list[Launch]]]  # by GPU
    names: dict[str, str]  # kernels by their code

    def launches(self, gpu: str, case: str) -> list[Launch] | None:
        return self.cases.get(gpu, {}).get(case)


def read_lock(path: Path) -> Lock | None:
    """None where there is none. Raises ValueError, KeyError where the file is not a lock."""
    if not path.is_file():
        return None
    document = json.loads(path.read_text(encoding="utf-8"))
    toolchain = {key: document[key] for key in ("architecture", "compiler", "flags")}
    cases = {gpu["gpu"]: recorded(gpu) for gpu in document["gpus"]}
    return Lock(path, document["source_hash"], document["code"], toolchain, cases, kernel_names(document))


def with_names_apart(launches: Iterable[Launch], names: dict[str, str]) -> list[Launch]:
    """The launches without their kernels' names, which go to `names`: many cases launch the same few kernels."""
    found = []
    for launch in launches:
        if launch.get("code"):
            names[launch["code"]] = launch["kernel"]
            launch = {key: value for key, value in launch.items() if key != "kernel"}
        found.append(launch)
    return found
