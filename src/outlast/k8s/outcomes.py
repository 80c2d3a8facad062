"""Whether a job is over, and how: by what its pods and its coordinator say."""

from __future__ import annotations

import re

import msgspec
from msgspec import UNSET

from outlast.k8s.observed import ContainerExit, PodFacts
from outlast.k8s.plan import JobObservation
from outlast.k8s.quantities import time_of
from outlast.k8s.resource import ElasticJobSpec, WorkerSlot

NO_REQUEUE = 93  # `outlast run`: the job failed, and would fail again


class Ended(msgspec.Struct, frozen=True):
    """The job is over."""

    success: bool
    reason: str
    message: str


def outcome_of(seen: JobObservation, spec: ElasticJobSpec, now: float) -> Ended | None:
    """How the job has ended; None while it goes on."""
    if seen.word is not None and seen.word.outcome is not None:
        outcome = seen.word.outcome
        return Ended(outcome.success, "Succeeded" if outcome.success else "JobFailed", outcome.text)
    for pod in seen.pods:
        if _counts(seen, pod) and (ended := _told_by(pod)) is not None:
            return ended
    deadline = spec.run_policy.active_deadline_seconds
    began = time_of(seen.status.start_time)
    if deadline is not UNSET and began is not None and now >= began + deadline:
        return Ended(False, "DeadlineExceeded", f"the job has not ended after activeDeadlineSeconds ({deadline})")
    return None


def _counts(seen: JobObservation, pod: PodFacts) -> bool:
    """Whether it is the pod of its slot, and has ended of itself: one that is deleted says nothing about the job."""
    slot = seen.status.slots.get(str(pod.slot), WorkerSlot())
    return pod.life == slot.life and pod.ended and not pod.deleting and not pod.disrupted


def _told_by(pod: PodFacts) -> Ended | None:
    if pod.exit is None:
        return None
    if pod.exit.code == 0:
        return Ended(True, "Succeeded", f"{pod.name} ended with exit code 0")
    verdict = verdict_in(pod.exit)
    if pod.exit.code == NO_REQUEUE or verdict:
        return Ended(False, "JobFailed", verdict or f"{pod.name}: the job failed, and would fail again")
    return None


def verdict_in(ended: ContainerExit) -> str:
    """The sentence that `outlast run` left in the termination log when the job failed; empty if it left none.

    The kubelet cuts a long one, so it need not be valid JSON.

    >>> verdict_in(ContainerExit(1, "Error", '{"stopped": "3 restarts, no more allowed", "first": {'))
    '3 restarts, no more allowed'
    """
    found = re.search(r'"stopped":\s*"((?:[^"\\]|\\.)*)"', ended.message)
    return str(msgspec.json.decode(f'"{found[1]}"')) if found else ""
