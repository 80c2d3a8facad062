"""What a checkpoint is on disk or in a store: names, manifest, when it counts as there, and how damage is found.

    DIR/step-00000123/            only ever appears whole, by one rename
        __0_0.distcp …            one shard per rank: to torch, a checkpoint of torch.distributed.checkpoint
        .metadata                 DCP's own table of contents
        manifest.json             every file with its size and a hash per 16 MiB; written last
    DIR/.draft-STEP-GENERATION-RUN.SEQUENCE/
        shard-0.json …            what a rank has written; when all are there, whoever sees it first commits

In an object store nothing can be renamed. There a draft is DIR/step-00000123-RUN.SEQUENCE/ from the beginning, and is a
checkpoint when its manifest is there.

**Commit.** Each rank's shard is written and flushed, then its part (`shard-RANK.json`). Whoever finds all parts after
writing its own writes `.metadata`, and publishes the draft with its manifest. So nobody waits for anybody, and whoever
comes last finds all. Two who find it at the same time write the same.

**Discovery** is a look at the directory. Nothing points to "the latest": a pointer can be wrong.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import PurePath
from typing import TypeVar

import msgspec
import xxhash

from outlast.checkpoint.storage.storage import Address, Draft, FoundCheckpoint, Storage, StorageUnreachable, storage_of
from outlast.protocol.fields import UNREADABLE

VERSION = 1
CHUNK = 16 * 1024 * 1024  # bytes under one hash
MANIFEST = "manifest.json"
METADATA = ".metadata"
SHARD = ".distcp"
DAMAGED = ".damaged"  # in a checkpoint: what a restore has found to be wrong with it
ORIGIN = ".outlast"  # in the directory: an id, so that snapshots in memory know whose they are

FINAL = re.compile(r"step-(\d{8,})(?:\.(\d+))?(?:-([0-9a-f]+)\.(\d+))?")
DRAFT = re.compile(r"\.draft-(\d+)-(\d+)-([0-9a-f]+)\.(\d+)")
_PART = re.compile(r"shard-(\d+)\.json")


class Damaged(Exception):
    """A file of a checkpoint is not what was written. The message names it, in one line."""


class File(msgspec.Struct, frozen=True):
    """A file of a checkpoint, with the xxh3_128 of each chunk of it."""

    name: str
    size: int
    chunks: tuple[str, ...]


class Save(msgspec.Struct, frozen=True, kw_only=True):
    """One `save` of all ranks: what its parts have in common.

    `run` is made anew by rank 0 whenever the ranks plan together, so that nothing of another job, generation or line-up
    of ranks can be taken for a part of it; `sequence` counts the saves from there. `lineage` is the same for all saves
    that went on from each other, whatever jobs they are of; up to the step `base` they are those of other jobs.
    """

    run: str
    sequence: int
    step: int
    generation: int
    world: int
    job: str = ""
    lineage: str = ""
    base: int = 0

    def supersedes(self, older: Save) -> bool:
        """Whether the training that this is of may remove another save: one of its own, or one that it went on from.

        >>> mine = Save(run="a", sequence=1, step=30, generation=1, world=1, job="j", lineage="l", base=10)
        >>> theirs = Save(run="b", sequence=1, step=10, generation=1, world=1, job="k", lineage="l")
        >>> mine.supersedes(theirs), theirs.supersedes(mine)
        (True, False)
        """
        return self.lineage == older.lineage and (self.job == older.job or older.step <= self.base)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank has written. Rank 0's has the table of contents, with blanks for where everything lies."""

    save: Save
    rank: int
    saved_at: float
    file: File
    table: bytes  # offset and length of each item, in the order of the rank's plan
    contents: bytes = b""
    blanks: bytes = b""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint consists of."""

    version: int = VERSION
    save: Save
    saved_at: float
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def shard_name(rank: int) -> str:
    """
    >>> shard_name(3)
    '__3_0.distcp'
    """
    return f"__{rank}_0{SHARD}"


def final_name(step: int, number: int = 1) -> str:
    """
    >>> final_name(123), final_name(123, 2)
    ('step-00000123', 'step-00000123.2')
    """
    return f"step-{step:08d}" + (f".{number}" if number > 1 else "")


def draft_name(save: Save) -> str:
    """
    >>> draft_name(Save(run="abc", sequence=7, step=123, generation=2, world=4))
    '.draft-00000123-2-abc.7'
    """
    return f".draft-{save.step:08d}-{save.generation}-{save.run}.{save.sequence}"


def unique_name(save: Save) -> str:
    """
    >>> unique_name(Save(run="abc", sequence=7, step=123, generation=2, world=4))
    'step-00000123-abc.7'
    """
    return f"{final_name(save.step)}-{save.run}.{save.sequence}"


def found(directory: Address) -> list[FoundCheckpoint]:
    """The committed checkpoints of a directory, the newest first. A directory that is not there has none."""
    there = storage_of(directory).found()
    steps = Counter(each.step for each in there)
    ages = _ages([each for each in there if steps[each.step] > 1])
    return sorted(
        there, key=lambda each: (each.step, ages.get(each.path, (0.0, 0)), each.number, str(each.path)), reverse=True
    )


def _ages(several: Iterable[FoundCheckpoint]) -> dict[Address, tuple[float, int]]:
    """Of several of one step, which was saved later: those of one run by their numbers, for clocks may be set back.

    When they were committed tells little: an older one may be written more slowly, and a store counts whole seconds.
    """
    manifests: dict[Address, Manifest] = {}
    for each in several:
        with suppress(Damaged, FileNotFoundError):
            manifests[each.path] = read_manifest(each.path)
    runs: dict[str, float] = {}
    for manifest in manifests.values():
        runs[manifest.save.run] = max(manifest.saved_at, runs.get(manifest.save.run, 0.0))
    return {path: (runs[each.save.run], each.save.sequence) for path, each in manifests.items()}


def origin(directory: Address, *, make: bool = False) -> str:
    """The id of a directory; "" if it has none. Raises OSError."""
    storage = storage_of(directory)
    with suppress(FileNotFoundError):
        return storage.read(ORIGIN).decode(errors="replace").strip()
    if not make:
        return ""
    storage.create(ORIGIN, f"{secrets.token_hex(8)}\n".encode())
    return storage.read(ORIGIN).decode(errors="replace").strip()


def read_manifest(path: Address) -> Manifest:
    """The manifest of a checkpoint. Raises `Damaged`, and OSError if nothing can be known."""
    try:
        manifest = _read(path, MANIFEST, Manifest)
    except FileNotFoundError:
        raise Damaged(f"{path} has no {MANIFEST}: it is not one of Outlast's, or not whole") from None
    name = FINAL.fullmatch(path.name)
    if name is not None and int(name[1]) != manifest.save.step:
        raise Damaged(f"{path} was renamed: it is of step {manifest.save.step}, so give it that name again")
    if manifest.version > VERSION:
        raise Damaged(
            f"{path / MANIFEST} has version {manifest.version}, this Outlast knows {VERSION}: install a newer"
        )
    for file in manifest.files:
        if file.name != PurePath(file.name).name or file.size < 0 or len(file.chunks) != -(-file.size // CHUNK):
            raise Damaged(f"{path / MANIFEST} is damaged: it is wrong about {file.name!r}")
    return manifest


def note_damage(path: Address, problem: str) -> None:
    """Leave word that a checkpoint cannot be restored, so that pruning does not count it as one that can."""
    with suppress(OSError):  # one more is kept
        storage_of(path.parent).write(f"{path.name}/{DAMAGED}", f"{problem}\n".encode())


def clear_note(path: Address) -> None:
    """It was restored after all."""
    storage = storage_of(path.parent)
    with suppress(OSError):
        if DAMAGED in storage.sizes(path.name):
            storage.discard(path.name, [DAMAGED])


def check(path: Address, manifest: Manifest) -> dict[str, str]:
    """What a look at the directory tells: files that are missing, too many or of the wrong size. Reads no data."""
    problems = {}
    sizes = storage_of(path.parent).sizes(path.name)
    for file in manifest.files:
        size = sizes.get(file.name)
        if size is None:
            problems[file.name] = f"{path / file.name}: {os.strerror(errno.ENOENT)}"
        elif size != file.size:
            problems[file.name] = f"{path / file.name} has {size} bytes, not {file.size}"
    known = {file.name for file in manifest.files}
    extra = sorted(name for name in sizes if name.endswith(SHARD) and name not in known)
    return problems | {name: f"{path / name} is not in the manifest" for name in extra}


def spans(size: int) -> list[tuple[int, int]]:
    """Offset and length of each chunk of a file.

    >>> spans(CHUNK + 5)
    [(0, 16777216), (16777216, 5)]
    """
    return [(start, min(CHUNK, size - start)) for start in range(0, size, CHUNK)]


def damage(path: Address, file: File, number: int, data: memoryview) -> str:
    """What is wrong with one chunk of a file, in one line; "" if nothing is."""
    if len(data) < min(CHUNK, file.size - number * CHUNK):
        return f"{path / file.name} ends early, in chunk {number}"
    if xxhash.xxh3_128_hexdigest(data) != file.chunks[number]:
        return f"{path / file.name} is damaged in chunk {number} (from byte {number * CHUNK})"
    return ""


def verify_file(path: Address, file: File, progress: Callable[[int], None] | None = None) -> list[str]:
    """Read a file, and say which chunks of it are damaged."""
    problems: list[str] = []
    pieces = storage_of(path.parent).ranges(f"{path.name}/{file.name}", spans(file.size))
    try:
        for number, data in enumerate(pieces):
            if problem := damage(path, file, number, data):
                problems.append(problem)
            if progress is not None:
                progress(len(data))
    except StorageUnreachable:
        raise
    except OSError as error:
        problems.append(f"{path / file.name}: {error.strerror}")
    return problems


def verify(path: Address, progress: Callable[[int], None] | None = None) -> list[str]:
    """All that is wrong with a checkpoint, one line each; nothing if it is what was written.

    verify(Path("checkpoints/step-00000123"))  # []
    """
    try:
        manifest = read_manifest(path)
    except Damaged as damaged:
        return [str(damaged)]
    problems = check(path, manifest)
    lines = list(problems.values())
    for file in manifest.files:
        if file.name not in problems:
            lines += verify_file(path, file, progress)
    return lines


def pieces(data: memoryview) -> Iterator[memoryview]:
    """The chunks of what is to be written."""
    for start, length in spans(len(data)):
        yield data[start : start + length]


def hashes(data: memoryview) -> tuple[str, ...]:
    """Of each of its chunks."""
    return tuple(map(xxhash.xxh3_128_hexdigest, pieces(data)))


def write_shard(draft: Address, name: str, data: memoryview) -> File:
    """Write a large file, from memory that is aligned to pages and whole pages long; each chunk is hashed meanwhile."""
    digests: list[Future[str]] = []

    def chunks() -> Iterator[memoryview]:
        for chunk in pieces(data):
            digests.append(_hash_beside(beside, chunk))
            yield chunk

    with ThreadPoolExecutor(1, "outlast-hash") as beside:
        storage_of(draft.parent).stream(f"{draft.name}/{name}", len(data), chunks())
    return File(name, len(data), tuple(digest.result() for digest in digests))


def _hash_beside(beside: ThreadPoolExecutor, chunk: memoryview) -> Future[str]:
    try:
        return beside.submit(xxhash.xxh3_128_hexdigest, chunk)
    except RuntimeError:  # the script has ended, and Python starts no thread any more
        digest: Future[str] = Future()
        digest.set_result(xxhash.xxh3_128_hexdigest(chunk))
        return digest


def write_part(draft: Address, part: Part) -> None:
    """The last word of a rank about its shard, which is there to stay by now."""
    storage_of(draft.parent).write(f"{draft.name}/{part_name(part.rank)}", _sealed(part))


def commit(directory: Address, save: Save) -> Address | None:
    """Make a checkpoint of a save's draft, if all parts are there: its final path, or None if some are missing.

    Raises `Damaged` for parts that do not belong together, OSError when the disk fails.
    """
    storage = storage_of(directory)
    draft = directory / storage.draft(save)
    try:
        parts = _parts(storage, draft, save)
        if parts is None:
            return committed(directory, save)  # in a store, by somebody else just now
        contents = memoryview(filled_in(parts))
        storage.write(f"{draft.name}/{METADATA}", contents)
        files = [part.file for part in parts]
        files.append(File(METADATA, len(contents), hashes(contents)))
        manifest = Manifest(save=save, saved_at=max(part.saved_at for part in parts), files=tuple(files))
        problems = check(draft, manifest)
        if problems:
            raise Damaged(next(iter(problems.values())))
        final = storage.publish(draft.name, save.step, _sealed(manifest))
    except FileNotFoundError:
        return committed(directory, save)  # by somebody else, at the same time
    storage.discard(final, [part_name(part.rank) for part in parts])
    return directory / final


def filled_in(parts: Iterable[Part]) -> bytes:
    """DCP's metadata, with the places of all items filled into its blanks."""
    parts = sorted(parts, key=lambda part: part.rank)
    return fill_in(parts[0].contents, parts[0].blanks, b"".join(part.table for part in parts))


