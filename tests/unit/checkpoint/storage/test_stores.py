"""Checkpoints in an object store: a real S3 server, and a proxy before it for all that goes wrong."""

from __future__ import annotations

import os
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import obstore
import pytest
import torch
import torch.distributed.checkpoint as dcp

from outlast.checkpoint.memory.arena import Arena
from outlast.checkpoint.storage import bucket
from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.storage.bucket import Bucket
from outlast.checkpoint.storage.persist import Outcome, persist, prune
from outlast.checkpoint.storage.storage import StorageUnreachable, Url, address, storage_of
from outlast.checkpoint.trainer.checkpointer import Checkpointer
from outlast.cli import main
from snapshots import SIZE, fill, mark, ticket
from stores import Held, Proxy, cut_answer, cut_off, full, hand_on, lost_answer, unavailable

PIECE = 1 << 18
PART = 5 << 20  # less is refused by S3, but for the last one

of_s3 = pytest.mark.parametrize("store", ["s3"], indirect=True)  # what goes through the proxy before it


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> memoryview:
    """What goes up in three parts."""
    monkeypatch.setattr(disk, "CHUNK", PART)
    monkeypatch.setattr(bucket, "PART", PART)
    return memoryview(random.Random(1).randbytes(2 * PART + 1000))


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    made = Arena(tmp_path / "arena", 0)
    yield made
    made.close()


