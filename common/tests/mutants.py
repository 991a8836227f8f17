#!/usr/bin/env python3
"""Small wrong kernels, and what of the project catches each: a test of its tests.

    python3 common/tests/mutants.py --check                 every mutant applies to the tree as it is; nothing is built
    python3 common/tests/mutants.py --list [--stage 02]
    python3 common/tests/mutants.py [--stage 02,03] [--jobs 2] [--write]
    python3 common/tests/mutants.py --sample 10 --seed 7
    python3 common/tests/mutants.py --only row_stride_of_x

A mutant is an entry of common/tests/mutants/NN.toml: in `file` of the stage, `text`, which is there once (or `count`
times), becomes `becomes`; `because` says what is then wrong, and `caught_by` what must find it:

    cases       the stage's own CTest cases, ctest -R '^NN'
    count       its cases NN.count...: the CPU layer's counter, which looks for races and for reads of what nobody wrote
    elsewhere   nothing on the CPU layer can: `tool` names what does, and why; need not have been run here
    nothing     nothing does yet: `tool` says why. A gap of the suite, listed with its reason.

Only one unit of the stage's program is compiled with the mistake in it: the lesson's, variants.cu; or of the kernels
that have a unit for each pair of types, final/OPERATION.cu and some of the lessons', such as 05's held.cu, the `unit`
that the mutant names: layer_norm_fp32, layer_norm_bf16_fp32, held_fp16. Each mutant in final/ has one, and of a
lesson's file those whose kernels are compiled there. The cases are then run with its types.

Each worker has a copy of the tree and one build folder, so that a mutant compiles the one unit that it is in. A case
that fails, or does not end, has caught the mutant. Exit code 1 where a mutant survives that must be caught, where one
is caught that is said to survive, or where a text is not there. --write puts what came out into common/tests/mutants/
outcomes.json and the README beside it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "common/tests/mutants"
OUTCOMES = FOLDER / "outcomes.json"
README = FOLDER / "README.md"
NOT_COPIED = ("build", ".git", ".venv", "site", "my", "__pycache__", "results", "charts", "notes", "docs")
CAUGHT_BY = ("cases", "count", "elsewhere", "nothing")
NEEDED = {"name", "file", "text", "becomes", "because", "caught_by"}
ALLOWED = NEEDED | {"count", "tool", "unit"}
PAIRS = ("fp32", "fp16", "fp16_fp32", "bf16", "bf16_fp32")
BEGIN, END = "<!-- begin: outcomes -->", "<!-- end: outcomes -->"


class MutantError(Exception):
    """Something is wrong with the mutants themselves, or with the tree that they are of."""


@dataclass(frozen=True)
class Mutant:
    stage: str  # 01_naive
    name: str
    file: str  # in the stage's folder
    text: str
    becomes: str
    because: str
    caught_by: str
    count: int = 1
    tool: str = ""
    unit: str = ""  # not variants.cu: the operation and the types that it is compiled for

    @property
    def types(self) -> tuple[str, str]:
        """Of the unit's elements, and of its parameters."""
        words = [word for word in self.unit.split("_") if word in PAIRS]
        return (words[0], words[-1]) if words else ("", "")

    @property
    def operation(self) -> str:
        return "_".join(word for word in self.unit.split("_") if word not in PAIRS)

    @property
    def source(self) -> str:
        """What the unit is compiled from: final/layer_norm.cu, held.cu. Empty where there is no such unit."""
        places = (f"final/{self.operation}.cu", f"{self.operation}.cu") if self.types[0] else ()
        return next((each for each in places if (ROOT / self.stage / each).is_file()), "")

    @property
    def needs_unit(self) -> bool:
        file = ROOT / self.path
        return file.parent.name == "final" or file.with_suffix(".cu").is_file()

    @property
    def id(self) -> str:
        return f"{self.stage[:2]}.{self.name}"

    @property
    def path(self) -> str:
        return f"{self.stage}/{self.file}"

    @property
    def digest(self) -> str:
        """Of what is changed into what: an outcome is of this mutant, or of one that had its name."""
        words = (self.path, self.text, self.becomes, str(self.count)) + ((self.unit,) if self.unit else ())
        return hashlib.sha256("\0".join(words).encode()).hexdigest()[:12]

    def applied(self, root: Path) -> str:
        """The mutated file. Raises MutantError where the text is not there as often as it should be."""
        file = root / self.path
        if not file.is_file():
            raise MutantError(f"{self.id}: there is no {self.path}")
        source = file.read_text(encoding="utf-8")
        if source.count(self.text) != self.count:
            raise MutantError(
                f"{self.id}: its text is in {self.path} {source.count(self.text)} times, and was to be there "
                f"{self.count} times: {self.text!r}"
            )
        return source.replace(self.text, self.becomes)


