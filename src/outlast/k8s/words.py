"""What the coordinators of jobs say, by observing them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from outlast.agent.coordinator_link.link import CoordinatorUnreachable
from outlast.events.events import JobEvent, NodeLost
from outlast.events.reasons import NodeLoss
from outlast.k8s.observed import CoordinatorWord, GoneAgent
from outlast.k8s.rendering import PORT, JobIdentity
from outlast.k8s.tasks import together
from outlast.launch import Endpoint
from outlast.observe import EventGap, Observer, ObserverRefused

if TYPE_CHECKING:
    from outlast.protocol.views import JobView

log = logging.getLogger("operator")

EVERY = 1.0  # seconds between two looks
RETRY = 3.0  # seconds after which one that cannot be reached is tried again, where pods may be by then


def word_of(view: JobView, before: CoordinatorWord | None, now: float) -> CoordinatorWord:
    """The coordinator's word at this moment.

    An agent that was there and is neither connected nor part of the newest generation is gone. That generation was
    formed without it, so its workers are dead: they ended, or their lease did. One that fell silent is gone before
    that: see `after_event`. How the job has ended, pods tell better: they leave the verdict.
    """
    gone = dict(before.gone) if before is not None else {}
    here = (node for node in view.nodes if node.connected or (node.member and node.name not in gone))
    agents = frozenset(node.name for node in here)
    known = before.agents if before is not None else frozenset[str]()
    if view.acting:
        gone |= {name: GoneAgent(now) for name in known - agents if name not in gone}
    else:
        agents |= known  # it may be cut off from them, and not they from the job
    return CoordinatorWord(
        at=now,
        acting=view.acting,
        generation=view.generation,
        step=view.progress.last if view.progress is not None else 0,
        restarts=view.restarts,
        agents=agents,
        gone={name: each for name, each in gone.items() if name not in agents},
        excluded={each.node or place: each.why for place, each in view.excluded.items()},
    )


def after_event(word: CoordinatorWord, event: JobEvent, now: float) -> CoordinatorWord:
    """What an event adds: an agent that fell silent is gone, and its workers are dead. Views tell the rest.

    Unless the coordinator itself is cut off from most of the job: then the others train on without it. So this counts
    from the next view on, if that says that it may act.
    """
    if not isinstance(event, NodeLost) or event.loss is not NodeLoss.SILENT:
        return word
    gone = {**word.gone, event.node: GoneAgent(now, silent=True)}
    return replace(word, at=now, acting=False, agents=word.agents - {event.node}, gone=gone)


class _Followed:
    """One job that is observed."""

    def __init__(self) -> None:
        self.addresses: tuple[str, ...] = ()
        self.token = ""
        self.last: CoordinatorWord | None = None  # also while it cannot be reached, for who was there
        self.reached = False
        self.task: asyncio.Task[None] | None = None
        self.run = ""
        self.heard = 0  # number of the last event of that run: an older view says nothing new


class ObserverWords:
    """Follows the coordinator of each job that is asked about. `changed` hears of jobs whose word has changed."""

    def __init__(self, changed: Callable[[JobIdentity], None], clock: Callable[[], float]) -> None:
        self._changed = changed
        self._clock = clock
        self._jobs: dict[str, _Followed] = {}

    def word(self, job: JobIdentity, addresses: Sequence[str], token: str) -> CoordinatorWord | None:
        """The newest word, or None while nobody can be reached."""
        followed = self._jobs.setdefault(job.uid, _Followed())
        followed.addresses, followed.token = tuple(addresses), token
        if followed.task is None and addresses:
            followed.task = asyncio.create_task(self._follow(job, followed))
        return followed.last if followed.reached else None

    def forget(self, job: JobIdentity) -> None:
        """The job is gone, or over."""
        followed = self._jobs.pop(job.uid, None)
        if followed is not None and followed.task is not None:
            followed.task.cancel()

    async def close(self) -> None:
        """Follow nobody any more."""
        tasks = [each.task for each in self._jobs.values() if each.task is not None]
        self._jobs.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, job: JobIdentity, followed: _Followed) -> None:
        while True:
            places = [Endpoint(address, PORT) for address in followed.addresses]
            try:
                async with Observer(places, followed.token) as observer:
                    await self._look(job, followed, observer)
                    await together(self._views(job, followed, observer), self._events(job, followed, observer))
            except (CoordinatorUnreachable, ObserverRefused, OSError) as error:
                if followed.reached:
                    log.info("%s/%s: its coordinator cannot be reached: %s", job.namespace, job.name, error)
                followed.reached = False
            await asyncio.sleep(RETRY)

    async def _views(self, job: JobIdentity, followed: _Followed, observer: Observer) -> None:
        while True:
            await asyncio.sleep(EVERY)
            await self._look(job, followed, observer)

    async def _look(self, job: JobIdentity, followed: _Followed, observer: Observer) -> None:
        view = await observer.view("nodes")
        if view.run != followed.run:
            followed.run, followed.heard = view.run, view.event
        if view.event >= followed.heard:
            self._take(job, followed, word_of(view, followed.last, self._clock()))

    async def _events(self, job: JobIdentity, followed: _Followed, observer: Observer) -> None:
        async for told in observer.events(followed.heard, run=followed.run):
            if isinstance(told, EventGap):
                continue
            followed.heard = told.number
            if followed.last is not None:
                self._take(job, followed, after_event(followed.last, told.event, self._clock()))

    def _take(self, job: JobIdentity, followed: _Followed, word: CoordinatorWord) -> None:
        before = followed.last if followed.reached else None
        followed.last, followed.reached = word, True
        if before is None or _essence(before) != _essence(word):
            self._changed(job)


def _essence(word: CoordinatorWord) -> tuple[object, ...]:
    """What is worth a reconcile at once; steps are not."""
    return (word.acting, word.generation, word.restarts, word.agents, word.gone, word.excluded)
