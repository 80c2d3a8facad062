"""How much memory a worker may use, after what was learned of it."""

from __future__ import annotations


def doubled(amount: int, most: int) -> int:
    """Twice the memory, up to a bound; never less.

    >>> doubled(4, 16), doubled(4, 6), doubled(4, 0), doubled(0, 16)
    (8, 6, 4, 0)
    """
    return max(amount, min(2 * amount, most))


class GrowingMemory:
    """Of the workers of a torch job on one node, by local rank.

    >>> memory = GrowingMemory(4, most=6)
    >>> memory.grow(1), memory.of(0), memory.of(1), memory.grow(1)
    (True, 4, 6, False)
    """

    def __init__(self, amount: int = 0, *, most: int = 0) -> None:
        self._amount, self._most = amount, most
        self._learned: dict[int, int] = {}

    def of(self, local_rank: int) -> int:
        """Bytes that it may use; 0: no limit."""
        return self._learned.get(local_rank, self._amount)

    def grow(self, local_rank: int) -> bool:
        """It was killed at its limit. Returns whether it may have more from now on."""
        before = self.of(local_rank)
        self._learned[local_rank] = doubled(before, self._most)
        return self._learned[local_rank] > before
