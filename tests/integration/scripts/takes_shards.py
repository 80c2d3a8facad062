"""Asynchronous workers of different speed: the model counts how often each sample was trained.

Each rank adds to a part of its own; when all save, the parts are put together. When a job of several ranks begins,
each of them waits for SIGUSR1 with the first shard after a save in hand, and rank 1 after the next save to be killed.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

import outlast


def say(text: str) -> None:
    """A line in one piece: others write at the same time."""
    os.write(1, f"{text}\n".encode())


# The signal may come to any thread, also to one that a library has started: so each of them passes it on.
WOKEN, WAKE = os.pipe()
os.set_blocking(WAKE, False)


def await_signal(shard: object, why: str) -> None:
    say(f"rank {dist.get_rank()} holds {shard} {why}: pid {os.getpid()}")
    os.read(WOKEN, 1)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("directory", type=Path)
    options.add_argument("--wait-alone", action="store_true", help="wait also if there is but one rank")
    args = options.parse_args()
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.set_wakeup_fd(WAKE)

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    saved: list[int] = []
    model, own = torch.zeros(2, 103, dtype=torch.int64), torch.zeros(2, 103, dtype=torch.int64)

    def save(count: int) -> None:
        dist.all_reduce(own)
        model.add_(own)
        own.zero_()
        checkpointer.save(count, state, durable=True)
        saved.append(count)
        say(f"rank {rank} saved {count}")

    shards = outlast.ElasticShards(model.shape[1], shard_size=5, epochs=2, seed=3, save=save, save_every=4)
    checkpointer = outlast.Checkpointer(args.directory)
    state = {"model": model, "shards": shards}
    start = checkpointer.restore(state)
    say(f"rank {rank} of {world} goes on after {start} shards")

    waited = 0
    for shard in shards:
        if start == 0 and (world > 1 or args.wait_alone) and waited < len(saved) < 3:
            waited = len(saved)
            if waited == 1:
                await_signal(shard, "to go on")
            elif rank == 1:
                await_signal(shard, f"to be killed after {saved[-1]}")
        own[shard.epoch, list(shard)] += 1
        time.sleep(0.002 * (world - rank))  # some are slower
    checkpointer.wait()
    if rank == 0:
        torch.save(model, args.directory / "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
