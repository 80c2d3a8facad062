"""A rank's shard of a snapshot, wherever it is in memory: on this node, or on others, from which it is read by chunks.

Each place is tried in turn: the node's own slots, copies on this node, the nodes whose workers took it, copies there.
What comes from elsewhere, or has come from elsewhere once, is compared with its hashes before it is used. A place that
turns out to be bad, also in the middle of reading, is named in one line, and the next one takes over.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import msgspec

from outlast.checkpoint.memory import arena
from outlast.checkpoint.memory.channel import (
    Channel,
    Describe,
    Described,
    Piece,
    ReadChunk,
    Refused,
    dial,
    digest_of,
    length_of,
)
from outlast.checkpoint.memory.slot import DIGEST, Mark, Slot, Ticket, chunks, open_slot
from outlast.checkpoint.storage.format import CHUNK, Damaged
from outlast.protocol.fields import UNREADABLE
from outlast.protocol.snapshots import Snapshot
from outlast.system import private
from outlast.transport.wire import WireError

log = logging.getLogger("outlast")

FILE = "agreed"  # in the arena: what the agent tells its workers
CACHED = 4  # chunks of shards of other nodes


class AgreedSnapshot(msgspec.Struct, frozen=True):
    """What a generation may restore from memory, as coordinator and agents have agreed; and how to get it.

    In a file, not in the environment: it grows with the number of nodes, and the key is for this user alone.
    """

    generation: int
    key: str = ""
    tls: bool = False
    snapshots: tuple[Snapshot, ...] = ()

    def by_mark(self) -> dict[Mark, Snapshot]:
        return {(each.run, each.sequence): each for each in self.snapshots}


def agreed(directory: Path, generation: int) -> AgreedSnapshot:
    """What the agent has left there for this generation."""
    with suppress(OSError, *UNREADABLE):
        found = msgspec.json.decode(private.read(directory / FILE), type=AgreedSnapshot)
        if found.generation == generation:
            return found
    return AgreedSnapshot(generation)


class ShardPlace(Protocol):
    """Where a shard is. All of these raise `Damaged`."""

    ticket: Ticket

    def view(self, offset: int, length: int) -> memoryview: ...

    def rest(self) -> None:
        """It may be a while until it is read again."""

    def close(self) -> None: ...


class OnThisNode:
    """A slot that this process can map; `replica`: one whose bytes came from another node.

    `mapped`: where it is mapped already, by its owner, which keeps it.
    """

    def __init__(
        self, path: str | Path, mark: Mark, rank: int, *, replica: bool = False, mapped: Slot | None = None
    ) -> None:
        self._path, self._replica, self._borrowed = path, replica, mapped is not None
        self._good: set[int] = set()
        try:
            self._slot = mapped or open_slot(path)
        except (OSError, ValueError) as error:
            raise Damaged(f"{path}: {error}") from error
        ticket = self._slot.hold(mark, rank)
        if ticket is None:
            self.close()
            raise Damaged(f"{path} has been overwritten")
        self.ticket = ticket

    def view(self, offset: int, length: int) -> memoryview:
        if self._replica and length:
            for number in range(offset // CHUNK, chunks(offset + length)):
                self._check(number)
        return self._slot.data[offset : offset + length]

    def expect(self, offset: int, length: int) -> None:
        if not self._borrowed:  # its owner wrote all of it: the pages are there
            self._slot.expect_reading(offset, length)

    def rest(self) -> None:
        pass

    def close(self) -> None:
        if self._borrowed:
            self._slot.unlock()
        else:
            self._slot.close()

    def _check(self, number: int) -> None:
        if number not in self._good:
            if not is_whole(self._slot, self.ticket, number):
                raise Damaged(f"the replica {self._path} is damaged in chunk {number}")
            self._good.add(number)


class Caller:
    """This process's connection to keepers elsewhere: to one at a time, and to none while it reads nothing.

    A keeper has room for some hundred. Ranks that held one for each shard would keep each other out.
    """

    def __init__(self, key: str, *, tls: bool) -> None:
        self._key, self._tls = key, tls
        self._channel: Channel | None = None
        self._place: tuple[str, int] | None = None
        self.cache: OrderedDict[tuple[str, int, int], memoryview] = OrderedDict()  # of all shards: they are many

    def to(self, host: str, port: int) -> Channel:
        """Raises OSError, `WireError`."""
        if self._channel is None or self._place != (host, port):
            self.hang_up()
            self._channel, self._place = dial(host, port, self._key, tls=self._tls), (host, port)
        return self._channel

    def hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


class OnAnotherNode:
    """What a keeper elsewhere has."""

    def __init__(self, caller: Caller, host: str, port: int, mark: Mark, rank: int) -> None:
        self._caller, self._host, self._port = caller, host, port
        self._where, self._mark, self._rank = f"{host}:{port}", mark, rank
        try:
            channel = caller.to(host, port)
            channel.send(Describe(mark, rank))
            answer = channel.receive()
            assert isinstance(answer, Described)
            self.ticket = msgspec.json.decode(answer.ticket, type=Ticket)
            assert (self.ticket.mark, self.ticket.rank) == (mark, rank)
        except (OSError, WireError, Refused, AssertionError, *UNREADABLE) as error:
            caller.hang_up()
            raise Damaged(f"rank {rank}'s shard cannot be had from {self._where}: {error}") from error

    def view(self, offset: int, length: int) -> memoryview:
        first, last = offset // CHUNK, chunks(offset + length)
        if last - first <= 1:
            start = offset - first * CHUNK
            return self._chunk(first)[start : start + length] if length else memoryview(b"")
        whole = memoryview(bytearray(length))
        for number in range(first, last):
            begin, end = max(offset, number * CHUNK), min(offset + length, (number + 1) * CHUNK)
            whole[begin - offset : end - offset] = self._chunk(number)[begin - number * CHUNK : end - number * CHUNK]
        return whole

    def rest(self) -> None:
        self._caller.hang_up()

    def close(self) -> None:
        self._caller.hang_up()

    def _chunk(self, number: int) -> memoryview:
        cache, key = self._caller.cache, (self._where, self._rank, number)
        if key in cache:
            cache.move_to_end(key)
            return cache[key]
        try:
            data = self._fetch(number)
        except (OSError, WireError, Refused) as error:
            raise Damaged(f"rank {self._rank}'s shard cannot be had from {self._where}: {error}") from error
        cache[key] = data
        if len(cache) > CACHED:
            cache.popitem(last=False)
        return data

    def _fetch(self, number: int) -> memoryview:
        channel = self._caller.to(self._host, self._port)
        channel.send(ReadChunk(self._mark, self._rank, number))
        piece = channel.receive()
        if not isinstance(piece, Piece) or piece.length != length_of(self.ticket.size, number):
            raise WireError("it gives something else than it was asked for")
        data = memoryview(bytearray(piece.length))
        channel.fill(data)
        if digest_of(data) != piece.digest:
            raise Damaged(f"what {self._where} has of rank {self._rank}'s shard is damaged in chunk {number}")
        return data


class MemoryShard:
    """A shard in memory, to be read like a memoryview of what it would be on disk. Raises `Damaged` if none is good."""

    def __init__(self, rank: int, places: Sequence[Callable[[], ShardPlace]]) -> None:
        self._rank = rank
        self._places = list(places)
        self._place: ShardPlace | None = None
        self._bad = ""
        self.ticket = self._now().ticket

    def __len__(self) -> int:
        return self.ticket.length

    def __getitem__(self, part: slice) -> memoryview:
        start, stop, _ = part.indices(len(self))
        return self._view(start, max(stop - start, 0))

    def tail(self) -> tuple[bytes, bytes, bytes]:
        """Its table; and of rank 0's, the table of contents with its blanks."""
        ticket, at, parts = self.ticket, self.ticket.length, []
        for length in (ticket.table, ticket.contents, ticket.blanks):
            parts.append(bytes(self._view(at, length)))
            at += length
        self._now().rest()  # until all ranks have come as far
        return parts[0], parts[1], parts[2]

    def expect(self, offset: int, length: int) -> None:
        """A large part is about to be read."""
        if isinstance(self._place, OnThisNode):
            self._place.expect(offset, length)

    def close(self) -> None:
        if self._place is not None:
            self._place.close()
            self._place = None
        self._places = []

    def _view(self, offset: int, length: int) -> memoryview:
        while True:
            place = self._now()
            try:
                return place.view(offset, length)
            except Damaged as damaged:
                self._give_up(damaged)
                place.close()
                self._place = None

    def _now(self) -> ShardPlace:
        while self._place is None:
            if not self._places:
                raise Damaged(self._bad or f"rank {self._rank}'s shard is nowhere")
            try:
                self._place = self._places.pop(0)()
            except Damaged as damaged:
                self._give_up(damaged)
        return self._place

    def _give_up(self, damaged: Damaged) -> None:
        self._bad = self._bad or str(damaged)
        if self._places:
            log.warning("%s; trying another place", damaged)


