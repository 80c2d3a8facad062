"""The operator on a real API server, scheduler and garbage collector. The tests play the kubelet."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from test_elasticjob_resource import job

from control_plane import ControlPlane, until
from outlast.k8s.execution import job_path
from processes import Process, outlast

MEMORY = {"resources": {"limits": {"memory": "1Gi", "cpu": "1"}}}
ELASTIC = {"minReplicas": 1, "maxReplicas": 4}


class Namespace:
    """One job in a namespace of its own."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.plane, self.name = plane, name
        status, body = plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        assert status == 201, body

    def submit(self, replicas: int, **spec: Any) -> None:
        container = {"name": "main", "image": "train:1", **MEMORY}
        worker = {"replicas": replicas, "template": {"spec": {"containers": [container]}}}
        body = job("mnist", **{"worker": worker, "elasticPolicy": ELASTIC, **spec})
        status, answer = self.plane.call("POST", job_path(self.name), body)
        assert status == 201, answer

    def job(self) -> dict[str, Any]:
        return self.plane.call("GET", job_path(self.name, "mnist"))[1]

    def change(self, spec: dict[str, Any]) -> None:
        assert self.plane.call("PATCH", job_path(self.name, "mnist"), {"spec": spec})[0] == 200

    def condition(self, kind: str) -> dict[str, Any]:
        found = self.job().get("status", {}).get("conditions") or []
        return next((each for each in found if each["type"] == kind), {})

    def pods(self) -> dict[str, dict[str, Any]]:
        items = self.plane.call("GET", f"/api/v1/namespaces/{self.name}/pods")[1]["items"]
        return {each["metadata"]["name"]: each for each in items}

    def path(self, pod: str) -> str:
        return f"/api/v1/namespaces/{self.name}/pods/{pod}"

    def placed(self, *names: str) -> None:
        """Wait until exactly these pods are there, and the scheduler has placed them."""
        until(
            lambda: (
                sorted(names) == sorted(pods := self.pods())
                and all(each["spec"].get("nodeName") for each in pods.values())
            ),
            f"pods {names} ({sorted(self.pods())})",
        )

    def run(self, *names: str) -> None:
        """Start pods, as their kubelets would."""
        self.placed(*names)
        for number, name in enumerate(names):
            status = {"phase": "Running", "podIP": f"10.1.0.{number + 1}"}
            assert self.plane.call("PATCH", f"{self.path(name)}/status", {"status": status})[0] == 200

    def end(self, name: str, code: int, reason: str = "Error", message: str = "") -> None:
        """End the container of a pod."""
        ended = {"exitCode": code, "reason": reason, "message": message}
        container = {"name": "main", "image": "x", "imageID": "", "restartCount": 0, "ready": False}
        phase = "Succeeded" if code == 0 else "Failed"
        status = {"phase": phase, "containerStatuses": [{**container, "state": {"terminated": ended}}]}
        assert self.plane.call("PATCH", f"{self.path(name)}/status", {"status": status})[0] == 200

    def finish_deletion(self, name: str) -> None:
        """Remove a pod that is being deleted, as its kubelet would."""
        until(lambda: "deletionTimestamp" in self.pods()[name]["metadata"], f"deletion of {name}")
        self.plane.call("DELETE", self.path(name), {"gracePeriodSeconds": 0})

    def until_phase(self, phase: str) -> None:
        until(lambda: self.job().get("status", {}).get("phase") == phase, f"phase {phase}")


def start_operator(plane: ControlPlane, *flags: str) -> Process:
    return outlast("k8s", "operator", f"--kubeconfig={plane.kubeconfig}", "--all-namespaces", "--nodes", *flags)


@pytest.fixture
def operator(plane: ControlPlane) -> Iterator[Process]:
    for number in range(3):
        plane.add_node(f"node-{number}")
    with start_operator(plane) as process:
        process.wait_for("leads")
        yield process
        process.signal(signal.SIGTERM)
        assert process.wait() == 0


