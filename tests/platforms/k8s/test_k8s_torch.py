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


@pytest.mark.timeout(600)
def test_every_sample_is_trained_once_though_a_pod_is_deleted_and_another_nodes_cable_is_cut(
    cluster: Cluster, ddp: Job
) -> None:
    history = history_of(ddp)
    cluster.kubectl("delete", "pod", ddp.pod_name(1), "--wait=false")
    until(lambda: ddp.pod_name(1, 1) in history.pods, "the replacement in training")
    # A drained pod costs nothing: all ranks saved the step that they had reached.
    assert not history.repeated()

    lost = ddp.pod(2)["spec"]["nodeName"]
    with cut_off(lost):
        until(lambda: history.world == 2, "training without the node")
        until(lambda: ddp.pod_name(2, 1) in history.pods, "the replacement in training")
        assert ddp.pod(2, 1)["spec"]["nodeName"] != lost
        ddp.finish()
    assert history.check_exactly_once() > 8
    assert ddp.status()["restarts"] == 0
    assert ddp.status()["step"] > 0
