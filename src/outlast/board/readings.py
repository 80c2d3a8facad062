"""What the board says of a worker, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from outlast.board.layout import ONE_MORE, SPENT_BITS


class Action(IntEnum):
    """What a rank may ask the launcher for."""

    STOP = 1  # end the job, with this reason
    EXCLUDE_NODE = 2  # go on without this node, and never use it again
    RESTART = 3
    DRAIN = 4  # let this node go; the job goes on


@dataclass(frozen=True)
class Request:
    """What a rank asked for. Its number grows with every request of one worker."""

    number: int
    action: Action
    reason: str


@dataclass(frozen=True)
class OpenSection:
    """A section that a worker is in."""

    name: str
    since: float


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the board says of one worker. Times are seconds of `time.monotonic()`; None: it has not happened."""

    read_at: float  # before it was read: the time to judge it by
    born_at: float
    pid: int | None = None  # as the worker sees it; None: it has not come to the board yet
    attached_at: float | None = None
    beats: int = 0  # steps among them
    beat_at: float | None = None
    step: int | None = None
    step_at: float | None = None
    paused: bool = False
    resumed_at: float | None = None
    sections: tuple[OpenSection, ...] = ()  # the outermost first
    closed_at: float | None = None  # when a section was closed last
    longest: Mapping[str, float]  # seconds: "startup", "heartbeat", "outside" and "section:NAME", as far as measured
    calibrations: int = 0
    request: Request | None = None


@dataclass(frozen=True)
class Spent:
    """All sections of one name so far, in one word. It begins anew in time: only what lies between two tells something.

    >>> Spent(2 * ONE_MORE + 3_000_000_000).after(Spent(0))
    (2, 3.0)
    """

    word: int

    def after(self, before: Spent | None) -> tuple[int, float]:
        """How many there were since, and the seconds in them."""
        grown = self.word - before.word if before is not None else self.word
        count, nanoseconds = divmod(grown & SPENT_BITS, ONE_MORE)
        return count, seconds(nanoseconds)


@dataclass(frozen=True, kw_only=True)
class Totals:
    """How far a worker has come, and what its time went into: running totals, of which differences tell."""

    read_at: float  # seconds, as in a reading
    pid: int
    step: int
    step_at: float
    spent: Mapping[str, Spent]  # by name of the section
    waited: str = ""  # the section that optimizers' steps come after: there ranks wait for each other
    first: int = 0  # the first step of this process
    first_at: float = 0.0
    numbered: bool = False  # steps have numbers that go on from one process to the next
    saving: float = 0.0  # seconds that it has waited for saves
    restoring: float = 0.0
    loading: float = 0.0  # for data


@dataclass(frozen=True)
class BoundaryProgress:
    """How far a worker has come, in boundaries between its steps."""

    able: bool  # it comes to boundaries at all
    passed: int  # the last one that it has gone past
    sealed: int  # the one where it has saved and waits; 0: none
    step: int | None  # that it saved there; None: it could not


@dataclass(frozen=True)
class LastWords:
    """The exception that a worker ended with."""

    at: float  # wall-clock
    exception: str  # its type
    message: str
    traceback: str


def seconds(nanoseconds: int) -> float:
    return max(nanoseconds, 0) / 1e9
