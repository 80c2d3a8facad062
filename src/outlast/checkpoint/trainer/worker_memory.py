"""This worker's place in the memory of its node: its slots, what is in them, and who writes them to disk."""

from __future__ import annotations

import os
import time
import weakref
from pathlib import Path

import torch

from outlast.checkpoint.memory import arena as arenas
from outlast.checkpoint.memory.arena import MORE, MOST, PARTNER, VARIABLE, Arena, tickets
from outlast.checkpoint.memory.slot import Slot, Ticket
from outlast.checkpoint.storage.storage import Address
from outlast.checkpoint.trainer.background import Background, KeeperClient, WriterThread
from outlast.worker import generations
from outlast.worker.session import session

FORMER = 2  # snapshots before the newest that are spared, where copies go on while training does

# Who has this worker's place in the node's memory. Of two, each would overwrite what the other needs, the node would
# send and write only what is newest of both, and a planned change would halt before the second has saved.
_saving: weakref.ref[WorkerMemory] | None = None


class WorkerMemory:
    """The memory of one Checkpointer, which saves to `directory`; under a launcher, its place in that of the node."""

    def __init__(self, directory: Address, *, overlap: bool) -> None:
        self._directory = directory
        self._overlap = overlap
        self._born = time.time()
        self._generation = generation()
        # Under a launcher, for the worker itself: a process that it starts is nobody to the node's keeper.
        self.place: Path | None = None
        self.number = 0
        if (given := os.environ.get(VARIABLE)) and session.attached:
            self.place, self.number = arenas.address(given)
        self.replicated = self.place is not None and bool(os.environ.get(PARTNER))
        self._arena: Arena | None = None
        self._writer: Background | None = None

    @property
    def arena(self) -> Arena:
        """Made when it is first used."""
        if self._arena is None:
            if self.place is not None:
                self._take_place()
            flies = self._overlap and torch.cuda.is_initialized()
            most = MOST + (MORE if self.replicated else 0) + (FORMER if flies else 0)
            self._arena = Arena(self.place, self.number, most=most)
        return self._arena

    @property
    def writer(self) -> Background:
        """Made when it is first used."""
        if self._writer is None:
            self._writer = (
                WriterThread()
                if self.place is None
                else KeeperClient(self.place, self.number, session.ring, always=self.replicated)
            )
        return self._writer

    @property
    def writes(self) -> bool:
        """Whether there is a writer."""
        return self._writer is not None

    def mapped(self) -> list[Slot]:
        """The slots that this process has mapped."""
        return self._arena.slots() if self._arena is not None else []

    def tickets(self) -> list[tuple[str | Path, Ticket]]:
        """What is in the slots of the node; without a launcher, in this worker's."""
        if self.place is not None:
            return list(tickets(self.place))
        return [(slot.path, ticket) for slot in self.mapped() if (ticket := slot.ticket()) is not None]

    def history(self) -> tuple[float, int]:
        """How long this job has had snapshots, and how often it was lined up anew since; as this node knows."""
        if self.place is None:
            return time.time() - self._born, 0
        now = generation()
        since, first = arenas.first_use(self.place, now)
        return time.time() - since, now - first

    def close(self) -> None:
        """Await what is to be on disk, and let go of it."""
        if self._writer is not None:
            self._writer.wait()
        self.abandon()

    def refuse_stale(self) -> None:
        """Raise RuntimeError if this process has gone on in another generation since it was made."""
        if self._generation != generation():
            raise RuntimeError(
                f"the Checkpointer of {self._directory} was made in generation {self._generation}, and this is "
                f"generation {generation()}: make it inside the restartable function, so that each has its own"
            )

    def abandon(self) -> None:
        """The generation is over: let go of the memory. The keeper writes what is to be on disk."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def _take_place(self) -> None:
        global _saving
        other = _saving() if _saving is not None else None
        if other is not None and other is not self and other._arena is not None:
            raise RuntimeError(
                f"the Checkpointer of {other._directory} saves in this process already, and there is room for one: "
                f"save this state with it as well, or close() it before this one, of {self._directory}, saves"
            )
        _saving = weakref.ref(self)


def _abandon() -> None:
    global _saving
    memory = _saving() if _saving is not None else None
    if memory is not None:
        memory.abandon()
    _saving = None


generations.at_end(_abandon)


def job() -> str:
    """The name of the job, under a launcher; "" without one."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "")


def generation() -> int:
    """Of the job, under a launcher; 0 without one."""
    return int(os.environ.get("OUTLAST_GENERATION", "0"))
