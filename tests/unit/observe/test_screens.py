"""What the commands that watch a job show: from a view and events to lines."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.events import events
from outlast.events.events import Ending
from outlast.events.numbered import NumberedEvent
from outlast.events.reasons import FailedRank
from outlast.ledger.summary import ledger, summarize
from outlast.observe.faults import why_fields, why_paragraph, why_stacks
from outlast.observe.health import JobHealth, health_of
from outlast.observe.ranks import rank_rows, top_lines
from outlast.observe.status import status_lines
from outlast.protocol.paces import Pace
from outlast.protocol.views import ExclusionView, JobView, NodeView, SnapshotView

FAILED = FailedRank("b", 3, 1, exception="KeyError", cause="exception", title="an exception", step=70)


def view(**changes: Any) -> JobView:
    fields: dict[str, Any] = {
        "job": "bert",
        "run": "r",
        "term": 1,
        "phase": "running",
        "generation": 2,
        "acting": True,
        "seconds": 100.0,
        "least": 2,
        "most": 2,
        "nodes": (),
        "spares": 0,
        "restarts": 1,
        "allowed": 3,
        "generations": 2,
        "time": 1000.0,
        "wanted": 2,
        "members": 2,
        "here": 2,
        "ranks": 4,
    }
    return JobView(**{**fields, **changes})


def node(name: str, *paces: Pace) -> NodeView:
    return NodeView(name, name, "running", len(paces), True, True, False, paces=paces)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, JobHealth.HEALTHY),
        ({"most": 4, "wanted": 2}, JobHealth.HEALTHY),
        ({"members": 1, "here": 1}, JobHealth.DEGRADED),
        ({"here": 1}, JobHealth.DEGRADED),
        ({"phase": "forming"}, JobHealth.DEGRADED),
        ({"acting": False}, JobHealth.DEGRADED),
        ({"excluded": {"c": ExclusionView("slow", 5.0)}}, JobHealth.DEGRADED),
        ({"phase": "over", "outcome": Ending.FINISHED}, JobHealth.OVER),
    ],
)
def test_a_job_is_healthy_degraded_or_over(changes: dict[str, Any], expected: JobHealth) -> None:
    assert health_of(view(**changes)) is expected


def test_the_first_line_says_it_all_and_the_others_say_more() -> None:
    lines = status_lines(
        view(
            progress=Pace(0, 60, 70, 0.25),
            last_fault=FAILED,
            snapshot=SnapshotView(60, 988.0),
            excluded={"c": ExclusionView("it is slow", 75.0)},
        ),
        None,
    )
    assert lines[0] == "job bert: training, degraded; step 70, 4.0 steps/s"
    assert "  excluded    c for 1 min 15 s: it is slow" in lines
    assert "  snapshot    step 60, 12 s ago, in the memory of the nodes" in lines
    assert any(line.startswith("  last fault  rank 3 on node b failed") for line in lines)


def test_stragglers_come_first_by_the_work_that_is_their_own() -> None:
    quick = {"forward": 0.1, "wait": 0.2}
    slow = {"forward": 0.3}
    told = view(
        nodes=(
            node("a", Pace(0, 0, 9, 0.3, quick, waited="wait"), Pace(1, 0, 9, 0.3, quick, waited="wait")),
            node("b", Pace(2, 0, 9, 0.3, quick, waited="wait"), Pace(3, 0, 9, 0.3, slow)),
        )
    )
    rows = rank_rows(told)
    assert [row.rank for row in rows] == [3, 0, 1, 2]
    assert [row.slow for row in rows] == [True, False, False, False]
    assert rows[0].section == "forward 0.300 s"
    lines = top_lines(told, rows=2)
    assert lines[2].startswith("!      3 b")
    assert lines[-1] == "  and 2 ranks more"
    assert top_lines(view(), rows=9)[1] == "  no rank has told of a step yet"


def test_the_last_fault_is_one_paragraph_with_place_evidence_action_and_cost() -> None:
    story = [
        (1.0, events.NodeJoined(generation=0, node="b", workers=4)),
        (2.0, events.GenerationFormed(generation=1, nodes=("b",), ranks=4, spares=0, restarts=0)),
        (50.0, events.GenerationEnding(generation=1, reason=FAILED)),
        (50.5, events.WorkerFailed(generation=1, failure=FAILED, followers=2)),
        (50.5, events.Restarting(generation=1, number=1, allowed=3, failure=FAILED)),
        (51.0, events.GenerationFormed(generation=2, nodes=("b",), ranks=4, spares=0, restarts=1, restore_step=60)),
    ]
    told = [NumberedEvent(number, time, 1, event) for number, (time, event) in enumerate(story, 1)]
    text = why_paragraph(told, summarize(ledger(told, until=60.0)))
    assert "generation 1: rank 3 on node b failed" in text
    assert "Evidence: an exception, KeyError, step 70; 2 failures of other ranks followed from it." in text
    assert "That was restart 1 of 3. Generation 2 went on with 1 node, from the snapshot of step 60 in memory." in text
    assert "It cost" in text
    assert "\n" not in text
    assert why_paragraph(told[:2], summarize(ledger(told[:2], until=60.0))) == ""


def test_after_a_hang_the_stacks_are_told_with_the_culprits_first() -> None:
    stacks = (
        events.RankStack(1, (3,), ("b",), culprit=True, state="S", frames=("load (train.py:8)",)),
        events.RankStack(3, (0, 1, 2), ("a", "b"), culprit=False, state="", frames=()),
    )
    hang = events.HangNamed(
        generation=1, ranks=(3,), nodes=("b",), kind="user code", where="train.py:8", sentence="it hangs", stacks=stacks
    )
    story = [
        events.GenerationFormed(generation=1, nodes=("b",), ranks=4, spares=0, restarts=0),
        hang,
        events.GenerationEnding(generation=1, reason=FAILED),
    ]
    told = [NumberedEvent(number, float(number), 1, event) for number, event in enumerate(story, 1)]
    books = summarize(ledger(told, until=60.0))
    assert why_stacks(told, books) == [
        "rank 3 on b, which the others wait for, sleeping:",
        "  load (train.py:8)",
        "3 ranks (0, 1, 2) on a, b:",
        "  no stack could be seen",
    ]
    fields = why_fields(told, books)
    assert fields is not None
    assert [each["culprit"] for each in fields["stacks"]] == [True, False]
    assert why_stacks(told[:1], summarize(ledger(told[:1], until=60.0))) == []


def test_why_says_what_the_exception_said() -> None:
    failed = FailedRank("b", 3, 1, exception="KeyError", cause="exception", title="KeyError", said="'weights'")
    told = [
        NumberedEvent(1, 1.0, 1, events.JobBegan(generation=0, least=1, most=1)),
        NumberedEvent(2, 2.0, 1, events.GenerationFormed(generation=1, nodes=("b",), ranks=4, spares=0, restarts=0)),
        NumberedEvent(3, 3.0, 1, events.GenerationEnding(generation=1, reason=failed)),
        NumberedEvent(4, 3.0, 1, events.WorkerFailed(generation=1, failure=failed, followers=0)),
    ]
    assert "Evidence: KeyError: 'weights'." in why_paragraph(told, summarize(ledger(told)))


def slow(at: float, generation: int = 2, over: int | None = None) -> NumberedEvent:
    sentence = "rank 0 on a is 2.0 times slower than the others"
    told = events.StragglerChanged(
        generation=generation, node="a", ranks=(0,), section="", factor=2.0, since=5, over=over, sentence=sentence
    )
    return NumberedEvent(int(at), at, 1, told)


def test_why_tells_of_a_slow_rank_if_there_was_nothing_worse() -> None:
    told = [
        NumberedEvent(1, 1.0, 1, events.JobBegan(generation=0, least=1, most=1)),
        NumberedEvent(2, 2.0, 1, events.GenerationFormed(generation=1, nodes=("a",), ranks=4, spares=0, restarts=0)),
        NumberedEvent(3, 3.0, 1, events.TrainingBegan(generation=1, step=1)),
        slow(10.0, 1),
    ]
    paragraph = why_paragraph(told, summarize(ledger(told, until=20.0)))
    assert "rank 0 on a is 2.0 times slower than the others. It still is. It cost" in paragraph
    told.append(slow(15.0, 1, over=9))
    assert "That lasted 5.0 s." in why_paragraph(told, summarize(ledger(told, until=20.0)))


def test_why_tells_of_the_failure_first_and_then_of_a_slow_rank() -> None:
    told = [
        NumberedEvent(1, 1.0, 1, events.JobBegan(generation=0, least=1, most=1)),
        NumberedEvent(2, 2.0, 1, events.GenerationFormed(generation=1, nodes=("a",), ranks=4, spares=0, restarts=0)),
        NumberedEvent(3, 3.0, 1, events.GenerationEnding(generation=1, reason=FAILED)),
        NumberedEvent(4, 4.0, 1, events.GenerationFormed(generation=2, nodes=("a",), ranks=4, spares=0, restarts=1)),
        NumberedEvent(5, 5.0, 1, events.TrainingBegan(generation=2, step=1)),
        slow(10.0),
    ]
    paragraph = why_paragraph(told, summarize(ledger(told, until=20.0)))
    assert "generation 1: rank 3 on node b failed" in paragraph
    assert paragraph.endswith("Since then: rank 0 on a is 2.0 times slower than the others.")


def test_status_tells_goodput_with_and_without_the_queue() -> None:
    told = [
        NumberedEvent(1, 0.0, 1, events.JobBegan(generation=0, least=1, most=1, queued=100.0)),
        NumberedEvent(2, 0.0, 1, events.GenerationFormed(generation=1, nodes=("a",), ranks=4, spares=0, restarts=0)),
        NumberedEvent(3, 20.0, 1, events.TrainingBegan(generation=1, step=1)),
    ]
    (line,) = [row for row in status_lines(view(), summarize(ledger(told, until=100.0))) if "goodput" in row]
    assert line.endswith("40.0 % of 3 min 20 s, 80.0 % of its time on nodes; queued 1 min 40 s, starting 20 s")
