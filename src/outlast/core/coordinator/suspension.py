"""Whether the whole job stood still: `scontrol suspend`, a stopped machine, a laptop that slept."""

from __future__ import annotations

from collections.abc import Collection

SLACK = 1.0  # seconds by which a process that runs may be late


class Suspension:
    """Notices that this process did not run, and asks the next reports whether the nodes did.

    A coordinator that has nodes hears of them, or looks after them, within every `node_timeout`. So a longer gap
    means that it was stopped. Reports that nodes sent meanwhile mean that it alone was.

    >>> job = Suspension(node_timeout=3.0)
    >>> job.passes(10.0, ["a"])
    >>> job.passes(60.0, ["a"])
    >>> job.heard("a", sent=60.1)
    (10.0, 60.0)
    """

    def __init__(self, node_timeout: float) -> None:
        self._longest = node_timeout + SLACK
        self._last: float | None = None
        self._gap = (0.0, 0.0)
        self._unheard: set[str] = set()

    def passes(self, now: float, nodes: Collection[str]) -> None:
        """Something happens, and nothing did since the last call. `nodes`: those that are connected."""
        if self._last is not None and nodes and now - self._last > self._longest:
            self._gap, self._unheard = (self._last, now), set(nodes)
        self._last = now

    def heard(self, node: str, sent: float) -> tuple[float, float] | None:
        """A node's first report after a gap. Once all have sent theirs after it: from when to when the job stood."""
        if node not in self._unheard:
            return None
        begin, end = self._gap
        if begin + SLACK < sent < end - SLACK:
            self._unheard.clear()
            return None
        self._unheard.discard(node)
        return None if self._unheard else (begin, end)
