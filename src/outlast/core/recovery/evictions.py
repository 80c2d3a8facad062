"""Places that are left out for a while, because what is there seems to be faulty or slow; then they are on probation.

Nobody is left out whom the others cannot do without, and in an hour no more than `eviction_limit`. Each time it is for
twice as long.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from outlast.core.membership.roster import world_of
from outlast.protocol.failures import Ban
from outlast.protocol.fields import LONGEST_REASON
from outlast.protocol.rules import Rules

HOUR = 3600.0


class Evictions:
    """Those of one job.

    >>> evictions = Evictions(Rules(job="j", entrypoint="e", min_nodes=1, max_nodes=2, exclude_for=60.0))
    >>> evictions.stays("b", others=1, now=0.0), evictions.leave_out("place of b", "the GPU is gone", now=0.0)
    ('', 60.0)
    >>> evictions.is_out("place of b"), evictions.deadline(), evictions.settle(now=60.0)
    (True, 60.0, ({'place of b'}, set()))
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.bans: dict[str, Ban] = {}
        self._out: set[str] = set()
        self._next: float | None = None  # when one may come back

    def recall(self, bans: Mapping[str, Ban], now: float) -> None:
        """Go on where a coordinator was killed."""
        self.bans = dict(bans)
        self.settle(now)

    def is_out(self, place: str) -> bool:
        return place in self._out

    def deadline(self) -> float | None:
        """When the next one may come back: `settle` is due."""
        return self._next

    def needed(self, name: str, others: int) -> str:
        """Why a node cannot be done without, when so many others are there; nothing, if it can."""
        r = self._rules
        if world_of(others, least=r.min_nodes, most=r.max_nodes, unit=r.node_unit):
            return ""
        return f"node {name} stays, for without it there are fewer than {r.min_nodes}"

    def stays(self, name: str, others: int, now: float) -> str:
        """Why a node cannot be left out: it is needed, or too many are out; nothing, if it can."""
        if needed := self.needed(name, others):
            return needed
        if sum(now - ban.since < HOUR for ban in self.bans.values()) < self._rules.eviction_limit:
            return ""
        return f"node {name} stays, for enough have gone within an hour (eviction_limit)"

    def leave_out(self, place: str, reason: str, now: float) -> float:
        """Do not use this one for a while. Returns for how long."""
        before = self.bans.get(place)
        times = before.times + 1 if before is not None else 1
        seconds = self._rules.exclude_for * float(2 ** min(times - 1, 10))
        self.bans[place] = Ban(now, now + seconds, times, reason[:LONGEST_REASON])
        self._out.add(place)
        self._next = self._due(now)
        return seconds

    def settle(self, now: float) -> tuple[set[str], set[str]]:
        """See who is out now. Returns the places that may be used again, and those that no longer may."""
        before = self._out
        self._out = {place for place, ban in self.bans.items() if now < ban.until}
        self._next = self._due(now)
        return before - self._out, self._out - before

    def probation(self, place: str, now: float) -> str | None:
        """Why it was left out, for as long afterwards as that had lasted; then None."""
        ban = self.bans.get(place)
        return ban.reason if ban is not None and now < ban.until + (ban.until - ban.since) else None

    def tell(self, now: float) -> dict[str, Ban]:
        """What a successor has to know, whose clock is another one: times count from now."""
        return _shifted(self.bans, -now)

    def hear(self, told: Mapping[str, Ban], now: float) -> None:
        """Take over what another coordinator has told: it is newer than what is known here."""
        self.bans |= _shifted(told, now)

    def _due(self, now: float) -> float | None:
        return min((ban.until for ban in self.bans.values() if ban.until > now), default=None)


def _shifted(bans: Mapping[str, Ban], by: float) -> dict[str, Ban]:
    return {place: replace(ban, since=ban.since + by, until=ban.until + by) for place, ban in bans.items()}
