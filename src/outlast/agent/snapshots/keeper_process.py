"""The keeper: a process beside the agent that writes snapshots to disk, also when workers and agent have died.

    agent ── a pipe: "look", "ended", "over", …; its end is the agent's ── keeper ── the arena's pages ── disk
                                                                             └── other nodes' keepers, and workers

It is started with the first snapshot of a node, and nothing binds its life to the agent's: what is in memory is worth
the most when everybody else is gone. So after the agent's end it writes the newest snapshot that all ranks here have
sealed, leaves the memory for the next agent of this place, and removes it when none has come in time.

Where the job has other nodes, it also gives shards to who restores (`serving.py`) and sends copies of each snapshot to
another node's keeper (`sending.py`), in threads: writing to disk takes long.

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
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import msgspec

from outlast import log as logs
from outlast.agent.processes.place import taken
from outlast.agent.snapshots.memory import NodeSnapshot, different_steps, overtaken, shards, snapshots
from outlast.agent.snapshots.sending import Sending
from outlast.agent.snapshots.serving import Serving
from outlast.checkpoint.memory.shards import damage
from outlast.checkpoint.memory.slot import Mark
from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.storage.persist import Outcome, persist
from outlast.checkpoint.storage.storage import address
from outlast.checkpoint.trainer.background import tell
from outlast.system import private
from outlast.transport import certificate
from outlast.transport.commission import Tls

log = logging.getLogger("keeper")

LOOK, ENDED, OVER = b"look", b"ended", b"over"
NETWORK, PARTNER, COMPLETE = b"network ", b"partner ", b"complete "  # and what follows, in JSON
DOOR = "door"  # in the arena, where a keeper waits for the next one
KEPT = "kept"  # in the arena: keepers have a lock on it


class Network(msgspec.Struct, frozen=True):
    """What a keeper needs for other nodes: told by its agent, and by nobody else."""

    listener: int  # the descriptor of a socket that listens
    key: str
    tls: Tls | None = None


class Complete(msgspec.Struct, frozen=True):
    """A node is lost, and all go on from this snapshot: these ranks' shards are this node's to write to disk."""

    mark: Mark
    ranks: tuple[int, ...]


class SnapshotWriter:
    """Writes what is to be on disk, one after the other, the newest first."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._done: set[Mark] = set()
        self._said_different = False

    def look(self) -> None:
        """Write the newest snapshot that is to be on disk, until there is none that is newer."""
        if not self._said_different and (problem := different_steps(self._directory)):
            self._said_different = True
            log.error("%s", problem)
        for lost in overtaken(self._directory):  # a rank waits for it, if it has no room to go on without
            if lost.durable and lost.mark not in self._done:
                self._tell(Outcome(lost.mark, lost.save.step))
        while waiting := [s for s in snapshots(self._directory) if s.ticket.durable and s.mark not in self._done]:
            newest, *older = waiting
            for each in older:  # those of other groups of ranks have their turn
                if each.workers & newest.workers:  # a newer one takes its place: nobody need wait
                    self._tell(Outcome(each.mark, each.ticket.save.step))
            self._persist(newest)

    def breakpoint(self) -> None:
        """The workers are gone: write the newest snapshot of each group of ranks, unless one as new is on disk."""
        self.look()
        seen: frozenset[str] = frozenset()
        for each in snapshots(self._directory):
            if not each.workers & seen and each.mark not in self._done:
                self._write(each)
            seen |= each.workers

    def complete(self, task: Complete) -> None:
        """Write this node's part of what all go on from, with those that only copies are left of."""
        found = list(shards(self._directory, task.mark, task.ranks))
        problem = next(filter(None, (damage(path) for path, _ in found)), "")
        if problem:
            log.error("%s: it is not written to disk", problem)
        elif len(found) == len(task.ranks):
            self._write(NodeSnapshot(found[0][1], tuple(path for path, _ in found)))

    def _write(self, snapshot: NodeSnapshot) -> None:
        """Write it, unless something as new is on disk."""
        ticket = snapshot.ticket
        with suppress(OSError, ModuleNotFoundError):
            stored = disk.found(address(ticket.directory))
            if stored and stored[0].step >= ticket.save.step:
                return
        log.info("writing the snapshot of step %d to disk, which was in memory only", ticket.save.step)
        self._persist(snapshot)

    def _persist(self, snapshot: NodeSnapshot) -> None:
        # One keeper at a time: that of an agent that has died may be at it, and two must not write the same file.
        with private.opened(self._directory) as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            persist(snapshot.paths, snapshot.ticket, self._tell)

    def _tell(self, outcome: Outcome) -> None:
        self._done.add(outcome.mark)
        if outcome.problem:
            log.error("%s", outcome.problem)
        elif outcome.path:
            log.info("step %d is on disk: %s", outcome.step, outcome.path)
        tell(self._directory, outcome)


