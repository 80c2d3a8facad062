"""What tells the platform how many pods a job needs: budgets for drains, gangs for queues."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from outlast.k8s import rendering
from outlast.k8s.bounds import BUDGET, GANG, wanted_bounds
from outlast.k8s.execution import ApiReply, ApiRequest, ExecutionResult, carry_out
from outlast.k8s.plan import EnsureBound, JobObservation
from outlast.k8s.reconcile import reconcile
from outlast.k8s.rendering import JobIdentity, PodOrder
from outlast.k8s.resource import ElasticJobSpec

JOB = JobIdentity("mnist", "team", "uid-of-mnist")
MAIN = {"name": "main", "image": "x", "resources": {"limits": {"memory": "3Gi"}}}


def spec_of(replicas: int = 3, least: int = 2, container: Any = None, **more: Any) -> ElasticJobSpec:
    worker = {"replicas": replicas, "template": {"spec": {"containers": [container or MAIN]}}}
    bounds = {"minReplicas": least, "maxReplicas": max(replicas, least)}
    given = {"replicaSpecs": {"worker": worker}, "elasticPolicy": bounds, **more}
    return msgspec.convert(given, ElasticJobSpec)


def queued(scheduler: str, **more: str) -> dict[str, Any]:
    return {"schedulingPolicy": {"scheduler": scheduler, "queue": "team-a", **more}}


def seen(spec: ElasticJobSpec, **more: Any) -> JobObservation:
    return JobObservation(job=JOB, spec=spec, service_ip="10.96.0.7", has_secret=True, **more)


def pod(spec: ElasticJobSpec, slot: int) -> dict[str, Any]:
    return rendering.pod(JOB, spec, PodOrder(slot=slot, life=0), "10.96.0.7")


@pytest.mark.parametrize(
    ("replicas", "least", "budget"),
    [(3, 2, 2), (4, 2, 2), (3, 3, 2), (1, 1, None)],
    ids=["above MIN", "far above", "at MIN: still one may go", "a single pod"],
)
def test_a_budget_keeps_min_pods_and_always_lets_one_go(replicas: int, least: int, budget: int | None) -> None:
    assert wanted_bounds(spec_of(replicas, least)).get(BUDGET) == budget


def test_bounds_are_seen_to_before_pods_are_created_and_once() -> None:
    first = reconcile(seen(spec_of()), 0.0)
    assert first.actions[0] == EnsureBound(BUDGET, 2)
    again = reconcile(seen(spec_of(), bounds={BUDGET: 2}), 0.0)
    assert not any(isinstance(action, EnsureBound) for action in again.actions)
    scaled = reconcile(seen(spec_of(2), bounds={BUDGET: 2}), 0.0)
    assert scaled.actions[0] == EnsureBound(BUDGET, 1)
    none = reconcile(seen(spec_of(drain={"disruptionBudget": False})), 0.0)
    assert not any(isinstance(action, EnsureBound) for action in none.actions)


def carried_out(replies: list[int]) -> tuple[list[ApiRequest], ExecutionResult]:
    """What is sent for a budget where these are the answers, and what came of it."""
    observed = seen(spec_of(), bounds={})
    plan = reconcile(observed, 0.0)
    plan = replace(plan, actions=plan.actions[:1], status=observed.status)
    execution = carry_out(plan, {"metadata": {}}, observed, token="t", now=0.0)
    sent = [next(execution)]
    try:
        for status in replies:
            sent += [execution.send(ApiReply(status, {"message": "the server's words"}))]
    except StopIteration as done:
        return sent, done.value
    raise AssertionError(f"{sent[-1]} was sent, too")


def test_a_server_without_the_newest_budget_gets_the_older_one() -> None:
    sent, result = carried_out([404, 201])
    assert [request.path.split("/")[2:4] for request in sent] == [["policy", "v1"], ["policy", "v1beta1"]]
    assert result.bounds == {BUDGET: 2}
    assert not result.problems


def test_a_budget_that_is_there_gets_the_number() -> None:
    sent, result = carried_out([409, 200])
    assert (sent[1].method, sent[1].path) == ("PATCH", "/apis/policy/v1/namespaces/team/poddisruptionbudgets/mnist")
    assert sent[1].body == {"spec": {"minAvailable": 2}}
    assert result.bounds == {BUDGET: 2}


def test_a_budget_that_is_refused_is_told_once_and_stops_nothing() -> None:
    _, result = carried_out([403])
    assert result.bounds == {BUDGET: 2}
    assert result.problems == ("no PodDisruptionBudget for mnist: the server's words",)
    assert not result.again


def test_kueue_admits_min_pods_as_a_group_and_each_further_pod_alone() -> None:
    spec = spec_of(4, 2, runPolicy=queued("Kueue"))
    gang, extra = pod(spec, 1)["metadata"], pod(spec, 2)["metadata"]
    assert gang["labels"]["kueue.x-k8s.io/queue-name"] == extra["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert gang["labels"]["kueue.x-k8s.io/pod-group-name"] == "mnist"
    assert gang["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "2"
    assert "kueue.x-k8s.io/pod-group-name" not in extra["labels"]
    assert GANG not in wanted_bounds(spec)


def test_volcano_gets_a_pod_group_of_min_and_may_preempt_each_further_pod() -> None:
    spec = spec_of(4, 2, runPolicy=queued("Volcano", priorityClass="high"))
    gang, extra = pod(spec, 0), pod(spec, 3)
    assert gang["spec"]["schedulerName"] == extra["spec"]["schedulerName"] == "volcano"
    assert gang["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "mnist"
    assert "volcano.sh/preemptable" not in gang["metadata"]["annotations"]
    assert extra["metadata"]["annotations"]["volcano.sh/preemptable"] == "true"
    assert "scheduling.k8s.io/group-name" not in extra["metadata"]["annotations"]
    assert gang["spec"]["priorityClassName"] == "high"
    group = rendering.bound(JOB, spec, GANG, wanted_bounds(spec)[GANG], GANG.versions[0])
    assert (group["apiVersion"], group["kind"]) == ("scheduling.volcano.sh/v1beta1", "PodGroup")
    assert group["spec"] == {"minMember": 2, "queue": "team-a", "priorityClassName": "high"}


def test_without_a_queue_pods_are_as_ever() -> None:
    made = pod(spec_of(), 0)
    assert "schedulerName" not in made["spec"]
    assert not any("kueue" in label or "volcano" in label for label in made["metadata"]["labels"])


def accepted(spec: ElasticJobSpec) -> tuple[str, str]:
    found = reconcile(seen(spec), 0.0).status.condition("Accepted")
    assert found is not None
    return found.status, found.message


def test_kueue_without_a_queue_is_refused() -> None:
    status, message = accepted(spec_of(runPolicy={"schedulingPolicy": {"scheduler": "Kueue"}}))
    assert status == "False"
    assert message.startswith("spec.runPolicy.schedulingPolicy.queue is empty; name the LocalQueue")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "/dev/shm has 64 MiB: give spec.sharedMemory"),
        ({"sharedMemory": "4Gi"}, "sharedMemory 4Gi counts as memory of the pod, which has 3Gi: raise limits.memory"),
        ({"sharedMemory": "1Gi"}, ""),
        ({"container": {**MAIN, "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}}, ""),
    ],
    ids=["none", "more than all memory", "fine", "the template's own"],
)
def test_shared_memory_that_is_too_small_or_too_large_is_told(given: dict[str, Any], told: str) -> None:
    status, message = accepted(spec_of(**given))
    assert status == "True"
    assert message.startswith(told)
    assert bool(message) == bool(told)
