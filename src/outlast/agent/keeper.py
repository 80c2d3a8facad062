"""The agent's side of the keeper: starts it with the first snapshot, tells it what happens, and sees it off."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from outlast.agent import keeper_process
from outlast.agent.keeper_process import ENDED, LOOK, OVER
from outlast.agent.pidfd import pidfd_open
from outlast.agent.place import Place

log = logging.getLogger("agent")

SHARED_MEMORY = Path("/dev/shm")
BRIEF = 1.0  # seconds: a keeper that lived no longer cannot live here
ATTEMPTS = 3  # in a row with such a brief life


def arena_of(place: Place) -> Path:
    """Where the snapshots of this place lie. The same for all agents that have it one after the other.

    Nothing is made here: a job that takes no snapshots leaves no trace, even if its agent is killed.
    """
    return SHARED_MEMORY / f"outlast-{os.getuid()}-{place.key[:16] or secrets.token_hex(8)}"


class Keeper:
    """Has this node's snapshots written to disk. Made within a running loop.

    keeper = Keeper(place, linger=60.0, level="info")
    environment["OUTLAST_ARENA"] = f"{keeper.arena}:{local_rank}"
    keeper.look()            # when a worker rings
    keeper.ended()           # when the workers are gone, and not because they were done
    await keeper.close()     # when this node is done: all that is to be on disk is, and the memory is given back
    """

    def __init__(self, place: Place, *, linger: float, level: str) -> None:
        self._loop = asyncio.get_running_loop()
        self.arena = arena_of(place)
        self._command = [
            *(sys.executable, "-m", keeper_process.__name__, str(self.arena)),
            *(place.key, str(linger), level),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._gone = asyncio.Event()
        self._closing = False
        self._born = 0.0
        self._brief_lives = 0

    def look(self) -> None:
        """Snapshots may be there that are to be on disk."""
        if self.arena.exists():
            self._tell(LOOK)

    def ended(self) -> None:
        """The workers have ended before their work was done: what is in memory only should be on disk as well."""
        if self._process is not None or self.arena.exists():
            self._tell(ENDED)

    async def close(self, hurry: asyncio.Future[None] | None = None) -> None:
        """Await what is to be on disk, and remove the arena; at once, when `hurry` is done."""
        self._closing = True
        if self._process is not None:
            self._tell(OVER)
            gone = asyncio.ensure_future(self._gone.wait())
            events: set[asyncio.Future[Any]] = {gone} if hurry is None else {gone, hurry}
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            self._end()
        keeper_process.remove(self.arena)  # that of an agent, and a keeper, that were killed before us

    def _tell(self, word: bytes) -> None:
        if self._process is None and not self._start():
            return
        assert self._process is not None
        assert self._process.stdin is not None
        # A keeper that is just gone looks for itself when it is started again; one that is far behind has heard enough.
        with suppress(BrokenPipeError, BlockingIOError):
            os.write(self._process.stdin.fileno(), word + b"\n")

    def _start(self) -> bool:
        self._born = self._loop.time()
        self._gone.clear()
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, bufsize=0
            )
            self._pidfd = pidfd_open(self._process.pid)
        except OSError as error:
            log.error("no keeper: snapshots will not be written to disk (%s)", error)
            self._end()
            return False
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._loop.add_reader(self._pidfd, self._exited)
        return True

    def _exited(self) -> None:
        assert self._process is not None
        how, brief = self._process.wait(), self._loop.time() - self._born < BRIEF
        self._end()
        self._gone.set()
        if self._closing:
            return
        self._brief_lives = self._brief_lives + 1 if brief else 0
        if self._brief_lives == ATTEMPTS:
            log.error("no keeper lives here (the last one ended with %d): snapshots are not written to disk", how)
        elif self._start():
            log.warning("the keeper ended with %d: started another", how)

    def _end(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._process is not None:
            assert self._process.stdin is not None
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._process.stdin.close()
            self._process = None
