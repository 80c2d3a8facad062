"""Who may take part: with `--network-check`, only nodes that have passed a check, and those that run already.

One check at a time, of all that are new or have come into doubt; nobody else is disturbed. Those that have passed, and
have nothing else to do, help. Whoever is faulty is left out for a while. So is one that is slow, if that was asked for,
and one that does not work with another is set aside: as long as there are enough without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from outlast.core.membership.member import Member
from outlast.core.node_checks.checks import JUDGED, NETWORK, Examination, Fitness, Result
from outlast.core.node_checks.pairing import Group
from outlast.core.node_checks.table import table
from outlast.core.recovery.evictions import Evictions
from outlast.protocol.checks import Findings, Probe
from outlast.protocol.rules import Rules

Probes = Iterator[tuple[str, Probe]]


class Sentence(msgspec.Struct, frozen=True):
    """What becomes of a node after a check that it did not pass."""

    node: str
    why: str
    seconds: float | None = None  # that it is left out
    stays: str = ""  # why nothing is done about it


class Gate:
    """The checks of one job.

    >>> gate = Gate(Rules(job="j", entrypoint="e", min_nodes=1, max_nodes=2, network_check=True))
    >>> gate.admits("a", roster={}), gate.admits("b", roster={"b"})
    (False, True)
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.table = ""  # of the last check
        self._check: Examination | None = None
        self._term = 0
        self._number = 0
        self._passed: set[str] = set()
        self._doubted: set[str] = set()
        self._aside: dict[str, str] = {}  # nodes that are not used for now, and those that they do not work with
        self._figures: dict[str, Mapping[str, float]] = {}
        self._kept: Sequence[str] = JUDGED  # of the figures, that may be compared with those of other checks

    @property
    def busy(self) -> bool:
        """Whether a check is under way."""
        return self._check is not None

    def admitted(self, ready: Mapping[str, Member], roster: Collection[str]) -> Mapping[str, Member]:
        """Those of the ready nodes that may be let in, as far as checks say."""
        if not self._rules.network_check:
            return ready
        return {name: node for name, node in ready.items() if self.admits(name, roster)}

    def admits(self, name: str, roster: Collection[str]) -> bool:
        """Whether this node may be let in, as far as checks say."""
        if not self._rules.network_check or name in self._passed:
            return True
        return name in roster and name not in self._doubted

    def is_aside(self, name: str) -> bool:
        return name in self._aside

    def doubt(self, name: str) -> None:
        """A node is to be checked again before it is used again."""
        self._passed.discard(name)
        self._doubted.add(name)

    def begin(
        self, nodes: Sequence[str], members: Mapping[str, Member], partners: Sequence[str], term: int, *, beside: bool
    ) -> None:
        """Check these; the first probes come from `advance`. `beside`: others train meanwhile.

        What a network does beside a training job says nothing about what it does when it is quiet, nor the reverse.
        """
        self._term = term
        self._kept = [name for name in JUDGED if not (beside and name == NETWORK)]
        self._check = Examination(
            self._number + 1,
            nodes,
            names={name: members[name].name for name in (*nodes, *partners)},
            partners=partners,
            history={name: self._comparable(known) for name, known in self._figures.items() if name not in nodes},
            behind=lambda name: members[name].behind or 0.0,
            factor=self._rules.slow_node_factor,
            limit=self._rules.node_check_timeout,
        )

    def advance(self, members: Mapping[str, Member], now: float) -> Probes:
        """The probes of the next round, if it is time for one."""
        groups = self._check.advance(now) if self._check is not None else None
        for group in groups or ():
            yield from self._probes(group, members)

    def owed(self, name: str, members: Mapping[str, Member]) -> Probe | None:
        """What a node has not answered yet: it may not have heard of it."""
        group = self._check.owes(name) if self._check is not None else None
        return dict(self._probes(group, members))[name] if group is not None else None

    def take(self, name: str, findings: Findings, now: float) -> bool:
        """An answer; False for one that nobody waits for."""
        return self._check is not None and findings.term == self._term and self._check.take(name, findings, now)

    def lose(self, name: str, now: float) -> list[str]:
        """A node has gone. Returns those that were set aside because of it: they may be used again."""
        if self._check is not None:
            self._check.lose(name, now)
        self._figures.pop(name, None)
        self._aside.pop(name, None)
        return self._lift([node for node, other in self._aside.items() if other == name])

    def withdraw(self, names: Iterable[str], now: float) -> None:
        """These have something better to do now than to help with a check."""
        for name in names if self._check is not None else ():
            assert self._check is not None
            self._check.lose(name, now)

    def lift(self) -> list[str]:
        """There are too few others: use those that were set aside."""
        return self._lift(list(self._aside))

    def deadline(self) -> float | None:
        return self._check.deadline() if self._check is not None else None

    def abandon(self) -> None:
        """Another coordinator may have let nodes in meanwhile: nothing of this check counts."""
        self._check = None

    def conclude(self, now: float) -> Result | None:
        """What the check has come to, once it is over. Those who passed may be let in."""
        if self._check is None or self._check.advance(now) is not None:
            return None
        result, self._number = self._check.result(), self._check.number
        self._check = None
        self.table = table(result)
        for name in (*result.of(Fitness.GOOD), *result.of(Fitness.SLOW)):
            self.pass_(name)
            self._figures[name] = self._comparable(result.rows[name].figures)
        return result

    def _comparable(self, figures: Mapping[str, float]) -> Mapping[str, float]:
        return {name: figure for name, figure in figures.items() if name in self._kept}

    def judge(
        self, result: Result, members: Mapping[str, Member], ready: Collection[str], evictions: Evictions, now: float
    ) -> Iterator[Sentence]:
        """What to do about those that are still here and did not pass. `ready`: for the next generation."""
        here = {name: row for name, row in result.rows.items() if members[name].connected}
        others = set(ready)
        for name, row in here.items():
            if row.standing is Fitness.FAULTY:
                self.doubt(name)
                others.discard(name)
                yield Sentence(name, row.why, evictions.leave_out(members[name].place, row.why, now))
        for name, row in here.items():
            slow = row.standing is Fitness.SLOW and self._rules.exclude_straggler
            if not slow and row.standing is not Fitness.ASIDE:
                continue
            left, known = len(others) - (name in others), members[name].name
            stays = evictions.stays(known, left, now) if slow else evictions.needed(known, left)
            if stays:
                self.pass_(name)
                yield Sentence(name, row.why, stays=stays)
                continue
            others.discard(name)
            if slow:
                yield Sentence(name, row.why, evictions.leave_out(members[name].place, row.why, now))
            else:
                self._aside[name] = row.instead
                yield Sentence(name, row.why)

    def pass_(self, name: str) -> None:
        """Let this one in."""
        self._passed.add(name)
        self._doubted.discard(name)

    def _lift(self, nodes: list[str]) -> list[str]:
        for node in nodes:
            del self._aside[node]
            self.pass_(node)
        return nodes

    def _probes(self, group: Group, members: Mapping[str, Member]) -> Probes:
        assert self._check is not None
        joins = [members[name].join for name in group]
        size, first = sum(join.nproc for join in joins), 0
        port = members[group[0]].report.store_port
        for join in joins:
            limit, perf = self._rules.node_check_timeout, self._rules.comm_perf_test
            yield join.node, Probe(self._term, self._check.number, first, size, joins[0].addr, port, limit, perf)
            first += join.nproc
