"""The operator's decisions under stale watches, lost requests and replies, refused writes, and its own death.

The simulator must notice when a rule is missing: each mutant breaks one, and some seed finds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cluster_model import Cluster
from msgspec.structs import replace
from operator_schedule import Story

from outlast.k8s import reconcile as decisions
from outlast.k8s import slots
from outlast.k8s.execution import ApiReply, ApiRequest, Execution, carry_out
from outlast.k8s.observed import CoordinatorWord, PodFacts
from outlast.k8s.plan import JobObservation, Plan
from outlast.k8s.reconcile import PlanDraft, reconcile
from outlast.k8s.resource import WorkerSlot

SEEDS = 200
MUTANT_SEEDS = 600


def test_one_operator_never_runs_a_slot_twice_touches_no_healthy_pod_and_heals_everything() -> None:
    for seed in range(SEEDS):
        assert not (found := Story(seed).run()), f"seed {seed}: {found[0]}"


def test_two_operators_at_once_never_run_a_slot_twice_and_heal_what_they_do_to_each_other() -> None:
    for seed in range(SEEDS // 2):
        assert not (found := Story(seed, operators=2).run()), f"seed {seed}: {found[0]}"


def without_confirmation(plan: Plan, *args: Any, **named: Any) -> Execution:
    """Pods that were not seen are taken to be gone."""
    return carry_out(replace(plan, gone=()), *args, **named)


def actions_before_the_status(plan: Plan, job: Any, seen: JobObservation, **named: Any) -> Execution:
    yield from carry_out(replace(plan, status=seen.status), job, seen, **named)
    return (yield from carry_out(replace(plan, actions=()), job, seen, **named))


def changed(execute: Any, change: Callable[[ApiRequest], ApiRequest | ApiReply]) -> Any:
    """`change` gives another request, or the answer: then nobody is asked."""

    def mutant(*args: Any, **named: Any) -> Execution:
        execution = execute(*args, **named)
        reply: ApiReply | None = None
        while True:
            try:
                request = next(execution) if reply is None else execution.send(reply)
            except StopIteration as done:
                return done.value
            instead = change(request)
            reply = instead if isinstance(instead, ApiReply) else (yield instead)

    return mutant


def any_version(request: ApiRequest) -> ApiRequest:
    """The status is written whoever has written it meanwhile."""
    if request.method != "PUT" or request.body is None:
        return request
    meta = {key: value for key, value in request.body["metadata"].items() if key != "resourceVersion"}
    return replace(request, body={**request.body, "metadata": meta})


def without_reading(plan: Plan, job: Any, *args: Any, **named: Any) -> Execution:
    """Pods are created by a status that may be older than our own last write."""

    def stale(request: ApiRequest) -> ApiRequest | ApiReply:
        return ApiReply(200, job) if request.method == "GET" and "elasticjobs" in request.path else request

    return (yield from changed(carry_out, stale)(plan, job, *args, **named))


def test_a_pod_that_was_replaced_does_not_come_back_after_a_lost_reply() -> None:
    seed = 11626  # one of a few in ten thousand
    assert Story(seed, execute=without_reading).run()
    assert not Story(seed).run()


def forgetful(seen: JobObservation, now: float) -> Plan:
    """Slots of which no pod is seen are forgotten."""
    plan = reconcile(seen, now)
    numbers = {str(pod.slot) for pod in seen.pods}
    return replace(
        plan, status=replace(plan.status, slots={n: s for n, s in plan.status.slots.items() if n in numbers})
    )


def resurrecting(seen: JobObservation, now: float) -> Plan:
    """A job that has ended goes on."""
    return reconcile(replace(seen, status=replace(seen.status, phase="Running")), now)


@pytest.mark.parametrize(
    "mutant",
    [
        {"execute": without_confirmation},
        {"execute": actions_before_the_status},
        {"execute": changed(carry_out, any_version)},
        {"decide": forgetful},
        {"decide": resurrecting},
    ],
    ids=["gone unconfirmed", "status last", "any version", "forgetful", "resurrecting"],
)
def test_the_simulator_finds_a_mutant(mutant: dict[str, Any]) -> None:
    assert any(Story(seed, **mutant).run() for seed in range(MUTANT_SEEDS))


def always_fenced(*_: object) -> bool:
    return True


def lost_when_unknown(pod: PodFacts, word: CoordinatorWord, _: float) -> bool:
    return pod.name not in word.agents


def counted(slot: WorkerSlot) -> WorkerSlot:
    return replace(slot, life=slot.life + 1, uid="", failures=slot.failures + 1)


def admits_everybody(*_: object) -> bool:
    """The coordinator takes in two pods of one slot."""
    return False


def names_used_twice(*_: object) -> None:
    """A pod that is gone is created under the same name."""


@pytest.mark.parametrize(
    ("place", "name", "mutant"),
    [
        (slots, "fenced", always_fenced),
        (decisions, "lost", lost_when_unknown),
        (decisions, "next_life", counted),
        (PlanDraft, "_settle_absent", names_used_twice),
        (Cluster, "_refused", admits_everybody),
    ],
    ids=["always fenced", "lost when unknown", "deletions counted", "names used twice", "two in one slot"],
)
def test_the_simulator_finds_a_mutant_of_a_rule(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, mutant: Any
) -> None:
    monkeypatch.setattr(place, name, mutant)
    assert any(Story(seed, operators=1 + seed % 2).run() for seed in range(MUTANT_SEEDS))
