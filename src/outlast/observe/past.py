"""A job that is over, read from what it has left on disk: its log directory, or a file of its events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from outlast.events.numbered import NumberedEvent
from outlast.ledger.reading import Recording
from outlast.ledger.summary import LedgerSummary, ledger, summarize

NO_END = "its record has no end: it was killed, or still runs on other machines"


class JobRecord(msgspec.Struct, frozen=True):
    """The events of a run, and what they amount to. `notes`: what is wrong with the record."""

    job: str
    run: str
    events: tuple[NumberedEvent, ...]
    ledger: LedgerSummary
    notes: tuple[str, ...] = ()


class PastJob(msgspec.Struct, frozen=True):
    """Where a job has left its logs and events. `job`: which one, if there are several; empty: the newest."""

    paths: tuple[Path, ...]
    job: str = ""

    def has(self, job: str) -> bool:
        """Whether anything of that job is there."""
        try:
            return bool(_recorded(self.paths, job))
        except ValueError:
            return False

    def read(self) -> JobRecord:
        """Its newest run. Raises ValueError, in one line, if there is none."""
        recording, notes = _recorded(self.paths, self.job)
        events = tuple(NumberedEvent(each.number, each.time, each.term, each.event) for each in recording.events)
        return JobRecord(recording.job or "unnamed", recording.run, events, summarize(ledger(events)), tuple(notes))


def _recorded(paths: Sequence[Path], job: str) -> tuple[Recording, list[str]]:
    from outlast.reports.sources import recorded  # loads all that replays journals: not for a job that runs

    try:
        return recorded(paths, job=job)
    except OSError as error:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from None
