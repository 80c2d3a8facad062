"""The rules of the node: what an agent does with its workers."""

from __future__ import annotations

import pytest

from outlast.core.node import (
    Cleared,
    Command,
    Connected,
    Disconnected,
    Exit,
    Exited,
    Hangup,
    Leave,
    Node,
    Received,
    StartWorkers,
    StopWorkers,
    Tell,
    Tick,
)
from outlast.messages import Ack, Assignment, Failure, Leaving, Over, Refuse, Report, Start, State, Stop, Welcome

LEASE = 3.0


def place(generation: int) -> Assignment:
    return Assignment(generation, 0, 1, 0, 1, 0, 1, "host", 1, 0)


def failure(code: int = 1) -> Failure:
    return Failure("a", "a", 0, 0, 77, code, 0.0, "boom")


def told(commands: list[Command]) -> Report:
    """The last report among the commands."""
    return [c for c in commands if isinstance(c, Tell)][-1].report


def of(kind: type, commands: list[Command]) -> list[Command]:
    return [c for c in commands if isinstance(c, kind)]


@pytest.fixture
def node() -> Node:
    """A node that is connected, and has a lease until 3 s."""
    node = Node(store_port=7)
    first = told(node.handle(Connected(), 0.0))
    node.handle(Received(Welcome(heartbeat=1.0, lease=LEASE, restart_grace=0.5)), 0.0)
    node.handle(Received(Ack(first.seq)), 0.0)
    return node


@pytest.fixture
def running(node: Node) -> Node:
    """The same, with the workers of generation 1."""
    assert of(StartWorkers, node.handle(Received(Start(place(1))), 0.1))
    return node


def test_it_starts_a_generation_only_once(running: Node) -> None:
    running.handle(Exited(1), 0.2)
    running.handle(Cleared(1), 0.2)
    assert not of(StartWorkers, running.handle(Received(Start(place(1))), 0.3))


def test_it_never_starts_what_it_was_told_to_stop(node: Node) -> None:
    assert told(node.handle(Received(Stop(4)), 0.1)).floor == 4
    assert not of(StartWorkers, node.handle(Received(Start(place(4))), 0.2))
    assert of(StartWorkers, node.handle(Received(Start(place(5))), 0.3))


def test_it_starts_nothing_while_workers_are_alive(running: Node) -> None:
    assert not of(StartWorkers, running.handle(Received(Start(place(2))), 0.2))


def test_it_starts_nothing_without_a_lease(node: Node) -> None:
    assert not of(StartWorkers, node.handle(Received(Start(place(1))), LEASE))


def test_it_starts_nothing_once_it_wants_to_leave(node: Node) -> None:
    node.handle(Leave(Leaving.DRAIN), 0.1)
    assert not of(StartWorkers, node.handle(Received(Start(place(1))), 0.2))


def test_workers_that_all_exit_with_0_have_finished(running: Node) -> None:
    running.handle(Exited(1), 0.2)
    report = told(running.handle(Cleared(1), 0.3))
    assert (report.state, report.clear, report.generation) == (State.FINISHED, True, 1)


def test_one_that_fails_takes_the_others_with_it_and_is_reported_before_they_are_stopped(running: Node) -> None:
    commands = running.handle(Exited(1, failure()), 0.2)
    assert [type(c) for c in commands] == [Tell, StopWorkers]
    assert told(commands).failures == (failure(),)
    assert told(running.handle(Cleared(1), 0.3)).state is State.FAILED


def test_what_a_worker_exits_with_when_it_was_told_to_stop_is_no_failure(running: Node) -> None:
    running.handle(Received(Stop(1)), 0.2)
    running.handle(Exited(1, failure(-15)), 0.3)
    report = told(running.handle(Cleared(1), 0.3))
    assert (report.state, report.failures, report.floor) == (State.IDLE, (), 1)


def test_news_of_an_older_generation_is_ignored(running: Node) -> None:
    running.handle(Received(Stop(1)), 0.2)
    running.handle(Cleared(1), 0.3)
    running.handle(Received(Start(place(2))), 0.4)
    assert running.handle(Exited(1, failure()), 0.5) == []
    assert running.handle(Cleared(1), 0.5) == []


