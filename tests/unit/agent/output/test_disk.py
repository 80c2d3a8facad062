"""Logs on a disk that does not answer: workers wait, the event loop does not, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from launches import assignment, launch
from outlast.agent.output import disk, logs
from outlast.agent.output.disk import Disk, LogFile
from outlast.agent.output.layout import Destinations
from outlast.agent.output.logs import JobLogs
from outlast.agent.output.tee import Console, Tee, open_pipe
from outlast.agent.postmortem import investigation
from outlast.agent.postmortem.investigation import Investigation
from outlast.agent.postmortem.verdicts import Judge
from outlast.agent.processes.worker import Streams
from outlast.core.node.inputs import Decided
from outlast.launch import Logs, Std
from outlast.system.tasks import Tasks
from processes import descriptors

DEADLINE = 120.0


async def write_while_read(descriptor: int, text: bytes) -> int:
    """How much of it was written when nobody read on."""
    os.set_blocking(descriptor, False)
    written, blocked = 0, 0
    while blocked < 50 and written < len(text):
        try:
            written += os.write(descriptor, text[written : written + 65536])
            blocked = 0
        except BlockingIOError:
            blocked += 1
        await asyncio.sleep(0.001)
    os.set_blocking(descriptor, True)
    return written


def test_a_disk_that_hangs_makes_the_worker_wait_and_gets_everything_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file is a pipe that nobody reads: to write to it blocks, as a hung file server does."""
    monkeypatch.setattr(disk, "BACKLOG_LIMIT", 100_000)
    text = b"".join(b"%04d" % number + b"x" * 995 + b"\n" for number in range(5000))
    taken: list[bytes] = []

    async def body() -> None:
        console = os.open(os.devnull, os.O_WRONLY)
        source, worker = open_pipe()
        thread = Disk()
        file = LogFile("out.log", writer, thread)
        stream = Tee(source, file=file, console=Console(console, "stdout"), prefix="")
        written = await write_while_read(worker, text)
        assert written < len(text), "the worker would wait"
        assert thread.busy
        assert file.owes < 100_000 + 2 * 65536
        reading.start()
        rest = asyncio.get_running_loop().run_in_executor(None, write_all, worker, text[written:])
        await asyncio.wait_for(rest, DEADLINE)
        stream.close()
        assert thread.close(DEADLINE)
        os.close(console)

    reader, writer = os.pipe()
    with open(reader, "rb") as pipe:
        reading = threading.Thread(target=lambda: taken.append(pipe.read()))
        asyncio.run(body())
        reading.join(DEADLINE)
    assert taken == [text]


def write_all(descriptor: int, text: bytes) -> None:
    with open(descriptor, "wb") as pipe:
        pipe.write(text)


class _OnAFifo:
    """Its only file is a FIFO, which cannot be opened before somebody reads it."""

    def __init__(self, fifo: Path) -> None:
        self.directory = str(fifo.parent)
        self._fifo = str(fifo)

    def destinations(self, *_: Any) -> Destinations:
        return Destinations(stdouts={0: self._fifo}, stderrs={0: ""}, error_files={0: ""})

    def close(self, success: bool) -> None:
        """There is nothing to remove."""


def test_files_that_cannot_be_opened_hold_up_nobody_and_are_closed_if_they_come_too_late(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    async def body() -> None:
        found = JobLogs(launch(logs=Logs(log_dir=os.devnull)))
        found._layout = _OnAFifo(tmp_path / "fifo")
        before = descriptors()
        opening = asyncio.create_task(found.open(assignment(), [{}]))
        await asyncio.sleep(0.01)
        assert not opening.done()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        await asyncio.wait_for(found.shown(), DEADLINE)
        os.close(reader)
        assert descriptors() <= before
        found.close(success=True)

    asyncio.run(body())


def test_a_job_on_a_hung_disk_ends_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logs, "PATIENCE", 0.1)
    os.mkfifo(tmp_path / "fifo")

    async def body() -> None:
        found = JobLogs(launch(logs=Logs(log_dir=str(tmp_path), tee=Std.OUT)))
        blocked = found.disk.call(lambda: os.open(tmp_path / "fifo", os.O_WRONLY))
        assert found.owes() == f"the disk of {found.directory} does not answer"
        found.close(success=True)
        reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        os.close(await asyncio.wait_for(blocked, DEADLINE))
        os.close(reader)

    asyncio.run(body())
    assert "does not answer: the end of the logs may be missing" in caplog.text


def test_a_failure_is_judged_without_the_files_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(investigation, "PATIENCE", 0.1)
    log = tmp_path / "stderr.log"
    os.mkfifo(log)
    fed: list[Decided] = []

    async def body() -> None:
        thread = Disk()
        tasks = Tasks(pytest.fail)
        inquest = Investigation("a", "j", Judge(""), None, disk=thread, feed=fed.append, tasks=tasks)
        inquest.begin(assignment(), None, [Streams(None, None, str(tmp_path / "error.json"), (str(log),))])
        failure = inquest.judged(inquest.failure(0, 7, 3), first=True)
        assert failure.pending
        await asyncio.wait_for(tasks.wait(), DEADLINE)
        os.close(os.open(log, os.O_WRONLY))  # blocks until the other end is open: it is being read
        inquest.close()
        assert thread.close(DEADLINE)

    asyncio.run(body())
    assert [(each.failure.rank, each.failure.exit_code, each.failure.pending) for each in fed] == [(4, 3, False)]
    assert "rank 4: judged without its log and error file" in caplog.text
