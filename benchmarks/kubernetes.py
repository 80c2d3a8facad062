"""Pods of a training job are lost on a real cluster: how long until training goes on, and until it is whole again.

    python benchmarks/kubernetes.py [--repeat 1] [--launchers outlast torchrun dlrover]

Three kubelets in network namespaces (scripts/install-k8s), as root. The same DDP script runs as an ElasticJob and as a
plain Job of torchrun, on the same cluster in one run. What is measured, from the moment of `kubectl delete pod` or of
the cut of a node's cable: the survivors' next step, the creation of the replacement, and its first step. Torchrun's
rendezvous store lives outside of the pods, where nothing happens to it, which favours torchrun.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "platforms" / "k8s")]

from histories import SCRIPT, History  # noqa: E402
from kubelets import GATEWAY, IMAGE, cut_off, python_volumes  # noqa: E402
from real_jobs import NAMESPACE, Cluster, Job, apart, install, nodes_with_rights, with_operator  # noqa: E402

import machine  # noqa: E402
import peers  # noqa: E402
from control_plane import until  # noqa: E402
from jobs import free_port  # noqa: E402
from processes import Process  # noqa: E402

ENOUGH = 90.0  # seconds after which nothing more is waited for


class Loss:
    """One loss of a pod, as it is seen from outside."""

    def __init__(self, history: History, pods: Callable[[], set[str]]) -> None:
        self.history, self.pods = history, pods
        self.before, self.at = pods(), time.time()

    def watch(self, survivors: int) -> dict[str, float]:
        """Seconds until each thing; what does not come within `ENOUGH` is left out."""
        found: dict[str, float] = {}
        while time.time() - self.at < ENOUGH and len(found) < 3:
            new = self.pods() - self.before
            if new:
                found.setdefault("replacement created", time.time() - self.at)
            begun = self.history.begun(self.at)
            old = [at for pod, at in begun.items() if pod in self.before]
            if len(old) >= survivors:
                found.setdefault("survivors' next step", min(old) - self.at)
            if joined := [at for pod, at in begun.items() if pod in new]:
                found.setdefault("replacement trains", min(joined) - self.at)
            time.sleep(0.05)
        return found


def pods_of(cluster: Cluster, selector: str) -> set[str]:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={selector}"
    return {each["metadata"]["name"] for each in cluster.plane.call("GET", path)[1]["items"]}


def lose(cluster: Cluster, history: History, selector: str, how: str) -> dict[str, float]:
    """Delete a pod of a job, or cut its node off, and watch what comes of it."""
    pods = lambda: pods_of(cluster, selector)  # noqa: E731
    victim = sorted(pods())[-1]
    node = cluster.plane.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/{victim}")[1]["spec"]["nodeName"]
    cut: AbstractContextManager[None] = cut_off(node) if how == "node cut off" else nullcontext()
    loss = Loss(history, pods)
    with cut:
        if how != "node cut off":
            cluster.kubectl("delete", "pod", victim, "--wait=false")
        return loss.watch(2)


def with_outlast(cluster: Cluster, name: str, how: str) -> dict[str, float]:
    """An ElasticJob loses a pod."""
    job = cluster.training(name, SCRIPT.read_text(), args=str(cluster.place / name), flags="--max-restarts=3")
    assert job.folder is not None
    history = History(job.folder)
    until(lambda: history.world == 3, "three nodes in training")
    time.sleep(2)
    found = lose(cluster, history, f"outlast.dev/job={name}", how)
    finish(job, history, found)
    return found


def finish(job: Job, history: History, found: dict[str, float]) -> None:
    job.finish()
    history.check_exactly_once()
    found["steps trained twice"] = float(len(history.repeated()))
    job.cluster.clean()


def with_torchrun(cluster: Cluster, name: str, how: str) -> dict[str, float]:
    """A plain Job of three pods with torchrun loses a pod."""
    import torch.distributed as dist

    folder = cluster.place / name
    folder.mkdir()
    port = free_port()
    store = dist.TCPStore(GATEWAY, port, is_master=True, wait_for_workers=False)
    cluster.kubectl("apply", "-f", "-", given=json.dumps(torchrun_job(name, folder, port)))
    history = History(folder)
    until(lambda: history.world == 3, "three pods in training")
    time.sleep(2)
    found = lose(cluster, history, f"job-name={name}", how)
    cluster.clean()
    del store
    return found


def torchrun_job(name: str, folder: Path, port: int) -> dict[str, Any]:
    command = (
        f"{sys.executable} -m torch.distributed.run --nnodes=2:3 --nproc-per-node=1 --max-restarts=3 "
        f"--rdzv-backend=c10d --rdzv-id={name} --rdzv-endpoint={GATEWAY}:{port} --rdzv-conf=is_host=0 "
        f"--local-addr=$POD_IP {SCRIPT} {folder}"
    )
    fields = {"POD_NAME": "metadata.name", "POD_IP": "status.podIP"}
    env = [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()]
    template = pod_template(name, folder, command, env)
    spec = {"parallelism": 3, "completions": 3, "backoffLimit": 20, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def pod_template(name: str, folder: Path, command: str, env: list[dict[str, Any]], *more: Path) -> dict[str, Any]:
    mounts, volumes = python_volumes(folder, SCRIPT.parent, *more)
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", f"exec {command}"],
        "env": env,
        "volumeMounts": [*mounts, {"name": "tmp", "mountPath": "/tmp"}],
    }
    pod = {
        "containers": [container],
        "volumes": [*volumes, {"name": "tmp", "emptyDir": {}}],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 20,
        "affinity": apart(name),
    }
    return {"metadata": {"labels": {"outlast.dev/job": name}}, "spec": pod}


def with_dlrover(cluster: Cluster, name: str, how: str) -> dict[str, float]:
    """An ElasticJob of DLRover's loses a pod. Its master runs beside the cluster, where nothing happens to it."""
    home = peers.environment("dlrover", peers.DEFAULT_PLACE)
    assert home is not None
    folder = cluster.place / name
    folder.mkdir()
    install(cluster.plane, [dlrover_resource()])
    path = os.pathsep.join([str(ROOT / "src"), sysconfig.get_path("purelib")])
    command = f"{home}/bin/dlrover-run --nnodes=2:3 --nproc-per-node=1 --max-restarts=3 {SCRIPT} {folder}"
    template = pod_template(name, folder, command, [{"name": "PYTHONPATH", "value": path}], home, home.resolve())
    worker = {"replicas": 3, "restartCount": 3, "template": template}
    spec = {"distributionStrategy": "AllreduceStrategy", "replicaSpecs": {"worker": worker}}
    job = {"apiVersion": "elastic.iml.github.io/v1alpha1", "kind": "ElasticJob", "metadata": {"name": name}}
    cluster.kubectl("apply", "--validate=false", "-f", "-", given=json.dumps({**job, "spec": spec}))
    master = [home / "bin" / "python", "-m", "dlrover.python.master.main", "--platform=pyk8s", f"--port={free_port()}"]
    env = {"KUBECONFIG": str(cluster.plane.kubeconfig), "POD_IP": GATEWAY}
    with Process([*master, f"--job_name={name}", f"--namespace={NAMESPACE}"], env=env) as process:
        history = History(folder)
        try:
            until(lambda: history.world == 3, "three pods in training")
            time.sleep(2)
            found = lose(cluster, history, f"outlast.dev/job={name}", how)
        except AssertionError:
            print(f"DLRover did not get to train: {process.output[-2000:]}", flush=True)
            found = {}
        cluster.kubectl("delete", "elasticjobs.elastic.iml.github.io", name, "--wait=false")
        process.kill()
        cluster.clean()
        return found


