"""Timed events for tests of the ledger."""

from __future__ import annotations

from typing import NamedTuple

from outlast.events.events import JobEvent


class At(NamedTuple):
    """An event and its time."""

    time: float
    event: JobEvent
