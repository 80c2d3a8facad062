"""A global batch, shared: the same set on every world size, and weights that make its mean."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.data.batch import BatchPlan

plans = st.builds(
    BatchPlan,
    global_batch=st.integers(1, 200),
    micro_batch=st.none() | st.integers(1, 40),
    world_size=st.integers(1, 20),
)


def real(plan: BatchPlan, samples: int) -> list[list[list[int]]]:
    """The samples that count, by rank and micro step."""
    return [
        [list(plan.positions(rank, step, samples=samples)) for step in range(plan.micro_steps)]
        for rank in range(plan.world_size)
    ]


@given(plan=plans, data=st.data())
def test_each_position_is_trained_once_by_one_rank(plan: BatchPlan, data: st.DataObject) -> None:
    samples = data.draw(st.integers(1, plan.global_batch))
    shares = real(plan, samples)
    assert sorted(p for rank in shares for step in rank for p in step) == list(range(samples))
    sizes = [sum(map(len, rank)) for rank in shares]
    assert max(sizes) - min(sizes) <= 1


@given(plan=plans, data=st.data())
def test_weights_give_every_sample_the_same_say_and_add_up_to_the_world_size(
    plan: BatchPlan, data: st.DataObject
) -> None:
    samples = data.draw(st.integers(1, plan.global_batch))
    weights = {}
    for rank in range(plan.world_size):
        for step in range(plan.micro_steps):
            positions = plan.positions(rank, step)
            given_weights = plan.weights(rank, step, samples=samples)
            assert len(positions) == len(given_weights) == plan.micro_size
            weights |= dict(zip(positions, given_weights, strict=True))
    assert {weights[p] for p in range(samples)} == {plan.world_size / samples}
    assert {weight for p, weight in weights.items() if p >= samples} <= {0.0}
    # Averaged over ranks, it is the mean over the samples.
    assert float(Fraction(plan.world_size, samples) / plan.world_size) == pytest.approx(1 / samples)


@given(plan=plans)
def test_no_micro_batch_is_larger_than_asked_for_and_little_is_filled_up(plan: BatchPlan) -> None:
    assert plan.micro_size <= (plan.micro_batch or plan.share)
    filled = plan.micro_size * plan.micro_steps * plan.world_size - plan.global_batch
    assert 0 <= filled < plan.world_size * plan.micro_steps
    assert plan.even == (filled == 0)


def test_steps_of_an_epoch() -> None:
    plan = BatchPlan(32)
    assert (plan.steps(96), plan.steps(97), plan.steps(97, drop=True), plan.steps(0)) == (3, 4, 3, 0)


@pytest.mark.parametrize("wrong", [{"global_batch": 0}, {"micro_batch": 0}, {"world_size": -1}])
def test_sizes_below_one_are_refused_by_name(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        BatchPlan(**({"global_batch": 8} | wrong))
