"""From the bytes of a log to lines with times. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from outlast.logs.marks import Mark
from outlast.protocol.logs import LogLine

LONGEST = 8 << 10  # bytes of a line that are told
OVERHEAD = 24  # bytes that a line takes besides its text
_END = re.compile(rb"\r\n|\n|\r")  # a progress bar's "\r" ends a line, as it does on the console


def split(
    data: bytes, offset: int, marks: Sequence[Mark], *, whole: bool, room: int
) -> tuple[list[LogLine], int, bool]:
    """The lines in `data`, which begins at `offset` of its log; how far they go; and whether that is inside a line.

    `whole`: nothing follows, so the last line needs no end. `room`: bytes that the lines may take.
    """
    lines: list[LogLine] = []
    start, mark, inside = 0, 0, False
    while start < len(data) and room > 0:
        found = _END.search(data, start)
        # A last "\r" may be half of "\r\n": what follows will tell.
        if found is not None and not whole and found.end() == len(data) and found.group() == b"\r":
            found = None
        if found is None and not whole and len(data) - start <= LONGEST:
            break
        stop, after = found.span() if found is not None else (len(data), len(data))
        inside = found is None and not whole
        while mark < len(marks) - 1 and marks[mark].size < offset + after:
            mark += 1
        text = data[start : min(stop, start + LONGEST)]
        lines.append(LogLine(marks[mark].time, text, cut=inside or stop - start > LONGEST))
        room -= len(text) + OVERHEAD
        start = after
    return lines, offset + start, inside


def last_lines(data: bytes, count: int) -> int:
    r"""Where the last so many lines begin.

    >>> last_lines(b"a\nb\nc\n", 2), last_lines(b"a\nb\nc", 2), last_lines(b"a\n", 5)
    (2, 2, 0)
    """
    ends = [found.end() for found in _END.finditer(data)]
    if ends and ends[-1] == len(data):
        ends.pop()
    return ends[-count] if 0 < count <= len(ends) else (0 if count else len(data))
