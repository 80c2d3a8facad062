"""Plug-ins that hear of faulty nodes and failures: what gives us nodes, and whoever pages people.

They are found by entry points, and run in a process of their own, one event after the other: a slow or broken one
holds nobody up. Without any, no process is started.

    [project.entry-points."outlast.platforms"]
    mine = "my_package:Cluster"            # a subclass of outlast.Platform
    [project.entry-points."outlast.error_monitors"]
    pager = "my_package:Pager"             # a subclass of outlast.ErrorMonitor
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from typing import Any

import msgspec

from outlast.events.events import JobEvent, JobOver, Restarting
from outlast.events.sentences import sentence
from outlast.system import own_process

log = logging.getLogger("coordinator")

PLATFORMS, MONITORS = "outlast.platforms", "outlast.error_monitors"
LAST_WORDS = 5.0  # seconds that they get when the job is over
COMMAND = own_process.command("outlast.platforms.plugins:run")


class Faulty(msgspec.Struct, frozen=True, tag="faulty"):
    """A node was left out of the job because it seems to be faulty."""

    job: str
    node: str
    reason: str
    seconds: float  # for which this job leaves it out


class Alarm(msgspec.Struct, frozen=True, tag="alarm"):
    """A generation failed, and this is done about it; or the job ends."""

    job: str
    node: str
    rank: int
    cause: str
    text: str


def alarm_of(event: JobEvent, job: str) -> Alarm | None:
    """What plug-ins are told of an event: of failures."""
    if isinstance(event, Restarting | JobOver) and event.failure is not None:
        failure = event.failure
        return Alarm(job, failure.node, failure.rank, failure.cause or "unknown", sentence(event))
    return None


class Platform(ABC):
    """What gives us nodes. (Here, where nobody does, a node is merely left out of the job for a while.)"""

    @abstractmethod
    def cordon(self, faulty: Faulty) -> None:
        """Let nobody else run into this node before somebody has looked at it."""


class ErrorMonitor(ABC):
    """Hears of failures: to page somebody, to open a ticket."""

    @abstractmethod
    def alarm(self, alarm: Alarm) -> None:
        """Something failed."""


class Plugins:
    """The coordinator's side: tells, and never waits."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._any: bool | None = None

    def tell(self, event: Faulty | Alarm) -> None:
        """Let all plug-ins know."""
        if self._any is None:
            self._any = bool(_found(PLATFORMS) or _found(MONITORS))
        if not self._any:
            return
        try:
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, bufsize=0)
                assert self._process.stdin is not None
                os.set_blocking(self._process.stdin.fileno(), False)
            assert self._process.stdin is not None
            self._process.stdin.write(msgspec.json.encode(event) + b"\n")
        except OSError as error:
            log.warning("plug-ins cannot be told: %s", error.strerror)

    def close(self) -> None:
        """The job is over: let them finish, for a moment."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(LAST_WORDS)
        except (OSError, subprocess.TimeoutExpired):
            log.warning("plug-ins did not finish within %g s: ended", LAST_WORDS)
            self._process.kill()
            self._process.wait()


def run() -> None:
    """The process of the plugins."""
    serve(sys.stdin.buffer)


def serve(events: Any) -> None:
    """In the process of the plug-ins: tell them, until there is nothing more to tell."""
    logging.basicConfig(level=logging.WARNING, format="outlast plug-ins: %(message)s")
    platforms, monitors = _loaded(PLATFORMS, Platform), _loaded(MONITORS, ErrorMonitor)
    for line in events:
        event = msgspec.json.decode(line, type=Faulty | Alarm)
        for name, plugin in monitors if isinstance(event, Alarm) else platforms:
            try:
                plugin.alarm(event) if isinstance(event, Alarm) else plugin.cordon(event)
            except Exception:
                logging.exception("%s failed", name)


def _loaded(group: str, kind: type[Any]) -> list[tuple[str, Any]]:
    made = []
    for point in _found(group):
        try:
            found = point.load()
            if not (isinstance(found, type) and issubclass(found, kind)):
                raise TypeError(f"{point.value} is not a subclass of outlast.{kind.__name__}")
            made.append((point.name, found()))
        except Exception:
            logging.exception("%s of %s cannot be loaded", point.name, group)
    return made


def _found(group: str) -> list[Any]:
    from importlib import metadata  # slow to import, and hardly anybody needs it

    return list(metadata.entry_points(group=group))
