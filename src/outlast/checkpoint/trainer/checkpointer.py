"""`outlast.Checkpointer`: what a training script sees of all this."""

from __future__ import annotations

import logging
import operator
import os
import secrets
import socket
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from outlast.checkpoint.memory import arena as arenas
from outlast.checkpoint.memory.arena import (
    MORE,
    MOST,
    PARTNER,
    VARIABLE,
    Arena,
    Mark,
    NoRoom,
    Slot,
    Ticket,
    lack_of_room,
    tickets,
)
from outlast.checkpoint.memory.shards import AgreedSnapshot, agreed, places
from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.storage.directory import leave_marker, sees_marker
from outlast.checkpoint.storage.format import Damaged, Save
from outlast.checkpoint.storage.storage import (
    Address,
    FoundCheckpoint,
    StorageUnreachable,
    Url,
    address,
    refuse_dangling,
    storage_of,
)
from outlast.checkpoint.trainer.background import Background, KeeperClient, WriterThread
from outlast.checkpoint.trainer.collector import paused
from outlast.checkpoint.trainer.flight import Runway
from outlast.checkpoint.trainer.foreign import is_foreign, open_foreign
from outlast.checkpoint.trainer.interval import Every, Interval
from outlast.checkpoint.trainer.layout import Furnished, ShardLayout, ShardPlan, Unsavable, make_plan
from outlast.checkpoint.trainer.rank_group import RankGroup
from outlast.checkpoint.trainer.reader import CheckpointSource, load, open_checkpoint, open_snapshot
from outlast.checkpoint.trainer.state import Sources, flatten
from outlast.worker.boundary import LastBoundary, boundaries
from outlast.worker.session import session

log = logging.getLogger("outlast")

FORMER = 2  # snapshots before the newest that are spared, where copies go on while training does

# Who has this worker's place in the node's memory. Of two, each would overwrite what the other needs, the node would
# send and write only what is newest of both, and a planned change would halt before the second has saved.
_saving: weakref.ref[Checkpointer] | None = None


