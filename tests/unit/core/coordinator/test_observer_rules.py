"""Observers, without sockets: what they are told, who is refused or dropped, and who may act."""

from __future__ import annotations

import msgspec
import pytest

from outlast.core.coordinator.commands import Break, Close, Command, PublishEvent, Write
from outlast.core.coordinator.coordinator import Coordinator
from outlast.core.coordinator.copying import COPIES
from outlast.core.coordinator.observers import BEAT, FRESH, GATHERED, IDLE, MOST, MOST_UNREAD
from outlast.events.events import JobOver, NodeJoined
from outlast.events.numbered import NumberedEvent
from outlast.protocol.membership import Join, Refuse, Report, State
from outlast.protocol.observers import AnswerKind, Detail, EventBatch, EventCopies, FollowEvents, Portion, ReadView
from outlast.protocol.requests import Answer, Ask
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Term
from outlast.protocol.views import JobView

RULES = Rules(job="j", entrypoint="train.py", min_nodes=1, max_nodes=8, node_timeout=60.0, last_call=0.0)

LAST = 3  # the number of the last event of the fixture: the job began, a node joined, a generation was formed


def join(node: str, **changes: object) -> Join:
    report = Report(seq=1, floor=0, generation=0, state=State.IDLE, clear=True, store_port=1)
    made = Join(node, node, 1, "default", f"addr-{node}", "j", "train.py", (1, 8), report, connection=1, port=29400)
    return msgspec.structs.replace(made, **changes)


def answers(commands: list[Command[str]], to: str) -> list[EventBatch | JobView]:
    found: list[EventBatch | JobView] = []
    data = b""
    for command in commands:
        if isinstance(command, Write) and command.connection == to and isinstance(command.message, Portion):
            data += command.message.data
            if command.message.last:
                kind = EventBatch if command.message.kind is AnswerKind.EVENTS else JobView
                found.append(msgspec.msgpack.decode(data, type=kind))
                data = b""
    return found


def numbers(commands: list[Command[str]], to: str) -> list[int]:
    (batch,) = answers(commands, to)
    assert isinstance(batch, EventBatch)
    return [each.number for each in batch.events]


@pytest.fixture
def coordinator() -> Coordinator[str]:
    made: Coordinator[str] = Coordinator(RULES, 0.0, term=Term(1, "a"), run="r", wall=1000.0)
    made.received("first", join("a"), 1.0)
    made.tick(1.1)
    return made


def test_who_asks_gets_what_came_after_a_number_with_times_of_day_and_terms(coordinator: Coordinator[str]) -> None:
    (batch,) = answers(coordinator.received("o", FollowEvents(), 2.0), "o")
    assert isinstance(batch, EventBatch)
    assert (batch.job, batch.run, batch.gap, batch.acting) == ("j", "r", False, True)
    began, joined, _ = batch.events
    assert (began.number, began.time, began.term) == (1, 1001.0, 1)
    assert isinstance(joined.event, NodeJoined)
    assert numbers(coordinator.received("o", FollowEvents(after=1, wait=False), 2.0), "o") == [2, LAST]


def test_who_is_up_to_date_waits_for_news_which_are_gathered_and_hears_now_and_then(
    coordinator: Coordinator[str],
) -> None:
    assert coordinator.received("o", FollowEvents(after=LAST), 2.0) == []
    assert numbers(coordinator.tick(2.0 + BEAT), "o") == []
    coordinator.received("o", FollowEvents(after=LAST), 13.0)
    for node in "bc":
        commands = coordinator.received(f"second {node}", join(node), 14.0)
        assert not answers(commands, "o")
    due = coordinator.deadline()
    assert due is not None
    assert due <= 14.0 + GATHERED
    assert numbers(coordinator.tick(14.0 + GATHERED), "o")[:2] == [LAST + 1, LAST + 2]


def test_one_that_asks_nothing_is_dropped_and_another_may_come(coordinator: Coordinator[str]) -> None:
    coordinator.received("o", ReadView(), 2.0)
    assert not [c for c in coordinator.tick(2.0 + IDLE - 1) if isinstance(c, Break)]
    (dropped,) = [c for c in coordinator.tick(2.0 + IDLE) if isinstance(c, Break)]
    assert dropped.connection == "o"
    assert not len(coordinator.observers)


def test_one_that_asks_and_does_not_read_is_dropped(coordinator: Coordinator[str]) -> None:
    coordinator.received("o", ReadView(), 2.0)
    (dropped,) = coordinator.received("o", ReadView(), 2.1, unread=MOST_UNREAD + 1)
    assert isinstance(dropped, Break)


def test_above_the_limit_new_ones_are_refused_in_one_line_and_those_who_are_here_stay(
    coordinator: Coordinator[str],
) -> None:
    for number in range(MOST):
        coordinator.received(f"o{number}", ReadView(), 2.0)
    refused, closed = coordinator.received("late", FollowEvents(), 2.0)
    assert isinstance(refused, Write)
    assert isinstance(refused.message, Refuse)
    assert f"{MOST} observers" in refused.message.reason
    assert closed == Close("late")
    coordinator.ended("o0", 2.1)
    assert answers(coordinator.received("late", ReadView(), 2.2), "late")
    assert answers(coordinator.received("o1", ReadView(), 2.2), "o1")


