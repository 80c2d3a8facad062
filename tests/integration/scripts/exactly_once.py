"""Trains a small regression with everything of outlast.data, and keeps what it has trained in its checkpoint.

`--steps` ends the script after so many optimizer steps in all; `--wait-at` lets each life wait, after so many steps of
its own, for the signal that kills it.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

import outlast


class Points(Dataset[Any]):
    """Points, with noise that is drawn anew whenever one is loaded."""

    def __init__(self, length: int) -> None:
        random = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(length, 3, generator=random)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        point = self.inputs[index]
        return index, point + 0.1 * torch.randn(3), point.sum().sin()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--checkpoint", type=Path, required=True)
    options.add_argument("--length", type=int, default=103)
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--global-batch", type=int, default=12)
    options.add_argument("--micro-batch", type=int, default=3)
    options.add_argument("--loaders", type=int, default=1, help="processes that load, each two batches ahead")
    options.add_argument("--save-every", type=int, default=1)
    options.add_argument("--steps", type=int, default=10**9)
    options.add_argument("--wait-at", type=int, default=10**9)
    args = options.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.9)
    loader = outlast.ElasticLoader(
        Points(args.length),
        global_batch=args.global_batch,
        micro_batch=args.micro_batch,
        seed=3,
        num_workers=args.loaders,
    )
    accumulation = outlast.Accumulation(model, optimizer, loader.plan, scheduler=scheduler)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader, "steps": accumulation}
    history: list[tuple[int, list[int]]] = []  # of each global batch: epoch and samples
    losses: list[float] = []
    if args.checkpoint.exists():
        state = torch.load(args.checkpoint, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        history, losses = state["history"], state["losses"]
    begun, life = accumulation.steps, os.environ["OUTLAST_GENERATION"]
    print(f"rank {rank} of {world} begins life {life}: pid {os.getpid()}", flush=True)
    if rank == 0:
        print(f"training from step {begun} on {world} ranks", flush=True)

    trained: list[int] = []
    loss_of_rank = torch.zeros(())
    for epoch in range(loader.epoch, args.epochs):
        for (numbers, inputs, targets), weights in loader:
            with accumulation:
                loss = (nn.functional.mse_loss(model(inputs)[:, 0], targets, reduction="none") * weights).sum()
                loss.backward()
            trained += numbers[weights > 0].tolist()
            loss_of_rank += loss.detach()
            if not accumulation.stepped:
                continue
            shares: list[Any] = [None] * world
            dist.all_gather_object(shares, (trained, loss_of_rank.item()))
            history.append((epoch, sorted(number for share, _ in shares for number in share)))
            losses.append(sum(loss for _, loss in shares) / world)
            trained, loss_of_rank = [], torch.zeros(())
            if rank == 0:
                print(f"life {life} made step {accumulation.steps}", flush=True)
            if rank == 0 and accumulation.steps % args.save_every == 0:
                states = {name: part.state_dict() for name, part in parts.items()}
                draft = args.checkpoint.with_suffix(".draft")
                torch.save({**states, "history": history, "losses": losses}, draft)
                draft.replace(args.checkpoint)
            if accumulation.steps - begun == args.wait_at:
                dist.barrier()  # rank 0 has saved
                print(f"rank {rank} of {world} waits in life {life}: pid {os.getpid()}", flush=True)
                signal.pause()
            if accumulation.steps == args.steps:
                break
        if accumulation.steps == args.steps:
            break
    if rank == 0:
        states = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**states, "history": history, "losses": losses}, args.checkpoint)
        print(f"ended at step {accumulation.steps}", flush=True)
    del model, parts, accumulation  # before the process group (docs/hangs.md)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
