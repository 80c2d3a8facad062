"""From what was seen of ranks to the stacks that an event carries: few, short, the culprits first. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from outlast.diagnosis.observation import Observation
from outlast.diagnosis.stack import Frame
from outlast.events.events import RankStack

MOST_STACKS, MOST_FRAMES = 8, 16
MOST_RANKS, MOST_NODES = 32, 8  # that are named of each
LONGEST_FUNCTION, LONGEST_FILE = 60, 120  # characters

_Place = tuple[bool, str, tuple[str, ...]]


def rank_stacks(seen: Iterable[Observation], culprits: Collection[int]) -> tuple[RankStack, ...]:
    """One for each place; of many, the culprits and where the most stand.

    >>> from outlast.diagnosis.stack import Stack
    >>> stack = Stack(frames=(Frame("load", "train.py", 8),), state="S")
    >>> rank_stacks([Observation(rank=3, node="b", stack=stack)], culprits=[3])[0].frames
    ('load (train.py:8)',)
    """
    places: dict[_Place, list[tuple[int, str]]] = {}
    for each in seen:
        if each.stack is not None:
            frames = tuple(map(_told, each.stack.frames[:MOST_FRAMES]))
            for rank in each.ranks:
                places.setdefault((rank in culprits, each.stack.state, frames), []).append((rank, each.node))
    order = sorted(places.items(), key=lambda item: (not item[0][0], -len(item[1]), min(item[1])))
    return tuple(_stack(place, sorted(ranks)) for place, ranks in order[:MOST_STACKS])


def _stack(place: _Place, ranks: list[tuple[int, str]]) -> RankStack:
    culprit, state, frames = place
    nodes = tuple(dict.fromkeys(node for _, node in ranks))
    return RankStack(
        count=len(ranks),
        ranks=tuple(rank for rank, _ in ranks[:MOST_RANKS]),
        nodes=nodes[:MOST_NODES],
        culprit=culprit,
        state=state,
        frames=frames,
    )


def _told(frame: Frame) -> str:
    return f"{frame.function[:LONGEST_FUNCTION]} ({frame.file[-LONGEST_FILE:]}:{frame.line})"
