"""How much shared memory can be had, and what to do about too little."""

from __future__ import annotations

import os
from pathlib import Path

from outlast.checkpoint.memory.slot import HEAD
from outlast.system import proc

RESERVE = "OUTLAST_SHM_RESERVE"  # bytes that are left to others: Ray's object store takes its memory as it fills


class NoRoom(OSError):
    """There is too little shared memory for the state. The message says how much is needed, and what to do."""


def lack_of_room(directory: Path | None, needed: int, room: int) -> str:
    """What is missing, and what to do: "4.0 GiB of shared memory …"."""
    kept = _reserved()
    others = f" beside the {_shown(kept)} kept for others (shm_reserve)" if kept else ""
    free = f"and {_shown(room)} are free{others}"
    if directory is None:
        return f"{_shown(needed)} of memory, {free}: free some, or save less"
    return (
        f"{_shown(needed)} of shared memory ({directory.parent}), {free}: give more (docker run --shm-size=…, "
        "Kubernetes: an emptyDir with medium Memory at /dev/shm, mount -o remount,size=…), or free some"
    )


def has_room(directory: Path, size: int) -> bool:
    """Whether there is room for one more slot of this size."""
    return free_room(directory) > HEAD + size


def free_room(directory: Path | None) -> int:
    """Bytes that can be had: of the file system, and of the machine; less what is left to others."""
    available = proc.available_memory()
    if directory is not None:
        status = os.statvfs(directory if directory.exists() else directory.parent)
        available = min(available, status.f_bavail * status.f_frsize)
    return max(available - _reserved(), 0)


def _reserved() -> int:
    return int(os.environ.get(RESERVE) or 0)


def _shown(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
