#!/usr/bin/env python3
"""A small GPT, trained twice: with PyTorch's norms and with this library's.

    python common/library/python/examples/gpt.py --json docs/data/gpt_h200.json     on a GPU: 6 layers, 300 steps
    python common/library/python/examples/gpt.py --seeds 3      the same three times, with other weights and batches
    python common/library/python/examples/gpt.py --tiny         on a CPU, with a CPU build of the library

The same weights at the start, the same batches in the same order: what differs is the norms. It is said how far the
loss curves lie apart, beside how far PyTorch's own lies from one whose norms compute in another order, a compiled
PyTorch: that is the noise, since training multiplies every rounding. One seed gives one sample of it, --seeds more. The
text is made here, by a grammar with a seed, so that nothing is downloaded and a model has something to learn: words
follow each other by rules, and brackets close.

A step is timed with each: forward, backward and optimizer, on the host's clock.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this tree, where none is installed

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normworklog


# --- Text -------------------------------------------------------------------------------------------------------------
NOUNS = ("kernel", "warp", "row", "block", "lane", "sum", "cache", "vector", "register", "grid")
VERBS = ("reads", "adds", "waits for", "keeps", "loads", "writes", "hides", "shares")
ADJECTIVES = ("wide", "narrow", "cold", "warm", "odd", "last", "first", "slow")


def make_text(characters: int, seed: int) -> str:
    """Sentences of a small grammar: nested brackets, counts that grow, and nouns that come back in the next
    sentence."""
    chance = random.Random(seed)
    words: list[str] = []
    length, noun, number = 0, chance.choice(NOUNS), 1

    def phrase(depth: int) -> str:
        nonlocal noun
        noun = chance.choice(NOUNS)
        inner = ""
        if depth < 2 and chance.random() < 0.25:
            inner = f" ({phrase(depth + 1)} {chance.choice(VERBS)} {phrase(depth + 1)})"
        return f"the {chance.choice(ADJECTIVES) + ' ' if chance.random() < 0.5 else ''}{noun}{inner}"

    while length < characters:
        before = noun
        sentence = f"{number}. the {before} {chance.choice(VERBS)} {phrase(0)}.\n"
        number = number % 99 + 1
        words.append(sentence)
        length += len(sentence)
    return "".join(words)[:characters]


# --- The model --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Size:
    layers: int = 6
    heads: int = 12
    width: int = 768
    context: int = 512
    batch: int = 32
    steps: int = 300
    warm_up: int = 20  # steps in which the rate rises, and which are not timed
    rate: float = 6e-4
    text: int = 1_000_000


TINY = Size(layers=2, heads=2, width=32, context=32, batch=4, steps=6, warm_up=2, rate=3e-3, text=20_000)


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.before_attention, self.before_mlp = nn.LayerNorm(size.width), nn.RMSNorm(size.width, eps=1e-6)
        self.qkv, self.out = nn.Linear(size.width, 3 * size.width), nn.Linear(size.width, size.width)
        self.up, self.down = nn.Linear(size.width, 4 * size.width), nn.Linear(4 * size.width, size.width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.before_attention(x)).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in parts)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class Gpt(nn.Module):
    """Both kinds of norm stand in each block, so that both are trained with."""

    def __init__(self, size: Size, letters: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(letters, size.width), nn.Embedding(size.context, size.width)
        self.blocks = nn.Sequential(*[Block(size) for _ in range(size.layers)])
        self.last, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, letters, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return F.cross_entropy(self.head(self.last(self.blocks(x))).flatten(0, 1).float(), targets.flatten())


# --- Training ---------------------------------------------------------------------------------------------------------
def batches(size: Size, device: str, seed: int) -> tuple[int, Callable[[int], tuple[Tensor, Tensor]]]:
    """How many letters there are, and the batch of each step: the same in every run of a seed."""
    text = make_text(size.text, seed=1)
    letters = sorted(set(text))
    number = {letter: i for i, letter in enumerate(letters)}
    data = torch.tensor([number[letter] for letter in text], device=device)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        chance = torch.Generator().manual_seed(seed * size.steps + step)
        begins = torch.randint(len(data) - size.context - 1, (size.batch, 1), generator=chance).to(device)
        place = begins + torch.arange(size.context, device=device)
        return data[place], data[place + 1]

    return len(letters), batch


def train(
    size: Size, device: str, dtype: torch.dtype, norms: Callable[[Gpt], Any], seed: int
) -> tuple[list[float], list[float]]:
    """The loss and the seconds of each step."""
    torch.manual_seed(seed)
    torch.compiler.reset()  # what was compiled for another seed's model is of no use to this one
    letters, batch = batches(size, device, seed)
    model = Gpt(size, letters).to(device, dtype)
    run = norms(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=size.rate, betas=(0.9, 0.95), weight_decay=0.1)
    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    losses: list[Tensor] = []
    seconds: list[float] = []
    for step in range(size.steps):
        for group in optimizer.param_groups:
            group["lr"] = size.rate * min(1.0, (step + 1) / size.warm_up)
        tokens, targets = batch(step)
        settle()
        begun = time.perf_counter()
        loss = run(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        settle()
        seconds.append(time.perf_counter() - begun)
        losses.append(loss.detach())
    return [round(float(loss), 6) for loss in losses], seconds


def train_seeds(size: Size, device: str, dtype: torch.dtype, norms: Callable[[Gpt], Any], seeds: int) -> dict[str, Any]:
    """The losses of each seed, and the seconds of a step after the warm-up, over all seeds."""
    losses: list[list[float]] = []
    timed: list[float] = []
    for seed in range(seeds):
        of_seed, seconds = train(size, device, dtype, norms, seed)
        losses.append(of_seed)
        timed += seconds[size.warm_up:]
    return {"losses": losses, "step_seconds": statistics.median(timed), "step_seconds_best": min(timed)}


def compiled_norms(model: Gpt) -> Gpt:
    """PyTorch's norms through Inductor, which add in another order: what a difference in rounding alone does to a
    run."""
    for module in model.modules():
        if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
            module.forward = torch.compile(module.forward, dynamic=False)
    return model


ROUNDING = "torch, norms compiled"  # the run that differs from PyTorch's in rounding alone
RUNS: dict[str, Callable[[Gpt], Any]] = {
    "torch": lambda model: model,
    "ours": normworklog.replace_norms,
    ROUNDING: compiled_norms,
    "torch, compiled": lambda model: torch.compile(model, dynamic=False),
    "ours, compiled": lambda model: torch.compile(normworklog.replace_norms(model), dynamic=False, fullgraph=True),
}


def apart(first: list[float], second: list[float]) -> dict[str, float]:
    """How far two loss curves lie from each other: anywhere, and over their last tenth on average."""
    tail = max(1, len(first) // 10)
    ends = [statistics.fmean(losses[-tail:]) for losses in (first, second)]
    return {"largest": max(abs(a - b) for a, b in zip(first, second)), "at_the_end": abs(ends[0] - ends[1])}


def most_apart(first: list[list[float]], second: list[list[float]]) -> dict[str, Any]:
    """`apart` of each seed, and the largest of these."""
    seeds = [apart(a, b) for a, b in zip(first, second)]
    return {key: max(of_seed[key] for of_seed in seeds) for key in seeds[0]} | {"seeds": seeds}


def step_figures(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The time of a step in each run, as the pages name it: step_ours_compiled."""
    return {
        "step_" + name.replace(", ", "_").replace(" ", "_"):
            {"value": result["step_seconds"] * 1e3, "unit": "ms", "meaning": f"a step of the run '{name}', the median"}
        for name, result in results.items()
    }


