"""Observers of real jobs: they follow through the loss of coordinators, and cannot slow or end anything."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from jobs import free_port, node, workers
from outlast.agent.coordinator_link.link import Connection, CoordinatorUnreachable, connect
from outlast.core.coordinator.observers import MOST
from outlast.events.events import CoordinatorTookOver, GenerationFormed, JobOver
from outlast.events.numbered import NumberedEvent
from outlast.launch import Endpoint
from outlast.observe import EventGap, Observer
from outlast.protocol.membership import Refuse
from outlast.protocol.observers import Detail, ReadView
from outlast.protocol.views import JobView
from outlast.transport.wire import observer_token
from processes import Process, arguments

TOKEN = "a token of these tests"
ENV = {"OUTLAST_TOKEN": TOKEN}
LIMIT = 120.0
T = TypeVar("T")


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def limited() -> T:
        return await asyncio.wait_for(work(), LIMIT)

    return asyncio.run(limited())


def viewed(port: int, token: str = TOKEN, detail: Detail = Detail.RANKS) -> JobView:
    async def read() -> JobView:
        async with Observer([Endpoint("127.0.0.1", port)], token) as observer:
            return await observer.view(detail)

    return run(read)


def coordinators(process: Process) -> list[int]:
    return [pid for pid in process.tree() if any(b"outlast.coordinator" in word for word in arguments(pid))]


@pytest.fixture
def port() -> int:
    return free_port()


def test_who_follows_sees_every_event_once_though_the_coordinator_is_killed_thrice(port: int) -> None:
    seen: list[NumberedEvent] = []

    async def follow() -> None:
        observer = Observer([Endpoint("127.0.0.1", port)], observer_token(TOKEN))
        terms = 0
        async for told in observer.events():
            assert isinstance(told, NumberedEvent), told
            seen.append(told)
            if isinstance(told.event, GenerationFormed | CoordinatorTookOver) and terms < 3:
                terms += 1
                (pid,) = coordinators(job)
                os.kill(pid, signal.SIGKILL)
            elif isinstance(told.event, CoordinatorTookOver):
                os.kill(worker.pid, signal.SIGUSR1)

    with node("a", port, "--nnodes=1:2", "--ft-last-call=0", env=ENV) as job:
        (worker,) = workers(job, 1, 0)
        run(follow)
        assert job.wait() == 0
    numbers = [each.number for each in seen]
    assert numbers == sorted(set(numbers))
    assert [each.term for each in seen if isinstance(each.event, CoordinatorTookOver)] == [2, 3, 4]
    assert isinstance(seen[-1].event, JobOver)
    assert {each.term for each in seen} == {1, 2, 3, 4}
    assert [each.time for each in seen] == sorted(each.time for each in seen)


def test_who_comes_after_a_restart_of_the_coordinator_gets_the_whole_history(port: int) -> None:
    async def read() -> list[NumberedEvent | EventGap]:
        return [told async for told in Observer([Endpoint("127.0.0.1", port)], TOKEN).events(follow=False)]

    with node("a", port, "--nnodes=1:2", "--ft-last-call=0", env=ENV) as job:
        (worker,) = workers(job, 1, 0)
        before = run(read)
        (pid,) = coordinators(job)
        os.kill(pid, signal.SIGKILL)
        job.wait_for("took over generation 1")
        after = run(read)
        os.kill(worker.pid, signal.SIGUSR1)
        assert job.wait() == 0
    assert before
    assert after[: len(before)] == before
    assert len(after) > len(before)


def test_a_thousand_observers_are_refused_politely_beyond_the_limit_and_the_job_does_not_notice(port: int) -> None:
    refused: list[str] = []

    async def crowd() -> None:
        connections: list[Connection] = []

        def receive(_: Connection, message: object) -> None:
            if isinstance(message, Refuse):
                refused.append(message.reason)

        async def come() -> None:
            connection = await connect(Endpoint("127.0.0.1", port), TOKEN, None, receive)
            connection.send(ReadView())
            connections.append(connection)

        for _ in range(20):
            await asyncio.gather(*(come() for _ in range(50)))
        gone = [each.closed for each in connections]
        while sum(each.done() for each in gone) < 1000 - MOST:
            await asyncio.wait([each for each in gone if not each.done()], return_when=asyncio.FIRST_COMPLETED)
        for each in connections:
            each.close()
        await asyncio.wait(gone)

    with node("a", port, "--nnodes=1:2", "--ft-last-call=0", env=ENV) as job:
        (worker,) = workers(job, 1, 0)
        run(crowd)
        view = viewed(port)
        os.kill(worker.pid, signal.SIGUSR1)
        assert job.wait() == 0
    assert len(refused) == 1000 - MOST
    assert set(refused) == {f"the job has {MOST} observers already: end one of them, or try again later"}
    assert (view.phase, view.generation, view.here) == ("running", 1, 1)


def test_one_that_asks_and_never_reads_is_dropped_and_costs_nobody_anything(port: int) -> None:
    async def be_stuck() -> None:
        stuck = await connect(Endpoint("127.0.0.1", port), TOKEN, None, lambda *_: None)
        assert stuck._transport is not None
        stuck._transport.pause_reading()
        while not stuck.closed.done():
            for _ in range(200):
                stuck.send(ReadView(Detail.RANKS))
            await asyncio.wait({stuck.closed}, timeout=0.01)

    with node("a", port, "--nnodes=1:2", "--ft-last-call=0", env=ENV) as job:
        (worker,) = workers(job, 1, 0)
        run(be_stuck)
        job.wait_for("an observer asks for more than it reads")
        assert viewed(port).here == 1
        os.kill(worker.pid, signal.SIGUSR1)
        assert job.wait() == 0


def test_another_token_and_no_job_at_all_are_told_in_one_line(port: int) -> None:
    here = [Endpoint("127.0.0.1", port)]
    with node("a", port, "--nnodes=1:2", "--ft-last-call=0", env=ENV) as job:
        (worker,) = workers(job, 1, 0)
        for token in ("another", observer_token("another")):
            with pytest.raises(CoordinatorUnreachable, match="has another token: set the job's OUTLAST_TOKEN"):
                viewed(port, token)
        refusal = run(lambda: Observer(here, observer_token(TOKEN)).stop())
        assert (refusal.done, "may only observe" in refusal.text) == (False, True)
        os.kill(worker.pid, signal.SIGUSR1)
        assert job.wait() == 0
    with pytest.raises(CoordinatorUnreachable, match="no job answers at"):
        viewed(port)


def test_people_drain_a_node_scale_the_job_and_stop_it(port: int) -> None:
    flags = ("--nnodes=1:2", "--ft-last-call=0", "--ft-use-infra-group-rank=false")
    observer = Observer([Endpoint("127.0.0.1", port)], TOKEN)
    with node("a", port, *flags, env=ENV) as a:
        workers(a, 1, 0)
        with node("b", port, *flags, env=ENV) as b:
            workers(b, 2, 1)
            assert run(lambda: observer.scale(1)).done
            workers(a, 3, 0)
            assert viewed(port).spares == 1
            assert run(lambda: observer.scale(2)).done
            workers(b, 4, 1)
            assert run(lambda: observer.drain("b")).done
            b.wait_for("asks this node to drain")
            b.wait()
        workers(a, 5, 0)
        assert run(observer.stop).done
        a.wait_for("stopped by")
        assert a.wait() == 1
