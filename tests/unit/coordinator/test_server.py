"""The coordinator's shell: what it owes to those at the other end of its sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from functools import partial
from typing import TypeVar

import msgspec
import pytest

from links import TOKEN, Seeker
from outlast.agent.coordinator_link import link
from outlast.coordinator import door, server
from outlast.coordinator.server import Server
from outlast.core.coordinator.coordinator import Coordinator
from outlast.core.job.commands import Command
from outlast.core.job.inputs import Event, Lost
from outlast.core.job.job import Job
from outlast.launch import Endpoint
from outlast.protocol.membership import Join, Refuse, Report, State
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.rules import Rules
from outlast.system.tasks import Tasks
from outlast.transport.certificate import server_side
from outlast.transport.commission import Tls
from outlast.transport.wire import Wire

TIMEOUT = 2.0

Message = TypeVar("Message")


def rules(job: str = "job") -> Rules:
    return Rules(job=job, entrypoint="train.py", min_nodes=1, max_nodes=2, node_timeout=TIMEOUT, last_call=600.0)


class Client:
    """The other end: an agent's socket, used by hand on the same event loop."""

    def __init__(self) -> None:
        self._wire = Wire(TOKEN, agent=True)
        self._socket = socket.socket()
        self._seq = 0
        self._payloads: list[bytes] = []

    async def join(self, address: tuple[str, int], job: str = "job") -> None:
        loop = asyncio.get_running_loop()
        self._socket.setblocking(False)
        await loop.sock_connect(self._socket, address)
        await loop.sock_sendall(self._socket, self._wire.hello)
        while not self._wire.ready:
            self._wire.feed(await loop.sock_recv(self._socket, 65536))
        join = Join("n", "n", 1, "default", "127.0.0.1", job, "train.py", (1, 2), self._report())
        frame = self._wire.pack(msgspec.msgpack.encode(join))
        await loop.sock_sendall(self._socket, self._wire.take() + frame)

    async def hear(self, kind: type[Message]) -> Message:
        """The next message of this kind."""
        loop = asyncio.get_running_loop()
        while True:
            while self._payloads:
                message = msgspec.msgpack.decode(self._payloads.pop(0), type=FromCoordinator)
                if isinstance(message, kind):
                    return message
            data = await loop.sock_recv(self._socket, 65536)
            assert data, "the coordinator closed the connection"
            self._payloads += self._wire.feed(data)

    async def at_end(self) -> bool:
        return not await asyncio.get_running_loop().sock_recv(self._socket, 65536)

    def report(self) -> None:
        self._socket.send(self._wire.pack(msgspec.msgpack.encode(self._report())))

    def _report(self) -> Report:
        self._seq += 1
        return Report(seq=self._seq, floor=0, generation=0, state=State.IDLE, clear=True, store_port=1)

    def close(self) -> None:
        self._socket.close()


def test_a_refused_node_hears_why_before_its_connection_ends() -> None:
    async def refused() -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        serving = asyncio.create_task(Server(rules(), TOKEN).serve(listener))
        client = Client()
        try:
            await client.join(listener.getsockname(), job="another")
            refusal = await client.hear(Refuse)
            assert await client.at_end()
            return refusal.reason
        finally:
            client.close()
            serving.cancel()
            await asyncio.wait({serving})

    assert "'another'" in asyncio.run(refused())


def test_a_command_that_fails_does_not_take_the_others_with_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no room for it")

    async def refused() -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        serving = asyncio.create_task(Server(rules(), TOKEN).serve(listener))
        client = Client()
        try:
            await client.join(listener.getsockname(), job="another")
            return (await client.hear(Refuse)).reason
        finally:
            client.close()
            serving.cancel()
            await asyncio.wait({serving})

    monkeypatch.setattr(Server, "_publish", fails)
    assert "'another'" in asyncio.run(refused())
    assert "could not carry out Publish" in caplog.text
    assert "no room for it" in caplog.text


def test_a_coordinator_that_was_held_up_does_not_take_its_own_deafness_for_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lost_after_a_pause() -> list[Lost]:
        events: list[Event] = []
        heard = asyncio.Event()

        class Observed(Job):
            def handle(self, event: Event, now: float) -> list[Command]:
                events.append(event)
                heard.set()
                return super().handle(event, now)

        monkeypatch.setattr(server, "Coordinator", partial(Coordinator, job=Observed))

        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        serving = asyncio.create_task(Server(rules(), TOKEN).serve(listener))
        client = Client()
        try:
            await client.join(listener.getsockname())
            await heard.wait()
            due = loop.time() + TIMEOUT  # no earlier than the coordinator's timer
            # It comes to the timer late, in one go with other work that takes as long as its whole patience. The
            # node speaks in the meantime.
            loop.call_at(due - 0.2, time.sleep, 0.4)
            loop.call_at(due - 0.1, time.sleep, TIMEOUT)
            loop.call_at(due - 0.05, client.report)
            client.report()
            heard.clear()
            await heard.wait()
            heard.clear()
            await heard.wait()
            return [event for event in events if isinstance(event, Lost)]
        finally:
            client.close()
            serving.cancel()
            await asyncio.wait({serving})

    assert asyncio.run(lost_after_a_pause()) == []


def test_a_coordinator_that_is_slow_to_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "HANDSHAKE_TIMEOUT", 0.1)
    monkeypatch.setattr(link, "SHORT_PATIENCE", 0.0)  # with a stranger

    async def connects() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        place = Endpoint("127.0.0.1", listener.getsockname()[1])
        seeker = Seeker([place])
        errors: list[BaseException] = []
        tasks = Tasks(errors.append)
        tasks.start(link.Link(seeker, tls=None, patience=60.0).run())
        try:
            await seeker.until("looked", 2)
            monkeypatch.setattr(link, "HANDSHAKE_TIMEOUT", 30.0)
            tasks.start(Server(rules(), TOKEN).serve(listener))
            await seeker.until("connections", 1)
            assert not errors
        finally:
            await tasks.cancel()

    asyncio.run(connects())


@pytest.mark.parametrize("tls", [False, True])
def test_strangers_who_say_nothing_keep_no_node_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tls: bool
) -> None:
    monkeypatch.setattr(door, "MOST", 16)
    monkeypatch.setattr(door, "MOST_WITH_TLS", 16)
    context, binding = server_side(Tls()) if tls else (None, b"")

    async def joins() -> int:
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        place = Endpoint("127.0.0.1", listener.getsockname()[1])
        strangers = [socket.create_connection((place.host, place.port)) for _ in range(200)]
        coordinator = Server(rules(), TOKEN, binding=binding)
        serving = asyncio.create_task(coordinator.serve(listener, tls=context))
        mine = None
        if tls:
            mine = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            mine.check_hostname, mine.verify_mode = False, ssl.CERT_NONE
        try:
            monkeypatch.setattr(link, "HANDSHAKE_TIMEOUT", 120.0)
            connection = await asyncio.wait_for(link.connect(place, TOKEN, mine, lambda *_: None), 120.0)
            assert connection.standing.job == "job"
            open_now = len(coordinator.peers)
            connection.close()
            await connection.closed
            return open_now
        finally:
            serving.cancel()
            await asyncio.wait({serving})
            for each in strangers:
                each.close()
            for peer in list(coordinator.peers):
                peer.abort()

    assert asyncio.run(joins()) <= 17
    assert caplog.text.count("too many such") <= 20
