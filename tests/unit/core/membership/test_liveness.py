"""Silence: when a node that is connected no longer counts as there."""

from __future__ import annotations

from outlast.core.membership.liveness import BEATS, Liveness, lease_of
from outlast.protocol.rules import Rules


def test_a_node_is_silent_after_the_node_timeout_and_is_named_once() -> None:
    liveness = Liveness(node_timeout=3.0)
    liveness.heard("a", now=0.0)
    liveness.heard("b", now=1.0)
    assert liveness.silent(now=2.9) == []
    assert liveness.silent(now=3.0) == ["a"]
    assert liveness.silent(now=3.1) == []


def test_the_only_node_is_waited_for_until_another_is_there() -> None:
    liveness = Liveness(node_timeout=3.0)
    liveness.heard("a", now=0.0)
    assert liveness.deadline() is None
    assert liveness.silent(now=99.0) == []
    liveness.heard("b", now=99.0)
    assert liveness.silent(now=99.0) == ["a"]
    assert liveness.deadline() is None


def test_a_node_that_is_heard_again_goes_to_the_end_of_the_queue() -> None:
    liveness = Liveness(node_timeout=3.0)
    liveness.heard("a", now=0.0)
    liveness.heard("b", now=1.0)
    liveness.heard("a", now=2.0)
    assert liveness.deadline() == 4.0
    assert liveness.silent(now=4.5) == ["b"]


def test_several_nodes_fall_silent_in_the_order_in_which_they_were_heard() -> None:
    liveness = Liveness(node_timeout=1.0)
    for at, node in enumerate("cabd"):
        liveness.heard(node, now=float(at))
    assert liveness.silent(now=10.0) == ["c", "a", "b"]


def test_a_forgotten_node_is_never_named() -> None:
    liveness = Liveness(node_timeout=3.0)
    liveness.heard("a", now=0.0)
    liveness.forget("a")
    liveness.forget("never seen")
    assert liveness.deadline() is None
    assert liveness.silent(now=99.0) == []


def test_it_knows_when_a_node_was_last_heard() -> None:
    liveness = Liveness(node_timeout=3.0)
    liveness.heard("a", now=1.5)
    assert liveness.heard_at("a", 7.0) == 1.5
    assert liveness.heard_at("b", 7.0) == 7.0


def test_the_lease_ends_before_the_coordinators_patience_and_outlasts_a_lost_heartbeat() -> None:
    rules = Rules(job="j", entrypoint="train.py", min_nodes=1, max_nodes=2, node_timeout=1.0)
    assert 2 / BEATS < lease_of(rules) < 1.0
