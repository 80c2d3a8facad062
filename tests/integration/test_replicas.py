"""Snapshots that outlive a node: what its memory had is in another's, and training goes on from the newest step."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hosts import Host
from membership.job import QUICK, ElasticJob
from outlast.checkpoint import arena
from outlast.checkpoint import format as disk
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


def copies(host: Host) -> Iterator[tuple[Path, arena.Ticket]]:
    """The copies of other nodes' shards in a host's memory."""
    for directory in host.shm.glob("outlast-*"):
        yield from arena.tickets(directory, replicas=True)


def await_copies(hosts: list[Host], step: int, ranks: set[int]) -> None:
    """Until the hosts have copies of these ranks' shards of this step."""
    deadline = time.monotonic() + LONG
    while {ticket.rank for host in hosts for _, ticket in copies(host) if ticket.save.step == step} != ranks:
        assert time.monotonic() < deadline, [list(copies(host)) for host in hosts]
        time.sleep(0.05)


def train(hosts: list[Host], directory: Path, *flags: str) -> ElasticJob:
    """A training that waits after its third step, until something happens to it."""
    worker = ["--kind=fsdp", "--steps=6", "--pause-at=3"]
    return ElasticJob(hosts, directory, *QUICK, "--ft-snapshot-linger=1", *flags, script=TRAIN, worker=worker)


@pytest.mark.parametrize("lost", [0, 2])
def test_the_loss_of_a_node_costs_nothing_that_was_saved(
    hosts: Hosts, tmp_path: Path, truth: dict[int, str], lost: int
) -> None:
    """No step is ever to be on disk. Node 0 hosts the coordinator as well."""
    three = hosts(3)
    nodes = train(three, tmp_path, "--nnodes=2:3").start_all()
    await_copies(three, 3, {0, 1, 2})
    three[lost].kill()
    left = [node for node in nodes if node.host is not three[lost]]
    for node in left:
        assert node.agent.wait(LONG) == 0, node.agent.output
    told = "".join(node.agent.output for node in left)
    assert "step 3 is restored from memory" in told
    assert states(told) == {step: truth[step] for step in ((3, 4, 5, 6) if lost == 0 else range(1, 7))}
    # The ranks of the lost node were written to disk by who had their copies.
    assert [(each.step, disk.verify(each.path)) for each in disk.found(tmp_path / "job")] == [(3, [])]
