"""Training on real kubelets: three nodes, pods that come and go, one operator with its own rights."""

from __future__ import annotations

import json
import re

import pytest
from kubelets import IMAGE, cut_off, silenced
from real_jobs import NAMESPACE, Cluster, Job

from control_plane import until
from processes import outlast


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
    kubeconfig = {"KUBECONFIG": str(cluster.plane.kubeconfig)}
    with outlast("status", "--json", f"--k8s={NAMESPACE}/mnist", env=kubeconfig) as shown:
        shown.wait()
    assert "mnist-worker-1-1" in shown.output
    mnist.finish()
    told = cluster.kubectl("get", "events", "-o", "jsonpath={range .items[*]}{.reason}: {.message}{'\\n'}{end}")
    assert re.search(r"Running: [23]/2:3 pods run", told)
    assert "Succeeded: " in told


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


def test_a_training_process_is_killed_and_no_pod_is_touched(cluster: Cluster, mnist: Job) -> None:
    before = [mnist.pod(slot)["metadata"]["uid"] for slot in range(3)]
    kill = "kill -9 $(ps -o pid,args | grep train.py | grep -v -e outlast -e grep | awk '{print $1}')"
    cluster.kubectl("exec", mnist.pod_name(1), "--", "sh", "-c", kill)
    until(lambda: mnist.status().get("restarts") == 1, "the restart in the status")
    until(lambda: mnist.status().get("generation", 0) >= 2, "the next generation")
    assert [mnist.pod(slot)["metadata"]["uid"] for slot in range(3)] == before
    mnist.finish()


def test_a_job_is_scaled_and_suspended_and_resumed(cluster: Cluster, mnist: Job) -> None:
    cluster.kubectl("scale", "ej/mnist", "--replicas=2")
    until(lambda: mnist.worlds(0)[-1:] == [2], "two nodes")
    until(lambda: not mnist.pod(2), "the end of the third pod")
    cluster.kubectl("scale", "ej/mnist", "--replicas=3")
    mnist.until_trains(3, (0, 0, 1))
    cluster.kubectl("patch", "ej/mnist", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    mnist.until_phase("Suspended")
    until(lambda: not mnist.pods(), "the end of all pods")
    cluster.kubectl("patch", "ej/mnist", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    mnist.until_trains(3, (1, 1, 2))
    mnist.finish()


def test_a_pod_is_preempted_by_priority_and_comes_back_when_there_is_room(cluster: Cluster) -> None:
    room = {"resources": {"requests": {"cpu": "1500m"}}}
    mnist = cluster.training("mnist", container=room)
    mnist.until_trains(3)
    urgent = {
        "metadata": {"name": "urgent"},
        "spec": {
            "priorityClassName": "urgent",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["sleep", "1000"], **room}
            ],
        },
    }
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}}
    cluster.kubectl("apply", "-f", "-", given=json.dumps({**priority, "value": 1000}))
    cluster.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "Pod", **urgent}))
    preempted = until(lambda: [slot for slot in range(3) if mnist.pod(slot, 1)], "the replacement")[0]
    until(lambda: "Insufficient cpu" in mnist.condition("Degraded"), "why it is pending")
    survivor = (preempted + 1) % 3
    assert mnist.worlds(survivor)[-1:] == [2]
    cluster.kubectl("delete", "pod", "urgent", "--wait=false")
    until(lambda: mnist.worlds(preempted, 1)[-1:] == [3], "the replacement in training")
    mnist.finish()
