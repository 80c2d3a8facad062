"""`outlast.Checkpointer` in one process: what was saved is restored, by us and by DCP, or it is said why not."""

from __future__ import annotations

import gc
import io
import os
import pickle
import random
import resource
import shutil
import sys
import types
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING
from torch.optim.optimizer import register_optimizer_step_post_hook

import outlast
from outlast.agent.snapshots.keeper_process import SnapshotWriter
from outlast.board.board import Board
from outlast.board.layout import STEP
from outlast.board.layout import VARIABLE as BOARD
from outlast.checkpoint.memory import arena as arenas
from outlast.checkpoint.memory.room import NoRoom
from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.storage.format import Damaged
from outlast.checkpoint.trainer import checkpointer as checkpointers
from outlast.checkpoint.trainer import optimizers, worker_memory
from outlast.checkpoint.trainer.checkpointer import Checkpointer
from outlast.checkpoint.trainer.flat import flatten, nest
from outlast.checkpoint.trainer.layout import Unsavable, template
from outlast.checkpoint.trainer.reader import load, open_checkpoint, parse
from outlast.cli import checkpoints
from outlast.worker.session import Session


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.nan_to_num(7), other.nan_to_num(7))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def training(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * (seed + 1))
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 4])
    return {"model": model, "optim": optimizer, "schedule": schedule, "epoch": seed, "loss": torch.rand(())}


def step(state: dict[str, Any]) -> None:
    state["model"](torch.randn(4, 7)).square().mean().backward()
    state["optim"].step()
    state["optim"].zero_grad()
    state["schedule"].step()


def plain(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value.state_dict() if hasattr(value, "state_dict") else value for key, value in state.items()}


def load_with_dcp(state: dict[str, Any], path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, checkpoint_id=str(path))


def save_with_dcp(state: dict[str, Any], path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=str(path))


def test_a_training_goes_on_as_if_nothing_had_been(checkpointer: Callable[..., Checkpointer]) -> None:
    state, saver = training(0), checkpointer()
    assert saver.restore(state) == 0
    for number in range(1, 4):
        step(state)
        saver.save(number, state, durable=number == 3)
    saver.wait()
    again = training(5)
    assert checkpointer().restore(again) == 3
    assert same(plain(again), plain(state))
    for each in (state, again):
        torch.manual_seed(9)
        step(each)
    assert same(plain(again), plain(state))


def test_what_is_in_memory_is_restored_where_nothing_is_on_disk(checkpointer: Callable[..., Checkpointer]) -> None:
    state, saver = training(0), checkpointer()
    step(state)
    saver.save(1, state)
    kept = {key: value.clone() for key, value in state["model"].state_dict().items()}
    step(state)
    assert saver.restore(state) == 1
    assert same(dict(state["model"].state_dict()), kept)


