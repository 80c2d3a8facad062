"""How times are put for people."""

from __future__ import annotations

import time


def duration(seconds: float) -> str:
    """A length of time, in at most two units.

    >>> duration(0.25), duration(12.0), duration(75), duration(3_700), duration(200_000)
    ('0.2 s', '12 s', '1 min 15 s', '1 h 1 min', '2 d 7 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for size, unit, below, part in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // below} {part}"
    return f"{whole} s"


def moment(at: float) -> str:
    """A time of day, where the reader is."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
