"""What one run of a rehearsal came to, and how each of its recoveries went."""

from __future__ import annotations

from enum import Enum

import msgspec

from outlast.rehearsal.history import JobLife, RunHistory
from outlast.rehearsal.scenarios import Scenario


class RunEnd(str, Enum):
    """How a run ended."""

    FINISHED = "finished"
    FAILED = "failed"
    TIMED_OUT = "ran out of time"


class RunResult(msgspec.Struct, kw_only=True):
    """One run of the script."""

    scenario: Scenario
    history: RunHistory
    end: RunEnd
    reason: str = ""  # the job's own words, if it failed
    seconds: float = 0.0
    restarts: int = 0
    drain_seconds: float | None = None  # from the preemption of a node to its end


class RehearsedRecovery(msgspec.Struct, frozen=True, kw_only=True):
    """From a fault to the next step. Seconds are None where training never went on."""

    what: str
    at: int  # the step that was made last before it
    start: int | None  # from which step it went on; None: not known
    total: float | None = None
    outside: float | None = None  # until the script runs again: detection, restart
    setup: float | None = None  # from there to the first step: the script's own
    lines: tuple[tuple[str, float], ...] = ()

    @property
    def lost(self) -> int:
        """Steps that have to be made again."""
        return max(0, self.at - (self.start or 0))


def recoveries(history: RunHistory) -> list[RehearsedRecovery]:
    """How each fault of a run went."""
    return [_recovery(history, fault.time, fault.what, fault.step, job) for fault, job in history.faults()]


def _recovery(history: RunHistory, time: float, what: str, step: int, hit: JobLife) -> RehearsedRecovery:
    at = (hit.start or 0) + (hit.last - (hit.start or 0) if what == "kill-in-save" else step)
    later = [job for job in history.lives if job.generation > hit.generation]
    if not later:
        return RehearsedRecovery(what=what, at=at, start=None)
    job = later[0]
    born = max(life.born.time for life in job.ranks.values())
    slowest = max((life for life in job.ranks.values() if life.steps), key=lambda life: life.steps[0].made)
    return RehearsedRecovery(
        what=what,
        at=at,
        start=job.start,
        total=slowest.steps[0].made - time,
        outside=born - time,
        setup=slowest.steps[0].made - born,
        lines=tuple(slowest.setup.lines) if slowest.setup else (),
    )
