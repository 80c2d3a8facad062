"""How fast ranks make steps, for the comparison that finds stragglers."""

from __future__ import annotations

from typing import Annotated

import msgspec

from outlast.protocol.fields import Count, Name, Time

MOST_SECTIONS = 8  # of a rank whose times are compared: those that take longest


class Pace(msgspec.Struct, frozen=True, array_like=True):
    """How one rank got on for a while: what a step of it took, and what of that it spent on what. Seconds, on average.

    Those of `core/stragglers/pace.py`, from two looks at the board.
    """

    rank: Count
    first: int  # the step that it began after
    last: int
    step: Time
    sections: Annotated[dict[Name, Time], msgspec.Meta(max_length=MOST_SECTIONS)] = {}
    busy: Time | None = None  # its main thread ran, or waited for a processor; None: nobody knows
    waited: Name = ""  # the section in which ranks wait for each other, if that is known


class Training(msgspec.Struct, frozen=True, array_like=True):
    """How far the ranks of a node have come in a generation. Times are those of the agent's clock."""

    generation: Count
    first: Count  # the first step, when all of them had made one
    first_at: Time
    last: Count  # the newest step that all of them have made
    last_at: Time
    numbered: bool = False  # numbers go on from one generation to the next
    checkpoint: Time = 0.0  # seconds that they have waited for saves, on average
    data: Time = 0.0  # for data
    restore: Time = 0.0


class Paces(msgspec.Struct, frozen=True, array_like=True, tag="paces"):
    """How the ranks of a node got on since the last time: once a second at most, and only while they make steps."""

    generation: Count
    paces: Annotated[tuple[Pace, ...], msgspec.Meta(max_length=65536)]
