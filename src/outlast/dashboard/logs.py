"""The end of a rank's log, from a log directory on this machine (torchrun's layout, see `outlast.logdir`)."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from outlast.dashboard.text import shown

TAIL = 64 << 10  # bytes: the end of a line of 100 MB is as good as any
MOST_FILES = 64  # of one rank, the newest first


class RankLog(msgspec.Struct, frozen=True):
    """A log of one local rank; of which node, only its directory says."""

    name: str  # below the log directory
    size: int
    changed: float


class RankLogTail(msgspec.Struct, frozen=True):
    """The end of a log."""

    text: str
    size: int
    cut: bool  # there is more before it


def files(root: Path, local_rank: int) -> list[RankLog]:
    """The logs of this local rank: of every node that writes here, and every attempt."""
    found = []
    for depth in ("", "*/", "*/*/"):
        for path in root.glob(f"{depth}attempt_*/{local_rank}/std*.log"):
            told = path.stat()
            found.append(RankLog(str(path.relative_to(root)), told.st_size, told.st_mtime))
    return sorted(found, key=lambda each: -each.changed)[:MOST_FILES]


def tail(root: Path, name: str) -> RankLogTail:
    """The end of one of these files. Raises FileNotFoundError for anything else."""
    path = root / name
    if path.name not in ("stdout.log", "stderr.log") or root.resolve() not in path.resolve().parents:
        raise FileNotFoundError(name)
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        data = file.read(TAIL)
    text = shown(data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n"))
    return RankLogTail(text, size, cut=size > TAIL)
