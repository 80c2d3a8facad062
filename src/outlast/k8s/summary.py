"""The status of a job, from what was seen and decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from outlast.k8s.observed import PodFacts
from outlast.k8s.quantities import stamp, time_of
from outlast.k8s.rendering import pod_name
from outlast.k8s.resource import ElasticJobSpec, ElasticJobStatus, ReplicaStatus, WorkerSlot

if TYPE_CHECKING:
    from outlast.k8s.reconcile import PlanDraft

PROGRESS_EVERY = 15.0  # seconds between two statuses that differ in nothing but the step
STEP_EVERY = 60.0  # seconds after which a job that trains is looked at for its step, if nothing else has happened

Phase = Literal["Pending", "Running", "Restarting", "Suspended", "Succeeded", "Failed", ""]


def summarise(draft: PlanDraft) -> ElasticJobStatus:
    """The status that the job should have now."""
    seen = draft.seen
    if seen.spec is not None and draft.phase not in ("Succeeded", "Failed") and _accepted(draft):
        _describe(draft, seen.spec)
    elif draft.phase in ("Succeeded", "Failed"):
        for kind in ("Running", "Degraded", "QuotaExceeded", "Fenced"):
            draft.conditions.clear(kind, draft.phase)
    alive = [pod for pod in seen.pods if not pod.ended]
    running = [pod for pod in alive if pod.running]
    status = replace(
        seen.status,
        observed_generation=seen.generation,
        phase=draft.phase,
        conditions=draft.conditions.all(),
        replicas=len(alive),
        selector=seen.job.pods,
        replica_statuses={"worker": _counts(draft, alive, running)},
        slots={str(number): slot for number, slot in sorted(draft.slots.items())},
        excluded_nodes=draft.excluded,
        last_fault=draft.fault,
        start_time=draft.started,
        completion_time=draft.completion,
    )
    if seen.spec is not None:
        status = replace(status, nodes=f"{len(running)}/{seen.spec.least}:{seen.spec.most}")
    return _with_progress(draft, status)


def _accepted(draft: PlanDraft) -> bool:
    return any(each.type == "Accepted" and each.status == "True" for each in draft.conditions.all())


def _counts(draft: PlanDraft, alive: list[PodFacts], running: list[PodFacts]) -> ReplicaStatus:
    return ReplicaStatus(
        active=len(running),
        pending=sum(not pod.running and not pod.deleting for pod in alive),
        succeeded=sum(pod.exit is not None and pod.exit.code == 0 for pod in draft.seen.pods),
        failed=sum(slot.failures for slot in draft.slots.values()),
    )


def _with_progress(draft: PlanDraft, status: ElasticJobStatus) -> ElasticJobStatus:
    word = draft.seen.word
    if word is not None and draft.phase == "Running":
        draft.wakes.append(draft.now + STEP_EVERY)  # steps alone wake nobody
    if word is None or (word.generation, word.step, word.restarts) == (status.generation, status.step, status.restarts):
        return status
    due = (time_of(status.progress_time) or 0.0) + PROGRESS_EVERY
    if word.generation <= status.generation and word.restarts == status.restarts and draft.now < due:
        return status
    return replace(
        status,
        generation=max(word.generation, status.generation),
        step=word.step,
        restarts=word.restarts,
        progress_time=stamp(draft.now),
    )


def _describe(draft: PlanDraft, spec: ElasticJobSpec) -> None:
    running = [pod for pod in draft.seen.pods if pod.running]
    draft.phase = _phase(draft, spec, len(running))
    conditions = draft.conditions
    trains = draft.phase == "Running"
    word = draft.seen.word
    generation = f"generation {word.generation} " if word is not None and word.generation else ""
    conditions.set(
        "Running",
        trains,
        "PodsRun" if trains else draft.phase,
        f"{generation}on {len(running)} of {draft.wanted(spec)} pods" if trains else "",
    )
    if spec.suspend:
        conditions.set("Suspended", True, "Suspended", "spec.suspend is true")
        for kind in ("Degraded", "QuotaExceeded"):
            conditions.clear(kind, "Suspended")
    else:
        conditions.clear("Suspended", "Resumed")
        _describe_missing(draft, spec)
    _describe_fences(draft)


def _phase(draft: PlanDraft, spec: ElasticJobSpec, running: int) -> Phase:
    if spec.suspend:
        return "Suspended"
    if running >= spec.least:
        return "Running"
    return "Restarting" if draft.seen.status.phase in ("Running", "Restarting") else "Pending"


def _describe_missing(draft: PlanDraft, spec: ElasticJobSpec) -> None:
    absent = [number for number in range(draft.wanted(spec)) if draft.current(number) is None]
    refusals = [draft.seen.refusals[number] for number in absent if number in draft.seen.refusals]
    quota = next((each.message for each in refusals if each.reason == "QuotaExceeded"), "")
    if quota:
        draft.conditions.set("QuotaExceeded", True, "QuotaExceeded", quota)
    else:
        draft.conditions.clear("QuotaExceeded", "Created")
    missing = [_why_missing(draft, number) for number in range(draft.wanted(spec))]
    told = [text for text in missing if text]
    if told:
        more = f" (and {len(told) - 3} more)" if len(told) > 3 else ""
        draft.conditions.set("Degraded", True, "PodsMissing", "; ".join(told[:3]) + more)
    else:
        draft.conditions.clear("Degraded", "AllPodsRun")


def _why_missing(draft: PlanDraft, number: int) -> str:
    """Why the pod of a slot does not run; empty if it does."""
    pod, slot = draft.current(number), draft.slots.get(number, WorkerSlot())
    if pod is not None and pod.running:
        return ""
    name = pod_name(draft.seen.job.name, number, slot.life)
    refusal = draft.seen.refusals.get(number)
    if pod is not None:
        return f"{name} is {'Terminating' if pod.deleting else pod.waiting or pod.phase}"
    if refusal is not None:
        return f"{name} cannot be created: {refusal.message}"
    if (time_of(slot.not_before) or 0.0) > draft.now:
        return f"{name} is created at {slot.not_before}, after {slot.failures} failures"
    return f"{name} is being created"


def _describe_fences(draft: PlanDraft) -> None:
    """Pods that linger beside their replacement. The coordinator vouches that nothing in them trains."""
    lingering = [
        pod.name for pod in draft.seen.pods if not pod.ended and pod.life < draft.slots.get(pod.slot, WorkerSlot()).life
    ]
    if lingering:
        draft.conditions.set(
            "Fenced",
            True,
            "LeaseEnded",
            f"{', '.join(sorted(lingering)[:3])} replaced while Terminating: the coordinator says that no worker of it "
            "is alive",
        )
    else:
        draft.conditions.clear("Fenced", "Gone")
