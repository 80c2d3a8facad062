"""What interrupts a job: one fault for each generation that ends before its time, planned changes among them."""

from __future__ import annotations

import msgspec

from outlast.events import reasons
from outlast.events.reasons import EndReason
from outlast.events.sentences import why

RELAUNCHED = "task relaunched"  # a fault of one task, which the other roles outlived
STARTED = "job start"  # what costs time before anything could go wrong

# A later reason of this kind explains an earlier failure: the worker was the victim of its node or coordinator.
_ROOTS = (
    reasons.LostNode,
    reasons.DepartedNode,
    reasons.FencedNode,
    reasons.StoppedWorkers,
    reasons.NodesAhead,
    reasons.MissingNodes,
)


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """An interruption: what it was, where, and when. What it cost stands in the book, by its number."""

    number: int
    at: int  # ns since 1970: when it happened
    generation: int
    kind: str  # the name of the reason, as in docs/events.md; "hang", "straggler"
    cause: str  # of a failed worker, its name in the catalogue of causes; else the kind
    place: str  # a node, or a rank on it
    text: str  # the sentence that people were told
    planned: bool = False  # nobody failed
    noticed: int | None = None  # ns since 1970
    ended: int | None = None  # when training went on, or the next fault came
    recovered: bool = False  # training went on
    steps_lost: int = 0


def fault_of(number: int, generation: int, reason: EndReason, *, at: int, noticed: int) -> Fault:
    """The fault that a generation ends by.

    >>> fault_of(1, 1, reasons.LostNode("b", "its connection closed"), at=5, noticed=9).place
    'b'
    """
    kind, cause, place = named(reason)
    return Fault(
        number=number,
        at=at,
        generation=generation,
        kind=kind,
        cause=cause,
        place=place,
        text=why(reason),
        planned=is_planned(reason),
        noticed=noticed,
    )


def is_planned(reason: EndReason) -> bool:
    """Whether it is a change that somebody asked for, and no failure."""
    return not isinstance(reason, (reasons.FailedRank, *_ROOTS)) or isinstance(reason, reasons.DepartedNode)


def explains(reason: EndReason) -> bool:
    """Whether a reason that comes to an ending generation is the root of the failure that came first."""
    return isinstance(reason, _ROOTS)


def named(reason: EndReason) -> tuple[str, str, str]:
    """Its kind, cause and place.

    >>> named(reasons.FailedRank("a", 3, 1, cause="out-of-memory"))
    ('rank failed', 'out-of-memory', 'rank 3 on a')
    """
    if isinstance(reason, reasons.PlannedEnd):
        return named(reason.changes[0]) if reason.changes else ("planned", "planned", "")
    kind = str(reason.__struct_config__.tag)
    if isinstance(reason, reasons.FailedRank):
        kind = "hang" if reason.hung else kind
        return kind, reason.cause or kind, f"{reason.task or f'rank {reason.rank}'} on {reason.node}"
    if isinstance(reason, reasons.RankRequest):
        return kind, kind, f"rank {reason.rank} on {reason.node}"
    nodes = getattr(reason, "nodes", ())
    several = ", ".join(nodes[:4]) if isinstance(nodes, tuple) else ""  # of a request to scale, it is their number
    return kind, kind, getattr(reason, "node", several)
