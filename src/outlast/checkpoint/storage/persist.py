"""From the pages of the arena to a checkpoint on disk. The same code in a node's keeper and in a lone worker's thread.

Shards are written from the same pages that the worker filled, in chunks of 16 MiB, each hashed on its way. Then comes
the part, and the commit if this was the last part.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from outlast.checkpoint.memory.slot import Mark, Slot, Ticket, open_slot
from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.storage.format import Part, Save
from outlast.checkpoint.storage.storage import Address, StorageUnreachable, address, storage_of

log = logging.getLogger("outlast")

AT_ONCE = 2  # shards that are written


@dataclass(frozen=True)
class Outcome:
    """What became of a save that was to be written to disk."""

    mark: Mark
    step: int
    problem: str = ""  # one line
    path: str = ""  # where it is now; "" while parts of other nodes are missing


def persist(paths: Iterable[str | Path], ticket: Ticket, tell: Callable[[Outcome], None] = lambda _: None) -> Outcome:
    """Write these slots, the shards of one save that this node has, and commit if no other is missing.

    `ticket` is that of one of them. A slot that no longer holds the save is a problem: who fills slots spares those
    that are to be written. `tell` hears what became of it before older ones are removed, which may take a while.
    """
    step = ticket.save.step
    outcome = Outcome(ticket.mark, step, f"step {step} is not on disk: its memory was given up before it was written")
    with ExitStack() as held:
        if leased := _lease(paths, ticket.save, held):
            outcome, ticket = _persist(leased), leased[0][1]
            for slot, _ in leased:
                slot.unlock()  # to let go of a large one takes a while
        tell(outcome)
    if outcome.path:
        directory = address(ticket.directory)
        try:
            disk.clear_drafts(directory, ticket.save)
            prune(directory, ticket.keep_last, spare=outcome.path, save=ticket.save)
        except OSError as error:
            _warn_once(f"older checkpoints in {directory} are not removed: {error.strerror}")
    return outcome


def _lease(paths: Iterable[str | Path], save: Save, held: ExitStack) -> list[tuple[Slot, Ticket]]:
    """All of these slots, locked until `held` ends; none if one of them does not hold this save."""
    leased = []
    for path in paths:
        try:
            slot = open_slot(path)
        except (OSError, ValueError):
            return []
        held.callback(slot.close)  # with it ends the lock
        found = slot.hold(save)
        if found is None:
            return []
        leased.append((slot, found))
    return leased


def _persist(leased: Sequence[tuple[Slot, Ticket]]) -> Outcome:
    first = leased[0][1]
    mark, step, written = first.mark, first.save.step, 0
    directory = address(first.directory)
    storage = draft = None
    try:
        storage = storage_of(directory)
        if known := disk.committed(directory, first.save):
            return Outcome(mark, step, path=str(known))  # by an earlier life of this process
        draft = directory / storage.draft(first.save)
        storage.begin(draft.name)
        for _ in _write_all(draft, leased):
            written += 1
        final = disk.commit(directory, first.save)
    except (OSError, ModuleNotFoundError, disk.Damaged) as error:
        # With all parts written somebody else may commit them, now or later.
        if storage is not None and draft is not None and written < len(leased):
            names = [(disk.part_name(ticket.rank), disk.shard_name(ticket.rank)) for _, ticket in leased]
            storage.discard(draft.name, [name for pair in names for name in pair])
        why = f"{error.strerror}" if isinstance(error, OSError) else str(error)
        where = getattr(error, "filename", None) or directory
        return Outcome(mark, step, f"step {step} is not on disk: {where}: {why}{_advice(error)}")
    return Outcome(mark, step, path=str(final or ""))


def prune(
    directory: Address, keep_last: int, *, spare: str = "", save: Save | None = None, verify: bool = False
) -> list[Address]:
    """Remove all but the newest whole checkpoints; those that are damaged are neither counted nor touched.

    `save`: of the training that asks for it, which removes only its own and those that it went on from. What is whole
    is told by names and sizes, and by what restores have found; with `verify`, by every byte of those that stay. One
    that is being read stays until the next time. `spare`: one that was just written, by a training that has gone back
    to an earlier step.
    """
    storage, removed, kept = storage_of(directory), [], 0
    for each in disk.found(directory):
        whole = False
        with suppress(disk.Damaged, OSError):
            whole = _looks_whole(each.path, save) and not (verify and kept < keep_last and disk.verify(each.path))
        if not whole:
            continue
        kept += 1
        if kept <= keep_last or str(each.path) == spare:
            continue
        try:
            if storage.remove(each.path.name):
                removed.append(each.path)
        except FileNotFoundError:
            pass  # somebody else has removed it
        except OSError as error:
            _warn_once(f"{each.path} is not removed: {error.strerror}")
    return removed


def _looks_whole(path: Address, save: Save | None) -> bool:
    manifest = disk.read_manifest(path)
    if save is not None and not save.supersedes(manifest.save):
        return False
    return not disk.check(path, manifest) and disk.DAMAGED not in storage_of(path.parent).sizes(path.name)


@cache
def _warn_once(problem: str) -> None:
    log.warning("%s", problem)


def _write_all(draft: Address, leased: Sequence[tuple[Slot, Ticket]]) -> Iterator[None]:
    """One after the other that is written; a few at a time."""
    if len(leased) == 1:  # a worker without a launcher, perhaps at its end, when Python starts no thread any more
        _write(draft, *leased[0])
        yield
        return
    with ThreadPoolExecutor(AT_ONCE, "outlast-write") as writers:
        for done in [writers.submit(_write, draft, slot, ticket) for slot, ticket in leased]:
            done.result()
            yield


def _write(draft: Address, slot: Slot, ticket: Ticket) -> None:
    shard, table, contents, blanks = slot.parts(ticket)
    with shard:
        file = disk.write_shard(draft, disk.shard_name(ticket.rank), shard)
    part = Part(
        save=ticket.save,
        rank=ticket.rank,
        saved_at=ticket.saved_at,
        file=file,
        table=table,
        contents=contents,
        blanks=blanks,
    )
    disk.write_part(draft, part)


def _advice(error: Exception) -> str:
    if isinstance(error, StorageUnreachable):
        return ""  # it says itself what to do
    match getattr(error, "errno", None):
        case errno.ENOSPC | errno.EDQUOT:
            return "; make room, or keep fewer (keep_last)"
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return "; make it writable, or give another path"
        case _:
            return ""
