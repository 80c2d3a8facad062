"""What a checkpoint is on disk: names, manifest, when it counts as there, and how damage is found.

    DIR/step-00000123/            only ever appears whole, by one rename
        __0_0.distcp …            one shard per rank: to torch, a checkpoint of torch.distributed.checkpoint
        .metadata                 DCP's own table of contents
        manifest.json             every file with its size and a hash per 16 MiB; written last
    DIR/.draft-STEP-GENERATION-RUN/
        shard-0.json …            what a rank has written; when all are there, whoever sees it first commits

**Commit.** Each rank's shard is written and flushed, then its part (`shard-RANK.json`). Whoever finds all parts after
writing its own writes `.metadata` and `manifest.json`, flushes files and directory, and renames the draft. So nobody
waits for anybody, and whoever comes last on the file system finds all. Two who find it at the same time write the same.

**Discovery** is a look at the directory. Nothing points to "the latest": a pointer can be wrong.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import xxhash

VERSION = 1
CHUNK = 16 * 1024 * 1024  # bytes under one hash
MANIFEST = "manifest.json"
METADATA = ".metadata"
SHARD = ".distcp"
STALE = 3600.0  # seconds without a change, and nobody writes a draft any more

_FINAL = re.compile(r"step-(\d{8,})(?:\.(\d+))?")
_DRAFT = re.compile(r"\.draft-(\d+)-(\d+)-([0-9a-f]+)\.(\d+)")
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
    of ranks can be taken for a part of it; `sequence` counts the saves from there.
    """

    run: str
    sequence: int
    step: int
    generation: int
    world: int
    job: str = ""


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


class Found(msgspec.Struct, frozen=True):
    """A committed checkpoint, as its name tells; nothing of it has been read yet."""

    path: Path
    step: int
    number: int  # 1, or more if the step was saved more than once


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


def found(directory: Path) -> list[Found]:
    """The committed checkpoints of a directory, the newest first. A directory that is not there has none."""
    try:
        names = os.listdir(directory)  # noqa: PTH208  (names are all that is asked for)
    except FileNotFoundError:
        return []
    matches = [(name, _FINAL.fullmatch(name)) for name in names]
    steps = [Found(directory / name, int(match[1]), int(match[2] or 1)) for name, match in matches if match]
    return sorted(steps, key=lambda each: (each.step, each.number), reverse=True)


def read_manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint. Raises `Damaged`."""
    try:
        manifest = _read(path / MANIFEST, Manifest)
    except FileNotFoundError:
        raise Damaged(f"{path} has no {MANIFEST}: it is not one of Outlast's, or not whole") from None
    if manifest.version > VERSION:
        raise Damaged(
            f"{path / MANIFEST} has version {manifest.version}, this Outlast knows {VERSION}: install a newer"
        )
    return manifest


def check(path: Path, manifest: Manifest) -> dict[str, str]:
    """What a look at the directory tells: files that are missing, too many or of the wrong size. Reads no data."""
    problems = {}
    for file in manifest.files:
        try:
            size = (path / file.name).stat().st_size
        except OSError as error:
            problems[file.name] = f"{path / file.name}: {error.strerror}"
            continue
        if size != file.size:
            problems[file.name] = f"{path / file.name} has {size} bytes, not {file.size}"
    known = {file.name for file in manifest.files}
    extra = sorted(entry.name for entry in path.iterdir() if entry.suffix == SHARD and entry.name not in known)
    return problems | {name: f"{path / name} is not in the manifest" for name in extra}


def verify_file(path: Path, file: File, progress: Callable[[int], None] | None = None) -> list[str]:
    """Read a file, and say which chunks of it are damaged."""
    problems: list[str] = []
    buffer = memoryview(bytearray(min(CHUNK, file.size)))
    try:
        with open(path / file.name, "rb", buffering=0) as stream:
            for number, expected in enumerate(file.chunks):
                size = min(CHUNK, file.size - number * CHUNK)
                if _fill(stream.fileno(), buffer[:size]) < size:
                    return [*problems, f"{path / file.name} ends early, in chunk {number}"]
                if xxhash.xxh3_128_hexdigest(buffer[:size]) != expected:
                    problems.append(f"{path / file.name} is damaged in chunk {number} (from byte {number * CHUNK})")
                if progress is not None:
                    progress(size)
    except OSError as error:
        problems.append(f"{path / file.name}: {error.strerror}")
    return problems


def verify(path: Path, progress: Callable[[int], None] | None = None) -> list[str]:
    """All that is wrong with a checkpoint, one line each; nothing if it is what was written.

    verify(Path("checkpoints/step-00000123"))  # []
    """
    try:
        manifest = read_manifest(path)
    except Damaged as damaged:
        return [str(damaged)]
    problems = check(path, manifest)
    damage = list(problems.values())
    for file in manifest.files:
        if file.name not in problems:
            damage += verify_file(path, file, progress)
    return damage


def hashes(data: memoryview) -> Iterator[tuple[memoryview, str]]:
    """The chunks of what is to be written, each with its hash."""
    for start in range(0, len(data), CHUNK):
        chunk = data[start : start + CHUNK]
        yield chunk, xxhash.xxh3_128_hexdigest(chunk)


def write_part(draft: Path, part: Part) -> None:
    """The last word of a rank about its shard, which is on disk by now."""
    write_whole(draft / f"shard-{part.rank}.json", _sealed(part))


def commit(directory: Path, save: Save) -> Path | None:
    """Make a checkpoint of a save's draft, if all parts are there: its final path, or None if some are missing.

    Raises `Damaged` for parts that do not belong together, OSError when the disk fails.
    """
    draft = directory / draft_name(save)
    try:
        parts = _parts(draft, save)
        if parts is None:
            return None
        contents = memoryview(filled_in(parts))
        write_whole(draft / METADATA, contents)
        files = [part.file for part in parts]
        files.append(File(METADATA, len(contents), tuple(digest for _, digest in hashes(contents))))
        manifest = Manifest(save=save, saved_at=max(part.saved_at for part in parts), files=tuple(files))
        problems = check(draft, manifest)
        if problems:
            raise Damaged(next(iter(problems.values())))
        write_whole(draft / MANIFEST, _sealed(manifest))
        final = _rename(directory, draft, save.step)
    except FileNotFoundError:
        return committed(directory, save)  # by somebody else, at the same time
    for part in parts:
        with suppress(OSError):
            (final / f"shard-{part.rank}.json").unlink()
    return final


def filled_in(parts: Iterable[Part]) -> bytes:
    """DCP's metadata, with the places of all items filled into its blanks."""
    parts = sorted(parts, key=lambda part: part.rank)
    return fill_in(parts[0].contents, parts[0].blanks, b"".join(part.table for part in parts))


