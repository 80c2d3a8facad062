"""The last fault in one paragraph: what, where, by which evidence, what was done, and what it cost. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from outlast.events.events import (
    GenerationFormed,
    HangNamed,
    JobOver,
    NodeExcluded,
    NodeKept,
    Restarting,
    TaskRelaunched,
    WorkerFailed,
)
from outlast.events.phrases import count
from outlast.events.sentences import sentence, why
from outlast.events.stacks import stack_lines
from outlast.ledger.accountant import TimedEvent
from outlast.ledger.faults import RELAUNCHED
from outlast.ledger.summary import FaultCost, LedgerSummary
from outlast.observe.words import duration, moment

NS = 1e9
STRAGGLER = "straggler"


def why_paragraph(events: Sequence[TimedEvent], ledger: LedgerSummary) -> str:
    """About the last fault that nobody planned; empty: there was none. Of slow ranks, if there was nothing worse."""
    cost = _last(ledger)
    if cost is None:
        return ""
    fault = cost.fault
    during = [each for each in events if each.event.generation == fault.generation]
    if fault.kind == RELAUNCHED:
        return " ".join([f"{moment(fault.at / NS)}, {_ended(_relaunched(during, cost))}", _price(cost)])
    told = [f"{moment(fault.at / NS)}, generation {fault.generation}: {_ended(fault.text)}"]
    if fault.kind == STRAGGLER:
        lasts = "It still is." if fault.ended is None else f"That lasted {duration((fault.ended - fault.at) / NS)}."
        return " ".join([*told, lasts, _price(cost)])
    told += _evidence(during)
    told += _done(events, during, fault.generation)
    told.append(_price(cost))
    slow = [each.fault.text for each in ledger.faults if each.fault.kind == STRAGGLER and each.fault.ended is None]
    return " ".join([*told, *(f"Since then: {_ended(text)}" for text in slow[-1:])])


def _last(ledger: LedgerSummary) -> FaultCost | None:
    unplanned = [cost for cost in ledger.faults if not cost.fault.planned]
    worse = [cost for cost in unplanned if cost.fault.kind != STRAGGLER]
    return next(reversed(worse or unplanned), None)


def _relaunched(during: Sequence[TimedEvent], cost: FaultCost) -> str:
    """The last task that was started again at that place."""
    again = [each.event for each in during if isinstance(each.event, TaskRelaunched)]
    same = [each for each in again if why(each.failure) == cost.fault.text]
    return sentence(same[-1]) if same else cost.fault.text


def why_fields(events: Sequence[TimedEvent], ledger: LedgerSummary) -> dict[str, Any] | None:
    """The same for programs; None: there was none."""
    cost = _last(ledger)
    if cost is None:
        return None
    hang = _hang(events, cost.fault.generation)
    stacks = msgspec.to_builtins(hang.stacks) if hang is not None else []
    return {**msgspec.to_builtins(cost), "stacks": stacks}


def why_stacks(events: Sequence[TimedEvent], ledger: LedgerSummary) -> list[str]:
    """Where ranks stood, if the last fault was a hang: the culprits first."""
    cost = _last(ledger)
    hang = _hang(events, cost.fault.generation) if cost is not None else None
    return stack_lines(hang) if hang is not None else []


def _hang(events: Sequence[TimedEvent], generation: int) -> HangNamed | None:
    """The last hang of the generation: those before may have been suspicions."""
    named = (e.event for e in reversed(events) if isinstance(e.event, HangNamed) and e.event.generation == generation)
    return next(named, None)


def _evidence(during: Sequence[TimedEvent]) -> list[str]:
    found = []
    for each in during:
        event = each.event
        if isinstance(event, WorkerFailed):
            failure = event.failure
            exception = f"{failure.exception}: {failure.said}" if failure.said else failure.exception
            title = failure.title or failure.cause
            facts = ["" if title == failure.exception else title, exception]
            facts.append(f"step {failure.step:,}" if failure.step is not None else "")
            shown = ", ".join(dict.fromkeys(fact for fact in facts if fact))
            follows = f"; {count(event.followers, 'failure')} of other ranks followed from it" * bool(event.followers)
            found.append(_ended(f"Evidence: {shown or f'exit code {failure.exit_code}'}{follows}"))
        elif isinstance(event, HangNamed):
            found.append(_ended(event.sentence))
    return found


def _done(events: Sequence[TimedEvent], during: Sequence[TimedEvent], generation: int) -> list[str]:
    found = [_act(each.event) for each in during if isinstance(each.event, Restarting | NodeExcluded | NodeKept)]
    later = [e.event for e in events if isinstance(e.event, GenerationFormed) and e.event.generation > generation]
    over = [each.event for each in events if isinstance(each.event, JobOver)]
    if later:
        assert isinstance(later[0], GenerationFormed)
        restored = later[0].restore_step
        source = f", from the snapshot of step {restored:,} in memory" if restored is not None else ""
        found.append(f"Generation {later[0].generation} went on with {count(len(later[0].nodes), 'node')}{source}.")
    elif over:
        found.append(_ended(f"The job ended: {over[0].reason}"))
    else:
        found.append("The job has not gone on yet.")
    return list(dict.fromkeys(found))


def _act(event: Restarting | NodeExcluded | NodeKept) -> str:
    if isinstance(event, Restarting):
        decided = f" ({event.decided})" if event.decided else ""
        return f"That was restart {event.number} of {event.allowed}{decided}."
    if isinstance(event, NodeExcluded):
        seconds = "the rest of the job" if event.seconds is None else duration(event.seconds)
        return f"Node {event.node} is excluded for {seconds}."
    return _ended(f"Node {event.node} is kept: {event.because}")


def _price(cost: FaultCost) -> str:
    states = ", ".join(f"{state} {duration(seconds)}" for state, seconds in cost.states.items() if seconds >= 0.05)
    redone = f"; {count(cost.fault.steps_lost, 'step')} trained again" * bool(cost.fault.steps_lost)
    return f"It cost {duration(cost.seconds)}{f' ({states})' if states else ''}{redone}."


def _ended(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith((".", "!", "?")) else f"{text}."
