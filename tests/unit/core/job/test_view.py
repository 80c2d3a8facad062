"""What whoever watches a job can see of it."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from outlast import FailoverStrategy
from outlast.core.coordinator.commands import PublishEvent
from outlast.core.coordinator.coordinator import Coordinator
from outlast.events.events import WorkerFailed
from outlast.events.numbered import NumberedEvent
from outlast.events.reasons import FailedRank
from outlast.protocol.membership import State
from outlast.protocol.observers import Detail
from outlast.protocol.paces import Pace, Paces
from outlast.protocol.succession import Term
from outlast.protocol.views import JobView
from rehearsal import GPU, IDLE, Rehearsal, failure, running, two_running


def test_members_and_spares_are_seen_with_their_places() -> None:
    here = two_running(max_nodes=2)
    here.join("c", now=2.0)
    view = here.job.view(2.0)
    assert (view.phase, view.generation, view.acting, view.spares) == ("running", 1, True, 1)
    seen = {node.name: (node.member, node.ready, node.group_rank, node.state) for node in view.nodes}
    assert seen == {
        "a": (True, False, 0, "running"),
        "b": (True, False, 1, "running"),
        "c": (False, True, None, "idle"),
    }


def test_steps_are_those_of_the_newest_generation() -> None:
    here = two_running()
    paces = {"a": Paces(1, (Pace(0, 5, 9, 0.5),)), "b": Paces(0, (Pace(1, 5, 9, 0.5),))}
    assert [(node.first_rank, node.paces) for node in here.job.view(2.0, paces).nodes] == [
        (0, paces["a"].paces),
        (1, ()),
    ]


def test_a_fault_is_seen_with_what_it_cost_and_who_is_excluded() -> None:
    job = running("a", "b", "c", exclude_for=100.0)
    job.end(failure(rank=1, node="b", cause=GPU, strategy=FailoverStrategy.NODE))
    view = job.job.view(job.now)
    assert (view.restarts, view.generations) == (1, 2)
    assert view.last_fault is not None
    assert (view.last_fault.node, view.last_fault.rank, view.last_fault.cause) == ("b", 1, "gpu-lost")
    # Places have keys of their own: the operator of a cluster goes by the node's name.
    assert [each.node for each in view.excluded.values()] == ["b"]


def test_the_end_of_a_job_is_seen() -> None:
    here = two_running()
    here.say("a", state=State.FINISHED, clear=True, floor=1)
    here.say("b", state=State.FINISHED, clear=True, floor=1)
    view = here.job.view(3.0)
    assert (view.phase, view.outcome.value if view.outcome is not None else "") == ("over", "finished")


def test_a_view_can_be_sent() -> None:
    view = two_running().job.view(2.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(view), type=JobView) == view


def test_a_coordinator_remembers_how_ranks_got_on_while_their_node_is_here() -> None:
    here = Rehearsal(max_nodes=2)
    coordinator: Coordinator[str] = Coordinator(here.rules, 0.0, term=Term(1, "a"), run="r")
    for node in ("a", "b"):
        coordinator.received(f"to {node}", here.request(node, replace(IDLE, seq=1)), 1.0)
    paces = (Pace(0, 1, 7, 0.25),)
    coordinator.received("to a", Paces(1, paces), 2.0)
    assert [node.paces for node in coordinator.view(Detail.RANKS, 2.0).nodes] == [paces, ()]
    coordinator.ended("to a", 3.0)
    assert [node.paces for node in coordinator.view(Detail.RANKS, 3.0).nodes] == [(), ()]


def test_a_coordinator_that_takes_over_knows_the_last_fault() -> None:
    here = Rehearsal(max_nodes=2)
    failed = FailedRank("b", 1, -9, cause="killed")
    history = [NumberedEvent(7, 5.0, 1, WorkerFailed(generation=1, failure=failed, followers=0))]
    coordinator: Coordinator[str] = Coordinator(here.rules, 0.0, term=Term(2, "a"), run="r", history=history)
    assert coordinator.view(Detail.JOB, 1.0).last_fault == failed


def test_with_straggler_detection_off_paces_are_seen_and_nobody_is_called_slow() -> None:
    here = Rehearsal(max_nodes=2, straggler="off")
    coordinator: Coordinator[str] = Coordinator(here.rules, 0.0, term=Term(1, "a"), run="r")
    for node in ("a", "b"):
        coordinator.received(f"to {node}", here.request(node, replace(IDLE, seq=1)), 1.0)
    told = []
    for number in range(60):
        for rank, (node, seconds) in enumerate((("a", 0.1), ("b", 0.9))):
            pace = Pace(rank, 10 * number, 10 * number + 10, 1.0, {"forward": seconds}, seconds)
            told += coordinator.received(f"to {node}", Paces(1, (pace,)), 2.0 + number)
    assert not [each for each in told if isinstance(each, PublishEvent)]
    assert [len(node.paces) for node in coordinator.view(Detail.RANKS, 70.0).nodes] == [1, 1]
