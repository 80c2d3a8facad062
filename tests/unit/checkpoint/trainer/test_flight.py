"""Copies that go on while training does, as far as they can be seen without a GPU.

What the GPU really does meanwhile: benchmarks/checkpoint_gpu.py.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from outlast.checkpoint.memory.slot import Slot
from outlast.checkpoint.trainer import layout
from outlast.checkpoint.trainer.checkpointer import Checkpointer
from outlast.checkpoint.trainer.flight import Runway
from outlast.checkpoint.trainer.layout import ShardLayout


class Gpu:
    """Stands for the GPU: a copy is done when the test says so."""

    def __init__(self) -> None:
        self.copied = threading.Event()
        self.capturing = False
        self.held_back = 0
        self.come_to_rest = Mock()

    # what a stream is asked

    device = torch.device("cpu")

    def wait_stream(self, _: Any) -> None: ...

    def wait_event(self, _: Any) -> None:
        self.held_back += 1

    # what an event is asked

    def record(self, _: Any) -> None: ...

    def synchronize(self) -> None:
        assert self.copied.wait(60)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    gpu = Gpu()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: gpu.capturing)
    monkeypatch.setattr(torch.cuda, "synchronize", gpu.come_to_rest)
    for name in ("Stream", "Event", "current_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, **__: gpu)
    yield gpu
    gpu.copied.set()


@pytest.fixture
def state() -> dict[str, Any]:
    model = torch.nn.Linear(4, 4)
    return {"model": model, "optim": torch.optim.SGD(model.parameters(), lr=0.1), "extra": torch.zeros(3)}


def step(state: dict[str, Any]) -> None:
    for parameter in state["model"].parameters():
        parameter.grad = torch.ones_like(parameter)
    state["optim"].step()


def heard(runway: Runway, state: dict[str, Any]) -> frozenset[int]:
    """What may be copied later, once a step was heard of."""
    assert runway.ready(state) == frozenset()
    step(state)
    return runway.ready(state)


def test_only_what_a_heard_step_changes_may_wait(gpu: Gpu, state: dict[str, Any]) -> None:  # noqa: ARG001
    runway = Runway()
    assert heard(runway, state) == {parameter.data_ptr() for parameter in state["model"].parameters()}
    assert runway.ready(state) == frozenset(), "no step since then was heard of: it may be in a graph by now"
    assert runway.ready({"model": state["model"]}) == frozenset()


def test_the_next_step_waits_on_the_gpu_and_the_snapshot_counts_when_it_is_there(
    gpu: Gpu, state: dict[str, Any]
) -> None:
    runway, sealed = Runway(), threading.Event()
    heard(runway, state)
    weight = state["model"].weight.detach()
    place = torch.empty_like(weight)
    runway.launch([(place, weight)], sealed.set)
    step(state)
    assert gpu.held_back == 1
    assert not sealed.is_set()
    gpu.copied.set()
    runway.land()
    assert sealed.is_set()
    assert runway.ready(state)


def test_what_was_changed_before_the_step_does_not_count_and_is_not_tried_again(
    gpu: Gpu, state: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    runway, sealed = Runway(), threading.Event()
    heard(runway, state)
    weight = state["model"].weight.detach()
    runway.launch([(torch.empty_like(weight), weight)], sealed.set)
    with torch.no_grad():
        state["model"].weight.mul_(2)
    gpu.copied.set()
    runway.land()
    assert not sealed.is_set()
    assert "that snapshot does not count" in caplog.text
    step(state)
    assert runway.ready(state) == frozenset()


@pytest.fixture
def saving(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """Tensors of the CPU are taken for the GPU's."""

    def fill(self: ShardLayout, slot: Slot, places: Any, values: Any, later: frozenset[int]) -> Any:
        left = [(p, v) for p, v in zip(places, values, strict=True) if p is not None and v.data_ptr() in later]
        copied = whole(self, slot, places, values)
        return left if copied is not None else None

    whole = ShardLayout.fill
    monkeypatch.setattr(ShardLayout, "fill", fill)
    monkeypatch.setattr(layout, "Registered", Mock())
    return gpu


def sealed(saver: Checkpointer) -> set[int]:
    """The steps of the snapshots that are whole."""
    return {ticket.save.step for _, ticket in saver._memory.tickets()}


def test_while_one_is_copied_the_three_before_it_are_whole_for_other_ranks_may_be_behind(
    saving: Gpu, state: dict[str, Any], tmp_path: Path
) -> None:
    saver = Checkpointer(tmp_path / "ck")
    saving.copied.set()
    for number in range(1, 8):
        step(state)
        saver.save(number, state)
        saver._saver.land()
    saving.copied.clear()
    step(state)
    saver.save(8, state)
    assert sealed(saver) >= {5, 6, 7}
    assert 8 not in sealed(saver)
    saving.copied.set()
    saver.close()


def test_a_save_that_waits_overwrites_nothing_before_the_gpu_has_made_the_step(
    saving: Gpu, state: dict[str, Any], tmp_path: Path
) -> None:
    saver = Checkpointer(tmp_path / "ck", overlap=False)
    for number in (1, 2):
        step(state)
        saver.save(number, state)
    there: list[set[int]] = []
    saving.come_to_rest.side_effect = lambda: there.append(sealed(saver))
    saver.save(3, state)
    assert there == [{1, 2}]
    assert sealed(saver) == {2, 3}
    saver.close()


def test_steps_that_are_captured_in_a_graph_end_it(gpu: Gpu, state: dict[str, Any]) -> None:
    runway = Runway()
    heard(runway, state)
    gpu.capturing = True
    step(state)
    gpu.capturing = False
    step(state)
    assert runway.ready(state) == frozenset()


def test_an_optimizer_that_is_made_for_graphs_is_not_trusted(gpu: Gpu) -> None:  # noqa: ARG001
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.param_groups[0]["capturable"] = True
    runway = Runway()
    runway.ready({"optim": optimizer})
    runway._before_step(optimizer)
    assert runway.ready({"optim": optimizer}) == frozenset()


def test_a_problem_of_the_copy_is_the_scripts(gpu: Gpu, state: dict[str, Any]) -> None:
    runway = Runway()
    heard(runway, state)

    def arrived() -> None:
        raise OSError("the slot is gone")

    weight = state["model"].weight.detach()
    runway.launch([(torch.empty_like(weight), weight)], arrived)
    gpu.copied.set()
    with pytest.raises(OSError, match="the slot is gone"):
        runway.land()


def test_nothing_is_left_of_one_that_is_gone(gpu: Gpu, state: dict[str, Any]) -> None:  # noqa: ARG001
    from torch.optim import optimizer

    gc.collect()
    runway = Runway()
    before = len(optimizer._global_optimizer_pre_hooks)
    runway.ready(state)
    assert len(optimizer._global_optimizer_pre_hooks) == before + 1
    del runway
    gc.collect()
    assert len(optimizer._global_optimizer_pre_hooks) == before
