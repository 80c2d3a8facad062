"""What the kernel says of workers and devices: its OOM killer's count, and its log where we may read it.

Nothing is asked for while training goes on: both are read when a worker has failed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from outlast.system import proc

CGROUPS = Path("/sys/fs/cgroup")
LOG = Path("/dev/kmsg")
MOST_RECORDS = 5_000  # of the kernel's log, that are read at once
RECORD = 8192
_INITIAL_PIDS = 4026531836  # the namespace whose pids the kernel's log has
_OF_A_PROCESS = re.compile(r"process (\d+)|\bpid[=: ]+'?(\d+)")
_TELLING = re.compile(
    r"NVRM: Xid|out of memory: kill|oom-kill:|hardware error|i/o error|lockup|nfs: server", re.IGNORECASE
)


def oom_kills() -> int | None:
    """How often the OOM killer struck in the memory cgroup of this process, which is its workers' too.

    None: this system does not say.
    """
    return count_oom_kills(os.fsdecode(proc.read(proc.SELF, "cgroup")), CGROUPS)


def count_oom_kills(cgroups: str, root: Path) -> int | None:
    """The same for the cgroups of a process, as /proc lists them, which are mounted below `root`."""
    for path in _counters(cgroups.splitlines(), root):
        try:
            words = path.read_text().split()
        except OSError:
            continue
        counts = dict(zip(words[::2], words[1::2], strict=False))
        if counts.get("oom_kill", "").isdecimal():
            return int(counts["oom_kill"])
    return None


def _counters(lines: list[str], root: Path) -> Iterator[Path]:
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "memory" or "memory" in controllers.split(","):
            yield root / "memory" / path.lstrip("/") / "memory.oom_control"
            yield root / "memory" / "memory.oom_control"  # within a container, whose own is mounted at the root
        elif not controllers:
            yield root / path.lstrip("/") / "memory.events"
            yield root / "memory.events"


class KernelLog:
    """The kernel's log from now on. Where we may not read it, it is empty.

    log = KernelLog()
    log.read()              # the lines that tell about processes and devices, since the last time
    log.concerns(line, pid)
    """

    def __init__(self, path: Path = LOG) -> None:
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError:
            self.close()  # not for us, or no such thing here
        try:
            self._knows_pids = proc.namespace("pid") == _INITIAL_PIDS
        except OSError:
            self._knows_pids = False

    def read(self) -> list[str]:
        """The new lines that tell about a device of this machine, or about the end of a process."""
        return [line for line in self._new() if _TELLING.search(line)]

    def concerns(self, line: str, pid: int) -> bool:
        """Whether it is about this process, or about none in particular."""
        named = {int(each) for pair in _OF_A_PROCESS.findall(line) for each in pair if each}
        return not named or (self._knows_pids and pid in named)

    def close(self) -> None:
        """Read no more of it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _new(self) -> Iterator[str]:
        for _ in range(MOST_RECORDS if self._descriptor >= 0 else 0):
            try:
                record = os.read(self._descriptor, RECORD)
            except BrokenPipeError:
                continue  # records were overwritten before we came to them
            except OSError:
                return
            if not record:
                return
            # "priority,sequence,time,flags;text", then lines of fields that begin with a blank
            yield record.decode(errors="replace").partition(";")[2].partition("\n")[0]
