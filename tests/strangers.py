"""Another user of the machine, for tests of what that user can do to a job. Needs root, as tests with hosts do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

NOBODY = 65534


def as_nobody(script: str, *args: str | Path) -> None:
    """Run a shell script as a user who has no rights here, to its end."""
    command = ["sh", "-euc", script, "sh", *map(str, args)]
    subprocess.run(command, check=True, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", umask=0)


def open_to_all(path: Path) -> Path:
    """Make a directory as /tmp and /dev/shm are, which the other user can reach."""
    path.mkdir()
    path.chmod(0o1777)
    for parent in path.parents:
        if not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    return path


def require() -> None:
    if os.geteuid() != 0:
        raise RuntimeError("tests with a second user have to become that user: run them as root")
