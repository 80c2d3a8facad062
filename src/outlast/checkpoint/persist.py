"""From the pages of the arena to a checkpoint on disk. The same code in a node's keeper and in a lone worker's thread.

Shards are written past the page cache (O_DIRECT) where the file system can do that: from the same pages that the worker
filled, in chunks of 16 MiB, each hashed on its way. Then fsync, the part, and the commit if this was the last part.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from outlast.checkpoint import format as disk
from outlast.checkpoint.arena import Mark, Slot, Ticket, open_slot
from outlast.checkpoint.format import File, Part

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


@dataclass(frozen=True)
class Outcome:
    """What became of a save that was to be written to disk."""

    mark: Mark
    step: int
    problem: str = ""  # one line
    path: str = ""  # where it is now; "" while parts of other nodes are missing
    superseded: bool = False  # a newer one took its place before it was begun


def persist(paths: Iterable[str | Path], ticket: Ticket) -> Outcome:
    """Write these slots, the shards of one save that this node has, and commit if no other is missing.

    `ticket` is that of one of them. A slot that no longer holds the save is a problem: who fills slots spares those
    that are to be written.
    """
    step = ticket.save.step
    lost = Outcome(ticket.mark, step, f"step {step} is not on disk: its memory was given up before it was written")
    with ExitStack() as held:
        leased: list[tuple[Slot, Ticket]] = []
        for path in paths:
            try:
                slot = open_slot(path)
            except (OSError, ValueError):
                return lost
            held.callback(slot.close)  # with it ends the lock
            found = slot.ticket() if slot.lock(shared=True) else None
            if found is None or found.mark != ticket.mark:
                return lost
            leased.append((slot, found))
        return _persist(leased)


def _persist(leased: Sequence[tuple[Slot, Ticket]]) -> Outcome:
    first = leased[0][1]
    directory, mark, step = Path(first.directory), first.mark, first.save.step
    draft = directory / disk.draft_name(first.save)
    try:
        if known := disk.committed(directory, first.save):
            return Outcome(mark, step, path=str(known))  # by an earlier life of this process
        draft.mkdir(parents=True, exist_ok=True)
        disk.sync_directory(directory)
        for slot, ticket in leased:
            _write(draft, slot, ticket)
        final = disk.commit(directory, first.save)
    except (OSError, disk.Damaged) as error:
        _give_up(draft, leased)
        why = f"{error.strerror}" if isinstance(error, OSError) else str(error)
        where = getattr(error, "filename", None) or directory
        return Outcome(mark, step, f"step {step} is not on disk: {where}: {why}{_advice(error)}")
    if final is not None:
        with suppress(OSError):
            disk.clear_drafts(directory, first.save)
            prune(directory, first.keep_last)
    return Outcome(mark, step, path=str(final or ""))


def write_file(path: Path, data: memoryview) -> File:
    """Write and flush a file, from memory that is aligned to pages and whole pages long."""
    descriptor, direct = _open(path)
    try:
        _reserve(descriptor, len(data))
        digests, at = [], 0
        for chunk, digest in disk.hashes(data):
            try:
                _write_all(descriptor, chunk, at)
            except OSError as error:
                if not direct or error.errno != errno.EINVAL:
                    raise
                direct = False
                fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT)
                _write_all(descriptor, chunk, at)
            digests.append(digest)
            at += len(chunk)
        os.fsync(descriptor)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)
    return File(path.name, len(data), tuple(digests))


def prune(directory: Path, keep_last: int) -> list[Path]:
    """Remove all but the newest checkpoints; those that are damaged are neither counted nor touched.

    One that is being read stays until the next time.
    """
    good = []
    for each in disk.found(directory):
        with suppress(disk.Damaged, OSError):
            if not disk.check(each.path, disk.read_manifest(each.path)):
                good.append(each.path)
    removed = []
    for path in good[max(keep_last, 1) :] if keep_last else []:
        with suppress(OSError), open(path / disk.MANIFEST, "rb") as manifest:
            fcntl.flock(manifest, fcntl.LOCK_EX | fcntl.LOCK_NB)
            disk.remove(path)
            removed.append(path)
    return removed


def _write(draft: Path, slot: Slot, ticket: Ticket) -> None:
    shard, table, contents, blanks = slot.parts(ticket)
    with shard:
        file = write_file(draft / disk.shard_name(ticket.rank), shard)
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


def _give_up(draft: Path, leased: Sequence[tuple[Slot, Ticket]]) -> None:
    """Take back what this node has written; the parts of others are theirs."""
    for _, ticket in leased:
        for name in (disk.shard_name(ticket.rank), f"shard-{ticket.rank}.json"):
            with suppress(OSError):
                (draft / name).unlink()
    with suppress(OSError):
        for entry in draft.glob(".*.tmp"):
            entry.unlink()
        draft.rmdir()  # unless there is something of others


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


def _advice(error: OSError | disk.Damaged) -> str:
    match getattr(error, "errno", None):
        case errno.ENOSPC | errno.EDQUOT:
            return "; make room, or keep fewer (keep_last)"
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return "; make it writable, or give another path"
        case _:
            return ""
