"""The coordinator that this agent hosts: a process apart, with its own life.

It is not killed with the agent: when the agent dies, the nodes that are left still need it.
It ends by itself when the job is over, or when no node is left.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import msgspec
from msgspec.structs import replace

from outlast.core.node.commands import Mandate
from outlast.launch import Endpoint
from outlast.system import own_process
from outlast.system.pidfd import exited
from outlast.transport.commission import Commission

log = logging.getLogger("agent")

BACKLOG = 4096
SHORT_LIFE = 1.0  # seconds: a coordinator that dies before cannot do its work
MOST_DEATHS = 12  # of that kind, one after the other


def listen(endpoint: Endpoint, host: bool | None) -> socket.socket | None:
    """A listening socket on the endpoint, or None where another agent has to host, or hosts already.

    `host` True: this node is meant to, even if the endpoint's name does not lead to it (behind a service, say).
    """
    if host is False:
        return None
    addresses = _resolve(endpoint)
    everywhere = (socket.AF_INET, ("0.0.0.0", endpoint.port))
    if addresses and all(family == socket.AF_INET6 for family, _ in addresses):
        everywhere = (socket.AF_INET6, ("::", endpoint.port))  # the others come that way, too
    if not endpoint.loopback and any(ip_address(a.partition("%")[0]).is_loopback for _, (a, _) in addresses):
        addresses = [everywhere]  # our own name: it leads the others to another address than it leads us to
    elif not endpoint.loopback and host:
        addresses.append(everywhere)
    for family, address in addresses:
        try:
            return _listen(family, address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return None
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise ValueError(f"cannot listen on {endpoint}: {error.strerror}; choose another port") from error
    return None


def _resolve(endpoint: Endpoint) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return []  # a name that is not known yet is tried again when connecting
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)  # torch's back ends know IPv4 best
    return [(socket.AddressFamily(family), (str(address[0]), endpoint.port)) for family, _, _, _, address in found]


def _listen(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


class Hosting:
    """The coordinator that this node hosts, kept alive: one that is killed is started again, from its journal.

    The listening socket stays open here all the while: whoever knocks in between waits instead of being refused.
    """

    def __init__(self, *, mandate: Callable[[], Mandate], failed: Callable[[str], None]) -> None:
        self.ended: asyncio.Future[None] | None = None  # done when the coordinator has ended by itself
        self._mandate = mandate
        self._failed = failed
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: socket.socket | None = None
        self._leftovers: list[str] = []
        self._keeping: asyncio.Task[None] | None = None

    @property
    def active(self) -> bool:
        return self._keeping is not None and not self._keeping.done()

    @property
    def pid(self) -> int | None:
        """The coordinator's process, if one runs here."""
        return self._process.pid if self._process is not None and self.active else None

    @property
    def endpoint(self) -> Endpoint:
        """Where this node reaches it."""
        assert self._listener is not None
        address, port = self._listener.getsockname()[:2]
        return Endpoint({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address), port)

    def begin(self, commission: Commission, listener: socket.socket) -> None:
        """Start a coordinator on this socket, and keep it alive."""
        self._listener = listener
        self._leftovers = [commission.record] if commission.keep else [commission.record, commission.journal]
        self._process = _start(commission, listener)
        loop = asyncio.get_running_loop()
        self.ended = loop.create_future()
        self._keeping = loop.create_task(self._keep(commission, listener))

    async def _keep(self, commission: Commission, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        deaths = 0
        while True:
            began = loop.time()
            assert self._process is not None
            assert self.ended is not None
            code = await _end_of(self._process)
            if code == 0:
                listener.close()
                self.ended.set_result(None)
                return
            deaths = deaths + 1 if loop.time() - began < SHORT_LIFE else 1
            how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
            if deaths > MOST_DEATHS:
                listener.close()
                self._failed(f"the coordinator, a process of this node, {how}, {deaths} times in a row")
                return
            log.warning("the coordinator, a process of this node, %s: starting it again", how)
            if deaths > MOST_DEATHS // 2:
                await asyncio.sleep(SHORT_LIFE)
            # What it cannot live with may be in its journal: then what the nodes say has to be enough.
            mandate, recall = self._mandate(), deaths <= MOST_DEATHS // 2
            again = replace(commission, term=mandate.term, charter=mandate.charter, recall=recall)
            while self._process.returncode is not None:
                try:
                    self._process = _start(again, listener)
                except OSError as error:  # out of memory, processes or descriptors: that may pass
                    log.warning("the coordinator cannot be started again yet: %s", error.strerror)
                    await asyncio.sleep(SHORT_LIFE)

    def kill(self) -> None:
        """End it now, if it has not ended by itself."""
        if self._keeping is not None:
            self._keeping.cancel()
        if self._listener is not None:
            self._listener.close()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for path in filter(None, self._leftovers):
            Path(path).unlink(missing_ok=True)


def _start(commission: Commission, listener: socket.socket) -> subprocess.Popen[bytes]:
    """A coordinator process, in a session of its own: Ctrl-C is not for it."""
    process = subprocess.Popen(
        own_process.command("outlast.coordinator.__main__:main"),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=[listener.fileno()],
        start_new_session=True,
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # it was killed at once: how it ended will tell
        process.stdin.write(msgspec.msgpack.encode(commission))
    return process


async def _end_of(process: subprocess.Popen[bytes]) -> int:
    """Its exit code, once it has one."""
    while (code := process.poll()) is None:
        try:
            await exited(process.pid)
        except OSError:
            await asyncio.sleep(SHORT_LIFE)  # no descriptor is free
    return code
