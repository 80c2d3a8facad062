"""Who writes snapshots to disk: without a launcher a thread of the worker, else the keeper of its node.

Either way the newest wins: a save that is to be written while another is being written takes the place of one that
waits.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from outlast.checkpoint.memory.slot import Mark, Slot, Ticket
from outlast.checkpoint.storage.persist import Outcome, persist
from outlast.system import private

LOOK_AGAIN = 1.0  # seconds after which the keeper is asked to look again

log = logging.getLogger("outlast")


class Pending(NamedTuple):
    """Snapshots that are still to be written.

    `must`: not to be overwritten. `may`: a newer one will be written instead, but another rank of this node may wait
    for its own part to be: not to be overwritten while there is room.
    """

    must: frozenset[Mark] = frozenset()
    may: frozenset[Mark] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.must)


class Background(Protocol):
    """Writes sealed slots to disk, some time after it was told."""

    def sealed(self, slot: Slot, ticket: Ticket) -> None:
        """There is a new snapshot; it is to be written to disk if its ticket says so."""

    def pending(self) -> Pending:
        """Which snapshots are still to be written."""

    def await_news(self) -> None:
        """Return when there may be fewer of them. To be called only while there are any."""

    def wait(self) -> Outcome | None:
        """Await what becomes of the last one that is to be on disk; None if there was none."""

    def close(self) -> None: ...


class WriterThread:
    """For a worker without a launcher: its own shards, written by a thread, and before the process ends."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._waiting: tuple[Slot, Ticket] | None = None  # the slot, not its path: it stays until it is written
        self._busy: Mark | None = None
        self._outcome: Outcome | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def sealed(self, slot: Slot, ticket: Ticket) -> None:
        if not ticket.durable:
            return
        with self._news:
            self._waiting = slot, ticket
            self._news.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="outlast-persist", daemon=True)
            self._thread.start()
            atexit.register(self.close)

    def pending(self) -> Pending:
        with self._news:
            return self._pending()

    def await_news(self) -> None:
        with self._news:
            before = self._pending()
            self._news.wait_for(lambda: self._pending() != before)

    def _pending(self) -> Pending:
        waiting = self._waiting[1].mark if self._waiting is not None else None
        return Pending(frozenset(mark for mark in (waiting, self._busy) if mark is not None))

    def wait(self) -> Outcome | None:
        with self._news:
            self._news.wait_for(lambda: self._waiting is None and self._busy is None)
            return self._outcome

    def close(self) -> None:
        if self._thread is None or self._thread.ident is None or not self._thread.is_alive():
            return
        self.wait()
        with self._news:
            self._closed = True
            self._news.notify_all()
        self._thread.join()
        atexit.unregister(self.close)

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting is not None or self._closed)
                if self._waiting is None:
                    return
                (slot, ticket), self._waiting = self._waiting, None
                self._busy = ticket.mark
            try:
                outcome = persist([slot.path], ticket)
            except Exception as error:  # noqa: BLE001  (whatever it is: `wait` must not wait for ever)
                why = f"{type(error).__name__}: {error}"
                outcome = Outcome(ticket.mark, ticket.save.step, f"step {ticket.save.step} is not on disk: {why}")
            if outcome.problem:
                log.error("%s", outcome.problem)
            del slot
            with self._news:
                self._busy = None
                self._outcome = outcome
                self._news.notify_all()


class KeeperClient:
    """For a worker under a launcher: the keeper of its node, which reads the arena, and answers through a FIFO."""

    def __init__(self, directory: Path, number: int, ring: Callable[[], None], *, always: bool = False) -> None:
        self._ring = ring
        self._always = always  # also for a snapshot that is not to be on disk: it goes to another node
        self._known = False  # to the agent: that there are snapshots at all
        self._durable: list[Mark] = []  # that nothing was heard of yet; the last is the one that is waited for
        self._outcome: Outcome | None = None
        self._pending = b""
        private.make_directory(directory)
        self._path = directory / f"{number}.told"
        self._ear = private.make_fifo(self._path)  # both ends: it never ends
        # A Checkpointer that nobody closes goes with the frame that held it, once per restart in place.
        self._close_ear = weakref.finalize(self, os.close, self._ear)

    def sealed(self, slot: Slot, ticket: Ticket) -> None:  # noqa: ARG002
        if ticket.durable:
            self._durable.append(ticket.mark)
        if ticket.durable or self._always or not self._known:
            self._known = True
            self._ring()

    def pending(self) -> Pending:
        self._hear()
        return Pending(frozenset(self._durable[-1:]), frozenset(self._durable[:-1]))

    def await_news(self) -> None:
        # Another rank of this node may have overwritten its part of what we wait for, and nobody tells the keeper.
        if not select.select([self._ear], [], [], LOOK_AGAIN)[0]:
            self._ring()
        self._hear()

    def wait(self) -> Outcome | None:
        self._hear()
        while self._durable:
            select.select([self._ear], [], [])
            self._hear()
        return self._outcome

    def close(self) -> None:
        self._close_ear()
        with suppress(OSError):
            self._path.unlink()

    def _hear(self) -> None:
        with suppress(BlockingIOError):
            while chunk := os.read(self._ear, 65536):
                self._pending += chunk
        *lines, self._pending = self._pending.split(b"\n")
        for outcome in (msgspec.json.decode(line, type=Outcome) for line in lines):
            if outcome.mark in self._durable:
                self._durable = self._durable[self._durable.index(outcome.mark) + 1 :]
                self._outcome = outcome


def tell(directory: Path, outcome: Outcome) -> None:
    """Of a keeper: let the workers of the node know. Who does not listen is gone."""
    line = msgspec.json.encode(outcome) + b"\n"
    for name in private.names(directory):
        if not name.endswith(".told"):
            continue
        with suppress(OSError):
            descriptor = private.open_file(directory / name, os.O_WRONLY, fifo=True)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
