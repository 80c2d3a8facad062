"""No process and no host is special: the coordinator is killed, lost with its host, cut off, and replaced."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hosts import Host
from membership.job import PORT, QUICK, STEADY, ElasticJob, Node, assert_empty
from processes import await_exit, python

Hosts = Callable[[int], list[Host]]

EVERYWHERE = f"--rdzv-endpoint=host-0:{PORT},host-1:{PORT},host-2:{PORT}"


def test_a_coordinator_that_is_killed_again_and_again_restarts_nobody(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(3), tmp_path, "--nnodes=2:3", *STEADY, worker=("--coupled",)) as job:
        a, b, c = job.start_all()
        job.line_up(a, b, c)
        for term in range(2, 8):
            job.kill_coordinator()
            a.agent.wait_for(f"term {term}: took over generation 1, 3 nodes")
        assert list(job.generations()) == [1]
        job.succeeds(a, b, c)


@pytest.mark.thorough
def test_a_worker_that_dies_while_there_is_no_coordinator_is_handled_by_the_next(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(3), tmp_path, "--nnodes=3", "--max-restarts=1", "--node-timeout=30") as job:
        a, b, c = job.start_all()
        first = job.line_up(a, b, c)
        job.signal_coordinator(signal.SIGSTOP)
        workers = job.workers_of(b.host)
        job.end_worker(b.host, 3)
        assert not await_exit(workers, 60)
        job.kill_coordinator()
        second = job.line_up(a, b, c)
        assert second.restarts == 1
        assert second.generation > first.generation
        job.succeeds(a, b, c)


def test_a_failed_worker_is_charged_once_when_the_coordinator_is_killed_meanwhile(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=2", "--max-restarts=1", *QUICK, worker=("--coupled",)) as job:
        a, b = job.start_all()
        job.line_up(a, b)
        job.end_worker(b.host, 3)
        a.agent.wait_for("generation 1 ends")
        job.kill_coordinator()
        assert job.line_up(a, b).restarts == 1
        job.succeeds(a, b)


def test_a_damaged_journal_is_used_up_to_the_damage_and_the_nodes_say_the_rest(hosts: Hosts, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with ElasticJob(hosts(3), tmp_path, "--nnodes=3", f"--ft-journal={journal}", *STEADY) as job:
        a, b, c = job.start_all()
        job.line_up(a, b, c)
        with journal.open("r+b") as file:
            file.seek(journal.stat().st_size // 2)
            file.write(b"\0\0")
        job.kill_coordinator()
        a.agent.wait_for("is damaged after byte")
        a.agent.wait_for("took over generation 1, 3 nodes")
        journal.write_bytes(os.urandom(4096))
        job.kill_coordinator()
        a.agent.wait_for(r"is damaged after byte 0 \(0 whole records\)")
        a.agent.wait_for("took over generation 1, 3 nodes")
        assert list(job.generations()) == [1]
        job.succeeds(a, b, c)


def test_when_the_coordinators_host_is_lost_the_others_go_on_and_it_may_come_back(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(3), tmp_path, "--nnodes=1:3", *QUICK, EVERYWHERE) as job:
        a, b, c = job.start_all()
        first = job.line_up(a, b, c)
        a.host.kill()
        second = job.line_up(b, c)
        assert second.restarts == 0
        assert second.generation > first.generation
        a.host.power_on()
        again = job.start(a.host)  # the endpoint is its own, but the coordinator is elsewhere now
        third = job.line_up(again, b, c)
        assert third.generation > second.generation
        assert not any("hosting the coordinator" in line for line in again.agent.lines)
        job.succeeds(again, b, c)


@pytest.mark.thorough
def test_the_coordinators_hosts_may_be_lost_one_after_the_other(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(4), tmp_path, "--nnodes=1:4", *QUICK) as job:
        nodes = job.start_all()
        job.line_up(*nodes)
        nodes[0].host.kill()
        second = job.line_up(*nodes[1:])
        # Until they have said in their next reports that they know of it, the four of the first generation have a say,
        # and two of them are too few. Nobody tells when that is over: it takes a heartbeat, and this is six of them.
        time.sleep(5)
        host = next(node for node in nodes[1:] if _hosts(node))
        host.host.kill()
        rest = [node for node in nodes[1:] if node is not host]
        third = job.line_up(*rest)
        assert third.generation > second.generation
        assert third.restarts == 0
        job.succeeds(*rest)


@pytest.mark.parametrize(
    "other",
    [
        "another job",
        pytest.param("another token", marks=pytest.mark.thorough),
        pytest.param("another program", marks=pytest.mark.thorough),
    ],
)
def test_whoever_answers_where_the_coordinator_was_is_no_end_of_the_job(
    hosts: Hosts, tmp_path: Path, other: str
) -> None:
    """On the port of a host that was lost and has come back, while the others look for a new coordinator."""
    with ElasticJob(hosts(4), tmp_path, "--nnodes=1:4", *QUICK) as job:
        a, *nodes = job.start_all()
        job.line_up(a, *nodes)
        a.host.kill()
        job.line_up(*nodes)
        if other == "another program":
            banner = "nc = socket.create_server(('', 29400))\nwhile True: nc.accept()[0].sendall(b'SSH-2.0-x\\r\\n')"
            a.host.start([python(), "-c", f"import socket\nprint('up', flush=True)\n{banner}"]).wait_for("up")
        else:
            env = {"OUTLAST_TOKEN": "the token of another job"} if other == "another token" else {}
            foreign = job.start(a.host, "--rdzv-id=another", "--nnodes=2", env=env).agent
            foreign.wait_for("joined the job")
        time.sleep(5)  # as above: until a quorum of the first generation knows of the second
        host = next(node for node in nodes if _hosts(node))
        host.host.kill()
        rest = [node for node in nodes if node is not host]
        assert job.line_up(*rest).restarts == 0
        job.succeeds(*rest)
        a.host.kill()


def test_a_coordinator_in_the_minority_stops_and_is_replaced_and_there_is_one_history(
    hosts: Hosts, tmp_path: Path
) -> None:
    with ElasticJob(hosts(3), tmp_path, "--nnodes=1:3", *QUICK) as job:
        a, b, c = job.start_all()
        first = job.line_up(a, b, c)
        a.host.cut()
        second = job.line_up(b, c)
        assert_empty(a.host)
        a.host.heal()
        third = job.line_up(a, b, c)
        a.agent.wait_for("the coordinator of this node retires", anywhere=True)
        assert first.generation < second.generation < third.generation
        assert third.restarts == 0
        job.succeeds(a, b, c)


def test_a_minority_without_the_coordinator_does_not_take_over(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(3), tmp_path, "--nnodes=1:3", *QUICK) as job:
        a, b, c = job.start_all()
        job.line_up(a, b, c)
        c.host.cut()
        second = job.line_up(a, b)
        c.agent.wait_for("no coordinator can be reached: hosting one")
        assert_empty(c.host)
        c.host.heal()
        third = job.line_up(a, b, c)
        assert third.generation > second.generation
        assert third.restarts == 0
        job.succeeds(a, b, c)


@pytest.mark.thorough
def test_of_two_nodes_the_survivor_goes_on_if_that_was_asked_for(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=1:2", "--ft-tie-break=survivor", *QUICK) as job:
        a, b = job.start_all()
        job.line_up(a, b)
        a.host.kill()
        assert job.line_up(b).restarts == 0
        job.succeeds(b)


@pytest.mark.thorough
def test_a_node_that_comes_later_finds_the_coordinator_through_any_address(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(4), tmp_path, "--nnodes=1:4", *QUICK, "--ft-last-call=1") as job:
        a, b, c = (job.start(host) for host in job.hosts[:3])
        job.line_up(a, b, c)
        a.host.kill()
        job.line_up(b, c)
        there = b if _hosts(b) else c
        elsewhere = c if there is b else b
        d = job.start(
            job.hosts[3], f"--rdzv-endpoint=host-0:{PORT},{elsewhere.host.name}:{PORT},{there.host.name}:{PORT}"
        )
        job.line_up(b, c, d)
        job.succeeds(b, c, d)


def test_newcomers_that_reach_a_successor_before_its_own_agent_does_start_nothing(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(4), tmp_path, "--nnodes=1:3", *QUICK, "--ft-last-call=1") as job:
        a, b, c = (job.start(host) for host in job.hosts[:3])
        job.line_up(a, b, c)
        for other in (a, c):
            b.host.cut_from(other.host)
        second = job.line_up(a, c)
        job.stop_agent_that_hosts(b)
        d = job.start(job.hosts[3], f"--rdzv-endpoint=host-1:{PORT}")
        d.agent.wait_for("joined the job as node host-3")
        d.agent.wait_for("nothing heard from the coordinator: trying to reach it again")
        third = job.line_up(a, c, d)  # all that the successor told it is where else to look
        assert third.generation > second.generation
        b.agent.signal(signal.SIGCONT)
        b.host.heal()
        b.agent.wait_for("the coordinator of this node retires")
        job.succeeds(a, b, c, d)


def _hosts(node: Node) -> bool:
    """Whether this node has taken the coordinator over."""
    return any("no coordinator can be reached: hosting one" in line for line in node.agent.lines)
