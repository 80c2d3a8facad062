"""Checkpoints of others: restored as they are, or imported, to the bit."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import fully_shard

from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.trainer.checkpointer import Checkpointer
from outlast.cli import checkpoints
from ranks import on_ranks

safetensors = pytest.importorskip("safetensors.torch")


def training(seed: int = 0, steps: int = 0) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * (seed + 1))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(steps):
        model(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return {"model": model, "optim": optimizer, "schedule": schedule}


def plain(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.state_dict() for name, value in state.items()}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def torch_file(state: dict[str, Any], path: Path) -> Path:
    torch.save({**plain(state), "step": 7}, path / "all.pt")
    return path / "all.pt"


def old_torch_file(state: dict[str, Any], path: Path) -> Path:
    torch.save({**plain(state), "step": 7}, path / "old.pt", _use_new_zipfile_serialization=False)
    return path / "old.pt"


def lightning_file(state: dict[str, Any], path: Path) -> Path:
    model, optim, schedule = plain(state).values()
    found = {"state_dict": model, "optimizer_states": [optim], "lr_schedulers": [schedule], "epoch": 1}
    torch.save({**found, "global_step": 7, "pytorch-lightning_version": "2.6"}, path / "l.ckpt")
    return path / "l.ckpt"


def hugging_face_directory(state: dict[str, Any], path: Path) -> Path:
    model = state["model"].state_dict()
    names = list(model)
    for number, part in enumerate((names[:3], names[3:]), 1):
        safetensors.save_file({name: model[name] for name in part}, path / f"model-{number:05d}-of-00002.safetensors")
    torch.save(state["optim"].state_dict(), path / "optimizer.pt")
    torch.save(state["schedule"].state_dict(), path / "scheduler.pt")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": 7}))
    return path


def dcp_directory(state: dict[str, Any], path: Path) -> Path:
    """Its optimizer by numbers, as many scripts have it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({**plain(state), "step": 7}, checkpoint_id=str(path / "dcp"))
    return path / "dcp"


KINDS = [torch_file, old_torch_file, lightning_file, hugging_face_directory, dcp_directory]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_restored_as_it_is(
    kind: Callable[..., Path], checkpointer: Callable[..., Checkpointer], tmp_path: Path
) -> None:
    saved, again = training(0, steps=3), training(1)
    checkpointer().restore(again, source=kind(saved, tmp_path))
    assert same(plain(again), plain(saved))


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_imported(kind: Callable[..., Path], checkpointer: Callable[..., Checkpointer], tmp_path: Path) -> None:
    saved, again = training(0, steps=3), training(1)
    assert checkpoints.main(["import", str(kind(saved, tmp_path)), str(tmp_path / "ck")]) == 0
    (made,) = disk.found(tmp_path / "ck")
    assert (made.step, disk.verify(made.path)) == (7, [])
    assert sorted(path.name for path in (tmp_path / "ck").iterdir()) == [".outlast", "step-00000007"]
    assert checkpointer().restore(again) == 7
    assert same(plain(again), plain(saved))


def test_an_optimizer_by_numbers_is_restored_on_sharded_parameters(tmp_path: Path) -> None:
    saved = training(0, steps=3)
    del saved["schedule"]
    path = torch_file(saved, tmp_path)

    def body(rank: int) -> bool:  # noqa: ARG001
        state = training(1)
        model = fully_shard(state["model"])
        again = {"model": model, "optim": torch.optim.AdamW(model.parameters(), lr=0.7)}
        Checkpointer(tmp_path / "ck").restore(again, source=path)
        full = StateDictOptions(full_state_dict=True, cpu_offload=True)
        theirs, moments = get_state_dict(model, again["optim"], options=full)
        known = get_state_dict(saved["model"], saved["optim"])
        return dist.get_rank() != 0 or (same(theirs, known[0]) and same(moments["state"], known[1]["state"]))

    assert on_ranks(2, body, tmp_path) == [True, True]


def test_a_bare_model_is_called_model(checkpointer: Callable[..., Checkpointer], tmp_path: Path) -> None:
    model, again = training(0)["model"], training(1)["model"]
    torch.save({f"module.{name}": value for name, value in model.state_dict().items()}, tmp_path / "ddp.pt")
    safetensors.save_file(model.state_dict(), tmp_path / "m.safetensors")
    for name in ("ddp.pt", "m.safetensors"):
        checkpointer().restore({"model": again}, source=tmp_path / name)
        assert same(again.state_dict(), model.state_dict())
        with torch.no_grad():
            again[0].weight.zero_()


def test_entries_are_renamed_and_a_step_is_given(checkpointer: Callable[..., Checkpointer], tmp_path: Path) -> None:
    saved, again = training(0, steps=2), training(1)
    torch.save({"net": saved["model"].state_dict(), "opt": saved["optim"].state_dict()}, tmp_path / "x.pt")
    command = ["import", str(tmp_path / "x.pt"), str(tmp_path / "ck"), "--step=40"]
    assert checkpoints.main([*command, "--rename=net=model", "--rename=opt=optim"]) == 0
    del saved["schedule"], again["schedule"]
    assert checkpointer().restore(again) == 40
    assert same(plain(again), plain(saved))


class Evil:
    def __reduce__(self) -> Any:
        return print, ("run",)


@pytest.mark.parametrize("what", ["evil", "text", "damaged", "tensor", "empty directory", "nothing", "bad safetensors"])
def test_what_cannot_be_imported_is_one_line(tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / ("x.safetensors" if what == "bad safetensors" else "x")
    if what == "evil":
        torch.save({"a": Evil()}, path)
    elif what in ("text", "bad safetensors"):
        path.write_text("hello")
    elif what == "damaged":
        torch.save({"a": torch.ones(1000)}, path)
        path.write_bytes(path.read_bytes()[:600])
    elif what == "tensor":
        torch.save(torch.ones(3), path)
    elif what == "empty directory":
        path.mkdir()
    assert checkpoints.main(["import", str(path), str(tmp_path / "ck")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert str(path) in said.err
    assert disk.found(tmp_path / "ck") == []


def test_a_file_that_cannot_be_read_is_one_line(checkpointer: Callable[..., Checkpointer], tmp_path: Path) -> None:
    torch.save({"a": Evil()}, tmp_path / "x.pt")
    with pytest.raises(ValueError, match=r"x.pt has objects that are not loaded from files"):
        checkpointer().restore({"a": 1}, source=tmp_path / "x.pt")