def fill_in(contents: bytes, blanks: bytes, table: bytes) -> bytes:
    """Write 64-bit numbers over the blanks of `contents`, which stand at the positions that `blanks` lists."""
    if len(blanks) != len(table):
        raise Damaged(f"the tables of all ranks have {len(table)} bytes, and there are {len(blanks)} to fill in")
    text = bytearray(contents)
    try:
        for (at,), (value,) in zip(struct.iter_unpack("<q", blanks), struct.iter_unpack("<q", table), strict=True):
            struct.pack_into("<q", text, at, value)
    except struct.error as error:
        raise Damaged(f"the table of contents cannot be filled in: {error}") from error
    return bytes(text)


def committed(directory: Address, save: Save) -> Address | None:
    """The checkpoint that holds this save, if there is one."""
    for each in found(directory):
        if each.step == save.step:
            with suppress(Damaged):
                if read_manifest(each.path).save == save:
                    return each.path
    return None


def finish_drafts(directory: Address) -> None:
    """Commit what is all there, but was not committed: whoever wrote the last part was killed right after it."""
    with suppress(OSError):
        for draft in storage_of(directory).drafts():
            with suppress(OSError, Damaged):
                commit(directory, _read(directory / draft.name, part_name(0), Part).save)


def run_prefix(job: str) -> str:
    """What the runs of one job begin with, so that drafts of its earlier generations are known by their names.

    >>> run_prefix("j"), run_prefix("")
    ('189f4003', '')
    """
    return hashlib.sha256(job.encode()).hexdigest()[:8] if job else ""


