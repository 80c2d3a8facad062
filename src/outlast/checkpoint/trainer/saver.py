"""The half of a Checkpointer that saves: the ranks plan together, and from then on a save is a copy into a slot."""

from __future__ import annotations

import logging
import secrets
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from outlast.checkpoint.memory import arena as arenas
from outlast.checkpoint.memory.room import NoRoom, lack_of_room
from outlast.checkpoint.memory.slot import Mark, Slot, Ticket
from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.storage.directory import leave_marker, sees_marker
from outlast.checkpoint.storage.format import Save
from outlast.checkpoint.storage.storage import Address, Url
from outlast.checkpoint.trainer.collector import paused
from outlast.checkpoint.trainer.flat import flatten
from outlast.checkpoint.trainer.flight import Runway
from outlast.checkpoint.trainer.layout import Furnished, ShardLayout, ShardPlan, Unsavable, make_plan
from outlast.checkpoint.trainer.rank_group import RankGroup
from outlast.checkpoint.trainer.sources import Sources
from outlast.checkpoint.trainer.worker_memory import FORMER, WorkerMemory, generation, job

log = logging.getLogger("outlast")


class Descent(NamedTuple):
    """Which saves those of a Checkpointer follow: see `Save`."""

    lineage: str | None = None  # None: the ranks agree on a new one when they plan
    base: int = 0


