"""A process that goes on in a new generation: what it kept of the old one goes, and what it is told changes.

A new process has nothing of an old generation, and ranks that stayed must not differ from ranks that are new.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outlast.worker import health, last_words, store
from outlast.worker.boundary import boundaries
from outlast.worker.session import session

_at_end: list[Callable[[], None]] = []


def at_end(forget: Callable[[], None]) -> None:
    """Call this when a generation is over and this process goes on: for modules that keep something of it."""
    _at_end.append(forget)


def end() -> None:
    """The generation is over: let go of all that was kept of it."""
    for forget in _at_end:
        forget()
    health.forget()
    session.end_generation()
    boundaries.begin_anew()


def begin(changes: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Go on in the next one: with these changes to the environment, and these descriptors as stdout and stderr."""
    for stream, own, new in zip((sys.stdout, sys.stderr), (1, 2), streams, strict=True):
        stream.flush()
        os.dup2(new, own)
    for name in changes["unset"]:
        os.environ.pop(name, None)
    os.environ.update(changes["set"])
    last_words.begin_anew()
    store.begin_anew()
    session.begin_generation()
