"""Real processes: every sample once per epoch after kill -9, and the loss curve of one world size on others."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from jobs import SCRIPTS, free_port, job, node
from processes import Process

SCRIPT = SCRIPTS / "exactly_once.py"
LENGTH, EPOCHS, BATCH = 103, 2, 12  # nine steps an epoch, the last one with 7 samples


def checkpoint(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def train(path: Path, ranks: int, *args: str | int) -> None:
    """One run to its end, on so many ranks."""
    with job(f"--nproc-per-node={ranks}", script=SCRIPT, args=["--checkpoint", str(path), *map(str, args)]) as process:
        assert process.wait(150) == 0, process.output


def is_exact(history: list[tuple[int, list[int]]]) -> None:
    for epoch in range(EPOCHS):
        counts = Counter(sample for of, samples in history if of == epoch for sample in samples)
        assert counts == dict.fromkeys(range(LENGTH), 1)


def waiting(process: Process, life: int, rank: int, world_size: int) -> int:
    """Await that this rank waits to be killed; its pid."""
    line = rf"rank {rank} of {world_size} waits in life {life}: pid (\d+)"
    return int(process.wait_for(line, 150, anywhere=True)[1])


def interrupt(process: Process) -> None:
    """End the job as Ctrl-C does: nothing is left of it but its checkpoint."""
    process.signal(signal.SIGINT)
    process.wait()


@pytest.mark.timeout(600)
def test_the_loss_on_4_then_2_then_3_ranks_is_that_on_4(tmp_path: Path) -> None:
    train(tmp_path / "steady.pt", 4)
    elastic = tmp_path / "elastic.pt"
    train(elastic, 4, "--steps", 5)
    train(elastic, 2, "--steps", 11)  # into the second epoch
    train(elastic, 3)
    one, other = checkpoint(tmp_path / "steady.pt"), checkpoint(elastic)
    assert len(one["losses"]) == 18
    assert other["losses"] == pytest.approx(one["losses"], rel=1e-4)
    assert [tuple(each) for each in other["history"]] == [tuple(each) for each in one["history"]]
    assert other["scheduler"]["last_epoch"] == one["scheduler"]["last_epoch"] == 18
    for name, tensor in one["model"].items():
        torch.testing.assert_close(other["model"][name], tensor, rtol=1e-3, atol=1e-5)
    is_exact(other["history"])


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(2))
def test_each_sample_once_after_workers_are_killed(tmp_path: Path, seed: int) -> None:
    """Killed at random steps, with checkpoints that are older than the kill; then all is lost but the checkpoint."""
    draw = random.Random(seed)
    path = tmp_path / "state.pt"
    wait_at, save_every = draw.randint(3, 5), draw.randint(2, 3)
    args = ["--checkpoint", path, "--wait-at", str(wait_at), "--save-every", str(save_every)]
    with job("--nproc-per-node=2", "--max-restarts=3", script=SCRIPT, args=args) as process:
        for life in (1, 2):
            os.kill(waiting(process, life, draw.randrange(2), 2), signal.SIGKILL)
        waiting(process, 3, 0, 2)
        interrupt(process)
    assert 0 < len(checkpoint(path)["history"]) < 18
    train(path, 3)
    is_exact(checkpoint(path)["history"])


@pytest.mark.timeout(400)
def test_each_sample_once_when_a_node_is_lost(tmp_path: Path) -> None:
    """Two ranks, then the one that is left, then three in a new job."""
    path, port = tmp_path / "state.pt", free_port()
    flags = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=0"]
    args = ["--checkpoint", path, "--wait-at", "4", "--save-every", "3"]
    with node("a", port, *flags, script=SCRIPT, args=args) as first:
        first.wait_for("joined the job")
        with node("b", port, *flags, script=SCRIPT, args=args) as second:
            first.wait_for(r"rank \d of 2 waits", 150)
            second.signal(signal.SIGKILL)
            first.wait_for("rank 0 of 1 waits", 150)
            interrupt(first)
    train(path, 3)
    is_exact(checkpoint(path)["history"])
