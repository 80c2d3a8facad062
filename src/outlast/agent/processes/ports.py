"""The port of a generation's store, held from the moment it is promised until rank 0 listens on it."""

from __future__ import annotations

import errno
import socket
from collections import deque
from collections.abc import Iterator

from outlast.system.ports import holder_of

# A worker of an old generation that is slow to die must not meet the new generation's store.
_recent: deque[int] = deque(maxlen=64)

_TAKEN = (errno.EADDRINUSE, errno.EACCES)


class StorePort:
    """A TCP port that nobody else gets, and that torch's TCPStore can still listen on.

    The socket is bound with SO_REUSEADDR and never listens. The kernel hands its port to nobody else, but lets
    another socket with SO_REUSEADDR, as torch's is, bind and listen beside it. `store_ports` "a-b" keeps to
    that range (for firewalls); "" takes any free port. `chosen` is the one port that the user wants. Raises ValueError
    for a range that is none, and OSError when no port is left.
    """

    def __init__(self, store_ports: str = "", chosen: int = 0) -> None:
        self._claim: socket.socket | None = None
        if chosen:
            self._socket = _reserve(chosen)
        elif store_ports:
            self._socket, self._claim = _reserve_in(_port_range(store_ports), store_ports)
        else:
            self._socket = _reserve_any()
        self.port: int = self._socket.getsockname()[1]
        if self.port in _recent:
            _recent.remove(self.port)
        _recent.append(self.port)

    def release(self) -> None:
        """Let the port go. May be called again."""
        self._socket.close()
        if self._claim is not None:
            self._claim.close()


class StorePorts:
    """The port that a node has promised for the next store, and the one that it has in use.

    A `chosen` one is both, for all generations.
    """

    def __init__(self, store_ports: str = "", chosen: int = 0) -> None:
        self._store_ports = store_ports
        self._chosen = chosen
        self._next = StorePort(store_ports, chosen)
        self._used: StorePort | None = None

    @property
    def promised(self) -> int:
        return self._next.port

    def take(self) -> None:
        """Use the one that was promised, and promise another."""
        if self._chosen:
            return
        self.release()
        self._used, self._next = self._next, StorePort(self._store_ports)

    def release(self) -> None:
        """Let go of the one in use, if any."""
        if self._used is not None:
            self._used.release()
            self._used = None

    def close(self) -> None:
        self.release()
        self._next.release()


def _port_range(text: str) -> range:
    first, dash, last = text.partition("-")
    if first.strip().isdecimal() and (last if dash else first).strip().isdecimal():
        ports = range(int(first), int(last if dash else first) + 1)
        if ports and ports[0] > 0 and ports[-1] < 65536:
            return ports
    raise ValueError(f"store_ports {text!r} is not a range of ports: write first-last, such as 29500-29599")


def _reserve(port: int) -> socket.socket:
    try:
        return _bind(port)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        holder = holder_of(port)
        by = f"held by {holder}" if holder is not None else f"not free ({error.strerror})"
        raise OSError(f"--master-port {port} is {by}: choose another") from error


def _reserve_any() -> socket.socket:
    refused: list[socket.socket] = []
    try:
        while True:
            reserved = _bind(0)
            if reserved.getsockname()[1] not in _recent:
                return reserved
            refused.append(reserved)  # held meanwhile, so that the kernel offers another one
    finally:
        for held in refused:
            held.close()


def _reserve_in(ports: range, text: str) -> tuple[socket.socket, socket.socket]:
    for port in _longest_unused(ports):
        claim = _claim(port)
        if claim is None:
            continue
        try:
            return _bind(port), claim
        except OSError as error:
            claim.close()
            if error.errno not in _TAKEN:
                raise
    raise OSError(f"no free port for the store in store_ports {text}: widen the range, or end what uses it")


def _longest_unused(ports: range) -> Iterator[int]:
    yield from (port for port in ports if port not in _recent)
    yield from (port for port in tuple(_recent) if port in ports)


def _claim(port: int) -> socket.socket | None:
    """Shut out the other agents of this machine, None when one of them holds the port.

    They too bind with SO_REUSEADDR, so that the TCP port alone would go to both. Abstract unix names have the
    same scope as ports, the network namespace, and vanish with their process.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0outlast-store-port-{port}")
    except OSError as error:
        claim.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return claim


def _bind(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return _bound(socket.AF_INET6, "::", port)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    return _bound(socket.AF_INET, "0.0.0.0", port)


def _bound(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    reserved = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family is socket.AF_INET6:
            reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, port))
    except OSError:
        reserved.close()
        raise
    return reserved
