"""A worker that fails: all of its generation ends, and only then the next one starts, as often as is allowed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch

from jobs import errors, job, workers
from processes import Process, arguments

TRAIN = Path(__file__).parents[2] / "examples" / "train.py"
STEPS = 200  # far more than are trained between a kill and its effect


def test_a_killed_worker_restarts_all_in_a_new_generation(tmp_path: Path) -> None:
    with job("--nproc-per-node=3", "--max-restarts=2", args=["--journal", tmp_path]) as process:
        first = workers(process, 1, 0, 1, 2)
        os.kill(first[1].pid, signal.SIGKILL)
        second = workers(process, 2, 0, 1, 2)
        # Rank 0 hosts the generation's store: it may be the one that dies.
        os.kill(second[0].pid, signal.SIGKILL)
        third = workers(process, 3, 0, 1, 2)
        for worker in third:
            os.kill(worker.pid, signal.SIGUSR1)
        assert process.wait() == 0
    assert [[worker.restart for worker in each] for each in (first, second, third)] == [[0] * 3, [1] * 3, [2] * 3]
    ports = [{worker.port for worker in each} for each in (first, second, third)]
    assert all(len(each) == 1 for each in ports)
    assert len(set.union(*ports)) == 3
    assert len({worker.pid for each in (first, second, third) for worker in each}) == 9
    assert "OVERLAP" not in process.output


def test_the_old_generation_is_dead_before_the_new_one_starts_even_if_it_does_not_want_to_go(tmp_path: Path) -> None:
    stubborn = ["--journal", tmp_path, "--ignore", "SIGTERM", "SIGINT"]
    with job("--nproc-per-node=2", "--max-restarts=1", "--ft-restart-grace=0.5", args=stubborn) as process:
        old = workers(process, 1, 0, 1)
        os.kill(old[0].pid, signal.SIGUSR2)
        new = workers(process, 2, 0, 1)
        process.wait_for("rank 1 got SIGTERM in generation 1", anywhere=True)
        for worker in new:
            os.kill(worker.pid, signal.SIGUSR1)
        assert process.wait() == 0
    assert "OVERLAP" not in process.output


def test_when_the_restarts_are_used_up_the_job_fails_and_says_so() -> None:
    process = job("--nproc-per-node=2", "--max-restarts=2", args=["--fail", "1"])
    assert process.wait() == 1
    workers(process, 3, 1)
    assert "started in generation 4" not in process.output
    (error,) = errors(process)
    assert "rank 1" in error
    assert "exit code 7" in error
    assert "2 restarts did not help (--max-restarts=2)" in error
    assert "Root Cause (first observed failure):" in process.output


def test_a_worker_that_exits_at_once_every_time_does_not_loop_for_ever() -> None:
    process = job("--nproc-per-node=2", "--max-restarts=5", args=["--fail", "0", "1"])
    assert process.wait() == 1
    assert sum("started in generation" in line and line.startswith("rank 0") for line in process.lines) <= 6
    assert "5 restarts did not help" in errors(process)[0]


def test_workers_that_fail_together_cost_one_restart() -> None:
    with job("--nproc-per-node=3", "--max-restarts=1", args=["--ignore", "SIGTERM"]) as process:
        for worker in workers(process, 1, 0, 1, 2):
            os.kill(worker.pid, signal.SIGUSR2)
        for worker in workers(process, 2, 0, 1, 2):
            os.kill(worker.pid, signal.SIGUSR1)
        assert process.wait() == 0


def test_a_failure_after_others_have_finished_restarts_them_too() -> None:
    with job("--nproc-per-node=2", "--max-restarts=1") as process:
        first = workers(process, 1, 0, 1)
        os.kill(first[0].pid, signal.SIGUSR1)
        process.wait_for("rank 0 got SIGUSR1", anywhere=True)
        os.kill(first[1].pid, signal.SIGKILL)
        for worker in workers(process, 2, 0, 1):
            os.kill(worker.pid, signal.SIGUSR1)
        assert process.wait() == 0


def test_a_failure_in_the_middle_of_a_recovery_is_recovered_from(tmp_path: Path) -> None:
    """Rank 1 of the second generation fails at once, while the others may not have started yet."""
    args = ["--journal", tmp_path, "--fail", "1", "--until", "2"]
    with job("--nproc-per-node=3", "--max-restarts=3", args=args) as process:
        for worker in workers(process, 3, 0, 1, 2):
            assert worker.restart == 2
            os.kill(worker.pid, signal.SIGUSR1)
        assert process.wait() == 0
    assert "OVERLAP" not in process.output


def test_children_of_workers_are_gone_before_the_next_generation(tmp_path: Path) -> None:
    """Data loaders and their like hold ports and memory: none of them is left when the next generation starts."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, subprocess, sys, pathlib\n"
        f"pids = pathlib.Path({str(tmp_path)!r}) / 'pids'\n"
        "generation = int(os.environ['OUTLAST_GENERATION'])\n"
        "if generation == 1:\n"
        "    child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "    pids.write_text(str(child.pid))\n"
        "    sys.exit(7)\n"
        "stat = pathlib.Path(f'/proc/{pids.read_text()}/stat')\n"
        "sys.exit(8 if stat.exists() else 0)\n"
    )
    process = job("--max-restarts=1", script=script)
    assert process.wait() == 0, process.output


def test_a_training_that_is_killed_several_times_ends_as_one_that_was_not(tmp_path: Path) -> None:
    undisturbed, disturbed = train(tmp_path / "undisturbed.pt"), train(tmp_path / "disturbed.pt")
    for restarts, rank in enumerate((1, 0)):
        disturbed.wait_for(rf"restarts so far: {restarts}\)")
        disturbed.wait_for(r"step \d+: ")
        # Not the agent, nor a fork of it on its way to something else: those are `python -m outlast`.
        workers = sorted(pid for pid in disturbed.tree() if arguments(pid)[1:3] == [b"-u", os.fsencode(TRAIN)])
        os.kill(workers[rank], signal.SIGKILL)
    for process in (undisturbed, disturbed):
        assert process.wait(120) == 0, process.output
    results = [torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("undisturbed", "disturbed")]
    assert results[0]["step"] == results[1]["step"] == STEPS
    for name, weight in results[0]["model"].items():
        torch.testing.assert_close(results[1]["model"][name], weight)


def train(checkpoint: Path) -> Process:
    # One restart more than the kills: now and then torch aborts on its way out, under torchrun as well.
    args = ["--steps", str(STEPS), "--save-every", "5", "--checkpoint", checkpoint]
    return job("--nproc-per-node=2", "--max-restarts=3", script=TRAIN, args=args)
