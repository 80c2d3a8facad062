"""The agent's side of the guard: tells it who the workers are and until when they may run, and keeps it alive.

    agent ── a page of memory: the lease's end, the workers ── guard (`guard_process.py`)

Why it never kills a stranger: a worker stays a zombie until its group is stopped, and no pid is given away while its
zombie, its session or its process group is there. Should the agent be stopped between taking leave of a worker and
striking it off here, there is its start time beside the pid: whoever has the number later started later. Between the
guard's look and its kill are microseconds, and the kernel gives a number again only after all others.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from outlast.agent.processes import guard_process
from outlast.agent.processes.guard_process import NOBODY, WORD, identity
from outlast.agent.processes.spawning import start_bound
from outlast.system.pidfd import pidfd_open

log = logging.getLogger("agent")

BRIEF = 1.0  # seconds: a guard that lived no longer cannot live here
ATTEMPTS = 3  # in a row with such a brief life


class Guard:
    """Kills this node's workers when their lease ends, also while this process is stopped. Made within a running loop.

    guard = Guard(places=8)
    guard.start()
    guard.renew(now() + 2.25)        # of `outlast.system.clock`, not of asyncio
    guard.watch(group.pids)          # each a session of its own
    ...
    guard.watch(())                  # when they are gone
    guard.close()

    Before the first `renew` there is no lease: workers that are watched are killed. With `renew(inf)` nothing is due.
    """

    def __init__(self, places: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._memory = os.memfd_create("outlast-guard")
        os.ftruncate(self._memory, WORD * (1 + places))
        self._page = mmap.mmap(self._memory, 0)
        # Stores into these are single ones of eight bytes: the guard never sees half of a number.
        self._lease = memoryview(self._page)[:WORD].cast("d")
        self._places = memoryview(self._page)[WORD:].cast("q")
        self._lease[0] = float("-inf")
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = self._bell = -1
        self._born = 0.0
        self._brief_lives = 0

    @property
    def pid(self) -> int | None:
        """The guard's process; None while there is none."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the guard. It reads all from the page: one that takes another's place knows what that one knew."""
        self._born = self._loop.time()
        bell, self._bell = os.pipe()
        os.set_blocking(self._bell, False)
        command = [sys.executable, "-I", "-S", str(Path(guard_process.__file__)), str(self._memory), str(bell)]
        try:
            # In a session of its own it is not stopped with the agent: neither by Ctrl-Z, nor with the agent's group.
            # It dies with the agent by the kernel's signal; where that is lost (a Python with capabilities), by the
            # pipe, of which nobody else has the writing end.
            self._process = start_bound(
                command, os.environ, stdout=subprocess.DEVNULL, stderr=None, pass_fds=[self._memory, bell]
            )
            self._pidfd = pidfd_open(self._process.pid)
        except OSError as error:
            self._end()
            log.warning("no guard: should this agent be stopped, its workers outlive their lease (%s)", error)
            return
        finally:
            os.close(bell)
        self._loop.add_reader(self._pidfd, self._ended)

    def renew(self, lease_end: float) -> None:
        """Let the workers run until then, by `outlast.system.clock`; for ever with infinity."""
        earlier = lease_end < self._lease[0]
        self._lease[0] = lease_end
        if earlier:  # than when the guard means to wake
            self._ring()

    def watch(self, pids: Sequence[int]) -> None:
        """Have these killed when the lease ends, each with its session, and no others."""
        for place in range(len(self._places)):
            self._places[place] = identity(pids[place]) if place < len(pids) else NOBODY
        self._ring()

    def close(self) -> None:
        """End the guard for good."""
        self._end()
        self._lease.release()
        self._places.release()
        self._page.close()
        os.close(self._memory)

    def _ring(self) -> None:
        # No guard to hear it; or as many bytes unread as a pipe holds, which are enough to wake it.
        with suppress(BrokenPipeError, BlockingIOError):
            if self._bell >= 0:
                os.write(self._bell, b"!")

    def _ended(self) -> None:
        assert self._process is not None
        how, brief = self._process.wait(), self._loop.time() - self._born < BRIEF
        self._end()
        self._brief_lives = self._brief_lives + 1 if brief else 0
        if self._brief_lives == ATTEMPTS:
            log.error(
                "no guard lives here (the last one ended with %d): should this agent be stopped, its workers outlive"
                " their lease",
                how,
            )
            return
        self.start()
        if self._process is not None:
            log.warning("the guard ended with %d: started another", how)

    def _end(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        if self._bell >= 0:
            os.close(self._bell)
        self._pidfd = self._bell = -1
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
