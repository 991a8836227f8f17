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
from pathlib import Path
from typing import Any

from results import ROOT, ReportError

TEMPLATE = Path(__file__).with_name("trace_page.html")
SHAPE = "64x512"  # of a picture: large enough for every kernel to show what it does, small enough to step through
LINES_AROUND = 12
MOST_STEPS = 200_000


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
    for tensor in trace["tensors"]:
        is_vector = tensor["name"] in ("gamma", "beta", "dgamma", "dbeta")
        tensor["is_matrix"] = tensor["stride"] == trace["cols"] and not is_vector
    data = trace | {
        "sources": sources_of(trace["steps"], root),
        "steps": [shorter(step) for step in trace["steps"]],
        "warps": (threads + 31) // 32,
    }
    title = f"{trace['stage']}, {trace['variant']}: row {trace['row']}, access by access"
    # "</" cannot end the script that holds the data.
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return TEMPLATE.read_text(encoding="utf-8").replace("@TITLE@", html.escape(title)).replace("@DATA@", text)


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
