"""The ElasticJob, field by field: the one source of its schema, defaults and help (`crd` makes the manifest of it).

A field may be added. It is never removed, renamed or given another type: objects that users have stored must stay
readable.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from outlast.k8s.quantities import DURATION, QUANTITY

GROUP = "outlast.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "ElasticJob"
PLURAL = "elasticjobs"

Quantity = Annotated[str, Meta(pattern=QUANTITY)]
Duration = Annotated[str, Meta(pattern=DURATION, min_length=2)]
Amount = Annotated[int, Meta(ge=0, le=100_000)]
Count = Annotated[int, Meta(ge=1, le=100_000)]
NPROC = r"^([1-9][0-9]*|auto|cpu|gpu|xpu)$"
FAULTY_EXIT_CODES = (14, 128, 201, 202)


class ResourceSection(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of the resource: names are camelCase in YAML."""


class ElasticPolicy(ResourceSection, frozen=True):
    """How many nodes the job trains on."""

    min_replicas: Annotated[
        Count | UnsetType, Meta(description="Training goes on with this many pods. Default: replicas.")
    ] = UNSET
    max_replicas: Annotated[
        Count | UnsetType,
        Meta(description="`kubectl scale` may ask for up to this many pods. Default: replicas."),
    ] = UNSET
    max_restarts: Annotated[
        Amount, Meta(description="Failures of workers that the job survives (--max-restarts). No pod is replaced.")
    ] = 3
    node_unit: Annotated[
        Count, Meta(description="The number of nodes in training is a multiple of this (--node-unit).")
    ] = 1


class SchedulingPolicy(ResourceSection, frozen=True):
    """Who decides when pods may start."""

    scheduler: Annotated[
        Literal["Default", "Kueue", "Volcano"],
        Meta(
            description="Kueue, Volcano: minReplicas pods are admitted together, and each further pod alone, so that a "
            "queue can take it back without ending the job."
        ),
    ] = "Default"
    queue: Annotated[str | UnsetType, Meta(description="Its queue: a LocalQueue of Kueue, a Queue of Volcano.")] = UNSET
    priority_class: Annotated[
        str | UnsetType, Meta(description="priorityClassName of the pods, unless the template has one.")
    ] = UNSET


class RunPolicy(ResourceSection, frozen=True):
    """What happens around the job."""

    clean_pod_policy: Annotated[
        Literal["Running", "All", "None"], Meta(description="Which pods are deleted when the job has ended.")
    ] = "Running"
    ttl_seconds_after_finished: Annotated[
        Annotated[int, Meta(ge=0, le=2**31 - 1)] | UnsetType,
        Meta(description="The ElasticJob is deleted this long after its end. Default: never."),
    ] = UNSET
    active_deadline_seconds: Annotated[
        Annotated[int, Meta(ge=1, le=2**31 - 1)] | UnsetType,
        Meta(description="The job fails when it has not ended after this time. Default: never."),
    ] = UNSET
    scheduling_policy: SchedulingPolicy = SchedulingPolicy()


class WorkerSpec(ResourceSection, frozen=True):
    """The pods that train."""

    template: Annotated[
        dict[str, Any],
        Meta(
            description="A pod template, as in a Deployment.",
            extra_json_schema={"x-kubernetes-preserve-unknown-fields": True},
        ),
    ]
    replicas: Annotated[Count, Meta(description="Pods wanted now; `kubectl scale` changes it.")] = 1
    restart_count: Annotated[
        Amount,
        Meta(
            description="Failed pods of one slot that are replaced before the job fails. Deletion, preemption, "
            "eviction and the loss of a node are not counted."
        ),
    ] = 3


class ReplicaSpecs(ResourceSection, frozen=True):
    """The kinds of pods; only workers today."""

    worker: WorkerSpec


class FaultyNodes(ResourceSection, frozen=True):
    """What is done about nodes of the cluster that seem to be faulty."""

    exit_codes: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=255)], ...],
        Meta(description="A container that exits with one of these blames its node."),
    ] = FAULTY_EXIT_CODES
    action: Annotated[
        Literal["Exclude", "Taint", "Cordon"],
        Meta(
            description="Exclude: pods of this job avoid the node. Taint, Cordon: pods of others avoid it, too; the "
            "operator needs the cluster role for nodes."
        ),
    ] = "Exclude"
    exclude_for: Annotated[
        Duration, Meta(description="How long a faulty node is avoided; each time for twice as long.")
    ] = "30m"
    limit: Annotated[Amount, Meta(description="Nodes that may be excluded within an hour; more are only reported.")] = 3


class MemoryPolicy(ResourceSection, frozen=True):
    """What is done about a container that was killed because it used more memory than its limit."""

    on_oom: Annotated[
        Literal["Grow", "Never"],
        msgspec.Meta(description="Grow: the replacement gets more memory; it is not counted in restartCount."),
    ] = msgspec.field(name="onOOM", default="Grow")
    factor: Annotated[float, Meta(gt=1, le=16, description="By how much memory grows.")] = 2.0
    max_increment: Annotated[Quantity, Meta(description="What one growth adds at most.")] = "8Gi"
    max: Annotated[Quantity, Meta(description="Memory does not grow beyond this.")] = "64Gi"


