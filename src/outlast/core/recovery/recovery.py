"""What is done about the failures of a generation: the budget, the history, and who is excluded because of them."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.core.membership.member import Member
from outlast.core.recovery.budget import Budget
from outlast.core.recovery.evictions import Evictions
from outlast.core.recovery.failures import facts_of
from outlast.core.succession.authority import Memory
from outlast.events.events import NodeExcluded, NodeKept, Restarting
from outlast.events.sentences import restarted
from outlast.protocol.failures import FailoverStrategy, Failure, Ledger
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Charter


class Recovery:
    """The failures of one job, and what they have cost so far.

    >>> recovery = Recovery(Rules(job="j", entrypoint="e", min_nodes=1, max_nodes=1, max_restarts=3))
    >>> failure = Failure("a", "h", 0, 0, 1, 1, 0.0, "")
    >>> recovery.spent([failure]), recovery.restart([failure], None, others=0, generation=1, now=0.0).number
    ('', 1)
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.restarts = 0
        self.charged = 0  # of them, before the newest generation was formed
        self.fresh = False  # the next generation uses nothing that is kept between restarts
        self.budget = Budget(rules)
        self.evictions = Evictions(rules)

    def recall(self, memory: Memory, now: float) -> None:
        """Go on where a coordinator was killed."""
        self.restarts, self.charged = memory.restarts, memory.charged
        self.budget = Budget(self._rules, memory.ledger.tried)
        self.evictions.recall(memory.ledger.bans, now)

    def adopt(self, charter: Charter, now: float) -> None:
        """Go on where another coordinator was."""
        self.restarts = self.charged = charter.restarts
        if charter.ledger is not None:
            self.budget.hear(charter.ledger.tried)
            self.evictions.hear(charter.ledger.bans, now)

    def ledger(self) -> Ledger:
        """The whole history, for the journal."""
        return Ledger(tuple(self.budget.tried), dict(self.evictions.bans))

    def tell(self, now: float) -> Ledger:
        """The history in short, for successors."""
        return Ledger(self.budget.tell(), self.evictions.tell(now))

    def spent(self, failures: Sequence[Failure]) -> str:
        """Why the job ends with these failures, of which the root is first; nothing, if it is worth another try."""
        return self.budget.spent(failures, self.restarts)

    def restart(
        self, failures: Sequence[Failure], home: Member | None, *, others: int, generation: int, now: float
    ) -> Restarting:
        """Try again, as the root's strategy says. `home`: where it failed; `others`: nodes that are ready besides."""
        root, rules = failures[0], self._rules
        self.restarts += 1
        excluded, kept = self._blame(failures, home, others, generation, now) if rules.failover else (None, None)
        decided = Restarting(
            generation=generation,
            number=self.restarts,
            allowed=rules.max_restarts,
            failure=facts_of(root),
            decided=root.decided,
            anew=rules.failover and root.strategy is FailoverStrategy.GLOBAL,
            excluded=excluded,
            kept=kept,
            diagnose=rules.failover,
        )
        self.fresh = self.fresh or decided.anew
        self.budget.note(failures, generation, restarted(decided))
        return decided

    def _blame(
        self, failures: Sequence[Failure], home: Member | None, others: int, generation: int, now: float
    ) -> tuple[NodeExcluded | None, NodeKept | None]:
        """Exclude the node where it failed, if that is to blame and the others can do without it."""
        root = failures[0]
        if root.strategy is FailoverStrategy.GLOBAL or home is None:
            return None, None
        blamed = root.cause.title if root.cause is not None else "its failure"
        if root.strategy is not FailoverStrategy.NODE:
            blamed = self.budget.blamed(failures, self.evictions.probation(home.place, now))
        if not blamed:
            return None, None
        if stays := self.evictions.stays(home.name, others, now):
            return None, NodeKept(generation=generation, node=home.name, because=stays, why=blamed, told=True)
        return self.exclude(home, blamed, generation, now), None

    def exclude(self, node: Member, why: str, generation: int, now: float) -> NodeExcluded:
        """Do not use a node's place for a while."""
        seconds = self.evictions.leave_out(node.place, why, now)
        return NodeExcluded(generation=generation, node=node.name, why=why, seconds=seconds)