def mutants_of(file: Path) -> list[Mutant]:
    folders = [each.name for each in ROOT.glob(f"{file.stem}_*") if (each / "main.cu").is_file()]
    if len(folders) != 1:
        raise MutantError(f"{file.name}: there is no stage {file.stem}")
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8")).get("mutant", [])
    except tomllib.TOMLDecodeError as error:
        raise MutantError(f"{file.name}: {error}") from error
    found = []
    for entry in entries:
        name = entry.get("name", "one without a name")
        if wrong := (NEEDED - entry.keys()) | (entry.keys() - ALLOWED):
            raise MutantError(f"{file.name}, {name}: missing or not known: {', '.join(sorted(wrong))}")
        if entry["caught_by"] not in CAUGHT_BY:
            raise MutantError(f"{file.name}, {name}: caught_by must be one of {', '.join(CAUGHT_BY)}")
        if (entry["caught_by"] in ("elsewhere", "nothing")) != bool(entry.get("tool")):
            raise MutantError(f"{file.name}, {name}: `tool` is for what the cases do not catch, and needed there")
        if entry["text"] == entry["becomes"]:
            raise MutantError(f"{file.name}, {name}: nothing is changed")
        found.append(Mutant(stage=folders[0], **entry))
        if bool(found[-1].source) != (found[-1].needs_unit or "unit" in entry):
            raise MutantError(f"{file.name}, {name}: `unit` is missing, or there is no such unit")
    return found


def all_mutants() -> list[Mutant]:
    found = [mutant for file in sorted(FOLDER.glob("[0-9][0-9].toml")) for mutant in mutants_of(file)]
    ids = [mutant.id for mutant in found]
    if twice := sorted({each for each in ids if ids.count(each) > 1}):
        raise MutantError(f"there twice: {', '.join(twice)}")
    digests: dict[str, str] = {}
    for mutant in found:
        if mutant.digest in digests:
            raise MutantError(f"{mutant.id} is the same as {digests[mutant.digest]}")
        digests[mutant.digest] = mutant.id
    return found


# --- Running ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Case:
    """One of the stage's CTest cases."""

    name: str
    command: tuple[str, ...]
    environment: tuple[str, ...]

    @property
    def counts(self) -> bool:
        return ".count" in self.name

    @property
    def guess(self) -> float:
        """Seconds that it may take: those of few shapes come first."""
        return 1 if re.search(r"without|eps|momentum|plain|strided|uneven_|outputs|only_|fp32_par", self.name) else 10

    def in_types(self, element: str, parameter: str) -> Case | None:
        """The same with these types only; None where it has others."""
        command = list(self.command)
        at = command.index("--dtype") + 1 if "--dtype" in command else 0
        if not at or (command[at] != "all" and element not in command[at].split(",")):
            return None
        command[at] = element
        if "--param-dtype" in command and command[command.index("--param-dtype") + 1] != parameter:
            return None
        if "--param-dtype" not in command and parameter != element:
            command += ["--param-dtype", parameter]
        return replace(self, command=tuple(command))

    def run(self) -> str | None:
        """None where it passes, else its first words on what is wrong."""
        settings = dict(each.split("=", 1) for each in self.environment)
        limit = 300
        # A group of its own, so that nothing is left of a case that does not end.
        with subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env=os.environ | settings, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                printed, _ = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                process.kill()
                return f"it did not end within {limit} s"
        return None if process.returncode == 0 else first_words(printed, process.returncode)


def first_words(printed: str, code: int) -> str:
    """What the program says of the first thing that is wrong, short."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    head = next((i for i, line in enumerate(lines) if line.startswith("variant ")), -1)
    fine = ("passed", "fails, as recorded", "fails, and may", "left out")
    told = [line for line in lines[head + 1 :] if not any(word in line for word in fine)] or [f"exit code {code}"]
    line = next((line for line in told if line.endswith("FAILED") or line.startswith("FOUND")), told[0])
    return re.sub(r"\s+", " ", line)[:160]


@dataclass(frozen=True)
class Outcome:
    mutant: Mutant
    case: str  # that caught it; empty: none did
    said: str
    seconds: float

    @property
    def by(self) -> str:
        return "" if not self.case else "count" if ".count" in self.case else "cases"

    @property
    def problem(self) -> str:
        """Where this is not what the mutant's entry says."""
        expected = self.mutant.caught_by
        if expected in ("cases", "count"):
            if not self.case:
                return f"survived, and {expected} were to catch it"
            return "" if self.by == expected else f"caught by {self.by}; its entry says {expected}"
        return f"caught by {self.case}, and its entry says that nothing here does" if self.case else ""


