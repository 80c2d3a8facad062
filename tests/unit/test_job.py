"""The rules of the job: which generation runs, on which nodes, and when there is a new one."""

from __future__ import annotations

from typing import Any

import msgspec

from outlast.core.events import Command, Drop, Joined, Lost, Note, Reported, Rules, Send, Tick
from outlast.core.job import Job, Phase
from outlast.messages import Ack, Failure, Join, Leaving, Over, Refuse, Report, Start, State, Stop, Welcome

IDLE = Report(seq=0, floor=0, generation=0, state=State.IDLE, clear=True, store_port=7)
FAILURE = Failure("a", "a", 0, 0, 77, 1, 0.0, "boom")


class Rehearsal:
    """A job, and nodes that say what they are told to say."""

    def __init__(self, **rules: Any) -> None:
        given = {"min_nodes": 1, "max_nodes": 2, "last_call": 3.0, "node_timeout": 3.0, "infra_ranks": False}
        self.rules = Rules(job="j", entrypoint="train.py", **{**given, **rules})
        self.job = Job(self.rules, now=0.0)
        self.reports: dict[str, Report] = {}

    def join(self, node: str, now: float = 0.0, **changes: Any) -> list[Command]:
        r = self.rules
        known = self.reports.get(node, IDLE)
        report = self.reports[node] = msgspec.structs.replace(known, seq=known.seq + 1, **changes)
        return self.job.handle(Joined(self.request(node, report, nnodes=(r.min_nodes, r.max_nodes))), now)

    def request(self, node: str, report: Report, **changes: Any) -> Join:
        join = Join(node, node, 1, "default", node, "j", "train.py", (1, 2), report)
        return msgspec.structs.replace(join, **changes)

    def say(self, node: str, now: float = 1.0, **changes: Any) -> list[Command]:
        known = self.reports[node]
        report = self.reports[node] = msgspec.structs.replace(known, seq=known.seq + 1, **changes)
        return self.job.handle(Reported(node, report), now)

    def run(self, *nodes: str, now: float = 1.0) -> None:
        for node in nodes:
            self.say(node, now, generation=self.job.generation, state=State.RUNNING, clear=False)

    def clear(self, *nodes: str, now: float = 2.0) -> list[Command]:
        out: list[Command] = []
        for node in nodes:
            failed = self.reports[node].state is State.FAILED
            state = State.FAILED if failed else State.IDLE
            out += self.say(node, now, clear=True, floor=self.job.generation, state=state)
        return out

    def fail(self, node: str, now: float = 1.5) -> list[Command]:
        return self.say(node, now, state=State.FAILED, failures=(FAILURE,))


def two_running(**rules: Any) -> Rehearsal:
    """Nodes a and b run generation 1."""
    here = Rehearsal(**rules)
    here.join("a")
    here.join("b")
    here.run("a", "b")
    assert here.job.phase is Phase.RUNNING
    return here


def sent(commands: list[Command], kind: type) -> list[str]:
    return [c.node for c in commands if isinstance(c, Send) and isinstance(c.message, kind)]


def test_with_max_nodes_it_starts_at_once() -> None:
    here = Rehearsal()
    here.join("a")
    assert set(sent(here.join("b"), Start)) == {"a", "b"}


def test_with_min_nodes_it_starts_after_the_last_call() -> None:
    here = Rehearsal()
    here.join("a")
    assert here.job.deadline() == 3.0
    assert sent(here.job.handle(Tick(), 3.0), Start) == ["a"]


def test_below_min_it_waits_and_gives_up_with_the_reason() -> None:
    here = Rehearsal(min_nodes=2, pend_timeout=30.0)
    here.join("a")
    assert here.job.deadline() == 30.0
    assert sent(here.job.handle(Tick(), 30.0), Over) == ["a"]
    assert here.job.outcome is not None
    assert "pend_timeout" in here.job.outcome.reason


