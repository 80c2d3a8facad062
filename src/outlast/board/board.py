"""A node's board, of its agent: made for a generation, read by slot."""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Sequence
from contextlib import suppress

from outlast.board.layout import BELL_AT, BORN_AT, KEY_AT, MAGIC, MAGIC_AT, SIZE, SLOTS_AT, VERSION, VERSION_AT
from outlast.board.readings import BoundaryProgress, LastWords, Reading, Totals
from outlast.board.slot import BoardSlot, slot_memory
from outlast.system import proc

_F_ADD_SEALS, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 2, 4  # the fcntl of some Pythons lacks them


class Board:
    """A node's board, of its agent. One per generation; `close` it when the workers are gone."""

    def __init__(self, slots: int, names: Sequence[str] = ()) -> None:
        """Make it: just before the workers, because their start-up counts from now. `names` have numbers already."""
        self._memory = os.memfd_create("outlast-board", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        size = SIZE * (1 + slots)
        os.ftruncate(self._memory, size)
        # A worker that made it smaller would kill whoever reads it.
        fcntl.fcntl(self._memory, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW)
        self._mapping = mmap.mmap(self._memory, size)
        self._whole = memoryview(self._mapping)
        # Workers open the reading end for writing, by its path; it never closes, because we have both.
        self.bell, self._rope = os.pipe()
        os.set_blocking(self.bell, False)
        self._key = int.from_bytes(os.urandom(7), "little")
        self._slots = [BoardSlot(slot_memory(self._whole, number)) for number in range(slots)]
        for slot in self._slots:
            slot.words[BORN_AT] = time.monotonic_ns()
            slot.reserve(names)
        with self._whole[:SIZE].cast("q") as header:
            header[VERSION_AT], header[SLOTS_AT] = VERSION, slots
            header[KEY_AT], header[BELL_AT] = self._key, self.bell
            header[MAGIC_AT] = MAGIC

    def address(self, slot: int) -> str:
        """What a worker finds in its environment. The key tells it that it has found the right board."""
        return f"{proc.descriptor_path(self._memory, os.getpid())}:{slot}:{self._key:x}"

    def read(self, slot: int) -> Reading:
        """What the board says of a worker, also after its end: what a dying one wrote last is still there."""
        return self._slots[slot].read()

    def totals(self, slot: int) -> Totals | None:
        """How far a worker has come; None: it has made no step yet."""
        return self._slots[slot].totals()

    def renew(self, slot: int) -> None:
        """Another process takes the place of a worker that has ended: its start-up counts from now."""
        self._slots[slot].renew()

    def last_words(self, slot: int) -> LastWords | None:
        """The exception that a worker has ended with, or is about to."""
        return self._slots[slot].last_words()

    def agree(self, text: str) -> None:
        """Let every worker know what the ranks agreed on."""
        for slot in self._slots:
            slot.agree(text)

    def halt(self, at: int, durable: bool) -> None:
        """Have every worker halt at this boundary; 0: at the next one that it comes to, until it is named."""
        for slot in self._slots:
            slot.halt(at, durable)

    def progress(self) -> list[BoundaryProgress]:
        """How far the workers have come."""
        return [slot.progress() for slot in self._slots]

    def hush(self) -> None:
        """Stop the bell, which is readable when a worker wants something at once: then read every slot."""
        with suppress(BlockingIOError):
            while len(os.read(self.bell, 4096)) == 4096:
                pass

    def close(self) -> None:
        for slot in self._slots:
            slot.release()
        self._whole.release()
        self._mapping.close()
        for descriptor in (self._memory, self.bell, self._rope):
            os.close(descriptor)
