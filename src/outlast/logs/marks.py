"""When the lines of a log were written: a file of marks beside it.

    attempt_0/3/stdout.log         the log
    attempt_0/3/.stdout.log.times  marks: a time (8 bytes, seconds since 1970) and the size of the log then (8 bytes)

A mark is added four times a second at most, and only if the log has grown. So a line's time is that of the first mark
beyond its end.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_MARK = struct.Struct("<dQ")
MOST = 4096  # marks that are read at once


class Mark(NamedTuple):
    """The log had this size at this time."""

    time: float
    size: int


def marks_file(log: Path) -> Path:
    """Where the marks of a log are.

    >>> str(marks_file(Path("0/stdout.log")))
    '0/.stdout.log.times'
    """
    return log.with_name(f".{log.name}.times")


def packed(mark: Mark) -> bytes:
    """A mark as it is in the file."""
    return _MARK.pack(*mark)


class Marks:
    """The marks of one log, read from an open file; none, if there is no file."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self.count = os.fstat(descriptor).st_size // _MARK.size if descriptor is not None else 0

    @property
    def last(self) -> Mark | None:
        return self._at(self.count - 1) if self.count else None

    def beyond(self, offset: int) -> list[Mark]:
        """The first ones with which the log was larger than this: at most `MOST`."""
        first = self._first(lambda mark: mark.size > offset)
        return self._read(first, MOST)

    def size_at(self, time: float) -> int:
        """The size of the log just before the first mark at or after this time."""
        first = self._first(lambda mark: mark.time >= time)
        return self._at(first - 1).size if first else 0

    def _first(self, fits: Callable[[Mark], bool]) -> int:
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(self._at(middle)) else (middle + 1, high)
        return low

    def _at(self, index: int) -> Mark:
        return self._read(index, 1)[0]

    def _read(self, index: int, most: int) -> list[Mark]:
        most = min(most, self.count - index)
        if self._descriptor is None or most <= 0:
            return []
        data = os.pread(self._descriptor, most * _MARK.size, index * _MARK.size)
        return [Mark(*fields) for fields in _MARK.iter_unpack(data[: len(data) // _MARK.size * _MARK.size])]
