"""The arena: shared memory in which a worker leaves its state, for the next worker and for whoever writes it to disk.

    arena = Arena(*address(os.environ["OUTLAST_ARENA"]))
    with arena.take(size, keep={newest}) as slot:    # one that may be overwritten, and is nobody else's meanwhile
        slot.data[:] = …
        slot.seal(ticket)

A slot is a file. It holds, after its head, the very bytes of a shard as it will be on disk. Two slots are enough, so
that a kill at any instant leaves the one that was sealed before; more are made, four at most, while the disk is behind.

**Sealing** is one store of eight bytes: the hash of the ticket that says what is in the slot. It is zeroed before the
first byte of the data is changed, and a ticket that was half written has another hash.

**Who may touch it** is said by the kernel's locks (flock), which end with their holder, however that ends: exclusive
for the one who fills it, shared for those who read it.

**No SIGBUS.** All of a slot's memory is reserved when it is made, or a line is raised that says how much is needed.

Without a launcher the slots are anonymous files of the worker's own (memfd): nothing can be left behind.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import re
import threading
import time
import weakref
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import msgspec
import xxhash

from outlast.checkpoint.storage.format import CHUNK, Save
from outlast.protocol.fields import UNREADABLE
from outlast.system import private, proc

VARIABLE = "OUTLAST_ARENA"
STRIDE_FILE = "stride"  # a file in the arena: one in so many snapshots is copied to another node
PARTNER = "OUTLAST_PARTNER"  # the host of the node that gets a copy of each snapshot; none: nobody does
VERSION = 1
MAGIC = int.from_bytes(b"OLARENA\0", "little")
PAGE = 4096
HEAD = 64 * 1024  # bytes before the data
MOST = 4  # slots: the newest, one that is being written to disk, one that waits for that, one to fill
MORE = 2  # with replicas: the newest that a partner has, and one that is on its way there
REPLICAS = 2  # slots for copies of one rank of another node: a copy that comes only half leaves the one before
DIGEST = 16  # bytes of a hash

_MAGIC, _VERSION, _SEAL, _TICKET = range(4)  # words of the head; the ticket follows them
_TICKET_FROM = 64
_POPULATE_READ, _POPULATE_WRITE = 22, 23  # of madvise, since Linux 5.14
_STRIDE = 64 * 1024 * 1024  # bytes made present at a time: so soon ends a thread that is told to
_NAME = re.compile(r"(\d+)\.(\d)")
_REPLICA = re.compile(r"(r\d+)\.(\d)")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class NoRoom(OSError):
    """There is too little shared memory for the state. The message says how much is needed, and what to do."""


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
            raise ValueError(f"{path} is no slot")
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


def address(text: str) -> tuple[Path, int]:
    """What a worker finds in its environment: the arena's directory, and the number of its place in it.

    By its number on this node, not by its rank: that may be another one in the next generation, with the same memory.

    >>> address("/dev/shm/outlast-0-ab:3")
    (PosixPath('/dev/shm/outlast-0-ab'), 3)
    """
    directory, _, number = text.rpartition(":")
    return Path(directory), int(number)


def chunks(size: int) -> int:
    """How many hashes there are for so many bytes.

    >>> chunks(0), chunks(1), chunks(CHUNK + 1)
    (0, 1, 2)
    """
    return -(-size // CHUNK)


class Arena:
    """The slots of one worker. `directory`: where they lie for others to find; None: in this process's memory alone.

    `number`: of the worker on this node; of copies of another node's rank, "r" and the rank. `most`: slots, at most.
    `aside`: room that is left for others, as a number of slots.
    """

    def __init__(self, directory: Path | None, number: int | str, *, most: int = MOST, aside: int = 0) -> None:
        self._directory = directory
        self._number = str(number)
        self._most = most
        self._aside = aside
        self._slots: dict[int, Slot] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if directory is not None:
            for path, slot in _files(directory, self._number):
                with suppress(OSError, ValueError):
                    self._slots[slot] = open_slot(path, writable=True)

    def slots(self) -> list[Slot]:
        with self._lock:
            return list(self._slots.values())

    def missing(self, size: int, count: int = 2) -> int:
        """Bytes that have to be had for this many slots. Those that are too small make room."""
        small = sum(len(each.memory) for each in self._slots.values() if len(each.data) < size)
        return max(max(count - self._fitting(size), 0) * _slot_size(size) - small, 0)

    def room(self) -> int:
        """Bytes that can be had."""
        return _room(self._directory)

    def prepare(self, size: int, count: int = 2, more: int = 0) -> None:
        """Make this many slots in the background, so that no save has to wait for their memory; `more`, if that leaves
        room for those of other ranks.
        """
        self._stop_preparing()
        self._thread = threading.Thread(target=self._make, args=(size, count, more), name="outlast-arena", daemon=True)
        self._thread.start()

    @contextmanager
    def take(self, size: int, keep: Container[Mark], also: Container[Mark] = ()) -> Iterator[Slot]:
        """A slot of at least this size after its head, to be filled. Those that hold one of `keep` are left alone, and
        those of `also` as long as there is room.

        Raises `NoRoom` if all that there are hold one of `keep`, and there cannot be another.
        """
        slot = self._take(size, keep, also)
        try:
            yield slot
        finally:
            slot.unlock()

    def close(self) -> None:
        self._stop_preparing()
        for slot in self._slots.values():
            slot.close()
        self._slots.clear()

    def _take(self, size: int, keep: Container[Mark], also: Container[Mark]) -> Slot:
        with self._lock:
            tickets = {number: slot.ticket() for number, slot in self._slots.items()}
            free = [number for number, ticket in tickets.items() if ticket is None or ticket.mark not in keep]
            free.sort(key=lambda number: getattr(tickets[number], "saved_at", 0.0))
            loose = [number for number in free if (ticket := tickets[number]) is None or ticket.mark not in also]
            if (slot := self._first(loose, size)) is not None:
                return slot
            for number in free:
                if len(self._slots[number].data) < size and self._slots[number].lock():
                    self._drop(number)
            unused = [number for number in range(self._most) if number not in self._slots]
            free = [number for number in free if number in self._slots and len(self._slots[number].data) >= size]
            try:
                if unused:
                    fitting = self._fitting(size)
                    # One that cannot be done without. Others leave room for those of other ranks.
                    self._require(size, 1 if fitting < 2 or not free else 1 + fitting)
                    slot = self._slots[unused[0]] = self._create(unused[0], size)
                    slot.lock()
                    return slot
            except NoRoom:
                if not free:
                    raise
            if (slot := self._first(free, size)) is not None:
                return slot
            # All are in use, or there is no room for one more: wait until one has been written to disk.
            slot = self._slots[free[0]]
            slot.lock(wait=True)
            return slot

    def _fitting(self, size: int) -> int:
        """How many slots are large enough."""
        return sum(1 for slot in self._slots.values() if len(slot.data) >= size)

    def _first(self, numbers: Iterable[int], size: int) -> Slot | None:
        """The first of these slots that is large enough, and is nobody else's."""
        for number in numbers:
            slot = self._slots[number]
            if len(slot.data) >= size and slot.lock():
                if slot.there():
                    return slot
                slot.unlock()
        return None

    def _make(self, size: int, count: int, more: int) -> None:
        for number in range(self._most):
            with self._lock:  # not for long: a save waits for it
                fitting = self._fitting(size)
                if number not in self._slots and fitting < count + more:
                    try:
                        if fitting >= count:
                            self._require(size, 1 + fitting)
                        self._slots[number] = self._create(number, size)
                    except NoRoom:
                        return  # the save that needs it says so
                slot = self._slots.get(number)
            if slot is not None and len(slot.data) >= size:
                slot.populate(self._stop)

    def _create(self, number: int, size: int) -> Slot:
        size = _slot_size(size)
        if self._directory is None:
            descriptor = os.memfd_create("outlast-arena", os.MFD_CLOEXEC)
            path = proc.descriptor_path(descriptor)
        else:
            private.make_directory(self._directory)
            path = str(self._directory / f"{self._number}.{number}")
            descriptor = private.create(Path(path))
        try:
            os.posix_fallocate(descriptor, 0, size)
            return Slot(path, descriptor)
        except OSError as error:
            if self._directory is not None:
                os.unlink(path)  # noqa: PTH108  (a string: it may be of /proc)
            os.close(descriptor)
            if error.errno in (errno.ENOSPC, errno.ENOMEM):
                raise NoRoom(f"{self._whose()} need {lack_of_room(self._directory, size, self.room())}") from error
            raise

    def _drop(self, number: int) -> None:
        slot = self._slots.pop(number)
        if self._directory is not None and slot.there():
            Path(slot.path).unlink(missing_ok=True)
        slot.close()

    def _require(self, size: int, more: int) -> None:
        """See that there is room for so many more slots, before any is made. Those that are too small make room."""
        needed = (max(more, 0) + self._aside) * _slot_size(size)
        room = self.room() + sum(len(each.memory) for each in self._slots.values() if len(each.data) < size)
        if needed > room:
            raise NoRoom(f"{self._whose()} need {lack_of_room(self._directory, needed, room)}")

    def _whose(self) -> str:
        if self._number[0] == "r":
            return f"replicas of rank {self._number[1:]}"
        return f"snapshots of local rank {self._number}"

    def _stop_preparing(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._stop.clear()
            self._thread = None


def _slot_size(size: int) -> int:
    """Bytes of a slot with so much data."""
    return HEAD + -(-size // PAGE) * PAGE


def lack_of_room(directory: Path | None, needed: int, room: int) -> str:
    """What is missing, and what to do: "4.0 GiB of shared memory …"."""
    free = f"and {_shown(room)} are free"
    if directory is None:
        return f"{_shown(needed)} of memory, {free}: free some, or save less"
    return (
        f"{_shown(needed)} of shared memory ({directory.parent}), {free}: give more (docker run --shm-size=…, "
        "Kubernetes: an emptyDir with medium Memory at /dev/shm, mount -o remount,size=…), or free some"
    )


def first_use(directory: Path, generation: int) -> tuple[float, int]:
    """When an arena was first used, and in which generation: now and in this one, if it was not."""
    path = directory / "since"
    with suppress(OSError, ValueError):
        if not path.exists():
            private.write(path, f"{time.time()} {generation}".encode(), replace=False)
        since, first = private.read(path).split()
        return float(since), int(first)
    return time.time(), generation


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


def tickets(directory: Path, *, replicas: bool = False) -> list[tuple[Path, Ticket]]:
    """What the sealed slots of a node hold: its own, or those with copies from other nodes."""
    found = []
    for path, _ in _files(directory, replicas=replicas):
        with suppress(OSError, ValueError):
            slot = open_slot(path)
            try:
                ticket = slot.ticket()
            finally:
                slot.close()
            if ticket is not None:
                found.append((path, ticket))
    return found


def replica_files(directory: Path) -> list[Path]:
    """The slots for copies from other nodes, whatever is in them."""
    return [path for path, _ in _files(directory, replicas=True)]


def _files(directory: Path, name: str | None = None, *, replicas: bool = False) -> list[tuple[Path, int]]:
    pattern = _REPLICA if replicas or (name or "").startswith("r") else _NAME
    matches = [(entry, pattern.fullmatch(entry)) for entry in private.names(directory)]
    return [(directory / entry, int(match[2])) for entry, match in matches if match and name in (None, match[1])]


def _hash(body: bytes) -> int:
    return xxhash.xxh3_64_intdigest(body) or 1  # 0 is "not sealed"


def stride(directory: Path) -> int:
    """One in how many snapshots is copied to another node."""
    with suppress(OSError, ValueError):
        return max(1, int(private.read(directory / STRIDE_FILE)))
    return 1


def is_copied(ticket: Ticket, one_in: int) -> bool:
    """Whether it is the turn of this snapshot: the same on all nodes."""
    return ticket.save.sequence % one_in == 0


def has_room(directory: Path, size: int) -> bool:
    """Whether there is room for one more slot of this size."""
    return _room(directory) > HEAD + size


def _room(directory: Path | None) -> int:
    """Bytes that can be had: of the file system, and of the machine."""
    available = proc.available_memory()
    if directory is None:
        return available
    status = os.statvfs(directory if directory.exists() else directory.parent)
    return min(available, status.f_bavail * status.f_frsize)


def _shown(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
