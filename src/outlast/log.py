"""How Outlast's own lines look at the terminal: one per decision, apart from what the workers print."""

from __future__ import annotations

import logging
import os
import sys

from outlast.console import without_blocking

FORMAT = "%(asctime)s outlast %(name)s: %(message)s"


class _OneLine(logging.Formatter):
    """A message is one line, whatever names are in it: none can pretend to be another, or speak to the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in record.getMessage())
        record.msg, record.args = text, None
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
            text = f"[outlast] {self._left_out} lines left out: this console is slow\n{text}"
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
