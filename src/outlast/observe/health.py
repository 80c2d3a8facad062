"""Does it train? What a view says about a job's health, in one word and its reasons. Pure functions."""

from __future__ import annotations

from enum import Enum

from outlast.core.job.phase import Phase
from outlast.events.phrases import count
from outlast.protocol.views import JobView


class JobHealth(str, Enum):
    """How a job is."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    OVER = "over"


EXIT_CODES = {JobHealth.HEALTHY: 0, JobHealth.DEGRADED: 3, JobHealth.OVER: 4}  # 1 and 2 are errors, as in every command


def health_of(view: JobView) -> JobHealth:
    """In one word."""
    if view.phase == Phase.OVER.value:
        return JobHealth.OVER
    return JobHealth.DEGRADED if complaints(view) else JobHealth.HEALTHY


def complaints(view: JobView) -> list[str]:
    """What is not as it was asked for; nothing: all is well."""
    found = []
    if view.phase != Phase.RUNNING.value:
        found.append(f"no generation runs: the job is {view.phase}")
    if not view.acting:
        found.append("the coordinator may not act: too few nodes are with it")
    if view.phase == Phase.RUNNING.value:
        if view.here < view.members:
            found.append(f"{count(view.members - view.here, 'node')} of the generation cannot be reached")
        if view.members < view.wanted:
            found.append(f"it runs on {count(view.members, 'node')} of {view.wanted}")
    if view.excluded:
        found.append(f"{count(len(view.excluded), 'place')} excluded")
    return found
