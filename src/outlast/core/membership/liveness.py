"""Which connected nodes have gone silent. Constant work per heartbeat, whatever the number of nodes."""

from __future__ import annotations

from collections import OrderedDict

from outlast.protocol.rules import Rules

LEASE_SHARE = 0.75  # of the node timeout: the rest is the margin for killing workers and for slow clocks
ORPHANS = 0.25  # seconds after an agent's end in which the kernel has killed its workers, on a busy machine too
BEATS = 4  # heartbeats per node timeout: a report repeats the answer to the one before, and both must be fresh


def lease_of(rules: Rules) -> float:
    """How long an agent lets its workers run on since it sent the last report that was acknowledged.

    It ends before the coordinator's patience does: the coordinator counts from when it heard that report,
    which is later, and waits longer. So the workers are gone before anybody may take their place.
    """
    if rules.alone:
        return float("inf")  # nobody can take its place
    return LEASE_SHARE * rules.node_timeout


class Liveness:
    """Remembers when each node was last heard.

    The only node that is connected is never called silent: nobody could go on without it. Its agent may be stopped
    (Ctrl-Z, a debugger, a frozen container) and continue later; when it ends, its connection closes.

    >>> liveness = Liveness(node_timeout=3.0)
    >>> liveness.heard("a", now=0.0)
    >>> liveness.silent(now=9.0)
    []
    >>> liveness.heard("b", now=9.0)
    >>> liveness.silent(now=9.0)
    ['a']
    """

    def __init__(self, node_timeout: float) -> None:
        self._timeout = node_timeout
        self._heard: OrderedDict[str, float] = OrderedDict()  # the longest silent comes first

    def heard(self, node: str, now: float) -> None:
        self._heard[node] = now
        self._heard.move_to_end(node)

    def heard_at(self, node: str, otherwise: float) -> float:
        return self._heard.get(node, otherwise)

    def forget(self, node: str) -> None:
        self._heard.pop(node, None)

    def silent(self, now: float) -> list[str]:
        """The nodes that have been silent for too long; each is named once."""
        late = []
        while (deadline := self.deadline()) is not None and deadline <= now:
            late.append(self._heard.popitem(last=False)[0])
        return late

    def deadline(self) -> float | None:
        """When the next node becomes silent if it is not heard before."""
        if len(self._heard) < 2:
            return None
        return next(iter(self._heard.values())) + self._timeout
