"""Reads every figure that the writeups may show: stage results, the peers' measurements, and docs/data.

Seconds, bytes and ratios everywhere; units are chosen where a figure is shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import launches as launched
import rivals
import source_hash
from grid import ELEMENT_BYTES, is_of_article

ROOT = source_hash.ROOT
DEFAULT_GPU = "h200"
MODES = ("cold", "warm", "graph")
LAST, FIRST = "channels_last", "channels_first"  # layouts of images
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}  # of Google Benchmark's time units

PEERS = "peers"  # stands where a stage's name does
PACKAGE_SUITE = "python_package_test"  # in docs/verified, the tests of the Python package
PEER_LABELS = {
    "torch": "PyTorch",
    "torch eager": "PyTorch, two calls",
    "torch.compile": "Inductor",
    "flash-attn triton": "flash-attn",
    "liger": "Liger",
    "torch.compile max-autotune": "Inductor, max-autotune",
    "triton tutorial": "Triton tutorial",
    "transformer-engine": "TransformerEngine",
    "liger cute": "Liger, CuTe DSL",
    "quack tuned": "quack, tuned",
    "cudnn": "cuDNN",
    "flashinfer": "FlashInfer",
    "torch.copy_": "copy",
}

# What an operation's time is compared with: a copy, where it reads and writes one tensor each; else a stream of as many
# reads and writes.
COPY_LIKE = {"layernorm_forward", "rmsnorm_forward", "batchnorm_inference"}


def baseline_of(operations: Iterable[str]) -> str:
    """`copy` or `stream`: the name of what these operations' times are compared with."""
    return "copy" if set(operations) <= COPY_LIKE else "stream"


class ReportError(Exception):
    """Something that a reader or an author has to put right, said in one sentence."""


@dataclass(frozen=True)
class Timing:
    """One benchmark: what was run, and what it took. None where the file does not say."""

    stage: str
    variant: str
    operation: str
    dtype: str
    rows: int
    cols: int
    mode: str  # of MODES
    seconds: float  # median
    pixels: int = 1  # more than one for BatchNorm over images only: rows are then samples, cols channels
    layout: str = LAST  # of images: where their channels are
    bytes_per_second: float | None = None
    share_of_copy: float | None = None
    spread: float | None = None  # width of the middle four fifths of the samples, as a ratio of the median
    samples: int | None = None
    counters: dict[str, float] = field(default_factory=dict, compare=False)
    stale: bool = False  # measured on an earlier version of the kernel

    @property
    def name(self) -> str:
        return f"{self.stage}/{self.variant}/{self.operation}/{self.dtype}/{self.shape}/{self.mode}"

    @property
    def shape(self) -> str:
        return shape_name(self.rows, self.cols, self.pixels, self.layout)

    @property
    def case(self) -> str:
        return f"{self.variant}/{self.operation}/{self.dtype}/{self.shape}"

    @property
    def label(self) -> str:
        return PEER_LABELS.get(self.variant, self.variant) if self.stage == PEERS else self.variant

    @property
    def tensor_mib(self) -> float:
        return self.rows * self.cols * self.pixels * ELEMENT_BYTES[self.dtype] / 2**20

    @property
    def copy_seconds(self) -> float | None:
        """The time of a copy of the same bytes, measured in the same process."""
        return self.seconds * self.share_of_copy if self.share_of_copy else None


@dataclass(frozen=True)
class Check:
    """One comparison of a variant's outputs with the fp64 reference."""

    stage: str
    variant: str
    operation: str
    dtype: str
    rows: int
    cols: int
    input: str
    verdict: str
    expectation: str
    max_ulp_error: float | None  # None: not finite where the reference is
    max_abs_error: float | None
    differing: int
    compared: int
    pixels: int = 1
    layout: str = LAST
    stale: bool = False

    @property
    def name(self) -> str:
        return f"{self.stage}/{self.variant}/{self.operation}/{self.dtype}/{self.shape}/{self.input}"

    @property
    def shape(self) -> str:
        return shape_name(self.rows, self.cols, self.pixels, self.layout)

    @property
    def case(self) -> str:
        return f"{self.variant}/{self.operation}/{self.dtype}/{self.shape}"

    @property
    def label(self) -> str:
        return PEER_LABELS.get(self.variant, self.variant) if self.stage == PEERS else self.variant

    @property
    def ran(self) -> bool:
        """Whether there were results to compare: a kernel that could not run leaves none."""
        return self.right or self.compared > 0

    @property
    def right(self) -> bool:
        """Whether the outputs were right, whatever was expected of them."""
        return self.verdict in ("passed", "unexpected pass")

    @property
    def expected(self) -> bool:
        """Whether it is recorded that the variant is wrong on this input."""
        return self.verdict in ("expected failure", "permitted failure")


