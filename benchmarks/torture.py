"""Random courses of trainings that save, and are killed: nothing wrong is ever restored, nothing is lost in silence.

A course has some lives. In each, forked ranks restore, train and save every step, some of them durably, while a keeper
writes to disk; then all are killed at a random instant, or end. Between lives, memory may be lost and checkpoints on
disk damaged. What else may happen: a keeper that is killed, a disk that is full or slow, a file system without flock,
a busy thread in each rank, a rank that skips saves, another number of ranks in the next life.

The state of step N is full of Ns, so that a mixture shows. Each life must restore at least the last step that all ranks
had saved, if memory is there, and the newest whole checkpoint, if there is one. A finding is printed with its seed:

    python benchmarks/torture.py --seconds 3600
    python benchmarks/torture.py --seed 4711 --courses 1
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import logging
import mmap
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from outlast.agent.snapshots.keeper_process import SnapshotWriter
from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.trainer.checkpointer import Checkpointer

MOST_RANKS = 3
PIECES, SIZE = 6, 1 << 14
LIFE = 60.0  # seconds after which a life hangs
RESTORED, SAVED, WAITED = range(3)  # words of a rank on the page
UNKNOWN, REFUSED = -1, -2  # instead of a step


class Page:
    """What ranks tell the parent; it outlives them."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 4096)
        for rank in range(MOST_RANKS):
            self.put(rank, RESTORED, UNKNOWN)

    def put(self, rank: int, word: int, value: int) -> None:
        struct.pack_into("<q", self._memory, 8 * (3 * rank + word), value)

    def get(self, rank: int, word: int) -> int:
        return int(struct.unpack_from("<q", self._memory, 8 * (3 * rank + word))[0])


@dataclass(frozen=True)
class Life:
    """What happens in one of them."""

    world: int
    steps: int
    durable_every: int
    kill_after: float | None  # seconds after the first save; None: it ends by itself
    keeper_dies: bool
    busy: bool
    drifts: bool  # one rank skips a save now and then
    flock: bool
    full_disk: float  # how likely a write fails
    slow_disk: float  # seconds for a flush
    memory_lost: bool  # afterwards
    damaged: int  # checkpoints, afterwards

    @classmethod
    def draw(cls, chance: random.Random) -> Life:
        return cls(
            world=chance.randint(1, MOST_RANKS),
            steps=chance.randint(2, 25),
            durable_every=chance.choice((1, 2, 3, 7)),
            kill_after=chance.random() * 0.4 if chance.random() < 0.8 else None,
            keeper_dies=chance.random() < 0.2,
            busy=chance.random() < 0.3,
            drifts=chance.random() < 0.15,
            flock=chance.random() < 0.8,
            full_disk=chance.choice((0.0, 0.0, 0.02)),
            slow_disk=chance.choice((0.0, 0.0, 0.05)),
            memory_lost=chance.random() < 0.3,
            damaged=chance.choice((0, 0, 0, 1, 2)),
        )


def fork(body: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        body()
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  (the parent sees that it failed)
        if isinstance(error, RuntimeError) and "peer" in str(error):
            signal.pause()  # another rank was killed, and this one is about to be
        traceback.print_exc()
    finally:
        os._exit(1)


def make_disk_worse(life: Life, arena: Path, chance: random.Random) -> None:
    """In this process, from now on."""
    flock, pwrite, fsync = fcntl.flock, os.pwrite, os.fsync

    def lock(file: Any, operation: int) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if not life.flock and arena not in (path, *path.parents):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        flock(descriptor, operation)

    def write(descriptor: int, data: Any, at: int) -> int:
        if chance.random() < life.full_disk:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data, at)

    def flush(descriptor: int) -> None:
        time.sleep(life.slow_disk)
        fsync(descriptor)

    fcntl.flock, os.pwrite, os.fsync = lock, write, flush  # type: ignore[assignment]


def keep(life: Life, arena: Path, seed: int) -> None:
    """The keeper: looks all the time, and at the end, when told to (SIGTERM), writes what is in memory only."""
    logging.disable()
    make_disk_worse(life, arena, random.Random(seed))
    over: list[bool] = []  # no Event: setting one from a signal handler that interrupts its wait is a deadlock
    signal.signal(signal.SIGTERM, lambda *_: over.append(True))
    keeper = SnapshotWriter(arena)
    while not over:
        keeper.look()
        time.sleep(0.005)
    keeper.breakpoint()


def state(step: int) -> dict[str, Any]:
    return {"w": {f"piece{number}": torch.full((SIZE,), float(step)) for number in range(PIECES)}, "step": step}


