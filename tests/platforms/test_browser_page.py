"""The dashboard in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dashboards import SimulatedJob, serving
from jobs import free_port, node, workers
from outlast.events import events
from outlast.logs.directory import HEADER, AttemptHeader
from processes import Process, arguments, outlast

playwright = pytest.importorskip("playwright.sync_api", reason="scripts/install-browser installs it")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: scripts/install-browser installs it")

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
MOST_BYTES = 150_000
LIMIT = 60_000  # ms
HTML = "<img src=x onerror=alert(1)><script>alert(2)</script>"


class Visit:
    """One page in one browser, and all that it did."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.bytes = 0
        page.set_default_timeout(LIMIT)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda line: line.type in ("error", "warning") and self.errors.append(line.text))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", lambda dialog: (self.errors.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.devtools = page.context.new_cdp_session(page)
        self.devtools.send("Network.enable")
        self.devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.devtools.on("Network.dataReceived", self._received)

    def _received(self, event: dict[str, Any]) -> None:
        self.bytes += event["encodedDataLength"]

    def open(self, url: str) -> None:
        self.page.goto(url)
        self.await_text("#word", "training")

    def await_text(self, place: str, text: str) -> None:
        self.page.locator(place).filter(has_text=text).first.wait_for()

    def text(self, place: str) -> str:
        return str(self.page.locator(place).first.inner_text())

    def metric(self, name: str) -> float:
        told = self.devtools.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in told if each["name"] == name))

    def focused(self) -> str:
        return str(self.page.evaluate("document.activeElement.id"))


@contextmanager
def browser(home: Path, **context: Any) -> Iterator[Visit]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch_persistent_context(
            str(home / "profile"),
            executable_path=CHROMIUM,
            headless=True,
            args=FLAGS,
            viewport={"width": 1440, "height": 900},
            timezone_id="UTC",
            locale="en-GB",
            **context,
        )
        try:
            yield Visit(opened.pages[0])
        finally:
            opened.close()


@pytest.mark.parametrize(("nodes", "workers", "scheme"), [(4, 1, "light"), (1250, 8, "dark")], ids=["4", "10000"])
def test_the_page_opens_fast_and_small_whatever_the_size_of_the_job(
    tmp_path: Path, record_property: Any, nodes: int, workers: int, scheme: str
) -> None:
    with serving(SimulatedJob(nodes, workers)) as url, browser(tmp_path, color_scheme=scheme) as visit:
        visit.open(url)
        visit.await_text("#map-size", f"{nodes * workers:,} ranks")
        visit.await_text("#ledger-out", "productive")
        paint = visit.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        record_property("first_paint_ms", paint)
        record_property("bytes", visit.bytes)
        before, began = visit.metric("TaskDuration"), time.monotonic()
        visit.page.wait_for_timeout(5000)
        busy = (visit.metric("TaskDuration") - before) / (time.monotonic() - began)
        record_property("cpu_share", busy)
        visit.page.screenshot(path=str(tmp_path / f"{nodes * workers}.png"))
        print(f"{nodes * workers} ranks: paint {paint:.0f} ms, {visit.bytes} bytes, {busy:.1%} of a CPU; {tmp_path}")
        assert 0 < visit.bytes < MOST_BYTES
        assert busy < 0.5
        assert visit.errors == []
        assert all(each.startswith(url) for each in visit.requests)


def test_what_ranks_print_is_shown_as_text(tmp_path: Path) -> None:
    place = tmp_path / "logs" / "job_abcdefgh" / "attempt_0" / "0"
    place.mkdir(parents=True)
    (place.parent / HEADER).write_bytes(msgspec.json.encode(AttemptHeader("gpu-0001", first_rank=1)))
    (place / "stdout.log").write_text(f"\x1b[31mred\x1b[0m {HTML}\n" + "x" * 1_000_000 + f"\n\x1b]0;t\x07{HTML}\n")
    job = SimulatedJob()
    job.tell(events.NodeRefused(generation=5, node="x", why=f"\x1b[31m{HTML}\x1b[0m"))
    with serving(job, log_dir=tmp_path / "logs") as url, browser(tmp_path) as visit:
        visit.open(url)
        visit.await_text("#rows li .text", f"refused node x: {HTML}")
        visit.page.locator("#attention button").first.click()
        visit.await_text("#rank-title", "Rank 1 on gpu-0001")
        visit.await_text("#rank-log", HTML)
        assert "\x1b" not in visit.text("#rank-log")
        assert visit.page.locator("img, #rows script, #rank script").count() == 0
        assert visit.errors == []


