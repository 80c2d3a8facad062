"""Traces of training, for what is said about stragglers: ranks that work, wait for each other, and are looked at.

    training = Training(4, work=steady(random.Random(1)), slow=[Slow(2, "forward", 1.5, 300)])
    for step, node, straggler in training.run(1000): …

Time passes in the trace alone. Agents look at their ranks once a second, each at a time of its own, in the middle of
whatever these do; what they make of it, and what becomes of that, is the real thing (`core/stragglers/pace.py`,
`core/stragglers/stragglers.py`).
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from outlast.board.layout import ONE_MORE, SPENT_BITS
from outlast.board.readings import Spent, Totals
from outlast.core.stragglers.pace import Strides, interval
from outlast.core.stragglers.stragglers import Straggler, Stragglers
from outlast.protocol.paces import Paces

# Of a rank and a step: the seconds of its own work, section by section, in this order.
Work = Callable[[int, int], Mapping[str, float]]
PLAIN = {"data": 0.01, "forward": 0.03, "backward": 0.05, "optimizer": 0.01}


@dataclass(frozen=True)
class Slow:
    """A rank that takes longer in a section, for some steps; in all of them, if it is not said in which."""

    rank: int
    section: str | None
    factor: float
    first: int
    until: float = math.inf

    def of(self, rank: int, step: int, section: str) -> float:
        here = rank == self.rank and self.first <= step < self.until and self.section in (None, section)
        return self.factor if here else 1.0


def steady(dice: random.Random, noise: float = 0.1, sections: Mapping[str, float] = PLAIN) -> Work:
    """Work that takes about the same time in every step: `noise` is the deviation of its logarithm."""

    def work(_rank: int, _step: int) -> dict[str, float]:
        return {name: seconds * math.exp(dice.gauss(0.0, noise)) for name, seconds in sections.items()}

    return work


@dataclass
class _Rank:
    now: float = 0.0
    # What is still to happen: when, in which section (or "": a step is done), how long it took, how long it was busy.
    ahead: deque[tuple[float, str, float, float]] = field(default_factory=deque)
    spent: dict[str, int] = field(default_factory=dict)
    step: int = 0
    step_at: float = 0.0
    busy: float = 0.0

    def catch_up(self, at: float) -> None:
        while self.ahead and self.ahead[0][0] <= at:
            when, section, seconds, busy = self.ahead.popleft()
            self.busy += busy
            if section:
                self.spent[section] = self.spent.get(section, 0) + round(seconds * 1e9) + ONE_MORE & SPENT_BITS
            else:
                self.step, self.step_at = self.step + 1, when


class Training:
    """Ranks that train together: in the section `waits`, each waits until all have come to its end."""

    def __init__(
        self,
        ranks: int,
        work: Work,
        *,
        slow: Iterable[Slow] = (),
        waits: str = "backward",
        known: bool = True,  # that they wait there
        shown: bool = True,  # the sections; else the script names none
        nproc: int = 2,
        factor: float = 1.2,
        seed: int = 0,
    ) -> None:
        dice = random.Random(seed)
        self._work, self._slow, self._waits, self._known, self._shown = work, tuple(slow), waits, known, shown
        self._ranks = [_Rank() for _ in range(ranks)]
        self._nodes = [range(first, min(first + nproc, ranks)) for first in range(0, ranks, nproc)]
        self._every = interval(len(self._nodes))
        self._looks = [dice.uniform(0.0, self._every) for _ in self._nodes]
        self._strides = [Strides(node.start) for node in self._nodes]
        self._stragglers = Stragglers(factor)
        self.seconds = 0.0

    def run(self, steps: int) -> Iterator[tuple[int, str, Straggler]]:
        """What is found, and at which step it is said."""
        for step in range(1, steps + 1):
            self._go(step)
            self.seconds = min(rank.now for rank in self._ranks)
            while (due := min(self._looks)) <= self.seconds:
                number = self._looks.index(due)
                self._looks[number] += self._every
                paces = self._strides[number].look(self._look(number, due))
                if paces:
                    for node, found in self._stragglers.hear(f"node-{number}", Paces(1, paces)):
                        yield step, node, found

    def _go(self, step: int) -> None:
        """All ranks make a step."""
        later: list[list[tuple[str, float]]] = []
        begun = []
        for number, rank in enumerate(self._ranks):
            work = [
                (name, seconds * self._factor(number, step, name)) for name, seconds in self._work(number, step).items()
            ]
            names = [name for name, _ in work]
            until = names.index(self._waits) if self._waits in names else len(names)
            for name, seconds in work[:until]:
                self._spend(rank, name, seconds, seconds)
            begun.append(rank.now)
            rank.now += work[until][1] if until < len(work) else 0.0
            later.append(work[until:])
        together = max(rank.now for rank in self._ranks)
        for rank, start, rest in zip(self._ranks, begun, later, strict=True):
            busy, rank.now = rank.now - start, start
            self._spend(rank, self._waits, together - start, busy)
            for name, seconds in rest[1:]:
                self._spend(rank, name, seconds, seconds)
            rank.ahead.append((rank.now, "", 0.0, 0.0))

    def _factor(self, rank: int, step: int, section: str) -> float:
        return math.prod(slow.of(rank, step, section) for slow in self._slow)

    def _spend(self, rank: _Rank, name: str, seconds: float, busy: float) -> None:
        rank.now += seconds
        rank.ahead.append((rank.now, name, seconds, busy))

    def _look(self, number: int, at: float) -> dict[int, tuple[Totals, float | None]]:
        seen: dict[int, tuple[Totals, float | None]] = {}
        for local_rank, rank in enumerate(self._ranks[each] for each in self._nodes[number]):
            rank.catch_up(at)
            if rank.step:
                spent = {name: Spent(word) for name, word in rank.spent.items()} if self._shown else {}
                waited = self._waits if self._known else ""
                totals = Totals(read_at=at, pid=1, step=rank.step, step_at=rank.step_at, spent=spent, waited=waited)
                seen[local_rank] = (totals, rank.busy)
        return seen
