"""The rules of the node: what an agent does with its workers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outlast.agent.output.summary import ERROR_LIMIT
from outlast.core.node.commands import (
    Command,
    Exit,
    Hangup,
    Host,
    Lease,
    Mandate,
    Retire,
    StartWorkers,
    StopWorkers,
    Tell,
)
from outlast.core.node.inputs import Cleared, Connected, Disconnected, Exited, Leave, NotHosted, Received
from outlast.core.node.node import Node
from outlast.core.succession.authority import PROMISE_SHARE
from outlast.core.tick import Tick
from outlast.protocol.failures import Account, Failure
from outlast.protocol.generations import Assignment, Start, Stop
from outlast.protocol.membership import Ack, Leaving, Over, Refuse, Report, State, Welcome
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Ballot, Charter, Resign, Standing, Successor, Term
from outlast.transport.wire import MAX_FRAME

LEASE = 3.0
RULES = Rules(job="j", entrypoint="train.py", min_nodes=1, max_nodes=3)
STANDING = Connected(Standing(Term(1, "b"), True))


def place(generation: int) -> Assignment:
    return Assignment(generation, 0, 1, 0, 1, 0, 1, "host", 1, 0)


def start(generation: int, term: int = 1, **charter: Any) -> Received:
    """Group rank 0 of this generation, in a charter that says so."""
    ballot = Ballot(generation, term, term, 7, 2)
    return Received(Start(place(generation), term, Charter("r", RULES, (ballot,), **charter)))


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
    node = Node("a", store_port=7)
    first = told(node.handle(STANDING, 0.0))
    node.handle(Received(Welcome(heartbeat=1.0, lease=LEASE, restart_grace=0.5)), 0.0)
    node.handle(Received(Ack(first.seq, 1)), 0.0)
    return node


@pytest.fixture
def running(node: Node) -> Node:
    """The same, with the workers of generation 1."""
    assert of(StartWorkers, node.handle(start(1), 0.1))
    return node


def test_it_starts_a_generation_only_once(running: Node) -> None:
    running.handle(Exited(1), 0.2)
    running.handle(Cleared(1), 0.2)
    assert not of(StartWorkers, running.handle(start(1), 0.3))


def test_it_never_starts_what_it_was_told_to_stop(node: Node) -> None:
    assert told(node.handle(Received(Stop(4, 1)), 0.1)).floor == 4
    assert not of(StartWorkers, node.handle(start(4), 0.2))
    assert of(StartWorkers, node.handle(start(5), 0.3))


def test_it_starts_nothing_while_workers_are_alive(running: Node) -> None:
    assert not of(StartWorkers, running.handle(start(2), 0.2))


def test_it_starts_nothing_without_a_lease(node: Node) -> None:
    assert not of(StartWorkers, node.handle(start(1), LEASE))


def test_it_starts_nothing_once_it_wants_to_leave(node: Node) -> None:
    node.handle(Leave(Leaving.DRAIN), 0.1)
    assert not of(StartWorkers, node.handle(start(1), 0.2))


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
    running.handle(Received(Stop(1, 1)), 0.2)
    running.handle(Exited(1, failure(-15)), 0.3)
    report = told(running.handle(Cleared(1), 0.3))
    assert (report.state, report.failures, report.floor) == (State.IDLE, (), 1)


def test_news_of_an_older_generation_is_ignored(running: Node) -> None:
    running.handle(Received(Stop(1, 1)), 0.2)
    running.handle(Cleared(1), 0.3)
    running.handle(start(2), 0.4)
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
    report = told(running.handle(STANDING, 4.0))
    assert (report.state, report.failures, report.clear, report.floor) == (State.CUT_OFF, (), True, 1)


def test_workers_that_are_stopping_are_killed_when_the_lease_ends_however_long_their_grace_is(running: Node) -> None:
    assert of(StopWorkers, running.handle(Received(Stop(1, 1, graceful=True)), 0.2)) == [StopWorkers(1, None)]
    running.handle(Disconnected(), 0.3)
    assert running.deadline() == LEASE
    assert of(StopWorkers, running.handle(Tick(), LEASE)) == [StopWorkers(1, 0.0)]


def test_workers_that_are_stopping_are_not_told_again(running: Node) -> None:
    assert of(StopWorkers, running.handle(Received(Stop(1, 1, graceful=True)), 0.2)) == [StopWorkers(1, None)]
    over = Received(Over(False, "ended", term=1))
    for again in (Received(Stop(1, 1, graceful=True)), Leave(Leaving.INTERRUPT), over):
        assert not of(StopWorkers, running.handle(again, 0.3))


def test_a_shorter_grace_is_passed_on_once(running: Node) -> None:
    running.handle(Received(Stop(1, 1, graceful=True)), 0.2)
    assert of(StopWorkers, running.handle(Received(Stop(1, 1)), 0.3)) == [StopWorkers(1, 0.5)]
    assert not of(StopWorkers, running.handle(Received(Stop(1, 1)), 0.4))
    assert not of(StopWorkers, running.handle(Received(Stop(1, 1, graceful=True)), 0.4))


def test_the_workers_of_the_next_generation_are_told_to_stop_too(running: Node) -> None:
    running.handle(Received(Stop(1, 1)), 0.2)
    running.handle(Cleared(1), 0.3)
    running.handle(start(2), 0.4)
    assert of(StopWorkers, running.handle(Received(Stop(2, 1, graceful=True)), 0.5)) == [StopWorkers(2, None)]


def test_a_stop_that_is_repeated_is_not_answered(running: Node) -> None:
    assert told(running.handle(Received(Stop(1, 1)), 0.2)).floor == 1
    assert not of(Tell, running.handle(Received(Stop(1, 1)), 0.3))


def test_a_drain_while_nobody_can_be_reached_is_graceful_only_as_long_as_the_lease_lasts(running: Node) -> None:
    running.handle(Disconnected(), 0.3)
    assert of(StopWorkers, running.handle(Leave(Leaving.DRAIN), 0.4)) == [StopWorkers(1, None)]
    assert of(StopWorkers, running.handle(Tick(), LEASE)) == [StopWorkers(1, 0.0)]
    assert of(Exit, running.handle(Cleared(1), LEASE))


def test_the_lease_counts_from_when_the_report_was_sent(running: Node) -> None:
    report = told(running.handle(Tick(), 1.1))
    running.handle(Received(Ack(report.seq, 1)), 2.9)
    running.handle(Disconnected(), 2.9)
    assert running.deadline() == 1.1 + LEASE


def test_an_answer_to_a_report_of_an_earlier_connection_renews_nothing(running: Node) -> None:
    report = told(running.handle(Tick(), 1.1))
    running.handle(Disconnected(), 1.2)
    running.handle(STANDING, 1.3)
    running.handle(Received(Ack(report.seq, 1)), 1.4)
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


# -- succession


def standing(number: int, by: str, *, acting: bool = True) -> Standing:
    return Standing(Term(number, by), acting)


def heir(node: Node, *, place_in_line: int = 0) -> float:
    """The node is told who may host the coordinator after b. Returns until when it has promised to stay with b."""
    others = ["x", "y"][:place_in_line]
    line = tuple(Successor(n, n, n, 1) for n in ("b", *others, "a"))
    node.handle(start(1, successors=line), 0.1)
    node.handle(Received(Stop(1, 1)), 0.1)
    node.handle(Cleared(1), 0.1)
    return 0.1 + PROMISE_SHARE * 4.0


def test_a_member_of_the_generation_before_hosts_it_after_those_of_the_newest(node: Node) -> None:
    promised = heir(node)
    newest, before = (tuple(Successor(n, n, n, 1) for n in names) for names in ("bx", "ab"))
    ballots = (Ballot(2, 1, 1, 7, 0), Ballot(1, 1, 1, 7, 2))
    charter = Charter("r", RULES, ballots, newest, before=before)
    node.handle(Received(charter), 0.1)
    assert node.allegiance.successors == (*newest, before[0])
    node.handle(Disconnected(), 0.2)
    assert node.deadline() == promised + 2.0  # x is the first, b the last: it cannot be reached


def test_it_joins_no_other_coordinator_before_its_promise_has_lapsed(node: Node) -> None:
    promised = PROMISE_SHARE * 4.0
    assert node.allegiance.choose([standing(5, "c")], promised - 0.1) is None
    assert node.allegiance.choose([standing(5, "c")], promised) == 0


def test_it_joins_another_life_of_the_same_coordinator_at_once(node: Node) -> None:
    assert node.allegiance.choose([standing(5, "c"), standing(2, "b", acting=False)], 0.1) == 1


def test_it_prefers_a_coordinator_that_acts_and_then_the_newer_term(node: Node) -> None:
    assert node.allegiance.choose([standing(9, "c", acting=False), standing(5, "d"), standing(4, "e")], 9.0) == 1
    assert node.allegiance.choose([standing(9, "c", acting=False), standing(5, "d", acting=False)], 9.0) == 0


def test_it_does_not_obey_an_older_term(node: Node) -> None:
    node.handle(Disconnected(), 0.2)
    node.handle(Connected(standing(3, "c")), 5.0)
    node.handle(Received(Ack(0, 3)), 5.1)
    node.handle(Disconnected(), 5.2)
    node.handle(Connected(standing(1, "b")), 9.0)
    assert node.handle(Received(Stop(7, 1)), 9.1) == []
    assert node.allegiance.term == Term(3, "c")


def test_it_does_not_obey_another_coordinator_with_the_same_number(node: Node) -> None:
    node.handle(Disconnected(), 0.2)
    node.handle(Connected(standing(1, "c")), 5.0)
    assert node.handle(Received(Stop(7, 1)), 5.1) == []
    assert node.allegiance.term == Term(1, "b")


def test_an_answer_without_a_lease_binds_it_and_renews_nothing(node: Node) -> None:
    node.handle(Disconnected(), 0.2)
    report = told(node.handle(Connected(standing(2, "c")), 5.0))
    commands = node.handle(Received(Ack(report.seq, 2, leased=False)), 5.1)
    assert of(Lease, commands) == []
    assert told(commands).acked == report.seq
    assert node.allegiance.choose([standing(9, "d")], 5.2) is None


def test_it_says_only_once_that_it_has_heard_such_an_answer(node: Node) -> None:
    node.handle(Received(Ack(1, 1, leased=False)), 0.1)
    assert of(Tell, node.handle(Received(Ack(1, 1, leased=False)), 0.2)) == []


def test_its_reports_say_which_charter_it_has_and_the_older_one_does_not_come_back(node: Node) -> None:
    node.handle(start(2), 0.1)
    node.handle(Received(Charter("r", RULES, (Ballot(1, 1, 1, 3, 3),))), 0.2)
    assert told(node.handle(Tick(), 1.1)).known == (1, 2, 1)


def test_the_next_in_line_hosts_once_its_promise_has_lapsed_and_nobody_answers(node: Node) -> None:
    promised = heir(node)
    node.handle(Disconnected(), 0.2)
    assert node.deadline() == promised
    assert of(Host, node.handle(Tick(), promised)) == [Host(Mandate(Term(2, "a"), node.allegiance.charter))]
    assert node.deadline() is None


def test_those_behind_it_wait_longer(node: Node) -> None:
    promised = heir(node, place_in_line=2)
    node.handle(Disconnected(), 0.2)
    assert node.deadline() == promised + 2 * 4.0 / 2


def test_the_next_in_line_hosts_at_once_when_its_coordinator_has_resigned(node: Node) -> None:
    node.handle(start(1, successors=(Successor("a", "a", "host-a", 9),)), 0.2)
    node.handle(Received(Resign(0)), 0.3)  # of another term: that one's word does not count
    assert node.allegiance.choose([Standing(Term(2, "c"), True)], 0.3) is None
    node.handle(Received(Resign(1)), 0.4)
    assert node.allegiance.choose([Standing(Term(2, "c"), True)], 0.4) == 0
    node.handle(Disconnected(), 0.5)
    assert of(Host, node.handle(Tick(), 0.5))


def test_it_looks_around_before_it_hosts(node: Node) -> None:
    heir(node)
    node.handle(Disconnected(), 8.0)
    assert node.deadline() == 8.0 + 4.0 / 4


def test_one_that_is_not_in_line_never_hosts(node: Node) -> None:
    node.handle(start(1, successors=(Successor("x", "x", "x", 1),)), 0.1)
    node.handle(Received(Stop(1, 1)), 0.1)
    node.handle(Cleared(1), 0.1)
    node.handle(Disconnected(), 0.2)
    assert node.deadline() is None


def test_each_coordinator_that_is_started_here_has_a_term_of_its_own(node: Node) -> None:
    """Also where the node has not heard of the term before: two with the same number could both be obeyed."""
    terms = [node.allegiance.mandate().term for _ in range(3)]
    assert terms == [Term(2, "a"), Term(3, "a"), Term(4, "a")]
    node.handle(Received(Ack(1, 7)), 0.1)
    assert node.allegiance.mandate().term == Term(8, "a")


def test_a_coordinator_that_could_not_be_hosted_is_not_tried_again_at_once_nor_under_the_same_number(
    node: Node,
) -> None:
    promised = heir(node)
    node.handle(Disconnected(), 0.2)
    node.handle(Tick(), promised)
    node.handle(NotHosted(), 5.0)
    assert node.deadline() == 9.0
    assert of(Host, node.handle(Tick(), 9.0)) == [Host(Mandate(Term(3, "a"), node.allegiance.charter))]


def test_it_retires_its_own_coordinator_when_another_one_leads(node: Node) -> None:
    node.allegiance.hosting = True
    report = told(node.handle(Tick(), 1.0))
    assert of(Retire, node.handle(Received(Ack(report.seq, 1)), 1.1)) == [Retire()]
    assert not node.allegiance.hosting


def test_an_agent_that_was_held_up_does_not_take_what_its_guard_did_for_a_failure(running: Node) -> None:
    commands = running.handle(Exited(1, failure(-9)), LEASE + 1)
    assert told(commands).state is State.CUT_OFF
    assert told(commands).failures == ()


def test_an_answer_that_was_waiting_meanwhile_does_not_hide_that_the_lease_had_ended(running: Node) -> None:
    report = told(running.handle(Tick(), 1.1))
    running.handle(Received(Ack(report.seq, 1)), LEASE + 0.5)  # as if it were good until 4.1: the guard did not know
    assert told(running.handle(Exited(1, failure(-9)), LEASE + 0.6) or running.handle(Cleared(1), 3.7)).failures == ()


def test_workers_that_finished_while_the_agent_was_held_up_have_finished(running: Node) -> None:
    running.handle(Exited(1), LEASE + 1)
    assert told(running.handle(Cleared(1), LEASE + 1)).state is State.FINISHED


def test_a_node_that_missed_the_welcome_is_as_patient_as_its_charter_says() -> None:
    node = Node("a", store_port=7)
    node.handle(STANDING, 0.0)
    node.handle(start(1), 0.1)
    node.handle(Exited(1), 0.2)
    node.handle(Cleared(1), 0.2)
    assert of(Hangup, node.handle(Tick(), 0.3 + RULES.node_timeout))


def test_it_looks_for_a_coordinator_where_another_has_heard_that_one_may_be(running: Node) -> None:
    assert running.allegiance.successors == ()
    elsewhere = Successor("z", "z", "host9", 9)
    running.handle(Received(Welcome(1.0, LEASE, 0.5, (elsewhere,))), 0.2)
    assert running.allegiance.successors == (elsewhere,)


def test_a_report_fits_into_a_message_however_many_workers_fail(running: Node) -> None:
    text = "x" * ERROR_LIMIT
    for rank in range(350):
        account = Account("RuntimeError", said="x" * 256, log="x" * 4096, kernel=("x" * 1024,) * 8)
        failed = Failure("a", "a", rank, rank, rank + 1, 1, 0.0, text, error=text, account=account)
        running.handle(Exited(1, failed), 0.2)
    report = told(running.handle(Cleared(1), 0.3))
    assert len(msgspec.msgpack.encode(report)) < MAX_FRAME
    assert [each.rank for each in report.failures] == list(range(16))
    assert report.failures[0].error == text
