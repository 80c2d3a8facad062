"""The objects that an ElasticJob becomes: pods, a Secret with its token, a Service where its pods first meet."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from outlast.k8s.bounds import BoundKind, bound_spec, queue_up
from outlast.k8s.observed import (
    AVOIDS_ANNOTATION,
    JOB_LABEL,
    LIFE_LABEL,
    MAIN_ANNOTATION,
    ROLE_LABEL,
    SLOT_LABEL,
    main_container,
)
from outlast.k8s.quantities import seconds_of
from outlast.k8s.resource import API_VERSION, KIND, ElasticJobSpec
from outlast.settings.values import ENV_PREFIX, spelled

Manifest = dict[str, Any]

PORT = 29400
TOKEN_KEY = "token"
TERMINATION_LOG = "/dev/termination-log"
LONGEST_NAME = 40  # of a job: a pod's name is its host name, of 63 characters at most
# Kubernetes waits 300 s before it gives a pod up whose node is unreachable. The lease ends its workers long before.
UNREACHABLE_SECONDS = 30
WARM_JOIN_SECONDS = 60


class JobIdentity(msgspec.Struct, frozen=True):
    """Which ElasticJob it is."""

    name: str
    namespace: str
    uid: str

    @property
    def pods(self) -> str:
        """Selects the pods of the job."""
        return f"{JOB_LABEL}={self.name},{ROLE_LABEL}=worker"


class PodOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that is to be created."""

    slot: int
    life: int
    memory: str = ""  # instead of the template's, when out-of-memory kills have taught it
    avoid: tuple[str, ...] = ()  # nodes
    peers: tuple[str, ...] = ()  # addresses of pods that run
    host: bool = False  # whether it hosts the coordinator, if it finds none at its peers'


def pod_name(job: str, slot: int, life: int) -> str:
    """The name of a pod. Two operators that create the same pod collide in it, and one of them gives way.

    >>> pod_name("mnist", 2, 0)
    'mnist-worker-2-0'
    """
    return f"{job}-worker-{slot}-{life}"


def secret_name(job: str) -> str:
    return f"{job}-outlast"


def service_name(job: str) -> str:
    return f"{job}-outlast"


def owner(job: JobIdentity) -> Manifest:
    """Whatever has this goes when the job goes."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def secret(job: JobIdentity, token: str) -> Manifest:
    """The token with which agents and operator prove that they belong to the job."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _meta(job, secret_name(job.name)),
        "stringData": {TOKEN_KEY: token},
    }


