"""`--ft-restart-policy=min-healthy`: who is held back, who goes on, and when everybody starts again."""

from __future__ import annotations

from typing import Any

from outlast.core.job.commands import Command
from outlast.core.job.phase import Phase
from outlast.core.node.commands import Command as NodeCommand
from outlast.core.node.commands import RefillWorkers, Tell
from outlast.core.node.course import NOT_NEEDED, REFILL_AGAIN
from outlast.core.node.inputs import Cleared, Connected, Kept, Leave, Received
from outlast.core.node.node import Node
from outlast.core.tick import Tick
from outlast.protocol.generations import Assignment, Start, Stop
from outlast.protocol.membership import Ack, Leaving, Welcome
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Ballot, Charter, Standing, Term
from rehearsal import Rehearsal, sent, texts

RULES = Rules(job="j", entrypoint="e", min_nodes=1, max_nodes=3)


def three(least: int = 2, **rules: Any) -> Rehearsal:
    """Nodes a, b and c, of one worker each, run generation 1."""
    given = {"restart_policy": "min-healthy", "max_restarts": 9, "last_call": 60.0}
    here = Rehearsal(min_nodes=least, max_nodes=3, **{**given, **rules})
    for node in "abc":
        here.join(node)
    here.run(*"abc")
    return here


def leave(here: Rehearsal, now: float = 2.0, **kept: int | None) -> list[Command]:
    """These nodes are clear of the generation, with so many of their processes."""
    return [
        command
        for node, count in kept.items()
        for command in here.say(node, now, clear=True, floor=here.job.generation, kept=count)
    ]


def test_the_healthy_go_on_without_the_node_that_lost_a_process() -> None:
    here = three()
    here.fail("b")
    out = leave(here, a=1, b=0, c=1)
    assert (here.job.generation, set(here.job.roster), here.job.restarts) == (2, {"a", "c"}, 1)
    assert any("generation 2 starts without node b, which lost 1 of 1 worker" in text for text in texts(out))


def test_with_any_failed_all_go_on_together() -> None:
    here = three(restart_policy="any-failed")
    here.fail("b")
    leave(here, a=1, b=0, c=1)
    assert set(here.job.roster) == set("abc")


def test_a_node_whose_function_only_raised_goes_on() -> None:
    here = three()
    here.fail("b")
    leave(here, a=1, b=1, c=1)
    assert set(here.job.roster) == set("abc")


def test_below_min_all_are_used() -> None:
    here = three(least=3)
    here.fail("b")
    leave(here, a=1, b=0, c=1)
    assert set(here.job.roster) == set("abc")


def test_if_nobody_is_healthy_all_are_used_though_there_is_a_spare() -> None:
    here = three(least=1)
    here.join("d")
    here.fail("b")
    leave(here, a=0, b=0, c=0)
    assert set(here.job.roster) == set("abc")


def test_without_a_restartable_function_all_are_used() -> None:
    here = three(least=1)
    here.fail("b")
    leave(here, a=None, b=None, c=None)
    assert set(here.job.roster) == set("abc")


def test_a_spare_takes_the_place_of_the_node_that_is_held_back() -> None:
    here = three()
    here.join("d")
    here.fail("b")
    leave(here, a=1, b=0, c=1)
    assert set(here.job.roster) == set("acd")


def test_a_node_that_has_replaced_its_dead_joins() -> None:
    here = three()
    here.fail("b")
    leave(here, a=1, b=0, c=1)
    here.run("a", "c")
    here.beat(*"abc", now=9.9)
    assert here.job.phase is Phase.RUNNING
    assert sent(here.say("b", 10.0, kept=1), Stop) == ["a", "c"]
    leave(here, now=11.0, a=1, c=1)
    assert (here.job.generation, set(here.job.roster), here.job.restarts) == (3, set("abc"), 1)


def test_after_a_planned_change_nobody_is_held_back_else_processes_that_cannot_leave_would_take_turns_without_end() -> (
    None
):
    here = three(least=1)
    here.fail("b")
    leave(here, a=1, b=0, c=1)
    here.run("a", "c")
    here.beat(*"abc", now=9.9)
    here.say("b", 10.0, kept=1)
    leave(here, now=11.0, a=0, c=0)
    assert set(here.job.roster) == set("abc")


def test_a_node_that_is_held_back_is_used_when_others_are_lost() -> None:
    here = three()
    here.fail("b")
    leave(here, a=1, b=0, c=1)
    here.run("a", "c")
    here.fail("c", now=3.0)
    leave(here, now=4.0, a=1, c=0)
    assert set(here.job.roster) == set("abc")


# -- the node


def parked(kept: int | None, *, refills: bool = True) -> Node:
    """A node of two workers, clear of generation 1 at 1 s with so many of them."""
    node = Node("a", store_port=7, ranks=2)
    node.handle(Connected(Standing(Term(1, "b"), True)), 0.0)
    node.handle(Received(Welcome(100.0, 1000.0, 0.5, refills=refills)), 0.0)
    node.handle(Received(Ack(1, 1)), 0.0)
    charter = Charter("r", RULES, (Ballot(1, 1, 1, 7, 2),))
    node.handle(Received(Start(Assignment(1, 0, 1, 0, 2, 0, 2, "host", 1, 0), 1, charter)), 0.1)
    node.handle(Received(Stop(1, 1)), 0.9)
    node.handle(Cleared(1, kept), 1.0)
    return node


def refills(commands: list[NodeCommand]) -> bool:
    return any(isinstance(command, RefillWorkers) for command in commands)


def test_a_node_that_is_not_needed_replaces_its_dead_and_tells_when_it_is_whole() -> None:
    node = parked(1)
    assert node.deadline() == 1.0 + NOT_NEEDED
    assert refills(node.handle(Tick(), 2.0))
    assert not refills(node.handle(Tick(), 3.0))
    (tell,) = node.handle(Kept(2), 4.0)
    assert isinstance(tell, Tell)
    assert tell.report.kept == 2
    assert not refills(node.handle(Tick(), 2.0 + REFILL_AGAIN))


def test_it_tries_again_when_they_do_not_come_to_their_function() -> None:
    node = parked(0)
    assert refills(node.handle(Tick(), 2.0))
    assert refills(node.handle(Tick(), 2.0 + REFILL_AGAIN))


def test_it_replaces_nobody_if_all_live_or_nobody_asked_for_it_or_it_leaves() -> None:
    assert not refills(parked(2).handle(Tick(), 2.0))
    assert not refills(parked(None).handle(Tick(), 2.0))
    assert not refills(parked(1, refills=False).handle(Tick(), 2.0))
    leaving = parked(1)
    leaving.handle(Leave(Leaving.DRAIN), 1.5)
    assert not refills(leaving.handle(Tick(), 2.0))


def test_a_parked_process_that_dies_later_is_replaced_as_well() -> None:
    node = parked(2)
    assert not refills(node.handle(Kept(1), 50.0))
    assert refills(node.handle(Tick(), 50.0 + NOT_NEEDED))
