"""What a generation's processes left in /dev/shm is removed with them, and nothing else."""

from __future__ import annotations

import os
import signal

import pytest

from hosts import SHM, entries
from jobs import SCRIPTS, job
from processes import Process

SHARES = SCRIPTS / "shares.py"


def sharing(process: Process) -> list[int]:
    """The pids of the workers, once they share something."""
    return [int(process.wait_for(rf"rank {rank} shares: pid (\d+)", anywhere=True)[1]) for rank in (0, 1)]


@pytest.mark.parametrize("args", [[], ["--stubborn"]], ids=["the others end on SIGTERM", "the others are killed"])
def test_a_kill_leaves_nothing_in_shared_memory(args: list[str]) -> None:
    before = set(entries(SHM))
    with job("--nproc-per-node=2", "--max-restarts=1", script=SHARES, args=args) as process:
        victim = sharing(process)[1]
        assert set(entries(SHM)) - before
        (SHM / "of-somebody-else").touch()
        before.add("of-somebody-else")
        os.kill(victim, signal.SIGKILL)
        assert process.wait() == 0, process.output
        assert set(entries(SHM)) == before
        (SHM / "of-somebody-else").unlink()


def test_the_end_of_a_job_leaves_nothing_in_shared_memory() -> None:
    before = set(entries(SHM))
    with job("--nproc-per-node=2", "--shutdown-timeout=1", script=SHARES, args=["--stubborn"]) as process:
        sharing(process)
        process.signal(signal.SIGTERM)
        assert process.wait() == 1
        assert set(entries(SHM)) <= before
