"""How lines for people count and list things."""

from __future__ import annotations

from collections.abc import Sequence

NAMES_SHOWN = 8  # of nodes, in one line


def count(number: int, noun: str) -> str:
    """So many of something.

    >>> count(1, "node"), count(2, "node")
    ('1 node', '2 nodes')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def listed(names: Sequence[str], most: int = NAMES_SHOWN) -> str:
    """The first names, and how many more there are.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def amount(size: int) -> str:
    """Bytes in the largest unit that they fill.

    >>> amount(4 << 30), amount(1536 << 20), amount(512)
    ('4 GiB', '1.5 GiB', '512 B')
    """
    for unit, bits in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << bits:
            return f"{size / (1 << bits):.4g} {unit}"
    return f"{size} B"
