"""Files for this user alone, in directories that everybody can write to: /dev/shm and the temporary directory.

A name in such a place proves nothing: another user may have made it first, as a directory of theirs or as a link to a
file of ours. So a directory is opened once, without following links, and its owner and mode are checked on the
descriptor; files in it are opened relative to that descriptor. No open here follows a link or waits for a FIFO.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def make_directory(path: Path) -> None:
    """Make a directory that only this user can use, if it is not there. Raises PermissionError if it is another's."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    with opened(path):
        pass


def is_directory(path: Path) -> bool:
    """Whether it is there, and only this user can use it."""
    try:
        with opened(path):
            return True
    except OSError:
        return False


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """The descriptor of such a directory. Raises PermissionError for anything else that has its name."""
    try:
        descriptor = os.open(path, _DIRECTORY)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise _not_ours(path, "it is not a directory") from error
        raise
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise _not_ours(path, f"it belongs to user {status.st_uid}")
        if status.st_mode & 0o077:
            raise _not_ours(path, f"others can use it: its mode is {stat.S_IMODE(status.st_mode):04o}")
        yield descriptor
    finally:
        os.close(descriptor)


def names(path: Path) -> list[str]:
    """The sorted names in such a directory; none if it is not there, or not ours."""
    with suppress(FileNotFoundError, PermissionError), opened(path) as directory:
        return sorted(os.listdir(directory))  # noqa: PTH208  (a descriptor)
    return []


def open_file(path: Path, flags: int, *, fifo: bool = False) -> int:
    """The descriptor of a file of ours in such a directory. Raises OSError, also if it is of another kind."""
    with opened(path.parent) as directory:
        descriptor = os.open(path.name, flags | _FILE, 0o600, dir_fd=directory)
    status = os.fstat(descriptor)
    is_kind = stat.S_ISFIFO if fifo else stat.S_ISREG
    if status.st_uid != os.geteuid() or not is_kind(status.st_mode):
        os.close(descriptor)
        raise _not_ours(path, f"it is no {'FIFO' if fifo else 'regular file'} of this user")
    return descriptor


def make_fifo(path: Path) -> int:
    """Make a FIFO in such a directory, in place of what has its name, and open both of its ends."""
    with opened(path.parent) as directory:
        with suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=directory)
        os.mkfifo(path.name, 0o600, dir_fd=directory)
    return open_file(path, os.O_RDWR, fifo=True)


def create(path: Path) -> int:
    """A new file in such a directory, in place of what has its name."""
    with opened(path.parent) as directory:
        with suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=directory)
        return os.open(path.name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=directory)


def read(path: Path) -> bytes:
    """What is in a file of such a directory."""
    with open(open_file(path, os.O_RDONLY), "rb") as file:
        return file.read()


def write(path: Path, data: bytes, *, replace: bool = True) -> None:
    """Write a file of such a directory at once: others see nothing of it, or all. Without `replace`, the first wins."""
    with opened(path.parent) as directory:
        draft = f"{path.name}.{secrets.token_hex(8)}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=directory)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
            if replace:
                os.rename(draft, path.name, src_dir_fd=directory, dst_dir_fd=directory)
            else:
                with suppress(FileExistsError):
                    os.link(draft, path.name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=directory)


def _not_ours(path: Path, why: str) -> PermissionError:
    return PermissionError(errno.EPERM, f"is not a private directory or file of yours: {why}", str(path))
