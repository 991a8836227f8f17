#!/usr/bin/env python3
"""Builds the repository's pages as a web site with MkDocs Material, and serves it on this machine.

    ./worklog docs              builds site/ and serves it on http://127.0.0.1:8000 until Ctrl-C
    ./worklog docs --build      builds only
    ./worklog docs --check      builds, then looks at every page in headless Chromium

The pages are the repository's own Markdown files, as they lie: README.md, the writeups, their notes and exercises,
docs/, the rooms' README.md. Copies go to build/site-source, where what GitHub does and MkDocs does not is put right: a
source file that a page links to becomes a page, a stage's code stands in tabs, formulas become MathML. The site fetches
nothing from elsewhere.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import slides
import traces
from markdown import split_fences, title_of
from prose import CONTENTS, NOTES, notes_of
from results import ROOT, ReportError
from source_hash import stage_folders

SOURCE, SITE = ROOT / "build/site-source", ROOT / "site"
LANGUAGES = {
    ".cuh": "cuda", ".cu": "cuda", ".h": "cpp", ".cpp": "cpp", ".py": "python", ".cmake": "cmake", ".sh": "sh",
    "": "sh", ".txt": "text", ".yml": "yaml",
}
COPIED = {".svg", ".png", ".json", ".cff", ".ipynb"}
LINK = re.compile(r"(!?\[[^\]\n]*\]\(|<img\s[^>]*?src=\")([^)\s\"#]+)(#[^)\s\"]*)?")
FETCHED = re.compile(r"<(?:script|img|link rel=\"stylesheet\")[^>]*?(?:src|href)=\"((?:https?:)?//[^\"]+)\"")
STAGE_PICTURE = re.compile(rf"!\[[^\]\n]*\]\({traces.FOLDER}/{re.escape(traces.PICTURE)}\)")
EXERCISE = re.compile(r"^\| (\w+\.\d+)\b", re.MULTILINE)  # a row of the table of exercises
TRACES = "traces"  # the folder of the pages that step through traces
SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//")
BUG_HUNT = "common/classroom/bug_hunt/README.md"  # exercises of no stage
FIRST = "docs/primer.md"  # stands before the ladder
DOCS_ORDER = (
    "reading-order.md", "running.md", "judging.md", "method.md", "numerics.md", "profiling.md", "counting.md",
    "two-gpus.md", "your-gpu.md", "compare.md", "lost-timings.md", "how-it-compares.md", "resources.md", "verified.md",
    "teaching.md", "questions.md", "glossary.md", "sources.md",
)
PROJECT = ("docs/changelog.md", "CONTRIBUTING.md", "docs/security.md")


def documents() -> list[Path]:
    """The pages, in the order of the navigation."""
    found = [ROOT / "README.md"]
    for stage in stage_folders(ROOT):
        if (ROOT / stage / "README.md").is_file():
            found += [ROOT / stage / "README.md", *notes_of(ROOT / stage)]

    def place(path: Path) -> tuple[int, str]:
        return DOCS_ORDER.index(path.name) if path.name in DOCS_ORDER else 99, path.name

    docs = sorted((path for path in (ROOT / "docs").glob("*.md") if f"docs/{path.name}" not in PROJECT), key=place)
    rooms = sorted(ROOT.glob("common/*/README.md")) + sorted(ROOT.glob("common/library/python/README.md"))
    project = [ROOT / name for name in PROJECT if (ROOT / name).is_file()]
    rooms += [ROOT / BUG_HUNT] if (ROOT / BUG_HUNT).is_file() else []
    return found + docs + rooms + project + sorted(ROOT.glob("[0-9][0-9]_*/exercise/README.md"))


def fence(text: str, language: str) -> str:
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}"


def code_page(path: Path) -> str:
    """A source file as a page."""
    language = LANGUAGES.get(path.suffix, "text")
    return f"# {path.relative_to(ROOT)}\n\n{fence(path.read_text(encoding='utf-8'), language)}\n"


PROGRAM = ("main.cu", "variants.cu")  # of a stage


def is_stage_code(path: Path) -> bool:
    return path.parent.name in stage_folders(ROOT) and (path.suffix == ".cuh" or path.name in PROGRAM)


def stage_code(stage: str) -> str:
    """A stage's code in tabs, the kernels first."""
    tabs = []
    files = filter(is_stage_code, (ROOT / stage).iterdir())
    for path in sorted(files, key=lambda path: (path.name != "kernels.cuh", path.name in PROGRAM, path.name)):
        body = fence(path.read_text(encoding="utf-8"), "cuda")
        tabs.append(f'=== "{path.name}"\n\n' + "\n".join(f"    {line}" if line else "" for line in body.split("\n")))
    return f"# {stage}: the code\n\n" + "\n\n".join(tabs) + "\n"


