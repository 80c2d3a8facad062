"""Real torch training on real kubelets: what happens to pods costs no step, and trains no sample twice."""

from __future__ import annotations

import pytest
from histories import SCRIPT, History
from kubelets import cut_off
from real_jobs import Cluster, Job

from control_plane import until


@pytest.fixture
def ddp(cluster: Cluster) -> Job:
    """A DDP job of three pods that trains, with a snapshot of every step in memory."""
    job = cluster.training("ddp", SCRIPT.read_text(), args=str(cluster.place / "ddp"), flags="--max-restarts=3")
    until(lambda: history_of(job).world == 3, "three nodes in training")
    return job


def history_of(job: Job) -> History:
    assert job.folder is not None
    return History(job.folder)


def alone_on_its_node(job: Job) -> tuple[int, int]:
    """Slot and life of a pod whose node has no other: two of three nodes must be left to decide."""
    nodes = {(slot, life): job.pod(slot, life)["spec"]["nodeName"] for slot, life in ((2, 0), (1, 1), (0, 0))}
    return next(which for which, node in nodes.items() if list(nodes.values()).count(node) == 1)


@pytest.mark.timeout(600)
def test_every_sample_is_trained_once_though_a_pod_is_deleted_and_another_nodes_cable_is_cut(
    cluster: Cluster, ddp: Job
) -> None:
    history = history_of(ddp)
    cluster.kubectl("delete", "pod", ddp.pod_name(1), "--wait=false")
    until(lambda: ddp.pod_name(1, 1) in history.pods, "the replacement in training")
    # A drained pod costs nothing: all ranks saved the step that they had reached.
    assert not history.repeated()

    slot, life = alone_on_its_node(ddp)
    lost = ddp.pod(slot, life)["spec"]["nodeName"]
    with cut_off(lost):
        until(lambda: history.world == 2, "training without the node")
        until(lambda: ddp.pod_name(slot, life + 1) in history.pods, "the replacement in training")
        assert ddp.pod(slot, life + 1)["spec"]["nodeName"] != lost
        ddp.finish()
    assert history.check_exactly_once() > 8
    assert not ddp.status().get("restarts")
