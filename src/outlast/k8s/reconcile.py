"""The operator's decisions: from what was seen of a job to a status and actions. Pure: the time comes in."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from outlast.k8s import exclusions
from outlast.k8s.bounds import wanted_bounds
from outlast.k8s.conditions import Conditions
from outlast.k8s.observed import CoordinatorWord, PodFacts
from outlast.k8s.outcomes import Ended, outcome_of
from outlast.k8s.plan import (
    Action,
    CreatePod,
    DeleteJob,
    DeletePod,
    EnsureBound,
    EnsureSecret,
    EnsureService,
    JobObservation,
    Plan,
)
from outlast.k8s.quantities import seconds_of, stamp, time_of
from outlast.k8s.rendering import PodOrder, pod_name
from outlast.k8s.resource import ElasticJobSpec, LastFault, WorkerSlot
from outlast.k8s.slots import CLOSED_WAIT, EndKind, PodEnd, after_failure, after_oom, backoff, end_of, lost, next_life
from outlast.k8s.summary import summarise
from outlast.k8s.validation import problem_of, remark_on

KEPT_PODS = 2  # that have ended, of each slot, for `kubectl logs`
INVALID_WAIT = 300.0  # seconds between attempts to create a pod that the API server calls invalid
FENCE_WAIT = 0.5  # seconds between two looks at a pod that is being deleted while its agent is gone
ALIVE_WAIT = 2.0  # seconds between two looks at a pod that is gone while its agent is not
UNCOUNTED = (EndKind.DELETED, EndKind.DISRUPTED)


def reconcile(seen: JobObservation, now: float) -> Plan:
    """What is to be done about a job now."""
    draft = PlanDraft(seen, now)
    if seen.status.over:
        draft.finish()
    elif problem := problem_of(seen):
        draft.conditions.set("Accepted", False, "Invalid", problem)
        draft.phase = draft.phase or "Pending"
    else:
        assert seen.spec is not None
        draft.conditions.set("Accepted", True, "Valid", remark_on(seen, seen.spec))
        draft.proceed(seen.spec)
    return draft.plan()


class PlanDraft:
    """A plan in the making."""

    def __init__(self, seen: JobObservation, now: float) -> None:
        self.seen = seen
        self.now = now
        self.phase = seen.status.phase
        self.conditions = Conditions(seen.status.conditions, now)
        self.slots = {int(number): slot for number, slot in seen.status.slots.items()}
        self.excluded = exclusions.forget(seen.status.excluded_nodes, now)
        self.fault = seen.status.last_fault
        self.completion = seen.status.completion_time
        self.started = seen.status.start_time or stamp(now)
        self.actions: list[Action] = []
        self.gone: list[str] = []
        self.blocked: set[int] = set()
        self.wakes: list[float] = []
        self._by_slot: dict[int, dict[int, PodFacts]] = {}
        for pod in seen.pods:
            self._by_slot.setdefault(pod.slot, {})[pod.life] = pod

    def proceed(self, spec: ElasticJobSpec) -> None:
        """A job that has not ended: keep the pods that it should have."""
        ended = outcome_of(self.seen, spec, self.now)
        if ended is None:
            ended = self._settle_slots(spec)
        if ended is not None:
            self.end(ended)
            return
        deadline = spec.run_policy.active_deadline_seconds
        if deadline is not UNSET:
            self.wakes.append((time_of(self.started) or self.now) + deadline)
        if not spec.suspend:
            self._create_missing(spec)

    def end(self, ended: Ended) -> None:
        """The job is over, for good: nothing is created again, whatever is deleted."""
        self.phase = "Succeeded" if ended.success else "Failed"
        self.completion = stamp(self.now)
        self.conditions.set("Complete" if ended.success else "Failed", True, ended.reason, ended.message)
        self.finish()

    def finish(self) -> None:
        """Clean up after a job that is over."""
        spec = self.seen.spec
        if spec is None:
            return
        completed = time_of(self.completion) or self.now
        # Agents of a job that succeeded end by themselves; their last words are worth waiting for.
        leave = completed + (seconds_of(spec.drain.grace_period) if self.phase == "Succeeded" else 0)
        policy = spec.run_policy.clean_pod_policy
        for pod in self.seen.pods:
            if pod.deleting or policy == "None" or (pod.ended and policy == "Running"):
                continue
            if pod.ended or self.now >= leave:
                self._delete(pod, "the job is over")
            else:
                self.wakes.append(leave)
        ttl = spec.run_policy.ttl_seconds_after_finished
        if ttl is not UNSET:
            self.wakes.append(completed + ttl)
            if self.now >= completed + ttl:
                self.actions.append(DeleteJob())

    def plan(self) -> Plan:
        """The finished plan: status, actions, and when to look again."""
        self.actions.extend(exclusions.marks(self.seen, self.excluded, self.now))
        self.wakes.extend(time_of(each.until) or 0 for each in self.excluded)
        status = summarise(self)
        later = [wake for wake in self.wakes if wake > self.now]
        return Plan(status, tuple(self.actions), tuple(self.gone), min(later, default=None))

    def wanted(self, spec: ElasticJobSpec) -> int:
        return 0 if spec.suspend else spec.wanted

    def current(self, slot: int) -> PodFacts | None:
        """The pod that counts."""
        return self._by_slot.get(slot, {}).get(self.slots.get(slot, WorkerSlot()).life)

    def _settle_slots(self, spec: ElasticJobSpec) -> Ended | None:
        for number in sorted({*range(self.wanted(spec)), *self.slots, *self._by_slot}):
            slot = self.slots.setdefault(number, WorkerSlot())
            lives = self._by_slot.get(number, {})
            if any(life > slot.life for life in lives):
                continue  # the status that was seen is older than the pods: wait for a newer one
            self._settle_current(spec, number)
            self._clear_away(number)
            limit = spec.replica_specs.worker.restart_count
            if self.slots[number].failures > limit:
                fault = self.fault.cause if self.fault is not UNSET else "it failed"
                why = f"slot {number} has failed {limit + 1} times, restartCount allows {limit}; the last time: {fault}"
                return Ended(False, "RestartCountExceeded", why)
        return None

    def _settle_current(self, spec: ElasticJobSpec, number: int) -> None:
        slot, pod = self.slots[number], self.current(number)
        if pod is None:
            if number < self.wanted(spec):
                self._settle_absent(number)
            return
        if slot.uid != pod.uid:
            slot = self.slots[number] = replace(slot, uid=pod.uid)
        end = end_of(pod, spec, self.seen.word)
        if number >= self.wanted(spec):
            if end is not None:
                self.slots[number] = next_life(slot)
            elif not pod.deleting:
                self._delete(pod, "the job is suspended" if spec.suspend else "fewer pods are wanted")
        elif end is not None:
            self._replace(spec, number, pod, end)
        elif pod.avoids - self._avoided() and not (pod.node or pod.deleting):
            why = "it waits for room, and avoids a node that is well again"
            self.actions.append(DeletePod(pod.name, pod.uid, why, pod.version))
        elif self.seen.word is not None:
            self._heed(spec, pod, self.seen.word)

    def _settle_absent(self, number: int) -> None:
        """A pod that was there and is gone is not created again under its name: the coordinator knew that one."""
        slot, word = self.slots[number], self.seen.word
        name = pod_name(self.seen.job.name, number, slot.life)
        if word is not None and word.acting and name in word.agents:
            # Deleted by force, and still alive; or what was seen is old.
            self.blocked.add(number)
            self.wakes.append(self.now + ALIVE_WAIT)
        elif slot.uid or name in self.seen.created or (word is not None and word.knows(name)):
            self.gone.append(name)
            self.slots[number] = next_life(slot)

    def _heed(self, spec: ElasticJobSpec, pod: PodFacts, word: CoordinatorWord) -> None:
        """What the coordinator says about a pod that the platform believes to be well. First it is deleted."""
        if pod.deleting:
            if pod.name in word.gone:  # a newer word makes that certain
                self.wakes.append(self.now + FENCE_WAIT)
        elif pod.name in word.excluded:
            if self._exclude(spec, pod, word.excluded[pod.name]):
                self._note(pod, word.excluded[pod.name], "ExcludeNode")
                self._delete(pod, f"its node is excluded: {word.excluded[pod.name]}")
        elif lost(pod, word, self.now):
            self._note(pod, "lost: silent until its lease had ended", "Replace")
            self._delete(pod, "the coordinator has lost it")
        elif pod.name in word.gone:
            self.wakes.append(word.gone[pod.name].at + CLOSED_WAIT)

    def _replace(self, spec: ElasticJobSpec, number: int, pod: PodFacts, end: PodEnd) -> None:
        slot = self.slots[number]
        after, action = next_life(slot), "Replace"
        if end.kind is EndKind.OUT_OF_MEMORY:
            grown = after_oom(slot, pod, spec.memory)
            after, action = (grown, "GrowMemory") if grown else (after_failure(slot, self.now), "Replace")
        elif end.kind is EndKind.FAULTY_NODE and self._exclude(spec, pod, end.cause):
            action = "ExcludeNode"
        elif end.kind not in UNCOUNTED:
            after = after_failure(slot, self.now)
        self.slots[number] = after
        self._note(pod, end.cause, action)

    def _note(self, pod: PodFacts, cause: str, action: str) -> None:
        if self.fault is not UNSET and self.fault.pod == pod.name:
            return  # what came first is the cause
        self.fault = LastFault(time=stamp(self.now), pod=pod.name, cause=cause, action=action, node=pod.node)

    def _exclude(self, spec: ElasticJobSpec, pod: PodFacts, cause: str) -> bool:
        longer = exclusions.exclude(spec, self.excluded, self.seen.nodes, node=pod.node, cause=cause, now=self.now)
        if longer is not None:
            self.excluded = longer
        return longer is not None

    def _clear_away(self, number: int) -> None:
        """Delete pods of earlier lives: those that still run, and the oldest of those that have ended."""
        before = [pod for life, pod in sorted(self._by_slot.get(number, {}).items()) if life < self.slots[number].life]
        over = [pod for pod in before if pod.ended and not pod.deleting]
        for pod in before:
            if not (pod.ended or pod.deleting):
                self._delete(pod, "it was replaced")
        for pod in over[:-KEPT_PODS]:
            self._delete(pod, "newer ones of its slot have ended since")

    def _create_missing(self, spec: ElasticJobSpec) -> None:
        ready = True
        if not self.seen.has_secret:
            self.actions.append(EnsureSecret())
            ready = False
        if not self.seen.service_ip:
            self.actions.append(EnsureService())
            ready = False
        if not ready:
            return
        for kind, minimum in wanted_bounds(spec).items():
            if self.seen.bounds.get(kind) != minimum:
                self.actions.append(EnsureBound(kind, minimum))
        peers = tuple(pod.ip for pod in self.seen.pods if pod.running and pod.ip)
        for number in range(spec.wanted):
            if self.current(number) is not None or not self._may_create(number):
                continue
            if number and not peers and not self._has_first():
                continue  # nobody to meet: the first slot hosts the coordinator
            self.actions.append(CreatePod(self._order(number, peers)))

    def _has_first(self) -> bool:
        """Whether the pod of the first slot is there, or about to be created."""
        pod = self.current(0)
        created = any(isinstance(action, CreatePod) and action.order.slot == 0 for action in self.actions)
        return created or (pod is not None and not pod.ended)

    def _order(self, number: int, peers: tuple[str, ...]) -> PodOrder:
        slot = self.slots[number]
        return PodOrder(
            slot=number,
            life=slot.life,
            memory=slot.memory,
            avoid=tuple(sorted(self._avoided(self.seen.word))),
            peers=peers,
            host=number == 0 and (not peers or self.seen.status.generation == 0),
        )

    def _avoided(self, word: CoordinatorWord | None = None) -> set[str]:
        """Nodes that are excluded, and those on which a pod lingers that was replaced; with a word: as it fell silent.

        The kubelet there is likely cut off, too: a new pod would wait for it.
        """
        before = [pod for pod in self.seen.pods if pod.life < self.slots.get(pod.slot, WorkerSlot()).life]
        lingering = {pod.name: pod.node for pod in before if pod.deleting and not pod.ended and pod.node}
        if word is not None:
            silent = {name for name, agent in word.gone.items() if agent.silent}
            lingering = {name: node for name, node in lingering.items() if name in silent}
        return {each.name for each in exclusions.active(self.excluded, self.now)} | set(lingering.values())

    def _may_create(self, number: int) -> bool:
        slot, refusal = self.slots[number], self.seen.refusals.get(number)
        if number in self.blocked or any(life > slot.life for life in self._by_slot.get(number, {})):
            return False
        times = [time_of(slot.not_before) or 0.0]
        if refusal is not None:
            wait = INVALID_WAIT if refusal.reason == "Invalid" else backoff(refusal.times)
            times.append(refusal.at + wait)
        if max(times) > self.now:
            self.wakes.append(max(times))
            return False
        return True

    def _delete(self, pod: PodFacts, why: str) -> None:
        self.actions.append(DeletePod(pod.name, pod.uid, why))
