"""The failures of one generation: which of them are kept, which is the root, and what events say of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from outlast.events.reasons import FailedRank
from outlast.protocol.failures import Failure

KEPT = 16  # of one generation, the first ones
WHOLE = 2  # of one node's, that are told with all that they said
SHORT = 2000  # characters of a failure that followed another
LONGEST_SAID = 200  # characters of an exception's message in an event


def merged(known: Iterable[Failure], told: Iterable[Failure]) -> list[Failure]:
    """What is known after a node has told of these: what was pending may have been decided meanwhile."""
    found = {(failure.rank, failure.pid): failure for failure in known}
    for failure in told:
        before = found.get((failure.rank, failure.pid))
        if before is None or before.pending:
            found[failure.rank, failure.pid] = failure
    failures = list(found.values())
    if failures and failures[0].hung:
        failures.sort(key=lambda failure: not failure.culprit)  # it must not be the one that is cut off
    return failures[:KEPT]


def worth_telling(failures: Sequence[Failure]) -> tuple[Failure, ...]:
    """Of one node's failures, what its report says: as many as are kept, and the first ones with all their text.

    A report has to fit into one message however many workers the node has, and whatever they say.
    """
    kept = merged((), failures)
    in_short = (replace(each, message=each.message[:SHORT], error="") for each in kept[WHOLE:])
    return (*kept[:WHOLE], *in_short)


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


def shortened(failures: Sequence[Failure]) -> tuple[Failure, ...]:
    """The root with all that it said, its followers in short: this goes to every node."""
    return (*failures[:1], *(replace(each, message=each.message[:SHORT], error="") for each in failures[1:]))


def facts_of(failure: Failure) -> FailedRank:
    """What events say of a failure.

    >>> from outlast.events.sentences import why
    >>> why(facts_of(Failure("a", "h", 3, 0, 99, -9, 0.0, "")))
    'rank 3 on node a failed (signal 9)'
    >>> from outlast.protocol.failures import Account
    >>> why(facts_of(Failure("a", "h", 3, 0, 99, -15, 0.0, "", account=Account("NameError"))))
    'rank 3 on node a failed (NameError, then signal 15)'
    """
    cause = failure.cause
    return FailedRank(
        node=failure.node,
        rank=failure.rank,
        exit_code=failure.exit_code,
        exception=failure.account.exception,
        hung=failure.hung,
        cause=cause.name if cause is not None else "",
        title=cause.title if cause is not None else "",
        step=failure.account.step,
        said=_beginning(failure.account.said),
        task=failure.task,
    )


def _beginning(text: str) -> str:
    """In one line, as short as an event needs it."""
    line = " ".join(text[: 4 * LONGEST_SAID].split())
    return line if len(line) <= LONGEST_SAID else f"{line[:LONGEST_SAID]}…"


def by_whom(failure: Failure) -> str:
    """What decided on its strategy, in brackets; nothing, where that was nobody in particular."""
    return f" ({failure.decided})" if failure.decided else ""


def seconds_ago(failure: Failure, now: float) -> float:
    """How long ago it happened, by the coordinator's clock; of a rank that hung, since it last moved."""
    return (max(0.0, now - failure.clock) if failure.clock else 0.0) + failure.idle
