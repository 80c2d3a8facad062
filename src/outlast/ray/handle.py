"""What the driver has of a job: its events as they come, its progress and its end, and a way to ask it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Protocol

from outlast.errors import JobFailed
from outlast.events.numbered import NumberedEvent
from outlast.protocol.paces import Pace
from outlast.protocol.requests import Answer
from outlast.protocol.views import JobView
from outlast.ray.overseer import Overseer, RayOutcome
from outlast.ray.request import RayRequest
from outlast.transport import token as tokens


class OverseerThread:
    """An overseer in a thread of this process, and what it has heard so far. `again`: one before it has died."""

    def __init__(self, request: RayRequest, *, again: bool = False) -> None:
        self.events: list[NumberedEvent] = []
        self.news = threading.Condition()
        self.outcome: RayOutcome | None = None
        self.error: BaseException | None = None
        self._request = request
        self._again = again
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._overseer: Overseer | None = None
        self._thread = threading.Thread(target=self._run, name="outlast-overseer", daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def over(self) -> bool:
        return self.outcome is not None or self.error is not None

    def view(self) -> JobView | None:
        return self._overseer.view if self._overseer is not None else None

    def ask(self, what: str, subject: str = "") -> Answer:
        """Ask the job for something."""
        if self.over or self._loop is None or self._overseer is None:
            return Answer(False, "the job is over")
        return asyncio.run_coroutine_threadsafe(self._overseer.ask(what, subject), self._loop).result()

    def events_after(self, count: int, timeout: float | None) -> list[NumberedEvent] | None:
        """The events after so many, once there are some; None: the job is over, and there are no more."""
        with self.news:
            self.news.wait_for(lambda: len(self.events) > count or self.over, timeout)
            return None if self.over and len(self.events) <= count else self.events[count:]

    def wait(self, timeout: float | None) -> RayOutcome | None:
        """How it has ended; None: it has not yet."""
        with self.news:
            self.news.wait_for(lambda: self.over, timeout)
        if self.error is not None:
            raise self.error
        return self.outcome

    def _run(self) -> None:
        outcome, error = None, None
        try:
            outcome = asyncio.run(self._oversee())
        except BaseException as raised:  # noqa: BLE001  (the driver raises it)
            error = raised
        finally:
            with self.news:
                self.outcome, self.error = outcome, error
                self.news.notify_all()
            self._ready.set()

    async def _oversee(self) -> RayOutcome:
        self._loop = asyncio.get_running_loop()
        self._overseer = Overseer(self._request, tokens.make(), self._hear)
        if self._again:
            await self._overseer.adopt()
        self._ready.set()
        return await self._overseer.run()

    def _hear(self, told: NumberedEvent) -> None:
        with self.news:
            self.events.append(told)
            self.news.notify_all()


class JobOverseer(Protocol):
    """An overseer in this process, or an actor's."""

    def events_after(self, count: int, timeout: float | None) -> list[NumberedEvent] | None: ...

    def wait(self, timeout: float | None) -> RayOutcome | None: ...

    def view(self) -> JobView | None: ...

    def ask(self, what: str, subject: str = "") -> Answer: ...


class RayJob:
    """A job on Ray, as its driver has it. Iterate over it for its events, each once, until it is over.

    for told in outlast.ray.start("train.py", nnodes=2):
        print(told.number, told.event)
    """

    def __init__(self, name: str, overseer: JobOverseer) -> None:
        self.name = name
        self._overseer = overseer

    def __iter__(self) -> Iterator[NumberedEvent]:
        count = 0
        while (new := self._overseer.events_after(count, None)) is not None:
            yield from new
            count += len(new)

    def result(self, timeout: float | None = None) -> RayOutcome:
        """Wait for the end of the job. Raises `outlast.JobFailed`, with its verdict; TimeoutError."""
        outcome = self._overseer.wait(timeout)
        if outcome is None:
            raise TimeoutError(f"job {self.name} still runs after {timeout:g} s")
        if not outcome.success:
            text = outcome.verdict.text() if outcome.verdict is not None else ""
            summary = f"{outcome.reason}\n{text}" if text else outcome.reason
            raise JobFailed(outcome.reason, summary=summary, verdict=outcome.verdict, final=outcome.final)
        return outcome

    def view(self) -> JobView | None:
        """The job as it was at most a second or two ago; None: nobody has seen it yet."""
        return self._overseer.view()

    def progress(self) -> Pace | None:
        """How rank 0 gets on: its last step, and what a step takes. None: no step is known."""
        view = self.view()
        return view.progress if view is not None else None

    def scale(self, nodes: int) -> str:
        """Train on so many nodes, from MIN to MAX; Ray is asked for them, or gets some back."""
        return self._ask("scale", str(nodes))

    def drain(self, node: str) -> str:
        """Let this node leave the job, after a save where that can be had; another one is asked for."""
        return self._ask("drain", node)

    def restart(self) -> str:
        """Start all workers anew, with the code that is on disk now."""
        return self._ask("restart")

    def stop(self) -> str:
        """End the job."""
        return self._ask("stop")

    def _ask(self, what: str, subject: str = "") -> str:
        answer = self._overseer.ask(what, subject)
        if not answer.done:
            raise ValueError(answer.text)
        return answer.text
