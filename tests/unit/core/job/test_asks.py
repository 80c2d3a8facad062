"""What people ask of a running job: drain, scale and stop go the ways that exist for them."""

from __future__ import annotations

from outlast.core.job.commands import Command, Reply
from outlast.core.job.inputs import Asked, Lost
from outlast.events.events import Ending, JobOver
from outlast.protocol.generations import Halt
from outlast.protocol.membership import Leaving
from outlast.protocol.requests import Answer, Ask, DrainRequest
from outlast.protocol.succession import Resign
from rehearsal import published, sent, two_running


def answer(commands: list[Command]) -> Answer:
    (reply,) = [command for command in commands if isinstance(command, Reply)]
    return reply.answer


def test_a_node_is_asked_to_drain_by_its_name() -> None:
    job = two_running()
    commands = job.handle(Asked(Ask("drain", "me", subject="b")), 2.0)
    assert answer(commands).done
    assert sent(commands, DrainRequest) == ["b"]


def test_a_node_that_did_not_hear_it_is_asked_again_until_it_leaves() -> None:
    job = two_running()
    job.handle(Asked(Ask("drain", "me", subject="b")), 2.0)
    assert sent(job.say("b"), DrainRequest) == ["b"]
    assert sent(job.say("a"), DrainRequest) == []
    assert sent(job.say("b", leaving=Leaving.DRAIN), DrainRequest) == []
    assert sent(job.say("b", leaving=Leaving.DRAIN), DrainRequest) == []


def test_a_node_that_is_not_here_is_named_with_those_that_are() -> None:
    refused = answer(two_running().handle(Asked(Ask("drain", "me", subject="z")), 2.0))
    assert not refused.done
    assert refused.text == "no node 'z' is here, only: a, b"


def test_fewer_nodes_are_a_planned_change_and_the_others_stay_as_spares() -> None:
    job = two_running(min_nodes=1, planned_change_timeout=20.0)
    commands = job.handle(Asked(Ask("scale", "me", subject="1")), 2.0)
    assert answer(commands).done
    assert sorted(sent(commands, Halt)) == ["a", "b"]
    view = job.job.view(2.0)
    assert (view.wanted, len(view.changes)) == (1, 1)
    assert job.job.memory().wanted == 1


def test_a_number_of_nodes_that_the_job_cannot_have_is_refused() -> None:
    for number in ("0", "3", "many", ""):
        refused = answer(two_running().handle(Asked(Ask("scale", "me", subject=number)), 2.0))
        assert not refused.done
        assert "--nnodes=" in refused.text


def test_stop_ends_the_job_and_says_who_asked() -> None:
    commands = two_running().handle(Asked(Ask("stop", "ann on gpu-01")), 2.0)
    (over,) = published(commands, JobOver)
    assert (over.ending, over.reason) == (Ending.STOPPED, "stopped by ann on gpu-01")


def test_nothing_can_be_asked_of_a_job_that_is_over() -> None:
    job = two_running()
    job.handle(Asked(Ask("stop", "me")), 2.0)
    for what in ("restart", "drain", "scale", "stop"):
        assert answer(job.handle(Asked(Ask(what, "me", subject="1")), 2.1)) == Answer(
            False, f"nothing to {what}: the job is over"
        )


def test_a_coordinator_resigns_once_its_node_has_left_and_the_others_train_and_then_decides_nothing() -> None:
    job = two_running(min_nodes=1)  # a hosts the coordinator
    assert not answer(job.handle(Asked(Ask("resign", "its node")), 2.0)).done
    job.say("a", 2.0, leaving=Leaving.DRAIN)
    job.clear("a", "b", now=2.1)
    job.handle(Lost("a", "its connection closed", 2.1, ended=True), 2.1)
    job.run("b", now=2.2)
    assert job.job.roster.keys() == {"b"}
    job.beat("b", now=2.3)
    job.beat("b", now=2.4)  # by now it knows that generation 1 has no say any more
    commands = job.handle(Asked(Ask("resign", "its node")), 2.5)
    assert answer(commands).done
    assert "b" in sent(commands, Resign)
    assert not job.job.standing(2.5).acting
    assert job.fail("b", now=2.6) == []
    assert job.job.deadline() is None
