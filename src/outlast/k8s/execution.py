"""How a plan is carried out, request by request. It yields requests and is sent replies, so it runs over any client.

execution = carry_out(plan, job, seen)
request = next(execution)
… execution.send(reply) …            # until StopIteration, whose value is a `ExecutionResult`
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from outlast.k8s import rendering
from outlast.k8s.bounds import BoundKind
from outlast.k8s.exclusions import mark_of
from outlast.k8s.notices import manifest, notices
from outlast.k8s.observed import NODE_MARK, TAINT, Raw, Refusal
from outlast.k8s.plan import (
    CreatePod,
    DeleteJob,
    DeletePod,
    EnsureBound,
    EnsureSecret,
    EnsureService,
    JobObservation,
    MarkNode,
    PlainAction,
    Plan,
    UnmarkNode,
)
from outlast.k8s.reading import owned_by
from outlast.k8s.rendering import JobIdentity, pod_name
from outlast.k8s.resource import API_VERSION, KIND, PLURAL

OK, CREATED, FORBIDDEN, NOT_FOUND, CONFLICT, UNPROCESSABLE = 200, 201, 403, 404, 409, 422
MERGE_PATCH = "application/merge-patch+json"


class ApiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to the API server."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    body: dict[str, Any] | None = None
    content: str = ""  # type of the body; empty: JSON, or a strategic merge for PATCH


class ApiReply(msgspec.Struct, frozen=True):
    """What the API server answered; status 0: nobody knows whether the request was carried out."""

    status: int
    body: Raw = {}

    @property
    def ok(self) -> bool:
        return self.status in (OK, CREATED, 202)

    @property
    def message(self) -> str:
        return str(self.body.get("message", "")) or f"HTTP status {self.status}"


class ExecutionResult(msgspec.Struct, frozen=True):
    """What came of a plan."""

    again: bool = False  # reconcile again soon: what was seen is old, or a request failed
    job: Raw | None = None  # as it is now, if its status was written or read
    created: dict[int, str] = {}  # by slot: names of pods that exist now, whoever created them
    refused: dict[int, Refusal] = {}
    problems: tuple[str, ...] = ()
    bounds: dict[BoundKind, int] = {}  # that were seen to; one that is refused is not tried again


Execution = Generator[ApiRequest, ApiReply, ExecutionResult]


def carry_out(plan: Plan, job: Raw, seen: JobObservation, *, token: str, now: float) -> Execution:
    """First the status, if it differs and nobody else has changed the job; then the actions, and events."""
    for name in plan.gone:
        reply = yield ApiRequest(method="GET", path=_core(seen.job, "pods", name))
        # A pod of somebody else's under that name: ours is gone, or never was.
        foreign = reply.status == OK and not owned_by(reply.body, seen.job.uid)
        if reply.status != NOT_FOUND and not foreign:
            return ExecutionResult(again=True)
    written = None
    if plan.status != seen.status:
        reply = yield _status_request(plan, job)
        if not reply.ok:
            expected = reply.status in (CONFLICT, NOT_FOUND)
            problems = () if expected else (f"the status cannot be written: {reply.message}",)
            return ExecutionResult(again=reply.status != NOT_FOUND, problems=problems)
        written = reply.body
    elif any(isinstance(action, CreatePod) for action in plan.actions):
        # What was seen may be older than a write of ours whose reply was lost: a pod that was replaced would come back.
        meta = job["metadata"]
        reply = yield ApiRequest(method="GET", path=job_path(meta["namespace"], meta["name"]))
        if reply.status != OK or reply.body["metadata"]["resourceVersion"] != meta["resourceVersion"]:
            return ExecutionResult(again=True, job=reply.body if reply.status == OK else None)
    result = yield from _act(plan, written, seen, token, now)
    if written is not None:
        yield from _tell(plan, written, seen, now)
    return result


def _tell(plan: Plan, written: Raw, seen: JobObservation, now: float) -> Generator[ApiRequest, ApiReply, None]:
    """Events are for people: one that is lost, or refused, changes nothing."""
    version = written["metadata"]["resourceVersion"]
    for number, notice in enumerate(notices(seen.status, plan.status)):
        body = manifest(seen.job, version, number, notice, now)
        yield ApiRequest(method="POST", path=_core(seen.job, "events"), body=body)


def _act(plan: Plan, written: Raw | None, seen: JobObservation, token: str, now: float) -> Execution:
    again, created, refused, problems = False, dict[int, str](), dict[int, Refusal](), []
    bounds = dict[BoundKind, int]()
    for action in plan.actions:
        if isinstance(action, EnsureBound):
            reply = yield from _ensure_bound(action, seen)
            if reply.status:
                bounds[action.kind] = action.minimum
            if not reply.ok:
                problems.append(f"no {action.kind.name} for {seen.job.name}: {reply.message}")
            continue
        request = request_of(action, seen, token, now)
        reply = yield request
        if isinstance(action, CreatePod):
            slot = action.order.slot
            if reply.ok or reply.status == CONFLICT:
                created[slot] = pod_name(seen.job.name, slot, action.order.life)
            elif reply.status:
                refused[slot] = _refusal(reply, seen.refusals.get(slot), now)
        elif isinstance(action, EnsureSecret | EnsureService):
            again = True  # its name, or address, has to be read
        if not (reply.ok or reply.status in (NOT_FOUND, CONFLICT)):
            again = again or not isinstance(action, CreatePod) or not reply.status
            problems.append(f"{request.method} {request.path}: {reply.message}")
    return ExecutionResult(again, written, created, refused, tuple(problems), bounds)


def _ensure_bound(action: EnsureBound, seen: JobObservation) -> Generator[ApiRequest, ApiReply, ApiReply]:
    assert seen.spec is not None
    kind, job = action.kind, seen.job
    reply = ApiReply(NOT_FOUND)
    for version in kind.versions:
        path = f"/apis/{version}/namespaces/{quote(job.namespace)}/{kind.plural}"
        body = rendering.bound(job, seen.spec, kind, action.minimum, version)
        reply = yield ApiRequest(method="POST", path=path, body=body)
        if reply.status == CONFLICT:
            patch = {"spec": {kind.field: action.minimum}}
            path = f"{path}/{quote(job.name)}"
            reply = yield ApiRequest(method="PATCH", path=path, body=patch, content=MERGE_PATCH)
        if reply.status != NOT_FOUND:
            break
    return reply


def _status_request(plan: Plan, job: Raw) -> ApiRequest:
    meta = job["metadata"]
    kept = {key: meta[key] for key in ("name", "namespace", "uid", "resourceVersion")}
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": kept,
        "spec": job["spec"],
        "status": msgspec.to_builtins(plan.status),
    }
    return ApiRequest(method="PUT", path=f"{job_path(meta['namespace'], meta['name'])}/status", body=body)


def request_of(action: PlainAction, seen: JobObservation, token: str, now: float) -> ApiRequest:
    """The request that an action comes to."""
    job = seen.job
    if isinstance(action, CreatePod):
        assert seen.spec is not None
        body = rendering.pod(job, seen.spec, action.order, seen.service_ip, now)
        return ApiRequest(method="POST", path=_core(job, "pods"), body=body)
    if isinstance(action, DeletePod):
        return ApiRequest(
            method="DELETE", path=_core(job, "pods", action.name), body=_precondition(action.uid, action.version)
        )
    if isinstance(action, EnsureSecret):
        return ApiRequest(method="POST", path=_core(job, "secrets"), body=rendering.secret(job, token))
    if isinstance(action, EnsureService):
        return ApiRequest(method="POST", path=_core(job, "services"), body=rendering.service(job))
    if isinstance(action, DeleteJob):
        body = {**_precondition(job.uid), "propagationPolicy": "Background"}
        return ApiRequest(method="DELETE", path=job_path(job.namespace, job.name), body=body)
    return _node_request(action, job)


def _node_request(action: MarkNode | UnmarkNode, job: JobIdentity) -> ApiRequest:
    if isinstance(action, UnmarkNode):
        return unmark_request(action)
    # Strategic merge: other people's taints stay.
    spec: dict[str, Any] = {"unschedulable": True}
    if action.how == "Taint":
        spec = {"taints": [{"key": TAINT, "value": job.name, "effect": "NoSchedule"}]}
    body = {"metadata": {"annotations": {NODE_MARK: mark_of(job)}}, "spec": spec}
    return ApiRequest(method="PATCH", path=f"/api/v1/nodes/{quote(action.node)}", body=body)


def unmark_request(action: UnmarkNode) -> ApiRequest:
    """Lift the taint or cordon of a node that we have marked."""
    spec: dict[str, Any] = {"unschedulable": None}
    if (
        action.how == "Taint"
    ):  # only where it is: from a node without taints, Kubernetes 1.20 adds what is to be deleted
        spec = {"taints": [{"$patch": "delete", "key": TAINT, "effect": "NoSchedule"}]}
    body = {"metadata": {"annotations": {NODE_MARK: None}}, "spec": spec}
    return ApiRequest(method="PATCH", path=f"/api/v1/nodes/{quote(action.node)}", body=body)


def job_path(namespace: str, name: str = "") -> str:
    """Where an ElasticJob is, or all of a namespace."""
    path = f"/apis/{API_VERSION}/namespaces/{quote(namespace)}/{PLURAL}"
    return f"{path}/{quote(name)}" if name else path


def _core(job: JobIdentity, kind: str, name: str = "") -> str:
    path = f"/api/v1/namespaces/{quote(job.namespace)}/{kind}"
    return f"{path}/{quote(name)}" if name else path


def _precondition(uid: str, version: str = "") -> dict[str, Any]:
    wanted = {"uid": uid} | ({"resourceVersion": version} if version else {})
    return {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": wanted}


def _refusal(reply: ApiReply, before: Refusal | None, now: float) -> Refusal:
    message = reply.message
    if reply.status == FORBIDDEN:
        reason: Literal["QuotaExceeded", "Invalid", "Forbidden", "Failed"] = (
            "QuotaExceeded" if "exceeded quota" in message else "Forbidden"
        )
    else:
        reason = "Invalid" if reply.status == UNPROCESSABLE else "Failed"
    return Refusal(now, before.times + 1 if before else 1, reason, message)
