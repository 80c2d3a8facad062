"""A slot: the memory of one snapshot, sealed by a ticket that says what is in it."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
import xxhash

from outlast.checkpoint.storage.format import CHUNK, Save
from outlast.protocol.fields import UNREADABLE
from outlast.system import private, proc

VERSION = 1
MAGIC = int.from_bytes(b"OLARENA\0", "little")
PAGE = 4096
HEAD = 64 * 1024  # bytes before the data
DIGEST = 16  # bytes of a hash

_MAGIC, _VERSION, _SEAL, _TICKET = range(4)  # words of the head; the ticket follows them
_TICKET_FROM = 64
_POPULATE_READ, _POPULATE_WRITE = 22, 23  # of madvise, since Linux 5.14
_STRIDE = 64 * 1024 * 1024  # bytes made present at a time: so soon ends a thread that is told to

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]  # what a ticket says may come from anywhere


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a slot, and what is to be done with it."""

    save: Save
    rank: Size
    here: Size  # ranks on this node
    saved_at: float
    origin: str  # of the directory: a snapshot of one that was removed since is no snapshot of this one
    directory: str
    keep_last: Size
    durable: bool
    layout: str
    length: Size  # of the data: the shard; then these follow
    table: Size
    contents: Size
    blanks: Size

    @property
    def mark(self) -> tuple[str, int]:
        """Which save it is: the same on all ranks, and no other save's."""
        return self.save.run, self.save.sequence

    @property
    def size(self) -> int:
        return self.length + self.table + self.contents + self.blanks


Mark = tuple[str, int]


class Slot:
    """One snapshot's memory. `path` leads to it from this process, and with an arena's directory from others, too."""

    def __init__(self, path: str, descriptor: int, *, writable: bool = True) -> None:
        self.path = path
        self._descriptor = descriptor
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_COPY  # not _READ: that has no address for ctypes
        size = os.fstat(descriptor).st_size
        if size < HEAD:
            raise ValueError(f"{path} is not a slot")
        self._mapping = mmap.mmap(descriptor, size, access=access)
        self.memory = memoryview(self._mapping)
        self._words = self.memory[:_TICKET_FROM].cast("Q")
        # Also when nobody closes it: as long as it is open, an anonymous file keeps its memory.
        self._close = weakref.finalize(self, os.close, descriptor)
        self._close.atexit = False

    @property
    def data(self) -> memoryview:
        """All of it after the head."""
        return self.memory[HEAD:]

    @property
    def inode(self) -> int:
        return os.fstat(self._descriptor).st_ino

    def begin(self) -> None:
        """From here on, what was in it is no more."""
        self._words[_SEAL] = 0
        self._words[_MAGIC], self._words[_VERSION] = MAGIC, VERSION

    def seal(self, ticket: Ticket) -> None:
        """Say what is in it. The last store is the one that counts."""
        body = msgspec.json.encode(ticket)
        if len(body) > HEAD - _TICKET_FROM:
            raise ValueError(f"the path {ticket.directory[:80]}… is too long for a snapshot's head: give a shorter one")
        self.memory[_TICKET_FROM : _TICKET_FROM + len(body)] = body
        self._words[_TICKET] = len(body)
        self._words[_SEAL] = _hash(body)

    def ticket(self) -> Ticket | None:
        """What is in it; None while that is not sealed, or is not whole."""
        words = self._words
        length = words[_TICKET]
        if words[_MAGIC] != MAGIC or words[_VERSION] != VERSION or not 0 < length <= HEAD - _TICKET_FROM:
            return None
        seal, body = words[_SEAL], bytes(self.memory[_TICKET_FROM : _TICKET_FROM + length])
        if seal == 0 or seal != _hash(body):
            return None
        try:
            ticket = msgspec.json.decode(body, type=Ticket)
        except UNREADABLE:
            return None
        return ticket if ticket.size <= len(self.memory) - HEAD else None

    def parts(self, ticket: Ticket) -> tuple[memoryview, bytes, bytes, bytes]:
        """The shard, its table, and rank 0's contents with their blanks."""
        ends, at = [], 0
        for length in (ticket.length, ticket.table, ticket.contents, ticket.blanks):
            ends.append((at, at + length))
            at += length
        shard, *rest = (self.data[start:end] for start, end in ends)
        table, contents, blanks = map(bytes, rest)
        return shard, table, contents, blanks

    def digests(self, ticket: Ticket) -> memoryview:
        """Of a copy: the hash of each chunk of the data, as it was where it came from."""
        return self.data[ticket.size : ticket.size + DIGEST * chunks(ticket.size)]

    def lock(self, *, shared: bool = False, wait: bool = False) -> bool:
        """Have it to oneself, or together with other readers; whether that was possible."""
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def hold(self, save: Save | Mark, rank: int | None = None) -> Ticket | None:
        """Keep others from overwriting it, if this is what it holds: its ticket; else None, and no lock.

        A worker that has just sealed it has it locked for another moment: that is waited for.
        """
        if _names(self.ticket(), save, rank):
            self.lock(shared=True, wait=True)
            if _names(ticket := self.ticket(), save, rank):
                return ticket
            self.unlock()
        return None

    def unlock(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def populate(self, stop: threading.Event) -> None:
        """Make all of its pages present, so that the first copy is as fast as the others. Not that it must be."""
        for at in range(0, len(self.memory), _STRIDE):
            length = min(_STRIDE, len(self.memory) - at)
            if stop.is_set() or not self._advise(_POPULATE_WRITE, at, length):
                return

    def expect_reading(self, offset: int, length: int) -> None:
        """Map the pages of this part of the data at once, which is faster than one by one. Not that it must be."""
        start = (HEAD + offset) // PAGE * PAGE
        self._advise(_POPULATE_READ, start, HEAD + offset + length - start)

    def _advise(self, what: int, at: int, length: int) -> bool:
        """Not mmap's own: that would keep all threads waiting meanwhile."""
        try:
            start = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        except ValueError:
            return False  # it is closed
        return int(_libc.madvise(start + at, length, what)) == 0

    def there(self) -> bool:
        """Whether its path still leads to it."""
        with suppress(OSError):
            return os.stat(self.path).st_ino == self.inode  # noqa: PTH116  (a string: it may be of /proc)
        return False

    def close(self) -> None:
        """Let go of it. Memory that torch still looks at stays until torch lets go."""
        self.unlock()  # the lock is the mapping's, too
        self._words.release()
        with suppress(BufferError):
            self.memory.release()
            self._mapping.close()
        self._close()


def _names(ticket: Ticket | None, save: Save | Mark, rank: int | None) -> bool:
    """Whether it is of this save, and of this rank."""
    if ticket is None or rank not in (None, ticket.rank):
        return False
    return save in (ticket.save, ticket.mark)


def chunks(size: int) -> int:
    """How many hashes there are for so many bytes.

    >>> chunks(0), chunks(1), chunks(CHUNK + 1)
    (0, 1, 2)
    """
    return -(-size // CHUNK)


def open_slot(path: str | Path, *, writable: bool = False) -> Slot:
    """A slot that another made. Raises OSError, or ValueError for something else that lies there."""
    flags = os.O_RDWR if writable else os.O_RDONLY
    anonymous = proc.is_descriptor_path(str(path))
    descriptor = os.open(path, flags | os.O_CLOEXEC) if anonymous else private.open_file(Path(path), flags)
    try:
        return Slot(str(path), descriptor, writable=writable)
    except BaseException:
        os.close(descriptor)
        raise


def _hash(body: bytes) -> int:
    return xxhash.xxh3_64_intdigest(body) or 1  # 0 is "not sealed"
