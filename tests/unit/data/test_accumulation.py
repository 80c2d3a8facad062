"""One optimizer step per global batch, with the gradient of its mean, however it is cut."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest
import torch

import outlast
from outlast import Accumulation, BatchPlan, ElasticLoader
from outlast.data.order import Order

LENGTH, BATCH = 29, 8
INPUTS = torch.randn(LENGTH, 3, generator=torch.Generator().manual_seed(1))


class Model(torch.nn.Linear):
    """Notes when gradients would be exchanged."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        torch.nn.init.ones_(self.weight)
        torch.nn.init.zeros_(self.bias)
        self.quiet = False
        self.exchanges: list[bool] = []

    @contextmanager
    def no_sync(self) -> Any:
        self.quiet = True
        yield
        self.quiet = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.exchanges.append(not self.quiet)
        return super().forward(inputs)


def trained(micro_batch: int | None) -> tuple[Model, Accumulation, Any]:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    loader = ElasticLoader(INPUTS, global_batch=BATCH, micro_batch=micro_batch, rank=0, world_size=1)
    accumulation = Accumulation(model, optimizer, loader.plan, scheduler=scheduler)
    for batch, weights in loader:
        with accumulation:
            (model(batch).square()[:, 0] * weights).sum().backward()
    return model, accumulation, scheduler


def test_the_public_name() -> None:
    assert outlast.Accumulation is Accumulation


@pytest.mark.parametrize("micro_batch", [1, 3, 4, 5, 8])
def test_micro_batches_make_no_difference(micro_batch: int) -> None:
    whole, pieces = trained(None), trained(micro_batch)
    torch.testing.assert_close(pieces[0].weight, whole[0].weight)
    assert pieces[1].steps == whole[1].steps == 4
    assert pieces[2].last_epoch == whole[2].last_epoch == 4


def test_a_loop_that_is_left_between_two_steps_can_be_begun_anew() -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    loader = ElasticLoader(INPUTS, global_batch=BATCH, micro_batch=3, rank=0, world_size=1)
    accumulation = Accumulation(model, optimizer, loader.plan, scheduler=scheduler)
    for left_at in (4, 100):
        accumulation.reset()
        for number, (batch, weights) in enumerate(loader, 1):
            with accumulation:
                (model(batch).square()[:, 0] * weights).sum().backward()
            if number == left_at:  # in the middle of the second global batch
                break
    assert accumulation.steps == 4
    torch.testing.assert_close(model.weight, trained(None)[0].weight)


def test_gradients_are_exchanged_with_the_last_micro_batch_only() -> None:
    model, _, _ = trained(3)
    assert model.exchanges == [False, False, True] * 4


def test_ranks_of_fsdp2_are_told_before_each_micro_batch_whether_to_exchange() -> None:
    """On one rank, where the switch is all that there is; tests/integration/test_fsdp_example.py has several."""

    class Sharded(Model):
        def set_requires_gradient_sync(self, sync: bool) -> None:
            self.quiet = not sync

    model = Sharded()
    loader = ElasticLoader(INPUTS, global_batch=BATCH, micro_batch=3, rank=0, world_size=1)
    accumulation = Accumulation(model, torch.optim.SGD(model.parameters(), lr=0.05), loader.plan)
    for batch, weights in loader:
        with accumulation:
            (model(batch).square()[:, 0] * weights).sum().backward()
    assert model.exchanges == [False, False, True] * 4


def test_the_mean_is_that_of_the_batch() -> None:
    model = Model()
    order = Order(LENGTH).samples(range(LENGTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, at in enumerate(range(0, LENGTH, BATCH)):
        optimizer.param_groups[0]["lr"] = 0.05 * 0.5 ** (step // 2)
        optimizer.zero_grad()
        model(INPUTS[order[at : at + BATCH]]).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(trained(3)[0].weight, model.weight)


def test_a_batch_that_fails_is_not_stepped_and_the_next_one_begins_anew() -> None:
    model = Model()
    accumulation = Accumulation(model, torch.optim.SGD(model.parameters(), lr=1.0), BatchPlan(4, 2))
    with accumulation:
        model(INPUTS[:2]).sum().backward()
    with pytest.raises(RuntimeError, match="no memory"), accumulation:
        raise RuntimeError("no memory")
    assert accumulation.steps == 0
    for _ in range(2):
        with accumulation:
            (0 * model(INPUTS[:2])).sum().backward()
    assert accumulation.stepped
    assert torch.equal(model.weight, torch.ones(1, 3))


def test_what_is_done_before_the_step_and_what_is_kept() -> None:
    model = Model()
    seen: list[Any] = []
    accumulation = Accumulation(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        BatchPlan(2),
        before_step=lambda: seen.append(model.weight.grad is not None),
    )
    with accumulation:
        model(INPUTS[:2]).sum().backward()
    assert seen == [True]
    again = Accumulation(model, None, BatchPlan(2))
    again.load_state_dict(accumulation.state_dict())
    assert again.steps == 1
