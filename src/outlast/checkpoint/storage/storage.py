"""Where checkpoints lie: a directory, or a prefix in an object store. What all the rest knows of it.

    directory = address("s3://bucket/run7")     # or a path
    storage = storage_of(directory)
    storage.read("step-00000007/manifest.json")

Names are relative to the directory, with `/`. What differs between the two is in `directory.py` and `bucket.py`: how a
large file gets there, and how a draft becomes a checkpoint all at once (by a rename, or by its manifest).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from outlast.checkpoint.storage.format import Save

STORES = ("s3", "gs")
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://(.*)", re.DOTALL)

Span = tuple[int, int]  # offset and length


class Url(str):
    """The address of something in an object store; with `/`, `name` and `parent` as a Path has them.

    >>> Url("s3://bucket/run7") / "step-00000001", Url("s3://bucket/run7").name, Url("s3://bucket/run7").parent
    ('s3://bucket/run7/step-00000001', 'run7', 's3://bucket')
    """

    __slots__ = ()

    def __truediv__(self, name: str) -> Url:
        return Url(f"{self}/{name}")

    @property
    def scheme(self) -> str:
        return self.partition("://")[0]

    @property
    def bucket(self) -> str:
        return self.partition("://")[2].partition("/")[0]

    @property
    def prefix(self) -> str:
        return self.partition("://")[2].partition("/")[2]

    @property
    def name(self) -> str:
        return self.prefix.rpartition("/")[2]

    @property
    def parent(self) -> Url:
        return Url(self.rpartition("/")[0]) if self.prefix else self


Address = Path | Url


class FoundCheckpoint(msgspec.Struct, frozen=True):
    """A committed checkpoint, as its name tells; nothing of it has been read yet."""

    path: Address
    step: int
    number: int  # of those of the same step: the highest is the newest


class Draft(msgspec.Struct, frozen=True):
    """What is being written, or was given up."""

    name: str
    run: str
    sequence: int
    touched: float  # when, by the clock of the storage
    generation: int = -1  # -1: its name does not tell


class StorageUnreachable(OSError):
    """The storage does not answer, or does not let us in: nothing is known about what lies there."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class Storage(Protocol):
    """A directory of checkpoints. All raise OSError, with a `strerror` of one line."""

    stale: float  # seconds without a change, and nobody writes a draft any more

    def read(self, name: str) -> bytes:
        """A small file. Raises FileNotFoundError."""

    def ranges(self, name: str, spans: Sequence[Span]) -> Iterator[memoryview]:
        """Pieces of a file, one after the other; each may be looked at until the next. One is short where it ends."""

    def mapped(self, name: str) -> memoryview | None:
        """A file as memory, if that can be had without reading it."""

    def sizes(self, folder: str) -> dict[str, int]:
        """The files of a folder. Raises FileNotFoundError, or gives none, if there is no such folder."""

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Put a small file there, whole and to stay, or not at all."""

    def create(self, name: str, data: bytes | memoryview) -> bool:
        """The same, unless there is one of this name: whether there was none."""

    def stream(self, name: str, size: int, chunks: Iterable[memoryview]) -> None:
        """Put a large file there, to stay, with no more than a few chunks in memory."""

    def draft(self, save: Save) -> str:
        """The folder in which a save is written. No other save ever has the same."""

    def begin(self, folder: str) -> None:
        """Make a draft's folder, if it is not there."""

    def publish(self, folder: str, step: int, manifest: bytes) -> str:
        """Make a checkpoint of a draft, at once and once: the name of its folder from now on."""

    def discard(self, folder: str, names: Iterable[str]) -> None:
        """Remove files of a folder, as far as they are there; and the folder, if nothing is left in it."""

    def found(self) -> list[FoundCheckpoint]:
        """The committed checkpoints, in any order. None, if there is no such directory."""

    def drafts(self) -> list[Draft]:
        """What is not committed. Raises FileNotFoundError, or gives none, if there is no such directory."""

    def hold(self, folder: str) -> AbstractContextManager[None]:
        """Keep others from removing a checkpoint meanwhile, where that is possible."""

    def remove(self, folder: str) -> bool:
        """Remove a draft or a checkpoint, so that nobody finds half of it; False if it is held."""

    def sweep(self) -> None:
        """Remove what one who was killed while removing has left."""


def address(text: str | os.PathLike[str]) -> Address:
    """What a user gives, as an absolute address. Raises ValueError in one line.

    >>> address("s3://bucket/run7/"), address("/data/run7")
    ('s3://bucket/run7', PosixPath('/data/run7'))
    """
    given = os.fspath(text)
    scheme = _SCHEME.fullmatch(given)
    if scheme is None:
        for name in STORES:
            if isinstance(text, Path) and given.startswith(f"{name}:/"):
                raise ValueError(f"{given} is a Path, which drops a slash: give {name}://… as a string")
        return Path(given).absolute()
    if scheme[1].lower() not in STORES:
        raise ValueError(f"{given}: checkpoints lie in a directory, or in s3://… or gs://…, not in {scheme[1]}://…")
    parts = [part for part in scheme[2].split("/") if part]
    if not parts:
        raise ValueError(f"{given} names no bucket: give {scheme[1]}://BUCKET/PREFIX")
    return Url(f"{scheme[1].lower()}://{'/'.join(parts)}")


def refuse_dangling(directory: Address) -> None:
    """Raise ValueError if a symbolic link on the way leads nowhere: it is no empty directory, and none can be made."""
    for each in (directory, *directory.parents) if isinstance(directory, Path) else ():
        if each.is_symlink() and not each.exists():
            raise ValueError(f"{each} is a link to {each.readlink()}, which is not there: make or mount that")


def storage_of(directory: Address) -> Storage:
    """The storage of a directory of checkpoints. Raises ModuleNotFoundError in one line for a store without obstore."""
    if isinstance(directory, Path):
        from outlast.checkpoint.storage.directory import Directory

        return Directory(directory)
    from outlast.checkpoint.storage.bucket import Bucket

    return Bucket(directory)
