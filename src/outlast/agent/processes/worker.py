"""One worker process as its agent knows it: where it writes, and how it is signalled and collected."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol


class InPlaceLink(Protocol):
    """A worker inside a restartable function, and what it can be told (`in_place.py`)."""

    timeout: float  # seconds that it may take to leave

    def leave(self) -> bool:
        """Tell it that its generation is over; whether it could be told."""

    def become(self, before: Mapping[str, str], environment: Mapping[str, str], streams: Streams) -> bool:
        """Tell it to go on as the worker with this environment; whether it could be told."""


@dataclass(frozen=True)
class Streams:
    """Where one worker writes: file descriptors, or None to share the agent's own stream."""

    stdout: int | None
    stderr: int | None
    error_file: str  # "" where the worker has none
    logs: tuple[str, ...] = ()  # the files that its output goes to, by itself or through us

    def close(self) -> None:
        """Close the descriptors: the worker has its own copies of them."""
        for descriptor in {self.stdout, self.stderr} - {None}:
            assert descriptor is not None
            os.close(descriptor)


@dataclass(eq=False)
class Worker:
    """One worker process. It stays a zombie until the group is stopped or left, so that its pid stays its own."""

    local_rank: int
    pid: int
    pidfd: int
    environment: Mapping[str, str] = field(default_factory=dict)
    exit_code: int | None = None
    reaped: bool = False
    ending: bool = False  # it was told to end with a signal of its own
    link: InPlaceLink | None = None  # it is inside a restartable function
    failed: bool = False  # it has said that the function raised; its exit is no news
    leaving: bool = False  # it was told to leave the function, and has time for it
    parked: bool = False  # it has left, and waits for the next generation

    def kill_group(self, signum: int) -> None:
        """Signal the worker and every child that stayed in its process group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)

    def signal(self, signum: int) -> None:
        """Signal the worker and its process group; SIGKILL the worker alone, as the sweep knows whom to spare."""
        if signum != signal.SIGKILL:
            self.kill_group(signum)
            return
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signum)

    def reap(self) -> None:
        """Collect a worker that has exited, or is about to."""
        if not self.reaped:
            self.reaped = True
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
