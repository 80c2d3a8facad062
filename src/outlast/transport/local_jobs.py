"""Jobs that run on this machine, told by their agents to other processes of the same user.

Each agent listens on a socket in Linux' abstract namespace: it is gone with the process, however that ends, and the
kernel says which user is at the other end.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress

import msgspec

from outlast.launch import Endpoint
from outlast.protocol.fields import UNREADABLE
from outlast.system import proc

TIMEOUT = 1.0  # seconds for an agent to answer: one that is stopped does not
LONGEST = 1 << 16  # bytes of what an agent tells


class LocalJob(msgspec.Struct, frozen=True):
    """What an agent tells of its job."""

    job: str
    node: str
    pid: int
    places: tuple[Endpoint, ...]  # where the coordinator is, or may be, the present one first
    token: str  # one that may observe; the job's own, if the user has given none
    tls: bool = False
    tls_ca: str = ""
    logs: str = ""  # the directory of its workers' logs


def listen() -> socket.socket:
    """Where this process tells of its job."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"\0{_prefix()}{os.getpid()}-{os.urandom(4).hex()}")
        listener.listen(16)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def answer(listener: socket.socket, record: LocalJob) -> None:
    """Tell whoever has connected, if it is the same user or root; waits for nobody."""
    try:
        connection, _ = listener.accept()
    except OSError:
        return  # it is gone again
    with connection, suppress(OSError):
        if _user_of(connection) in (os.getuid(), 0):
            connection.setblocking(False)
            connection.send(msgspec.json.encode(record))


def local_jobs() -> list[LocalJob]:
    """The jobs of this user that have an agent on this machine, one entry for each agent."""
    found = []
    for name in proc.abstract_sockets(_prefix()):
        with suppress(OSError, *UNREADABLE):  # it has just ended, is stopped, or is another's
            found.append(_ask(name))
    return sorted(found, key=lambda each: (each.job, each.node))


def _ask(name: str) -> LocalJob:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT)
        connection.connect(f"\0{name}")
        if _user_of(connection) != os.getuid():
            raise PermissionError(f"{name} is another user's")
        data = bytearray()
        while (part := connection.recv(LONGEST)) and len(data) < LONGEST:
            data += part
    return msgspec.json.decode(data, type=LocalJob)


def _prefix() -> str:
    return f"outlast-{os.getuid()}-"


def _user_of(connection: socket.socket) -> int:
    """The user at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", credentials)[1]
    return user