class DrainPolicy(ResourceSection, frozen=True):
    """How pods go that are deleted, preempted or evicted."""

    grace_period: Annotated[
        Duration, Meta(description="terminationGracePeriodSeconds of the pods, unless the template has one.")
    ] = "60s"
    pre_stop: Annotated[
        bool,
        Meta(description="Drain the node by a preStop hook, so that it also works under a shell (`bash -c`)."),
    ] = True
    disruption_budget: Annotated[
        bool,
        Meta(
            description="Keep a PodDisruptionBudget of minReplicas, so that `kubectl drain` takes one node after the "
            "other. It always lets one pod go."
        ),
    ] = True


class ElasticJobSpec(ResourceSection, frozen=True):
    """What the user asks for."""

    replica_specs: ReplicaSpecs
    suspend: Annotated[bool, Meta(description="Drain and delete all pods; false: go on from the checkpoint.")] = False
    elastic_policy: ElasticPolicy = ElasticPolicy()
    nproc_per_node: Annotated[
        int | str | UnsetType,
        Meta(
            description="Workers per pod (--nproc-per-node): a number, auto, cpu, gpu or xpu. Default: the command "
            "decides.",
            extra_json_schema={"x-kubernetes-int-or-string": True, "pattern": NPROC},
        ),
    ] = UNSET
    run_policy: RunPolicy = RunPolicy()
    spares: Annotated[
        Amount,
        Meta(description="Pods beyond maxReplicas that wait, ready, to take the place of one that is lost."),
    ] = 0
    faulty_nodes: FaultyNodes = FaultyNodes()
    memory: MemoryPolicy = MemoryPolicy()
    drain: DrainPolicy = DrainPolicy()
    shared_memory: Annotated[
        Quantity | UnsetType,
        Meta(description="Size of /dev/shm, which holds snapshots. It counts as memory of the pod. Default: no mount."),
    ] = UNSET
    config: Annotated[
        dict[str, Any],
        Meta(
            description="Settings of Outlast by name, as node_timeout: 5.",
            extra_json_schema={"x-kubernetes-preserve-unknown-fields": True},
        ),
    ] = {}

    @property
    def least(self) -> int:
        given = self.elastic_policy.min_replicas
        return self.replica_specs.worker.replicas if given is UNSET else given

    @property
    def most(self) -> int:
        given = self.elastic_policy.max_replicas
        return max(self.replica_specs.worker.replicas, self.least) if given is UNSET else given

    @property
    def wanted(self) -> int:
        """Pods that there should be, spares included. Below maxReplicas no pod is spare: each one trains."""
        replicas = min(max(self.replica_specs.worker.replicas, self.least), self.most)
        return replicas + (self.spares if replicas == self.most else 0)


class StatusSection(ResourceSection, frozen=True, omit_defaults=True):
    """A part of the status. What is empty is left out: API server 1.20 takes an empty string for null."""


class Condition(StatusSection, frozen=True):
    """One thing that is or is not so, with the reason for programs and the sentence for people."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    last_transition_time: str
    message: str = ""


class WorkerSlot(StatusSection, frozen=True):
    """What must not be forgotten about one slot. No deletion of pods resets it."""

    life: Annotated[Amount, Meta(description="Number of the pod that the slot has or gets.")] = 0
    uid: Annotated[str, Meta(description="Of that pod, once it was seen.")] = ""
    failures: Annotated[Amount, Meta(description="Failed pods that were counted against restartCount.")] = 0
    memory: Annotated[str, Meta(description="What out-of-memory kills have taught, or empty.")] = ""
    not_before: Annotated[str, Meta(description="No pod is created before this time; empty: at once.")] = ""


class ExcludedNode(StatusSection, frozen=True):
    """A node of the cluster that pods of this job avoid."""

    name: str
    cause: str
    until: str
    times: Annotated[int, Meta(ge=1, le=1000)] = 1
    since: str = ""


class LastFault(StatusSection, frozen=True):
    """The newest fault, and what was done about it."""

    time: str
    pod: str
    cause: str
    action: str
    node: str = ""


class ReplicaStatus(StatusSection, frozen=True):
    """Pods by what they do."""

    active: int = 0
    pending: int = 0
    succeeded: int = 0
    failed: int = 0


class ElasticJobStatus(StatusSection, frozen=True):
    """What the operator has seen and decided."""

    observed_generation: int = 0
    phase: Literal["Pending", "Running", "Restarting", "Suspended", "Succeeded", "Failed", ""] = ""
    conditions: tuple[Condition, ...] = ()
    replicas: int = 0
    selector: str = ""
    nodes: Annotated[str, Meta(description="Pods that run, and the bounds: 3/2:4.")] = ""
    replica_statuses: dict[str, ReplicaStatus] = {}
    generation: int = 0
    step: int = 0
    restarts: Annotated[int, Meta(description="Failures of workers that the job has survived.")] = 0
    last_fault: LastFault | UnsetType = UNSET
    excluded_nodes: tuple[ExcludedNode, ...] = ()
    slots: Annotated[dict[str, WorkerSlot], Meta(description="By slot: lives, failures and memory.")] = {}
    start_time: str = ""
    completion_time: str = ""
    progress_time: str = ""

    @property
    def over(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    def condition(self, kind: str) -> Condition | None:
        return next((each for each in self.conditions if each.type == kind), None)
