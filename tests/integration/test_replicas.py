"""Snapshots that outlive a node: what its memory had is in another's, and training goes on from the newest step."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hosts import Host
from membership.job import QUICK, ElasticJob
from outlast.checkpoint.memory import arena
from outlast.checkpoint.memory.slot import HEAD, Ticket
from outlast.checkpoint.storage import format as disk
from processes import Process, python

TRAIN = Path(__file__).parent / "checkpoints" / "train.py"
LONG = 120.0  # torch is imported, on machines with little to spare
Hosts = Callable[[int], list[Host]]


def states(*texts: str) -> dict[int, str]:
    """The digests of the states that a training went through, by step."""
    return {int(step): word for text in texts for step, word in re.findall(r"(?:restored|step) (\d+) (\w{12})\b", text)}


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The states of a training that nothing happens to."""
    with Process([python(), TRAIN, tmp_path_factory.mktemp("truth"), "--steps=6"]) as training:
        assert training.wait(LONG) == 0, training.output
        return states(training.output)


def copies(host: Host) -> Iterator[tuple[Path, Ticket]]:
    """The copies of other nodes' shards in a host's memory."""
    for directory in host.shm.glob("outlast-*"):
        yield from arena.tickets(directory, replicas=True)


def await_copies(hosts: list[Host], step: int) -> None:
    """Until each host has a copy of another's shard of this step."""
    deadline = time.monotonic() + LONG
    while not all(any(each.save.step == step for _, each in copies(host)) for host in hosts):
        assert time.monotonic() < deadline, [list(copies(host)) for host in hosts]
        time.sleep(0.05)


def train(hosts: list[Host], directory: Path, *flags: str) -> ElasticJob:
    """A training that takes its first three steps as the tests allow, and all others when something has happened."""
    worker = ["--kind=fsdp", "--steps=6", f"--gate={directory}"]
    return ElasticJob(hosts, directory, *QUICK, "--ft-snapshot-linger=1", *flags, script=TRAIN, worker=worker)


def take_steps(hosts: list[Host], directory: Path) -> None:
    """Let the training take three steps, of which no other is taken before the copies of one have arrived."""
    for step in (1, 2, 3):
        await_copies(hosts, step)
        if step < 3:
            (directory / str(step)).touch()


@pytest.mark.parametrize("lost", [pytest.param(0, marks=pytest.mark.thorough), 2])
def test_the_loss_of_a_node_costs_nothing_that_was_saved(
    hosts: Hosts, tmp_path: Path, truth: dict[int, str], lost: int
) -> None:
    """The world shrinks, ranks move, and no step was to be on disk. Node 0 hosts the coordinator as well."""
    three = hosts(3)
    nodes = train(three, tmp_path, "--nnodes=2:3").start_all()
    take_steps(three, tmp_path)
    three[lost].kill()
    left = [node for node in nodes if node.host is not three[lost]]
    for node in left:
        node.agent.wait_for("generation .* every worker here has finished|error", LONG, anywhere=True)
        assert node.agent.wait(LONG) == 0, node.agent.output
    told = "".join(node.agent.output for node in left)
    assert "step 3 is restored from memory" in told
    assert states(told) == {step: truth[step] for step in ((3, 4, 5, 6) if lost == 0 else range(1, 7))}
    # The ranks of the lost node were written to disk by who had their copies.
    assert [(each.step, disk.verify(each.path)) for each in disk.found(tmp_path / "job")] == [(3, [])]


@pytest.mark.thorough
def test_a_damaged_copy_is_named_and_a_new_node_goes_on_from_the_one_before(
    hosts: Hosts, tmp_path: Path, truth: dict[int, str]
) -> None:
    two = hosts(2)
    job = train(two, tmp_path, "--nnodes=2")
    first, second = job.start_all()
    take_steps(two, tmp_path)
    second.host.kill()
    (damaged,) = [path for path, ticket in copies(first.host) if ticket.save.step == 3]
    with open(damaged, "r+b") as file:
        file.seek(HEAD + 100)
        (byte,) = file.read(1)
        file.seek(HEAD + 100)
        file.write(bytes([byte ^ 1]))
    new = job.start(second.host)  # with nothing in its memory
    for node in (first, new):
        node.agent.wait_for("generation .* every worker here has finished|error", LONG, anywhere=True)
        assert node.agent.wait(LONG) == 0, node.agent.output
    told = first.agent.output + new.agent.output
    assert re.search(r"is damaged in chunk 0; trying the one before it", told)
    assert "step 2 is restored from memory" in told
    assert states(told) == {step: truth[step] for step in range(1, 7)}
