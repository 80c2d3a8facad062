"""What goes into `reconcile`, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from outlast.k8s.bounds import BoundKind
from outlast.k8s.observed import CoordinatorWord, NodeFacts, PodFacts, Refusal
from outlast.k8s.rendering import JobIdentity, PodOrder
from outlast.k8s.resource import ElasticJobSpec, ElasticJobStatus


class JobObservation(msgspec.Struct, frozen=True, kw_only=True):
    """One job, and everything that was seen of it."""

    job: JobIdentity
    spec: ElasticJobSpec | None  # None: it cannot be read
    problem: str = ""  # why it cannot be read
    unknown: tuple[str, ...] = ()  # fields that were asked for, and that there are none of
    generation: int = 1  # of the spec
    status: ElasticJobStatus = ElasticJobStatus()
    pods: tuple[PodFacts, ...] = ()
    nodes: tuple[NodeFacts, ...] | None = None  # None: this operator may not list them
    word: CoordinatorWord | None = None  # None: the coordinator cannot be reached
    refusals: Mapping[int, Refusal] = {}  # by slot
    created: frozenset[str] = frozenset()  # pods that this operator has created, and perhaps not seen yet
    service_ip: str = ""
    has_secret: bool = False
    bounds: Mapping[BoundKind, int] = {}  # that this operator has seen to


class EnsureSecret(msgspec.Struct, frozen=True):
    """Create the job's Secret with a fresh token, unless there is one."""


class EnsureService(msgspec.Struct, frozen=True):
    """Create the job's Service, unless there is one."""


class EnsureBound(msgspec.Struct, frozen=True):
    """Create the object that tells the platform how many pods the job needs, or correct its number."""

    kind: BoundKind
    minimum: int


class CreatePod(msgspec.Struct, frozen=True):
    """Create this pod. That it exists already is as good."""

    order: PodOrder


class DeletePod(msgspec.Struct, frozen=True):
    """Delete this very pod, with its own grace period. That it is gone is as good."""

    name: str
    uid: str
    why: str
    version: str = ""  # only if it is still as it was seen


MarkKind = Literal["Taint", "Cordon"]


class MarkNode(msgspec.Struct, frozen=True):
    """Keep everybody's pods off a node, and write down that this job did it."""

    node: str
    how: MarkKind


class UnmarkNode(msgspec.Struct, frozen=True):
    """Undo `MarkNode`, if this job did it."""

    node: str
    how: MarkKind


class DeleteJob(msgspec.Struct, frozen=True):
    """Delete the ElasticJob, and with it all that it owns."""


PlainAction = EnsureSecret | EnsureService | CreatePod | DeletePod | MarkNode | UnmarkNode | DeleteJob

Action = PlainAction | EnsureBound


class Plan(msgspec.Struct, frozen=True):
    """What is to be done now.

    The status is written first, if it has changed, and only if nobody else has changed the job meanwhile; the actions
    follow if that succeeded. Whoever dies in between has lost nothing: the next reconcile finds the same actions.
    """

    status: ElasticJobStatus
    actions: tuple[Action, ...] = ()
    gone: tuple[str, ...] = ()  # pods that this builds on being gone: if one is there after all, nothing is done
    wake: float | None = None  # look again then, even if nothing is seen to change
