"""When the next snapshot is due: by steps, by time, or as seldom as failures allow.

Ranks must never disagree on which step is saved, and clocks differ. So times become steps: at each save all ranks tell
each other what they have measured since the last one, and reckon from the same numbers at which step the next is due.
No word is said between saves.

`"auto"` is the interval of Young and Daly: what saves cost, against what is lost with a failure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

DAY = 86400.0
# Before anything has failed: a failure a day, or, with many ranks, one in so many hours of each rank. (Of 16,384 GPUs
# that trained Llama 3 one failed every 3.1 hours.) It weighs as much as one failure that was seen.
RANK_HOURS = 50_000.0
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|m|min|h|d)")
_SECONDS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": DAY}

Every = int | str | timedelta | None


@dataclass(frozen=True)
class SaveTimes:
    """What a rank knows when it saves."""

    step_time: float  # seconds; 0: nothing was measured yet
    cost: float  # seconds that training has waited for a save
    lived: float  # seconds since the first snapshot of this job
    failures: int  # since then: how often the ranks were lined up anew


class Interval:
    """Says whether a step is to be saved. Made alike and asked alike on all ranks.

    interval = Interval("30s")
    if interval.due(step):
        measured = interval.measure(step, begun=…, ended=…, lived=…, failures=0)
        interval.agree(step, [measured])   # of all ranks, rank 0's first
    """

    def __init__(self, every: Every) -> None:
        self._every = 1
        self._seconds = 0.0
        self._auto = every == "auto"
        if isinstance(every, int) and not isinstance(every, bool) and every >= 1:
            self._every = every
        elif isinstance(every, timedelta | str) and not self._auto:
            self._seconds = _seconds(every)
        elif every is not None and not self._auto:
            raise _refused(every)
        self._due: int | None = None
        self._steps = 1  # from the last save to the next
        self._last: tuple[int, float] | None = None
        self._step_time = 0.0
        self._cost = 0.0

    @property
    def timed(self) -> bool:
        """Whether ranks have to agree."""
        return self._auto or self._seconds > 0

    def due(self, step: int) -> bool:
        if self.timed:
            return self._due is None or step >= self._due
        return step % self._every == 0

    def begin_anew(self) -> None:
        """Another state was loaded: the next step is saved."""
        self._due, self._last, self._steps = None, None, 1

    def measure(
        self, step: int, *, begun: float, ended: float, lived: float = 0.0, failures: int = 0, planned: bool = False
    ) -> SaveTimes:
        """Of a save from `begun` to `ended`. `planned`: it was one that ranks plan together, which costs more."""
        if self._last is not None and step > self._last[0]:
            steps = step - self._last[0]
            weight = min(1.0, steps / self._steps) if self._step_time else 1.0
            self._step_time += weight * ((begun - self._last[1]) / steps - self._step_time)
        if not planned:
            self._cost += (0.5 if self._cost else 1.0) * (ended - begun - self._cost)
        self._last = step, ended
        return SaveTimes(self._step_time, self._cost or ended - begun, lived, failures)

    def agree(self, step: int, measured: Sequence[SaveTimes]) -> None:
        """Decide when the next save is due, from what all ranks have measured.

        An interval is at most twice as long as the last one: steps may have been short by chance.
        """
        first = measured[0]
        seconds = self._seconds
        if self._auto:
            failures = mean_time_between_failures(first.lived, first.failures, len(measured))
            seconds = daly(max(each.cost for each in measured), failures)
        steps = round(seconds / first.step_time) if first.step_time > 0 else 1
        self._steps = max(1, min(steps, 2 * self._steps))
        self._due = step + self._steps


def daly(cost: float, mtbf: float) -> float:
    """The seconds of work between two saves at which least is lost, by Daly's formula of 2006.

    >>> round(daly(0.5, 86400.0)), round(daly(60.0, 86400.0)), daly(100.0, 40.0)
    (294, 3180, 40.0)
    """
    if cost >= 2 * mtbf:
        return mtbf
    ratio = cost / (2 * mtbf)
    return math.sqrt(2 * cost * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


def mean_time_between_failures(lived: float, failures: int, ranks: int) -> float:
    """Seconds, from what was seen and from what is known of others.

    >>> mean_time_between_failures(0.0, 0, 8) / 3600, mean_time_between_failures(6 * 3600.0, 5, 8) / 3600
    (24.0, 5.0)
    """
    before = min(DAY, RANK_HOURS * 3600 / ranks)
    return (before + max(lived, 0.0)) / (1 + max(failures, 0))


def _seconds(every: str | timedelta) -> float:
    if isinstance(every, timedelta):
        seconds = every.total_seconds()
    else:
        match = _TIME.fullmatch(every.strip())
        seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if seconds <= 0:
        raise _refused(every)
    return seconds


def _refused(every: object) -> ValueError:
    return ValueError(
        f'every must be a number of steps, a time as "30s", "5m" or "1h" (or a timedelta), or "auto", not {every!r}'
    )
