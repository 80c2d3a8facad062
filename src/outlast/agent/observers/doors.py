"""The doors of one agent: where observers learn of its job, or are passed on to whoever coordinates it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence

from outlast.agent.observers.relay import Relay
from outlast.launch import Endpoint, Launch
from outlast.settings.settings import Settings
from outlast.transport import local_jobs
from outlast.transport.local_jobs import LocalJob
from outlast.transport.wire import observer_token

log = logging.getLogger("agent")

HIGHEST_PORT = 65535


class Doors:
    """Opened when the agent starts. `places`: where the coordinator is or may be, the present one first."""

    def __init__(
        self,
        launch: Launch,
        settings: Settings,
        *,
        node: str,
        logs: str,
        places: Callable[[], Sequence[Endpoint]],
        token: Callable[[], str | None],
    ) -> None:
        self._launch = launch
        self._settings = settings
        self._node = node
        self._logs = logs
        self._places = places
        self._token = token
        self._relay = Relay()
        self._listener: socket.socket | None = None

    def open(self) -> None:
        """Tell this user's other processes of the job."""
        try:
            self._listener = local_jobs.listen()
        except OSError as error:
            log.debug("commands on this machine will not find the job by themselves: %s", error.strerror)
            return
        listener = self._listener
        asyncio.get_running_loop().add_reader(listener, lambda: local_jobs.answer(listener, self._record()))

    def connected(self, here: str, to: Endpoint | None) -> None:
        """This node, which has that address, is connected to the coordinator there."""
        endpoint = self._launch.endpoint
        if to is not None and 0 < endpoint.port < HIGHEST_PORT and not endpoint.loopback and here != to.host:
            self._relay.open(Endpoint(here, endpoint.port).relay, to)

    def disconnected(self) -> None:
        """There is nobody to pass anybody on to."""
        self._relay.close()

    def close(self) -> None:
        self._relay.close()
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()

    def _record(self) -> LocalJob:
        s = self._settings
        token = self._token() or ""
        return LocalJob(
            job=self._launch.job,
            node=self._node,
            pid=os.getpid(),
            places=tuple(self._places()),
            token=observer_token(token) if token and s.token else token,
            tls=s.tls,
            tls_ca=s.tls_ca,
            logs=self._logs,
        )
