"""Starts the progress line beside an agent, where somebody sees it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from outlast.settings.settings import Settings
from outlast.system import own_process

GOODBYE = 2.0  # seconds for its process to give the last row back
TERMINAL = 2  # standard error


@contextmanager
def progress_beside(settings: Settings) -> Iterator[None]:
    """Show progress meanwhile. Its process ends with this one, however this one ends."""
    if not settings.progress or not _on_screen(os.environ):
        yield
        return
    command = own_process.command("outlast.progress.process:main", str(os.getpid()), str(os.getpgrp()))
    # It hears by the end of its standard input that this process is gone, and can still put the terminal in order.
    line = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert line.stdin is not None
    try:
        yield
    finally:
        with suppress(OSError):
            line.stdin.close()
        try:
            line.wait(GOODBYE)
        except subprocess.TimeoutExpired:
            line.kill()
            line.wait()


def _on_screen(environment: Mapping[str, str]) -> bool:
    """Whether standard error is a terminal that can keep a row."""
    return environment.get("TERM", "dumb") not in ("dumb", "") and os.isatty(TERMINAL)
