"""What the coordinators of jobs say, by observing them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from outlast.agent.coordinator_link.link import CoordinatorUnreachable
from outlast.k8s.observed import CoordinatorWord, GoneAgent
from outlast.k8s.rendering import PORT, JobIdentity
from outlast.launch import Endpoint
from outlast.observe import Observer, ObserverRefused

if TYPE_CHECKING:
    from outlast.core.job.view import JobView

log = logging.getLogger("operator")

EVERY = 1.0  # seconds between two looks
RETRY = 3.0  # seconds after which one that cannot be reached is tried again, where pods may be by then


def word_of(view: JobView, before: CoordinatorWord | None, now: float) -> CoordinatorWord:
    """The coordinator's word at this moment.

    An agent that was there and is neither connected nor part of the newest generation is gone. That generation was
    formed without it, so its workers are dead: they ended, or their lease did. How the job has ended, pods tell better:
    they leave the verdict.
    """
    agents = frozenset(node.name for node in view.nodes if node.connected or node.member)
    gone = dict(before.gone) if before is not None else {}
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
        excluded={name: each.why for name, each in view.excluded.items()},
    )


class _Followed:
    """One job that is observed."""

    def __init__(self) -> None:
        self.addresses: tuple[str, ...] = ()
        self.token = ""
        self.last: CoordinatorWord | None = None  # also while it cannot be reached, for who was there
        self.reached = False
        self.task: asyncio.Task[None] | None = None


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
                    while True:
                        self._take(job, followed, word_of(await observer.view("nodes"), followed.last, self._clock()))
                        await asyncio.sleep(EVERY)
            except (CoordinatorUnreachable, ObserverRefused, OSError) as error:
                if followed.reached:
                    log.info("%s/%s: its coordinator cannot be reached: %s", job.namespace, job.name, error)
                followed.reached = False
            await asyncio.sleep(RETRY)

    def _take(self, job: JobIdentity, followed: _Followed, word: CoordinatorWord) -> None:
        before = followed.last if followed.reached else None
        followed.last, followed.reached = word, True
        if before is None or _essence(before) != _essence(word):
            self._changed(job)


def _essence(word: CoordinatorWord) -> tuple[object, ...]:
    """What is worth a reconcile at once; steps are not."""
    return (word.acting, word.generation, word.restarts, word.agents, word.gone, word.excluded)
