"""What ranks ask for, what they have measured, and that they hung: from a node's report to the job's decision."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outlast.core.hangs.calibration import CalibrationRounds
from outlast.core.job.commands import Send
from outlast.core.job.inputs import Lost
from outlast.core.job.job import Job
from outlast.core.job.phase import Phase
from outlast.core.membership.attendance import MOST_GONE
from outlast.core.node.commands import Agree, StopWorkers, TakeMeasures, Tell
from outlast.core.node.commands import Command as NodeCommand
from outlast.core.node.inputs import Connected, Exited, Leave, Measured, Received, Wished
from outlast.core.node.node import Node
from outlast.protocol.failures import Failure
from outlast.protocol.fields import LONGEST_REASON
from outlast.protocol.generations import Assignment, Start, Stop
from outlast.protocol.hangs import Agreed, Measure, Measures
from outlast.protocol.membership import Ack, Join, Leaving, Over, Refuse, Report, State, Wanted, Welcome, Wish
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Charter, Standing, Term
from rehearsal import Rehearsal, notes, sent

IDLE = Report(seq=0, floor=0, generation=0, state=State.IDLE, clear=True, store_port=7)
FAILURE = Failure("b", "b", 1, 0, 77, -9, 0.0, "Hung: …")
RULES = Rules(job="j", entrypoint="train.py", min_nodes=1, max_nodes=2, use_infra_group_rank=False)


def wish(wanted: Wanted, *, generation: int = 1, rank: int = 1) -> Wish:
    return Wish(wanted, generation, rank, "it is so")


class WishingJob(Rehearsal):
    """A job of nodes a and b, which run generation 1."""

    def __init__(self, **rules: Any) -> None:
        super().__init__(**{"planned_change_timeout": RULES.planned_change_timeout, **rules})
        for node in ("a", "b"):
            self.join(node)
        self.run("a", "b")
        assert self.job.phase is Phase.RUNNING

    def request(self, node: str, report: Report, **changes: Any) -> Join:
        name = node.partition("-")[0]  # a-2 is a later life of a
        return super().request(node, report, name=name, key=f"place of {name}", **changes)


def test_stop_ends_the_job_with_the_ranks_reason() -> None:
    here = WishingJob(max_restarts=3)
    out = here.say("b", wish=wish(Wanted.STOP))
    assert here.job.outcome is not None
    assert here.job.outcome.reason == "it is so (stop, asked for by rank 1 on node b)"
    assert sorted(sent(out, Over)) == ["a", "b"]


def test_stop_counts_also_after_the_failure_of_the_rank_that_asked() -> None:
    here = WishingJob(max_restarts=3)
    here.say("b", state=State.FAILED, failures=(FAILURE,), wish=wish(Wanted.STOP))
    assert here.job.outcome is not None
    assert here.job.outcome.reason.startswith("it is so")


def test_restart_makes_a_new_generation_and_is_not_counted() -> None:
    here = WishingJob(max_restarts=0)
    out = here.say("b", wish=wish(Wanted.RESTART))
    assert sorted(sent(out, Stop)) == ["a", "b"]
    assert sorted(sent(here.clear("a", "b"), Start)) == ["a", "b"]
    assert (here.job.generation, here.job.restarts) == (2, 0)


def test_a_rank_that_asked_for_a_restart_may_die() -> None:
    here = WishingJob(max_restarts=0)
    here.say("b", state=State.FAILED, failures=(FAILURE,), wish=wish(Wanted.RESTART))
    here.clear("a", "b")
    assert (here.job.phase, here.job.generation, here.job.restarts) == (Phase.RUNNING, 2, 0)


def test_a_wish_that_is_repeated_is_done_once() -> None:
    here = WishingJob()
    here.say("b", wish=wish(Wanted.RESTART))
    here.clear("a", "b")
    for node in ("a", "b"):
        here.say(node, 3.0, generation=2, state=State.RUNNING, clear=False)
    assert here.job.generation == 2
    here.join("b")  # it says all of it again
    assert (here.job.phase, here.job.generation) == (Phase.RUNNING, 2)


def test_a_restart_asked_for_after_a_failure_does_not_make_it_free_of_charge() -> None:
    here = WishingJob(max_restarts=3)
    here.say("a", state=State.FAILED, failures=(FAILURE,))
    here.say("b", wish=wish(Wanted.RESTART))
    here.clear("a", "b")
    assert here.job.restarts == 1


def test_a_node_that_is_excluded_is_let_go_and_its_next_life_refused() -> None:
    here = WishingJob()
    out = here.say("b", leaving=Leaving.DRAIN, wish=wish(Wanted.EXCLUDE_NODE))
    assert "rank 1 on node b excludes its node: it is so" in notes(out)
    assert "drain" not in notes(out)
    (over,) = [c.message for c in here.clear("b") if isinstance(c, Send) and isinstance(c.message, Over)]
    assert over.left
    assert "not used again: it is so (exclude_node, asked for by rank 1 on node b)" in over.reason
    here.job.handle(Lost("b", "its connection closed", ended=True), 2.0)
    assert sent(here.clear("a"), Start) == ["a"]
    refused = here.join("b-2")
    assert sent(refused, Refuse) == ["b-2"]
    assert "not used again in this job: it is so" in notes(refused)
    assert not sent(here.join("c"), Refuse)


def test_a_coordinator_that_comes_after_still_knows_whom_to_refuse() -> None:
    here = WishingJob()
    here.say("b", leaving=Leaving.DRAIN, wish=wish(Wanted.EXCLUDE_NODE))
    memory, charter = here.job.memory(), here.job._replies.charter("a", 2.0)
    for again in (
        Job(RULES, 9.0, term=Term(2), memory=memory),
        Job(RULES, 9.0, term=Term(2), charter=msgspec.msgpack.decode(msgspec.msgpack.encode(charter), type=Charter)),
    ):
        here.job = again
        assert sent(here.join("b-2"), Refuse) == ["b-2"]
        assert not sent(here.join("a"), Refuse)


def test_a_rank_that_hung_is_the_reason() -> None:
    here = WishingJob(max_restarts=1)
    hung = msgspec.structs.replace(FAILURE, hung="it has been in section 'step' for 30 s")
    assert notes(here.say("b", state=State.FAILED, failures=(hung,))) == "generation 1 ends: rank 1 on node b hung"


def test_one_node_asks_for_calibration_and_all_get_what_all_have_measured() -> None:
    here = WishingJob()
    assert sorted(sent(here.say("b", measures=Measures(1, {"heartbeat": 2.0})), Measure)) == ["a", "b"]
    out = here.say("a", measures=Measures(1, {"heartbeat": 3.0, "outside": 1.0}))
    agreed = [c.message for c in out if isinstance(c, Send) and isinstance(c.message, Agreed)]
    assert [each.measures for each in agreed] == [Measures(1, {"heartbeat": 3.0, "outside": 1.0})] * 2
    assert "calibration 1: the timeouts are now heartbeat 30 s, outside sections 30 s" in notes(out)


def test_a_member_that_missed_a_word_about_calibration_is_told_again_with_its_next_report() -> None:
    here = WishingJob()
    here.say("b", measures=Measures(1, {"heartbeat": 2.0}))
    assert sent(here.say("a"), Measure) == ["a"]
    here.say("a", measures=Measures(1, {}))
    assert sent(here.say("a"), Agreed) == ["a"]
    assert not sent(here.say("a", agreed=1), Agreed)


def test_what_a_second_rank_of_a_node_has_measured_begins_another_round_once_the_first_is_over() -> None:
    calibration = CalibrationRounds()
    calibration.told("a", Measures(1, {"heartbeat": 2.0}), {"a"})
    assert calibration.agreed == Measures(1, {"heartbeat": 2.0})
    assert calibration.told("a", Measures(1, {"heartbeat": 1.0}), {"a"}) is None
    assert calibration.told("a", Measures(1, {"heartbeat": 5.0}), {"a"}) == Measure(2)
    assert calibration.told("a", Measures(2, {"heartbeat": 5.0}), {"a"}) == Agreed(Measures(2, {"heartbeat": 5.0}))


def test_what_was_agreed_on_ages_with_generations_and_not_with_every_round() -> None:
    calibration = CalibrationRounds()
    calibration.told("a", Measures(1, {"heartbeat": 8.0}), {"a"})
    calibration.regroup({"a"})
    for number in (2, 3, 4):
        calibration.told("a", Measures(number, {"heartbeat": 2.0}), {"a"})
        assert calibration.agreed.longest == {"heartbeat": 5.0}


def test_a_member_that_is_lost_in_the_middle_of_a_round_is_not_waited_for() -> None:
    calibration = CalibrationRounds()
    calibration.told("a", Measures(1, {"heartbeat": 2.0}), {"a", "b"})
    calibration.regroup({"a", "c"})
    assert isinstance(calibration.told("a", Measures(1, {"heartbeat": 2.0}), {"a", "c"}), Agreed)


# -- the node


@pytest.fixture
def node() -> Node:
    """A node that is connected, and runs generation 1."""
    node = Node("b", store_port=7)
    (tell,) = node.handle(Connected(Standing(Term(1, "a"), True)), 0.0)
    assert isinstance(tell, Tell)
    node.handle(Received(Welcome(heartbeat=1.0, lease=3.0, restart_grace=0.5)), 0.0)
    node.handle(Received(Ack(tell.report.seq, 1)), 0.0)
    node.handle(Received(Start(Assignment(1, 0, 1, 0, 1, 0, 1, "host", 1, 0), 1, Charter("run", RULES))), 0.1)
    assert not node.current.clear
    return node


def told(commands: list[NodeCommand]) -> Report:
    return [c for c in commands if isinstance(c, Tell)][-1].report


def test_a_node_says_what_its_rank_wishes_at_once_and_in_every_report(node: Node) -> None:
    wanted = wish(Wanted.RESTART)
    assert told(node.handle(Wished(wanted), 0.2)).wish == wanted
    assert told(node.handle(Exited(1, FAILURE), 0.3)).wish == wanted


def test_nothing_is_wished_for_after_a_stop(node: Node) -> None:
    node.handle(Wished(wish(Wanted.STOP)), 0.2)
    node.handle(Wished(wish(Wanted.RESTART)), 0.3)
    assert told(node.handle(Exited(1, FAILURE), 0.4)).wish == wish(Wanted.STOP)


def test_a_node_that_is_excluded_stops_its_workers_at_once_and_leaves(node: Node) -> None:
    commands = node.handle(Wished(wish(Wanted.EXCLUDE_NODE)), 0.2)
    assert told(commands).leaving is Leaving.DRAIN
    assert told(commands).wish == wish(Wanted.EXCLUDE_NODE)
    assert StopWorkers(1, 0.5) in commands


def test_a_node_that_drains_may_still_be_excluded(node: Node) -> None:
    node.handle(Leave(Leaving.DRAIN), 0.2)
    commands = node.handle(Wished(wish(Wanted.EXCLUDE_NODE)), 0.3)
    assert told(commands).wish == wish(Wanted.EXCLUDE_NODE)
    assert StopWorkers(1, 0.5) in commands


def test_a_worker_that_hangs_gets_the_time_that_its_signal_needs(node: Node) -> None:
    assert StopWorkers(1, 1.0) in node.handle(Exited(1, FAILURE, patience=1.0), 0.2)
    assert not [c for c in node.handle(Received(Stop(1, 1)), 0.3) if isinstance(c, StopWorkers)]


def test_a_rank_that_asks_begins_a_round_and_another_one_joins_it_until_it_is_over(node: Node) -> None:
    assert told(node.handle(Measured({"heartbeat": 1.0}), 0.2)).measures == Measures(1, {"heartbeat": 1.0})
    assert told(node.handle(Measured({"heartbeat": 2.0}), 0.3)).measures == Measures(1, {"heartbeat": 2.0})
    assert node.handle(Received(Agreed(Measures(1, {"heartbeat": 9.0}))), 0.4) == [Agree({"heartbeat": 9.0})]
    report = told(node.handle(Measured({"heartbeat": 3.0}), 0.5))
    assert (report.measures.round, report.agreed) == (2, 1)


def test_a_node_that_is_asked_measures_for_that_round_once(node: Node) -> None:
    assert node.handle(Received(Measure(4)), 0.2) == [TakeMeasures(4)]
    assert told(node.handle(Measured({}, 4), 0.2)).measures == Measures(4, {})
    assert node.handle(Received(Measure(4)), 0.3) == []


def test_a_wish_of_any_length_makes_messages_that_agents_can_read() -> None:
    rehearsal = WishingJob()
    longest = Wish(Wanted.EXCLUDE_NODE, 1, 1, "x" * LONGEST_REASON)
    sent = [*rehearsal.say("b", wish=longest), *rehearsal.clear("a", "b"), *rehearsal.join("c")]
    messages = [each.message for each in sent if isinstance(each, Send)]
    assert any(isinstance(each, Charter) and each.excluded for each in messages)
    for each in messages:
        msgspec.msgpack.decode(msgspec.msgpack.encode(each), type=FromCoordinator)


def test_nodes_that_come_and_go_are_not_remembered_for_ever() -> None:
    rehearsal = WishingJob(max_nodes=2)
    for number in range(5 * MOST_GONE):
        rehearsal.join(f"spare{number}-1")
        rehearsal.job.handle(Lost(f"spare{number}-1", "its connection closed", ended=True), 1.0)
    assert len(rehearsal.job._state.nodes) <= 3 * MOST_GONE
    assert {"a", "b"} <= rehearsal.job._state.nodes.keys()
