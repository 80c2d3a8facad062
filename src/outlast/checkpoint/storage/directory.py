"""Checkpoints in a directory of a file system.

Large files are written past the page cache (O_DIRECT) where the file system can do that, and flushed. A draft becomes a
checkpoint by one rename, never into a directory that exists; and goes by one, too. Who reads a checkpoint has its
manifest locked, so that nobody removes it meanwhile.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path

from outlast.checkpoint.storage import format as rules
from outlast.checkpoint.storage.format import MANIFEST, Save
from outlast.checkpoint.storage.storage import Draft, FoundCheckpoint, Span

MARKER_PAUSES = (0.1, 0.4, 1.0, 2.0)  # seconds: a file system may need a moment to show a file on another node

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


class Directory:
    """A directory, as `Storage`. It need not be there."""

    stale = 3600.0

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def ranges(self, name: str, spans: Sequence[Span]) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(max((length for _, length in spans), default=0)))
        with open(self._path / name, "rb", buffering=0) as file:
            for offset, length in spans:
                yield buffer[: _fill(file.fileno(), buffer[:length], offset)]

    def mapped(self, name: str) -> memoryview:
        with open(self._path / name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b"")

    def sizes(self, folder: str) -> dict[str, int]:
        # By descriptor: the folder may be renamed meanwhile, and files that are not whole yet come and go.
        descriptor, found = os.open(self._path / folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), {}
        try:
            for name in os.listdir(descriptor):  # noqa: PTH208
                with suppress(FileNotFoundError):
                    found[name] = os.stat(name, dir_fd=descriptor).st_size
        finally:
            os.close(descriptor)
        return found

    def write(self, name: str, data: bytes | memoryview) -> None:
        path = self._path / name
        self._written(path, data).rename(path)
        _sync(path.parent)

    def create(self, name: str, data: bytes | memoryview) -> bool:
        self._path.mkdir(parents=True, exist_ok=True)
        path = self._path / name
        draft = self._written(path, data)
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            draft.rename(path)
        finally:
            draft.unlink(missing_ok=True)
        _sync(path.parent)
        return True

    def stream(self, name: str, size: int, chunks: Iterable[memoryview]) -> None:
        path = self._path / name
        descriptor, direct = _open(path)
        try:
            _reserve(descriptor, size)
            at = 0
            for chunk in chunks:
                try:
                    _write_all(descriptor, chunk, at)
                except OSError as error:
                    if not direct or error.errno != errno.EINVAL:
                        raise
                    direct = False
                    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT)
                    _write_all(descriptor, chunk, at)
                at += len(chunk)
            os.fsync(descriptor)
        except OSError as error:
            error.filename = str(path)
            raise
        finally:
            os.close(descriptor)

    def draft(self, save: Save) -> str:
        return rules.draft_name(save)

    def begin(self, folder: str) -> None:
        (self._path / folder).mkdir(parents=True, exist_ok=True)
        _sync(self._path)

    def publish(self, folder: str, step: int, manifest: bytes) -> str:
        self.write(f"{folder}/{MANIFEST}", manifest)
        number = max((each.number for each in self.found() if each.step == step), default=0) + 1
        while True:
            final = rules.final_name(step, number)
            try:
                (self._path / folder).rename(self._path / final)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                number += 1  # another job was there first
            else:
                _sync(self._path)
                return final

    def discard(self, folder: str, names: Iterable[str]) -> None:
        path = self._path / folder
        for name in names:
            with suppress(OSError):
                (path / name).unlink()
        with suppress(OSError):
            for entry in path.glob(".*.tmp"):
                entry.unlink()
            path.rmdir()

    def found(self) -> list[FoundCheckpoint]:
        try:
            names = os.listdir(self._path)  # noqa: PTH208  (names are all that is asked for)
        except FileNotFoundError:
            return []
        matches = [(name, rules.FINAL.fullmatch(name)) for name in names]
        return [
            FoundCheckpoint(self._path / name, int(match[1]), int(match[2] or 1)) for name, match in matches if match
        ]

    def drafts(self) -> list[Draft]:
        matches = [(entry, rules.DRAFT.fullmatch(entry.name)) for entry in self._path.iterdir()]
        found = []
        for entry, match in matches:
            with suppress(OSError):
                if match:
                    found.append(Draft(entry.name, match[3], int(match[4]), touched(entry), int(match[2])))
        return found

    @contextmanager
    def hold(self, folder: str) -> Iterator[None]:
        with open(self._path / folder / MANIFEST, "rb") as manifest:
            if not _try_lock(manifest.fileno(), fcntl.LOCK_SH):
                raise FileNotFoundError(errno.ENOENT, "another process is removing it", str(self._path / folder))
            yield

    def remove(self, folder: str) -> bool:
        path = self._path / folder
        with ExitStack() as held:
            with suppress(FileNotFoundError):
                if not _try_lock(held.enter_context(_open_to_lock(path / MANIFEST)).fileno(), fcntl.LOCK_EX):
                    return False
            trash = path.with_name(f".trash-{path.name}-{secrets.token_hex(8)}")
            path.rename(trash)
        shutil.rmtree(trash)
        return True

    def sweep(self) -> None:
        for trash in self._path.glob(".trash-*"):
            shutil.rmtree(trash, ignore_errors=True)
        for marker in self._path.glob(".shared-*"):
            with suppress(OSError):
                if time.time() - marker.stat().st_mtime > self.stale:
                    marker.unlink()

    def _written(self, path: Path, data: bytes | memoryview) -> Path:
        """A file beside the one that is meant: two may write the same, on two hosts."""
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            with open(draft, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        return draft


def _sync(path: Path) -> None:
    """Have the names in a directory survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def touched(path: Path) -> float:
    """When a directory, or what lies in it, was last written to. Raises OSError."""
    return max(entry.stat().st_mtime for entry in [path, *path.iterdir()])


