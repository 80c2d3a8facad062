"""Jobs of others become ours, and their owners are told what has changed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outlast.k8s.conversion import convert
from outlast.k8s.resource import ElasticJobSpec

DLROVER = {
    "apiVersion": "elastic.iml.github.io/v1alpha1",
    "kind": "ElasticJob",
    "metadata": {"name": "torch-mnist", "namespace": "dlrover", "uid": "x"},
    "spec": {
        "distributionStrategy": "AllreduceStrategy",
        "optimizeMode": "single-job",
        "replicaSpecs": {
            "dlrover-master": {"template": {}},
            "worker": {
                "replicas": 4,
                "restartCount": 2,
                "template": {
                    "spec": {
                        "restartPolicy": "Always",
                        "containers": [
                            {
                                "name": "main",
                                "image": "train:1",
                                "command": [
                                    "/bin/bash",
                                    "-c",
                                    "dlrover-run --network-check --nnodes=3:$WORKER_NUM --nproc_per_node=2 train.py",
                                ],
                            }
                        ],
                    }
                },
            },
        },
    },
}


def pytorch_job(**spec: Any) -> dict[str, Any]:
    command = ["torchrun", "--nnodes", "2", "--rdzv_endpoint=a:1", "--nproc-per-node=8", "train.py", "--lr=1"]
    template = {"spec": {"containers": [{"name": "pytorch", "image": "train:1", "command": command}]}}
    roles = {"Master": {"replicas": 1, "template": template}, "Worker": {"replicas": 2, "template": template}}
    meta = {"name": "p"}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": meta,
        "spec": {"pytorchReplicaSpecs": roles, **spec},
    }


def test_a_dlrover_job() -> None:
    conversion = convert(DLROVER)
    spec = msgspec.convert(conversion.job["spec"], ElasticJobSpec)
    assert (spec.least, spec.most, spec.wanted, spec.replica_specs.worker.restart_count) == (3, 4, 4, 2)
    (container,) = spec.replica_specs.worker.template["spec"]["containers"]
    assert container["command"][2] == "outlast run --network-check --nproc_per_node=2 train.py"
    assert conversion.job["metadata"] == {"name": "torch-mnist", "namespace": "dlrover"}
    assert "replicaSpecs.dlrover-master is dropped: no master pod is needed" in conversion.notes
    assert "spec.optimizeMode is dropped: it has no counterpart" in conversion.notes


def test_a_pytorch_job() -> None:
    policy = {"cleanPodPolicy": "All", "backoffLimit": 3, "ttlSecondsAfterFinished": 9}
    elastic = {"minReplicas": 2, "maxReplicas": 5, "rdzvBackend": "c10d"}
    conversion = convert(pytorch_job(runPolicy=policy, elasticPolicy=elastic, nprocPerNode="8"))
    spec = msgspec.convert(conversion.job["spec"], ElasticJobSpec)
    assert (spec.least, spec.most, spec.wanted, spec.nproc_per_node) == (2, 5, 3, "8")
    assert spec.run_policy.clean_pod_policy == "All"
    (container,) = spec.replica_specs.worker.template["spec"]["containers"]
    assert container["command"] == ["outlast", "run", "--nproc-per-node=8", "train.py", "--lr=1"]
    assert "runPolicy.backoffLimit is dropped: it has no counterpart" in conversion.notes


def test_the_given_manifest_is_left_as_it_is() -> None:
    before = msgspec.json.encode(DLROVER)
    convert(DLROVER)
    assert msgspec.json.encode(DLROVER) == before


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"apiVersion": "batch/v1", "kind": "Job"}, "Job of batch cannot be converted"),
        ({**DLROVER, "spec": {"replicaSpecs": {"ps": {}}}}, "replicaSpecs.ps: only workers can be run"),
        ({**DLROVER, "spec": {}}, "replicaSpecs.worker is missing"),
    ],
)
def test_what_cannot_be_converted_is_said(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        convert(given)
