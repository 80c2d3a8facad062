"""Accepts connections, and keeps those that have not proved themselves from taking all descriptors and memory.

Not asyncio's own server: that hides connections during the TLS handshake, for a minute each, and lets in any number.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from outlast.log import Sparing
from outlast.transport.unproved import HANDSHAKE, PAUSE, Unproved

AT_ONCE = 128  # connections accepted before others are served
BACKLOG = 4096  # the whole of a large job may knock at the same moment
MOST = 1024  # that have not proved themselves
MOST_WITH_TLS = 256  # each takes 300 KB

Peer = TypeVar("Peer", bound=asyncio.BaseProtocol)

log = Sparing(logging.getLogger("coordinator"))


class Door(Generic[Peer]):
    """Where a coordinator listens. `peer` makes the protocol of a new connection.

    door = Door(listener, lambda: Peer(server), tls=None)
    door.proved(peer)  # it is no stranger any more
    door.gone(peer)
    """

    def __init__(self, listener: socket.socket, peer: Callable[[], Peer], *, tls: ssl.SSLContext | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._peer = peer
        self._tls = tls
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._unproved: Unproved[Peer] = Unproved(min(MOST_WITH_TLS if tls is not None else MOST, limit // 2))
        self._sockets: dict[Peer, socket.socket] = {}
        self._admitting: set[asyncio.Task[None]] = set()
        self._paused: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._loop.add_reader(listener, self._accept)

    def proved(self, peer: Peer) -> None:
        self._unproved.discard(peer)
        self._sockets.pop(peer, None)

    gone = proved

    def close(self) -> None:
        self._loop.remove_reader(self._listener)
        if self._paused is not None:
            self._paused.cancel()
        for task in self._admitting:
            task.cancel()
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            if self._unproved.full:
                self._pause()
                return
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors, or what the network says of one that is gone already
                log.warning("a connection cannot be accepted: %s", error.strerror)
                self._pause()
                return
            self._admit(connection, address[0])

    def _admit(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)
        peer = self._peer()
        self._sockets[peer] = connection
        self._unproved.add(peer, address, self._loop.time())
        task = self._loop.create_task(self._connect(peer, connection, address))
        self._admitting.add(task)
        task.add_done_callback(self._admitting.discard)

    async def _connect(self, peer: Peer, connection: socket.socket, address: str) -> None:
        limit = HANDSHAKE if self._tls is not None else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: peer, connection, ssl=self._tls, ssl_handshake_timeout=limit
            )
        except OSError as error:  # ssl's errors are such, too
            log.warning("closed the connection from %s: %s", address, error)
            self.gone(peer)
            connection.close()

    def _pause(self) -> None:
        self._loop.remove_reader(self._listener)
        self._paused = self._loop.call_later(PAUSE, self._resume)

    def _resume(self) -> None:
        # By a timer, which runs after all that has arrived was read: nobody is closed who has just proved itself.
        self._paused = None
        while (peer := self._unproved.in_the_way(self._loop.time())) is not None:
            connection = self._sockets[peer]
            self.gone(peer)
            log.warning("closed a connection that has not proved that it knows the token: there are too many such")
            with suppress(OSError):  # it is closed already
                connection.shutdown(socket.SHUT_RDWR)
        self._loop.add_reader(self._listener, self._accept)
