"""The coordinator without its sockets: which connection counts, and what its end means."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from outlast.core.coordinator.commands import Break, Close, Command, JournalEntry, Write
from outlast.core.coordinator.coordinator import Coordinator
from outlast.core.job.commands import Reply
from outlast.core.job.inputs import Lost
from outlast.core.membership.liveness import ORPHANS
from outlast.core.succession.authority import Memory
from outlast.events.reasons import NodeLoss
from outlast.protocol.generations import Start
from outlast.protocol.membership import Ack, Join, Report, State, Welcome
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.requests import Answer, Ask
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Ballot, Charter, Successor, Term

RULES = Rules(job="j", entrypoint="train.py", min_nodes=1, max_nodes=2, node_timeout=4.0, last_call=60.0)


def report(seq: int = 1) -> Report:
    return Report(seq=seq, floor=0, generation=0, state=State.IDLE, clear=True, store_port=1)


def join(node: str = "a", seq: int = 1, connection: int = 1) -> Join:
    return Join(node, node, 1, "default", "addr", "j", "train.py", (1, 2), report(seq), connection=connection)


def sent(commands: list[Command[str]], to: str) -> list[FromCoordinator]:
    return [c.message for c in commands if isinstance(c, Write) and c.connection == to]


def lost(commands: list[Command[str]]) -> list[Lost]:
    return [c.event for c in commands if isinstance(c, JournalEntry) and isinstance(c.event, Lost)]


@pytest.fixture
def coordinator() -> Coordinator[str]:
    made: Coordinator[str] = Coordinator(RULES, 0.0, term=Term(1, "a"), run="r")
    made.received("first", join(), 1.0)
    return made


def test_the_newest_connection_of_a_node_counts_and_the_one_before_is_broken(coordinator: Coordinator[str]) -> None:
    commands = coordinator.received("second", join(seq=2, connection=2), 1.5)
    assert Break("first") in commands
    assert any(isinstance(message, Welcome) for message in sent(commands, "second"))
    assert coordinator.received("first", report(seq=9), 1.6) == []
    assert coordinator.ended("first", 1.7) == []
    assert dict(coordinator.connections) == {"a": "second"}


def test_an_agent_that_closes_its_connection_has_ended_and_the_kernel_ends_its_workers(
    coordinator: Coordinator[str],
) -> None:
    assert lost(coordinator.ended("first", 2.0)) == [Lost("a", "its connection closed", 2.0 + ORPHANS, ended=True)]
    assert not coordinator.connections


def test_workers_behind_a_connection_that_broke_may_live_until_their_lease_has_ended(
    coordinator: Coordinator[str],
) -> None:
    coordinator.received("first", report(2), 2.0)
    (found,) = lost(coordinator.ended("first", 3.0, broke="reset"))
    assert found == Lost("a", "its connection broke (reset)", 6.0, heard=2.0, loss=NodeLoss.BROKEN)


def test_a_node_that_was_silent_for_too_long_is_lost_and_its_workers_have_ended(coordinator: Coordinator[str]) -> None:
    coordinator.received("other", join("b"), 1.5)  # the only node of a job is waited for, however long it is silent
    assert coordinator.deadline() == 5.0
    assert lost(coordinator.tick(4.9)) == []
    commands = coordinator.tick(5.0)
    assert Break("first") in commands
    assert lost(commands) == [Lost("a", "nothing heard for 4 s", heard=1.0, loss=NodeLoss.SILENT)]
    assert coordinator.ended("first", 5.1, broke="aborted") == []


def test_nobody_is_silent_since_this_coordinator_has_stopped_reading(coordinator: Coordinator[str]) -> None:
    coordinator.received("other", join("b"), 2.0)
    assert lost(coordinator.tick(9.0, heard_until=4.0)) == []


@pytest.mark.parametrize("twice", [True, False])
def test_who_does_not_keep_to_the_protocol_is_cut_off(coordinator: Coordinator[str], twice: bool) -> None:
    message = join() if twice else report()
    (command,) = coordinator.received("first" if twice else "stranger", message, 2.0)
    assert isinstance(command, Break)
    assert command.why


def test_who_asks_is_answered_where_it_asked(coordinator: Coordinator[str]) -> None:
    refused = Answer(False, "nothing to restart: the job is forming")
    commands = coordinator.received("somebody", Ask("restart", "me"), 2.0)
    assert commands[-2:] == [Write("somebody", refused), Close("somebody")]
    assert coordinator.asked(Ask("restart", "SIGHUP"), 2.0)[-1] == Reply(refused)


def test_a_term_is_never_begun_twice_whatever_its_agent_knew() -> None:
    remembered = Memory(run="r", term=7)
    assert Coordinator(RULES, 0.0, term=Term(2, "a"), memory=remembered).term == Term(8, "a")
    assert Coordinator(RULES, 0.0, term=Term(9, "a"), memory=remembered).term == Term(9, "a")


def test_a_successor_that_only_newcomers_have_joined_gives_no_lease_and_forms_nothing() -> None:
    """All that it has is the charter of its host: more than half of the members are elsewhere, and may run on."""
    rules = replace(RULES, last_call=0.0)
    members = tuple(Successor(name, name, name, 1) for name in ("a", "b"))
    charter = Charter("r", rules, (Ballot(generation=1, formed=1, affirmed=1, total=5, votes=2),), members)
    coordinator: Coordinator[str] = Coordinator(rules, 0.0, term=Term(2, "b"), run="r", charter=charter)
    said: list[FromCoordinator] = []
    for now in range(1, 40):
        commands = coordinator.received("new", join("n", now), now) if now == 1 else coordinator.tick(now)
        commands += coordinator.received("new", report(now + 1), now)
        said += sent(commands, "new")
    assert [type(message) for message in said] == [Welcome]
    assert said[0].successors == members  # type: ignore[union-attr]
    assert not any(isinstance(message, Ack | Start) for message in said)
