"""The arena: whoever is killed, whenever, the snapshot that was sealed before is whole."""

from __future__ import annotations

import random
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from outlast.checkpoint.memory import arena as arenas
from outlast.checkpoint.memory.arena import Arena, tickets
from outlast.checkpoint.memory.room import NoRoom
from outlast.checkpoint.memory.slot import HEAD, open_slot
from snapshots import SIZE, fill, kill_within, mark, ticket


@pytest.fixture(params=["named", "anonymous"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "arena" if request.param == "named" else None


def test_two_slots_take_turns(directory: Path | None) -> None:
    arena = Arena(directory, 0)
    keep = None
    for sequence in range(5):
        slot = fill(arena, sequence, keep)
        sealed = slot.ticket()
        assert sealed is not None
        keep = sealed.mark
    assert sorted(each.save.sequence for slot in arena.slots() if (each := slot.ticket())) == [3, 4]
    arena.close()


def test_a_slot_that_is_being_read_is_left_alone_and_nobody_waits(directory: Path | None) -> None:
    arena = Arena(directory, 0)
    first = fill(arena, 0, None)
    reader = open_slot(first.path)
    assert reader.lock(shared=True)
    for sequence in range(1, 6):
        fill(arena, sequence, ("ab", sequence - 1))
    assert bytes(reader.data[:SIZE]) == bytes(SIZE)
    assert len(arena.slots()) == 3
    reader.close()
    fill(arena, 6, ("ab", 5))
    assert len(arena.slots()) == 3
    arena.close()


def test_without_room_for_a_third_the_save_waits_until_one_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = Arena(tmp_path / "arena", 0)
    first = fill(arena, 0, None)
    fill(arena, 1, ("ab", 0))
    reader = open_slot(first.path)
    reader.lock(shared=True)
    monkeypatch.setattr(arenas, "free_room", lambda _: 0)
    saved = threading.Thread(target=fill, args=(arena, 2, ("ab", 1)))
    saved.start()
    saved.join(0.2)
    assert saved.is_alive()
    assert bytes(reader.data[:SIZE]) == bytes(SIZE)
    assert len(list((tmp_path / "arena").iterdir())) == 2
    reader.close()
    saved.join(120)
    assert not saved.is_alive()
    assert first.ticket() == ticket(2)
    arena.close()


def test_what_is_not_sealed_is_not_there(directory: Path | None) -> None:
    arena = Arena(directory, 0)
    slot = fill(arena, 1, None)
    slot.begin()
    assert slot.ticket() is None
    slot.seal(ticket(2))
    assert slot.ticket() == ticket(2)
    arena.close()


def test_every_bit_of_a_head_counts(tmp_path: Path) -> None:
    arena = Arena(tmp_path / "arena", 0)
    slot = fill(arena, 1, None)
    used = 64 + slot._words[3]
    for at in [*range(32), *range(64, used)]:
        slot.memory[at] ^= 4
        assert slot.ticket() != ticket(1)
        assert slot.ticket() is None, at
        slot.memory[at] ^= 4
    assert slot.ticket() == ticket(1)
    arena.close()


def test_a_ticket_that_promises_more_than_is_there_is_none(tmp_path: Path) -> None:
    arena = Arena(tmp_path / "arena", 0)
    slot = fill(arena, 1, None)
    slot.seal(ticket(1, length=1 << 40))
    assert slot.ticket() is None
    arena.close()


def test_the_next_life_of_a_rank_finds_what_was_sealed_and_uses_the_memory_again(tmp_path: Path) -> None:
    directory = tmp_path / "arena"
    arena = Arena(directory, 0)
    fill(arena, 1, None)
    fill(arena, 2, ("ab", 1))
    before = {path.name: path.stat().st_ino for path in directory.iterdir()}
    arena.close()
    again = Arena(directory, 0)
    assert {each.save.sequence for _, each in tickets(directory)} == {1, 2}
    fill(again, 3, ("ab", 1))  # restored from it, though another is newer
    assert {each.save.sequence for _, each in tickets(directory)} == {1, 3}
    assert {path.name: path.stat().st_ino for path in directory.iterdir()} == before
    again.close()


def test_a_state_that_has_grown_gets_larger_slots_one_after_the_other(tmp_path: Path) -> None:
    arena = Arena(tmp_path / "arena", 0)
    fill(arena, 1, None)
    fill(arena, 2, ("ab", 1))
    for sequence in (3, 4):
        with arena.take(4 * SIZE, {("ab", sequence - 1)}) as slot:
            assert [each.save.sequence for _, each in tickets(tmp_path / "arena")] == [sequence - 1]
            slot.begin()
            slot.seal(ticket(sequence, length=4 * SIZE))
    sizes = {path.stat().st_size for path in (tmp_path / "arena").iterdir()}
    assert sizes == {HEAD + 4 * SIZE}
    arena.close()


def test_strange_files_are_no_slots(tmp_path: Path) -> None:
    for name, data in {"0.0": b"", "0.1": b"x" * HEAD, "1.0": bytes(2 * HEAD), "README": b""}.items():
        (tmp_path / name).write_bytes(data)
    assert tickets(tmp_path) == []
    arena = Arena(tmp_path, 0)
    fill(arena, 1, None)
    assert [each for _, each in tickets(tmp_path)] == [ticket(1)]
    arena.close()


def test_memory_is_made_beforehand(directory: Path | None) -> None:
    arena = Arena(directory, 0)
    arena.prepare(SIZE)
    assert arena._thread is not None
    arena._thread.join(120)
    assert len(arena.slots()) == 2
    inodes = {slot.inode for slot in arena.slots()}
    assert {fill(arena, n, ("ab", n - 1)).inode for n in range(4)} == inodes
    arena.close()


def test_what_is_missing_for_two_slots_is_known_before_any_is_made(directory: Path | None) -> None:
    arena = Arena(directory, 3)
    assert arena.missing(SIZE) == 2 * (HEAD + SIZE)
    assert directory is None or not directory.exists()
    fill(arena, 1, None)
    assert arena.missing(SIZE) == HEAD + SIZE
    assert arena.missing(2 * SIZE) == 2 * (HEAD + 2 * SIZE) - (HEAD + SIZE)  # the one that is too small makes room
    fill(arena, 2, mark(1))
    assert arena.missing(SIZE) == 0
    arena.close()


def test_a_third_slot_is_made_of_the_last_room_where_the_others_cannot_be_overwritten(
    directory: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to ask for room for the other ranks as well, and fail."""
    arena = Arena(directory, 0)
    fill(arena, 1, None)
    fill(arena, 2, mark(1))
    monkeypatch.setattr(arenas, "free_room", lambda _: HEAD + SIZE)
    with arena.take(SIZE, {mark(1), mark(2)}):
        assert len(arena.slots()) == 3
    monkeypatch.setattr(arenas, "free_room", lambda _: 0)
    arena.slots()[2].begin()
    arena.slots()[2].seal(ticket(3))
    with pytest.raises(NoRoom, match=r"snapshots of local rank 0 need 1 MiB of .*memory.*, and 0 MiB are free: ") as no:
        arena._take(SIZE, {mark(1), mark(2), mark(3)}, ())
    assert "\n" not in str(no.value)
    arena.close()


def test_a_save_that_comes_before_the_second_slot_was_prepared_needs_room_for_that_one_alone(
    directory: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = Arena(directory, 0)
    fill(arena, 1, None)
    monkeypatch.setattr(arenas, "free_room", lambda _: HEAD + SIZE)
    fill(arena, 2, mark(1))
    assert [slot.ticket() for slot in arena.slots()] == [ticket(1), ticket(2)]
    arena.close()


def test_a_full_file_system_is_one_line_never_a_bus_error(small: Path) -> None:
    arena = Arena(small / "arena", 0)
    with pytest.raises(NoRoom, match=r"snapshots of local rank 0 need 8 MiB of shared memory .*, and 4 MiB are free"):
        arena._create(0, 8 << 20)
    assert list((small / "arena").iterdir()) == []
    arena.close()


@pytest.fixture
def small(tmp_path: Path) -> Any:
    """A file system of 4 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", path], check=True)
    yield path
    subprocess.run(["umount", path], check=True)


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from snapshots import fill
from outlast.checkpoint.memory.arena import Arena, tickets
place = Path(sys.argv[2])
arena = Arena(place, 0)
start = max((each.save.sequence for _, each in tickets(place)), default=-1) + 1
print("ready", flush=True)
for sequence in range(start, 1 << 30):
    fill(arena, sequence, ("ab", sequence - 1))
"""


def test_a_kill_at_any_instant_leaves_the_snapshot_before_whole(tmp_path: Path, kills: int) -> None:
    chance = random.Random(7)
    place, newest = tmp_path / "arena", -1
    for _ in range(kills):
        kill_within(0.02, chance, WRITER, place)
        sealed = tickets(place)
        assert sealed or newest < 0
        for path, each in sealed:
            slot = open_slot(path)
            assert bytes(slot.data[:SIZE]) == bytes([each.save.sequence % 256]) * SIZE
            slot.close()
        best = max((each.save.sequence for _, each in sealed), default=-1)
        assert best >= newest, "a newer snapshot was lost"
        newest = best
    assert newest > kills / 4  # it was not only ever killed before the first


def test_what_should_be_kept_as_well_is_overwritten_only_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = Arena(tmp_path / "a", 0)
    for sequence in (1, 2, 3, 4):
        with arena.take(SIZE, {mark(sequence - 1)}, {mark(sequence - 2)}) as slot:
            slot.begin()
            slot.seal(ticket(sequence))
        assert len(arena.slots()) == min(sequence, 3)
    monkeypatch.setattr(arenas, "free_room", lambda _: 0)
    crowded = Arena(tmp_path / "b", 0)
    with monkeypatch.context() as roomy:
        roomy.setattr(arenas, "free_room", lambda _: 1 << 40)
        fill(crowded, 1, None)
        fill(crowded, 2, mark(1))
    with crowded.take(SIZE, {mark(2)}, {mark(1)}) as slot:
        assert slot.ticket() == ticket(1)
    arena.close()
    crowded.close()
