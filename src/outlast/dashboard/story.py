"""Events as rows of the page: when, what kind, how serious, in which words. Pure."""

from __future__ import annotations

from functools import singledispatch

import msgspec

from outlast.dashboard.text import shown
from outlast.events import events, reasons
from outlast.events.numbered import NumberedEvent
from outlast.events.sentences import sentence
from outlast.events.stacks import stack_lines
from outlast.observe import EventGap

FAULT, WARN, CHANGE, GOOD, INFO = "fault", "warn", "change", "good", "info"
LONGEST = 4000  # characters of a row's text
_FAULTS = (
    reasons.FailedRank,
    reasons.LostNode,
    reasons.FencedNode,
    reasons.StoppedWorkers,
    reasons.NodesAhead,
    reasons.MissingNodes,
)
_TONES: dict[type, str] = {
    events.TrainingBegan: GOOD,
    events.GenerationFormed: GOOD,
    events.PlannedChange: CHANGE,
    events.CoordinatorTookOver: CHANGE,
    events.QuorumMissing: FAULT,
    events.WaitingForNodes: WARN,
    events.NodeJoined: CHANGE,
    events.SpareReady: CHANGE,
    events.NodeRefused: WARN,
    events.NodeLost: FAULT,
    events.NodeLeft: CHANGE,
    events.NodeExcluded: WARN,
    events.NodeHeldBack: WARN,
    events.NodeKept: WARN,
    events.NodeLetBack: CHANGE,
    events.WorkerFailed: FAULT,
    events.TaskRelaunched: WARN,
    events.Restarting: WARN,
    events.HangNamed: FAULT,
}


class EventRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event for the page. Short names: thousands of them travel."""

    n: int  # number
    t: float  # time of day
    g: int  # generation
    k: str  # kind
    tone: str
    text: str
    nodes: tuple[str, ...] = ()  # that it is about
    ranks: tuple[int, ...] = ()
    detail: str = ""  # more lines: stacks, a table
    planned: bool = False  # of a generation's end: nobody failed


def row(told: NumberedEvent) -> EventRow:
    """One event for the page."""
    event = told.event
    text, _, more = sentence(event).partition("\n")
    if isinstance(event, events.HangNamed):
        more = "\n".join(stack_lines(event))
    nodes, ranks = _about(event)
    return EventRow(
        n=told.number,
        t=round(told.time, 3),
        g=event.generation,
        k=str(event.__struct_config__.tag),
        tone=_tone(event),
        text=shown(text)[:LONGEST],
        nodes=tuple(map(shown, nodes)),
        ranks=ranks[:64],
        detail=shown(more)[: 4 * LONGEST],
        planned=isinstance(event, events.GenerationEnding) and not isinstance(event.reason, _FAULTS),
    )


def gap(lost: EventGap, time: float) -> EventRow:
    """A hole in the story, told as such."""
    text = f"events after number {lost.after} are lost: the coordinator that knew them is gone"
    return EventRow(n=lost.after, t=round(time, 3), g=0, k="gap", tone=WARN, text=text)


def _tone(event: events.JobEvent) -> str:
    if isinstance(event, events.GenerationEnding):
        return FAULT if isinstance(event.reason, _FAULTS) else CHANGE
    if isinstance(event, events.JobOver):
        return GOOD if event.success else FAULT
    if isinstance(event, events.StragglerChanged):
        return WARN if event.over is None else INFO
    return _TONES.get(type(event), INFO)


@singledispatch
def _about(event: object) -> tuple[tuple[str, ...], tuple[int, ...]]:
    node = getattr(event, "node", "")
    return ((node,) if node else ()), ()


@_about.register
def _(event: events.WorkerFailed) -> tuple[tuple[str, ...], tuple[int, ...]]:
    return (event.failure.node,), (event.failure.rank,)


@_about.register
def _(event: events.Restarting) -> tuple[tuple[str, ...], tuple[int, ...]]:
    return (event.failure.node,), (event.failure.rank,)


@_about.register
def _(event: events.TaskRelaunched) -> tuple[tuple[str, ...], tuple[int, ...]]:
    return (event.failure.node,), (event.failure.rank,)


@_about.register
def _(event: events.HangNamed) -> tuple[tuple[str, ...], tuple[int, ...]]:
    return event.nodes, event.ranks


@_about.register
def _(event: events.StragglerChanged) -> tuple[tuple[str, ...], tuple[int, ...]]:
    return (event.node,), event.ranks
