"""Pairing names bad nodes and bad links, in few rounds, and never a healthy node."""

from __future__ import annotations

import random
from collections.abc import Collection
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.core.node_checks.pairing import MOST_ROUNDS, Group, Pairing, set_aside


def passes(group: Group, bad: Collection[str], links: Collection[frozenset[str]]) -> bool:
    broken = any(frozenset(pair) in links for pair in combinations(group, 2))
    return not broken and not any(node in bad for node in group)


def carry_out(pairing: Pairing, bad: Collection[str], links: Collection[frozenset[str]] = ()) -> Pairing:
    """Play all rounds: collectives fail where they have a bad node or a bad link in them."""
    while groups := pairing.next():
        members = [node for group in groups for node in group]
        assert len(members) == len(set(members)), "a node is asked twice in one round"
        for group in groups:
            pairing.judge(group, passes(group, bad, links))
    return pairing


def names(count: int) -> list[str]:
    return [f"n{index}" for index in range(count)]


def test_healthy_nodes_take_one_round() -> None:
    for count in (1, 2, 3, 4, 5, 100, 101):
        pairing = carry_out(Pairing(names(count)), bad=())
        assert pairing.rounds == 1
        assert (list(pairing.bad), pairing.open, set(pairing.good)) == ([], [], set(names(count)))


@pytest.mark.parametrize("count", [4, 5, 6, 7, 50])
def test_one_bad_node_is_named_in_two_rounds(count: int) -> None:
    for bad in names(count):
        pairing = carry_out(Pairing(names(count)), bad={bad})
        assert list(pairing.bad) == [bad]
        # In a group of three it had no partner of its own in the first round, and of five there are two good ones.
        assert pairing.rounds <= 2 or (count % 2 and bad in names(count)[-3:] and pairing.rounds <= 4)


def test_bad_neighbours_take_a_third_round() -> None:
    pairing = carry_out(Pairing(names(8)), bad={"n0", "n1"})
    assert (set(pairing.bad), pairing.rounds) == ({"n0", "n1"}, 3)


def test_of_three_nodes_the_bad_one_is_named() -> None:
    for bad in names(3):
        assert list(carry_out(Pairing(names(3)), bad={bad}).bad) == [bad]


def test_of_two_nodes_that_fail_together_neither_is_blamed() -> None:
    for bad in ({"n0"}, {"n0", "n1"}):
        pairing = carry_out(Pairing(names(2)), bad=bad)
        assert (pairing.bad, pairing.open) == ({}, names(2))


def test_of_two_nodes_one_that_fails_by_itself_twice_is_named() -> None:
    pairing = Pairing(names(2))
    assert pairing.next() == [("n0", "n1")]
    pairing.fails_alone("n0", "killed", certain=False)
    assert pairing.next() == [("n0",), ("n1",)]
    pairing.fails_alone("n0", "killed", certain=False)
    pairing.judge(("n1",), True)
    assert pairing.next() == []
    assert (pairing.bad, list(pairing.good)) == ({"n0": "killed"}, ["n1"])


def test_one_that_fails_by_itself_once_is_tried_again() -> None:
    pairing = Pairing(names(2))
    pairing.next()
    pairing.fails_alone("n0", "killed", certain=False)
    pairing.next()
    for node in names(2):
        pairing.judge((node,), True)
    assert (pairing.next(), pairing.bad) == ([], {})


def test_a_bad_link_is_named_and_neither_of_its_nodes_blamed() -> None:
    pairing = carry_out(Pairing(names(6)), bad=(), links={frozenset(("n2", "n3"))})
    assert (pairing.bad, pairing.links, pairing.open) == ({}, [("n2", "n3")], [])


def test_a_newcomer_is_tried_with_those_that_are_proven() -> None:
    pairing = carry_out(Pairing(["new"], partners=names(3)), bad={"new"})
    assert (list(pairing.bad), pairing.rounds) == (["new"], 2)
    assert not carry_out(Pairing(["new"], partners=names(3)), bad=()).bad


def test_all_bad_ends_after_a_few_rounds_and_names_nobody() -> None:
    pairing = carry_out(Pairing(names(1000)), bad=names(1000))
    assert (pairing.bad, len(pairing.open)) == ({}, 1000)
    assert pairing.rounds <= MOST_ROUNDS


@settings(max_examples=300)
@given(
    count=st.integers(1, 40),
    share=st.floats(0, 0.4),
    broken=st.integers(0, 6),
    seed=st.integers(0, 2**32),
)
def test_nobody_healthy_is_ever_blamed(count: int, share: float, broken: int, seed: int) -> None:
    """Healthy: not bad, and with one bad link at most."""
    chance = random.Random(seed)
    nodes = names(count)
    bad = {node for node in nodes if chance.random() < share}
    links: set[frozenset[str]] = set()
    touched: set[str] = set()
    for _ in range(broken):
        pair = chance.sample(nodes, 2) if count > 1 else []
        if pair and not touched & set(pair):
            links.add(frozenset(pair))
            touched |= set(pair)
    pairing = carry_out(Pairing(nodes), bad, links)
    assert set(pairing.bad) <= bad
    assert {frozenset(link) for link in pairing.links} <= links
    assert not bad & set(pairing.good) or count == 1
    assert pairing.rounds <= MOST_ROUNDS
    good = count - len(bad)
    if good >= 2 and not links and not pairing.open:
        assert set(pairing.bad) == bad


@settings(max_examples=200)
@given(count=st.integers(8, 60), seed=st.integers(0, 2**32))
def test_a_few_bad_nodes_among_many_are_all_named(count: int, seed: int) -> None:
    bad = set(random.Random(seed).sample(names(count), count // 8))
    pairing = carry_out(Pairing(names(count)), bad)
    assert (set(pairing.bad), pairing.open) == (bad, [])
    assert pairing.rounds <= 4


def test_a_hundred_thousand_nodes_take_no_more_rounds() -> None:
    nodes = names(100_000)
    chance = random.Random(1)
    bad = set(chance.sample(nodes, 1000))
    pairing = carry_out(Pairing(nodes), bad)
    assert (set(pairing.bad), pairing.open) == (bad, [])
    assert pairing.rounds <= 4


def test_setting_aside_breaks_every_bad_link() -> None:
    chance = random.Random(2)
    links = [tuple(chance.sample(names(30), 2)) for _ in range(20)]
    aside = set_aside(links)
    assert all(set(link) & set(aside) for link in links)
