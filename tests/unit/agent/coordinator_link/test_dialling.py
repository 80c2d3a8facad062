"""An agent's tries to reach a coordinator that is not as it should be."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
import pytest

from links import TOKEN, Seeker
from outlast.agent.coordinator_link.ask import ask
from outlast.agent.coordinator_link.link import FIRST_WAIT, CoordinatorUnreachable, Link, knock
from outlast.launch import Endpoint
from outlast.protocol.requests import Ask
from outlast.protocol.succession import Standing, Term
from outlast.system.tasks import Tasks
from outlast.transport.wire import Wire, WireError


class Turning(asyncio.Protocol):
    """A coordinator that proves the token, says this, and closes."""

    said = msgspec.msgpack.encode(Standing(Term(1, "a"), True))

    def __init__(self) -> None:
        self._wire = Wire(TOKEN, agent=False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._wire.feed(data)
        self._transport.write(self._wire.take())
        if self._wire.ready:
            self._transport.write(self._wire.pack(self.said))
            self._transport.close()


class Strange(Turning):
    said = msgspec.msgpack.encode({"of": "another version"})


async def serving(kind: type[Turning]) -> tuple[asyncio.Server, Endpoint]:
    server = await asyncio.get_running_loop().create_server(kind, "127.0.0.1", 0)
    return server, Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])


def test_a_coordinator_that_turns_us_away_is_not_stormed() -> None:
    async def storm(times: int) -> float:
        server, endpoint = await serving(Turning)
        seeker = Seeker([endpoint])
        loop, tasks = asyncio.get_running_loop(), Tasks()
        began = loop.time()
        tasks.start(Link(seeker, tls=None, patience=600.0).run())
        await seeker.until("ends", times)
        took = loop.time() - began
        await tasks.cancel()
        server.close()
        return took

    assert asyncio.run(storm(11)) >= 10 * FIRST_WAIT / 2


class Banner(asyncio.Protocol):
    """Some other program."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"SSH-2.0-OpenSSH_9.2\r\n")


class OtherToken(Turning):
    """A coordinator of a job with another token."""

    def __init__(self) -> None:
        self._wire = Wire("the secret of quite another job", agent=False)

    def data_received(self, data: bytes) -> None:
        with suppress(WireError):
            super().data_received(data)


class OtherJob(Turning):
    """A coordinator of another job, where both have no token, or the same."""

    said = msgspec.msgpack.encode(Standing(Term(1, "x"), True, "another job"))


class Ours(Turning):
    said = msgspec.msgpack.encode(Standing(Term(1, "a"), True, "job"))


async def free_endpoint() -> Endpoint:
    server, endpoint = await serving(Ours)
    server.close()
    return endpoint


def dialling(*places: Endpoint) -> Link:
    return Link(Seeker(places, job="job"), tls=None, patience=600.0)


OTHERS = [Banner, OtherToken, OtherJob, Strange]


@pytest.mark.parametrize("other", OTHERS)
def test_a_place_where_somebody_else_answers_is_one_place_less_and_not_the_end(other: type[Turning]) -> None:
    async def scene() -> None:
        foreign, taken = await serving(other)
        away = await free_endpoint()
        seeker, tasks = Seeker([taken, away], job="job"), Tasks()
        link = Link(seeker, tls=None, patience=600.0)
        running = tasks.start(link.run())
        for _ in range(3):  # tries
            told = link._despair([], {taken: await failure(taken), away: ConnectionRefusedError()}, TOKEN, 500.0, True)
            assert told
        assert not running.done()
        ours = await asyncio.get_running_loop().create_server(Ours, "127.0.0.1", away.port)
        await seeker.until("connections", 1)
        await tasks.cancel()
        foreign.close()
        ours.close()

    asyncio.run(scene())


async def failure(place: Endpoint) -> Exception:
    link = dialling(place)
    reached, failed = await knock([place], TOKEN, None, link._receive, limit=60.0)
    link._turn_away_others(reached, failed)
    return failed[place]


@pytest.mark.parametrize("other", OTHERS)
def test_a_node_of_a_job_waits_for_its_coordinator_where_a_new_one_is_told_what_is_wrong(other: type[Turning]) -> None:
    async def scene() -> None:
        foreign, taken = await serving(other)
        error = await failure(taken)
        link = dialling(taken)
        with pytest.raises(CoordinatorUnreachable):
            link._despair([], {taken: error}, TOKEN, 10.0, True)
        link._met = True
        assert link._despair([], {taken: error}, TOKEN, 10.0, True)
        with pytest.raises(CoordinatorUnreachable):
            link._despair([], {taken: error}, TOKEN, 600.0, True)
        foreign.close()

    asyncio.run(scene())


def test_a_coordinator_of_another_version_is_named_and_no_crash() -> None:
    async def knocks() -> None:
        server, endpoint = await serving(Strange)
        try:
            await ask(endpoint, TOKEN, None, Ask("restart", "me"))
        finally:
            server.close()

    with pytest.raises(CoordinatorUnreachable, match="another version: install the same Outlast on every node"):
        asyncio.run(knocks())


class Staying(Turning):
    """A coordinator that stays, and says how the other end has gone."""

    gone: asyncio.Future[Exception | None]
    said = msgspec.msgpack.encode(Standing(Term(1, "a"), False))

    def data_received(self, data: bytes) -> None:
        if self._wire.ready:
            return
        self._wire.feed(data)
        self._transport.write(self._wire.take())
        if self._wire.ready:
            self._transport.write(self._wire.pack(self.said))

    def connection_lost(self, error: Exception | None) -> None:
        self.gone.set_result(error)


class Silent(asyncio.Protocol):
    """Accepts, and says nothing: a knock at several places waits for it."""

    came: asyncio.Event

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: ARG002
        self.came.set()


def test_a_link_that_is_cancelled_ends_its_connection_and_leaves_no_task() -> None:
    async def scene() -> None:
        Staying.gone = asyncio.get_running_loop().create_future()
        server, place = await serving(Staying)
        seeker, tasks = Seeker([place]), Tasks()
        tasks.start(Link(seeker, tls=None, patience=600.0).run())
        await seeker.until("connections", 1)
        await asyncio.wait_for(tasks.cancel(), 60.0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert await asyncio.wait_for(Staying.gone, 60.0) is None  # an end, not a reset
        assert seeker.ends == 0
        server.close()

    asyncio.run(scene())


def test_a_knock_that_is_cancelled_leaves_no_connection_and_no_task() -> None:
    async def scene() -> None:
        Staying.gone, Silent.came = asyncio.get_running_loop().create_future(), asyncio.Event()
        server, place = await serving(Staying)
        silent, quiet = await serving(Silent)  # type: ignore[arg-type]
        tasks = Tasks()
        tasks.start(knock([place, quiet], TOKEN, None, lambda *_: None, limit=600.0))
        await asyncio.wait_for(Silent.came.wait(), 60.0)
        await asyncio.wait_for(tasks.cancel(), 60.0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await asyncio.wait_for(Staying.gone, 60.0)
        server.close()
        silent.close()

    asyncio.run(scene())
