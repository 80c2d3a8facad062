"""Passes observers' questions about logs on to agents, and their answers back. Bounded in number, size and rate.

What is asked and answered is not read here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

import msgspec

from outlast.core.coordinator.commands import Connection, Write
from outlast.protocol.logs import AskLogs, LogAnswer, LogQuestion, LogsTold

PATIENCE = 3.0  # seconds for agents to answer
RATE = 8 << 20  # bytes of logs in a second, for all observers together
AHEAD = 0.5  # seconds of that which may be read at once
LEAST = 4 << 10  # bytes that a question counts for, however short its answer is


class _Asking(msgspec.Struct):
    until: float
    waiting: dict[int, str]  # the node of each question
    answers: dict[str, bytes]


class LogRelay(Generic[Connection]):
    """`node`: the connection of a node, if it is here. `told`: takes what an observer is answered. `over`: the job."""

    def __init__(
        self,
        node: Callable[[str], Connection | None],
        told: Callable[[Connection, LogsTold], None],
        over: Callable[[], bool],
    ) -> None:
        self._node, self._told, self._over = node, told, over
        self._asking: dict[Connection, _Asking] = {}  # by observer
        self._asked: dict[int, Connection] = {}  # the observer of each question
        self._number = 0
        self._free_at = 0.0  # when what was read fits the rate

    def deadline(self) -> float | None:
        return min((each.until for each in self._asking.values()), default=None)

    def ask(self, observer: Connection, request: AskLogs, now: float) -> list[Write[Connection]]:
        """Ask the nodes that are here. A second request of an observer takes the place of its first."""
        self.ended(observer)
        if self._free_at > now + AHEAD:
            self._told(observer, LogsTold(busy=True, over=self._over()))
            return []
        asking = self._asking[observer] = _Asking(now + PATIENCE, {}, {})
        writes = []
        for name, data in dict(request.questions).items():
            if (connection := self._node(name)) is not None:
                self._number += 1
                asking.waiting[self._number] = name
                self._asked[self._number] = observer
                writes.append(Write(connection, LogQuestion(self._number, data)))
        self._free_at = max(self._free_at, now) + LEAST * len(writes) / RATE
        self._finish(observer, asking, late=False)
        return writes

    def answered(self, node: str, answer: LogAnswer, now: float) -> None:
        """An agent has answered."""
        self._free_at = max(self._free_at, now) + len(answer.data) / RATE
        observer = self._asked.get(answer.number)
        if observer is None or self._asking[observer].waiting[answer.number] != node:
            return  # nobody waits for it any more
        asking = self._asking[observer]
        del self._asked[answer.number], asking.waiting[answer.number]
        asking.answers[node] = answer.data
        self._finish(observer, asking, late=False)

    def lost(self, node: str) -> None:
        """This node will not answer."""
        for observer, asking in list(self._asking.items()):
            for number in [number for number, name in asking.waiting.items() if name == node]:
                del self._asked[number], asking.waiting[number]
            self._finish(observer, asking, late=False)

    def tick(self, now: float) -> None:
        for observer, asking in list(self._asking.items()):
            self._finish(observer, asking, late=now >= asking.until)

    def ended(self, observer: Connection) -> None:
        """It does not wait any more."""
        asking = self._asking.pop(observer, None)
        for number in asking.waiting if asking is not None else ():
            del self._asked[number]

    def _finish(self, observer: Connection, asking: _Asking, *, late: bool) -> None:
        if asking.waiting and not late:
            return
        silent = tuple(asking.waiting.values())
        self.ended(observer)
        self._told(observer, LogsTold(asking.answers, silent, over=self._over()))
