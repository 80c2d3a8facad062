"""A cluster, a coordinator and operators, small enough to be run a hundred thousand times with every kind of bad luck.

The API server is real in what matters: resource versions, refused writes of old ones, names that are unique, deletion
with grace, one ordered watch for each kind. What is random: when watches deliver, which requests and replies are lost,
when pods start, end, are deleted or cut off, and when an operator dies. Reconcile and its execution are the real ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from outlast.k8s.execution import ApiReply, ApiRequest, Execution, ExecutionResult, carry_out
from outlast.k8s.observed import LIFE_LABEL, SLOT_LABEL, CoordinatorWord, GoneAgent, JobOutcome, Refusal
from outlast.k8s.plan import JobObservation, Plan
from outlast.k8s.quantities import stamp
from outlast.k8s.reading import observe
from outlast.k8s.reconcile import reconcile
from outlast.k8s.resource import API_VERSION, KIND

Raw = dict[str, Any]
LEASE = 3.0
GRACE = 10
JOB = "job"
BACK = 120.0  # seconds after which an agent that was lost and came back counts as well

PACK, UNPACK = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode


def copied(raw: Any) -> Any:
    return UNPACK(PACK(raw))


Reconcile = Callable[[JobObservation, float], Plan]


def job_object(replicas: int, least: int, most: int) -> Raw:
    container = {"name": "main", "image": "x", "resources": {"limits": {"memory": "1Gi"}}}
    worker = {"replicas": replicas, "restartCount": 3, "template": {"spec": {"containers": [container]}}}
    spec = {
        "replicaSpecs": {"worker": worker},
        "elasticPolicy": {"minReplicas": least, "maxReplicas": most},
        "drain": {"gracePeriod": f"{GRACE}s", "disruptionBudget": False},  # a budget is one more request, no decision
        "faultyNodes": {"excludeFor": "5m"},
    }
    meta = {"name": JOB, "namespace": "default", "uid": "job-uid", "generation": 1}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec, "status": {}}


@dataclass
class Container:
    """What really runs, whatever the objects say."""

    pod: str
    slot: int
    node: str
    running: bool = True
    joined: bool = False  # its agent is connected, its workers may train
    cut_at: float | None = None
    back_at: float = 0.0  # when its agent last came back after it was lost

    @property
    def trains(self) -> bool:
        return self.running and self.joined


@dataclass
class Cluster:
    rng: random.Random
    now: float = 1_000_000.0
    job: Raw | None = None
    pods: dict[str, Raw] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)  # by uid
    log: dict[str, list[tuple[str, Raw | None]]] = field(default_factory=lambda: {"job": [], "pod": []})
    version: int = 0
    uids: int = 0
    secret: bool = False
    service: Raw | None = None
    cut: set[str] = field(default_factory=set)
    quota_until: float = 0.0
    agents: set[str] = field(default_factory=set)
    gone: dict[str, GoneAgent] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)
    outcome: JobOutcome | None = None
    violations: list[str] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    crashes: dict[int, int] = field(default_factory=dict)
    writes: int = 0
    # Of two operators that both believe to lead, one may create a pod long after the other has replaced it. Only the
    # coordinator keeps such a pair from training both. One operator alone never makes one.
    alone: bool = True
    asked: bool = True  # what is wanted has not changed: a change may still be on its way to the operator

    # --- the API server

    def touch(self, kind: str, name: str, raw: Raw | None) -> None:
        self.version += 1
        if raw is not None:
            raw["metadata"]["resourceVersion"] = str(self.version)
        self.log[kind].append((name, copied(raw)))

    def start(self, job: Raw) -> None:
        self.job = job
        self.touch("job", JOB, job)

    def call(self, request: ApiRequest) -> ApiReply:
        if request.method != "GET":
            self.writes += 1
        parts = request.path.strip("/").split("/")
        if "elasticjobs" in parts:
            return self._job_call(request, parts)
        kind, name = parts[4], parts[5] if len(parts) > 5 else ""
        if kind == "pods":
            return self._pod_call(request, name)
        body = copied(request.body) or {}
        if kind == "events":
            return ApiReply(201, body)
        if kind == "secrets":
            taken, self.secret = self.secret, True
            return ApiReply(409 if taken else 201, body)
        if self.service is None:
            body["spec"]["clusterIP"] = "10.0.0.1"
            self.service = body
            return ApiReply(201, body)
        return ApiReply(409)

    def _job_call(self, request: ApiRequest, parts: list[str]) -> ApiReply:
        if self.job is None:
            return ApiReply(404)
        if request.method == "GET":
            return ApiReply(200, copied(self.job))
        assert request.body is not None
        if request.method == "DELETE":
            self.job = None
            self.touch("job", JOB, None)
            return ApiReply(200)
        assert parts[-1] == "status"
        if request.body["metadata"].get("resourceVersion", self.version_of_job) != self.version_of_job:
            return ApiReply(409)
        self._check_status(self.job.get("status") or {}, request.body["status"])
        self.job["status"] = copied(request.body["status"])
        self.touch("job", JOB, self.job)
        return ApiReply(200, copied(self.job))

    @property
    def version_of_job(self) -> str:
        assert self.job is not None
        return str(self.job["metadata"]["resourceVersion"])

    def _check_status(self, before: Raw, after: Raw) -> None:
        if before.get("phase") in ("Succeeded", "Failed") and after.get("phase") != before["phase"]:
            self.violations.append(f"{before['phase']} became {after.get('phase')}")
        for number, slot in before.get("slots", {}).items():
            later = after.get("slots", {}).get(number, {})
            if any(later.get(key, 0) < slot.get(key, 0) for key in ("life", "failures")):
                self.violations.append(f"slot {number} forgot: {slot} became {later}")
            if later.get("failures", 0) > self.crashes.get(int(number), 0):
                self.violations.append(f"slot {number} has failed {self.crashes.get(int(number), 0)} times: {later}")

    def _pod_call(self, request: ApiRequest, name: str) -> ApiReply:
        if request.method == "POST":
            return self._create(copied(request.body or {}))
        pod = self.pods.get(name)
        if pod is None:
            return ApiReply(404)
        if request.method == "GET":
            return ApiReply(200, copied(pod))
        assert request.method == "DELETE"
        wanted = (request.body or {}).get("preconditions", {})
        if any(pod["metadata"][key] != value for key, value in wanted.items()):
            return ApiReply(409)
        self._check_deletion(pod)
        self.delete(name)
        return ApiReply(200)

    def _create(self, pod: Raw) -> ApiReply:
        name = pod["metadata"]["name"]
        if self.now < self.quota_until:
            return ApiReply(403, {"message": f'pods "{name}" is forbidden: exceeded quota: q'})
        if name in self.pods:
            return ApiReply(409)
        if self.alone and self.job is not None and self.job["status"].get("phase") in ("Succeeded", "Failed"):
            self.violations.append(f"{name} was created after the job's end")  # by two: it must go again
        self.uids += 1
        pod["metadata"] |= {"uid": f"uid-{self.uids}"}
        pod["status"] = {"phase": "Pending"}
        self.pods[name] = pod
        self.created.append(name)
        self.touch("pod", name, pod)
        return ApiReply(201, copied(pod))

    def _check_deletion(self, pod: Raw) -> None:
        """Nobody deletes the pod of a slot that is well and wanted."""
        container = self.containers.get(pod["metadata"]["uid"])
        if self.job is None or "deletionTimestamp" in pod["metadata"]:
            return
        labels, status, spec = pod["metadata"]["labels"], self.job["status"], self.job["spec"]
        slot = status.get("slots", {}).get(labels[SLOT_LABEL], {})
        well = container is not None and container.trains and container.node not in self.cut
        well = well and container is not None and self.now - container.back_at > BACK
        wanted = int(labels[SLOT_LABEL]) < spec["replicaSpecs"]["worker"]["replicas"] and not spec.get("suspend")
        name = pod["metadata"]["name"]
        asked = self.asked and name not in self.excluded and status.get("phase") not in ("Succeeded", "Failed")
        if well and wanted and asked and int(labels[LIFE_LABEL]) == slot.get("life", 0):
            self.violations.append(f"{name} was well, and was deleted")

    # --- nodes, kubelets, users

    def delete(self, name: str) -> None:
        """Ask for a deletion with grace; a pod that was never scheduled is gone at once."""
        pod = self.pods[name]
        if "nodeName" not in pod["spec"]:
            self.remove(name)
        elif "deletionTimestamp" not in pod["metadata"]:
            pod["metadata"] |= {"deletionTimestamp": stamp(self.now + GRACE), "deletionGracePeriodSeconds": GRACE}
            self.touch("pod", name, pod)

    def remove(self, name: str) -> None:
        del self.pods[name]
        self.touch("pod", name, None)

    def run(self, name: str) -> None:
        """Schedule a pod and start its container."""
        pod = self.pods[name]
        avoided = {
            value
            for term in pod["spec"].get("affinity", {}).get("nodeAffinity", {}).values()
            for each in term["nodeSelectorTerms"]
            for condition in each["matchFields"]
            for value in condition["values"]
        }
        free = [node for node in NODES if node not in avoided and node not in self.cut]
        if not free or "deletionTimestamp" in pod["metadata"]:
            return
        node = self.rng.choice(free)
        pod["spec"]["nodeName"] = node
        pod["status"] = {"phase": "Running", "podIP": f"10.1.0.{self.uids}"}
        slot = int(pod["metadata"]["labels"][SLOT_LABEL])
        self.containers[pod["metadata"]["uid"]] = Container(name, slot, node)
        self.touch("pod", name, pod)

    def join(self, uid: str) -> None:
        """The agent of a container joins, or comes back."""
        container = self.containers[uid]
        here = self._pod_of(uid) is not None and not self._leaves(uid)
        if container.running and here and container.node not in self.cut and container.pod not in self.excluded:
            if self._refused(uid):
                self.end(uid, 1)
                return
            container.back_at = self.now if container.pod in self.gone else container.back_at
            container.joined = True
            self.agents.add(container.pod)
            self.gone.pop(container.pod, None)

    def _pod_of(self, uid: str) -> Raw | None:
        """The pod of a container, unless it was deleted by force."""
        pod = self.pods.get(self.containers[uid].pod)
        return pod if pod is not None and pod["metadata"]["uid"] == uid else None

    def _leaves(self, uid: str) -> bool:
        pod = self._pod_of(uid)
        told = self.containers[uid].node not in self.cut
        return pod is not None and told and "deletionTimestamp" in pod["metadata"]

    def _refused(self, uid: str) -> bool:
        """Whether the coordinator refuses this agent: the rank of its slot is taken. One that leaves makes way."""
        slot = self.containers[uid].slot
        rivals = {each: one for each, one in self.containers.items() if one.slot == slot and one.joined and each != uid}
        if self.alone and any(self._pod_of(each) is not None for each in rivals):
            self.violations.append(f"slot {slot} has two pods that train: {self.containers[uid].pod} came, too")
        if not all(self._leaves(each) for each in rivals):
            return True
        for rival in rivals.values():
            self.leave(rival, silent=False)
        return False

    def end(self, uid: str, code: int, reason: str = "Error") -> None:
        """A container ends; the kubelet tells, unless it is cut off."""
        container = self.containers[uid]
        container.running = False
        self.leave(container, silent=False)
        pod = self.pods.get(container.pod)
        if pod is not None and pod["metadata"]["uid"] == uid and container.node not in self.cut:
            self._tell_end(pod, code, reason)

    def _tell_end(self, pod: Raw, code: int, reason: str) -> None:
        state = {"terminated": {"exitCode": code, "reason": reason}}
        pod["status"] |= {
            "phase": "Succeeded" if code == 0 else "Failed",
            "containerStatuses": [{"name": "main", "state": state}],
        }
        if code in (1, 14) or reason == "OOMKilled":
            slot = int(pod["metadata"]["labels"][SLOT_LABEL])
            self.crashes[slot] = self.crashes.get(slot, 0) + 1
        self.touch("pod", pod["metadata"]["name"], pod)

    def leave(self, container: Container, *, silent: bool) -> None:
        if container.joined:
            container.joined = False
            # Of a pod that was deleted by force there may be another of its name, which the coordinator tells apart.
            others = [each for each in self.containers.values() if each.pod == container.pod and each is not container]
            if not any(each.joined for each in others):
                self.agents.discard(container.pod)
                self.gone[container.pod] = GoneAgent(self.now, silent)

    def kubelets(self) -> None:
        """Carry out deletions on nodes that are not cut off; end what leases end on those that are."""
        for uid, container in self.containers.items():
            if container.node in self.cut:
                if container.joined and container.cut_at is not None and self.now - container.cut_at > LEASE:
                    self.leave(container, silent=True)
                continue
            pod = self.pods.get(container.pod)
            if pod is None or pod["metadata"]["uid"] != uid:
                container.running = False
                self.leave(container, silent=False)
            elif "deletionTimestamp" in pod["metadata"]:
                container.running = False
                self.leave(container, silent=False)
                self.remove(container.pod)
            elif not container.running and "containerStatuses" not in pod["status"]:
                self._tell_end(pod, 1, "Error")  # what had ended while the node was cut off

    def cut_off(self, node: str) -> None:
        self.cut.add(node)
        for container in self.containers.values():
            if container.node == node:
                container.cut_at = self.now

    def word(self) -> CoordinatorWord | None:
        if not self.agents and not self.gone:
            return None
        return CoordinatorWord(
            at=self.now,
            acting=self.rng.random() < 0.9,
            generation=1,
            agents=frozenset(self.agents),
            gone=dict(self.gone),
            excluded=dict(self.excluded),
            outcome=self.outcome,
        )

    def check(self) -> None:
        trains: dict[int, list[str]] = {}
        for container in self.containers.values():
            if container.trains:
                trains.setdefault(container.slot, []).append(container.pod)
        for slot, names in trains.items():
            if len(names) > 1:
                self.violations.append(f"slot {slot} trains twice: {names}")


NODES = tuple(f"node-{number}" for number in range(6))


class OperatorModel:
    """An operator with caches that lag behind, and requests that fail. Its decisions are the real ones."""

    def __init__(self, cluster: Cluster, decide: Reconcile = reconcile, execute: Any = carry_out) -> None:
        self.cluster = cluster
        self.decide, self.execute = decide, execute
        self.refusals: dict[int, Refusal] = {}
        self.created: set[str] = set()
        self.word: CoordinatorWord | None = None
        self.execution: Execution | None = None
        self.request: ApiRequest | None = None
        self.positions = {kind: len(log) for kind, log in cluster.log.items()}
        self.job = copied(cluster.job)
        self.pods = copied(cluster.pods)

    def deliver(self, kind: str, most: int) -> None:
        """The watch of a kind delivers up to so many events."""
        log = self.cluster.log[kind]
        for name, raw in log[self.positions[kind] : self.positions[kind] + most]:
            self.positions[kind] += 1
            if kind == "job":
                if raw is None or self.job is None or _version(raw) >= _version(self.job):
                    self.job = copied(raw)
            elif raw is None:
                self.pods.pop(name, None)
            else:
                self.pods[name] = copied(raw)

    def begin(self) -> Plan | None:
        if self.job is None or self.execution is not None:
            return None
        seen = observe(
            self.job,
            self.pods.values(),
            word=self.word,
            refusals=self.refusals,
            created=self.created,
            service=self.cluster.service,
            has_secret=self.cluster.secret,
        )
        plan = self.decide(seen, self.cluster.now)
        self.execution = self.execute(plan, self.job, seen, token="t" * 16, now=self.cluster.now)
        self._advance(None)
        return plan

    def go_on(self, luck: Callable[[], str]) -> None:
        """Send the request that is next; `luck` says what becomes of it and its reply."""
        assert self.request is not None
        fate = luck()
        reply = self.cluster.call(self.request) if fate in ("fine", "reply lost") else ApiReply(500)
        self._advance(reply if fate in ("fine", "error") else ApiReply(0))

    def _advance(self, reply: ApiReply | None) -> None:
        assert self.execution is not None
        try:
            self.request = next(self.execution) if reply is None else self.execution.send(reply)
        except StopIteration as done:
            self.execution = self.request = None
            self._learn(done.value)

    def _learn(self, result: ExecutionResult) -> None:
        if result.job is not None and self.job is not None and _version(result.job) > _version(self.job):
            self.job = copied(dict(result.job))
        self.refusals = {slot: each for slot, each in self.refusals.items() if slot not in result.created}
        self.refusals |= result.refused
        self.created |= set(result.created.values())


def _version(raw: Raw) -> int:
    return int(raw["metadata"]["resourceVersion"])
