#!/usr/bin/env python3
"""The notebook, the dev container and the teaching page: are they well formed, do the notebook's cells do what they
say, and does the page agree with the exercises and the grader?

    python3 common/tests/notebook_test.py [BUILD]

The cells run as they are, in order, in a process of their own, as on a machine without a GPU: those that install and
build are told of a machine where all is there, and the targets are looked for in BUILD. With WORKLOG_WHOLE_NOTEBOOK=1
nothing is left out, and it takes minutes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "common/classroom"))
sys.dont_write_bytecode = True
import exercises  # noqa: E402
import grade  # noqa: E402

NOTEBOOK = ROOT / "docs/colab.ipynb"
BUILD = Path(sys.argv.pop(1)) if len(sys.argv) > 1 and Path(sys.argv[1]).is_dir() else None
WHOLE = os.environ.get("WORKLOG_WHOLE_NOTEBOOK") == "1"


def cells() -> list[dict[str, object]]:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def source(name: str) -> str:
    return next("".join(cell["source"]) for cell in cells() if cell["id"] == name)  # type: ignore[arg-type]


def run_cells(
    names: list[str], folder: Path, before: str = "", path: str | None = None
) -> subprocess.CompletedProcess[str]:
    """The cells one after the other; `before` runs ahead of the third, when sh() is there."""
    parts = [source("where"), source("clone"), before, *(source(name) for name in names)]
    environment = os.environ | ({"PATH": path} if path else {})
    return subprocess.run(
        [sys.executable, "-c", "\n".join(parts)], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=1800, check=False,
    )


class Notebook(unittest.TestCase):
    def test_it_is_a_notebook(self) -> None:
        # What the format asks for, version 4.5; the notebook is committed without outputs.
        document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
        self.assertEqual((document["nbformat"], document["nbformat_minor"]), (4, 5))
        self.assertEqual(set(document), {"cells", "metadata", "nbformat", "nbformat_minor"})
        self.assertEqual(document["metadata"]["kernelspec"]["name"], "python3")
        names = [cell["id"] for cell in document["cells"]]
        self.assertEqual(len(names), len(set(names)))
        for cell in document["cells"]:
            self.assertRegex(cell["id"], r"^[a-zA-Z0-9_-]{1,64}$")
            self.assertIsInstance(cell["metadata"], dict)
            self.assertTrue(all(isinstance(line, str) for line in cell["source"]))
            self.assertTrue(all(line.endswith("\n") for line in cell["source"][:-1]))
            if cell["cell_type"] == "code":
                self.assertEqual((cell["outputs"], cell["execution_count"]), ([], None))
                self.assertEqual(set(cell), {"cell_type", "execution_count", "id", "metadata", "outputs", "source"})
                compile("".join(cell["source"]), cell["id"], "exec")
            else:
                self.assertEqual(set(cell), {"cell_type", "id", "metadata", "source"})

    def test_stages_and_verbs_are_there(self) -> None:
        help_text = subprocess.run([str(ROOT / "worklog"), "help"], capture_output=True, text=True, check=True).stdout
        for cell in cells():
            text = "".join(cell["source"])  # type: ignore[arg-type]
            for verb in re.findall(r"\./worklog (\w+)", text):
                self.assertRegex(help_text, rf"(?m)^  {verb}\b")
        for stage in re.findall(r'"(\d\d_\w+)"', source("build")):
            self.assertTrue((ROOT / stage / "main.cu").is_file())

    @unittest.skipUnless(BUILD, "no build folder was named, whose targets could be asked for")
    def test_the_build_has_its_targets(self) -> None:
        told = 'def sh(command):\n    print("$", command)\n'
        done = run_cells(["gpu", "build"], ROOT / "docs", told, path="/usr/bin:/bin")
        self.assertEqual(done.returncode, 0, done.stderr)
        targets = re.search(r"\$ cmake --build .* --target (.*)", done.stdout)
        assert targets, done.stdout
        asked = subprocess.run(
            ["ninja", "-C", str(BUILD), "-t", "query", *targets[1].split()], capture_output=True, text=True, check=False
        )
        self.assertEqual(asked.returncode, 0, asked.stdout + asked.stderr)

    def test_it_clones_where_there_is_no_checkout(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            without = run_cells([], Path(folder))
            self.assertNotEqual(without.returncode, 0)
            self.assertIn("REPOSITORY", without.stderr)
            origin = Path(folder) / "origin"
            (origin / "01_naive").mkdir(parents=True)
            (origin / "01_naive/main.cu").write_text("")
            shutil.copy(ROOT / "worklog", origin)
            for command in (
                ["init", "-q"], ["add", "."],
                ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "all"],
            ):
                subprocess.run(["git", *command], cwd=origin, check=True)
            script = (
                source("where").replace('REPOSITORY = ""', f'REPOSITORY = "file://{origin}"') + "\n" + source("clone")
            )
            for _ in range(2):  # the second time it is there
                done = subprocess.run(
                    [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=60, check=False
                )
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(str(Path(folder).resolve() / "norm-worklog"), done.stdout)

    def test_without_a_gpu_it_says_so_loudly(self) -> None:
        done = run_cells(["gpu"], ROOT / "docs", path="/usr/bin:/bin" if not has_gpu() else "/nowhere")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("NO GPU HERE", done.stdout)
        self.assertIn("NO TIME IS SHOWN", done.stdout)

    def test_with_a_gpu_it_compiles_for_that(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {"nvidia-smi": "echo 'Tesla T4, 7.5'", "nvcc": "true"}.items():
                tool = Path(folder) / name
                tool.write_text(f"#!/bin/sh\n{text}\n")
                tool.chmod(0o755)
            told = 'def sh(command):\n    print("$", command)\n'
            done = run_cells(["gpu", "build", "run"], ROOT / "docs", told, path=f"{folder}:/usr/bin:/bin")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("compute capability 7.5: compiling for sm_75", done.stdout)
        self.assertIn("$ cmake --preset gpu -DCMAKE_CUDA_ARCHITECTURES=75", done.stdout)
        self.assertIn("$ build/gpu/bin/04_vectorized", done.stdout)

    def test_the_commands_run_on_the_cpu(self) -> None:
        if not WHOLE:
            self.skipTest("WORKLOG_WHOLE_NOTEBOOK=1 builds and runs all of it")
        done = run_cells(["gpu", "build", "run", "start", "check"], ROOT / "docs")
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr)
        self.assertIn("04_vectorized", done.stdout)


class DevContainer(unittest.TestCase):
    def test_its_files_fit_together(self) -> None:
        folder = ROOT / ".devcontainer"
        settings = json.loads((folder / "devcontainer.json").read_text(encoding="utf-8"))
        self.assertTrue((folder / settings["build"]["dockerfile"]).is_file())
        self.assertEqual((folder / settings["build"]["context"]).resolve(), ROOT)
        self.assertTrue(settings["postCreateCommand"].startswith("./worklog "))
        recipe = (folder / "Dockerfile").read_text(encoding="utf-8")
        self.assertIn(f"useradd --create-home --shell /bin/bash {settings['remoteUser']}", recipe)
        for copied in re.findall(r"^COPY (\S+) ", recipe, flags=re.MULTILINE):
            self.assertTrue((ROOT / copied).exists(), copied)

    def test_it_installs_what_the_script_asks_for(self) -> None:
        command = re.search(r"\$\((sed [^\n]*)\)", (ROOT / ".devcontainer/Dockerfile").read_text(encoding="utf-8"))
        assert command
        found = subprocess.run(
            command[1].replace("/tmp/worklog", str(ROOT / "worklog")), shell=True, capture_output=True, text=True,
            check=True,
        ).stdout.split()
        self.assertGreater(len(found), 8)
        self.assertIn("cmake", found)
        self.assertTrue(all(re.fullmatch(r"[a-z0-9+.-]+", name) for name in found), found)


class TeachingPage(unittest.TestCase):
    page = (ROOT / "docs/teaching.md").read_text(encoding="utf-8")

    def test_exercises_are_there_and_take_so_long(self) -> None:
        minutes = {each.id: each.minutes for each in exercises.all_exercises()}
        found = re.findall(r"(\d\d|bugs)\.(\d+) to \1\.(\d+)(?: \| (\d+) \|)?", self.page)
        self.assertGreaterEqual(len(found), 12)
        for stage, first, last, said in found:
            with self.subTest(f"{stage}.{first} to {stage}.{last}"):
                total = sum(minutes[f"{stage}.{number}"] for number in range(int(first), int(last) + 1))
                if said:
                    self.assertEqual(total, int(said))

    def test_the_rubric_is_the_graders(self) -> None:
        rows = [
            int(points)
            for points in re.findall(r"^\| (\d+)(?: more)? \| [a-z ]+ \| .* \|$", self.page, flags=re.MULTILINE)[-4:]
        ]
        self.assertEqual(rows, [*grade.POINTS.values(), grade.BONUS])
        for verdict in ("solved", "right"):
            self.assertIn(verdict, grade.MEANINGS)


def has_gpu() -> bool:
    return subprocess.run("nvidia-smi -L", shell=True, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    unittest.main(verbosity=2)
