"""`outlast run --supervise`: an agent that was killed is back as the same node, and what ends a job still ends it."""

from __future__ import annotations

import os
import pty
import signal
from pathlib import Path

import psutil
import pytest

from jobs import Worker, errors, free_port, job, node, workers
from processes import Process, await_exit, python

ENDED_SOON = 120.0  # seconds, on a machine however busy


def agent(process: Process) -> int:
    """The agent that a supervisor has now."""
    children = psutil.Process(process.pid).children()
    (found,) = [child.pid for child in children if "outlast.cli.run" in " ".join(child.cmdline())]
    return found


def finish(members: list[Worker]) -> None:
    for worker in members:
        os.kill(worker.pid, signal.SIGUSR1)


@pytest.mark.parametrize("victim", ["the host", "the other"])
def test_an_agent_that_was_killed_is_back_as_the_same_node_and_the_job_goes_on_on_both(
    victim: str, tmp_path: Path
) -> None:
    """Also the one that hosted the coordinator, which has outlived it."""
    port = free_port()
    flags, args = ("--nnodes=2", "--max-restarts=0", "--supervise"), ["--journal", tmp_path]
    with node("a", port, *flags, args=args) as a:
        a.wait_for("hosting the coordinator")
        with node("b", port, *flags, args=args) as b:
            killed, other = (a, b) if victim == "the host" else (b, a)
            name = "a" if victim == "the host" else "b"
            killed.wait_for(f"joined the job as node {name}$")
            old = int(killed.wait_for(r"rank \d of 2 started in generation 1: pid (\d+)")[1])
            other.wait_for(r"rank \d of 2 started in generation 1")
            os.kill(agent(killed), signal.SIGKILL)
            assert not await_exit([old], ENDED_SOON)
            killed.wait_for("was killed by SIGKILL: starting it again now")
            killed.wait_for(f"joined the job as node {name}$")
            for each in (a, b):
                started = each.wait_for(r"rank \d of 2 started in generation 2: pid (\d+) restart 0 ")
                os.kill(int(started[1]), signal.SIGUSR1)
            assert [each.wait() for each in (a, b)] == [0, 0]
            assert not [line for each in (a, b) for line in each.lines if "OVERLAP" in line]
            for each in (a, b):
                assert not await_exit(each.tree(), ENDED_SOON)


def test_an_elastic_job_goes_on_without_it_and_takes_it_back(tmp_path: Path) -> None:
    port = free_port()
    flags = ("--nnodes=1:2", "--max-restarts=0", "--ft-last-call=0.2", "--ft-supervise=true")
    with node("a", port, *flags, args=["--journal", tmp_path]) as a:
        a.wait_for("hosting the coordinator")
        with node("b", port, *flags, args=["--journal", tmp_path]) as b:
            for each in (a, b):
                each.wait_for(r"rank \d of 2 started in generation \d+")
            os.kill(agent(b), signal.SIGKILL)
            b.wait_for("was killed by SIGKILL")
            # As soon as it is back, or one generation later: it depends on who is quicker.
            for each in (b, a):
                started = each.wait_for(r"rank \d of 2 started in generation \d+: pid (\d+) restart 0 ")
                os.kill(int(started[1]), signal.SIGUSR1)
            assert [each.wait() for each in (a, b)] == [0, 0]
            assert not [line for each in (a, b) for line in each.lines if "OVERLAP" in line]


def test_a_job_of_one_node_starts_anew_when_its_agent_was_killed() -> None:
    with job("--nproc-per-node=2", "--supervise") as process:
        old = [worker.pid for worker in workers(process, 1, 0, 1)]
        os.kill(agent(process), signal.SIGKILL)
        process.wait_for("was killed by SIGKILL: starting it again now")
        assert not await_exit(old, ENDED_SOON)
        for _ in old:
            os.kill(int(process.wait_for(r"started in generation 1: pid (\d+)")[1]), signal.SIGUSR1)
        assert process.wait() == 0