@pytest.mark.usefixtures("operator")
def test_a_job_from_its_first_pod_to_its_end(plane: ControlPlane) -> None:
    space = Namespace(plane, "whole-life")
    space.submit(2)
    space.run("mnist-worker-0-0", "mnist-worker-1-0")
    space.until_phase("Running")
    plane.kubectl("scale", "-n", space.name, "ej/mnist", "--replicas=3")
    space.run("mnist-worker-0-0", "mnist-worker-1-0", "mnist-worker-2-0")
    until(lambda: space.job()["status"]["nodes"] == "3/1:4", "three pods in the status")

    plane.kubectl("delete", "-n", space.name, "pod", "mnist-worker-1-0", "--wait=false")
    space.finish_deletion("mnist-worker-1-0")
    space.run("mnist-worker-0-0", "mnist-worker-1-1", "mnist-worker-2-0")

    space.change({"suspend": True})
    for name in ("mnist-worker-0-0", "mnist-worker-1-1", "mnist-worker-2-0"):
        space.finish_deletion(name)
    space.until_phase("Suspended")
    space.change({"suspend": False})
    space.run("mnist-worker-0-1", "mnist-worker-1-2", "mnist-worker-2-1")
    space.until_phase("Running")
    assert not any(slot.get("failures") for slot in space.job()["status"]["slots"].values())

    for name in space.pods():
        space.end(name, 0, "Completed")
    space.until_phase("Succeeded")
    plane.kubectl("delete", "-n", space.name, "ej", "mnist")
    until(lambda: not space.pods(), "the garbage collector")