def commands(stream: int) -> Iterator[bytes]:
    """What the agent says, until it has ended."""
    pending = b""
    while chunk := os.read(stream, 65536):
        *words, pending = (pending + chunk).split(b"\n")
        yield from words


class Ear:
    """Hears the agent, also while the keeper writes to disk."""

    def __init__(self, directory: Path, stream: int) -> None:
        self._directory, self._stream = directory, stream
        self._words: SimpleQueue[bytes] = SimpleQueue()
        self._sending: Sending | None = None
        threading.Thread(target=self._listen, name="outlast-ear", daemon=True).start()

    def __iter__(self) -> Iterator[bytes]:
        """What there is to do, until the agent has ended; what has come together is to be done once."""
        while True:
            words = [self._words.get()]
            while not self._words.empty():
                words.append(self._words.get())
            for word in dict.fromkeys(words):
                if not word:
                    return
                yield word

    def _listen(self) -> None:
        try:
            for word in commands(self._stream):
                self._hear(word)
        finally:
            self._words.put(b"")

    def _hear(self, word: bytes) -> None:
        if word.startswith(NETWORK):
            network = msgspec.json.decode(word[len(NETWORK) :], type=Network)
            try:
                context = certificate.server_side(network.tls) if network.tls is not None else (None, b"")
            except (ImportError, OSError, ValueError) as error:
                log.error("snapshots are not exchanged with other nodes, because there is no certificate: %s", error)
                return
            Serving(self._directory, socket.socket(fileno=network.listener), network.key, tls=context)
            self._sending = Sending(self._directory, network.key, tls=network.tls is not None, keeps_up=keeps_up)
        elif word.startswith(PARTNER):
            if self._sending is not None:
                self._sending.partner(msgspec.json.decode(word[len(PARTNER) :], type=tuple[str, int] | None))
        else:
            if self._sending is not None:
                self._sending.look()
            self._words.put(word)


def keeps_up(stride: int) -> None:
    """Tell the agent, if it is still there, one in how many snapshots can be copied in time."""
    with suppress(OSError):
        os.write(sys.stdout.fileno(), b"%d\n" % stride)


def linger(directory: Path, key: str, seconds: float) -> None:
    """Leave the memory to the next agent of this place; remove it if there is none in time, or when told to (SIGTERM).

    The next one's keeper rings at the door. An agent that takes no snapshots has none, so the place is looked at, too.
    """
    with suppress(OSError):
        opened = private.make_fifo(directory / DOOR)
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
        door = private.open_file(directory / DOOR, os.O_WRONLY, fifo=True)
        try:
            os.write(door, b"!")
        finally:
            os.close(door)


def remove(directory: Path) -> None:
    """Remove an arena: first its name, so that nobody who comes now finds half of it."""
    gone = directory.with_name(f"{directory.name}.{os.getpid()}")
    try:
        with private.opened(directory):
            directory.rename(gone)
        shutil.rmtree(gone)
    except FileNotFoundError:
        pass
    except OSError as error:  # somebody else's: what the job has done counts all the same
        log.warning("shared memory of this job may be left: %s", error)


def main(directory: Path, key: str, seconds: float, level: str) -> None:
    """Keep until the job is over, or the agent has gone and nobody has come after it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
    logs.configure(level, "keeper")
    relieve(directory)
    with suppress(OSError):
        # Whoever asks who uses it finds us, until we end, however we end.
        fcntl.flock(private.open_file(directory / KEPT, os.O_RDONLY | os.O_CREAT), fcntl.LOCK_SH)
    keeper = SnapshotWriter(directory)
    words = Ear(directory, sys.stdin.fileno())
    keeper.look()
    for command in words:
        if command == LOOK:
            keeper.look()
        elif command == ENDED:
            keeper.breakpoint()
        elif command.startswith(COMPLETE):
            keeper.complete(msgspec.json.decode(command[len(COMPLETE) :], type=Complete))
        elif command == OVER:
            keeper.look()
            remove(directory)
            return
    keeper.breakpoint()
    linger(directory, key, seconds)


def run() -> None:
    """The process, as the agent starts it."""
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4])
