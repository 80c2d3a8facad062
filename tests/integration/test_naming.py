"""Who makes a job hang is named across nodes, before anybody is ended: real agents, and ranks that train over gloo."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hangs import HungJob, right
from hosts import Host

Hosts = Callable[[int], list[Host]]


@pytest.mark.parametrize(
    ("kind", "culprit", "sentence"),
    [
        (
            "sleep",
            3,
            r"rank 3 on host-1 blocks the others.*: stuck in sleep at train.py:\d+.*; 3 ranks wait in all_reduce",
        ),
        pytest.param(
            "crossed_receives",
            1,
            r"ranks 1 on host-0 and 2 on host-1 block the others.* recv .*; 2 ranks wait in all_reduce",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "stopped",
            2,
            r"rank 2 on host-1 blocks the others.*: its process is stopped .*; 3 ranks wait in all_reduce",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_the_coordinator_names_a_rank_of_another_host(
    kind: str, culprit: int, sentence: str, hosts: Hosts, tmp_path: Path
) -> None:
    with HungJob(hosts(2), tmp_path, [(kind, culprit)]) as job:
        job.nodes[0].wait_for(rf"coordinator: generation 1: {sentence}", anywhere=True, timeout=120)
        for node in job.nodes:
            assert node.wait(120) == 0, node.output
    (event,) = job.told("hang")
    assert right(kind, culprit, event["ranks"], event["kind"])
    assert event["text"].startswith("generation 1: ")
    (restart,) = job.told("restarting")
    root = re.match(r"restart 1 of 1: rank (\d) on node host-\d hung$", restart["text"])
    assert root is not None
    assert int(root[1]) in event["ranks"]
    # One inquiry and one sentence, however many ranks were late.
    assert sum(event["text"] in line for line in job.nodes[0].lines if "coordinator: generation 1: " in line) == 1


def test_nobody_is_blamed_when_all_are_in_the_same_collective(hosts: Hosts, tmp_path: Path) -> None:
    with HungJob(hosts(2), tmp_path, [("everybody", 0)], "--max-restarts=0") as job:
        for node in job.nodes:
            node.wait_for("^hangs", timeout=120, anywhere=True)
        job.cut_training()
        job.nodes[0].wait_for("no rank is missing; check the network or a device", timeout=120, anywhere=True)
        for node in job.nodes:
            assert node.wait(120) == 1, node.output
    (event,) = job.told("hang")
    assert (event["ranks"], event["kind"]) == ([], "everybody")


@pytest.mark.thorough
def test_a_second_rank_hangs_during_the_recovery_from_the_first(hosts: Hosts, tmp_path: Path) -> None:
    """Before its process group is there; then a third, on the other host again."""
    with HungJob(hosts(2), tmp_path, [("sleep", 3), ("in_init", 0), ("stopped", 2)]) as job:
        for node in job.nodes:
            assert node.wait(180) == 0, node.output
    assert [(event["generation"], event["ranks"], event["kind"]) for event in job.told("hang")] == [
        (1, [3], "user code"),
        (2, [0], "start"),
        (3, [2], "stopped"),
    ]
    assert len(job.told("restarting")) == 3


@pytest.mark.thorough
def test_with_no_restart_left_every_node_says_who_it_was(hosts: Hosts, tmp_path: Path) -> None:
    with HungJob(hosts(2), tmp_path, [("sleep", 3)], "--max-restarts=0") as job:
        for node in job.nodes:
            assert node.wait(120) == 1
            root = node.output.partition("Root Cause")[2]
            assert "rank      : 3 (local_rank: 1)" in root
            assert "rank 3 on host-1 blocks the others: stuck in sleep at train.py" in root
