"""`outlast.PerRank`: what is another state on each rank goes back to the rank that it came from."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.tensor import DTensor, init_device_mesh

import outlast
from outlast.checkpoint.trainer.checkpointer import Checkpointer
from outlast.checkpoint.trainer.export import export
from ranks import on_ranks


def saved(checkpointer: Callable[[], Checkpointer], state: dict[str, Any]) -> None:
    saver = checkpointer()
    saver.save(1, state, durable=True)
    saver.wait()


def trained(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (seed + 1))
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_models_optimizers_and_dictionaries_come_back(checkpointer: Callable[[], Checkpointer], tmp_path: Path) -> None:
    model, optimizer = trained(0)
    words = random.Random(3).getstate()
    saved(
        checkpointer,
        {
            "model": outlast.PerRank(model),
            "optim": outlast.PerRank(optimizer),
            "random": outlast.PerRank({"python": words, "nothing": {}}),
        },
    )
    again, other = nn.Linear(3, 2), {"left": "over"}
    fresh = torch.optim.Adam(again.parameters())
    state = {"model": outlast.PerRank(again), "optim": outlast.PerRank(fresh), "random": outlast.PerRank(other)}
    assert checkpointer().restore(state) == 1
    assert torch.equal(again.weight, model.weight)
    assert other == {"python": words, "nothing": {}}
    assert fresh.param_groups[0]["lr"] == 0.1
    assert [float(each["step"]) for each in fresh.state.values()] == [1.0, 1.0]
    for mine, theirs in zip(fresh.state.values(), optimizer.state.values(), strict=True):
        assert torch.equal(mine["exp_avg"], theirs["exp_avg"])
    export(tmp_path / "ck" / "step-00000001", tmp_path / "all.pt", "torch")
    assert list(torch.load(tmp_path / "all.pt", weights_only=True)["model"]) == ["rank-0-of-1"]


def test_saved_with_it_and_restored_without_it_is_one_line_and_the_other_way_round(
    checkpointer: Callable[[], Checkpointer],
) -> None:
    saved(checkpointer, {"a": outlast.PerRank({"x": torch.ones(2)}), "b": {"x": torch.ones(2)}})
    for state, why in (
        ({"a": {}}, r"'a' was saved with PerRank: wrap it$"),
        ({"b": outlast.PerRank({})}, r"'b' was saved without PerRank: give it as it was$"),
        ({"c": outlast.PerRank({})}, r"it has no 'c'"),
    ):
        with pytest.raises(ValueError, match=why) as caught:
            checkpointer().restore(state)
        assert "\n" not in str(caught.value)


def test_another_number_of_ranks_is_one_line_and_changes_nothing(
    checkpointer: Callable[[], Checkpointer], tmp_path: Path
) -> None:
    parts = {f"rank-{rank}-of-2": {"x": torch.full((2,), float(rank))} for rank in range(2)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        dcp.save({"part": parts, "whole": torch.ones(3)}, checkpoint_id=tmp_path / "two")
    mine, whole = {"x": torch.full((2,), 7.0)}, torch.zeros(3)
    with pytest.raises(ValueError, match=r"'part' was saved by 2 ranks.* 1 now: start with 2 ranks, or") as caught:
        checkpointer().restore({"whole": whole, "part": outlast.PerRank(mine)}, source=tmp_path / "two")
    assert "\n" not in str(caught.value)
    assert (mine["x"].tolist(), whole.tolist()) == ([7, 7], [0, 0, 0])
    state = {"whole": whole}
    checkpointer().restore(state, source=tmp_path / "two")  # what is beside it is not bound to a number of ranks
    assert state["whole"].tolist() == [1, 1, 1]


def test_what_has_no_state_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not int: put it into a dictionary"):
        outlast.PerRank(5)


def test_what_knows_where_its_parts_belong_needs_no_wrapper(tmp_path: Path) -> None:
    def body(rank: int) -> None:  # noqa: ARG001
        part = DTensor.from_local(torch.ones(2), init_device_mesh("cpu", (1,)))
        Checkpointer(tmp_path / "ck").save(1, {"x": outlast.PerRank({"y": part})})

    (error,) = on_ranks(1, body, tmp_path)
    assert isinstance(error, ValueError)
    assert str(error).startswith("x.y is a DTensor")
    assert str(error).endswith("without PerRank")
