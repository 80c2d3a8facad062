"""Was the whole job stopped, or the coordinator alone?"""

from __future__ import annotations

from outlast.core.coordinator.suspension import Suspension


def woken() -> Suspension:
    """A coordinator of two nodes that was stopped from 10 to 60."""
    suspension = Suspension(node_timeout=3.0)
    suspension.passes(10.0, ["a", "b"])
    suspension.passes(60.0, ["a", "b"])
    return suspension


def test_a_job_whose_nodes_sent_nothing_meanwhile_stood_still() -> None:
    suspension = woken()
    assert suspension.heard("a", sent=9.9) is None  # was under way when all stopped
    assert suspension.heard("a", sent=60.1) is None  # said once
    assert suspension.heard("b", sent=60.5) == (10.0, 60.0)
    assert suspension.heard("b", sent=61.0) is None


def test_a_node_that_ran_on_means_that_the_coordinator_alone_was_stopped() -> None:
    suspension = woken()
    assert suspension.heard("a", sent=60.1) is None
    assert suspension.heard("b", sent=13.0) is None
    assert suspension.heard("b", sent=60.2) is None


def test_a_coordinator_that_is_busy_or_has_no_node_was_not_stopped() -> None:
    suspension = Suspension(node_timeout=3.0)
    suspension.passes(10.0, ["a"])
    suspension.passes(13.9, ["a"])
    assert suspension.heard("a", sent=14.0) is None
    suspension.passes(14.0, [])
    suspension.passes(90.0, [])
    assert suspension.heard("a", sent=90.0) is None
