"""`outlast k8s`: what needs no cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from outlast.cli import main

JOB = """
apiVersion: outlast.dev/v1alpha1
kind: ElasticJob
metadata: {name: mnist}
spec:
  replicaSpecs:
    worker:
      replicas: 2
      template: {spec: {containers: [{name: main, image: train, kept: {as: it is}}]}}
"""


def test_manifests_give_the_operator_no_more_rights_than_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["k8s", "manifests", "--namespace=ml", "--image=registry/outlast:1"]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [each["kind"] for each in objects] == [
        "CustomResourceDefinition",
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "Deployment",
    ]
    assert not [rule for rule in objects[2]["rules"] if "*" in rule["verbs"] or "nodes" in rule["resources"]]
    assert main(["k8s", "manifests", "--namespace=ml", "--nodes"]) == 0
    assert "ClusterRole" in capsys.readouterr().out


def test_render_prints_what_would_be_created(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    assert main(["k8s", "render", str(file)]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [(each["kind"], each["metadata"]["name"]) for each in objects] == [
        ("Secret", "mnist-outlast"),
        ("Service", "mnist-outlast"),
        ("PodDisruptionBudget", "mnist"),
        ("Pod", "mnist-worker-0-0"),
        ("Pod", "mnist-worker-1-0"),
    ]
    assert objects[3]["spec"]["containers"][0]["kept"] == {"as": "it is"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is no YAML"),
        ("", "holds no Kubernetes object"),
        ("kind: Pod\napiVersion: v1\n", "no ElasticJob of outlast.dev/v1alpha1, but Pod v1"),
        (
            JOB.replace("replicas: 2", "replicas: two"),
            "got `str` - at `$.replicaSpecs.worker.replicas`",
        ),
        (JOB + "  elasticPolicy: {minReplicas: 3, maxReplicas: 2}\n", "minReplicas 3 is more than maxReplicas 2"),
        (JOB + "  elasticPolcy: {}\n", "there is no spec.elasticPolcy (did you mean elasticPolicy?)"),
    ],
)
def test_a_bad_file_is_one_line(text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    assert main(["k8s", "render", str(file)]) == 1
    line = capsys.readouterr().err
    assert line.startswith(f"outlast k8s: error: {file}")
    assert told in line
    assert line.count("\n") == 1


def test_an_operator_without_a_cluster_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightkube")
    assert main(["k8s", "operator", f"--kubeconfig={tmp_path / 'none'}"]) == 1
    assert "give --kubeconfig, or set KUBECONFIG" in capsys.readouterr().err
