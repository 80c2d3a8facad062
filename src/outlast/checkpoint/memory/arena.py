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

import errno
import os
import re
import threading
import time
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from outlast.checkpoint.memory.room import NoRoom, free_room, lack_of_room
from outlast.checkpoint.memory.slot import HEAD, PAGE, Mark, Slot, Ticket, open_slot
from outlast.system import private, proc

VARIABLE = "OUTLAST_ARENA"
STRIDE_FILE = "stride"  # a file in the arena: one in so many snapshots is copied to another node
PARTNER = "OUTLAST_PARTNER"  # the host of the node that gets a copy of each snapshot; none: nobody does
MOST = 4  # slots: the newest, one that is being written to disk, one that waits for that, one to fill
MORE = 2  # with replicas: the newest that a partner has, and one that is on its way there
REPLICAS = 2  # slots for copies of one rank of another node: a copy that comes only half leaves the one before
_NAME = re.compile(r"(\d+)\.(\d)")
_REPLICA = re.compile(r"(r\d+)\.(\d)")


def address(text: str) -> tuple[Path, int]:
    """What a worker finds in its environment: the arena's directory, and the number of its place in it.

    By its number on this node, not by its rank: that may be another one in the next generation, with the same memory.

    >>> address("/dev/shm/outlast-0-ab:3")
    (PosixPath('/dev/shm/outlast-0-ab'), 3)
    """
    directory, _, number = text.rpartition(":")
    return Path(directory), int(number)


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
        return free_room(self._directory)

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


def first_use(directory: Path, generation: int) -> tuple[float, int]:
    """When an arena was first used, and in which generation: now and in this one, if it was not."""
    path = directory / "since"
    with suppress(OSError, ValueError):
        if not path.exists():
            private.write(path, f"{time.time()} {generation}".encode(), replace=False)
        since, first = private.read(path).split()
        return float(since), int(first)
    return time.time(), generation


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


def stride(directory: Path) -> int:
    """One in how many snapshots is copied to another node."""
    with suppress(OSError, ValueError):
        return max(1, int(private.read(directory / STRIDE_FILE)))
    return 1


def is_copied(ticket: Ticket, one_in: int) -> bool:
    """Whether it is the turn of this snapshot: the same on all nodes."""
    return ticket.save.sequence % one_in == 0
