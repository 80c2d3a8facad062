"""What the ledger says of the faults that jobs meet, second by second."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from ledgers import At
from outlast.events import events, reasons
from outlast.events.events import JobEvent
from outlast.ledger.states import LedgerState
from outlast.ledger.summary import LedgerSummary, cause_of, ledger, summarize


def story(*told: tuple[float, JobEvent], until: float | None = None, price: float | None = None) -> LedgerSummary:
    return summarize(ledger([At(1e9 + time, event) for time, event in told], until=until and 1e9 + until), price=price)


def formed(generation: int = 1, nodes: tuple[str, ...] = ("a", "b"), **more: int) -> JobEvent:
    fields = {"ranks": len(nodes), "spares": 0, "restarts": generation - 1, **more}
    return events.GenerationFormed(generation=generation, nodes=nodes, **fields)


def joined(node: str) -> JobEvent:
    return events.NodeJoined(generation=0, node=node, workers=1)


def over(generation: int, *, success: bool = True) -> JobEvent:
    ending = events.Ending.FINISHED if success else events.Ending.FAILED
    return events.JobOver(
        generation=generation,
        success=success,
        ending=ending,
        reason="",
        seconds=0.0,
        generations=generation,
        restarts=0,
    )


BEGAN = (0.0, events.JobBegan(generation=0, least=2, most=2))
START = (BEGAN, (0.0, joined("a")), (2.0, joined("b")), (5.0, formed()))
TRAINS = (*START, (10.0, events.TrainingBegan(generation=1, step=1, restore=1.0)))
FAILED = reasons.FailedRank("b", 1, 1, cause="out-of-memory")


def test_a_job_without_a_fault() -> None:
    told = story(*TRAINS, (110.0, over(1)))
    assert told.time == {
        "provisioning": 2.0,
        "forming": 3.0,
        "starting": 4.0,
        "restoring": 1.0,
        "productive": 100.0,
    }
    assert told.goodput == pytest.approx(100 / 110)
    assert (told.failures, told.mtbf, told.known) == (0, None, 1.0)


def crash(*, first: int | None = 41, ago: float = 0.5) -> LedgerSummary:
    return story(
        *TRAINS,
        (60.5, events.GenerationEnding(generation=1, reason=FAILED, ago=ago)),
        (61.0, events.WorkersGone(generation=1, step=50, ago=1.2)),
        (61.0, events.WorkerFailed(generation=1, failure=FAILED, followers=0, ago=1.0)),
        (61.1, formed(2)),
        (63.1, events.TrainingBegan(generation=2, step=first)),
        (100.0, over(2)),
        price=3600.0,
    )


def test_a_crash_costs_from_its_instant_to_the_first_step_after_it() -> None:
    told = crash(first=51)
    (cost,) = told.faults
    assert cost.states == pytest.approx({"detecting": 0.5, "stopping": 0.5, "forming": 0.1, "starting": 2.0}, abs=1e-6)
    assert (cost.fault.cause, cost.fault.place, cost.fault.recovered) == ("out-of-memory", "rank 1 on b", True)
    assert told.mttr["out-of-memory"].mean_seconds == pytest.approx(3.1)
    assert cost.cost == pytest.approx(2 * 3.1)  # two nodes, at one a second
    assert told.time["productive"] == pytest.approx(50 + 36.9)


def test_the_root_may_have_failed_before_the_failure_that_was_heard_of_first() -> None:
    told = story(
        *TRAINS,
        (60.0, events.GenerationEnding(generation=1, reason=reasons.FailedRank("a", 0, 1), ago=0.1)),
        (60.5, events.WorkersGone(generation=1, step=50, ago=0.9)),
        (60.5, events.WorkerFailed(generation=1, failure=FAILED, followers=1, ago=0.8)),
        (60.5, formed(2)),
    )
    (cost,) = told.faults
    assert cost.states["detecting"] == pytest.approx(0.3, abs=1e-6)
    assert cost.fault.place == "rank 1 on b"


def test_steps_that_are_made_again_are_redone_and_no_longer_productive() -> None:
    told = crash(first=41)
    (cost,) = told.faults
    # 49 steps in the 49.8 s from the first to the last: the last ten of them, and the step that was never finished.
    assert cost.fault.steps_lost == told.steps_lost == 10
    assert cost.states["redone"] == pytest.approx(10 * 49.8 / 49 + 0.2, abs=0.01)
    assert sum(told.time.values()) == pytest.approx(told.wall, abs=1e-9)


def test_a_script_that_counts_anew_redoes_nothing_that_is_known() -> None:
    assert "redone" not in crash(first=None).time


def test_a_hang_is_hung_since_the_rank_last_moved() -> None:
    hung = reasons.FailedRank("b", 1, -9, hung="it made no step for 30 s")
    named = events.HangNamed(
        generation=1, ranks=(1,), nodes=("b",), kind="data loader", where="", sentence="rank 1 is in its data loader"
    )
    told = story(
        *TRAINS,
        (70.0, named),
        (70.2, events.GenerationEnding(generation=1, reason=hung, ago=30.2)),
        (70.3, events.WorkersGone(generation=1, step=30, ago=30.3)),
        (70.4, formed(2)),
        (72.4, events.TrainingBegan(generation=2, step=31)),
        (80.0, over(2)),
    )
    (cost,) = told.faults
    assert cost.states == pytest.approx({"hung": 30.2, "stopping": 0.1, "forming": 0.1, "starting": 2.0}, abs=1e-6)
    assert cost.fault.kind == "hang"


def test_a_hang_that_was_a_pause_ends_with_the_next_step() -> None:
    named = events.HangNamed(
        generation=1, ranks=(1,), nodes=("b",), kind="unknown", where="", sentence="rank 1 seems to hang", ago=8.0
    )
    told = story(*TRAINS, (70.0, named), (80.0, events.TrainingProgress(generation=1, step=99)), (90.0, over(1)))
    assert told.time["hung"] == pytest.approx(18.0)
    assert told.time["productive"] == pytest.approx(52.0 + 10.0)


def test_a_lost_node_explains_the_failure_that_came_first() -> None:
    lost = reasons.LostNode("b", "its connection closed")
    told = story(
        *TRAINS,
        (60.0, events.GenerationEnding(generation=1, reason=reasons.FailedRank("a", 0, 1))),
        (60.1, events.NodeLost(generation=1, node="b", how="its connection closed", told=True)),
        (60.1, events.GenerationEnding(generation=1, reason=lost, also=True)),
        (60.2, events.WorkersGone(generation=1, step=50, ago=0.3)),
        (60.2, events.WaitingForNodes(generation=1, least=2, unit=1, ready=("a",))),
        (70.2, joined("c")),
        (73.2, formed(2, ("a", "c"))),
        (75.2, events.TrainingBegan(generation=2, step=51)),
        (80.0, over(2)),
    )
    (cost,) = told.faults
    assert (cost.fault.kind, cost.fault.place) == ("node lost", "b")
    assert cost.states["provisioning"] == pytest.approx(10.0)
    assert told.node_time["reduced"] == pytest.approx(2.0 + 10.1)  # before b came, and while it was gone


def test_a_drain_is_planned_and_no_failure() -> None:
    changes = (reasons.DrainingNode("b"),)
    told = story(
        *TRAINS,
        (60.0, events.PlannedChange(generation=1, changes=changes)),
        (61.0, events.GenerationEnding(generation=1, reason=reasons.PlannedEnd(changes, reasons.Saved.ALL, 50))),
        (61.5, events.WorkersGone(generation=1, step=50, ago=0.6)),
        (61.6, formed(2, ("a",))),
        (61.6, events.NodeLeft(generation=2, node="b")),
        (63.0, events.TrainingBegan(generation=2, step=51)),
        (80.0, over(2)),
    )
    (cost,) = told.faults
    assert cost.states == pytest.approx({"draining": 1.0, "stopping": 0.5, "forming": 0.1, "starting": 1.4}, abs=1e-6)
    assert cost.fault.planned
    assert told.failures == 0
    assert "redone" not in told.time


def test_what_ranks_measured_is_moved_out_of_productive_time() -> None:
    told = story(
        *TRAINS,
        (70.0, events.TrainingProgress(generation=1, step=60, checkpoint=3.0, data=5.0)),
        (110.0, events.WorkersGone(generation=1, step=100, checkpoint=4.0, data=9.0)),
        (110.0, over(1)),
    )
    assert told.time["checkpoint"] == pytest.approx(4.0)
    assert told.time["data wait"] == pytest.approx(9.0)
    assert told.time["productive"] == pytest.approx(87.0)


def test_a_straggler_costs_its_excess_for_every_step() -> None:
    def straggler(over_at: int | None) -> JobEvent:
        return events.StragglerChanged(
            generation=1,
            node="b",
            ranks=(1,),
            section="forward",
            factor=1.5,
            since=20,
            over=over_at,
            sentence="rank 1 is slow",
            excess=0.25,
        )

    told = story(*TRAINS, (40.0, straggler(None)), (70.0, straggler(60)), (110.0, over(1)))
    (cost,) = told.faults
    assert cost.states == {"slowed": 10.0}
    assert told.failures == 0


def test_spares_and_missing_nodes_stand_beside_the_job() -> None:
    told = story(
        (0.0, events.JobBegan(generation=0, least=1, most=3)),
        (0.0, joined("a")),
        (0.0, joined("b")),
        (0.0, formed(1, ("a",), spares=1)),
        (0.0, events.TrainingBegan(generation=1, step=1)),
        (10.0, over(1)),
        price=360.0,
    )
    assert told.node_time == {"productive": 10.0, "reduced": 10.0, "spare": 10.0}
    assert told.cost == pytest.approx(2.0)  # nobody pays for a node that is not there


def test_a_script_that_makes_no_steps_leaves_its_time_unknown() -> None:
    told = story(*START, (100.0, over(1)))
    assert told.time["unknown"] == 95.0
    assert told.known == pytest.approx(5 / 100)


def test_a_run_that_failed_before_its_first_step_was_starting() -> None:
    told = story(*START, (9.0, events.GenerationEnding(generation=1, reason=FAILED)), (9.5, over(1, success=False)))
    assert told.time["starting"] == 4.0
    assert (told.success, told.faults[0].fault.recovered) == (False, False)


def test_a_takeover_interrupts_nothing() -> None:
    took = events.CoordinatorTookOver(generation=1, term=2, nodes=2)
    again = events.TrainingBegan(generation=1, step=1, ago=60.0)
    told = story(*TRAINS, (70.0, took), (70.1, again), (110.0, over(1)))
    assert told.time["productive"] == 100.0
    assert told.faults == ()


def test_a_half_written_run_is_kept_up_to_its_last_event() -> None:
    told = story(*TRAINS, (60.0, events.TrainingProgress(generation=1, step=50)))
    assert (told.over, told.wall, told.state) == (False, 60.0, "productive")


def test_a_record_without_its_beginning_is_unknown_until_training_is_heard_of() -> None:
    told = story(
        (0.0, events.CoordinatorTookOver(generation=4, term=3, nodes=2)),
        (5.0, events.TrainingBegan(generation=4, step=70, ago=60.0)),
        (9.0, events.NodeLost(generation=4, node="b", how="")),
    )
    assert told.time == {"productive": 9.0}


def test_every_unproductive_second_has_a_cause() -> None:
    books = ledger([At(1e9 + time, event) for time, event in TRAINS], until=1e9 + 50)
    for span in books.book.timeline():
        cause, _ = cause_of(span, books.faults)
        assert bool(cause) == (span.state is not LedgerState.PRODUCTIVE)


def test_the_wait_in_the_queue_comes_before_the_first_node_and_costs_nothing() -> None:
    began = (0.0, events.JobBegan(generation=0, least=2, most=2, ago=1.0, queued=3600.0))
    told = story(began, *START[1:], (10.0, events.TrainingBegan(generation=1, step=1)), (110.0, over(1)), price=1.0)
    assert told.time["queued"] == 3600.0
    assert told.time["provisioning"] == 3.0
    assert told.began == pytest.approx(1e9 - 3601)
    assert told.ettr == pytest.approx(100 / 111)
    assert "queued" not in told.node_time
    assert told.cost is not None
    assert told.cost < 0.1  # node-hours of two nodes in two minutes, and none of an hour in the queue


def test_a_job_that_stood_still_was_suspended_and_not_detecting_or_training() -> None:
    """At 40 it was stopped, and at 90 it went on: silence is noticed at once, and training goes on from step 31."""
    lost = reasons.LostNode("b", "nothing heard for 3 s")
    told = story(
        *TRAINS,
        (90.0, events.GenerationEnding(generation=1, reason=lost, ago=3.0)),
        (90.5, events.JobSuspended(generation=1, seconds=50.0, ago=0.5)),
        (91.0, events.WorkersGone(generation=1, step=31, ago=51.0)),
        (92.0, formed(2)),
        (95.0, events.TrainingBegan(generation=2, step=32)),
        (195.0, over(2)),
    )
    assert told.time["suspended"] == 50.0
    assert told.time["productive"] == 130.0
    assert told.time.get("detecting", 0.0) == 0.0
    assert told.ettr == pytest.approx(130 / 145)
    assert sum(told.time.values()) == told.wall


def test_queue_and_suspension_are_causes_of_their_own() -> None:
    began = (0.0, events.JobBegan(generation=0, least=2, most=2, queued=5.0))
    books = ledger(
        [
            At(1e9 + time, event)
            for time, event in (began, *TRAINS[1:], (60.0, events.JobSuspended(generation=1, seconds=9.0)))
        ]
    )
    causes = {span.state: cause_of(span, books.faults)[0] for span in books.book.timeline()}
    assert (causes[LedgerState.QUEUED], causes[LedgerState.SUSPENDED]) == ("queue", "suspended")


@pytest.mark.parametrize("kind", get_args(reasons.EndReason), ids=lambda kind: kind.__name__)
def test_every_reason_has_a_name_and_a_place(kind: type[reasons.EndReason]) -> None:
    """`outlast scale` was one whose `nodes` is a number, and ended `status`, `why` and `report` with a traceback."""
    given = {"tuple": (), "str": "n", "int": 2, "float": 1.0}
    values = {
        field.name: next((value for name, value in given.items() if name in str(field.type)), None)
        for field in msgspec.structs.fields(kind)
        if field.required
    }
    reason = msgspec.convert(values, kind, strict=False) if "saved" not in values else kind((), reasons.Saved.ALL)
    told = story(*TRAINS, (50.0, events.GenerationEnding(generation=1, reason=reason)), (60.0, over(1)))
    assert told.faults[-1].fault.kind


def relaunched(task: str, *, trains: bool, ago: float = 0.0) -> JobEvent:
    failed = reasons.FailedRank("a", 0, -9, cause="killed", task=task)
    return events.TaskRelaunched(
        generation=1, task=task, life=2, failure=failed, used=1, allowed=3, trains=trains, ago=ago
    )


def test_a_task_that_restarts_while_the_others_go_on_costs_nothing_and_is_told() -> None:
    told = story(*TRAINS, (20.0, relaunched("worker-0", trains=False)), (110.0, over(1)))
    assert told.time["productive"] == 100.0
    (cost,) = told.faults
    assert (cost.fault.place, cost.fault.recovered, cost.seconds) == ("worker-0 on a", True, 0.0)


def test_without_the_task_that_trains_the_job_waits_and_makes_steps_again() -> None:
    told = story(
        *TRAINS,
        (20.0, events.TrainingProgress(generation=1, step=11)),
        (20.5, relaunched("chief-0", trains=True, ago=0.5)),
        (25.0, events.TrainingBegan(generation=1, step=7, restore=1.0)),
        (110.0, over(1)),
    )
    (cost,) = told.faults
    assert (cost.fault.place, cost.fault.recovered, cost.fault.steps_lost) == ("chief-0 on a", True, 5)
    assert told.time["detecting"] == 0.5
    assert told.time["restoring"] == 2.0
    assert told.time["redone"] > 0
