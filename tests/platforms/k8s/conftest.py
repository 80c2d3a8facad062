"""One control plane for all tests here, with the resource installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from control_plane import ControlPlane, control_plane, missing, until
from outlast.k8s import crd


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane."""
    assert not missing(), f"no {missing()}: run scripts/install-k8s"
    with control_plane(tmp_path_factory.mktemp("kubernetes")) as found:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        status, body = found.call("POST", path, crd.manifest())
        assert status == 201, body

        def established() -> bool:
            read = found.call("GET", f"{path}/{body['metadata']['name']}")[1]
            conditions = read.get("status", {}).get("conditions") or []
            return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

        until(established, "the resource")
        yield found
