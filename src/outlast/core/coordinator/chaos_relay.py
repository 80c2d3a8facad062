"""Passes faults on purpose on to agents, for those who have the right. What a fault is, is not decided here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from outlast.core.coordinator.commands import Close, Connection, Write
from outlast.protocol.chaos import AskChaos, ChaosBegun, ChaosOrder, right_digest
from outlast.protocol.requests import Answer
from outlast.protocol.rules import Rules

FORBIDDEN = "this job allows no chaos: start it with --allow-chaos"
NO_RIGHT = "this is not the job's chaos token: its first node has logged it, and `outlast token --chaos` prints it"

Told = Write[Connection] | Close[Connection]


class ChaosRelay(Generic[Connection]):
    """`node`: the connection of a node, if it is here."""

    def __init__(self, rules: Rules, node: Callable[[str], Connection | None]) -> None:
        self._rules = rules
        self._node = node
        self._number = 0
        self._asked: dict[int, tuple[str, Connection]] = {}  # the node and who asked

    def ask(self, connection: Connection, ask: AskChaos) -> list[Told[Connection]]:
        """Tell the node; or say at once why not."""
        target = self._node(ask.node)
        why = ""
        if ask.job not in ("", self._rules.job):
            why = f"this endpoint serves job {self._rules.job!r}, not {ask.job!r}"
        elif not self._rules.chaos:
            why = FORBIDDEN
        elif right_digest(ask.right) != self._rules.chaos:
            why = NO_RIGHT
        if why or target is None:
            return [Write(connection, Answer(False, why or f"no node {ask.node!r} is here")), Close(connection)]
        self._number += 1
        self._asked[self._number] = (ask.node, connection)
        return [Write(target, ChaosOrder(self._number, ask.who, ask.fault))]

    def begun(self, node: str, begun: ChaosBegun) -> list[Told[Connection]]:
        """An agent has begun, or cannot."""
        asked = self._asked.get(begun.number)
        if asked is None or asked[0] != node:
            return []
        del self._asked[begun.number]
        return [Write(asked[1], Answer(begun.done, begun.text)), Close(asked[1])]

    def node_lost(self, node: str) -> list[Told[Connection]]:
        """It will not answer."""
        waiting = [number for number, (name, _) in self._asked.items() if name == node]
        told: list[Told[Connection]] = []
        for number in waiting:
            _, connection = self._asked.pop(number)
            told += [Write(connection, Answer(False, "the node was lost before it could begin")), Close(connection)]
        return told

    def ended(self, connection: Connection) -> None:
        """Who asked does not wait any more."""
        for number in [number for number, (_, asker) in self._asked.items() if asker == connection]:
            del self._asked[number]
