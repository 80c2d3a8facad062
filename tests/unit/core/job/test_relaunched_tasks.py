"""Tasks that restart by themselves: each is one event, and none ends the generation."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from outlast.core.job.phase import Phase
from outlast.core.node.inputs import Connected, Received, TasksChanged
from outlast.core.node.node import Node
from outlast.events.events import TaskRelaunched
from outlast.events.sentences import sentence
from outlast.protocol.membership import Ack, Report
from outlast.protocol.roles import Relaunch, TaskReport
from outlast.protocol.succession import Standing, Term
from rehearsal import FAILURE, Rehearsal, two_running
from rehearsal import published as events_of

FAILED = replace(FAILURE, task="worker-0", exit_code=-9)
STANDING = Connected(Standing(Term(1, "a"), True))


def relaunch(number: int = 1, **changes: Any) -> Relaunch:
    return replace(Relaunch(number, 1, FAILED, life=number + 1, used=number, allowed=3), **changes)


def published(here: Rehearsal, *relaunches: Relaunch) -> list[TaskRelaunched]:
    commands = here.say("a", relaunched=relaunches, tasks=(TaskReport("worker-0", 2, "running"),))
    return events_of(commands, TaskRelaunched)


def test_a_relaunch_is_one_event_however_often_it_is_told() -> None:
    here = two_running()
    assert [each.life for each in published(here, relaunch(1))] == [2]
    assert [each.life for each in published(here, relaunch(1), relaunch(2))] == [3]
    assert published(here, relaunch(2)) == []
    assert here.job.phase is Phase.RUNNING
    view = here.job.view(2.0)
    assert [(task.name, task.life) for task in view.tasks] == [("worker-0", 2)]
    assert view.last_fault is not None
    assert view.last_fault.task == "worker-0"


def test_the_sentence_says_who_why_and_what_it_gets() -> None:
    here = two_running()
    (event,) = published(here, relaunch(1, memory=8 << 30, more_memory=True))
    told = sentence(event)
    assert "worker-0 on node" in told
    assert "started again as life 2, with 8 GiB of memory (restart 1 of 3 of its role)" in told


def reports(commands: list[Any]) -> list[Report]:
    return [command.report for command in commands if hasattr(command, "report")]


def test_a_node_repeats_a_relaunch_until_a_coordinator_has_heard_it_and_no_longer() -> None:
    node = Node("a")
    node.handle(STANDING, 0.0)
    tasks = (TaskReport("worker-0", 2, "running"),)
    (first,) = reports(node.handle(TasksChanged(0, tasks, (relaunch(1),)), 1.0))
    (again,) = reports(node.handle(TasksChanged(0, tasks, (relaunch(2),)), 1.1))
    assert [each.number for each in again.relaunched] == [1, 2]
    node.handle(Received(Ack(first.seq, 1)), 1.2)
    (third,) = reports(node.handle(TasksChanged(0, (), ()), 1.3))
    assert [each.number for each in third.relaunched] == [2]
    node.handle(Received(Ack(third.seq, 1)), 1.4)
    (other,) = reports(node.handle(STANDING, 2.0))  # another coordinator
    assert (other.relaunched, other.tasks) == ((), None)
