"""Memory limits of single processes by cgroups, version 1 or 2, made below the one that this process is in.

    limits = MemoryCgroups.here("job-1234")      # raises OSError, in one line that says what is missing
    limits.limit("worker-0", 4 << 30)
    limits.put("worker-0", pid)                  # and with it all that it starts
    limits.kills("worker-0")                     # how often the kernel has killed for this limit
    limits.close()

With version 2 a cgroup that has processes cannot give its memory controller to others below it, so this process moves
into one of its own there first, as every manager of cgroups has to.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from outlast.system import proc

ROOT = Path("/sys/fs/cgroup")
OWN = "outlast-agent"  # where this process goes, with version 2


class MemoryCgroups:
    """Cgroups of one agent, each for one task at a time."""

    def __init__(self, directory: Path, *, unified: bool) -> None:
        self._directory = directory
        self._unified = unified
        self._made: list[Path] = []

    @classmethod
    def here(cls, name: str, *, root: Path = ROOT, own: str = "") -> MemoryCgroups:
        """Below the cgroup of this process. Raises OSError in one line where that cannot be."""
        told = own or proc.read(proc.SELF, "cgroup").decode()
        unified, path = _own_path(told, root)
        above = root / path.lstrip("/") if unified else root / "memory" / path.lstrip("/")
        if not above.is_dir():  # a container that sees its own cgroup as the root
            above = root if unified else root / "memory"
        try:
            if unified:
                _hand_down(above)
            directory = above / f"outlast-{name}"
            directory.mkdir()
            if unified:
                (directory / "cgroup.subtree_control").write_text("+memory")
        except OSError as error:
            hint = "run with the rights to make cgroups (a delegated cgroup, or root), or drop memory"
            raise OSError(f"no memory limits: cannot make a cgroup in {above}: {error.strerror}; {hint}") from error
        return cls(directory, unified=unified)

    def limit(self, task: str, size: int) -> None:
        """Let this task use so many bytes, and no swap on top."""
        path = self._directory / task
        if not path.is_dir():
            path.mkdir()
            self._made.append(path)
        if self._unified:
            (path / "memory.max").write_text(str(size))
            (path / "memory.oom.group").write_text("1")
            with_swap, most = path / "memory.swap.max", "0"
        else:
            with_swap, most = path / "memory.memsw.limit_in_bytes", str(size)
            if with_swap.exists():  # it must not be below the limit while that grows
                with_swap.write_text("-1")
            (path / "memory.limit_in_bytes").write_text(str(size))
        if with_swap.exists():  # else this kernel does not count swap
            with_swap.write_text(most)

    def put(self, task: str, pid: int) -> None:
        """Have this process, and all that it starts from now on, within the limit."""
        with suppress(ProcessLookupError):  # it has ended already
            (self._directory / task / "cgroup.procs").write_text(str(pid))

    def kills(self, task: str) -> int:
        """How many processes the kernel has killed because this task had no memory left."""
        name = "memory.events" if self._unified else "memory.oom_control"
        try:
            lines = (self._directory / task / name).read_text().splitlines()
        except FileNotFoundError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

    def close(self) -> None:
        """Remove them; their processes have ended."""
        for path in (*self._made, self._directory):
            with suppress(FileNotFoundError):
                path.rmdir()


def _own_path(told: str, root: Path) -> tuple[bool, str]:
    """Whether memory is limited by version 2 here, and the cgroup of this process.

    >>> _own_path("4:memory:/job\\n0::/\\n", Path("/nowhere"))
    (False, '/job')
    """
    rows = [line.split(":", 2) for line in told.splitlines()]
    for _, controllers, path in rows:
        if "memory" in controllers.split(","):
            return False, path
    for number, controllers, path in rows:
        if number == "0" and not controllers:
            return True, path
    raise OSError(f"no memory limits: there is no memory cgroup in {root}; drop memory")


def _hand_down(above: Path) -> None:
    """Let cgroups below this one limit memory."""
    control = above / "cgroup.subtree_control"
    if "memory" in control.read_text().split():
        return
    try:
        control.write_text("+memory")
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        (above / OWN).mkdir(exist_ok=True)
        (above / OWN / "cgroup.procs").write_text(str(os.getpid()))
        control.write_text("+memory")
