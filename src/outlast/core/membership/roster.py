"""Who is in a generation, and with which ranks. Pure functions of the nodes and of the last roster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from outlast.protocol.generations import Assignment


class Candidate(msgspec.Struct, frozen=True):
    """A node that is ready to be part of the next generation."""

    node: str
    name: str
    nproc: int
    role: str
    addr: str
    store_port: int
    infra_rank: int | None = None


def world_of(available: int, *, least: int, most: int, unit: int) -> int:
    """How many nodes a generation has when so many are available; 0 when they are too few.

    >>> world_of(7, least=2, most=8, unit=2)
    6
    >>> world_of(1, least=2, most=8, unit=2)
    0
    """
    size = min(available, most) // unit * unit
    return size if size >= least else 0


def last_ranks(roster: Mapping[str, Assignment], names: Mapping[str, str], ready: Mapping[str, str]) -> dict[str, int]:
    """Who had which group rank. A new life of a node that was lost takes its place: its memory is there.

    `names`: of the last roster's members; `ready`: of those who may come into the next one.
    """
    last = {node: place.group_rank for node, place in roster.items()}
    free = {names[node]: rank for node, rank in last.items() if node not in ready}
    for node, name in ready.items():
        if node not in last and name in free:
            last[node] = free.pop(name)
    return last


def choose(ready: Iterable[Candidate], size: int, *, last: Mapping[str, int], infra: bool) -> list[Candidate]:
    """The `size` nodes of the next generation: those of the last one first, then in rank order.

    Survivors come before spares because their memory holds what training needs next.
    """
    return sorted(ready, key=lambda c: (c.node not in last, *_order(c, infra)))[:size]


def rank(members: Sequence[Candidate], *, last: Mapping[str, int], infra: bool) -> list[Candidate]:
    """The members in the order of their group ranks.

    With `infra` the infrastructure's order holds, on every generation. Without it survivors keep their
    ranks, newcomers fill the gaps, and ties go by sorted name. A survivor whose rank lies beyond a
    world that shrank moves into a gap, before any newcomer.
    """
    if infra and any(m.infra_rank is not None for m in members):
        return sorted(members, key=lambda m: _order(m, infra))
    size = len(members)
    kept = {last[m.node]: m for m in members if last.get(m.node, size) < size}
    moved = sorted(
        (m for m in members if last.get(m.node, size) >= size),
        key=lambda m: (m.node not in last, last.get(m.node, 0), m.name, m.node),
    )
    gaps = iter(moved)
    return [kept[r] if r in kept else next(gaps) for r in range(size)]


def line_up(ready: Iterable[Candidate], size: int, *, last: Mapping[str, int], infra: bool) -> list[Candidate]:
    """The `size` members of the next generation, in the order of their group ranks."""
    return rank(choose(ready, size, last=last, infra=infra), last=last, infra=infra)


def assign(
    members: Sequence[Candidate], *, generation: int, restart_count: int, fresh: bool = False
) -> dict[str, Assignment]:
    """Every member's place, given the members in the order of their group ranks."""
    world = sum(m.nproc for m in members)
    of_role: dict[str, int] = {}
    for member in members:
        of_role[member.role] = of_role.get(member.role, 0) + member.nproc
    first, first_of_role = 0, dict.fromkeys(of_role, 0)
    head = members[0]
    places = {}
    for group_rank, member in enumerate(members):
        places[member.node] = Assignment(
            generation=generation,
            group_rank=group_rank,
            group_world_size=len(members),
            first_rank=first,
            world_size=world,
            role_rank=first_of_role[member.role],
            role_world_size=of_role[member.role],
            master_addr=head.addr,
            master_port=head.store_port,
            restart_count=restart_count,
            fresh=fresh,
        )
        first += member.nproc
        first_of_role[member.role] += member.nproc
    return places


def _order(candidate: Candidate, infra: bool) -> tuple[bool, int, str, str]:
    given = candidate.infra_rank if infra else None
    return (given is None, given or 0, candidate.name, candidate.node)