@dataclass(frozen=True)
class Launch:
    """One kernel that a variant launched, with what it takes of a multiprocessor or what the hardware counted of it."""

    stage: str
    variant: str
    operation: str
    dtype: str
    rows: int
    cols: int
    kernel: str
    blocks: int
    threads: int  # of a block
    cluster: int  # blocks
    values: dict[str, float]
    pixels: int = 1
    stale: bool = False

    @property
    def shape(self) -> str:
        return shape_name(self.rows, self.cols, self.pixels)

    @property
    def name(self) -> str:
        return f"{self.stage}/{self.variant}/{self.operation}/{self.dtype}/{self.shape}"

    @property
    def tensor_mib(self) -> float:
        return self.rows * self.cols * self.pixels * ELEMENT_BYTES[self.dtype] / 2**20


@dataclass(frozen=True)
class ResultFile:
    path: Path
    context: dict[str, str]
    all_timings: tuple[Timing, ...]
    all_checks: tuple[Check, ...]
    stale: bool = False
    launches: tuple[Launch, ...] = ()

    @property
    def timings(self) -> tuple[Timing, ...]:
        """Those of the lesson's own kernels."""
        return tuple(t for t in self.all_timings if not is_of_article(t.variant))

    @property
    def checks(self) -> tuple[Check, ...]:
        return tuple(c for c in self.all_checks if not is_of_article(c.variant))


