"""Notes when workers' log files grow, so that their lines have times (`outlast.logs.marks`). Blocking calls."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from outlast.logs.directory import HEADER, AttemptHeader
from outlast.logs.marks import Mark, marks_file, packed

logger = logging.getLogger("agent")

PERIOD = 0.25  # seconds between two looks


class LogMarker:
    """The logs of one generation. Its methods are called in the thread of the disk."""

    def __init__(self, generation: int, logs: Iterable[str]) -> None:
        self.generation = generation
        self.looked = 0.0  # when the logs were last looked at
        self.closed = False
        self._sizes = {Path(log): 0 for log in logs}
        self._files: dict[Path, int] = {}

    def introduce(self, header: AttemptHeader) -> None:
        """Say whose logs these are. Raises OSError."""
        for attempt in {log.parent.parent for log in self._sizes}:
            (attempt / HEADER).write_bytes(msgspec.json.encode(header))

    def look(self, time: float) -> None:
        """Note how large the logs are now."""
        for log, before in list(self._sizes.items()):
            try:
                size = log.stat().st_size
                if size > before:
                    self._mark(log, Mark(time, size))
            except OSError as error:
                del self._sizes[log]
                # A disk that is full has been reported by who writes the log.
                logger.debug("lines of %s have no times from here on: %s", log, error.strerror)
        self.looked = time

    def finish(self, time: float) -> None:
        """Nothing more will be written."""
        self.look(time)
        for descriptor in self._files.values():
            with suppress(OSError):  # a disk that had no room has been reported
                os.close(descriptor)
        self._files.clear()
        self.closed = True

    def _mark(self, log: Path, mark: Mark) -> None:
        if log not in self._files:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            self._files[log] = os.open(marks_file(log), flags, 0o666)
        os.write(self._files[log], packed(mark))
        self._sizes[log] = mark.size
