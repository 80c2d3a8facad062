"""Whether a coordinator may act: only while more than half of the newest generation's votes are with it.

A node that has heard an `Ack` promises that coordinator to join no other for a while. The coordinator learns of the
promise when a later report repeats that `Ack`, and counts it from when it *sent* it, which was before the node began
to. So a supporter is no longer counted before it may go elsewhere, and two coordinators never act at the same time:
more than half and more than half have a node in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from outlast.events.reasons import EndReason
from outlast.protocol.failures import Failure, Ledger
from outlast.protocol.generations import Assignment
from outlast.protocol.membership import Over
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Ballot, Charter, Successor

VOTES = 2  # of a member
HEAD = 1  # more, of the one whose half goes on when a network splits into halves

PROMISE_SHARE = 0.9  # of the node timeout: for so long after an `Ack` a node joins no other coordinator
SUPPORT_SHARE = 0.85  # and for so long it is counted, by a clock that may be slower

ELECTORS = 12_000  # members that are named to each successor: as many as fit into a message

NEVER = 0.0


class Electorate(msgspec.Struct):
    """The members of one generation as voters. `votes`: of those that are known, by node."""

    generation: int
    formed: int
    affirmed: int
    total: int  # of all that it was formed with, for ever: everybody must reckon with the same
    votes: dict[str, int] = {}
    gone: dict[str, int] = {}  # the votes of members that this coordinator has seen end
    presumed: float = NEVER  # until then its members count as supporters: they are just being told of their votes

    @classmethod
    def of(
        cls, members: Iterable[str], head: str, *, generation: int, term: int, now: float, span: float
    ) -> Electorate:
        """The electorate of a generation that is being formed.

        >>> e = Electorate.of(["a", "b"], "a", generation=1, term=1, now=0.0, span=1.0)
        >>> e.total, e.is_quorum({"a"}), e.is_quorum({"b"})
        (5, True, False)
        """
        votes = {node: VOTES + HEAD * (node == head) for node in members}
        return cls(generation, term, term, sum(votes.values()), votes, presumed=now + span)

    @classmethod
    def told_by(cls, ballot: Ballot, members: Iterable[str] = ()) -> Electorate:
        """As a node knows it. Each of these members has at least an ordinary member's votes."""
        return cls(ballot.generation, ballot.formed, ballot.affirmed, ballot.total, dict.fromkeys(members, VOTES))

    @property
    def age(self) -> tuple[int, int]:
        return (self.affirmed, self.generation)

    @property
    def size(self) -> int:
        """How many members the generation has.

        >>> Electorate.of(["a", "b"], "a", generation=1, term=1, now=0.0, span=1.0).size
        2
        """
        return self.total // VOTES

    @property
    def left(self) -> int:
        """The votes of those that may still vote for anybody."""
        return self.total - sum(self.gone.values()) if len(self.gone) < self.size else 0

    def ballot(self, node: str) -> Ballot:
        return Ballot(self.generation, self.formed, self.affirmed, self.total, self.votes.get(node, 0))

    def learn(self, node: str, charter: Charter) -> None:
        """Count a node that says itself how many votes it has."""
        for ballot in charter.ballots:
            same = (ballot.generation, ballot.formed) == (self.generation, self.formed)
            if same and ballot.votes and node not in self.gone:
                self.votes[node] = ballot.votes

    def remove(self, node: str) -> None:
        """A member that has ended votes for nobody any more."""
        votes = self.votes.pop(node, 0)
        if votes:
            self.gone[node] = votes

    def is_quorum(self, nodes: Iterable[str]) -> bool:
        return 2 * sum(self.votes.get(node, 0) for node in nodes) > self.left


class Memory(msgspec.Struct, frozen=True):
    """What a coordinator that was killed finds in its journal. Agents tell the rest."""

    run: str
    term: int
    restarts: int = 0
    charged: int = 0  # of them, before the newest generation was formed
    formed: int = 0  # how many generations there were
    closed: int = 0
    roster: dict[str, Assignment] = {}
    names: dict[str, str] = {}
    electorates: tuple[Electorate, ...] = ()
    successors: tuple[Successor, ...] = ()
    before: tuple[Successor, ...] = ()  # those of the generation before
    failures: tuple[Failure, ...] = ()
    departed: tuple[EndReason, ...] = ()
    hearsay: bool = False  # whether the newest generation has been stopped, and why, has to be asked
    outcome: Over | None = None
    excluded: dict[str, str] = {}  # places that are not used again, and why
    ledger: Ledger = Ledger()
    wanted: int = 0  # nodes, if somebody said how many; 0: MAX


