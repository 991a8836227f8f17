#!/usr/bin/env python3
"""The page of ./worklog trace: what is in it, and that it works in a browser, offline and by keyboard. The pictures of
traces that the lessons show: that they are what the programs do now. What the site keeps in the browser (pages.js).

    python3 common/tests/trace_test.py PROGRAMS     the folder of the stages' programs of a cpu build

The browser is a headless Chromium, spoken to through a pipe. Without one those tests are skipped.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "common/report"))
import animations  # noqa: E402
import trace_page  # noqa: E402
import traces  # noqa: E402
from results import ReportError  # noqa: E402

PROGRAMS = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else ROOT / "build/cpu/bin"
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


def record(stage: str, *flags: str) -> dict[str, Any]:
    return trace_page.record(PROGRAMS / stage, ["--dtype", "fp32", *flags])


class Chromium:
    """A page in a browser of its own, which may not reach any network."""

    def __init__(self, page: Path) -> None:
        to_browser, self.write = os.pipe()
        self.read, from_browser = os.pipe()
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # its children end a little later

        def place_pipes() -> None:  # --remote-debugging-pipe reads file 3 and writes file 4
            os.dup2(to_browser, 63)
            os.dup2(from_browser, 64)
            os.dup2(63, 3)
            os.dup2(64, 4)

        command = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
            "--proxy-server=127.0.0.1:9", "--no-first-run", f"--user-data-dir={self.profile.name}",
        ]
        self.process = subprocess.Popen(
            command, close_fds=False, preexec_fn=place_pipes, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.number, self.session, self.events = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=page.as_uri())
        while not self.evaluate("document.readyState === 'complete' && location.protocol === 'file:'"):
            pass

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters} | (
            {"sessionId": self.session} if self.session else {}
        )
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.buffer:
                part = os.read(self.read, 1 << 16)
                if not part:
                    raise RuntimeError("Chromium has ended")
                self.buffer += part
            line, self.buffer = self.buffer.split(b"\0", 1)
            answer = json.loads(line)
            if answer.get("id") != self.number:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def evaluate(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.read)
        os.close(self.write)
        self.profile.cleanup()


class Recording(unittest.TestCase):
    def test_a_warp_of_stage_01_reads_a_column(self) -> None:
        steps = record("01_naive", "--variant", "small_blocks", "--shapes", "64x8")["steps"]
        self.assertEqual(len(steps), 6 * 8 + 2)  # x three times, gamma, beta and y for each column; mean and rstd
        first = steps[0]
        self.assertEqual(
            (first["operation"], first["memory"], first["lanes"], first["bytes"]), ("global_load", "x", 0xFFFFFFFF, 4)
        )
        self.assertEqual(first["offset"], [lane * 8 * 4 for lane in range(32)])
        self.assertEqual(steps[1]["offset"], [lane * 8 * 4 + 4 for lane in range(32)])

    def test_the_block_is_the_one_of_the_row(self) -> None:
        for row, block in ((0, 0), (31, 0), (32, 1), (63, 1)):
            made = record("01_naive", "--variant", "small_blocks", "--shapes", "64x8", "--row", str(row))
            self.assertEqual(made["traced_block"], [block, 0, 0], f"row {row}")
        self.assertEqual(
            record("03_warp_shuffle", "--variant", "block_per_row", "--shapes", "64x64", "--row", "17")["traced_block"],
            [17, 0, 0],
        )

    def test_steps_are_in_the_order_of_the_program(self) -> None:
        steps = record("03_warp_shuffle", "--variant", "block_per_row", "--shapes", "2x256")["steps"]
        of_warp = [step["operation"] for step in steps if step["warp"] == 3 or step["operation"] == "barrier"]
        block_sum = ["shuffle"] * 5 + ["shared_store", "barrier", "shared_load"] + ["shuffle"] * 5 + ["barrier"]
        self.assertEqual(
            of_warp, ["global_load", *block_sum, "global_load", *block_sum, *["global_load"] * 3, "global_store"]
        )
        shuffles = [step for step in steps if step["operation"] == "shuffle" and step["warp"] == 3]
        self.assertEqual(shuffles[0]["offset"], [lane ^ 16 for lane in range(32)])
        self.assertEqual(shuffles[4]["offset"], [lane ^ 1 for lane in range(32)])

    def test_refusals(self) -> None:
        with self.assertRaisesRegex(ReportError, "--row takes a row from 0 to 63; it was given 64"):
            record("01_naive", "--shapes", "64x8", "--row", "64")


class Page(unittest.TestCase):
    def setUp(self) -> None:
        self.trace = record("02_shared_reduction", "--variant", "interleaved", "--shapes", "4x256", "--row", "2")
        self.text = trace_page.page(json.loads(json.dumps(self.trace)))

    def test_is_whole_and_asks_for_nothing(self) -> None:
        self.assertEqual(re.findall(r"""(?:src|href)\s*=|url\(|@import|https?://""", self.text), [])
        self.assertNotIn("@DATA@", self.text)
        self.assertNotIn(str(ROOT), self.text)

    def test_offsets_on_a_line_are_shortened_and_others_kept(self) -> None:
        step = {"lanes": 0xFFFFFFFF, "offset": [4 * lane for lane in range(32)]}
        self.assertEqual(trace_page.shorter(step)["offset"], {"first": 0, "step": 4})
        step["offset"][7] = 0
        self.assertEqual(trace_page.shorter(step)["offset"], step["offset"])
        self.assertEqual(
            trace_page.shorter({"lanes": 0b1000, "offset": [0, 0, 0, 12] + [0] * 28})["offset"],
            {"first": 12, "step": 0},
        )

    @unittest.skipUnless(CHROMIUM, "no Chromium here")
    def test_works_in_a_browser_by_keyboard(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "page.html"
            path.write_text(self.text, encoding="utf-8")
            browser = Chromium(path)
            self.addCleanup(browser.close)
            what = lambda: browser.evaluate("document.getElementById('what').textContent")  # noqa: E731
            place = lambda: browser.evaluate("document.getElementById('place').textContent")  # noqa: E731
            count = len(self.trace["steps"])
            self.assertEqual(place(), f"step 1 of {count}")
            self.assertIn(
                "Warp 0 loads from x [2][0] … [2][31]: 32 lanes, 4 bytes each. 4 sectors of 32 bytes move, of which "
                "100 % is used.",
                what(),
            )
            self.assertIn("sum += x[col]", browser.evaluate("document.querySelector('.now').textContent"))

            # As counting_test.cu has it: pairs of lanes that get the same from shared memory share a turn.
            for offset, passes in (
                ("lane * 16", 4), ("48", 2), ("lane % 2 * 16", 2), ("lane % 2 * 128", 4), ("lane % 4 * 16", 4),
            ):
                step = (
                    "{operation: 'shared_load', lanes: 0xffffffff, bytes: 16, offset: Array.from({length: 32}, (_, "
                    f"lane) => {offset})}}"
                )
                self.assertEqual(browser.evaluate(f"costOf({step}).passes"), passes, offset)

            browser.press("ArrowRight")
            self.assertEqual(place(), f"step 2 of {count}")
            self.assertIn("stores to shared memory", what())
            self.assertIn("1 pass over the banks, no conflict", what())
            browser.press("ArrowLeft")
            self.assertEqual(place(), f"step 1 of {count}")
            browser.press("PageDown")
            self.assertIn("The whole block waits at a barrier", what())
            browser.press("ArrowRight")  # the first step of the interleaved tree: every other word
            self.assertIn("2 passes over the banks: 1 by bank conflicts", what())
            self.assertEqual(browser.evaluate("document.querySelectorAll('#picture rect').length"), 32 + 16 * 2 + 16)
            browser.press("End")
            self.assertEqual(place(), f"step {count} of {count}")
            total = browser.evaluate("document.getElementById('sums').textContent")
            self.assertIn("barriers20", total)
            browser.press("Home")
            self.assertEqual(place(), f"step 1 of {count}")

            browser.press("w")
            browser.press("w")
            of_warp = sum(step["warp"] == 1 or step["operation"] == "barrier" for step in self.trace["steps"])
            self.assertTrue(place().endswith(f" of {of_warp}"), place())
            self.assertEqual(browser.evaluate("document.getElementById('warp').value"), "1")

            problems = [
                event for event in browser.events
                if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
            ]
            self.assertEqual(problems, [])
            asked = [
                event["params"]["request"]["url"] for event in browser.events
                if event.get("method") == "Network.requestWillBeSent"
            ]
            self.assertEqual([url for url in asked if not url.startswith("file:")], [])


class Pictures(unittest.TestCase):
    def test_are_what_the_programs_do(self) -> None:
        drawn = traces.pictures(ROOT, PROGRAMS)
        for path, text in drawn.items():
            shown = path.relative_to(ROOT)
            self.assertTrue(path.is_file(), f"{shown} is missing: common/report/traces.py draws it")
            self.assertEqual(path.read_text(encoding="utf-8"), text, f"{shown}: common/report/traces.py draws it anew")
        self.assertEqual(traces.left_over(ROOT, list(drawn)), [])

    def test_every_one_is_in_a_page_of_its_stage_and_can_be_read_on_a_phone(self) -> None:
        for path in sorted(ROOT.glob(f"[0-9][0-9]_*/{traces.FOLDER}/*.svg")):
            pages = [path.parents[1] / "README.md", *(path.parents[1] / "notes").glob("*.md")]
            texts = "".join(page.read_text(encoding="utf-8") for page in pages)
            self.assertRegex(texts, rf"\]\((\.\./)?{traces.FOLDER}/{path.name}\)")
            text = path.read_text(encoding="utf-8")
            width = float(re.search(r'width="(\d+)"', text)[1])
            smallest = min(map(float, re.findall(r'font-size="([0-9.]+)"', text)))
            self.assertGreaterEqual(smallest * 400 / width, 10, path)
            self.assertLess(path.stat().st_size, 64 * 1024, path)

    def test_every_step_has_its_line(self) -> None:
        for traced in dict.fromkeys(traced for pair in traces.TRACES.values() for traced in pair):
            steps = traces.record(PROGRAMS, traced)["steps"]
            self.assertEqual([step for step in steps if not step["file"]], [], traced)

    def test_warps_go_side_by_side_up_to_a_barrier(self) -> None:
        def step(warp: int, operation: str = "global_load") -> dict[str, Any]:
            # The first two lanes read x, of rows of 8 bytes, at 0 and 16 bytes in warp 0, at 8 and 16 in warp 1.
            return {"warp": warp, "operation": operation, "memory": "x", "lanes": 3, "offset": [8 * warp, 16]}

        x = {"name": "x", "element_bytes": 4, "stride": 2}
        steps = [step(0), step(0), step(1), step(0, "barrier"), step(1), step(0, "shuffle")]
        self.assertEqual(traces.placed(steps), ([0, 1, 0, 2, 3, 3], 4))
        counts = traces.counts_of({"steps": steps, "block": [64, 1, 1], "tensors": [x]})
        self.assertEqual(counts, traces.Counts(4, 0, 0, 1, 1, 2, 4, 2, 3))

    def test_the_block_is_of_the_first_kernel_that_reads_the_row(self) -> None:
        separate, staying = (traces.record(PROGRAMS, traced) for traced in traces.TRACES["07_backward"])
        self.assertIn("dx_only", separate["kernel"])
        self.assertIn("dx_and_columns", staying["kernel"])

    def test_the_tree_halves_and_the_shuffles_cross(self) -> None:
        tree = traces.record(PROGRAMS, traces.TRACES["02_shared_reduction"][-1])
        at_work = [sum(mask.bit_count() for mask in step.values()) for step in animations.tree_steps(tree)]
        self.assertEqual(at_work, [256, 128, 64, 32, 16, 8, 4, 2, 1])
        shuffles = traces.record(PROGRAMS, traces.TRACES["03_warp_shuffle"][-1])
        distances = [16, 8, 4, 2, 1]
        self.assertEqual(
            animations.shuffle_steps(shuffles), [[lane ^ distance for lane in range(32)] for distance in distances]
        )

    def test_a_ring_has_rows_on_their_way_while_another_is_stored(self) -> None:
        rows, steps = animations.rows_in_ring(traces.record(PROGRAMS, traces.RING))
        self.assertEqual(len(rows), 8)
        for row in rows:
            self.assertLess(row.copied[1], row.read[0])
            self.assertLess(row.read[1], row.stored[0])
            self.assertLess(row.stored[1], steps)
        for before, after in zip(rows, rows[3:]):  # a place is free when its row has been stored
            self.assertTrue(before.stored[0] < after.copied[0] <= before.stored[1] + 1)
        self.assertLess(rows[2].copied[1], rows[0].stored[0])

    def test_who_wants_no_motion_sees_all_of_it(self) -> None:
        moving = ("02_shared_reduction/traces/tree.svg", "03_warp_shuffle/traces/shuffles.svg",
                  "05_welford/traces/ring.svg")
        for name in moving:
            text = (ROOT / name).read_text(encoding="utf-8")
            style = re.search(r"<style>(.*?)</style>", text)[1]
            always, _, moves = style.partition("@media (prefers-reduced-motion:no-preference){")
            self.assertIn("animation:", moves, name)
            self.assertNotRegex(always, "animation|opacity", name)
            self.assertEqual(moves.count("{") + 1, moves.count("}"), name)

    @unittest.skipUnless(CHROMIUM, "no Chromium here")
    def test_two_traces_go_together(self) -> None:
        text = traces.page_of("03_warp_shuffle", PROGRAMS)
        self.assertEqual(re.findall(r"""(?:src|href)\s*=|url\(|@import|https?://""", text), [])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "page.html"
            path.write_text(text, encoding="utf-8")
            browser = Chromium(path)
            self.addCleanup(browser.close)
            of_both = "[...document.querySelectorAll('iframe')].map(f => f.contentDocument?.getElementById('place'))"
            places = f"{of_both}.map(place => place?.textContent ?? '').join()"

            def wait_for(beginning: str) -> str:
                for _ in range(200):
                    found = browser.evaluate(places)
                    if all(place.startswith(beginning) for place in found.split(",")):
                        return found
                    browser.evaluate("new Promise(done => setTimeout(done, 20))")
                self.fail(f"not both begin with '{beginning}': {found}")

            wait_for("step 1 of ")
            browser.press("ArrowRight")
            first, second = wait_for("step 2 of ").split(",")
            self.assertNotEqual(first, second)  # another number of steps
            browser.evaluate("document.querySelector('[data-key=Home]').click()")
            wait_for("step 1 of ")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


class Progress(unittest.TestCase):
    PAGE = """<!DOCTYPE html><a class="md-logo" href="{up}index.html"></a>
<nav class="md-nav--primary"><a class="md-nav__link" href="{up}01_naive/index.html">01</a>
<a class="md-nav__link" href="{up}01_naive/exercise/index.html">Exercises</a></nav>
<article><h1>{title}<a class="headerlink">#</a></h1>{body}</article><script>{script}</script>"""
    EXERCISES = "<table><tr><td>01.1 Sums</td></tr><tr><td>01.2 Tails</td></tr></table>"

    def open(self, browser: Any, page: str) -> None:
        browser.call("Page.navigate", url=f"{self.address}/{page}index.html")
        while not browser.evaluate(f"document.readyState === 'complete' && location.pathname === '/{page}index.html'"):
            pass

    @unittest.skipUnless(CHROMIUM, "no Chromium here")
    def test_is_kept_in_the_browser(self) -> None:
        script = (ROOT / "common/report/pages.js").read_text(encoding="utf-8")
        script = script.replace("@EXERCISES@", '["01.1", "01.2"]').replace("@LESSONS@", "8")
        with tempfile.TemporaryDirectory() as folder:
            site = Path(folder)
            bodies = {"": ("Start", "", ""), "01_naive/": ("One thread", "", "../"),
                      "01_naive/exercise/": ("Exercises", self.EXERCISES, "../../")}
            for page, (title, body, up) in bodies.items():
                (site / page).mkdir(parents=True, exist_ok=True)
                text = self.PAGE.format(up=up, title=title, body=body, script=script)
                (site / page / "index.html").write_text(text, encoding="utf-8")
            # Of files each is a place of its own, which need not see at once what another has kept.
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.addCleanup(server.server_close)
            self.addCleanup(server.shutdown)
            self.address = f"http://127.0.0.1:{server.server_address[1]}"
            browser = Chromium(site / "index.html")
            self.addCleanup(browser.close)
            self.open(browser, "")
            progress = "document.querySelector('.worklog-progress')?.textContent ?? ''"
            finished = "[...document.querySelectorAll('.worklog-finished')].map(link => link.textContent).join()"
            self.assertEqual(browser.evaluate(progress), "")

            self.open(browser, "01_naive/")
            self.assertEqual(browser.evaluate(finished), "")
            browser.evaluate("document.querySelector('.worklog-read').click()")
            self.assertEqual(browser.evaluate(finished), "01")
            self.open(browser, "01_naive/exercise/")
            browser.evaluate("document.querySelector('.worklog-done').click()")
            self.assertEqual(browser.evaluate(finished), "01")  # one of two
            self.open(browser, "")
            self.assertEqual(
                browser.evaluate(progress), "You have read 1 of 8 lessons, and done 1 of 2 exercises."
            )
            self.open(browser, "01_naive/exercise/")
            browser.evaluate("document.querySelectorAll('.worklog-done')[1].click()")
            self.assertEqual(browser.evaluate(finished), "01,Exercises")
            self.open(browser, "01_naive/")
            self.assertEqual(browser.evaluate(finished), "01,Exercises")
            browser.evaluate("document.querySelector('.worklog-read').click()")
            self.assertEqual(browser.evaluate(finished), "Exercises")
            thrown = [event for event in browser.events if event.get("method") == "Runtime.exceptionThrown"]
            self.assertEqual(thrown, [])


if __name__ == "__main__":
    unittest.main()