def test_a_node_that_is_cut_off_kills_its_workers_when_its_lease_ends(running: Node) -> None:
    running.handle(Disconnected(), 1.0)
    assert running.deadline() == LEASE
    assert of(StopWorkers, running.handle(Tick(), LEASE)) == [StopWorkers(1, 0.0)]
    assert running.deadline() is None


def test_a_node_that_was_cut_off_says_so_and_not_that_the_training_failed(running: Node) -> None:
    running.handle(Disconnected(), 1.0)
    running.handle(Tick(), LEASE)
    running.handle(Exited(1, failure(-9)), LEASE)
    running.handle(Cleared(1), LEASE)
    report = told(running.handle(Connected(), 4.0))
    assert (report.state, report.failures, report.clear, report.floor) == (State.CUT_OFF, (), True, 1)


def test_workers_that_are_stopping_are_killed_when_the_lease_ends_however_long_their_grace_is(running: Node) -> None:
    assert of(StopWorkers, running.handle(Received(Stop(1, graceful=True)), 0.2)) == [StopWorkers(1, None)]
    running.handle(Disconnected(), 0.3)
    assert running.deadline() == LEASE
    assert of(StopWorkers, running.handle(Tick(), LEASE)) == [StopWorkers(1, 0.0)]


def test_a_drain_while_nobody_can_be_reached_is_graceful_only_as_long_as_the_lease_lasts(running: Node) -> None:
    running.handle(Disconnected(), 0.3)
    assert of(StopWorkers, running.handle(Leave(Leaving.DRAIN), 0.4)) == [StopWorkers(1, None)]
    assert of(StopWorkers, running.handle(Tick(), LEASE)) == [StopWorkers(1, 0.0)]
    assert of(Exit, running.handle(Cleared(1), LEASE))


def test_the_lease_counts_from_when_the_report_was_sent(running: Node) -> None:
    report = told(running.handle(Tick(), 1.1))
    running.handle(Received(Ack(report.seq)), 2.9)
    running.handle(Disconnected(), 2.9)
    assert running.deadline() == 1.1 + LEASE


def test_an_answer_to_a_report_of_an_earlier_connection_renews_nothing(running: Node) -> None:
    report = told(running.handle(Tick(), 1.1))
    running.handle(Disconnected(), 1.2)
    running.handle(Connected(), 1.3)
    running.handle(Received(Ack(report.seq)), 1.4)
    running.handle(Disconnected(), 1.5)
    assert running.deadline() == LEASE


def test_it_hangs_up_on_a_silent_coordinator_only_with_no_worker_alive(node: Node) -> None:
    assert of(Hangup, node.handle(Tick(), 4.0))
    node.handle(Disconnected(), 4.0)
    assert node.deadline() is None


def test_with_workers_alive_it_does_not_hang_up(running: Node) -> None:
    assert not of(Hangup, running.handle(Tick(), 9.0))


def test_it_reports_once_per_heartbeat(node: Node) -> None:
    assert node.deadline() == 1.0
    assert of(Tell, node.handle(Tick(), 1.0))
    assert node.deadline() == 2.0


def test_a_drained_node_waits_for_the_coordinator_before_it_stops_its_workers(running: Node) -> None:
    commands = running.handle(Leave(Leaving.DRAIN), 0.2)
    assert told(commands).leaving is Leaving.DRAIN
    assert not of(StopWorkers, commands)


def test_an_interrupted_node_stops_its_workers_at_once(running: Node) -> None:
    assert of(StopWorkers, running.handle(Leave(Leaving.INTERRUPT), 0.2)) == [StopWorkers(1, None)]


def test_when_the_job_is_over_it_exits_once_its_workers_are_gone(running: Node) -> None:
    over = Over(False, "interrupted on node b")
    commands = running.handle(Received(over), 0.2)
    assert of(StopWorkers, commands)
    assert not of(Exit, commands)
    assert of(Exit, running.handle(Cleared(1), 0.5)) == [Exit(over)]


def test_a_refused_node_exits_with_the_reason(node: Node) -> None:
    assert of(Exit, node.handle(Received(Refuse("another job")), 0.1)) == [Exit(Over(False, "another job"))]
