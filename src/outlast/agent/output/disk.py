"""Files that are used from a thread: a file server that does not answer holds up that thread, and nobody else.

One thread for all of a node's logs, which does one thing after another: whoever reads a file through it finds all that
was written through it before.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Queue
from typing import ParamSpec, TypeVar

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

BACKLOG_LIMIT = 1024 * 1024  # bytes that a slow reader or disk may owe before workers wait for it


class Disk:
    """A thread for blocking calls. Made within a running event loop.

    disk.do(file.close)                 # nobody waits for it
    text = await disk.call(path.read)   # the loop goes on meanwhile
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: Queue[Callable[[], object] | None] = Queue()
        # A daemon: a disk that never answers does not keep this process from ending.
        self._thread = threading.Thread(target=self._run, name="outlast-logs", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether something that was asked for is not done yet."""
        return self._work.unfinished_tasks > 0

    def do(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call this when all that was asked for before is done; an OSError is logged."""
        self._work.put(partial(function, *args, **kwargs))

    def call(self, function: Callable[[], T], undo: Callable[[T], None] | None = None) -> asyncio.Future[T]:
        """The same, with its result or error. Cancelled, it may still be done; then `undo` gets the result."""
        future: asyncio.Future[T] = self._loop.create_future()

        def work() -> None:
            try:
                result = function()
            except Exception as error:  # noqa: BLE001 for whoever awaits it
                self.tell(_fail, future, error)
            else:
                self.tell(_succeed, future, result, undo)

        self._work.put(work)
        return future

    def tell(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """From the thread: call this in the event loop, if there still is one."""
        with suppress(RuntimeError):  # the agent has ended without waiting for the disk
            self._loop.call_soon_threadsafe(partial(function, *args, **kwargs))

    def close(self, patience: float) -> bool:
        """End when all is done; False if that takes longer than `patience` seconds."""
        self._work.put(None)
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except OSError as error:
                logger.warning("logs: %s", error)
            self._work.task_done()


def _succeed(future: asyncio.Future[T], result: T, undo: Callable[[T], None] | None) -> None:
    if not future.done():
        future.set_result(result)
    elif undo is not None:
        undo(result)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def open_log(path: str, *, more: bool = False) -> int:
    """Open a log file to write from its beginning, or `more` of it; what several write to it does not overlap."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | (0 if more else os.O_TRUNC) | os.O_APPEND, 0o666)


class LogFile:
    """A file that takes what it can, when it can. Owns the descriptor."""

    def __init__(self, path: str, descriptor: int, disk: Disk) -> None:
        self._path = path
        self._descriptor = descriptor
        self._disk = disk
        self._reported = False
        self._on_room: list[Callable[[], None]] = []
        self.owes = 0  # bytes that it has been given, and that the disk has not taken

    @property
    def full(self) -> bool:
        """Whether whoever has more to write should wait for `when_room`."""
        return self.owes > BACKLOG_LIMIT

    def when_room(self, call: Callable[[], None]) -> None:
        """Call this once, when the disk has taken all that it was given."""
        self._on_room.append(call)

    def write(self, data: bytes) -> None:
        """Append; an error is reported the first time, and later data is tried again."""
        self.owes += len(data)
        self._disk.do(self._write, data)

    def close(self) -> None:
        """Close the file once all is written."""
        self._disk.do(self._close)

    def _close(self) -> None:
        try:
            os.close(self._descriptor)
        except OSError as error:  # a file server may say only now that it had no room
            self._report(error)

    def _write(self, data: bytes) -> None:
        left = data
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            self._report(error)
        self._disk.tell(self._written, len(data))

    def _report(self, error: OSError) -> None:
        if not self._reported:
            self._reported = True
            logger.warning("cannot write %s: %s; lines will be missing from it", self._path, error.strerror)

    def _written(self, size: int) -> None:
        self.owes -= size
        if not self.owes:
            calls, self._on_room = self._on_room, []
            for call in calls:
                call()
