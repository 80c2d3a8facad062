"""A task group for owners that live long: `asyncio.TaskGroup` is one block of code, and not in Python 3.10."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Tasks:
    """The tasks of one owner, who waits for them: none outlives it, and none fails unheard.

    tasks = Tasks(failed)    # called with the error of each task that fails, which is else logged; the others go on
    tasks.start(work())
    await tasks.wait()       # or: await tasks.cancel()
    """

    def __init__(self, failed: Callable[[BaseException], None] | None = None) -> None:
        self._failed = failed
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def wait(self) -> None:
        """Until all have ended, also those that are started meanwhile."""
        while self._running:
            await asyncio.wait(self._running)

    async def cancel(self) -> None:
        for task in self._running:
            task.cancel()
        await self.wait()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._failed is not None:
            self._failed(error)
        elif error is not None:
            task.get_loop().call_exception_handler({"message": "a task failed", "exception": error, "task": task})
