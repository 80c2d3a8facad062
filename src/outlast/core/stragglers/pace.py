"""How a rank gets on: from two looks at its part of the board to what a step takes, and what that time goes into.

Ranks that train together have the same step time, for all wait for the slowest. What tells them apart is the time that
each spends on its own work. There are two sources of it:

- The sections that the script names: their times are added up on the board.
- For scripts that name none: how long the main thread was busy, that is, ran or waited for a processor. A rank that
  waits for others in a collective over gloo sleeps. (One that waits for a GPU mostly spins: then all are busy all the
  time, and nobody looks slower than another.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from outlast.protocol.paces import MOST_SECTIONS, Pace

if TYPE_CHECKING:
    from outlast.board.readings import Totals

    # How far a rank has come, and for how many seconds its main thread has been busy, if that is known.
    Look = tuple[Totals, float | None]

SECONDS = 1.0  # from one look at the board to the next
NODES = 500  # as many may tell of it in a second: the coordinator has other things to do
PATIENCE = 10  # looks, with a rank that makes no step while others do
LONG = 3600.0  # seconds: what lies between two looks that far apart is no figure of training


def interval(nodes: int) -> float:
    """Seconds from one look to the next, in a job of so many nodes.

    >>> interval(4), interval(10_000)
    (1.0, 20.0)
    """
    return max(SECONDS, nodes / NODES)


class Strides:
    """From one look at the ranks of a node to the next that has something to tell.

    The ranks of a node are looked at together, so that what is told of them is of the same time: nothing, until each
    has made a step. One that makes none, while others do, is not waited for any longer than that.
    """

    def __init__(self, first_rank: int) -> None:
        self._first_rank = first_rank
        self._known: dict[int, Look] = {}  # by local rank: the look that its present stride began with
        self._waited = 0  # looks since some have made a step, and not all
        self._left: set[int] = set()  # those that are not waited for

    def look(self, seen: Mapping[int, Look]) -> tuple[Pace, ...]:
        """How those got on who are seen, by their local rank."""
        self._known |= {rank: now for rank, now in seen.items() if not self._is_the_same(rank, seen)}
        moved = {rank for rank, (now, _) in seen.items() if now.step != self._known[rank][0].step}
        self._left -= moved
        missing = seen.keys() - moved - self._left
        if not moved:
            return ()
        if missing and self._waited < PATIENCE:
            self._waited += 1
            return ()
        self._waited = 0
        self._left |= missing
        found = [self._between(rank, self._known[rank], seen[rank]) for rank in sorted(moved)]
        self._known |= {rank: seen[rank] for rank in moved}
        return tuple(each for each in found if each is not None)

    def _is_the_same(self, rank: int, seen: Mapping[int, Look]) -> bool:
        return rank in self._known and self._known[rank][0].pid == seen[rank][0].pid

    def _between(self, rank: int, before: Look, now: Look) -> Pace | None:
        (then, busy_then), (here, busy) = before, now
        share = None
        if busy is not None and busy_then is not None and here.read_at > then.read_at:
            share = (busy - busy_then) / (here.read_at - then.read_at)
        return pace(
            self._first_rank + rank,
            steps=(then.step, here.step),
            took=here.step_at - then.step_at,
            closed={name: spent.after(then.spent.get(name)) for name, spent in here.spent.items()},
            busy=share,
            waited=here.waited,
        )


def pace(
    rank: int,
    *,
    steps: tuple[int, int],
    took: float,
    closed: Mapping[str, tuple[int, float]],
    busy: float | None = None,
    waited: str = "",
) -> Pace | None:
    """What a step took between two looks, with the number of the last step at each; None: nothing to go by.

    `took`: seconds from the one step to the other. `closed`: how many sections of each name, and the seconds in them.
    `busy`: the share of the time in which the main thread was.

    >>> pace(5, steps=(400, 410), took=2.0, closed={"forward": (10, 0.5)}, busy=0.5)
    Pace(rank=5, first=400, last=410, step=0.2, sections={'forward': 0.05}, busy=0.1, waited='')
    """
    first, last = steps
    if last <= first or not 0.0 < took < LONG:
        return None  # an epoch that counts anew, or a pause
    count, step = last - first, took / (last - first)
    each = {name: _per_step(*spent, count) for name, spent in closed.items() if spent[0]}
    longest = sorted(each, key=lambda name: -each[name])[:MOST_SECTIONS]
    return Pace(
        rank,
        first,
        last,
        step,
        {name: each[name] for name in sorted(longest)},
        min(max(busy, 0.0), 1.0) * step if busy is not None else None,  # a clock may go on between two looks
        waited if waited in longest else "",
    )


def _per_step(times: int, seconds: float, steps: int) -> float:
    """Seconds per step. A look may come in the middle of one, so that its sections were not all closed, or too many."""
    usual = round(times / steps)
    whole = usual >= 1 and abs(times - usual * steps) <= usual
    return seconds / times * usual if whole else seconds / steps