def fill_in(contents: bytes, blanks: bytes, table: bytes) -> bytes:
    """Write 64-bit numbers over the blanks of `contents`, which stand at the positions that `blanks` lists."""
    if len(blanks) != len(table):
        raise Damaged(f"the tables of all ranks have {len(table)} bytes, and there are {len(blanks)} to fill in")
    text = bytearray(contents)
    for (at,), (value,) in zip(struct.iter_unpack("<q", blanks), struct.iter_unpack("<q", table), strict=True):
        struct.pack_into("<q", text, at, value)
    return bytes(text)


def committed(directory: Path, save: Save) -> Path | None:
    """The checkpoint that holds this save, if there is one."""
    for each in found(directory):
        if each.step == save.step:
            with suppress(Damaged):
                if read_manifest(each.path).save == save:
                    return each.path
    return None


def drafts(directory: Path) -> list[tuple[Path, str, int]]:
    """What is being written, or was given up: path, run and sequence of each draft."""
    matches = [(entry, _DRAFT.fullmatch(entry.name)) for entry in directory.iterdir()]
    return [(entry, match[3], int(match[4])) for entry, match in matches if match]


def finish_drafts(directory: Path) -> None:
    """Commit what is all there, but was not committed: whoever wrote the last part was killed right after it."""
    with suppress(OSError):
        for path, _, _ in drafts(directory):
            with suppress(OSError, Damaged):
                commit(directory, _read(path / "shard-0.json", Part).save)


def clear_drafts(directory: Path, save: Save) -> None:
    """Remove the drafts that this commit has overtaken, and those that nobody has touched for an hour."""
    for trash in directory.glob(".trash-*"):
        shutil.rmtree(trash, ignore_errors=True)  # of one who was killed while removing it
    for path, run, sequence in drafts(directory):
        with suppress(OSError):
            overtaken = run == save.run and sequence < save.sequence
            if overtaken or time.time() - _touched(path) > STALE:
                remove(path)


def remove(path: Path) -> None:
    """Remove a directory so that nobody ever finds half of it under its name."""
    trash = path.with_name(f".trash-{path.name}-{secrets.token_hex(8)}")
    path.rename(trash)
    shutil.rmtree(trash)


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write a small file so that it is there whole, and after a power failure too, or not at all."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # two may write the same, on two hosts
    with open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Have the names in a directory survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parts(draft: Path, save: Save) -> list[Part] | None:
    """All parts, by rank; None if some are missing."""
    numbers = sorted(int(match[1]) for entry in draft.iterdir() if (match := _PART.fullmatch(entry.name)))
    if numbers != list(range(save.world)):
        return None
    parts = [_read(draft / f"shard-{number}.json", Part) for number in numbers]
    for number, part in enumerate(parts):
        if part.save != save or part.rank != number or part.file.name != shard_name(number):
            raise Damaged(f"{draft / f'shard-{number}.json'} is not a part of this checkpoint")
    return parts


def _rename(directory: Path, draft: Path, step: int) -> Path:
    numbers = [each.number for each in found(directory) if each.step == step]
    number = max(numbers, default=0) + 1
    while True:
        final = directory / final_name(step, number)
        try:
            draft.rename(final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            number += 1  # another job was there first
        else:
            sync_directory(directory)
            return final


def _touched(path: Path) -> float:
    return max(entry.stat().st_mtime for entry in [path, *path.iterdir()])


_Sealed = TypeVar("_Sealed", Part, Manifest)


def _sealed(record: Part | Manifest) -> bytes:
    """Two lines of JSON: the record, and its hash."""
    body = msgspec.json.encode(record)
    return body + b'\n"' + xxhash.xxh3_128_hexdigest(body).encode() + b'"\n'


def _read(path: Path, kind: type[_Sealed]) -> _Sealed:
    try:
        body, _, digest = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(f"{path}: {error.strerror}") from error
    if digest != b'"' + xxhash.xxh3_128_hexdigest(body).encode() + b'"\n':
        raise Damaged(f"{path} is damaged")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise Damaged(f"{path} is not one that this Outlast can read ({error})") from error


def _fill(descriptor: int, buffer: memoryview) -> int:
    """Read until the buffer is full, or the file ends."""
    done = 0
    while done < len(buffer):
        count = os.readv(descriptor, [buffer[done:]])
        if count == 0:
            break
        done += count
    return done
