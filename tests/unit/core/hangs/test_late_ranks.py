"""What an agent does about ranks that are late: asks who it is, waits in bounds, and ends them. Real processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from outlast.agent.monitoring import hangs
from outlast.agent.monitoring.hangs import Hangs
from outlast.agent.monitoring.stacks import collect
from outlast.agent.monitoring.watch import Hang, Limits, Watch
from outlast.agent.processes.worker import Streams
from outlast.agent.processes.workers import WorkerGroup
from outlast.board.layout import VARIABLE
from outlast.core.node.inputs import Event, Exited, Late, Observed
from outlast.diagnosis.stack import Stack
from outlast.protocol.failures import Failure
from outlast.protocol.generations import Assignment
from outlast.protocol.hangs import Named
from outlast.settings.settings import Settings
from outlast.system.tasks import Tasks
from outlast.worker.session import Session

SOON = 60.0
NPROC = 2
PLACE = Assignment(1, 1, 2, 2, 4, 2, 4, "a", 7, 0)  # ranks 2 and 3, of two nodes
ALONE = Assignment(1, 0, 1, 2, 4, 2, 4, "a", 7, 0)
ELSEWHERE = Named(1, 1, (0,), "rank 0 on a blocks the others")
HERE = Named(1, 1, (3,), "rank 3 on b blocks the others")


class Scene:
    """An agent's hangs around two processes that sleep, and all that is said to its node."""

    def __init__(self, place: Assignment, connected: bool, detection: str) -> None:
        self.said: list[Event] = []
        self.news = asyncio.Event()
        self.connected = connected
        self.tasks = Tasks()
        limits = Limits.of(Settings(rank_heartbeat_timeout=0.2, hang_detection=detection))
        self.watch = Watch(NPROC, limits, late=self.late, asked=lambda *_: None, calibrate=lambda: None)
        null = os.open(os.devnull, os.O_WRONLY)
        self.group = WorkerGroup.start(
            [("/bin/sleep", "1000")] * NPROC,
            [dict(os.environ)] * NPROC,
            [Streams(os.dup(null), None, "") for _ in range(NPROC)],
            lambda *_: self.news.set(),
        )
        os.close(null)
        self.hangs = Hangs(
            "b",
            place,
            self.group,
            self.watch,
            ending=signal.SIGKILL if detection == "on" else None,
            owner=self,
            tasks=self.tasks,
        )
        self._first = place.first_rank
        self.workers = [Session({VARIABLE: self.watch.address(rank)}) for rank in range(NPROC)]

    def late(self, found: list[Hang]) -> None:
        self.hangs.late(found)

    def feed(self, event: Event) -> None:
        self.said.append(event)
        self.news.set()

    def failure_of_hang(self, local_rank: int, pid: int, exit_code: int) -> Failure:
        return Failure("b", "b", self._first + local_rank, local_rank, pid, exit_code, 1.0, "")

    def judged(self, failure: Failure) -> Failure:
        return failure

    def hang(self) -> None:
        """Rank 2, the first here, gives its last heartbeat; rank 3 gives none at all, and no clock runs for it."""
        self.workers[0].heartbeat()
        self.watch.begin()

    async def hear(self, kind: type[Event], count: int = 1) -> list[Any]:
        while len(found := [event for event in self.said if isinstance(event, kind)]) < count:
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), SOON)
        return found


@asynccontextmanager
async def scene(place: Assignment = PLACE, *, connected: bool = True, detection: str = "on") -> AsyncIterator[Scene]:
    made = Scene(place, connected, detection)
    try:
        yield made
    finally:
        made.hangs.close()
        made.watch.close()
        await made.group.stop(signal.SIGKILL, 0)
        await asyncio.wait_for(made.tasks.wait(), SOON)