class Worker:
    """A copy of the tree with its own build folder."""

    # Seconds that a case takes without a mutant, of those that have been run so.
    seconds: ClassVar[dict[str, float]] = {}

    def __init__(self, root: Path) -> None:
        self.root, self.build = root, root / "build/cpu"
        self.cases: dict[str, list[Case]] = {}
        self.counts: dict[str, list[Case]] = {}
        if not (root / "CMakeLists.txt").is_file():
            shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*NOT_COPIED), dirs_exist_ok=True)
        else:
            self.bring_up_to_date()
        if not (self.build / "build.ninja").is_file():
            self.tool("cmake", "--preset", "cpu")

    def bring_up_to_date(self) -> None:
        """A kept folder: what is new or changed in the tree is copied, and nothing else is compiled anew."""
        for folder, folders, names in os.walk(ROOT):
            folders[:] = [each for each in folders if each not in NOT_COPIED]
            for name in names:
                source = Path(folder) / name
                target = self.root / source.relative_to(ROOT)
                if not target.is_file() or target.read_bytes() != source.read_bytes():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source, target)

    def tool(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            raise MutantError(f"{' '.join(command)}:\n{done.stdout[-3000:]}")
        return done.stdout

    def make(self, target: str) -> None:
        self.tool("ninja", "-j", "1", "-C", str(self.build), target)

    def make_mutant(self, mutant: Mutant, counting: bool = False) -> None:
        """The stage's program with the mistake in one unit. For the others the file is as it was, and as old."""
        target = f"{mutant.stage}_counting" if counting else mutant.stage
        file = self.root / mutant.path
        original, was = file.read_bytes(), file.stat()
        unit = self.object_of(mutant, counting)
        try:
            try:
                file.write_text(mutant.applied(self.root), encoding="utf-8")
                self.make(unit)
            finally:
                file.write_bytes(original)
                os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
            self.make(target)
        finally:
            (self.build / unit).unlink(missing_ok=True)  # else it would be taken for one of the file as it is

    @staticmethod
    def object_of(mutant: Mutant, counting: bool) -> str:
        kind = "counting" if counting else "variants"
        if not mutant.unit:
            return f"CMakeFiles/{mutant.stage}_{kind}.dir/{mutant.stage}/variants.cu.o"
        unit = f"{mutant.stage}_{mutant.unit}{'_counting' * counting}"
        return f"CMakeFiles/{unit}.dir/{mutant.stage}/{mutant.source}.o"

    def listed(self, stage: str) -> list[Case]:
        listed = json.loads(
            self.tool("ctest", "--test-dir", str(self.build), "-R", rf"^{stage}\.", "--show-only=json-v1")
        )
        found = []
        for test in listed["tests"]:
            command = tuple(test.get("command", ("",)))
            if Path(command[0]).name != stage:
                continue  # another program: 07's run_to_run
            environment = [each["value"] for each in test["properties"] if each["name"] == "ENVIRONMENT"]
            found.append(Case(test["name"], command, tuple(environment[0]) if environment else ()))
        if not found:
            raise MutantError(f"{stage} has no cases")
        return found

    def cases_of(self, stage: str) -> list[Case]:
        """All but .count, the quickest first, as far as that is known."""
        if stage not in self.cases:
            self.make(stage)
            self.cases[stage] = [each for each in self.listed(stage) if not each.counts]
            # What a case that fails is run with once more: the program without a mutant.
            shutil.copy2(self.build / "bin" / stage, self.without_mutant(stage))
        return sorted(self.cases[stage], key=lambda case: Worker.seconds.get(case.name, case.guess))

    def without_mutant(self, stage: str) -> Path:
        folder = self.build / "without_mutant"
        folder.mkdir(exist_ok=True)
        return folder / stage

    def without_place(self, said: str) -> str:
        """Without where this copy lies."""
        return said.replace(f"{self.root.resolve()}/", "").replace(f"{self.root}/", "")

    def counts_of(self, stage: str) -> list[Case]:
        """Its programs take long to compile in the later stages: only where a mutant gets past the cases."""
        if stage not in self.counts:
            self.make(f"{stage}_counting")
            self.counts[stage] = [each for each in self.listed(stage) if each.counts]
            for case in self.counts[stage]:
                self.require(case)
        return self.counts[stage]

    def require(self, case: Case) -> None:
        """That a case passes without a mutant: looked at once, before the case may say anything of one."""
        if case.name in Worker.seconds:
            return
        begin = time.monotonic()
        if (said := case.run()) is not None:
            raise MutantError(f"{case.name} fails without a mutant: {said}")
        Worker.seconds[case.name] = time.monotonic() - begin

    def outcome_of(self, mutant: Mutant) -> Outcome:
        cases: Iterable[Case | None] = self.cases_of(mutant.stage)
        if mutant.unit:
            cases = [case.in_types(*mutant.types) for case in cases if case]
        begin = time.monotonic()
        self.make_mutant(mutant)
        for case in cases:
            if case is not None and (said := case.run()) is not None:
                self.require(replace(case, command=(str(self.without_mutant(mutant.stage)), *case.command[1:])))
                return Outcome(mutant, case.name, self.without_place(said), time.monotonic() - begin)
        counts: Iterable[Case | None] = self.counts_of(mutant.stage)
        if mutant.unit:
            counts = [case.in_types(*mutant.types) for case in counts if case]
        self.make_mutant(mutant, counting=True)
        for case in counts:
            if case is not None and (said := case.run()) is not None:
                return Outcome(mutant, case.name, self.without_place(said), time.monotonic() - begin)
        return Outcome(mutant, "", "", time.monotonic() - begin)


def run(mutants: Sequence[Mutant], work: Path, jobs: int) -> Iterable[Outcome | MutantError]:
    free: queue.Queue[Worker] = queue.Queue()
    for i in range(jobs):
        free.put(Worker(work / f"worker_{i}"))

    def one(mutant: Mutant) -> Outcome | MutantError:
        worker = free.get()
        try:
            return worker.outcome_of(mutant)
        except MutantError as error:
            return MutantError(f"{mutant.id}: {error}")
        finally:
            free.put(worker)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(one, mutant) for mutant in mutants]
        for future in concurrent.futures.as_completed(futures):
            yield future.result()


