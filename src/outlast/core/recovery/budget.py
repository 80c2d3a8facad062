"""How often a job is tried again: budgets that only progress refills.

`--max-restarts` counts as torchrun counts. Beyond it: the same failure again and again without a step of progress is
a crash loop, whatever else fails in between; one that no retry can cure gets one retry; and a node on which it fails
again and again is to blame for it (core/recovery/evictions.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from outlast.core.recovery.failures import by_whom, facts_of
from outlast.events.phrases import count
from outlast.events.sentences import diagnosed, why
from outlast.protocol.failures import FailoverStrategy, Failure, Tried
from outlast.protocol.fields import LONGEST_REASON
from outlast.protocol.rules import Rules

CURELESS_TRIES = 2  # of what a retry cannot help
NODE_TRIES = 3  # in a row on one node, until it is the node's fault
LONG = 600.0  # seconds: whoever ran that long has got on, with or without steps that we know of
KEPT = 100  # of what was tried: the first ones and the last ones
TOLD, SHORT = 32, 200  # of them, the last ones, that successors are told; characters of each of their texts
_NUMBERS = re.compile(r"(?:0x)?[0-9a-f]*\d[0-9a-f]*", re.IGNORECASE)


class Budget:
    """The history of one job's failures.

    >>> budget = Budget(Rules(job="j", entrypoint="e", min_nodes=1, max_nodes=1, failover=True, crash_loop=5))
    >>> budget.spent([Failure("a", "h", 0, 0, 1, 1, 0.0, "")], restarts=0)
    'rank 0 on node a failed (exit code 1), and no restart is allowed (--max-restarts=0)'
    """

    def __init__(self, rules: Rules, tried: Sequence[Tried] = ()) -> None:
        self._rules = rules
        self.tried = list(tried)

    def tell(self) -> tuple[Tried, ...]:
        """What a successor has to know, in short."""
        return tuple(
            replace(each, title=each.title[:SHORT], seen=each.seen[:SHORT], did=each.did[:SHORT])
            for each in self.tried[-TOLD:]
        )

    def hear(self, told: Sequence[Tried]) -> None:
        """Take over what another coordinator has told: it is newer than what is known here."""
        known = {each.generation for each in told}
        self.tried = [each for each in self.tried if each.generation not in known] + list(told)

    def spent(self, failures: Sequence[Failure], restarts: int) -> str:
        """Why the job ends with this failure, of which the root is first; nothing, if it is worth another try."""
        root, allowed = failures[0], self._rules.max_restarts
        if self._rules.failover and root.strategy is FailoverStrategy.ABORTION:
            return f"{diagnosed(facts_of(root))}; no restart, for it could not help{by_whom(root)}"
        if restarts >= allowed:
            tries = f"and {count(allowed, 'restart')} did not help" if allowed else "and no restart is allowed"
            return f"{why(facts_of(root))}, {tries} (--max-restarts={allowed})"
        vain = self._vain(failures) if self._rules.failover else ""
        return f"{why(facts_of(root))}; {vain}" if vain else ""

    def is_final(self, failures: Sequence[Failure]) -> bool:
        """Whether the job would fail again with this failure, wherever it is started: on other nodes, too."""
        if not self._rules.failover:
            return False
        aborted = failures[0].strategy is FailoverStrategy.ABORTION
        return aborted or (_of_the_script(failures[0]) and bool(self._vain(failures)))

    def _vain(self, failures: Sequence[Failure]) -> str:
        """Why more tries would not help, going by those before; nothing, if they may."""
        same = self._since_progress(failures)
        cause = failures[0].cause
        if cause is not None and cause.outlook == "cannot help" and len(same) + 1 >= CURELESS_TRIES:
            return f"{cause.title} ({cause.name}), and a retry has not helped"
        if self._rules.crash_loop and len(same) + 1 >= self._rules.crash_loop:
            first = same[0]
            return (
                f"a crash loop: the same failure {len(same) + 1} times without progress (--ft-crash-loop="
                f"{self._rules.crash_loop}), first in generation {first.generation}: {first.seen or first.title}"
            )
        return ""

    def blamed(self, failures: Sequence[Failure], probation: str | None) -> str:
        """Why the node of this failure should go, though its cause does not say so; nothing, if it should not.

        `probation`: why the node had been left out, if it is back on probation.
        """
        if not self._rules.failover or _of_the_script(failures[0]):
            return ""
        if probation is not None:
            return f"it failed again on probation, after {probation}"
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

    def _since_progress(self, failures: Sequence[Failure]) -> list[Tried]:
        """The same failure, without progress since. Others in between are none: a kill, or the other of two errors."""
        if self._progressed(failures):
            return []
        since = max((index for index, each in enumerate(self.tried) if each.progressed), default=0)
        key = _key(failures[0])
        return [each for each in self.tried[since:] if each.key == key]

    def _progressed(self, failures: Sequence[Failure]) -> bool:
        """Whether the generation got further than any before it, or at least ran for long."""
        step = _step(failures)
        best = max((each.step for each in self.tried if each.step is not None), default=0)
        return (step is not None and step > best) or (failures[0].account.ran or 0.0) >= LONG


def _of_the_script(failure: Failure) -> bool:
    return failure.cause is None or failure.cause.domain in ("user code", "data")


def _step(failures: Sequence[Failure]) -> int | None:
    return max((each.account.step for each in failures if each.account.step is not None), default=None)


def _key(failure: Failure) -> str:
    """The same for the same failure: for the same type of exception, else whatever the numbers in its text are."""
    cause = failure.cause
    if cause is None:
        return f"exit {failure.exit_code}"
    seen = _NUMBERS.sub("#", cause.seen)[:120] if cause.name == "unknown" else ""
    return f"{cause.name} {failure.account.exception} {seen}".strip()[:255]
