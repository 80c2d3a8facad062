"""What /proc tells about processes and this machine. No other module reads it.

A process may end between two reads, and with `hidepid` those of other users cannot be read: then there is nothing to
tell, and that is no error.

The guard, the supervisor and every worker load this file before anything else. So it imports `os` alone: more would
cost each of them memory, and a module that Python has not loaded yet may be a file of the user's.
"""
# ruff: noqa: PTH110, PTH115, PTH116, PTH208  (pathlib is one that it does not import)

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SELF = "self"  # in place of a pid: this process

_LISTENS = 1 << 16  # SO_ACCEPTCON, among the flags of a socket
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)  # it has just ended, or is not for us to see


class Stat:
    """The fields of /proc/PID/stat that somebody needs."""

    def __init__(self, content: bytes) -> None:
        fields = content.rpartition(b")")[2].split()  # the name before it may contain anything, also brackets
        self.state = fields[0].decode()
        self.parent = int(fields[1])
        self.session = int(fields[3])
        self.started = int(fields[19])  # clock ticks since boot
        self.areas = tuple(map(int, fields[45:49]))  # start and end of its arguments in memory, and of its environment

    @property
    def ended(self) -> bool:
        return self.state in ("Z", "X")


def pids() -> list[int]:
    """All processes that we can see, zombies among them."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def read(pid: int | str, name: str) -> bytes:
    """The content of /proc/PID/NAME; nothing if the process is gone or hidden."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except _GONE:
        return b""


def stat(pid: int | str) -> Stat | None:
    """What the kernel says of a process; None if it is gone or hidden."""
    content = read(pid, "stat")
    return Stat(content) if content else None


def children(pid: int) -> list[int]:
    """The children of a process, zombies among them.

    The kernel's list may leave one out for a moment; `find_children` does not.
    """
    if not os.path.exists(f"/proc/{pid}/task/{pid}/children"):  # a kernel without CONFIG_PROC_CHILDREN
        return find_children(pid)
    return [int(child) for task in tasks(pid) for child in read(pid, f"task/{task}/children").split()]


def find_children(parent: int) -> list[int]:
    """The same, by a look at every process."""
    return [pid for pid in pids() if (found := stat(pid)) is not None and found.parent == parent]


def tasks(pid: int | str) -> list[str]:
    """The ids of its threads."""
    return _names(f"/proc/{pid}/task")


def environment(pid: int) -> list[bytes]:
    """The environment that it was started with, as NAME=VALUE."""
    return read(pid, "environ").split(b"\0")


def command(pid: int) -> str:
    """Its command line."""
    return read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def open_files(pid: int | str) -> Iterator[tuple[str, str]]:
    """For each descriptor of a process: a path that opens the same file, and what the file is called."""
    for descriptor in _names(f"/proc/{pid}/fd"):
        path = descriptor_path(descriptor, pid)
        try:
            yield path, os.readlink(path)
        except _GONE:
            continue


def descriptor_path(descriptor: int | str, pid: int | str = SELF) -> str:
    """A path that opens again what a process has open as this descriptor."""
    return f"/proc/{pid}/fd/{descriptor}"


def is_descriptor_path(path: str) -> bool:
    """Whether it is that of a descriptor of this process."""
    return path.startswith(descriptor_path(""))


def namespace(kind: str) -> int:
    """The number of the namespace ("net", "pid"…) that this process is in."""
    return os.stat(f"/proc/self/ns/{kind}").st_ino


def boot_id() -> str:
    """A name for the time since this machine was booted."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def abstract_sockets(prefix: str) -> list[str]:
    """The names of sockets in the abstract namespace that begin like this and that somebody listens on."""
    found = []
    for line in read(SELF, "net/unix").decode(errors="replace").splitlines():
        name = line.partition(" @")[2]
        if name.startswith(prefix) and int(line.split()[3], 16) & _LISTENS:
            found.append(name)
    return found


def available_memory() -> int:
    """Bytes that can be had on this machine without swapping."""
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except _GONE:
        return []
