"""Two runs of one script, held against each other: where losses, weights and samples part."""

from __future__ import annotations

import math
from collections import Counter

import msgspec

from outlast.rehearsal.history import RunHistory

NAMED = 8  # samples that are named


class SampleDifference(msgspec.Struct, frozen=True):
    """Samples that count more often, or less often, than in the undisturbed run."""

    more: int = 0
    fewer: int = 0
    named_more: tuple[str, ...] = ()
    named_fewer: tuple[str, ...] = ()


class Parting(msgspec.Struct, frozen=True):
    """Where two runs part. `step` 0: before the first."""

    step: int
    what: str  # "weights", "loss", "samples", "learning rate"
    rank: int = 0
    mine: float | None = None  # losses
    theirs: float | None = None


class Comparison(msgspec.Struct, frozen=True):
    """`same`: "bits", "tolerance", "different", or "unknown" where nothing can be compared."""

    same: str
    steps: int  # that were compared
    parting: Parting | None = None
    loss_difference: float = 0.0  # relative, the largest
    weight_difference: float = 0.0  # relative, of the norm at the end
    samples: SampleDifference = SampleDifference()
    worlds_differ: bool = False


def compare(mine: RunHistory, theirs: RunHistory, *, tolerance: float) -> Comparison:
    """Hold `theirs` against `mine`, up to the last step that both have."""
    last = min(mine.last, theirs.last)
    if last == 0:
        return Comparison("unknown", 0)
    worlds = {mine.world_at(step) == theirs.world_at(step) for step in range(1, last + 1)}
    parting, loss = None, 0.0
    for step in range(1, last + 1):
        found, difference = _at(mine, theirs, step)
        parting = parting or found
        loss = max(loss, difference)
    weights = _relative(_norm(mine, last), _norm(theirs, last))
    same = "bits" if parting is None else "tolerance" if max(loss, weights) <= tolerance else "different"
    # On another number of ranks an epoch has another number of steps: only whole runs can be compared then.
    ends = (last, last) if worlds == {True} else (mine.last, theirs.last)
    samples = _sample_difference(mine.samples(ends[0]), theirs.samples(ends[1]))
    return Comparison(same, last, parting, loss, weights, samples, worlds != {True})


def _at(mine: RunHistory, theirs: RunHistory, step: int) -> tuple[Parting | None, float]:
    """What differs at one step, and the losses' relative difference."""
    a, b = mine.steps[step], theirs.steps[step]
    found: Parting | None = None
    both = sorted(set(a) & set(b))
    if len(a) != len(b):  # another world: the mean of the ranks' losses is what can be compared
        losses = [_mean([each.loss for each in ranks.values() if each.loss is not None]) for ranks in (a, b)]
        difference = _relative(losses[0], losses[1])
        return Parting(step, "loss", 0, losses[0], losses[1]) if difference else None, difference
    difference = 0.0
    for rank in both:
        one, other = a[rank], b[rank]
        difference = max(difference, _relative(one.loss, other.loss))
        if found is not None:
            continue
        if one.samples != other.samples:
            found = Parting(step, "samples", rank, one.loss, other.loss)
        elif one.rates != other.rates:
            found = Parting(step, "learning rate", rank, max(one.rates, default=None), max(other.rates, default=None))
        elif one.loss != other.loss:
            found = Parting(step, "loss", rank, one.loss, other.loss)
        elif one.after != other.after:
            found = Parting(step, "weights", rank, one.loss, other.loss)
    return found, difference


def _sample_difference(mine: Counter[str], theirs: Counter[str]) -> SampleDifference:
    more, fewer = theirs - mine, mine - theirs
    named = [tuple(sorted(each, key=_by_number)[:NAMED]) for each in (more, fewer)]
    return SampleDifference(more.total(), fewer.total(), named[0], named[1])


def _by_number(name: str) -> tuple[bool, int, str]:
    return (not name.isdecimal(), int(name) if name.isdecimal() else 0, name)


def _norm(history: RunHistory, step: int) -> float | None:
    return _mean([each.norm for each in history.steps[step].values()])


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _relative(a: float | None, b: float | None) -> float:
    """How far apart two numbers are; NaN is far from everything but NaN.

    >>> _relative(2.0, 2.0), _relative(2.0, 1.0), _relative(math.nan, math.nan), _relative(1.0, math.nan)
    (0.0, 0.5, 0.0, inf)
    """
    if a is None or b is None:
        return 0.0
    if math.isnan(a) or math.isnan(b):
        return 0.0 if math.isnan(a) and math.isnan(b) else math.inf
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0