@pytest.mark.parametrize("switch", ["the environment", "the file", "--rdzv-conf"])
def test_it_is_a_setting_as_any_other(switch: str, tmp_path: Path) -> None:
    (tmp_path / "ft.yaml").write_text("supervise: true\n")
    env = {"OUTLAST_SUPERVISE": "1"} if switch == "the environment" else {}
    flags = {"the file": [f"--ft-cfg-path={tmp_path}/ft.yaml"], "--rdzv-conf": ["--rdzv-conf=supervise=1,is_host=1"]}
    with job(*flags.get(switch, []), env=env) as process:
        members = workers(process, 1, 0)
        assert psutil.Process(members[0].pid).ppid() == agent(process)
        finish(members)
        assert process.wait() == 0


def test_a_flag_of_that_name_after_the_script_is_the_scripts_own(tmp_path: Path) -> None:
    with job(script=names_its_parent(tmp_path), args=["--supervise"]) as process:
        assert process.wait() == 0
        process.wait_for(f"child of {process.pid}$")


def names_its_parent(directory: Path) -> Path:
    script = directory / "train.py"
    script.write_text("import os; print('child of', os.getppid(), flush=True)\n")
    return script


def test_a_failed_job_is_not_started_again() -> None:
    with job("--supervise", args=["--fail", "0"]) as process:
        assert process.wait() == 1
        assert len([line for line in process.lines if "started in generation" in line]) == 1
        assert len(errors(process)) == 1
        assert "outlast supervisor" not in process.output


@pytest.mark.parametrize(
    ("flag", "code"), [("--nnodes=0", 1), ("--ft-node-timeout=never", 1), ("--no-such-flag", 2), ("--rdzv-conf=x", 1)]
)
def test_a_bad_request_is_refused_as_ever(flag: str, code: int) -> None:
    with job("--supervise", flag) as process:
        assert process.wait() == code
        assert len(process.lines) == 1
        assert process.lines[0].startswith("outlast run: error: ")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_to_the_supervisor_is_a_signal_to_the_agent(name: str) -> None:
    with job("--nproc-per-node=2", "--supervise") as process:
        workers(process, 1, 0, 1)
        process.signal(signal.Signals[name])
        assert process.wait() == 1
        for rank in (0, 1):
            process.wait_for(f"rank {rank} got {name}", anywhere=True)
        assert len(errors(process)) == 1
        assert "outlast supervisor" not in process.output
        assert not await_exit(process.tree(), ENDED_SOON)


def test_ctrl_c_at_a_terminal_is_one_request_and_workers_have_their_time() -> None:
    keyboard, terminal = pty.openpty()
    try:
        with job("--supervise", stdin=terminal, preexec_fn=lambda: take_terminal(terminal)) as process:
            workers(process, 1, 0)
            os.write(keyboard, b"\x03")
            assert process.wait() == 1
            process.wait_for("rank 0 got SIGINT", anywhere=True)
            assert "interrupted" in errors(process)[0]
            assert "again: ending at once" not in process.output
            assert not await_exit(process.tree(), ENDED_SOON)
    finally:
        os.close(keyboard)
        os.close(terminal)


def take_terminal(terminal: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def test_nothing_outlives_a_supervisor_that_is_killed() -> None:
    with job("--nproc-per-node=2", "--supervise") as process:
        workers(process, 1, 0, 1)
        process.signal(signal.SIGKILL)
        process.wait()
        assert not await_exit(process.tree(), ENDED_SOON)
        assert not process.tree()


def test_the_python_function_never_supervises(tmp_path: Path) -> None:
    code = "import sys, outlast.run; outlast.run.main(['--supervise', sys.argv[1]])"
    with Process([python(), "-c", code, names_its_parent(tmp_path)]) as process:
        assert process.wait() == 0
        process.wait_for(f"child of {process.pid}$")
