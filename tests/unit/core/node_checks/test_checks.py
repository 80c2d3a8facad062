"""A check's rounds and verdicts: who is faulty, who is slow, and that nobody else is called so."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.core.node_checks.checks import IMPORTS, Examination, Fitness, Result
from outlast.core.node_checks.pairing import Group
from outlast.core.node_checks.table import summary, table
from outlast.protocol.checks import Findings

Rates = Callable[[str, int, Group], Mapping[str, float]]  # of a node, in a round, in its group


def steady(_node: str, _round: int, _group: Group) -> dict[str, float]:
    return {"compute": 100.0, "memory": 10.0, "network": 1.0}


def examine(
    nodes: Collection[str],
    *,
    rates: Rates = steady,
    dies: Collection[str] = (),
    deaf: Collection[str] = (),
    silent: Collection[str] = (),
    **changes: Any,
) -> Result:
    """A whole check. Nodes that die do so in every round, deaf ones fail with others, silent ones never answer."""
    check = Examination(1, list(nodes), names={node: node for node in nodes}, limit=10.0, **changes)
    now, number = 0.0, 0
    while (groups := check.advance(now)) is not None:
        number += bool(groups)
        for group in groups:
            for node in group:
                answer = Findings(1, check.number, figures=rates(node, number, group), wall=1000.0 + now, clock=now)
                if node in silent:
                    continue
                if node in dies:
                    answer = Findings(1, check.number, alone="killed by signal 9")
                elif len(group) > 1 and any(each in deaf or each in dies or each in silent for each in group):
                    answer = Findings(1, check.number, together="connection refused", figures={"compute": 100.0})
                assert check.take(node, answer, now)
                assert not check.take(node, answer, now)
        if (deadline := check.deadline()) is not None:
            now = deadline
    return check.result()


def names(count: int) -> list[str]:
    return [f"n{index}" for index in range(count)]


def test_one_whose_check_is_killed_is_named_in_two_rounds() -> None:
    result = examine("abcd", dies="b")
    assert (result.of(Fitness.FAULTY), result.of(Fitness.GOOD), result.rounds) == (["b"], ["a", "c", "d"], 2)
    assert "killed by signal 9" in table(result)
    assert summary(result) == "4 nodes checked in 2 rounds: 1 faulty (b), 3 good"


def test_of_two_nodes_the_one_that_dies_is_named_and_the_other_is_not() -> None:
    result = examine("ab", dies="a")
    assert (result.of(Fitness.FAULTY), result.of(Fitness.GOOD)) == (["a"], ["b"])


def test_of_two_nodes_that_only_fail_together_nobody_is_faulty() -> None:
    result = examine("ab", deaf="a")
    assert (result.of(Fitness.FAULTY), result.of(Fitness.ASIDE)) == ([], ["a", "b"])
    assert "connection refused" in table(result)


def test_one_whose_network_is_bad_is_named_with_its_witnesses() -> None:
    result = examine("abcd", deaf="c")
    assert result.rows["c"].why == "it fails with d and with a, which are good: connection refused"


def test_one_that_never_answers_is_named() -> None:
    result = examine("abcd", silent="d")
    assert result.of(Fitness.FAULTY) == ["d"]


def test_a_group_of_which_nobody_answers_in_time_fails_by_itself() -> None:
    check = Examination(1, ["a"], names={}, limit=10.0)
    assert check.advance(0.0) == [("a",)]
    assert check.advance(9.0) == []
    assert check.deadline() == 10.0 + IMPORTS
    assert check.advance(10.0 + IMPORTS) == [("a",)]
    assert check.advance(20.0 + 2 * IMPORTS) is None
    assert check.result().rows["a"].why == "nothing was heard of its check"


def test_one_that_is_lost_is_nobody_elses_fault() -> None:
    check = Examination(1, list("abcd"), names={})
    check.advance(0.0)
    check.lose("a", now=1.0)
    for node in "cd":
        check.take(node, Findings(1, 1), now=1.0)
    groups = check.advance(check.deadline() or 0.0)
    assert groups == [("b", "c")]
    for node in "bc":
        check.take(node, Findings(1, 2), now=2.0)
    assert check.advance(2.0) is None
    result = check.result()
    assert (result.of(Fitness.LOST), result.of(Fitness.GOOD)) == (["a"], ["b", "c", "d"])


def test_a_partner_that_is_lost_before_it_was_needed_is_not_asked() -> None:
    check = Examination(1, ["new"], names={}, partners=["a", "b"])
    assert check.advance(0.0) == [("new", "a")]
    check.lose("b", now=1.0)
    check.take("new", Findings(1, 1, together="no route"), now=1.0)
    check.take("a", Findings(1, 1, together="no route"), now=1.0)
    assert check.advance(1.0) == [("new", "a")]


def test_a_straggler_is_named_after_three_tries() -> None:
    def rates(node: str, _round: int, _group: Group) -> dict[str, float]:
        return {"compute": 30.0 if node == "c" else 100.0}

    result = examine("abcd", rates=rates)
    assert result.rows["c"].why == "3.3 times slower than the median in compute"
    assert (result.of(Fitness.SLOW), result.rounds) == (["c"], 3)


def test_one_that_was_slow_once_is_no_straggler() -> None:
    def rates(node: str, number: int, _group: Group) -> dict[str, float]:
        return {"compute": 10.0 if node == "c" and number < 3 else 100.0}

    assert examine("abcd", rates=rates).of(Fitness.SLOW) == []


def test_a_slow_network_is_not_blamed_on_the_partner() -> None:
    def rates(_node: str, _round: int, group: Group) -> dict[str, float]:
        return {"network": 0.1 if "c" in group else 1.0}

    assert examine("abcdefgh", rates=rates).of(Fitness.SLOW) == ["c"]


@pytest.mark.parametrize("count", [4, 5, 6, 7, 8, 21])
@pytest.mark.parametrize("times", [2.2, 3.0, 20.0])
def test_a_slow_network_is_named_though_its_partners_are_as_slow_with_it(count: int, times: float) -> None:
    """With four nodes these are half of all figures, with five they may be three: the median is no measure yet."""
    nodes = names(count)
    for slow in nodes:
        result = examine(nodes, rates=lambda _n, _r, group, slow=slow: {"network": 1 / times if slow in group else 1.0})
        assert (result.of(Fitness.SLOW), len(result.of(Fitness.GOOD))) == ([slow], count - 1)
        assert result.rounds == 3


def test_of_two_nodes_nobody_is_slow_but_the_difference_is_said() -> None:
    def rates(node: str, _round: int, _group: Group) -> dict[str, float]:
        return {"compute": 10.0 if node == "a" else 100.0}

    result = examine("ab", rates=rates)
    assert result.of(Fitness.SLOW) == []
    assert result.warnings == (
        "a is 10.0 times slower than the other in compute; two nodes have no median, so no node is excluded for that",
    )


def test_a_newcomer_is_compared_with_what_others_did_before() -> None:
    history = {node: {"compute": 100.0} for node in "abc"}
    result = examine(["new"], rates=lambda *_: {"compute": 20.0}, history=history)
    assert result.of(Fitness.SLOW) == ["new"]


def test_clocks_that_are_off_are_told() -> None:
    check = Examination(1, list("abc"), names={}, behind=lambda node: {"a": 5.0, "b": 0.0, "c": 1.0}[node])
    check.advance(0.0)
    for node, clock, wall in (("a", 5.0, 1000.0), ("b", 10.0, 1000.0), ("c", 9.0, 1007.0)):
        check.take(node, Findings(1, 1, clock=clock, wall=wall), now=10.0)
    assert check.advance(10.0) is None
    assert check.result().warnings == ("the clock of c is 7.0 s off: see to NTP",)


def test_collectives_of_several_sizes_have_a_line_of_their_own() -> None:
    result = examine("a", rates=lambda *_: {"network": 2.0, "all-reduce 1 MiB": 1.5, "all-gather 1 MiB": 0.5})
    assert "a, GB/s: all-reduce 1 MiB 1.50, all-gather 1 MiB 0.50" in table(result).splitlines()


@settings(max_examples=150)
@given(count=st.integers(1, 24), seed=st.integers(0, 2**32))
def test_nobody_healthy_is_called_faulty_or_slow(count: int, seed: int) -> None:
    """Healthy nodes are noisy, up to the factor; some die, some cannot talk, some never answer, some are slow."""
    chance = random.Random(seed)
    nodes = [f"n{index}" for index in range(count)]
    kind = {node: chance.choices(["healthy", "dies", "deaf", "silent", "slow"], [12, 1, 1, 1, 1])[0] for node in nodes}

    def rates(node: str, _round: int, _group: Group) -> dict[str, float]:
        return {"compute": chance.uniform(100, 199) / (10 if kind[node] == "slow" else 1)}

    of = {word: {node for node in nodes if kind[node] == word} for word in ("dies", "deaf", "silent", "slow")}
    result = examine(nodes, rates=rates, dies=of["dies"], deaf=of["deaf"], silent=of["silent"])
    assert set(result.of(Fitness.FAULTY)) <= of["dies"] | of["deaf"] | of["silent"]
    assert of["dies"] <= set(result.of(Fitness.FAULTY))
    if len(of["slow"]) * 2 < count - len(of["dies"]) - len(of["silent"]):
        assert set(result.of(Fitness.SLOW)) <= of["slow"]
