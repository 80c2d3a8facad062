"""From the API server's JSON to an `JobObservation`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import msgspec

from outlast.k8s.bounds import BoundKind
from outlast.k8s.observed import CoordinatorWord, Raw, Refusal, node_facts, pod_facts
from outlast.k8s.plan import JobObservation
from outlast.k8s.rendering import JobIdentity
from outlast.k8s.resource import ElasticJobSpec, ElasticJobStatus

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def identity_of(job: Raw) -> JobIdentity:
    meta = job["metadata"]
    return JobIdentity(meta["name"], meta["namespace"], meta["uid"])


def observe(
    job: Raw,
    pods: Iterable[Raw],
    *,
    nodes: Iterable[Raw] | None = None,
    word: CoordinatorWord | None = None,
    refusals: Mapping[int, Refusal] | None = None,
    created: Iterable[str] = (),
    service: Raw | None = None,
    has_secret: bool = False,
    bounds: Mapping[BoundKind, int] | None = None,
) -> JobObservation:
    """What was seen of a job. Pods that another owner has, or whose labels are not ours, are nobody's business."""
    identity = identity_of(job)
    spec, problem = _spec_of(job)
    mine = (pod_facts(pod) for pod in pods if owned_by(pod, identity.uid))
    return JobObservation(
        job=identity,
        spec=spec,
        problem=problem,
        unknown=tuple(_unknown(_asked_for(job), ElasticJobSpec, "spec")),
        generation=job["metadata"].get("generation", 1),
        status=_status_of(job),
        pods=tuple(sorted((pod for pod in mine if pod is not None), key=lambda pod: (pod.slot, pod.life))),
        nodes=None if nodes is None else tuple(node_facts(node) for node in nodes),
        word=word,
        refusals=dict(refusals or {}),
        created=frozenset(created),
        service_ip=(service or {}).get("spec", {}).get("clusterIP", ""),
        has_secret=has_secret,
        bounds=dict(bounds or {}),
    )


def owned_by(raw: Raw, uid: str) -> bool:
    """Whether this object belongs to the ElasticJob of this uid, and not to an earlier one of the same name."""
    return any(each.get("uid") == uid for each in raw["metadata"].get("ownerReferences") or ())


def _spec_of(job: Raw) -> tuple[ElasticJobSpec | None, str]:
    try:
        return msgspec.convert(job.get("spec", {}), ElasticJobSpec), ""
    except msgspec.ValidationError as error:
        return None, f"spec: {error}"


def _asked_for(job: Raw) -> object:
    """The spec as `kubectl apply` was given it: API servers before 1.25 drop unknown fields without a word."""
    applied = (job["metadata"].get("annotations") or {}).get(LAST_APPLIED)
    try:
        given = msgspec.json.decode(applied) if applied else job
    except msgspec.DecodeError:
        return {}
    return given.get("spec") if isinstance(given, dict) else {}


def _unknown(given: object, struct: type[msgspec.Struct], at: str) -> Iterator[str]:
    if not isinstance(given, dict):
        return
    kinds = _fields(struct)
    for name, value in given.items():
        if name not in kinds:
            near = difflib.get_close_matches(str(name), kinds, n=1)
            yield f"{at}.{name}" + (f" (did you mean {near[0]}?)" if near else "")
        elif isinstance(kind := kinds[name], type) and issubclass(kind, msgspec.Struct):
            yield from _unknown(value, kind, f"{at}.{name}")


@cache
def _fields(struct: type[msgspec.Struct]) -> dict[str, object]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(struct)}


def _status_of(job: Raw) -> ElasticJobStatus:
    # What an operator of another version has added is lost; what it has changed, the API server has refused.
    return msgspec.convert(job.get("status") or {}, ElasticJobStatus)
