"""Asks a job for one fault, and follows its events until it has answered."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from outlast.chaos.faults import ChaosAnswer, ChaosRequest, ChaosTarget
from outlast.chaos.outcome import ChaosOutcome, HeardEvent, is_answered, outcome_of
from outlast.events.events import JobOver, TrainingBegan
from outlast.events.numbered import NumberedEvent
from outlast.ledger.summary import ledger, summarize
from outlast.observe import FoundJob, Observer
from outlast.protocol.chaos import ChaosFault
from outlast.protocol.observers import Detail
from outlast.protocol.views import JobView, NodeView

RENEWED = 0.2  # seconds between two looks at a view that is not new enough
SETTLED = 0.5  # seconds in which the last events of an answer come


class ChaosConductor:
    """`right`: the job's chaos token, where it is not made from the job's own. `say`: is told what will happen."""

    def __init__(self, job: FoundJob, *, right: str, wait: float, say: Callable[[str], None]) -> None:
        self._job = job
        self._right = right
        self._wait = wait
        self._say = say

    async def perform(self, request: ChaosRequest, draw: random.Random) -> ChaosOutcome:
        """One fault. Raises ValueError, in one line, if it cannot be."""
        request = request.checked()
        async with self._job.observer() as observer:
            past = await _past(observer)
            view = await _view_after(observer, past, Detail.NODES)
            known = len(summarize(ledger(past)).faults)
            node, rank = _target(view, request, draw)
            where = f"rank {rank} on node {node.name}" if rank is not None else f"node {node.name}"
            needs = f" (needs {request.about.needs})" if request.about.needs else ""
            self._say(f"{request.fault}: this will {request.about.does}: {where}{needs}")
            local = rank - (node.first_rank or 0) if rank is not None else None
            try:
                answer = await observer.hurt(node.node, request.order(local), self._right)
                if not answer.done:
                    raise ValueError(answer.text)
                heard = await self._follow(request, view, time.monotonic())
            except asyncio.CancelledError:  # somebody wants to end this: nothing is to be left behind
                await observer.hurt(node.node, ChaosFault("end"), self._right)
                raise
        async with self._job.observer() as observer:  # the one before may have lost its coordinator
            return await self._judge(observer, request, view, known, answer.text, heard)

    async def _follow(self, request: ChaosRequest, view: JobView, began: float) -> list[HeardEvent]:
        """What is told after the fault, until the job has answered, or time is over."""
        heard: list[HeardEvent] = []
        kind = request.about.answer
        limit = (request.seconds or 0.0) + SETTLED if kind is ChaosAnswer.NONE else self._wait

        async def listen() -> None:
            async with self._job.observer() as observer:
                async for told in observer.events(after=view.event):
                    if isinstance(told, NumberedEvent):
                        heard.append(HeardEvent(time.monotonic() - began, told.event))
                        if is_answered(kind, heard, view.generation):
                            return

        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(listen(), limit)
        return heard

    async def _judge(
        self, observer: Observer, request: ChaosRequest, before: JobView, known: int, did: str, heard: list[HeardEvent]
    ) -> ChaosOutcome:
        over = any(isinstance(each.event, JobOver) for each in heard)
        restarts = before.restarts
        lost: int | None = 0
        if not over:
            past = await _past(observer)
            view = await _view_after(observer, past)
            restarts = view.restarts
            faults = summarize(ledger(past, until=view.time)).faults[known:]
            lost = sum(each.fault.steps_lost for each in faults)
            unnumbered = [each.event for each in heard if isinstance(each.event, TrainingBegan)]
            if any(event.step is None for event in unnumbered):
                lost = None
        return outcome_of(
            request.fault,
            did,
            heard,
            generation=before.generation,
            steps_lost=lost,
            restarts=restarts - before.restarts,
        )


async def _past(observer: Observer) -> list[NumberedEvent]:
    return [told async for told in observer.events(follow=False) if isinstance(told, NumberedEvent)]


async def _view_after(observer: Observer, past: Sequence[NumberedEvent], detail: Detail = Detail.JOB) -> JobView:
    """A view in which all of this has happened. The coordinator makes one a second at most, so the first may be old."""
    while (view := await observer.view(detail)).event < past[-1].number:  # noqa: ASYNC110  (it is far away)
        await asyncio.sleep(RENEWED)
    return view


def _target(view: JobView, request: ChaosRequest, draw: random.Random) -> tuple[NodeView, int | None]:
    """The node, and the rank where it hits one. Raises ValueError."""
    here = [node for node in view.nodes if node.connected]
    members = [node for node in here if node.member]
    if not members:
        raise ValueError(f"the job does not train now: it is {view.phase}")
    about = request.about
    if about.target is ChaosTarget.COORDINATOR:
        hosts = [node for node in here if node.name == view.hosted_by]
        if not hosts:
            raise ValueError("no node that is here hosts the coordinator")
        return hosts[0], None
    if request.node:
        named = [node for node in here if request.node in (node.node, node.name)]
        if not named:
            raise ValueError(f"no node {request.node!r} is here, only: {', '.join(node.name for node in here)}")
        members = named
    if about.target is ChaosTarget.NODE:
        return draw.choice(sorted(members, key=lambda node: node.name)), None
    ranks = {
        (node.first_rank or 0) + local: node
        for node in members
        if node.first_rank is not None
        for local in range(node.workers)
    }
    if request.rank is not None and request.rank not in ranks:
        raise ValueError(f"there is no rank {request.rank} there, only: {', '.join(map(str, sorted(ranks)[:20]))}")
    rank = request.rank if request.rank is not None else draw.choice(sorted(ranks))
    return ranks[rank], rank
