"""`outlast run --dashboard`: the page as a process beside the agent, which neither waits for it nor misses it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from outlast.settings.settings import Settings
from outlast.system import own_process

GOODBYE = 3.0  # seconds for its process to end


@contextmanager
def dashboard_beside(settings: Settings) -> Iterator[None]:
    """Serve the page meanwhile, if that is asked for. Its process ends with this one, however this one ends."""
    if not settings.dashboard:
        yield
        return
    port = f"--port={settings.dashboard_port}"
    command = own_process.command("outlast.cli.dashboard:main", f"--agent={os.getpid()}", port)
    page = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        page.terminate()
        try:
            page.wait(GOODBYE)
        except subprocess.TimeoutExpired:
            page.kill()
            page.wait()
