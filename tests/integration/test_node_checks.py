"""Checks of nodes on hosts of their own: who is at fault is named and replaced, and nobody else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from hosts import Host
from made_up_plugin import install
from processes import Process, outlast, python

Hosts = Callable[[int], list[Host]]

PORT = 29400
PATIENCE = 120.0  # seconds: several zygotes import torch at the same time
TOKEN = {"OUTLAST_TOKEN": "a token of these tests", "OMP_NUM_THREADS": "1"}
EXITS = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], 'ran on', os.uname().nodename)"


@pytest.fixture
def plugin(tmp_path: Path) -> dict[str, str]:
    place = tmp_path / "plugin"
    place.mkdir()
    return install(place)


def start(host: Host, first: Host, command: Sequence[str | Path], env: Mapping[str, str], mood: str = "") -> Process:
    verb, *flags = command
    meeting = [f"--rdzv-endpoint={first.name}:{PORT}", "--accelerator=made-up"]
    if verb == "run":
        meeting.append("--rdzv-backend=c10d")
    argv = [python(), "-m", "outlast", verb, *meeting, *flags]
    return host.start(argv, env={**TOKEN, **env, "MADE_UP_MOOD": mood})


def check(hosts: Sequence[Host], env: Mapping[str, str], moods: Mapping[int, str], *flags: str) -> list[Process]:
    command = ("check", f"--nnodes={len(hosts)}", "--nproc-per-node=2", *flags)
    return [start(host, hosts[0], command, env, moods.get(index, "")) for index, host in enumerate(hosts)]


def row(process: Process, name: str) -> str:
    """The line of the table about a node."""
    return process.wait_for(rf"^{name} .*", anywhere=True)[0]


def test_two_healthy_nodes_pass(hosts: Hosts, plugin: dict[str, str]) -> None:
    nodes = check(hosts(2), plugin, {})
    for node in nodes:
        assert node.wait(PATIENCE) == 0, node.output
        assert "2 nodes checked in 1 round: 2 good" in node.output
        assert "compute GFLOP/s" in node.output


def test_of_two_nodes_the_one_whose_product_is_wrong_is_named_and_the_other_is_not(
    hosts: Hosts, plugin: dict[str, str]
) -> None:
    one, other = check(hosts(2), plugin, {1: "wrong"})
    assert (one.wait(PATIENCE), other.wait(PATIENCE)) == (1, 1)
    assert "the matrix product is wrong in 1 of 4096 places" in row(one, "host-1")
    assert row(one, "host-0").split()[1] == "good"


def test_a_killed_a_cut_off_and_a_slow_node_are_replaced_by_spares(
    hosts: Hosts, plugin: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(EXITS)
    machines = hosts(7)
    first, second, killed, cut, slow, fifth, sixth = machines
    flags = ("--nnodes=4", "--nproc-per-node=2", "--network-check", "--exclude-straggler", "--node-check-timeout=5")
    command = ("run", *flags, "--ft-last-call=120", "--ft-use-infra-group-rank=false", script)
    for other in machines:
        if other not in (first, cut):
            cut.cut_from(other)  # it reaches the coordinator, and nobody else
    cut.cut_all_but(PORT, first)
    moods = {killed: "dies", slow: "slow"}
    agents = {}
    for host in (first, second, killed, cut):
        agents[host] = start(host, first, command, plugin, moods.get(host, ""))
    coordinator = agents[first]
    coordinator.wait_for("2 faulty \\(host-2, host-3\\), 2 good")
    for host in (slow, fifth, sixth):
        agents[host] = start(host, first, command, plugin, moods.get(host, ""))
    for host in (first, second, fifth, sixth):
        assert agents[host].wait(PATIENCE) == 0, agents[host].output
    assert "its check was killed by signal 9 in phase compute" in row(coordinator, ".*host-2")
    assert "which are good" in row(coordinator, ".*host-3")
    for host in (killed, cut):
        agents[host].wait(PATIENCE)
    ran = {line.split()[-1] for agent in agents.values() for line in agent.lines if "ran on" in line}
    assert ran == {first.name, second.name, fifth.name, sixth.name}


def test_a_straggler_is_named_in_the_table(hosts: Hosts, plugin: dict[str, str]) -> None:
    nodes = check(hosts(4), plugin, {2: "slow"})
    assert [node.wait(PATIENCE) for node in nodes] == [1, 1, 1, 1], nodes[0].output
    assert "1 slow (host-2), 3 good" in nodes[0].output
    assert "slower than the median in compute" in row(nodes[0], "host-2")


def test_a_check_that_nobody_passes_fails_the_job_with_the_table(plugin: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(EXITS)
    env = {**plugin, "MADE_UP_MOOD": "ill"}
    with outlast("run", "--network-check", "--accelerator=made-up", script, env=env) as job:
        assert job.wait() == 1
        assert "made-up" not in job.lines[-1]
        assert job.lines[-1].startswith("outlast run: error: no node is fit: 1 node checked in 1 round: 1 faulty")
        assert "fan 0 has stopped" in job.output
        assert "ran on" not in job.output


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--accelerator=abacus"], "--accelerator must be one of auto, cpu, cuda, ascend, xpu, not 'abacus'"),
        (["--ft-check-path=/no/such"], "--ft-check-path: there is no directory /no/such; make it first"),
        (["--nnodes=2"], "--nnodes=2 needs --rdzv-endpoint host:port of one of your nodes"),
    ],
)
def test_what_cannot_be_checked_is_refused_in_one_line(flags: list[str], line: str) -> None:
    with outlast("check", *flags) as process:
        assert process.wait() == 1
        assert process.lines == [f"outlast check: error: {line}"]
