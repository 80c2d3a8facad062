"""Passes observers on to the coordinator, byte by byte: who can reach one node can watch the job.

The proof of the token, and TLS, are between the two ends: what passes here is neither read nor trusted.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress

from outlast.launch import Endpoint

log = logging.getLogger("agent")

MOST = 64  # connections at once
READ = 1 << 16
PATIENCE = 5.0  # seconds for the coordinator to accept


class Relay:
    """Open while this node is connected to a coordinator elsewhere. Made within a running event loop."""

    def __init__(self) -> None:
        self._to: Endpoint | None = None
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def open(self, here: Endpoint, to: Endpoint) -> None:
        """Listen here, for the coordinator there. Where the port is taken, that is somebody else's to do."""
        self.close()
        family = socket.AF_INET6 if ":" in here.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((here.host, here.port))
            listener.listen(MOST)
        except OSError as error:
            log.debug("observers cannot come by %s: %s", here, error.strerror)
            listener.close()
            return
        listener.setblocking(False)
        self._listener, self._to = listener, to
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Free the port: this node may be about to host the coordinator on it."""
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for task in self._tasks:
            task.cancel()

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it is gone again, or no descriptor is free
        if len(self._tasks) >= MOST or self._to is None:
            connection.close()
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._pass_on(connection, self._to))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, near: socket.socket, to: Endpoint) -> None:
        with near, suppress(OSError, asyncio.TimeoutError):
            dialling = asyncio.open_connection(to.host, to.port)
            reader, writer = await asyncio.wait_for(dialling, PATIENCE)
            pumps = [
                asyncio.ensure_future(self._up(near, writer)),
                asyncio.ensure_future(self._down(reader, near)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.wait(pumps)
                writer.close()

    async def _up(self, near: socket.socket, far: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await self._loop.sock_recv(near, READ):
                far.write(data)
                await far.drain()

    async def _down(self, far: asyncio.StreamReader, near: socket.socket) -> None:
        with suppress(OSError):
            while data := await far.read(READ):
                await self._loop.sock_sendall(near, data)
