"""A keeper's side of the network: gives shards to who restores, and takes the copies that other nodes send.

A thread for each connection, and nothing shared between them but the arena's files, whose locks are the kernel's.

A copy goes straight into a slot of its own, chunk by chunk, each hashed when it is there; the slot is sealed after the
last one. Two slots per rank: one that comes only half leaves the one before it whole. The hashes stay with it, so that
whoever reads it later, here or elsewhere, finds out if a bit has changed meanwhile.
"""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from outlast.checkpoint.memory import arena
from outlast.checkpoint.memory.arena import REPLICAS, Arena
from outlast.checkpoint.memory.channel import (
    Channel,
    CopyDone,
    Describe,
    Described,
    Go,
    No,
    Piece,
    Put,
    ReadChunk,
    Refused,
    digest_of,
    length_of,
    welcome,
)
from outlast.checkpoint.memory.room import NoRoom
from outlast.checkpoint.memory.slot import DIGEST, Mark, Slot, Ticket, chunks, open_slot
from outlast.checkpoint.storage.format import CHUNK
from outlast.log import Sparing
from outlast.protocol.fields import UNREADABLE
from outlast.system import private
from outlast.transport import unproved
from outlast.transport.unproved import Unproved
from outlast.transport.wire import WireError

log = logging.getLogger("keeper")
sparing = Sparing(log)

MOST_CONNECTIONS = 256  # of those who know the key
MOST_UNPROVED = 64  # of anybody
IDLE = 600.0  # seconds that one may say nothing: a worker has other things to do between two chunks
PAUSE = 0.5  # seconds after a connection that could not be taken
ASIDE = 2  # slots' worth of shared memory that copies leave to the node's own snapshots


class Serving:
    """Serves whoever knows the key, from now on to the end of the process.

    `sealed` is called when a copy has come; `tls`: the context to serve with, and the digest of its certificate.
    """

    def __init__(
        self,
        directory: Path,
        listener: socket.socket,
        key: str,
        *,
        tls: tuple[ssl.SSLContext | None, bytes] = (None, b""),
        sealed: Callable[[], None] = lambda: None,
    ) -> None:
        self._listener = listener
        self._key = key
        self._tls, self._binding = tls
        self._directory = directory
        self._copies = Copies(directory, sealed)
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._unproved: Unproved[socket.socket] = Unproved(MOST_UNPROVED)
        self._lock = threading.Lock()
        listener.setblocking(True)
        threading.Thread(target=self._accept, name="outlast-serving", daemon=True).start()

    def _accept(self) -> None:
        while True:
            self._make_room()
            try:
                connection, address = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EBADF, errno.EINVAL):  # it was closed
                    return
                sparing.warning("a connection could not be taken: %s", error)  # no descriptor is left, or it is gone
                time.sleep(PAUSE)
                continue
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            with self._lock:
                self._unproved.add(connection, address[0], time.monotonic())
            threading.Thread(target=self._serve, args=(connection, address[0]), daemon=True).start()

    def _make_room(self) -> None:
        """Wait until one more may knock. Who has been knocking for too long, and does not know the key, has to go."""
        while True:
            with self._lock:
                if not self._unproved.full:
                    return
                idle = self._unproved.in_the_way(time.monotonic())
                if idle is not None:
                    self._unproved.discard(idle)
                    with suppress(OSError):  # it is closed already
                        socket.socket.shutdown(idle, socket.SHUT_RDWR)  # under TLS, too
                    return
            time.sleep(unproved.PAUSE)

    def _serve(self, connection: socket.socket, address: str) -> None:
        try:
            try:
                channel = welcome(connection, self._key, binding=self._binding)
            finally:
                with self._lock:
                    self._unproved.discard(connection)
            try:
                with self._place():
                    self._attend(channel)
            finally:
                channel.close()
        except (WireError, ssl.SSLError) as error:
            sparing.warning("closed the connection from %s: %s", address, error)
        except (OSError, Refused, ValueError) as error:
            log.debug("the connection from %s ended: %s", address, error)

    @contextmanager
    def _place(self) -> Iterator[None]:
        self._places.acquire()
        try:
            yield
        finally:
            self._places.release()

    def _attend(self, channel: Channel) -> None:
        with ExitStack() as held:
            reading: _Reading | None = None
            while True:
                channel.be_patient(IDLE)
                request = channel.receive()
                channel.be_patient()
                if isinstance(request, Put):
                    self._copies.take(channel, request.ticket)
                elif isinstance(request, Describe | ReadChunk):
                    if reading is None or (reading.mark, reading.rank) != (request.mark, request.rank):
                        held.close()
                        reading = _Reading.of(self._directory, request.mark, request.rank)
                        if reading is not None:
                            held.callback(reading.slot.close)
                    answer(channel, reading, request)
                else:
                    raise WireError("it answers what nobody asked")


