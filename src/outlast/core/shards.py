"""Dynamic shards: workers take pieces of the data when they are ready for them, at whatever pace, and report them done.

For jobs without steps in common: asynchronous ones, and ones whose workers differ. A shard is a range of positions in
an epoch's order; who has the order finds the samples by itself. Shards are numbered on and on over the epochs, in the
order in which they are handed out, so that all that has to be kept is how many were handed out, and which of those are
not done. Pure: a worker is a name that is never used twice (its generation belongs in it), and a message that comes
late or twice changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

import msgspec


class Shard(msgspec.Struct, frozen=True):
    """A piece of the data: positions from `start` up to `stop` in the order of `epoch`."""

    number: int
    epoch: int
    start: int
    stop: int


class Shards:
    """Which shards are done, who has which of the others, and which is next.

    >>> shards = Shards(length=10, size=4, epochs=1)
    >>> first, second = shards.take("a"), shards.take("b")
    >>> first
    Shard(number=0, epoch=0, start=0, stop=4)
    >>> shards.done("a", first.number)
    True
    >>> shards.lost("b")  # what it had is handed out again, before anything new
    1
    >>> shards.done("b", second.number)  # too late: somebody else does it
    False
    >>> shards.take("a")
    Shard(number=1, epoch=0, start=4, stop=8)
    """

    def __init__(self, *, length: int, size: int, epochs: int) -> None:
        for name, value in (("length", length), ("size", size), ("epochs", epochs)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.length, self.size, self.epochs = length, size, epochs
        self.per_epoch = -(-length // size)
        self._next = 0  # the first that nobody has taken yet
        self._returned: list[int] = []  # taken once, and free again: a heap, the oldest first
        self._held: dict[str, int] = {}  # by worker
        self._lost: set[str] = set()

    @property
    def over(self) -> bool:
        """Whether all shards of all epochs are done. Until then a worker that gets none may get one later."""
        return self._next == self.per_epoch * self.epochs and not self._returned and not self._held

    def take(self, worker: str) -> Shard | None:
        """A shard for this worker: the one that it has already, or one to begin. None: there is none at present.

        A worker has one shard at a time, so that a question that is asked again gets the same answer.
        """
        if worker in self._lost:
            return None
        if worker in self._held:
            return self._shard(self._held[worker])
        if self._returned:
            number = heapq.heappop(self._returned)
        elif self._next < self.per_epoch * self.epochs:
            number = self._next
            self._next += 1
        else:
            return None
        self._held[worker] = number
        return self._shard(number)

    def done(self, worker: str, number: int) -> bool:
        """The worker's updates from this shard are in the model. False: it is not the worker's (any more), and
        what it made of it must not count; a report that comes twice is false the second time.
        """
        if self._held.get(worker) != number:
            return False
        del self._held[worker]
        return True

    def lost(self, worker: str) -> int | None:
        """The worker is gone, for ever: its shard goes back. Returns the number of what somebody has to do again."""
        self._lost.add(worker)
        number = self._held.pop(worker, None)
        if number is not None:
            heapq.heappush(self._returned, number)
        return number

    def state_dict(self) -> dict[str, Any]:
        """What is done, for the checkpoint of the model that it is done in; a shard that somebody has is not."""
        return {
            "length": self.length,
            "size": self.size,
            "next": self._next,
            "open": sorted([*self._returned, *self._held.values()]),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint. Everybody who has a shard now works on a model that is no more: they are lost."""
        if (state["length"], state["size"]) != (self.length, self.size):
            raise ValueError(
                f"the checkpoint has shards of {state['size']} of {state['length']} samples, this job of {self.size} "
                f"of {self.length}: use the same data and the same size"
            )
        for worker in list(self._held):
            self.lost(worker)
        self._next = state["next"]
        self._returned = sorted(state["open"])  # which is a heap

    def _shard(self, number: int) -> Shard:
        epoch, at = divmod(number, self.per_epoch)
        return Shard(number, epoch, at * self.size, min((at + 1) * self.size, self.length))
