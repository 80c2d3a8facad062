"""Who listens on a port of this machine, as far as /proc tells."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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
    for process in Path("/proc").iterdir() if sockets else ():
        if process.name.isdecimal() and sockets & set(_links(process / "fd")):
            return PortHolder(int(process.name), _command(process))
    return None


def _inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue  # a kernel without IPv6
        for fields in map(str.split, lines):
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _links(directory: Path) -> Iterator[str]:
    try:
        for descriptor in os.listdir(directory):  # noqa: PTH208  (names are all that is needed)
            yield os.readlink(directory / descriptor)  # noqa: PTH115
    except OSError:
        return  # it has ended, or is another user's


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
