"""Events of Kubernetes about an ElasticJob: what `kubectl describe ej` shows below the status."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from outlast.k8s.quantities import stamp
from outlast.k8s.rendering import JobIdentity
from outlast.k8s.resource import API_VERSION, KIND, ElasticJobStatus

TOLD = ("QuotaExceeded", "Fenced", "Failed", "Complete")  # conditions that are told when they begin to hold


class ClusterEvent(msgspec.Struct, frozen=True):
    """Something that has changed, for people."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str


def notices(before: ElasticJobStatus, after: ElasticJobStatus) -> Iterator[ClusterEvent]:
    """What is worth telling about a status that was written after another."""
    fault = after.last_fault
    if fault is not UNSET and fault != before.last_fault:
        where = f" on {fault.node}" if fault.node else ""
        yield ClusterEvent("Warning", fault.action, f"{fault.pod}{where}: {fault.cause}")
    for kind in TOLD:
        now, then = after.condition(kind), before.condition(kind)
        if now is not None and now.status == "True" and (then is None or then.status != "True"):
            yield ClusterEvent("Normal" if kind == "Complete" else "Warning", now.reason, now.message)
    accepted, earlier = after.condition("Accepted"), before.condition("Accepted")
    if accepted is not None and accepted.status == "False" and accepted != earlier:
        yield ClusterEvent("Warning", accepted.reason, accepted.message)
    if after.phase != before.phase and not after.over:
        yield ClusterEvent("Normal", after.phase, f"{after.nodes or 'no'} pods run")


def manifest(job: JobIdentity, version: str, number: int, notice: ClusterEvent, now: float) -> dict[str, Any]:
    """The object. Its name comes from the version of the status that it tells of: nobody tells it twice."""
    about = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.name,
        "namespace": job.namespace,
        "uid": job.uid,
        "resourceVersion": version,
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job.name}.{int(version):x}.{number}", "namespace": job.namespace},
        "involvedObject": about,
        "type": notice.kind,
        "reason": notice.reason,
        "message": notice.message[:1000],
        "source": {"component": "outlast-operator"},
        "firstTimestamp": stamp(now),
        "lastTimestamp": stamp(now),
        "count": 1,
    }
