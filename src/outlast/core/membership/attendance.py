"""The nodes that a job knows: who is here, who is ready for the next generation, and whose workers may be alive."""

from __future__ import annotations

from collections.abc import Container, Iterable

from outlast.core.membership.member import Member
from outlast.protocol.membership import Join

MOST_GONE = 256  # nodes that are remembered at least, after they have left for good


class Attendance(dict[str, Member]):
    """All of them, by the life of their agent, also those that were lost. Constant work per node that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.connected = 0  # how many are
        self.ready: dict[str, Member] = {}
        self.waiting: set[str] = set()  # nodes whose workers may be alive
        self.ghosts: dict[str, float] = {}  # those of them that cannot be asked, and until when
        self._many = MOST_GONE  # so many that are gone: time to forget some
        self._holders: dict[str, str] = {}  # of places: the newest node with each key
        self._ranks: dict[int, str] = {}  # of the infrastructure: the newest node with each

    def here(self, names: Iterable[str] | None = None) -> list[tuple[str, Member]]:
        """Those who are connected: of these, or of all."""
        return [(name, self[name]) for name in (self if names is None else names) if self[name].connected]

    def is_of_the_past(self, join: Join) -> bool:
        """Whether this agent has ended, and only its message is late: a later one has its place, and has come."""
        holder = self.get(self._holders.get(join.key, "")) if join.key else None
        return holder is not None and holder.join.node != join.node and join.since < holder.join.since

    def come(self, join: Join) -> Member:
        """An agent has come, or has come back."""
        node = self.get(join.node)
        if node is None:
            node = self[join.node] = Member(join)
            self.connected += 1
        else:
            self.connected += not node.connected
            node.come_back(join)
        if join.infra_rank is not None:
            self._ranks[join.infra_rank] = join.node
        return node

    def of_the_same_rank(self, join: Join) -> str:
        """The name of another node that is here with the infrastructure's rank of this newcomer; nothing: none is.

        One that leaves, or had this newcomer's place before it, is no rival; nor is anybody to a member.
        """
        rank = join.infra_rank
        if rank is None or join.node in self or join.report.generation:
            return ""
        other = self.get(self._ranks.get(rank, ""))
        rival = other is not None and other.connected and not other.leaving and other.place != join.place
        return other.name if other is not None and rival else ""

    def hold(self, join: Join) -> str | None:
        """A place is held by one agent at a time. Returns whoever held this one before, and so has ended."""
        before = self._holders.get(join.key)
        self._holders[join.key] = join.node
        return before if before != join.node and before in self else None

    def forget(self, needed: Container[str]) -> None:
        """Drop the nodes that left long ago: they come and go for as long as a job runs."""
        if len(self) - self.connected <= self._many:
            return
        gone = [name for name, node in self.items() if not node.connected and node.until is None and name not in needed]
        for name in gone[:-MOST_GONE]:
            del self[name]
        self._many = 2 * (len(self) - self.connected) + MOST_GONE

    def go(self, name: str, until: float | None) -> None:
        """A node's connection is gone. `until`: up to which time its workers may be alive, if they are."""
        node = self[name]
        node.connected = False
        node.until = None if node.clear else until
        self.connected -= 1

    def place(self, name: str, *, usable: bool) -> None:
        """Keep the sets true: who is ready for the next generation, and whom the old one still waits for."""
        node = self[name]
        if usable and node.is_here:
            self.ready[name] = node
        else:
            self.ready.pop(name, None)
        gone = node.clear if node.connected else node.until is None
        (self.waiting.discard if gone else self.waiting.add)(name)
        if node.until is None:
            self.ghosts.pop(name, None)
        else:
            self.ghosts[name] = node.until

    def laid(self, now: float) -> list[str]:
        """Those whose workers cannot be alive any more, by now."""
        laid = [name for name, until in self.ghosts.items() if now >= until]
        for name in laid:
            self[name].until = None
        return laid
