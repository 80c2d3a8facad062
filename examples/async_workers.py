"""Asynchronous training: workers take shards of the data at their own pace, and send what they made of them to rank 0.

    outlast run --nproc-per-node=3 --max-restarts=3 examples/async_workers.py checkpoints/

Rank 0 is a parameter server: it has the model, applies what comes, whoever it comes from, and saves. Kill any worker
(or rank 0, or the coordinator) with
kill -9: every sample is in the final model once per epoch, which it checks at the end.
"""

from __future__ import annotations

import argparse
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import outlast

SAMPLES, EPOCHS = 2000, 2


class Server:
    """What rank 0 does: one thread for each worker, one model."""

    def __init__(self, model: nn.Module, shards: outlast.ElasticShards, seen: torch.Tensor, checkpoint: Path) -> None:
        self.model, self.shards, self.seen, self.checkpoint = model, shards, seen, checkpoint
        self.lock = threading.Lock()

    def serve(self, worker: int) -> None:
        """Apply what this worker sends, and answer with the model as it is now, until it has nothing more."""
        message: list[Any] = [None]
        dist.recv_object_list(message, worker)
        while message[0] is not None:
            with self.lock:
                self.apply(*message[0])
                newest = [parameter.detach().clone() for parameter in self.model.parameters()]
            dist.send_object_list([newest], worker)
            dist.recv_object_list(message, worker)

    @torch.no_grad()
    def apply(self, shard: Any, update: list[torch.Tensor]) -> None:
        if not self.shards.done(shard):
            return  # it was done already, and must not count again
        for parameter, change in zip(self.model.parameters(), update, strict=True):
            parameter += change
        self.seen[shard.epoch, list(shard)] += 1
        # As often as you like: the model and the shards that are in it are saved together.
        save({"model": self.model.state_dict(), "shards": self.shards.state_dict(), "seen": self.seen}, self.checkpoint)


def work(model: nn.Module, shards: outlast.ElasticShards, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    """Train on a shard, tell rank 0 what changed, and go on from what the others have made of the model meanwhile."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for shard in shards:
        before = [parameter.detach().clone() for parameter in model.parameters()]
        for sample in shard:
            optimizer.zero_grad()
            (model(inputs[sample]) - targets[sample]).square().mean().backward()
            optimizer.step()
        update = [parameter.detach() - old for parameter, old in zip(model.parameters(), before, strict=True)]
        dist.send_object_list([(shard, update)], 0)
        answer: list[list[torch.Tensor]] = [[]]
        dist.recv_object_list(answer, 0)
        with torch.no_grad():
            for parameter, newest in zip(model.parameters(), answer[0], strict=True):
                parameter.copy_(newest)
    dist.send_object_list([None], 0)


def save(state: dict[str, Any], path: Path) -> None:
    """All or nothing: a kill leaves the one before, or this one."""
    torch.save(state, path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("directory", type=Path)
    checkpoint = arguments.parse_args().directory / "newest.pt"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(SAMPLES, 8)
    targets = inputs.sum(dim=1, keepdim=True).sin()
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    seen = torch.zeros(EPOCHS, SAMPLES, dtype=torch.int64)  # how often each sample was trained: for the check alone

    shards = outlast.ElasticShards(inputs, shard_size=50, epochs=EPOCHS, seed=1, keeper=0)
    if checkpoint.exists():  # every rank begins with it
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        shards.load_state_dict(state["shards"])
        seen = state["seen"]
    if dist.get_rank() == 0:
        print(f"{shards.remaining} of {len(shards)} shards to do", flush=True)
    dist.barrier()  # before anybody saves, all have loaded
    if dist.get_rank() == 0:
        server = Server(model, shards, seen, checkpoint)
        with ThreadPoolExecutor(dist.get_world_size()) as threads:
            list(threads.map(server.serve, range(1, dist.get_world_size())))
        print(f"trained {SAMPLES} samples in {EPOCHS} epochs, each {seen.unique().tolist()} times in each", flush=True)
    else:
        work(model, shards, inputs, targets)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
