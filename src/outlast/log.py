"""How Outlast's own lines look at the terminal: one per decision, apart from what the workers print."""

from __future__ import annotations

import logging
import sys

FORMAT = "%(asctime)s outlast %(name)s: %(message)s"


def configure(level: str, who: str) -> logging.Logger:
    """Send this process's lines to standard error. `who`: "agent" or "coordinator".

    >>> configure("info", "agent").name
    'agent'
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT, "%H:%M:%S"))
    logger = logging.getLogger(who)
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    # A terminal that has gone away must not take the job with it.
    logging.raiseExceptions = False
    return logger
