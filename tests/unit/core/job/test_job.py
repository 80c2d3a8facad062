"""The rules of the job: which generation runs, on which nodes, and when there is a new one."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from outlast.core.job.commands import Command, Drop, Send
from outlast.core.job.inputs import Asked, Joined, Lost, Reported
from outlast.core.job.job import Job
from outlast.core.job.phase import Phase
from outlast.core.membership.liveness import ORPHANS
from outlast.core.membership.member import Member
from outlast.core.tick import Tick
from outlast.protocol.generations import Start, Stop
from outlast.protocol.membership import Ack, Leaving, Over, Refuse, State, Welcome
from outlast.protocol.requests import Ask
from outlast.protocol.succession import Term
from rehearsal import FAILURE, IDLE, Rehearsal, sent, texts, two_running


def test_with_max_nodes_it_starts_at_once() -> None:
    here = Rehearsal()
    here.join("a")
    assert set(sent(here.join("b"), Start)) == {"a", "b"}


def test_with_min_nodes_it_starts_after_the_last_call() -> None:
    here = Rehearsal()
    here.join("a")
    assert here.job.deadline() == 3.0
    assert sent(here.handle(Tick(), 3.0), Start) == ["a"]


def test_below_min_it_waits_and_gives_up_with_the_reason() -> None:
    here = Rehearsal(min_nodes=2, pend_timeout=30.0)
    here.join("a")
    assert here.job.deadline() == 30.0
    assert sent(here.handle(Tick(), 30.0), Over) == ["a"]
    assert here.job.outcome is not None
    assert "pend_timeout" in here.job.outcome.reason


def test_a_job_that_nobody_joins_ends() -> None:
    here = Rehearsal()
    due = here.job.deadline()
    assert due is not None
    here.handle(Tick(), due)
    assert here.job.outcome is not None
    assert here.job.outcome.reason == "no node is left"


def test_a_node_of_another_job_is_refused_and_harms_nobody() -> None:
    here = two_running()
    join = here.request("x", IDLE, job="other")
    commands = here.handle(Joined(join), 1.0)
    assert sent(commands, Refuse) == ["x"]
    assert Drop("x") in commands
    assert here.job.phase is Phase.RUNNING


def test_a_newcomer_with_the_rank_of_another_node_is_refused_and_told_what_to_change() -> None:
    here = Rehearsal(min_nodes=1, max_nodes=3, use_infra_group_rank=True)
    here.handle(Joined(here.request("a", IDLE, infra_rank=0, nnodes=(1, 3))), 0.0)
    twice = here.handle(Joined(here.request("b", IDLE, infra_rank=0, nnodes=(1, 3))), 0.1)
    (refused,) = [c.message for c in twice if isinstance(c, Send) and isinstance(c.message, Refuse)]
    assert "node a has the same rank 0" in refused.reason
    assert "--ft-use-infra-group-rank=false" in refused.reason
    assert sent(here.handle(Joined(here.request("c", IDLE, infra_rank=1, nnodes=(1, 3))), 0.2), Refuse) == []
    assert sent(here.handle(Joined(here.request("d", IDLE, nnodes=(1, 3))), 0.3), Refuse) == []


def test_the_rank_of_a_node_that_is_gone_is_free() -> None:
    here = Rehearsal(min_nodes=1, max_nodes=3, use_infra_group_rank=True)
    here.handle(Joined(here.request("a", IDLE, infra_rank=0, nnodes=(1, 3))), 0.0)
    here.handle(Lost("a", "it has ended", 0.1, ended=True), 0.1)
    assert sent(here.handle(Joined(here.request("b", IDLE, infra_rank=0, nnodes=(1, 3))), 0.2), Refuse) == []


def test_without_infrastructure_ranks_nobody_is_refused_for_them() -> None:
    here = Rehearsal(min_nodes=1, max_nodes=3, use_infra_group_rank=False)
    for node in "ab":
        assert sent(here.handle(Joined(here.request(node, IDLE, infra_rank=0, nnodes=(1, 3))), 0.0), Refuse) == []


def test_the_world_is_a_multiple_of_the_unit() -> None:
    here = Rehearsal(min_nodes=2, max_nodes=4, node_unit=2, last_call=0.0)
    for node in "abc":
        here.join(node)
    assert len(here.job.roster) == 2
    assert here.job.spares == 1


def test_a_failure_restarts_all_once_nobody_is_alive() -> None:
    here = two_running(max_restarts=1)
    assert sent(here.fail("a"), Stop) == ["a", "b"]
    assert sent(here.clear("a"), Start) == []
    assert sent(here.clear("b"), Start) == ["a", "b"]
    assert (here.job.generation, here.job.restarts) == (2, 1)


def test_without_restarts_left_a_failure_ends_the_job() -> None:
    here = two_running(max_restarts=0)
    here.fail("a")
    assert sent(here.clear("a", "b"), Over) == ["a", "b"]
    assert here.job.outcome is not None
    assert here.job.outcome.failures == (FAILURE,)


def test_a_lost_node_costs_no_restart_also_when_the_others_fail_of_it_first() -> None:
    here = two_running(max_restarts=0)
    here.fail("a", now=1.5)
    here.handle(Lost("b", "silence"), 3.0)
    here.clear("a", now=3.1)
    assert (here.job.phase, here.job.restarts, list(here.job.roster)) == (Phase.RUNNING, 0, ["a"])


def test_failures_that_come_from_stopping_for_a_newcomer_cost_no_restart() -> None:
    here = Rehearsal(max_restarts=0, last_call=0.0, max_nodes=3)
    here.join("a")
    here.say("a", 0.5, generation=1, state=State.RUNNING, clear=False)
    assert sent(here.join("b", now=1.0), Stop) == ["a"]
    here.fail("a")
    here.clear("a")
    assert (here.job.phase, here.job.restarts, len(here.job.roster)) == (Phase.RUNNING, 0, 2)


def test_a_failure_costs_a_restart_also_when_a_node_drains_right_after() -> None:
    here = two_running(max_restarts=1)
    here.fail("a")
    here.say("b", now=1.6, leaving=Leaving.DRAIN)
    here.clear("a", "b")
    assert (here.job.restarts, list(here.job.roster)) == (1, ["a"])


def test_failures_that_come_from_a_node_that_was_cut_off_cost_no_restart() -> None:
    here = two_running(max_restarts=0)
    here.fail("a")
    here.clear("a")
    here.join("b", now=2.5, state=State.CUT_OFF, clear=True, floor=1)
    assert (here.job.phase, here.job.generation, here.job.restarts) == (Phase.RUNNING, 2, 0)


def test_workers_of_a_node_whose_connection_broke_are_waited_for_until_its_lease_has_surely_ended() -> None:
    here = two_running()
    here.handle(Lost("b", "reset", until=4.0), 1.2)
    assert sent(here.clear("a"), Start) == []
    assert here.job.deadline() == 4.0
    here.beat("a", now=3.9)
    assert sent(here.handle(Tick(), 4.0), Start) == ["a"]


def test_a_broken_connection_that_its_agent_replaced_first_disturbs_nobody() -> None:
    here = two_running()
    commands = here.join("b", now=2.0)
    assert sent(commands, Welcome) == ["b"]
    assert (here.job.phase, here.job.generation) == (Phase.RUNNING, 1)


def test_an_old_connection_that_comes_late_is_dropped_and_its_node_may_still_have_workers() -> None:
    here = two_running()
    late = msgspec.structs.replace(IDLE, seq=1)
    commands = here.handle(Joined(here.request("b", late)), 2.0)
    assert Drop("b") in commands
    assert sent(commands, Welcome) == []
    here.handle(Lost("b", "closed"), 2.1)
    assert sent(here.clear("a", now=2.2), Start) == []
    assert here.job.deadline() == 2.0 + here.rules.node_timeout


def test_with_nobody_connected_and_workers_that_may_live_its_deadline_is_when_they_are_dead() -> None:
    here = two_running(empty_timeout=0.5)
    here.handle(Lost("a", "closed"), 1.0)
    here.handle(Lost("b", "reset", until=4.0), 1.0)
    assert here.job.deadline() == 4.0
    here.handle(Tick(), 4.0)
    assert here.job.outcome is not None


def test_the_job_succeeds_when_every_member_has_finished() -> None:
    here = two_running()
    here.say("a", 2.0, state=State.FINISHED, clear=True)
    assert here.job.outcome is None
    assert sent(here.say("b", 2.1, state=State.FINISHED, clear=True), Over) == ["a", "b"]
    assert here.job.outcome is not None
    assert here.job.outcome.success


def test_a_member_that_has_finished_may_be_lost() -> None:
    here = two_running()
    here.say("a", 2.0, state=State.FINISHED, clear=True)
    here.handle(Lost("a", "closed"), 2.1)
    here.say("b", 2.2, state=State.FINISHED, clear=True)
    assert here.job.outcome is not None
    assert here.job.outcome.success


def test_what_all_finished_while_they_were_being_stopped_is_not_done_again() -> None:
    here = Rehearsal(min_nodes=2, max_nodes=3, last_call=0.0)
    here.join("a")
    here.join("b")
    here.run("a", "b")
    assert sent(here.join("c", now=1.5), Stop) == ["a", "b"]
    for node in "ab":
        here.say(node, 2.0, state=State.FINISHED, clear=True)
        here.say(node, 2.1, floor=1)
    assert here.job.outcome is not None
    assert here.job.outcome.success


def test_a_draining_member_is_taken_out_and_told_to_go_once_its_workers_are_gone() -> None:
    here = two_running(max_restarts=0)
    commands = here.say("b", 1.5, leaving=Leaving.DRAIN)
    assert Send("b", Stop(1, 1, graceful=True)) in commands
    assert sent(here.clear("b"), Over) == ["b"]
    assert sent(here.clear("a"), Start) == ["a"]
    assert here.job.restarts == 0


def test_a_draining_node_that_has_finished_may_go_at_once_and_the_others_go_on() -> None:
    here = two_running()
    here.say("a", 2.0, state=State.FINISHED, clear=True)
    assert sent(here.say("a", 2.1, leaving=Leaving.DRAIN), Over) == ["a"]
    assert here.job.phase is Phase.RUNNING


def test_an_interrupt_ends_the_job_for_all() -> None:
    here = two_running()
    assert sent(here.say("a", 1.5, leaving=Leaving.INTERRUPT), Over)[:2] == ["a", "b"]
    assert here.job.deadline() is None


def test_a_spare_takes_the_place_of_a_lost_member() -> None:
    here = two_running()
    here.join("c", now=1.2)
    assert (here.job.phase, here.job.spares) == (Phase.RUNNING, 1)
    here.handle(Lost("a", "closed"), 1.5)
    assert sent(here.clear("b"), Start) == ["c", "b"]
    assert here.job.roster["b"].group_rank == 1


def test_a_late_or_doubled_report_is_not_believed() -> None:
    here = two_running()
    late = msgspec.structs.replace(here.reports["a"], seq=1, state=State.FAILED, failures=(FAILURE,))
    assert here.handle(Reported("a", late), 2.0) == []
    assert here.handle(Reported("a", here.reports["a"]), 2.0) == []
    assert here.job.phase is Phase.RUNNING


def test_every_report_is_acknowledged_and_a_start_that_was_lost_is_sent_again() -> None:
    here = Rehearsal()
    here.join("a")
    here.join("b")
    here.say("a", 1.0)
    commands = here.say("a", 1.1)
    assert sent(commands, Ack) == ["a"]
    assert sent(commands, Start) == ["a"]


def test_a_stop_that_was_lost_is_sent_again() -> None:
    here = two_running(max_restarts=1)
    here.fail("a")
    assert sent(here.say("b", 2.0), Stop) == ["b"]


def test_after_the_end_a_node_that_joins_is_told_so_and_nothing_starts() -> None:
    here = two_running()
    here.say("a", 1.5, leaving=Leaving.INTERRUPT)
    commands = here.join("c", now=5.0)
    assert sent(commands, Over) == ["c"]
    assert sent(commands, Start) == []


def test_every_change_of_course_leaves_a_note_that_says_why() -> None:
    here = two_running()
    commands = here.handle(Lost("b", "its connection closed"), 1.2)
    notes = texts(commands)
    assert "generation 1 ends: node b was lost: its connection closed" in notes


# -- succession


def three_running(**rules: Any) -> Rehearsal:
    """Nodes a, b and c run generation 1; the coordinator is that of a."""
    here = Rehearsal(max_nodes=3, **rules)
    for node in "abc":
        here.join(node)
    here.run("a", "b", "c")
    here.beat("a", "b", "c", now=1.0)
    assert here.job.standing(1.0).acting
    return here


def leases(commands: list[Command]) -> list[str]:
    answers = [c for c in commands if isinstance(c, Send) and isinstance(c.message, Ack)]
    return [c.node for c in answers if isinstance(c.message, Ack) and c.message.leased]


def test_a_coordinator_that_was_killed_takes_a_running_job_over_and_restarts_nobody() -> None:
    here = three_running()
    here.succeed("a", 2, now=1.5, memory=True)
    assert here.job.phase is Phase.GATHERING
    for node in "abc":
        here.join(node, now=1.6)
        here.say(node, now=1.7)
    assert (here.job.phase, here.job.generation, len(here.job.roster)) == (Phase.RUNNING, 1, 3)
    assert leases(here.say("a", now=1.8)) == ["a"]


def test_without_its_journal_it_does_so_from_what_the_nodes_say() -> None:
    here = three_running()
    here.succeed("a", 2, now=1.5, charter=here.heard["a"].charter)
    for node in "abc":
        here.join(node, now=1.6)
        here.say(node, now=1.7)
    assert (here.job.phase, here.job.generation, len(here.job.roster)) == (Phase.RUNNING, 1, 3)


def test_with_less_than_half_of_the_votes_a_coordinator_says_nothing_and_decides_nothing() -> None:
    here = three_running()
    here.succeed("c", 2, now=4.0, charter=here.heard["c"].charter)
    commands = here.join("c", now=4.1, state=State.CUT_OFF, clear=True, floor=1)
    assert sent(commands, Ack) == []
    assert not here.job.standing(4.2).acting


def test_with_more_than_half_it_first_asks_for_their_promise_and_then_acts() -> None:
    here = three_running()
    here.succeed("b", 2, now=4.0, charter=here.heard["b"].charter)
    for node in "bc":
        here.join(node, now=4.1, state=State.CUT_OFF, clear=True, floor=1)
    assert leases(here.say("b", now=4.2)) == []
    assert not here.job.standing(4.2).acting
    here.say("c", now=4.2)
    assert here.job.standing(4.2).acting


def test_after_taking_over_it_waits_until_the_leases_of_the_absent_have_ended() -> None:
    here = three_running()
    here.succeed("b", 2, now=4.0, charter=here.heard["b"].charter)
    for node in "bc":
        here.join(node, now=4.1, state=State.CUT_OFF, clear=True, floor=1)
    for node in "bc":
        here.say(node, now=4.2)
    due = here.job.deadline()
    assert due == 4.2 + here.rules.node_timeout
    here.beat("b", "c", now=7.1)
    assert set(sent(here.handle(Tick(), due), Start)) == {"b", "c"}
    assert here.job.generation == 3  # 2 could be one that the lost coordinator has formed


def test_it_waits_as_long_when_all_are_there_but_were_stopped_for_another_generation_may_run_elsewhere() -> None:
    here = three_running()
    here.succeed("a", 2, now=2.0, charter=here.heard["a"].charter)
    for node in "abc":
        here.join(node, now=2.1, state=State.IDLE, clear=True, floor=1)
        here.say(node, now=2.2)
    assert here.job.phase is Phase.STOPPING
    due = here.job.deadline()
    assert due == 2.2 + here.rules.node_timeout
    here.beat("a", "b", "c", now=5.1)
    assert len(sent(here.handle(Tick(), due), Start)) == 3


def test_a_node_with_workers_of_a_generation_that_nobody_here_knows_is_waited_for() -> None:
    here = three_running()
    here.succeed("b", 3, now=4.0, charter=here.heard["b"].charter)
    for node in "bc":
        here.join(node, now=4.1, state=State.CUT_OFF, clear=True, floor=1)
    for node in "bc":
        here.say(node, now=4.2)
    here.join("d", now=4.3, generation=2, state=State.RUNNING, clear=False)
    here.beat("b", "c", now=7.1)
    assert sent(here.handle(Tick(), 7.3), Start) == []
    here.say("d", now=7.4)
    assert sent(here.say("d", now=7.4), Stop) == ["d"]
    assert sent(here.say("d", now=7.5, clear=True, floor=2), Start)


def test_a_coordinator_that_hears_of_a_newer_term_begins_a_newer_one() -> None:
    here = three_running()
    here.heard["c"] = msgspec.structs.replace(here.heard["c"], term=Term(5, "b"))
    here.join("c", now=1.5)
    assert (here.job.term, here.job.phase) == (Term(6, "a"), Phase.GATHERING)
    assert not here.job.standing(1.5).acting


def test_the_same_number_of_another_coordinator_is_a_newer_term_as_well() -> None:
    here = three_running()
    here.heard["c"] = msgspec.structs.replace(here.heard["c"], term=Term(1, "b"))
    here.join("c", now=1.5)
    assert here.job.term == Term(2, "a")


def test_the_same_term_is_another_life_s_unless_this_one_told_the_node_of_it() -> None:
    here = three_running()
    here.join("c", now=1.5)
    assert here.job.term == Term(1, "a")
    here.succeed("a", 1, now=2.0, charter=here.heard["a"].charter)  # its journal was lost, and its agent had not heard
    here.join("c", now=2.1)
    assert here.job.term == Term(2, "a")


def test_without_support_it_gives_no_lease_and_forms_nothing() -> None:
    here = three_running(max_restarts=1)
    here.fail("c", now=5.0)
    here.clear("b", "c", now=5.1)
    assert leases(here.clear("a", now=5.1)) == []
    assert here.job.phase is Phase.STOPPING
    here.beat("a", "b", now=5.2)
    assert (here.job.phase, here.job.generation) == (Phase.RUNNING, 2)


def test_support_counts_from_the_first_of_two_answers_to_one_report() -> None:
    member = Member(Rehearsal().request("a", IDLE))
    member.acked(5, 1.0)
    member.acked(5, 2.0)  # with a `Start`, say; it may never come
    assert member.repeated(5) == 1.0
    member.acked(5, 3.0)
    assert member.repeated(5) is None


def test_members_that_ended_while_connected_are_no_longer_asked() -> None:
    here = three_running(min_nodes=1)
    here.handle(Lost("b", "closed", ended=True), 1.5)
    here.handle(Lost("c", "closed", ended=True), 1.5)
    here.clear("a", now=2.0)
    assert (here.job.phase, list(here.job.roster)) == (Phase.RUNNING, ["a"])


def test_a_new_life_of_an_agent_is_the_end_of_the_one_before_however_its_connection_looks() -> None:
    here = three_running(min_nodes=1)
    for node in "bc":
        here.join(node, now=1.4)
    here.handle(Joined(replace(here.heard["b"], key="place of b", connection=9)), 1.5)
    again = here.request("b2", IDLE, name="b", nnodes=(1, 3), key="place of b")
    commands = here.handle(Joined(again), 1.6)
    assert Drop("b") in commands
    assert any("node b was lost: a new life of it has come" in text for text in texts(commands))
    here.clear("a", "c", now=1.7)
    here.handle(Tick(), 1.6 + ORPHANS)
    assert (here.job.phase, set(here.job.roster)) == (Phase.RUNNING, {"a", "c", "b2"})


def test_a_late_message_of_an_agent_that_has_ended_is_not_taken_for_a_new_life_of_its_place() -> None:
    here = three_running(min_nodes=1)
    old = here.request("b1", IDLE, name="b", nnodes=(1, 3), key="place of b", since=5.0)
    new = here.request("b2", IDLE, name="b", nnodes=(1, 3), key="place of b", since=6.0)
    here.handle(Joined(new), 1.5)
    commands = here.handle(Joined(old), 1.6)
    assert commands == [Drop("b1")]
    assert here.job.phase is Phase.RUNNING


def test_one_of_those_who_may_take_over_counts_members_that_were_never_told_of_their_votes() -> None:
    nodes = [f"n{number:02}" for number in range(12)]
    here = Rehearsal(min_nodes=6, max_nodes=12)
    here.job = Job(here.rules, now=0.0, term=Term(1, nodes[0]), run="r")
    for node in nodes:
        here.join(node)
    told = here.heard[nodes[1]].charter
    assert told is not None
    assert len(told.successors) < len(nodes) == len(told.members)
    assert here.heard[nodes[-1]].charter.members == ()  # type: ignore[union-attr]

    here.succeed(nodes[1], 2, now=4.0, charter=told)
    for node in [nodes[1], *nodes[6:]]:
        untold = {} if node == nodes[1] else {"charter": None, "assignment": None}
        here.heard[node] = replace(here.heard[node], **untold)
        here.join(node, now=4.1)
    here.beat(nodes[1], *nodes[6:], now=4.2)
    assert here.job.standing(4.3).acting


def test_members_that_only_fell_silent_are() -> None:
    here = three_running(min_nodes=1)
    here.handle(Lost("b", "silence"), 4.0)
    here.handle(Lost("c", "silence"), 4.0)
    here.clear("a", now=4.1)
    here.beat("a", now=4.2)
    assert here.job.phase is Phase.STOPPING
    assert not here.job.standing(4.2).acting


def test_no_generation_is_formed_before_the_last_one_is_known_to_those_who_could_lead_without_it() -> None:
    here = three_running()
    here.say("c", now=1.5, leaving=Leaving.DRAIN)
    for node in "abc":
        here.clear(node, now=1.6)
    assert here.job.generation == 2
    here.say("a", now=1.7, generation=2, state=State.FAILED, failures=(FAILURE,))
    here.clear("a", now=1.8)
    assert here.job.generation == 2


def test_a_restart_is_charged_once_also_when_the_coordinator_is_killed_in_between() -> None:
    here = three_running(max_restarts=2)
    here.fail("a", now=1.5)
    here.succeed("a", 2, now=1.6, memory=True)
    for node in "abc":
        here.join(node, now=1.7)
        here.say(node, now=1.8)
    here.clear("a", "b", "c", now=1.9)
    here.beat("a", "b", "c", now=4.7)
    here.handle(Tick(), 4.9)
    assert (here.job.phase, here.job.restarts) == (Phase.RUNNING, 1)
    assert {place.restart_count for place in here.job.roster.values()} == {1}


def test_why_a_generation_was_stopped_is_not_guessed_when_the_journal_is_lost() -> None:
    here = three_running(max_restarts=0)
    here.succeed("a", 2, now=1.6, charter=here.heard["a"].charter)
    here.join("a", now=1.7, state=State.IDLE, clear=True, floor=1)  # it was stopped, and c failed of that
    here.join("b", now=1.7)
    here.join("c", now=1.7, state=State.FAILED, failures=(FAILURE,), clear=True, floor=1)
    for node in "abc":
        here.say(node, now=1.8)
    here.clear("b", now=1.9)
    here.beat("a", "b", "c", now=4.7)
    here.handle(Tick(), 4.9)
    assert (here.job.phase, here.job.restarts) == (Phase.RUNNING, 0)


def test_a_member_that_was_told_to_stop_before_it_began_is_not_waited_for_by_the_next_coordinator() -> None:
    here = Rehearsal(max_nodes=1)
    here.join("a")
    here.run("a")
    here.say("a", now=1.5, state=State.CUT_OFF, clear=True, floor=1)  # it hears of generation 2 only that it ends
    assert here.job.generation == 2
    here.say("a", now=1.6, floor=2)
    here.succeed("a", 2, now=1.7, memory=True)
    here.join("a", now=1.8)
    here.beat("a", now=1.9)
    here.handle(Tick(), 1.9 + here.rules.node_timeout)
    here.beat("a", now=5.0)
    assert (here.job.phase, here.job.generation) == (Phase.RUNNING, 4)  # of another term: numbers are skipped


def test_what_has_succeeded_is_told_to_a_node_that_has_obeyed_another_since() -> None:
    here = three_running()
    for node in "abc":
        here.say(node, now=2.0, state=State.FINISHED, clear=True)
    here.heard["c"] = msgspec.structs.replace(here.heard["c"], term=Term(7, "b"))
    over = [c.message for c in here.join("c", now=2.5) if isinstance(c, Send) and isinstance(c.message, Over)]
    assert over
    assert over[0].success
    assert over[0].term > 7


def test_a_heartbeat_that_changes_nothing_need_not_be_written_down() -> None:
    here = three_running()
    here.say("a", now=1.5)
    assert here.job.idle
    here.say("a", now=1.6, state=State.FINISHED, clear=True)
    assert not here.job.idle


def test_a_heartbeat_that_tells_more_about_a_clock_is_written_down() -> None:
    here = two_running()
    here.say("a", now=5.0, sent=3.0)
    assert not here.job.idle
    here.say("a", now=6.0, sent=4.0)
    assert here.job.idle, "the same again"
    here.say("a", now=7.0, sent=5.5)
    assert not here.job.idle


def test_a_member_that_another_coordinator_has_told_to_stop_ends_the_generation() -> None:
    here = two_running()
    commands = here.say("b", now=2.0, floor=1)
    assert here.job.phase is Phase.STOPPING
    assert any("the workers of node b were told to stop" in text for text in texts(commands))


def test_workers_that_are_ending_when_a_coordinator_takes_over_are_not_taken_for_running_ones() -> None:
    here = two_running()
    here.say("b", now=2.0, floor=0)
    here.reports["b"] = msgspec.structs.replace(here.reports["b"], floor=1)
    here.succeed("a", 2, now=3.0, charter=here.heard["a"].charter)
    here.join("a", now=3.0)
    here.join("b", now=3.0)
    here.beat("a", "b", now=3.1)
    assert here.job.phase is Phase.STOPPING


def test_who_joins_hears_where_else_a_coordinator_may_be() -> None:
    here = two_running()
    commands = here.join("c", now=2.0)
    (welcome,) = [c.message for c in commands if isinstance(c, Send) and isinstance(c.message, Welcome)]
    assert [each.node for each in welcome.successors] == ["a", "b"]


def test_who_may_host_the_coordinator_includes_the_generation_before_until_the_newest_is_settled() -> None:
    here = two_running()
    here.beat("a", "b", now=1.5)
    here.join("c", now=1.6)
    here.say("b", now=2.0, leaving=Leaving.DRAIN)
    here.clear("a", "b", now=2.1)
    assert set(here.job.roster) == {"a", "c"}
    told = here.heard["a"].charter
    assert told is not None
    assert len(told.ballots) == 2
    assert [each.node for each in told.turns] == ["a", "c", "b"]  # c may never have heard of its generation

    here.run("a", "c", now=2.2)
    here.beat("a", "c", now=2.3)
    here.beat("a", "c", now=2.4)
    told = here.heard["a"].charter
    assert told is not None
    assert len(told.ballots) == 1
    assert [each.node for each in told.turns] == ["a", "c"]


def test_the_only_node_of_a_job_is_waited_for_however_long_it_says_nothing() -> None:
    """It is connected, so its agent lives and is stopped, here while its ranks are to save for a planned change."""
    here = Rehearsal(max_nodes=1, pend_timeout=10.0, planned_change_timeout=5.0)
    here.join("a")
    here.run("a")
    here.beat("a", now=1.0)
    here.handle(Asked(Ask("restart", "me")), 1.0)
    now = 1.0
    while now < 1000.0:
        due = here.job.deadline()
        assert due is not None
        assert due > now
        now = due
        assert not texts(here.handle(Tick(), now))
    assert here.job.phase is Phase.RUNNING
    here.beat("a", now=now)
    assert here.job.phase is Phase.STOPPING
