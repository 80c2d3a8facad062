"""What tells the platform of MIN: a PodDisruptionBudget for whoever drains nodes, a gang for whoever queues jobs.

Kueue and Volcano admit MIN pods together. Every pod above MIN stands for itself: a queue can take it back alone.
"""

from __future__ import annotations

from typing import Any

import msgspec

from outlast.k8s.observed import JOB_LABEL, ROLE_LABEL
from outlast.k8s.resource import ElasticJobSpec

Manifest = dict[str, Any]

KUEUE = "kueue.x-k8s.io"
VOLCANO = "scheduling.volcano.sh/v1beta1"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
VOLCANO_QUEUE = "volcano.sh/queue-name"
VOLCANO_PREEMPTABLE = "volcano.sh/preemptable"


class BoundKind(msgspec.Struct, frozen=True):
    """An object that says how many pods a job needs at least."""

    name: str
    plural: str
    field: str  # of its spec
    versions: tuple[str, ...]  # the newest first; an API server has one of them


BUDGET = BoundKind("PodDisruptionBudget", "poddisruptionbudgets", "minAvailable", ("policy/v1", "policy/v1beta1"))
GANG = BoundKind("PodGroup", "podgroups", "minMember", (VOLCANO,))


def wanted_bounds(spec: ElasticJobSpec) -> dict[BoundKind, int]:
    """The objects that a job should have, with their numbers.

    A budget of all pods would stop every drain of a node for ever. So it always lets one go.
    """
    found = {}
    if spec.drain.disruption_budget and spec.wanted > 1:
        found[BUDGET] = min(spec.least, spec.wanted - 1)
    if spec.run_policy.scheduling_policy.scheduler == "Volcano":
        found[GANG] = spec.least
    return found


def bound_spec(kind: BoundKind, minimum: int, job: str, spec: ElasticJobSpec) -> Manifest:
    """The spec of such an object."""
    if kind is BUDGET:
        return {kind.field: minimum, "selector": {"matchLabels": {JOB_LABEL: job, ROLE_LABEL: "worker"}}}
    policy = spec.run_policy.scheduling_policy
    queue = {"queue": policy.queue} if policy.queue else {}
    priority = {"priorityClassName": policy.priority_class} if policy.priority_class else {}
    return {kind.field: minimum, **queue, **priority}


def queue_up(pod: Manifest, spec: ElasticJobSpec, slot: int, group: str) -> None:
    """Give a pod what its queue goes by. What the template says itself stays."""
    policy = spec.run_policy.scheduling_policy
    meta, pod_spec = pod["metadata"], pod["spec"]
    labels, notes = meta["labels"], meta["annotations"]
    gang = slot < spec.least
    if policy.priority_class:
        pod_spec.setdefault("priorityClassName", policy.priority_class)
    if policy.scheduler == "Kueue":
        labels[f"{KUEUE}/queue-name"] = policy.queue
        if gang:
            labels[f"{KUEUE}/pod-group-name"] = group
            notes[f"{KUEUE}/pod-group-total-count"] = str(spec.least)
    elif policy.scheduler == "Volcano":
        pod_spec.setdefault("schedulerName", "volcano")
        if policy.queue:
            notes[VOLCANO_QUEUE] = policy.queue
        if gang:
            notes[VOLCANO_GROUP] = group
        else:
            notes[VOLCANO_PREEMPTABLE] = "true"