class Checkpointer:
    """Saves the state of a training at the speed of memory, and finds the newest good one again.

        ckpt = outlast.Checkpointer("checkpoints/", keep_last=3)
        state = {"model": model, "optim": optimizer, "epoch": 0}
        start = ckpt.restore(state)                     # 0 if there is none
        for step in range(start + 1, steps + 1):
            ...
            ckpt.save(step, state, durable=step % 1000 == 0)
        ckpt.wait()

    The path may be `s3://bucket/prefix` or `gs://…`, with `outlast[stores]`.

    All ranks call it alike. Values may be models, optimizers, anything with `state_dict` and `load_state_dict`,
    tensors, numbers, and dictionaries and lists of these; what is another one on each rank under the same names is
    wrapped in `outlast.PerRank`. `every` makes `save` do nothing but every so many steps (10),
    every so often ("30s", "5m", a timedelta), or as seldom as is wise ("auto"); those with `durable=True` apart. On a
    GPU, what the optimizer steps is copied while training goes on, and its next step waits for it; `overlap=False`
    makes `save` wait instead.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep_last: int = 3,
        every: Every = None,
        overlap: bool = True,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        if not isinstance(keep_last, int) or isinstance(keep_last, bool) or keep_last < 1:
            raise ValueError(f"keep_last must be a number of checkpoints, at least 1, not {keep_last!r}")
        self._directory = address(path)
        refuse_dangling(self._directory)
        storage_of(self._directory)  # what is missing for it is said now
        self._keep_last = keep_last
        self._ranks = RankGroup(process_group)
        self._interval = Interval(every)
        self._born = time.time()
        self._sources = Sources(process_group)
        self._plan: ShardPlan | None = None
        self._layout: ShardLayout | None = None
        self._origin = ""
        self._lineage: str | None = None  # see `Save`
        self._base = 0
        self._saved_step: int | None = None  # of what was restored
        self._strict = True  # of the restore that is under way
        self._apart = ""  # why nothing can be written to disk
        self._sequence = 0
        self._durable: Save | None = None  # the last one that is to be on disk
        self._newest: Mark | None = None  # the snapshot that must not be overwritten
        # Where copies go on while training does, a rank may be two snapshots behind another, and the newest that both
        # have is what all go on from: the two before the newest should not be overwritten either.
        self._former: list[Mark] = []
        self._copied: list[Mark] = []  # nor should the last two that are copied to another node: one is on its way
        self._furnished: dict[int, Furnished] = {}  # by inode of the slot
        # Under a launcher, for the worker itself: a process that it starts is nobody to the node's keeper.
        place = os.environ.get(VARIABLE)
        self._place: Path | None = None
        self._number = 0
        self._here = 1  # ranks that have their memory on this node
        if place and session.attached:
            self._place, self._number = arenas.address(place)
        self._replicated = self._place is not None and bool(os.environ.get(PARTNER))
        self._runway = Runway() if overlap else None
        self._arena: Arena | None = None
        self._background: Background | None = None
        if process_group is None:  # else others may save at other times
            boundaries.expect()

    def save(
        self, step: int, state: Mapping[str, Any] | Callable[[], Mapping[str, Any]], *, durable: bool = False
    ) -> bool:
        """Take a snapshot: returns when the state may be changed again; whether it was the turn of this step.

        A state that is dear to put together may be given as a function, which is called when it is the turn. Call
        `save` at every step in any case.

        With `durable` it is written to disk as well, in the background: `wait` awaits that. When saves come faster than
        the disk takes them, the newest is written and those before it are not.
        """
        step = _step(step)
        halt = boundaries.reach() if self._ranks.group is None else None
        due = durable or self._interval.due(step)
        if not due and halt is None:
            self._sequence += 1  # of calls, which are the same on all ranks, whatever makes one of them save
            return False
        begun = time.monotonic()
        self._land()
        state = _mapping(state() if callable(state) else state)
        flat, paths = flatten(self._sources.read(state, verify=self._plan is None))
        what = f"save({step})"
        if planned := self._plan is None or not self._plan.holds(flat):
            if self._plan is not None:
                self._ranks.await_all(what, self._plan.change(flat))
            flat, paths = flatten(self._sources.read(state, verify=True))
            self._plan = self._agree(flat, paths, what)
            self._layout, self._sequence = None, 0
        assert self._plan is not None
        if durable and self._apart:
            raise ValueError(self._apart)
        durable = durable or (halt is not None and halt.durable)
        at_once = durable or halt is not None
        later = frozenset() if at_once or self._runway is None else self._runway.ready(state)
        self._snapshot(self._plan, step, self._plan.values(flat), durable, later)
        if due and self._interval.timed:  # all ranks come here, also those that do not halt
            lived, failures = self._history()
            measured = self._interval.measure(
                step, begun=begun, ended=time.monotonic(), lived=lived, failures=failures, planned=planned
            )
            self._interval.agree(step, self._ranks.gather(measured, f"save({step})"))
        if halt is not None:
            self._halt(halt, step)
        return True

    def restore(
        self,
        state: Mapping[str, Any],
        *,
        step: int | None = None,
        source: str | os.PathLike[str] | None = None,
        strict: bool = True,
    ) -> int:
        """Load the newest good state, from memory or disk, and return its step; 0, changing nothing, if there is none.

        `step` asks for that one and no other. `source` is a checkpoint's own directory, also one that DCP or Hugging
        Face's Trainer wrote, or a file: of torch.save, safetensors or Lightning.
        Raises ValueError in one line if there are checkpoints but no good one, or if the state does not fit: a model or
        an optimizer with more, fewer or other parameters, groups or dtypes than were saved. `strict=False` loads what
        both have, and leaves the rest as it is.
        """
        _mapping(state)
        self._strict = strict
        step = None if step is None else _step(step)
        self._land()
        self._interval.begin_anew()
        if source is not None:
            path = address(source)
            opening = (
                open_foreign(path)
                if isinstance(path, Path) and is_foreign(path)
                else open_checkpoint(path, verify=(self._ranks.rank, self._ranks.world), foreign=True)
            )
            if problem := self._load(opening, state):
                raise ValueError(problem)
            restored = self._saved_step if self._saved_step is not None else _step_in(path.name)
            if path.parent != self._directory:
                self._go_on_from(None)
            return restored
        bad = []
        candidates, parts = self._candidates(step)
        for offered, where in candidates:
            problem = self._try(where, state)
            if not problem:
                session.go_on_after(offered)
                if self._ranks.rank == 0:
                    self._say_restored(offered, where, parts)
                return offered
            bad.append(problem)
            if self._ranks.rank == 0:
                log.error("%s; trying the one before it", problem)
                if isinstance(where, Path | Url):
                    disk.note_damage(where, problem)
        if step is not None:
            others = sorted({each.step for each in disk.found(self._directory)} - {step})
            there = f"there are: {', '.join(map(str, others)) or 'none'}"
            if bad:
                raise ValueError(f"step {step} cannot be restored: {bad[0]}. Ask for another, or give no step; {there}")
            raise ValueError(f"{self._directory} has no checkpoint of step {step}; {there}")
        if bad:
            raise ValueError(
                f"none of the {len(bad)} checkpoints and snapshots of {self._directory} is whole; the newest: "
                f"{bad[0]}. Repair one, or move them away to begin anew"
            )
        if any(part.sequence for part in parts):  # not of a first save that was cut off: there was more before
            raise ValueError(
                f"{self._directory} has no checkpoint, and no snapshot in memory is whole: there is {_listed(parts)}. "
                "All ranks must save the same steps, less than one save apart, and durable=True puts them on disk; to "
                f"begin anew, remove {self._directory}"
            )
        return 0

    def _say_restored(self, step: int, where: Mark | Address, parts: Sequence[_PartInMemory]) -> None:
        log.info("step %d is restored from %s", step, where if isinstance(where, Path | Url) else "memory")
        if isinstance(where, Path | Url):
            disk.clear_note(where)
        later = [part for part in parts if part.step > step]
        if later and isinstance(where, Path | Url):
            log.warning("what is newer in memory is not on all ranks, and is not used: %s", _listed(later))

    def wait(self) -> None:
        """Await that the last durable save is on disk. Collective. Raises OSError if it is not."""
        self._land()
        self._compare_last_durable()
        outcome = self._background.wait() if self._background is not None else None
        outcomes = [each for each in self._ranks.gather(outcome, "wait()") if each is not None]
        for each in outcomes:
            if each.problem:
                raise OSError(each.problem)
        if outcomes and not any(each.path for each in outcomes):  # whoever wrote the last part would have committed
            raise OSError(
                f"step {outcomes[0].step} is not on disk: every rank that is here has written its part to "
                f"{self._directory}, and others are missing: all ranks must save the same steps to one directory"
            )

    def _compare_last_durable(self) -> None:
        """Raise OSError if ranks wait for different saves, or some for none: it would never be there."""
        told = self._ranks.gather(self._durable, "wait()")
        for rank, theirs in enumerate(told):
            if theirs != told[0]:
                first, other = (f"of step {each.step}" if each is not None else "none" for each in (told[0], theirs))
                skipped = " (after another number of saves)" if first == other else ""
                raise OSError(
                    f"the last durable save of rank 0 is {first}, and that of rank {rank} is {other}{skipped}: all "
                    "ranks must call save at the same steps, with the same durable="
                )

    def close(self) -> None:
        """Await what is to be on disk, and let go of the memory."""
        self._land()
        if self._background is not None:
            self._background.wait()
            self._background.close()
            self._background = None
        if self._arena is not None:
            self._forget(list(self._furnished))
            self._arena.close()
            self._arena = None

    # -- saving

    def _halt(self, halt: LastBoundary, step: int) -> None:
        """A change is planned, and all ranks save at this step for it: await that it is safe, and the end."""
        with session.pause_monitoring():
            outcome = self._writer().wait() if halt.durable else None
            safe = not halt.durable or not (self._apart or (outcome is not None and outcome.problem))
            boundaries.seal(step if safe else None)

    @paused()
    def _agree(self, flat: Mapping[str, Any], paths: Mapping[str, tuple[str | int, ...]], what: str) -> ShardPlan:
        if self._ranks.rank == 0:
            with suppress(OSError):  # the writer will say so
                self._origin = disk.origin(self._directory, make=True)
        told = self._ranks.gather(
            (self._place, self._lineage if self._lineage is not None else secrets.token_hex(8)), what
        )
        plan = make_plan(flat, paths, self._origin, self._ranks.group, job=_job())
        self._origin = plan.origin
        self._apart = self._who_is_apart(what)
        if self._apart and self._ranks.rank == 0:
            log.warning("snapshots stay in memory, and none can be written to disk: %s", self._apart)
        self._lineage = told[0][1]
        if self._place is not None:  # of a group, or without one, not all workers of this node are in it
            self._here = [place for place, _ in told].count(self._place)
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
            missing = self._memory().missing(layout.size)
        except (Unsavable, RuntimeError) as error:
            problem = error
        where = str(self._place) if self._place is not None else ""
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
        return self._memory().room() if problem is None else 0

    def _prepare(self, layout: ShardLayout, values: list[Any]) -> None:
        flies = self._runway is not None and any(isinstance(each, torch.Tensor) and each.is_cuda for each in values)
        self._memory().prepare(layout.size, more=FORMER if flies else 0)

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
        writer = self._writer()
        with ExitStack() as taken:
            while True:
                pending = writer.pending()
                keep = pending.must | ({self._newest} if self._newest is not None else set())
                also = {*self._copied, *self._former, *pending.may}
                try:
                    slot = taken.enter_context(self._memory().take(size, keep, also))
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
        if self._runway is not None and self._runway.flies and self._newest is not None:
            self._former = [*self._former, self._newest][-FORMER:]
        self._newest = ticket.mark
        if ticket.durable:
            self._durable = ticket.save
        if self._replicated and self._place is not None and arenas.is_copied(ticket, arenas.stride(self._place)):
            self._copied = [*self._copied[-1:], ticket.mark]
        self._writer().sealed(slot, ticket)

    def _land(self) -> None:
        """Nothing of a save is under way any more."""
        if self._runway is not None:
            self._runway.land()

    def _ticket(self, plan: ShardPlan, layout: ShardLayout, step: int, durable: bool) -> Ticket:
        save = Save(
            run=plan.run,
            sequence=self._sequence,
            step=step,
            generation=_generation(),
            world=plan.world,
            job=_job(),
            lineage=self._lineage or "",
            base=self._base,
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
            there = {each.inode for each in self._memory().slots()}
            self._forget(self._furnished.keys() - there | {slot.inode})
            known = self._furnished[slot.inode] = layout.furnish(slot)
        return known.places

    def _forget(self, inodes: Collection[int]) -> None:
        for inode in inodes:
            if inode in self._furnished:
                self._furnished.pop(inode).release()

    def _memory(self) -> Arena:
        if self._arena is None:
            if self._place is not None:
                self._take_place()
            flies = self._runway is not None and torch.cuda.is_initialized()
            most = MOST + (MORE if self._replicated else 0) + (FORMER if flies else 0)
            self._arena = Arena(self._place, self._number, most=most)
        return self._arena

    def _take_place(self) -> None:
        global _saving
        other = _saving() if _saving is not None else None
        if other is not None and other is not self and other._arena is not None:
            raise RuntimeError(
                f"the Checkpointer of {other._directory} saves in this process already, and there is room for one: "
                f"save this state with it as well, or close() it before this one, of {self._directory}, saves"
            )
        _saving = weakref.ref(self)

    def _history(self) -> tuple[float, int]:
        """How long this job has had snapshots, and how often it was lined up anew since; as this node knows."""
        if self._place is None:
            return time.time() - self._born, 0
        now = _generation()
        since, generation = arenas.first_use(self._place, now)
        return time.time() - since, now - generation

    def _writer(self) -> Background:
        if self._background is None:
            self._background = (
                WriterThread()
                if self._place is None
                else KeeperClient(self._place, self._number, session.ring, always=self._replicated)
            )
        return self._background

    # -- restoring

    def _candidates(self, step: int | None) -> tuple[list[tuple[int, Mark | Address]], list[_PartInMemory]]:
        """What all ranks can load, the best first: the highest step, and of the same step what is in memory. And the
        parts of snapshots that are in memory, whole or not.

        What is in memory counts if coordinator and agents have agreed on it, or all of it is on this node. That the
        ranks tell each other is a check that they take the same.
        """
        here = self._snapshots()
        stored = self._stored() if self._ranks.rank == 0 else None
        offers = self._ranks.gather((here, self._parts(), stored), "restore()")
        found, origin, problem = offers[0][2]
        if problem:
            raise OSError(problem)
        ranked: list[tuple[int, int, float, Mark | Address]] = [
            (offered, 1, saved_at, mark)
            for mark, (offered, saved_at, whose) in here.items()
            if whose == origin and all(mark in each for each, _, _ in offers)
        ]
        ranked += [(each.step, 0, -place, each.path) for place, each in enumerate(found)]
        ranked.sort(key=lambda each: each[:3], reverse=True)
        parts = [part for _, theirs, _ in offers for part in theirs if part.origin == origin and origin]
        return [(offered, where) for offered, _, _, where in ranked if step in (None, offered)], parts

    def _parts(self) -> list[_PartInMemory]:
        """What this rank's node has in memory: told by one of its ranks."""
        if self._place is not None and self._number != 0:
            return []
        found = [ticket for _, ticket in self._tickets()]
        return [_PartInMemory(each.save.step, each.rank, each.save.sequence, each.origin) for each in found]

    def _stored(self) -> tuple[list[FoundCheckpoint], str, str]:
        """What is on disk, the directory's id, and why that cannot be known."""
        try:
            disk.finish_drafts(self._directory)
            return disk.found(self._directory), disk.origin(self._directory), ""
        except OSError as error:
            return [], "", f"{error.filename or self._directory}: {error.strerror}"

    def _snapshots(self) -> dict[Mark, tuple[int, float, str]]:
        """The snapshots that can be had from memory: step, time and origin of each."""
        by_save: dict[Save, dict[int, Ticket]] = {}
        for _, ticket in self._tickets():
            by_save.setdefault(ticket.save, {})[ticket.rank] = ticket
        whole = [ranks[0] for save, ranks in by_save.items() if 0 in ranks and len(ranks) == save.world]
        found = {each.mark: (each.save.step, each.saved_at, each.origin) for each in whole if each.origin}
        agreed = self._agreed().by_mark().items()
        return found | {mark: (each.step, each.saved_at, each.origin) for mark, each in agreed}

    def _agreed(self) -> AgreedSnapshot:
        return agreed(self._place, _generation()) if self._place is not None else AgreedSnapshot(_generation())

    def _tickets(self) -> list[tuple[str | Path, Ticket]]:
        if self._place is not None:
            return list(tickets(self._place))
        slots = self._arena.slots() if self._arena is not None else []
        return [(slot.path, ticket) for slot in slots if (ticket := slot.ticket()) is not None]

    def _try(self, where: Mark | Address, state: Mapping[str, Any]) -> str:
        """Load it, or say in one line what is wrong with it: the same on all ranks."""
        if isinstance(where, Path | Url):
            return self._load(open_checkpoint(where, verify=(self._ranks.rank, self._ranks.world)), state)
        slots = {ticket.rank: path for path, ticket in self._tickets() if ticket.mark == where}
        mapped = {slot.path: slot for slot in self._arena.slots()} if self._arena is not None else {}
        known = places(self._place, where, slots, self._agreed(), mapped)
        problem = self._load(open_snapshot(known, where), state)
        if not problem:
            self._newest = where  # the only one there is: not to be overwritten by the next save
        return problem

    @paused()
    def _load(self, opening: AbstractContextManager[CheckpointSource], state: Mapping[str, Any]) -> str:
        """Load it, or say what is damaged. Raises OSError if nothing can be known of it: an older one is not better."""
        problem, known, source, failed = "", True, None, None
        try:
            source = opening.__enter__()
        except (OSError, Damaged) as error:
            problem, known = str(error), not isinstance(error, StorageUnreachable)
        except Exception as error:  # noqa: BLE001  (raised below: the other ranks must not wait for this one)
            problem, known, failed = f"{type(error).__name__}: {error}", False, error
        try:
            said = self._ranks.gather((problem, known), "restore()")
            for problem, known in said:
                if not known:
                    raise OSError(problem) from failed
            problem = next((each for each, _ in said if each), "")
            if source is not None and not problem:
                load(source, state, self._ranks.group, strict=self._strict)
                self._go_on_from(source.save)
        except Damaged as error:
            problem = str(error)
        finally:
            if source is not None:
                opening.__exit__(None, None, None)
        return problem

    def _go_on_from(self, save: Save | None) -> None:
        """What is saved from now on follows this: which tells, when older ones are removed, whose they are."""
        self._saved_step = save.step if save is not None else None
        if save is None:
            self._lineage, self._base, self._plan = None, 0, None  # the ranks agree on a new one when they plan
        else:
            self._lineage, self._base = save.lineage, save.base if save.job == _job() else save.step


