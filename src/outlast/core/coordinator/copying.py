"""Copies of the newest events on a few nodes: the coordinator's host may be lost, and its journal with it."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.core.coordinator.history import History
from outlast.core.coordinator.observers import GATHERED
from outlast.protocol.observers import EventCopies

COPIES = 3  # nodes that have them: those that would host the coordinator next
RECENT = 1000  # events that a node gets which has none


class EventCopying:
    """Which node has which events. A node that connects anew may have missed what was on its way."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._copied: dict[str, int] = {}  # the last number that each has
        self._due: float | None = None

    def deadline(self) -> float | None:
        return self._due

    def news(self, now: float) -> None:
        """Events were added to the history."""
        if self._due is None:
            self._due = now + GATHERED

    def forget(self, node: str, now: float) -> None:
        """What was sent to it on an earlier connection may not have arrived."""
        if self._copied.pop(node, None) is not None:
            self.news(now)

    def tick(self, now: float, keepers: Sequence[str]) -> list[tuple[str, EventCopies]]:
        """What to send now. `keepers`: the nodes that may host the next coordinator and are connected, in order."""
        if self._due is None or now < self._due:
            return []
        self._due = None
        keepers = keepers[:COPIES]
        self._copied = {node: self._copied.get(node, self._history.number_before(RECENT)) for node in keepers}
        sent = []
        for node in keepers:
            if events := self._history.after(self._copied[node]):
                self._copied[node] = events[-1].number
                sent.append((node, EventCopies(events)))
        if any(number < self._history.last for number in self._copied.values()):
            self._due = now + GATHERED  # more than fits into a message
        return sent
