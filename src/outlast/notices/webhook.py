"""The process that sends notices, and the coordinator's side of it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import BinaryIO

import msgspec

from outlast.events.events import JobEvent
from outlast.notices.notice import JobNotice, NoticeLimit, body, is_slack, job_notice, shown
from outlast.system import own_process

log = logging.getLogger("coordinator")

TIMEOUT = 5.0  # seconds for one request
TRIES, PAUSE = 3, 1.0
LAST_WORDS = 10.0  # seconds for what is still to be sent when the job is over
COMMAND = own_process.command("outlast.notices.webhook:run")


class WebhookProcess:
    """Tells the process beside the coordinator, and never waits. The URL goes by a pipe: `ps` shows arguments."""

    def __init__(self, url: str, *, job: str) -> None:
        self._url, self._job = url, job
        self._process: subprocess.Popen[bytes] | None = None
        self._gave_up = False

    def tell(self, event: JobEvent, *, run: str) -> None:
        """Send a notice of this event, if people should know of it."""
        notice = job_notice(event, job=self._job, run=run, time=time.time())
        if notice is None or self._gave_up:
            return
        try:
            if self._process is None:
                self._process = self._start()
            assert self._process.stdin is not None
            self._process.stdin.write(msgspec.json.encode(notice) + b"\n")
        except OSError as error:
            self._gave_up = True
            log.warning("notices to %s end: %s; the job continues", shown(self._url), error.strerror)

    def close(self) -> None:
        """The job is over: let the last notice out, for a moment."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(LAST_WORDS)
        except (OSError, subprocess.TimeoutExpired):
            log.warning("the last notice to %s did not get out within %g s", shown(self._url), LAST_WORDS)
            self._process.kill()
            self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, bufsize=0)
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        process.stdin.write(msgspec.json.encode(self._url) + b"\n")
        return process


def run() -> None:
    """The process: notices on standard input, after the URL."""
    logging.basicConfig(level=logging.WARNING, format="outlast notices: %(message)s")
    deliver(sys.stdin.buffer)


def deliver(lines: BinaryIO) -> None:
    """Send one after the other until there are no more."""
    url = msgspec.json.decode(lines.readline(), type=str)
    limit = NoticeLimit()
    for line in lines:
        notice = limit.admit(msgspec.json.decode(line, type=JobNotice), time.monotonic())
        if notice is not None:
            _send(url, notice)


def _send(url: str, notice: JobNotice) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "outlast"}
    why = ""
    for number in range(TRIES):
        if number:
            time.sleep(PAUSE)
        try:
            request = urllib.request.Request(url, body(notice, slack=is_slack(url)), headers)
            with urllib.request.urlopen(request, timeout=TIMEOUT):
                return
        except urllib.error.HTTPError as error:
            why = f"HTTP {error.code}"
            if error.code < 500 and error.code != 429:
                break
        except (OSError, ValueError) as error:
            # Of the error only its kind: its text may have the URL in it.
            why = (
                str(getattr(error, "reason", "")) if isinstance(error, urllib.error.URLError) else type(error).__name__
            )
    logging.warning("%s: no notice of %s could be sent: %s", shown(url), notice.kind, why.replace(url, shown(url)))
