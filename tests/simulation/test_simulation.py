"""The core under thousands of schedules of delay, loss, partition, crash and return. See simulator.py."""

from __future__ import annotations

from collections import Counter

import pytest
from campaign import ending, run
from simulator import Simulation

SEEDS = range(100_000, 104_000)
BLOCK = 1000


@pytest.mark.parametrize("first", SEEDS[::BLOCK])
def test_every_invariant_holds_after_every_event(first: int) -> None:
    endings = Counter(ending(run(seed)) for seed in range(first, first + BLOCK))
    # A campaign in which some ending never comes no longer tests what leads to it.
    assert set(endings) == {
        "succeeded", "run on", "lost all nodes", "waited in vain", "failed for restarts", "interrupted"
    }  # fmt: skip


def test_a_seed_is_one_schedule() -> None:
    one, other = Simulation(7), Simulation(7)
    one.run()
    other.run()
    assert one.journal == other.journal