class Staging:
    """Copies of the pages, with links that lead to what the site has."""

    def __init__(self, with_traces: bool = False) -> None:
        self.written: dict[str, str] = {}
        self.copied: set[Path] = set()
        self.with_traces = with_traces  # a stage's picture leads to the page that steps through it

    def target(self, path: Path) -> str | None:
        """What a link to a file of the repository leads to in the site, from its root; None where the site has nothing
        of it."""
        name = path.relative_to(ROOT).as_posix()
        stage = path.parent.name
        if path.is_dir():
            return self.target(path / "README.md") if (path / "README.md").is_file() else None
        if path.suffix == ".md":
            return name
        if path.suffix in COPIED:
            self.copied.add(path)
            return name
        if is_stage_code(path):
            return f"{stage}/code.md"
        if path.suffix in LANGUAGES or path.name == "LICENSE":
            page = f"{name}.md" if path.suffix else f"{name}-file.md"
            if page not in self.written:
                self.written[page] = code_page(path)
            return page
        return None

    def add(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        shown, _ = split_fences(text)

        def relink(match: re.Match[str]) -> str:
            opening, name, fragment = match.groups()
            # What stands in a fence is not a link.
            if SCHEME.match(name) or not shown[match.start()].strip():
                return match.group()
            file = (path.parent / unquote(name)).resolve()
            target = self.target(file) if file.is_relative_to(ROOT) and file.exists() else None
            if target is None:
                return match.group()
            here = posixpath.dirname(path.relative_to(ROOT).as_posix()) or "."
            return f"{opening}{posixpath.relpath(target, here)}{fragment or ''}"

        text = LINK.sub(relink, text)
        if self.with_traces and path.parent.name in traces.TRACES and path.parent.parent == ROOT:
            page = f"../{TRACES}/{traces.pair_page(path.parent.name)}"
            text = STAGE_PICTURE.sub(lambda picture: f"[{picture[0]}]({page})", text)
        text = re.sub(r"^<details>$", '<details markdown="1">', text, flags=re.MULTILINE)
        self.written[path.relative_to(ROOT).as_posix()] = text

    def write(self) -> None:
        shutil.rmtree(SOURCE, ignore_errors=True)
        for name, text in self.written.items():
            path = SOURCE / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        for path in self.copied:
            copy = SOURCE / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def title(path: Path) -> str:
    return title_of(path.read_text(encoding="utf-8")) or path.name


def of_stage(stage: Path, pages: list[Path], written: dict[str, str]) -> list[Any]:
    """What the navigation has of a stage: the lesson first, then its code, its exercises, and its notes, folded."""
    below = {"The code": f"{stage.name}/code.md", "Exercises": f"{stage.name}/exercise/README.md"}
    notes: list[Any] = []
    for path in pages:
        if path.parent == stage / NOTES:
            name = path.relative_to(ROOT).as_posix()
            notes.append(name if path.name == CONTENTS else {title(path): name})
    entries: list[Any] = [f"{stage.name}/README.md"]
    entries += [{words: page} for words, page in below.items() if page in written]
    return entries + ([{"Notes": notes}] if notes else [])


def navigation(pages: list[Path], written: dict[str, str]) -> list[Any]:
    """The primer, the ladder, the bug hunt, the docs, the rooms, the project; a stage's code, exercises and notes stand
    below its writeup."""
    ladder: list[Any] = []
    first, docs, rooms, project, hunt = [], [], [], [], []
    for path in pages:
        name = path.relative_to(ROOT).as_posix()
        if name == FIRST:
            first.append({title(path): name})
        elif name in PROJECT:
            project.append({title(path): name})
        elif path.parent == ROOT / "docs":
            docs.append({title(path): name})
        elif name == BUG_HUNT:
            hunt.append({title(path): name})
        elif path.is_relative_to(ROOT / "common"):
            rooms.append({title(path): name})
        elif path.parent.parent == ROOT:
            ladder.append({title(path): of_stage(path.parent, pages, written)})
    made = [name for name in written if name.endswith(".md") and not (ROOT / name).is_file()]
    files = sorted(name for name in made if not name.endswith("/code.md") and not name.startswith(f"{TRACES}/"))
    nav: list[Any] = [{"Start": "README.md"}, *first, {"Lessons 01 to 08": ladder}, *hunt]
    nav += [{"Step through the kernels": f"{TRACES}/README.md"}] if f"{TRACES}/README.md" in written else []
    nav += [{"Method, numerics, teaching": docs}] if docs else []
    nav += [{"How the code is built": rooms}] if rooms else []
    nav += [{"The project": project}] if project else []
    if files:
        nav.append({"Source files": [{posixpath.splitext(name)[0].removesuffix("-file"): name} for name in files]})
    return nav


def traces_page() -> str:
    """The pictures of all stages, each of which leads to its page."""
    lines = [
        "# Step through the kernels", "",
        "One block of a real run on the CPU layer, access by access: which lanes are active, which addresses they "
        "touch, and what that costs. A picture leads to its page: before a stage's one change and after, side by side. "
        "`./worklog trace` makes such a page of any kernel, row and shape.", "",
    ]
    for stage, pair in traces.TRACES.items():
        name = title(ROOT / stage / "README.md")
        lines += [
            f"## {name}", "",
            f"[![{' and '.join(traced.label for traced in pair)}, step by step]"
            f"(../{stage}/{traces.FOLDER}/{traces.PICTURE})]({traces.pair_page(stage)})", "",
            f"[The lesson](../{stage}/README.md) · [{pair[-1].label} alone]({traces.own_page(stage)})", "",
        ]
    return "\n".join(lines)


def exercises() -> list[str]:
    """The numbers of all exercises, as their pages list them: 02.1."""
    texts = [path.read_text(encoding="utf-8")
             for path in (*sorted(ROOT.glob("[0-9][0-9]_*/exercise/README.md")), ROOT / BUG_HUNT) if path.is_file()]
    return list(dict.fromkeys(number for text in texts for number in EXERCISE.findall(text)))


def build() -> None:
    pages = documents()
    programs = ROOT / "build/cpu/bin"
    with_traces = traces.are_there(programs)
    if not with_traces:
        print("no pages that step through traces: ./worklog build makes the programs that they need")
    staging = Staging(with_traces)
    for path in pages:
        staging.add(path)
    for stage in stage_folders(ROOT):
        if f"{stage}/README.md" in staging.written:
            staging.written[f"{stage}/code.md"] = stage_code(stage)
    if with_traces:
        staging.written[f"{TRACES}/README.md"] = traces_page()
        staging.copied |= {ROOT / stage / traces.FOLDER / traces.PICTURE for stage in traces.TRACES}
    teaching = "docs/teaching.md"
    if teaching in staging.written:
        shown = "[The slides of this lecture](../slides.html)."
        staging.written[teaching] = staging.written[teaching].replace(slides.PLAN, f"{slides.PLAN}\n\n{shown}", 1)
    staging.write()
    if with_traces:
        for name, text in traces.pages(programs).items():
            (SOURCE / TRACES / name).write_text(text, encoding="utf-8")
    (SOURCE / "slides.html").write_text(slides.deck(ROOT), encoding="utf-8")
    report = ROOT / "common/report"
    shutil.copyfile(report / "pages.css", SOURCE / "pages.css")
    for name in ("math.woff2", "GUST-FONT-LICENSE.txt"):
        shutil.copyfile(report / "math_font" / name, SOURCE / name)
    script = (report / "pages.js").read_text(encoding="utf-8")
    script = script.replace("@EXERCISES@", json.dumps(exercises())).replace("@LESSONS@", str(len(stage_folders(ROOT))))
    (SOURCE / "pages.js").write_text(script, encoding="utf-8")
    config = ROOT / "build/site-mkdocs.yml"
    config.write_text(
        f"INHERIT: {os.path.relpath(report / 'mkdocs.yml', config.parent)}\n"
        f"docs_dir: {SOURCE.name}\nsite_dir: {os.path.relpath(SITE, config.parent)}\n"
        f"hooks: [{os.path.relpath(report / 'pages_hooks.py', config.parent)}]\n"
        f"nav: {json.dumps(navigation(pages, staging.written), ensure_ascii=False)}\n", encoding="utf-8")
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--config-file", str(config)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReportError(f"mkdocs could not build the site:\n{done.stdout}{done.stderr}")
    print(f"{len(staging.written)} pages built in site/")


# --- Looking at it ----------------------------------------------------------------------------------------------------
WIDTHS = (1280, 390)  # a desk's and a phone's, CSS pixels
# The inspector loads each page in a frame of its own width and reports what a reader would stumble over.
INSPECTOR = """<!doctype html><title>inspector</title><body><script>
const pages = PAGES, widths = WIDTHS, found = [];
const wait = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));
async function look(page, width) {
  const frame = document.createElement('iframe');
  frame.style.cssText = `width:${width}px;height:900px;border:0`;
  const loaded = new Promise(resolve => frame.onload = resolve);
  frame.src = '/' + page;
  document.body.append(frame);
  await loaded;
  const inside = frame.contentDocument, say = what => found.push(`${page} at ${width}: ${what}`);
  frame.contentWindow.addEventListener('error', event => say('script error: ' + event.message));
  await wait(150);
  for (const image of inside.images) {
    image.loading = 'eager';
    if (!image.complete) await Promise.race([image.decode().catch(() => 0), wait(3000)]);
    if (!image.naturalWidth) say('image not shown: ' + image.getAttribute('src'));
  }
  const text = inside.querySelector('article')?.cloneNode(true);
  if (!text) {
    if (!page.endsWith('.html')) say('no article');  // traces and slides are pages of their own
  }
  else {
    text.querySelectorAll('pre, code, script, style, annotation').forEach(node => node.remove());
    const raw = text.textContent.match(/\\\\\\(|\\\\\\[|\\$\\$|\\\\(?:frac|sqrt|sum|mu|sigma|cdot)\\b/);
    if (raw) say('formula not rendered: ' + raw[0]);
    if (/<!--|sync:/.test(text.textContent)) say('a marker is visible');
  }
  for (const formula of inside.querySelectorAll('math')) {
    if (!formula.getBoundingClientRect().width) { say('formula without size'); break; }
  }
  const tooWide = [...inside.querySelectorAll('pre > code')].find(code =>
    code.parentElement.style.getPropertyValue('--columns') <= 120 && code.scrollWidth > code.clientWidth + 1);
  if (width > 1000 && tooWide) say('code does not fit: ' + tooWide.textContent.trim().slice(0, 60));
  const wide = inside.documentElement.scrollWidth;
  if (wide > width + 1) say(`is ${wide} px wide: it scrolls sideways`);
  found.formulas = (found.formulas || 0) + inside.querySelectorAll('math').length;
  found.images = (found.images || 0) + inside.images.length;
  frame.remove();
}
(async () => {
  // Several at a time: most of a look is waiting.
  // A source file's page is code alone: on a phone there is nothing more to see.
  const isSource = page => /\\.\\w+\\/$/.test(page);
  const jobs = widths.flatMap((width, i) => pages.filter(page => !i || !isSource(page)).map(page => [page, width]));
  await Promise.all(Array.from({length: 8}, async () => { for (let job; job = jobs.shift();) await look(...job); }));
  const report = {found, formulas: found.formulas, images: found.images};
  await fetch('/inspected', {method: 'POST', body: JSON.stringify(report)});
})();
</script>"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves site/, and takes the inspector's report."""

    inspector = ""
    reported: dict[str, Any] | None = None
    arrived = threading.Event()

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:  # noqa: N802
        if self.path == "/inspector" and self.inspector:
            body = self.inspector.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        else:
            super().do_GET()

    def do_POST(self) -> None:  # noqa: N802
        Handler.reported = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        Handler.arrived.set()


def server(port: int) -> http.server.ThreadingHTTPServer:
    try:
        return http.server.ThreadingHTTPServer(("127.0.0.1", port), functools.partial(Handler, directory=str(SITE)))
    except OSError as error:
        raise ReportError(f"port {port} cannot be used ({error.strerror}); choose another with --port") from None


def html_pages() -> Iterator[str]:
    for path in sorted(SITE.rglob("*.html")):
        name = path.relative_to(SITE).as_posix()
        if name != "404.html":
            yield name.removesuffix("index.html")


def outside_addresses() -> list[str]:
    """What the built pages would fetch from elsewhere."""
    found = []
    for path in sorted(SITE.rglob("*.html")):
        text = path.read_text(encoding="utf-8")
        for match in FETCHED.finditer(text):
            found.append(f"{path.relative_to(SITE)} fetches {match[1]}")
    return found


def check() -> int:
    found = map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))
    browser = next((path for path in found if path), None)
    if not browser:
        print("there is no Chromium here to look at the pages with", file=sys.stderr)
        return 2
    pages = list(html_pages())
    Handler.inspector = INSPECTOR.replace("PAGES", json.dumps(pages)).replace("WIDTHS", json.dumps(WIDTHS))
    with server(0) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{serving.server_address[1]}/inspector"
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [browser, "--headless=new", *sandbox, "--disable-gpu", "--enable-logging=stderr"]
        command += ["--window-size=1400,1000", "--remote-debugging-port=0", address]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        said: list[str] = []
        assert process.stderr
        reader = threading.Thread(target=lambda stream=process.stderr: said.extend(stream), daemon=True)
        reader.start()
        arrived = Handler.arrived.wait(timeout=600)
        process.terminate()
        process.wait(timeout=20)
        serving.shutdown()
    if not arrived or not Handler.reported:
        print("Chromium did not report within ten minutes:\n" + "".join(said[-20:]), file=sys.stderr)
        return 1
    problems = Handler.reported["found"] + outside_addresses()
    complaints = [line for line in said if "CONSOLE" in line and ("rror" in line or "Failed" in line)]
    problems += sorted({line.split("CONSOLE", 1)[1].strip() for line in complaints})
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(pages)} pages looked at, {WIDTHS[0]} and {WIDTHS[1]} px wide: {Handler.reported['images']} images, "
          f"{Handler.reported['formulas']} formulas, {len(problems)} problems")
    return 1 if problems else 0


def serve(port: int) -> None:
    with server(port) as serving:
        print(f"http://127.0.0.1:{serving.server_address[1]} (Ctrl-C stops)", flush=True)
        try:
            serving.serve_forever()
        except KeyboardInterrupt:
            print()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./worklog docs", description=__doc__.splitlines()[0])
    parser.add_argument("--build", action="store_true", help="build site/ and stop")
    parser.add_argument("--check", action="store_true", help="build, then look at every page in headless Chromium")
    parser.add_argument("--port", type=int, default=8000, help="where to serve (default: 8000)")
    options = parser.parse_args(arguments)
    try:
        build()
        if options.check:
            return check()
        if not options.build:
            serve(options.port)
    except ReportError as error:
        print(f"./worklog docs: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
