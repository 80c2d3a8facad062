"""When which step was made: what a rollback makes void."""

from __future__ import annotations

from itertools import pairwise


class StepHistory:
    """The steps that count, in order: a rollback takes back those after it.

    >>> history = StepHistory()
    >>> history.made(0, at=100); history.made(10, at=200)
    >>> history.roll_back(4, now=300)
    (6, 140)
    >>> history.last
    4
    """

    def __init__(self) -> None:
        self._samples: list[tuple[int, int]] = []  # time, step: both grow

    @property
    def last(self) -> int | None:
        return self._samples[-1][1] if self._samples else None

    def made(self, step: int, at: int) -> None:
        """This step was made then; what is older than what is known says nothing."""
        if not self._samples:
            self._samples.append((at, step))
            return
        then, known = self._samples[-1]
        if at <= then or step < known:
            return
        (between, before) = self._samples[-2] if len(self._samples) > 1 else (0, None)
        if before is not None and _on_the_line((between, before), (then, known), (at, step)):
            self._samples.pop()  # a month of even progress needs two samples
        self._samples.append((at, step))

    def roll_back(self, step: int, now: int) -> tuple[int, int]:
        """Training goes on after this step. How many steps that makes void, and since when they were made."""
        last = self.last
        if last is None or step >= last:
            return 0, now
        since = self._when(step)
        self._samples = [sample for sample in self._samples if sample[1] < step and sample[0] < since]
        self._samples.append((since, step))
        return last - step, since

    def _when(self, step: int) -> int:
        """When this step was made: between two that are known, in proportion."""
        for (then, before), (at, after) in pairwise(self._samples):
            if before <= step < after:
                return then + (at - then) * (step - before) // (after - before)
        return self._samples[0][0]


def _on_the_line(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> bool:
    """Whether b lies on the line from a to c, to a thousandth of it."""
    along = (c[0] - a[0]) * (b[1] - a[1]) - (b[0] - a[0]) * (c[1] - a[1])
    return abs(along) * 1000 <= (c[0] - a[0]) * max(1, c[1] - a[1])
