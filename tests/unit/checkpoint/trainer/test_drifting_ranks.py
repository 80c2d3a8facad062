"""Ranks that do not save alike: a snapshot is of one step on all ranks, or it does not count."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from outlast.agent.snapshots.memory import held, snapshots
from outlast.checkpoint.trainer.checkpointer import Checkpointer
from ranks import on_ranks


def node(tmp_path: Path, rank: int) -> Checkpointer:
    """A Checkpointer as under a launcher, but that nobody writes to disk."""
    made = Checkpointer(tmp_path / "ck")
    made._memory.place, made._memory.number = tmp_path / "arena", rank
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


def restored(tmp_path: Path, rank: int) -> int:
    return node(tmp_path, rank).restore({"w": torch.zeros(3), "own": torch.zeros(2)})


def test_ranks_that_have_no_step_in_common_are_told_and_do_not_begin_anew(tmp_path: Path) -> None:
    """It used to return 0, without a line, after 55 steps."""
    drift(tmp_path, [51, 52, 53], [51, 52, 53, 54, 55])

    def body(rank: int) -> str:
        with pytest.raises(ValueError, match="no snapshot in memory is whole") as caught:
            restored(tmp_path, rank)
        return str(caught.value)

    first, second = on_ranks(2, body, tmp_path)
    assert first == second
    assert "there is step 52 of rank 0; step 53 of rank 0; step 54 of rank 1; step 55 of rank 1. All ranks" in first
    assert f"to start over, remove {tmp_path / 'ck'}" in first
    assert "\n" not in first


def test_a_job_whose_only_copy_was_lost_with_a_node_begins_anew_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception would end every restart of it, and there is nothing that anybody could restore."""
    drift(tmp_path, [51, 52], [51, 52])
    for slot in (tmp_path / "arena").glob("1.[0-9]"):
        slot.unlink()  # the node of rank 1 is gone, with all that it had

    def body(rank: int) -> tuple[int, list[str]]:
        with caplog.at_level(logging.WARNING, "outlast"):
            return restored(tmp_path, rank), [record.getMessage() for record in caplog.records]

    (first, said), (second, silent) = on_ranks(2, body, tmp_path)
    assert (first, second, silent) == (0, 0, [])
    assert len(said) == 1
    assert said[0].startswith("TRAINING BEGINS AGAIN AT STEP 0: the snapshots of rank 1 were lost with a node")
    assert "all is lost up to step 52 (left: step 51 of rank 0; step 52 of rank 0)" in said[0]


def test_what_is_newer_in_memory_and_cannot_be_used_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def save() -> None:
        saver = Checkpointer(tmp_path / "ck")
        saver.save(40, {"w": torch.ones(3), "own": torch.ones(2)}, durable=True)
        saver.close()

    save()
    drift(tmp_path, [51, 52], [51, 52, 53, 54])

    def body(rank: int) -> tuple[int, list[str]]:
        with caplog.at_level(logging.WARNING, "outlast"):
            return restored(tmp_path, rank), [record.getMessage() for record in caplog.records]

    (first, said), (second, silent) = on_ranks(2, body, tmp_path)
    assert (first, second, silent) == (40, 40, [])
    assert [line.partition(": ")[2] for line in said] == [
        "step 51 of rank 0; step 52 of rank 0; step 53 of rank 1; step 54 of rank 1"
    ]


def test_a_first_save_that_was_cut_off_is_nothing(tmp_path: Path) -> None:
    """Nothing was whole before it, so nothing is lost: a job must not end for it."""
    drift(tmp_path, [1], [1])
    for slot in (tmp_path / "arena").glob("1.[0-9]"):
        slot.unlink()  # rank 1 was killed before it had sealed anything
    assert on_ranks(2, lambda rank: restored(tmp_path, rank), tmp_path) == [0, 0]
