"""Parameter-server training with real TensorFlow: each kind of task is killed, and training goes on from its saves.

TensorFlow lives in an environment of its own (scripts/install-tensorflow).
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from cgroups import can_limit_memory
from processes import Process

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv" / "tensorflow" / "bin" / "python"
EXAMPLE = ROOT / "examples" / "parameter_server.py"
SHARDS = 600
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}


def clicks(directory: Path, *roles: str, pause: float = 0.3) -> Process:
    """The example with these roles, slow enough to be hit while it trains."""
    flags = [word for role in roles for word in ("--role", role)]
    args = ["--samples", "38400", "--epochs=2", "--save-every=20", f"--pause={pause}", "--checkpoints", directory]
    command = [PYTHON, "-m", "outlast", "run", "--max-restarts=5", *flags, "--tee=3", "--log-dir", directory / "logs"]
    return Process([*command, EXAMPLE, *args], env=QUIET, title="clicks")


def pid_of(job: Process, task: str) -> int:
    """The process of a task, by what it was started with."""
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            mine = f"OL_TEST_ID={job.mark}".encode() in environment and f"OUTLAST_TASK={task}".encode() in environment
            if entry.name.isdecimal() and mine and b"parameter_server" in (entry / "cmdline").read_bytes():
                return int(entry.name)
        except OSError:
            continue  # it has ended meanwhile
    raise AssertionError(f"there is no {task}")


def kill(job: Process, *tasks: str) -> None:
    for pid in [pid_of(job, task) for task in tasks]:
        os.kill(pid, signal.SIGKILL)


def saves(job: Process) -> list[tuple[int, int, float]]:
    """Shards, updates and loss of each checkpoint."""
    found = re.findall(r"saved (\d+) shards, (\d+) updates, loss (\S+)", job.output)
    return [(int(done), int(updates), float(loss)) for done, updates, loss in found]


def check_history(job: Process) -> None:
    """All shards are trained, each life begins with a checkpoint as it was saved, and the loss has fallen."""
    assert job.wait() == 0, job.output
    known = {(0, 0)}
    newest = 0
    for line in job.lines:
        if told := re.search(r"saved (\d+) shards, (\d+) updates", line):
            newest = int(told[1])
            known.add((newest, int(told[2])))
        elif told := re.search(r"restored (\d+) shards, (\d+) updates", line):
            # One more may have been written than was told before the end of the life that wrote it.
            assert (int(told[1]), int(told[2])) in known or int(told[1]) == newest + 20, line
            assert int(told[1]) >= newest, "a finished checkpoint is lost"
    done, updates, loss = saves(job)[-1]
    assert done == SHARDS
    assert updates >= SHARDS  # the work of a worker that dies may be applied twice, and never not at all
    assert loss < 0.9 * saves(job)[0][2]


def test_a_killed_worker_and_evaluator_stop_nobody(tmp_path: Path) -> None:
    with clicks(tmp_path, "chief=1", "worker=2", "ps=1", "evaluator=1") as job:
        job.wait_for(r"evaluated \S+: loss")
        kill(job, "worker-0", "evaluator-0")
        job.wait_for(r"started worker-0 again, life 2", anywhere=True)
        job.wait_for(r"started evaluator-0 again, life 2", anywhere=True)
        check_history(job)
    assert job.output.count("restored ") == 1  # the chief had one life
    assert "1 generation, 0 restarts" in job.output
    assert len(re.findall(r"evaluated", job.output)) >= 2


def test_a_killed_chief_goes_on_from_its_checkpoint_with_the_servers_that_are_there(tmp_path: Path) -> None:
    with clicks(tmp_path, "chief=1", "worker=2", "ps=1") as job:
        job.wait_for("saved 60 shards")
        kill(job, "chief-0")
        restored = job.wait_for(r"restored (\d+) shards")
        assert int(restored[1]) >= 60
        check_history(job)
    assert "1 generation, 0 restarts" in job.output


def test_a_killed_parameter_server_restarts_all_on_new_addresses_and_then_all_are_killed_at_once(
    tmp_path: Path,
) -> None:
    with clicks(tmp_path, "chief=1", "worker=2", "ps=2") as job:
        job.wait_for("saved 60 shards")
        kill(job, "ps-1")
        assert int(job.wait_for(r"restored (\d+) shards")[1]) >= 60
        job.wait_for("saved 140 shards")
        kill(job, "ps-0", "worker-0", "worker-1", "chief-0", "ps-1")
        job.wait_for(r"generation 3: started")
        check_history(job)
    assert "3 generations, 2 restarts" in job.output


@pytest.mark.skipif(not can_limit_memory(), reason="this machine lets nobody make memory cgroups")
def test_a_chief_that_needs_more_memory_than_its_limit_restarts_with_more(tmp_path: Path) -> None:
    with clicks(tmp_path, "chief=1,memory=150MiB,max-memory=2400MiB,restarts=5", "worker=1", "ps=1", pause=0.0) as job:
        job.wait_for(r"chief-0 on node .*started again as life 2, with 300 MiB of memory")
        check_history(job)
