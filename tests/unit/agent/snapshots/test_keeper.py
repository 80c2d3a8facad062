"""The keeper: what is to be on disk is written, also when everybody else is gone, and no memory is left behind."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.agent.processes.place import Place, hold, taken
from outlast.agent.snapshots import keeper as keepers
from outlast.agent.snapshots import keeper_process
from outlast.agent.snapshots.keeper import Keeper, arena_of
from outlast.agent.snapshots.leftovers import sweep
from outlast.agent.snapshots.memory import snapshots
from outlast.checkpoint.memory.arena import Arena
from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.trainer.background import KeeperClient as Told
from outlast.system import own_process
from processes import Process, await_exit
from snapshots import fill, mark, ticket

SOON = 120.0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(keepers, "SHARED_MEMORY", tmp_path)
    held = hold("job", "host", given=True)
    yield held
    held.close()


def steps(directory: Path) -> list[int]:
    return [each.step for each in disk.found(directory)]


def test_a_place_is_taken_until_its_agent_lets_go_of_it(place: Place) -> None:
    assert not arena_of(place).exists()
    assert taken(place.key)
    place.close()
    assert not taken(place.key)


def test_a_snapshot_counts_when_all_ranks_of_the_node_have_sealed_it(tmp_path: Path) -> None:
    arenas = [Arena(tmp_path / "arena", rank) for rank in range(2)]
    fill(arenas[0], 1, None, here=2)
    assert snapshots(tmp_path / "arena") == []
    fill(arenas[1], 1, None, rank=1, here=2)
    fill(arenas[0], 2, mark(1), here=2)
    assert [each.ticket.save.sequence for each in snapshots(tmp_path / "arena")] == [1]
    for arena in arenas:
        arena.close()


def test_durable_snapshots_are_written_and_the_worker_is_told(place: Place, tmp_path: Path) -> None:
    async def scene() -> None:
        keeper = Keeper(place, linger=0, level="info")
        keeper.look()  # nothing is there: no process is started for it
        assert keeper._process is None
        worker = Told(keeper.arena, 0, keeper.look)
        arena = Arena(keeper.arena, 0)
        for sequence in (1, 2):
            durable = sequence == 2
            slot = fill(arena, sequence, mark(1), directory=str(tmp_path / "ck"), durable=durable)
            sealed = slot.ticket()
            assert sealed is not None
            worker.sealed(slot, sealed)
        assert worker.pending().must == {mark(2)}
        outcome = await asyncio.wait_for(asyncio.to_thread(worker.wait), SOON)
        assert outcome is not None
        assert outcome.path == str(tmp_path / "ck" / "step-00000002")
        assert not worker.pending()
        worker.close()
        arena.close()
        await keeper.close()
        assert not keeper.arena.exists()

    asyncio.run(scene())
    assert steps(tmp_path / "ck") == [2]


def test_what_is_in_memory_only_is_written_when_the_workers_have_died(place: Place, tmp_path: Path) -> None:
    async def scene() -> None:
        keeper = Keeper(place, linger=0, level="info")
        arena = Arena(keeper.arena, 0)
        fill(arena, 1, None, directory=str(tmp_path / "ck"))
        fill(arena, 2, mark(1), directory=str(tmp_path / "ck"))
        with arena.take(10, {mark(2)}) as torn:
            torn.begin()
        arena.close()
        keeper.ended()
        await asyncio.wait_for(keeper.close(), SOON)
        assert not keeper.arena.exists()

    asyncio.run(scene())
    assert steps(tmp_path / "ck") == [2]


def test_a_job_that_is_done_leaves_what_was_not_to_be_on_disk(place: Place, tmp_path: Path) -> None:
    async def scene() -> None:
        keeper = Keeper(place, linger=0, level="info")
        arena = Arena(keeper.arena, 0)
        fill(arena, 1, None, directory=str(tmp_path / "ck"))
        keeper.look()
        arena.close()
        await asyncio.wait_for(keeper.close(), SOON)
        assert not keeper.arena.exists()

    asyncio.run(scene())
    assert steps(tmp_path / "ck") == []


def test_a_keeper_that_is_killed_is_replaced_and_nothing_is_written_twice(place: Place, tmp_path: Path) -> None:
    async def scene() -> None:
        keeper = Keeper(place, linger=0, level="info")
        worker = Told(keeper.arena, 0, keeper.look)
        arena = Arena(keeper.arena, 0)
        for sequence in (1, 2):
            slot = fill(arena, sequence, mark(sequence - 1), directory=str(tmp_path / "ck"), durable=True)
            sealed = slot.ticket()
            assert sealed is not None
            worker.sealed(slot, sealed)
            await asyncio.wait_for(asyncio.to_thread(worker.wait), SOON)
            gone = asyncio.ensure_future(keeper._gone.wait())
            await asyncio.sleep(0)
            assert keeper._process is not None
            os.kill(keeper._process.pid, signal.SIGKILL)
            await asyncio.wait_for(gone, SOON)
        worker.close()
        arena.close()
        await asyncio.wait_for(keeper.close(), SOON)

    asyncio.run(scene())
    assert [(each.step, each.number) for each in disk.found(tmp_path / "ck")] == [(2, 1), (1, 1)]


def test_a_keeper_that_is_killed_at_the_end_of_the_job_is_replaced_as_well(place: Place, tmp_path: Path) -> None:
    async def scene() -> None:
        keeper = Keeper(place, linger=0, level="info")
        arena = Arena(keeper.arena, 0)
        fill(arena, 1, None, directory=str(tmp_path / "ck"), durable=True)
        arena.close()
        turn = os.open(keeper.arena, os.O_RDONLY)
        fcntl.flock(turn, fcntl.LOCK_EX)  # until then nothing can be written
        keeper.look()
        closing = asyncio.ensure_future(keeper.close())
        await asyncio.sleep(0)
        assert keeper._process is not None
        os.kill(keeper._process.pid, signal.SIGKILL)
        os.close(turn)
        await asyncio.wait_for(closing, SOON)
        assert not keeper.arena.exists()

    asyncio.run(scene())
    assert steps(tmp_path / "ck") == [1]


def test_where_no_keeper_lives_nobody_waits_for_it_and_it_is_not_tried_for_ever(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        keeper = Keeper(place, linger=0, level="info")
        keeper._command = ["/bin/false"]
        worker = Told(keeper.arena, 0, lambda: None)
        arena = Arena(keeper.arena, 0)
        for sequence in (1, 2):
            slot = fill(arena, sequence, mark(sequence - 1), directory=str(tmp_path / "ck"), durable=True)
            sealed = slot.ticket()
            assert sealed is not None
            worker.sealed(slot, sealed)
            keeper.look()
            outcome = await asyncio.wait_for(asyncio.to_thread(worker.wait), SOON)
            assert outcome is not None
            why = "no keeper lives on this node (it ended with 1)"
            assert outcome.problem == f"step {sequence} is not on disk: {why}"
        assert keeper._process is None  # until there is something to do again
        worker.close()
        arena.close()
        await asyncio.wait_for(keeper.close(), SOON)
        assert keeper.unwritten.startswith("step 2, a durable save, is not on disk")

    asyncio.run(scene())
    assert caplog.text.count("no keeper lives here") == 1
    assert caplog.text.count("step 1 is not on disk: no keeper lives on this node") == 1
    assert caplog.text.count("step 2 is not on disk: no keeper lives on this node") == 1


def orphan(arena: Path, key: str, linger: float) -> Process:
    """A keeper whose agent has died."""
    return Process(own_process.command(f"{keeper_process.__name__}:run", str(arena), key, str(linger), "info"))


def test_after_the_agents_death_the_snapshot_is_written_and_the_memory_given_back(tmp_path: Path) -> None:
    arena = Arena(tmp_path / "arena", 0)
    fill(arena, 5, None, directory=str(tmp_path / "ck"))
    arena.close()
    with orphan(tmp_path / "arena", "", 0) as keeper:
        assert keeper.wait(SOON) == 0
    assert steps(tmp_path / "ck") == [5]
    assert not (tmp_path / "arena").exists()


def test_memory_that_the_next_agent_has_taken_over_is_left_to_it(place: Place, tmp_path: Path) -> None:
    arena = Arena(tmp_path / "arena", 0)
    fill(arena, 5, None, directory=str(tmp_path / "ck"))
    with orphan(tmp_path / "arena", place.key, 0) as keeper:
        assert keeper.wait(SOON) == 0
    assert [each.ticket.save.sequence for each in snapshots(tmp_path / "arena")] == [5]
    place.close()
    fill(arena, 6, mark(5), directory=str(tmp_path / "ck"))
    with orphan(tmp_path / "arena", place.key, 3600) as keeper:
        keeper.wait_for("step 6 is on disk")
        keeper.signal(signal.SIGTERM)  # while it waits for somebody to come
        assert keeper.wait(SOON) == 0
    assert not (tmp_path / "arena").exists()
    arena.close()


def test_two_keepers_do_not_write_at_the_same_time(tmp_path: Path) -> None:
    arena = Arena(tmp_path / "arena", 0)
    fill(arena, 5, None, directory=str(tmp_path / "ck"), durable=True)
    turn = os.open(tmp_path / "arena", os.O_RDONLY)
    fcntl.flock(turn, fcntl.LOCK_EX)
    with orphan(tmp_path / "arena", "", 0) as first, orphan(tmp_path / "arena", "", 0) as second:
        assert await_exit([first.pid, second.pid], 0.5) == [first.pid, second.pid]
        assert steps(tmp_path / "ck") == []
        os.close(turn)
        assert [first.wait(SOON), second.wait(SOON)] == [0, 0]
    assert [(each.step, each.number) for each in disk.found(tmp_path / "ck")] == [(5, 1)]
    arena.close()


def test_a_directory_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "arena").mkdir(mode=0o777)
    (tmp_path / "arena").chmod(0o777)
    with pytest.raises(PermissionError, match="is not a private directory or file of yours"):
        fill(Arena(tmp_path / "arena", 0), 1, None)


def test_an_older_snapshot_is_not_written_after_a_newer_checkpoint(tmp_path: Path) -> None:
    arena = Arena(tmp_path / "arena", 0)
    fill(arena, 5, None, directory=str(tmp_path / "ck"), durable=True)
    keeper = keeper_process.SnapshotWriter(tmp_path / "arena")
    keeper.look()
    slot = fill(arena, 4, None, directory=str(tmp_path / "ck"))
    slot.seal(ticket(4, directory=str(tmp_path / "ck"), saved_at=9.0))
    keeper.breakpoint()
    assert steps(tmp_path / "ck") == [5]
    arena.close()


def test_groups_of_ranks_that_save_elsewhere_are_not_taken_for_older_saves(tmp_path: Path) -> None:
    arenas = [Arena(tmp_path / "arena", rank) for rank in range(2)]
    fill(arenas[0], 5, None, run="ab", directory=str(tmp_path / "one"), durable=True)
    fill(arenas[1], 4, None, run="cd", directory=str(tmp_path / "two"), durable=True)
    keeper_process.SnapshotWriter(tmp_path / "arena").look()
    assert (steps(tmp_path / "one"), steps(tmp_path / "two")) == ([5], [4])
    for arena in arenas:
        arena.close()


@pytest.mark.parametrize("second", ["two", "one"])
def test_of_each_group_of_ranks_the_newest_is_written_when_the_workers_have_died(tmp_path: Path, second: str) -> None:
    arenas = [Arena(tmp_path / "arena", rank) for rank in range(2)]
    for sequence in (4, 5):
        fill(arenas[0], sequence, mark(4), run="ab", directory=str(tmp_path / "one"))
        fill(arenas[1], sequence + 2, ("cd", 6), run="cd", directory=str(tmp_path / second))
    keeper_process.SnapshotWriter(tmp_path / "arena").breakpoint()
    assert {*steps(tmp_path / "one"), *steps(tmp_path / second)} == ({5, 7} if second == "two" else {7})
    for arena in arenas:
        arena.close()


@pytest.mark.parametrize("written", [True, False])
def test_a_clock_that_is_set_back_makes_no_save_an_older_one(tmp_path: Path, written: bool) -> None:
    arena = Arena(tmp_path / "arena", 0)
    keeper = keeper_process.SnapshotWriter(tmp_path / "arena")
    fill(arena, 5, None, directory=str(tmp_path / "ck"), durable=True, saved_at=1000.0)
    if written:
        keeper.look()
    fill(arena, 6, mark(5), directory=str(tmp_path / "ck"), durable=True, saved_at=10.0)
    assert [each.ticket.save.sequence for each in snapshots(tmp_path / "arena")] == [6, 5]
    keeper.look()
    assert 6 in steps(tmp_path / "ck")
    arena.close()


def test_what_a_job_left_that_was_killed_as_a_whole_is_removed_and_nothing_that_may_be_used(
    place: Place, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()

    def arena(key: str) -> Path:
        path = shared / f"outlast-{os.getuid()}-{key[:16]}-{'0' * 16}"
        made = Arena(path, 0)
        fill(made, 1, None, directory=str(tmp_path / "ck"))
        made.close()
        return path

    left, kept, own = arena("0123456789abcdef"), arena("00000000000000aa"), arena("00000000000000bb")
    known = arena(place.key)  # an agent has it that has not had to start a keeper yet
    opened = arena("00000000000000cc")
    descriptor = os.open(opened, os.O_RDONLY)
    (shared / "outlast-of-somebody").mkdir()
    removed = left.with_name(f"{left.name}.12.34")  # half, by one who was killed, and by another one who was
    removed.mkdir(mode=0o700)
    with orphan(kept, "", 3600) as keeper:
        keeper.wait_for("step 1 is on disk")
        assert sweep(own) == []  # it is too young
        assert sweep(own, age=0.0) == [left, removed]
        assert {path.name for path in shared.iterdir()} == {
            *(path.name for path in (kept, own, known, opened)),
            "outlast-of-somebody",
        }
        keeper.kill()
    os.close(descriptor)
    assert sweep(own, age=0.0) == sorted([kept, opened])
