"""Events for programs: the coordinator appends a JSON line to a file for each."""

from __future__ import annotations

import logging
import os
import time

import msgspec

from outlast.events.events import VERSION, JobEvent
from outlast.events.sentences import sentence
from outlast.protocol.succession import Term

log = logging.getLogger("coordinator")
_encoder = msgspec.json.Encoder()


class EventStream:
    """The file of `--ft-events`. It never keeps the job from going on: what cannot be written is said once.

    stream = EventStream("events.jsonl", job="j"); stream.append(event, run="4f", term=Term(1, "a"))
    """

    def __init__(self, path: str, *, job: str) -> None:
        self._path, self._job = path, job
        self._file: int | None = None
        try:
            # Not waited for: what should be a file may be a pipe that nobody reads.
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
            self._file = os.open(path, flags, 0o600)
        except OSError as error:
            self._give_up(error)

    def append(self, event: JobEvent, *, run: str, term: Term) -> None:
        """Write one line, whole or not at all, so that several jobs may share a file."""
        if self._file is None:
            return
        line = {
            "version": VERSION,
            "time": time.time(),
            "job": self._job,
            "run": run,
            "term": term.number,
            **msgspec.to_builtins(event),
            "text": sentence(event),
        }
        try:
            os.write(self._file, _encoder.encode(line) + b"\n")
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """No more is written."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _give_up(self, error: OSError) -> None:
        log.warning("no events: %s: %s (--ft-events sets another file); the job goes on", self._path, error.strerror)
        self.close()
