"""Checkpoints under the launcher, with real processes: whoever dies, training goes on from the newest state."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoints.saves import PIECES, checkpointer
from hosts import SHM
from jobs import free_port, job, node
from outlast.checkpoint.storage import format as disk
from processes import Process, await_exit, python

TRAIN = Path(__file__).parent / "checkpoints" / "train.py"
LONG = 120.0  # torch is imported, on machines with little to spare


def train(directory: Path, *flags: str, args: list[str], linger: int = 1) -> Process:
    command = ("--nproc-per-node=2", f"--ft-snapshot-linger={linger}", *flags)
    return job(*command, script=TRAIN, args=[directory, *args])


def ranks(directory: Path, world: int, *args: str) -> list[Process]:
    """Ranks without a launcher."""
    port = free_port()
    common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return [
        Process([python(), TRAIN, directory, *args], env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(world)
    ]


def finished(process: Process) -> dict[int, str]:
    """The digests of the states that a training went through, by step."""
    assert process.wait(LONG) == 0, process.output
    return {int(step): word for step, word in re.findall(r"(?:restored|step) (\d+) (\w{12})\b", process.output)}


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The states of a training that nothing happens to."""
    return finished(Process([python(), TRAIN, tmp_path_factory.mktemp("truth"), "--steps=9"]))


@pytest.fixture(autouse=True)
def _no_shared_memory_is_left() -> Iterator[None]:
    yield
    mine = f"outlast-{os.getuid()}-"
    assert [path.name for path in SHM.iterdir() if path.name.startswith(mine)] == []


def test_a_worker_that_is_killed_costs_nothing_that_was_saved(tmp_path: Path, truth: dict[int, str]) -> None:
    """Nothing was to be on disk: it is restored from memory, and was written when the workers had died."""
    run = train(tmp_path, "--max-restarts=1", args=["--kind=ddp", "--steps=5", "--kill-at=3"])
    run.wait_for("restored 0", LONG)
    run.wait_for(r"restored 3 (\w+)", LONG)
    assert finished(run) == {step: truth[step] for step in range(1, 6)}
    assert [each.step for each in disk.found(tmp_path)] == [3]
    assert disk.verify(tmp_path / "step-00000003") == []


@pytest.mark.thorough
def test_a_job_goes_on_from_disk_on_another_number_of_ranks(tmp_path: Path, truth: dict[int, str]) -> None:
    """Sharded and replicated, with and without a launcher; 2, 1, 3 and 2 ranks."""
    assert finished(train(tmp_path, args=["--kind=fsdp", "--steps=2", "--durable=2"]))[2] == truth[2]
    one = Process([python(), TRAIN, tmp_path, "--steps=4", "--durable=2"])
    assert finished(one) == {step: truth[step] for step in (2, 3, 4)}
    three = ranks(tmp_path, 3, "--kind=fsdp", "--steps=6", "--durable=2")
    assert finished(three[0]) == {step: truth[step] for step in (4, 5, 6)}
    assert [each.wait(LONG) for each in three] == [0, 0, 0]
    two = train(tmp_path, args=["--kind=ddp", "--steps=8", "--durable=2"])
    assert finished(two) == {step: truth[step] for step in (6, 7, 8)}
    assert [each.step for each in disk.found(tmp_path)] == [8, 6]  # keep_last=2
    assert all(disk.verify(each.path) == [] for each in disk.found(tmp_path))


@pytest.mark.thorough
def test_nodes_write_their_shards_each_for_itself_and_the_last_one_commits(
    tmp_path: Path, truth: dict[int, str]
) -> None:
    for steps, known in ((4, (1, 2, 3, 4)), (6, (4, 5, 6))):
        port, args = free_port(), [str(tmp_path), "--kind=fsdp", f"--steps={steps}", "--durable=2"]
        flags = ("--nnodes=2", "--nproc-per-node=1", "--ft-use-infra-group-rank=false")
        nodes = [node(name, port, *flags, script=TRAIN, args=args) for name in "ab"]
        assert [each.wait(LONG) for each in nodes] == [0, 0], nodes[0].output + nodes[1].output
        told = dict(re.findall(r"(?:restored|step) (\d+) (\w{12})\b", nodes[0].output + nodes[1].output))
        assert told == {str(step): truth[step] for step in known}
        newest = disk.found(tmp_path)[0]
        assert (newest.step, disk.verify(newest.path)) == (steps, [])
        assert disk.read_manifest(newest.path).save.world == 2


def test_an_agent_that_is_killed_leaves_the_newest_state_on_disk_and_no_memory(
    tmp_path: Path, truth: dict[int, str]
) -> None:
    with train(tmp_path, args=["--kind=ddp", "--steps=3", "--wait"]) as run:
        run.wait_for("done", LONG)
        run.signal(signal.SIGKILL)
        run.wait_for("step 3 is on disk")
        assert await_exit(run.tree(), LONG) == []
    assert [each.step for each in disk.found(tmp_path)] == [3]
    assert finished(train(tmp_path, args=["--kind=ddp", "--steps=4"])) == {3: truth[3], 4: truth[4]}


@pytest.mark.thorough
def test_the_next_agent_of_a_place_goes_on_from_the_memory_of_the_killed_one(
    tmp_path: Path, truth: dict[int, str]
) -> None:
    flags = ("--rdzv-id=one", f"--rdzv-endpoint=127.0.0.1:{free_port()}")
    with train(tmp_path, *flags, args=["--kind=ddp", "--steps=3", "--wait"], linger=600) as run:
        run.wait_for("done", LONG)
        run.signal(signal.SIGKILL)
        run.wait_for("step 3 is on disk")
        os.truncate(tmp_path / "step-00000003" / "__0_0.distcp", 10)  # so that only memory can have it
        again = train(tmp_path, *flags, args=["--kind=ddp", "--steps=4"])
        assert finished(again) == {3: truth[3], 4: truth[4]}
        assert await_exit(run.tree(), LONG) == []  # the old keeper did not wait any longer


def test_kills_at_random_instants_never_lose_a_snapshot_nor_mix_two(tmp_path: Path, kills: int) -> None:
    chance = random.Random(3)
    directory, arena = tmp_path / "ck", tmp_path / "arena"
    command = [python(), TRAIN.with_name("saves.py"), directory, arena]
    with Process(command, stdin=subprocess.PIPE) as nursery:
        nursery.wait_for("ready", LONG)
        assert nursery.stdin is not None
        for _ in range(kills):
            nursery.stdin.write(b"go\n")
            nursery.stdin.flush()
            victim = int(nursery.wait_for(r"saved \d+ by (\d+)", LONG)[1])
            threading.Event().wait(chance.random() * 0.02)
            os.kill(victim, signal.SIGKILL)
            nursery.wait_for("gone")
            said = int(re.findall(r"saved (\d+) by", nursery.output)[-1])
            found: dict[str, Any] = {"w": None, "step": None}
            step = checkpointer(directory, arena).restore(found)
            assert step in (said, said + 1)  # it may have been killed before it could say so
            assert found["step"] == step
            assert all(bool((piece == step).all()) for piece in found["w"].values())
            assert len(found["w"]) == PIECES


@pytest.mark.thorough
def test_sigterm_leaves_the_newest_state_on_disk(tmp_path: Path) -> None:
    with train(tmp_path, args=["--kind=ddp", "--steps=3", "--wait"]) as run:
        run.wait_for("done", LONG)
        run.signal(signal.SIGTERM)
        run.wait(LONG)
    assert [(each.step, disk.verify(each.path)) for each in disk.found(tmp_path)] == [(3, [])]
