"""Questions about logs on their way through the coordinator: who is asked, who is answered, and when."""

from __future__ import annotations

import pytest

from outlast.core.coordinator.commands import Write
from outlast.core.coordinator.log_relay import AHEAD, PATIENCE, RATE, LogRelay
from outlast.protocol.logs import ANSWER, AskLogs, LogAnswer, LogQuestion, LogsTold


class Relayed:
    """A relay between observers and the nodes a, b and c."""

    def __init__(self) -> None:
        self.here = {name: f"line {name}" for name in "abc"}
        self.over = False
        self.told: list[tuple[str, LogsTold]] = []
        self.relay: LogRelay[str] = LogRelay(
            self.here.get, lambda observer, told: self.told.append((observer, told)), lambda: self.over
        )

    def ask(self, *nodes: str, observer: str = "o", now: float = 0.0) -> list[int]:
        """The numbers of the questions that nodes get."""
        writes = self.relay.ask(observer, AskLogs(tuple((node, b"?") for node in nodes)), now)
        numbers = []
        for write, node in zip(writes, [node for node in nodes if node in self.here], strict=False):
            assert isinstance(write.message, LogQuestion)
            assert write == Write(self.here[node], LogQuestion(write.message.number, b"?"))
            numbers.append(write.message.number)
        return numbers

    def answer(self, node: str, number: int, data: bytes = b"!", now: float = 0.1) -> None:
        self.relay.answered(node, LogAnswer(number, data), now)


@pytest.fixture
def relayed() -> Relayed:
    return Relayed()


def test_one_answer_has_what_all_nodes_said_and_those_that_are_not_here_are_left_out(relayed: Relayed) -> None:
    first, second = relayed.ask("a", "b", "gone")
    relayed.answer("b", second, b"of b")
    assert not relayed.told
    relayed.answer("a", first, b"of a")
    assert relayed.told == [("o", LogsTold({"a": b"of a", "b": b"of b"}))]
    assert relayed.relay.deadline() is None


def test_nobody_here_is_an_answer_at_once_and_the_end_of_the_job_is_told(relayed: Relayed) -> None:
    relayed.over = True
    assert relayed.ask("gone") == []
    assert relayed.told == [("o", LogsTold(over=True))]


def test_a_node_that_says_nothing_holds_up_nobody_for_long(relayed: Relayed) -> None:
    first, second = relayed.ask("a", "b")
    relayed.answer("a", first)
    relayed.relay.tick(PATIENCE - 0.1)
    assert not relayed.told
    assert relayed.relay.deadline() == PATIENCE
    relayed.relay.tick(PATIENCE)
    assert relayed.told == [("o", LogsTold({"a": b"!"}, silent=("b",)))]
    relayed.answer("b", second)  # too late
    assert len(relayed.told) == 1


def test_a_node_that_is_lost_is_not_waited_for(relayed: Relayed) -> None:
    first, _ = relayed.ask("a", "b")
    relayed.answer("a", first)
    relayed.relay.lost("b")
    assert relayed.told == [("o", LogsTold({"a": b"!"}))]


def test_no_node_can_answer_for_another_and_nobody_gets_anothers_answer(relayed: Relayed) -> None:
    (number,) = relayed.ask("a")
    (other,) = relayed.ask("a", observer="p")
    relayed.answer("b", number, b"forged")
    relayed.answer("b", 999, b"made up")
    relayed.answer("a", other, b"for p")
    assert relayed.told == [("p", LogsTold({"a": b"for p"}))]


def test_a_second_request_takes_the_place_of_the_first_and_who_leaves_is_forgotten(relayed: Relayed) -> None:
    (first,) = relayed.ask("a")
    (second,) = relayed.ask("b")
    relayed.answer("a", first)
    assert not relayed.told
    relayed.relay.ended("o")
    relayed.answer("b", second)
    assert not relayed.told
    assert relayed.relay.deadline() is None


def test_more_than_the_rate_is_refused_until_it_fits_again(relayed: Relayed) -> None:
    asked = 0
    while not (relayed.told and relayed.told[-1][1].busy):
        for number in relayed.ask("a"):
            relayed.answer("a", number, bytes(ANSWER), now=0.0)
            asked += 1
    assert AHEAD * RATE / ANSWER - 2 < asked < AHEAD * RATE / ANSWER + 2
    assert len(relayed.ask("a", now=AHEAD)) == 1
