"""What is to be done about a failure, as far as one node can tell: by the user's rules, else by its cause.

    - when: {cause: disk-full}
      then: abortion
    - when: {domain: gpu, node: "old-*"}
      then: node

The first rule that holds in all that it says decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec

from outlast.protocol.failures import FailoverStrategy, Failure

Text = str | tuple[str, ...]
Number = int | tuple[int, ...]


class When(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What has to be so. What is not given may be anything; of a list, one has to be."""

    cause: Text | None = None  # these with * and ? as in a shell
    domain: Text | None = None
    outlook: Text | None = None
    role: Text | None = None
    exception: Text | None = None
    node: Text | None = None
    exit_code: Number | None = None  # negative: the signal
    rank: Number | None = None
    message: str | None = None  # a regular expression, in the exception's message and the last lines
    restarts: int | None = None  # so many, or more, so far
    stepped: bool | None = None  # whether it had made a step


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule of the user's."""

    when: When
    then: FailoverStrategy


def check(rules: Sequence[Rule]) -> None:
    """Raises ValueError, in one line, for a rule that cannot be followed."""
    for number, rule in enumerate(rules, 1):
        if rule.when == When():
            raise ValueError(f"rule {number}: `when` says nothing; it would decide about everything")
        try:
            re.compile(rule.when.message or "")
        except re.error as error:
            raise ValueError(
                f"rule {number}: message {rule.when.message!r} is not a regular expression ({error})"
            ) from None


def decide(
    failure: Failure, proposed: FailoverStrategy, rules: Sequence[Rule] = (), restarts: int = 0
) -> tuple[FailoverStrategy, str]:
    """The strategy, and what decided on it: nothing is said of the default.

    >>> from outlast.protocol.failures import ReportedCause as Cause
    >>> f = Failure("a", "h", 0, 0, 1, 14, 0.0, "", cause=Cause("node-fault", "…"))
    >>> decide(f, FailoverStrategy.NODE, [Rule(when=When(exit_code=14), then="global")])[1]
    'rule 1'
    """
    for number, rule in enumerate(rules, 1):
        if holds(rule.when, failure, restarts):
            return FailoverStrategy(rule.then), f"rule {number}"
    return proposed, ""


def holds(when: When, failure: Failure, restarts: int) -> bool:
    """Whether all that the rule asks for is so."""
    cause, account = failure.cause, failure.account
    texts = (
        (when.cause, cause.name if cause is not None else "unknown"),
        (when.domain, cause.domain if cause is not None else ""),
        (when.outlook, cause.outlook if cause is not None else "unknown"),
        (when.role, cause.role if cause is not None else ""),
        (when.exception, account.exception),
        (when.node, failure.node),
    )
    numbers = ((when.exit_code, failure.exit_code), (when.rank, failure.rank))
    return (
        all(wanted is None or any(fnmatchcase(is_, each) for each in _each(wanted)) for wanted, is_ in texts)
        and all(asked is None or number in _numbers(asked) for asked, number in numbers)
        and (when.message is None or _said(when.message, failure))
        and (when.restarts is None or restarts >= when.restarts)
        and (when.stepped is None or when.stepped == bool(account.step))
    )


def _said(pattern: str, failure: Failure) -> bool:
    account = failure.account
    return any(re.search(pattern, text) for text in (account.said, failure.message, *account.tail))


def _each(wanted: Text) -> tuple[str, ...]:
    return (wanted,) if isinstance(wanted, str) else wanted


def _numbers(wanted: Number) -> tuple[int, ...]:
    return (wanted,) if isinstance(wanted, int) else wanted
