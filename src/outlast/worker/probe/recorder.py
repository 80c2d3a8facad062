"""One file of JSON lines per rank and generation. A line is one write: a kill cuts none in half."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class ProbeRecorder:
    """Writes what this process does; a child that it forks writes nothing."""

    def __init__(self, directory: Path, rank: int, generation: int) -> None:
        self.directory = directory
        self.rank = rank
        self._pid = os.getpid()
        path = directory / f"rank-{rank}-generation-{generation}-{self._pid}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    @property
    def ours(self) -> bool:
        """Whether this is the process that made it."""
        return os.getpid() == self._pid

    def tell(self, kind: str, **fields: Any) -> None:
        """Write one record."""
        if self.ours:
            line = json.dumps({"kind": kind, "time": time.time(), **fields})
            os.write(self._file, line.encode() + b"\n")
