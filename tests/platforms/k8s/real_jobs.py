"""Jobs on real kubelets: how tests submit them, and what they see of them."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from kubelets import IMAGE, bridge, nodes, python_volumes
from test_elasticjob_resource import job

from control_plane import ControlPlane, control_plane, until
from outlast.k8s.execution import job_path
from outlast.k8s.manifests import installation
from outlast.system.prctl import die_with
from processes import Process, outlast

NAMESPACE = "jobs"
SCRIPT = """
import os, pathlib, time
while not pathlib.Path(__file__).with_name("finish").exists():
    print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} trains", flush=True)
    time.sleep(0.2)
"""


def install(plane: ControlPlane, manifests: Iterable[dict[str, Any]]) -> None:
    for manifest in manifests:
        plane.kubectl("apply", "-f", "-", given=json.dumps(manifest))
    until(lambda: plane.kubectl("get", "ej", check=False).returncode == 0, "the resource")


@contextmanager
def nodes_with_rights(place: Path, number: int) -> Iterator[ControlPlane]:
    """Nodes that run pods, and the operator's rights in the namespace of jobs."""
    with bridge() as address, control_plane(place, address) as plane, nodes(plane, place, number):
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        install(plane, (each for each in installation(NAMESPACE, "x", nodes=True) if each["kind"] != "Deployment"))
        yield plane


@contextmanager
def with_operator(plane: ControlPlane, place: Path) -> Iterator[Cluster]:
    """An operator beside the cluster, with the rights that its account has in it and no others."""
    found = Cluster(plane, place)
    kubeconfig = found.kubeconfig_of_the_operator()
    flags = (f"--kubeconfig={kubeconfig}", f"--namespace={NAMESPACE}", "--nodes")
    with outlast("k8s", "operator", *flags, preexec_fn=partial(die_with, os.getpid())) as operator:
        operator.wait_for("leads")
        found.operator = operator
        yield found
        found.clean()
        operator.signal(signal.SIGTERM)
        assert operator.wait() == 0


class Cluster:
    """The nodes, and an operator."""

    operator: Process

    def __init__(self, plane: ControlPlane, place: Path) -> None:
        self.plane, self.place = plane, place

    def kubectl(self, *words: str, given: str = "", check: bool = True) -> str:
        """Standard output, and the error where that is allowed."""
        done = self.plane.kubectl("-n", NAMESPACE, *words, given=given, check=check)
        return done.stdout + ("" if check else done.stderr)

    def kubeconfig_of_the_operator(self) -> Path:
        """Of its service account, by the token that the control plane has made for that."""

        def token() -> str:
            secrets = self.plane.call("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets")[1]["items"]
            mine = [each for each in secrets if each["metadata"]["name"].startswith("outlast-operator-token")]
            return base64.b64decode(mine[0]["data"]["token"]).decode() if mine else ""

        config = json.loads(self.plane.kubeconfig.read_text())
        config["users"][0]["user"]["token"] = until(token, "the operator's token")
        file = self.place / "operator.kubeconfig"
        file.write_text(json.dumps(config))
        return file

    def node(self, name: str) -> dict[str, Any]:
        return self.plane.call("GET", f"/api/v1/nodes/{name}")[1]

    def small(self, name: str, script: str, replicas: int = 1, **spec: Any) -> Job:
        """Submit a job whose pods run a line of shell, without Python."""
        container = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", script]}
        container |= spec.pop("container", {})
        return self._submit(name, {"spec": {"containers": [container]}}, replicas, spec)

    def training(self, name: str, script: str = SCRIPT, *, pod: Any = None, replicas: int = 3, **spec: Any) -> Job:
        """Submit a job whose pods run this machine's Python, each on a node of its own if that can be.

        `before`, `flags` and `args` go into its command: before the launcher, after it, and after the script.
        """
        before, flags, args = (spec.pop(name, "") for name in ("before", "flags", "args"))
        folder = self.place / name
        folder.mkdir()
        (folder / "train.py").write_text(script)
        launcher = folder / "outlast"
        launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -m outlast "$@"\n')
        launcher.chmod(0o755)
        mounts, volumes = python_volumes(folder)
        container = {
            "name": "main",
            "image": IMAGE,
            "imagePullPolicy": "Never",
            # A shell that passes no signal on: only the hook can drain the node.
            "command": ["sh", "-c", f"{before} outlast run {flags} {folder}/train.py {args}; exit $?"],
            "env": [{"name": "PATH", "value": f"{folder}:/usr/bin:/bin"}],
            "volumeMounts": [*mounts, {"name": "tmp", "mountPath": "/tmp"}],
            **spec.pop("container", {}),
        }
        template = {
            "spec": {
                "containers": [container],
                "volumes": [*volumes, {"name": "tmp", "emptyDir": {}}],
                "affinity": apart(name),
                **(pod or {}),
            }
        }
        bounds = {"minReplicas": 2, "maxReplicas": replicas}
        return self._submit(name, template, replicas, {"elasticPolicy": bounds, **spec}, folder)

    def _submit(
        self, name: str, template: dict[str, Any], replicas: int, spec: dict[str, Any], folder: Path | None = None
    ) -> Job:
        worker = {"replicas": replicas, "template": template, **spec.pop("worker", {})}
        body = job(name, worker=worker, **{"drain": {"gracePeriod": "20s"}, **spec})
        self.kubectl("apply", "-f", "-", given=json.dumps(body))
        return Job(self, name, folder)

    def clean(self) -> None:
        """Delete all jobs, and wait for the end of their pods."""
        self.kubectl("delete", "ej,jobs", "--all", "--wait=false")
        self.kubectl("delete", "pods", "--all", "--grace-period=1", "--wait=false")
        until(lambda: not self.kubectl("get", "pods", "-o", "name"), "the end of all pods")


