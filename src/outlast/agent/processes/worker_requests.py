"""Where workers ask: a socket of the agent's, for questions that need an answer of the coordinator.

    worker   length (4 bytes) · MessagePack of `ShardQuestion`   →
             ←   length · MessagePack of a finding           agent

One question at a time on a connection; a worker has as many as it has threads that ask. The socket has no file (its
name is in the kernel's own space), so nothing is left of it; the name cannot be guessed, and other users are refused.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import struct
from collections.abc import Callable

import msgspec

from outlast.core.data_shards.holdings import Memo
from outlast.log import Sparing
from outlast.protocol.shards import Finding, Gone, Hands, Query, ShardQuestion, Told, Unanswerable

sparing = Sparing(logging.getLogger("agent"))

LONGEST = 1 << 19  # bytes of a question: it has to fit into a message to the coordinator
_decoder = msgspec.msgpack.Decoder(ShardQuestion)
_encoder = msgspec.msgpack.Encoder()


class WorkerRequests:
    """The agent's side. `send` tells the coordinator, if there is one; what it does not hear is sent again.

    desk = Desk(link.send)
    await desk.open()
    desk.address  # for the environment of the workers
    """

    def __init__(self, send: Callable[[Query], None]) -> None:
        self.address = f"outlast-{secrets.token_hex(16)}"
        self._send = send
        self._memo = Memo()
        self._server: asyncio.Server | None = None
        self.visitors: set[Visitor] = set()
        self._waiting: dict[int, Visitor] = {}  # by ticket

    async def open(self) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.bind(f"\0{self.address}")
        self._server = await asyncio.get_running_loop().create_unix_server(lambda: Visitor(self), sock=listener)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for visitor in list(self.visitors):
            visitor.abort()

    def begin(self, generation: int, first_rank: int, ranks: int) -> None:
        """The workers of a new generation are about to start."""
        self._memo.begin(generation, first_rank, ranks)
        self._waiting.clear()

    def ask(self, visitor: Visitor, inquiry: ShardQuestion) -> None:
        if inquiry.generation != self._memo.generation or inquiry.rank not in self._memo.ranks:
            visitor.answer(Unanswerable(f"this is no rank of generation {self._memo.generation}"))
            return
        query = self._memo.ask(inquiry.rank, inquiry.question)
        visitor.ticket = query.ticket
        self._waiting[query.ticket] = visitor
        self._send(query)

    def left(self, visitor: Visitor) -> None:
        """It waits for no answer any more. That is remembered all the same, for the coordinator has acted on it."""
        self.visitors.discard(visitor)
        self._waiting.pop(visitor.ticket, None)

    def exited(self, rank: int) -> None:
        """A worker has exited, and has not failed: the others may go on without it."""
        if self._memo.asked:
            self._send(self._memo.ask(rank, Gone()))

    def told(self, told: Told) -> None:
        """The coordinator has answered."""
        finding = self._memo.hear(told)
        if finding is not None and (visitor := self._waiting.pop(told.ticket, None)) is not None:
            visitor.answer(finding)

    def statement(self) -> Hands | None:
        """What the coordinator has to know from the first, for `Join`."""
        return self._memo.statement()

    def repeat(self) -> None:
        """Another coordinator, or another connection: ask all that has no answer."""
        for query in self._memo.waiting:
            self._send(query)


class Visitor(asyncio.Protocol):
    """One connection of a worker."""

    def __init__(self, desk: WorkerRequests) -> None:
        self.ticket = 0
        self._desk = desk
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._desk.visitors.add(self)
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
            except (msgspec.DecodeError, RecursionError) as error:
                self.answer(Unanswerable(f"the agent cannot read the question: {error}"))
            else:
                self._desk.ask(self, inquiry)

    def answer(self, finding: Finding) -> None:
        self.ticket = 0
        if self._transport is not None and not self._transport.is_closing():
            payload = _encoder.encode(finding)
            self._transport.write(len(payload).to_bytes(4, "big") + payload)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self._desk.left(self)
