"""Builds the optional C++ way from PyTorch's tensors to the library, for the PyTorch that is installed.

    python -m normworklog.torch.build [--output FOLDER]

It needs a C++20 compiler (CXX names another than g++) and takes about a minute.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from . import _native


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m normworklog.torch.build", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--output",
        type=Path,
        help="folder to put it into (default: the package's, or the cache where that cannot be written to)",
    )
    options = parser.parse_args()
    own, *others = _native.folders()
    folder = options.output or (own if not others or os.access(own, os.W_OK) else others[0])
    print(f"built {_native.build(folder)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