class Authority:
    """The electorates in force, who supports this coordinator, and until when it may act.

    No electorate: nobody else can claim the job, and nothing is needed. The newest comes first; the one before it
    counts as well until a quorum of it knows the newest, for until then it could make another coordinator.
    Constant work per report, but for one look at all supporters now and then.
    """

    def __init__(self, rules: Rules, now: float, electorates: Iterable[Electorate] = ()) -> None:
        self.electorates = list(electorates)
        self._span = SUPPORT_SHARE * rules.node_timeout
        self._timeout = rules.node_timeout
        self._tie_break = rules.tie_break == "survivor"
        self._began = now
        self._one_is_enough = False  # of two, for now
        self._here: set[str] = set()
        self._support: dict[str, float] = {}
        self._knows: set[str] = set()
        self._until = NEVER
        self._resigned = False
        self.answers: list[bool] = []  # to the question below, since somebody last cleared them
        self.foretold: list[bool] | None = None  # what to answer, in replay: no heartbeat is replayed
        self._recount()

    @property
    def newest(self) -> Electorate | None:
        return self.electorates[0] if self.electorates else None

    @property
    def settled(self) -> bool:
        """Whether the newest electorate alone decides."""
        return len(self.electorates) < 2

    @property
    def known(self) -> tuple[int, int, int]:
        """What a node says of its charter (`Charter.known`) that has the newest one."""
        newest = self.newest
        return (*newest.age, len(self.electorates)) if newest is not None else (0, 0, 0)

    def is_news(self, charter: Charter) -> bool:
        """Whether a node knows of a newer generation than this coordinator."""
        return bool(charter.ballots) and (self.newest is None or charter.ballots[0].age > self.newest.age)

    def next_generation(self, term: int) -> int:
        """The number of the one that is formed next, in this term.

        Coordinators of other terms may each have numbered a generation after the same one, and none knows of it.
        """
        newest = self.newest
        return newest.generation + 1 + term - newest.formed if newest is not None else term

    def electors(self, successors: int) -> tuple[str, ...]:
        """Whom a successor must know, beyond the other successors: those that nobody could tell of their votes."""
        newest = self.newest
        if newest is None or newest.size <= successors or newest.size > ELECTORS:
            return ()
        return tuple(newest.votes)

    def could_act(self, now: float) -> bool:
        """Whether those who are here would be enough, if they promised."""
        self._break_tie(now)
        return all(self._enough(e, votes) for e, votes in zip(self.electorates, self._present, strict=True))

    def acts(self, now: float) -> bool:
        """Whether this coordinator may act now."""
        return self._answer(self._reckon, now)

    def resign(self) -> None:
        """Never act again: from now on those who support this coordinator may make another one."""
        self._resigned = True

    def leads(self, now: float) -> bool:
        """The same, for what leaves no trace in the journal: a replay is not asked it."""
        return self._reckon(now)

    def _answer(self, question: Callable[[float], bool], now: float) -> bool:
        answer = question(now) if self.foretold is None else self._foretell()
        self.answers.append(answer)
        return answer

    def _foretell(self) -> bool:
        assert self.foretold is not None
        return self.foretold.pop(0) if len(self.foretold) > 1 else (self.foretold or [True])[0]

    def _break_tie(self, now: float) -> None:
        """One of two may be enough, but not before the other has had the time to come, or to be heard of."""
        self._one_is_enough = self._tie_break and now >= self._began + 2 * self._timeout

    def _reckon(self, now: float) -> bool:
        self._break_tie(now)
        if now >= self._until and self._may_be_backed(now):
            self._support = {n: since for n, since in self._support.items() if since + self._span > now}
            self._recount()
            self._until = min((max(self._backed_until(e), e.presumed) for e in self.electorates), default=float("inf"))
        return now < self._until and not self._resigned

    def _may_be_backed(self, now: float) -> bool:
        """Whether it is worth a look at all supporters: a coordinator without enough of them is asked often."""
        return all(
            now < e.presumed or self._enough(e, votes) for e, votes in zip(self.electorates, self._backing, strict=True)
        )

    def _enough(self, electorate: Electorate, votes: int) -> bool:
        left = electorate.left
        two = electorate.total <= 2 * VOTES + HEAD
        return 2 * votes > left or not left or (votes > 0 and two and self._one_is_enough)

    def _backed_until(self, electorate: Electorate) -> float:
        """Until when the supporters are a quorum, if nothing more is heard of any of them."""
        if not electorate.left:
            return float("inf")
        votes = 0
        for since, node in sorted(((since, node) for node, since in self._support.items()), reverse=True):
            votes += electorate.votes.get(node, 0)
            if self._enough(electorate, votes):
                return since + self._span
        return NEVER

    # -- nodes

    def came(self, node: str, charter: Charter | None) -> None:
        """A node is connected, and says itself how many votes it has."""
        self._leave_out(node)
        if charter is not None:
            for electorate in self.electorates:
                electorate.learn(node, charter)
        self._here.add(node)
        self._count(self._present, node, +1)
        if node in self._support:
            self._count(self._backing, node, +1)

    def went(self, node: str) -> None:
        if node in self._here:
            self._here.discard(node)
            self._count(self._present, node, -1)

    def ended(self, node: str) -> None:
        """This node was connected here to its end, and will never vote again.

        What it had promised elsewhere had lapsed before it came, and all that it knew is known here.
        """
        self._leave_out(node)
        self._here.discard(node)
        self._support.pop(node, None)
        for electorate in self.electorates:
            electorate.remove(node)
        self._until = NEVER

    def _leave_out(self, node: str) -> None:
        if node in self._here:
            self._count(self._present, node, -1)
        if node in self._support:
            self._count(self._backing, node, -1)

    def supported(self, node: str, since: float) -> None:
        """A node has repeated an `Ack` that was sent at this time."""
        before = self._support.get(node)
        if before is None:
            self._count(self._backing, node, +1)
        if before is None or since > before:
            self._support[node] = since

    def knows(self, node: str) -> None:
        """A node has the newest charter."""
        if not self.settled:
            self._knows.add(node)

    def settle(self, now: float) -> None:
        """The electorate before is history once a quorum of it knows the newest, and the newest alone is with us.

        A coordinator that those come to will hear of the newest, and need its votes.
        """
        if self.settled:
            return
        self._break_tie(now)
        newest, older = self.electorates
        if not self._enough(older, sum(older.votes.get(node, 0) for node in self._knows)):
            return
        if self._answer(lambda now: self._backed_until(newest) > now, now):
            self.forget_older()

    def compare(self, charter: Charter) -> None:
        """A node may know from another coordinator that the electorate before is history."""
        newest = self.newest
        if self.settled or newest is None or len(charter.ballots) != 1:
            return
        if (charter.ballots[0].generation, charter.ballots[0].formed) == (newest.generation, newest.formed):
            self.forget_older()

    def forget_older(self) -> None:
        """Nobody will ever lead the job with the electorate before alone."""
        del self.electorates[1:]
        self.electorates[0].presumed = NEVER
        self._changed()

    # -- generations and terms

    def form(self, members: Iterable[str], head: str, *, generation: int, term: int, now: float) -> None:
        """A new generation is formed, and its members are to vote from now on."""
        newest = Electorate.of(members, head, generation=generation, term=term, now=now, span=self._span)
        self.electorates = [newest, *self.electorates[:1]]
        self._knows = set()
        self._changed()

    def affirm(self, term: int) -> None:
        """This coordinator takes the newest generation over: of two that claim the job, its word is the newer."""
        if self.electorates:
            self.electorates[0].affirmed = term
            self._knows = set()

    def adopt(self, charter: Charter) -> None:
        """Take over from a charter that is newer than what is known here."""
        known = {(e.generation, e.formed): e for e in self.electorates}
        settled = self.settled
        members = charter.members or [successor.node for successor in charter.successors]
        told = [Electorate.told_by(ballot, members if n == 0 else ()) for n, ballot in enumerate(charter.ballots)]
        for index, electorate in enumerate(told):
            mine = known.get((electorate.generation, electorate.formed))
            if mine is not None:
                electorate.votes, electorate.gone = mine.votes, mine.gone
                if index == 0 and settled:
                    del told[1:]  # whoever affirmed it had not heard so
                    break
        self.electorates = told
        self._knows = set()
        self._changed()

    def renew(self, now: float) -> None:
        """A new term begins: what was promised to the one before does not count for it."""
        self._began = now
        self._support.clear()
        self._knows = set()
        for electorate in self.electorates:
            electorate.presumed = NEVER
        self._changed()

    def _changed(self) -> None:
        self._until = NEVER
        self._recount()

    def _recount(self) -> None:
        self._present = [sum(e.votes.get(n, 0) for n in self._here) for e in self.electorates]
        self._backing = [sum(e.votes.get(n, 0) for n in self._support) for e in self.electorates]

    def _count(self, votes: list[int], node: str, sign: int) -> None:
        for index, electorate in enumerate(self.electorates):
            votes[index] += sign * electorate.votes.get(node, 0)
