"""The agent's side of a user's extension: asks it, and goes on without it when it does not answer as it should.

extension = Extension("package.module::Class", beside="/path/of/the/script", limit=5.0)
await extension.start()                   # raises ValueError for one that cannot be
strategy = await extension.ask(info)      # None: what Outlast would have done is done
extension.close()
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
import subprocess
from typing import Any

import msgspec

from outlast.agent.processes.spawning import start_bound
from outlast.failover import FailoverStrategy, FailureInfo
from outlast.system import own_process

log = logging.getLogger("agent")

TO_LOAD = 60.0  # seconds for its module to be imported, which may well need torch
_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*::[A-Za-z_]\w*")
# Not -m: that would import the package of this file first, and leave the current directory out of the path.


class Broken(Exception):
    """It did not answer as it should; the message says how."""


def check_reference(reference: str) -> None:
    """Raises ValueError, with the rest of a line, for what cannot be a reference.

    >>> check_reference("package.module::Class")
    """
    if not _REFERENCE.fullmatch(reference):
        raise ValueError(f"must be package.module::Class, not {reference!r}")


class Extension:
    """One extension in its process. Made within a running event loop."""

    def __init__(self, reference: str, *, beside: str, limit: float) -> None:
        self.reference = reference
        self._beside = beside
        self._limit = limit
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._unread = b""
        self._one_at_a_time = asyncio.Lock()

    async def start(self) -> None:
        """Have it loaded. Raises ValueError, in one line, if it cannot be."""
        try:
            await self._load()
        except Broken as broken:
            self.close()
            raise ValueError(f"dynamic_failover_extension {self.reference}: {broken}") from None

    async def ask(self, info: FailureInfo) -> FailoverStrategy | None:
        """What it wants done. Never takes longer than the limit, never raises."""
        async with self._one_at_a_time:
            try:
                return await asyncio.wait_for(self._asked(info), self._limit)
            except asyncio.TimeoutError:
                problem = f"did not answer within {self._limit:g} s (extension_timeout)"
            except Broken as broken:
                problem = str(broken)
            except OSError as error:
                problem = f"cannot be reached ({error.strerror})"
            self.close()
            self._hang_up()
            log.error("extension %s %s: what would be done without it is done", self.reference, problem)
            return None

    def close(self) -> None:
        """End its process; the next question starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        # Whoever waits for an answer hears of its end, and hangs up: a socket that is closed here would wake nobody.
        if not self._one_at_a_time.locked():
            self._hang_up()

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    async def _asked(self, info: FailureInfo) -> FailoverStrategy | None:
        if self._link is None:
            await self._load()
        assert self._link is not None
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._link, msgspec.json.encode(info) + b"\n")
        said = await self._hear()
        if "failed" in said:
            raise Broken(str(said["failed"]))
        return FailoverStrategy(said["strategy"]) if said["strategy"] is not None else None

    async def _load(self) -> None:
        ours, its = socket.socketpair()
        ours.setblocking(False)
        self._link, self._unread = ours, b""
        with its:
            its.set_inheritable(True)
            process = "outlast.agent.postmortem.extension_process:run"
            command = own_process.command(process, str(its.fileno()), self.reference, self._beside)
            self._process = start_bound(command, _environment(), stdout=None, stderr=None, pass_fds=[its.fileno()])
        try:
            said = await asyncio.wait_for(self._hear(), TO_LOAD)
        except asyncio.TimeoutError:
            raise Broken(f"was not loaded within {TO_LOAD:g} s") from None
        if "refused" in said:
            raise Broken(str(said["refused"]))

    async def _hear(self) -> dict[str, Any]:
        assert self._link is not None
        loop = asyncio.get_running_loop()
        while b"\n" not in self._unread:
            data = await loop.sock_recv(self._link, 1 << 16)
            if not data:
                raise Broken("ended without an answer")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "OUTLAST_TOKEN"}
