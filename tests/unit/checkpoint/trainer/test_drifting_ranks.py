"""Ranks that do not save alike: a snapshot is of one step on all ranks, or it does not count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from outlast.agent.snapshots.memory import held, snapshots
from outlast.checkpoint.trainer.checkpointer import Checkpointer
from ranks import on_ranks


def node(tmp_path: Path, rank: int) -> Checkpointer:
    """A Checkpointer as under a launcher, but that nobody writes to disk."""
    made = Checkpointer(tmp_path / "ck")
    made._place, made._number = tmp_path / "arena", rank
    return made


def drift(tmp_path: Path, *steps: Sequence[int]) -> None:
    """Each rank saves the steps that are given for it."""

    def body(rank: int) -> None:
        saver = node(tmp_path, rank)
        for step in steps[rank]:
            saver.save(step, {"w": torch.full((3,), float(step)), "own": torch.full((2,), float(step))})

    assert on_ranks(len(steps), body, tmp_path) == [None] * len(steps)


def test_ranks_that_saved_different_steps_restore_the_last_that_they_have_in_common(tmp_path: Path) -> None:
    drift(tmp_path, [10, 20], [10, 21])

    def body(rank: int) -> tuple[int, float, float]:
        state = {"w": torch.zeros(3), "own": torch.zeros(2)}
        step = node(tmp_path, rank).restore(state)
        return step, state["w"][0].item(), state["own"][0].item()

    assert on_ranks(2, body, tmp_path) == [(10, 10.0, 10.0)] * 2
    assert [each.ticket.save.step for each in snapshots(tmp_path / "arena")] == [10]
    assert sorted((each.step, each.ranks) for each in held(tmp_path / "arena")) == [
        (10, (0, 1)),
        (20, (0,)),
        (21, (1,)),
    ]
