"""What is on disk: only ever whole, found by looking, and every damage named."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import xxhash

from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.storage.directory import Directory
from outlast.checkpoint.storage.format import CHUNK, Damaged, File, Part, Save, commit, found, read_manifest, verify

SAVE = Save(run="ab12", sequence=3, step=7, generation=1, world=2, job="job")
CONTENTS = b"offset 00000000 length 00000000"


def part(rank: int, data: bytes, save: Save = SAVE) -> Part:
    chunks = disk.hashes(memoryview(data))
    return Part(
        save=save,
        rank=rank,
        saved_at=1.0,
        file=File(disk.shard_name(rank), len(data), chunks),
        table=struct.pack("<q", 10 + rank) * (2 // save.world),
        contents=CONTENTS if rank == 0 else b"",
        blanks=struct.pack("<qq", 7, 23) if rank == 0 else b"",
    )


def write(draft: Path, rank: int, data: bytes, save: Save = SAVE) -> None:
    draft.mkdir(parents=True, exist_ok=True)
    (draft / disk.shard_name(rank)).write_bytes(data)
    disk.write_part(draft, part(rank, data, save))


def checkpoint(directory: Path, save: Save = SAVE, size: int = 1000) -> Path:
    draft = directory / disk.draft_name(save)
    for rank in range(save.world):
        write(draft, rank, bytes([rank + save.step]) * size, save)
    path = commit(directory, save)
    assert path is not None
    return path


def test_a_draft_becomes_a_checkpoint_when_the_last_part_is_there(tmp_path: Path) -> None:
    draft = tmp_path / disk.draft_name(SAVE)
    write(draft, 1, b"one" * 100)
    assert commit(tmp_path, SAVE) is None
    assert found(tmp_path) == []
    write(draft, 0, b"zero" * 100)
    path = commit(tmp_path, SAVE)
    assert path == tmp_path / "step-00000007"
    assert verify(path) == []
    assert sorted(os.listdir(path)) == [".metadata", "__0_0.distcp", "__1_0.distcp", "manifest.json"]  # noqa: PTH208
    manifest = read_manifest(path)
    assert (manifest.save, [file.size for file in manifest.files]) == (SAVE, [400, 300, len(CONTENTS)])


def test_the_places_of_all_items_are_filled_into_the_contents(tmp_path: Path) -> None:
    path = checkpoint(tmp_path)
    assert (path / ".metadata").read_bytes() == b"offset " + struct.pack("<q", 10) + b" length " + struct.pack("<q", 11)


def test_a_step_that_is_saved_again_never_goes_into_the_one_that_is_there(tmp_path: Path) -> None:
    again = msgspec.structs.replace(SAVE, sequence=4)
    assert [checkpoint(tmp_path).name, checkpoint(tmp_path, again).name] == ["step-00000007", "step-00000007.2"]
    assert [(each.step, each.number) for each in found(tmp_path)] == [(7, 2), (7, 1)]
    assert all(verify(each.path) == [] for each in found(tmp_path))


def test_of_several_of_one_step_the_one_that_was_saved_last_comes_first(tmp_path: Path) -> None:
    """Not the one that was committed last: an older one may have been written more slowly."""
    newer = checkpoint(tmp_path, msgspec.structs.replace(SAVE, sequence=9))
    older = checkpoint(tmp_path, msgspec.structs.replace(SAVE, sequence=8))
    assert (newer.name, older.name) == ("step-00000007", "step-00000007.2")
    assert [each.path for each in found(tmp_path)] == [newer, older]
    (newer / "manifest.json").write_bytes(b"")
    assert [each.path for each in found(tmp_path)] == [older, newer]


def test_the_newest_comes_first_whatever_else_lies_there(tmp_path: Path) -> None:
    for step in (9, 100, 20):
        checkpoint(tmp_path, msgspec.structs.replace(SAVE, step=step, sequence=step))
    (tmp_path / "step-7").mkdir()
    (tmp_path / "latest").write_text("step-00000009")
    assert [each.step for each in found(tmp_path)] == [100, 20, 9]
    assert found(tmp_path / "absent") == []


def test_parts_of_another_save_are_not_taken(tmp_path: Path) -> None:
    draft = tmp_path / disk.draft_name(SAVE)
    write(draft, 0, b"zero")
    write(draft, 1, b"one", msgspec.structs.replace(SAVE, step=8))
    with pytest.raises(Damaged, match=r"shard-1.json is not a part of this checkpoint"):
        commit(tmp_path, SAVE)
    assert found(tmp_path) == []


def test_many_who_find_all_parts_at_once_make_one_checkpoint(tmp_path: Path) -> None:
    for sequence in range(20):
        save = msgspec.structs.replace(SAVE, sequence=sequence, step=sequence)
        draft = tmp_path / disk.draft_name(save)
        for rank in range(2):
            write(draft, rank, b"x" * 100, save)
        with ThreadPoolExecutor(4) as pool:
            paths = pool.map(commit, [tmp_path] * 4, [save] * 4)
        assert set(paths) == {tmp_path / disk.final_name(sequence)}
        assert verify(tmp_path / disk.final_name(sequence)) == []


def flip(path: Path, at: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def rewrite(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def swap(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


SHARD = "__1_0.distcp"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (lambda path: flip(path / SHARD, 500), r"__1_0.distcp is damaged in chunk 0"),
    "a truncated shard": (lambda path: os.truncate(path / SHARD, 999), r"__1_0.distcp has 999 bytes, not 1000"),
    "a zero tail": (lambda path: rewrite(path / SHARD, b"\x08" * 900 + bytes(100)), r"damaged in chunk 0"),
    "a missing shard": (lambda path: (path / SHARD).unlink(), r"__1_0.distcp: No such file"),
    "swapped shards": (
        lambda path: swap(path / "__0_0.distcp", path / SHARD),
        r"__0_0.distcp is damaged",
    ),
    "one more shard": (lambda path: rewrite(path / "__2_0.distcp", b"x"), r"__2_0.distcp is not in the manifest"),
    "flipped metadata": (lambda path: flip(path / ".metadata"), r".metadata is damaged"),
    "a flipped manifest": (lambda path: flip(path / "manifest.json", 20), r"manifest.json is damaged"),
    "half a manifest": (lambda path: os.truncate(path / "manifest.json", 100), r"manifest.json is damaged"),
    "an empty manifest": (lambda path: os.truncate(path / "manifest.json", 0), r"manifest.json is damaged"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), r"has no manifest.json"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damage_is_named(tmp_path: Path, damage: str) -> None:
    path = checkpoint(tmp_path)
    do, named = DAMAGES[damage]
    do(path)
    with pytest.raises(AssertionError, match=named):
        assert not verify(path), verify(path)
    assert all("\n" not in problem for problem in verify(path))


def test_a_damage_is_named_by_its_chunk(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, msgspec.structs.replace(SAVE, world=1), size=CHUNK + 10)
    flip(path / "__0_0.distcp", CHUNK + 3)
    assert verify(path) == [f"{path / '__0_0.distcp'} is damaged in chunk 1 (from byte {CHUNK})"]


def test_every_bit_of_a_manifest_counts(tmp_path: Path) -> None:
    path = checkpoint(tmp_path)
    size = (path / "manifest.json").stat().st_size
    for at in range(size):
        flip(path / "manifest.json", at)
        with pytest.raises(Damaged):
            read_manifest(path)
        flip(path / "manifest.json", at)
    assert verify(path) == []


def test_a_manifest_of_a_later_version_is_said_to_be_one(tmp_path: Path) -> None:
    path = checkpoint(tmp_path)
    body = (path / "manifest.json").read_bytes().partition(b"\n")[0].replace(b'"version":1', b'"version":2')
    (path / "manifest.json").write_bytes(body + b'\n"' + xxhash.xxh3_128_hexdigest(body).encode() + b'"\n')
    with pytest.raises(Damaged, match="has version 2, this Outlast knows 1: install a newer"):
        read_manifest(path)


def test_a_draft_whose_last_writer_was_killed_is_finished_by_whoever_looks_next(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path / disk.draft_name(SAVE), rank, b"x" * 100)
    unfinished = msgspec.structs.replace(SAVE, sequence=9, step=9)
    write(tmp_path / disk.draft_name(unfinished), 0, b"x", unfinished)
    disk.finish_drafts(tmp_path)
    assert [(each.step, verify(each.path)) for each in found(tmp_path)] == [(7, [])]
    disk.finish_drafts(tmp_path / "absent")


@pytest.mark.parametrize("blanks", [b"no", struct.pack("<q", 1 << 40)])
def test_a_draft_that_makes_no_sense_keeps_nobody_from_looking(tmp_path: Path, blanks: bytes) -> None:
    save = msgspec.structs.replace(SAVE, world=1)
    draft = tmp_path / disk.draft_name(save)
    draft.mkdir()
    odd = msgspec.structs.replace(part(0, b"0", save), table=bytes(len(blanks)), contents=b"some", blanks=blanks)
    disk.write_part(draft, odd)
    disk.finish_drafts(tmp_path)
    assert found(tmp_path) == []
    with pytest.raises(Damaged, match="cannot be filled in"):
        commit(tmp_path, save)


def test_a_disk_that_fails_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        disk.origin(tmp_path / "ck", make=True)
    assert list((tmp_path / "ck").iterdir()) == []


def test_overtaken_and_forgotten_drafts_are_removed_and_others_are_not(tmp_path: Path) -> None:
    overtaken, other, ahead, forgotten = (
        msgspec.structs.replace(SAVE, run=run, sequence=sequence)
        for run, sequence in (("ab12", 2), ("cd34", 1), ("ab12", 4), ("ef56", 1))
    )
    for save in (overtaken, other, ahead, forgotten):
        write(tmp_path / disk.draft_name(save), 0, b"x", save)
    long_ago = time.time() - 2 * Directory.stale
    for path in (tmp_path / disk.draft_name(forgotten), *(tmp_path / disk.draft_name(forgotten)).iterdir()):
        os.utime(path, (long_ago, long_ago))
    disk.clear_drafts(tmp_path, SAVE)
    left = Directory(tmp_path).drafts()
    assert {draft.run for draft in left} == {"cd34", "ab12"}
    assert [draft.sequence for draft in left if draft.run == "ab12"] == [4]


def test_drafts_of_a_jobs_earlier_generations_are_removed_with_the_next_commit(tmp_path: Path) -> None:
    mine, theirs = disk.run_prefix("job"), disk.run_prefix("another")
    save = msgspec.structs.replace(SAVE, run=f"{mine}aa", job="job", generation=3)
    dead = msgspec.structs.replace(save, run=f"{mine}bb", generation=2)
    others = [msgspec.structs.replace(dead, run=f"{theirs}bb"), msgspec.structs.replace(dead, generation=3)]
    for each in (dead, *others):
        (tmp_path / disk.draft_name(each)).mkdir()
    assert [draft.name for draft in disk.clear_drafts(tmp_path, save)] == [disk.draft_name(dead)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(map(disk.draft_name, others))
