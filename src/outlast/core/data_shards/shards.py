"""Dynamic shards: workers take pieces of the data when they are ready for them, at whatever pace, and report them done.

For jobs without steps in common: asynchronous ones, and ones whose workers differ. A shard is a range of positions in
an epoch's order; who has the order finds the samples by itself. Shards are numbered on and on over the epochs, in the
order in which they are handed out, so that all that has to be kept is how many were handed out, and which of those are
not done. Pure: a worker is a name that is never used twice (its generation belongs in it), and a message that comes
late or twice changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
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
        return self._next >= self.per_epoch * self.epochs and not self._returned and not self._held

    @property
    def finished(self) -> int:
        """How many shards are done."""
        return self._next - len(self._returned) - len(self._held)

    @property
    def low(self) -> int:
        """The first shard that is not done: every one before it is."""
        return min([self._next, *self._returned[:1], *self._held.values()])

    @property
    def begun(self) -> int:
        """The first shard that nobody has taken yet."""
        return self._next

    def holds(self, worker: str) -> bool:
        return worker in self._held

    def take(self, worker: str, *, most: int | None = None) -> Shard | None:
        """A shard for this worker: the one that it has already, or one to begin. None: there is none at present.

        A worker has one shard at a time, so that a question that is asked again gets the same answer. `most`: none
        that is further than so many from the first that is not done.
        """
        if worker in self._lost:
            return None
        if worker in self._held:
            return self._shard(self._held[worker])
        if self._returned:
            number = heapq.heappop(self._returned)
        elif self._next < self.per_epoch * self.epochs and (most is None or self._next - self.low < most):
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

    def learn(self, workers: Iterable[str], held: Mapping[str, int], done: Iterable[int], low: int = 0) -> None:
        """What others know of these workers, in place of what is known here: `held`, `done`, and all below `low`.

        For a book-keeper that is new, or was away. Of what lies between, and nobody knows of, nobody has begun.

        >>> shards = Shards(length=10, size=1, epochs=1)
        >>> shards.learn(["a"], {"a": 3}, done=[2], low=1)
        >>> shards.state_dict()["next"], shards.state_dict()["open"], shards.take("b").number
        (4, [1, 3], 1)
        """
        done = set(done)
        begun = max([self._next, low, *(number + 1 for number in done.union(held.values()))])
        is_open = {*self._returned, *self._held.values(), *range(self._next, begun)}
        is_open = {number for number in is_open if number >= low and number not in done}
        replaced = set(workers)
        holders = {number: worker for worker, number in self._held.items() if worker not in replaced}
        holders |= {number: worker for worker, number in held.items()}
        self._held = {worker: number for number, worker in holders.items() if number in is_open}
        self._returned = sorted(is_open.difference(holders))  # which is a heap
        self._next = begun

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
