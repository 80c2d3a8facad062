"""The coordinator that this agent hosts, if the endpoint is its own: a process apart, with its own life.

It is not killed with the agent: when the agent dies, the nodes that are left still need it.
It ends by itself when the job is over, or when no node is left.
"""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
from ipaddress import ip_address

import msgspec

from outlast.agent.pidfd import exited
from outlast.commission import Commission
from outlast.launch import Endpoint

BACKLOG = 4096
# Not -m: that looks for every module in the current directory first, where anybody may have put one.
COORDINATOR = "import sys; del sys.path[0]; from outlast.coordinator.__main__ import main; sys.exit(main())"


def listen(endpoint: Endpoint, host: bool | None) -> socket.socket | None:
    """A listening socket on the endpoint, or None where another agent has to host, or hosts already.

    `host` True: this node is meant to, even if the endpoint's name does not lead to it (behind a service, say).
    """
    if host is False:
        return None
    addresses = _resolve(endpoint)
    everywhere = (socket.AF_INET, ("0.0.0.0", endpoint.port))
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


class HostedCoordinator:
    """A coordinator process started by this agent."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @classmethod
    def start(cls, commission: Commission) -> HostedCoordinator:
        """Start it with the listening socket of the commission, in a session of its own: Ctrl-C is not for it."""
        process = subprocess.Popen(
            [sys.executable, "-c", COORDINATOR],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[commission.listener],
            start_new_session=True,
        )
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(msgspec.msgpack.encode(commission))
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        await exited(self._process.pid)
        return self._process.wait()

    def kill(self) -> None:
        """End it, if it has not ended by itself."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
