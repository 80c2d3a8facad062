"""Saves by time, with real ranks whose clocks and speeds differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs import job
from processes import Process

TIMED = Path(__file__).parent / "checkpoints" / "timed.py"
LONG = 120.0


def saved(process: Process, start: int, failures: int) -> list[int]:
    """The steps that both ranks have saved."""
    words = [
        process.wait_for(rf"rank {rank} from {start} after {failures} failures: (.*)", LONG, anywhere=True)[1]
        for rank in range(2)
    ]
    assert words[0] == words[1]
    return [int(word) for word in words[0].split()]


@pytest.mark.thorough
def test_ranks_save_the_same_steps_and_not_all_of_them(tmp_path: Path) -> None:
    flags = ("--nproc-per-node=2", "--max-restarts=1", "--ft-snapshot-linger=1")
    run = job(*flags, script=TIMED, args=[tmp_path, "0.5s"])
    first = saved(run, 0, 0)
    assert first[:3] == [1, 2, 4]
    assert len(first) < 60
    again = saved(run, first[-1], 1)  # from the newest one that was in memory
    assert again[0] == first[-1] + 1
    assert run.wait(LONG) == 0, run.output
