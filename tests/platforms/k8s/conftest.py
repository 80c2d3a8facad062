"""Clusters that the tests here share, with the resource installed: one without kubelets, one with three."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubelets import missing_for_nodes
from real_jobs import Cluster, install, nodes_with_rights, with_operator

from control_plane import ControlPlane, control_plane, missing
from outlast.k8s import crd


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane."""
    assert not missing(), f"no {missing()}: run scripts/install-k8s"
    with control_plane(tmp_path_factory.mktemp("kubernetes")) as found:
        install(found, [crd.manifest()])
        yield found


@pytest.fixture(scope="session")
def nodes_of_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Three nodes that run pods."""
    absent = missing() or missing_for_nodes()
    assert not absent, f"no {absent}: run scripts/install-k8s"
    with nodes_with_rights(tmp_path_factory.mktemp("cluster"), 3) as found:
        yield found


@pytest.fixture
def cluster(nodes_of_three: ControlPlane, tmp_path: Path) -> Iterator[Cluster]:
    """The shared nodes, with an operator of their own."""
    with with_operator(nodes_of_three, tmp_path) as found:
        yield found
