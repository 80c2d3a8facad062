"""Checks of nodes on hosts of their own: who is at fault is named and replaced, and nobody else."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from hosts import Host
from made_up_plugin import install
from processes import Process, outlast, python

Hosts = Callable[[int], list[Host]]

PORT = 29400
PATIENCE = 120.0  # seconds: several zygotes import torch at the same time
# The made-up processor's messages are so small that a busy machine halves their rate; its slow one is 50 times slower.
# That nobody healthy is called slow by the factor of 2 is for benchmarks/node_faults.py to show.
COARSE = "--ft-slow-node-factor=25"
TOKEN = {"OUTLAST_TOKEN": "a token of these tests", "OMP_NUM_THREADS": "1"}
EXITS = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], 'ran on', os.uname().nodename)"


@pytest.fixture
def plugin(tmp_path: Path) -> dict[str, str]:
    place = tmp_path / "plugin"
    place.mkdir()
    return install(place)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(EXITS)
    return path


def start(host: Host, first: Host, command: Sequence[str | Path], env: Mapping[str, str], mood: str = "") -> Process:
    verb, *flags = command
    meeting = [f"--rdzv-endpoint={first.name}:{PORT}", "--accelerator=made-up"]
    if verb == "run":
        meeting.append("--rdzv-backend=c10d")
    argv = [python(), "-m", "outlast", verb, *meeting, *flags]
    return host.start(argv, env={**TOKEN, **env, "MADE_UP_MOOD": mood})


def start_all(
    hosts: Sequence[Host], command: Sequence[str | Path], env: Mapping[str, str], moods: Mapping[Host, str]
) -> list[Process]:
    """Start a node on every host; the first hosts the coordinator, which on a busy machine takes a while."""
    agents = []
    for host in hosts:
        agents.append(start(host, hosts[0], command, env, moods.get(host, "")))
        if host is hosts[0]:
            agents[0].wait_for("joined the job")
    return agents


def check(hosts: Sequence[Host], env: Mapping[str, str], moods: Mapping[int, str], *flags: str) -> list[Process]:
    command = ("check", f"--nnodes={len(hosts)}", "--nproc-per-node=2", COARSE, *flags)
    return start_all(hosts, command, env, {hosts[index]: mood for index, mood in moods.items()})


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


@pytest.mark.thorough
def test_of_three_nodes_the_one_with_a_slow_network_is_named(hosts: Hosts, plugin: dict[str, str]) -> None:
    machines = hosts(3)
    narrow = machines[1]
    for namespace, device in narrow.cable:
        shape = ["tc", "-netns", namespace, "qdisc", "add", "dev", device, "root", "tbf"]
        subprocess.run([*shape, "rate", "10mbit", "burst", "16kb", "latency", "400ms"], check=True)
    agents = check(machines, plugin, {}, "--ft-slow-node-factor=4")
    for agent in agents:
        agent.wait(PATIENCE)
    assert re.search(r"slow .*slower than the median in network", row(agents[0], narrow.name))
    for healthy in (machines[0], machines[2]):
        assert "in network" not in row(agents[0], healthy.name)


def run(
    hosts: Sequence[Host], env: Mapping[str, str], moods: Mapping[Host, str], *command: str | Path
) -> list[Process]:
    flags = (
        "run",
        "--network-check",
        COARSE,
        "--ft-last-call=120",
        "--ft-use-infra-group-rank=false",
    )
    return start_all(hosts, (*flags, *command), env, moods)


def ran_on(agents: Sequence[Process]) -> set[str]:
    return {line.split()[-1] for agent in agents for line in agent.lines if "ran on" in line}


def test_a_killed_and_a_cut_off_node_are_named_and_replaced_by_spares(
    hosts: Hosts, plugin: dict[str, str], script: Path
) -> None:
    machines = hosts(6)
    first, second, killed, cut, *spares = machines
    for other in machines[1:]:
        if other is not cut:
            cut.cut_from(other)
    cut.cut_all_but(PORT, first)  # it reaches the coordinator, and nothing else
    agents = run(machines, plugin, {killed: "dies"}, "--nnodes=4", script)
    for host, agent in zip(machines, agents, strict=True):
        if host not in (killed, cut):
            assert agent.wait(PATIENCE) == 0, agent.output
    coordinator = agents[0]
    assert "its check was killed by signal 9 in phase compute" in row(coordinator, ".*host-2 +faulty")
    assert "which are good" in row(coordinator, ".*host-3 +faulty")
    assert not [line for line in coordinator.lines if re.search(r"host-[0145] +(faulty|slow|aside)", line)]
    assert ran_on(agents) == {first.name, second.name, *(spare.name for spare in spares)}
    told = [line for agent in agents[1:] for line in agent.lines if "excluded: " in line]  # of one check, or of two
    assert any("host-2, faulty: its check was killed by signal 9" in line for line in told)
    assert all("(the table is in the log of node host-0)" in line for line in told)


@pytest.mark.thorough
def test_a_straggler_is_named_and_left_out(hosts: Hosts, plugin: dict[str, str], script: Path) -> None:
    machines = hosts(4)
    agents = run(machines, plugin, {machines[2]: "slow"}, "--nnodes=3:4", "--exclude-straggler", script)
    for agent in (agents[0], agents[1], agents[3]):
        assert agent.wait(PATIENCE) == 0, agent.output
    assert "slower than the median in compute" in row(agents[0], ".*host-2 +slow")
    assert ran_on(agents) == {"host-0", "host-1", "host-3"}


def test_a_check_that_nobody_passes_fails_the_job_with_the_table(plugin: dict[str, str], script: Path) -> None:
    env = {**plugin, "MADE_UP_MOOD": "ill"}
    with outlast("run", "--network-check", "--accelerator=made-up", script, env=env) as job:
        assert job.wait(PATIENCE) == 1
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
