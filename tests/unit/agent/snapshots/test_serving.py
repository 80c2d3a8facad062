"""Shards between nodes: copies that are sent, kept and read again, and what is done about those that are no good."""

from __future__ import annotations

import os
import resource
import socket
import ssl
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from outlast.agent.snapshots import serving
from outlast.agent.snapshots.memory import held
from outlast.agent.snapshots.sending import Sending, StrideMeter, _Overwritten, send
from outlast.agent.snapshots.serving import Serving
from outlast.checkpoint.memory import arena as arenas
from outlast.checkpoint.memory.arena import Arena
from outlast.checkpoint.memory.channel import Go, Piece, Put, Refused, dial, digest_of, key_of
from outlast.checkpoint.memory.shards import CACHED, AgreedSnapshot, MemoryShard, damage, places
from outlast.checkpoint.memory.slot import HEAD
from outlast.checkpoint.storage.format import CHUNK, Damaged
from outlast.protocol.snapshots import Holder, Snapshot
from outlast.transport.certificate import server_side
from outlast.transport.commission import Tls
from outlast.transport.wire import WrongToken
from snapshots import SIZE, fill, mark, ticket

KEY = key_of("a token")
SOON = 60.0


class Host:
    """A node's arena, and whoever serves it."""

    def __init__(self, directory: Path, tls: tuple[ssl.SSLContext | None, bytes] = (None, b"")) -> None:
        self.directory = directory
        self.news = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        Serving(directory, self.listener, KEY, tls=tls, sealed=self.news.set)

    def copies(self) -> dict[int, list[int]]:
        """The sequences of which there are copies, by rank."""
        found: dict[int, list[int]] = {}
        for _, each in arenas.tickets(self.directory, replicas=True):
            found.setdefault(each.rank, []).append(each.save.sequence)
        return {rank: sorted(sequences) for rank, sequences in found.items()}

    def path(self, sequence: int) -> Path:
        """Where the copy of this save is."""
        return next(path for path, each in arenas.tickets(self.directory, replicas=True) if each.mark == mark(sequence))

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    made = []

    def make(name: str, **more: tuple[ssl.SSLContext | None, bytes]) -> Host:
        made.append(Host(tmp_path / name, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Arena]:
    """A worker of the node that sends."""
    arena = Arena(tmp_path / "here", 0)
    yield arena
    arena.close()


def copy(to: Host, sequence: int, paths: list[Path]) -> None:
    send(paths, mark(sequence), dial("127.0.0.1", to.port, KEY))


def read(directory: Path, told: AgreedSnapshot, sequence: int) -> MemoryShard:
    """Rank 0's shard, from wherever it can be had on this node."""
    return MemoryShard(0, places(directory, mark(sequence), {}, told)[0])


def agreed(sequence: int, *holders: Holder) -> AgreedSnapshot:
    return AgreedSnapshot(1, KEY, snapshots=(Snapshot("ab", sequence, sequence, 1, "o", 1.0, holders),))


def flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(HEAD + at)
        (byte,) = file.read(1)
        file.seek(HEAD + at)
        file.write(bytes([byte ^ 4]))


def test_a_copy_is_kept_and_read_again_from_anywhere(worker: Arena, host: Callable[..., Host], tmp_path: Path) -> None:
    there = host("there")
    for sequence in (1, 2, 3):
        slot = fill(worker, sequence, mark(sequence - 1))
        copy(there, sequence, [Path(slot.path)])
        copy(there, sequence, [Path(slot.path)])  # as after a keeper's death: once is enough
    assert there.copies() == {0: [2, 3]}  # two slots, the newest two
    assert [each.replicas for each in held(there.directory)] == [(0,), (0,)]
    told = agreed(3, Holder("127.0.0.1", there.port, replicas=(0,)))
    for directory in (there.directory, tmp_path / "a new node"):
        shard = read(directory, told, 3)
        assert len(shard) == SIZE
        assert bytes(shard[10:20]) == b"\3" * 10
        shard.close()
    with pytest.raises(Damaged, match="it is not there"):
        read(tmp_path / "a new node", agreed(1, Holder("127.0.0.1", there.port, replicas=(0,))), 1)


def test_shards_of_many_chunks_are_read_across_their_borders(
    worker: Arena, host: Callable[..., Host], tmp_path: Path
) -> None:
    there, size = host("there"), 2 * CHUNK + 100
    with worker.take(size, ()) as slot:
        slot.begin()
        for number in range(3):
            slot.data[number * CHUNK : min((number + 1) * CHUNK, size)] = bytes([number]) * min(
                CHUNK, size - number * CHUNK
            )
        slot.seal(ticket(1, length=size - 100, table=60, contents=30, blanks=10))
    copy(there, 1, [Path(slot.path)])
    shard = read(tmp_path / "new", agreed(1, Holder("127.0.0.1", there.port, replicas=(0,))), 1)
    assert bytes(shard[CHUNK - 2 : CHUNK + 2]) == b"\0\0\1\1"
    assert bytes(shard[0 : len(shard)]) == b"\0" * CHUNK + b"\1" * CHUNK
    assert shard.tail() == (b"\2" * 60, b"\2" * 30, b"\2" * 10)
    shard.close()


def test_who_reads_many_shards_of_a_node_keeps_nobody_else_from_it(
    host: Callable[..., Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", 2)
    there, ranks = host("there"), range(4)
    for rank in ranks:
        arena = Arena(there.directory, rank)
        fill(arena, rank, None)
        arena.slots()[0].seal(ticket(1, rank=rank))
        arena.close()
    told = agreed(1, Holder("127.0.0.1", there.port, ranks=tuple(ranks)))
    opened: list[list[MemoryShard]] = []
    for name in ("one", "two", "three"):
        known = places(tmp_path / name, mark(1), {}, told)
        opened.append([])
        for rank in ranks:
            opened[-1].append(MemoryShard(rank, known[rank]))
            assert opened[-1][-1].tail() == (b"", b"", b"")
    for reader in opened:
        assert [bytes(each[:1]) for each in reader] == [bytes([rank]) for rank in ranks]
        for each in reader:
            each.close()


def test_the_shards_of_a_large_job_are_not_kept_in_the_memory_of_each_rank(
    host: Callable[..., Host], tmp_path: Path
) -> None:
    there, ranks = host("there"), range(12)
    for rank in ranks:
        arena = Arena(there.directory, rank)
        fill(arena, 1, None, rank=rank)
        arena.close()
    known = places(tmp_path / "new", mark(1), {}, agreed(1, Holder("127.0.0.1", there.port, ranks=tuple(ranks))))
    tracemalloc.start()
    opened = [MemoryShard(rank, known[rank]) for rank in ranks]
    for each in opened:
        assert bytes(each[:1]) == b"\1"
        each.tail()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < (CACHED + 1) * SIZE
    for each in opened:
        each.close()


def test_a_flipped_bit_is_found_and_the_next_place_is_tried(
    worker: Arena, host: Callable[..., Host], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = host("bad"), host("good")
    slot = fill(worker, 1, None)
    for each in (bad, good):
        copy(each, 1, [Path(slot.path)])
    flip(bad.path(1), 1000)
    assert "is damaged in chunk 0" in damage(bad.path(1))
    assert damage(good.path(1)) == ""
    holders = [Holder("127.0.0.1", each.port, replicas=(0,)) for each in (bad, good)]
    for directory in (tmp_path / "a new node", bad.directory):
        shard = read(directory, agreed(1, *holders), 1)
        assert bytes(shard[:]) == b"\1" * SIZE
        shard.close()
    assert f"what 127.0.0.1:{bad.port} has of rank 0's shard is damaged in chunk 0; trying another place" in caplog.text
    assert f"the replica {bad.path(1)} is damaged in chunk 0; trying another place" in caplog.text
    alone = read(tmp_path / "a new node", agreed(1, holders[0]), 1)
    with pytest.raises(Damaged, match="rank 0's shard is damaged in chunk 0"):
        alone[:]


def test_what_comes_only_half_or_damaged_leaves_the_copy_before_it(worker: Arena, host: Callable[..., Host]) -> None:
    there = host("there")
    slot = fill(worker, 1, None)
    copy(there, 1, [Path(slot.path)])
    for digest, data in ((digest_of(memoryview(b"x" * SIZE)), b"x" * (SIZE // 2)), (b"?" * 16, b"x" * SIZE)):
        channel = dial("127.0.0.1", there.port, KEY)
        channel.send(Put(msgspec.json.encode(ticket(2))))
        assert isinstance(channel.receive(), Go)
        channel.send(Piece(SIZE, digest), memoryview(data))
        if len(data) == SIZE:
            with pytest.raises(Refused, match="chunk 0 was damaged on the way"):
                channel.receive()
        channel.close()  # the peer dies
    assert there.copies() == {0: [1]}
    slot = fill(worker, 2, mark(1))
    copy(there, 2, [Path(slot.path)])
    assert there.copies() == {0: [1, 2]}


def test_a_slot_that_its_worker_needs_is_not_sent(worker: Arena, host: Callable[..., Host]) -> None:
    there = host("there")
    slot = fill(worker, 1, None)
    fill(worker, 2, mark(1))
    with pytest.raises(_Overwritten):
        copy(there, 7, [Path(slot.path)])
    assert there.copies() == {}


def test_copies_of_an_earlier_run_go_when_nobody_can_need_them(worker: Arena, host: Callable[..., Host]) -> None:
    """With the second snapshot of the new one: then all ranks have taken the first, and overwritten what was before."""
    there = host("there")
    for rank in (0, 5):
        slot = fill(worker, 9, None, rank=rank)
        copy(there, 9, [Path(slot.path)])
    for sequence, left in ((0, {0: [0, 9], 5: [9]}), (1, {0: [0, 1]})):
        new = msgspec.structs.replace(ticket(sequence).save, run="new")
        slot = fill(worker, sequence, None, save=new, saved_at=100.0 + sequence)
        send([Path(slot.path)], ("new", sequence), dial("127.0.0.1", there.port, KEY))
        assert there.copies() == left


def test_too_little_memory_for_copies_is_said_once_and_costs_nothing_else(
    worker: Arena, host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there = host("there")
    slots = [Path(fill(worker, sequence, mark(1)).path) for sequence in (1, 2)]
    monkeypatch.setattr(arenas, "free_room", lambda _: 3 * SIZE)  # two are left to the node's own snapshots
    for sequence, path in zip((1, 2), slots, strict=True):
        with pytest.raises(Refused, match="too little shared memory"):
            copy(there, sequence, [path])
    (said,) = [record.getMessage() for record in caplog.records if record.name == "keeper"]
    assert said.startswith("replicas of rank 0 need 3 MiB of shared memory")
    assert said.endswith("the job continues without these replicas")
    assert there.copies() == {}


def test_a_connection_that_cannot_be_taken_is_not_the_last_one(
    worker: Arena, host: Callable[..., Host], caplog: pytest.LogCaptureFixture
) -> None:
    there, said = host("there"), threading.Event()
    slot = fill(worker, 1, None)
    caplog.handler.addFilter(lambda _: said.set() or True)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as client:
        taken = [os.dup(client.fileno())]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(client.fileno(), *taken) + 1, hard))
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.dup(client.fileno()))
            client.connect(("127.0.0.1", there.port))
            assert said.wait(SOON)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for descriptor in taken:
                os.close(descriptor)
    copy(there, 1, [Path(slot.path)])
    assert there.copies() == {0: [1]}
    assert "a connection could not be taken: [Errno 24] Too many open files" in caplog.text


def test_nobody_without_the_key_reads_or_leaves_anything(host: Callable[..., Host]) -> None:
    there = host("there")
    with pytest.raises(WrongToken):
        dial("127.0.0.1", there.port, key_of("another token"))


def test_with_tls_the_proof_covers_the_certificate(worker: Arena, host: Callable[..., Host]) -> None:
    there = host("there", tls=server_side(Tls()))
    slot = fill(worker, 1, None)
    send([Path(slot.path)], mark(1), dial("127.0.0.1", there.port, KEY, tls=True))
    assert there.copies() == {0: [1]}
    context, _ = server_side(Tls())
    elsewhere = host("elsewhere", tls=(context, b"of another certificate"))
    with pytest.raises(WrongToken):
        dial("127.0.0.1", elsewhere.port, KEY, tls=True)


def test_copies_that_do_not_arrive_in_time_ask_for_a_slower_pace_and_easy_ones_for_a_faster() -> None:
    stride = StrideMeter()
    assert [stride.sent(in_time=True, one_in=1, easily=True) for _ in range(40)] == [1] * 40
    assert stride.sent(in_time=False, one_in=1) == 2
    assert stride.sent(in_time=False, one_in=2) == 2  # it had to wait for the one before
    assert stride.sent(in_time=False, one_in=2) == 4
    assert [stride.sent(in_time=True, one_in=4) for _ in range(40)] == [4] * 40  # in time, but hardly
    told = [stride.sent(in_time=True, one_in=4, easily=True) for _ in range(16)]
    assert told == [4] * 15 + [2]


def test_all_nodes_copy_the_same_snapshots_at_a_pace(worker: Arena, host: Callable[..., Host], tmp_path: Path) -> None:
    there = host("there")
    (tmp_path / "here" / arenas.STRIDE_FILE).parent.mkdir(mode=0o700, exist_ok=True)
    (tmp_path / "here" / arenas.STRIDE_FILE).write_text("2")
    sending = Sending(tmp_path / "here", KEY)
    sending.partner(("127.0.0.1", there.port))
    for sequence, left in ((2, [2]), (3, [2]), (4, [2, 4])):
        fill(worker, sequence, mark(2))
        there.news.clear()
        sending.look()
        if sequence % 2 == 0:
            assert there.news.wait(SOON)
        assert there.copies() == {0: left}
    sending.partner(None)


def test_each_newest_snapshot_is_sent_and_a_new_partner_gets_what_there_is(
    worker: Arena, host: Callable[..., Host], tmp_path: Path
) -> None:
    first, second = host("first"), host("second")
    sending = Sending(tmp_path / "here", KEY)
    fill(worker, 1, None)
    sending.look()  # nobody to send it to
    sending.partner(("127.0.0.1", first.port))
    assert first.news.wait(SOON)
    first.news.clear()
    fill(worker, 2, mark(1))
    sending.look()
    assert first.news.wait(SOON)
    assert first.copies() == {0: [1, 2]}
    sending.partner(("127.0.0.1", second.port))
    assert second.news.wait(SOON)
    assert second.copies() == {0: [2]}
    sending.partner(None)


@pytest.mark.parametrize("tls", [False, True])
def test_strangers_who_say_nothing_keep_nobody_out(
    host: Callable[..., Host], worker: Arena, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    monkeypatch.setattr(serving, "MOST_UNPROVED", 8)
    there = host("there", tls=server_side(Tls())) if tls else host("there")
    strangers = [socket.create_connection(("127.0.0.1", there.port)) for _ in range(40)]
    try:
        fill(worker, 1, None)
        send([Path(worker.slots()[0].path)], mark(1), dial("127.0.0.1", there.port, KEY, tls=tls, patience=SOON))
        assert there.copies() == {0: [1]}
        threads = [each for each in threading.enumerate() if each.name.endswith("(_serve)")]
        assert len(threads) <= 10
    finally:
        for each in strangers:
            each.close()
