"""A generation: one line-up of nodes and ranks, how its members get on, and why it ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from outlast.core.hangs.inquiry import Inquiry
from outlast.core.job.planned_change import Change
from outlast.core.recovery.failures import merged
from outlast.events.reasons import ChangeReason, EndReason, PlannedEnd
from outlast.protocol.failures import Failure
from outlast.protocol.generations import Assignment
from outlast.protocol.rules import Rules


class Generation:
    """The newest one of a job; number 0 stands for none.

    >>> first = Generation(Rules(job="j", entrypoint="e", min_nodes=1, max_nodes=2))
    >>> first.number, first.has_finished
    (0, True)
    """

    def __init__(
        self,
        rules: Rules,
        number: int = 0,
        roster: Mapping[str, Assignment] | None = None,
        *,
        before: Generation | None = None,
    ) -> None:
        self._rules = rules
        self.number = number
        self.roster: dict[str, Assignment] = dict(roster or {})  # its members that are known, by node
        self.unfinished: set[str] = set()  # members whose workers have not all exited with 0
        self.failures: list[Failure] = []
        self.reasons: list[EndReason] = []  # why it ends, other than by a worker's failure
        self.gone = False  # it was said that no worker of it is alive
        self.hearsay = False  # nobody here knows why it was stopped, if it was: the nodes do not
        self.closed: int = before.closed if before is not None else 0  # the newest one whose end has been judged
        self.inquiry: Inquiry = before.inquiry.anew(number) if before is not None else Inquiry(number)
        self.change = Change(rules, number)

    @property
    def is_closed(self) -> bool:
        """Whether its end has been judged."""
        return self.closed == self.number

    @property
    def has_finished(self) -> bool:
        """Whether every worker of every member has exited with 0."""
        return not self.unfinished

    @property
    def ends_by_plan(self) -> bool:
        """Whether it ends because somebody wants another one: a node joins or leaves, a person asks for it."""
        return any(isinstance(reason, PlannedEnd | ChangeReason) for reason in self.reasons)

    @property
    def world_size(self) -> int:
        return next(iter(self.roster.values())).world_size

    def run(self) -> None:
        """The roster's workers run from here on, as far as anybody knows."""
        self.unfinished = set(self.roster)
        self.inquiry = self.inquiry.anew(self.number)
        self.change = Change(self._rules, self.number)

    def close(self) -> None:
        """Its end has been judged."""
        self.closed = self.number

    def finish(self, node: str) -> None:
        """Every worker of this member has exited with 0."""
        self.unfinished.discard(node)
        self.change.finished(node)

    def fail(self, failures: Iterable[Failure]) -> None:
        """Workers of a member have failed."""
        self.failures = merged(self.failures, failures)

    def depart(self, reason: EndReason) -> bool:
        """It ends for this reason, and not because a worker failed. Returns whether that is news."""
        if reason in self.reasons:
            return False
        self.reasons.append(reason)
        return True

    def home_of(self, rank: int, workers: Mapping[str, int]) -> str | None:
        """The member that runs this rank; `workers`: how many each member has."""
        for node, place in self.roster.items():
            if place.first_rank <= rank < place.first_rank + workers[node]:
                return node
        return None
