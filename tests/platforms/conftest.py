"""Clusters that the tests of platforms share: each is made when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_cluster import RayCluster, ray_cluster
from slurm_cluster import SlurmCluster, slurm


@pytest.fixture(scope="session")
def slurm_of_four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A Slurm of four nodes that all tests share. Its site kills a step for one task's failure: we ask it not to."""
    with slurm(tmp_path_factory.mktemp("slurm"), 4, site="KillOnBadExit=1") as cluster:
        yield cluster


@pytest.fixture
def cluster(slurm_of_four: SlurmCluster) -> Iterator[SlurmCluster]:
    """The shared Slurm, with nothing in its queue; put in order again afterwards."""
    yield slurm_of_four
    slurm_of_four.clean()


@pytest.fixture(scope="session")
def ray_of_three(temporary_directory: Path) -> Iterator[RayCluster]:
    """A Ray cluster of three nodes that all tests share. Its paths are short, because those of sockets must be."""
    place = temporary_directory / "ray"
    place.mkdir()
    with ray_cluster(place, 3) as cluster:
        yield cluster
