"""The keeper: a process beside the agent that writes snapshots to disk, also when workers and agent have died.

    agent ── a pipe: "look", "ended", "over"; its end is the agent's ── keeper ── the arena's pages ── disk

It is started with the first snapshot of a node, and nothing binds its life to the agent's: what is in memory is worth
the most when everybody else is gone. So after the agent's end it writes the newest snapshot that all ranks here have
sealed, leaves the memory for the next agent of this place, and removes it when none has come in time.

Who reads a slot has it locked, and the kernel ends the lock with its holder: nothing is left to be cleaned up after a
keeper that was killed, and the next one begins by looking at what is there and what is on disk.
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from outlast import log as logs
from outlast.agent.place import taken
from outlast.checkpoint import arena
from outlast.checkpoint import format as disk
from outlast.checkpoint.arena import Mark, Ticket
from outlast.checkpoint.background import tell
from outlast.checkpoint.persist import Outcome, persist
from outlast.checkpoint.storage import address

log = logging.getLogger("keeper")

LOOK, ENDED, OVER = b"look", b"ended", b"over"
DOOR = "door"  # in the arena, where a keeper waits for the next one


@dataclass(frozen=True)
class Snapshot:
    """The slots of one save, of all ranks of this node."""

    ticket: Ticket  # of one of them
    paths: tuple[Path, ...]

    @property
    def mark(self) -> Mark:
        return self.ticket.mark


def snapshots(directory: Path) -> list[Snapshot]:
    """The snapshots that all ranks of this node have sealed, the newest first."""
    by_mark: dict[Mark, list[tuple[Path, Ticket]]] = {}
    for path, ticket in arena.tickets(directory):
        by_mark.setdefault(ticket.mark, []).append((path, ticket))
    whole = [Snapshot(slots[0][1], tuple(path for path, _ in slots)) for slots in by_mark.values() if _whole(slots)]
    return sorted(whole, key=lambda each: each.ticket.saved_at, reverse=True)


def _whole(slots: list[tuple[Path, Ticket]]) -> bool:
    return len({ticket.rank for _, ticket in slots}) == slots[0][1].here


class Keeper:
    """Writes what is to be on disk, one after the other, the newest first."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._done: set[Mark] = set()

    def look(self) -> None:
        """Write the newest snapshot that is to be on disk, until there is none that is newer."""
        while durable := [each for each in snapshots(self._directory) if each.ticket.durable]:
            newest, *older = durable
            for each in older:
                if each.mark not in self._done:
                    self._tell(Outcome(each.mark, each.ticket.save.step, superseded=True))
            if newest.mark in self._done:
                return
            self._persist(newest)

    def breakpoint(self) -> None:
        """The workers are gone: write the newest snapshot there is, unless something as new is on disk."""
        self.look()
        there = snapshots(self._directory)
        if not there or there[0].mark in self._done:
            return
        newest = there[0].ticket
        with suppress(OSError, ModuleNotFoundError):
            stored = disk.found(address(newest.directory))
            if stored and stored[0].step >= newest.save.step:
                return
        log.info("writing the snapshot of step %d to disk, which was in memory only", newest.save.step)
        self._persist(there[0])

    def _persist(self, snapshot: Snapshot) -> None:
        # One keeper at a time: that of an agent that has died may be at it, and two must not write the same file.
        turn = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(turn, fcntl.LOCK_EX)
            outcome = persist(snapshot.paths, snapshot.ticket)
        finally:
            os.close(turn)
        self._tell(outcome)

    def _tell(self, outcome: Outcome) -> None:
        self._done.add(outcome.mark)
        if outcome.problem:
            log.error("%s", outcome.problem)
        elif outcome.path:
            log.info("step %d is on disk: %s", outcome.step, outcome.path)
        tell(self._directory, outcome)


def commands(stream: int) -> Iterator[bytes]:
    """What the agent says, until it has ended; what has come together is heard together, and said once."""
    pending = b""
    while chunk := os.read(stream, 65536):
        *words, pending = (pending + chunk).split(b"\n")
        yield from dict.fromkeys(words)


def linger(directory: Path, key: str, seconds: float) -> None:
    """Leave the memory to the next agent of this place; remove it if there is none in time, or when told to (SIGTERM).

    The next one's keeper rings at the door. An agent that takes no snapshots has none, so the place is looked at, too.
    """
    door = directory / DOOR
    with suppress(OSError):
        door.unlink(missing_ok=True)
        os.mkfifo(door, 0o600)
        opened = os.open(door, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        told, tell_us = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(tell_us)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        rung, _, _ = select.select([opened, told], [], [], seconds)
        if opened in rung:
            return
    if not (key and taken(key)):
        remove(directory)


def relieve(directory: Path) -> None:
    """Let the keeper of an agent that has died go, if it is still there."""
    with suppress(OSError):
        door = os.open(directory / DOOR, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(door, b"!")
        finally:
            os.close(door)


def remove(directory: Path) -> None:
    """Remove an arena: first its name, so that nobody who comes now finds half of it."""
    gone = directory.with_name(f"{directory.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        directory.rename(gone)
        shutil.rmtree(gone)


def main(directory: Path, key: str, seconds: float, level: str) -> None:
    """Keep until the job is over, or the agent has gone and nobody has come after it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
    logs.configure(level, "keeper")
    relieve(directory)
    keeper = Keeper(directory)
    keeper.look()
    for command in commands(sys.stdin.fileno()):
        if command == LOOK:
            keeper.look()
        elif command == ENDED:
            keeper.breakpoint()
        elif command == OVER:
            keeper.look()
            remove(directory)
            return
    keeper.breakpoint()
    linger(directory, key, seconds)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4])