def dlrover_resource() -> dict[str, Any]:
    """What of DLRover's resource its master needs."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "elasticjobs", "singular": "elasticjob", "kind": "ElasticJob"}
    spec = {"group": "elastic.iml.github.io", "scope": "Namespaced", "names": names, "versions": [version]}
    meta = {"name": "elasticjobs.elastic.iml.github.io"}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": meta, "spec": spec}


LAUNCHERS = {"outlast": with_outlast, "torchrun": with_torchrun, "dlrover": with_dlrover}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--repeat", type=int, default=1)
    options.add_argument("--launchers", nargs="*", default=["outlast", "torchrun"], choices=list(LAUNCHERS))
    options.add_argument("--only", choices=["pod deleted", "node cut off"])
    args = options.parse_args()
    machine.move_in()
    with tempfile.TemporaryDirectory() as place, nodes_with_rights(Path(place), 3) as plane:
        for how in [args.only] if args.only else ["pod deleted", "node cut off"]:
            for launcher in args.launchers:
                rounds: list[dict[str, float]] = []
                for number in range(args.repeat):
                    name = f"{launcher}-{how.split()[1]}-{number}"
                    with tempfile.TemporaryDirectory() as own, with_operator(plane, Path(own)) as cluster:
                        rounds.append(LAUNCHERS[launcher](cluster, name, how))
                show(how, launcher, rounds)


def show(how: str, launcher: str, rounds: list[dict[str, float]]) -> None:
    for what in ("survivors' next step", "replacement created", "replacement trains", "steps trained twice"):
        seen = [each[what] for each in rounds if what in each]
        if seen:
            most = f"  (of {len(seen)}: {max(seen):.2f} at most)" if seen[1:] else ""
            told = f"{statistics.median(seen):7.2f}{most}"
        else:
            told = f"  not within {ENOUGH:.0f} s" if what != "steps trained twice" else "  not counted"
        print(f"{how:13} {launcher:9} {what:21} {told}", flush=True)


if __name__ == "__main__":
    main()
