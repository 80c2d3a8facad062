"""How long a save keeps training waiting: Outlast against memcpy, torch.save, DCP's save and async_save, and DLRover.

Each contender saves the same state again and again, on one rank or on two (gloo) that have half of each tensor, with
some time in between, as a training would leave; asynchronous ones are awaited before the next save, so that none is
measured while it still works on the one before. The first save is shown apart: it makes what the others use again.
Restoring is from what was saved last: for Outlast and DLRover from memory, for the others from disk, out of the page
cache. Outlast and DLRover run under their launchers, as they would.

The limit of a save is memcpy into shared memory that was touched before, by as many ranks; that of a restore is the
copy back. "To disk" is how long after the return of `save` the state was on disk to stay, or how long a save took that
writes by itself; its limit is O_DIRECT: writes past the page cache of as many bytes, one new file per rank, flushed.

DLRover (--peers) has one copy in memory, which a save overwrites, and skips a save while its saver writes the one
before; only saves that it made are counted. It flushes its file that names the newest one, and not the state itself.

    python benchmarks/checkpoint.py [--gib 1] [--ranks 1 2] [--rounds 5] [--place DIRECTORY] [--peers]
"""

from __future__ import annotations

import argparse
import json
import logging
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peers

PIECES, WIDTH = 96, 1024  # tensors, as a model of some layers has
CHUNK = 16 * 1024 * 1024  # bytes of one write
DLROVER = ("DLRover, memory", "DLRover, disk")
ASYNCHRONOUS = ("DCP async_save", "DCP async, reused", *DLROVER)
CONTENDERS = ("memcpy", "O_DIRECT", "outlast", "outlast, durable", "torch.save", "DCP save", *ASYNCHRONOUS)


def state(gib: float) -> dict[str, Any]:
    import torch

    rows = int(gib * 2**30 / PIECES / 4 / WIDTH)
    return {"model": {f"layer{number}.weight": torch.randn(rows, WIDTH) for number in range(PIECES)}, "step": 0}


def nothing() -> None:
    pass


@dataclass(frozen=True)
class Way:
    """One way to save."""

    save: Callable[[int], object]  # what training waits for; False: it was skipped
    load: Callable[[], object]
    settle: Callable[[], object] | None = None  # awaits the rest, if there is one
    tidy: Callable[[], object] = nothing  # removes what is not needed any more
    to_disk: bool = True


def memcpy(what: dict[str, Any]) -> Way:
    import torch

    pieces = list(what["model"].values())
    size = sum(piece.nbytes for piece in pieces)
    descriptor = os.memfd_create("memcpy")
    os.ftruncate(descriptor, size)
    memory, at, targets = mmap.mmap(descriptor, size), 0, []
    for piece in pieces:
        flat = torch.frombuffer(memory, dtype=piece.dtype, count=piece.numel(), offset=at)
        targets.append(flat.view(piece.shape))
        at += piece.nbytes

    def copy(_: int) -> None:
        for target, piece in zip(targets, pieces, strict=True):
            target.copy_(piece)

    def back() -> None:
        for target, piece in zip(targets, pieces, strict=True):
            piece.copy_(target)

    return Way(copy, back, to_disk=False)


def direct(what: dict[str, Any], place: Path) -> Way:
    pages = -(-sum(piece.nbytes for piece in what["model"].values()) // mmap.PAGESIZE)
    memory = memoryview(mmap.mmap(-1, pages * mmap.PAGESIZE))
    at = 0
    for piece in what["model"].values():
        memory[at : at + piece.nbytes] = memoryview(piece.numpy()).cast("B")
        at += piece.nbytes
    path = place.with_name(f"{place.name}-{os.environ['RANK']}.direct")

    def save(_: int) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, len(memory))
            at = 0
            while at < len(memory):
                at += os.pwrite(descriptor, memory[at : at + CHUNK], at)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def load() -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            at = 0
            while at < len(memory):
                at += os.preadv(descriptor, [memory[at : at + CHUNK]], at)
        finally:
            os.close(descriptor)

    return Way(save, load, tidy=path.unlink)


