"""Our own lines at the terminal: nobody waits for whoever should read them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from threading import Timer

import pytest

from outlast.log import Sparing

LOGS_TO_A_FULL_PIPE = """
import os, sys
from outlast import log
logger = log.configure("info", "agent")
os.set_blocking(2, False)
try:
    while os.write(2, bytes(4096)):
        pass
except BlockingIOError:
    os.set_blocking(2, True)
logger.info("lost")
logger.info("lost, too")
print("on it goes", flush=True)
sys.stdin.readline()
logger.info("read again")
"""


def test_a_console_that_takes_nothing_costs_lines_and_holds_nobody_up() -> None:
    reading, writing = os.pipe()
    command = [sys.executable, "-c", LOGS_TO_A_FULL_PIPE]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writing)
    os.close(writing)
    too_late = Timer(60.0, process.kill)
    too_late.start()
    with open(reading, "rb") as console, process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"on it goes\n"
        console.read(65536)
        process.stdin.write(b"\n")
        process.stdin.close()
        shown = console.read().decode()
    too_late.cancel()
    assert "lost" not in shown
    assert "2 lines dropped" in shown
    assert "outlast agent: read again" in shown


def test_warnings_that_anybody_can_cause_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    sparing = Sparing(logging.getLogger("strangers"), most=3, period=60.0, now=lambda: now)
    for number in range(100_000):
        sparing.warning("stranger %d", number)
    assert [record.getMessage() for record in caplog.records] == ["stranger 0", "stranger 1", "stranger 2"]
    now = 60.0
    sparing.warning("%s again", "a stranger")
    assert caplog.records[-1].getMessage() == "a stranger again (and 99997 such warnings before)"
