"""How often a job is tried again, what it is tried with, and which nodes are left out for a while."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outlast.core.job.inputs import Joined
from outlast.core.job.phase import Phase
from outlast.core.recovery.budget import Budget
from outlast.core.recovery.evictions import Evictions
from outlast.core.recovery.failures import root_first
from outlast.core.succession.authority import Memory
from outlast.events.events import JobOver, NodeExcluded
from outlast.protocol.failures import FailoverStrategy, ReportedCause
from outlast.protocol.generations import Start
from outlast.protocol.membership import Over, State
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Charter, Term
from rehearsal import GPU, IDLE, LOST, NO_CURE, UNKNOWN, failure, notes, published, running, sent

EXCEPTION = ReportedCause("exception", "ValueError", seen="ValueError: no such thing as /tmp/tmpqx")

# -- tries


def test_the_same_failure_without_progress_is_a_crash_loop_that_ends_with_its_first_and_last_evidence() -> None:
    job = running("a", crash_loop=3)
    for number in range(2):
        job.end(failure(cause=msgspec.structs.replace(UNKNOWN, seen=f"exit code 3 at 0x{number}f")))
        assert job.job.phase is Phase.RUNNING
    job.end(failure(cause=msgspec.structs.replace(UNKNOWN, seen="exit code 3 at 0x99f")))
    assert "a crash loop: the same failure 3 times without progress (--ft-crash-loop=3)" in job.reason
    assert "first in generation 1: exit code 3 at 0x0f" in job.reason
    assert job.job.outcome is not None
    assert [each.generation for each in job.job.outcome.tried] == [1, 2]


@pytest.mark.parametrize(
    "ends",
    [
        [{"step": 1}, {"step": 2}, {"step": 3}, {"step": 4}],
        [{"ran": 700.0}] * 4,
        [{}, {"cause": GPU}, {"cause": LOST}, {"cause": EXCEPTION}],
        [{}, {"step": 1}, {"step": 2}, {"step": 3, "cause": GPU}],
    ],
    ids=["a step of progress", "it ran for long", "other failures", "progress in between"],
)
def test_what_is_no_crash_loop_goes_on(ends: list[dict[str, Any]]) -> None:
    job = running("a", crash_loop=2)
    for each in ends:
        job.end(failure(**each))
        assert job.job.phase is Phase.RUNNING
    assert job.job.restarts == 4


def test_kills_in_between_do_not_hide_a_crash_loop() -> None:
    killed = ReportedCause("killed", "the process was killed")
    job = running("a", crash_loop=3)
    for cause in (EXCEPTION, killed, EXCEPTION, killed):
        job.end(failure(cause=cause))
        assert job.job.phase is Phase.RUNNING
    job.end(failure(cause=EXCEPTION))
    assert "a crash loop: the same failure 3 times without progress" in job.reason


def test_an_exception_is_the_same_whatever_its_text_says() -> None:
    job = running("a", crash_loop=2)
    job.end(failure(cause=EXCEPTION))
    job.end(failure(cause=msgspec.structs.replace(EXCEPTION, seen="ValueError: no such thing as /tmp/tmpzy")))
    assert "a crash loop" in job.reason


def test_a_step_that_was_made_before_is_no_progress() -> None:
    job = running("a", crash_loop=2)
    job.end(failure(step=9))
    job.end(failure(step=9))
    assert "a crash loop" in job.reason


def test_what_no_retry_can_help_gets_one() -> None:
    job = running("a")
    job.end(failure(cause=NO_CURE))
    assert job.job.phase is Phase.RUNNING
    job.end(failure(cause=NO_CURE))
    assert "a file is missing (missing-file), and a retry has not helped" in job.reason


def test_max_restarts_counts_as_it_always_did_and_without_failover_nothing_else_does() -> None:
    job = running("a", max_restarts=2)
    for _ in range(3):
        job.end(failure(cause=LOST))
    assert "2 restarts did not help (--max-restarts=2)" in job.reason
    job = running("a", failover=False, crash_loop=2, max_restarts=7)
    for _ in range(7):
        job.end(failure(cause=NO_CURE, strategy=FailoverStrategy.ABORTION))
    assert job.job.restarts == 7


def test_what_was_tried_is_known_to_a_coordinator_that_was_killed() -> None:
    job = running("a", crash_loop=3)
    job.end(failure())
    memory = msgspec.msgpack.decode(job.memory, type=Memory)
    assert len(memory.ledger.tried) == 1
    budget = Budget(job.rules, memory.ledger.tried)
    assert budget.spent([failure()], 1) == ""
    budget.note([failure()], 2, "restart")
    assert "a crash loop" in budget.spent([failure()], 2)


def test_a_coordinator_on_another_host_knows_it_too_by_a_clock_of_its_own() -> None:
    job = running("a", "b", "c", crash_loop=3, exclude_for=100.0)
    job.end(failure(node="b", rank=1, cause=GPU, strategy=FailoverStrategy.NODE))
    assert job.members == ["a", "c"]
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(job.heard["c"].charter), type=Charter)
    job.succeed("c", 2, now=5000.0, charter=told)
    for node in ("b", "c", "a"):
        again = msgspec.structs.replace(job.reports[node], seq=job.reports[node].seq + 1)
        job.reports[node] = again
        charter = job.heard[node].charter if node != "b" else None
        known = {"charter": charter, "nnodes": (1, 3), "connection": 2, "term": Term(1, "a")}
        job.handle(Joined(job.request(node, again, **known)), 5000.0)
    job.beat("a", "b", "c", now=5000.1)
    job.tell("leases end", now=5004.0)
    job.beat("a", "b", "c", now=5004.1)
    job.tell("b is still left out", now=5090.0)
    assert (job.job.spares, len(job.job.memory().ledger.tried)) == (0, 1)
    job.beat("a", "b", "c", now=5099.0)
    job.tell("b is let back", now=5101.0)
    assert job.job.spares == 1


@pytest.mark.parametrize(
    ("failures", "rules", "final"),
    [
        pytest.param([{}], {"max_restarts": 0}, False, id="no restart is allowed"),
        pytest.param([{"cause": NO_CURE}], {"max_restarts": 0}, False, id="nothing was tried"),
        pytest.param([{"cause": NO_CURE}] * 2, {}, True, id="a retry has not helped"),
        pytest.param([{}] * 3, {"crash_loop": 3}, True, id="a crash loop"),
        pytest.param([{"cause": GPU}] * 3, {"crash_loop": 3}, False, id="a crash loop that other nodes may cure"),
        pytest.param([{"strategy": FailoverStrategy.ABORTION}], {}, True, id="abortion"),
        pytest.param(
            [{"strategy": FailoverStrategy.ABORTION}], {"failover": False, "max_restarts": 0}, False, id="no failover"
        ),
    ],
)
def test_a_job_that_would_fail_again_says_so(
    failures: list[dict[str, Any]], rules: dict[str, Any], final: bool
) -> None:
    job = running("a", **rules)
    for each in failures:
        job.end(failure(**each))
    assert job.job.outcome is not None
    assert job.job.outcome.final is final


# -- strategies


def test_abortion_ends_the_job_with_the_reason_and_who_decided() -> None:
    job = running("a", "b")
    commands = job.end(failure(node="b", rank=1, cause=GPU, strategy=FailoverStrategy.ABORTION, decided="rule 2"))
    assert job.reason == (
        "rank 1 on node b failed (exit code 1): the GPU is gone (gpu-lost); no restart, for it could not help (rule 2)"
    )
    assert [each.failure.cause for each in published(commands, JobOver)] == ["gpu-lost"]


def test_global_starts_everything_anew_and_the_next_restart_does_not() -> None:
    job = running("a", "b")
    job.end(failure(strategy=FailoverStrategy.GLOBAL))
    assert all(place.fresh for place in job.job.roster.values())
    job.end(failure(cause=LOST))
    assert not any(place.fresh for place in job.job.roster.values())


def test_a_faulty_node_goes_a_spare_comes_in_and_it_is_let_back_later() -> None:
    job = running("a", "b", max_nodes=2, exclude_for=100.0)
    job.join("c", now=job.now)
    commands = job.end(failure(node="b", rank=1, cause=GPU, strategy=FailoverStrategy.NODE))
    assert "without node b for 100 s: the GPU is gone" in notes(commands)
    assert [(each.node, each.why) for each in published(commands, NodeExcluded)] == [("b", "the GPU is gone")]
    assert job.members == ["a", "c"]
    assert job.job.spares == 0
    job.beat("a", "b", "c", now=job.now + 50)
    assert job.job.spares == 0
    job.beat("a", "b", "c", now=job.now + 100.5)
    job.beat("a", "b", "c", now=job.now + 100.6)
    job.tell("b is let back", now=job.now + 101)
    assert job.job.spares == 1


def test_a_new_life_of_a_faulty_node_is_left_out_as_well() -> None:
    job = running("a", "b", max_nodes=2, min_nodes=1)
    job.end(failure(node="b", rank=1, cause=GPU, strategy=FailoverStrategy.NODE))
    assert job.members == ["a"]
    again = job.request("b2", msgspec.structs.replace(IDLE, seq=1), nnodes=(1, 2), name="b")
    job.handle(Joined(again), job.now)
    assert job.job.spares == 0


def test_nobody_is_left_out_below_min_or_beyond_the_limit() -> None:
    job = running("a", "b", min_nodes=2, max_nodes=2)
    commands = job.end(failure(node="b", rank=1, cause=GPU, strategy=FailoverStrategy.NODE))
    assert "node b stays, for without it there are fewer than 2: the GPU is gone" in notes(commands)
    assert job.members == ["a", "b"]
    job = running("a", "b", "c", eviction_limit=1)
    job.end(failure(node="c", rank=2, cause=GPU, strategy=FailoverStrategy.NODE))
    commands = job.end(failure(node="b", rank=1, cause=GPU, strategy=FailoverStrategy.NODE, step=7))
    assert "node b stays, for enough have gone within an hour" in notes(commands)
    assert job.members == ["a", "b"]


def test_a_node_that_fails_again_and_again_without_progress_goes_though_its_cause_does_not_say_so() -> None:
    job = running("a", "b", "c", crash_loop=0)
    killed = ReportedCause("killed", "the process was killed", domain="platform")
    for _ in range(3):
        job.end(failure(node="b", rank=1, cause=killed))
    assert job.members == ["a", "c"]


def test_what_is_the_scripts_fault_is_no_nodes_fault() -> None:
    job = running("a", "b", "c", crash_loop=0)
    for _ in range(4):
        job.end(failure(node="b", rank=1))
    assert job.members == ["a", "b", "c"]


def test_on_probation_one_failure_is_enough_and_it_goes_for_twice_as_long() -> None:
    rules = Rules(job="j", entrypoint="e", min_nodes=1, max_nodes=2, failover=True, exclude_for=100.0)
    budget, evictions = Budget(rules), Evictions(rules)
    assert evictions.leave_out("b", "the GPU is gone", now=0.0) == 100.0
    killed = [failure(node="b", cause=GPU)]
    assert "on probation, after the GPU is gone" in budget.blamed(killed, evictions.probation("b", now=150.0))
    assert budget.blamed(killed, evictions.probation("b", now=201.0)) == ""
    assert evictions.leave_out("b", "again", now=150.0) == 200.0
    assert evictions.settle(349.0) == (set(), set())
    assert evictions.settle(350.0) == ({"b"}, set())
    again = Evictions(rules)
    again.recall(evictions.bans, 349.0)
    assert again.is_out("b")


# -- which one


def test_the_root_is_the_first_by_aligned_time_that_is_nobodys_consequence() -> None:
    job = running("a", "b")
    job.reports["b"] = msgspec.structs.replace(job.reports["b"], sent=0.0)
    # Node b's clock is 1000 s ahead. Its failure was the earlier one, though it is told later.
    at_b = failure(node="b", rank=1, cause=GPU, clock=1000.0 + job.now)
    at_a = failure(node="a", rank=0, cause=UNKNOWN, clock=job.now + 0.05)
    job.run("a", "b", now=job.now)
    job.say("a", now=job.now + 0.1, state=State.FAILED, failures=(at_a,), sent=job.now + 0.1)
    job.say("b", now=job.now + 0.2, state=State.FAILED, failures=(at_b,), sent=1000.0 + job.now + 0.2)
    commands = job.clear("a", "b", now=job.now + 0.3)
    assert "rank 1 on node b failed" in notes(commands)


def test_a_consequence_is_the_root_only_where_there_is_nothing_else() -> None:
    early, late = failure(rank=0, cause=LOST, clock=1.0), failure(rank=1, cause=GPU, clock=2.0)
    assert root_first([early, late]) == [late, early]
    assert root_first([early])[0] is early


def test_nothing_is_decided_before_the_extension_has() -> None:
    job = running("a", "b")
    waits = failure(node="b", rank=1, cause=GPU, pending=True)
    commands = job.end(waits)
    assert job.job.phase is Phase.STOPPING
    assert not sent(commands, Start)
    decided = msgspec.structs.replace(waits, pending=False, strategy=FailoverStrategy.ABORTION, decided="by mine")
    commands = job.say("b", now=job.now, failures=(decided,))
    assert sent(commands, Over)
    assert "by mine" in job.reason
