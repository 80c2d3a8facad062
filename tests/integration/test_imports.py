"""What the processes of a running job have loaded, as the kernel sees it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from jobs import job, workers


def test_neither_agent_nor_coordinator_has_torch_in_memory() -> None:
    """Also not by way of something that was asked for: the flags here are those that need torch's knowledge."""
    flags = ("--nproc-per-node=auto", "--tee=3", "--tls", "--event-log-handler=null")
    with job(*flags, "--max-restarts=1") as process:
        first = workers(process, 1, 0)[0]
        count = first.world
        os.kill(first.pid, signal.SIGKILL)
        members = {worker.pid for worker in workers(process, 2, *range(count))}
        (coordinator,) = set(process.tree()) - members - {process.pid}
        for pid in (process.pid, coordinator):
            maps = Path(f"/proc/{pid}/maps").read_text()
            assert "python" in maps
            assert "torch" not in maps
            assert "numpy" not in maps
        for pid in members:
            os.kill(pid, signal.SIGUSR1)
        assert process.wait() == 0
