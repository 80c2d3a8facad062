"""Ctrl-C ends the job, SIGTERM drains a node, and nothing survives an agent that is killed."""

from __future__ import annotations

import os
import pty
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from jobs import SCRIPTS, Worker, errors, free_port, job, node, workers
from processes import Process, await_exit, marked

SAVES = SCRIPTS / "saves.py"
ENDED_SOON = 120.0  # seconds, on a machine however busy
TOGETHER = ("--nnodes=1:2", "--ft-last-call=60")  # both begin together, however long they take to come


def assert_all_end(process: Process) -> None:
    """Nothing that the command started is left, soon."""
    assert not await_exit(process.tree(), ENDED_SOON)
    assert not process.tree()


def finish(members: Sequence[Worker]) -> None:
    for worker in members:
        os.kill(worker.pid, signal.SIGUSR1)


def test_ctrl_c_at_a_terminal_ends_the_job_and_workers_hear_of_it() -> None:
    """Typed at a terminal, as a person does: the kernel sends SIGINT to the whole foreground process group."""
    keyboard, terminal = pty.openpty()
    try:
        with job(
            "--nproc-per-node=2", "--log-dir=/dev/null", stdin=terminal, preexec_fn=lambda: take_terminal(terminal)
        ) as process:
            workers(process, 1, 0, 1)
            os.write(keyboard, b"\x03")
            assert process.wait() == 1
            for rank in (0, 1):
                process.wait_for(f"rank {rank} got SIGINT", anywhere=True)
            assert_all_end(process)
            (error,) = errors(process)
            assert "interrupted" in error
            assert "Traceback" not in process.output
    finally:
        os.close(keyboard)
        os.close(terminal)