def read_json(path: Path, root: Path) -> dict:
    shown = path.relative_to(root) if path.is_relative_to(root) else path
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ReportError(f"there is no {shown}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ReportError(f"{shown} cannot be read as JSON: {error}") from None
    if not isinstance(document, dict):
        raise ReportError(f"{shown} is not a JSON object")
    return document


def number(entry: dict, key: str) -> float | None:
    value = entry.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def shape_name(rows: int, cols: int, pixels: int, layout: str = LAST) -> str:
    """As benchmarks are named: 1024x4096; 32x64x3136 where there are pixels, 32x64x3136-first where these come last."""
    return f"{rows}x{cols}x{pixels}{'-first' if layout == FIRST else ''}" if pixels > 1 else f"{rows}x{cols}"


def case_name(entry: dict[str, Any]) -> str:
    """variant/operation/type/shape of an entry that has them as fields: what is launched depends on these."""
    shape = shape_name(int(entry["rows"]), int(entry["cols"]), int(entry.get("pixels", 1)), entry.get("layout", LAST))
    return f"{entry['variant']}/{entry['operation']}/{entry['dtype']}/{shape}"


def timing_named(name: str, seconds: float, **values) -> Timing | None:
    """A Timing by the name of its benchmark; None for a name that is not ours."""
    parts = name.split("/")
    if len(parts) < 6:
        return None
    stage, variant, operation, dtype, shape, mode = parts[:6]  # what follows is Google Benchmark's own
    if mode not in MODES or dtype not in ELEMENT_BYTES:
        return None
    numbers, _, first = shape.partition("-")
    rows, cols, pixels = (*map(int, numbers.split("x")), 1)[:3]
    layout = FIRST if first else LAST
    return Timing(stage, variant, operation, dtype, rows, cols, mode, seconds, pixels, layout, **values)


def timing_of_summary(entry: dict, stale: bool) -> Timing | None:
    """A benchmark of one entry that holds the median of its samples: what programs wrote until Google Benchmark took
    the samples itself, and the committed results are."""
    samples = number(entry, "samples")
    return timing_named(
        str(entry.get("name", "")), entry["median_seconds"],
        bytes_per_second=number(entry, "bytes_per_second"),
        share_of_copy=number(entry, "share_of_copy"),
        spread=number(entry, "spread"),
        samples=None if samples is None else int(samples),
        counters={key: float(value) for key, value in entry.items() if number(entry, key) is not None},
        stale=stale,
    )


def timing_of_runs(name: str, entries: list[dict], stream: dict, ulp: float | None, stale: bool) -> Timing | None:
    """A benchmark whose repetitions are samples, from Google Benchmark's statistics over them; from the repetition
    itself where there is but one. `stream` is what the time is compared with, `ulp` the error of the check."""
    aggregates = {entry.get("aggregate_name"): entry for entry in entries if entry.get("run_type") == "aggregate"}
    middle = aggregates.get("median") or (entries[0] if len(entries) == 1 and not aggregates else None)
    if middle is None:
        return None

    def seconds_of(entry: dict) -> float:
        return float(entry["real_time"]) * SECONDS[entry["time_unit"]]

    seconds = seconds_of(middle)
    counters = {
        "median_seconds": seconds, "samples": float(middle.get("repetitions", 1)), "bytes": number(middle, "bytes"),
        "bytes_per_second": number(middle, "bytes_per_second"), "max_ulp_error": ulp,
    }
    if "min" in aggregates:
        counters["min_seconds"] = seconds_of(aggregates["min"])
    if "p10" in aggregates and "p90" in aggregates:
        counters["spread"] = (seconds_of(aggregates["p90"]) - seconds_of(aggregates["p10"])) / seconds
    if stream:
        counters |= {
            "share_of_copy": stream["median_seconds"] / seconds, "stream_median_seconds": stream["median_seconds"],
            "stream_drift": number(stream, "drift"),
        }
    counters = {key: value for key, value in counters.items() if value is not None}
    return timing_named(
        name, seconds,
        bytes_per_second=counters.get("bytes_per_second"),
        share_of_copy=counters.get("share_of_copy"),
        spread=counters.get("spread"),
        samples=int(counters["samples"]),
        counters=counters,
        stale=stale,
    )


def timings_of(document: dict, stale: bool) -> list[Timing]:
    """The timings of a results file; without those that failed, and names that are not ours."""
    streams = {entry["timing"]: entry for entry in document.get("streams", []) if "timing" in entry}
    after_timing = [check for check in document.get("checks", []) if check.get("after_timing")]
    errors = {check.get("name"): number(check, "max_ulp_error") for check in after_timing}
    benchmarks: dict[str, list[dict]] = {}
    for entry in document.get("benchmarks", []):
        benchmarks.setdefault(str(entry.get("run_name", entry.get("name", ""))), []).append(entry)
    timings: list[Timing | None] = []
    for name, entries in benchmarks.items():
        if any(entry.get("error_occurred") or entry.get("skipped") for entry in entries):
            continue
        summaries = [entry for entry in entries if number(entry, "median_seconds") is not None]
        if summaries:
            timings += [timing_of_summary(entry, stale) for entry in summaries]
            continue
        parts = name.split("/")
        stream, ulp = streams.get("/".join(parts[:6]), {}), errors.get("/".join(parts[:5]))
        timings.append(timing_of_runs(name, entries, stream, ulp, stale))
    return [timing for timing in timings if timing]


def with_layout(timing: Timing, checks: Iterable[Check]) -> Timing:
    """Names of benchmarks did not always tell the layout; the checks beside them do, where they have but one."""
    if timing.pixels <= 1:
        return timing
    size = (timing.rows, timing.cols, timing.pixels)
    layouts = {c.layout for c in checks if (c.rows, c.cols, c.pixels) == size}
    return replace(timing, layout=layouts.pop()) if len(layouts) == 1 else timing


def check_of(entry: dict, stale: bool) -> Check:
    return Check(
        entry["stage"], entry["variant"], entry["operation"], entry["dtype"], int(entry["rows"]), int(entry["cols"]),
        entry["input"], entry["verdict"], entry.get("expectation", ""),
        max_ulp_error=number(entry, "max_ulp_error"),
        max_abs_error=number(entry, "max_abs_error"),
        differing=int(entry["differing"]),
        compared=int(entry["compared"]),
        pixels=int(entry.get("pixels", 1)),
        layout=entry.get("layout", LAST),
        stale=stale,
    )


def launch_of(entry: dict, values: dict, stale: bool) -> Launch:
    whole = ("rows", "cols", "blocks", "threads", "cluster")
    return Launch(
        **{key: entry[key] for key in ("stage", "variant", "operation", "dtype", "kernel")},
        **{key: int(entry[key]) for key in whole},
        values={
            key: float(value) for key, value in values.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        },
        pixels=int(entry.get("pixels", 1)),
        stale=stale,
    )


class Repository:
    """The repository's figures, read when asked for."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root.resolve()
        self.stages = lru_cache(None)(self._stages)
        self.stage_results = lru_cache(None)(self._stage_results)
        self.peers = lru_cache(None)(self._peers)
        self.counters = lru_cache(None)(self._counters)
        self.verified = lru_cache(None)(self._verified)
        self.data = lru_cache(None)(self._data)
        self.comparison = lru_cache(None)(self._comparison)
        self.lock = lru_cache(None)(self._lock)
        self.verdicts = lru_cache(None)(self._verdicts)
        self.runs = lru_cache(None)(self._runs)
        self.data_is_stale = lru_cache(None)(self._data_is_stale)
        self.hash_now = lru_cache(None)(lambda stage: source_hash.source_hash(stage, self.root))

    def _stages(self) -> list[str]:
        return source_hash.stage_folders(self.root)

    def results_path(self, stage: str, gpu: str) -> Path:
        return self.root / stage / "results" / f"{gpu}.json"

    def has_results(self, stage: str, gpu: str) -> bool:
        return self.results_path(stage, gpu).is_file()

    def _stage_results(self, stage: str, gpu: str = DEFAULT_GPU) -> ResultFile:
        return self.results_in(self.results_path(stage, gpu), stage)

    def results_in(self, path: Path, stage: str | None = None) -> ResultFile:
        """A results file, wherever it lies. Figures are stale that are not of what `stage` launches as it stands."""
        document = read_json(path, self.root)
        told = document.get("context", {})
        context = {key: str(value) for key, value in told.items() if not isinstance(value, (list, dict))}
        recorded = launched.recorded(document)

        def is_old(case: str) -> bool:
            gpu, sources = context.get("gpu_short", ""), context.get("source_hash")
            return stage is not None and not self.is_current(stage, gpu, case, recorded.get(case), sources)

        stale = stage is not None and (any(map(is_old, recorded)) if recorded else is_old(""))
        try:
            timings = timings_of(document, stale)
            checks = tuple(check_of(e, stale) for e in document.get("checks", []))
            timings = tuple(with_layout(t, checks) for t in timings)
            timings = tuple(replace(t, stale=is_old(t.case)) for t in timings)
            checks = tuple(replace(c, stale=is_old(c.case)) for c in checks)
            launches = tuple(launch_of(e, e, is_old(case_name(e))) for e in document.get("resources", []))
        except (KeyError, ValueError, TypeError) as error:
            shown = path.relative_to(self.root) if path.is_relative_to(self.root) else path
            raise ReportError(f"{shown} has an entry that is not as it should be: {error!r}") from None
        return ResultFile(path, context, timings, checks, stale, launches)

    def _peers(self, gpu: str = DEFAULT_GPU) -> ResultFile:
        """What other libraries took, on the same GPU model; written by hand once from a measured run."""
        path = self.root / "common" / "report" / "peers" / f"{gpu}.json"
        document = read_json(path, self.root)
        best: dict[str, Timing] = {}  # where two runs measured the same, the peer's better one counts
        for row in document["timings"]:
            if "error" in row:
                continue
            # The file counts BatchNorm's input twice, as a kernel of two passes reads it; ours count what must move.
            counted = 2 / 3 if row["operation"] == "batchnorm_train" else 1
            timing = Timing(
                PEERS, row["peer"], row["operation"], row["dtype"], row["rows"], row["cols"], row["timing"],
                row["median_us"] * 1e-6,
                bytes_per_second=row["gigabytes_per_second"] * 1e9 * counted,
                share_of_copy=row["share_of_copy"] * counted if "share_of_copy" in row else None,
            )
            best[timing.name] = min(timing, best.get(timing.name, timing), key=lambda t: t.seconds)
        timings = tuple(best.values())
        checks = tuple(check_of({"stage": PEERS, **entry}, False) for entry in document.get("checks", []))
        return ResultFile(path, document["context"], timings, checks)

    def _lock(self, stage: str, gpu: str) -> launched.Lock | None:
        """What the stage's committed lock says for a GPU; None where there is none."""
        for path in sorted((self.root / stage / "results").glob("code_*.json")):
            try:
                lock = launched.read_lock(path)
            except (KeyError, ValueError) as error:
                shown = path.relative_to(self.root)
                raise ReportError(f"{shown} is not as ./worklog lock writes it: {error!r}") from None
            if lock and gpu in lock.cases:
                return lock
        return None

    def lock_now(self, stage: str, gpu: str) -> launched.Lock | None:
        """The lock, if it was made from the sources as they stand: else nobody has looked at their code yet."""
        lock = self.lock(stage, gpu)
        return lock if lock and lock.source_hash == self.hash_now(stage) else None

    def launches_now(self, stage: str, gpu: str, case: str) -> list[launched.Launch] | None:
        """What the stage launches in a case, where its lock is of the sources as they stand and has the case."""
        lock = self.lock_now(stage, gpu)
        return lock.launches(gpu, case) if lock else None

    def is_current(
        self, stage: str, gpu: str, case: str, recorded: Sequence[launched.Launch] | None, source_hash: str | None
    ) -> bool:
        """Whether a figure is of what the stage launches now: of the same code in the same shapes, where both are
        known; else of the same sources."""
        if stage not in self.stages():
            return False
        now = self.launches_now(stage, gpu, case)
        if recorded is not None and now is not None:
            return launched.same(recorded, now)
        return source_hash is not None and source_hash == self.hash_now(stage)

    def is_stale(self, entry: dict, gpu: str = DEFAULT_GPU) -> bool:
        """Whether a stage's entry of a verification, which holds for all of its kernels, is of other ones."""
        stage = entry["stage"]
        if stage not in self.stages():
            return True
        lock = self.lock_now(stage, gpu)
        return entry["source_hash"] != self.hash_now(stage) and not (lock and entry.get("code") == lock.code)

    def stale_cases(self, document: dict, gpu: str) -> Callable[[dict], bool]:
        """Whether an entry of counters or counts, which name stage and case, is of other launches than are made now."""
        hashes = {entry["stage"]: entry["source_hash"] for entry in document["stages"]}
        recorded = launched.recorded(document)  # here, cases begin with their stage

        @lru_cache(None)
        def is_old(stage: str, case: str) -> bool:
            return not self.is_current(stage, gpu, case, recorded.get(f"{stage}/{case}"), hashes.get(stage))

        return lambda entry: is_old(entry["stage"], case_name(entry))

    def _counters(self, gpu: str = DEFAULT_GPU) -> ResultFile:
        """What Nsight Compute counted, as counters.py wrote it: launches of all stages."""
        path = self.root / "docs" / "counters" / f"{gpu}.json"
        document = read_json(path, self.root)
        is_old = self.stale_cases(document, gpu)
        launches = tuple(launch_of(e, e["metrics"] | e.get("resources", {}), is_old(e)) for e in document["kernels"])
        return ResultFile(path, document["context"], (), (), any(launch.stale for launch in launches), launches)

    def has_counters(self, gpu: str) -> bool:
        return (self.root / "docs" / "counters" / f"{gpu}.json").is_file()

    def has_verified(self, gpu: str) -> bool:
        return (self.root / "docs" / "verified" / f"{gpu}.json").is_file()

    def _verified(self, gpu: str = DEFAULT_GPU) -> dict:
        """What verify.py found, as it wrote it."""
        return read_json(self.root / "docs" / "verified" / f"{gpu}.json", self.root)

    def has_peers(self, gpu: str) -> bool:
        return (self.root / "common" / "report" / "peers" / f"{gpu}.json").is_file()

    def comparison_path(self, gpu: str) -> Path:
        return self.root / "docs" / "compare" / f"{gpu}.json"

    def _comparison(self, gpu: str = DEFAULT_GPU) -> dict | None:
        """Us beside other libraries, as compare.py wrote it; None where nothing was compared."""
        path = self.comparison_path(gpu)
        return read_json(path, self.root) if path.is_file() else None

    def _verdicts(self, gpu: str = DEFAULT_GPU) -> dict[str, rivals.Verdict]:
        """Who is ahead in the comparison, by cell and timing: layernorm_forward/fp32/1024x1024/cold."""
        document = self.comparison(gpu)
        return {} if document is None else {f"{v.cell.name}/{v.mode}": v for v in rivals.verdicts(document)}

    def _runs(self, gpu: str = DEFAULT_GPU) -> rivals.Runs | None:
        """The runs that the comparison's cells come from; None where nothing was compared."""
        document = self.comparison(gpu)
        return None if document is None else rivals.Runs(document, self.is_current)

    def has_data(self, name: str) -> bool:
        return (self.root / "docs" / "data" / f"{name}.json").is_file()

    def _data(self, name: str) -> dict:
        return read_json(self.root / "docs" / "data" / f"{name}.json", self.root)

    def _data_is_stale(self, name: str) -> bool:
        """Whether kernels have changed since a file of docs/data was measured, or it does not say which they were."""
        context = self.data(name)["context"]
        hashes, codes = context.get("source_hashes", {}), context.get("codes", {})
        entries = [{"stage": stage, "source_hash": hashes[stage], "code": codes.get(stage)} for stage in hashes]
        return not hashes or any(self.is_stale(entry) for entry in entries)
