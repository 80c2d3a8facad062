"""From what ranks write on the board to what the job does about a straggler: each part of the way by itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from outlast.agent.monitoring.pace import busy_seconds
from outlast.board.board import Board
from outlast.board.layout import ONE_MORE, VARIABLE
from outlast.board.readings import Spent, Totals
from outlast.cli.replay import Replay
from outlast.coordinator.event_stream import EventStream
from outlast.core.job.commands import Command
from outlast.core.job.inputs import Event, Straggled
from outlast.core.job.phase import Phase
from outlast.core.node.commands import Show
from outlast.core.node.inputs import Cleared, Connected, Paced, Received
from outlast.core.node.node import Node
from outlast.core.stragglers.pace import Strides
from outlast.core.stragglers.stragglers import Straggler
from outlast.events.events import NodeExcluded, StragglerChanged
from outlast.events.numbered import NumberedEvent
from outlast.journal import Began, Journal, read
from outlast.protocol.generations import Assignment, Start, Stop
from outlast.protocol.membership import Welcome
from outlast.protocol.paces import Pace, Paces
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Charter, Standing, Term
from outlast.worker.session import Session
from rehearsal import FailingJob, notes, published, running, texts
from session_clock import set_session_clock

SLOW = Straggler(1, (1,), "forward", 1.81, 410)
OVER = Straggler(1, (1,), "forward", 1.81, 410, over=900)
LASTS = Straggler(1, (1,), "forward", 1.81, 410, lasts=True)
SENTENCE = "rank 1 on b is 1.8 times slower than the others in section 'forward' since step 410"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the sessions."""
    now = [1000.0]
    set_session_clock(monkeypatch, lambda: round(now[0] * 1e9))
    return now


def step(session: Session, clock: list[float], *, forward: float) -> None:
    with session.section("forward"):
        clock[0] += forward
    with session.section("backward"):
        clock[0] += 0.5
    session.optimizer_steps()
    session.optimizer_stepped()


def test_sections_add_up_on_the_board_and_the_one_before_the_optimizers_step_is_known(
    board: Board, clock: list[float]
) -> None:
    session = Session({VARIABLE: board.address(0)})
    assert board.totals(0) is None
    for _ in range(3):
        step(session, clock, forward=0.25)
    totals = board.totals(0)
    assert totals is not None
    assert {name: spent.after(None) for name, spent in totals.spent.items()} == {
        "forward": (3, pytest.approx(0.75)),
        "backward": (3, pytest.approx(1.5)),
    }
    assert (totals.step, totals.pid, totals.waited) == (3, os.getpid(), "backward")


@pytest.mark.parametrize(
    ("before", "around", "within", "waited"),
    [
        (["data", "grads"], "", 0.5, "grads"),  # optimizer.step() after the sections
        (["data", "grads"], "update", 0.0001, "grads"),  # in a section of its own
        (["data"], "train", 0.5, "train"),  # in a section with all the rest
        ([], "train", 0.5, ""),  # nothing was ever closed: there is nothing to compare either
    ],
)
def test_where_ranks_wait_is_seen_at_the_optimizers_steps(
    before: list[str], around: str, within: float, waited: str, board: Board, clock: list[float]
) -> None:
    session = Session({VARIABLE: board.address(0)})
    for name in before:
        with session.section(name):
            clock[0] += 0.2
    if around:
        session.start_section(around)
    clock[0] += within
    session.optimizer_steps()
    session.optimizer_stepped()
    totals = board.totals(0)
    assert totals is not None
    assert totals.waited == waited


def test_steps_that_take_longer_than_many_looks_are_told_whole() -> None:
    strides = Strides(0)

    def look(at: float, *steps: int) -> tuple[Pace, ...]:
        seen = {
            rank: Totals(read_at=at, pid=1, step=step, step_at=30.0 * step, spent={"forward": Spent(step * ONE_MORE)})
            for rank, step in enumerate(steps)
        }
        return strides.look({rank: (each, at) for rank, each in seen.items()})

    look(30.0, 1, 1)
    for at in range(31, 60):
        assert look(at, 1, 1) == ()
    assert look(60.0, 2, 1) == ()
    assert [(pace.rank, pace.first, pace.last, pace.step) for pace in look(61.0, 2, 2)] == [
        (0, 1, 2, 30.0),
        (1, 1, 2, 30.0),
    ]


def test_a_total_that_has_no_more_room_begins_anew_and_nothing_is_lost(board: Board, clock: list[float]) -> None:
    session = Session({VARIABLE: board.address(0)})
    step(session, clock, forward=0.25)
    session._names["forward"].spent = (1 << 63) - ONE_MORE + 5  # 131,071 sections
    step(session, clock, forward=0.25)
    before = board.totals(0)
    step(session, clock, forward=0.75)
    step(session, clock, forward=0.75)
    after = board.totals(0)
    assert before is not None
    assert after is not None
    assert after.spent["forward"].after(before.spent["forward"]) == (2, 1.5)


def test_what_lies_between_two_looks_is_told_once_all_ranks_of_the_node_have_made_a_step(
    board: Board, clock: list[float]
) -> None:
    sessions = [Session({VARIABLE: board.address(0)})]
    sessions.append(Session({VARIABLE: board.address(1)}))
    strides = Strides(first_rank=8)

    def look() -> tuple[Pace, ...]:
        seen = {rank: (each, None) for rank in (0, 1) if (each := board.totals(rank)) is not None}
        return strides.look(seen)

    for session in sessions:
        step(session, clock, forward=1.0)
    assert look() == ()
    step(sessions[0], clock, forward=0.5)
    assert look() == ()
    step(sessions[0], clock, forward=0.7)
    step(sessions[1], clock, forward=0.7)
    first, second = look()
    assert (first.rank, first.first, first.last, second.rank, second.first, second.last) == (8, 1, 3, 9, 1, 2)
    assert first.sections == {"forward": pytest.approx(0.6), "backward": pytest.approx(0.5)}
    assert second.sections == {"forward": pytest.approx(0.7), "backward": pytest.approx(0.5)}
    assert first.waited == "backward"
    for _ in range(20):  # one that makes no more steps is not waited for
        step(sessions[0], clock, forward=0.5)
        told = look()
    assert [pace.rank for pace in told] == [8]


