"""Workers' output, copied from a pipe to a file and to the console. This process never waits, and nothing here raises.

No line is lost to a slow console or disk: while one owes too much, the workers' pipes are not read, and workers wait as
they would if they wrote to it themselves. A full disk or a pager that was closed is said once, in one line, and the
pipes are read on.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable, Sequence
from typing import TextIO

from outlast.agent.output.disk import BACKLOG_LIMIT, LogFile
from outlast.console import without_blocking

logger = logging.getLogger(__name__)

_CHUNK = 64 * 1024
_PIPE_SIZE = 1024 * 1024  # a burst of output should not make a worker wait for us
_LINE_LIMIT = 1024 * 1024  # a longer line is shown in pieces


def open_pipe() -> tuple[int, int]:
    """A pipe for a worker's output: our end does not block, the worker's does."""
    ours, workers = os.pipe()
    os.set_blocking(ours, False)
    try:
        fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
    except PermissionError:
        pass  # over this user's allowance for pipes: the usual size does as well, with more wake-ups
    return ours, workers


class Console:
    """The agent's own stdout or stderr, for tee'd lines. Whoever reads it may be slow, or gone."""

    def __init__(self, descriptor: int, name: str) -> None:
        self.name = name
        self._loop = asyncio.get_running_loop()
        self._backlog = bytearray()
        self._waiting = False
        self._on_room: list[Callable[[], None]] = []
        self._descriptor, self._send = without_blocking(descriptor)

    @property
    def full(self) -> bool:
        """Whether whoever has more to show should wait for `when_room`."""
        return len(self._backlog) > BACKLOG_LIMIT

    @property
    def owes(self) -> int:
        """The bytes that it has been given and has not shown."""
        return len(self._backlog)

    def when_room(self, call: Callable[[], None]) -> None:
        """Call this once, when all that it owes has been shown, or it has been closed."""
        self._on_room.append(call)

    def write(self, lines: bytes) -> None:
        """Show whole lines, now or when the console can take them."""
        if self._descriptor < 0:
            return
        self._backlog += lines
        if not self._waiting:
            self._flush()

    def close(self) -> None:
        """Let go of it, with what it still owes."""
        if self._descriptor >= 0:
            self._let_go()

    def _flush(self) -> None:
        try:
            while self._backlog:
                del self._backlog[: self._send(bytes(self._backlog[:_CHUNK]))]
        except BlockingIOError:
            if not self._waiting:
                self._waiting = True
                self._loop.add_writer(self._descriptor, self._flush)
            return
        except OSError as error:
            self._let_go()
            logger.warning("cannot write to %s: %s; workers' lines are shown no more", self.name, error.strerror)
            return
        self._rest()

    def _let_go(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        self._backlog.clear()
        self._rest(descriptor)
        os.close(descriptor)

    def _rest(self, descriptor: int | None = None) -> None:
        """Nothing is owed any more."""
        if self._waiting:
            self._waiting = False
            self._loop.remove_writer(self._descriptor if descriptor is None else descriptor)
        calls, self._on_room = self._on_room, []
        for call in calls:
            self._loop.call_soon(call)


class ReplacedStream:
    """What a program has put in the place of `sys.stdout` or `sys.stderr`, as `redirect_stdout` does."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream: TextIO | None = stream
        self.name = name
        self.full, self.owes = False, 0  # what is written to it is shown at once

    def when_room(self, call: Callable[[], None]) -> None:
        """There always is."""
        call()

    def write(self, lines: bytes) -> None:
        """Show whole lines."""
        try:
            if self._stream is not None:
                self._stream.write(lines.decode(errors="replace"))
        except (OSError, ValueError) as error:  # ValueError: it has been closed
            self._stream = None
            logger.warning("cannot write to %s: %s; workers' lines are shown no more", self.name, error)

    def close(self) -> None:
        """It is the program's own."""


class Tee:
    """One stream of one worker: as it is to its file, line by line with a prefix to the console."""

    def __init__(
        self,
        source: int,
        *,
        file: LogFile,
        console: Console | ReplacedStream,
        prefix: str,
        filtered: LogFile | None = None,
        needles: Sequence[str] = (),
    ) -> None:
        self._source = source
        self._file = file
        self._console = console
        self._prefix = prefix.encode()
        self._filtered = filtered
        self._needles = [needle.encode() for needle in needles]
        self._partial = bytearray()
        self._loop = asyncio.get_running_loop()
        self._listen()

    def close(self) -> None:
        """Write out what the pipe still holds, and no more: a process that kept it open does not hold us up."""
        if self._source < 0:
            return
        self._loop.remove_reader(self._source)
        for _ in range(_PIPE_SIZE // _CHUNK):
            data = self._read()
            if not data:
                break
            self._take(data)
        os.close(self._source)
        self._source = -1
        self._file.close()
        if self._partial:
            self._show(_lines(bytes(self._partial).removesuffix(b"\r")))

    def drain(self) -> None:
        """Take what the pipe holds now, and no more: a worker that goes on to write does not hold us up."""
        for _ in range(_PIPE_SIZE // _CHUNK):
            data = self._read() if self._source >= 0 and not self._file.full else None
            if not data:
                break
            self._take(data)

    def _readable(self) -> None:
        data = self._read()
        if data:
            self._take(data)
            if self._full() is not None:
                self._loop.remove_reader(self._source)
                self._listen()
        elif data is not None:
            self.close()

    def _listen(self) -> None:
        """Read on, as soon as all that it goes to can take more."""
        if self._source < 0:
            return
        full = self._full()
        if full is not None:
            full.when_room(self._listen)
        else:
            self._loop.add_reader(self._source, self._readable)

    def _full(self) -> LogFile | Console | ReplacedStream | None:
        sinks = (self._file, self._console, self._filtered)
        return next((sink for sink in sinks if sink is not None and sink.full), None)

    def _read(self) -> bytes | None:
        """What is there: b"" at the end, None if there is nothing yet."""
        try:
            return os.read(self._source, _CHUNK)
        except BlockingIOError:
            return None

    def _take(self, data: bytes) -> None:
        self._file.write(data)
        carriage = self._partial.endswith(b"\r")
        self._partial += data
        if carriage or b"\n" in data or b"\r" in data:
            # A last "\r" may be half of "\r\n": what follows will tell.
            end = max(self._partial.rfind(b"\n"), self._partial.rfind(b"\r", 0, -1)) + 1
            if end:
                self._show(_lines(bytes(self._partial[:end]))[:-1])
                del self._partial[:end]
        if len(self._partial) > _LINE_LIMIT:
            self._show([bytes(self._partial)])
            self._partial.clear()

    def _show(self, lines: list[bytes]) -> None:
        self._console.write(self._prefixed(lines))
        if self._filtered is not None:
            kept = [line for line in lines if any(needle in line for needle in self._needles)]
            if kept:
                self._filtered.write(self._prefixed(kept))

    def _prefixed(self, lines: list[bytes]) -> bytes:
        text = b"".join(self._prefix + line + b"\n" for line in lines)
        return text if text.isascii() else text.decode(errors="replace").encode()


def _lines(data: bytes) -> list[bytes]:
    """Split as a terminal's reader would: a progress bar's "\\r" ends a line, as it does under torchrun."""
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
