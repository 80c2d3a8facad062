"""Many restarts in place: nothing is left behind by any of them, and the training is that of an undisturbed job.

`python benchmarks/in_process.py --leak 1000` makes a thousand.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jobs import SCRIPTS, job
from processes import Process

SCRIPT = SCRIPTS / "in_place_soak.py"
RESTARTS = 50
FEW = 5  # descriptors or threads that may be there by chance: a leak has one for every restart
SETTLED = 12  # generations after which everything has been made that is made once
MEMORY = 8 * 2**20  # bytes that a process may grow by in all the others


class Size(NamedTuple):
    """What a process has open, and how large it is."""

    pid: int
    descriptors: int
    threads: int
    resident: int


def begin(folder: Path, faults: int) -> Process:
    folder.mkdir()
    flags = ("--nproc-per-node=2", f"--max-restarts={faults}", "--ft-crash-loop=0", "--ft-in-place-timeout=30")
    return job(*flags, script=SCRIPT, args=[folder, str(RESTARTS + 1), str(faults)])


def marks(folder: Path) -> dict[tuple[int, int], Size]:
    """By generation and rank."""
    words = [[int(word) for word in line.split()[:6]] for line in (folder / "marks").read_text().splitlines()]
    return {(generation, rank): Size(*rest) for generation, rank, *rest in words}


def size(pid: int) -> Size:
    descriptors, threads = (len(list(Path(f"/proc/{pid}", each).iterdir())) for each in ("fd", "task"))
    return Size(pid, descriptors, threads, int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096)


def history(folder: Path) -> list[Any]:
    """Of each step and rank: the samples, and their loss."""
    content: list[Any] = json.loads((folder / "history").read_text())
    return content


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_many_restarts_leave_nothing_behind_and_change_nothing(tmp_path: Path) -> None:
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"
    with begin(disturbed, RESTARTS) as process:
        process.wait_for(f"generation {SETTLED}: started ranks 0 to 1 of 2, 2 in place")
        early_agent = size(process.pid)
        process.wait_for(f"generation {RESTARTS + 1}: started ranks 0 to 1 of 2, 2 in place", 400)
        late_agent = size(process.pid)
        (disturbed / "measured").touch()
        assert process.wait() == 0
    with begin(calm, 0) as process:
        (calm / "measured").touch()
        assert process.wait() == 0

    found = marks(disturbed)
    workers = [(found[SETTLED, rank], found[RESTARTS + 1, rank]) for rank in (0, 1)]
    for early, late in [*workers, (early_agent, late_agent)]:
        assert early.pid == late.pid
        assert late.descriptors < early.descriptors + FEW
        assert late.threads < early.threads + FEW
        assert late.resident < early.resident + MEMORY
    assert history(disturbed) == history(calm)
    trained = Counter(sample for step in history(disturbed) for samples, _ in step for sample in samples)
    assert len(trained) == sum(trained.values()) == 6 * (RESTARTS + 1)
