"""Calibration: what all ranks of the job have measured together, from which their agents make timeouts.

It goes in rounds. A rank asks for one, and its node reports the next number with what its workers have measured;
whoever reports an older one is asked. When all members have answered, they are told the result.
Constant work per answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from outlast.core.hangs.rank_clocks import SAFETY_FACTOR, Timeouts, aged, calibrated, merged
from outlast.protocol.hangs import Agreed, Measure, Measures
from outlast.protocol.membership import Report

NEWS = 1.5  # what differs from what was said before by this factor is worth saying


class CalibrationRounds:
    """The newest round, and what was agreed on. Nothing of it is remembered: nodes repeat what they measured.

    >>> calibration = CalibrationRounds()
    >>> calibration.told("a", Measures(1, {"heartbeat": 2.0}), members={"a", "b"})
    Measure(round=1)
    >>> calibration.told("b", Measures(1, {"heartbeat": 3.0}), members={"a", "b"})
    Agreed(measures=Measures(round=1, longest={'heartbeat': 3.0}))
    """

    def __init__(self, factor: float = SAFETY_FACTOR) -> None:
        self._factor = factor  # of the timeouts that agents make of it
        self.round = 0
        self.agreed = Measures(0)
        self._before: Mapping[str, float] = {}  # agreed on when the present generation began
        self._said: Mapping[str, float] = {}  # what people were told last
        self._now: Mapping[str, float] = {}  # said in it so far
        self._waiting: set[str] = set()

    def told(self, node: str, said: Measures, members: Collection[str]) -> Measure | Agreed | None:
        """Take in what a member says; what all of them are to be told now, if anything."""
        begins = said.round > self.round
        if begins:
            self._begin(said.round, members)
        elif said.round == self.round == self.agreed.round and merged([self._now, said.longest]) != self._now:
            # Another of its ranks asked before it had heard that the round was over.
            self._begin(self.round + 1, members)
            return Measure(self.round)
        if said.round == self.round:
            self._now = merged([self._now, said.longest])
            self._waiting.discard(node)
            if not self._waiting and self.agreed.round < self.round:
                self.agreed = Measures(self.round, merged([aged(self._before, self._now)]))
                return Agreed(self.agreed)
        return Measure(self.round) if begins else None

    def summary(self) -> str:
        """What was agreed on, in a line for people; nothing where it is what they were told before, more or less."""
        longest, said = self.agreed.longest, self._said
        if longest.keys() == said.keys() and all(said[w] / NEWS <= s <= said[w] * NEWS for w, s in longest.items()):
            return ""
        self._said = longest
        made = calibrated(Timeouts(), longest, factor=self._factor)
        sections = {f"section {name!r}": seconds for name, seconds in sorted(made.sections.items())}
        times = {"start-up": made.startup, "heartbeat": made.heartbeat, "outside sections": made.outside, **sections}
        listed = ", ".join(f"{what} {seconds:.3g} s" for what, seconds in times.items() if seconds is not None)
        return f"calibration {self.round}: the timeouts are now {listed}"

    def regroup(self, members: Collection[str]) -> None:
        """A new generation: those who are gone are not waited for, and those who came have nothing to say yet.

        From here on workers measure anew, so what was agreed on before ages once.
        """
        self._before = self.agreed.longest
        self._waiting.intersection_update(members)

    def lacks(self, report: Report) -> Measure | Agreed | None:
        """What a member has to be told again, going by what it says."""
        if report.measures.round < self.round:
            return Measure(self.round)
        return Agreed(self.agreed) if report.agreed < self.agreed.round else None

    def _begin(self, number: int, members: Collection[str]) -> None:
        self.round, self._now = number, {}
        self._waiting = set(members)
