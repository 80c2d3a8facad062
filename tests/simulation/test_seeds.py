"""Seeds that found a bug in the core. Each scenario also has a test of its own in tests/unit, without a seed."""

from __future__ import annotations

import pytest
from campaign import run

SEEDS = {
    341: "with nobody connected and workers that might still live, the job's deadline stayed in the past",
    3605: "the same",
    124: "stopping for a newcomer broke the others' collectives, and that cost a restart",
    186: "the same",
    61: "a node that was cut off stopped its workers, and the failures that followed cost a restart",
    251: "the same",
    223: "workers that were stopping used their whole grace after their lease had ended",
    298: "the same",
    2270: "an old connection came late, and its end was taken for the end of the agent",
    5519: "all workers finished while they were being stopped for a newcomer, and all had to train again",
}


@pytest.mark.parametrize("seed", SEEDS, ids=str)
def test_a_seed_that_found_a_bug_finds_nothing_now(seed: int) -> None:
    run(seed)
