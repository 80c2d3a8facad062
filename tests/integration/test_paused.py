"""Agents that are stopped for longer than their lease: their workers end without them, before the others go on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hosts import Host
from membership.job import QUICK, ElasticJob, Node, assert_empty
from processes import alive, arguments, await_exit

Hosts = Callable[[int], list[Host]]

# Every test ends with the check that no two generations ran at the same time: see `ElasticJob`.


def guards(node: Node) -> list[int]:
    """The guards on the node's host."""
    return [pid for pid in node.host.processes() if any(b"guard_process.py" in each for each in arguments(pid))]


@pytest.mark.parametrize("stop", [os.kill, os.killpg], ids=["alone", "with its process group"])
def test_a_stopped_agent_is_left_out_without_its_workers_and_taken_in_again(
    hosts: Hosts, tmp_path: Path, stop: Callable[[int, int], None]
) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=1:2", "--max-restarts=0", *QUICK, nproc=2) as job:
        a, b = job.start_all()
        first = job.line_up(a, b)
        stop(b.agent.pid, signal.SIGSTOP)
        second = job.line_up(a)
        assert_empty(b.host)
        # As if it had been cut off: it is not a failure of its workers that their guard killed them.
        b.agent.signal(signal.SIGCONT)
        third = job.line_up(a, b)
        assert first.generation < second.generation < third.generation
        assert third.restarts == 0
        assert third.order == ["host-0", "host-1"]
        job.succeeds(a, b)
        assert b.host.processes() == []


def test_workers_that_ignore_sigterm_end_with_the_lease_of_an_agent_that_is_stopped_as_it_drains(
    hosts: Hosts, tmp_path: Path
) -> None:
    flags = ("--nnodes=1:2", *QUICK, "--shutdown-timeout=60")
    with ElasticJob(hosts(2), tmp_path, *flags, worker=("--stubborn",)) as job:
        a, b = job.start_all()
        job.line_up(a, b)
        b.agent.signal(signal.SIGTERM)
        a.agent.wait_for("node host-1 is draining")
        b.agent.signal(signal.SIGSTOP)
        job.line_up(a)
        assert_empty(b.host)
        b.agent.signal(signal.SIGCONT)
        b.agent.wait()
        job.succeeds(a)


def test_an_agent_that_is_killed_while_it_is_stopped_leaves_nothing(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=1:2", *QUICK) as job:
        a, b = job.start_all()
        job.line_up(a, b)
        b.agent.signal(signal.SIGSTOP)
        job.line_up(a)
        assert_empty(b.host)
        here = b.host.processes()
        job.kill_agent(b)
        assert await_exit(here, 120) == []
        job.succeeds(a)


def test_a_guard_that_was_killed_is_replaced_by_one_that_does_as_well(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=1:2", *QUICK) as job:
        a, b = job.start_all()
        job.line_up(a, b)
        (guard,) = guards(b)
        os.kill(guard, signal.SIGKILL)
        b.agent.wait_for("the guard ended with -9: started another")
        b.agent.signal(signal.SIGSTOP)
        job.line_up(a)
        assert_empty(b.host)
        (successor,) = guards(b)
        assert alive(successor)
        b.agent.signal(signal.SIGCONT)
        job.line_up(a, b)
        job.succeeds(a, b)


def test_pauses_shorter_than_the_lease_are_not_noticed(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=1:2", *QUICK, "--node-timeout=30") as job:
        a, b = job.start_all()
        job.line_up(a, b)
        b.agent.signal(signal.SIGSTOP)
        time.sleep(8)  # longer than from one heartbeat to the next, which is 7.5 s; the lease is 22.5 s
        b.agent.signal(signal.SIGCONT)
        job.succeeds(a, b)
        assert list(job.generations()) == [1]