def service(job: JobIdentity) -> Manifest:
    """Where the first pods meet: the pod of slot 0. Later ones get the addresses of those that run."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(job, service_name(job.name)),
        "spec": {
            "selector": {JOB_LABEL: job.name, ROLE_LABEL: "worker", SLOT_LABEL: "0"},
            "publishNotReadyAddresses": True,
            "ports": [{"name": "outlast", "port": PORT, "targetPort": PORT}],
        },
    }


def bound(job: JobIdentity, spec: ElasticJobSpec, kind: BoundKind, minimum: int, version: str) -> Manifest:
    """What tells the platform how many pods the job needs."""
    return {
        "apiVersion": version,
        "kind": kind.name,
        "metadata": _meta(job, job.name),
        "spec": bound_spec(kind, minimum, job.name, spec),
    }


def pod(job: JobIdentity, spec: ElasticJobSpec, order: PodOrder, service_ip: str, now: float = 0.0) -> Manifest:
    """The template, with what Outlast needs added. What the template says itself stays as it is. `now`: since 1970."""
    worker = spec.replica_specs.worker
    template = copy.deepcopy(worker.template)
    given = template.get("metadata") or {}
    meta = _meta(job, pod_name(job.name, order.slot, order.life))
    labels = {**(given.get("labels") or {}), **meta["labels"], SLOT_LABEL: str(order.slot), LIFE_LABEL: str(order.life)}
    pod_spec: Manifest = template["spec"]
    main = main_container(pod_spec, given)
    annotations = {**(given.get("annotations") or {}), MAIN_ANNOTATION: main["name"]}
    meta |= {"labels": labels, "annotations": annotations}
    waits_since = {"OUTLAST_SUBMITTED": str(int(now))} if now else {}
    main["env"] = _env(job, spec, order, service_ip, main.get("env") or [], waits_since)
    if order.memory:
        _set_memory(main, order.memory)
    if spec.drain.pre_stop:
        main.setdefault("lifecycle", {}).setdefault(
            "preStop", {"exec": {"command": ["outlast", "drain", meta["name"]]}}
        )
    if spec.shared_memory is not UNSET:
        _mount_shared_memory(pod_spec, main, spec.shared_memory)
    pod_spec["restartPolicy"] = "Never"  # the kubelet's back-off of up to five minutes is nothing we could change
    pod_spec.setdefault("automountServiceAccountToken", False)
    pod_spec.setdefault("enableServiceLinks", False)  # else a Service named outlast would set OUTLAST_PORT
    pod_spec.setdefault("terminationGracePeriodSeconds", seconds_of(spec.drain.grace_period))
    _tolerate(pod_spec)
    if order.avoid:
        annotations[AVOIDS_ANNOTATION] = ",".join(order.avoid)
        _avoid(pod_spec, order.avoid)
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod_spec}
    queue_up(made, spec, order.slot, job.name)
    return made


def _meta(job: JobIdentity, name: str) -> Manifest:
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": {JOB_LABEL: job.name, ROLE_LABEL: "worker"},
        "ownerReferences": [owner(job)],
    }


def _env(
    job: JobIdentity,
    spec: ElasticJobSpec,
    order: PodOrder,
    service_ip: str,
    given: Sequence[Manifest],
    more: dict[str, str],
) -> list[Manifest]:
    """Variables of ours that the template does not set itself come first, so that its own may refer to them."""
    ours: dict[str, Any] = {
        "POD_NAME": {"fieldRef": {"fieldPath": "metadata.name"}},
        "POD_IP": {"fieldRef": {"fieldPath": "status.podIP"}},
        "NODE_NAME": {"fieldRef": {"fieldPath": "spec.nodeName"}},
        "OUTLAST_TOKEN": {"secretKeyRef": {"name": secret_name(job.name), "key": TOKEN_KEY}},
    }
    ours |= _launch_variables(job, spec, order, service_ip) | _dlrover_variables(job, spec, order) | more
    ours |= {f"{ENV_PREFIX}{name.upper()}": spelled(value) for name, value in spec.config.items()}
    taken = {each["name"] for each in given}
    added = [
        {"name": name, "valueFrom": value} if isinstance(value, dict) else {"name": name, "value": value}
        for name, value in ours.items()
        if name not in taken
    ]
    return added + list(given)


def _launch_variables(job: JobIdentity, spec: ElasticJobSpec, order: PodOrder, service_ip: str) -> dict[str, str]:
    # The first place is where a host listens, and where the others look first.
    hosts = (service_ip, *order.peers) if order.host else (*order.peers, service_ip)
    places = [f"{_bracketed(host)}:{PORT}" for host in hosts]
    found = {
        "PET_NNODES": f"{spec.least}:{spec.most}",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ID": job.uid,
        "PET_RDZV_ENDPOINT": ",".join(places),
        "PET_RDZV_CONF": f"is_host={int(order.host)}",
        "PET_MAX_RESTARTS": str(spec.elastic_policy.max_restarts),
        "PET_LOCAL_ADDR": "$(POD_IP)",
        "OUTLAST_NODE_UNIT": str(spec.elastic_policy.node_unit),
        "OUTLAST_NODE_NAME": "$(POD_NAME)",
        "GROUP_RANK": str(order.slot),  # of two pods of one slot, the coordinator takes in one
        "OUTLAST_VERDICT": TERMINATION_LOG,
    }
    if order.peers and not order.host:
        found[f"{ENV_PREFIX}WARM_JOIN"] = str(WARM_JOIN_SECONDS)  # the others train on while it imports torch
    if spec.nproc_per_node is not UNSET:
        found["PET_NPROC_PER_NODE"] = str(spec.nproc_per_node)
    return found


def _dlrover_variables(job: JobIdentity, spec: ElasticJobSpec, order: PodOrder) -> dict[str, str]:
    """What scripts and commands written for DLRover refer to, as in `--nnodes=3:$NODE_NUM`."""
    number = str(spec.replica_specs.worker.replicas)
    return {
        "ELASTIC_JOB_NAME": job.name,
        "JOB_UID": job.uid,
        "NODE_TYPE": "worker",
        "NODE_ID": str(order.slot),
        "NODE_NUM": number,
        "NODE_RANK": str(order.slot),
        "WORKER_NUM": number,
        "WORKER_RANK": str(order.slot),
    }


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _set_memory(container: Manifest, memory: str) -> None:
    resources = container.setdefault("resources", {})
    resources.setdefault("limits", {})["memory"] = memory
    if "memory" in resources.get("requests", {}):
        resources["requests"]["memory"] = memory


def _mount_shared_memory(pod_spec: Manifest, container: Manifest, size: str) -> None:
    mounts = container.setdefault("volumeMounts", [])
    if any(each.get("mountPath") == "/dev/shm" for each in mounts):
        return
    mounts.append({"name": "outlast-shm", "mountPath": "/dev/shm"})
    volume = {"name": "outlast-shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    pod_spec.setdefault("volumes", []).append(volume)


def _tolerate(pod_spec: Manifest) -> None:
    tolerations = pod_spec.setdefault("tolerations", [])
    given = {each.get("key") for each in tolerations}
    for key in ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"):
        if key not in given and None not in given:
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": UNREACHABLE_SECONDS,
                }
            )


def _avoid(pod_spec: Manifest, nodes: Sequence[str]) -> None:
    """Keep the pod off these nodes. Every alternative of the template's own affinity needs the condition."""
    needed = (
        pod_spec.setdefault("affinity", {})
        .setdefault("nodeAffinity", {})
        .setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    )
    # By name, not by a label that a cluster may set otherwise. The API takes one name in each condition.
    conditions = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in sorted(nodes)]
    terms = needed.get("nodeSelectorTerms") or [{}]
    needed["nodeSelectorTerms"] = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), *conditions]} for term in terms
    ]
