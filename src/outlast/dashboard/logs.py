"""The end of a rank's log: read through the rank's node as `outlast logs` does, or from a log directory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

import anyio.to_thread
import msgspec

from outlast.agent.coordinator_link.link import CoordinatorUnreachable
from outlast.dashboard.source import JobSource
from outlast.dashboard.text import shown
from outlast.logs.directory import logs_below
from outlast.observe import ObserverRefused
from outlast.observe.log_sources import DirectoryLogSource
from outlast.observe.logs import LogMerger, LogSource, MergedLine
from outlast.protocol.logs import FindStreams, LogsTold

LINES = 200  # of each stream
TAIL = 64 << 10  # characters


class RankLogTail(msgspec.Struct, frozen=True):
    """The end of what a rank has printed. `cut`: there is more before it. `problem`: why there is nothing to show."""

    text: str
    cut: bool
    problem: str = ""


class NoRankLog(Exception):
    """There is none; the message says why, in one line."""


class RankLogs:
    """`log_dir`: where logs are, if the job cannot be asked. One question at a time, however many browsers ask."""

    def __init__(self, source: JobSource, log_dir: Path | None) -> None:
        self._source = source
        self._log_dir = log_dir
        self._asking = asyncio.Lock()

    async def tail(self, rank: int, node: str) -> RankLogTail:
        """Of this rank, which is on this node. Raises `NoRankLog`."""
        async with self._asking:
            try:
                return await rank_tail(_OneNode(self._source, node), rank)
            except (CoordinatorUnreachable, ObserverRefused) as error:
                if self._log_dir is None:
                    raise NoRankLog(str(error)) from None
                return await anyio.to_thread.run_sync(_from_directory, self._log_dir, rank)


class _OneNode:
    """The node that a rank is on."""

    def __init__(self, source: JobSource, node: str) -> None:
        self._source, self._node = source, node

    async def nodes(self) -> Mapping[str, str]:
        return {self._node: self._node}

    async def ask_logs(self, questions: Mapping[str, bytes]) -> LogsTold:
        return await self._source.ask_logs(questions)


async def rank_tail(source: LogSource, rank: int) -> RankLogTail:
    """The end of a rank's log, as text that is safe to show. Raises `NoRankLog`."""
    merger = LogMerger(source, FindStreams(rank, lines=LINES))
    text = "".join([_text(line) async for line in merger.lines()])
    if not text and merger.problems:
        raise NoRankLog(next(iter(merger.problems.values())))
    return RankLogTail(text[-TAIL:], cut=len(text) > TAIL)


def _from_directory(log_dir: Path, rank: int) -> RankLogTail:
    try:
        return asyncio.run(rank_tail(DirectoryLogSource(logs_below(log_dir)), rank))
    except (OSError, ValueError) as error:
        raise NoRankLog(str(error)) from None


def _text(line: MergedLine) -> str:
    when = time.strftime("%H:%M:%S", time.localtime(line.time))
    return f"{when} {'err: ' if line.error else ''}{shown(line.text)}{' …' if line.cut else ''}\n"
