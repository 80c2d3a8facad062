"""Who makes the job hang: one question to all nodes, their answers, and the verdict.

Ranks are late, somewhere. All members are asked where theirs are, whoever is late: the one that the others wait for may
be on any node, and mostly is not the one whose clock ran out first. When all have answered, or the time for that is
over, what they saw is compared. There is one inquiry at a time, whoever else is late meanwhile; and where nobody is
going to be ended, at most one in a while. Constant work per answer, until they are compared.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from outlast.core.hangs.stacks import rank_stacks
from outlast.diagnosis.culprit import HangVerdict, name
from outlast.diagnosis.observation import Observation
from outlast.events.events import RankStack
from outlast.protocol.fields import LONGEST_REASON
from outlast.protocol.hangs import MOST_CULPRITS, Look, Named, Overdue, Seen

# An agent gives up after a second, and itself has 0.7 s to look: a node that cannot be asked costs no more than that.
PATIENCE = 0.85
QUIET = 30.0  # seconds from one inquiry to the next, unless somebody is about to be ended


class InquiryResult(msgspec.Struct, frozen=True):
    """What an inquiry has come to."""

    verdict: HangVerdict
    named: Named | None  # for all members, if ranks are about to be ended for it
    idle: float = 0.0  # seconds that ranks had not moved; 0: whoever is ended for it says so
    stacks: tuple[RankStack, ...] = ()  # for people


class Inquiry:
    """Those of one generation, one after the other.

    >>> inquiry = Inquiry(generation=1)
    >>> inquiry.hear("a", Overdue(1, ending=True)), inquiry.is_wanted(now=5.0)
    (None, True)
    >>> inquiry.begin({"a": Observation(rank=0, node="a")}, now=5.0)
    Look(generation=1, number=1, interrupt=True)
    >>> inquiry.take("a", Seen(1, 1, (Observation(rank=0, node="a"),))), inquiry.is_over(now=5.1)
    (True, True)
    """

    def __init__(self, generation: int, number: int = 0) -> None:
        self._generation = generation
        self._number = number  # of the newest; no two of one coordinator have the same
        self._heard: dict[str, int] = {}  # the newest that each node has said about its late ranks
        self._wanted = self._ending = False  # another one, and whether somebody is about to be ended
        self._open = self._interrupts = False  # the present one
        self._began = float("-inf")
        self._silent: dict[str, Observation] = {}  # members that have not answered, and what that leaves unseen
        self._seen: list[Observation] = []
        self._said: tuple[object, ...] | None = None

    def anew(self, generation: int) -> Inquiry:
        """The inquiries of the generation that runs now: whoever is late in it will say so again."""
        return Inquiry(generation, self._number)

    def hear(self, node: str, overdue: Overdue) -> None:
        """A member says that ranks of its own are late."""
        if overdue.number <= self._heard.get(node, 0):
            return
        self._heard[node] = overdue.number
        covered = self._open and (self._interrupts or not overdue.ending)
        if not covered:
            self._wanted, self._ending = True, self._ending or overdue.ending

    def is_wanted(self, now: float) -> bool:
        """Whether all have to be asked now."""
        return self._wanted and not self._open and (self._ending or now >= self._began + QUIET)

    def begin(self, members: Mapping[str, Observation], now: float) -> Look:
        """Ask these members. To each belongs what there is to compare if it does not answer."""
        self._number += 1
        self._open, self._interrupts, self._began = True, self._ending, now
        self._wanted = self._ending = False
        self._silent, self._seen = dict(members), []
        return Look(self._generation, self._number, interrupt=self._interrupts)

    def take(self, node: str, seen: Seen) -> bool:
        """An answer; False for one that is late, doubled or not asked for."""
        asked = self._open and (seen.generation, seen.number) == (self._generation, self._number)
        if not asked or self._silent.pop(node, None) is None:
            return False
        self._seen += seen.observations
        return True

    def is_over(self, now: float) -> bool:
        return self._open and (not self._silent or now >= self._began + PATIENCE)

    def deadline(self) -> float | None:
        """When it is over, or the next one begins, if nobody says anything before."""
        if self._open:
            return self._began + PATIENCE
        return self._began + QUIET if self._wanted else None

    def conclude(self) -> InquiryResult | None:
        """Compare what was seen. None: there is nothing to say, or nothing that was not said before."""
        self._open, ending = False, self._interrupts
        if not self._seen or not (ending or any(each.late for each in self._seen)):
            return None  # nobody is late any more: a comparison of those who work would blame one of them
        verdict = name([*self._seen, *self._silent.values()])
        said, self._said = self._said, (verdict.culprits, verdict.kind, verdict.where)
        if ending:
            culprits = verdict.culprits[:MOST_CULPRITS] if verdict.certain else ()
            named = Named(self._generation, self._number, culprits, verdict.sentence[:LONGEST_REASON])
            return InquiryResult(verdict, named, stacks=rank_stacks(self._seen, set(verdict.culprits)))
        ages = [each.beat_age for each in self._seen if each.late and each.beat_age is not None]
        if self._said == said:
            return None
        stacks = rank_stacks(self._seen, set(verdict.culprits))
        return InquiryResult(verdict, None, min(ages, default=0.0), stacks)
