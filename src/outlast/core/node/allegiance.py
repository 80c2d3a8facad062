"""Whom a node obeys: one coordinator at a time, and never one of an older term than it has obeyed before.

For a while after each answer it joins no other. When that time has passed and none can be reached, it may have to host
the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlast.core.membership.liveness import BEATS
from outlast.core.node.commands import Mandate
from outlast.core.succession.authority import PROMISE_SHARE
from outlast.protocol.membership import Welcome
from outlast.protocol.succession import Charter, Standing, Successor, Term

FIRST_PATIENCE = 10.0  # with a coordinator that has not said how long its leases are
NEVER = float("-inf")


class Allegiance:
    """One node's.

    >>> allegiance = Allegiance("a")
    >>> allegiance.meet(Standing(Term(1, "b"), acting=True))
    >>> allegiance.heed(1, now=0.0), allegiance.term, allegiance.heed(0, now=0.1)
    (True, Term(number=1, by='b'), False)
    """

    def __init__(self, me: str) -> None:
        self.me = me
        self.term = Term()  # the newest that it has obeyed
        self.charter: Charter | None = None
        self.welcome: Welcome | None = None  # of the coordinator that it joined last
        self.peer = ""  # whose coordinator this node is connected to, or was
        self.obeyed = 0.0  # when a coordinator last answered in a way that counts
        self.hosting = False
        self._hosted = 0  # the number of the newest term of a coordinator that was hosted here
        self._promised = NEVER  # until then this node joins no other
        self._alone_since = NEVER  # when the last connection ended
        self._released = False  # its coordinator has resigned: nobody comes back there
        self._not_before = NEVER  # a coordinator that could not be hosted is not tried again at once

    @property
    def node_timeout(self) -> float:
        """The job's, as far as this node knows it."""
        if self.welcome is not None:
            return self.welcome.heartbeat * BEATS
        return self.charter.rules.node_timeout if self.charter is not None else FIRST_PATIENCE

    @property
    def successors(self) -> tuple[Successor, ...]:
        """Where a coordinator may be. Not all who knew of a later generation need have come to where this node is."""
        told = self.charter.turns if self.charter is not None else ()
        heard = self.welcome.successors if self.welcome is not None else ()
        return tuple(dict.fromkeys((*told, *heard)))

    @property
    def known(self) -> tuple[int, int, int]:
        """Which charter it has, as it says in its reports."""
        return self.charter.known if self.charter is not None else (0, 0, 0)

    def is_ours(self, standing: Standing) -> bool:
        """Whether a coordinator may be this node's. One that is new asks, and is told why not."""
        return self.charter is None or standing.job in ("", self.charter.rules.job)

    def choose(self, standings: Sequence[Standing], now: float) -> int | None:
        """Which of the coordinators that answer to join: one that acts before others, then that of the newest term."""
        may = [
            (standing.acting, standing.term, index)
            for index, standing in enumerate(standings)
            if standing.term.by == self.term.by or now >= self._promised
        ]
        return max(may)[2] if may else None

    def meet(self, standing: Standing) -> None:
        """A connection stands, to the coordinator that said this."""
        self.peer = standing.term.by

    def part(self, now: float) -> None:
        """The connection is gone."""
        self._alone_since = now

    def heed(self, number: int, now: float) -> bool:
        """A coordinator speaks in this term. Returns whether it is obeyed: it may not know that it was replaced."""
        term = Term(number, self.peer)
        if term != self.term and term.number <= self.term.number:
            return False  # or its number is another's
        self.term, self.obeyed, self._released = term, now, False
        self._promised = now + PROMISE_SHARE * self.node_timeout
        return True

    def release(self, number: int, now: float) -> None:
        """The coordinator of this term has resigned: it acts no more, and another one is needed at once."""
        if Term(number, self.peer) == self.term:
            self._promised, self._released = now, True

    def adopt(self, charter: Charter) -> None:
        """A coordinator tells what the job needs to outlive it."""
        if self.charter is None or _age(charter) > _age(self.charter):
            self.charter = charter

    def retires(self) -> bool:
        """Another node's coordinator leads the job. Returns whether the one that is hosted here is to end."""
        ends = self.hosting and self.peer != self.me
        self.hosting = self.hosting and not ends
        return ends

    def mandate(self) -> Mandate:
        """For each coordinator that is started here: its term is newer than all that were heard of or hosted before.

        It must know the job's charter before anybody joins it: newcomers know nothing, and without a charter a
        coordinator takes the job for a new one, in which it may act alone.
        """
        self.hosting = True
        self._hosted = max(self._hosted, self.term.number) + 1
        return Mandate(Term(self._hosted, self.me), self.charter)

    def not_hosted(self, now: float) -> None:
        """The coordinator that was to be hosted here is not."""
        self.hosting = False
        self._not_before = now + self.node_timeout

    def host_at(self) -> float | None:
        """When it is this node's turn to host the coordinator, should none be reached before."""
        if self.charter is None or self.hosting:
            return None
        turns = [successor.node for successor in self.charter.turns]
        if self.term.by in turns:  # its coordinator is the one that cannot be reached
            turns.remove(self.term.by)
            turns.append(self.term.by)
        if self.me not in turns or self.charter.rules.alone:
            return None
        looked = self._alone_since + (0.0 if self._released else self.node_timeout / 4)
        return max(self._not_before, looked, self._promised + turns.index(self.me) * self.node_timeout / 2)


def _age(charter: Charter) -> tuple[int, int, int]:
    affirmed, generation, ballots = charter.known
    return (affirmed, generation, -ballots)  # with fewer ballots, more is settled