def sharded(what: dict[str, Any]) -> dict[str, Any]:
    """What the ranks have together, each its part, as FSDP2 would."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    if dist.get_world_size() == 1:
        return what
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = {key: DTensor.from_local(piece, mesh, [Shard(0)]) for key, piece in what["model"].items()}
    return {**what, "model": model}


def ours(what: dict[str, Any], place: Path, durable: bool) -> Way:
    import outlast

    checkpointer, whole = outlast.Checkpointer(place, keep_last=1), sharded(what)

    def load() -> None:
        assert checkpointer.restore(whole) > 0

    return Way(
        lambda step: checkpointer.save(step, whole, durable=durable),
        load,
        settle=checkpointer.wait if durable else None,
        to_disk=durable,
    )


def torch_save(what: dict[str, Any], place: Path) -> Way:
    import torch

    path = place.with_name(f"{place.name}-{os.environ['RANK']}.pt")

    def save(_: int) -> None:
        torch.save(what, path)
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    return Way(save, lambda: torch.load(path, weights_only=True))


def dcp(what: dict[str, Any], place: Path, how: str) -> Way:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    rank, mine = os.environ["RANK"], sharded(what)
    pending: list[Any] = []
    options = StagingOptions(
        use_pinned_memory=False, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=False
    )
    stager = DefaultStager(options) if how == "reused" else None

    def save(step: int) -> None:
        path = str(place / str(step))
        if how == "save":
            dcp.save(mine, checkpoint_id=path)
        elif stager is not None:
            pending.append(dcp.async_save(mine, checkpoint_id=path, async_stager=stager))
        else:
            pending.append(dcp.async_save(mine, checkpoint_id=path))

    def settle() -> None:
        for each in pending:
            each.result()
        pending.clear()

    def tidy() -> None:
        newest = max(place.iterdir(), key=lambda path: int(path.name))
        if rank == "0":
            for path in place.iterdir():
                if path != newest:
                    shutil.rmtree(path, ignore_errors=True)

    def load() -> None:
        dcp.load(mine, checkpoint_id=str(max(place.iterdir(), key=lambda path: int(path.name))))

    return Way(save, load, settle=None if how == "save" else settle, tidy=tidy)


def dlrover(what: dict[str, Any], place: Path, to_disk: bool) -> Way:
    """Its flash checkpoint, a shard per rank. Its own `wait_latest_checkpoint` looks only every 3 s."""
    from dlrover.python.common.storage import KeepLatestStepStrategy
    from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
    from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

    ranks = int(os.environ["WORLD_SIZE"])
    checkpointer = DdpCheckpointer(
        str(place),
        local_shard_num=ranks,
        global_shard_num=ranks,
        deletion_strategy=KeepLatestStepStrategy(1, str(place)),
    )
    newest, kind = place / "dlrover_latest.txt", StorageType.DISK if to_disk else StorageType.MEMORY

    def save(step: int) -> bool:
        checkpointer.save_checkpoint(step, dict(what), storage_type=kind)
        return bool(checkpointer._engine._cached_step == step)

    def settle() -> None:
        while not newest.exists() or newest.read_text() != str(checkpointer._engine.latest_step):
            time.sleep(0.002)

    def load() -> None:
        loaded = checkpointer.load_checkpoint()["model"]
        for key, piece in what["model"].items():
            piece.copy_(loaded[key])

    return Way(save, load, settle=settle if to_disk else None, to_disk=to_disk)


def contend(contender: str, gib: float, rounds: int, place: Path) -> None:
    """One rank of one contender."""
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("gloo" if contender in DLROVER else "cpu:gloo")  # DLRover knows it by that name alone
    world = dist.get_world_size()
    what = state(gib / world)
    ways: dict[str, Callable[[], Way]] = {
        "memcpy": lambda: memcpy(what),
        "O_DIRECT": lambda: direct(what, place),
        "outlast": lambda: ours(what, place, durable=False),
        "outlast, durable": lambda: ours(what, place, durable=True),
        "torch.save": lambda: torch_save(what, place),
        "DCP save": lambda: dcp(what, place, "save"),
        "DCP async_save": lambda: dcp(what, place, "async"),
        "DCP async, reused": lambda: dcp(what, place, "reused"),
        "DLRover, memory": lambda: dlrover(what, place, to_disk=False),
        "DLRover, disk": lambda: dlrover(what, place, to_disk=True),
    }
    way = ways[contender]()
    times, written, skipped = [], [], 0
    for step in range(1, rounds + 3):
        dist.barrier()
        if step > 1:
            way.tidy()
            dist.barrier()
        start = time.perf_counter()
        if way.save(step) is False:
            skipped += 1
            continue
        times.append(time.perf_counter() - start)
        if way.settle is not None:
            start = time.perf_counter()
            way.settle()
        written.append(time.perf_counter() - start)
    dist.barrier()
    start = time.perf_counter()
    way.load()
    loaded = time.perf_counter() - start
    gathered: list[Any] = [None] * world
    dist.all_gather_object(gathered, (times, written, loaded))
    if dist.get_rank() == 0:
        # The slowest rank is the one that training waits for. The second save still makes the second slot.
        blocked, disk = (
            [max(turn) for turn in zip(*(each[kind] for each in gathered), strict=True)] for kind in (0, 1)
        )
        if len(blocked) < 3:
            raise SystemExit(f"{contender} skipped {skipped} of {rounds + 2} saves")
        result = {"first": blocked[0], "blocked": statistics.median(blocked[2:]), "best": min(blocked[2:])}
        result |= {"load": max(each[2] for each in gathered), "skipped": skipped}
        result |= {"to disk": statistics.median(disk[2:])} if way.to_disk else {}
        print(json.dumps(result), flush=True)
    dist.barrier()
    os._exit(0)  # async_save leaves threads


def run(contender: str, gib: float, ranks: int, rounds: int, place: Path, home: Path | None) -> dict[str, float]:
    """One contender, in processes of its own. `home`: DLRover's environment."""
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(peers.free_port())}
    common["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, __file__, "--contender", contender, "--gib", str(gib), "--rounds", str(rounds)]
    with tempfile.TemporaryDirectory(dir=place) as directory:
        command += ["--place", str(Path(directory) / "saves")]
        if contender.startswith("outlast"):  # under its launcher: only then can other ranks' memory be restored from
            launcher = [sys.executable, "-m", "outlast", "run", f"--nproc-per-node={ranks}", "--ft-log-level=warning"]
            starts = [([*launcher, *command[1:]], {"OMP_NUM_THREADS": "1"})]
        elif contender in DLROVER:
            assert home is not None
            more = {"OMP_NUM_THREADS": "1", "PYTHONPATH": "", "TMPDIR": directory}  # it leaves something there as well
            starts = [(peers.dlrover(home, ranks, 0, command[1:]), more)]
        else:
            starts = [(command, common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks)]
        processes = [
            subprocess.Popen(words, env=os.environ | more, stdout=subprocess.PIPE, text=True) for words, more in starts
        ]
        outputs = [process.communicate()[0] for process in processes]
    line = next((line for line in outputs[0].splitlines() if line.startswith("{")), None)
    if any(process.returncode for process in processes) or line is None:
        raise SystemExit(f"{contender} failed")
    result: dict[str, float] = json.loads(line)
    return result


def row(contender: str, result: dict[str, float], limit: dict[str, float] | None, gib: float) -> str:
    seconds = [f"{result[kind]:.3f}" for kind in ("blocked", "best", "first")]
    share = f"{limit['blocked'] / result['blocked']:.0%}" if limit is not None else ""
    disk = [f"{result['to disk']:.3f}", f"{gib * 1024 / result['to disk']:.0f}"] if "to disk" in result else ["", ""]
    skipped = f" ({result['skipped']} saves skipped)" if result["skipped"] else ""
    return f"| {contender:17}{skipped} | {' | '.join([*seconds, share, *disk])} | {result['load']:.3f} |"


def conclude(found: dict[str, dict[str, float]]) -> None:
    """What was to be reached, where what it takes was measured."""
    ours, durable = found.get("outlast"), found.get("outlast, durable")
    limit, disk = found.get("memcpy"), found.get("O_DIRECT")
    if ours and limit:
        print(f"- a save has {limit['blocked'] / ours['blocked']:.0%} of memcpy's speed (goal: 80 %)")
    others = {name: found[name]["blocked"] for name in ASYNCHRONOUS if name in found}
    for name in sorted(others, key=others.__getitem__) if ours else ():
        print(f"- it keeps training waiting {others[name] / ours['blocked']:.1f} times shorter than {name} (goal: 5)")
    if durable and disk:
        print(f"- it is written with {disk['to disk'] / durable['to disk']:.0%} of O_DIRECT's speed (goal: 80 %)")
    if ours and limit:
        print(f"- a restore takes {ours['load'] / limit['load']:.2f} times as long as the copy back (goal: 1.5)")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gib", type=float, default=1.0)
    options.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()))
    options.add_argument("--only", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    options.add_argument("--peers", action="store_true", help="also DLRover, in an environment of its own")
    options.add_argument("--peer-venvs", type=Path, default=peers.DEFAULT_PLACE, help="where it is, or gets, installed")
    options.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.contender:
        contend(args.contender, args.gib, args.rounds, args.place)
    home = peers.environment("dlrover", args.peer_venvs) if args.peers else None
    contenders = [each for each in args.only if home is not None or each not in DLROVER]
    if home is not None:
        print(f"DLRover {peers.version('dlrover', home)}")
    for ranks in args.ranks:
        print(f"\n{args.gib:g} GiB, {ranks} rank{'s' if ranks > 1 else ''}; seconds")
        print(f"| {'':17} | blocked | best | first | share of memcpy | to disk | MiB/s | restore |")
        print("|---|---|---|---|---|---|---|---|")
        found: dict[str, dict[str, float]] = {}
        for contender in contenders:
            found[contender] = run(contender, args.gib, ranks, args.rounds, args.place, home)
            print(row(contender, found[contender], found.get("memcpy"), args.gib), flush=True)
        conclude(found)


if __name__ == "__main__":
    main()