# --- What came out ---------------------------------------------------------------------------------------------------
def known_outcomes() -> dict[str, dict[str, Any]]:
    return json.loads(OUTCOMES.read_text(encoding="utf-8")) if OUTCOMES.is_file() else {}


def write(outcomes: Sequence[Outcome], mutants: Sequence[Mutant]) -> None:
    known = known_outcomes()
    for outcome in outcomes:
        known[outcome.mutant.id] = {
            "digest": outcome.mutant.digest, "case": outcome.case, "said": outcome.said,
        }  # fmt: skip
    known = {mutant.id: known[mutant.id] for mutant in mutants if mutant.id in known}
    lines = [f"  {json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in known.items()]
    OUTCOMES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    README.write_text(readme(mutants, known), encoding="utf-8")


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def readme(mutants: Sequence[Mutant], known: dict[str, dict[str, Any]]) -> str:
    """README.md with its tables as these outcomes make them."""
    text = README.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise MutantError(f"{README.name} does not have its two markers")
    caught = [mutant for mutant in mutants if known.get(mutant.id, {}).get("case")]
    survived = [mutant for mutant in mutants if mutant not in caught]
    by_count = [mutant for mutant in caught if ".count" in known[mutant.id]["case"]]
    not_run = " (Not run.)"
    parts = [
        f"{len(mutants)} mutants: {len(caught) - len(by_count)} caught by the stage's cases, {len(by_count)} by its "
        f"`--count`, {len(survived)} by neither.\n",
        "## What the CPU layer does not catch\n",
        "| mutant | what is wrong | what can catch it |\n|---|---|---|",
        *(
            f"| `{each.id}` | {cell(each.because)} | {cell(each.tool)}{not_run * (each.id not in known)} |"
            for each in survived
        ),
        "\n## What is caught, and by which case first\n",
        "The quickest case goes first, so the one that is named is not the only one that catches a mutant.\n",
        "| mutant | file | what is wrong | caught by |\n|---|---|---|---|",
        *(
            f"| `{each.id}` | `{each.path}` | {cell(each.because)} | `{known[each.id]['case']}` |"
            for each in caught
        ),
    ]  # fmt: skip
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return text[:begin] + "\n" + "\n".join(parts) + "\n" + text[end:]


def check(mutants: Sequence[Mutant]) -> list[str]:
    """What is wrong with the entries, and with what is written down of them."""
    problems = []
    known = known_outcomes()
    for mutant in mutants:
        try:
            mutant.applied(ROOT)
        except MutantError as error:
            problems.append(str(error))
        entry = known.get(mutant.id)
        if entry is None and mutant.caught_by == "elsewhere":
            continue  # not run: its reason is enough
        if entry is None or entry["digest"] != mutant.digest:
            problems.append(f"{mutant.id} has not been run as it is; mutants.py --only {mutant.id} --write does")
            continue
        found = Outcome(mutant, entry["case"], entry["said"], 0)
        if found.problem:
            problems.append(f"{mutant.id}: {found.problem}")
    if gone := known.keys() - {mutant.id for mutant in mutants}:
        problems.append(f"outcomes.json has mutants that are not there: {', '.join(sorted(gone))}")
    if not problems and README.read_text(encoding="utf-8") != readme(mutants, known):
        problems.append("common/tests/mutants/README.md is not what outcomes.json makes of it; --write --only '' does")
    return problems


def chosen(mutants: list[Mutant], options: argparse.Namespace) -> list[Mutant]:
    if options.stage:
        stages = options.stage.split(",")
        mutants = [mutant for mutant in mutants if mutant.stage[:2] in stages or mutant.stage in stages]
    if options.only is not None:
        names = [each for each in options.only.split(",") if each]
        if unknown := [each for each in names if not any(each in (mutant.id, mutant.name) for mutant in mutants)]:
            raise MutantError(f"there is no mutant {', '.join(unknown)}; --list names them")
        mutants = [mutant for mutant in mutants if mutant.id in names or mutant.name in names]
    if options.new:
        known = known_outcomes()
        mutants = [mutant for mutant in mutants if known.get(mutant.id, {}).get("digest") != mutant.digest]
    if options.sample:
        mutants = random.Random(options.seed).sample(mutants, min(options.sample, len(mutants)))
    return sorted(mutants, key=lambda mutant: (mutant.stage, mutant.file))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", help="of these stages only: 02,03")
    parser.add_argument("--only", help="these mutants, by their names")
    parser.add_argument("--new", action="store_true", help="those that have not been run as they are")
    parser.add_argument("--sample", type=int, default=0, help="so many of them, drawn by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="workers, each with a copy of the tree")
    parser.add_argument("--work", type=Path, help="where the copies lie, and stay; else they go when the run ends")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true", help="that every mutant applies, and has been run; no build")
    parser.add_argument("--write", action="store_true", help="keep what came out")
    options = parser.parse_args()
    try:
        everything = all_mutants()
        mutants = chosen(everything, options)
        if options.list:
            for mutant in mutants:
                print(f"{mutant.id}  {mutant.because}  [{mutant.caught_by}]")
            return 0
        if options.check:
            problems = check(everything)
            print("\n".join(problems) or f"{len(everything)} mutants: each applies, and has been run if it can be here")
            return 1 if problems else 0
        with tempfile.TemporaryDirectory() as temporary:
            return run_all(mutants, everything, options, options.work or Path(temporary))
    except MutantError as error:
        print(f"mutants.py: {error}", file=sys.stderr)
        return 1


def run_all(mutants: list[Mutant], everything: list[Mutant], options: argparse.Namespace, work: Path) -> int:
    outcomes, wrong = [], []
    for found in run(mutants, work, max(1, min(options.jobs, len(mutants)))) if mutants else ():
        if isinstance(found, MutantError):
            print(f"ERROR     {found}", flush=True)
            wrong.append(str(found).splitlines()[0])
            continue
        outcomes.append(found)
        if options.write:  # each at once: a long run that is stopped has not been for nothing
            write(outcomes, everything)
        verdict = f"caught by {found.case}: {found.said}" if found.case else "survived"
        mark = "NOT SO" if found.problem else "ok"
        print(f"{mark:<9} {found.mutant.id} ({found.seconds:.0f} s): {verdict}", flush=True)
        if found.problem:
            wrong.append(f"{found.mutant.id}: {found.problem}")
    if options.write:
        write(outcomes, everything)
    caught = sum(bool(each.case) for each in outcomes)
    print(f"\n{len(mutants)} mutants: {caught} caught, {len(outcomes) - caught} survived, {len(wrong)} not as expected")
    for each in wrong:
        print(f"  {each}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
