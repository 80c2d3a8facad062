"""What people do to jobs that nobody has thought of, on a real API server: nothing hangs, loops or is left behind."""

from __future__ import annotations

import json
import time

import pytest
from test_k8s_operator import Namespace, operator

from control_plane import ControlPlane, until
from outlast.k8s.execution import job_path
from outlast.k8s.observed import JOB_LABEL, LIFE_LABEL, ROLE_LABEL, SLOT_LABEL
from processes import Process

__all__ = ["operator"]  # the fixture


def what_is_there(space: Namespace) -> list[str]:
    """What jobs of a namespace have brought into the world, and nobody has deleted. (No kubelet ends these pods.)"""
    kinds = "pods,services,secrets,poddisruptionbudgets"
    told = json.loads(space.plane.kubectl("get", kinds, "-n", space.name, "-o", "json").stdout)["items"]
    names = [each["metadata"]["name"] for each in told if "deletionTimestamp" not in each["metadata"]]
    return [name for name in names if not name.startswith("default-token")]


@pytest.mark.usefixtures("operator")
def test_two_jobs_of_one_name_in_two_namespaces_have_nothing_to_do_with_each_other(plane: ControlPlane) -> None:
    one, other = Namespace(plane, "one"), Namespace(plane, "other")
    for space in (one, other):
        space.submit(2)
        space.run("mnist-worker-0-0", "mnist-worker-1-0")
    one.end("mnist-worker-0-0", 14)
    until(lambda: "mnist-worker-0-1" in one.pods(), "the replacement")
    assert sorted(other.pods()) == ["mnist-worker-0-0", "mnist-worker-1-0"]
    assert not other.job()["status"].get("excludedNodes")
    plane.kubectl("delete", "-n", one.name, "ej", "mnist")
    until(lambda: not what_is_there(one), "the garbage collector")
    assert not any("deletionTimestamp" in each["metadata"] for each in other.pods().values())


def test_a_job_that_is_deleted_while_it_starts_leaves_nothing_behind(plane: ControlPlane, operator: Process) -> None:
    space = Namespace(plane, "short")
    for _ in range(3):
        space.submit(3)
        until(lambda: what_is_there(space), "the first object")
        plane.kubectl("delete", "-n", space.name, "ej", "mnist", "--wait=false")
        until(lambda: plane.call("GET", job_path(space.name, "mnist"))[0] == 404, "the end of the job")
    until(lambda: not what_is_there(space), "the garbage collector")
    assert "Traceback" not in operator.output


@pytest.mark.usefixtures("operator")
def test_a_pod_that_is_deleted_by_force_is_replaced_under_another_name(plane: ControlPlane) -> None:
    space = Namespace(plane, "force")
    space.submit(2)
    space.run("mnist-worker-0-0", "mnist-worker-1-0")
    space.until_phase("Running")
    plane.kubectl("delete", "-n", space.name, "pod", "mnist-worker-1-0", "--force", "--grace-period=0")
    space.placed("mnist-worker-0-0", "mnist-worker-1-1")
    assert not space.job()["status"]["slots"]["1"].get("failures")


def test_a_name_that_somebody_elses_pod_has_is_passed_over_and_that_pod_is_left_alone(
    plane: ControlPlane, operator: Process
) -> None:
    space = Namespace(plane, "adopted")
    labels = {JOB_LABEL: "mnist", ROLE_LABEL: "worker", SLOT_LABEL: "0", LIFE_LABEL: "0"}
    body = {
        "metadata": {"name": "mnist-worker-0-0", "labels": labels},
        "spec": {"containers": [{"name": "a", "image": "a"}]},
    }
    assert plane.call("POST", f"/api/v1/namespaces/{space.name}/pods", body)[0] == 201
    theirs = space.pods()["mnist-worker-0-0"]["metadata"]["uid"]
    space.submit(2)
    space.placed("mnist-worker-0-0", "mnist-worker-0-1", "mnist-worker-1-0")
    assert space.pods()["mnist-worker-0-0"]["metadata"]["uid"] == theirs
    said = len(operator.lines)
    time.sleep(3)  # whoever loops says so again and again
    assert len(operator.lines) - said < 5


@pytest.mark.usefixtures("operator")
def test_a_job_of_a_newer_version_goes_on_with_what_this_operator_knows(plane: ControlPlane) -> None:
    space = Namespace(plane, "newer")
    space.submit(1)
    space.run("mnist-worker-0-0")
    space.until_phase("Running")
    plane.kubectl(
        "annotate",
        *("-n", space.name, "ej", "mnist"),
        'kubectl.kubernetes.io/last-applied-configuration={"spec": {"futureField": 1}}',
    )
    until(lambda: "futureField" in space.condition("Accepted").get("message", ""), "the remark")
    assert space.condition("Accepted")["status"] == "True"
    assert sorted(space.pods()) == ["mnist-worker-0-0"]
