"""From memory to disk: what is there is whole, whoever is killed; what cannot be written is said in one line."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.checkpoint.memory.arena import Arena
from outlast.checkpoint.memory.slot import Mark, Slot
from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.storage.directory import Directory
from outlast.checkpoint.storage.persist import persist, prune
from outlast.checkpoint.storage.storage import storage_of
from outlast.checkpoint.trainer.background import WriterThread
from snapshots import SIZE, fill, kill_within, mark, ticket


def seal(arena: Arena, sequence: int, directory: Path, *, keep_last: int = 3) -> Slot:
    return fill(arena, sequence, mark(sequence - 1), directory=str(directory), keep_last=keep_last, durable=True)


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    made = Arena(tmp_path / "arena", 0)
    yield made
    made.close()


def test_a_slot_becomes_a_checkpoint(arena: Arena, tmp_path: Path) -> None:
    slot = seal(arena, 1, tmp_path / "ck")
    outcome = persist([slot.path], ticket(1))
    assert outcome.path == str(tmp_path / "ck" / "step-00000001")
    assert disk.verify(Path(outcome.path)) == []
    assert (Path(outcome.path) / "__0_0.distcp").read_bytes() == bytes([1]) * SIZE
    again = persist([slot.path], ticket(1))
    assert again == outcome  # written once, whoever asks again
    assert [each.number for each in disk.found(tmp_path / "ck")] == [1]


def test_a_slot_that_holds_another_save_by_now_is_not_written(arena: Arena, tmp_path: Path) -> None:
    slot = seal(arena, 2, tmp_path / "ck")
    said = "is not on disk: its memory was given up before it was written"
    assert persist([slot.path], ticket(1)).problem == f"step 1 {said}"
    slot.begin()
    assert persist([slot.path], ticket(2)).problem == f"step 2 {said}"
    assert not (tmp_path / "ck").exists()


def test_a_slot_whose_worker_has_sealed_it_and_not_yet_let_go_of_it_is_written(arena: Arena, tmp_path: Path) -> None:
    """The keeper may look at any moment: it used to give the save up for good."""
    sealed = ticket(1, directory=str(tmp_path / "ck"), durable=True)
    with ThreadPoolExecutor(1) as keeper, arena.take(SIZE, set()) as slot:
        slot.begin()
        slot.seal(sealed)
        outcome = keeper.submit(persist, [slot.path], sealed)
        with suppress(FutureTimeoutError):
            outcome.result(0.3)
        slot.unlock()
        assert outcome.result(60).path == str(tmp_path / "ck" / "step-00000001")


@pytest.mark.parametrize("direct", [True, False])
def test_a_file_is_the_memory_with_and_without_the_page_cache(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    monkeypatch.setattr(disk, "CHUNK", 1 << 18)
    if not direct:  # as a file system that knows of O_DIRECT only when it is written to
        write = os.pwrite

        def refuse(descriptor: int, data: memoryview, at: int) -> int:
            if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
                raise OSError(22, "Invalid argument")
            return write(descriptor, data, at)

        monkeypatch.setattr(os, "pwrite", refuse)
    slot = seal(arena, 3, tmp_path)
    file = disk.write_shard(tmp_path, "file", slot.data[:SIZE])
    assert (tmp_path / "file").read_bytes() == bytes([3]) * SIZE
    assert len(file.chunks) == 4
    assert disk.verify_file(tmp_path, file) == []


def test_the_newest_are_kept_and_damaged_ones_are_neither_counted_nor_touched(arena: Arena, tmp_path: Path) -> None:
    for step in range(1, 6):
        persist([seal(arena, step, tmp_path / "ck", keep_last=9).path], ticket(step))
    os.truncate(tmp_path / "ck" / "step-00000004" / "__0_0.distcp", 5)
    assert [path.name for path in prune(tmp_path / "ck", 2)] == ["step-00000002", "step-00000001"]
    assert [each.step for each in disk.found(tmp_path / "ck")] == [5, 4, 3]


def test_what_was_just_written_is_not_removed_where_later_steps_are_left_of_before(
    arena: Arena, tmp_path: Path
) -> None:
    for step in (8, 9, 3, 4):
        outcome = persist([seal(arena, step, tmp_path / "ck", keep_last=2).path], ticket(step))
        assert disk.verify(Path(outcome.path)) == []
    assert [each.step for each in disk.found(tmp_path / "ck")] == [9, 8, 4]


def test_one_that_is_being_read_is_not_removed(arena: Arena, tmp_path: Path) -> None:
    for step in range(1, 4):
        persist([seal(arena, step, tmp_path / "ck", keep_last=9).path], ticket(step))
    with open(tmp_path / "ck" / "step-00000001" / "manifest.json", "rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        assert [path.name for path in prune(tmp_path / "ck", 1)] == ["step-00000002"]
    assert [path.name for path in prune(tmp_path / "ck", 1)] == ["step-00000001"]


def as_lustre_without_flock(descriptor: int, operation: int) -> None:  # noqa: ARG001
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def as_nfs(descriptor: int, operation: int) -> None:
    """Locks are those of fcntl there: an exclusive one needs a descriptor that can write."""
    exclusive = bool(operation & fcntl.LOCK_EX)
    if exclusive and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    fcntl.lockf(descriptor, kind | fcntl.LOCK_NB) if not operation & fcntl.LOCK_UN else None


@pytest.mark.parametrize("locks", [as_lustre_without_flock, as_nfs])
def test_locks_do_not_decide_what_is_read_or_removed(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: Callable[[int, int], None]
) -> None:
    slots = tmp_path / "arena"

    def flock(file: Any, operation: int) -> None:  # the arena is in /dev/shm in any case
        descriptor = file if isinstance(file, int) else file.fileno()
        if slots in Path(f"/proc/self/fd/{descriptor}").readlink().parents:
            return fcntl_flock(descriptor, operation)
        return locks(descriptor, operation)

    fcntl_flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", flock)
    for step in range(1, 6):
        persist([seal(arena, step, tmp_path / "ck", keep_last=2).path], ticket(step))
    assert [each.step for each in disk.found(tmp_path / "ck")] == [5, 4]
    with storage_of(tmp_path / "ck").hold("step-00000005"):
        assert disk.verify(tmp_path / "ck" / "step-00000005") == []


def test_what_cannot_be_removed_is_said(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: Directory, folder: str) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)

    monkeypatch.setattr(Directory, "remove", refuse)
    for step in range(1, 4):
        persist([seal(arena, step, tmp_path / "ck", keep_last=1).path], ticket(step))
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"{tmp_path}/ck/step-0000000{step} is not removed: Permission denied" for step in (1, 2)]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path], check=True)
    yield path
    subprocess.run(["umount", path], check=True)


def test_a_full_disk_is_one_line_and_loses_nothing_that_was_there(arena: Arena, small: Path) -> None:
    first = persist([seal(arena, 1, small / "ck").path], ticket(1))
    assert not first.problem
    second = persist([seal(arena, 2, small / "ck").path], ticket(2))
    assert "step 2 is not on disk" in second.problem
    assert "No space left on device; make room, or keep fewer (keep_last)" in second.problem
    assert "\n" not in second.problem
    assert disk.verify(Path(first.path)) == []
    assert os.listdir(small / "ck") == ["step-00000001"]  # noqa: PTH208


def test_a_disk_that_cannot_be_written_to_is_one_line(arena: Arena, small: Path) -> None:
    (small / "ck").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    outcome = persist([seal(arena, 1, small / "ck").path], ticket(1))
    assert "Read-only file system; make it writable, or give another path" in outcome.problem


def test_an_error_of_fsync_is_one_line_and_no_checkpoint(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    slot = seal(arena, 1, tmp_path / "ck")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        outcome = persist([slot.path], ticket(1))
    assert "Input/output error" in outcome.problem
    assert disk.found(tmp_path / "ck") == []


def test_whichever_fsync_fails_what_is_there_is_whole_and_the_next_save_is_tried_again(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, count = os.fsync, 0

    def fail(descriptor: int) -> None:
        nonlocal count
        count -= 1
        if count == 0:
            raise OSError(5, "Input/output error")
        sync(descriptor)

    for sequence in range(1, 30):
        slot = seal(arena, sequence, tmp_path / "ck")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            count = sequence
            outcome = persist([slot.path], ticket(sequence))
        if count > 0:
            break
        assert "Input/output error" in outcome.problem
        assert outcome.problem.count("\n") == 0
        assert [problem for each in disk.found(tmp_path / "ck") for problem in disk.verify(each.path)] == []
    assert sequence > 5
    assert outcome.path == str(tmp_path / "ck" / disk.final_name(sequence))
    assert [path.name for path in (tmp_path / "ck").glob(".*")] == []  # nor is anything left of those that failed


def test_the_newest_wins_while_the_disk_is_behind(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    write = disk.write_shard

    def slow(draft: Path, name: str, data: memoryview) -> disk.File:
        begun.set()
        assert go_on.wait(120)
        return write(draft, name, data)

    monkeypatch.setattr(disk, "write_shard", slow)
    background = WriterThread()
    keep: set[Mark] = set()
    for sequence in range(7):
        with arena.take(SIZE, keep | background.pending().must) as slot:
            slot.begin()
            slot.data[:SIZE] = bytes([sequence]) * SIZE
            sealed = ticket(sequence, directory=str(tmp_path / "ck"), durable=sequence < 5)
            slot.seal(sealed)
        background.sealed(slot, sealed)
        keep = {sealed.mark}
        assert begun.wait(120)
    assert len(arena.slots()) == 4  # one being written, one that waits, the newest, and one to be filled next
    go_on.set()
    outcome = background.wait()
    assert outcome.step == 4
    assert [each.step for each in disk.found(tmp_path / "ck")] == [4, 0]
    for each in disk.found(tmp_path / "ck"):
        assert (each.path / "__0_0.distcp").read_bytes() == bytes([each.step]) * SIZE
    background.close()


def test_an_error_that_nobody_thought_of_ends_the_wait_for_it(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> disk.File:
        raise RuntimeError("who would have thought")

    monkeypatch.setattr(disk, "write_shard", fail)
    background = WriterThread()
    sealed = ticket(1, directory=str(tmp_path / "ck"), durable=True)
    background.sealed(seal(arena, 1, tmp_path / "ck"), sealed)
    outcome = background.wait()
    assert outcome is not None
    assert outcome.problem == "step 1 is not on disk: RuntimeError: who would have thought"
    assert not background.pending()
    background.close()


SCRIPT = """
import sys
import threading
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from snapshots import fill
from outlast.checkpoint.storage import persist
from outlast.checkpoint.memory.arena import Arena
from outlast.checkpoint.trainer.background import WriterThread as Thread
lease = persist._lease
def late(*args):  # so that the script has ended before
    threading.main_thread().join()
    return lease(*args)
