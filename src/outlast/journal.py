"""What a coordinator writes down while it works: to go on after it was killed, and to be understood later.

One record per line: a checksum, a space, JSON. A file that was cut short or damaged is good up to its last whole
record. (A database would have to be whole to be read at all, and does not notice a changed byte in a page.)
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from outlast.core.job.commands import Command
from outlast.core.job.decisions import digest_of
from outlast.core.job.inputs import Event
from outlast.core.succession.authority import Memory
from outlast.events.numbered import NumberedEvent
from outlast.protocol.fields import UNREADABLE
from outlast.protocol.membership import PROTOCOL
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Charter, Term

log = logging.getLogger("coordinator")

PATIENCE = 0.25  # seconds that the job waits for the disk
LAST_PATIENCE = 5.0  # at its end
MOST_BYTES = 64 << 20  # beyond it, only what a restart needs is kept: reading it must not take longer than a lease


class Began(msgspec.Struct, frozen=True, tag="began"):
    """A coordinator's life began, with this."""

    at: float
    rules: Rules
    term: Term
    run: str
    memory: Memory | None
    protocol: int = PROTOCOL
    charter: Charter | None = None
    wall: float = 0.0  # seconds since 1970, at that time


class Happened(msgspec.Struct, frozen=True, tag="event"):
    """An event that changed something, and what came of it."""

    at: float
    event: Event
    acts: str  # what the coordinator's authority answered while it was handled: it depends on heartbeats, too
    digest: str  # of the decisions


class Remembered(msgspec.Struct, frozen=True, tag="memory"):
    memory: Memory


class Published(msgspec.Struct, frozen=True, tag="published"):
    """What observers are told."""

    numbered: NumberedEvent


class JournalCut(msgspec.Struct, frozen=True, tag="cut"):
    """What was written before has been dropped, because the file grew too large."""


Record = Began | Happened | Remembered | Published | JournalCut
_decoder = msgspec.json.Decoder(Record)
_encoder = msgspec.json.Encoder()


class JournalDamaged(Exception):
    """A journal is not whole. `good`: the bytes before the damage."""

    def __init__(self, good: int, records: int) -> None:
        super().__init__(f"damaged after byte {good} ({records} whole records)")
        self.good = good


def read(data: bytes) -> Iterator[Record]:
    """The records of a journal, one after the other; raises `JournalDamaged` where the first bad one begins."""
    at, count = 0, 0
    while at < len(data):
        end = data.find(b"\n", at)
        line = data[at:end] if end >= 0 else b""
        if end < 0 or line[8:9] != b" " or _sum(line[9:]) != line[:8]:
            raise JournalDamaged(at, count)
        try:
            record = _decoder.decode(line[9:])
        except UNREADABLE:
            raise JournalDamaged(at, count) from None
        yield record
        at, count = end + 1, count + 1


def recall(path: Path) -> tuple[Memory | None, tuple[NumberedEvent, ...]]:
    """The newest memory in a journal whose coordinator was killed, and the events of all of its lives.

    What is damaged is cut off, and said.
    """
    memory = None
    history: list[NumberedEvent] = []
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        log.warning("there is no journal at %s: what the nodes say is enough", path)
        return None, ()
    except OSError as error:
        log.warning("the journal %s cannot be read (%s): what the nodes say is enough", path, error.strerror)
        return None, ()
    try:
        for record in read(data):
            if isinstance(record, Remembered) or (isinstance(record, Began) and record.memory is not None):
                memory = record.memory
            elif isinstance(record, Published):
                history.append(record.numbered)
    except JournalDamaged as damaged:
        log.warning("the journal %s is %s: the nodes will say what is missing", path, damaged)
        with suppress(OSError):  # on a disk that can only be read: then nothing is written behind it either
            os.truncate(path, damaged.good)
    return memory, tuple(history)


