"""Real processes take shards: each is done once in the history that survives, whoever is killed."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from jobs import SCRIPTS, free_port, job, node
from processes import Process, await_exit

SCRIPT = SCRIPTS / "takes_shards.py"
EXAMPLE = Path(__file__).parents[2] / "examples" / "async_workers.py"


def holding(process: Process, rank: int, why: str) -> int:
    """Await that this rank waits with a shard in its hands; its pid."""
    return int(process.wait_for(rf"rank {rank} holds .* {why}: pid (\d+)", 150, anywhere=True)[1])


def kill_coordinator(process: Process) -> None:
    """Kill -9, and await that the next one has taken the generation over."""
    children = psutil.Process(process.pid).children(recursive=True)
    (coordinator,) = [each for each in children if any("outlast.coordinator" in word for word in each.cmdline())]
    coordinator.kill()
    process.wait_for("took over generation 1", 150, anywhere=True)


def await_another(path: Path, timeout: float = 150) -> None:
    """Await that this file is written, or written anew."""
    before = path.stat().st_ino if path.exists() else None
    deadline = time.monotonic() + timeout
    while not path.exists() or path.stat().st_ino == before:
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.01)


def is_exact(directory: Path) -> None:
    model = torch.load(directory / "model.pt", weights_only=True)
    assert torch.equal(model, torch.ones(2, 103, dtype=torch.int64))


@pytest.mark.timeout(400)
def test_each_shard_once_when_the_coordinator_and_a_worker_are_killed(tmp_path: Path) -> None:
    flags = ["--nproc-per-node=3", "--max-restarts=1", "--nnodes=1:2", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
    with job(*flags, script=SCRIPT, args=[tmp_path]) as process:
        ranks = [holding(process, rank, "to go on") for rank in range(3)]
        kill_coordinator(process)  # all of them have a shard, and it knew who has which
        for pid in ranks:
            os.kill(pid, signal.SIGUSR1)
        killed = process.wait_for(r"rank 1 holds .* to be killed after (\d+): pid (\d+)", 150)
        for rank in range(3):  # rank 1 may be ahead of the others, who are still saving
            process.wait_for(rf"rank {rank} saved {killed[1]}$", 150, anywhere=True)
        os.kill(int(killed[2]), signal.SIGKILL)
        for _ in range(3):
            process.wait_for(rf"rank \d of 3 goes on after {killed[1]} shards", 150)
        assert process.wait(150) == 0, process.output
    assert "2 generations, 1 restart" in process.output
    is_exact(tmp_path)


@pytest.mark.timeout(400)
def test_each_shard_once_when_a_node_is_lost_and_fewer_ranks_go_on(tmp_path: Path) -> None:
    port, flags = free_port(), ["--nnodes=1:2", "--nproc-per-node=1", "--ft-snapshot-linger=1", "--ft-last-call=60"]
    with node("a", port, *flags, script=SCRIPT, args=[tmp_path]) as first:
        first.wait_for("joined the job")
        with node("b", port, *flags, script=SCRIPT, args=[tmp_path]) as second:
            for each in (first, second):
                pid = each.wait_for(r"holds .* to go on: pid (\d+)", 150, anywhere=True)
                os.kill(int(pid[1]), signal.SIGUSR1)
            second.wait_for("to be killed", 150)
            second.signal(signal.SIGKILL)
            first.wait_for(r"rank 0 of 1 goes on after \d+ shards", 150)
            assert first.wait(150) == 0, first.output
            assert await_exit(second.tree(), 150) == []  # its keeper outlives it for a second
    is_exact(tmp_path)


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_a_node_that_joins_costs_no_shard(tmp_path: Path) -> None:
    """Not even the one that is under way: it is finished, and all ranks save, before the line-up changes."""
    port, flags = free_port(), ["--nnodes=1:2", "--nproc-per-node=1", "--ft-planned-change-timeout=120"]
    options: dict[str, Any] = {"script": SCRIPT, "args": [tmp_path, "--wait-alone"]}
    with node("a", port, *flags, **options) as first:
        pid = first.wait_for(r"rank 0 holds .* to go on: pid (\d+)", 150)[1]  # after the first save, of 4 shards
        with node("b", port, *flags, **options) as second:
            first.wait_for(r"all ranks save before it ends \(b joined\)", 150)
            os.kill(int(pid), signal.SIGUSR1)
            first.wait_for("all ranks have saved step 5", 150)
            first.wait_for("rank 0 of 2 goes on after 5 shards", 150)
            assert [each.wait(150) for each in (first, second)] == [0, 0], first.output
    is_exact(tmp_path)


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_example_with_a_parameter_server_survives_kills_of_a_worker_and_of_the_server(tmp_path: Path) -> None:
    checkpoint = tmp_path / "newest.pt"
    flags = ["--nproc-per-node=3", "--max-restarts=2"]
    with job(*flags, script=SCRIPTS / "runs_example.py", args=[EXAMPLE, tmp_path]) as process:
        for rank in (2, 0):
            pid = int(process.wait_for(rf"rank {rank} runs the example: pid (\d+)", 150)[1])
            await_another(checkpoint)
            os.kill(pid, signal.SIGKILL)
            process.wait_for(rf"rank {rank} on node .* failed \(signal 9\)", 150)
        assert process.wait(200) == 0, process.output
    left = [int(number) for number in re.findall(r"(\d+) of 80 shards to do", process.output)]
    assert len(left) == 3
    assert 80 == left[0] > left[1] > left[2]
    assert "trained 2000 samples in 2 epochs, each [1] times in each" in process.output