def _overtaken(draft: Draft, save: Save) -> bool:
    """Whether nobody finishes it any more: its run has gone on, or its generation has ended."""
    if draft.run == save.run:
        return draft.sequence < save.sequence
    prefix = run_prefix(save.job)
    return bool(prefix) and draft.run.startswith(prefix) and 0 <= draft.generation < save.generation


def clear_drafts(directory: Address, save: Save | None = None) -> list[Draft]:
    """Remove the drafts that this commit has overtaken, and those that nobody has touched for long."""
    storage, removed = storage_of(directory), []
    storage.sweep()
    for draft in storage.drafts():
        with suppress(OSError):
            overtaken = save is not None and _overtaken(draft, save)
            if (overtaken or time.time() - draft.touched > storage.stale) and storage.remove(draft.name):
                removed.append(draft)
    return removed


def part_name(rank: int) -> str:
    """
    >>> part_name(3)
    'shard-3.json'
    """
    return f"shard-{rank}.json"


def _parts(storage: Storage, draft: Address, save: Save) -> list[Part] | None:
    """All parts, by rank; None if some are missing."""
    numbers = sorted(int(match[1]) for name in storage.sizes(draft.name) if (match := _PART.fullmatch(name)))
    if len(numbers) != save.world or numbers != list(range(len(numbers))):
        return None
    parts = [_read(draft, part_name(number), Part) for number in numbers]
    for number, part in enumerate(parts):
        if part.save != save or part.rank != number or part.file.name != shard_name(number):
            raise Damaged(f"{draft / part_name(number)} is not a part of this checkpoint")
    return parts


_Sealed = TypeVar("_Sealed", Part, Manifest)


def _sealed(record: Part | Manifest) -> bytes:
    """Two lines of JSON: the record, and its hash."""
    body = msgspec.json.encode(record)
    return body + b'\n"' + xxhash.xxh3_128_hexdigest(body).encode() + b'"\n'


def _read(folder: Address, name: str, kind: type[_Sealed]) -> _Sealed:
    path = folder / name
    try:
        body, _, digest = storage_of(folder.parent).read(f"{folder.name}/{name}").partition(b"\n")
    except (FileNotFoundError, StorageUnreachable):
        raise
    except OSError as error:
        raise Damaged(f"{path}: {error.strerror}") from error
    if digest != b'"' + xxhash.xxh3_128_hexdigest(body).encode() + b'"\n':
        raise Damaged(f"{path} is damaged")
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise Damaged(f"{path} is not one that this Outlast can read ({error})") from error
