"""Job and Node together: what they say to each other comes to rest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from outlast.core.job.commands import Send
from outlast.core.job.inputs import Joined, Reported
from outlast.core.job.job import Job
from outlast.core.job.phase import Phase
from outlast.core.node.commands import StopWorkers, Tell
from outlast.core.node.inputs import Cleared, Connected, Event, Exited, Leave, Received
from outlast.core.node.node import Node
from outlast.core.tick import Tick
from outlast.protocol.failures import Failure
from outlast.protocol.membership import Join, Leaving
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Term

FEW = 8  # messages that one event causes, in both directions
FAILURE = Failure("a", "a", 0, 0, 77, 1, 0.0, "boom")


class Pair:
    """A coordinator and the only node of its job, with a network that takes no time."""

    def __init__(self, **rules: Any) -> None:
        self.rules = Rules(job="j", entrypoint="train.py", min_nodes=1, max_nodes=1, **rules)
        self.job = Job(self.rules, now=0.0, term=Term(1, "a"), run="r")
        self.node = Node("a", store_port=7)
        self.now = 0.0
        self.stops: list[StopWorkers] = []
        self.say(Connected(self.job.standing(0.0)))
        assert self.job.phase is Phase.RUNNING

    def say(self, event: Event) -> int:
        """Let this happen on the node, and deliver all that follows; how many messages that were."""
        messages = 0
        waiting: deque[Event] = deque([event])
        while waiting and messages < 100:
            for command in self.node.handle(waiting.popleft(), self.now):
                if isinstance(command, StopWorkers):
                    self.stops.append(command)
                if isinstance(command, Tell):
                    answers = self.hear(command)
                    waiting += map(Received, answers)
                    messages += 1 + len(answers)
        return messages

    def hear(self, told: Tell) -> list[FromCoordinator]:
        join = Join("a", "a", 1, "default", "a", "j", "train.py", (1, 1), told.report, port=1, connection=1)
        event = Joined(join) if told.first else Reported("a", told.report)
        return [command.message for command in self.job.handle(event, self.now) if isinstance(command, Send)]


def fails(pair: Pair) -> int:
    return pair.say(Exited(1, FAILURE))


def is_drained(pair: Pair) -> int:
    return pair.say(Leave(Leaving.DRAIN))


def is_interrupted(pair: Pair) -> int:
    return pair.say(Leave(Leaving.INTERRUPT))


@pytest.mark.parametrize("ends", [fails, is_drained, is_interrupted])
def test_while_workers_stop_few_messages_are_exchanged_and_they_are_told_once(ends: Callable[[Pair], int]) -> None:
    pair = Pair(restart_grace=3.0, planned_change_timeout=0.0)
    assert ends(pair) <= FEW
    for _ in range(10):  # heartbeats, while a handler saves
        pair.now += pair.rules.node_timeout / 4
        assert pair.say(Tick()) <= FEW
    assert len(pair.stops) == 1
    assert pair.say(Cleared(1)) <= FEW
