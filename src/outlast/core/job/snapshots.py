"""Which snapshots are whole in the memory of the nodes that are here, and who keeps a copy of whose.

A snapshot counts when every rank of the generation that took it has sealed its shard, and each of these shards is in
the memory of some node that is here: its own, or the one that was sent a copy. Nodes say what they have when their
workers have ended, so that nothing changes any more; nobody has to be asked, and nothing is remembered: a coordinator
that takes over is told again.

Linear in the number of nodes, once per generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from outlast.core.membership.member import Member
from outlast.protocol.generations import Assignment
from outlast.protocol.snapshots import Held, Holder, Keeping, Snapshot

OFFERED = 2  # snapshots that are told to nodes: the newest, and what to take if that one is damaged
MOST_HOLDERS = 1024  # that are told to each node; in a larger job what is told would grow with its square


class Snapshots:
    """What the nodes have said, and what follows from it.

    >>> from msgspec.structs import replace
    >>> save = Held("run", 7, 70, generation=1, world=2, origin="o", saved_at=1.0)
    >>> snapshots = Snapshots()
    >>> snapshots.told("a", (replace(save, ranks=(0,)),))
    True
    >>> snapshots.whole({"a": ("10.0.0.1", 4000)})
    ()
    >>> snapshots.told("b", (replace(save, replicas=(1,)),))
    True
    >>> [each.step for each in snapshots.whole({"a": ("10.0.0.1", 4000), "b": ("10.0.0.2", 4000)})]
    [70]
    """

    def __init__(self) -> None:
        self.stride = 1  # one in so many snapshots is copied
        self._strides: dict[str, int] = {}  # that each node can keep up with
        self._held: dict[str, tuple[Held, ...]] = {}
        self._generation = 0  # that the following are of
        self._offered: tuple[Snapshot, ...] = ()
        self._partners: dict[str, Holder] = {}

    @property
    def newest(self) -> Snapshot | None:
        """The newest snapshot that the members of the newest generation can go on from."""
        return self._offered[0] if self._offered else None

    def told(self, node: str, held: tuple[Held, ...] | None) -> bool:
        """A node says what it has, or nothing new (None). Returns whether it is news."""
        if held is None or held == self._held.get(node, ()):
            return False
        self._held[node] = held
        return True

    def keeps_up(self, node: str, stride: int, roster: Iterable[str]) -> bool:
        """A member says what it can keep up with. Returns whether that changes what all do.

        All have to copy the same snapshots, or there would be none of which all copies are there. Powers of two, so
        that what is copied with the larger of two is copied with the other as well, and nobody has to change over at
        the same moment.
        """
        self._strides[node] = stride
        slowest = max((self._strides.get(each, 1) for each in roster), default=1)
        changed, self.stride = slowest != self.stride, slowest
        return changed

    def forget(self, node: str) -> None:
        """A node is gone, and its memory with it."""
        self._held.pop(node, None)
        self._strides.pop(node, None)

    def keeping(
        self, node: str, generation: int, roster: Mapping[str, Assignment], nodes: Mapping[str, Member]
    ) -> Keeping:
        """What to tell a member of this generation. `nodes`: all that the job knows, members or not."""
        if generation != self._generation:
            self._generation = generation
            here = {name: each.join for name, each in nodes.items() if each.connected and not each.leaving}
            reachable = {name: (join.addr, join.keeper) for name, join in here.items()}
            order = sorted(roster, key=lambda each: roster[each].group_rank)
            self.stride = max((self._strides.get(each, 1) for each in roster), default=1)
            self._partners = partners({name: reachable[name] for name in order if name in reachable})
            self._offered = self.whole(reachable) if len(roster) <= MOST_HOLDERS else ()
        return Keeping(self._partners.get(node), self._offered, self.stride)

    def whole(self, reachable: Mapping[str, tuple[str, int]]) -> tuple[Snapshot, ...]:
        """The newest snapshots of which every shard is on one of these nodes (address and port of their keepers)."""
        parts: dict[tuple[str, int], list[tuple[str, Held]]] = {}
        for node in sorted(reachable):
            for held in self._held.get(node, ()):
                parts.setdefault((held.run, held.sequence), []).append((node, held))
        found = [_whole(each, reachable) for each in parts.values()]
        newest = sorted((each for each in found if each is not None), key=_age, reverse=True)
        return tuple(newest[:OFFERED])


def partners(places: Mapping[str, tuple[str, int]]) -> dict[str, Holder]:
    """Whose memory takes the copy of whose: of each node the next one, in this order, that is on another host.

    >>> found = partners({"a": ("10.0.0.1", 1), "b": ("10.0.0.1", 2), "c": ("10.0.0.2", 3)})
    >>> [(node, partner.port) for node, partner in found.items()]
    [('a', 3), ('b', 3), ('c', 1)]
    """
    found: dict[str, Holder] = {}
    near = far = None  # the next one that listens, and the next after it that is on yet another host
    for node in reversed([*places, *places]):
        addr, port = places[node]
        partner = far if near is not None and places[near][0] == addr else near
        if partner is not None:
            found[node] = Holder(*places[partner])
        if port:
            far = far if near is not None and places[near][0] == addr else near
            near = node
    return {node: found[node] for node in places if node in found}


def _whole(parts: Iterable[tuple[str, Held]], reachable: Mapping[str, tuple[str, int]]) -> Snapshot | None:
    parts = list(parts)
    first = parts[0][1]
    alike = {(held.step, held.world, held.origin, held.generation) for _, held in parts}
    there = {rank for _, held in parts for rank in (*held.ranks, *held.replicas)}
    if len(alike) > 1 or not first.origin or len(there) != first.world or there != set(range(len(there))):
        return None
    holders = tuple(Holder(*reachable[node], held.ranks, held.replicas) for node, held in parts)
    saved_at = max(held.saved_at for _, held in parts)
    return Snapshot(first.run, first.sequence, first.step, first.world, first.origin, saved_at, holders)


def _age(snapshot: Snapshot) -> tuple[int, float, int, str]:
    return (snapshot.step, snapshot.saved_at, snapshot.sequence, snapshot.run)
