"""Which ranks the nodes of a job get, on every generation."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hosts import Host
from membership.job import QUICK, ElasticJob, Node

Hosts = Callable[[int], list[Host]]

# That ranks are complete, and that the store is on the host of rank 0, is checked with every line-up.

OWN_RANKS = ("--ft-use-infra-group-rank=False",)


@pytest.mark.parametrize("variable", ["SLURM_PROCID", "GROUP_RANK"])
def test_the_infrastructures_order_holds_on_every_generation(hosts: Hosts, tmp_path: Path, variable: str) -> None:
    with ElasticJob(hosts(3), tmp_path, "--nnodes=1:3", *QUICK) as job:
        # The other way round than the names, and started from the last to the first.
        ranks = {"host-0": "2", "host-1": "1", "host-2": "0"}

        def start(host: Host) -> Node:
            return job.start(host, env={variable: ranks[host.name]})

        a, b, c = (start(host) for host in job.hosts)
        assert job.line_up(a, b, c).order == ["host-2", "host-1", "host-0"]
        job.kill_agent(c)
        assert job.line_up(a, b).order == ["host-1", "host-0"]
        c = start(c.host)
        assert job.line_up(a, b, c).order == ["host-2", "host-1", "host-0"]
        b.agent.signal(signal.SIGTERM)
        assert job.line_up(a, c).order == ["host-2", "host-0"]
        job.succeeds(a, c)


def test_slurms_order_counts_more_than_group_rank(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=2:2", *QUICK) as job:
        a = job.start(job.hosts[0], env={"SLURM_PROCID": "1", "GROUP_RANK": "0"})
        b = job.start(job.hosts[1], env={"SLURM_PROCID": "0", "GROUP_RANK": "1"})
        assert job.line_up(a, b).order == ["host-1", "host-0"]
        job.succeeds(a, b)


def test_node_rank_sets_the_order_of_a_static_job(hosts: Hosts, tmp_path: Path) -> None:
    # The master is the host of rank 0, and that is not the first by its name.
    first, second = reversed(hosts(2))
    with ElasticJob([first, second], tmp_path, "--nnodes=2", *QUICK, nproc=2, static=True) as job:
        b = job.start(second, "--node-rank=1")
        a = job.start(first, "--node-rank=0")
        assert job.line_up(a, b).ranks == {"host-1": [0, 1], "host-0": [2, 3]}
        job.succeeds(a, b)


def test_survivors_keep_their_ranks_and_a_newcomer_fills_the_gap(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(4), tmp_path, "--nnodes=3:3", *QUICK, *OWN_RANKS) as job:
        # Ranks that the infrastructure gives do not count.
        members = [job.start(host, env={"SLURM_PROCID": str(9 - n)}) for n, host in enumerate(job.hosts[:3])]
        a, b, c = members
        assert job.line_up(a, b, c).order == ["host-0", "host-1", "host-2"]
        job.kill_agent(a)
        d = job.start(job.hosts[3], env={"SLURM_PROCID": "0"})
        assert job.line_up(b, c, d).order == ["host-3", "host-1", "host-2"]
        c.host.kill()
        c = job.start(c.host)
        assert job.line_up(b, c, d).order == ["host-3", "host-1", "host-2"]
        job.kill_agent(b)
        a = job.start(job.hosts[0])
        assert job.line_up(a, c, d).order == ["host-3", "host-0", "host-2"]
        job.succeeds(a, c, d)


def test_a_survivor_whose_rank_lies_beyond_the_smaller_world_moves_into_the_gap(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(3), tmp_path, "--nnodes=1:3", *QUICK, *OWN_RANKS) as job:
        a, b, c = job.start_all()
        assert job.line_up(a, b, c).order == ["host-0", "host-1", "host-2"]
        job.kill_agent(a)
        assert job.line_up(b, c).order == ["host-2", "host-1"]
        a = job.start(a.host)
        assert job.line_up(a, b, c).order == ["host-2", "host-1", "host-0"]
        job.succeeds(a, b, c)


@pytest.mark.parametrize("flags", [(), OWN_RANKS])
def test_nodes_that_nobody_ranked_are_in_the_order_of_their_names(
    hosts: Hosts, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    with ElasticJob(hosts(3), tmp_path, "--nnodes=3:3", *QUICK, *flags) as job:
        names = {"host-0": "b", "host-1": "c", "host-2": "a"}
        first = job.start(job.hosts[0], "--ft-node-name=b")
        first.agent.wait_for("joined the job as node b")
        others = [job.start(host, f"--ft-node-name={names[host.name]}") for host in job.hosts[1:]]
        assert job.line_up(first, *others).order == ["host-2", "host-0", "host-1"]
        job.succeeds(first, *others)


def test_a_node_that_nobody_ranked_comes_behind_those_with_a_rank(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(3), tmp_path, "--nnodes=3:3", *QUICK) as job:
        a = job.start(job.hosts[0])
        b = job.start(job.hosts[1], env={"SLURM_PROCID": "7"})
        c = job.start(job.hosts[2], env={"SLURM_PROCID": "4"})
        assert job.line_up(a, b, c).order == ["host-2", "host-1", "host-0"]
        job.succeeds(a, b, c)
