"""Hosts that are cut off and come back. The workers of the cut-off side must be gone before the others go on."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hosts import Host
from membership.job import QUICK, STEADY, ElasticJob, assert_empty, reason

Hosts = Callable[[int], list[Host]]

# Every test ends with the check that no two generations ran at the same time: see `ElasticJob`.


@pytest.mark.thorough
def test_a_node_cut_off_for_ten_seconds_is_left_out_and_taken_in_again(hosts: Hosts, tmp_path: Path) -> None:
    # With every timeout as it is by default.
    with ElasticJob(hosts(3), tmp_path, "--nnodes=1:3", nproc=2) as job:
        a, b, c = job.start_all()
        first = job.line_up(a, b, c)
        cut_at = time.monotonic()
        c.host.cut()
        second = job.line_up(a, b)
        # The cut-off node could not be asked: it had stopped its own workers by the time the others went on.
        assert_empty(c.host)
        c.agent.wait_for("nothing heard from the coordinator: trying to reach it again")
        time.sleep(max(0.0, cut_at + 10 - time.monotonic()))
        c.host.heal()
        third = job.line_up(a, b, c)
        assert second.generation == first.generation + 1
        assert third.generation == second.generation + 1
        assert third.restarts == 0
        # The survivors kept their order, and the one that came back is behind them.
        assert second.order == [name for name in first.order if name != "host-2"]
        assert third.order == [*second.order, "host-2"]
        job.succeeds(a, b, c)


def test_workers_that_ignore_sigterm_are_gone_too_when_their_node_is_cut_off(hosts: Hosts, tmp_path: Path) -> None:
    flags = ("--nnodes=1:2", *QUICK, "--ft-restart-grace=60", "--shutdown-timeout=60")
    with ElasticJob(hosts(2), tmp_path, *flags, "--max-restarts=0", worker=("--stubborn",)) as job:
        a, b = job.start_all()
        job.line_up(a, b)
        b.host.cut()
        b.agent.wait_for("nothing heard from the coordinator")
        assert_empty(b.host)
        assert len(job.generations()) == 1


def test_a_node_cut_off_as_it_drains_keeps_no_worker_beyond_its_lease(hosts: Hosts, tmp_path: Path) -> None:
    flags = ("--nnodes=1:2", *QUICK, "--ft-restart-grace=0", "--shutdown-timeout=60")
    with ElasticJob(hosts(2), tmp_path, *flags, worker=("--stubborn",)) as job:
        a, b = job.start_all()
        job.line_up(a, b)
        b.agent.signal(signal.SIGTERM)
        a.agent.wait_for("node host-1 is draining")
        b.host.cut()
        job.line_up(a)
        assert_empty(b.host)
        job.succeeds(a)


@pytest.mark.parametrize("direction", ["to the coordinator", "from the coordinator"])
def test_a_node_cut_off_in_one_direction_is_left_out_and_taken_in_again(
    hosts: Hosts, tmp_path: Path, direction: str
) -> None:
    with ElasticJob(hosts(3), tmp_path, "--nnodes=1:3", *QUICK) as job:
        a, b, c = job.start_all()
        first = job.line_up(a, b, c)
        if direction == "to the coordinator":
            c.host.cut_to(a.host)
        else:
            a.host.cut_to(c.host)
        second = job.line_up(a, b)
        assert_empty(c.host)
        c.host.heal()
        third = job.line_up(a, b, c)
        assert [second.generation, third.generation] == [first.generation + 1, first.generation + 2]
        assert third.restarts == 0
        job.succeeds(a, b, c)


def test_of_two_nodes_the_one_beside_the_coordinator_goes_on_when_the_other_is_cut_off(
    hosts: Hosts, tmp_path: Path
) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=1:2", *QUICK) as job:
        a, b = job.start_all()
        first = job.line_up(a, b)
        b.host.cut()
        second = job.line_up(a)
        assert_empty(b.host)
        b.agent.wait_for("nothing heard from the coordinator")
        b.host.heal()
        third = job.line_up(a, b)
        assert first.generation < second.generation < third.generation
        assert third.restarts == 0
        job.succeeds(a, b)


def test_a_job_below_min_nodes_waits_until_the_cut_off_node_is_back(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=2:2", "--max-restarts=0", *QUICK, worker=("--coupled",)) as job:
        a, b = job.start_all()
        first = job.line_up(a, b)
        b.host.cut()
        a.agent.wait_for("waiting for at least 2 nodes; 1 here: host-0")
        assert_empty(a.host)
        assert_empty(b.host)
        b.host.heal()
        second = job.line_up(a, b)
        assert (second.generation, second.restarts) == (first.generation + 1, 0)
        assert second.order == first.order
        job.succeeds(a, b)


def test_a_spare_takes_the_place_of_a_node_that_is_cut_off_which_comes_back_as_a_spare(
    hosts: Hosts, tmp_path: Path
) -> None:
    with ElasticJob(hosts(3), tmp_path, "--nnodes=2:2", *QUICK) as job:
        a, b = (job.start(host) for host in job.hosts[:2])
        job.line_up(a, b)
        spare = job.start_spare(job.hosts[2])
        b.agent.wait_for("joined the job", anywhere=True)
        b.host.cut()
        job.line_up(a, spare)
        b.host.heal()
        a.agent.wait_for("node host-1 waits as a spare")
        # It is as good as any other spare, and nobody was disturbed by its return.
        spare.host.kill()
        assert job.line_up(a, b).generation == 3
        job.succeeds(a, b)


def test_cuts_much_shorter_than_the_node_timeout_are_not_noticed(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=1:2", *STEADY) as job:
        a, b = job.start_all()
        job.line_up(a, b)
        b.host.cut()
        job.end_worker(b.host, 0)
        b.agent.wait_for("every worker here has finished")  # which it says into the cut, and once more after it
        b.host.heal()
        job.succeeds(a, b)
        assert list(job.generations()) == [1], a.agent.output + b.agent.output


def test_a_job_that_ends_while_a_node_is_cut_off_leaves_nothing_on_that_node(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=1:2", *QUICK, "--ft-connect-timeout=1") as job:
        a, b = job.start_all()
        job.line_up(a, b)
        b.host.cut()
        job.line_up(a)
        job.succeeds(a)
        b.host.heal()
        assert b.agent.wait() == 1
        assert reason(b).startswith("no coordinator ")
        assert b.host.processes() == []
