"""A node's name is a place that one living agent holds: who comes to it later comes after the earlier one's end.

The hold is a lock that the kernel releases when the agent dies, however it dies. All places of a user are bytes of one
file, far beyond its end: a lock needs a number, not a file of its own. So nothing has to be removed, not even after
kill -9, and no two agents can race for a file that a third one is just removing.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import logging
import os
import struct
from collections.abc import Iterable

from outlast.system import clock, private, proc
from outlast.transport import token

log = logging.getLogger("agent")

FILE = "places"  # in the private directory; empty, and never removed
_FLOCK = "hhqqi0q"  # struct flock, with the padding at its end: type, whence, start, length, pid


class Place:
    """A name in a job, and the hold on it, until `close` or the end of this process.

    `key` says which lock it is: two agents with the same key had the place one after the other, and the earlier one
    has ended, or has let go of it. The same name without the same key proves nothing: it may be another machine's.
    """

    def __init__(self, name: str, key: str = "", descriptor: int | None = None) -> None:
        self.name = name
        self.key = key
        self.since = clock.now()  # later than all who had it before: the key is of one machine, and one boot of it
        self._descriptor = descriptor

    def __repr__(self) -> str:
        return f"<Place {self.name!r}{' held' if self.held else ''}>"

    @property
    def held(self) -> bool:
        """Whether nobody else can have it now."""
        return self._descriptor is not None

    def close(self) -> None:
        """Let go of it, for another agent to take."""
        if self._descriptor is not None:
            # Not closed alone: a child that has not come as far as its exec still has a copy.
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
            os.close(self._descriptor)
            self._descriptor = None


def hold(job: str, name: str, *, given: bool) -> Place:
    """Take the place of this name in the job, on this machine.

    Where another living agent has it, take `name.2`, `name.3`, …; but if the user has `given` the name, raise
    ValueError. Where nothing can be locked (no temporary directory to write to), it is the plain name, not held.

        place = hold("my-job", socket.gethostname(), given=False)
        place.name  # 'gpu-07', or 'gpu-07.2' for a second agent on this machine
    """
    try:
        descriptor = _open()
    except OSError as error:
        return _not_held(name, error)
    try:
        ground = _ground(descriptor)
        for candidate in [name] if given else _numbered(name):
            digest = hashlib.sha256("\0".join([*ground, job, candidate]).encode(errors="surrogateescape"))
            key = digest.hexdigest()[:32]
            if _lock(descriptor, _byte(key)):
                place = Place(candidate, key, descriptor)
                descriptor = -1
                return place
    except OSError as error:
        return _not_held(name, error)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    raise ValueError(
        f"node name {name!r} is taken: another agent of job {job} runs under it on this machine; "
        "give this one another --ft-node-name, or none"
    )


def taken(key: str) -> bool:
    """Whether a living agent has the place of this key. Asks only: the place stays as it is."""
    try:
        descriptor = _open()
    except OSError:
        return False
    try:
        request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _byte(key), 1, 0)
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, request)
        kind: int = struct.unpack(_FLOCK, answer)[0]
        return kind != fcntl.F_UNLCK
    finally:
        os.close(descriptor)


def _byte(key: str) -> int:
    return int(key[:16], 16) >> 2


def _not_held(name: str, error: OSError) -> Place:
    log.debug("the name %s cannot be held on this machine: %s", name, error)
    return Place(name)


def _open() -> int:
    return private.open_file(token._directory() / FILE, os.O_RDWR | os.O_CREAT)


def _ground(descriptor: int) -> list[str]:
    """What the names are names in: this boot, this network namespace, this very file.

    The file, because there may be another: agents with another TMPDIR, or after somebody has cleaned it up. The boot,
    because the directory may be on a file server, and the first network namespace has the same number everywhere.
    """
    status = os.fstat(descriptor)
    return [proc.boot_id(), str(token._here()), f"{status.st_dev}:{status.st_ino}"]


def _numbered(name: str) -> Iterable[str]:
    return itertools.chain([name], (f"{name}.{number}" for number in itertools.count(2)))


def _lock(descriptor: int, at: int) -> bool:
    """Lock one byte, unless somebody has it.

    A lock of the open file, not of the process (lockf): that one is lost when anybody in the process closes the file.
    """
    request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)
    except (BlockingIOError, PermissionError):  # the two ways in which a kernel may say that it is taken
        return False
    return True
