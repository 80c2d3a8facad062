"""The process that shows progress: asks once a second, and draws while its agent is in the foreground."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from outlast.agent.coordinator_link.link import CoordinatorUnreachable
from outlast.events.numbered import NumberedEvent
from outlast.ledger.summary import ledger, summarize
from outlast.observe import Observer, ObserverRefused
from outlast.observe.finding import of_agent
from outlast.progress.row import StatusRow, TerminalSize
from outlast.progress.text import progress_text
from outlast.protocol.views import JobView
from outlast.settings.loading import load
from outlast.transport.local_jobs import local_jobs

TERMINAL = 2  # standard error
LOOK = 1.0  # seconds between two views
DRAW = 0.2  # seconds between two looks at the terminal: its size, and who is in the foreground
COUNT = 5.0  # seconds between two sums of the ledger, at least
RARELY = 20  # and so many times as long as that takes
GONE = (CoordinatorUnreachable, ObserverRefused)


class ProgressLine:
    """What is known of the job, and what of it the terminal shows. `group`: the process group of the agent."""

    def __init__(self, observer: Observer, node: str, group: int) -> None:
        self._observer, self._node, self._group = observer, node, group
        self._row = StatusRow(colour="NO_COLOR" not in os.environ)
        self._view: JobView | None = None
        self._goodput: float | None = None

    async def run(self, ended: asyncio.Future[None]) -> None:
        """Until the agent has ended."""
        tasks = [asyncio.ensure_future(each) for each in (self._look(), self._count(), self._draw())]
        try:
            await asyncio.wait({ended, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            with suppress(OSError):
                self._send(self._row.release(_size()))

    async def _look(self) -> None:
        """Ends on nodes that do not host the coordinator: one terminal of a job shows its progress."""
        while True:
            with suppress(*GONE):
                self._view = await self._observer.view()
                if self._view.hosted_by not in ("", self._node):
                    return
            await asyncio.sleep(LOOK)

    async def _count(self) -> None:
        events: list[NumberedEvent] = []
        after, run = 0, ""
        while True:
            with suppress(*GONE):
                async for told in self._observer.events(after, run=run, follow=False):
                    if isinstance(told, NumberedEvent):
                        events.append(told)
                        after, run = told.number, self._observer.run
            began = time.monotonic()
            if events and self._view is not None:
                sums = summarize(ledger(events, until=max(self._view.time, events[-1].time)))
                self._goodput = sums.goodput if sums.time.get("productive") else None
            await asyncio.sleep(max(COUNT, RARELY * (time.monotonic() - began)))

    async def _draw(self) -> None:
        """Ends when the terminal is gone."""
        with suppress(OSError):
            while True:
                size = _size()
                shown = self._view is not None and os.tcgetpgrp(TERMINAL) == self._group
                if shown and self._view is not None:
                    text = progress_text(self._view, self._goodput, size.columns - 1)
                    self._send(self._row.show(text, size))
                else:  # stopped by Ctrl-Z, or in the background: the terminal is somebody else's
                    self._send(self._row.release(size))
                await asyncio.sleep(DRAW)

    def _send(self, text: str) -> None:
        with suppress(OSError):
            os.write(TERMINAL, text.encode(errors="replace"))


def _size() -> TerminalSize:
    columns, rows = os.get_terminal_size(TERMINAL)
    return TerminalSize(rows, columns)


def main() -> int:
    """`sys.argv`: the agent's process id and process group. Ends when standard input does."""
    agent, group = map(int, sys.argv[1:3])
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTOU, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with the agent, and writes while others are in the foreground
    os.setpgid(0, 0)  # Ctrl-C and Ctrl-Z are for the agent
    asyncio.run(_show(agent, group))
    return 0


async def _show(agent: int, group: int) -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    loop.add_reader(0, _read_end, ended)
    finding = loop.run_in_executor(None, of_agent, load({}, os.environ, None).settings, agent)
    waited: set[asyncio.Future[Any]] = {ended, finding}
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    if ended.done():
        os._exit(0)  # the thread that looks for the job may take a minute
    try:
        job = finding.result()
    except ValueError:
        return
    node = next((each.node for each in local_jobs() if each.pid == agent), "")
    async with job.observer() as observer:
        await ProgressLine(observer, node, group).run(ended)


def _read_end(ended: asyncio.Future[None]) -> None:
    if not os.read(0, 1) and not ended.done():
        ended.set_result(None)
        asyncio.get_running_loop().remove_reader(0)
