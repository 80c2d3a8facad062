"""The TCP sockets of this process, whoever made them: Python, or a library in C++."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import NamedTuple

from outlast.system import proc

MAPPED = "::ffff:"  # before an IPv4 address on a socket that speaks IPv6


class SocketEnd(NamedTuple):
    """One end of a connection."""

    host: str
    port: int


class TcpSocket(NamedTuple):
    """One of them, as it was when it was looked at."""

    descriptor: int
    inode: str  # tells it from a later one with the same descriptor
    listens: bool
    local: SocketEnd
    remote: SocketEnd | None  # None: it is not connected


def own_tcp_sockets() -> list[TcpSocket]:
    """All TCP sockets that this process has open."""
    found = (_look(path, name) for path, name in proc.open_files(proc.SELF) if name.startswith("socket:"))
    return [each for each in found if each is not None]


def shut_down(which: TcpSocket) -> None:
    """End the connection, also for a thread that waits on it in C. The descriptor stays open, and its owner's."""
    with suppress(OSError), _copy(which.descriptor) as copy:  # unless it has ended by itself
        if _inode(copy) == which.inode:
            copy.shutdown(socket.SHUT_RDWR)


def endpoint(address: tuple[str | int, ...]) -> SocketEnd:
    """An address as Python gives it, the same for IPv4 on a socket of either kind.

    >>> endpoint(("::ffff:127.0.0.1", 80, 0, 0)) == endpoint(("127.0.0.1", 80))
    True
    """
    host, port = str(address[0]).partition("%")[0], int(address[1])
    return SocketEnd(host.removeprefix(MAPPED), port)


def _look(path: str, name: str) -> TcpSocket | None:
    descriptor = int(path.rpartition("/")[2])
    try:
        with _copy(descriptor) as copy:
            if copy.family not in (socket.AF_INET, socket.AF_INET6) or copy.type != socket.SOCK_STREAM:
                return None
            if _inode(copy) != name:
                return None  # closed since, and the number given away
            listens = bool(copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
            return TcpSocket(descriptor, name, listens, endpoint(copy.getsockname()), _remote(copy))
    except OSError:
        return None  # closed since


def _copy(descriptor: int) -> socket.socket:
    blocking, copy = os.get_blocking(descriptor), os.dup(descriptor)
    try:
        found = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    if socket.getdefaulttimeout() is not None:  # with which Python has just made it non-blocking, for its owner as well
        os.set_blocking(copy, blocking)
    return found


def _inode(copy: socket.socket) -> str:
    return f"socket:[{os.fstat(copy.fileno()).st_ino}]"


def _remote(copy: socket.socket) -> SocketEnd | None:
    try:
        return endpoint(copy.getpeername())
    except OSError:
        return None
