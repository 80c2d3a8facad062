"""Ranks are late: all nodes are asked where theirs are, and the one that the others wait for is named, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.cli.replay import Replay
from outlast.core.hangs.inquiry import PATIENCE, QUIET
from outlast.core.job.commands import Command, Send
from outlast.core.job.inputs import Event, Lost, Saw
from outlast.core.job.job import Job
from outlast.core.job.phase import Phase
from outlast.core.node.commands import Blame, Observe, Show, StartWorkers, Tell
from outlast.core.node.commands import Command as NodeCommand
from outlast.core.node.hangs import REPEATED
from outlast.core.node.inputs import Cleared, Connected, Disconnected, Late, Observed, Received
from outlast.core.node.node import Node
from outlast.core.tick import Tick
from outlast.core.tick import Tick as NodeTick
from outlast.diagnosis.observation import Observation
from outlast.diagnosis.stack import Frame, Stack
from outlast.events.events import HangNamed
from outlast.events.sentences import sentence
from outlast.journal import Began, Journal, read
from outlast.protocol.failures import Failure
from outlast.protocol.generations import Assignment, Start, Stop
from outlast.protocol.hangs import Look, Named, Overdue, Seen
from outlast.protocol.membership import Ack, Join, Report, State, Welcome
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.succession import Charter, Standing, Term
from rehearsal import Rehearsal, published, texts

C10D = "/venv/lib/python3/site-packages/torch/distributed/distributed_c10d.py"
WAITS = Stack(frames=(Frame("all_reduce", C10D, 1), Frame("train", "/home/train.py", 50)), state="S")
SLEEPS = Stack(frames=(Frame("load", "/home/train.py", 81),), state="S", wchan="hrtimer_nanosleep")
IDLE = Report(seq=0, floor=0, generation=0, state=State.IDLE, clear=True, store_port=7)
RULES = {"max_nodes": 3, "max_restarts": 3, "node_timeout": 60.0}
FIRST_RANK = {"a": 0, "b": 2, "c": 4}
SENTENCE = "rank 3 on b blocks the others: stuck in load at train.py:81, sleeping; 5 ranks wait in all_reduce"
ENDING, SUSPECTED = Overdue(1, ending=True), Overdue(1, ending=False)


def where(node: str, late: bool = True) -> tuple[Observation, ...]:
    """What a node sees of its two ranks: rank 3 sleeps, and all others wait for it."""
    first = FIRST_RANK[node]
    if node != "b":
        return (Observation(rank=first, also=(first + 1,), node=node, late=late, stack=WAITS),)
    return (
        Observation(rank=2, node=node, late=late, stack=WAITS),
        Observation(rank=3, node=node, late=late, stack=SLEEPS),
    )


class LateJob(Rehearsal):
    """A job of nodes a, b and c, with two ranks each, which run generation 1."""

    def __init__(self, **rules: Any) -> None:
        super().__init__(**RULES, **rules)
        for node in "abc":
            self.join(node)
        self.run(*"abc")
        assert self.job.phase is Phase.RUNNING

    def request(self, node: str, report: Report, **changes: Any) -> Join:
        return super().request(node, report, nproc=2, **changes)

    def saw(self, *nodes: str, now: float = 10.1, generation: int = 1, number: int = 1, **how: bool) -> list[Command]:
        return [
            command
            for node in nodes
            for command in self.job.handle(Saw(node, Seen(generation, number, where(node, **how))), now)
        ]

    def tick(self, now: float) -> list[Command]:
        return self.job.handle(Tick(), now)


def sent(commands: list[Command], kind: type[FromCoordinator]) -> dict[str, Any]:
    return {c.node: c.message for c in commands if isinstance(c, Send) and isinstance(c.message, kind)}


def named(commands: list[Command]) -> list[str]:
    return [sentence(event) for event in published(commands, HangNamed)]


def test_when_a_rank_is_late_anywhere_all_nodes_are_asked() -> None:
    here = LateJob()
    out = here.say("c", 10.0, overdue=ENDING)
    assert sent(out, Look) == dict.fromkeys("abc", Look(1, 1, interrupt=True))


def test_for_a_suspicion_nobody_is_interrupted() -> None:
    here = LateJob()
    out = here.say("c", 10.0, overdue=SUSPECTED)
    assert sent(out, Look)["a"] == Look(1, 1, interrupt=False)


def test_when_all_have_answered_the_culprit_is_named_to_people_and_to_all_nodes() -> None:
    here = LateJob()
    here.say("a", 10.0, overdue=ENDING)
    assert not named(here.saw("a", "b"))
    out = here.saw("c")
    assert named(out) == [f"generation 1: {SENTENCE}"]
    assert sent(out, Named) == dict.fromkeys("abc", Named(1, 1, (3,), SENTENCE))
    assert here.job.phase is Phase.RUNNING  # whom to end is the agents' matter


def test_what_the_event_of_a_hang_is_about_is_there_for_programs_as_well() -> None:
    here = LateJob()
    here.say("a", 10.0, overdue=ENDING)
    (hang,) = published(here.saw("a", "b", "c"), HangNamed)
    assert (hang.generation, hang.ranks, hang.where) == (1, (3,), "train.py:81")


def test_a_node_that_does_not_answer_is_waited_for_in_bounds_and_what_was_seen_is_compared() -> None:
    here = LateJob()
    here.say("a", 10.0, overdue=ENDING)
    here.saw("a", "c")
    assert here.job.deadline() == 10.0 + PATIENCE
    out = here.tick(10.0 + PATIENCE)
    (text,) = named(out)
    assert "ranks 2, 3 on b block the others: nothing could be seen" in text
    assert text.endswith("(its node gave no stacks in time); 4 ranks wait in all_reduce")
    assert set(sent(out, Named)) == set("abc")
    assert here.saw("b", now=11.0) == []
    assert here.job.deadline() is None


def test_many_late_ranks_within_a_moment_make_one_inquiry_and_one_sentence() -> None:
    here = LateJob()
    looks = sent(here.say("a", 10.0, overdue=ENDING), Look)
    out = here.say("b", 10.01, overdue=ENDING)
    out += here.saw("a", "b", "c")
    out += here.say("c", 10.02, overdue=ENDING)  # it has said it before it heard who it was
    assert looks
    assert named(out) == [f"generation 1: {SENTENCE}"]


def test_what_a_node_says_again_is_not_news() -> None:
    here = LateJob()
    here.say("a", 10.0, overdue=ENDING)
    here.saw("a", "b", "c")
    assert not sent(here.say("a", 11.0), Look)
    assert not sent(here.join("a", 12.0), Look)
    assert sent(here.say("a", 13.0, overdue=Overdue(2, ending=True)), Look)


@pytest.mark.parametrize(("generation", "number"), [(1, 7), (2, 1), (1, 0)])
def test_an_answer_to_another_question_is_no_answer(generation: int, number: int) -> None:
    here = LateJob()
    here.say("a", 10.0, overdue=ENDING)
    out = here.saw("a", "b", "c", generation=generation, number=number)
    assert out == []
    assert here.job.idle
    assert named(here.saw("a", "b", "c"))


def test_a_doubled_answer_counts_once() -> None:
    here = LateJob()
    here.say("a", 10.0, overdue=ENDING)
    assert not named(here.saw("a", "a", "a", "b", "b"))
    assert "5 ranks wait" in named(here.saw("c"))[0]


def test_who_is_suspected_is_named_once_and_nobody_is_told_to_end_for_it() -> None:
    here = LateJob()
    here.say("a", 10.0, overdue=SUSPECTED)
    out = here.saw("a", "b", "c")
    assert named(out) == [f"generation 1: {SENTENCE}"]
    assert not sent(out, Named)
    # The others follow, one after the other: they are not a reason to ask ten thousand nodes each time.
    assert not sent(here.say("b", 11.0, overdue=SUSPECTED), Look)
    assert here.job.deadline() == 10.0 + QUIET
    assert sent(here.tick(10.0 + QUIET), Look)
    assert not named(here.saw("a", "b", "c", number=2, now=10.1 + QUIET))


def test_who_is_about_to_be_ended_is_not_kept_waiting_by_a_suspicion() -> None:
    here = LateJob()
    here.say("a", 10.0, overdue=SUSPECTED)
    here.say("b", 10.01, overdue=ENDING)
    out = here.saw("a", "b", "c")
    assert sent(out, Look) == dict.fromkeys("abc", Look(1, 2, interrupt=True))
    assert set(sent(here.saw("a", "b", "c", number=2), Named)) == set("abc")


def test_nobody_is_blamed_for_a_suspicion_that_has_passed() -> None:
    here = LateJob()
    here.say("a", 10.0, overdue=SUSPECTED)
    assert not named(here.saw("a", "b", "c", late=False))


def test_a_node_that_has_finished_is_not_asked() -> None:
    here = LateJob()
    here.say("c", state=State.FINISHED, clear=True, floor=1)
    assert set(sent(here.say("a", 10.0, overdue=ENDING), Look)) == {"a", "b"}


def test_a_generation_that_ends_meanwhile_ends_the_inquiry() -> None:
    here = LateJob()
    here.say("a", 10.0, overdue=ENDING)
    here.job.handle(Lost("b", "its connection closed"), 10.05)
    assert here.job.phase is Phase.STOPPING
    assert not named(here.saw("a", "c"))
    for node in "ac":
        here.say(node, 11.0, clear=True, floor=1, state=State.IDLE, overdue=None)
    assert here.job.generation == 2
    assert not named(here.tick(12.0))
    assert not named(here.saw("a", "c", now=12.0, generation=1))


def test_a_coordinator_that_takes_over_asks_again() -> None:
    """What is repeated in the reports of the nodes is news to it; an answer to the one before is none to it."""
    here = LateJob()
    here.say("a", 10.0, overdue=ENDING)
    here.job = Job(here.rules, 10.2, term=Term(2, "b"), run="r")
    for node in "abc":
        here.join(node, 10.3)
    out = [command for node in "abc" for command in here.say(node, 10.4)]
    assert sent(out, Look) == dict.fromkeys("abc", Look(1, 1, interrupt=True))
    assert named(here.saw("a", "b", "c", now=10.5)) == [f"generation 1: {SENTENCE}"]


def test_an_inquiry_can_be_replayed_from_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal", fresh=True)
    journal.began(Began(0.0, LateJob().rules, Term(1, "a"), "r", None))
    decide = Job.handle

    def recorded(job: Job, event: Event, now: float) -> list[Command]:
        commands = decide(job, event, now)
        if not job.idle:
            journal.happened(now, event, job.answers, commands)
        return commands

    with monkeypatch.context() as patch:
        patch.setattr(Job, "handle", recorded)
        here = LateJob()
        here.say("a", 10.0, overdue=ENDING)
        here.saw("a", "b")
        here.tick(10.0 + PATIENCE)
    journal.close()
    replay = Replay()
    lines = list(replay.lines(read((tmp_path / "journal").read_bytes())))
    assert replay.different == 0
    assert any("rank 3 on b blocks the others" in line for line in lines)


def failure(rank: int, node: str, **changes: Any) -> Failure:
    return msgspec.structs.replace(Failure(node, node, rank, 0, 77, -9, 0.0, "Hung", hung="it is late"), **changes)


def ended(here: LateJob) -> list[Command]:
    out = []
    for node in "abc":
        state = State.FAILED if here.reports[node].failures else State.IDLE
        out += here.say(node, 12.0, clear=True, floor=1, state=state, overdue=None)
    return out


def test_the_culprit_is_the_root_failure_though_the_clock_of_another_ran_out_first() -> None:
    here = LateJob()
    here.say("a", 11.0, state=State.FAILED, failures=(failure(0, "a"),))
    here.say("b", 11.1, state=State.FAILED, failures=(failure(3, "b", culprit=True),))
    told = texts(ended(here))
    assert "restart 1 of 3: rank 3 on node b hung" in told


def test_a_rank_that_failed_by_itself_stays_the_root() -> None:
    here = LateJob()
    here.say("a", 11.0, state=State.FAILED, failures=(failure(0, "a", hung="", exit_code=1),))
    here.say("b", 11.1, state=State.FAILED, failures=(failure(3, "b", culprit=True),))
    told = texts(ended(here))
    assert "restart 1 of 3: rank 0 on node a failed (exit code 1)" in told


# -- the node


PLACE = Assignment(1, 0, 3, 0, 6, 0, 6, "a", 7, 0)


def running() -> Node:
    node = Node("a")
    node.handle(Connected(Standing(Term(1, "c"), True)), 0.0)
    node.handle(Received(Welcome(1.0, 60.0, 0.05)), 0.0)
    out = node.handle(Received(Start(PLACE, 1, Charter("r", LateJob().rules), 1)), 0.0)
    assert any(isinstance(command, StartWorkers) for command in out)
    return node


def reported(commands: list[NodeCommand]) -> Report:
    (told,) = [command.report for command in commands if isinstance(command, Tell)]
    return told


def test_a_node_reports_at_once_that_ranks_are_late_and_repeats_it_for_a_while() -> None:
    node = running()
    assert reported(node.handle(Late(1, ending=True), 5.0)).overdue == ENDING
    assert reported(node.handle(NodeTick(), 6.0)).overdue == ENDING
    assert reported(node.handle(Connected(Standing(Term(2, "b"), True)), 7.0)).overdue == ENDING
    assert reported(node.handle(Connected(Standing(Term(2, "b"), True)), 5.0 + REPEATED)).overdue is None


def test_each_time_is_another_number() -> None:
    node = running()
    node.handle(Late(1, ending=False), 5.0)
    assert reported(node.handle(Late(1, ending=True), 5.1)).overdue == Overdue(2, ending=True)


def test_a_node_looks_when_it_is_asked_and_says_what_it_sees() -> None:
    node = running()
    assert node.handle(Received(Look(1, 4, interrupt=True)), 5.0) == [Observe(4, interrupt=True)]
    assert node.handle(Observed(1, 4, where("a")), 5.1) == [Show(Seen(1, 4, where("a")))]
    assert node.handle(Received(Named(1, 4, (3,), SENTENCE)), 5.2) == [Blame(Named(1, 4, (3,), SENTENCE))]


@pytest.mark.parametrize("message", [Look(2, 1, True), Look(0, 1, True), Named(1, 1, (0,), "not asked before")])
def test_what_is_about_another_generation_or_inquiry_is_refused(message: FromCoordinator) -> None:
    assert running().handle(Received(message), 5.0) == []


def test_what_was_seen_for_one_coordinator_is_not_told_to_another() -> None:
    node = running()
    node.handle(Received(Look(1, 1, interrupt=True)), 5.0)
    node.handle(Disconnected(), 5.1)
    node.handle(Connected(Standing(Term(2, "b"), True)), 5.2)
    assert node.handle(Observed(1, 1, where("a")), 5.3) == []


def test_a_node_that_stops_its_workers_neither_looks_nor_blames() -> None:
    node = running()
    node.handle(Received(Look(1, 1, interrupt=True)), 5.0)
    node.handle(Received(Stop(1, 1)), 5.1)
    assert node.handle(Received(Named(1, 1, (0,), SENTENCE)), 5.2) == []
    assert node.handle(Observed(1, 1, where("a")), 5.2) == []
    assert node.handle(Late(1, ending=True), 5.2) == []


def test_lateness_does_not_outlive_its_generation() -> None:
    node = running()
    node.handle(Late(1, ending=True), 5.0)
    node.handle(Received(Stop(1, 1)), 5.1)
    node.handle(Cleared(1), 5.2)
    node.handle(Received(Ack(3, 1)), 5.2)
    place = msgspec.structs.replace(PLACE, generation=2)
    assert reported(node.handle(Received(Start(place, 1, Charter("r", LateJob().rules), 4)), 5.3)).overdue is None
