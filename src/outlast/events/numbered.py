"""Events with a number and a time: what observers read, and what programs get as lines of JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from outlast.events.events import VERSION, JobEvent
from outlast.events.sentences import sentence

TERM = 1_000_000  # numbers that each term has to itself: a successor that missed some never reuses one


class NumberedEvent(msgspec.Struct, frozen=True):
    """One event of a run. Numbers grow through all terms; they skip ahead where a term begins."""

    number: int
    time: float  # wall-clock, in seconds; within a term it never runs backwards
    term: int
    event: JobEvent


def next_number(last: int, term: int) -> int:
    """The number of the event that follows the last one.

    >>> next_number(0, term=1), next_number(7, term=1), next_number(7, term=2)
    (1, 8, 1000001)
    """
    return max(last, (term - 1) * TERM) + 1


def json_fields(numbered: NumberedEvent, *, job: str, run: str) -> dict[str, Any]:
    """What a line of `--ft-events` and of `outlast events --json` has, in this order."""
    return {
        "version": VERSION,
        "id": numbered.number,  # `restarting` has a number of its own
        "time": numbered.time,
        "job": job,
        "run": run,
        "term": numbered.term,
        **msgspec.to_builtins(numbered.event),
        "text": sentence(numbered.event),
    }
