"""What can be said of a worker that has failed: collected when it has, from what is there anyway.

witness = Witness()
witness.begin(streams)                  # when the workers of a generation have been started
log = witness.tail(local_rank)          # when one of them has failed; blocks, while the disk does
witness.evidence(failure, words, reading, log)
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from outlast.agent.postmortem.kernel import KernelLog, oom_kills
from outlast.agent.processes.worker import Streams
from outlast.board.readings import LastWords, Reading
from outlast.diagnosis.evidence import Evidence
from outlast.protocol.failures import Account, Failure
from outlast.protocol.fields import LONGEST_REASON, sendable

TAIL_BYTES = 64 * 1024
TAIL_LINES = 200  # of each of its files
SENT_LINES = 20
SENT_CHARACTERS = 200  # of each line
MOST_GPUS = 32  # lines about them
_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NAMED = re.compile(r"([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|[a-z]Failed)): ?(.*)", re.DOTALL)
_KILLED = re.compile(r"killed by signal|exited unexpectedly|terminated with signal SIGKILL|exitcode: -9", re.IGNORECASE)


class Witness:
    """Of one node's workers, over all generations."""

    def __init__(self) -> None:
        self._kernel = KernelLog()
        self._logs: list[tuple[str, ...]] = []
        self._began = time.monotonic()
        self._oom_kills: int | None = None
        self._said: list[str] = []  # by the kernel, in this generation

    def begin(self, streams: Sequence[Streams]) -> None:
        """A generation begins."""
        self._kernel.read()  # what was before is not its business
        self._logs = [each.logs for each in streams]
        self._began = time.monotonic()
        self._oom_kills = oom_kills()
        self._said = []

    def evidence(
        self, failure: Failure, words: LastWords | None, reading: Reading | None, log: tuple[str, ...] = ()
    ) -> Evidence:
        """All that is known of this failure."""
        exception, message = _raised(failure, words)
        self._said += self._kernel.read()
        said = [line for line in self._said if self._kernel.concerns(line, failure.pid)]
        killed = failure.exit_code == -9 or _KILLED.search("\n".join([message, *log[-SENT_LINES:]])) is not None
        return Evidence(
            rank=failure.rank,
            node=failure.node,
            at=failure.at,
            exit_code=failure.exit_code,
            exception=exception,
            message=message,
            traceback=words.traceback if words is not None else "",
            log=log,
            kernel=(*(self._killer() if killed else ()), *said),
            hung=failure.hung,
            ran=time.monotonic() - self._began,
            step=reading.step if reading is not None else None,
        )

    def close(self) -> None:
        self._kernel.close()

    def log_of(self, local_rank: int) -> str:
        """The file that a person should look into."""
        paths = self._logs[local_rank] if local_rank < len(self._logs) else ()
        return paths[-1] if paths else ""

    def tail(self, local_rank: int) -> tuple[str, ...]:
        """The last lines that it wrote."""
        paths = self._logs[local_rank] if local_rank < len(self._logs) else ()
        return tuple(line for path in dict.fromkeys(paths) for line in tail(Path(path)))

    def _killer(self) -> tuple[str, ...]:
        before, now = self._oom_kills, oom_kills()
        if before is None or now is None or now <= before:
            return ()
        return (f"oom_kill in the memory cgroup rose by {now - before} while this worker ran",)


def tail(path: Path) -> list[str]:
    """The last lines of a file; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - TAIL_BYTES, 0))
            lines = file.read().decode(errors="replace").replace("\r", "\n").split("\n")
    except OSError:
        return []
    whole = lines[1:] if size > TAIL_BYTES else lines
    return [_TERMINAL.sub("", line) for line in whole if line.strip()][-TAIL_LINES:]


def account(evidence: Evidence, log: str, *, brief: bool) -> Account:
    """What of it is sent: of failures that followed another on the same node, a little."""
    shown = () if brief else tuple(line[:SENT_CHARACTERS] for line in evidence.log[-SENT_LINES:])
    return Account(
        exception=evidence.exception[:255],
        said=sendable(evidence.message[: 256 if brief else 4096]),
        traceback="" if brief else sendable(evidence.traceback[-16384:]),
        log=sendable(log[:4096]),
        tail=tuple(sendable(line) for line in shown),
        kernel=tuple(sendable(line)[:LONGEST_REASON] for line in evidence.kernel[:8]),
        gpus=() if brief else tuple(sendable(line)[:SENT_CHARACTERS] for line in evidence.gpus[:MOST_GPUS]),
        ran=evidence.ran,
        step=evidence.step,
    )


def timed(failure: Failure, words: LastWords | None, now: float) -> Failure:
    """With the time at which its exception was raised, and the same by the agent's own clock, which says `now`."""
    if words is not None and failure.error_file == "<N/A>" and words.at <= failure.at:
        failure = replace(failure, at=words.at)
    return replace(failure, clock=max(0.0, now - max(0.0, time.time() - failure.at)))


def _raised(failure: Failure, words: LastWords | None) -> tuple[str, str]:
    """The exception's type and message: as the worker left them, or as its error file has them."""
    if words is not None:
        return words.exception, words.message
    if not failure.error:
        return "", "" if failure.pid else failure.message  # one that could not be started has nothing but that
    return named(_recorded(failure.error))


def named(text: str) -> tuple[str, str]:
    """An exception's type and message, of the line that Python ends a traceback with.

    >>> named("torch.OutOfMemoryError: CUDA out of memory"), named("no exception")
    (('torch.OutOfMemoryError', 'CUDA out of memory'), ('', 'no exception'))
    """
    found = _NAMED.match(text)
    return (found[1], found[2]) if found else ("", text)


def _recorded(error: str) -> str:
    import json

    message = json.loads(error)["message"]
    return str(message.get("message", "") if isinstance(message, dict) else message)
