"""Clusters that the tests here share, with the resource installed: one without kubelets, one with three."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubelets import bridge, missing_for_nodes, nodes
from real_jobs import NAMESPACE, Cluster

from control_plane import ControlPlane, control_plane, missing, until
from outlast.k8s import crd
from outlast.k8s.manifests import installation
from processes import outlast


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane."""
    assert not missing(), f"no {missing()}: run scripts/install-k8s"
    with control_plane(tmp_path_factory.mktemp("kubernetes")) as found:
        _install(found, [crd.manifest()])
        yield found


@pytest.fixture(scope="session")
def nodes_of_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Three nodes that run pods; the operator's rights in the namespace of jobs."""
    absent = missing() or missing_for_nodes()
    assert not absent, f"no {absent}: run scripts/install-k8s"
    place = tmp_path_factory.mktemp("cluster")
    with bridge() as address, control_plane(place, address) as found, nodes(found, place, 3):
        found.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        # The operator itself runs beside the cluster, with the rights that it would have in it.
        _install(found, [each for each in installation(NAMESPACE, "x", nodes=True) if each["kind"] != "Deployment"])
        yield found


@pytest.fixture
def cluster(nodes_of_three: ControlPlane, tmp_path: Path) -> Iterator[Cluster]:
    """The shared nodes, with an operator that has the rights of its own account and no others."""
    found = Cluster(nodes_of_three, tmp_path)
    kubeconfig = found.kubeconfig_of_the_operator()
    with outlast("k8s", "operator", f"--kubeconfig={kubeconfig}", f"--namespace={NAMESPACE}", "--nodes") as operator:
        operator.wait_for("leads")
        found.operator = operator
        yield found
        found.clean()
        operator.signal(signal.SIGTERM)
        assert operator.wait() == 0


def _install(found: ControlPlane, manifests: list[dict[str, object]]) -> None:
    for manifest in manifests:
        found.kubectl("apply", "-f", "-", given=json.dumps(manifest))
    until(lambda: found.kubectl("get", "ej", check=False).returncode == 0, "the resource")
