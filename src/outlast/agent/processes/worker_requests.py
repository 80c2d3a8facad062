"""Where workers ask: a socket of the agent's, for questions that need an answer of the coordinator.

    worker   length (4 bytes) · MessagePack of `ShardQuestion`   →
             ←   length · MessagePack of a finding           agent

One question at a time on a connection; a worker has as many as it has threads that ask. The socket has no file (its
name is in the kernel's own space), so nothing is left of it; the name cannot be guessed, and other users are refused.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import socket
import struct
from collections.abc import Callable

import msgspec

from outlast.log import Sparing
from outlast.protocol.fields import UNREADABLE
from outlast.protocol.shards import Finding, ShardQuestion, Unanswerable

sparing = Sparing(logging.getLogger("agent"))

LONGEST = 1 << 19  # bytes of a question: it has to fit into a message to the coordinator
_decoder = msgspec.msgpack.Decoder(ShardQuestion)
_encoder = msgspec.msgpack.Encoder()


class WorkerRequests:
    """The agent's side. `ask` passes a question on, with the number of the visitor that waits for its answer.

    requests = WorkerRequests(ask)
    await requests.open()
    requests.address  # for the environment of the workers
    """

    def __init__(self, ask: Callable[[int, ShardQuestion], None]) -> None:
        self.address = f"outlast-{secrets.token_hex(16)}"
        self.ask = ask
        self._server: asyncio.Server | None = None
        self._visitors: dict[int, Visitor] = {}
        self._numbers = itertools.count(1)

    async def open(self) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.bind(f"\0{self.address}")
        self._server = await asyncio.get_running_loop().create_unix_server(lambda: Visitor(self), sock=listener)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for visitor in list(self._visitors.values()):
            visitor.abort()

    def came(self, visitor: Visitor) -> int:
        """The number of a new visitor."""
        number = next(self._numbers)
        self._visitors[number] = visitor
        return number

    def left(self, number: int) -> None:
        """It waits for no answer any more. That is remembered all the same, for the coordinator has acted on it."""
        self._visitors.pop(number, None)

    def respond(self, number: int, finding: Finding) -> None:
        """Tell a visitor the answer, if it is still there."""
        if (visitor := self._visitors.get(number)) is not None:
            visitor.answer(finding)


class Visitor(asyncio.Protocol):
    """One connection of a worker."""

    def __init__(self, requests: WorkerRequests) -> None:
        self._requests = requests
        self._number = 0
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._number = self._requests.came(self)
        size = struct.calcsize("3i")
        credentials = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        _, user, _ = struct.unpack("3i", credentials)
        if user != os.getuid():
            sparing.warning("user %d is not this job's, and was refused by the agent's socket", user)
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        length = int.from_bytes(self._buffer[:4], "big")
        if self._transport is None or self._transport.is_closing() or len(self._buffer) < 4:
            return
        if length > LONGEST:
            self._transport.abort()
        elif len(self._buffer) >= 4 + length:
            payload = bytes(self._buffer[4 : 4 + length])
            del self._buffer[: 4 + length]
            try:
                inquiry = _decoder.decode(payload)
            except UNREADABLE as error:
                self.answer(Unanswerable(f"the agent cannot read the question: {error}"))
            else:
                self._requests.ask(self._number, inquiry)

    def answer(self, finding: Finding) -> None:
        if self._transport is not None and not self._transport.is_closing():
            payload = _encoder.encode(finding)
            self._transport.write(len(payload).to_bytes(4, "big") + payload)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self._requests.left(self._number)