class Saver:
    """Saves to the memory of the node, and has it written to `directory`."""

    def __init__(
        self, directory: Address, ranks: RankGroup, memory: WorkerMemory, *, keep_last: int, overlap: bool
    ) -> None:
        self._directory = directory
        self._ranks = ranks
        self._memory = memory
        self._keep_last = keep_last
        self._sources = Sources(ranks.group)
        self._plan: ShardPlan | None = None
        self._layout: ShardLayout | None = None
        self._origin = ""
        self._descent = Descent()
        self._here = 1  # ranks that have their memory on this node
        self._sequence = 0
        self.apart = ""  # why nothing can be written to disk
        self.durable: Save | None = None  # the last one that is to be on disk
        self.newest: Mark | None = None  # the snapshot that must not be overwritten
        # Where copies go on while training does, a rank may be two snapshots behind another, and the newest that both
        # have is what all go on from: the two before the newest should not be overwritten either.
        self._former: list[Mark] = []
        self._copied: list[Mark] = []  # nor should the last two that are copied to another node: one is on its way
        self._furnished: dict[int, Furnished] = {}  # by inode of the slot
        self._runway = Runway() if overlap else None

    def skip(self) -> None:
        """A call of `save` that does not: they are counted alike on all ranks, whatever makes one of them save."""
        self._sequence += 1

    def save(self, step: int, state: Mapping[str, Any], *, durable: bool, at_once: bool) -> bool:
        """Take a snapshot, and say whether the ranks had to plan for it. `at_once`: nothing of it is left for later."""
        flat, paths = flatten(self._sources.read(state, verify=self._plan is None))
        what = f"save({step})"
        if planned := self._plan is None or not self._plan.holds(flat):
            if self._plan is not None:
                self._ranks.await_all(what, self._plan.change(flat))
            flat, paths = flatten(self._sources.read(state, verify=True))
            self._plan = self._agree(flat, paths, what)
            self._layout, self._sequence = None, 0
        assert self._plan is not None
        if durable and self.apart:
            raise ValueError(self.apart)
        later = frozenset() if at_once or self._runway is None else self._runway.ready(state)
        self._snapshot(self._plan, step, self._plan.values(flat), durable, later)
        return planned

    def land(self) -> None:
        """Nothing of a save is under way any more."""
        if self._runway is not None:
            self._runway.land()

    def follow(self, save: Save | None, mark: Mark | None = None) -> None:
        """What is saved from now on goes on from this: which tells, when older ones are removed, whose they are.

        `mark`: it is in memory, and the only one there is.
        """
        if mark is not None:
            self.newest = mark
        if save is None:
            self._descent, self._plan = Descent(), None
        else:
            self._descent = Descent(save.lineage, save.base if save.job == job() else save.step)

    def close(self) -> None:
        """Let go of the slots. To be called before their memory is."""
        self._forget(list(self._furnished))

    @paused()
    def _agree(self, flat: Mapping[str, Any], paths: Mapping[str, tuple[str | int, ...]], what: str) -> ShardPlan:
        if self._ranks.rank == 0:
            with suppress(OSError):  # the writer will say so
                self._origin = disk.origin(self._directory, make=True)
        told = self._ranks.gather(
            (self._memory.place, self._descent.lineage if self._descent.lineage is not None else secrets.token_hex(8)),
            what,
        )
        plan = make_plan(flat, paths, self._origin, self._ranks.group, job=job())
        self._origin = plan.origin
        self.apart = self._who_is_apart(what)
        if self.apart and self._ranks.rank == 0:
            log.warning("snapshots stay in memory, and none can be written to disk: %s", self.apart)
        self._descent = self._descent._replace(lineage=told[0][1])
        if self._memory.place is not None:  # of a group, or without one, not all workers of this node are in it
            self._here = [place for place, _ in told].count(self._memory.place)
        return plan

    def _who_is_apart(self, what: str) -> str:
        """Which rank has another directory than rank 0, in one line; "" if all have the same. Collective.

        Each rank would write its part into its own, and no checkpoint would ever be whole.
        """
        marker = ""
        if isinstance(self._directory, Path) and self._ranks.rank == 0:
            with suppress(OSError):  # the writer will say so
                marker = leave_marker(self._directory)
        told = self._ranks.gather((marker, str(self._directory)), what)
        marker, first = told[0]
        here = sees_marker(self._directory, marker) if isinstance(self._directory, Path) and marker else True
        if isinstance(self._directory, Url):
            here = first == self._directory
        seen = self._ranks.gather((here, socket.gethostname()), what)
        if marker and self._ranks.rank == 0:
            with suppress(OSError):
                (Path(first) / marker).unlink()
        for rank, (sees, host) in enumerate(seen):
            if not sees:
                return (
                    f"{told[rank][1]} of rank {rank} on {host} is not the directory of rank 0, {first} on "
                    f"{seen[0][1]}: give all ranks one directory that all nodes share, by an absolute path"
                )
        return ""

    def _snapshot(self, plan: ShardPlan, step: int, values: list[Any], durable: bool, later: frozenset[int]) -> None:
        if self._layout is None:
            self._layout = self._lay_out_together(plan, values, f"save({step})")
        while not self._fill(plan, self._layout, step, values, durable, later):
            self._layout = ShardLayout(plan, values)  # an object has outgrown its place
            self._prepare(self._layout, values)

    @paused()
    def _lay_out_together(self, plan: ShardPlan, values: list[Any], what: str) -> ShardLayout:
        """The first one after a plan: whatever one rank cannot save, or has no room for, is said on all of them."""
        layout, problem, missing = None, None, 0
        try:
            layout = ShardLayout(plan, values)
            missing = self._memory.arena.missing(layout.size)
        except (Unsavable, RuntimeError) as error:
            problem = error
        where = str(self._memory.place) if self._memory.place is not None else ""
        told = self._ranks.gather((problem, (socket.gethostname(), where), missing, self._memory_room(problem)), what)
        for problem, *_ in told:
            if problem is not None:
                raise problem
        for place in {place for _, place, _, _ in told}:
            needs = [(needed, room) for _, its, needed, room in told if its == place]
            needed, room = sum(needed for needed, _ in needs), min(room for _, room in needs)
            if needed > room:
                directory = Path(place[1]) if place[1] else None
                ranks = "a rank" if len(needs) == 1 else f"{len(needs)} ranks"
                raise NoRoom(f"snapshots of {ranks} on {place[0]} need {lack_of_room(directory, needed, room)}")
        assert layout is not None
        self._prepare(layout, values)
        return layout

    def _memory_room(self, problem: Exception | None) -> int:
        return self._memory.arena.room() if problem is None else 0

    def _prepare(self, layout: ShardLayout, values: list[Any]) -> None:
        flies = self._runway is not None and any(isinstance(each, torch.Tensor) and each.is_cuda for each in values)
        self._memory.arena.prepare(layout.size, more=FORMER if flies else 0)

    def _fill(
        self, plan: ShardPlan, layout: ShardLayout, step: int, values: list[Any], durable: bool, later: frozenset[int]
    ) -> bool:
        with ExitStack() as taken:
            slot = taken.enter_context(self._take(layout.size))
            if not later and torch.cuda.is_initialized():
                # The host is ahead of the GPU, and of other ranks: when the step is done, all have the one before.
                torch.cuda.synchronize()
            slot.begin()
            left = layout.fill(slot, self._places(slot, layout), values, later)
            if left is None:
                return False
            ticket = self._ticket(plan, layout, step, durable)
            self._sequence += 1
            if left and self._runway is not None:
                self._runway.launch(left, partial(self._seal, slot, ticket, taken.pop_all()))
            else:
                self._seal(slot, ticket, taken.pop_all())
        return True

    @contextmanager
    def _take(self, size: int) -> Iterator[Slot]:
        """A slot to fill. If there is no room for one more, waits until the disk has what is in one of them."""
        writer = self._memory.writer
        with ExitStack() as taken:
            while True:
                pending = writer.pending()
                keep = pending.must | ({self.newest} if self.newest is not None else set())
                also = {*self._copied, *self._former, *pending.may}
                try:
                    slot = taken.enter_context(self._memory.arena.take(size, keep, also))
                except NoRoom:
                    if not pending:
                        raise
                    writer.await_news()
                else:
                    break
            yield slot

    def _seal(self, slot: Slot, ticket: Ticket, taken: ExitStack) -> None:
        with taken:
            slot.seal(ticket)
        if self._runway is not None and self._runway.flies and self.newest is not None:
            self._former = [*self._former, self.newest][-FORMER:]
        self.newest = ticket.mark
        if ticket.durable:
            self.durable = ticket.save
        if (
            self._memory.replicated
            and self._memory.place is not None
            and arenas.is_copied(ticket, arenas.stride(self._memory.place))
        ):
            self._copied = [*self._copied[-1:], ticket.mark]
        self._memory.writer.sealed(slot, ticket)

    def _ticket(self, plan: ShardPlan, layout: ShardLayout, step: int, durable: bool) -> Ticket:
        save = Save(
            run=plan.run,
            sequence=self._sequence,
            step=step,
            generation=generation(),
            world=plan.world,
            job=job(),
            lineage=self._descent.lineage or "",
            base=self._descent.base,
        )
        return Ticket(
            save=save,
            rank=plan.rank,
            here=self._here,
            saved_at=time.time(),
            origin=self._origin,
            directory=str(self._directory),
            keep_last=self._keep_last,
            durable=durable,
            layout=layout.name,
            length=layout.length,
            table=len(layout.table),
            contents=len(plan.contents),
            blanks=len(plan.blanks),
        )

    @paused()
    def _places(self, slot: Slot, layout: ShardLayout) -> list[torch.Tensor | None]:
        known = self._furnished.get(slot.inode)
        if known is None or known.layout != layout.name:
            there = {each.inode for each in self._memory.arena.slots()}
            self._forget(self._furnished.keys() - there | {slot.inode})
            known = self._furnished[slot.inode] = layout.furnish(slot)
        return known.places

    def _forget(self, inodes: Collection[int]) -> None:
        for inode in inodes:
            if inode in self._furnished:
                self._furnished.pop(inode).release()