def apart(name: str) -> dict[str, Any]:
    """Rather on nodes of their own."""
    labels = {"matchLabels": {"outlast.dev/job": name}}
    term = {"labelSelector": labels, "topologyKey": "kubernetes.io/hostname"}
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


class Job:
    """One ElasticJob."""

    def __init__(self, cluster: Cluster, name: str, folder: Path | None) -> None:
        self.cluster, self.name, self.folder = cluster, name, folder

    def pod_name(self, slot: int, life: int = 0) -> str:
        return f"{self.name}-worker-{slot}-{life}"

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.plane.call("GET", job_path(NAMESPACE, self.name))[1].get("status", {})
        return found

    def condition(self, kind: str) -> str:
        """Its message, while it holds."""
        found = [each for each in self.status().get("conditions") or () if each["type"] == kind]
        return str(found[0].get("message", "")) if found and found[0]["status"] == "True" else ""

    def pod(self, slot: int, life: int = 0) -> dict[str, Any]:
        """The pod, or nothing."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{self.pod_name(slot, life)}"
        code, body = self.cluster.plane.call("GET", path)
        return body if code == 200 else {}

    def pods(self) -> list[str]:
        return self.cluster.kubectl("get", "pods", "-l", f"outlast.dev/job={self.name}", "-o", "name").split()

    def logs(self, slot: int, life: int = 0) -> str:
        return self.cluster.kubectl("logs", self.pod_name(slot, life), check=False)

    def worlds(self, slot: int, life: int = 0) -> list[int]:
        """The world sizes that a pod has trained with, in order."""
        sizes = [int(size) for size in re.findall(r"rank \d+ of (\d+) trains", self.logs(slot, life))]
        return [size for place, size in enumerate(sizes) if place == 0 or sizes[place - 1] != size]

    def until_trains(self, world: int, lives: tuple[int, ...] = (0, 0, 0)) -> None:
        """Wait until the pods of these lives train together."""
        until(
            lambda: all(self.worlds(slot, life)[-1:] == [world] for slot, life in enumerate(lives)),
            f"{world} nodes in training",
        )
        until(lambda: self.status().get("generation", 0) >= 1, "the coordinator's word")

    def until_phase(self, phase: str) -> None:
        until(lambda: self.status().get("phase") == phase, f"phase {phase}")

    def finish(self) -> None:
        """Let the script end, and the job with it; no pod was to blame for anything."""
        assert self.folder is not None
        (self.folder / "finish").touch()
        self.until_phase("Succeeded")
        assert not any(slot.get("failures") for slot in self.status()["slots"].values())
