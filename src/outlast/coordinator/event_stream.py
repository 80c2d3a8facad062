"""Events for programs: the coordinator appends a JSON line to a file for each."""

from __future__ import annotations

import logging
import os

import msgspec

from outlast.events.numbered import NumberedEvent, json_fields

log = logging.getLogger("coordinator")
_encoder = msgspec.json.Encoder()


class EventStream:
    """The file of `--ft-events`. It never keeps the job from going on: what cannot be written is said once.

    stream = EventStream("events.jsonl", job="j"); stream.append(numbered, run="4f")
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

    def append(self, numbered: NumberedEvent, *, run: str) -> None:
        """Write one line, whole or not at all, so that several jobs may share a file."""
        if self._file is None:
            return
        line = _encoder.encode(json_fields(numbered, job=self._job, run=run))
        try:
            os.write(self._file, line + b"\n")
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
