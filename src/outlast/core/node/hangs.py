"""What a node says about late ranks, and about how long theirs take where nothing is wrong."""

from __future__ import annotations

from outlast.core.node.allegiance import NEVER
from outlast.protocol.hangs import Measures, Overdue

REPEATED = 5.0  # seconds for which a node says again that ranks are late: to a coordinator that has just come


class LateRanks:
    """One node's part of inquiries and of the calibration of timeouts."""

    def __init__(self) -> None:
        self.measures = Measures(0)
        self.agreed = 0  # the newest round whose outcome this node knows
        self.look = 0  # the newest inquiry that this connection has brought
        self._overdue = Overdue(0, False)
        self._until = NEVER  # when it no longer says so

    def begin(self) -> None:
        """Workers of a new generation start: none of them is late."""
        self._until = NEVER

    def late(self, ending: bool, now: float) -> None:
        """Ranks here are newly late."""
        self._overdue = Overdue(self._overdue.number + 1, ending)
        self._until = now + REPEATED

    def overdue(self, now: float) -> Overdue | None:
        """What a report says."""
        return self._overdue if now < self._until else None

    def measured(self, longest: dict[str, float], number: int | None) -> bool:
        """Workers have measured this, for that round or because one of them asks for a new one.

        Returns whether it is to be told.
        """
        if number is None:  # another rank may have asked before, and not been answered yet
            number = max(self.measures.round, self.agreed + 1)
        if number < self.measures.round:
            return False
        self.measures = Measures(number, longest)
        return True
