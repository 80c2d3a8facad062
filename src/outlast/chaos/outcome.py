"""How a job answered a fault, from its events: noticed, named, done, training again. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlast.chaos.faults import ChaosAnswer
from outlast.events.events import (
    CoordinatorTookOver,
    GenerationEnding,
    GenerationFormed,
    HangNamed,
    JobEvent,
    JobOver,
    NodeExcluded,
    NodeLost,
    PlannedChange,
    Restarting,
    StragglerChanged,
    TrainingBegan,
    WorkerFailed,
)
from outlast.events.sentences import sentence
from outlast.reports.figures import duration

NAMES = (
    HangNamed,
    WorkerFailed,
    NodeLost,
    CoordinatorTookOver,
    NodeExcluded,
    StragglerChanged,
    PlannedChange,
    GenerationEnding,
)  # the one that says most first
DEEDS = (Restarting, CoordinatorTookOver, GenerationFormed)


class HeardEvent(msgspec.Struct, frozen=True):
    """An event, and how long after the fault it was heard of."""

    after: float
    event: JobEvent


class ChaosOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one fault. Seconds are None for what did not happen."""

    fault: str
    did: str  # the node's own words
    noticed: float | None = None
    named: str = ""
    done: str = ""
    training: float | None = None  # again, so many seconds later
    steps_lost: int | None = 0  # None: the script does not number its steps
    restarts: int = 0  # that count
    over: str = ""  # the job ended: why

    @property
    def lines(self) -> list[str]:
        """For people."""
        unnoticed = "not noticed: training goes on" if not self.over else "not noticed"
        rows = [
            ("did", self.did),
            ("noticed after", duration(self.noticed) if self.noticed is not None else unnoticed),
            ("named as", self.named or "-"),
            ("done", self.done or "-"),
            ("training again after", duration(self.training) if self.training is not None else "-"),
            (
                "steps lost",
                "not known: the script does not number them" if self.steps_lost is None else str(self.steps_lost),
            ),
            ("restarts counted", str(self.restarts)),
        ]
        return [f"  {name:20} {text}" for name, text in rows] + ([f"  the job ended: {self.over}"] if self.over else [])


def is_answered(answer: ChaosAnswer, heard: Sequence[HeardEvent], generation: int) -> bool:
    """Whether there is nothing more to wait for. `generation`: the one that the fault hit."""
    events = [each.event for each in heard]
    if any(isinstance(event, JobOver) for event in events):
        return True
    if answer is ChaosAnswer.TAKES_OVER:
        return any(isinstance(event, CoordinatorTookOver) for event in events)
    if answer is ChaosAnswer.TRAINS_AGAIN:
        return any(isinstance(event, TrainingBegan) and event.generation > generation for event in events)
    return False


def outcome_of(
    fault: str, did: str, heard: Sequence[HeardEvent], *, generation: int, steps_lost: int | None, restarts: int
) -> ChaosOutcome:
    """Put it together."""
    noticed = next((each.after for each in heard if isinstance(each.event, NAMES)), None)
    named = next((sentence(each.event) for kind in NAMES for each in heard if isinstance(each.event, kind)), "")
    done = next((sentence(each.event) for kind in DEEDS for each in heard if isinstance(each.event, kind)), "")
    training = [
        each.after - each.event.ago
        for each in heard
        if isinstance(each.event, TrainingBegan) and each.event.generation > generation
    ]
    over = next((each.event for each in heard if isinstance(each.event, JobOver)), None)
    return ChaosOutcome(
        fault=fault,
        did=did,
        noticed=noticed,
        named=named,
        done=done,
        training=training[0] if training else None,
        steps_lost=steps_lost,
        restarts=restarts,
        over="" if over is None else over.reason,
    )
