"""A job with roles, of real processes: each kind of task is killed, and only those that must restart do."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from cgroups import can_limit_memory
from jobs import SCRIPTS, errors
from processes import Process, outlast

TASK = SCRIPTS / "task.py"
TENSORFLOWS = ("--role", "chief=1", "--role", "worker=2", "--role", "ps=1", "--role", "evaluator=1")
NAMES = ("chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0")


class Task(NamedTuple):
    """A task of scripts/task.py, as it introduced itself."""

    name: str
    life: int
    generation: int
    pid: int
    address: str


def run(*flags: str, args: tuple[str, ...] = ()) -> Process:
    return outlast("run", *flags, TASK, *args)


def task(job: Process, name: str, life: int = 1) -> Task:
    """Await this life of a task."""
    said = job.wait_for(rf"({name}) life ({life}) in generation (\d+): pid (\d+) at (\S+)", anywhere=True)
    return Task(said[1], int(said[2]), int(said[3]), int(said[4]), said[5])


def lives(job: Process) -> list[str]:
    """Each process that a task had."""
    return [f"{name} {life}" for name, life in re.findall(r"(\S+-\d+) life (\d+) in generation", job.output)]


def end(job: Process, chief: Task) -> None:
    """Let the chief finish: that ends the job."""
    os.kill(chief.pid, signal.SIGUSR1)
    assert job.wait() == 0, job.output


def test_a_killed_worker_restarts_alone_at_its_address_and_the_chiefs_end_is_the_jobs() -> None:
    with run(*TENSORFLOWS) as job:
        first = {name: task(job, name) for name in NAMES}
        os.kill(first["worker-0"].pid, signal.SIGKILL)
        second = task(job, "worker-0", 2)
        assert (second.generation, second.address) == (1, first["worker-0"].address)
        job.wait_for(
            r"worker-0 on node \S+ failed \(signal 9\).*started again as life 2 \(restart 1 of 3 of its role\)"
        )
        end(job, first["chief-0"])
    assert sorted(lives(job)) == sorted([*(f"{name} 1" for name in NAMES), "worker-0 2"])


def test_a_killed_chief_and_evaluator_restart_alone() -> None:
    with run(*TENSORFLOWS) as job:
        first = {name: task(job, name) for name in NAMES}
        for name in ("chief-0", "evaluator-0"):
            os.kill(first[name].pid, signal.SIGKILL)
        again = {name: task(job, name, 2) for name in ("chief-0", "evaluator-0")}
        assert {each.generation for each in again.values()} == {1}
        end(job, again["chief-0"])
    assert len(lives(job)) == 7


def test_a_killed_parameter_server_restarts_everybody_on_new_addresses() -> None:
    with run(*TENSORFLOWS, "--max-restarts=1") as job:
        first = {name: task(job, name) for name in NAMES}
        os.kill(first["ps-0"].pid, signal.SIGKILL)
        second = {name: task(job, name, 2) for name in NAMES}
        assert {each.generation for each in second.values()} == {2}
        assert not {each.address for each in first.values()} & {each.address for each in second.values()}
        end(job, second["chief-0"])
    assert "ps-0 on node" in job.output


def test_all_killed_at_once_are_one_restart() -> None:
    with run(*TENSORFLOWS, "--max-restarts=1") as job:
        for name in NAMES:
            task(job, name)
        for name in NAMES[::-1]:
            os.kill(task(job, name).pid, signal.SIGKILL)
        # Its life is the second, or the third if its end was noticed before the parameter server's.
        life = job.wait_for(r"chief-0 life (\d) in generation 2", anywhere=True)[1]
        chief = task(job, "chief-0", int(life))
        end(job, chief)
    assert "2 generations, 1 restart" in job.output


def test_a_failure_during_the_restart_of_another_is_dealt_with_too() -> None:
    with run(*TENSORFLOWS, "--max-restarts=1") as job:
        first = {name: task(job, name) for name in NAMES}
        for name in ("worker-0", "worker-1", "chief-0"):
            os.kill(first[name].pid, signal.SIGKILL)
        os.kill(task(job, "worker-1", 2).pid, signal.SIGKILL)
        os.kill(first["ps-0"].pid, signal.SIGKILL)
        again = job.wait_for(r"chief-0 life (\d) in generation 2", anywhere=True)
        end(job, task(job, "chief-0", int(again[1])))
    assert "1 restart)" in job.output


def test_a_role_can_restart_as_a_whole_even_if_it_does_not_want_to_go() -> None:
    roles = ("--role", "chief=1", "--role", "reward=2,restart=role,run=" + f"{TASK} --stubborn")
    with run(*roles) as job:
        chief = task(job, "chief-0")
        task(job, "reward-1")
        os.kill(task(job, "reward-0").pid, signal.SIGKILL)
        assert {task(job, f"reward-{index}", 2).generation for index in (0, 1)} == {1}
        end(job, chief)
    assert sorted(lives(job)) == ["chief-0 1", "reward-0 1", "reward-0 2", "reward-1 1", "reward-1 2"]


def test_a_task_that_always_fails_uses_up_its_restarts_then_the_jobs_and_is_named() -> None:
    roles = ("--role", "chief=1", "--role", "worker=1,restarts=2")
    job = run(*roles, "--max-restarts=1", args=("--fail", "worker"))
    assert job.wait() == 1
    assert job.output.count("worker-0 on node") >= 4
    assert job.output.count("started again as life") == 4
    (error,) = errors(job)
    assert "worker-0" in error
    assert "exit code 7" in error


def test_ctrl_c_ends_every_task() -> None:
    with run(*TENSORFLOWS, args=("--stubborn",)) as job:
        pids = [task(job, name).pid for name in NAMES]
        os.kill(job.pid, signal.SIGINT)
        os.kill(job.pid, signal.SIGINT)
        assert job.wait() != 0
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_status_why_and_logs_name_the_tasks(tmp_path: Path) -> None:
    flags = ("--rdzv-id=roles", "--rdzv-backend=c10d", f"--log-dir={tmp_path}", "--tee=3")
    with run(*TENSORFLOWS, *flags, args=("--steps",)) as job:
        os.kill(task(job, "worker-1").pid, signal.SIGKILL)
        task(job, "worker-1", 2)
        chief = task(job, "chief-0")
        job.wait_for(r"started again as life 2", anywhere=True)
        status = said("status")
        assert re.search(r"task +worker-1: running, life 2", status), status
        assert re.search(r"task +chief-0: running, life 1", status), status
        assert "last fault  worker-1 on node" in status
        told = said("why")
        assert "worker-1 on node" in told
        assert "started again as life 2" in told
        assert "It cost 0" in told
        os.kill(chief.pid, signal.SIGKILL)
        end(job, task(job, "chief-0", 2))
    (log,) = tmp_path.glob("*/attempt_0/2/stdout.log")
    assert [line.split(" in ")[0] for line in log.read_text().splitlines()] == ["worker-1 life 1", "worker-1 life 2"]
    assert re.search(r"^\[worker-1\]:worker-1 life 2", job.output, re.MULTILINE)


@pytest.mark.skipif(not can_limit_memory(), reason="this machine lets nobody make memory cgroups")
def test_a_chief_killed_at_its_memory_limit_restarts_with_twice_as_much_and_no_cgroup_is_left() -> None:
    roles = ("--role", "chief=1,memory=200MiB,max-memory=1GiB", "--role", "worker=1,memory=200MiB")
    with run(*roles, args=("--eat", "300")) as job:
        task(job, "worker-0")
        chief = task(job, "chief-0", 2)
        told = job.wait_for(r"chief-0 on node .*started again as life 2, with (\S+ \S+) of memory")
        assert "host-out-of-memory" in told.string
        assert told[1] == "400 MiB"
        agent = job.pid
        end(job, chief)
    assert sorted(lives(job)) == ["chief-0 1", "chief-0 2", "worker-0 1"]
    assert not [*Path("/sys/fs/cgroup").rglob(f"outlast-{agent}")]


@pytest.mark.skipif(not can_limit_memory(), reason="this machine lets nobody make memory cgroups")
def test_a_torch_worker_killed_at_its_memory_limit_restarts_with_twice_as_much(tmp_path: Path) -> None:
    script = tmp_path / "eat.py"
    script.write_text(EATS)
    job = outlast("run", "--max-restarts=1", "--ft-worker-memory=200MiB", script)
    assert job.wait() == 0, job.output
    job.wait_for("local rank 0 was killed at its memory limit: it restarts with 400 MiB", anywhere=True)
    assert "ate in generation 2" in job.output


EATS = """
import os
eaten = bytearray(300 << 20)
eaten[::4096] = b"x" * len(eaten[::4096])
print("ate in generation", os.environ["OUTLAST_GENERATION"], flush=True)
"""


def said(*command: str) -> str:
    asked = outlast(*command, "--job=roles")
    asked.wait()
    return asked.output
