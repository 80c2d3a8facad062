"""How often a job is tried again: budgets that only progress refills, and nodes that are left out for a while.

`--max-restarts` counts as torchrun counts. Beyond it: the same failure again and again without a step of progress is
a crash loop; one that no retry can cure gets one retry; and a node on which it fails again and again is left out,
if the others are enough, and let back later, on probation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from outlast.messages import LONGEST_REASON, Ban, Failure, Ledger, Rules, Tried

CURELESS_TRIES = 2  # of what a retry cannot help
NODE_TRIES = 3  # in a row on one node, until it is the node's fault
LONG = 600.0  # seconds: whoever ran that long has got on, with or without steps that we know of
KEPT = 100  # of what was tried: the first ones and the last ones
TOLD, SHORT = 32, 200  # of them, the last ones, that successors are told; characters of each of their texts
HOUR = 3600.0
_NUMBERS = re.compile(r"(?:0x)?[0-9a-f]*\d[0-9a-f]*", re.IGNORECASE)


class Budget:
    """The history of one job's failures.

    >>> budget = Budget(Rules(job="j", entrypoint="e", min_nodes=1, max_nodes=1, failover=True, crash_loop=5))
    >>> budget.spent([Failure("a", "h", 0, 0, 1, 1, 0.0, "")])
    ''
    """

    def __init__(self, rules: Rules, ledger: Ledger | None = None) -> None:
        self._rules = rules
        self.tried = list(ledger.tried) if ledger is not None else []
        self.bans = dict(ledger.bans) if ledger is not None else {}

    def ledger(self) -> Ledger:
        return Ledger(tuple(self.tried), dict(self.bans))

    def tell(self, now: float) -> Ledger:
        """What a successor has to know, whose clock is another one: times count from now."""
        last = (
            replace(each, title=each.title[:SHORT], seen=each.seen[:SHORT], did=each.did[:SHORT])
            for each in self.tried[-TOLD:]
        )
        return Ledger(tuple(last), _shifted(self.bans, -now))

    def hear(self, told: Ledger, now: float) -> None:
        """Take over what another coordinator has told: it is newer than what is known here."""
        known = {each.generation for each in told.tried}
        self.tried = [each for each in self.tried if each.generation not in known] + list(told.tried)
        self.bans |= _shifted(told.bans, now)

    def spent(self, failures: Sequence[Failure]) -> str:
        """Why this failure, of which the root is first, is not worth another try; nothing, if it is."""
        if not self._rules.failover:
            return ""
        same = self._in_a_row(failures)
        cause = failures[0].cause
        if cause is not None and cause.outlook == "cannot help" and len(same) + 1 >= CURELESS_TRIES:
            return f"{cause.title} ({cause.name}), and a retry has not helped, as nobody expected"
        if self._rules.crash_loop and len(same) + 1 >= self._rules.crash_loop:
            first = same[0]
            return (
                f"a crash loop: the same failure {len(same) + 1} times without progress (--ft-crash-loop="
                f"{self._rules.crash_loop}), first in generation {first.generation}: {first.seen or first.title}"
            )
        return ""

    def blamed(self, failures: Sequence[Failure], place: str, now: float) -> str:
        """Why the node of this failure should go, though its cause does not say so; nothing, if it should not."""
        if not self._rules.failover or _of_the_script(failures[0]):
            return ""
        ban = self.bans.get(place)
        if ban is not None and now < ban.until + (ban.until - ban.since):
            return f"it failed again on probation, after {ban.reason}"
        rows = self.tried[-(NODE_TRIES - 1) :]
        here = [each for each in rows if each.node == failures[0].node and not each.progressed]
        if len(here) == NODE_TRIES - 1 and not self._progressed(failures):
            return f"it failed {NODE_TRIES} times in a row without progress"
        return ""

    def note(self, failures: Sequence[Failure], generation: int, did: str) -> None:
        """A generation ended with these failures, and this was done."""
        root = failures[0]
        cause = root.cause
        self.tried.append(
            Tried(
                generation=generation,
                node=root.node,
                rank=root.rank,
                at=root.at,
                cause=cause.name if cause is not None else "unknown",
                title=cause.title if cause is not None else "unknown",
                seen=cause.seen if cause is not None else "",
                did=did[:LONGEST_REASON],
                step=_step(failures),
                key=_key(root),
                progressed=self._progressed(failures),
            )
        )
        if len(self.tried) > KEPT:
            del self.tried[KEPT // 2]

    # -- nodes

    def is_out(self, place: str, now: float) -> bool:
        ban = self.bans.get(place)
        return ban is not None and now < ban.until

    def may_evict(self, now: float) -> bool:
        """Whether another node may be left out within this hour."""
        return sum(now - ban.since < HOUR for ban in self.bans.values()) < self._rules.eviction_limit

    def exclude(self, place: str, reason: str, now: float) -> float:
        """Leave a place out: each time for twice as long. Returns for how long."""
        before = self.bans.get(place)
        times = before.times + 1 if before is not None else 1
        seconds = self._rules.exclude_for * float(2 ** min(times - 1, 10))
        self.bans[place] = Ban(now, now + seconds, times, reason)
        return seconds

    def due(self, now: float) -> float | None:
        """When the next one that is left out may come back."""
        return min((ban.until for ban in self.bans.values() if ban.until > now), default=None)

    def _in_a_row(self, failures: Sequence[Failure]) -> list[Tried]:
        """The same failure, right before this one, without progress in between."""
        if self._progressed(failures):
            return []
        key, row = _key(failures[0]), []
        for each in reversed(self.tried):
            if each.key != key:
                break
            row.append(each)
            if each.progressed:
                break
        return row[::-1]

    def _progressed(self, failures: Sequence[Failure]) -> bool:
        """Whether the generation got further than any before it, or at least ran for long."""
        step = _step(failures)
        best = max((each.step for each in self.tried if each.step is not None), default=0)
        return (step is not None and step > best) or (failures[0].account.ran or 0.0) >= LONG


def root_first(failures: Sequence[Failure]) -> list[Failure]:
    """The earliest that is nobody's consequence, then the others as they came. Their clocks have been aligned."""
    if len(failures) < 2:
        return list(failures)
    by_time = sorted(failures, key=lambda failure: failure.clock)
    if by_time[0].hung:
        # Of ranks that hang, the first whose clock ran out is not the cause: the one that they wait for is.
        by_time.sort(key=lambda failure: not failure.culprit)
    root = min(by_time, key=lambda failure: failure.cause is not None and failure.cause.role == "cascade")
    return [root, *(each for each in by_time if each is not root)]


def _shifted(bans: dict[str, Ban], by: float) -> dict[str, Ban]:
    return {place: replace(ban, since=ban.since + by, until=ban.until + by) for place, ban in bans.items()}


def _of_the_script(failure: Failure) -> bool:
    return failure.cause is None or failure.cause.domain in ("user code", "data")


def _step(failures: Sequence[Failure]) -> int | None:
    return max((each.account.step for each in failures if each.account.step is not None), default=None)


def _key(failure: Failure) -> str:
    """The same for the same failure, whatever the numbers in its text are."""
    cause = failure.cause
    if cause is None:
        return f"exit {failure.exit_code}"
    seen = _NUMBERS.sub("#", cause.seen)[:120] if cause.name in ("exception", "unknown") else ""
    return f"{cause.name} {failure.account.exception} {seen}".strip()[:255]