def _open_to_lock(path: Path) -> FileIO:
    """Writable, if that is allowed: over NFS, an exclusive lock needs it."""
    try:
        return FileIO(path, "r+")
    except PermissionError:
        return FileIO(path, "r")


def _try_lock(descriptor: int, kind: int) -> bool:
    """Lock it, or say that somebody else has. A file system without locks (Lustre, unless mounted with -o flock) has
    nobody who could: what is there must be readable and removable all the same.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL, errno.EBADF):
            raise
    return True


def leave_marker(path: Path) -> str:
    """Leave a file in a directory that whoever shares it can see: its name. Raises OSError."""
    path.mkdir(parents=True, exist_ok=True)
    name = f".shared-{secrets.token_hex(8)}"
    (path / name).touch(exist_ok=False)
    return name


def sees_marker(path: Path, name: str) -> bool:
    """Whether it is there. Asked by listing: NFS may remember that a name was not there, but reads the list afresh."""
    for pause in (*MARKER_PAUSES, 0.0):
        with suppress(OSError):
            if name in os.listdir(path):  # noqa: PTH208  (names are all that is asked for)
                return True
        time.sleep(pause)
    return False


def _open(path: Path) -> tuple[int, bool]:
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o644), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o644), False


def _reserve(descriptor: int, size: int) -> None:
    """Know early that the disk is full. Not posix_fallocate: where a file system cannot, that one writes it all."""
    if size and _libc.fallocate(descriptor, 0, 0, size) != 0:
        code = ctypes.get_errno()
        if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(code, os.strerror(code))


def _write_all(descriptor: int, data: memoryview, at: int) -> None:
    while data:
        done = os.pwrite(descriptor, data, at)
        data, at = data[done:], at + done


def _fill(descriptor: int, buffer: memoryview, at: int) -> int:
    """Read until the buffer is full, or the file ends."""
    done = 0
    while done < len(buffer):
        count = os.preadv(descriptor, [buffer[done:]], at + done)
        if count == 0:
            break
        done += count
    return done
