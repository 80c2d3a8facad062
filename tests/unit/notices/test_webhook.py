"""Notices: what people are told, how often, and that neither a dead receiver nor a slow one holds anything up."""

from __future__ import annotations

import http.server
import io
import json
import queue
import threading
from collections.abc import Iterator

import msgspec
import pytest

from outlast.events import events
from outlast.events.events import JobEvent
from outlast.notices import webhook
from outlast.notices.notice import BURST, PER, JobNotice, NoticeLimit, body, job_notice
from outlast.notices.webhook import WebhookProcess, deliver

OVER = events.JobOver(
    generation=2, success=True, ending=events.Ending.FINISHED, reason="done", seconds=1.0, generations=2, restarts=0
)
SLOW = events.StragglerChanged(
    generation=1, node="b", ranks=(1,), section="", factor=2.0, since=5, over=None, sentence="rank 1 is slow"
)
HANG = events.HangNamed(
    generation=1, ranks=(1,), nodes=("b",), kind="data loader", where="", sentence="rank 1 <!channel> hangs"
)


def noticed(event: JobEvent) -> JobNotice | None:
    return job_notice(event, job="j", run="r", time=5.0)


class Receiver:
    """An HTTP server that keeps what it is sent. `answers`: its status codes, the last one for ever."""

    def __init__(self, *answers: int) -> None:
        self.got: queue.Queue[tuple[str, dict[str, object]]] = queue.Queue()
        self._answers = list(answers)
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                read = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                code = receiver._answers.pop(0) if len(receiver._answers) > 1 else receiver._answers[0]
                receiver.got.put((self.path, read))
                self.send_response(code)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/secret"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver(200)
    yield made
    made.close()


def lines(url: str, *notices: JobNotice | None) -> io.BytesIO:
    return io.BytesIO(b"".join(msgspec.json.encode(each) + b"\n" for each in (url, *notices)))


def test_people_are_told_of_what_they_would_want_to_know() -> None:
    excluded = events.NodeExcluded(generation=1, node="b", why="it is faulty", seconds=9.0)
    failed = msgspec.structs.replace(OVER, success=False)
    told = [noticed(each) for each in (OVER, failed, excluded, HANG, SLOW)]
    assert [each and each.kind for each in told] == ["job done", "job failed", "node excluded", "hang", "straggler"]
    assert noticed(events.NodeJoined(generation=0, node="a", workers=1)) is None
    assert noticed(msgspec.structs.replace(SLOW, over=9)) is None


def test_no_more_than_people_can_read_and_always_how_the_job_ends() -> None:
    limit, hang, over = NoticeLimit(), noticed(HANG), noticed(OVER)
    assert hang is not None
    assert over is not None
    sent = [limit.admit(hang, 0.0) for _ in range(BURST + 5)]
    assert sum(each is not None for each in sent) == BURST
    last = limit.admit(over, 1.0)
    assert last is not None
    assert last.suppressed == 5
    assert limit.admit(hang, PER + 0.5) is not None


def test_slack_gets_its_own_format_and_no_mention_of_a_ranks_making() -> None:
    hang = noticed(HANG)
    assert hang is not None
    told = json.loads(body(hang, slack=True))
    assert list(told) == ["text"]
    assert "&lt;!channel&gt;" in told["text"]


def test_a_process_of_its_own_sends_them(receiver: Receiver) -> None:
    process = WebhookProcess(receiver.url, job="j")
    process.tell(HANG, run="r")
    process.tell(OVER, run="r")
    process.close()
    kinds = [receiver.got.get(timeout=30)[1]["kind"] for _ in range(2)]
    assert kinds == ["hang", "job done"]


def test_a_server_that_errs_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "PAUSE", 0.0)
    receiver = Receiver(503, 200)
    try:
        deliver(lines(receiver.url, noticed(OVER)))
        assert receiver.got.qsize() == 2
    finally:
        receiver.close()


def test_nothing_of_a_secret_url_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(webhook, "PAUSE", 0.0)
    receiver = Receiver(403)
    try:
        deliver(lines(receiver.url, noticed(OVER)))
    finally:
        receiver.close()
    deliver(lines(receiver.url, noticed(OVER)))  # nobody is there any more
    assert len(caplog.records) == 2
    assert "secret" not in caplog.text
    assert "HTTP 403" in caplog.text


def test_a_coordinator_whose_notices_cannot_be_sent_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "COMMAND", ["/nonexistent/python"])
    process = WebhookProcess("http://127.0.0.1:1/secret", job="j")
    process.tell(OVER, run="r")
    process.tell(OVER, run="r")
    process.close()
