"""Scripts of common/report/ that are ready: what they import is imported once, and each call is a fork of that.

A script's own work is often a matter of milliseconds, after a second in which Python starts and imports matplotlib. A
call begins, as a process of its own does, with nothing of the calls before: no caches, no settings, no variables. It
ends like one, too: by an exit code, and with what it has written, the traceback of what it did not catch included. The
first call of each script is such a process, as a reader starts it.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


class Ready:
    """The scripts of a folder, for one Python."""

    def __init__(self, python: str, folder: Path) -> None:
        self._python = python
        self._folder = folder
        self._were_called: set[str] = set()
        self._server: subprocess.Popen[str] | None = None

    def call(self, script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        words = [self._python, str(self._folder / script), *map(str, arguments)]
        if script not in self._were_called:
            self._were_called.add(script)
            return subprocess.run(words, capture_output=True, text=True, check=False)
        if self._server is None:
            self._server = subprocess.Popen(
                [self._python, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            atexit.register(self._server.communicate)  # it ends with its input
        assert self._server.stdin and self._server.stdout
        print(json.dumps([words[1:], dict(os.environ)]), file=self._server.stdin, flush=True)
        code, stdout, stderr = json.loads(self._server.stdout.readline())
        return subprocess.CompletedProcess(words, code, stdout, stderr)


def serve() -> None:
    """Answers each line of the input, which is a call, by one with what came of it."""
    for line in sys.stdin:
        (script, *arguments), environment = json.loads(line)
        folder = str(Path(script).parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        module = importlib.import_module(Path(script).stem)
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            child = os.fork()
            if child == 0:
                with open(os.devnull, "rb") as nothing:
                    for file, number in ((nothing, 0), (stdout, 1), (stderr, 2)):
                        os.dup2(file.fileno(), number)
                os.environ.clear()
                os.environ.update(environment)
                sys.argv = [script, *arguments]
                sys.exit(module.main())
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            answer: list[int | str] = [code]
            for file in (stdout, stderr):
                file.seek(0)
                answer.append(file.read().decode())
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
