"""The answer to the first question: does it train? Pure."""

from __future__ import annotations

import msgspec

from outlast.dashboard.story import CHANGE, FAULT, GOOD, INFO, WARN
from outlast.dashboard.text import shown
from outlast.events.events import Ending, JobOver
from outlast.events.sentences import whys
from outlast.protocol.views import JobView

_ENDED_WELL = (Ending.FINISHED, Ending.CHECKED)


class Headline(msgspec.Struct, frozen=True):
    """One word and, where it helps, one line."""

    word: str
    tone: str
    line: str = ""


def ended(over: JobOver) -> Headline:
    """How the job has ended."""
    return Headline(over.ending.value, GOOD if over.success else FAULT, shown(over.reason))


def headline(view: JobView, *, trains: bool) -> Headline:
    """What the job does now. `trains`: ranks have told of steps in this generation."""
    if view.outcome is not None:
        return Headline(view.outcome.value, GOOD if view.outcome in _ENDED_WELL else FAULT)
    if not view.acting:
        return Headline("no quorum", FAULT, "too few nodes are in contact to decide anything")
    if view.phase == "running":
        return _running(view, trains)
    if view.phase == "stopping":
        planned = view.ending and not view.last_fault
        return Headline("stopping", CHANGE if planned else WARN, whys(view.ending))
    if view.checking:
        return Headline("checking nodes", INFO)
    if view.phase == "forming" and view.spares < view.least:
        return Headline("waiting for nodes", WARN, f"{view.spares} of at least {view.least} are ready")
    return Headline(view.phase, INFO)


def _running(view: JobView, trains: bool) -> Headline:
    if view.here < view.members:
        gone = f"{view.members - view.here} of {view.members} nodes out of contact"
        return Headline("training" if trains else "starting", WARN, gone)
    if view.changes:
        return Headline("training", CHANGE, f"a change is planned: {whys(view.changes)}")
    if not trains:
        return Headline("starting", INFO, "no step yet in this generation")
    if view.members < view.wanted:
        return Headline("training", GOOD, f"on {view.members} of {view.wanted} wanted nodes")
    return Headline("training", GOOD)