def take_terminal(terminal: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def test_ctrl_c_on_one_node_ends_the_job_on_all() -> None:
    port = free_port()
    with node("a", port, "--nnodes=2") as a, node("b", port, "--nnodes=2") as b:
        for each in (a, b):
            each.wait_for(r"rank \d of 2 started in generation 1")
        b.signal(signal.SIGINT)
        for each in (a, b):
            assert each.wait() == 1
            assert len(errors(each)) == 1
            assert "interrupted on node b" in errors(each)[0]
            assert_all_end(each)


def test_a_second_ctrl_c_ends_at_once() -> None:
    with job("--nproc-per-node=2", "--shutdown-timeout=600", args=["--ignore", "SIGINT", "SIGTERM"]) as process:
        workers(process, 1, 0, 1)
        process.signal(signal.SIGINT)
        for rank in (0, 1):
            process.wait_for(f"rank {rank} got SIGINT", anywhere=True)
        process.signal(signal.SIGINT)
        assert process.wait() == 1
        assert len(errors(process)) == 1
        assert_all_end(process)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGQUIT"])
def test_a_signal_to_the_only_node_ends_its_workers_with_the_same_signal(name: str) -> None:
    with job("--nproc-per-node=2") as process:
        workers(process, 1, 0, 1)
        process.signal(signal.Signals[name])
        assert process.wait() == 1
        for rank in (0, 1):
            process.wait_for(f"rank {rank} got {name}", anywhere=True)
        (error,) = errors(process)
        assert f"stopped by {name}" in error or name == "SIGQUIT"
        assert "drain" not in process.output
        assert "all ranks save" not in process.output
        assert_all_end(process)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_handler_that_saves_is_not_interrupted_by_another_signal(name: str) -> None:
    with job("--nproc-per-node=2", script=SAVES) as process:
        for rank in (0, 1):
            process.wait_for(f"rank {rank} waits", anywhere=True)
        process.signal(signal.Signals[name])
        assert process.wait() == 1
        for rank in (0, 1):
            process.wait_for(f"rank {rank} saved after {name} in generation 1$", anywhere=True)
        assert_all_end(process)


def test_after_a_failure_the_others_get_one_signal() -> None:
    with job("--nproc-per-node=2", "--max-restarts=1", "--ft-restart-grace=60", script=SAVES) as process:
        process.wait_for("rank 0 waits", anywhere=True)
        rank_1 = process.wait_for(r"rank 1 waits, pid (\d+), in generation 1", anywhere=True)
        os.kill(int(rank_1[1]), signal.SIGUSR2)
        assert process.wait() == 0
        process.wait_for("rank 0 saved after SIGTERM in generation 1$", anywhere=True)


def test_in_a_drain_every_worker_gets_one_signal() -> None:
    port = free_port()
    with (
        node("a", port, *TOGETHER, "--ft-restart-grace=60", script=SAVES) as a,
        node("b", port, *TOGETHER, "--ft-restart-grace=60", script=SAVES) as b,
    ):
        for each in (a, b):
            each.wait_for("waits")
        b.signal(signal.SIGTERM)
        for each in (a, b):
            each.wait_for(r"rank \d saved after SIGTERM in generation 1$", anywhere=True)
        assert a.wait() == 0
        assert b.wait() == 1
        assert "drained" in errors(b)[0]


def test_workers_that_ignore_sigterm_are_killed_after_the_shutdown_timeout() -> None:
    with job("--nproc-per-node=2", "--shutdown-timeout=1", args=["--ignore", "SIGTERM"]) as process:
        workers(process, 1, 0, 1)
        process.signal(signal.SIGTERM)
        assert process.wait() == 1
        assert_all_end(process)


def test_other_signals_are_handled_if_they_are_named() -> None:
    with job("--signals-to-handle=SIGUSR1,SIGTERM") as process:
        workers(process, 1, 0)
        process.signal(signal.SIGUSR1)
        assert process.wait() == 1
        process.wait_for("rank 0 got SIGUSR1", anywhere=True)
        assert_all_end(process)


@pytest.mark.parametrize("leaver", ["the host", "the other"])
def test_a_drained_node_leaves_and_the_other_goes_on(leaver: str) -> None:
    """Also when it hosts the coordinator: then that goes on until the job is over."""
    port = free_port()
    with node("a", port, *TOGETHER) as a:
        a.wait_for("hosting the coordinator")
        with node("b", port, *TOGETHER) as b:
            leaving, staying = (a, b) if leaver == "the host" else (b, a)
            for each in (a, b):
                each.wait_for(r"rank \d of 2 started in generation 1")
            leaving.signal(signal.SIGTERM)
            leaving.wait_for("got SIGTERM")
            finish(workers(staying, 2, 0))
            assert staying.wait() == 0
            assert leaving.wait() != 0
            assert len(errors(leaving)) == 1
            assert "drained" in errors(leaving)[0]
            for each in (a, b):
                assert_all_end(each)


@pytest.mark.parametrize("victim", ["the host", "the other"])
def test_when_an_agent_is_killed_its_workers_die_and_the_other_node_goes_on(victim: str) -> None:
    """Also when it hosted the coordinator, which goes on without it."""
    port = free_port()
    with node("a", port, *TOGETHER) as a:
        a.wait_for("hosting the coordinator")
        with node("b", port, *TOGETHER) as b:
            killed, staying = (a, b) if victim == "the host" else (b, a)
            match = killed.wait_for(r"rank \d of 2 started in generation 1: pid (\d+)")
            staying.wait_for(r"rank \d of 2 started in generation 1")
            killed.signal(signal.SIGKILL)
            assert not await_exit([int(match[1])], ENDED_SOON)
            finish(workers(staying, 2, 0))
            assert staying.wait() == 0
            for each in (a, b):
                assert_all_end(each)


UPLOADS = """
import os, subprocess, sys
upload = subprocess.Popen(["sleep", "600"], start_new_session=True)  # and this process does not wait for it
print("uploads in", upload.pid, flush=True)
os._exit(int(sys.argv[1]))
"""


def test_what_a_worker_left_in_the_background_runs_on_when_the_job_succeeds(tmp_path: Path) -> None:
    """As under torchrun: it may be an upload. It is said, with its pid."""
    script = tmp_path / "uploads.py"
    script.write_text(UPLOADS)
    with job(script=script, args=["0"]) as process:
        pid = int(process.wait_for(r"uploads in (\d+)")[1])
        assert process.wait() == 0
        process.wait_for(rf"what workers started in the background runs on: pid {pid}", anywhere=True)
        assert process.tree() == [pid]


def test_what_a_worker_left_in_the_background_ends_with_it_when_it_fails(tmp_path: Path) -> None:
    script = tmp_path / "uploads.py"
    script.write_text(UPLOADS)
    with job(script=script, args=["1"]) as process:
        process.wait_for(r"uploads in (\d+)")
        assert process.wait() == 1
        assert_all_end(process)


def test_nothing_outlives_the_only_agent_when_it_is_killed() -> None:
    with job("--nproc-per-node=2") as process:
        workers(process, 1, 0, 1)
        mark = process.mark
        process.signal(signal.SIGKILL)
        assert_all_end(process)
        assert not marked(lambda each: each == mark)


def test_when_the_coordinator_is_killed_the_workers_do_not_notice_and_the_job_can_be_ended() -> None:
    with job("--nproc-per-node=2") as process:
        members = {worker.pid for worker in workers(process, 1, 0, 1)}
        (coordinator,) = set(process.tree()) - members - {process.pid}
        os.kill(coordinator, signal.SIGKILL)
        process.wait_for("took over generation 1, 1 node")
        assert members < set(process.tree())
        process.signal(signal.SIGINT)
        assert process.wait() == 1
        assert "interrupted" in errors(process)[0]
        assert_all_end(process)


def test_a_node_that_waits_for_others_can_be_ended() -> None:
    for sig in (signal.SIGINT, signal.SIGTERM):
        with node("a", free_port(), "--nnodes=2") as process:
            process.wait_for("waiting for at least 2 nodes")
            process.signal(sig)
            assert process.wait() == 1
            assert_all_end(process)


def test_a_node_that_looks_for_its_coordinator_can_be_ended() -> None:
    for sig in (signal.SIGINT, signal.SIGTERM):
        with node("a", free_port(), "--nnodes=2", "--rdzv-conf=is_host=0") as process:
            process.wait_for("waiting for the coordinator")
            process.signal(sig)
            assert process.wait() == 1
            assert len(errors(process)) == 1
            assert_all_end(process)


def test_a_node_that_is_ended_while_it_starts_says_so() -> None:
    env = {"OUTLAST_TOKEN": "a secret of sixteen characters or more"}
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it looks there for a coordinator, before it hosts one
        places = f"127.0.0.1:{free_port()},127.0.0.1:{silent.getsockname()[1]}"
        with job(f"--rdzv-endpoint={places}", "--rdzv-backend=c10d", env=env) as process:
            looks, _ = silent.accept()
            with looks:
                process.signal(signal.SIGTERM)
                assert process.wait() == 1, process.output
            assert_all_end(process)
    assert "ended by SIGTERM before this node had joined the job" in errors(process)[0]
