"""Shared memory that nobody is left to remove: where a whole job was killed, with its agent and its keeper.

That takes somebody who kills all of them at once, as a batch system or the OOM killer may. What they leave takes the
memory of those who come after, so every agent looks for it when it starts.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import time
from pathlib import Path

from outlast.agent.processes.place import taken
from outlast.agent.snapshots.keeper_process import KEPT, remove
from outlast.checkpoint.storage.directory import touched
from outlast.system import private, proc

log = logging.getLogger("agent")

AGE = 600.0  # seconds: until then, an agent that is started again may want it back


def sweep(own: Path, age: float = AGE) -> list[Path]:
    """Remove what earlier jobs of this user left beside this arena, and return it. Nothing that somebody may yet use.

    sweep(arena_of(place))
    """
    gone = []
    ours = re.compile(rf"outlast-{os.getuid()}-([0-9a-f]{{16}})-[0-9a-f]{{16}}(\.\d+)*")  # with a number: half removed
    found = [(path, match) for path in sorted(own.parent.iterdir()) if (match := ours.fullmatch(path.name))]
    for path, match in found:
        if not private.is_directory(path):
            continue  # another user's
        if path != own and _untouched_for(path) >= age and not _is_used(path, match[1]):
            log.info("removing %s, which a job that was killed has left in shared memory", path)
            remove(path)
            gone.append(path)
    return gone


def _untouched_for(path: Path) -> float:
    try:
        return time.time() - touched(path)
    except OSError:
        return -1.0  # somebody else is just removing it


def _is_used(path: Path, key: str) -> bool:
    """Whether there is a keeper, or an agent who may start one, or any process at all that has it open."""
    names = (name for pid in proc.pids() for _, name in proc.open_files(pid))
    return _is_kept(path) or taken(key) or any(Path(name).is_relative_to(path) for name in names)


def _is_kept(path: Path) -> bool:
    try:
        descriptor = private.open_file(path / KEPT, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