def test_a_job_that_nobody_joins_ends() -> None:
    here = Rehearsal()
    due = here.job.deadline()
    assert due is not None
    here.job.handle(Tick(), due)
    assert here.job.outcome is not None
    assert here.job.outcome.reason == "no node is left"


def test_a_node_of_another_job_is_refused_and_harms_nobody() -> None:
    here = two_running()
    join = here.request("x", IDLE, job="other")
    commands = here.job.handle(Joined(join), 1.0)
    assert sent(commands, Refuse) == ["x"]
    assert Drop("x") in commands
    assert here.job.phase is Phase.RUNNING


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
    here.job.handle(Lost("b", "silence"), 3.0)
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


def test_failures_that_come_from_a_node_that_was_cut_off_cost_no_restart() -> None:
    here = two_running(max_restarts=0)
    here.fail("a")
    here.clear("a")
    here.join("b", now=2.5, state=State.CUT_OFF, clear=True, floor=1)
    assert (here.job.phase, here.job.generation, here.job.restarts) == (Phase.RUNNING, 2, 0)


def test_workers_of_a_node_whose_connection_broke_are_waited_for_until_its_lease_has_surely_ended() -> None:
    here = two_running()
    here.job.handle(Lost("b", "reset", until=4.0), 1.2)
    assert sent(here.clear("a"), Start) == []
    assert here.job.deadline() == 4.0
    assert sent(here.job.handle(Tick(), 4.0), Start) == ["a"]


def test_a_broken_connection_that_its_agent_replaced_first_disturbs_nobody() -> None:
    here = two_running()
    commands = here.join("b", now=2.0)
    assert sent(commands, Welcome) == ["b"]
    assert (here.job.phase, here.job.generation) == (Phase.RUNNING, 1)


def test_an_old_connection_that_comes_late_is_dropped_and_its_node_may_still_have_workers() -> None:
    here = two_running()
    late = msgspec.structs.replace(IDLE, seq=1)
    commands = here.job.handle(Joined(here.request("b", late)), 2.0)
    assert Drop("b") in commands
    assert sent(commands, Welcome) == []
    here.job.handle(Lost("b", "closed"), 2.1)
    assert sent(here.clear("a", now=2.2), Start) == []
    assert here.job.deadline() == 2.0 + here.rules.node_timeout


def test_with_nobody_connected_and_workers_that_may_live_its_deadline_is_when_they_are_dead() -> None:
    here = two_running(empty_timeout=0.5)
    here.job.handle(Lost("a", "closed"), 1.0)
    here.job.handle(Lost("b", "reset", until=4.0), 1.0)
    assert here.job.deadline() == 4.0
    here.job.handle(Tick(), 4.0)
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
    here.job.handle(Lost("a", "closed"), 2.1)
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
    assert Send("b", Stop(1, graceful=True)) in commands
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
    here.job.handle(Lost("a", "closed"), 1.5)
    assert sent(here.clear("b"), Start) == ["c", "b"]
    assert here.job.roster["b"].group_rank == 1


def test_a_late_or_doubled_report_is_not_believed() -> None:
    here = two_running()
    late = msgspec.structs.replace(here.reports["a"], seq=1, state=State.FAILED, failures=(FAILURE,))
    assert here.job.handle(Reported("a", late), 2.0) == []
    assert here.job.handle(Reported("a", here.reports["a"]), 2.0) == []
    assert here.job.phase is Phase.RUNNING


def test_every_report_is_acknowledged_and_a_start_that_was_lost_is_sent_again() -> None:
    here = Rehearsal()
    here.join("a")
    here.join("b")
    commands = here.say("a", 1.0)
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


def test_a_generation_is_newer_than_any_that_a_node_has_heard_of() -> None:
    here = Rehearsal(max_nodes=1)
    here.join("a", floor=41, generation=41)
    assert here.job.generation == 42


def test_every_change_of_course_leaves_a_note_that_says_why() -> None:
    here = two_running()
    commands = here.job.handle(Lost("b", "its connection closed"), 1.2)
    assert Note("generation 1 ends: node b was lost: its connection closed") in commands
