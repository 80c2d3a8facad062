"""How Outlast's own lines look at the terminal: one per decision, apart from what the workers print."""

from __future__ import annotations

import logging
import sys

FORMAT = "%(asctime)s outlast %(name)s: %(message)s"


class _OneLine(logging.Formatter):
    """A message is one line, whatever names are in it: none can pretend to be another, or speak to the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in record.getMessage())
        record.msg, record.args = text, None
        return super().format(record)


def configure(level: str, who: str) -> logging.Logger:
    """Send this process's lines to standard error. `who`: "agent" or "coordinator".

    >>> configure("info", "agent").name
    'agent'
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine(FORMAT, "%H:%M:%S"))
    logger = logging.getLogger(who)
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    # A terminal that has gone away must not take the job with it.
    logging.raiseExceptions = False
    return logger
