"""What Ray is asked for, word for word, without Ray."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

from outlast.jobs.loading import BadJobFile, parse
from outlast.jobs.spec import JobSpec
from outlast.providers.ray import RayProvider


def spec(**more: object) -> JobSpec:
    return parse({"name": "j", "run": "train.py", "nodes": "2:4", **more})


def test_the_dry_run_says_how_many_nodes_with_what_and_the_command() -> None:
    request = RayProvider().plan(
        spec(spares=1, args=["--steps", "4"], resources={"gpus": 8, "memory": "64GiB"}, ray={"resources": {"ib": 1}})
    )
    asked = yaml.safe_load(request.text())["for each node"]
    assert asked["count"] == 5
    assert asked["placement_group"]["bundles"] == [{"GPU": 8.0, "memory": 64.0 * 2**30, "ib": 1.0}]
    assert asked["actor"]["num_gpus"] == 8
    assert asked["actor"]["resources"] == {"ib": 1.0}
    assert asked["process"]["command"].endswith("train.py --steps 4")
    assert "--nnodes=2:4" in asked["process"]["command"]


def test_nodes_to_avoid_are_a_label_selector_beside_the_users() -> None:
    request = RayProvider().plan(spec(ray={"labels": {"market-type": "!spot"}}))
    assert request.selector({"b", "a"}) == {"market-type": "!spot", "ray.io/node-id": "!in(a,b)"}
    assert request.selector() == {"market-type": "!spot"}


def test_a_resource_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="CPU: given twice"):
        RayProvider().plan(spec(resources={"cpus": 2}, ray={"resources": {"CPU": 4}}))


def test_mistakes_in_the_ray_section_are_named() -> None:
    with pytest.raises(BadJobFile, match=r"unknown name ray\.adress; did you mean address"):
        spec(ray={"adress": "head:6379"})
    with pytest.raises(BadJobFile, match=r"ray\.resources must be names with numbers"):
        spec(ray={"resources": {"ib": "many"}})


def test_planning_loads_neither_ray_nor_torch() -> None:
    code = "import sys, outlast.providers.ray, outlast.ray; assert not {'ray', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
