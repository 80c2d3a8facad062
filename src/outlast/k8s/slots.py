"""One slot of a job: whether its pod is over, why, and what the slot remembers of it.

A slot's pods are numbered by lives, and `WorkerSlot.life` in the job's status is the number of the one that counts. A
pod that was never seen is created under its own name: if it is there after all, because what was seen is old or another
operator was faster, the API server refuses the second one. The number grows only for a reason that cannot go away: the
container has ended, the coordinator has fenced what runs in the pod, or the API server itself says that the pod is
gone. So no slot ever has two pods that train, however late things are seen.
"""

from __future__ import annotations

from enum import Enum

import msgspec
from msgspec.structs import replace

from outlast.k8s.observed import CoordinatorWord, PodFacts
from outlast.k8s.quantities import bytes_of, quantity_of, stamp
from outlast.k8s.resource import ElasticJobSpec, MemoryPolicy, WorkerSlot

CLOSED_WAIT = 30.0  # seconds that the kubelet gets to say how a container has ended whose agent is gone
FRESH = 10.0  # seconds for which the word of the coordinator counts where it may change
LATE = 5.0  # seconds by which clocks may differ
BACKOFF, LONGEST_BACKOFF = 10.0, 300.0


class EndKind(str, Enum):
    """Why a pod is over."""

    DELETED = "Deleted"
    DISRUPTED = "Disrupted"
    OUT_OF_MEMORY = "OutOfMemory"
    FAULTY_NODE = "FaultyNode"
    FAILED = "Failed"


class PodEnd(msgspec.Struct, frozen=True):
    """The pod of a slot is over, for good: nothing trains in it, or ever will."""

    kind: EndKind
    cause: str  # in words


def end_of(pod: PodFacts, spec: ElasticJobSpec, word: CoordinatorWord | None) -> PodEnd | None:
    """Why this pod is over; None: it is not, or nobody can know yet."""
    if pod.deleting:
        if pod.ended:
            return PodEnd(EndKind.DELETED, "deleted")
        if word is not None and fenced(pod, word):
            return PodEnd(EndKind.DELETED, "deleted; the coordinator has fenced it")
        return None
    return _end_of_ended(pod, spec, word) if pod.ended else None


def fenced(pod: PodFacts, word: CoordinatorWord) -> bool:
    """Whether no worker of a pod that is being deleted lives, or ever will, though the pod may linger for ever.

    Its agent is gone, and was so after the deletion; or none has come before the pod's time was over.
    """
    if not word.acting or pod.name in word.agents or word.at <= pod.deleted_at:
        return False
    return pod.name in word.gone or word.at > pod.killed_at + LATE


def lost(pod: PodFacts, word: CoordinatorWord, now: float) -> bool:
    """Whether the coordinator has lost a pod that the platform still believes to be well."""
    if not word.acting or pod.name in word.agents or now - word.at > FRESH:
        return False  # it may have come back since
    gone = word.gone.get(pod.name)
    return gone is not None and (gone.silent or now - gone.at >= CLOSED_WAIT)


def _end_of_ended(pod: PodFacts, spec: ElasticJobSpec, word: CoordinatorWord | None) -> PodEnd:
    if pod.disrupted:
        return PodEnd(EndKind.DISRUPTED, pod.disrupted)
    if word is not None and pod.name in word.excluded:
        return PodEnd(EndKind.FAULTY_NODE, word.excluded[pod.name])
    if pod.exit is None:
        return PodEnd(EndKind.FAILED, "failed without a container that ended")
    if pod.exit.reason == "OOMKilled":
        return PodEnd(EndKind.OUT_OF_MEMORY, f"out of memory (limit {pod.memory or 'of the node'})")
    if pod.exit.code in spec.faulty_nodes.exit_codes:
        return PodEnd(EndKind.FAULTY_NODE, f"exit code {pod.exit.code}")
    return PodEnd(EndKind.FAILED, f"exit code {pod.exit.code}")


def next_life(slot: WorkerSlot) -> WorkerSlot:
    """After an end that is nobody's fault."""
    return replace(slot, life=slot.life + 1, uid="")


def after_failure(slot: WorkerSlot, now: float) -> WorkerSlot:
    """After an end that is counted: the next pod waits for a while."""
    failures = slot.failures + 1
    return replace(next_life(slot), failures=failures, not_before=stamp(now + backoff(failures)))


def after_oom(slot: WorkerSlot, pod: PodFacts, policy: MemoryPolicy) -> WorkerSlot | None:
    """With more memory for the next pod; None if it cannot have more."""
    if policy.on_oom != "Grow" or not pod.memory:
        return None
    now = bytes_of(pod.memory)
    grown = min(int(now * policy.factor), now + bytes_of(policy.max_increment), bytes_of(policy.max))
    if grown <= now:
        return None
    return replace(next_life(slot), memory=quantity_of(grown))


def backoff(times: int) -> float:
    """Seconds to wait after this many failures.

    >>> backoff(1), backoff(2), backoff(9)
    (10.0, 20.0, 300.0)
    """
    return float(min(BACKOFF * 2 ** min(max(times, 1) - 1, 10), LONGEST_BACKOFF))
