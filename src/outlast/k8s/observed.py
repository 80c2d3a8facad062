"""What was seen, as plain data: pods and nodes of the cluster, and what the job's coordinator says.

Observations may be old. `reconcile` is safe all the same, because it builds only on what cannot be undone: a container
that has ended stays ended, a pod that is being deleted stays so, an agent that the coordinator fenced stays fenced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from outlast.k8s.quantities import time_of
from outlast.k8s.resource import GROUP

Raw = Mapping[str, Any]

JOB_LABEL = f"{GROUP}/job"
ROLE_LABEL = f"{GROUP}/role"
SLOT_LABEL = f"{GROUP}/slot"
LIFE_LABEL = f"{GROUP}/life"
MAIN_ANNOTATION = f"{GROUP}/main-container"
NODE_MARK = f"{GROUP}/excluded-by"  # annotation of a node that this operator has tainted or cordoned: by which job
TAINT = f"{GROUP}/faulty"
AVOIDS_ANNOTATION = f"{GROUP}/avoids"  # of a pod: nodes that it may not run on, by the operator's will

NOT_ITS_FAULT = frozenset({"Evicted", "Preempting", "Shutdown", "NodeShutdown", "Terminated", "NodeLost"})


class ContainerExit(msgspec.Struct, frozen=True):
    """How the main container of a pod has ended."""

    code: int
    reason: str = ""
    message: str = ""  # what it left in its termination log


class PodFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of a job."""

    name: str
    uid: str
    slot: int
    life: int
    phase: str = "Pending"
    deleting: bool = False
    deleted_at: float = 0.0  # when its deletion was asked for
    killed_at: float = 0.0  # when its grace period is over
    node: str = ""
    ip: str = ""
    exit: ContainerExit | None = None
    disrupted: str = ""  # why the platform ended it, if it did
    waiting: str = ""  # why it does not run yet, in the platform's words
    memory: str = ""  # limit of its main container
    avoids: frozenset[str] = frozenset()
    version: str = ""

    @property
    def ended(self) -> bool:
        return self.exit is not None or self.phase in ("Succeeded", "Failed")

    @property
    def running(self) -> bool:
        return self.phase == "Running" and not self.ended and not self.deleting


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the cluster."""

    name: str
    uid: str = ""
    ready: bool = True
    unschedulable: bool = False
    marked_by: str = ""  # `NODE_MARK`
    tainted: bool = False  # with `TAINT`


class GoneAgent(msgspec.Struct, frozen=True):
    """An agent that was part of the job and is not. Its workers are dead: it said so, or their lease has ended."""

    at: float
    silent: bool = False  # else it said goodbye, or its connection was closed, as when its process ends


class JobOutcome(msgspec.Struct, frozen=True):
    """How the job has ended, as its coordinator says."""

    success: bool
    text: str


class CoordinatorWord(msgspec.Struct, frozen=True, kw_only=True):
    """What the coordinator of a job says. Agents are named after their pods."""

    at: float  # when it said so
    acting: bool = True  # whether it has a quorum: else it knows nothing for certain
    generation: int = 0
    step: int = 0
    restarts: int = 0
    agents: frozenset[str] = frozenset()  # connected, or part of the newest generation
    gone: Mapping[str, GoneAgent] = {}
    excluded: Mapping[str, str] = {}  # agents that it does not use, and why
    outcome: JobOutcome | None = None

    def knows(self, pod: str) -> bool:
        """Whether an agent of this name has ever come."""
        return pod in self.agents or pod in self.gone or pod in self.excluded


class Refusal(msgspec.Struct, frozen=True):
    """The API server refused to create a pod."""

    at: float
    times: int
    reason: Literal["QuotaExceeded", "Invalid", "Forbidden", "Failed"]
    message: str


def pod_facts(raw: Raw) -> PodFacts | None:
    """What matters of a pod; None if its labels are not ours."""
    meta, spec, status = raw["metadata"], raw.get("spec", {}), raw.get("status", {})
    labels = meta.get("labels") or {}
    slot, life = labels.get(SLOT_LABEL, ""), labels.get(LIFE_LABEL, "")
    if not (slot.isdecimal() and life.isdecimal()):
        return None
    main = main_container(spec, meta)
    state = _state_of(status, main.get("name", ""))
    ended = state.get("terminated")
    killed_at = time_of(meta.get("deletionTimestamp")) or 0.0
    return PodFacts(
        name=meta["name"],
        uid=meta.get("uid", ""),
        slot=int(slot),
        life=int(life),
        phase=status.get("phase", "Pending"),
        deleting="deletionTimestamp" in meta,
        deleted_at=killed_at - (meta.get("deletionGracePeriodSeconds") or 0),
        killed_at=killed_at,
        node=spec.get("nodeName", ""),
        ip=status.get("podIP", ""),
        exit=ContainerExit(ended.get("exitCode", 1), ended.get("reason", ""), ended.get("message", ""))
        if ended
        else None,
        disrupted=_disruption(status),
        waiting=_waiting(status, state),
        memory=str(main.get("resources", {}).get("limits", {}).get("memory", "")),
        version=meta.get("resourceVersion", ""),
        avoids=frozenset(filter(None, (meta.get("annotations") or {}).get(AVOIDS_ANNOTATION, "").split(","))),
    )


def main_container(spec: Raw, meta: Raw) -> dict[str, Any]:
    """The container that trains: the annotated one, else `main` or `pytorch`, else the first."""
    containers: dict[str, dict[str, Any]] = {each.get("name", ""): each for each in spec.get("containers") or ()}
    for name in ((meta.get("annotations") or {}).get(MAIN_ANNOTATION, ""), "main", "pytorch"):
        if name in containers:
            return containers[name]
    return next(iter(containers.values()), {})


def node_facts(raw: Raw) -> NodeFacts:
    """What matters of a node."""
    meta, spec, status = raw["metadata"], raw.get("spec", {}), raw.get("status", {})
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ())
    return NodeFacts(
        name=meta["name"],
        uid=meta.get("uid", ""),
        ready=ready,
        unschedulable=bool(spec.get("unschedulable")),
        marked_by=(meta.get("annotations") or {}).get(NODE_MARK, ""),
        tainted=any(each["key"] == TAINT for each in spec.get("taints") or ()),
    )


def _state_of(status: Raw, container: str) -> Raw:
    for each in status.get("containerStatuses") or ():
        if each.get("name") == container:
            return dict(each.get("state") or {})
    return {}


def _disruption(status: Raw) -> str:
    for each in status.get("conditions") or ():
        if each["type"] == "DisruptionTarget" and each["status"] == "True":
            return str(each.get("reason") or "DisruptionTarget")
    reason = str(status.get("reason") or "")
    return reason if reason in NOT_ITS_FAULT else ""


def _waiting(status: Raw, state: Raw) -> str:
    if status.get("phase", "Pending") != "Pending":
        return ""
    waiting = state.get("waiting")
    if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
        return ": ".join(filter(None, (waiting["reason"], waiting.get("message", ""))))
    for each in status.get("conditions") or ():
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return str(each.get("message") or each.get("reason") or "")
    return ""


def created_at(raw: Raw) -> float:
    """When an object was created, in seconds since 1970."""
    return time_of(raw["metadata"].get("creationTimestamp")) or 0.0
