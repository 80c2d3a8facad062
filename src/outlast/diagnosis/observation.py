"""What was seen of ranks, as agents tell it: plain data, and small, however many ranks and however deep their stacks.

Ranks that wait for one another mostly stand at the same place. So an agent says that once, with the numbers of all who
stand there, and of a stack only what the comparison looks at. An answer of one node is about a kilobyte then, whatever
its number of ranks: the coordinator can ask all nodes of a large job, and misses nobody by asking only some.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import log2
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec.structs import replace

from outlast.diagnosis.stack import Frame, Stack, Text

if TYPE_CHECKING:
    from outlast.board.readings import Reading

INNERMOST = 12  # frames that are kept as they are
OUTER = 12  # of those that follow, and of these only the innermost of each stretch in one file
LONGEST_NAME, LONGEST_PATH = 120, 200  # characters
PLACES = 64  # of one node; more of them are not told, nor as many if their names are long,
LARGEST = 768 << 10  # bytes: for a message has a largest size
HELD = frozenset("TtDZ")  # states in which a child keeps its parent waiting

Rank = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of one rank, at about the same time as of the others. Seconds are ages: no clocks are compared."""

    rank: Rank
    node: Text
    step: int | None = None
    sections: tuple[tuple[Text, float], ...] = ()  # open ones, the outermost first, and for how long
    beat_age: float | None = None  # since the last heartbeat or step
    late: bool = False
    stack: Stack | None = None  # None: its node did not say in time
    also: tuple[Rank, ...] = ()  # other ranks of this node of which the same was seen

    @classmethod
    def of(cls, rank: int, node: str, reading: Reading, stack: Stack | None, *, late: bool = False) -> Observation:
        """What an agent knows of a worker of its own: what the board says, and where it is."""
        return cls(
            rank=rank,
            node=node,
            step=reading.step,
            sections=tuple((each.name, max(0.0, reading.read_at - each.since)) for each in reading.sections),
            beat_age=None if reading.beat_at is None else max(0.0, reading.read_at - reading.beat_at),
            late=late,
            stack=stack,
        )

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that this was seen of."""
        return (self.rank, *self.also)


def told(seen: Iterable[Observation]) -> tuple[Observation, ...]:
    """The same for the wire: one for each place, with what a comparison needs.

    >>> [each.ranks for each in told([Observation(rank=0, node="a"), Observation(rank=1, node="a")])]
    [(0, 1)]
    """
    places: dict[Observation, list[int]] = {}
    for each in seen:
        places.setdefault(_place(each), []).extend(each.ranks)
    order = sorted(places.items(), key=lambda place: (len(place[1]), min(place[1])))
    every = tuple(replace(place, rank=min(ranks), also=tuple(sorted(ranks)[1:])) for place, ranks in order)
    for most in (PLACES, PLACES // 4, PLACES // 16):
        # Where most are, and where the fewest: one of those it will be.
        chosen = every if len(every) <= most else (*every[: most - 1], every[-1])
        if len(msgspec.msgpack.encode(chosen)) <= LARGEST:
            break
    return chosen


def _place(seen: Observation) -> Observation:
    """What two ranks have in common that stand at the same place: nothing that tells them apart is left."""
    return replace(
        seen,
        rank=0,
        also=(),
        beat_age=_about(seen.beat_age),
        sections=tuple((name, 0.0) for name, _ in seen.sections[-4:]),
        stack=None if seen.stack is None else _short(seen.stack),
    )


def _about(age: float | None) -> float | None:
    """So many seconds, to a power of two: ranks that stopped at the same time are alike."""
    return age if not age else 2.0 ** round(log2(age))


def _short(stack: Stack) -> Stack:
    return Stack(
        frames=tuple(map(_short_frame, _telling(stack.frames))),
        state=stack.state,
        wchan=stack.wchan[:LONGEST_NAME],
        children=tuple(child for child in stack.children if child.state in HELD)[:1],
        trouble=stack.trouble,
    )


def _telling(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The innermost frames, and of the others enough to tell which code was called from which."""
    rest = [frame for inner, frame in pairwise(frames[INNERMOST - 1 :]) if frame.file != inner.file]
    return (*frames[:INNERMOST], *rest[:OUTER])


def _short_frame(frame: Frame) -> Frame:
    return Frame(frame.function[:LONGEST_NAME], frame.file[-LONGEST_PATH:], frame.line, frame.source[:LONGEST_NAME])
