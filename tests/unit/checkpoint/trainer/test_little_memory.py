"""Little shared memory: the first save says whether the state fits, and no later one fails for want of room."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
import torch

from outlast.agent.snapshots.keeper_process import SnapshotWriter
from outlast.agent.snapshots.memory import overtaken
from outlast.checkpoint.memory import arena as arenas
from outlast.checkpoint.memory.arena import Arena
from outlast.checkpoint.memory.room import NoRoom
from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.trainer import background
from outlast.checkpoint.trainer.checkpointer import Checkpointer
from ranks import on_ranks
from snapshots import fill, mark

MIB = 1 << 20


@pytest.fixture
def shm(tmp_path: Path) -> Iterator[Path]:
    """Shared memory of 11 MiB."""
    path = tmp_path / "shm"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=11m", "tmpfs", path], check=True)
    yield path
    subprocess.run(["umount", path], check=True)


def worker(tmp_path: Path, shm: Path, rank: int) -> Checkpointer:
    """A Checkpointer as under a launcher, whose keeper is the test."""
    made = Checkpointer(tmp_path / "ck")
    made._memory.place, made._memory.number = shm / "arena", rank
    return made


def test_a_state_that_does_not_fit_is_refused_by_the_first_save_on_all_ranks(tmp_path: Path, shm: Path) -> None:
    """Each rank alone would have had room."""

    def body(rank: int) -> None:
        worker(tmp_path, shm, rank).save(1, {f"w{number}": torch.ones(3 * MIB // 8) for number in range(4)})

    for error in on_ranks(2, body, tmp_path):
        assert isinstance(error, NoRoom)
        assert "snapshots of 2 ranks on " in str(error)
        assert "need 12 MiB of shared memory" in str(error)
        assert "and 11 MiB are free: give more" in str(error)


def test_what_is_kept_for_others_counts_as_taken(tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"w": torch.ones(MIB // 4)}
    monkeypatch.setenv("OUTLAST_SHM_RESERVE", str(10 * MIB))
    with pytest.raises(NoRoom, match=r"and 1 MiB are free beside the 10 MiB kept for others \(shm_reserve\)"):
        worker(tmp_path, shm, 0).save(1, state)
    monkeypatch.setenv("OUTLAST_SHM_RESERVE", str(MIB))
    saves = worker(tmp_path, shm, 0)
    saves.save(1, state)


def test_what_one_rank_cannot_save_is_raised_on_all(tmp_path: Path, shm: Path) -> None:
    def body(rank: int) -> None:
        worker(tmp_path, shm, rank).save(1, {"w": torch.ones(3), f"of {rank}": (lambda: 0) if rank else 0})

    errors = on_ranks(2, body, tmp_path)
    assert [type(error).__name__ for error in errors] == ["Unsavable", "Unsavable"]
    assert all("of 1 cannot be pickled" in str(error) for error in errors)


def test_a_save_that_finds_no_room_waits_for_the_disk(
    tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots of 4 MiB, two of them: one has the newest snapshot, the other one is still to be written."""
    monkeypatch.setattr(background, "LOOK_AGAIN", 0.01)
    saver = worker(tmp_path, shm, 0)
    state = {"w": torch.ones(MIB)}
    saver.save(1, state, durable=True)
    saver.save(2, state)
    done = Event()

    def save() -> None:
        saver.save(3, state)
        done.set()

    thread = Thread(target=save)
    thread.start()
    assert not done.wait(0.3)
    SnapshotWriter(shm / "arena").look()
    assert done.wait(60)
    thread.join()
    assert [each.step for each in disk.found(tmp_path / "ck")] == [1]
    assert sorted(found.save.step for _, found in arenas.tickets(shm / "arena")) == [2, 3]
    saver.close()


def test_who_waits_for_a_save_that_another_rank_has_overwritten_is_told(tmp_path: Path) -> None:
    first, second = (Arena(tmp_path / "arena", rank) for rank in range(2))
    common = {"here": 2, "durable": True, "directory": str(tmp_path / "ck")}
    told = background.KeeperClient(tmp_path / "arena", 1, lambda: None)
    for sequence in (1, 2, 3):
        fill(first, sequence, mark(sequence - 1), rank=0, **common)
    slot = fill(second, 1, None, rank=1, **common)
    sealed = slot.ticket()
    assert sealed is not None
    told.sealed(slot, sealed)
    assert [each.mark for each in overtaken(tmp_path / "arena")] == [mark(1)]
    assert told.pending().must == {mark(1)}
    SnapshotWriter(tmp_path / "arena").look()
    assert not told.pending()
    told.close()
    first.close()
    second.close()
