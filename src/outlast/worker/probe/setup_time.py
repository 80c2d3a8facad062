"""Where a script spends its time before its first step, line by line: looked at from a thread beside it.

All time since the last look goes to the line that is at work now, so the sum is the whole, however late a look comes.
"""

from __future__ import annotations

import sys
import threading
import time

from outlast.worker.probe.user_code import line_of

PAUSE = 0.005  # seconds between two looks
MOST = 600.0  # seconds that are looked at
SHOWN = 12  # lines


class SetupClock:
    """Runs until `stop`."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._began = time.monotonic()
        self._over = threading.Event()
        self._main = threading.main_thread().ident
        self._thread = threading.Thread(target=self._look, name="outlast probe", daemon=True)
        self._thread.start()

    def stop(self) -> list[tuple[str, float]]:
        """The lines with the seconds that each took, the longest first. An empty line: Python itself."""
        self._over.set()
        self._thread.join()
        return sorted(self._spent.items(), key=lambda item: -item[1])[:SHOWN]

    def _look(self) -> None:
        last = self._began
        while not self._over.wait(PAUSE) and last - self._began < MOST:
            frame = sys._current_frames().get(self._main or 0)
            now = time.monotonic()
            line = line_of(frame)
            del frame
            self._spent[line] = self._spent.get(line, 0.0) + now - last
            last = now
