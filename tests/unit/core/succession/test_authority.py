"""Whether a coordinator may act."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.core.succession.authority import PROMISE_SHARE, SUPPORT_SHARE, Authority, Electorate
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Ballot, Charter, Successor

TIMEOUT = 10.0
SPAN = SUPPORT_SHARE * TIMEOUT


def rules(**changes: Any) -> Rules:
    return Rules(job="j", entrypoint="train.py", min_nodes=1, max_nodes=9, node_timeout=TIMEOUT, **changes)


def formed(*members: str, now: float = 0.0, **changes: Any) -> Authority:
    """A coordinator that has just formed its first generation, with the first member as head."""
    authority = Authority(rules(**changes), 0.0)
    authority.form(members, members[0], generation=1, term=1, now=now)
    return authority


def charter(*ballots: Ballot, members: str = "abc") -> Charter:
    return Charter("r", rules(), ballots, tuple(Successor(m, m, m, 1) for m in members))


def test_without_an_electorate_nothing_is_needed() -> None:
    assert Authority(rules(), 0.0).acts(1e9)


def test_a_promise_lasts_longer_than_it_is_counted_also_by_a_clock_that_is_slow() -> None:
    assert SUPPORT_SHARE * 1.02 < PROMISE_SHARE * 0.98


def test_the_members_of_a_fresh_generation_are_presumed_to_support_it_for_a_while() -> None:
    authority = formed("a", "b", "c")
    assert authority.acts(SPAN - 0.1)
    assert not authority.acts(SPAN)


def test_support_counts_from_when_the_ack_was_sent() -> None:
    authority = formed("a", "b", "c")
    for node in "ab":
        authority.supported(node, 5.0)
    assert authority.acts(5.0 + SPAN - 0.1)
    assert not authority.acts(5.0 + SPAN)


@pytest.mark.parametrize(
    ("supporters", "enough"), [("a", False), ("b", False), ("ab", True), ("bc", True), ("abc", True)]
)
def test_more_than_half_of_three_is_two_of_them(supporters: str, enough: bool) -> None:
    authority = formed("a", "b", "c")
    for node in supporters:
        authority.supported(node, 100.0)
    assert authority.acts(100.1) is enough


@pytest.mark.parametrize(("supporters", "enough"), [("ab", True), ("cd", False), ("bcd", True)])
def test_of_two_halves_the_one_with_the_head_goes_on(supporters: str, enough: bool) -> None:
    authority = formed("a", "b", "c", "d")
    for node in supporters:
        authority.supported(node, 100.0)
    assert authority.acts(100.1) is enough


def test_of_two_nodes_one_is_not_enough_unless_the_user_says_so_and_the_other_had_time_to_come() -> None:
    for tie_break in ("off", "survivor"):
        authority = formed("a", "b", tie_break=tie_break)
        authority.renew(100.0)
        authority.supported("b", 101.0)
        assert not authority.acts(101.1)
        authority.supported("b", 125.0)
        assert authority.acts(125.1) is (tie_break == "survivor")


def test_a_new_term_has_no_supporters_yet() -> None:
    authority = formed("a", "b", "c")
    for node in "ab":
        authority.supported(node, 5.0)
    authority.renew(5.1)
    assert not authority.acts(5.2)


def test_a_member_that_ended_here_does_not_count_any_more() -> None:
    authority = formed("a", "b", "c")
    authority.supported("a", 100.0)
    assert not authority.acts(100.1)
    authority.ended("b")
    assert authority.acts(100.2)


def test_what_the_others_reckon_with_stays_the_same() -> None:
    authority = formed("a", "b", "c")
    authority.ended("b")
    assert authority.electorates[0].ballot("a").total == 7


def test_when_all_have_ended_nobody_is_needed() -> None:
    authority = formed("a", "b")
    authority.ended("a")
    authority.ended("b")
    assert authority.acts(1e9)


def test_after_a_generation_both_electorates_are_needed_until_the_older_one_knows() -> None:
    authority = formed("a", "b", "c")
    authority.form(["d", "e", "f"], "d", generation=2, term=1, now=1.0)
    for node in "def":
        authority.supported(node, 50.0)
    assert not authority.acts(50.1)
    for node in "ab":
        authority.supported(node, 50.0)
    assert authority.acts(50.1)
    for node in "ab":
        authority.knows(node)
    authority.settle(50.2)
    assert authority.settled
    for node in "def":
        authority.supported(node, 100.0)
    assert authority.acts(100.1)


def test_what_is_only_presumed_settles_nothing() -> None:
    authority = formed("a", "b", "c")
    authority.form(["d", "e", "f"], "d", generation=2, term=1, now=1.0)
    for node in "ab":
        authority.supported(node, 1.0)
        authority.knows(node)
    authority.settle(1.5)
    assert not authority.settled


def test_a_node_s_own_word_and_the_list_of_successors_say_who_votes() -> None:
    authority = Authority(rules(), 0.0)
    authority.adopt(charter(Ballot(4, 1, 2, 7, 2)))
    authority.came("b", charter(Ballot(4, 1, 2, 7, 2)))
    assert not authority.could_act(0.1)
    authority.came("c", None)
    assert authority.could_act(0.1)
    authority.went("b")
    authority.came("a", charter(Ballot(4, 1, 2, 7, 3)))
    assert authority.could_act(0.1)


def test_an_electorate_that_was_settled_here_stays_so_whatever_others_have_heard() -> None:
    authority = formed("a", "b", "c")
    authority.adopt(charter(Ballot(1, 1, 5, 7, 2), Ballot(0, 0, 0, 3, 0)))
    assert authority.settled
    assert authority.electorates[0].affirmed == 5


def test_an_electorate_s_size_is_in_its_votes() -> None:
    for size in range(1, 9):
        members = [f"n{i}" for i in range(size)]
        assert Electorate.of(members, "n0", generation=1, term=1, now=0.0, span=1.0).size == size
