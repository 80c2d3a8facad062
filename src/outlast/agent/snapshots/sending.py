"""A keeper's copies on their way to another node: each newest snapshot of this one goes to its partner's memory.

When snapshots are taken faster than the network takes them, only one in two of them is copied, or in four, and so on:
the same ones on all nodes, for else there would be none that is whole. The coordinator sees to that.

While a slot is on its way nobody overwrites it, if there is room for the worker to have another; else it may be
overwritten, which is noticed, and a newer one is sent instead. So training never waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from outlast.agent.snapshots.memory import NodeSnapshot, snapshots
from outlast.checkpoint.memory import arena
from outlast.checkpoint.memory.channel import Channel, CopyDone, Go, Piece, Put, Refused, dial, digest_of, length_of
from outlast.checkpoint.memory.room import has_room
from outlast.checkpoint.memory.slot import Mark, Slot, chunks, open_slot
from outlast.checkpoint.storage.format import CHUNK
from outlast.transport.wire import WireError

log = logging.getLogger("keeper")

AGAIN = 1.0  # seconds after which a partner that could not be reached is tried again
SLOWEST = 1 << 16  # one in so many snapshots is copied, at least
PROOF = 16  # copies in a row that would have been in time at half the stride: then that is tried
EASILY = 4  # times shorter than from one copy to the next
SLOTS = 3  # of a worker: with so many it has one to fill, whichever is on its way


class _Overwritten(Exception):
    """The worker needed the slot."""


class StrideMeter:
    """How many snapshots have to be left out for one that is copied, so that its copy is there before the next one's.

    >>> stride = StrideMeter()
    >>> stride.sent(in_time=False, one_in=1)  # as it is now, the network is too slow
    2
    >>> stride.sent(in_time=False, one_in=1)  # of those that were taken before that was known
    2
    >>> stride.sent(in_time=False, one_in=2), stride.sent(in_time=False, one_in=2)  # the first one had to wait
    (2, 4)
    """

    def __init__(self) -> None:
        self.wanted = 1
        self._known = 1
        self._in_time = 0

    def sent(self, *, in_time: bool, one_in: int, easily: bool = False) -> int:
        """A copy has arrived, in time or not, with the stride of all nodes. Returns what this one can keep up with.

        `easily`: so soon that it could have been done more often.
        """
        first, self._known = one_in != self._known, one_in
        self._in_time = self._in_time + 1 if easily else 0
        if not in_time and not first and one_in >= self.wanted:
            self.wanted = min(2 * one_in, SLOWEST)
        elif self._in_time >= PROOF and self.wanted > 1:
            self.wanted, self._in_time = self.wanted // 2, 0
        return self.wanted


class Sending:
    """Sends, in a thread of its own, whenever it is told that something may be new.

    `keeps_up` is called with the stride that this node can keep, when that changes.
    """

    def __init__(
        self, directory: Path, key: str, *, tls: bool = False, keeps_up: Callable[[int], None] = lambda _: None
    ) -> None:
        self._directory = directory
        self._key, self._tls = key, tls
        self._keeps_up = keeps_up
        self._news = threading.Condition()
        self._new = False
        self._partner: tuple[str, int] | None = None
        self._sent: Mark | None = None
        self._sent_at = 0.0
        self._stride = StrideMeter()
        self._trouble = ""  # the last that was said
        threading.Thread(target=self._run, name="outlast-sending", daemon=True).start()

    def partner(self, address: tuple[str, int] | None) -> None:
        """From now on copies go there; what is here goes there as well."""
        with self._news:
            if address != self._partner:
                self._partner, self._sent, self._trouble = address, None, ""
        self.look()

    def look(self) -> None:
        """There may be something new."""
        with self._news:
            self._new = True
            self._news.notify_all()

    def _run(self) -> None:
        patience = None
        while True:
            with self._news:
                self._news.wait_for(lambda: self._new, patience)
                self._new = False
                partner = self._partner
            patience = None
            one_in = arena.stride(self._directory)
            newest = self._newest(one_in)
            if partner is None or newest is None or newest.mark == self._sent:
                continue
            begun = time.monotonic()
            try:
                host, port = partner
                send(newest.paths, newest.mark, dial(host, port, self._key, tls=self._tls))
            except _Overwritten:
                self._new = True
            except (OSError, WireError, Refused) as error:
                self._say(f"{partner[0]} has no copy of this node's snapshots: {error}")
                patience = AGAIN
            else:
                self._arrived(newest, partner, one_in, begun)

    def _newest(self, one_in: int) -> NodeSnapshot | None:
        """The newest snapshot whose turn it is."""
        turns = (each for each in snapshots(self._directory) if arena.is_copied(each.ticket, one_in))
        return next(turns, None)

    def _arrived(self, copied: NodeSnapshot, partner: tuple[str, int], one_in: int, begun: float) -> None:
        if self._trouble:
            log.info("%s has a copy of this node's snapshots again", partner[0])
        self._trouble = ""
        newest = self._newest(one_in)
        in_time = newest is not None and newest.mark == copied.mark
        since, self._sent_at = begun - self._sent_at, begun
        easily = in_time and EASILY * (time.monotonic() - begun) < since
        before = self._stride.wanted
        if self._stride.sent(in_time=in_time, one_in=one_in, easily=easily) != before:
            self._keeps_up(self._stride.wanted)
        with self._news:
            self._sent = copied.mark if self._partner == partner else None
            self._new = True  # perhaps, meanwhile

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.warning("%s", trouble)
        self._trouble = trouble


def send(paths: Sequence[Path], mark: Mark, channel: Channel) -> None:
    """Send the slots of one save, and close the channel. Raises OSError, `WireError`, `Refused`, `_Overwritten`."""
    try:
        for path in paths:
            try:
                slot = open_slot(path)
            except (OSError, ValueError) as error:
                raise _Overwritten from error
            try:
                _send(channel, slot, mark, path)
            finally:
                slot.close()
    finally:
        channel.close()


def _send(channel: Channel, slot: Slot, mark: Mark, path: Path) -> None:
    worker = path.name.partition(".")[0]
    slots = len(list(path.parent.glob(f"{worker}.[0-9]")))
    if slots >= SLOTS or has_room(path.parent, len(slot.data)):
        slot.lock(shared=True)  # the worker that fills it at this moment has it to itself; that is seen below
    ticket = slot.ticket()
    if ticket is None or ticket.mark != mark:
        raise _Overwritten
    channel.send(Put(msgspec.json.encode(ticket)))
    if not isinstance(channel.receive(), Go):
        return  # it is there already
    for number in range(chunks(ticket.size)):
        data = slot.data[number * CHUNK : number * CHUNK + length_of(ticket.size, number)]
        digest = digest_of(data)
        if slot.ticket() != ticket:
            raise _Overwritten
        channel.send(Piece(len(data), digest), data)
    if slot.ticket() != ticket:
        raise _Overwritten
    if not isinstance(channel.receive(), CopyDone):
        raise WireError("it does not say that it is done")