def train(life: Life, rank: int, page: Page, directory: Path, arena: Path, store: Path) -> None:
    logging.disable()
    torch.set_num_threads(1)
    make_disk_worse(life, arena, random.Random(rank))
    if life.busy:
        threading.Thread(target=lambda: [None for _ in count()], daemon=True).start()
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(store), life.world),
        rank=rank,
        world_size=life.world,
        timeout=timedelta(seconds=LIFE),
    )
    saver = Checkpointer(directory, keep_last=2)
    saver._memory.place, saver._memory.number = arena, rank
    now = state(0)
    try:
        start = saver.restore(now)
    except ValueError:
        page.put(rank, RESTORED, REFUSED)
        return
    values = {float(each) for piece in now["w"].values() for each in piece.unique()}
    assert (values, now["step"]) == ({float(start)}, start), f"rank {rank} restored {start} and has {values}"
    page.put(rank, RESTORED, start)
    for step in range(start + 1, start + life.steps + 1):
        dist.barrier()
        for piece in now["w"].values():
            piece.fill_(step)
        now["step"] = step
        durable = step % life.durable_every == 0
        # To skip the first save, in which ranks agree, or a durable one is misuse, which an agent finds and names.
        if not (life.drifts and rank == 1 and step % 3 == 2 and step > start + 1 and not durable):
            saver.save(step, now, durable=durable)
            page.put(rank, SAVED, step)
    try:
        saver.wait()
        last = (start + life.steps) // life.durable_every * life.durable_every
        page.put(rank, WAITED, last if last > start else 0)
    except OSError:
        assert life.full_disk or life.drifts, "wait() raised, and nothing was wrong with disk or ranks"


def whole(directory: Path) -> list[int]:
    """The steps of which there is a checkpoint that is what was written."""
    return [each.step for each in disk.found(directory) if not disk.verify(each.path)]


def live(life: Life, seed: int, page: Page, directory: Path, arena: Path, root: Path) -> None:
    """One life, up to its end or its kill. Raises AssertionError for what must not be."""
    store = root / f"store-{seed}"
    keeper = fork(lambda: keep(life, arena, seed))
    ranks = [
        fork(lambda rank=rank: train(life, rank, page, directory, arena, store))  # type: ignore[misc]
        for rank in range(life.world)
    ]
    deadline, saved_at, codes = time.monotonic() + LIFE, None, {}
    while len(codes) < life.world:
        assert time.monotonic() < deadline, "it hangs"
        for rank, child in enumerate(ranks):
            if rank not in codes and (ended := os.waitpid(child, os.WNOHANG))[0]:
                codes[rank] = ended[1]
        if saved_at is None and page.get(0, SAVED):
            saved_at = time.monotonic()
        if life.kill_after is not None and saved_at is not None and time.monotonic() - saved_at > life.kill_after:
            break
        time.sleep(0.002)
    killed = [rank for rank in range(life.world) if rank not in codes]
    for rank in killed:
        os.kill(ranks[rank], signal.SIGKILL)
        os.waitpid(ranks[rank], 0)
    os.kill(keeper, signal.SIGKILL if life.keeper_dies else signal.SIGTERM)
    os.waitpid(keeper, 0)
    assert not any(codes.values()), f"ranks failed: {codes}"


def damage(directory: Path, number: int, chance: random.Random) -> None:
    files = [file for each in disk.found(directory) for file in Path(each.path).iterdir() if file.stat().st_size]
    for file in chance.sample(files, min(number, len(files))):
        data = bytearray(file.read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        file.write_bytes(data[: len(data) - chance.choice((0, 1))])


def course(seed: int, root: Path, arena: Path) -> Counter[str]:
    chance, told = random.Random(seed), Counter[str]()
    directory = root / "ck"
    in_memory, most = 0, 0  # the step that memory must give back at least; the highest one there can be
    for number in range(chance.randint(2, 4)):
        life, page = Life.draw(chance), Page()
        least = max(in_memory, *whole(directory), 0)
        live(life, seed * 10 + number, page, directory, arena, root)
        restored = {page.get(rank, RESTORED) for rank in range(life.world)} - {UNKNOWN}
        told["lives"] += 1
        assert len(restored) <= 1, f"ranks restored different steps: {restored}"
        for step in restored:
            told["refused" if step == REFUSED else "restored"] += 1
            if step == REFUSED:
                assert not least, f"refused, and step {least} was there"
            else:
                assert least <= step <= most, f"restored {step}, and it should be from {least} to {most}"
        saved = [page.get(rank, SAVED) for rank in range(life.world)]
        told["saves"] += max(0, max(saved) - max(*restored, 0)) if restored else 0
        waited = max(page.get(rank, WAITED) for rank in range(life.world))
        there = whole(directory)
        assert waited <= max(*there, 0, 0) or not waited, f"wait() was for {waited}, and on disk is {there}"
        most = max(most, *saved, *there) + 1
        in_memory = 0 if life.drifts else min(saved) or in_memory
        if life.memory_lost:
            shutil.rmtree(arena, ignore_errors=True)
            in_memory = 0
        damage(directory, life.damaged, chance)
        told["damaged"] += life.damaged
    return told


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--courses", type=int, default=1 << 30)
    options.add_argument("--seed", type=int, default=0, help="of the first course; the next ones follow")
    args = options.parse_args()
    total, findings, begun = Counter[str](), [], time.monotonic()
    for seed in range(args.seed, args.seed + args.courses):
        if time.monotonic() - begun > args.seconds:
            break
        shm = Path(tempfile.mkdtemp(prefix="torture-", dir="/dev/shm"))
        root = Path(tempfile.mkdtemp(prefix="torture-"))
        try:
            total += course(seed, root, shm / "arena")
            total["courses"] += 1
        except AssertionError as error:
            findings.append(seed)
            print(f"FINDING, seed {seed}: {error}", flush=True)
        finally:
            shutil.rmtree(shm)
            shutil.rmtree(root)
    print(f"{dict(total)} in {time.monotonic() - begun:.0f} s; findings: {findings or 'none'}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
