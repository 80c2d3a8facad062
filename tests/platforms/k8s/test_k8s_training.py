"""Training on real kubelets: three nodes, pods that come and go, one operator with its own rights."""

from __future__ import annotations

import pytest
from kubelets import cut_off, silenced
from real_jobs import Cluster, Job

from control_plane import until


@pytest.fixture
def mnist(cluster: Cluster) -> Job:
    """A job of three pods that trains."""
    job = cluster.training("mnist")
    job.until_trains(3)
    return job


def test_a_pod_is_deleted_and_training_goes_on_and_its_replacement_joins(cluster: Cluster, mnist: Job) -> None:
    cluster.kubectl("delete", "pod", mnist.pod_name(1), "--wait=false")
    until(lambda: "was drained" in mnist.logs(1), "the drain")
    until(lambda: mnist.worlds(1, 1)[-1:] == [3], "the replacement in training")
    # The survivors trained on as two, in the pods that they were in.
    assert mnist.worlds(2) == [3, 2, 3]
    # The operator hears it from the coordinator: three, two, three nodes.
    until(lambda: mnist.status().get("generation", 0) >= 3, "the generation in the status")
    mnist.finish()


def test_a_pod_on_a_node_that_is_cut_off_is_replaced_while_it_hangs_in_terminating(mnist: Job) -> None:
    lost = mnist.pod(2)["spec"]["nodeName"]
    with cut_off(lost):
        until(lambda: mnist.worlds(1)[-1:] == [2], "training without the node")
        until(lambda: mnist.pod(2, 1), "the replacement")
        assert "deletionTimestamp" in mnist.pod(2)["metadata"]
        until(lambda: mnist.worlds(2, 1)[-1:] == [3], "the replacement in training")
        assert mnist.pod(2, 1)["spec"]["nodeName"] != lost
        assert mnist.condition("Fenced").startswith("mnist-worker-2-0 replaced while Terminating")
        mnist.finish()


def test_a_pod_whose_packets_are_all_lost_is_replaced(mnist: Job) -> None:
    pod = mnist.pod(1)
    with silenced(pod["spec"]["nodeName"], pod["status"]["podIP"]):
        until(lambda: mnist.worlds(2)[-1:] == [2], "training without the pod")
        until(lambda: mnist.worlds(1, 1)[-1:] == [3], "the replacement in training")
        assert mnist.status()["lastFault"]["pod"] == "mnist-worker-1-0"
    mnist.finish()
