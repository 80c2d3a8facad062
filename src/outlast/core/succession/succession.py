"""One coordinator among those before and after it: its term, its authority, and what lets another take over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from outlast.core.membership.member import Member
from outlast.core.succession.authority import Authority, Memory
from outlast.core.succession.gathering import Gathering, Powerless
from outlast.protocol.failures import Ledger
from outlast.protocol.membership import Join
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Charter, Standing, Successor, Term

FIRST = Term(1)
SUCCESSORS = 8  # nodes that know that they may have to host the coordinator


class Succession:
    """This coordinator's part in the succession.

    >>> rules = Rules(job="j", entrypoint="e", min_nodes=1, max_nodes=2)
    >>> Succession(rules, now=0.0, term=Term(3, "a")).above(Term(7, "b"))
    Term(number=8, by='a')
    """

    def __init__(self, rules: Rules, now: float, *, term: Term = FIRST, run: str = "") -> None:
        self._rules = rules
        self.term = term
        self.run = run
        self.authority = Authority(rules, now)
        self.gathering = Gathering()
        self.powerless = Powerless(rules)
        self.successors: tuple[Successor, ...] = ()
        self.before: tuple[Successor, ...] = ()  # those of the generation before, which has a say until it is settled
        self.free: float | None = None  # until then workers may be alive that only another coordinator knows of

    @property
    def answers(self) -> str:
        """What the authority answered during the last event, for its replay; nothing where it was always yes."""
        given = self.authority.answers
        return "" if all(given) else "".join("01"[answer] for answer in given)

    def foretell(self, answers: str) -> None:
        """In a replay: what the authority is going to answer during the next event."""
        self.authority.foretold = [answer == "1" for answer in answers] or [True]

    def standing(self, now: float) -> Standing:
        """What this coordinator says to anybody who knocks."""
        return Standing(self.term, self.authority.acts(now), self._rules.job)

    def is_overtaken(self, join: Join, node: Member | None) -> bool:
        """Whether the node has obeyed a term that is as new as this coordinator's, and not this coordinator's.

        The same number can be another's, also of the same agent's: of a life whose journal was lost.
        """
        told = node.told if node is not None and join.term.by == self.term.by else 0
        return join.term.number >= self.term.number and join.term.number > told

    def above(self, term: Term) -> Term:
        """A term of this coordinator's that is newer than this one, and than its own."""
        return Term(max(self.term.number, term.number) + 1, self.term.by)

    def recall(self, memory: Memory, now: float) -> None:
        """Go on where a coordinator was killed. Whoever is connected will say so."""
        self.run = memory.run
        self.authority = Authority(self._rules, now, memory.electorates)
        self.successors, self.before = memory.successors, memory.before
        self.gathering = Gathering(memory.roster, memory.names)
        if memory.electorates:
            self.authority.renew(now)

    def begin_term(self, term: Term, now: float) -> None:
        """Somebody else has coordinated, or tried to: begin a term above theirs."""
        self.term = self.above(term)
        self.authority.renew(now)

    def adopt(self, charter: Charter) -> None:
        """A node knows of a newer generation than this coordinator: take that one over."""
        self.run = charter.run
        self.authority.adopt(charter)
        self.successors, self.before = charter.successors, charter.before
        self.gathering = Gathering(names={each.node: each.name for each in charter.successors})

    def take_over(self, now: float) -> None:
        """From here on no other coordinator acts, so the leases that one gave end within the node timeout."""
        self.gathering.took_over = True
        self.free = now + self._rules.node_timeout
        self.authority.affirm(self.term.number)

    def form(self, members: Mapping[str, Join], generation: int, now: float) -> None:
        """A new generation of these nodes, in the order of their ranks: from now on they vote."""
        head = self.term.by if self.term.by in members else next(iter(members))
        self.authority.form(members, head, generation=generation, term=self.term.number, now=now)
        self.before = self.successors
        self.successors = tuple(_successors(members.values()))[:SUCCESSORS]

    def charter(
        self, node: str, *, restarts: int, excluded: Mapping[str, str], ledger: Callable[[], Ledger], wanted: int = 0
    ) -> Charter:
        """What this node has to know so that the job outlives its coordinator. `ledger`: for those who may succeed."""
        before = () if self.authority.settled else self.before
        succeeds = any(node == successor.node for successor in (*self.successors, *before))
        return Charter(
            run=self.run,
            rules=self._rules,
            ballots=tuple(electorate.ballot(node) for electorate in self.authority.electorates),
            successors=self.successors,
            restarts=restarts,
            excluded=dict(excluded),
            members=self.authority.electors(len(self.successors)) if succeeds else (),
            ledger=ledger() if succeeds else None,
            before=before,
            wanted=wanted,
        )


def _successors(joins: Iterable[Join]) -> Iterable[Successor]:
    return (Successor(join.node, join.name, join.addr, join.port) for join in joins if join.port)
