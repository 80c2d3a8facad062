"""Kubernetes' notation for amounts of memory and spans of time."""

from __future__ import annotations

import re
from datetime import datetime, timezone

BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
UNITS = BINARY | DECIMAL
QUANTITY = r"^[0-9]+(\.[0-9]+)?([KMGTP]i|[kMGTP])?$"
DURATION = r"^([0-9]+h)?([0-9]+m)?([0-9]+s)?$"


def bytes_of(quantity: str | int) -> int:
    """The bytes of a quantity.

    >>> bytes_of("3Gi"), bytes_of("1.5k"), bytes_of(7)
    (3221225472, 1500, 7)
    """
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(quantity))
    if not found or found[2] not in UNITS:
        raise ValueError(f"{quantity!r} is no amount of memory; write it as 512Mi or 3Gi")
    return int(float(found[1]) * UNITS[found[2]])


def quantity_of(amount: int) -> str:
    """An amount of bytes in the largest binary unit that divides it.

    >>> quantity_of(6 * 2**30), quantity_of(1536 * 2**20), quantity_of(1000)
    ('6Gi', '1536Mi', '1000')
    """
    for unit, size in reversed(BINARY.items()):
        if amount and amount % size == 0:
            return f"{amount // size}{unit}"
    return str(amount)


def seconds_of(duration: str) -> int:
    """The seconds of a duration.

    >>> seconds_of("30m"), seconds_of("1h30m"), seconds_of("60s")
    (1800, 5400, 60)
    """
    found = re.fullmatch(DURATION, duration)
    if not found or not duration:
        raise ValueError(f"{duration!r} is no duration; write it as 90s, 30m or 1h30m")
    return sum(int(part[:-1]) * unit for part, unit in zip(found.groups(), (3600, 60, 1), strict=True) if part)


def time_of(text: str | None) -> float | None:
    """Seconds since 1970 of a Kubernetes time stamp, or None.

    >>> time_of("1970-01-01T00:01:00Z"), time_of("1970-01-01T00:00:00.5Z"), time_of(None)
    (60.0, 0.5, None)
    """
    if not text:
        return None
    whole, _, fraction = text.removesuffix("Z").partition(".")
    moment = datetime.fromisoformat(whole).replace(tzinfo=timezone.utc)
    return moment.timestamp() + float(f"0.{fraction or 0}")


def stamp(now: float) -> str:
    """A Kubernetes time stamp, to the second.

    >>> stamp(60.9)
    '1970-01-01T00:01:00Z'
    """
    return datetime.fromtimestamp(int(now), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
