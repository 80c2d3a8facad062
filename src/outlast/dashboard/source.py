"""Where the page gets a job from. `outlast.observe` is the real one; tests simulate jobs of any size."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from outlast.core.job.view import JobView
from outlast.events.events import JobEvent
from outlast.protocol.requests import Answer


class ToldEvent(Protocol):
    """An event with its number and time: `outlast.events.numbered.NumberedEvent`."""

    @property
    def number(self) -> int: ...
    @property
    def time(self) -> float: ...
    @property
    def event(self) -> JobEvent: ...


class LostEvents(msgspec.Struct, frozen=True):
    """Events after this number are lost: the coordinator that knew them is gone, or this is another run."""

    after: int


class SourceLost(Exception):
    """Nobody answers for the job at the moment. One line for people."""


class SourceRefused(Exception):
    """The job turns us away, and will do so again. One line for people."""


class JobSource(Protocol):
    """A job, as an observer sees it."""

    async def view(self, detail: str) -> JobView:
        """What is going on: "job", "nodes" or "ranks". Raises `SourceLost` and `SourceRefused`."""

    def events(self, after: int) -> AsyncIterator[ToldEvent | LostEvents]:
        """Events after this number, as they come; ends when the job is over. Raises as `view` does."""

    async def act(self, what: str, subject: str) -> Answer:
        """Ask the job for something: "drain" (a node), "restart", "stop"."""