@pytest.fixture
def checkpointer(store: Url) -> Iterator[Callable[..., Checkpointer]]:
    made = []

    def make(**options: Any) -> Checkpointer:
        made.append(Checkpointer(store, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def stored(arena: Arena, url: Url, step: int, **more: Any) -> Outcome:
    slot = fill(arena, step, mark(step - 1), directory=str(url), durable=True, **more)
    return persist([slot.path], ticket(step, **more))


def steps(url: Url) -> list[int]:
    return [each.step for each in disk.found(url)]


def store_of(url: Url) -> Any:
    storage = storage_of(url)
    assert isinstance(storage, Bucket)
    return storage._store


def damage(url: Url, name: str, at: int) -> None:
    """Flip a bit of an object."""
    store, key = store_of(url.parent), f"{url.prefix}/{name}"
    data = bytearray(bytes(obstore.get(store, key).bytes()))
    data[at] ^= 1
    obstore.put(store, key, bytes(data))


def test_a_slot_becomes_a_checkpoint(arena: Arena, store: Url) -> None:
    outcome = stored(arena, store, 1)
    assert outcome == Outcome(mark(1), 1, path=f"{store}/step-00000001-ab.1")
    (found,) = disk.found(store)
    assert disk.verify(found.path) == []
    assert sorted(storage_of(store).sizes(found.path.name)) == [".metadata", "__0_0.distcp", "manifest.json"]
    assert storage_of(store).read(f"{found.path.name}/__0_0.distcp") == bytes([1]) * SIZE
    assert stored(arena, store, 1) == outcome  # written once, whoever asks again
    assert len(disk.found(store)) == 1


def test_a_training_goes_on_and_dcp_reads_what_lies_there(
    checkpointer: Callable[..., Checkpointer], store: Url, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    state = {"model": torch.nn.Linear(300, 70), "epoch": 3, "rest": torch.arange(10.0)}
    saver = checkpointer()
    assert saver.restore(state) == 0
    saver.save(7, state, durable=True)
    saver.wait()
    again: dict[str, Any] = {"model": torch.nn.Linear(300, 70), "epoch": 0, "rest": None}
    assert checkpointer().restore(again) == 7
    assert torch.equal(again["model"].weight, state["model"].weight)
    assert (again["epoch"], again["rest"].sum()) == (3, 45)
    (found,) = disk.found(store)
    assert checkpointer().restore(dict(again), source=found.path) == 7
    for name in storage_of(store).sizes(found.path.name):
        (tmp_path / name).write_bytes(storage_of(store).read(f"{found.path.name}/{name}"))
    into = {"rest": torch.zeros(10)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(into, checkpoint_id=str(tmp_path))
    assert into["rest"].sum() == 45


def test_of_two_saves_of_a_step_within_a_second_the_later_one_is_restored(
    checkpointer: Callable[..., Checkpointer], store: Url
) -> None:
    """A store counts whole seconds."""
    for number in range(6):
        saver = checkpointer(keep_last=9)
        saver.save(7, {"x": torch.full((3,), float(number))}, durable=True)
        saver.wait()
    state: dict[str, Any] = {"x": None}
    assert checkpointer().restore(state) == 7
    assert state["x"].tolist() == [5.0] * 3
    assert steps(store) == [7] * 6


def test_a_damaged_one_is_named_left_alone_and_the_one_before_it_is_used(
    checkpointer: Callable[..., Checkpointer],
    store: Url,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disk, "CHUNK", PIECE)
    saver = checkpointer()
    for step in (1, 2):
        saver.save(step, {"x": torch.full((200_000,), float(step))}, durable=True)
        saver.wait()
    newest = disk.found(store)[0].path
    assert isinstance(newest, Url)
    damage(newest, "__0_0.distcp", PIECE + 5)
    state: dict[str, Any] = {"x": None}
    assert checkpointer().restore(state) == 1
    assert bool((state["x"] == 1).all())
    said = [record.getMessage() for record in caplog.records if record.name == "outlast"]
    assert said == [f"{newest}/__0_0.distcp is damaged in chunk 1 (from byte {PIECE}); trying the one before it"]
    assert steps(store) == [2, 1]


def test_what_is_fetched_from_one_that_is_damaged_is_never_used(
    store: Url, checkpointer: Callable[..., Checkpointer]
) -> None:
    """Also without the look at every byte that comes first: of a checkpoint that is given by its address."""
    saver = checkpointer()
    saver.save(1, {"x": torch.ones(1000), "y": torch.ones(10)}, durable=True)
    saver.wait()
    (found,) = disk.found(store)
    assert isinstance(found.path, Url)
    damage(found.path, "__0_0.distcp", 2000)
    state = {"x": torch.zeros(1000)}
    with pytest.raises(ValueError, match=r"__0_0.distcp is damaged in chunk 0"):
        checkpointer().restore(state, source=found.path)
    assert state["x"].sum() == 0


def test_what_has_no_manifest_does_not_exist_and_is_finished_or_cleared(
    arena: Arena, store: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> str:
        raise OSError(5, "as if killed")

    slots = [fill(arena, step, mark(step - 1), directory=str(store), durable=True) for step in (1, 2)]
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "publish", killed)
        for step, slot in enumerate(slots, 1):
            assert "as if killed" in persist([slot.path], ticket(step)).problem
    assert steps(store) == []
    assert [draft.sequence for draft in storage_of(store).drafts()] == [1, 2]
    storage_of(store).discard("step-00000001-ab.1", ["shard-0.json"])
    disk.finish_drafts(store)
    assert [(each.step, disk.verify(each.path)) for each in disk.found(store)] == [(2, [])]
    assert disk.clear_drafts(store) == []  # it could still be written to
    save = ticket(3).save
    assert [draft.sequence for draft in disk.clear_drafts(store, save)] == [1]
    assert storage_of(store).drafts() == []
    assert storage_of(store).sizes("step-00000001-ab.1") == {}


def test_many_who_find_all_parts_at_once_make_one_checkpoint(arena: Arena, store: Url) -> None:
    save = ticket(1).save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "commit", lambda *_: None)
        assert not stored(arena, store, 1).problem
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(disk.commit, [store] * 4, [save] * 4))
    assert paths == {store / "step-00000001-ab.1"}
    before = disk.read_manifest(store / "step-00000001-ab.1")
    assert not storage_of(store).create("step-00000001-ab.1/manifest.json", b"another")
    assert disk.read_manifest(store / "step-00000001-ab.1") == before


def test_saves_of_two_jobs_under_one_prefix_are_kept_apart(arena: Arena, store: Url) -> None:
    stored(arena, store, 1)
    mine = ticket(1, directory=str(store), durable=True)
    theirs = msgspec.structs.replace(mine, save=msgspec.structs.replace(mine.save, run="cd"))
    slot = arena.slots()[0]
    slot.seal(theirs)
    outcome = persist([slot.path], theirs)
    assert outcome.path == f"{store}/step-00000001-cd.1"
    assert {each.path.name for each in disk.found(store)} == {"step-00000001-ab.1", "step-00000001-cd.1"}
    assert [disk.verify(each.path) for each in disk.found(store)] == [[], []]


def test_the_newest_are_kept_and_a_manifest_goes_first(arena: Arena, s3: Url, proxy: Proxy) -> None:
    for step in (1, 2, 3):
        stored(arena, s3, step, keep_last=9)
    proxy.fault("POST .*delete", hand_on, times=1)
    proxy.fault("POST .*delete", unavailable)
    assert prune(s3, 2) == []
    assert set(storage_of(s3).sizes("step-00000001-ab.1")) == {".metadata", "__0_0.distcp"}
    assert steps(s3) == [3, 2]
    proxy.heal()
    disk.finish_drafts(s3)
    disk.clear_drafts(s3, ticket(3).save)
    assert (steps(s3), storage_of(s3).sizes("step-00000001-ab.1")) == ([3, 2], {})


def test_a_large_file_goes_up_in_parts(s3: Url, proxy: Proxy, in_parts: memoryview) -> None:
    file = disk.write_shard(s3, "large", in_parts)
    assert sum("partNumber=" in line for line in proxy.requests) == 3
    assert len(file.chunks) == 3
    assert disk.verify_file(s3, file) == []
    spans = [(0, 7), (7, PART), (PART + 7, PART + 993)]
    assert b"".join(storage_of(s3.parent).ranges(f"{s3.name}/large", spans)) == in_parts


def test_a_large_file_comes_back_as_it_went_up(store: Url, in_parts: memoryview) -> None:
    storage_of(store).stream("large", len(in_parts), iter([in_parts[:PART], in_parts[PART:]]))
    assert storage_of(store).sizes("") == {"large": len(in_parts)}
    assert storage_of(store).read("large") == in_parts


@pytest.mark.parametrize("fault", [unavailable, cut_off, cut_answer])
def test_what_fails_for_a_moment_is_tried_again(
    arena: Arena, s3: Url, proxy: Proxy, in_parts: memoryview, fault: Any
) -> None:
    asked = ("GET .*list-type", "GET .*shard-0", "GET .*manifest", "GET .*large")
    told = ("POST .*uploads", "PUT .*partNumber=2", "PUT .*distcp", "PUT .*shard-0")
    for pattern in asked if fault is cut_answer else (*asked, *told):
        proxy.fault(pattern, fault, times=1)
    file = disk.write_shard(s3, "large", in_parts)
    assert disk.verify_file(s3, file) == []
    assert not stored(arena, s3, 1).problem
    (found,) = disk.found(s3)
    assert disk.verify(found.path) == []
    assert proxy.spent


def test_a_store_that_stays_away_is_one_line_and_the_next_save_is_tried_again(
    arena: Arena, s3: Url, proxy: Proxy
) -> None:
    proxy.fault("PUT .*distcp", unavailable)
    outcome = stored(arena, s3, 1)
    where = f"{s3}/step-00000001-ab.1/__0_0.distcp"
    said = "503 Service Unavailable (SlowDown: Please reduce your request rate.)"
    assert outcome.problem == f"step 1 is not on disk: {where}: {said}"
    proxy.heal()
    assert storage_of(s3).drafts() == []
    assert not stored(arena, s3, 2).problem
    assert steps(s3) == [2]


def test_a_bucket_that_is_full_in_the_middle_of_an_upload_is_one_line(
    arena: Arena, s3: Url, proxy: Proxy, in_parts: memoryview
) -> None:
    proxy.fault("PUT .*(partNumber=3|distcp)", full)
    said = r"403 Forbidden \(QuotaExceeded: The quota of the bucket is exceeded.\)"
    with pytest.raises(StorageUnreachable, match=said):
        disk.write_shard(s3, "large", in_parts)
    assert storage_of(s3.parent).sizes(s3.name) == {}
    outcome = stored(arena, s3, 1)
    assert re.search(said, outcome.problem)
    assert "\n" not in outcome.problem
    assert (steps(s3), storage_of(s3).drafts()) == ([], [])


def test_a_commit_of_which_nobody_heard_is_there_whole(arena: Arena, s3: Url, proxy: Proxy) -> None:
    """Whether it was done is not known: nothing is taken back, and whoever looks finds it."""
    proxy.fault("PUT .*manifest.json", lost_answer)
    outcome = stored(arena, s3, 1)
    assert outcome.path or "manifest.json" in outcome.problem
    proxy.heal()
    disk.finish_drafts(s3)
    assert [(each.step, disk.verify(each.path)) for each in disk.found(s3)] == [(1, [])]


@of_s3
def test_a_slow_store_keeps_nobody_waiting(checkpointer: Callable[..., Checkpointer], s3: Url, proxy: Proxy) -> None:
    held, saver, state = Held(), checkpointer(), {"x": torch.zeros(1000)}
    proxy.fault("PUT .*distcp", held, times=1)
    for step in range(1, 6):
        state["x"].fill_(step)
        saver.save(step, state, durable=True)
        assert held.arrived.wait(60)
    held.let_go()
    saver.wait()
    assert steps(s3) == [5, 1]  # what came between was not written
    assert [disk.verify(each.path) for each in disk.found(s3)] == [[], []]


@of_s3
def test_an_unreachable_store_is_not_an_empty_one(checkpointer: Callable[..., Checkpointer], proxy: Proxy) -> None:
    """Nor is an older checkpoint taken because the newest cannot be reached just now."""
    saver = checkpointer()
    for step in (1, 2):
        saver.save(step, {"x": torch.full((10,), float(step))}, durable=True)
        saver.wait()
    state = {"x": torch.zeros(10)}
    for pattern in ("GET .*list-type", "GET .*step-00000002.*manifest", "GET .*step-00000002.*distcp"):
        proxy.fault(pattern, unavailable)
        with pytest.raises(OSError, match="503 Service Unavailable") as caught:
            checkpointer().restore(state)
        assert "\n" not in str(caught.value)
        proxy.heal()
    assert state["x"].sum() == 0
    assert checkpointer().restore(state) == 2


def test_wrong_keys_no_server_and_no_bucket_are_one_line(
    arena: Arena, s3: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bucket.RETRIES, "max_retries", 1)
    with monkeypatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        assert "SignatureDoesNotMatch" in (said := stored(arena, s3, 1).problem)
        assert said.endswith("give credentials that may read and write there, in the environment")
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        assert "Connection refused" in (said := stored(arena, s3, 1).problem)
        assert "\n" not in said
    nowhere = Url("s3://there-is-none/x")
    with pytest.raises(StorageUnreachable, match="there is no bucket there-is-none: make it"):
        disk.found(nowhere)


def test_without_obstore_it_is_said_at_once_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    bucket._connect.cache_clear()
    monkeypatch.setitem(sys.modules, "obstore", None)
    said = "checkpoints in s3://b need obstore: pip install 'outlast[stores]'"
    with pytest.raises(ModuleNotFoundError) as caught:
        Checkpointer("s3://b/run")
    assert str(caught.value) == said
    assert main(["checkpoints", "list", "s3://b/run"]) == 2
    assert capsys.readouterr().err == f"outlast checkpoints: error: {said}\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("s3://", "names no bucket: give s3://BUCKET/PREFIX"),
        ("http://x/y", "checkpoints lie in a directory, or in s3://… or gs://…, not in http://…"),
        (Path("s3://b/p"), "is a Path, which drops a slash: give s3://… as a string"),
    ],
)
def test_an_address_that_cannot_be_is_refused(given: str | Path, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        address(given)


def test_the_commands_work_on_a_store(
    arena: Arena, store: Url, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["checkpoints", "list", store]) == 2
    assert "holds no checkpoints of Outlast" in capsys.readouterr().err
    for step in (1, 2, 3):
        stored(arena, store, step)
    assert main(["checkpoints", "list", store]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("step-00000003-ab.3  3 ")
    assert main(["checkpoints", "verify", store]) == 0
    damage(store / "step-00000002-ab.2", "__0_0.distcp", 9)
    assert main(["checkpoints", "verify", store]) == 1
    assert "step-00000002-ab.2/__0_0.distcp is damaged in chunk 0" in capsys.readouterr().out
    assert main(["checkpoints", "show", store / "step-00000003-ab.3"]) == 0
    assert main(["checkpoints", "prune", store, "--keep-last=1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 left"
    for name in ("AWS_ENDPOINT_URL", "GOOGLE_SERVICE_ACCOUNT_KEY"):
        monkeypatch.setenv(name, re.sub(r"http://[0-9.:]+", "http://127.0.0.1:1", os.environ[name]))
    monkeypatch.setitem(bucket.RETRIES, "max_retries", 0)
    assert main(["checkpoints", "list", store]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_nothing_is_known_of_a_store_that_is_unreachable(s3: Url, proxy: Proxy) -> None:
    proxy.fault(".*", unavailable)
    with pytest.raises(StorageUnreachable):
        disk.found(s3)