def test_the_rank_is_ended_when_the_coordinator_has_said_who_it_is_and_its_failure_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hangs, "TO_NAME", 1000.0)

    async def play() -> None:
        async with scene() as here:
            here.hang()
            assert await here.hear(Late) == [Late(1, ending=True)]
            here.hangs.named(ELSEWHERE)
            (ended,) = await here.hear(Exited)
            failure = ended.failure
            assert (failure.rank, failure.culprit) == (2, False)
            assert failure.hung.startswith("it had no heartbeat or step for 0.2 s")
            assert failure.hung.endswith(ELSEWHERE.sentence)
            assert here.hangs.ended == {0}

    asyncio.run(play())


def test_a_culprit_here_is_ended_though_none_of_its_clocks_ran_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangs, "TO_NAME", 1000.0)

    async def play() -> None:
        async with scene() as here:
            here.hang()
            await here.hear(Late)
            here.hangs.named(HERE)
            culprit, victim = [event.failure for event in await here.hear(Exited, 2)]
            assert (culprit.rank, culprit.culprit, culprit.hung) == (3, True, HERE.sentence)
            assert (victim.rank, victim.culprit) == (2, False)

    asyncio.run(play())


def test_a_coordinator_that_does_not_say_who_it_is_is_waited_for_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangs, "TO_NAME", 0.3)

    async def play() -> None:
        async with scene() as here:
            here.hang()
            (ended,) = await here.hear(Exited)
            assert (ended.failure.rank, ended.failure.culprit) == (2, False)

    asyncio.run(play())


def test_without_a_coordinator_nobody_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What one node sees is compared there, if it is all of the job."""
    monkeypatch.setattr(hangs, "TO_NAME", 1000.0)

    async def play() -> None:
        async with scene(ALONE, connected=False) as here:
            here.hang()
            await here.hear(Exited)

    asyncio.run(play())
    assert "nothing was seen of ranks 2, 3 on b" in caplog.text


def test_in_a_mode_that_ends_nobody_nobody_is_ended_whoever_is_named() -> None:
    async def play() -> None:
        async with scene(detection="report") as here:
            here.hang()
            assert await here.hear(Late) == [Late(1, ending=False)]
            here.hangs.named(HERE)
            await here.tasks.wait()
            assert here.group.alive == (0, 1)
            assert here.said == [Late(1, ending=False)]

    asyncio.run(play())


def test_a_node_says_where_its_ranks_are_and_looks_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    async def counted(pids: Mapping[int, int], timeout: float, *, interrupt: bool) -> dict[int, Stack]:
        looks.append(interrupt)
        return await collect(pids, timeout, interrupt=interrupt)

    monkeypatch.setattr(hangs, "collect", counted)
    monkeypatch.setattr(hangs, "FRESH", 1000.0)

    async def play() -> None:
        async with scene() as here:
            here.hang()
            await here.hear(Late)
            here.hangs.look(7, interrupt=True)
            here.hangs.look(8, interrupt=False)
            answers = await here.hear(Observed, 2)
            assert [answer.number for answer in answers] == [7, 8]
            assert sorted(rank for each in answers[0].observations for rank in each.ranks) == [2, 3]
            assert [each.late for each in answers[0].observations if 2 in each.ranks] == [True]

    asyncio.run(play())
    assert looks == [True]


def test_what_was_seen_after_the_generation_ended_is_not_said() -> None:
    async def play() -> None:
        async with scene() as here:
            here.hangs.look(1, interrupt=False)
            here.hangs.close()
            await here.tasks.wait()
            assert here.said == []

    asyncio.run(play())


def test_nobody_is_ended_once_the_generation_is_over_and_nobody_waits_for_a_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hangs, "TO_NAME", 1000.0)

    async def play() -> None:
        async with scene() as here:
            here.hang()
            await here.hear(Late)
            here.hangs.close()
            await asyncio.wait_for(here.tasks.wait(), SOON)
            assert here.group.alive == (0, 1)
            assert here.said == [Late(1, ending=True)]

    asyncio.run(play())
