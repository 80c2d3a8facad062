"""One file of a checkpoint: what was saved, verified, and never over something else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.storage.storage import Url
from outlast.checkpoint.trainer.checkpointer import Checkpointer
from outlast.cli import main


def save(where: Path | Url, steps: tuple[int, ...] = (7,)) -> dict[str, Any]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(5, 40)).sum().backward()
    optimizer.step()
    more = {"half": torch.randn(3).bfloat16(), "none": torch.empty(0, 2), "list": [torch.ones(2), 5]}
    state = {"model": model, "optim": optimizer, "epoch": 3, "more": more}
    saver = Checkpointer(where)
    for step in steps:
        saver.save(step, state, durable=True)
        saver.wait()
    saver.close()
    return state


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save(tmp_path / "ck")
    return tmp_path / "ck"


def run(*words: object) -> int:
    return main(["checkpoints", *map(str, words)])


def test_to_one_file_of_torch(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "one.pt"
    assert run("export", directory, "--step", 7, "--format", "torch", out) == 0
    assert capsys.readouterr().out.startswith(f"{out}: step 7, ")
    loaded = torch.load(out, weights_only=True)
    again = save(tmp_path / "again")
    assert (loaded["epoch"], loaded["more"]["list"][1]) == (3, 5)
    for name, value in again["model"].state_dict().items():
        assert torch.equal(loaded["model"][name], value)
    assert torch.equal(loaded["more"]["half"], again["more"]["half"])
    assert loaded["more"]["none"].shape == (0, 2)
    assert torch.equal(
        loaded["optim"]["state"]["0.weight"]["exp_avg"], again["optim"].state_dict()["state"][0]["exp_avg"]
    )
    assert out.stat().st_size < 64 * 1024  # each tensor's bytes, and no others
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "ck", "one.pt"]


def test_to_safetensors(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import load_file

    out = tmp_path / "model.safetensors"
    assert run("export", directory, out, "--part=model") == 0
    assert "skipped" not in capsys.readouterr().err
    wanted = save(tmp_path / "again")["model"].state_dict()
    loaded = load_file(out)
    assert loaded.keys() == wanted.keys()
    assert all(torch.equal(loaded[name], wanted[name]) for name in wanted)
    assert run("export", directory, tmp_path / "all.safetensors") == 0
    assert "skipped, not a tensor: epoch, more.list.1, " in capsys.readouterr().err
    everything = load_file(tmp_path / "all.safetensors")
    assert everything["more.half"].dtype is torch.bfloat16
    assert {"model.0.weight", "more.list.0", "optim.state.0.weight.exp_avg"} < everything.keys()


def test_the_newest_of_a_store(s3: Url, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = save(s3, (1, 2))
    assert run("export", s3, tmp_path / "one.pt") == 0
    assert "step 2" in capsys.readouterr().out
    loaded = torch.load(tmp_path / "one.pt", weights_only=True)
    assert torch.equal(loaded["model"]["0.weight"], state["model"][0].weight)


def test_a_damaged_one_is_not_exported(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = directory / "step-00000007" / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    data[3000] ^= 1
    shard.write_bytes(data)
    assert run("export", directory, tmp_path / "one.pt") == 1
    assert "__0_0.distcp is damaged in chunk 0" in (said := capsys.readouterr().err)
    assert said.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ck"]


def test_what_cannot_be_done_is_one_line(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there.pt").write_text("mine")
    words: Iterator[tuple[list[object], str]] = iter(
        [
            ([directory], "export needs the name of the file to write"),
            ([directory, tmp_path / "there.pt"], "exists, and is not overwritten"),
            ([directory, tmp_path / "one"], "is not clear from its name: give --format safetensors or torch"),
            ([directory, tmp_path / "no" / "one.pt"], "is not a directory: make it"),
            ([directory, tmp_path / "one.pt", "--part=optimizer"], "has no part 'optimizer'; there are: model, optim"),
            ([directory, tmp_path / "one.pt", "--step=9"], "has no checkpoint of step 9; there are: 7"),
        ]
    )
    for given, said in words:
        assert run("export", *given) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert run("export", directory, tmp_path / "x.safetensors") == 2
    assert "safetensors is not installed: pip install 'outlast[safetensors]'" in capsys.readouterr().err
    assert (tmp_path / "there.pt").read_text() == "mine"
    assert run("list", directory, tmp_path) == 2


def test_it_is_read_chunk_by_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tensors within chunks and across them; nothing is kept that was read."""
    monkeypatch.setattr(disk, "CHUNK", 1 << 16)
    state = {f"t{number}": torch.arange(number * 3000.0) for number in range(9)}
    saver = Checkpointer(tmp_path / "ck")
    saver.save(1, state, durable=True)
    saver.wait()
    saver.close()
    assert run("export", tmp_path / "ck", tmp_path / "one.pt") == 0, capsys.readouterr().err
    loaded = torch.load(tmp_path / "one.pt", weights_only=True)
    assert all(torch.equal(loaded[name], value) for name, value in state.items())
