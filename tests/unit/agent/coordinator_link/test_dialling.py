"""An agent's tries to reach a coordinator that is not as it should be."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from outlast.agent.coordinator_link.ask import ask
from outlast.agent.coordinator_link.link import FIRST_WAIT, CoordinatorUnreachable, Link
from outlast.launch import Endpoint
from outlast.protocol.requests import Ask
from outlast.protocol.succession import Standing, Term
from outlast.transport.wire import Wire

TOKEN = "a secret of sixteen characters or more"


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
        enough = asyncio.Event()
        ends = 0

        def ended() -> None:
            nonlocal ends
            ends += 1
            if ends == times:
                enough.set()

        link = Link(
            lambda: [endpoint],
            lambda: TOKEN,
            tls=None,
            patience=600.0,
            choose=lambda standings: 0 if standings else None,
            obeyed=lambda: 0.0,
            connected=lambda _: None,
            received=lambda _: None,
            disconnected=ended,
        )
        loop = asyncio.get_running_loop()
        began = loop.time()
        running = loop.create_task(link.run())
        await asyncio.wait_for(enough.wait(), 60.0)
        took = loop.time() - began
        running.cancel()
        server.close()
        return took

    assert asyncio.run(storm(11)) >= 10 * FIRST_WAIT / 2


def test_a_coordinator_of_another_version_is_named_and_no_crash() -> None:
    async def knocks() -> None:
        server, endpoint = await serving(Strange)
        try:
            await ask(endpoint, TOKEN, None, Ask("restart", "me"))
        finally:
            server.close()

    with pytest.raises(CoordinatorUnreachable, match="another version: install the same Outlast on every node"):
        asyncio.run(knocks())