def commit() -> str:
    """Of the tree that this file lies in, where git can tell."""
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() or os.environ.get("WORKLOG_COMMIT", "unknown")


def source_hashes() -> dict[str, str]:
    """Of the kernels that these norms run, where the repository is there: by them a chart sees whether they have
    changed since."""
    program = Path("../../../report/source_hash.py")
    asked = subprocess.run(
        [sys.executable, program], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    hashes = dict(line.split() for line in asked.stdout.splitlines())
    return {stage: hashes[stage] for stage in ("05_welford", "06_fused_residual", "07_backward") if stage in hashes}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a toy size for a CPU")
    parser.add_argument(
        "--seeds", type=int, default=1, help="how many times to train, each with other weights and batches (default: 1)"
    )
    parser.add_argument("--steps", type=int, help="how many (default: 300; 6 with --tiny)")
    parser.add_argument(
        "--dtype",
        choices=("bf16", "fp32"),
        default="bf16",
        help="of the parameters and the activations (default: bf16)",
    )
    parser.add_argument(
        "--runs",
        default="all",
        help=f"which of {', '.join(RUNS)}; separated by semicolons (default: all; two with --tiny)",
    )
    parser.add_argument("--json", type=Path, help="file to write losses and times to")
    options = parser.parse_args(arguments)
    device = "cuda" if normworklog.backend() == "cuda" else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        print("gpt.py: the library is a GPU build, and PyTorch sees no GPU here", file=sys.stderr)
        return 2
    size = TINY if options.tiny else Size()
    if options.seeds < 1:
        parser.error(f"--seeds is {options.seeds}; it must be 1 or more")
    if options.steps:
        size = Size(**{**asdict(size), "steps": options.steps, "warm_up": min(size.warm_up, options.steps - 1)})
    chosen = options.runs.split(";")
    if options.runs == "all":
        chosen = list(RUNS)[:2] if options.tiny else list(RUNS)
    if unknown := [name for name in chosen if name not in RUNS]:
        parser.error(f"--runs has '{unknown[0]}'; it must be of {'; '.join(RUNS)}")
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[options.dtype]
    results = {}
    for name in chosen:
        results[name] = train_seeds(size, device, dtype, RUNS[name], options.seeds)
        for losses in results[name]["losses"]:
            step = results[name]["step_seconds"] * 1e3
            print(f"{name:24} loss {losses[0]:.4f} to {losses[-1]:.4f}, a step {step:.2f} ms", flush=True)
    differences = {}
    if "torch" in results:
        others = {name: result["losses"] for name, result in results.items() if name != "torch"}
        differences = {name: most_apart(results["torch"]["losses"], losses) for name, losses in others.items()}
    for name, difference in differences.items():
        print(f"{name:24} from torch: at most {difference['largest']:.4f}, at the end {difference['at_the_end']:.4f}")
    if "ours" in differences and ROUNDING in differences:
        ours, rounding = (differences[name]["largest"] for name in ("ours", ROUNDING))
        seeds = f"{options.seeds} seed{'s' if options.seeds > 1 else ''}"
        print(f"the largest gap over {seeds}: ours from torch {ours:.4f}, by rounding alone {rounding:.4f}")
    if options.json:
        context = {
            "device": torch.cuda.get_device_name() if device == "cuda" else "CPU layer", "torch": torch.__version__,
            "dtype": options.dtype, "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "library": normworklog.__version__, "commit": commit(),
            "commit_note": "The library that was trained with", "source_hashes": source_hashes(),
            "seeds": options.seeds, "size": asdict(size),
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "context": context, "runs": results, "apart": differences, "figures": step_figures(results),
        }
        options.json.write_text(json.dumps(document) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
