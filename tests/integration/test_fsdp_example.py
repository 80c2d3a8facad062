"""examples/fsdp_elastic.py in its three scenarios: every sample once per epoch, with the losses of a quiet run."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from jobs import free_port, job, node
from outlast.checkpoint.storage import format as disk
from processes import Process, await_exit, python

EXAMPLE = Path(__file__).parents[2] / "examples" / "fsdp_elastic.py"
LONG = 150.0
EPOCHS, SAMPLES, STEPS = 6, 75, 42  # seven steps an epoch, the last one with three samples
SMALL = ("--lines=520", "--epochs=6", "--width=32", "--depth=2", "--global-batch=12", "--micro-batch=4")

pytestmark = pytest.mark.timeout(600)


class Run:
    """One training in a directory of its own, over all its processes, generations and jobs."""

    def __init__(self, directory: Path) -> None:
        self.checkpoints, self.log = directory / "checkpoints", directory / "log"
        self.log.mkdir(parents=True)
        self.args = [*SMALL, "--save-every=4", "--checkpoints", self.checkpoints, "--log", self.log]

    def entries(self) -> list[tuple[int, dict[str, Any]]]:
        """What was trained: the generation, and what a rank has logged of a step."""
        files = [(int(path.name.partition("-")[0]), path) for path in self.log.glob("*.jsonl")]
        return [(number, json.loads(line)) for number, path in files for line in path.read_text().splitlines()]

    def surviving(self) -> dict[int, list[dict[str, Any]]]:
        """By step, what all ranks trained in it when it was trained for the last time."""
        last: dict[int, int] = {}
        for generation, entry in self.entries():
            last[entry["step"]] = max(generation, last.get(entry["step"], 0))
        steps: dict[int, list[dict[str, Any]]] = {step: [] for step in sorted(last)}
        for generation, entry in self.entries():
            if last[entry["step"]] == generation:
                steps[entry["step"]].append(entry)
        assert all(len(ranks) == ranks[0]["world"] for ranks in steps.values())
        return steps

    def losses(self) -> list[float]:
        """Of each global batch."""
        return [sum(entry["loss"] for entry in ranks) / len(ranks) for ranks in self.surviving().values()]

    def next_job(self) -> None:
        """What is trained from here on came later, though its generations are counted from 1 again."""
        for path in self.log.glob("*.jsonl"):
            path.rename(path.with_name(f"0-of-before-{path.name}"))


def is_exact(run: Run, truth: list[float]) -> None:
    steps = run.surviving()
    assert list(steps) == list(range(1, STEPS + 1))
    for epoch in range(EPOCHS):
        of_epoch = [entry for ranks in steps.values() for entry in ranks if entry["epoch"] == epoch]
        counts = Counter(sample for entry in of_epoch for sample in entry["samples"])
        assert counts == dict.fromkeys(range(SAMPLES), 1)
    assert run.losses() == pytest.approx(truth, rel=1e-4)


def alone(run: Run, *args: str | Path) -> None:
    """On one rank, without a launcher."""
    env = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    process = Process([python(), EXAMPLE, *run.args, *args], env={**env, "MASTER_PORT": str(free_port())})
    assert process.wait(LONG) == 0, process.output


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("undisturbed"))
    alone(run)
    return run


def elastic(name: str, port: int, run: Run) -> Process:
    flags = ("--nnodes=1:2", "--nproc-per-node=1", "--ft-last-call=0", "--ft-use-infra-group-rank=false")
    times = ("--ft-planned-change-timeout=100", "--ft-snapshot-linger=1")
    return node(name, port, *flags, *times, script=EXAMPLE, args=run.args)


def workers(agent: Process) -> list[psutil.Process]:
    children = psutil.Process(agent.pid).children()
    return [each for each in children if EXAMPLE.name in " ".join(each.cmdline()) and "RANK" in each.environ()]


@pytest.mark.thorough
def test_undisturbed_it_learns_and_goes_on_from_a_chosen_checkpoint(undisturbed: Run, tmp_path: Path) -> None:
    losses = undisturbed.losses()
    is_exact(undisturbed, losses)
    assert losses[-1] < 0.9 * losses[0]
    steps = [each.step for each in disk.found(undisturbed.checkpoints)]
    assert steps == [42, 40, 36]  # the newest three: every 4 steps, and each epoch
    again = Run(tmp_path)
    alone(again, "--resume", undisturbed.checkpoints / "step-00000036")
    assert list(again.surviving()) == list(range(37, STEPS + 1))
    assert again.losses() == pytest.approx(losses[36:], rel=1e-5)


@pytest.mark.thorough
def test_a_node_joins_and_one_of_two_fails(undisturbed: Run, tmp_path: Path) -> None:
    run, port = Run(tmp_path), free_port()
    with elastic("a", port, run) as a:
        a.wait_for("training from step 0 on 1 ranks", LONG)
        (worker,) = workers(a)
        worker.suspend()  # so that it does not finish before the other node has come
        with elastic("b", port, run) as b:
            a.wait_for("node b waits as a spare", LONG, anywhere=True)
            worker.resume()
            saved = int(a.wait_for("b joined; all ranks have saved step (\\d+)", LONG, anywhere=True)[1])
            trained = Counter(entry["step"] for _, entry in run.entries())
            assert trained == dict.fromkeys(range(1, saved + 1), 1)  # and none twice
            a.wait_for(f"training from step {saved} on 2 ranks", LONG)
            a.wait_for(r"step \d+, .* on 2 ranks", LONG)
            b.signal(signal.SIGKILL)
            a.wait_for(r"training from step \d+ on 1 ranks", LONG)
            assert await_exit(b.tree(), LONG) == []
        assert a.wait(LONG) == 0, a.output
    is_exact(run, undisturbed.losses())


def test_everything_fails_and_is_started_again(undisturbed: Run, tmp_path: Path) -> None:
    run = Run(tmp_path)
    aside = tmp_path / "tmp"  # where files of processes lie that nobody can remove any more
    aside.mkdir()
    with job("--nproc-per-node=2", script=EXAMPLE, args=run.args, env={"TMPDIR": str(aside)}) as first:
        first.wait_for("step 20, ", LONG)
        arena = Path(workers(first)[0].environ()["OUTLAST_ARENA"].rpartition(":")[0])
        first.kill()
    shutil.rmtree(arena, ignore_errors=True)  # as a machine that is started again has nothing in memory
    run.next_job()
    newest, before, *_ = disk.found(run.checkpoints)
    os.truncate(newest.path / "__0_0.distcp", 10)
    with job("--nproc-per-node=3", script=EXAMPLE, args=run.args) as second:
        second.wait_for(f"{newest.path.name}.*; trying the one before it", LONG, anywhere=True)
        second.wait_for(f"training from step {before.step} on 3 ranks", LONG, anywhere=True)
        assert second.wait(LONG) == 0, second.output
    is_exact(run, undisturbed.losses())
