"""How long a save keeps training waiting: Outlast against memcpy, torch.save, DCP's save and DCP's async_save.

Each contender saves the same state again and again, on one rank or on two (gloo) that have half of it each, with some
time in between, as a training would leave; asynchronous ones are awaited before the next save, so that none is measured
while it still works on the one before. The first save is shown apart: it makes what the others use again. Restoring
is from what was saved last: for Outlast from memory, for the others from disk, out of the page cache. Outlast runs
under its launcher, as it would.

The limit is memcpy into shared memory that was touched before, by as many ranks.

    python benchmarks/checkpoint.py [--gib 1] [--ranks 1 2] [--rounds 5] [--place DIRECTORY]
"""

from __future__ import annotations

import argparse
import json
import logging
import mmap
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

PIECES = 96  # tensors, as a model of some layers has
CONTENDERS = ("memcpy", "outlast", "outlast, durable", "torch.save", "DCP save", "DCP async_save", "DCP async, reused")
GOALS = (0.8, 5)  # of memcpy's speed; times better than the best asynchronous peer


def state(gib: float) -> dict[str, Any]:
    import torch

    each = int(gib * 2**30 / PIECES / 4)
    return {"model": {f"layer{number}.weight": torch.randn(each) for number in range(PIECES)}, "step": 0}


class Way:
    """One way to save: `save` is what training waits for, `settle` awaits the rest."""

    def __init__(self, save: Callable[[int], object], settle: Callable[[], object], load: Callable[[], object]) -> None:
        self.save, self.settle, self.load = save, settle, load


def memcpy(what: dict[str, Any]) -> Way:
    import torch

    pieces = list(what["model"].values())
    size = sum(piece.nbytes for piece in pieces)
    descriptor = os.memfd_create("memcpy")
    os.ftruncate(descriptor, size)
    memory, at, targets = mmap.mmap(descriptor, size), 0, []
    for piece in pieces:
        targets.append(torch.frombuffer(memory, dtype=piece.dtype, count=piece.numel(), offset=at))
        at += piece.nbytes

    def copy(_: int) -> None:
        for target, piece in zip(targets, pieces, strict=True):
            target.copy_(piece)

    def back() -> None:
        for target, piece in zip(targets, pieces, strict=True):
            piece.copy_(target)

    return Way(copy, lambda: None, back)


def ours(what: dict[str, Any], place: Path, durable: bool) -> Way:
    import outlast

    checkpointer = outlast.Checkpointer(place, keep_last=1)

    def load() -> None:
        assert checkpointer.restore(what) > 0

    return Way(lambda step: checkpointer.save(step, what, durable=durable), checkpointer.wait, load)


def torch_save(what: dict[str, Any], place: Path) -> Way:
    import torch

    path = place.with_name(f"{place.name}-{os.environ['RANK']}.pt")

    def save(_: int) -> None:
        torch.save(what, path)
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    return Way(save, lambda: None, lambda: torch.load(path, weights_only=True))


def dcp(what: dict[str, Any], place: Path, how: str) -> Way:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    rank = os.environ["RANK"]
    mine = {"model": {f"{key}-{rank}": value for key, value in what["model"].items()}, "step": 0}
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
        newest = max(place.iterdir(), key=lambda path: int(path.name))
        if rank == "0":
            for path in place.iterdir():
                if path != newest:
                    shutil.rmtree(path, ignore_errors=True)

    def load() -> None:
        dcp.load(mine, checkpoint_id=str(max(place.iterdir(), key=lambda path: int(path.name))))

    return Way(save, settle, load)


def contend(contender: str, gib: float, rounds: int, place: Path) -> None:
    """One rank of one contender."""
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo")
    world = dist.get_world_size()
    what = state(gib / world)
    if world > 1 and contender.startswith("outlast"):
        what["model"] = {f"{key}-{dist.get_rank()}": value for key, value in what["model"].items()}
    ways: dict[str, Callable[[], Way]] = {
        "memcpy": lambda: memcpy(what),
        "outlast": lambda: ours(what, place, durable=False),
        "outlast, durable": lambda: ours(what, place, durable=True),
        "torch.save": lambda: torch_save(what, place),
        "DCP save": lambda: dcp(what, place, "save"),
        "DCP async_save": lambda: dcp(what, place, "async"),
        "DCP async, reused": lambda: dcp(what, place, "reused"),
    }
    way = ways[contender]()
    times = []
    for step in range(1, rounds + 3):
        dist.barrier()
        start = time.perf_counter()
        way.save(step)
        times.append(time.perf_counter() - start)
        way.settle()
    dist.barrier()
    start = time.perf_counter()
    way.load()
    loaded = time.perf_counter() - start
    gathered: list[Any] = [None] * world
    dist.all_gather_object(gathered, (times, loaded))
    if dist.get_rank() == 0:
        # The slowest rank is the one that training waits for. The second save still makes the second slot.
        slowest = [max(each[0][turn] for each in gathered) for turn in range(len(times))]
        result = {"first": slowest[0], "blocked": statistics.median(slowest[2:]), "best": min(slowest[2:])}
        print(json.dumps(result | {"load": max(each[1] for each in gathered)}), flush=True)
    dist.barrier()
    os._exit(0)  # async_save leaves threads


def run(contender: str, gib: float, ranks: int, rounds: int, place: Path) -> dict[str, float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--contender", contender, "--gib", str(gib), "--rounds", str(rounds)]
    with tempfile.TemporaryDirectory(dir=place) as directory:
        command += ["--place", str(Path(directory) / "saves")]
        if contender.startswith("outlast"):  # under its launcher: only then can other ranks' memory be restored from
            launcher = [sys.executable, "-m", "outlast", "run", f"--nproc-per-node={ranks}", "--ft-log-level=warning"]
            starts = [([*launcher, *command[1:]], {"OMP_NUM_THREADS": "1"})]
        else:
            starts = [(command, common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks)]
        processes = [
            subprocess.Popen(words, env=os.environ | more, stdout=subprocess.PIPE, text=True) for words, more in starts
        ]
        outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{contender} failed")
    result: dict[str, float] = json.loads(next(line for line in outputs[0].splitlines() if line.startswith("{")))
    return result


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gib", type=float, default=1.0)
    options.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()))
    options.add_argument("--only", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    options.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.contender:
        contend(args.contender, args.gib, args.rounds, args.place)
    for ranks in args.ranks:
        print(f"\n{args.gib:g} GiB, {ranks} rank{'s' if ranks > 1 else ''}; seconds")
        print(f"| {'':18} | blocked | best | first | share of memcpy | restore |")
        print("|---|---|---|---|---|---|")
        limit = 0.0
        for contender in args.only:
            result = run(contender, args.gib, ranks, args.rounds, args.place)
            limit = limit or result["blocked"]
            print(
                f"| {contender:18} | {result['blocked']:.3f} | {result['best']:.3f} | {result['first']:.3f}"
                f" | {limit / result['blocked']:.0%} | {result['load']:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
