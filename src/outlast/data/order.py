"""The order of an epoch's samples: a permutation that is computed, not stored.

Position *i* is encrypted with a key made of (seed, epoch); the result is the sample. A Feistel network permutes the
numbers below a power of two whatever its round function is, and what falls outside of the data set is encrypted again
until it falls inside (cycle walking), so every sample has exactly one position. Nothing is kept: a billion samples
cost as much memory as ten, every rank finds its own samples without the others', and a job may go on at any position.

The numbers are part of what a checkpoint means: a change here needs a new `VERSION`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sized
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

VERSION = 1
LONGEST = 1 << 62  # each half of a position has to fit into 32 bits

# The orders of three to six samples were counted: with 6 rounds on 6 bits they are not all equally frequent, with more
# of either no difference was found. So these have some margin.
_ROUNDS = 8
_LEAST_BITS = 8
_WORD = 0xFFFFFFFF
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B  # odd, so that multiplying loses nothing
_FEW = 16  # so many are found faster one by one
_CHUNK = 1 << 15  # positions at a time: enough to drown the cost of a call, few enough to stay in the cache


def length_of(data: Sized | int) -> int:
    """How many samples there are. Raises TypeError, in one line, for what is read one after the other.

    >>> length_of(7), length_of("abc")
    (7, 3)
    """
    if isinstance(data, int):
        return data
    if not hasattr(data, "__len__"):
        raise TypeError(
            f"{type(data).__name__} has no length: give a data set with __len__ and __getitem__, or, for one that is "
            "read one after the other, outlast.ElasticLoader(outlast.ElasticIterable(shards, read=…))"
        )
    return len(data)


class Order:
    """The samples of one epoch, in their order; the same on every machine, for every world size, for ever.

    >>> order = Order(10, seed=7, epoch=2)
    >>> order[0]
    4
    >>> sorted(order.samples(range(10))) == list(range(10))
    True
    >>> Order(10, shuffle=False).samples(range(1, 10, 4))
    [1, 5, 9]
    """

    def __init__(self, length: int, *, seed: int = 0, epoch: int = 0, shuffle: bool = True) -> None:
        if not 0 <= length <= LONGEST:
            raise ValueError(f"a data set has from 0 to {LONGEST} samples, not {length}")
        self.length = length
        self.shuffle = shuffle
        bits = max(_LEAST_BITS, (length - 1).bit_length())
        self._high, self._low = bits - bits // 2, bits // 2
        key = hashlib.blake2b(f"outlast order {VERSION} {seed} {epoch}".encode(), digest_size=4 * _ROUNDS).digest()
        self._keys = [int.from_bytes(key[at : at + 4], "little") for at in range(0, len(key), 4)]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> int:
        if not 0 <= position < self.length:
            raise IndexError(f"position {position} of {self.length} samples")
        return self._sample(position) if self.shuffle else position

    def samples(self, positions: range | Iterable[int]) -> list[int]:
        """The samples at these positions, in the order in which they are asked for.

        >>> Order(1_000_000_000, seed=1).samples(range(5, 1_000_000_000, 400_000_000))
        [438724544, 391940311, 550302857]
        """
        if not self.shuffle:
            return list(positions)
        vectors = _numpy()
        if vectors is None:
            return [self._sample(position) for position in positions]
        if isinstance(positions, range):
            given = vectors.arange(positions.start, positions.stop, positions.step, dtype=vectors.int64)
        else:
            given = vectors.fromiter(positions, dtype=vectors.int64)
        found: list[int] = []
        for at in range(0, len(given), _CHUNK):
            found += self._walk(given[at : at + _CHUNK], vectors).tolist()
        return found

    def _sample(self, position: int) -> int:
        high_shift, low_shift = 32 - self._high, 32 - self._low
        mask = (1 << self._low) - 1
        while True:
            high, low = position >> self._low, position & mask
            for key in range(0, _ROUNDS, 2):
                high ^= _scramble(low, self._keys[key]) >> high_shift
                low ^= _scramble(high, self._keys[key + 1]) >> low_shift
            position = high << self._low | low
            if position < self.length:
                return position

    def _walk(self, positions: np.ndarray[Any, Any], vectors: Any) -> np.ndarray[Any, Any]:
        result = self._encrypt(positions, vectors)
        outside = vectors.flatnonzero(result >= self.length)
        while len(outside) > _FEW:
            result[outside] = self._encrypt(result[outside], vectors)
            outside = outside[result[outside] >= self.length]
        for at in outside.tolist():
            result[at] = self._sample(int(result[at]))
        return result

    def _encrypt(self, positions: np.ndarray[Any, Any], vectors: Any) -> np.ndarray[Any, Any]:
        """One pass of `_sample` for many at once."""
        narrow = vectors.uint32
        high_shift, low_shift = narrow(32 - self._high), narrow(32 - self._low)
        high = (positions >> self._low).astype(narrow)
        low = (positions & ((1 << self._low) - 1)).astype(narrow)
        drawn, shifted = vectors.empty_like(high), vectors.empty_like(high)
        for key in range(0, _ROUNDS, 2):
            for target, source, shift, at in ((high, low, high_shift, key), (low, high, low_shift, key + 1)):
                vectors.bitwise_xor(source, narrow(self._keys[at]), out=drawn)
                vectors.multiply(drawn, narrow(_FIRST), out=drawn)
                vectors.right_shift(drawn, narrow(15), out=shifted)
                vectors.bitwise_xor(drawn, shifted, out=drawn)
                vectors.multiply(drawn, narrow(_SECOND), out=drawn)
                vectors.right_shift(drawn, shift, out=drawn)
                vectors.bitwise_xor(target, drawn, out=target)
        result = high.astype(vectors.int64)
        vectors.left_shift(result, self._low, out=result)
        vectors.bitwise_or(result, low, out=result)
        return result


def _scramble(half: int, key: int) -> int:
    drawn = (half ^ key) * _FIRST & _WORD
    return (drawn ^ drawn >> 15) * _SECOND & _WORD


def _numpy() -> Any:
    try:
        import numpy as np
    except ModuleNotFoundError:
        return None
    return np