class _PartInMemory(NamedTuple):
    """A rank's part of a snapshot."""

    step: int
    rank: int
    sequence: int  # of its save: 0 for the first one since the ranks planned together
    origin: str


def _listed(parts: Iterable[_PartInMemory]) -> str:
    """Which steps ranks have, in a few words.

    >>> _listed([_PartInMemory(54, 0, 7, "o"), _PartInMemory(55, 1, 8, "o"), _PartInMemory(54, 2, 7, "o")])
    'step 54 of ranks 0, 2; step 55 of rank 1'
    """
    ranks: dict[int, set[int]] = {}
    for part in parts:
        ranks.setdefault(part.step, set()).add(part.rank)
    texts = []
    for step, its in sorted(ranks.items()):
        few = ", ".join(map(str, sorted(its)[:8])) + (", …" if len(its) > 8 else "")
        texts.append(f"step {step} of rank{'s' if len(its) > 1 else ''} {few}")
    return "; ".join(texts)


def _mapping(state: Any) -> Mapping[str, Any]:
    """Raises TypeError for what is no dictionary."""
    if not isinstance(state, Mapping):
        raise TypeError(f'the state must be a dictionary, as {{"model": model}}, not {type(state).__name__}')
    return state


def _step_in(name: str) -> int:
    """The step that the name of a checkpoint says, if it is one of ours; else 0."""
    found = disk.FINAL.fullmatch(name)
    return int(found[1]) if found else 0


def _step(step: int) -> int:
    """A step as it is saved: any kind of integer, NumPy's and torch's too. Raises TypeError, ValueError."""
    if isinstance(step, bool) or not hasattr(step, "__index__"):
        raise TypeError(f"step must be an integer, not {step!r}")
    try:
        number = operator.index(step)
    except TypeError:  # a tensor or an array of something else
        raise TypeError(f"step must be an integer, not {step!r}") from None
    if number < 0:  # no checkpoint has such a name
        raise ValueError(f"step must be 0 or more, not {number}")
    return number


def _job() -> str:
    """The name of the job, under a launcher; "" without one."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "")


def _generation() -> int:
    """Of the job, under a launcher; 0 without one."""
    return int(os.environ.get("OUTLAST_GENERATION", "0"))
