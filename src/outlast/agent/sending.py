"""A keeper's copies on their way to another node: each newest snapshot of this one goes to its partner's memory.

When snapshots are taken faster than the network takes them, the newest is sent next and those between are not. While a
slot is on its way nobody overwrites it, if there is room for the worker to have another; else it may be overwritten,
which is noticed, and a newer one is sent instead. So training never waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from outlast.agent.memory import snapshots
from outlast.checkpoint import arena
from outlast.checkpoint.arena import Mark, Slot, Ticket, chunks, open_slot
from outlast.checkpoint.channel import Channel, Done, Go, Piece, Put, Refused, dial, digest_of, length_of
from outlast.checkpoint.format import CHUNK
from outlast.wire import WireError

log = logging.getLogger("keeper")

AGAIN = 1.0  # seconds after which a partner that could not be reached is tried again
SLOTS = 3  # of a worker: with so many it has one to fill, whichever is on its way


class _Overwritten(Exception):
    """The worker needed the slot."""


class Sending:
    """Sends, in a thread of its own, whenever it is told that something may be new."""

    def __init__(self, directory: Path, key: str, *, tls: bool = False) -> None:
        self._directory = directory
        self._key, self._tls = key, tls
        self._news = threading.Condition()
        self._new = False
        self._partner: tuple[str, int] | None = None
        self._sent: Mark | None = None
        self._before: Ticket | None = None  # of the last that was sent
        self._behind = False
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
            if partner is None:
                continue
            newest = next(iter(snapshots(self._directory)), None)
            if newest is None or newest.mark == self._sent:
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
                if self._trouble:
                    log.info("%s has a copy of this node's snapshots again", partner[0])
                self._trouble = ""
                self._pace(newest.ticket, time.monotonic() - begun)
                with self._news:
                    self._sent = newest.mark if self._partner == partner else None
                    self._new = True  # perhaps, meanwhile

    def _pace(self, sent: Ticket, took: float) -> None:
        """Say once if snapshots are taken faster than they are sent."""
        before, self._before = self._before, sent
        if before is None or before.save.run != sent.save.run or sent.save.sequence <= before.save.sequence:
            return
        interval = (sent.saved_at - before.saved_at) / (sent.save.sequence - before.save.sequence)
        if took > interval and sent.save.sequence > before.save.sequence + 1 and not self._behind:
            self._behind = True
            log.warning(
                "a copy of a snapshot takes %.1f s, and one is taken every %.1f s: if a node is lost, there may be "
                "none that is whole in memory; take them less often (every=), or use a faster network",
                *(took, interval),
            )

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
    if slots >= SLOTS or arena.has_room(path.parent, len(slot.data)):
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
    if not isinstance(channel.receive(), Done):
        raise WireError("it does not say that it is done")
