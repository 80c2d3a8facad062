"""What another user of the machine has made is never used, whatever its name, and whatever lies in it."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import strangers
from outlast.agent.processes.place import Place, hold
from outlast.agent.snapshots import keeper as keepers
from outlast.agent.snapshots import keeper_process
from outlast.agent.snapshots.keeper import Keeper, arena_of
from outlast.agent.snapshots.leftovers import sweep
from outlast.agent.snapshots.memory import held
from outlast.checkpoint.memory import arena as arenas
from outlast.checkpoint.memory.arena import Arena, tickets
from outlast.checkpoint.memory.shards import agreed
from outlast.checkpoint.memory.slot import open_slot
from outlast.checkpoint.storage.persist import Outcome
from outlast.checkpoint.trainer import background
from outlast.launch import Endpoint
from outlast.system import private
from outlast.transport import token
from snapshots import fill, mark
from strangers import as_nobody, open_to_all


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory such as /dev/shm."""
    strangers.require()
    with tempfile.TemporaryDirectory() as place:
        yield open_to_all(Path(place) / "shared")


@pytest.fixture
def place() -> Iterator[Place]:
    held = hold("job", "host", given=True)
    yield held
    held.close()


@pytest.fixture
def squatted(shared: Path, tmp_path: Path) -> Path:
    """An arena that the other user made, with links to files of this one, and a FIFO in place of a slot."""
    as_nobody(
        """mkdir "$1"; cd "$1"
        for name in stride agreed since kept door 0.0 0.told places; do ln -s "$2" $name; done
        mkfifo 0.1 1.told r0.0""",
        shared / "arena",
        tmp_path / "victim",
    )
    (tmp_path / "victim").write_text("precious")
    return shared / "arena"


def test_nothing_is_read_or_written_through_an_arena_of_another_user(squatted: Path, tmp_path: Path) -> None:
    assert tickets(squatted) == tickets(squatted, replicas=True) == []
    assert held(squatted) == ()
    assert arenas.stride(squatted) == 1
    assert agreed(squatted, 1).snapshots == ()
    arenas.first_use(squatted, 3)
    background.tell(squatted, Outcome(mark(1), 1))
    keeper_process.relieve(squatted)
    keeper_process.linger(squatted, "", 0.0)
    for attempt in (
        lambda: open_slot(squatted / "0.0", writable=True),
        lambda: open_slot(squatted / "0.1"),
        lambda: fill(Arena(squatted, 0), 1, None),
        lambda: background.KeeperClient(squatted, 0, lambda: None),
    ):
        with pytest.raises(PermissionError, match="is not a private directory or file of yours: it belongs to user"):
            attempt()
    assert (tmp_path / "victim").read_text() == "precious"
    assert sorted(path.name for path in squatted.iterdir())[:2] == ["0.0", "0.1"]


def test_what_lies_in_a_directory_of_ours_is_not_trusted_either(tmp_path: Path) -> None:
    arena = tmp_path / "arena"
    private.make_directory(arena)
    (tmp_path / "victim").write_text("precious")
    (arena / "0.0").symlink_to(tmp_path / "victim")
    os.mkfifo(arena / "0.1", 0o600)
    (arena / "0.2").write_bytes(bytes(1 << 20))
    os.chown(arena / "0.2", strangers.NOBODY, strangers.NOBODY)
    (arena / "stride").symlink_to(tmp_path / "victim")
    assert tickets(arena) == []
    for name in ("0.0", "0.1", "0.2"):
        with pytest.raises(OSError, match=r"symbolic links|no regular file of this user"):
            open_slot(arena / name)
    private.write(arena / "stride", b"7")
    assert arenas.stride(arena) == 7
    descriptor = private.make_fifo(arena / "0.1")
    os.close(descriptor)
    assert (tmp_path / "victim").read_text() == "precious"


def test_the_agent_takes_over_what_its_predecessor_left_and_nothing_else(
    shared: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepers, "SHARED_MEMORY", shared)
    first = arena_of(place)
    assert first != arena_of(place)  # nothing is there: a new name that nobody can guess
    private.make_directory(first)
    assert arena_of(place) == first
    as_nobody('mkdir "$1"', first.with_name(first.name[:-16] + "f" * 16))
    assert arena_of(place) == first
    first.rmdir()
    assert arena_of(place).parent == shared
    assert not arena_of(place).exists()


def test_a_job_is_not_stopped_by_an_arena_of_another_user(
    squatted: Path, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        keeper = Keeper(place, linger=0, level="info")
        monkeypatch.setattr(keeper, "arena", squatted)
        keeper.set_stride(4)
        keeper.look()
        keeper.ended()
        assert keeper._process is None  # there is nothing of ours that it could keep
        await keeper.close()

    asyncio.run(scene())
    assert (tmp_path / "victim").read_text() == "precious"


def test_what_other_users_leave_in_shared_memory_is_not_looked_at(shared: Path) -> None:
    own = shared / f"outlast-{os.getuid()}-{'a' * 16}-{'0' * 16}"
    theirs = shared / f"outlast-{os.getuid()}-{'b' * 16}-{'0' * 16}"
    as_nobody('mkdir "$1"; mkfifo "$1/kept"; ln -s / "$2"', theirs, theirs.with_name(theirs.name[:-1] + "1"))
    assert sweep(own, age=0.0) == []
    assert theirs.exists()


@pytest.mark.parametrize("squat", ['mkdir "$1"', 'touch "$1"', 'ln -s / "$1"'])
def test_a_squatted_temporary_directory_keeps_nobody_from_starting(
    shared: Path, monkeypatch: pytest.MonkeyPatch, squat: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    plain = shared / f"outlast-{os.getuid()}"
    as_nobody(squat, plain)
    as_nobody('mkdir "$1"', shared / f"{plain.name}-0")
    record = token.Record("job", Endpoint("127.0.0.1", 1234), "a" * 32)
    path = token.leave(record)
    assert token.records() == [record]
    assert path.parent != plain
    assert path.parent == token.journal_of(1).parent
    place = hold("job", "host", given=True)
    assert place.held
    with pytest.raises(ValueError, match="is taken"):
        hold("job", "host", given=True)
    place.close()


def test_where_no_directory_can_be_made_one_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"outlast-{os.getuid()}").touch()
    monkeypatch.setattr(token, "_beside", lambda _: [])
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(PermissionError, match="set TMPDIR to a directory of yours"):
        token.records()
