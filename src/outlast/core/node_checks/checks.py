"""One check of some nodes: rounds of probes, what nodes found, and what that comes to.

Each round is one probe per group (`pairing.py`). It is over when every group is: all of it have answered, or one
has failed, for then the others only wait for that one. Whoever is much slower than the median is tried again before
that is said, and only its best counts. Fewer than three nodes have no median: nobody is called slow, only compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum

import msgspec

from outlast.core.node_checks.pairing import MOST_ROUNDS, Group, Pairing, set_aside
from outlast.events.phrases import listed
from outlast.protocol.checks import Findings

NETWORK = "network"
JUDGED = ("compute", "memory", NETWORK, "disk")  # figures by which a node may be slow
UNITS = {"compute": "GFLOP/s", "memory": "GB/s", "local": "GB/s", "network": "GB/s", "disk": "MB/s"}
TRIES = 3  # of one that seems slow
FEWEST = 3  # nodes that have a median
IMPORTS = 60.0  # seconds that a node may need on top, before it can begin: it watches the limit itself
VICTIMS = 0.3  # seconds for the others of a group to say that they failed, too
FEW = 4  # names, where several lists are in one line
SKEW = 1.0  # seconds between clocks that are worth a word


class Fitness(str, Enum):
    """What a check says about a node."""

    GOOD = "good"
    FAULTY = "faulty"
    SLOW = "slow"
    ASIDE = "aside"  # it is good, as far as anybody can tell, and does not work with another that is
    LOST = "lost"


class Row(msgspec.Struct, frozen=True):
    """One node in the table."""

    node: str
    standing: Fitness
    why: str = ""
    figures: Mapping[str, float] = {}
    warnings: tuple[str, ...] = ()
    instead: str = ""  # for one that is set aside: the other one


class Result(msgspec.Struct, frozen=True):
    """What a check has come to."""

    rows: dict[str, Row]
    rounds: int
    warnings: tuple[str, ...]  # about no node in particular

    def of(self, standing: Fitness) -> list[str]:
        return [node for node, row in self.rows.items() if row.standing is standing]


class Examination:
    """A check of `nodes`, helped by `partners`, which have passed one before.

    >>> check = Examination(1, ["a", "b"], names={"a": "a", "b": "b"})
    >>> check.advance(now=0.0)
    [('a', 'b')]
    >>> [check.take(node, Findings(1, check.number, figures={"compute": 9.0}), now=1.0) for node in "ab"]
    [True, True]
    >>> check.advance(now=1.0), check.result().of(Fitness.GOOD)
    (None, ['a', 'b'])
    """

    def __init__(
        self,
        number: int,
        nodes: Sequence[str],
        *,
        names: Mapping[str, str],
        partners: Iterable[str] = (),
        history: Mapping[str, Mapping[str, float]] | None = None,
        behind: Callable[[str], float] = lambda _: 0.0,
        factor: float = 2.0,
        limit: float = 60.0,
    ) -> None:
        self.number = number - 1  # of the newest round: grows over all checks of a coordinator
        self.nodes = tuple(nodes)
        self._names = names
        self._partners = tuple(partners)
        self._pairing = Pairing(nodes, self._partners)
        self._history = history or {}
        self._behind = behind
        self._factor = factor
        self._limit = limit
        self._lost: set[str] = set()
        self._groups: list[Group] = []
        self._of: dict[str, Group] = {}
        self._undecided: dict[Group, set[str]] = {}  # groups of this round, and who has not answered
        self._victims: dict[Group, float] = {}  # those of them in which one has failed, and how long the others get
        self._round: dict[str, Findings] = {}
        self._best: dict[str, dict[str, float]] = {}
        self._told: dict[str, Findings] = {}  # the newest of each node
        self._tried_for_speed = 0
        self._rounds = 0
        self._until = float("-inf")
        self._over = False

    # -- events

    def take(self, node: str, findings: Findings, now: float) -> bool:
        """An answer; False for one that is late, doubled or not asked for."""
        group = self._of.get(node)
        if findings.number != self.number or group is None or node in self._round:
            return False
        self._round[node] = self._told[node] = findings
        best = self._best.setdefault(node, {})
        for name, figure in findings.figures.items():
            best[name] = max(best.get(name, 0.0), figure)
        self._heard(group, node, bool(findings.alone or findings.together), now)
        return True

    def lose(self, node: str, now: float) -> None:
        """A node has gone, in the middle of it."""
        self._lost.add(node)
        self._pairing.lose(node)
        group = self._of.get(node)
        if group is not None and node not in self._round:
            self._heard(group, node, True, now)

    def _heard(self, group: Group, node: str, failed: bool, now: float) -> None:
        waiting = self._undecided.get(group)
        if waiting is None:
            return
        waiting.discard(node)
        if not waiting:
            del self._undecided[group]
            self._victims.pop(group, None)
        elif failed:
            self._victims.setdefault(group, now + VICTIMS)

    def owes(self, node: str) -> Group | None:
        """The group of a node that has not answered yet."""
        group = self._of.get(node)
        return group if group is not None and node not in self._round and not self._over else None

    def deadline(self) -> float | None:
        """When it goes on, if nobody says anything before."""
        if self._over or not self._undecided:
            return None
        return min([self._until, *self._victims.values()])

    def advance(self, now: float) -> list[Group] | None:
        """The groups of the next round, if this one is over; none while it is not; None when there is no other."""
        if self._over:
            return None
        for group in [group for group, until in self._victims.items() if now >= until]:
            del self._undecided[group], self._victims[group]
        if self._undecided and now < self._until:
            return []
        self._judge()
        groups = self._pairing.next() or self._slow_ones_again()
        if not groups or self._rounds >= MOST_ROUNDS + TRIES:
            self._over, self._of = True, {}
            return None
        self._rounds += 1
        self.number += 1
        self._groups = groups
        self._of = {node: group for group in groups for node in group}
        self._undecided = {group: set(group) for group in groups}
        self._victims, self._round = {}, {}
        self._until = now + self._limit + IMPORTS
        return groups

    # -- judgement

    def _judge(self) -> None:
        for group in self._groups:
            answers = {node: self._round.get(node) for node in group}
            alone = False
            for node, found in answers.items():
                if found is not None and found.alone:
                    alone = True
                    self._pairing.fails_alone(node, found.alone, certain=found.certain)
                elif node in self._lost:
                    alone = True
            failed = any(found is None or found.together for found in answers.values())
            if group in self._undecided and not alone:
                # Nobody of it has said that it failed, so those who said nothing do by themselves.
                for node in self._undecided[group]:
                    self._pairing.fails_alone(node, "nothing was heard of its check", certain=False)
                alone = True
            if not alone:
                self._pairing.judge(group, not failed)

    def _slow_ones_again(self) -> list[Group]:
        """One more round for those who seem slow, each with one who does not."""
        if self._tried_for_speed + 1 >= TRIES:
            return []
        slow = [node for node in self._slower_than(self._expected()) if node in self._pairing.good]
        if not slow:
            return []
        self._tried_for_speed += 1
        quick = [node for node in self._pairing.good if node not in slow and node in self._best]
        turn = self._tried_for_speed % len(quick) if quick else 0
        quick = quick[turn:] + quick[:turn]
        return [(node, quick[i]) if i < len(quick) else (node,) for i, node in enumerate(slow)]

    def _rates(self) -> dict[str, list[float]]:
        known = {**self._history, **self._best}
        rates = {name: [f[name] for f in known.values() if name in f] for name in JUDGED}
        return {name: sorted(values) for name, values in rates.items() if len(values) >= FEWEST}

    def _medians(self) -> dict[str, float]:
        return {name: median(values) for name, values in self._rates().items()}

    def _expected(self) -> dict[str, float]:
        """By what it is decided who is tried again.

        In a network, whoever was tried with a slow one is as slow, so that one of four takes half of the figures down,
        and the median with them. Those of the better half are its measure, until each has had another partner.
        """
        rates, medians = self._rates(), self._medians()
        return medians | {name: median(rates[name][len(rates[name]) // 2 :]) for name in medians if name == NETWORK}

    def _slow(self) -> dict[str, str]:
        """Who is slower than the median by the factor, and in what."""
        return self._slower_than(self._medians())

    def _slower_than(self, typical: Mapping[str, float]) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, middle in typical.items():
            for node in self.nodes:
                rate = self._best.get(node, {}).get(name)
                if rate is not None and rate * self._factor < middle and node not in found:
                    times = f"{middle / rate:.1f} times" if rate > 0 else "without end"
                    found[node] = f"{times} slower than the median in {name}"
        return found

    def result(self) -> Result:
        """The verdicts, when there is no other round."""
        pairing, slow, aside = self._pairing, self._slow(), set_aside(self._pairing.links)
        rows = {}
        helped = (node for node in self._partners if node in self._told and node not in self._lost)
        for node in (*self.nodes, *helped):
            told = self._told.get(node)
            standing, why = Fitness.GOOD, ""
            if node in pairing.bad:
                standing, why = Fitness.FAULTY, self._why(node, told)
            elif node in self._lost:
                standing, why = Fitness.LOST, "it was lost while it was checked"
            elif node in aside:
                standing, why = Fitness.ASIDE, f"it does not work with {self._name(aside[node])}, and both are good"
            elif node in pairing.suspects:
                standing, why = Fitness.ASIDE, self._open(told)
            elif node in slow:
                standing, why = Fitness.SLOW, slow[node]
            warnings = told.warnings if told is not None else ()
            figures = self._best.get(node, {})
            rows[node] = Row(self._name(node), standing, why, figures, warnings, aside.get(node, ""))
        return Result(rows, self._rounds, tuple(self._remarks()))

    def _name(self, node: str) -> str:
        return self._names.get(node, node)

    def _why(self, node: str, told: Findings | None) -> str:
        witnesses = self._pairing.witnesses.get(node)
        if witnesses is None:
            return self._pairing.bad[node]
        said = f": {told.together}" if told is not None and told.together else ""
        return f"it fails with {' and with '.join(map(self._name, witnesses))}, which are good{said}"

    def _open(self, told: Findings | None) -> str:
        said = told.together if told is not None else ""
        return "it is unknown whether it is at fault, or those that it was tried with" + (f": {said}" if said else "")

    def _remarks(self) -> Iterable[str]:
        """What is odd about all of them together."""
        yield from differences({self._name(node): found.facts for node, found in self._told.items()})
        yield from self._skews()
        if len(self._best) == FEWEST - 1 and not self._history:
            yield from self._compared()

    def _skews(self) -> Iterable[str]:
        """Clocks that are off: each node's, seen by the one of its reports that came the fastest."""
        offsets = {n: f.wall - f.clock - self._behind(n) for n, f in self._told.items() if f.wall}
        apart = max(offsets.values(), default=0.0) - min(offsets.values(), default=0.0)
        if apart > SKEW and len(offsets) < FEWEST:
            yield f"the clocks of {' and '.join(map(self._name, offsets))} are {apart:.1f} s apart: see to NTP"
        elif apart > SKEW:
            middle = median(offsets.values())
            for node, offset in offsets.items():
                if abs(offset - middle) > SKEW:
                    yield f"the clock of {self._name(node)} is {abs(offset - middle):.1f} s off: see to NTP"

    def _compared(self) -> Iterable[str]:
        (one, first), (other, second) = self._best.items()
        for name in JUDGED:
            if name in first and name in second and max(first[name], second[name]) > 0:
                low, slower = min((first[name], one), (second[name], other))
                high = max(first[name], second[name])
                if low * self._factor < high:
                    yield (
                        f"{self._name(slower)} is {high / max(low, 1e-9):.1f} times slower than the other in {name}; "
                        "two nodes have no median, so no node is excluded for that"
                    )


def differences(facts: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    """What should be the same on all nodes and is not, with those who differ from most.

    >>> list(differences({"a": {"torch": "2.6"}, "b": {"torch": "2.6"}, "c": {"torch": "2.5"}}))
    ['torch is 2.6 on most nodes, but 2.5 on c']
    """
    for name in dict.fromkeys(name for each in facts.values() for name in each):
        holders: dict[str, list[str]] = {}
        for node, each in facts.items():
            if name in each:
                holders.setdefault(each[name], []).append(node)
        if len(holders) < 2:
            continue
        usual = max(holders, key=lambda value: len(holders[value]))
        others = [f"{value} on {listed(nodes, FEW)}" for value, nodes in holders.items() if value != usual]
        most = "most nodes" if len(facts) > 2 else listed(holders[usual], FEW)
        yield f"{name} is {usual} on {most}, but {', '.join(others[:4])}"


def median(values: Iterable[float]) -> float:
    """The one in the middle. (That of `statistics` would have all who decide load `random`.)

    >>> median([3.0, 1.0, 2.0, 10.0])
    2.5
    """
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
