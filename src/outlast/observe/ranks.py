"""Ranks by how long their steps take: stragglers first. Pure functions."""

from __future__ import annotations

from statistics import median

import msgspec

from outlast.events.phrases import count
from outlast.observe.status import status_lines
from outlast.protocol.paces import Pace
from outlast.protocol.views import JobView

SLOW = 1.1  # times the median: worth a mark


class RankRow(msgspec.Struct, frozen=True):
    """One rank, as it last told."""

    rank: int
    node: str
    step: int
    seconds: float  # of a step
    own: float  # of them, what it did not spend waiting for others, as far as that is known
    section: str  # where most of that goes
    slow: bool


def rank_rows(view: JobView) -> list[RankRow]:
    """All ranks that have told of steps, the slowest first.

    Ranks that train together have the same step time, for all wait for the slowest: what tells them apart is the time
    that each spends on its own work.
    """
    told = [(node.name, pace) for node in view.nodes for pace in node.paces]
    if not told:
        return []
    usual = median(_own(pace) for _, pace in told)
    rows = [
        RankRow(
            rank=pace.rank,
            node=name,
            step=pace.last,
            seconds=pace.step,
            own=_own(pace),
            section=_section(pace),
            slow=len(told) > 1 and _own(pace) > SLOW * usual,
        )
        for name, pace in told
    ]
    return sorted(rows, key=lambda row: (not row.slow, -row.own, row.rank))


def top_lines(view: JobView, rows: int) -> list[str]:
    """The job in one line, and as many ranks as fit."""
    ranks = rank_rows(view)
    lines = [status_lines(view, None)[0]]
    if not ranks:
        return [*lines, "  no rank has told of a step yet"]
    lines.append(f"  {'rank':>6} {'node':20} {'step':>10} {'step time':>10} {'own work':>10}  section")
    for row in ranks[:rows]:
        mark = "!" if row.slow else " "
        times = f"{row.seconds:>8.3f} s {row.own:>8.3f} s"
        lines.append(f"{mark} {row.rank:>6} {row.node[:20]:20} {row.step:>10,} {times}  {row.section}")
    if len(ranks) > rows:
        lines.append(f"  and {count(len(ranks) - rows, 'rank')} more")
    return lines


def _own(pace: Pace) -> float:
    if pace.sections:
        return sum(seconds for name, seconds in pace.sections.items() if name != pace.waited)
    return pace.busy if pace.busy is not None else pace.step


def _section(pace: Pace) -> str:
    own = {name: seconds for name, seconds in pace.sections.items() if name != pace.waited}
    longest = max(own, key=lambda name: own[name], default="")
    return f"{longest} {own[longest]:.3f} s" if longest else ""
