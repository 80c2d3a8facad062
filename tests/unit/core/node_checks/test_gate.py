"""Checks in the job: nobody is let in who has not passed, and nobody else is disturbed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from outlast.core.job.commands import Command, Send
from outlast.core.job.inputs import Found, Lost, Straggled
from outlast.core.job.phase import Phase
from outlast.core.stragglers.stragglers import Straggler
from outlast.core.tick import Tick
from outlast.events.events import NodeExcluded
from outlast.protocol.checks import Findings, Probe
from outlast.protocol.failures import FailoverStrategy, ReportedCause
from outlast.protocol.fields import LONGEST_REASON
from outlast.protocol.generations import Start
from outlast.protocol.membership import Notice, Over, State
from rehearsal import FAILURE, Rehearsal, published, sent, texts


class Checked(Rehearsal):
    """A job with checks, whose nodes answer probes: well, unless they are said to die, to be deaf, or slow."""

    def __init__(self, **rules: Any) -> None:
        super().__init__(**{"network_check": True, "last_call": 3.0, **rules})
        self.dies: Collection[str] = ()
        self.deaf: Collection[str] = ()
        self.slow: Collection[str] = ()
        self.network: Mapping[str, float] = {}
        self.probes: list[list[str]] = []  # of each round, those who were asked

    def settle(self, commands: list[Command], now: float = 1.0) -> list[Command]:
        """Answer all probes, until there are none. Returns everything that came of it."""
        out = list(commands)
        while asked := {c.node: c.message for c in commands if isinstance(c, Send) and isinstance(c.message, Probe)}:
            self.probes.append(sorted(asked))
            ports: dict[int, list[str]] = {}
            for node, probe in asked.items():
                ports.setdefault(hash((probe.master_addr, probe.master_port)), []).append(node)
            commands = []
            for node, probe in asked.items():
                group = next(group for group in ports.values() if node in group)
                commands += self.handle(Found(node, self.answer(node, probe, group)), now)
            if not any(isinstance(c, Send) and isinstance(c.message, Probe) for c in commands) and self.job.deadline():
                now = max(now, self.job.deadline() or now)
                commands += self.handle(Tick(), now)
            out += commands
        return out

    def answer(self, node: str, probe: Probe, group: list[str]) -> Findings:
        figures = {"compute": 10.0 if node in self.slow else 100.0, "network": self.network.get(node, 1.0)}
        found = Findings(probe.term, probe.number, figures=figures)
        if node in self.dies:
            return replace(found, alone="killed", figures={})
        if len(group) > 1 and any(each in self.deaf or each in self.dies for each in group):
            return replace(found, together="no route to host")
        return found


def notes(commands: list[Command]) -> str:
    return "\n".join(texts(commands))


def running(*nodes: str, **rules: Any) -> Checked:
    """These run generation 1, and have been checked."""
    here = Checked(**{"max_nodes": len(nodes), "min_nodes": 1, "max_restarts": 3, **rules})
    for node in nodes:
        out = here.join(node)
    out += here.handle(Tick(), 3.0)
    assert set(sent(here.settle(out, now=3.0), Start)) == set(nodes)
    here.run(*nodes)
    here.probes.clear()
    return here


def test_nodes_are_checked_before_they_are_started() -> None:
    here = Checked(min_nodes=2)
    here.join("a")
    commands = here.join("b")
    assert (set(sent(commands, Probe)), sent(commands, Start)) == ({"a", "b"}, [])
    assert sent(here.settle(commands), Start) == ["a", "b"]
    assert here.probes == [["a", "b"]]


def test_a_probe_that_was_not_heard_is_said_again() -> None:
    here = Checked(min_nodes=2)
    here.join("a")
    here.join("b")
    here.beat("a", now=0.5)
    assert sent(here.say("a", now=0.6), Probe) == ["a"]


@pytest.mark.parametrize(("slow", "named"), [((), False), (("d",), True)], ids=["in its network", "in its compute"])
def test_a_newcomers_network_beside_training_is_not_compared_with_that_of_a_quiet_one(
    slow: Collection[str], named: bool
) -> None:
    here = running("a", "b", "c", max_nodes=4, min_nodes=1)
    here.network, here.slow = {"d": 0.1}, slow  # of the others it was 1.0
    out = here.settle(here.join("d", now=4.0), now=4.0)
    assert ("slower than the median" in notes(out)) == named
    assert "in network" not in notes(out)


def test_a_spare_that_was_not_checked_does_not_replace_a_straggler() -> None:
    here = running("a", "b", min_nodes=2, straggler="exclude")
    here.join("c", now=4.0)
    lasts = Straggler(1, (1,), "forward", 1.8, 410, lasts=True)
    assert "node b stays, for without it there are fewer than 2" in notes(here.handle(Straggled("b", lasts), 4.1))
    assert here.job.phase is Phase.RUNNING


def test_a_faulty_node_is_left_out_and_a_spare_takes_its_place() -> None:
    here = Checked(min_nodes=3, max_nodes=3)
    here.dies = ["b"]
    here.join("a")
    here.join("b")
    commands = here.join("c")
    assert set(sent(commands, Probe)) == {"a", "b", "c"}
    late = here.join("d")  # while it is under way
    assert sent(late, Probe) == []
    out = here.settle(commands)
    assert set(sent(out, Start)) == {"a", "c", "d"}
    assert [event.node for event in published(out, NodeExcluded)] == ["b"]
    assert "b     faulty" in notes(out)
    assert here.probes[-1] == sorted({"d", *here.probes[-1]}), "the newcomer was checked before it was let in"


def test_who_was_left_out_and_why_is_in_the_log_of_every_node_and_where_the_table_is() -> None:
    here = Checked(min_nodes=2, max_nodes=3)
    here.dies = ["b"]
    here.join("a")
    here.join("b")
    out = here.settle(here.join("c"))
    told = {c.node: c.message.text for c in out if isinstance(c, Send) and isinstance(c.message, Notice)}
    assert set(told) == {"b", "c"}, "a hosts the coordinator, and has the table itself"
    assert set(told.values()) == {"excluded: b, faulty: killed (the table is in the log of node a)"}


def test_a_line_about_many_that_did_not_pass_is_no_longer_than_a_node_takes() -> None:
    nodes = [f"{letter}{'-long' * 48}" for letter in "abcdefghijkl"]
    here = Checked(min_nodes=1, max_nodes=12)
    here.dies, here.slow = nodes[1:4], nodes[4:7]
    for node in nodes[:-1]:
        here.join(node)
    out = here.settle(here.join(nodes[-1]))
    told = [c.message.text for c in out if isinstance(c, Send) and isinstance(c.message, Notice)]
    assert max(map(len, told)) == LONGEST_REASON


def test_a_job_with_too_few_fit_nodes_says_whom_it_waits_for_and_what_to_do() -> None:
    here = Checked(min_nodes=3, max_nodes=3)
    here.dies = ["b"]
    here.join("a")
    here.join("b")
    out = here.settle(here.join("c"))
    waits = "waiting for at least 3 nodes; 2 here: a, c; excluded: b (killed); "
    assert f"{waits}to replace them, start the same command on other nodes" in notes(out)
    told = next(c.message.text for c in out if isinstance(c, Send) and isinstance(c.message, Notice))
    assert told.endswith("; waiting for at least 3")


def test_when_all_nodes_are_bad_the_job_fails_with_the_table() -> None:
    here = Checked(min_nodes=1, max_nodes=2)
    here.dies = ["a", "b"]
    here.join("a")
    here.settle(here.join("b"))
    outcome = here.job.outcome
    assert outcome is not None
    assert outcome.reason.startswith("no node is fit: ")
    assert outcome.table.count("faulty") >= 2


def test_two_that_only_fail_together_are_not_blamed_and_one_goes_on() -> None:
    here = running("a", "b")
    assert here.job.phase is Phase.RUNNING
    both = Checked(min_nodes=1, max_nodes=2)
    both.deaf = ["a"]
    both.join("a")
    out = both.settle(both.join("b"))
    assert len(both.job.roster) == 1
    assert not published(out, NodeExcluded)


def test_where_min_needs_both_they_stay_and_that_is_said() -> None:
    here = Checked(min_nodes=2, max_nodes=2)
    here.deaf = ["a"]
    here.join("a")
    out = here.settle(here.join("b"))
    assert set(sent(out, Start)) == {"a", "b"}
    assert "stays, for without it there are fewer than 2" in notes(out)


def test_a_restart_checks_nobody() -> None:
    here = running("a", "b")
    here.fail("a")
    out = here.clear("a", "b")
    assert (sent(out, Probe), set(sent(out, Start))) == ([], {"a", "b"})


def test_a_newcomer_is_checked_alone_while_the_others_train() -> None:
    here = running("a", "b", max_nodes=3)
    commands = here.join("c", now=4.0)
    assert (sent(commands, Probe), here.job.phase) == (["c"], Phase.RUNNING)
    here.settle(commands, now=4.5)
    assert here.job.phase is Phase.STOPPING
    assert set(sent(here.clear("a", "b", now=5.0), Start)) == {"a", "b", "c"}


def test_whoever_is_about_to_train_is_not_asked_to_help_with_a_check() -> None:
    here = running("a", "b", max_nodes=3)
    here.fail("a", now=4.0)
    here.join("c", now=4.1)
    out = here.clear("a", "b", now=4.2)
    assert (set(sent(out, Start)), set(sent(out, Probe))) == ({"a", "b"}, {"c"})


def test_a_spare_that_helps_with_a_check_may_be_called_away() -> None:
    here = running("a", "b", max_nodes=2, min_nodes=2)
    here.settle(here.join("c", now=4.0), now=4.1)
    assert set(sent(here.join("d", now=4.2), Probe)) == {"c", "d"}
    here.handle(Lost("a", "its connection closed", ended=True), 4.3)
    assert set(sent(here.clear("b", now=4.4), Start)) == {"b", "c"}
    out = here.handle(Tick(), 5.0)
    assert sent(out, Probe) == ["d"], "it goes on without the other"
    here.settle(out, now=5.1)
    assert not here.job._state.admissions.gate.busy


def test_a_faulty_newcomer_disturbs_nobody() -> None:
    here = running("a", "b", max_nodes=3)
    here.dies = ["c"]
    out = here.settle(here.join("c", now=4.0), now=4.5)
    assert here.job.phase is Phase.RUNNING
    assert [event.node for event in published(out, NodeExcluded)] == ["c"]


def test_a_survivor_that_has_come_into_doubt_is_checked_before_it_goes_on() -> None:
    here = running("a", "b", min_nodes=2, failover=True)
    cause = ReportedCause("gpu-lost", "the GPU is gone", domain="hardware")
    failure = replace(FAILURE, cause=cause, strategy=FailoverStrategy.NODE)
    here.say("a", 1.5, state=State.FAILED, failures=(failure,))
    commands = here.clear("a", "b")
    assert (set(sent(commands, Probe)), sent(commands, Start)) == ({"a", "b"}, [])
    assert set(sent(here.settle(commands), Start)) == {"a", "b"}


def test_a_straggler_is_named_and_stays_unless_it_is_to_be_excluded() -> None:
    for exclude in (False, True):
        here = Checked(min_nodes=2, max_nodes=4, exclude_straggler=exclude)
        here.slow = ["d"]
        for node in "abcd":
            out = here.settle(here.join(node))
        assert "d     slow" in notes(out)
        assert ("d" in here.job.roster) is not exclude


def test_a_straggler_is_not_excluded_below_min() -> None:
    here = Checked(min_nodes=4, max_nodes=4, exclude_straggler=True)
    here.slow = ["d"]
    for node in "abcd":
        out = here.settle(here.join(node))
    assert "d" in here.job.roster
    assert "node d stays, for without it there are fewer than 4" in notes(out)


def test_one_that_is_lost_while_it_is_checked_holds_nobody_up() -> None:
    here = Checked(min_nodes=1, max_nodes=2)
    here.join("a")
    here.join("b")
    here.handle(Lost("b", "silence"), 1.0)
    commands = here.handle(Tick(), here.job.deadline() or 0.0)
    here.settle(commands, now=2.0)
    here.handle(Tick(), 10.0)
    assert list(here.job.roster) == ["a"]


def test_a_check_alone_ends_with_its_table_and_starts_nothing() -> None:
    for dies in ([], ["a"]):
        here = Checked(min_nodes=2, max_nodes=2, check_only=True)
        here.dies = dies
        here.join("a")
        out = here.settle(here.join("b"))
        assert (sent(out, Start), sent(out, Over)) == ([], ["a", "b"])
        outcome = here.job.outcome
        assert outcome is not None
        assert outcome.success is not bool(dies)
        assert "b     good" in outcome.table


def test_a_coordinator_that_takes_over_checks_nobody_who_runs() -> None:
    here = running("a", "b")
    here.succeed("a", 2, now=4.0, memory=True)
    for node in "ab":
        here.join(node, now=4.1)
        here.say(node, now=4.2)
    assert here.job.phase is Phase.RUNNING
    here.fail("a", now=4.3)
    out = here.clear("a", "b", now=4.4)
    for now in range(5, 10):  # until the leases of the one before have ended
        here.beat("a", "b", now=now)
        out += here.handle(Tick(), now)
    assert (sent(out, Probe), here.job.phase, here.job.restarts) == ([], Phase.RUNNING, 1)
