"""Who is in a generation, and with which ranks."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from outlast.core.membership.roster import Candidate, assign, choose, rank, world_of


def candidate(node: str, *, infra_rank: int | None = None, nproc: int = 1, role: str = "default") -> Candidate:
    return Candidate(
        node=node, name=f"host-{node}", nproc=nproc, role=role, addr=f"addr-{node}", store_port=1, infra_rank=infra_rank
    )


ranks = st.one_of(st.none(), st.integers(0, 5))
nodes = st.lists(st.integers(0, 99).map(str), min_size=1, max_size=12, unique=True)
candidates = nodes.flatmap(
    lambda names: st.tuples(
        *(
            st.builds(candidate, st.just(n), infra_rank=ranks, nproc=st.integers(1, 4), role=st.sampled_from("ab"))
            for n in names
        )
    )
).map(list)


@st.composite
def elections(draw: st.DrawFn) -> tuple[list[Candidate], int, dict[str, int]]:
    """Nodes that are ready, how many are wanted, and the group ranks of the last generation."""
    ready = draw(candidates)
    size = draw(st.integers(1, len(ready)))
    old = draw(st.lists(st.sampled_from([*(c.node for c in ready), "gone", "lost"]), unique=True))
    return ready, size, {node: index for index, node in enumerate(old)}


@given(st.integers(0, 50), st.integers(1, 20), st.integers(1, 20), st.integers(1, 5))
def test_a_world_is_within_bounds_a_multiple_of_the_unit_and_as_large_as_can_be(
    available: int, least: int, most: int, unit: int
) -> None:
    size = world_of(available, least=least, most=most, unit=unit)
    if size:
        assert least <= size <= min(most, available)
        assert size % unit == 0
        assert size + unit > min(most, available)
    else:
        assert min(available, most) // unit * unit < least


@given(elections(), st.booleans())
def test_survivors_are_chosen_before_spares(election: tuple[list[Candidate], int, dict[str, int]], infra: bool) -> None:
    ready, size, last = election
    chosen = {c.node for c in choose(ready, size, last=last, infra=infra)}
    survivors = {c.node for c in ready if c.node in last}
    assert len(chosen) == size
    assert survivors <= chosen or chosen <= survivors


@given(elections())
def test_a_survivor_keeps_its_rank_while_the_world_is_large_enough(
    election: tuple[list[Candidate], int, dict[str, int]],
) -> None:
    ready, size, last = election
    members = choose(ready, size, last=last, infra=False)
    ranked = rank(members, last=last, infra=False)
    assert sorted(m.node for m in ranked) == sorted(m.node for m in members)
    for index, member in enumerate(ranked):
        if last.get(member.node, size) < size:
            assert index == last[member.node]


@given(elections())
def test_the_infrastructures_order_holds_and_those_without_a_rank_come_last(
    election: tuple[list[Candidate], int, dict[str, int]],
) -> None:
    ready, size, last = election
    ranked = rank(choose(ready, size, last=last, infra=True), last=last, infra=True)
    if any(m.infra_rank is not None for m in ranked):
        keys = [(m.infra_rank is None, m.infra_rank or 0) for m in ranked]
        assert keys == sorted(keys)


@given(elections(), st.booleans(), st.randoms())
def test_the_order_in_which_nodes_came_does_not_matter(
    election: tuple[list[Candidate], int, dict[str, int]], infra: bool, random: Random
) -> None:
    ready, size, last = election
    shuffled = list(ready)
    random.shuffle(shuffled)
    assert choose(ready, size, last=last, infra=infra) == choose(shuffled, size, last=last, infra=infra)


@given(candidates)
def test_every_rank_is_given_exactly_once(members: list[Candidate]) -> None:
    places = assign(members, generation=3, restart_count=1)
    of_all = [places[m.node].first_rank + i for m in members for i in range(m.nproc)]
    assert of_all == list(range(sum(m.nproc for m in members)))
    for role in {m.role for m in members}:
        same = [m for m in members if m.role == role]
        of_role = [places[m.node].role_rank + i for m in same for i in range(m.nproc)]
        assert of_role == list(range(places[same[0].node].role_world_size))
    assert [places[m.node].group_rank for m in members] == list(range(len(members)))
    assert {p.world_size for p in places.values()} == {len(of_all)}
    assert {(p.master_addr, p.generation) for p in places.values()} == {(members[0].addr, 3)}


def test_newcomers_fill_the_gaps_in_the_order_of_their_names() -> None:
    members = [candidate(n) for n in ("new-b", "c", "new-a", "a")]
    ranked = rank(members, last={"a": 0, "b": 1, "c": 2}, infra=False)
    assert [m.node for m in ranked] == ["a", "new-a", "c", "new-b"]


def test_a_survivor_beyond_a_world_that_shrank_moves_into_a_gap_before_any_newcomer() -> None:
    members = [candidate("d"), candidate("a-new"), candidate("b")]
    ranked = rank(members, last={"a": 0, "b": 1, "c": 2, "d": 3}, infra=False)
    assert [m.node for m in ranked] == ["d", "b", "a-new"]


def test_without_any_infrastructure_rank_survivors_keep_their_ranks() -> None:
    ranked = rank([candidate("a"), candidate("z")], last={"z": 0, "a": 1}, infra=True)
    assert [m.node for m in ranked] == ["z", "a"]
