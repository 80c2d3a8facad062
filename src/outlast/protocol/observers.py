"""What observers ask of a coordinator, and what they are told. They take no part in the job.

Each request has exactly one answer, so the coordinator keeps no queue for anybody: an observer that does not ask is
told nothing, and one that does not read is owed one answer at most.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

from outlast.events.numbered import NumberedEvent
from outlast.protocol.fields import Count, Name
from outlast.protocol.logs import AskLogs
from outlast.protocol.membership import Refuse

PORTION = 1 << 18  # bytes: of an answer, in one message


class Detail(str, Enum):
    """How much of a view is wanted: at ten thousand nodes, all of it takes megabytes."""

    JOB = "job"  # without `nodes`
    NODES = "nodes"  # without the paces of their ranks
    RANKS = "ranks"


class ReadView(msgspec.Struct, frozen=True, array_like=True, tag="read view"):
    """What is going on? The answer is a `JobView`, at most a second old."""

    detail: Detail = Detail.JOB


class FollowEvents(msgspec.Struct, frozen=True, array_like=True, tag="follow events"):
    """Which events come after this number? Answered when there is one, or after a while; the answer: `EventBatch`."""

    after: Count = 0
    run: Name = ""  # the run that the number is of; empty: whichever it is
    wait: bool = True


class AnswerKind(str, Enum):
    """Which request a portion answers."""

    VIEW = "view"
    EVENTS = "events"
    LOGS = "logs"


class Portion(msgspec.Struct, frozen=True, array_like=True, tag="portion"):
    """Part of an answer, which may be larger than a message. The portions of one answer follow each other."""

    kind: AnswerKind
    data: Annotated[bytes, msgspec.Meta(max_length=PORTION)]
    last: bool


class EventBatch(msgspec.Struct, frozen=True):
    """Events in the order of their numbers; none, if nothing has happened for a while."""

    job: str
    run: str
    events: tuple[NumberedEvent, ...] = ()
    gap: bool = False  # some that came after the given number are not known here, or the number is of another run
    acting: bool = True  # whether this coordinator may decide now; if not, another one may
    places: tuple[tuple[str, int], ...] = ()  # host and port of those that may coordinate after this one


class EventCopies(msgspec.Struct, frozen=True, array_like=True, tag="event copies"):
    """For an agent that may have to host the next coordinator: it keeps these, and hands them over then."""

    events: tuple[NumberedEvent, ...]


FromObserver = ReadView | FollowEvents | AskLogs
ToObserver = Portion | Refuse


def portions(kind: AnswerKind, data: bytes) -> list[Portion]:
    """An answer in messages.

    >>> [each.last for each in portions(AnswerKind.VIEW, b"x" * (PORTION + 1))]
    [False, True]
    """
    pieces = [data[at : at + PORTION] for at in range(0, max(len(data), 1), PORTION)]
    return [Portion(kind, piece, piece_number == len(pieces)) for piece_number, piece in enumerate(pieces, 1)]
