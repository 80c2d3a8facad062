"""Conditions of an ElasticJob: what `kubectl describe` and `kubectl wait` read."""

from __future__ import annotations

from collections.abc import Iterable

from outlast.k8s.quantities import stamp
from outlast.k8s.resource import Condition

ORDER = ("Accepted", "Running", "Degraded", "QuotaExceeded", "Fenced", "Suspended", "Complete", "Failed")


class Conditions:
    """The conditions of one job, by type. One that stays as it was keeps its time."""

    def __init__(self, before: Iterable[Condition], now: float) -> None:
        self._before = {each.type: each for each in before}
        self._found = dict(self._before)
        self._now = now

    def set(self, kind: str, holds: bool, reason: str, message: str = "") -> None:
        status = "True" if holds else "False"
        before = self._before.get(kind)
        since = before.last_transition_time if before is not None and before.status == status else stamp(self._now)
        self._found[kind] = Condition(
            type=kind,
            status="True" if holds else "False",
            reason=reason,
            message=message,
            last_transition_time=since,
        )

    def clear(self, kind: str, reason: str) -> None:
        """It does not hold (any more); what never held is not mentioned."""
        if kind in self._found:
            self.set(kind, False, reason)

    def all(self) -> tuple[Condition, ...]:
        rank = {kind: place for place, kind in enumerate(ORDER)}
        return tuple(sorted(self._found.values(), key=lambda each: (rank.get(each.type, len(rank)), each.type)))