class _Reading:
    """A slot that somebody reads from."""

    def __init__(self, slot: Slot, ticket: Ticket, *, replica: bool) -> None:
        self.slot, self.ticket, self.replica = slot, ticket, replica
        self.mark, self.rank = ticket.mark, ticket.rank

    @classmethod
    def of(cls, directory: Path, mark: Mark, rank: int) -> _Reading | None:
        """A rank's shard, as the node's own workers left it, or else a copy."""
        for replica in (False, True):
            for path, ticket in arena.tickets(directory, replicas=replica):
                if (ticket.mark, ticket.rank) == (mark, rank):
                    with suppress(OSError, ValueError):
                        return cls(open_slot(path), ticket, replica=replica)
        return None


def answer(channel: Channel, reading: _Reading | None, request: Describe | ReadChunk) -> None:
    """Say what is there, or give a chunk of it. Nobody overwrites it meanwhile, but perhaps before."""
    if reading is None:
        channel.send(No("it is not there"))
        return
    slot, ticket = reading.slot, reading.ticket
    if slot.hold(ticket.save, ticket.rank) is None:
        channel.send(No("it has been overwritten"))
        return
    try:
        if isinstance(request, Describe):
            channel.send(Described(msgspec.json.encode(ticket)))
            return
        length = length_of(ticket.size, request.chunk)
        if request.chunk < 0 or not length:
            raise WireError(f"there is no chunk {request.chunk}")
        data = slot.data[request.chunk * CHUNK : request.chunk * CHUNK + length]
        at = request.chunk * DIGEST
        digest = bytes(slot.digests(ticket)[at : at + DIGEST]) if reading.replica else digest_of(data)
        channel.send(Piece(length, digest), data)
    finally:
        slot.unlock()


class Copies:
    """The copies of other nodes' shards, in the arena of this one."""

    def __init__(self, directory: Path, sealed: Callable[[], None] = lambda: None) -> None:
        self._directory = directory
        self._sealed = sealed
        self._ranks: dict[int, threading.Lock] = {}
        self._lock = threading.Lock()
        self._said_no_room = False

    def take(self, channel: Channel, encoded: bytes) -> None:
        """Receive a copy. What goes wrong on the way leaves the one before it as it was."""
        try:
            ticket = msgspec.json.decode(encoded, type=Ticket)
        except UNREADABLE as error:
            raise WireError(f"it sends a ticket that cannot be read: {error}") from error
        with self._lock:
            turn = self._ranks.setdefault(ticket.rank, threading.Lock())
        with turn:
            copies = Arena(self._directory, f"r{ticket.rank}", most=REPLICAS, aside=ASIDE)
            try:
                self._receive(channel, copies, ticket)
            except NoRoom as error:
                if not self._said_no_room:
                    self._said_no_room = True
                    log.warning("%s; the job continues without these replicas", error)
                channel.send(No("it has too little shared memory for it"))
            finally:
                copies.close()

    def _receive(self, channel: Channel, copies: Arena, ticket: Ticket) -> None:
        there = [found for slot in copies.slots() if (found := slot.ticket()) is not None]
        newest = max(there, key=lambda each: each.saved_at, default=None)
        if any(each.mark == ticket.mark for each in there):
            channel.send(CopyDone())
            return
        private.make_directory(self._directory)
        size = ticket.size + DIGEST * chunks(ticket.size)
        with copies.take(size, {newest.mark} if newest is not None else set()) as slot:
            channel.send(Go())
            slot.begin()
            digests = slot.digests(ticket)
            for number in range(chunks(ticket.size)):
                piece = channel.receive()
                length = length_of(ticket.size, number)
                if not isinstance(piece, Piece) or piece.length != length or len(piece.digest) != DIGEST:
                    raise WireError("it sends something else than it said")
                view = slot.data[number * CHUNK : number * CHUNK + length]
                channel.fill(view)
                if digest_of(view) != piece.digest:
                    channel.send(No(f"chunk {number} was damaged on the way"))
                    raise WireError(f"chunk {number} of rank {ticket.rank}'s shard was damaged on the way")
                digests[number * DIGEST : (number + 1) * DIGEST] = piece.digest
            slot.seal(ticket)
        if ticket.save.sequence:
            # The ranks of this run have all saved before, so those that are left of another one are complete nowhere.
            clear(self._directory, ticket.save.run)
        channel.send(CopyDone())
        self._sealed()


def clear(directory: Path, run: str) -> None:
    """Remove the copies that are not of this run, those apart that somebody has to do with."""
    for path in arena.replica_files(directory):
        with suppress(OSError, ValueError):
            slot = open_slot(path)
            try:
                if slot.lock() and ((ticket := slot.ticket()) is None or ticket.save.run != run):
                    path.unlink()  # also what has come only half
            finally:
                slot.close()
