#!/usr/bin/env python3
"""Makes a page that steps through a block of a real run: which lanes are active, what each touches, what that costs.

    ./worklog trace 03 --row 0                    writes trace_03_warp_shuffle_block_per_row.html
    ./worklog trace 03 --row 7 --variant warp_per_row --shapes 64x4096 --output picture.html

The page is one file that needs no network. It shows the block that works on the row, on the CPU layer; flags that are
not this script's go to the stage's program (--variant, --shapes, --dtype, ...).
"""

from __future__ import annotations

import argparse
import html
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results import ROOT, ReportError

TEMPLATE = Path(__file__).with_name("trace_page.html")
SHAPE = "64x512"  # of a picture: large enough for every kernel to show what it does, small enough to step through
LINES_AROUND = 12
MOST_STEPS = 200_000
WARP = 32


def record(program: Path, flags: list[str]) -> dict[str, Any]:
    """The steps, as the program writes them. Raises ReportError with what it says where it refuses."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        command = [str(program), "--trace", str(file), *flags]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if not file.is_file():
            raise ReportError(done.stdout.strip() or f"{program} ended with {done.returncode}")
        return json.loads(file.read_text(encoding="utf-8"))


def sources_of(steps: list[dict[str, Any]], root: Path) -> dict[str, dict[str, Any]]:
    """The lines around those that have steps, by file."""
    found = {}
    for name in {step["file"] for step in steps if step["file"]}:
        path = root / name
        if not path.is_file():
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        used = [step["line"] for step in steps if step["file"] == name]
        first, last = max(1, min(used) - LINES_AROUND), min(len(lines), max(used) + LINES_AROUND)
        found[name] = {"first": first, "lines": lines[first - 1 : last]}
    return found


def shorter(step: dict[str, Any]) -> dict[str, Any]:
    """The step with its offsets as a line through the active lanes, where they lie on one."""
    active = [lane for lane in range(32) if step["lanes"] >> lane & 1]
    offset = step["offset"]
    if len(active) > 1:
        slope = (offset[active[1]] - offset[active[0]]) / (active[1] - active[0])
        start = offset[active[0]] - slope * active[0]
        if slope == int(slope) and all(offset[lane] == start + slope * lane for lane in active):
            return step | {"offset": {"first": int(start), "step": int(slope)}}
    elif active:
        return step | {"offset": {"first": offset[active[0]], "step": 0}}
    return step


def page(trace: dict[str, Any], root: Path = ROOT) -> str:
    if not trace["steps"] or len(trace["steps"]) > MOST_STEPS:
        raise ReportError(
            f"the block has {len(trace['steps'])} steps, and a page can show 1 to {MOST_STEPS}: take a smaller shape "
            f"(--shapes {SHAPE})"
        )
    threads = trace["block"][0] * trace["block"][1] * trace["block"][2]
    vectors = ("gamma", "beta", "dgamma", "dbeta")
    data = trace | {
        "tensors": [
            tensor | {"is_matrix": tensor["stride"] == trace["cols"] and tensor["name"] not in vectors}
            for tensor in trace["tensors"]
        ],
        "sources": sources_of(trace["steps"], root),
        "steps": [shorter(step) for step in trace["steps"]],
        "warps": (threads + 31) // 32,
    }
    title = f"{trace['stage']}, {trace['variant']}: row {trace['row']}, access by access"
    # "</" cannot end the script that holds the data.
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return TEMPLATE.read_text(encoding="utf-8").replace("@TITLE@", html.escape(title)).replace("@DATA@", text)


BESIDE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>@TITLE@</title>
<style>
  :root { color-scheme: light dark; }
  body { margin: 0; height: 100vh; display: flex; flex-direction: column; font: 15px/1.45 system-ui, sans-serif;
         background: light-dark(#fbfaf7, #14181d); color: light-dark(#1d2733, #e6e8ea); }
  @media (min-width: 60rem) { body { overflow: hidden; } }
  header { padding: .6rem 1rem; display: flex; gap: .5rem 1rem; align-items: center; flex-wrap: wrap; }
  h1 { font-size: 1.15rem; margin: 0; flex: 1 1 24rem; }
  button { font: inherit; color: inherit; background: light-dark(#fff, #1b2027); border-radius: 6px;
           border: 1px solid light-dark(#d9d5cc, #343c46); padding: .25rem .7rem; }
  main { flex: 1; display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); min-height: 0; }
  iframe { display: block; box-sizing: border-box; width: 100%; height: 100%; border: 0;
           border-top: 1px solid light-dark(#d9d5cc, #343c46); }
  iframe + iframe { border-left: 1px solid light-dark(#d9d5cc, #343c46); }
  @media (max-width: 60rem) {
    body { height: auto; } main { grid-template-columns: minmax(0, 1fr); } iframe { height: 95vh; } }
</style>
</head>
<body>
<header><h1>@TITLE@</h1>
<button data-key="Home">First</button><button data-key="ArrowLeft">Back</button>
<button data-key="ArrowRight">Next</button><button data-key="PageDown">To the next barrier</button></header>
<main>@FRAMES@</main>
<script>
"use strict";
// Both go together; each has controls of its own too.
const send = key => document.querySelectorAll("iframe").forEach(frame => frame.contentWindow.postMessage({ key }, "*"));
const keys = [...document.querySelectorAll("button")].map(button => button.dataset.key).concat("PageUp", "End");
document.querySelectorAll("button").forEach(button => button.onclick = () => send(button.dataset.key));
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || !keys.includes(event.key)) return;
  event.preventDefault();
  send(event.key);
});
</script>
</body>
</html>
"""


def beside(title: str, pages: Sequence[tuple[str, str]]) -> str:
    """One page of several, side by side, each with its label; it needs no other file."""
    frames = "".join(
        f'<iframe title="{html.escape(label)}" srcdoc="{html.escape(text)}"></iframe>' for label, text in pages
    )
    return BESIDE.replace("@TITLE@", html.escape(title)).replace("@FRAMES@", frames)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--program", type=Path, required=True, help="the stage's program, of a cpu build")
    parser.add_argument("--row", default="0", help="the row whose block is shown (default: 0)")
    parser.add_argument("--output", type=Path, help="the page (default: trace_STAGE_VARIANT.html)")
    options, flags = parser.parse_known_args(arguments)
    if not {"--shapes", "--rows", "--cols"} & {flag.partition("=")[0] for flag in flags}:
        flags += ["--shapes", SHAPE]
    if "--dtype" not in {flag.partition("=")[0] for flag in flags}:
        flags += ["--dtype", "fp32"]
    try:
        trace = record(options.program, ["--row", options.row, *flags])
        output = options.output or Path(f"trace_{trace['stage']}_{trace['variant']}.html")
        output.write_text(page(trace), encoding="utf-8")
    except (ReportError, OSError) as error:
        print(f"trace_page.py: {error}", file=sys.stderr)
        return 2
    print(f"{output}: {len(trace['steps'])} steps of {trace['variant']}; open it in a browser")
    return 0


if __name__ == "__main__":
    sys.exit(main())
