"""Ranks that save together need one directory: whether they have one is found out before anybody relies on it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from outlast.checkpoint.storage import directory as directories
from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.trainer.checkpointer import Checkpointer
from ranks import on_ranks


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "MARKER_PAUSES", ())


def test_ranks_that_do_not_share_the_directory_are_told_at_the_first_durable_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def body(rank: int) -> tuple[str, list[str]]:
        saver = Checkpointer(tmp_path / f"node{rank}" / "ck")
        state = {"w": torch.full((3,), float(rank))}
        with caplog.at_level(logging.WARNING, "outlast"):
            saver.save(1, state)  # memory is each node's own in any case
        said = [record.getMessage() for record in caplog.records]
        with pytest.raises(ValueError, match="give all ranks one directory") as caught:
            saver.save(2, state, durable=True)
        return str(caught.value), said

    (first, warned), (second, silent) = on_ranks(2, body, tmp_path)
    assert first == second
    assert f"{tmp_path}/node1/ck of rank 1 on " in first
    assert len(warned) == 1
    assert "snapshots stay in memory" in warned[0]
    assert silent == []


def test_ranks_that_share_the_directory_leave_no_marker(tmp_path: Path) -> None:
    def body(rank: int) -> None:  # noqa: ARG001
        saver = Checkpointer(tmp_path / "ck")
        saver.save(2, {"w": torch.ones(3)}, durable=True)
        saver.wait()

    assert on_ranks(2, body, tmp_path) == [None, None]
    assert [each.step for each in disk.found(tmp_path / "ck")] == [2]
    assert sorted(path.name for path in (tmp_path / "ck").iterdir()) == [".outlast", "step-00000002"]


def test_one_directory_may_have_two_names(tmp_path: Path) -> None:
    (tmp_path / "ck").mkdir()
    (tmp_path / "mounted elsewhere").symlink_to(tmp_path / "ck")

    def body(rank: int) -> None:
        saver = Checkpointer(tmp_path / ("mounted elsewhere" if rank else "ck"))
        saver.save(2, {"w": torch.ones(3)}, durable=True)
        saver.wait()

    assert on_ranks(2, body, tmp_path) == [None, None]
    assert [each.step for each in disk.found(tmp_path / "ck")] == [2]


def test_wait_raises_where_ranks_have_saved_different_steps(tmp_path: Path) -> None:
    def body(rank: int) -> str:
        saver = Checkpointer(tmp_path / "ck")
        state = {"w": torch.ones(3)}
        saver.save(2, state, durable=True)
        saver.wait()
        saver.save(3 + rank, state, durable=True)
        with pytest.raises(
            OSError, match=r"rank 0 is of step 3, and that of rank 1 is of step 4: all ranks must"
        ) as caught:
            saver.wait()
        return str(caught.value)

    first, second = on_ranks(2, body, tmp_path)
    assert first == second
    assert [each.step for each in disk.found(tmp_path / "ck")] == [2]
