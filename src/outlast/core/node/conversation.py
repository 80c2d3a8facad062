"""What a node and its coordinator say to each other: connections, numbered reports, answers, and the lease."""

from __future__ import annotations

from outlast.core.node.allegiance import NEVER, Allegiance


class Conversation:
    """One node's side of it, over all of its connections."""

    def __init__(self, allegiance: Allegiance) -> None:
        self._allegiance = allegiance
        self.connected = False
        self.connection = 0
        self.seq = 0  # of the newest report
        self.acked = 0  # the newest report on this connection that was answered
        self.echoed = False  # the node has said that it heard an answer without a lease
        self.lease_end = NEVER
        self.beat_at: float | None = None  # when the next report is due
        self._sent_at: dict[int, float] = {}  # reports on this connection that wait for their Ack
        self._heard_at = 0.0

    def open(self, now: float) -> None:
        """A connection stands.

        Reports of an earlier one may have been heard by a coordinator that has since given this node up: only
        an answer on this one renews the lease.
        """
        self.connected = True
        self.connection += 1
        self.acked, self.echoed = 0, False
        self._sent_at.clear()
        self.hear(now)

    def close(self) -> None:
        """The connection is gone."""
        self.connected = False
        self.beat_at = None

    def hear(self, now: float) -> None:
        """The coordinator has shown that it is there."""
        self._heard_at = now

    def patience(self) -> float:
        """Until when the coordinator may be silent."""
        welcome = self._allegiance.welcome
        if welcome is not None and welcome.lease == float("inf"):
            return float("inf")  # there is no other coordinator to look for, and ours would take a hang-up for our end
        return self._heard_at + self._allegiance.node_timeout

    def report(self, now: float) -> int:
        """A report is sent now. Returns its number."""
        self.seq += 1
        self._sent_at[self.seq] = now
        if (welcome := self._allegiance.welcome) is not None:
            self.beat_at = now + welcome.heartbeat
            for seq in [s for s, at in self._sent_at.items() if at < now - welcome.lease]:
                del self._sent_at[seq]  # its Ack would renew nothing
        return self.seq

    def renew(self, seq: int) -> bool:
        """An answer to this report brings a lease. Returns whether that lasts longer than the one before."""
        sent, welcome = self._sent_at.pop(seq, None), self._allegiance.welcome
        if sent is None or welcome is None or sent + welcome.lease <= self.lease_end:
            return False
        self.lease_end = sent + welcome.lease
        return True