class Journal:
    """A journal that is being written. It never keeps the job from going on.

    A thread of its own writes: a disk that stands still, as file servers do, would stop the whole job.
    """

    def __init__(self, path: Path, *, fresh: bool) -> None:
        self._path = path
        self._size = 0
        self._pending: list[tuple[float, Event, str, list[Command]] | NumberedEvent] = []
        self._file: int | None = None
        self._news = threading.Condition()
        self._tasks: deque[Callable[[int], None]] = deque()  # for the thread; the first stays until it is done
        self._closed = False
        self._stalled = False
        self._thread: threading.Thread | None = None
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_TRUNC if fresh else 0)
            self._file = os.open(path, flags, 0o600)
            self._size = os.fstat(self._file).st_size
        except OSError as error:
            log.warning("no journal: %s: %s (--ft-journal sets another place)", path, error.strerror)

    @property
    def waits(self) -> bool:
        """Whether something that happened waits to be written."""
        return bool(self._pending)

    def began(self, record: Began) -> None:
        self._write([record])

    def happened(self, at: float, event: Event, acts: str, commands: list[Command]) -> None:
        """To be written with the next `flush`: a coordinator that is killed before loses nothing that it needs.

        While ten thousand nodes wait for their next generation, this is not the time to write.
        """
        if self._file is not None and self._size < MOST_BYTES:
            self._pending.append((at, event, acts, commands))

    def published(self, numbered: NumberedEvent) -> None:
        """To be written with the next `flush`."""
        if self._file is not None and self._size < MOST_BYTES:
            self._pending.append(numbered)

    def remember(self, memory: Memory) -> None:
        """Written when this returns, unless the disk stands still; on the disk if it says how the job ended."""
        if self._size >= MOST_BYTES:
            self._begin_again()
        self._write([Remembered(memory)])
        if memory.outcome is not None:
            self._do(_sync)
        self._settle(PATIENCE)

    def flush(self) -> None:
        """Write what has happened."""
        happened, self._pending = self._pending, []
        self._write([_record(each) for each in happened])

    def close(self) -> None:
        self.flush()
        self._settle(LAST_PATIENCE)
        with self._news:
            self._closed = True
            self._news.notify_all()
        if self._thread is not None:
            self._thread.join(PATIENCE)
        elif self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, records: Sequence[Record]) -> None:
        if records and self._file is not None:
            texts = [_encoder.encode(record) for record in records]
            data = b"".join(b"%b %b\n" % (_sum(text), text) for text in texts)
            self._size += len(data)
            self._do(partial(_write_all, data=data))

    def _begin_again(self) -> None:
        self._size = 0
        self._pending = []
        self._do(_empty)
        self._write([JournalCut()])

    def _do(self, task: Callable[[int], None]) -> None:
        with self._news:
            if self._file is None:
                return
            self._tasks.append(task)
            self._news.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="outlast-journal", daemon=True)
            self._thread.start()

    def _settle(self, seconds: float) -> None:
        """Wait until all is written, but not again and again for a disk that stands still."""
        with self._news:
            if self._stalled and self._tasks:
                return
            self._stalled = not self._news.wait_for(lambda: not self._tasks, seconds)
        if self._stalled:
            log.warning(
                "the disk of the journal %s does not answer: the job continues without waiting for it", self._path
            )

    def _run(self) -> None:
        assert self._file is not None
        try:
            while True:
                with self._news:
                    self._news.wait_for(lambda: self._tasks or self._closed)
                    if not self._tasks:
                        return
                    task = self._tasks[0]
                task(self._file)
                with self._news:
                    self._tasks.popleft()
                    self._news.notify_all()
        except OSError as error:
            log.error("the journal %s cannot be written (%s): the job continues without it", self._path, error.strerror)
        finally:
            with self._news:
                os.close(self._file)
                self._file = None
                self._tasks.clear()
                self._news.notify_all()


def _record(pending: tuple[float, Event, str, list[Command]] | NumberedEvent) -> Record:
    if isinstance(pending, NumberedEvent):
        return Published(pending)
    at, event, acts, commands = pending
    return Happened(at, event, acts, digest_of(commands))


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _sync(file: int) -> None:
    try:
        os.fdatasync(file)
    except OSError as error:
        if error.errno != errno.EINVAL:  # what is no file, as /dev/null, has no disk
            raise


def _empty(file: int) -> None:
    with suppress(OSError):  # what is no file, as /dev/null, cannot grow too large
        os.ftruncate(file, 0)


def _sum(text: bytes) -> bytes:
    return b"%08x" % zlib.crc32(text)
