"""What people are told, for programs: the coordinator appends a JSON line to a file for each of its decisions."""

from __future__ import annotations

import logging
import os
import time

import msgspec

from outlast.core.job.commands import Note
from outlast.protocol.succession import Term

log = logging.getLogger("coordinator")
_encoder = msgspec.json.Encoder()


class EventStream:
    """The file of `--ft-events`. It never keeps the job from going on: what cannot be written is said once.

    stream = EventStream("events.jsonl", job="j"); stream.append(note, run="4f", term=Term(1, "a"))
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

    def append(self, note: Note, *, run: str, term: Term) -> None:
        """Write one line, whole or not at all, so that several jobs may share a file."""
        if self._file is None:
            return
        line = {
            "time": time.time(),
            "job": self._job,
            "run": run,
            "term": term.number,
            "generation": note.generation,
            "kind": note.kind.value,
            "text": note.text,
        }
        if note.verdict is not None:
            line |= {
                "ranks": note.verdict.culprits,
                "nodes": note.verdict.nodes,
                "where": note.verdict.where,
                "hang": note.verdict.kind.value,
            }
        if note.straggler is not None:
            found = note.straggler.straggler
            line |= {
                "straggler": "begins" if found.over is None else "ends",
                "ranks": found.ranks,
                "nodes": [note.straggler.node],
                "section": found.section,
                "factor": round(found.factor, 3),
                "since": found.since,
                "over": found.over,
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
