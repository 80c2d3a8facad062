"""Events for programs: the coordinator appends a JSON line to a file for each, in a thread: a disk may hang."""

from __future__ import annotations

import logging
import os
import threading
from queue import SimpleQueue

import msgspec

from outlast.events.numbered import NumberedEvent, json_fields

log = logging.getLogger("coordinator")
_encoder = msgspec.json.Encoder()

MOST_WAITING = 10_000  # lines that a disk that hangs may owe; later ones are left out
PATIENCE = 2.0  # seconds for the disk at the end


class EventStream:
    """The file of `--ft-events`. It never keeps the job from going on: what cannot be written is said once.

    stream = EventStream("events.jsonl", job="j"); stream.append(numbered, run="4f")
    """

    def __init__(self, path: str, *, job: str) -> None:
        self._path, self._job = path, job
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._full = self._given_up = False
        self._thread = threading.Thread(target=self._write, name="outlast-events", daemon=True)
        self._thread.start()

    def append(self, numbered: NumberedEvent, *, run: str) -> None:
        """Write one line, whole or not at all, so that several jobs may share a file. Returns at once."""
        if self._given_up or self._full:
            return
        self._full = self._lines.qsize() >= MOST_WAITING
        if self._full:
            log.warning("no more events: the disk of %s does not answer; the job continues", self._path)
            return
        self._lines.put(_encoder.encode(json_fields(numbered, job=self._job, run=run)) + b"\n")

    def close(self) -> None:
        """No more is written; what was given before is, if the disk answers."""
        self._lines.put(None)
        self._thread.join(PATIENCE)

    def _write(self) -> None:
        try:
            # Not waited for: what should be a file may be a pipe that nobody reads.
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
            file = os.open(self._path, flags, 0o600)
        except OSError as error:
            self._give_up(error)
            return
        try:
            while (line := self._lines.get()) is not None:
                os.write(file, line)
        except OSError as error:
            self._give_up(error)
        finally:
            os.close(file)

    def _give_up(self, error: OSError) -> None:
        self._given_up = True
        log.warning("no events: %s: %s (--ft-events sets another file); the job continues", self._path, error.strerror)
