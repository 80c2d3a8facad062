"""Ranks that do not call alike: found within seconds, and named as what it is, where it used to hang in silence."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import outlast
from outlast.agent.snapshots.memory import different_steps
from outlast.checkpoint.trainer import rank_group
from outlast.checkpoint.trainer.checkpointer import Checkpointer
from ranks import LONG, on_ranks


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_group, "PATIENCE", 0.5)
    monkeypatch.setattr(rank_group, "ALONE", 1.0)


def state(rank: int = 0, size: int = 2) -> dict[str, Any]:
    return {"w": torch.ones(3), "own": outlast.PerRank({"x": torch.full((size,), float(rank))})}


def await_file(path: Path) -> str:
    deadline = time.monotonic() + LONG
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return path.read_text()


def test_a_save_that_only_one_rank_calls_is_said_to_be_that(tmp_path: Path) -> None:
    said = tmp_path / "said"

    def body(rank: int) -> str:
        saver = Checkpointer(tmp_path / "ck")
        saver.restore(state(rank))
        if rank == 0:
            logging.getLogger("outlast").addHandler(logging.FileHandler(said))
        else:
            await_file(said)  # that is all it would ever do
        saver.save(5, state(rank))
        return said.read_text()

    first, second = on_ranks(2, body, tmp_path)
    assert first == second
    assert "save(5) on rank 0 has waited" in first
    assert "for 1 of 2 ranks (rank 1 last called restore()): all ranks must call it" in first


def test_ranks_that_call_different_things_are_told(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        saver = Checkpointer(tmp_path / "ck")
        saver.save(1, state(rank)) if rank == 0 else saver.wait()

    first, second = on_ranks(2, body, tmp_path)
    assert str(first) == "rank 0 calls save(1), and rank 1 calls wait(): all ranks must call alike"
    assert str(second) == "rank 1 calls wait(), and rank 0 calls save(1): all ranks must call alike"


@pytest.mark.parametrize("misuse", ["one is durable", "one is skipped"])
def test_saves_that_ranks_do_not_have_in_common_are_not_waited_for(tmp_path: Path, misuse: str) -> None:
    def body(rank: int) -> None:
        saver = Checkpointer(tmp_path / "ck")
        saver.save(1, state(rank))
        if misuse == "one is durable":
            saver.save(2, state(rank), durable=rank == 0)
        else:
            if rank == 0:
                saver.save(2, state(rank))
            saver.save(3, state(rank), durable=True)
        saver.wait()

    errors = on_ranks(2, body, tmp_path)
    last = ("of step 2", "none") if misuse == "one is durable" else ("of step 3", "of step 3 (after another number")
    for error in errors:
        assert isinstance(error, OSError)
        assert f"the last durable save of rank 0 is {last[0]}, and that of rank 1 is {last[1]}" in str(error)


def test_a_state_that_changes_on_one_rank_leads_it_into_no_collective(tmp_path: Path) -> None:
    def body(rank: int) -> bool:
        saver = Checkpointer(tmp_path / "ck")
        saver.save(1, state(rank))
        return saver.save(2, state(rank, size=2 + rank))

    first, second = on_ranks(2, body, tmp_path)
    assert first is True
    assert isinstance(second, ValueError)
    assert str(second).startswith("own.rank-1-of-2.x has changed its shape or dtype, and the other ranks have not")


def test_a_state_that_changes_on_all_ranks_is_planned_anew(tmp_path: Path) -> None:
    def body(rank: int) -> int:
        saver = Checkpointer(tmp_path / "ck")
        for step in (1, 2, 3):
            saver.save(step, state(rank, size=step), durable=step == 3)
        saver.wait()
        return Checkpointer(tmp_path / "ck").restore(state(rank, size=1))

    assert on_ranks(2, body, tmp_path) == [3, 3]


def test_ranks_that_save_different_steps_are_named_by_the_keeper(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        saver = Checkpointer(tmp_path / "ck")
        saver._memory.place, saver._memory.number = tmp_path / "arena", rank
        saver.save(10, state(rank))
        saver.save(20 + rank, state(rank))

    assert on_ranks(2, body, tmp_path) == [None, None]
    assert "rank 0 saves step 20 where rank 1 saves step 21: " in different_steps(tmp_path / "arena")
    assert different_steps(tmp_path / "none") == ""
