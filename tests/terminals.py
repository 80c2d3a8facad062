"""A terminal for tests: a real pty, and what its screen would show."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

PATIENCE = 180.0
_SEQUENCE = re.compile(r"\x1b(?:\[([?0-9;]*)([@-~])|\][^\x07]*\x07|([0-9A-Za-z=>])|[()].)")


class Screen:
    """The rows of a terminal, as far as the sequences that are used here go."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.cells = [""] * rows
        self.gone: list[str] = []  # rows that have scrolled off
        self.top, self.bottom = 0, rows - 1  # what scrolls
        self.row = self.column = 0
        self._saved = (0, 0)
        self._rest = ""

    def resize(self, rows: int, columns: int) -> None:
        while self.row >= rows:  # what is above goes, until the cursor is on the screen
            self.gone.append(self.cells.pop(0))
            self.row -= 1
        self.cells = (self.cells + [""] * rows)[:rows]
        self.rows, self.columns, self.top, self.bottom = rows, columns, 0, rows - 1

    @property
    def whole(self) -> bool:
        """Whether all rows scroll."""
        return (self.top, self.bottom) == (0, self.rows - 1)

    def feed(self, text: str) -> None:
        text, at = self._rest + text, 0
        while at < len(text):
            if text[at] != "\x1b":
                self._put(text[at])
                at += 1
                continue
            match = _SEQUENCE.match(text, at)
            if match is None:
                break  # the rest of it has not come yet
            self._obey(match[1] or "", match[2] or match[3] or "")
            at = match.end()
        self._rest = text[at:]

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self._down()
        elif character == "\b":
            self.column = max(0, self.column - 1)
        elif character >= " ":
            if self.column >= self.columns:
                self.column = 0
                self._down()
            line = self.cells[self.row].ljust(self.column)
            self.cells[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1

    def _down(self) -> None:
        if self.row == self.bottom:
            self.gone.append(self.cells.pop(self.top))
            self.cells.insert(self.bottom, "")
        elif self.row < self.rows - 1:
            self.row += 1

    def _obey(self, parameters: str, what: str) -> None:
        numbers = [int(each) if each.isdecimal() else 0 for each in parameters.split(";")]
        if what == "7":
            self._saved = (self.row, self.column)
        elif what == "8":
            self.row, self.column = min(self._saved[0], self.rows - 1), self._saved[1]
        elif what == "D":
            self._down()
        elif what == "A":
            self.row = max(0, self.row - max(1, numbers[0]))
        elif what == "H":
            self.row, self.column = min(max(1, numbers[0]), self.rows) - 1, 0
        elif what == "K":
            self.cells[self.row] = "" if numbers[0] == 2 else self.cells[self.row][: self.column]
        elif what == "r":
            self.top, self.bottom = (numbers[0] - 1, numbers[1] - 1) if parameters else (0, self.rows - 1)
            self.row = self.column = 0


class Terminal:
    """A pty with somebody who looks at it. `popen`: how to start a command as its session."""

    def __init__(self, rows: int = 24, columns: int = 80) -> None:
        self.master, self._slave = os.openpty()
        self.screen = Screen(rows, columns)
        self.written = ""
        self._news = threading.Condition()
        self._set_size(rows, columns)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._slave)
        self._reader.join(10)
        os.close(self.master)

    @property
    def popen(self) -> dict[str, Any]:
        own = {"stdin": self._slave, "stdout": self._slave, "stderr": self._slave}
        return own | {"preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)}

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        with self._news:
            self.screen.resize(rows, columns)
            self._set_size(rows, columns)

    def wait_until(self, seen: Callable[[Screen], object], timeout: float = PATIENCE) -> None:
        """Await what the screen shows."""
        end = time.monotonic() + timeout
        with self._news:
            while not seen(self.screen):
                if not self._news.wait(max(0.0, end - time.monotonic())) and time.monotonic() >= end:
                    raise AssertionError("the screen never showed it:\n" + "\n".join(self.screen.cells))

    def _set_size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self) -> None:
        with suppress(OSError):  # the last one who had it open is gone
            while data := os.read(self.master, 4096):
                with self._news:
                    text = data.decode(errors="replace")
                    self.written += text
                    self.screen.feed(text)
                    self._news.notify_all()