def test_a_view_is_made_once_for_all_who_ask_within_a_second(coordinator: Coordinator[str]) -> None:
    (first,) = answers(coordinator.received("o", ReadView(), 2.0), "o")
    (second,) = answers(coordinator.received("p", ReadView(), 2.0 + FRESH / 2), "p")
    (third,) = answers(coordinator.received("p", ReadView(), 2.0 + FRESH), "p")
    assert first == second != third
    assert isinstance(first, JobView)
    assert isinstance(third, JobView)
    assert (first.time, third.time) == (1002.0, 1003.0)


def test_a_view_has_as_much_as_was_asked_for(coordinator: Coordinator[str]) -> None:
    (brief,) = answers(coordinator.received("o", ReadView(), 2.0), "o")
    (nodes,) = answers(coordinator.received("o", ReadView(Detail.NODES), 2.0), "o")
    assert isinstance(brief, JobView)
    assert isinstance(nodes, JobView)
    assert (brief.nodes, brief.members, brief.ranks, brief.event) == ((), 1, 1, LAST)
    assert [node.name for node in nodes.nodes] == ["a"]


def test_who_has_only_an_observers_token_reads_and_neither_acts_nor_joins(coordinator: Coordinator[str]) -> None:
    assert answers(coordinator.received("o", ReadView(), 2.0, may_act=False), "o")
    told, closed = coordinator.received("o", Ask("stop", "me"), 2.0, may_act=False)
    assert isinstance(told, Write)
    assert isinstance(told.message, Answer)
    assert not told.message.done
    assert closed == Close("o")
    told, _ = coordinator.received("p", join("z"), 2.0, may_act=False)
    assert isinstance(told, Write)
    assert isinstance(told.message, Refuse)
    assert "z" not in coordinator.connections


def test_the_last_event_is_told_at_once(coordinator: Coordinator[str]) -> None:
    coordinator.received("o", FollowEvents(after=LAST), 2.0)
    (batch,) = answers(coordinator.received("p", Ask("stop", "me"), 3.0), "o")
    assert isinstance(batch, EventBatch)
    assert isinstance(batch.events[-1].event, JobOver)


def test_a_successor_never_reuses_a_number_and_tells_what_it_knows_or_that_some_are_lost(
    coordinator: Coordinator[str],
) -> None:
    (batch,) = answers(coordinator.received("o", FollowEvents(), 2.0), "o")
    assert isinstance(batch, EventBatch)
    knowing: Coordinator[str] = Coordinator(RULES, 0.0, term=Term(2, "b"), run="r", history=batch.events)
    commands = knowing.received("first", join("b"), 1.0)
    (number, *_) = [c.numbered.number for c in commands if isinstance(c, PublishEvent)]
    assert number == 1_000_001
    assert numbers(knowing.received("o", FollowEvents(after=1), 2.0), "o")[:3] == [2, LAST, 1_000_001]
    blank: Coordinator[str] = Coordinator(RULES, 0.0, term=Term(2, "b"), run="r")
    blank.received("first", join("b"), 1.0)
    (told,) = answers(blank.received("o", FollowEvents(after=1), 2.0), "o")
    assert isinstance(told, EventBatch)
    assert told.gap


def test_a_number_of_another_run_is_said_to_be_one(coordinator: Coordinator[str]) -> None:
    (batch,) = answers(coordinator.received("o", FollowEvents(after=500, run="older"), 2.0), "o")
    assert isinstance(batch, EventBatch)
    assert batch.gap
    assert [each.number for each in batch.events] == [1, 2, LAST]


def test_a_few_nodes_that_may_host_the_next_coordinator_have_copies_of_the_newest_events() -> None:
    coordinator: Coordinator[str] = Coordinator(
        msgspec.structs.replace(RULES, min_nodes=6, max_nodes=6), 0.0, term=Term(1, "n0"), run="r"
    )
    for number in range(6):
        coordinator.received(f"c{number}", join(f"n{number}", nnodes=(6, 6)), 1.0)
    copied = [c for c in coordinator.tick(1.0 + GATHERED) if isinstance(c, Write) and is_copy(c)]
    assert [c.connection for c in copied] == [f"c{number}" for number in range(1, COPIES + 1)]
    (numbered,) = {tuple(each.number for each in c.message.events) for c in copied}  # type: ignore[union-attr]
    assert numbered[:7] == tuple(range(1, 8))
    coordinator.received("again", msgspec.structs.replace(join("n1", nnodes=(6, 6)), connection=2), 2.0)
    (once_more,) = [c for c in coordinator.tick(2.0 + GATHERED) if isinstance(c, Write) and is_copy(c)]
    assert once_more.connection == "again"


def is_copy(command: Write[str]) -> bool:
    return isinstance(command.message, EventCopies)


def test_an_answer_that_is_larger_than_a_message_comes_in_portions() -> None:
    nodes = tuple(f"node-{number:05}-{'x' * 80}" for number in range(10_000))
    event = NumberedEvent(1, 1.0, 1, NodeJoined(generation=1, node=",".join(nodes), workers=1))
    coordinator: Coordinator[str] = Coordinator(RULES, 0.0, run="r", history=[event])
    commands = coordinator.received("o", FollowEvents(), 2.0)
    assert len(commands) > 3
    (batch,) = answers(commands, "o")
    assert isinstance(batch, EventBatch)
    assert batch.events == (event,)
