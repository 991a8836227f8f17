#!/usr/bin/env python3
"""How long a build took: the slowest translation units, and all of them together, as Ninja noted them.

    python3 common/report/build_times.py build/cpu build/gpu

These are figures, not tests: a machine that does something else besides is slower.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

SHOWN = 10


def durations(build: Path) -> dict[str, float]:
    """Seconds of each output's last build, by its path. Raises OSError where Ninja has built nothing there."""
    found = {}
    for line in (build / ".ninja_log").read_text(encoding="utf-8").splitlines():
        fields = line.split("\t")
        if len(fields) == 5:  # start and end in milliseconds, a time stamp, the output, a hash
            found[fields[3]] = (int(fields[1]) - int(fields[0])) / 1000
    return found


def report(build: Path) -> str:
    units = {output: seconds for output, seconds in durations(build).items() if output.endswith(".o")}
    slowest = sorted(units.items(), key=lambda unit: -unit[1])[:SHOWN]
    minutes = sum(units.values()) / 60
    lines = [f"{build}: {len(units)} translation units, {minutes:.1f} minutes of one core; the slowest:"]
    return "\n".join(lines + [f"  {seconds:6.1f} s  {output}" for output, seconds in slowest])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("builds", nargs="+", type=Path, help="folders that CMake and Ninja have built in")
    for build in parser.parse_args().builds:
        try:
            print(report(build))
        except OSError as error:
            print(f"build_times.py: {build}: {error.strerror}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
