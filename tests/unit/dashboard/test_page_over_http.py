"""The page as browsers get it: a real server, asked by a real client."""

from __future__ import annotations

import json
import socket
import zlib
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from dashboards import SimulatedJob, serving
from outlast.dashboard import stream
from outlast.dashboard.app import WRONG_TOKEN
from outlast.dashboard.server import listen
from outlast.events import events

PATIENCE = 120.0
get, post = partial(httpx.get, timeout=PATIENCE), partial(httpx.post, timeout=PATIENCE)
TOKEN = {"authorization": "Bearer secret"}


def streamed(url: str, **more: Any) -> Any:
    return httpx.stream("GET", f"{url}/api/stream", timeout=PATIENCE, **more)


class Stream:
    """Server-sent events of one connection."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines

    def until(self, name: str) -> tuple[str, Any]:
        """The next message of this name: its id and content."""
        kind = identity = ""
        for line in self._lines:
            field, _, value = line.partition(": ")
            if field == "event":
                kind, identity = value, ""
            elif field == "id":
                identity = value
            elif field == "data" and kind == name:
                return identity, json.loads(value)
        raise AssertionError(f"the stream ended without {name}")


def lost(number: int) -> events.NodeLost:
    return events.NodeLost(generation=5, node=f"<img src=x onerror=alert({number})>", how="\x1b[31mgone\x1b[0m")


def test_every_answer_has_the_strict_headers() -> None:
    with serving(SimulatedJob(), token="secret") as url:
        for path in ("/", "/static/app.js", "/api/about", "/missing"):
            answer = get(url + path)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.status_code == 404


def test_the_page_loads_nothing_from_elsewhere_and_has_nothing_inline() -> None:
    with serving(SimulatedJob()) as url:
        page = get(url).text
        assert "://" not in page
        assert "<script>" not in page
        assert "style=" not in page
        assert " on" not in page.replace(" one", "").replace(" only", "").replace(" on the", "").replace(" on <", "")
        assert len(get(f"{url}/static/style.css").text) > 1000


def test_a_name_that_leads_here_by_rebinding_gets_nothing() -> None:
    with serving(SimulatedJob()) as url:
        assert get(url, headers={"host": "evil.example"}).status_code == 421
        assert get(f"{url}/api/stream", headers={"origin": "http://evil.example"}).status_code == 403


def test_the_token_is_exchanged_for_a_cookie_that_opens_the_stream() -> None:
    with serving(SimulatedJob(), token="secret") as url, httpx.Client(base_url=url, timeout=PATIENCE) as browser:
        assert browser.get("/api/stream").status_code == 401
        wrong = browser.post("/api/session", headers={"authorization": "Bearer other", "origin": url})
        assert (wrong.status_code, wrong.text) == (401, WRONG_TOKEN)
        assert browser.post("/api/session", headers={**TOKEN, "origin": url}).status_code == 204
        assert browser.get("/api/about").json() == {"actions": []}


def test_a_stream_is_resumed_after_the_last_event_that_was_seen() -> None:
    job = SimulatedJob()
    with serving(job) as url:
        with streamed(url) as answer:
            last, story = Stream(answer.iter_lines()).until("story")
            assert (story["anew"], len(story["rows"])) == (True, len(job.rows))
        job.tell(lost(1))
        with streamed(url, headers={"last-event-id": last}) as answer:
            later, story = Stream(answer.iter_lines()).until("story")
            assert (story["anew"], [row["n"] for row in story["rows"]]) == (False, [job.told[-1].number])
            assert later == f"run-1/{job.told[-1].number}"
        with streamed(url, params={"after": "another-run/3"}) as answer:
            assert Stream(answer.iter_lines()).until("story")[1]["anew"]


def test_what_a_rank_prints_arrives_as_text_without_terminal_codes() -> None:
    job = SimulatedJob()
    with serving(job) as url, streamed(url) as answer:
        follow = Stream(answer.iter_lines())
        follow.until("story")
        job.tell(lost(2))
        [row] = follow.until("story")[1]["rows"]
        assert row["text"] == "node <img src=x onerror=alert(2)> was lost: gone"


def test_a_job_that_cannot_be_reached_is_said_to_be_so_and_found_again() -> None:
    job = SimulatedJob()
    with serving(job) as url, streamed(url) as answer:
        follow = Stream(answer.iter_lines())
        assert follow.until("contact")[1]["live"]
        job.lost = "nobody is there"
        told = follow.until("contact")[1]
        assert (told["live"], told["line"]) == (False, "nobody is there")
        job.lost = ""
        assert follow.until("contact")[1]["live"]


def test_the_stream_is_compressed_and_small_at_ten_thousand_ranks() -> None:
    with (
        serving(SimulatedJob(nodes=1250, workers=8)) as url,
        streamed(url, headers={"accept-encoding": "gzip"}) as answer,
    ):
        assert answer.headers["content-encoding"] == "gzip"
        first = next(answer.iter_raw())
        assert len(first) < 20_000
        assert zlib.decompressobj(31).decompress(first).startswith(b"retry:")


def test_more_pages_than_the_limit_are_refused_and_those_that_left_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_SUBSCRIBERS", 1)
    with serving(SimulatedJob()) as url:
        with streamed(url) as answer:
            first = Stream(answer.iter_lines())  # it ends with its last reference
            first.until("now")
            refused = get(f"{url}/api/stream")
            assert (refused.status_code, refused.text) == (503, "1 pages are open already: close one")
        while True:  # the server hears of the end a little later
            with streamed(url) as answer:
                if answer.status_code == 200:
                    break


def test_a_browser_that_reads_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "STUCK", 0.2)
    monkeypatch.setattr(stream, "MOST_SUBSCRIBERS", 1)
    job = SimulatedJob()
    with serving(job) as url, socket.socket() as stuck:
        host, port = url.removeprefix("http://").split(":")
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect((host, int(port)))
        stuck.sendall(b"GET /api/stream HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert stuck.recv(12) == b"HTTP/1.1 200"
        for _ in range(300):
            job.tell(events.NodeRefused(generation=1, node="a", why="x" * 4000))
        while True:
            with streamed(url) as answer:
                if answer.status_code == 200:
                    break


def test_a_rank_and_its_log_are_told_on_request(tmp_path: Path) -> None:
    place = tmp_path / "job_abcdefgh" / "attempt_0" / "0"
    place.mkdir(parents=True)
    (place / "stderr.log").write_text("\x1b[31m<script>alert(1)</script>\x1b[0m\n")
    with serving(SimulatedJob(), log_dir=tmp_path) as url, httpx.Client(base_url=url, timeout=PATIENCE) as browser:
        assert browser.get("/api/rank?rank=2").json()["node"] == "gpu-0002"
        assert browser.get("/api/rank?rank=4").status_code == 404
        assert browser.get("/api/rank?rank=x").status_code == 404
        tail = browser.get("/api/log?rank=0")
        assert tail.json()["text"][8:] == " err: <script>alert(1)</script>\n"
        assert tail.headers["content-type"] == "application/json"
        for rank in ("4", "-1", "../../etc/passwd", ""):
            assert browser.get("/api/log", params={"rank": rank}).status_code == 404


def test_where_there_are_no_logs_the_page_says_why() -> None:
    with serving(SimulatedJob()) as url:
        answer = get(f"{url}/api/log?rank=0")
        assert (answer.status_code, answer.json()["problem"]) == (200, "a simulated job has no logs")


def test_a_page_is_read_only_unless_it_is_told_otherwise() -> None:
    job = SimulatedJob()
    with serving(job, token="secret") as url:
        wish = {"what": "stop", "confirm": "llama-70b"}
        answer = post(f"{url}/api/act", json=wish, headers=TOKEN)
        assert (answer.status_code, job.asked) == (403, [])


def test_an_action_needs_the_token_a_confirmation_and_a_post() -> None:
    job = SimulatedJob()
    with serving(job, token="secret", actions=True) as url:
        wish = {"what": "drain", "confirm": "llama-70b", "subject": "gpu-0001"}
        assert post(f"{url}/api/act", json=wish).status_code == 403
        assert post(f"{url}/api/act", json=wish, headers={"origin": url}).status_code == 401
        assert get(f"{url}/api/act", headers=TOKEN).status_code == 405
        assert post(f"{url}/api/act", json={**wish, "confirm": "yes"}, headers=TOKEN).status_code == 409
        assert post(f"{url}/api/act", json={**wish, "what": "rm"}, headers=TOKEN).status_code == 400
        assert post(f"{url}/api/act", content=b"{" * 9000, headers=TOKEN).status_code == 400
        assert job.asked == []
        done = post(f"{url}/api/act", json=wish, headers=TOKEN)
        assert done.json() == {"done": True, "text": "drain gpu-0001"}
        assert job.asked == [("drain", "gpu-0001")]


def test_a_port_that_is_taken_is_one_clear_line() -> None:
    with closing(listen("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(ValueError, match=f"cannot listen on 127.0.0.1 port {port} .*: give another --port"):
            listen("127.0.0.1", port)