def test_steps_are_counted_on_from_the_one_that_is_restored(
    checkpointer: Callable[..., Checkpointer], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session({})
    monkeypatch.setattr(checkpointers, "session", session)
    state, saver = training(0), checkpointer()
    saver.save(280, state)
    session.step(7)
    assert saver.restore(state) == 280
    session.step()
    assert session.slot.words[STEP] == 281


def test_the_step_that_gives_a_new_optimizer_its_state_is_not_counted(
    checkpointer: Callable[..., Checkpointer], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, again, saver, session = training(0), training(1), checkpointer(), Session({})
    step(state)
    saver.save(280, state)
    monkeypatch.setattr(optimizers, "session", session)
    steps: list[object] = []
    watched = [session.optimizer_stepped, lambda: steps.append(None)]
    hooks = [register_optimizer_step_post_hook(lambda *_, each=each: each()) for each in watched]
    try:
        assert saver.restore(again) == 280
    finally:
        for hook in hooks:
            hook.remove()
    assert steps, "torch makes no such step any more"
    assert session.slot.words[STEP] == 0


def test_an_optimizer_that_has_done_nothing_is_saved_and_restored_as_that(
    checkpointer: Callable[..., Checkpointer],
) -> None:
    state, saver = training(0), checkpointer()
    saver.save(1, state, durable=True)
    assert not state["optim"].state, "saving made a step"
    saver.wait()
    again = training(3)
    step(again)
    assert checkpointer().restore(again) == 1
    assert same(plain(again), plain(state))


def test_an_optimizer_without_its_model_keeps_its_numbers(checkpointer: Callable[..., Checkpointer]) -> None:
    state, saver = training(0), checkpointer()
    step(state)
    saver.save(1, {"optim": state["optim"]}, durable=True)
    saver.wait()
    again = training(2)
    assert checkpointer().restore({"optim": again["optim"]}) == 1
    assert same(again["optim"].state_dict(), state["optim"].state_dict())


ODD = {
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(2.5),
    "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
    "columns": torch.arange(48.0).view(6, 8).t(),
    "every other": torch.arange(10)[::2],
    "expanded": torch.ones(1).expand(4, 3),
    "bfloat16": torch.randn(5, 3).bfloat16(),
    "half": torch.randn(3).half(),
    "bool": torch.tensor([True, False, True]),
    "complex": torch.randn(3, dtype=torch.complex64),
    "bytes": torch.arange(256, dtype=torch.uint8),
    "float8": torch.randn(8).to(torch.float8_e4m3fn),
    "with a gradient": torch.randn(3, requires_grad=True),
    "list": [torch.ones(2), {"x": torch.zeros(1)}, 5],
    "nested": {"a": {"b": {"c": (1, 2.5, None)}}, "nothing": {}, "empty list": []},
    "numbers": {1: "one", 2: "two"},
    "tensors by number": {"state": [{0: {"x": torch.ones(2)}, 1: {"x": torch.zeros(1), 5: "five"}}, {"y": {}}]},
    "text": "ä\n",
    "none": None,
    "large": 2**70,
}


def test_whatever_is_in_a_state_comes_back_as_it_was(checkpointer: Callable[..., Checkpointer], tmp_path: Path) -> None:
    saver = checkpointer()
    saver.save(1, ODD, durable=True)
    saver.wait()
    again: dict[str, Any] = dict.fromkeys(ODD)
    assert checkpointer().restore(again) == 1
    for key, value in ODD.items():
        back = again[key]
        if key == "float8":
            value, back = value.view(torch.uint8), back.view(torch.uint8)  # type: ignore[attr-defined]
        assert same(value, back), key
    assert disk.verify(tmp_path / "ck" / "step-00000001") == []


@pytest.mark.thorough
@pytest.mark.timeout(900)  # seconds of work, which may be minutes beside others
def test_a_hundred_thousand_tiny_tensors(
    checkpointer: Callable[..., Checkpointer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {"all": {f"t{number}": torch.full((4,), float(number)) for number in range(100_000)}}
    saver = checkpointer()
    saver.save(1, state, durable=True)
    saver.wait()
    assert checkpoints.main(["verify", str(tmp_path / "ck")]) == 0
    assert checkpoints.main(["show", str(tmp_path / "ck")]) == 0
    assert "step-00000001: whole" in capsys.readouterr().out
    again: dict[str, Any] = {"all": None}
    assert checkpointer().restore(again) == 1
    assert torch.equal(torch.stack(list(again["all"].values())), torch.stack(list(state["all"].values())))
    saver.save(2, {"all": again["all"]})
    for value in state["all"].values():
        value.zero_()
    assert saver.restore(state) == 2  # from memory
    assert torch.equal(torch.stack(list(state["all"].values())), torch.stack(list(again["all"].values())))
    assert gc.isenabled()


def test_tied_tensors_stay_tied(checkpointer: Callable[..., Checkpointer]) -> None:
    def tied(value: float) -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
        nn.init.constant_(model[0].weight, value)
        return model

    model, again, saver = tied(3), tied(4), checkpointer()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    saver.save(1, {"model": model, "optim": optimizer}, durable=True)
    saver.wait()
    restored = torch.optim.Adam(again.parameters())
    assert checkpointer().restore({"model": again, "optim": restored}) == 1
    assert again[1].weight is again[0].weight
    assert same(dict(again.state_dict()), dict(model.state_dict()))
    assert same(restored.state_dict(), optimizer.state_dict())


def test_dcp_reads_ours_without_outlast(checkpointer: Callable[..., Checkpointer], tmp_path: Path) -> None:
    state, saver = training(0), checkpointer()
    step(state)
    saver.save(4, state, durable=True)
    saver.wait()
    path = tmp_path / "ck" / "step-00000004"
    into = {"model": training(8)["model"].state_dict(), "epoch": None, "loss": torch.zeros(())}
    load_with_dcp(into, path)
    assert same(dict(into["model"]), dict(state["model"].state_dict()))
    assert (into["epoch"], into["loss"]) == (state["epoch"], state["loss"])
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp_to_torch_save(path, tmp_path / "one.pt")
    one = torch.load(tmp_path / "one.pt", weights_only=True)
    assert same(dict(one["model"]), dict(state["model"].state_dict()))


def test_we_read_what_dcp_wrote(checkpointer: Callable[..., Checkpointer], tmp_path: Path) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    state = training(0)
    step(state)
    model, optimizer = get_state_dict(state["model"], state["optim"])
    save_with_dcp({"model": model, "optim": optimizer, "epoch": 12}, tmp_path / "theirs")
    again = training(3)
    into = {key: again[key] for key in ("model", "optim", "epoch")}
    assert checkpointer().restore(into, source=tmp_path / "theirs") == 0
    assert into["epoch"] == 12
    assert same(again["model"].state_dict(), state["model"].state_dict())
    assert same(again["optim"].state_dict(), state["optim"].state_dict())


def test_a_state_that_grows_and_changes_is_laid_out_anew(checkpointer: Callable[..., Checkpointer]) -> None:
    saver = checkpointer()
    state: dict[str, Any] = {"w": torch.ones(3), "history": [0.5]}
    for number in range(1, 60):
        state["history"].append(random.Random(number).random())
        if number == 20:
            state["w"] = torch.ones(5000)
        if number == 40:
            state["new"] = torch.zeros(2)
        saver.save(number, state)
        back: dict[str, Any] = dict.fromkeys(state)
        assert saver.restore(back) == number
        assert same(back, state)


def test_a_model_whose_memory_was_exchanged_is_saved_as_it_is_now(checkpointer: Callable[..., Checkpointer]) -> None:
    model, saver = nn.Linear(3, 3), checkpointer()
    saver.save(1, {"model": model})
    model.weight.data = torch.full((3, 3), 8.0)
    saver.save(2, {"model": model})
    again = nn.Linear(3, 3)
    assert saver.restore({"model": again}) == 2
    assert torch.equal(again.weight, torch.full((3, 3), 8.0))


def test_only_each_nth_step_is_saved_unless_it_is_to_be_durable(checkpointer: Callable[..., Checkpointer]) -> None:
    saver, state = checkpointer(every=10), {"x": torch.ones(1)}
    assert [number for number in range(1, 31) if saver.save(number, state)] == [10, 20, 30]
    assert saver.save(31, state, durable=True)
    saver.wait()
    asked = []

    def put_together() -> dict[str, Any]:
        asked.append(True)
        return state

    assert [saver.save(number, put_together) for number in (32, 40)] == [False, True]
    assert len(asked) == 1


def saved(checkpointer: Callable[..., Checkpointer], *steps: int) -> None:
    saver = checkpointer()
    for number in steps:
        saver.save(number, {"x": torch.full((100,), float(number))}, durable=True)
        saver.wait()


def test_a_damaged_one_is_named_left_alone_and_the_one_before_it_is_used(
    checkpointer: Callable[..., Checkpointer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(checkpointer, 1, 2, 3)
    for number in (2, 3):
        with open(tmp_path / "ck" / disk.final_name(number) / "__0_0.distcp", "r+b") as file:
            file.seek(800)
            file.write(b"\xff")
    state: dict[str, Any] = {"x": None}
    assert checkpointer().restore(state) == 1
    assert torch.equal(state["x"], torch.ones(100))
    said = [record.getMessage() for record in caplog.records if record.name == "outlast"]
    assert [line.count("is damaged in chunk 0") for line in said] == [1, 1]
    assert len(disk.found(tmp_path / "ck")) == 3
    with open(tmp_path / "ck" / disk.final_name(1) / "__0_0.distcp", "r+b") as file:
        file.write(b"\xff")
    with pytest.raises(ValueError, match=r"none of the \d checkpoints and snapshots .* is whole; .*to start over"):
        checkpointer().restore(state)


def test_a_damaged_one_that_is_asked_for_by_its_path_is_not_loaded(
    checkpointer: Callable[..., Checkpointer], tmp_path: Path
) -> None:
    saved(checkpointer, 1)
    path, state = tmp_path / "ck" / "step-00000001", {"x": torch.zeros(100)}
    assert checkpointer().restore(state, source=path) == 1
    with open(path / "__0_0.distcp", "r+b") as shard:
        at = shard.read().index(torch.full((100,), 1.0).numpy().tobytes())
        shard.seek(at)
        shard.write(b"\7")
    state = {"x": torch.zeros(100)}
    with pytest.raises(ValueError, match="is damaged in chunk 0"):
        checkpointer().restore(state, source=path)
    assert same(state, {"x": torch.zeros(100)})


@pytest.mark.parametrize("other", ["step", "job"])
def test_a_shard_of_another_step_or_job_is_never_used(
    checkpointer: Callable[..., Checkpointer], tmp_path: Path, other: str
) -> None:
    """Of the same size and the same shape: only its hash tells."""
    saved(checkpointer, 1, 2)
    strange = tmp_path / "ck" / disk.final_name(1)
    if other == "job":
        another = Checkpointer(tmp_path / "other")
        another.save(2, {"x": torch.full((100,), 9.0)}, durable=True)
        another.wait()
        another.close()
        strange = tmp_path / "other" / disk.final_name(2)
    shutil.copy(strange / "__0_0.distcp", tmp_path / "ck" / disk.final_name(2))
    state: dict[str, Any] = {"x": None}
    assert checkpointer().restore(state) == 1
    assert torch.equal(state["x"], torch.ones(100))


def test_whatever_keeps_one_rank_from_a_checkpoint_is_told_to_all_and_no_older_one_is_taken(
    checkpointer: Callable[..., Checkpointer], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(checkpointer, 1, 2)

    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(disk, "read_manifest", fail)
    with pytest.raises(OSError, match="RuntimeError: can't start new thread") as caught:
        checkpointer().restore({"x": torch.zeros(2)})
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_given_step_is_restored_or_said_to_be_missing(checkpointer: Callable[..., Checkpointer]) -> None:
    saved(checkpointer, 1, 2)
    state: dict[str, Any] = {"x": None}
    assert checkpointer().restore(state, step=1) == 1
    assert state["x"][0] == 1
    with pytest.raises(ValueError, match="has no checkpoint of step 7; there are: 1, 2"):
        checkpointer().restore(state, step=7)


def test_memory_of_a_directory_that_was_removed_is_not_of_this_one(
    checkpointer: Callable[..., Checkpointer], tmp_path: Path
) -> None:
    saver = checkpointer()
    saver.save(1, {"x": torch.ones(1)})
    shutil.rmtree(tmp_path / "ck")
    assert saver.restore({"x": torch.ones(1)}) == 0


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_malicious_metadata_runs_nothing(checkpointer: Callable[..., Checkpointer], tmp_path: Path) -> None:
    saved(checkpointer, 1)
    (path,) = (tmp_path / "ck").glob("step-*")
    (path / disk.MANIFEST).unlink()  # as one of DCP's own, of which nothing can be verified
    for text in (
        pickle.dumps(Evil(tmp_path / "evil")),
        b"cos\nmkdir\n(S'" + str(tmp_path / "evil").encode() + b"'\ntR.",
    ):
        with pytest.raises(Damaged, match=r"is refused: it asks for (os|posix).mkdir"):
            parse(text, "x")
        (path / ".metadata").write_bytes(text)
        with pytest.raises(ValueError, match="is refused"):
            checkpointer().restore({"x": None}, source=path)
    for text in (b"", b"\x80", pickle.dumps(5), os.urandom(100)):
        with pytest.raises(Damaged, match="is damaged"):
            parse(text, "x")
    assert not (tmp_path / "evil").exists()


def test_an_enum_that_python_3_11_2_pickled_is_read_and_we_write_none_so(
    checkpointer: Callable[..., Checkpointer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        _MEM_FORMAT_ENCODING, "__reduce_ex__", lambda self, _: (getattr, (self.__class__, self._name_)), raising=False
    )
    saved(checkpointer, 1)
    (path,) = (tmp_path / "ck").glob("step-*")
    assert b"getattr" not in (path / ".metadata").read_bytes()
    save_with_dcp({"x": torch.full((3,), 7.0)}, tmp_path / "theirs")
    assert b"getattr" in (tmp_path / "theirs" / ".metadata").read_bytes()
    state = {"x": torch.zeros(3)}
    checkpointer().restore(state, source=tmp_path / "theirs")
    assert state["x"].tolist() == [7.0] * 3


@pytest.mark.parametrize("asked", [(os, "system"), (_MEM_FORMAT_ENCODING, "__class__"), (_MEM_FORMAT_ENCODING, "mro")])
def test_no_other_attribute_is_read_for_a_metadata(asked: tuple[Any, str]) -> None:
    kind = b"c" + f"{metadata.__name__}\n_MEM_FORMAT_ENCODING\n".encode() if asked[0] is not os else b"cos\nsystem\n"
    text = b"c__builtin__\ngetattr\n(" + kind + f"S'{asked[1]}'\ntR.".encode()
    with pytest.raises(Damaged, match="is refused: it asks for"):
        parse(text, "x")


@pytest.mark.parametrize(
    "text",
    [b"\x80\x02Nr\xff\xff\xff\xff.", b"\x80\x05\x96" + (1 << 36).to_bytes(8, "little") + b"x."],
    ids=["put", "bytearray"],
)
def test_metadata_that_asks_for_all_memory_is_damaged_and_takes_none(text: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Damaged):
        parse(text, "x")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


def test_metadata_that_was_changed_anywhere_is_damaged_and_nothing_else(
    checkpointer: Callable[..., Checkpointer], tmp_path: Path
) -> None:
    saved(checkpointer, 1)
    (path,) = (tmp_path / "ck").glob("step-*")
    (path / disk.MANIFEST).unlink()  # or the change would be found by its hash
    text = (path / ".metadata").read_bytes()
    chance = random.Random(0)
    for _ in range(2000):
        changed = bytearray(text)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        (path / ".metadata").write_bytes(changed)
        with suppress(Damaged, ValueError), open_checkpoint(path) as source:
            load(source, {"x": torch.zeros(100)})


def test_a_malicious_object_is_not_unpickled(checkpointer: Callable[..., Checkpointer], tmp_path: Path) -> None:
    save_with_dcp({"x": Evil(tmp_path / "evil")}, tmp_path / "theirs")
    with pytest.raises(ValueError, match=r"x is an object that is not loaded from files.*add_safe_globals"):
        checkpointer().restore({"x": None}, source=tmp_path / "theirs")
    assert not (tmp_path / "evil").exists()


def test_a_state_that_does_not_fit_is_one_line(checkpointer: Callable[..., Checkpointer]) -> None:
    saver = checkpointer()
    saver.save(1, {"model": nn.Linear(2, 2), "epoch": 1}, durable=True)
    saver.wait()
    for state, why in (
        ({"model": nn.Linear(2, 3)}, "Size mismatch"),
        ({"model": nn.Sequential(nn.Linear(2, 2))}, "it has no model.0.weight"),
        ({"other": None}, "it has no 'other'"),
    ):
        with pytest.raises(ValueError, match=why) as caught:
            checkpointer().restore(state)
        assert "\n" not in str(caught.value)


def test_what_zero_has_split_is_refused(checkpointer: Callable[..., Checkpointer]) -> None:
    """It looks like any state, and is another one on each rank: one of them would be taken for all."""
    base = type("ZeROOptimizer", (), {"state_dict": lambda _: {}, "load_state_dict": lambda *_: None})
    base.__module__ = "deepspeed.runtime.base_optimizer"
    optimizer, model = type("Zero", (base,), {})(), nn.Linear(2, 2)
    model.weight.ds_tensor = torch.zeros(2)  # type: ignore[attr-defined]
    for value in (optimizer, outlast.PerRank(optimizer), model, outlast.PerRank(model)):
        with pytest.raises(ValueError, match=r"x is of DeepSpeed's ZeRO.*outlast.integrations.deepspeed.state"):
            checkpointer().save(1, {"x": value})


def test_what_megatron_has_split_is_refused_unless_it_is_wrapped(
    checkpointer: Callable[..., Checkpointer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts look replicated."""
    model, ours = nn.Linear(2, 2), nn.Linear(2, 2)
    model.weight.tensor_model_parallel = True  # type: ignore[attr-defined]
    optimizer = torch.optim.SGD(model.parameters())
    sizes = {"get_tensor_model_parallel_world_size": lambda: 1, "get_pipeline_model_parallel_world_size": lambda: 1}
    groups = types.SimpleNamespace(**sizes)
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", groups)  # type: ignore[arg-type]
    assert checkpointer().save(1, {"x": model, "optim": optimizer})
    groups.get_tensor_model_parallel_world_size = lambda: 2
    assert checkpointer().save(1, {"x": ours})
    for value in (model, optimizer):
        with pytest.raises(ValueError, match=r"x is of a model that Megatron-core has split.*outlast.PerRank\(x\)"):
            checkpointer().save(1, {"x": value})
        assert checkpointer().save(1, {"x": outlast.PerRank(value)})


def test_an_optimizer_that_leaves_out_its_tensors_is_refused(checkpointer: Callable[..., Checkpointer]) -> None:
    kind = type("DistributedOptimizer", (), {"state_dict": lambda _: {}, "load_state_dict": lambda *_: None})
    kind.__module__ = "megatron.core.optimizer.distrib_optimizer"
    chain = nn.Identity()
    chain.chained_optimizers = [kind()]  # type: ignore[assignment]
    for value in (kind(), outlast.PerRank(kind()), outlast.PerRank(chain)):
        with pytest.raises(ValueError, match=r"x is a distributed optimizer of Megatron-core.*dist_checkpointing"):
            checkpointer().save(1, {"x": value})


def test_what_cannot_be_saved_is_named(checkpointer: Callable[..., Checkpointer]) -> None:
    for value, why in (
        (torch.ones(3).to_sparse(), "x.y is a sparse, quantized or nested tensor"),
        (lambda: 1, "x.y cannot be pickled"),
    ):
        with pytest.raises(Unsavable, match=why):
            checkpointer().save(1, {"x": {"y": value}})
    with pytest.raises(ValueError, match=r"two things in the state are called a.b"):
        checkpointer().save(1, {"a": {"b": 1}, "a.b": 2})


@pytest.mark.parametrize(
    "options",
    [{"keep_last": 0}, {"keep_last": 2.5}, {"keep_last": True}, {"every": 0}, {"every": 1.5}, {"every": "soon"}],
)
def test_bad_options_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        outlast.Checkpointer(tmp_path, **options)


def test_a_step_that_could_not_be_found_again_is_refused(checkpointer: Callable[..., Checkpointer]) -> None:
    with pytest.raises(ValueError, match="step must be 0 or more, not -1"):
        checkpointer().save(-1, {"x": torch.ones(2)}, durable=True)
    saver = checkpointer()
    saver.save(0, {"x": torch.ones(2)}, durable=True)
    saver.wait()
    state = {"x": torch.zeros(2)}
    assert checkpointer().restore(state) == 0
    assert same(state, {"x": torch.ones(2)})


@pytest.mark.parametrize("number", [7.0, True, "7", None, torch.tensor(7.0), torch.ones(2, dtype=torch.int64)])
def test_a_step_that_is_no_integer_is_refused_at_once(checkpointer: Callable[..., Checkpointer], number: Any) -> None:
    saver = checkpointer()
    with pytest.raises(TypeError, match="step must be an integer, not"):
        saver.save(number, {"x": torch.ones(2)}, durable=True)
    saver.wait()  # for nothing
    if number is not None:
        with pytest.raises(TypeError, match="step must be an integer, not"):
            saver.restore({"x": torch.ones(2)}, step=number)


@pytest.mark.parametrize("number", [np.int64(7), torch.tensor(7)])
def test_a_step_may_be_any_kind_of_integer(checkpointer: Callable[..., Checkpointer], number: Any) -> None:
    saver = checkpointer()
    saver.save(number, {"x": torch.ones(2)}, durable=True)
    saver.wait()
    assert checkpointer().restore({"x": torch.zeros(2)}, step=number) == 7


def test_a_disk_that_fails_is_said_by_wait(checkpointer: Callable[..., Checkpointer], tmp_path: Path) -> None:
    (tmp_path / "ck").write_text("in the way")
    saver = checkpointer()
    saver.save(1, {"x": torch.ones(2)}, durable=True)
    with pytest.raises(OSError, match="step 1 is not on disk: "):
        saver.wait()


def test_too_little_memory_is_said_before_training_goes_on(
    checkpointer: Callable[..., Checkpointer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arenas, "free_room", lambda _: 1 << 20)
    with pytest.raises(NoRoom, match=r"snapshots of a rank on \S+ need 4 MiB of memory, and 1 MiB are free"):
        checkpointer().save(1, {"x": torch.zeros(2 << 20, dtype=torch.uint8)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 4), (130, 130), (17, 5, 3, 2), (100_000,)])
def test_a_template_is_what_torch_saves(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    form = template(dtype, tensor.shape)
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    assert torch.equal(torch.load(io.BytesIO(form.before + data + form.after), weights_only=True), tensor)
    assert torch.serialization.get_crc32_options()


def test_flat_and_nested_are_the_same() -> None:
    for nested in (ODD, {"a": [[{"b": 1}], [torch.ones(1)]]}, plain(training(0))):
        flat, paths = flatten(nested)
        back = nest(flat, paths)
        assert same(
            {k: v for k, v in back.items() if k != "float8"}, {str(k): v for k, v in nested.items() if k != "float8"}
        )


def test_of_two_checkpointers_in_one_worker_one_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share the node's memory: the second would overwrite what the first has there, and take its answers."""
    board = Board(1)
    monkeypatch.setattr(worker_memory, "session", Session({BOARD: board.address(0)}))
    monkeypatch.setenv(arenas.VARIABLE, f"{tmp_path / 'arena'}:0")
    first, second = Checkpointer(tmp_path / "one"), Checkpointer(tmp_path / "two")
    state = {"w": torch.ones(3)}
    first.save(5, state)
    with pytest.raises(RuntimeError, match=r"one saves in this process already.*close\(\) it"):
        second.save(6, {"w": torch.zeros(3)})
    assert second.restore({"w": torch.zeros(3)}) == 0
    again = {"w": torch.zeros(3)}
    assert first.restore(again) == 5
    assert same(again, state)
    first.close()
    second.save(6, state)
    second.close()
    third, fourth = Checkpointer(tmp_path / "one"), Checkpointer(tmp_path / "two")
    third.save(7, state)
    del third  # nobody can save with it any more
    fourth.save(8, state)
    fourth.close()
    board.close()


def test_a_worker_that_is_in_no_group_with_the_others_of_its_node_is_not_kept_waiting_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = Board(1)
    monkeypatch.setattr(worker_memory, "session", Session({BOARD: board.address(0)}))
    monkeypatch.setenv(arenas.VARIABLE, f"{tmp_path / 'arena'}:0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    saver = Checkpointer(tmp_path / "ck")
    saver.save(1, {"w": torch.ones(3)}, durable=True)
    SnapshotWriter(tmp_path / "arena").look()
    assert [each.step for each in disk.found(tmp_path / "ck")] == [1]
    saver.wait()
    saver.close()
    board.close()


def test_one_that_nobody_has_any_more_writes_what_is_to_be_on_disk_and_gives_its_memory_back(tmp_path: Path) -> None:
    def memory() -> int:
        links = [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        return sum(link.name.startswith("memfd:outlast-arena") for link in links)

    gc.collect()
    before = memory()
    saver = Checkpointer(tmp_path / "ck")
    saver.save(1, {"w": torch.ones(3)}, durable=True)
    background = saver._memory.writer
    assert memory() > before
    del saver
    gc.collect()
    background.wait()
    assert [each.step for each in disk.found(tmp_path / "ck")] == [1]
    assert memory() == before
    background.close()


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def test_what_a_restore_found_damaged_is_not_counted_among_those_that_are_kept(
    checkpointer: Callable[..., Checkpointer], tmp_path: Path
) -> None:
    """It used to cost the only good one."""
    saver = checkpointer(keep_last=9)
    for number in range(1, 5):
        saver.save(number, {"x": torch.full((3,), float(number))}, durable=True)
        saver.wait()
    saver.close()
    for number in (2, 3, 4):
        flip_a_bit(tmp_path / "ck" / f"step-0000000{number}" / "__0_0.distcp")
    again, state = checkpointer(keep_last=3), {"x": torch.zeros(3)}
    assert again.restore(state) == 1
    again.save(2, state, durable=True)
    again.wait()
    again.close()
    good = [each.path.name for each in disk.found(tmp_path / "ck") if not disk.verify(each.path)]
    assert good == ["step-00000002.2", "step-00000001"]
    assert len(disk.found(tmp_path / "ck")) == 5
    assert checkpoints.main(["prune", str(tmp_path / "ck"), "--keep-last=1"]) == 0
    assert [each.path.name for each in disk.found(tmp_path / "ck") if not disk.verify(each.path)] == good[:1]


def test_a_checkpoint_that_is_restored_after_all_counts_again(
    checkpointer: Callable[..., Checkpointer], tmp_path: Path
) -> None:
    saver = checkpointer()
    saver.save(1, {"x": torch.ones(3)}, durable=True)
    saver.close()
    disk.note_damage(tmp_path / "ck" / "step-00000001", "a disk that did not answer")
    assert checkpointer().restore({"x": torch.zeros(3)}) == 1
    assert not (tmp_path / "ck" / "step-00000001" / disk.DAMAGED).exists()


def test_trainings_in_one_directory_remove_only_what_is_theirs(
    checkpointer: Callable[..., Checkpointer], tmp_path: Path
) -> None:
    one, other = checkpointer(keep_last=2), checkpointer(keep_last=1)
    for number in range(1, 5):
        for saver, which in ((one, number), (other, 10 * number)):
            saver.save(which, {"x": torch.ones(3)}, durable=True)
            saver.wait()
            saver._memory.writer.wait()  # and until it has removed older ones
    assert [each.step for each in disk.found(tmp_path / "ck")] == [40, 4, 3]


def test_a_training_that_goes_on_from_another_job_removes_what_that_one_left(
    checkpointer: Callable[..., Checkpointer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "first")
    first = checkpointer(keep_last=9)
    for number in (1, 2):
        first.save(number, {"x": torch.ones(3)}, durable=True)
        first.wait()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "second")
    second = checkpointer(keep_last=1)
    assert second.restore({"x": torch.zeros(3)}) == 2
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "first")
    first.save(3, {"x": torch.ones(3)}, durable=True)  # it is still there, and goes on as well
    first.wait()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "second")
    second.save(5, {"x": torch.ones(3)}, durable=True)
    second.close()
    assert [each.step for each in disk.found(tmp_path / "ck")] == [5, 3]


def three(checkpointer: Callable[..., Checkpointer]) -> None:
    saver = checkpointer()
    for number in (10, 20, 30):
        saver.save(number, {"x": torch.full((3,), float(number))}, durable=True)
        saver.wait()
    saver.close()


def test_a_step_that_is_asked_for_and_damaged_is_said_to_be_that(
    checkpointer: Callable[..., Checkpointer], tmp_path: Path
) -> None:
    three(checkpointer)
    flip_a_bit(tmp_path / "ck" / "step-00000020" / "__0_0.distcp")
    with pytest.raises(ValueError, match=r"step 20 cannot be restored: .* damaged .* give no step; there are: 10, 30$"):
        checkpointer().restore({"x": torch.zeros(3)}, step=20)


def test_a_checkpoint_that_was_renamed_is_not_taken_for_another_step(
    checkpointer: Callable[..., Checkpointer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    three(checkpointer)
    (tmp_path / "ck" / "step-00000010").rename(tmp_path / "ck" / "step-00000050")
    state = {"x": torch.zeros(3)}
    assert checkpointer().restore(state) == 30
    assert state["x"][0] == 30
    assert "step-00000050 was renamed: it is of step 10" in caplog.text
    (tmp_path / "ck" / "step-00000050").rename(tmp_path / "best")
    assert checkpointer().restore(state, source=tmp_path / "best") == 10


def test_a_link_that_leads_nowhere_is_no_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "ck").symlink_to(tmp_path / "gone")
    for path in (tmp_path / "ck", tmp_path / "ck" / "run7"):
        with pytest.raises(ValueError, match=r"ck is a link to .*gone, which is not there: make or mount that"):
            Checkpointer(path)
