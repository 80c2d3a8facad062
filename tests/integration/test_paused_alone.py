"""A job of one node that is stopped for a while (Ctrl-Z, a debugger, a frozen container) goes on afterwards."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

import pytest

from jobs import Worker, errors, free_port, job, workers
from processes import Process, arguments

PAUSE = 4.0  # seconds, several times the node timeout
QUICK = "--node-timeout=1"


def pause(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(PAUSE)
    for pid in pids:
        with suppress(ProcessLookupError):  # a worker whose agent went on before it, and has ended it
            os.kill(pid, signal.SIGCONT)


def of_job(process: Process, who: str) -> list[int]:
    """The processes that are stopped together."""
    if who == "all of it":
        return process.tree()
    coordinators = [pid for pid in process.tree() if any(b"outlast.coordinator" in word for word in arguments(pid))]
    return {"the agent": [process.pid], "the coordinator": coordinators}[who]


def finish(members: Sequence[Worker]) -> None:
    for worker in members:
        os.kill(worker.pid, signal.SIGUSR1)


@pytest.mark.parametrize("who", ["the agent", "the coordinator", "all of it"])
def test_the_workers_of_a_job_that_was_stopped_run_on(who: str) -> None:
    with job("--nproc-per-node=2", QUICK) as process:
        members = workers(process, 1, 0, 1)
        pause(of_job(process, who))
        finish(members)
        assert process.wait() == 0, process.output
        assert "generation 2" not in process.output
        assert not errors(process)


@pytest.mark.parametrize("who", ["the agent", "the coordinator", "all of it"])
@pytest.mark.parametrize("nnodes", [pytest.param("1", marks=pytest.mark.thorough), "1:2"])
def test_a_job_that_others_could_join_is_not_given_up(who: str, nnodes: str) -> None:
    """Its workers end with their lease, as if another node were there: they start again, at no restart's cost."""
    port, flags = free_port(), (QUICK, "--ft-empty-timeout=2", "--ft-last-call=0.1", f"--nnodes={nnodes}")
    with job(f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-backend=c10d", *flags) as process:
        workers(process, 1, 0)
        pause(of_job(process, who))
        (worker,) = workers(process, 2, 0)
        assert worker.restart == 0
        finish([worker])
        assert process.wait() == 0, process.output