persist._lease = late
arena, background = Arena(None, 0), Thread()
slot = fill(arena, 1, None, directory=sys.argv[2], durable=True)
background.sealed(slot, slot.ticket())
"""


def test_what_is_to_be_on_disk_is_written_after_the_end_of_a_script_that_did_not_wait(tmp_path: Path) -> None:
    here = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", SCRIPT, here, tmp_path / "ck"], check=True, timeout=60)
    assert done.returncode == 0
    assert [each.step for each in disk.found(tmp_path / "ck")] == [1]
    assert disk.verify(tmp_path / "ck" / "step-00000001") == []


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from snapshots import fill, mark, ticket
from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.memory.arena import Arena
from outlast.checkpoint.storage.persist import persist
place = Path(sys.argv[2])
arena = Arena(place / "arena", 0)
disk.finish_drafts(place / "ck")
start = max((each.step for each in disk.found(place / "ck")), default=0) + 1
print("ready", flush=True)
for sequence in range(start, 1 << 30):
    slot = fill(arena, sequence, mark(sequence - 1), directory=str(place / "ck"), durable=True)
    outcome = persist([slot.path], ticket(sequence))
    assert not outcome.problem, outcome
"""


def test_a_kill_at_any_instant_leaves_only_whole_checkpoints(tmp_path: Path, kills: int) -> None:
    chance = random.Random(11)
    newest = 0
    for _ in range(kills):
        kill_within(0.1, chance, WRITER, tmp_path)
        there = disk.found(tmp_path / "ck")
        assert len(there) >= min(newest, 3)
        assert [problem for each in there for problem in disk.verify(each.path)] == []
        best = there[0].step if there else 0
        assert best >= newest, "a newer checkpoint was lost"
        newest = best
    assert newest > 2


def test_saves_of_other_jobs_in_the_same_directory_are_kept_apart(arena: Arena, tmp_path: Path) -> None:
    slot = seal(arena, 1, tmp_path / "ck")
    first = persist([slot.path], ticket(1))
    mine = ticket(1, directory=str(tmp_path / "ck"), durable=True)
    theirs = msgspec.structs.replace(mine, save=msgspec.structs.replace(mine.save, run="cd"))
    slot.seal(theirs)
    second = persist([slot.path], theirs)
    assert (Path(first.path).name, Path(second.path).name) == ("step-00000001", "step-00000001.2")
