"""What the operator does about a job: one decision, one test. Schedules of many are in the simulation."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from outlast.k8s.observed import ContainerExit, CoordinatorWord, GoneAgent, JobOutcome, NodeFacts, PodFacts, Refusal
from outlast.k8s.plan import (
    CreatePod,
    DeleteJob,
    DeletePod,
    EnsureSecret,
    EnsureService,
    JobObservation,
    MarkNode,
    Plan,
    UnmarkNode,
)
from outlast.k8s.quantities import stamp
from outlast.k8s.reconcile import reconcile
from outlast.k8s.rendering import JobIdentity
from outlast.k8s.resource import ElasticJobSpec, ElasticJobStatus, ExcludedNode, WorkerSlot

NOW = 1_000_000.0
JOB = JobIdentity("mnist", "team", "uid-of-mnist")
CONTAINER = {"name": "main", "image": "x", "resources": {"limits": {"memory": "3Gi"}}}


def spec_of(replicas: int = 2, **more: Any) -> ElasticJobSpec:
    more = {"drain": {"disruptionBudget": False}, **more}  # tests/unit/k8s/test_bounds.py has those
    worker = {"replicas": replicas, "template": {"spec": {"containers": [CONTAINER]}}, **more.pop("worker", {})}
    return msgspec.convert({"replicaSpecs": {"worker": worker}, **more}, ElasticJobSpec)


def pod(slot: int, life: int = 0, **more: Any) -> PodFacts:
    facts = {"phase": "Running", "node": f"node-{slot}", "ip": f"10.0.0.{slot + 1}", "memory": "3Gi", **more}
    return PodFacts(name=f"mnist-worker-{slot}-{life}", uid=f"uid-{slot}-{life}", slot=slot, life=life, **facts)


def ended(slot: int, code: int, life: int = 0, reason: str = "Error", message: str = "", **more: Any) -> PodFacts:
    return pod(
        slot, life, phase="Succeeded" if code == 0 else "Failed", exit=ContainerExit(code, reason, message), **more
    )


def deleting(slot: int, life: int = 0, **more: Any) -> PodFacts:
    return pod(slot, life, deleting=True, deleted_at=NOW - 10, killed_at=NOW + 20, **more)


def slots(*given: WorkerSlot) -> ElasticJobStatus:
    return ElasticJobStatus(slots={str(number): slot for number, slot in enumerate(given)}, phase="Running")


def seen(spec: ElasticJobSpec, *pods: PodFacts, **more: Any) -> JobObservation:
    facts = {"service_ip": "10.96.0.7", "has_secret": True, **more}
    return JobObservation(job=JOB, spec=spec, pods=pods, **facts)


def created(plan: Plan) -> list[tuple[int, int]]:
    return [(each.order.slot, each.order.life) for each in plan.actions if isinstance(each, CreatePod)]


def deleted(plan: Plan) -> list[str]:
    return [each.name for each in plan.actions if isinstance(each, DeletePod)]


def message(plan: Plan, kind: str) -> str:
    found = plan.status.condition(kind)
    assert found is not None
    assert found.status == "True" or kind == "Accepted"
    return found.message


def test_a_secret_and_a_service_come_before_the_first_pod() -> None:
    plan = reconcile(seen(spec_of(), service_ip="", has_secret=False), NOW)
    assert plan.actions == (EnsureSecret(), EnsureService())
    assert plan.status.phase == "Pending"


def test_a_new_job_gets_its_pods_and_the_first_hosts_the_coordinator() -> None:
    plan = reconcile(seen(spec_of(3)), NOW)
    assert created(plan) == [(0, 0), (1, 0), (2, 0)]
    assert [each.order.host for each in plan.actions if isinstance(each, CreatePod)] == [True, False, False]


def test_a_job_that_is_well_is_left_alone() -> None:
    first = reconcile(seen(spec_of(), pod(0), pod(1)), NOW)
    again = reconcile(seen(spec_of(), pod(0), pod(1), status=first.status), NOW + 100)
    assert (again.status, again.actions, again.wake) == (first.status, (), None)
    assert first.status.nodes == "2/2:2"


def test_a_job_that_trains_is_looked_at_for_its_step_though_nothing_else_happens() -> None:
    word = CoordinatorWord(at=NOW, generation=1, step=7, agents=frozenset({"mnist-worker-0-0", "mnist-worker-1-0"}))
    first = reconcile(seen(spec_of(), pod(0), pod(1), word=word), NOW)
    assert (first.status.step, first.wake) == (7, NOW + 60)
    later = reconcile(seen(spec_of(), pod(0), pod(1), word=replace(word, step=90), status=first.status), NOW + 60)
    assert later.status.step == 90
    assert later.wake == NOW + 120


def test_a_replacement_gets_the_addresses_of_those_that_run_and_does_not_host() -> None:
    status = replace(slots(WorkerSlot(life=0, uid="uid-0-0"), WorkerSlot()), generation=4)
    plan = reconcile(seen(spec_of(), ended(0, 1), pod(1), status=status), NOW)
    later = reconcile(seen(spec_of(), ended(0, 1), pod(1), status=plan.status), NOW + 60)
    (order,) = [each.order for each in later.actions if isinstance(each, CreatePod)]
    assert (order.slot, order.life, order.peers, order.host) == (0, 1, ("10.0.0.2",), False)


def test_a_failed_pod_is_counted_and_its_replacement_waits() -> None:
    plan = reconcile(seen(spec_of(), ended(0, 1), pod(1)), NOW)
    assert plan.status.slots["0"].failures == 1
    assert plan.status.slots["0"].life == 1
    assert created(plan) == []
    assert plan.wake == NOW + 10
    assert "after 1 failures" in message(plan, "Degraded")


def test_too_many_failures_end_the_job_with_the_cause() -> None:
    status = slots(WorkerSlot(life=3, failures=3), WorkerSlot())
    plan = reconcile(seen(spec_of(), ended(0, 7, life=3), pod(1), status=status), NOW)
    assert plan.status.phase == "Failed"
    assert message(plan, "Failed") == ("slot 0 has failed 4 times, restartCount allows 3; the last time: exit code 7")
    assert deleted(plan) == ["mnist-worker-1-0"]


def test_deletion_of_pods_resets_no_budget() -> None:
    status = slots(WorkerSlot(life=3, failures=3, uid="u"), WorkerSlot())
    plan = reconcile(seen(spec_of(), pod(1), status=status), NOW)
    assert plan.status.slots["0"].failures == 3
    assert plan.gone == ("mnist-worker-0-3",)


@pytest.mark.parametrize("how", [{"disrupted": "Evicted"}, {"disrupted": "PreemptionByScheduler"}])
def test_what_the_platform_ends_is_not_counted(how: dict[str, Any]) -> None:
    plan = reconcile(seen(spec_of(), ended(0, 143, **how), pod(1)), NOW)
    assert plan.status.slots["0"] == WorkerSlot(life=1)
    assert created(plan) == [(0, 1)]


def test_a_deleted_pod_is_replaced_when_it_has_ended() -> None:
    assert created(reconcile(seen(spec_of(), deleting(0), pod(1)), NOW)) == []
    over = deleting(0, phase="Failed", exit=ContainerExit(1))
    assert created(reconcile(seen(spec_of(), over, pod(1)), NOW)) == [(0, 1)]


def test_a_pod_that_hangs_in_terminating_is_replaced_when_the_coordinator_has_fenced_it() -> None:
    agent = "mnist-worker-0-0"
    alive = CoordinatorWord(at=NOW, agents=frozenset({agent}))
    gone = CoordinatorWord(at=NOW, gone={agent: GoneAgent(NOW - 1, silent=True)})
    old = replace(gone, at=NOW - 11)
    minority = replace(gone, acting=False)
    for word in (None, alive, old, minority):
        assert created(reconcile(seen(spec_of(), deleting(0), pod(1), word=word), NOW)) == []
    plan = reconcile(seen(spec_of(), deleting(0), pod(1), word=gone), NOW)
    assert created(plan) == [(0, 1)]
    assert message(plan, "Fenced").startswith("mnist-worker-0-0 replaced while Terminating")
    assert [each.order.avoid for each in plan.actions if isinstance(each, CreatePod)] == [("node-0",)]


def test_a_pod_that_left_in_order_leaves_its_node_to_its_replacement() -> None:
    left = CoordinatorWord(at=NOW, gone={"mnist-worker-0-0": GoneAgent(NOW - 1)})
    plan = reconcile(seen(spec_of(), deleting(0), pod(1), word=left), NOW)
    assert [each.order.avoid for each in plan.actions if isinstance(each, CreatePod)] == [()]


def test_a_pod_that_waits_for_room_and_avoids_a_node_that_is_well_again_is_created_anew() -> None:
    waiting = pod(0, 1, phase="Pending", node="", avoids=frozenset({"node-0"}))
    status = slots(WorkerSlot(life=1), WorkerSlot())
    assert deleted(reconcile(seen(spec_of(), deleting(0), waiting, pod(1), status=status), NOW)) == []
    assert deleted(reconcile(seen(spec_of(), waiting, pod(1), status=status), NOW)) == ["mnist-worker-0-1"]
    placed = replace(waiting, node="node-2")
    assert deleted(reconcile(seen(spec_of(), placed, pod(1), status=status), NOW)) == []


def test_a_pod_whose_agent_fell_silent_is_deleted_at_once_and_one_whose_agent_ended_is_waited_for() -> None:
    silent = CoordinatorWord(at=NOW, gone={"mnist-worker-0-0": GoneAgent(NOW - 1, silent=True)})
    plan = reconcile(seen(spec_of(), pod(0), pod(1), word=silent), NOW)
    assert deleted(plan) == ["mnist-worker-0-0"]
    closed = CoordinatorWord(at=NOW, gone={"mnist-worker-0-0": GoneAgent(NOW - 1)})
    plan = reconcile(seen(spec_of(), pod(0), pod(1), word=closed), NOW)
    assert (deleted(plan), plan.wake) == ([], NOW + 29)


def test_a_pod_that_is_gone_by_force_is_replaced_when_its_agent_is_gone_too() -> None:
    status = slots(WorkerSlot(uid="u"), WorkerSlot())
    word = CoordinatorWord(at=NOW, agents=frozenset({"mnist-worker-0-0"}))
    assert created(reconcile(seen(spec_of(), pod(1), status=status, word=word), NOW)) == []
    word = CoordinatorWord(at=NOW, gone={"mnist-worker-0-0": GoneAgent(NOW)})
    plan = reconcile(seen(spec_of(), pod(1), status=status, word=word), NOW)
    assert (created(plan), plan.gone) == ([(0, 1)], ("mnist-worker-0-0",))


@pytest.mark.parametrize("code", [14, 128, 201, 202])
def test_exit_codes_of_faulty_nodes_exclude_the_node_and_are_not_counted(code: int) -> None:
    plan = reconcile(seen(spec_of(), ended(0, code), pod(1)), NOW)
    (excluded,) = plan.status.excluded_nodes
    assert (excluded.name, excluded.cause, excluded.until) == ("node-0", f"exit code {code}", stamp(NOW + 1800))
    (order,) = [each.order for each in plan.actions if isinstance(each, CreatePod)]
    assert (order.life, order.avoid) == (1, ("node-0",))
    assert plan.status.slots["0"].failures == 0


def test_a_node_that_is_faulty_again_is_excluded_for_twice_as_long() -> None:
    before = ExcludedNode(name="node-0", cause="x", until=stamp(NOW - 10), times=1, since=stamp(NOW - 5000))
    status = replace(slots(WorkerSlot(), WorkerSlot()), excluded_nodes=(before,))
    plan = reconcile(seen(spec_of(), ended(0, 14), pod(1), status=status), NOW)
    assert [(each.times, each.until) for each in plan.status.excluded_nodes] == [(2, stamp(NOW + 3600))]


def test_no_node_is_excluded_when_too_few_would_be_left_and_the_failure_counts() -> None:
    nodes = tuple(NodeFacts(name=f"node-{number}") for number in range(2))
    plan = reconcile(seen(spec_of(), ended(0, 14), pod(1), nodes=nodes), NOW)
    assert plan.status.excluded_nodes == ()
    assert plan.status.slots["0"].failures == 1


def test_the_limit_of_excluded_nodes_holds() -> None:
    excluded = tuple(
        ExcludedNode(name=f"n{n}", cause="x", until=stamp(NOW + 9), since=stamp(NOW - 9)) for n in range(3)
    )
    status = replace(slots(WorkerSlot(), WorkerSlot()), excluded_nodes=excluded)
    plan = reconcile(seen(spec_of(), ended(0, 14), pod(1), status=status), NOW)
    assert len(plan.status.excluded_nodes) == 3
    assert plan.status.slots["0"].failures == 1


def test_a_node_that_the_coordinator_excludes_loses_its_pod() -> None:
    word = CoordinatorWord(at=NOW, agents=frozenset({"mnist-worker-0-0"}), excluded={"mnist-worker-0-0": "straggler"})
    plan = reconcile(seen(spec_of(), pod(0), pod(1), word=word), NOW)
    assert deleted(plan) == ["mnist-worker-0-0"]
    assert plan.status.excluded_nodes[0].cause == "straggler"


def test_taint_and_cordon_are_asked_for_and_only_ours_are_lifted() -> None:
    spec = spec_of(1, faultyNodes={"action": "Taint"})
    excluded = ExcludedNode(name="bad", cause="x", until=stamp(NOW + 9), since=stamp(NOW))
    nodes = (
        NodeFacts(name="bad"),
        NodeFacts(name="healed", marked_by="team/mnist/uid-of-mnist", tainted=True, unschedulable=True),
        NodeFacts(name="healed-cordon", marked_by="team/mnist/uid-of-mnist", unschedulable=True),
        NodeFacts(name="of-others", marked_by="team/other/uid"),
        NodeFacts(name="cordoned-by-hand", unschedulable=True),
    )
    status = replace(slots(WorkerSlot()), excluded_nodes=(excluded,))
    plan = reconcile(seen(spec, pod(0), nodes=nodes, status=status), NOW)
    assert plan.actions == (
        MarkNode("bad", "Taint"),
        UnmarkNode("healed", "Taint"),
        UnmarkNode("healed-cordon", "Cordon"),
    )


def test_out_of_memory_doubles_the_memory_up_to_the_limits() -> None:
    killed = ended(0, 137, reason="OOMKilled")
    plan = reconcile(seen(spec_of(), killed, pod(1)), NOW)
    assert plan.status.slots["0"] == WorkerSlot(life=1, memory="6Gi")
    assert [each.order.memory for each in plan.actions if isinstance(each, CreatePod)] == ["6Gi"]
    assert plan.status.last_fault.action == "GrowMemory"  # type: ignore[union-attr]
    largest = ended(0, 137, reason="OOMKilled", memory="64Gi")
    plan = reconcile(seen(spec_of(), largest, pod(1)), NOW)
    assert plan.status.slots["0"].failures == 1


def test_scaling_down_drains_the_highest_slots_and_scaling_up_brings_them_back_uncounted() -> None:
    bounds = {"minReplicas": 1, "maxReplicas": 3}
    plan = reconcile(seen(spec_of(1, elasticPolicy=bounds), pod(0), pod(1), pod(2)), NOW)
    assert deleted(plan) == ["mnist-worker-1-0", "mnist-worker-2-0"]
    over = deleting(1, phase="Failed", exit=ContainerExit(1))
    plan = reconcile(seen(spec_of(1, elasticPolicy=bounds), pod(0), over, status=plan.status), NOW)
    plan = reconcile(seen(spec_of(3, elasticPolicy=bounds), pod(0), status=plan.status), NOW)
    assert created(plan) == [(1, 1), (2, 1)]
    assert sum(slot.failures for slot in plan.status.slots.values()) == 0


def test_spares_are_added_only_beyond_the_most_that_can_train() -> None:
    bounds = {"minReplicas": 1, "maxReplicas": 3}
    assert len(created(reconcile(seen(spec_of(2, spares=1, elasticPolicy=bounds)), NOW))) == 2
    assert len(created(reconcile(seen(spec_of(3, spares=1, elasticPolicy=bounds)), NOW))) == 4


def test_suspend_deletes_all_pods_and_resume_creates_them_again() -> None:
    plan = reconcile(seen(spec_of(suspend=True), pod(0), pod(1)), NOW)
    assert plan.status.phase == "Suspended"
    assert len(deleted(plan)) == 2
    plan = reconcile(seen(spec_of(), status=plan.status), NOW)
    assert created(plan) == [(0, 1), (1, 1)]
    found = plan.status.condition("Suspended")
    assert found is not None
    assert found.status == "False"


def test_an_agent_that_ends_with_0_says_that_the_job_succeeded() -> None:
    plan = reconcile(seen(spec_of(), ended(0, 0), pod(1)), NOW)
    assert plan.status.phase == "Succeeded"
    assert (deleted(plan), plan.wake) == ([], NOW + 60)
    later = reconcile(seen(spec_of(), ended(0, 0), pod(1), status=plan.status), NOW + 60)
    assert deleted(later) == ["mnist-worker-1-0"]


@pytest.mark.parametrize(
    "pods", [ended(0, 93), ended(0, 1, message='{"stopped": "3 restarts, no more allowed", "first'), None]
)
def test_a_job_that_failed_for_good_is_not_tried_again(pods: PodFacts | None) -> None:
    word = CoordinatorWord(at=NOW, outcome=JobOutcome(False, "3 restarts, no more allowed")) if pods is None else None
    plan = reconcile(seen(spec_of(), *([pods] if pods else []), pod(1), word=word), NOW)
    assert plan.status.phase == "Failed"
    assert created(reconcile(seen(spec_of(), status=plan.status), NOW + 999)) == []


def test_a_job_that_is_over_goes_after_its_time_to_live() -> None:
    spec = spec_of(runPolicy={"ttlSecondsAfterFinished": 100, "cleanPodPolicy": "All"})
    plan = reconcile(seen(spec, ended(0, 0), pod(1)), NOW)
    assert deleted(plan) == ["mnist-worker-0-0"]
    assert DeleteJob() not in plan.actions
    assert DeleteJob() in reconcile(seen(spec, status=plan.status), NOW + 100).actions


def test_a_deadline_ends_the_job() -> None:
    spec = spec_of(runPolicy={"activeDeadlineSeconds": 60})
    plan = reconcile(seen(spec, pod(0), pod(1)), NOW)
    assert plan.wake == NOW + 60
    plan = reconcile(seen(spec, pod(0), pod(1), status=plan.status), NOW + 60)
    assert message(plan, "Failed").startswith("the job has not ended after")


def test_an_exceeded_quota_is_a_condition_and_waits_longer_each_time() -> None:
    refusal = Refusal(NOW, 3, "QuotaExceeded", "exceeded quota: gpus")
    plan = reconcile(seen(spec_of(), pod(0), refusals={1: refusal}), NOW)
    assert (created(plan), plan.wake) == ([], NOW + 40)
    assert message(plan, "QuotaExceeded") == "exceeded quota: gpus"
    assert created(reconcile(seen(spec_of(), pod(0), refusals={1: refusal}), NOW + 40)) == [(1, 0)]


def test_what_was_replaced_and_still_runs_is_deleted() -> None:
    plan = reconcile(seen(spec_of(), pod(0), pod(0, 1), pod(1), status=slots(WorkerSlot(life=1), WorkerSlot())), NOW)
    assert deleted(plan) == ["mnist-worker-0-0"]


def test_a_status_older_than_the_pods_decides_nothing_about_them() -> None:
    plan = reconcile(seen(spec_of(), pod(0, 2), pod(1), status=slots(WorkerSlot(life=1), WorkerSlot())), NOW)
    assert plan.actions == ()


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (spec_of(3, elasticPolicy={"minReplicas": 4, "maxReplicas": 2}), "minReplicas 4 is more than maxReplicas 2"),
        (spec_of(worker={"template": {"spec": {"containers": []}}}), "containers is empty"),
        (spec_of(worker={"template": {}}), "containers is empty"),
        (
            spec_of(config={"node_timout": 3}),
            "Outlast has no such setting; did you mean node_timeout?",
        ),
        (spec_of(config={"node_timeout": "soon"}), "OUTLAST_NODE_TIMEOUT"),
        (spec_of(config={"token": "x"}), "set by the operator"),
        (spec_of(3, elasticPolicy={"minReplicas": 3, "nodeUnit": 2}), "no multiple of 2"),
        (spec_of(nprocPerNode="many"), "nprocPerNode"),
    ],
)
def test_a_job_that_makes_no_sense_is_not_accepted_and_touches_no_pod(spec: ElasticJobSpec, told: str) -> None:
    plan = reconcile(seen(spec, pod(0)), NOW)
    accepted = plan.status.condition("Accepted")
    assert accepted is not None
    assert accepted.status == "False"
    assert told in accepted.message
    assert plan.actions == ()


def test_replicas_beyond_the_bounds_are_clamped_and_said() -> None:
    plan = reconcile(seen(spec_of(9, elasticPolicy={"minReplicas": 1, "maxReplicas": 3})), NOW)
    assert len(created(plan)) == 3
    assert message(plan, "Accepted") == "replicas is 9, more than maxReplicas: 3 are used"


def test_progress_is_written_at_most_every_15_seconds_unless_the_generation_changes() -> None:
    first = reconcile(seen(spec_of(), pod(0), pod(1), word=CoordinatorWord(at=NOW, generation=1, step=5)), NOW).status
    word = CoordinatorWord(at=NOW + 5, generation=1, step=9)
    assert reconcile(seen(spec_of(), pod(0), pod(1), status=first, word=word), NOW + 5).status == first
    assert reconcile(seen(spec_of(), pod(0), pod(1), status=first, word=word), NOW + 15).status.step == 9
    word = replace(word, generation=2)
    assert reconcile(seen(spec_of(), pod(0), pod(1), status=first, word=word), NOW + 5).status.generation == 2
