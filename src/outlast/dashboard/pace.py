"""How fast steps were made over the job's life, in a bounded number of samples. Pure."""

from __future__ import annotations

from statistics import median_low

import msgspec

MOST = 720  # samples: about one for every pixel that the chart has
RECENT = MOST // 2  # of them are never thinned


class PaceSample(msgspec.Struct, frozen=True, array_like=True):
    """How the ranks got on at one time."""

    time: float
    step: int
    seconds: float | None  # of a step, of the median rank; None: a break in the line
    slowest: float | None = None  # of a step, of the slowest rank


class PaceHistory:
    """Samples in the order of time; old ones get sparser as more come.

    >>> history = PaceHistory()
    >>> for at in range(10_000):
    ...     history.add(PaceSample(float(at), at, 0.5))
    >>> len(history.samples) <= MOST, history.samples[0].time, history.samples[-1].time
    (True, 0.0, 9999.0)
    """

    def __init__(self) -> None:
        self.samples: list[PaceSample] = []

    def add(self, sample: PaceSample) -> None:
        """The next one; what is no later than the last, or says the same, is left out."""
        if self.samples and sample.time <= self.samples[-1].time:
            return
        self.samples.append(sample)
        if len(self.samples) > MOST:
            old, recent = self.samples[:-RECENT], self.samples[-RECENT:]
            self.samples = [each for at, each in enumerate(old) if at % 2 == 0 or each.seconds is None] + recent
            self.samples = self.samples[-MOST:]

    def pause(self, time: float) -> None:
        """No steps are made: the line breaks here."""
        if self.samples and self.samples[-1].seconds is not None and time > self.samples[-1].time:
            self.add(PaceSample(time, self.samples[-1].step, None))


def typical(values: list[float]) -> float | None:
    """The median, which one slow rank does not move."""
    return median_low(values) if values else None
