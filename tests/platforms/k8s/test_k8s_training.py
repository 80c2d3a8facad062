"""A job on real kubelets: three nodes, a pod on each."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubelets import IMAGE, bridge, cut_off, missing_for_nodes, nodes, python_volumes
from test_elasticjob_resource import job

from control_plane import ControlPlane, control_plane, missing, until
from outlast.k8s import crd
from outlast.k8s.execution import job_path
from processes import outlast

SCRIPT = """
import os, pathlib, time
while not pathlib.Path(__file__).with_name("finish").exists():
    print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} trains", flush=True)
    time.sleep(0.2)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ControlPlane]:
    """Three nodes that run pods."""
    absent = missing() or missing_for_nodes()
    assert not absent, f"no {absent}: run scripts/install-k8s"
    with bridge() as address, control_plane(tmp_path, address) as plane, nodes(plane, tmp_path, 3):
        plane.kubectl("apply", "-f", "-", given=json.dumps(crd.manifest()))
        until(lambda: plane.kubectl("get", "ej", check=False).returncode == 0, "the resource")
        yield plane


def training(script: Path) -> dict[str, Any]:
    """An ElasticJob whose pods run this machine's Python, each on a node of its own."""
    mounts, volumes = python_volumes(script.parent)
    mounts += [{"name": "tmp", "mountPath": "/tmp"}]
    volumes += [{"name": "tmp", "emptyDir": {}}]
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        # A shell that passes no signal on: only the hook can drain the node.
        "command": ["sh", "-c", f"outlast run {script}; exit $?"],
        "env": [{"name": "PATH", "value": f"{script.parent}:/usr/bin:/bin"}],
        "volumeMounts": mounts,
    }
    apart = {"labelSelector": {"matchLabels": {"outlast.dev/job": "mnist"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    template = {"spec": {"containers": [container], "volumes": volumes, "affinity": affinity}}
    bounds = {"minReplicas": 2, "maxReplicas": 3}
    worker = {"replicas": 3, "template": template}
    return job("mnist", worker=worker, elasticPolicy=bounds, drain={"gracePeriod": "60s"})


def worlds(plane: ControlPlane, pod: str) -> list[int]:
    """The world sizes that a pod has trained with, in order."""
    text = plane.kubectl("logs", pod, check=False).stdout
    sizes = [int(size) for size in re.findall(r"rank \d+ of (\d+) trains", text)]
    return [size for place, size in enumerate(sizes) if place == 0 or sizes[place - 1] != size]


def start(cluster: ControlPlane, folder: Path) -> list[str]:
    """Submit a job of three pods, and wait until it trains; their names."""
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(SCRIPT)
    launcher = folder / "outlast"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -m outlast "$@"\n')
    launcher.chmod(0o755)
    cluster.kubectl("apply", "-f", "-", given=json.dumps(training(script)))
    pods = [f"mnist-worker-{slot}-0" for slot in range(3)]
    until(lambda: all(worlds(cluster, pod)[-1:] == [3] for pod in pods), "three nodes in training")
    return pods


def status(cluster: ControlPlane) -> dict[str, Any]:
    found: dict[str, Any] = cluster.call("GET", job_path("default", "mnist"))[1].get("status", {})
    return found


def read_pod(cluster: ControlPlane, name: str) -> dict[str, Any]:
    code, body = cluster.call("GET", f"/api/v1/namespaces/default/pods/{name}")
    return body if code == 200 else {}


def test_a_pod_is_deleted_and_training_goes_on_and_its_replacement_joins(cluster: ControlPlane, tmp_path: Path) -> None:
    with outlast("k8s", "operator", f"--kubeconfig={cluster.kubeconfig}") as operator:
        pods = start(cluster, tmp_path / "script")
        cluster.kubectl("delete", "pod", pods[1], "--wait=false")
        until(lambda: "was drained" in cluster.kubectl("logs", pods[1], check=False).stdout, "the drain")
        until(lambda: worlds(cluster, "mnist-worker-1-1")[-1:] == [3], "the replacement in training")
        # The survivors trained on as two, in the pods that they were in.
        assert worlds(cluster, pods[2]) == [3, 2, 3]
        # The operator hears it from the coordinator: three, two, three nodes.
        until(lambda: status(cluster).get("generation", 0) >= 3, "the generation in the status")
        (tmp_path / "script" / "finish").touch()
        until(lambda: status(cluster)["phase"] == "Succeeded", "the end of the job")
        assert not any(slot.get("failures") for slot in status(cluster)["slots"].values())
        assert operator.running


def test_a_pod_on_a_node_that_is_cut_off_is_replaced_while_it_hangs_in_terminating(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    with outlast("k8s", "operator", f"--kubeconfig={cluster.kubeconfig}"):
        pods = start(cluster, tmp_path / "script")
        until(lambda: status(cluster).get("generation", 0) >= 1, "the coordinator's word")
        cut_off(read_pod(cluster, pods[2])["spec"]["nodeName"])
        until(lambda: worlds(cluster, pods[1])[-1:] == [2], "training without the node")
        cluster.kubectl("delete", "pod", pods[2], "--wait=false")
        until(lambda: read_pod(cluster, "mnist-worker-2-1"), "the replacement")
        assert "deletionTimestamp" in read_pod(cluster, pods[2])["metadata"]
        fenced = next(each for each in status(cluster)["conditions"] if each["type"] == "Fenced")
        assert fenced["message"].startswith("mnist-worker-2-0 replaced while Terminating")
        assert not any(slot.get("failures") for slot in status(cluster)["slots"].values())