def test_how_long_the_main_thread_was_busy_is_known_while_it_lives() -> None:
    busy = busy_seconds(os.getpid())
    assert busy is not None
    assert busy > 0.0
    assert busy_seconds(2**22 + 1) is None


def test_a_node_passes_on_how_its_ranks_get_on_while_they_run_and_a_coordinator_is_there() -> None:
    node = Node("a")
    paces = (Pace(0, 1, 2, 1.0),)
    rules = Rules(job="j", entrypoint="e", min_nodes=1, max_nodes=1)
    assert node.handle(Paced(1, paces), 0.0) == []
    node.handle(Connected(Standing(Term(1, "c"), True)), 0.0)
    node.handle(Received(Welcome(1.0, 10.0, 0.0)), 0.0)
    start = Start(Assignment(1, 0, 1, 0, 1, 0, 1, "a", 1, 0), 1, Charter("r", rules), ack=1)
    node.handle(Received(start), 0.1)
    assert node.handle(Paced(1, paces), 1.0) == [Show(Paces(1, paces))]
    assert node.handle(Paced(2, paces), 1.0) == []
    node.handle(Received(Stop(1, 1)), 2.0)
    assert node.handle(Paced(1, paces), 2.0) == []
    node.handle(Cleared(1), 2.0)


def straggled(job: FailingJob, found: Straggler = SLOW, node: str = "b") -> list[Any]:
    return job.handle(Straggled(node, found), job.now)


@pytest.mark.parametrize("policy", ["warn", "exclude"])
def test_a_straggler_is_told_of_when_it_begins_and_when_it_is_over_and_training_goes_on(policy: str) -> None:
    job = running("a", "b", "c", straggler=policy)
    begins, ends = straggled(job), straggled(job, OVER)
    assert texts(begins + ends) == [f"generation 1: {SENTENCE}", f"generation 1: {OVER.sentence('b')}"]
    assert len(published(begins + ends, StragglerChanged)) == 2
    assert job.job.phase is Phase.RUNNING


def test_when_it_lasts_the_job_goes_on_without_its_node_if_that_is_asked_for() -> None:
    job = running("a", "b", "c", straggler="exclude", exclude_for=100.0)
    commands = straggled(job, LASTS)
    assert [(each.node, each.why) for each in published(commands, NodeExcluded)] == [("b", SENTENCE)]
    assert f"generation 1 ends: node b is excluded for 100 s: {SENTENCE}" in notes(commands)
    assert not straggled(job, LASTS)  # of another rank of it
    job.end()
    assert job.members == ["a", "c"]
    assert job.job.restarts == 0


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ({"min_nodes": 3}, "node b stays, for without it there are fewer than 3"),
        ({"eviction_limit": 0}, "node b stays, for enough have gone within an hour (eviction_limit)"),
    ],
)
def test_nobody_goes_below_min_or_beyond_the_limit(rules: dict[str, Any], why: str) -> None:
    job = running("a", "b", "c", straggler="exclude", **rules)
    assert notes(straggled(job, LASTS)) == f"generation 1: {why}: {SENTENCE}"
    assert job.job.phase is Phase.RUNNING


def test_nobody_goes_if_it_is_not_asked_for_or_was_so_in_another_generation() -> None:
    assert not straggled(running("a", "b", "c"), LASTS)
    assert not straggled(running("a", "b", "c", straggler="exclude"), replace(LASTS, generation=0))


def test_what_was_decided_about_a_straggler_can_be_replayed(tmp_path: Path) -> None:
    job = FailingJob(straggler="exclude")
    journal = Journal(tmp_path / "journal", fresh=True)
    journal.began(Began(0.0, job.rules, Term(1, "a"), "r", None))
    decide = job.job.handle

    def recorded(event: Event, now: float) -> list[Command]:
        commands = decide(event, now)
        if not job.job.idle:
            journal.happened(now, event, job.job.answers, commands)
        return commands

    job.job.handle = recorded  # type: ignore[method-assign]
    job.start("a", "b", "c")
    straggled(job)
    straggled(job, LASTS)
    straggled(job, OVER)
    journal.close()
    replay = Replay()
    lines = "\n".join(replay.lines(read((tmp_path / "journal").read_bytes())))
    assert replay.different == 0
    assert f"found: {SENTENCE}" in lines
    assert "generation 1 ends: node b is excluded" in lines


def test_events_have_the_figures(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    stream = EventStream(str(path), job="j")
    for found in (SLOW, OVER):
        (event,) = published(straggled(running("a", "b", "c"), found), StragglerChanged)
        stream.append(NumberedEvent(7, 5.5, 1, event), run="4f")
    stream.close()
    begins, ends = (json.loads(line) for line in path.read_text().splitlines())
    assert (begins["event"], ends["event"]) == ("straggler", "straggler")
    figures = {name: begins[name] for name in ("ranks", "node", "section", "factor", "since", "over")}
    assert figures == {"ranks": [1], "node": "b", "section": "forward", "factor": 1.81, "since": 410, "over": None}
    assert ends["over"] == 900
