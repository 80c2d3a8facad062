"""Where the page gets a job from: an `outlast.observe.Observer`, or in tests a simulated job of any size."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from outlast.events.numbered import NumberedEvent
from outlast.observe import EventGap
from outlast.protocol.logs import LogsTold
from outlast.protocol.observers import Detail
from outlast.protocol.requests import Answer
from outlast.protocol.views import JobView


class JobSource(Protocol):
    """What of an `Observer` the page needs. Raises `CoordinatorUnreachable` and `ObserverRefused` as it does."""

    async def view(self, detail: Detail) -> JobView:
        """What is going on."""

    def events(self, after: int, *, run: str) -> AsyncIterator[NumberedEvent | EventGap]:
        """Events after this number of this run, as they come; ends when the job is over."""

    async def ask_logs(self, questions: Mapping[str, bytes]) -> LogsTold:
        """What nodes answer about their logs."""

    async def drain(self, node: str) -> Answer:
        """Let this node leave the job."""

    async def restart(self) -> Answer:
        """Start the whole job anew."""

    async def stop(self) -> Answer:
        """End the job."""
