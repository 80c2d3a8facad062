"""Nodes that are faulty or drained, on real kubelets: who is to blame is found, and its pod goes elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest
from real_jobs import Cluster, Job

from control_plane import until

# The check needs torch, and so a zygote is there: it says when it has imported it.
SCRIPT = """
import os, pathlib, time
import torch
while not pathlib.Path(__file__).with_name("finish").exists():
    print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} trains", flush=True)
    time.sleep(0.2)
"""
# The first pod, which hosts the coordinator, waits for this file: the others are ready to be checked by then.
HOLD = "while [ $GROUP_RANK = 0 ] && [ ! -e {folder}/go ]; do sleep 0.1; done"
# What is broken about a node, once there is a file of its name: nothing that checks it lives long.
KILLER = (
    "while sleep 0.1; do [ -e {folder}/$NODE_NAME ] && "
    "kill -9 $(ps -o pid,args | grep outlast.checks | grep -v grep | awk '{{print $1}}') 2>/dev/null; done &"
)
CHECKED = {
    "network_check": True,
    "last_call": 100,
    "warm_join": 100,
    "log_level": "debug",
    "slow_node_factor": 4,
    "node_timeout": 20,
}


def checked_job(cluster: Cluster, name: str, before: str, **spec: object) -> Job:
    """A job whose nodes are checked first, held up until `go`."""
    folder = cluster.place / name
    hold = HOLD.format(folder=folder)
    job = cluster.training(name, SCRIPT, before=f"{before} {hold};", **{"config": CHECKED, **spec})
    until(lambda: all("the zygote is ready" in job.logs(slot) for slot in (1, 2)), "nodes that can be checked")
    return job


def go(job: Job) -> None:
    assert job.folder is not None
    (job.folder / "go").touch()


def is_replaced(job: Job, slot: int, bad: str, cause: str) -> None:
    """The pod of a slot goes to another node, and trains there with its rank."""
    until(lambda: job.status().get("excludedNodes"), "the excluded node")
    (excluded,) = job.status()["excludedNodes"]
    assert excluded["name"] == bad
    assert cause in excluded["cause"]
    until(lambda: f"rank {slot} of 3 trains" in job.logs(slot, 1), "the replacement in training")
    assert job.pod(slot, 1)["spec"]["nodeName"] != bad


@pytest.mark.timeout(600)
def test_a_node_that_kills_its_checks_is_found_in_two_rounds_cordoned_and_given_back(cluster: Cluster) -> None:
    spec = {"faultyNodes": {"action": "Cordon"}}
    job = checked_job(cluster, "faulty", KILLER.format(folder=cluster.place / "faulty"), **spec)
    slot = 2  # not the first one: what its coordinator says is gone with it
    bad = job.pod(slot)["spec"]["nodeName"]
    assert job.folder is not None
    (job.folder / bad).touch()
    go(job)
    is_replaced(job, slot, bad, "was killed by signal 9")
    told = "".join(job.logs(each) for each in range(3) if each != slot)
    assert "in 2 rounds" in told
    node = cluster.node(bad)
    assert node["spec"]["unschedulable"]
    assert "jobs/faulty/" in node["metadata"]["annotations"]["outlast.dev/excluded-by"]
    job.finish()
    cluster.kubectl("delete", "ej", "faulty", "--wait=false")
    until(lambda: not cluster.node(bad)["spec"].get("unschedulable"), "the end of the cordon")


@pytest.mark.timeout(600)
def test_two_nodes_are_drained_at_once_and_the_budget_keeps_min_pods_in_training(cluster: Cluster) -> None:
    job = cluster.training("mnist")
    job.until_trains(3)
    until(lambda: _budget(cluster).get("currentHealthy") == 3, "the budget")
    nodes = [job.pod(slot)["spec"]["nodeName"] for slot in (1, 2)]
    with drained(cluster, nodes):
        until(lambda: job.worlds(1, 1) and job.worlds(2, 1), "both replacements in training")
        assert {job.pod(slot, 1)["spec"]["nodeName"] for slot in (1, 2)} == {job.pod(0)["spec"]["nodeName"]}
    # One after the other: never fewer than MIN.
    assert 1 not in job.worlds(0)
    assert job.worlds(0)[-1:] == [3]
    assert not job.status().get("restarts")
    job.finish()


@contextmanager
def drained(cluster: Cluster, nodes: list[str]) -> Iterator[None]:
    """Nodes that somebody drains, all at the same time."""
    flags = ("--force", "--ignore-daemonsets", "--delete-emptydir-data")
    drains = [Thread(target=cluster.kubectl, args=("drain", node, *flags)) for node in nodes]
    try:
        for drain in drains:
            drain.start()
        for drain in drains:
            drain.join()
        yield
    finally:
        for node in nodes:
            cluster.kubectl("uncordon", node)


def _budget(cluster: Cluster) -> dict[str, int]:
    told = cluster.kubectl("get", "pdb", "mnist", "-o", "jsonpath={.status}", check=False)
    return dict(json.loads(told)) if told.startswith("{") else {}