def test_everything_is_reached_by_keyboard(tmp_path: Path) -> None:
    with serving(SimulatedJob(nodes=16, workers=8)) as url, browser(tmp_path, reduced_motion="reduce") as visit:
        visit.open(url)
        press = visit.page.keyboard.press
        press("m")
        assert visit.focused() == "map"
        visit.await_text("#map-out", "rank 0 · gpu-0000")
        press("ArrowRight")
        visit.await_text("#map-out", "rank 1 · gpu-0000")
        press("End")
        visit.await_text("#map-out", "rank 127 · gpu-0015")
        press("Home")
        press("n")
        visit.await_text("#map-out", f"rank {5003 % 128} · gpu-0001: over 1.25 × the median")
        press("n")
        visit.await_text("#map-out", "named by the last hang or straggler event")
        press("Enter")
        visit.await_text("#rank-title", f"Rank {4711 % 128}")
        press("l")
        press("End")
        assert visit.focused() == "timeline"
        visit.await_text("#time-out", "slower than the median")
        press("Enter")
        visit.await_text("#rows li:focus", "slower than the median")
        press("f")
        assert visit.page.locator("#filters [aria-checked=true]").inner_text() == "Faults"
        press("t")
        assert visit.page.evaluate("document.documentElement.dataset.theme") in ("dark", "light")
        press("?")
        visit.page.locator("#help[open]").wait_for()
        press("Escape")
        for _ in range(40):
            press("Tab")
            outline = visit.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid" or visit.focused() == "", visit.focused()
        assert visit.errors == []


def test_actions_need_the_name_of_the_job(tmp_path: Path) -> None:
    job = SimulatedJob()
    with serving(job, token="secret", actions=True) as url, browser(tmp_path) as visit:
        visit.open(f"{url}/#token=secret")
        visit.page.locator("#tab-act").click()
        visit.page.locator("#act-subject").select_option("gpu-0002")
        assert visit.page.locator("#act-go").is_disabled()
        visit.page.locator("#act-confirm").fill("llama-70b")
        visit.page.locator("#act-go").click()
        visit.await_text("#act-out", "Done: drain gpu-0002")
        assert job.asked == [("drain", "gpu-0002")]


def test_the_token_leaves_the_address_and_a_wrong_one_is_told(tmp_path: Path) -> None:
    with serving(SimulatedJob(), token="secret") as url, browser(tmp_path) as visit:
        visit.page.goto(f"{url}/#token=wrong")
        visit.await_text("#login-line", "this is not the token of this page")
        visit.page.locator("#login-token").fill("secret")
        visit.page.keyboard.press("Enter")
        visit.await_text("#word", "training")
        assert visit.page.url == f"{url}/"
        assert not [each for each in visit.requests if "secret" in each]


def coordinators(process: Process) -> list[int]:
    return [pid for pid in process.tree() if any(b"outlast.coordinator" in word for word in arguments(pid))]


def test_the_stream_goes_on_after_the_coordinator_was_killed(tmp_path: Path) -> None:
    port = free_port()
    with node("a", port, "--nnodes=1:2", "--ft-last-call=0") as job:
        (worker,) = workers(job, 1, 0)
        with outlast("dashboard", f"--endpoint=127.0.0.1:{port}", "--port=0") as page, browser(tmp_path) as visit:
            file = page.wait_for(r"its token is in (\S+)\)")
            visit.page.goto(Path(file[1]).read_text().strip())
            visit.await_text("#rows li", "generation 1")
            visit.page.evaluate("window.mine = true")
            (pid,) = coordinators(job)
            os.kill(pid, signal.SIGKILL)
            visit.await_text("#rows li", "took over generation 1")
            assert visit.page.evaluate("window.mine")  # it was not loaded anew
            assert visit.page.locator("#rows li", has_text="generation 1:").count() == 1
            os.kill(worker.pid, signal.SIGUSR1)
            assert job.wait() == 0
            visit.await_text("#contact-text", "the job is over")
            visit.await_text("#word", "finished")
            page.signal(signal.SIGTERM)
            assert page.wait() == 0
