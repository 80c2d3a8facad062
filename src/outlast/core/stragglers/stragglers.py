"""Who is slower than the others while training goes on: named when it begins, and when it is over.

    found = stragglers.hear("node-2", paces)

**What is compared.** The time per step that ranks spend in each section, and that their main threads are busy, with
the median of all ranks (the lower one, if they are even): what slows all of them accuses nobody. Where ranks wait for
each other, the times say the opposite of what they seem to: whoever comes early waits longest. So nobody is named for
the section that an optimizer's step follows, nor for one that is called like a collective; and nobody whose other
sections are shorter by as much, for then it may be that one that is waited in. A difference that does not matter (under
2 % of the step) is none.

**When it is said.** One pause proves nothing: a checkpoint, garbage collection, a disturbed machine. Each round of
figures moves a sum up or down by no more than 1: by the logarithm of the ratio to the median, less that of the factor
from which on a rank counts as slow, in units of the noise that there is. (A cumulative sum, Page 1954, with clipped
increments.) The sum does not fall below 0; at `BEGINS` the rank is named. Where it left 0 last is since when. It does
not grow beyond `MOST`, and when it is at 0 again, it is over. The noise is that of the rounds themselves: how much a
rank's time differs from what it was the round before, as the median of all ranks has it, smoothed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from outlast.protocol.paces import Pace, Paces

BEGINS, MOST = 5.0, 8.0
LASTS = 20  # rounds after it was named: a node is not left out for half an hour because of what is over in a moment
LEAST_NOISE, FIRST_NOISE = 0.03, 0.1  # of the logarithm of a time
SMOOTHING = 0.1
SAMPLE = 1024  # ranks are enough to know the median and the noise
MATTERS = 0.02  # of a step
ON_THE_WAY = 0.6  # of a step: whoever is busy for less waits itself, and keeps nobody waiting by what it does
COMPENSATED = 0.5  # of what a rank needs more, that it needs less elsewhere
COMPARABLE = 0.5  # of the ranks have to have a section, to be compared in it
MOST_NAMED = 64  # at the same time: more than that are no stragglers, but another kind of machine
BUSY = ""  # the name of the section that is none
REMEMBERED = 64  # rounds that the ratio is a median of
WAITING = ("backward", "bwd", "reduce", "gather", "broadcast", "collective", "barrier", "sync", "wait", "comm")


class Straggler(msgspec.Struct, frozen=True):
    """Ranks of one node that are slower than the others; or were, if it is over."""

    generation: int
    ranks: tuple[int, ...]
    section: str  # in which; empty: nobody knows, their main threads are busy for longer
    factor: float  # how much slower than the median
    since: int  # the step
    over: int | None = None  # the step from which on it was over; None: it is not
    lasts: bool = False  # it was said before, and goes on: time to do something about it
    excess: float = 0.0  # seconds that a step takes longer for it

    def sentence(self, node: str) -> str:
        """What people are told.

        >>> Straggler(1, (5,), "forward", 1.8, 410).sentence("node-2")
        "rank 5 on node-2 is 1.8 times slower than the others in section 'forward' since step 410"
        """
        several = len(self.ranks) > 1
        who = f"rank{'s' * several} {_listed(self.ranks)} on {node}"
        where = f"in section {self.section!r}" if self.section else "in its own work (no section says which)"
        slower = f"{self.factor:.2g} times slower than the others {where}"
        if self.over is None:
            return f"{who} {'are' if several else 'is'} {slower} since step {self.since}"
        return f"{who} {'are' if several else 'is'} no longer {slower}: it was so from step {self.since} to {self.over}"


class _Sum(msgspec.Struct):
    """Of one rank and section, while it is not 0."""

    began: Pace  # the round in which it left 0
    at_first: float  # the logarithm of the ratio then
    value: float = 0.0
    excess: list[float] = []  # that logarithm, in the rounds that it grew in

    def factor(self) -> float:
        return math.exp(_median(self.excess))

    def since(self) -> int:
        """The step. In the first round, which is slow from somewhere on, it is as far back as its ratio says."""
        slow = min(1.0, math.expm1(self.at_first) / math.expm1(_median(self.excess)))
        return self.began.last - round(slow * (self.began.last - self.began.first))


class _Named(msgspec.Struct):
    """A rank that people know of."""

    said: Straggler
    until: int  # the last step that was slow
    rounds: int = 0


class Stragglers:
    """Those of the newest generation. A round is complete when all ranks have told how they got on.

    >>> stragglers = Stragglers(factor=1.2)
    >>> def told(number, *forward):
    ...     each = enumerate(forward)
    ...     return Paces(1, tuple(Pace(r, 9 * number, 9 * number + 9, 1.0, {"forward": s}) for r, s in each))
    >>> for number in range(8):
    ...     for node, found in stragglers.hear("a", told(number, 0.1, 0.1, 0.2)):
    ...         print(found.sentence(node))
    rank 2 on a is 2 times slower than the others in section 'forward' since step 0
    """

    def __init__(self, factor: float) -> None:
        self._threshold = math.log(factor)
        self._begin(0)

    def _begin(self, generation: int) -> None:
        self._generation = generation
        self._homes: dict[int, str] = {}  # of ranks: their nodes
        self._fresh: dict[int, Pace] = {}  # of this round, by rank
        self._before: dict[int, Pace] = {}  # of the last one
        self._noise: dict[str, float] = {}
        self._sums: dict[tuple[int, str], _Sum] = {}
        self._named: dict[int, _Named] = {}

    def hear(self, node: str, paces: Paces) -> list[tuple[str, Straggler]]:
        """Take in what a node says. What there is to be said then: of which node, and what."""
        if paces.generation < self._generation:
            return []
        found: list[tuple[str, Straggler]] = []
        if paces.generation > self._generation:
            found = self._over(list(self._named))  # from here on ranks are others
            self._begin(paces.generation)
        for pace in paces.paces:
            if pace.rank in self._fresh:  # a second time: the round is made of those who have spoken
                found += self._compare()
            self._homes[pace.rank] = node
            self._fresh[pace.rank] = pace
        if len(self._fresh) == len(self._homes):
            found += self._compare()
        return found

    def _compare(self) -> list[tuple[str, Straggler]]:
        """A round is complete."""
        paces, self._fresh = self._fresh, {}
        if len(paces) < 2 or len(paces) <= COMPARABLE * len(self._homes):
            return []
        round_ = _Round(paces)
        self._listen(round_)
        cuts = {section: middle * math.exp(self._threshold) for section, middle in round_.middle.items()}
        suspects = {(rank, section) for rank, pace in paces.items() for section in _above(pace, cuts)}
        for rank, section in sorted(suspects | {key for key in self._sums if key[0] in paces and key[1] in cuts}):
            if round_.has(paces[rank]):
                self._count(paces[rank], section, round_.excess(paces[rank], section))
        self._before = paces
        over = [rank for rank, each in self._named.items() if (rank, each.said.section) not in self._sums]
        return self._over(over) + self._lasting() + self._begun(paces)

    def _listen(self, round_: _Round) -> None:
        """How much noise there is."""
        for section in round_.middle:
            changes = [
                abs(math.log(seconds / before))
                for pace in round_.sample
                if (seconds := _time(pace, section))
                and pace.rank in self._before
                and (before := _time(self._before[pace.rank], section))
            ]
            if changes:
                known = self._noise.get(section, FIRST_NOISE)
                # Of normal noise, the median of the differences is 0.95 standard deviations.
                self._noise[section] = known + SMOOTHING * (_median(changes) / 0.95 - known)

    def _count(self, pace: Pace, section: str, excess: float) -> None:
        key, noise = (pace.rank, section), max(self._noise.get(section, FIRST_NOISE), LEAST_NOISE)
        # In noise, to be fast is worth as much as ever; else single pauses would add up to an accusation.
        unit = noise if excess > self._threshold else min(noise, self._threshold)
        move = min(max((excess - self._threshold) / unit, -1.0), 1.0)
        known = self._sums.get(key)
        if known is None:
            if move <= 0.0:
                return
            known = self._sums[key] = _Sum(pace, excess)
        known.value = min(known.value + move, MOST)
        if move > 0.0:
            known.excess.append(excess)
            del known.excess[:-REMEMBERED]
            named = self._named.get(pace.rank)
            if named is not None and named.said.section == section:
                named.until = pace.last
        if known.value <= 0.0:
            del self._sums[key]

    def _begun(self, paces: Mapping[int, Pace]) -> list[tuple[str, Straggler]]:
        """Those who are named now. Ranks of a node that are slow in the same section are named together."""
        news = {rank for (rank, _), each in self._sums.items() if each.value >= BEGINS}
        together: dict[tuple[str, str], list[tuple[int, _Sum]]] = {}
        for rank in sorted(news - self._named.keys())[: MOST_NAMED - len(self._named)]:
            section, why = self._worst(rank)
            together.setdefault((self._homes[rank], section), []).append((rank, why))
        found = []
        for (node, section), each in together.items():
            ranks = tuple(rank for rank, _ in each)
            factor, since = _median(why.factor() for _, why in each), min(why.since() for _, why in each)
            took = [seconds for rank in ranks if rank in paces and (seconds := _time(paces[rank], section))]
            excess = max(took, default=0.0) * (1.0 - 1.0 / factor)
            found.append((node, Straggler(self._generation, ranks, section, factor, since, excess=excess)))
            for rank in ranks:
                self._named[rank] = _Named(found[-1][1], paces[rank].last if rank in paces else since)
        return found

    def _lasting(self) -> list[tuple[str, Straggler]]:
        """Those who were named a while ago, and are slow still."""
        found = set()
        for rank, each in self._named.items():
            each.rounds += 1
            if each.rounds == LASTS:
                found.add((self._homes[rank], replace(each.said, lasts=True)))
        return sorted(found, key=lambda item: item[1].ranks)

    def _worst(self, rank: int) -> tuple[str, _Sum]:
        """The section that says most: any says more than none, and the innermost has the highest ratio."""
        sums = ((section, each) for (of, section), each in self._sums.items() if of == rank)
        sure = [(section, each) for section, each in sums if each.value >= BEGINS / 2]
        return max(sure, key=lambda item: (item[0] != BUSY, item[1].factor()))

    def _over(self, ranks: Collection[int]) -> list[tuple[str, Straggler]]:
        """Those who were named, and are as fast as the others again: together with whom they were named."""
        together: dict[tuple[str, Straggler], list[int]] = {}
        for rank in sorted(ranks):
            together.setdefault((self._homes[rank], self._named[rank].said), []).append(rank)
        found = []
        for (node, said), each in together.items():
            until = max(self._named.pop(rank).until for rank in each)
            found.append((node, replace(said, ranks=tuple(each), over=max(until, said.since))))
        return found


class _Round:
    """What all ranks have told at about the same time. Of very many, some are enough to know the middle."""

    def __init__(self, paces: Mapping[int, Pace]) -> None:
        sample = [*paces.values()][:: 1 + len(paces) // SAMPLE]
        self._middle = sorted(sample, key=lambda pace: pace.last)[len(sample) // 2]
        self.sample = [pace for pace in sample if self.has(pace)]
        times: dict[str, list[float]] = {}
        for pace in self.sample:
            for section in (*pace.sections, BUSY):
                if seconds := _time(pace, section):
                    times.setdefault(section, []).append(seconds)
        least = max(1, COMPARABLE * len(self.sample))
        ordered = {section: sorted(each) for section, each in times.items() if len(each) > least}
        self.middle = {section: each[(len(each) - 1) // 2] for section, each in ordered.items()}
        self._upper = {section: each[len(each) // 2] for section, each in ordered.items()}
        told = {pace.waited for pace in self.sample}
        self._waiting = {name for name in self.middle if name in told or _is_called_waiting(name)} - {BUSY}

    def has(self, pace: Pace) -> bool:
        """Whether its steps meet the steps of most: of nodes that look at different times, at least the ends do."""
        return pace.first <= self._middle.last and pace.last >= self._middle.first

    def excess(self, pace: Pace, section: str) -> float:
        """The logarithm of the ratio to the median; 0, if that does not matter, or is no fault of this rank."""
        seconds = _time(pace, section)
        return math.log(seconds / self.middle[section]) if seconds and self._is_slow(pace, section, seconds) else 0.0

    def _is_slow(self, pace: Pace, section: str, seconds: float) -> bool:
        more = seconds - self.middle[section]
        if section in self._waiting or more < MATTERS * pace.step:
            return False
        if section == BUSY:
            return seconds >= ON_THE_WAY * pace.step
        others = (name for name in self.middle if name not in self._waiting | {BUSY, section})
        less = sum(max(0.0, self._upper[name] - pace.sections.get(name, math.inf)) for name in others)
        return less < COMPENSATED * more


def _above(pace: Pace, cuts: Mapping[str, float]) -> list[str]:
    """The sections in which a rank takes longer than this."""
    found = [section for section, seconds in pace.sections.items() if seconds > cuts.get(section, math.inf)]
    return [*found, BUSY] if pace.busy is not None and pace.busy > cuts.get(BUSY, math.inf) else found


def _time(pace: Pace, section: str) -> float | None:
    """Seconds per step, if there were any."""
    return pace.busy if section == BUSY else pace.sections.get(section)


def _median(values: Iterable[float]) -> float:
    """The upper one of an even number. (Not that of `statistics`, which would load all that there is of numbers.)"""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def _is_called_waiting(section: str) -> bool:
    name = section.lower()
    return any(word in name for word in WAITING)


def _listed(ranks: Iterable[int], most: int = 8) -> str:
    shown = [str(rank) for rank in ranks]
    more = [f"{len(shown) - most} more"] if len(shown) > most else []
    *first, last = shown[:most] + more
    return f"{', '.join(first)} and {last}" if first else last
