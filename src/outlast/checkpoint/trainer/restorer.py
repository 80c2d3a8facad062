"""The half of a Checkpointer that restores: finds the newest that is whole, in memory or on disk, and loads it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from outlast.checkpoint.memory.shards import AgreedSnapshot, agreed, places
from outlast.checkpoint.memory.slot import Mark, Ticket
from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.storage.format import Damaged, Save
from outlast.checkpoint.storage.storage import Address, FoundCheckpoint, StorageUnreachable, Url
from outlast.checkpoint.trainer.collector import paused
from outlast.checkpoint.trainer.foreign import is_foreign, open_foreign
from outlast.checkpoint.trainer.rank_group import RankGroup
from outlast.checkpoint.trainer.reader import CheckpointSource, load, open_checkpoint, open_snapshot
from outlast.checkpoint.trainer.worker_memory import WorkerMemory, generation

log = logging.getLogger("outlast")


class Restored(NamedTuple):
    """What was loaded."""

    step: int
    save: Save | None = None  # None: of a checkpoint that is not one of ours
    mark: Mark | None = None  # of a snapshot in memory


class Restorer:
    """Restores what was saved to `directory`, or is in memory for it."""

    def __init__(self, directory: Address, ranks: RankGroup, memory: WorkerMemory) -> None:
        self._directory = directory
        self._ranks = ranks
        self._memory = memory
        self._save: Save | None = None  # what was loaded last

    def restore_from(self, path: Address, state: Mapping[str, Any], *, strict: bool) -> Restored:
        """Load this checkpoint, of ours or not. Raises ValueError, OSError."""
        opening = (
            open_foreign(path)
            if isinstance(path, Path) and is_foreign(path)
            else open_checkpoint(path, verify=self._share, foreign=True)
        )
        if problem := self._load(opening, state, strict=strict):
            raise ValueError(problem)
        step = self._save.step if self._save is not None else _step_in(path.name)
        return Restored(step, self._save if path.parent == self._directory else None)

    def restore(self, state: Mapping[str, Any], step: int | None, *, strict: bool) -> Restored | None:
        """Load the newest that is whole, or that of this step; None if there is none. Raises ValueError, OSError."""
        bad = []
        candidates, parts = self._candidates(step)
        for offered, where in candidates:
            problem = self._try(where, state, strict=strict)
            if not problem:
                if self._ranks.rank == 0:
                    self._say_restored(offered, where, parts)
                return Restored(offered, self._save, where if not isinstance(where, Path | Url) else None)
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
                f"{bad[0]}. Repair one, or move them away to start over"
            )
        if any(part.sequence for part in parts):  # not of a first save that was cut off: there was more before
            self._begin_anew(parts)
        return None

    def _begin_anew(self, parts: Sequence[_PartInMemory]) -> None:
        """Nothing can be loaded, and there was something. Raises ValueError if that is the script's own doing."""
        lost = set(range(max(part.world for part in parts))) - {part.rank for part in parts}
        if not lost:
            raise ValueError(
                f"{self._directory} has no checkpoint, and no snapshot in memory is whole: there is {_listed(parts)}. "
                "All ranks must save the same steps, less than one save apart, and durable=True puts them on disk; to "
                f"start over, remove {self._directory}"
            )
        if self._ranks.rank == 0:
            log.error(
                "TRAINING BEGINS AGAIN AT STEP 0: the snapshots of %s were lost with a node, none is on disk, and all "
                "is lost up to step %d (left: %s). durable=True puts snapshots on disk, --ft-replicas on other hosts",
                _ranks(lost),
                max(part.step for part in parts),
                _listed(parts),
            )

    @property
    def _share(self) -> tuple[int, int]:
        """Which part of a checkpoint's files this rank verifies, and of how many."""
        return self._ranks.rank, self._ranks.world

    def _say_restored(self, step: int, where: Mark | Address, parts: Sequence[_PartInMemory]) -> None:
        log.info("step %d is restored from %s", step, where if isinstance(where, Path | Url) else "memory")
        if isinstance(where, Path | Url):
            disk.clear_note(where)
        later = [part for part in parts if part.step > step]
        if later and isinstance(where, Path | Url):
            log.warning("what is newer in memory is not on all ranks, and is not used: %s", _listed(later))

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
        if self._memory.place is not None and self._memory.number != 0:
            return []
        found = [ticket for _, ticket in self._memory.tickets()]
        return [
            _PartInMemory(each.save.step, each.rank, each.save.sequence, each.origin, each.save.world) for each in found
        ]

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
        for _, ticket in self._memory.tickets():
            by_save.setdefault(ticket.save, {})[ticket.rank] = ticket
        whole = [ranks[0] for save, ranks in by_save.items() if 0 in ranks and len(ranks) == save.world]
        found = {each.mark: (each.save.step, each.saved_at, each.origin) for each in whole if each.origin}
        agreed = self._agreed().by_mark().items()
        return found | {mark: (each.step, each.saved_at, each.origin) for mark, each in agreed}

    def _agreed(self) -> AgreedSnapshot:
        return (
            agreed(self._memory.place, generation()) if self._memory.place is not None else AgreedSnapshot(generation())
        )

    def _try(self, where: Mark | Address, state: Mapping[str, Any], *, strict: bool) -> str:
        """Load it, or say in one line what is wrong with it: the same on all ranks."""
        if isinstance(where, Path | Url):
            return self._load(open_checkpoint(where, verify=self._share), state, strict=strict)
        slots = {ticket.rank: path for path, ticket in self._memory.tickets() if ticket.mark == where}
        mapped = {slot.path: slot for slot in self._memory.mapped()}
        known = places(self._memory.place, where, slots, self._agreed(), mapped)
        return self._load(open_snapshot(known, where), state, strict=strict)

    @paused()
    def _load(
        self, opening: AbstractContextManager[CheckpointSource], state: Mapping[str, Any], *, strict: bool
    ) -> str:
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
                load(source, state, self._ranks.group, strict=strict)
                self._save = source.save
        except Damaged as error:
            problem = str(error)
        finally:
            if source is not None:
                opening.__exit__(None, None, None)
        return problem


class _PartInMemory(NamedTuple):
    """A rank's part of a snapshot."""

    step: int
    rank: int
    sequence: int  # of its save: 0 for the first one since the ranks planned together
    origin: str
    world: int  # ranks that saved


def _listed(parts: Iterable[_PartInMemory]) -> str:
    """Which steps ranks have, in a few words.

    >>> _listed([_PartInMemory(54, 0, 7, "o", 3), _PartInMemory(55, 1, 8, "o", 3), _PartInMemory(54, 2, 7, "o", 3)])
    'step 54 of ranks 0, 2; step 55 of rank 1'
    """
    ranks: dict[int, set[int]] = {}
    for part in parts:
        ranks.setdefault(part.step, set()).add(part.rank)
    return "; ".join(f"step {step} of {_ranks(its)}" for step, its in sorted(ranks.items()))


def _ranks(ranks: Collection[int]) -> str:
    few = ", ".join(map(str, sorted(ranks)[:8])) + (", …" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {few}"


def _step_in(name: str) -> int:
    """The step that the name of a checkpoint says, if it is one of ours; else 0."""
    found = disk.FINAL.fullmatch(name)
    return int(found[1]) if found else 0