def places(
    directory: Path | None,
    mark: Mark,
    slots: Mapping[int, str | Path],
    told: AgreedSnapshot,
    mapped: Mapping[str, Slot] = MappingProxyType({}),
) -> dict[int, list[Callable[[], ShardPlace]]]:
    """By rank, where its shard may be, the best first. `slots`: of this node's own workers, by rank.

    `mapped`: those that this process has mapped anyway, by path: half of the time of a restore goes into new mappings.
    """

    def here(path: str | Path, rank: int, replica: bool) -> Callable[[], ShardPlace]:
        return lambda: OnThisNode(path, mark, rank, replica=replica, mapped=mapped.get(str(path)))

    caller = Caller(told.key, tls=told.tls)

    def elsewhere(host: str, port: int, rank: int) -> Callable[[], ShardPlace]:
        return lambda: OnAnotherNode(caller, host, port, mark, rank)

    found: dict[int, list[Callable[[], ShardPlace]]] = {rank: [here(path, rank, False)] for rank, path in slots.items()}
    for path, ticket in arena.tickets(directory, replicas=True) if directory is not None else []:
        if ticket.mark == mark:
            found.setdefault(ticket.rank, []).append(here(path, ticket.rank, True))
    snapshot = told.by_mark().get(mark)
    for which in ("ranks", "replicas"):
        for holder in snapshot.holders if snapshot is not None else ():
            for rank in getattr(holder, which) if holder.port else ():
                if rank not in slots:
                    found.setdefault(rank, []).append(elsewhere(holder.addr, holder.port, rank))
    return found


def is_whole(slot: Slot, ticket: Ticket, number: int) -> bool:
    """Of a copy: whether a chunk is what was sent."""
    data = slot.data[number * CHUNK : number * CHUNK + length_of(ticket.size, number)]
    return digest_of(data) == bytes(slot.digests(ticket)[number * DIGEST : (number + 1) * DIGEST])


def damage(path: Path) -> str:
    """What is wrong with a copy, in one line; nothing is known of slots that are no copies."""
    if not path.name.startswith("r"):
        return ""
    try:
        slot = open_slot(path)
    except (OSError, ValueError) as error:
        return f"{path}: {error}"
    try:
        found = slot.ticket()
        ticket = slot.hold(found.save) if found is not None else None
        if ticket is None:
            return f"{path} has been overwritten"
        bad = [number for number in range(chunks(ticket.size)) if not is_whole(slot, ticket, number)]
        return f"the replica {path} is damaged in chunk {bad[0]}" if bad else ""
    finally:
        slot.close()
