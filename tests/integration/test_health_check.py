"""A health check in a real process group: it raises, and does not hang."""

from __future__ import annotations

import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

from processes import Process, python

SCRIPT = Path(__file__).parent / "scripts" / "health.py"


def test_ranks_that_wait_learn_who_did_not_come() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    common = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(Process([python(), SCRIPT], env={**common, "RANK": str(rank)}, stdin=subprocess.PIPE))
            for rank in range(3)
        ]
        ranks[2].wait_for("rank 2 hangs")
        for rank in (0, 1):
            ranks[rank].wait_for(f"rank {rank}, step 2: all there")
            ranks[rank].wait_for(
                rf"rank {rank}, step 4: rank 2 \({socket.gethostname()}\) did not come to the health check"
            )
            assert ranks[rank].wait() == 3
