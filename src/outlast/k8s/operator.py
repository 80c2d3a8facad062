"""The operator: watches, reconciles, acts. Every decision is `reconcile`'s; this only carries them out.

With it down, training goes on. Started again, it finds everything in the cluster, and touches no pod that is well.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from outlast.k8s import leader
from outlast.k8s.bounds import BoundKind
from outlast.k8s.client import ApiClient
from outlast.k8s.exclusions import orphaned_marks
from outlast.k8s.execution import NOT_FOUND, OK, ApiReply, ApiRequest, ExecutionResult, carry_out, unmark_request
from outlast.k8s.mirror import Key, Mirror, key_of
from outlast.k8s.observed import JOB_LABEL, CoordinatorWord, Raw, Refusal, node_facts
from outlast.k8s.plan import CreatePod, DeletePod, JobObservation, Plan
from outlast.k8s.reading import identity_of, observe, owned_by
from outlast.k8s.reconcile import reconcile
from outlast.k8s.rendering import TOKEN_KEY, JobIdentity, secret_name, service_name
from outlast.k8s.resource import API_VERSION, PLURAL
from outlast.k8s.tasks import together

log = logging.getLogger("operator")

AT_ONCE = 8  # jobs that are worked on at the same time
AGAIN = 1.0  # seconds until the next attempt after something failed
RELOOK = 600.0  # seconds after which a job is looked at even if nothing seems to have changed


class CoordinatorWords(Protocol):
    """What coordinators say. Asked for at every reconcile, so it answers at once with the newest that it has."""

    def word(self, job: JobIdentity, addresses: Sequence[str], token: str) -> CoordinatorWord | None:
        """The newest word, or None. From now on the coordinator is followed, at these addresses."""

    def forget(self, job: JobIdentity) -> None:
        """The job is gone."""


class NoWords:
    """Nobody asks the coordinators: pods alone tell."""

    def word(self, job: JobIdentity, addresses: Sequence[str], token: str) -> CoordinatorWord | None:  # noqa: ARG002
        return None

    def forget(self, job: JobIdentity) -> None:
        """Nothing is kept."""


class JobMemory(msgspec.Struct):
    """What this operator knows of a job besides what it watches. It can be lost at any time."""

    uid: str
    refusals: dict[int, Refusal] = {}
    created: set[str] = set()
    written: Raw | None = None  # the job as it was after the last status that was written
    service: Raw | None = None
    token: str = ""
    bounds: dict[BoundKind, int] = {}
    reason: str = ""  # last logged


class Operator:
    """One operator of a namespace, or of all (`namespace` empty)."""

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str,
        identity: str,
        home: str,
        words: CoordinatorWords | None = None,
        with_nodes: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._identity = identity
        self._home = home  # namespace of the lease
        self._words = words or NoWords()
        self._clock = clock
        scope = f"/namespaces/{namespace}" if namespace else ""
        self._jobs = Mirror(client, f"/apis/{API_VERSION}{scope}/{PLURAL}", self._job_changed)
        self._pods = Mirror(client, f"/api/v1{scope}/pods", self._pod_changed, selector=JOB_LABEL)
        self._nodes = Mirror(client, "/api/v1/nodes", self._node_changed) if with_nodes else None
        self._pods_of: dict[Key, dict[str, Raw]] = {}
        self._memories: dict[Key, JobMemory] = {}
        self._dirty: dict[Key, None] = {}
        self._busy: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._news = asyncio.Event()
        self.reconciled = 0  # how often, for whoever measures

    async def run(self) -> None:
        """Lead whenever this operator may, until cancelled."""
        while True:
            lease = await self._acquire()
            log.info("%s leads", self._identity)
            await together(self._renew(lease), self._lead())
            log.warning("%s leads no more", self._identity)

    def touch(self, key: Key) -> None:
        """Reconcile this job soon."""
        self._dirty[key] = None
        self._news.set()

    # --- leading

    async def _acquire(self) -> Raw:
        seen: leader.LeaseView | None = None
        while True:
            reply = await self._client.send(self._lease_request())
            if reply.status == NOT_FOUND:
                reply = await self._client.send(leader.creation(self._home, self._identity, self._clock()))
                if reply.ok:
                    return reply.body
            elif reply.status == OK:
                seen = leader.view_of(reply.body, seen, self._clock())
                if leader.may_take(seen, self._identity, self._clock()):
                    taken = await self._client.send(leader.renewal(reply.body, self._identity, self._clock()))
                    if taken.ok:
                        return taken.body
            else:
                log.warning("cannot read the lease: %s", reply.message)
            await asyncio.sleep(leader.RENEW_EVERY)

    async def _renew(self, lease: Raw) -> None:
        """Return when the lease is lost, or was not renewed in time."""
        renewed = self._clock()
        try:
            while self._clock() - renewed < leader.GIVE_UP_AFTER:
                await asyncio.sleep(leader.RENEW_EVERY)
                reply = await self._client.send(leader.renewal(lease, self._identity, self._clock()))
                if reply.ok:
                    lease, renewed = reply.body, self._clock()
                elif reply.status:
                    reply = await self._client.send(self._lease_request())
                    if reply.status == OK and reply.body["spec"].get("holderIdentity") != self._identity:
                        return
                    lease = reply.body if reply.status == OK else lease
        except asyncio.CancelledError:
            await self._client.send(leader.release(lease, self._clock()))
            raise

    def _lease_request(self) -> ApiRequest:
        return ApiRequest(method="GET", path=leader.path_of(self._home, leader.NAME))

    async def _lead(self) -> None:
        mirrors = [each for each in (self._jobs, self._pods, self._nodes) if each is not None]
        await together(*(each.run() for each in mirrors), self._work(mirrors))

    # --- what has changed

    def _job_changed(self, raw: Raw) -> None:
        self.touch(key_of(raw))

    def _pod_changed(self, raw: Raw) -> None:
        meta = raw["metadata"]
        key = (meta["namespace"], meta["labels"][JOB_LABEL])
        pods = self._pods_of.setdefault(key, {})
        if key_of(raw) in self._pods.objects:
            pods[meta["name"]] = raw
        else:
            pods.pop(meta["name"], None)
        self.touch(key)

    def _node_changed(self, raw: Raw) -> None:
        """Nodes change all the time; jobs look at them when they reconcile. Marks of jobs that are gone are lifted."""

    # --- work

    async def _work(self, mirrors: Sequence[Mirror]) -> None:
        for mirror in mirrors:
            await mirror.listed.wait()
        await self._sweep()
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                self._news.clear()
                for key in [key for key in self._dirty if key not in self._busy][: AT_ONCE - len(running)]:
                    del self._dirty[key]
                    self._busy.add(key)
                    running.add(asyncio.create_task(self._process(key)))
                news = asyncio.create_task(self._news.wait())
                done, _ = await asyncio.wait({news, *running}, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                running -= done
                for task in done - {news}:
                    task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _process(self, key: Key) -> None:
        try:
            await self._reconcile(key)
        finally:
            self._busy.discard(key)
            self._news.set()

    async def _reconcile(self, key: Key) -> None:
        job = self._newest(key)
        if job is None:
            self._forget(key)
            await self._sweep()
            return
        memory = self._memories[key]
        await self._look_up(job, memory)
        seen = self._observe(key, job, memory)
        plan = reconcile(seen, self._clock())
        self._tell(seen, plan, memory)
        result = await self._carry_out(plan, job, seen, memory)
        self.reconciled += 1
        self._learn(key, memory, plan, result)

    def _newest(self, key: Key) -> Raw | None:
        """The job as it was last seen, or as this operator itself has written it since."""
        job = self._jobs.objects.get(key)
        if job is None:
            return None
        memory = self._memories.get(key)
        uid = job["metadata"]["uid"]
        if memory is None or memory.uid != uid:
            self._memories[key] = JobMemory(uid)
            return job
        written = memory.written
        return written if written is not None and version_of(written) > version_of(job) else job

    def _forget(self, key: Key) -> None:
        memory = self._memories.pop(key, None)
        if memory is not None:
            self._words.forget(JobIdentity(key[1], key[0], memory.uid))
        if timer := self._timers.pop(key, None):
            timer.cancel()
        if not self._pods_of.get(key):
            self._pods_of.pop(key, None)

    async def _look_up(self, job: Raw, memory: JobMemory) -> None:
        """The Secret and the Service, until both are there. Those of an earlier job of this name do not count."""
        identity = identity_of(job)
        base = f"/api/v1/namespaces/{identity.namespace}"
        if memory.service is None:
            reply = await self._client.send(
                ApiRequest(method="GET", path=f"{base}/services/{service_name(identity.name)}")
            )
            memory.service = reply.body if _is_ours(reply, identity) else None
        if not memory.token:
            reply = await self._client.send(
                ApiRequest(method="GET", path=f"{base}/secrets/{secret_name(identity.name)}")
            )
            ours = _is_ours(reply, identity)
            memory.token = base64.b64decode(reply.body["data"][TOKEN_KEY]).decode() if ours else ""

    def _observe(self, key: Key, job: Raw, memory: JobMemory) -> JobObservation:
        pods = list(self._pods_of.get(key, {}).values())
        addresses = [each["status"]["podIP"] for each in pods if each.get("status", {}).get("podIP")]
        word = self._word(job, addresses, memory.token)
        return observe(
            job,
            pods,
            nodes=None if self._nodes is None else self._nodes.objects.values(),
            word=word,
            refusals=memory.refusals,
            created=memory.created,
            service=memory.service,
            has_secret=bool(memory.token),
            bounds=memory.bounds,
        )

    def _word(self, job: Raw, addresses: Sequence[str], token: str) -> CoordinatorWord | None:
        identity = identity_of(job)
        if (job.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            self._words.forget(identity)
            return None
        return self._words.word(identity, addresses, token) if token else None

    async def _carry_out(self, plan: Plan, job: Raw, seen: JobObservation, memory: JobMemory) -> ExecutionResult:
        execution = carry_out(plan, job, seen, token=secrets.token_hex(16), now=self._clock())
        try:
            request = next(execution)
            while True:
                request = execution.send(await self._client.send(request))
        except StopIteration as done:
            result: ExecutionResult = done.value
            memory.written = result.job or memory.written
            return result

    def _learn(self, key: Key, memory: JobMemory, plan: Plan, result: ExecutionResult) -> None:
        memory.refusals = {slot: each for slot, each in memory.refusals.items() if slot not in result.created}
        memory.refusals |= result.refused
        memory.created |= set(result.created.values())
        memory.bounds = {**memory.bounds, **result.bounds}
        for problem in result.problems:
            log.warning("%s/%s: %s", *key, problem)
        wake = RELOOK if plan.wake is None else max(plan.wake - self._clock(), 0.1)
        self._wake(key, min(AGAIN if result.again or result.refused else RELOOK, wake))

    def _wake(self, key: Key, seconds: float) -> None:
        if timer := self._timers.pop(key, None):
            timer.cancel()
        self._timers[key] = asyncio.get_running_loop().call_later(seconds, self.touch, key)

    def _tell(self, seen: JobObservation, plan: Plan, memory: JobMemory) -> None:
        """One line for each decision, and for each change of the phase."""
        name = f"{seen.job.namespace}/{seen.job.name}"
        for action in plan.actions:
            if isinstance(action, CreatePod):
                log.info("%s: create worker %d, life %d", name, action.order.slot, action.order.life)
            elif isinstance(action, DeletePod):
                log.info("%s: delete %s: %s", name, action.name, action.why)
            else:
                log.info("%s: %s", name, type(action).__name__)
        accepted = plan.status.condition("Accepted")
        refused = accepted.message if accepted is not None and accepted.status == "False" else ""
        reason = f"{plan.status.phase}: {refused}" if refused else plan.status.phase
        if reason != memory.reason:
            memory.reason = reason
            log.info("%s: %s", name, reason)

    async def _sweep(self) -> None:
        """Lift taints and cordons of jobs that are gone, also of those that were deleted while no operator ran."""
        if self._nodes is None:
            return
        jobs = [identity_of(each) for each in self._jobs.objects.values()]
        for action in orphaned_marks([node_facts(each) for each in self._nodes.objects.values()], jobs):
            log.info("node %s: lifting the mark of a job that is gone", action.node)
            await self._client.send(unmark_request(action))


def version_of(raw: Raw) -> int:
    return int(raw["metadata"]["resourceVersion"])


def _is_ours(reply: ApiReply, job: JobIdentity) -> bool:
    return reply.status == OK and owned_by(reply.body, job.uid)