@pytest.mark.usefixtures("operator")
def test_faults_are_told_apart(plane: ControlPlane) -> None:
    space = Namespace(plane, "faults")
    space.submit(2)
    space.run("mnist-worker-0-0", "mnist-worker-1-0")
    bad = space.pods()["mnist-worker-0-0"]["spec"]["nodeName"]

    space.end("mnist-worker-0-0", 201)
    space.placed("mnist-worker-0-0", "mnist-worker-0-1", "mnist-worker-1-0")
    assert space.pods()["mnist-worker-0-1"]["spec"]["nodeName"] != bad
    (excluded,) = space.job()["status"]["excludedNodes"]
    assert (excluded["name"], excluded["cause"]) == (bad, "exit code 201")

    space.end("mnist-worker-1-0", 137, "OOMKilled")
    until(lambda: "mnist-worker-1-1" in space.pods(), "the replacement")
    grown = space.pods()["mnist-worker-1-1"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
    assert grown == space.job()["status"]["slots"]["1"]["memory"] == "2Gi"
    assert space.job()["status"]["lastFault"]["action"] == "GrowMemory"

    space.end("mnist-worker-1-1", 1, message='{"stopped": "3 restarts, no more allowed", "first"')
    space.until_phase("Failed")
    assert space.condition("Failed")["message"] == "3 restarts, no more allowed"


@pytest.mark.usefixtures("operator")
def test_quota_and_templates_that_no_server_takes_are_conditions(plane: ControlPlane) -> None:
    space = Namespace(plane, "limits")
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    plane.call("POST", f"/api/v1/namespaces/{space.name}/resourcequotas", quota)
    path = f"/api/v1/namespaces/{space.name}/resourcequotas/few"
    until(lambda: plane.call("GET", path)[1].get("status", {}).get("hard"), "the quota")
    space.submit(2)
    until(lambda: "exceeded quota" in space.condition("QuotaExceeded").get("message", ""), "the condition")
    assert sorted(space.pods()) == ["mnist-worker-0-0"]

    broken = Namespace(plane, "broken")
    broken.submit(1, worker={"template": {"spec": {"containers": [{"name": "main", "image": "x", "ports": [{}]}]}}})
    until(lambda: "containerPort" in broken.condition("Degraded").get("message", ""), "the server's own words")
    assert not broken.pods()


def test_an_operator_that_is_killed_leaves_all_pods_alone_and_its_successor_too(plane: ControlPlane) -> None:
    plane.add_node("node-0")
    space = Namespace(plane, "succession")
    with start_operator(plane) as first, start_operator(plane) as second:
        leads = until(lambda: [each for each in (first, second) if " leads" in each.output], "a leader")
        assert len(leads) == 1
        space.submit(2)
        space.run("mnist-worker-0-0", "mnist-worker-1-0")
        space.until_phase("Running")
        before = {name: pod["metadata"]["resourceVersion"] for name, pod in space.pods().items()}
        leads[0].kill()
        (other,) = {first, second} - set(leads)
        other.wait_for("leads")
        space.end("mnist-worker-1-0", 14)
        until(lambda: "mnist-worker-1-1" in space.pods(), "the replacement")
        assert space.pods()["mnist-worker-0-0"]["metadata"]["resourceVersion"] == before["mnist-worker-0-0"]


@pytest.mark.usefixtures("operator")
def test_pods_have_what_outlast_needs_and_no_rights(plane: ControlPlane) -> None:
    space = Namespace(plane, "contents")
    space.submit(1, sharedMemory="1Gi", nprocPerNode=2, config={"node_timeout": 5})
    space.placed("mnist-worker-0-0")
    pod = space.pods()["mnist-worker-0-0"]
    env = {each["name"]: each.get("value", each.get("valueFrom")) for each in pod["spec"]["containers"][0]["env"]}
    secret = env["OUTLAST_TOKEN"]["secretKeyRef"]
    assert plane.call("GET", f"/api/v1/namespaces/{space.name}/secrets/{secret['name']}")[1]["data"][secret["key"]]
    service = plane.call("GET", f"/api/v1/namespaces/{space.name}/services/mnist-outlast")[1]
    assert env["PET_RDZV_ENDPOINT"] == f"{service['spec']['clusterIP']}:29400"
    assert (env["PET_NNODES"], env["PET_NPROC_PER_NODE"], env["OUTLAST_NODE_TIMEOUT"]) == ("1:4", "2", "5")
    assert 0 <= time.time() - float(env["OUTLAST_SUBMITTED"]) < 600
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["terminationGracePeriodSeconds"] == 60


def test_a_dry_run_of_what_is_rendered_passes(plane: ControlPlane, tmp_path: Any) -> None:
    file = tmp_path / "job.yaml"
    template = {"spec": {"containers": [{"name": "main", "image": "train:1"}]}}
    file.write_text(json.dumps(job("shown", worker={"replicas": 2, "template": template})))
    with outlast("k8s", "render", file) as rendered:
        assert rendered.wait() == 0
    text = "\n".join(rendered.lines).replace("uid: UID", "uid: 00000000-0000-0000-0000-000000000000")
    text = text.replace("policy/v1", "policy/v1beta1")  # this server is too old for what is rendered
    done = plane.kubectl("apply", "--dry-run=server", "-f", "-", given=text, check=False)
    assert done.stdout.count("(server dry run)") == 5, done.stderr


def test_install_and_submit_check_and_then_apply(plane: ControlPlane, tmp_path: Any) -> None:
    Namespace(plane, "installed")
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(job("sent", worker={"replicas": 2})))
    reach = f"--kubeconfig={plane.kubeconfig}"
    for flags, done in ((["--dry-run"], "(dry run)"), ([], "created"), ([], "applied")):
        with outlast("k8s", "install", reach, "--namespace=installed", "--nodes", *flags) as install:
            assert install.wait() == 0, install.output
        assert f"Deployment outlast-operator: {'created ' if flags else ''}{done}" in install.output
        with outlast("k8s", "submit", file, reach, "--namespace=installed", *flags) as submit:
            assert submit.wait() == 0, submit.output
        assert done in submit.output
        found = plane.call("GET", job_path("installed", "sent"))[0]
        assert found == (404 if flags else 200)
    file.write_text(json.dumps(job("bad", elasticPolicy={"minReplicas": 3, "maxReplicas": 2})))
    with outlast("k8s", "submit", file, reach) as submit:
        assert submit.wait() == 1
    assert "minReplicas 3 is more than maxReplicas 2" in submit.output
    with outlast("status", "--k8s=installed/none", env={"KUBECONFIG": str(plane.kubeconfig)}) as status:
        assert status.wait() == 1
    assert "no ElasticJob 'none' runs in namespace 'installed'" in status.output
