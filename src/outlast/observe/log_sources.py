"""Where merged logs come from: the nodes of a running job, or log directories."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from outlast.agent.coordinator_link.link import NOT_OURS, CoordinatorUnreachable
from outlast.logs.directory import NodeLogs
from outlast.observe.client import PATIENCE, Observer
from outlast.protocol.logs import FindStreams, LogsTold, ReadStreams
from outlast.protocol.observers import Detail
from outlast.protocol.views import JobView, NodeView

MOST = 64  # nodes of a large job whose logs are read together: what that costs does not grow with the job
AGAIN = 1.0  # seconds until a coordinator that could not be reached is tried again

T = TypeVar("T")

_question = msgspec.msgpack.Decoder(FindStreams | ReadStreams)


class JobLogSource:
    """The nodes of a running job; `only`: of this name. `follow`: waits for a coordinator that is away.

    Of a large job, some: those of the rank that is asked for, of the last fault, and of the first ranks.
    """

    def __init__(self, observer: Observer, *, only: str = "", rank: int | None = None, follow: bool = False) -> None:
        self.left_out = 0  # nodes that are here and not read
        self._observer = observer
        self._only = only
        self._rank = rank
        self._patience = PATIENCE if follow else 0.0

    async def nodes(self) -> Mapping[str, str]:
        """Those that are here. Raises ValueError if none has the name."""
        view = await self._until_reached(lambda: self._observer.view(Detail.NODES))
        here = [node for node in view.nodes if node.connected]
        chosen = [node for node in here if self._only in ("", node.name, node.node)]
        if self._only and not chosen and view.outcome is None:
            names = ", ".join(sorted({node.name for node in here})[:20])
            raise ValueError(f"no node {self._only!r} is in the job, only: {names}")
        self.left_out = max(0, len(chosen) - MOST)
        if self.left_out:
            chosen = sorted(chosen, key=lambda node: self._distance(node, view))[:MOST]
        return {node.node: node.name for node in chosen}

    def _distance(self, node: NodeView, view: JobView) -> tuple[bool, bool, bool, int]:
        """From what the reader most likely wants to see: the least first."""
        first = node.first_rank
        holds = first is not None and self._rank is not None and first <= self._rank < first + node.workers
        failed = view.last_fault is not None and view.last_fault.node == node.name
        return not holds, not failed, first is None, first or 0

    async def ask_logs(self, questions: Mapping[str, bytes]) -> LogsTold:
        return await self._until_reached(lambda: self._observer.ask_logs(questions))

    async def _until_reached(self, ask: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience
        while True:
            try:
                return await ask()
            except CoordinatorUnreachable as error:
                if loop.time() >= until or isinstance(error.__cause__, NOT_OURS):
                    raise
            await asyncio.sleep(AGAIN * random.uniform(0.5, 1.0))


class DirectoryLogSource:
    """Log directories of nodes on this machine: nobody writes to them any more."""

    def __init__(self, directories: Sequence[NodeLogs], *, only: str = "") -> None:
        self._logs = {str(number): logs for number, logs in enumerate(directories)}
        self._only = only

    async def nodes(self) -> Mapping[str, str]:
        """Raises ValueError if none has the name."""
        names = {number: logs.name() for number, logs in self._logs.items()}
        chosen = {number: name for number, name in names.items() if self._only in ("", name)}
        if not chosen:
            raise ValueError(f"no node {self._only!r} has logs there, only: {', '.join(sorted(set(names.values())))}")
        return chosen

    async def ask_logs(self, questions: Mapping[str, bytes]) -> LogsTold:
        return LogsTold({node: self._answer(self._logs[node], data) for node, data in questions.items()}, over=True)

    def _answer(self, logs: NodeLogs, data: bytes) -> bytes:
        asked = _question.decode(data)
        return msgspec.msgpack.encode(logs.find(asked) if isinstance(asked, FindStreams) else logs.read(asked))
