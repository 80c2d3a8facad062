"""Planned changes: all ranks save at one boundary before a node joins or drains, and what else may come of it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from outlast.core.job.commands import Command, Send
from outlast.core.job.inputs import Asked, Lost
from outlast.core.job.phase import Phase
from outlast.core.job.planned_change import Change, belongs_on_disk
from outlast.core.membership.member import Member
from outlast.core.node.commands import HaltWorkers, Tell
from outlast.core.node.inputs import Connected, Halting, Received
from outlast.core.node.node import Node
from outlast.core.tick import Tick
from outlast.events.reasons import DrainingNode, InheritedChange, JoinedNodes
from outlast.events.sentences import why
from outlast.protocol.generations import Assignment, Halt, Halted, Start, Stop
from outlast.protocol.membership import Ack, Leaving, State, Welcome
from outlast.protocol.requests import Ask
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Ballot, Charter, Standing, Term
from rehearsal import FAILURE, IDLE, Rehearsal, sent, texts

RULES = Rules(job="j", entrypoint="e", min_nodes=1, max_nodes=3, planned_change_timeout=20.0)


def at(passed: int, *, told: int = 0, sealed: int = 0, able: bool = True) -> Halted:
    return Halted(at=told, able=able, passed=passed, sealed=sealed, step=sealed * 10 or None)


def halts(commands: list[Command]) -> dict[str, int]:
    """Which boundary each node is told."""
    return {c.node: c.message.at for c in commands if isinstance(c, Send) and isinstance(c.message, Halt)}


def notes(commands: list[Command]) -> str:
    return "\n".join(texts(commands))


@pytest.fixture
def here() -> Rehearsal:
    """Nodes a and b run generation 1; a third would be taken in."""
    made = Rehearsal(min_nodes=2, max_nodes=3, last_call=0.0, max_restarts=1, planned_change_timeout=20.0)
    made.join("a")
    made.join("b")
    made.run("a", "b")
    return made


# -- where all halt


def test_the_boundary_after_the_furthest_rank_is_named_when_all_have_said_where_theirs_are() -> None:
    change = Change(RULES, 1)
    assert change.plan(JoinedNodes(("c",)), {"a", "b"}, durable=False, now=0.0) == Halt(1, 0, durable=False)
    assert change.hear("a", at(6)) is None
    assert change.hear("b", at(7)) == Halt(1, 8, durable=False)
    assert change.outcome(0.1) is None
    assert change.hear("a", at(7, told=8, sealed=8)) is None
    assert change.outcome(0.1) is None
    change.hear("b", at(7, told=8, sealed=8))
    assert why(change.outcome(0.1)) == "c joined; all ranks have saved step 80"


def test_a_rank_that_was_further_than_it_seemed_moves_the_boundary_for_all() -> None:
    change = Change(RULES, 1)
    change.plan(JoinedNodes(("c",)), {"a", "b"}, durable=True, now=0.0)
    change.hear("a", at(6))
    change.hear("b", at(6))
    change.hear("a", at(6, told=7, sealed=7))
    assert change.hear("b", at(7, told=7)) == Halt(1, 8)
    change.hear("b", at(7, told=8, sealed=8))
    assert change.outcome(0.1) is None  # what a has saved is not what b has
    change.hear("a", at(7, told=8, sealed=8))
    assert why(change.outcome(0.1)) == "c joined; all ranks have saved step 80"


def test_a_boundary_that_another_coordinator_has_named_stays() -> None:
    change = Change(RULES, 1)
    change.plan(InheritedChange(), {"a", "b"}, durable=True, now=0.0)
    assert change.hear("a", at(8, told=9, sealed=9)) is None
    assert change.hear("b", at(7)) == Halt(1, 9)
    change.hear("b", at(8, told=9, sealed=9))
    assert why(change.outcome(0.1)).endswith("all ranks have saved step 90")


def test_a_save_that_could_not_be_written_is_not_called_one() -> None:
    change = Change(RULES, 1)
    change.plan(JoinedNodes(("c",)), {"a"}, durable=True, now=0.0)
    change.hear("a", at(6))
    change.hear("a", Halted(at=7, able=True, passed=6, sealed=7, step=None))
    assert why(change.outcome(0.1)) == "c joined; not all ranks could save"


def test_what_was_saved_in_memory_for_one_that_joins_is_not_enough_for_one_that_leaves_meanwhile() -> None:
    change = Change(RULES, 1)
    change.plan(JoinedNodes(("c",)), {"a", "b"}, durable=False, now=0.0)
    change.hear("a", at(6))
    change.hear("b", at(6))
    change.hear("a", at(6, told=7, sealed=7))
    assert change.plan(DrainingNode("b"), {"a", "b"}, durable=True, now=1.0) == Halt(1, 8, durable=True)
    change.hear("b", at(6, told=7, sealed=7))
    assert change.outcome(1.1) is None
    change.hear("a", at(7, told=8, sealed=8))
    change.hear("b", at(7, told=8, sealed=8))
    assert why(change.outcome(1.2)) == "c joined; node b is draining; all ranks have saved step 80"
    assert change.deadline() == 20.0


def test_only_what_others_cannot_read_from_memory_belongs_on_disk() -> None:
    here, there = (Member(Rehearsal().request(name, IDLE, keeper=4000)) for name in "ab")
    assert not belongs_on_disk(RULES, [here, there])
    assert belongs_on_disk(RULES, [here, Member(Rehearsal().request("b", IDLE))])  # its keeper cannot be reached
    there.report = replace(IDLE, leaving=Leaving.DRAIN)
    assert belongs_on_disk(RULES, [here, there])
    assert not belongs_on_disk(replace(RULES, max_nodes=1), [there])


# -- in the job


def test_a_generation_ends_for_a_node_that_joins_only_when_all_ranks_have_saved(here: Rehearsal) -> None:
    assert halts(here.join("c", now=2.0)) == {"a": 0, "b": 0}
    assert here.job.phase is Phase.RUNNING
    here.say("a", 2.1, halted=at(3))
    named = here.say("b", 2.1, halted=at(3))
    assert halts(named) == {"a": 4, "b": 4}
    assert "generation 1: all ranks save before it ends (c joined)" in notes(named)
    here.say("a", 2.2, halted=at(3, told=4, sealed=4))
    ended = here.say("b", 2.2, halted=at(3, told=4, sealed=4))
    assert "generation 1 ends: c joined; all ranks have saved step 40" in notes(ended)
    assert sent(ended, Stop) == ["a", "b"]
    assert set(sent(here.clear("a", "b"), Start)) == {"a", "b", "c"}


def test_nobody_says_that_ranks_save_where_some_never_do(here: Rehearsal) -> None:
    here.join("c", now=2.0)
    here.say("a", 2.1, halted=at(3))
    told = notes(here.say("b", 2.1, halted=Halted(at=0, able=False, passed=0)))
    assert "all ranks save" not in told


def test_a_node_that_drains_is_kept_until_all_ranks_have_saved(here: Rehearsal) -> None:
    assert halts(here.say("b", 2.0, leaving=Leaving.DRAIN)).keys() == {"a", "b"}
    here.say("a", 2.1, halted=at(3))
    here.say("b", 2.1, halted=at(3))
    here.say("b", 2.2, halted=at(3, told=4, sealed=4))
    ended = here.say("a", 2.2, halted=at(3, told=4, sealed=4))
    assert "generation 1 ends: node b is draining; all ranks have saved step 40" in notes(ended)
    graceful = {c.node: c.message.graceful for c in ended if isinstance(c, Send) and isinstance(c.message, Stop)}
    assert graceful == {"a": False, "b": True}


def test_two_changes_at_once_are_one(here: Rehearsal) -> None:
    here.join("c", now=2.0)
    assert not halts(here.handle(Asked(Ask("restart", "me")), 2.1))
    here.say("a", 2.1, halted=at(3))
    here.say("b", 2.1, halted=at(3))
    here.say("a", 2.2, halted=at(3, told=4, sealed=4))
    ended = here.say("b", 2.2, halted=at(3, told=4, sealed=4))
    assert "ends: c joined; me asked for a restart; all ranks have saved step 40" in notes(ended)


def test_a_script_that_comes_to_no_boundary_is_not_waited_for(here: Rehearsal) -> None:
    here.join("c", now=2.0)
    ended = here.say("b", 2.1, halted=at(0, able=False))
    assert notes(ended).startswith("generation 1 ends: c joined")
    assert "saved" not in notes(ended)


def test_ranks_that_do_not_come_to_a_save_are_waited_for_so_long_and_no_longer(here: Rehearsal) -> None:
    here.join("c", now=2.0)
    here.say("a", 2.1, halted=at(3))
    assert here.job.deadline() == 22.0
    here.beat("a", "b", now=21.9)
    assert here.job.phase is Phase.RUNNING
    late = "generation 1 ends: c joined; not all ranks have come to a save within 20 s (planned_change_timeout)"
    assert late in notes(here.handle(Tick(), 22.0))


@pytest.mark.parametrize("how", ["fails", "is lost"])
def test_whatever_happens_meanwhile_is_dealt_with_at_once(here: Rehearsal, how: str) -> None:
    here.join("c", now=2.0)
    if how == "fails":
        ended = here.say("b", 2.1, state=State.FAILED, failures=(FAILURE,))
    else:
        ended = here.handle(Lost("b", "closed", 2.2, ended=True), 2.1)
    assert "a" in sent(ended, Stop)
    assert "saved" not in notes(ended)
    here.handle(Tick(), 3.0)
    assert "c" in sent(here.clear("a", "b", now=3.0), Start)
    assert here.job.restarts == (how == "fails")


def test_without_a_timeout_nothing_is_waited_for() -> None:
    here = Rehearsal(max_nodes=3, last_call=0.0, planned_change_timeout=0.0)
    here.join("a")
    here.run("a")
    assert sent(here.join("b", now=2.0), Stop) == ["a"]


def test_when_all_finish_meanwhile_the_job_has_succeeded(here: Rehearsal) -> None:
    here.join("c", now=2.0)
    for node in "ab":
        here.say(node, 2.1, halted=at(3))
    for node in "ab":
        here.say(node, 2.2, state=State.FINISHED, clear=True, halted=None)
    assert here.job.outcome is not None
    assert here.job.outcome.success


def test_a_node_that_has_not_heard_is_told_again(here: Rehearsal) -> None:
    here.join("c", now=2.0)
    assert halts(here.say("a", 2.5)) == {"a": 0}
    here.say("a", 2.6, halted=at(3))
    here.say("b", 2.6, halted=at(3))
    assert halts(here.say("a", 2.7)) == {"a": 4}
    here.say("a", 2.8, halted=at(3, told=4))
    assert halts(here.say("a", 2.9)) == {}


def test_the_next_coordinator_goes_on_with_a_change_that_it_never_planned(here: Rehearsal) -> None:
    here.say("b", 2.0, leaving=Leaving.DRAIN)
    here.say("a", 2.1, halted=at(3))
    here.say("b", 2.1, halted=at(3))
    here.say("a", 2.2, halted=at(3, told=4, sealed=4))
    here.succeed("a", 2, now=2.5, memory=True)
    here.join("a", 2.6)
    here.join("b", 2.6)
    here.beat("a", "b", now=2.7)
    assert here.job.phase is Phase.RUNNING
    ended = here.say("b", 2.8, halted=at(3, told=4, sealed=4))
    assert "all ranks have saved step 40" in notes(ended)


# -- on a node


def test_a_node_halts_its_workers_and_says_how_far_they_are() -> None:
    node = Node("a")
    node.handle(Connected(Standing(Term(1, "a"), True)), 0.0)
    node.handle(Received(Welcome(heartbeat=1.0, lease=3.0, restart_grace=0.5)), 0.0)
    node.handle(Received(Ack(1, 1)), 0.0)
    place = Assignment(1, 0, 1, 0, 1, 0, 1, "h", 1, 0)
    node.handle(Received(Start(place, 1, Charter("r", RULES, (Ballot(1, 1, 1, 3, 3),)))), 0.0)
    assert node.handle(Received(Halt(2, 4)), 0.1) == []  # not of this generation
    assert node.handle(Received(Halt(1, 4)), 0.1) == [HaltWorkers(4, durable=True)]
    reports = [c.report for c in node.handle(Halting(1, at(3, told=4)), 0.2) if isinstance(c, Tell)]
    assert [report.halted for report in reports] == [at(3, told=4)]
    assert node.handle(Halting(1, at(3, told=4)), 0.3) == []  # nothing new
    # A coordinator that comes later and has not heard of the boundary does not take it back.
    assert node.handle(Received(Halt(1, 0)), 0.4) == [HaltWorkers(4, durable=True)]
    stopped: Any = node.handle(Received(Stop(1, 1)), 0.5)
    assert [c.report.halted for c in stopped if isinstance(c, Tell)] == [None]
