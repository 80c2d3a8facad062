"""The newest events of a run, for observers and for whoever coordinates next."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from outlast.events.events import JobEvent, TaskRelaunched, WorkerFailed
from outlast.events.numbered import NumberedEvent, next_number
from outlast.events.reasons import FailedRank

MOST_EVENTS = 20_000
MOST_BYTES = 32 << 20  # events of large jobs name thousands of nodes
BATCH_EVENTS = 500
BATCH_BYTES = 256 << 10


class History:
    """Events in the order of their numbers; the oldest go first.

    >>> from outlast.events.events import NodeLeft
    >>> history = History()
    >>> [history.add(NodeLeft(generation=1, node=name), time=5.0, term=1).number for name in "ab"]
    [1, 2]
    >>> [each.event.node for each in history.after(1)], history.misses(0)
    (['b'], False)
    """

    def __init__(self, recalled: Iterable[NumberedEvent] = (), *, most: int = MOST_EVENTS) -> None:
        self._most = most
        self._events: list[NumberedEvent] = []
        self._sizes: list[int] = []
        self._bytes = 0
        self.floor = 0  # events up to this number may be missing
        self.last = 0
        self.last_fault: FailedRank | None = None
        for numbered in sorted(recalled, key=lambda each: each.number):
            self.put(numbered)

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: JobEvent, *, time: float, term: int) -> NumberedEvent:
        """Number the next event."""
        numbered = NumberedEvent(next_number(self.last, term), time, term, event)
        self.put(numbered)
        return numbered

    def put(self, numbered: NumberedEvent) -> None:
        """Take an event that has its number; one that is known, or older than that, is left out."""
        if numbered.number <= self.last:
            return
        if not self.last:
            self.floor = numbered.number - 1  # 0 for the first event of the first term
        self.last = numbered.number
        if isinstance(numbered.event, WorkerFailed | TaskRelaunched):
            self.last_fault = numbered.event.failure
        size = len(msgspec.msgpack.encode(numbered))
        self._events.append(numbered)
        self._sizes.append(size)
        self._bytes += size
        if len(self._events) > 2 * self._most or self._bytes > 2 * MOST_BYTES:
            self._forget_half()

    def all(self) -> tuple[NumberedEvent, ...]:
        return tuple(self._events)

    def after(self, number: int) -> tuple[NumberedEvent, ...]:
        """The events after this number, as many as fit into one answer."""
        begin = end = bisect_right(self._events, number, key=lambda each: each.number)
        left = BATCH_BYTES
        while end < len(self._events) and end - begin < BATCH_EVENTS and (left > 0 or end == begin):
            left -= self._sizes[end]
            end += 1
        return tuple(self._events[begin:end])

    def number_before(self, newest: int) -> int:
        """The number after which there are so many events, or all that there are."""
        return self._events[-newest - 1].number if newest < len(self._events) else 0

    def misses(self, number: int) -> bool:
        """Whether events after this number may be missing here."""
        return number < self.floor

    def _forget_half(self) -> None:
        """Rarely and many at once: the list is copied each time."""
        while self._events and (len(self._events) > self._most or self._bytes > MOST_BYTES):
            half = max(1, len(self._events) // 2)
            self.floor = self._events[half - 1].number
            self._bytes -= sum(self._sizes[:half])
            del self._events[:half], self._sizes[:half]
