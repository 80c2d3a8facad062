"""Connections whose other end has not proved yet that it knows the token: anybody can make them, so there are few.

Whoever fills the places loses them first: room is made at the address that has the most, and there by the oldest.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Connection = TypeVar("Connection")

HANDSHAKE = 5.0  # seconds in which a connection has to prove itself
GRACE = 0.5  # seconds that one is left alone for, however many there are: a proof takes two round trips
PAUSE = 0.05  # seconds until room is looked for again


class Unproved(Generic[Connection]):
    """At most `most`, each with its address and the time when it was made.

    >>> unproved = Unproved(3)
    >>> for number, address in enumerate("aab"):
    ...     unproved.add(f"{address}{number}", address, now=float(number))
    >>> unproved.full, unproved.in_the_way(now=10.0)
    (True, 'a0')
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._addresses: dict[str, dict[Connection, float]] = {}
        self._address_of: dict[Connection, str] = {}

    def __len__(self) -> int:
        return len(self._address_of)

    @property
    def full(self) -> bool:
        return len(self) >= self._most

    def add(self, connection: Connection, address: str, now: float) -> None:
        self._address_of[connection] = address
        self._addresses.setdefault(address, {})[connection] = now

    def discard(self, connection: Connection) -> None:
        """It has proved itself, or is gone."""
        address = self._address_of.pop(connection, None)
        if address is not None:
            del self._addresses[address][connection]
            if not self._addresses[address]:
                del self._addresses[address]

    def in_the_way(self, now: float) -> Connection | None:
        """Which one to close for another; None while each may yet prove itself."""
        crowd = max(self._addresses.values(), key=len, default={})
        oldest = next(iter(crowd), None)
        return oldest if oldest is not None and now - crowd[oldest] >= GRACE else None
