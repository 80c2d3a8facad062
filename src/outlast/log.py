"""How Outlast's own lines look at the terminal: one per decision, apart from what the workers print."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable

from outlast.console import without_blocking

FORMAT = "%(asctime)s outlast %(name)s: %(message)s"


def one_line(text: str) -> str:
    r"""A text that cannot speak to the terminal.

    >>> one_line("\x1b[2J\n")
    '\\x1b[2J\\n'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class _OneLine(logging.Formatter):
    """A message is one line, whatever names are in it: none can pretend to be another, or speak to the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        record.msg, record.args = one_line(record.getMessage()), None
        return super().format(record)


class _Console(logging.Handler):
    """Standard error. It waits for nobody: what a paused terminal or a pager does not take is left out, and counted.

    An agent or a coordinator that waited would be taken for dead, and its workers with it.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor, self._send = without_blocking(descriptor)
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record) + "\n"
        if self._left_out:
            text = f"[outlast] {self._left_out} lines dropped: this console is slow\n{text}"
        try:
            self._send(text.encode(errors="backslashreplace"))
        except BlockingIOError:
            self._left_out += 1
        except OSError:
            pass  # a terminal that has gone away must not take the job with it
        else:
            self._left_out = 0

    def close(self) -> None:
        super().close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor, self._send = -1, len


class Sparing:
    """Warnings that anybody can cause: after `most` of them within `period` seconds they are only counted.

    The next one that is logged says how many were left out.
    """

    def __init__(
        self, log: logging.Logger, *, most: int = 20, period: float = 60.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._most, self._period, self._now = log, most, period, now
        self._since = float("-inf")
        self._logged = self._left_out = 0
        self._lock = threading.Lock()

    def warning(self, text: str, *args: object) -> None:
        with self._lock:
            now = self._now()
            if now - self._since >= self._period:
                self._since, self._logged = now, 0
            if self._logged >= self._most:
                self._left_out += 1
                return
            self._logged += 1
            left_out, self._left_out = self._left_out, 0
        if left_out:
            text, args = f"{text} (and %d such warnings before)", (*args, left_out)
        self._log.warning(text, *args)


def _handler() -> logging.Handler:
    try:
        return _Console(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # there is none, or somebody has put another thing there
        return logging.StreamHandler(sys.stderr)


def configure(level: str, who: str) -> logging.Logger:
    """Send this process's lines to standard error. `who`: "agent" or "coordinator".

    >>> configure("info", "agent").name
    'agent'
    """
    handler = _handler()
    handler.setFormatter(_OneLine(FORMAT, "%H:%M:%S"))
    logger = logging.getLogger(who)
    for former in logger.handlers:
        former.close()
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    # A terminal that has gone away must not take the job with it.
    logging.raiseExceptions = False
    return logger
