"""Files of events that are still being written: what has come since the last look."""

from __future__ import annotations

from pathlib import Path

from outlast.ledger.reading import RecordedEvent, recordings


class EventTail:
    """The files of one job. One that was replaced or cut is read anew; one that is not there yet is waited for."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self._read: dict[Path, int] = {}

    def news(self) -> list[RecordedEvent]:
        """The events since the last call, in order; a line that is only half written comes next time."""
        whole = []
        for path in self._paths:
            data = self._more(path)
            end = data.rfind(b"\n") + 1
            self._read[path] = self._read.get(path, 0) + end
            whole.append(data[:end])
        return [event for run in recordings(whole) for event in run.events]

    def _more(self, path: Path) -> bytes:
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._read.get(path, 0):
                    self._read[path] = 0
                file.seek(self._read.get(path, 0))
                return file.read()
        except FileNotFoundError:
            return b""
