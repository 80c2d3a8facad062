"""Who listens on a port of this machine, as far as /proc tells."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from outlast.system import proc

_LISTENS = "0A"


class PortHolder(NamedTuple):
    """A process that listens on a port."""

    pid: int
    command: str  # its whole command line

    def __str__(self) -> str:
        name = os.path.basename(self.command.split(" ")[0])  # noqa: PTH119  (a word of a command line is no path yet)
        return f"{name or 'a process'} (pid {self.pid})"


def holder_of(port: int) -> PortHolder | None:
    """The process that listens on this port; None if there is none, or it is another user's."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    for pid in proc.pids() if sockets else ():
        if any(name in sockets for _, name in proc.open_files(pid)):
            return PortHolder(pid, proc.command(pid))
    return None


def _inodes(port: int) -> Iterator[str]:
    for table in ("net/tcp", "net/tcp6"):
        lines = proc.read(proc.SELF, table).decode().splitlines()[1:]  # none of a kernel without IPv6
        for fields in map(str.split, lines):
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]
