"""A small DDP training that keeps a history: which rank trained which samples at which step, and when.

    torch_training.py FOLDER [--step-seconds 0.1]

Ends at the first epoch that ends after FOLDER/finish exists. The same script runs under `outlast run`, which it tells
by OUTLAST_GENERATION, and under `torchrun` and DLRover, where rank 0 saves to disk.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import outlast

SAMPLES, BATCH = 96, 12


class Points(torch.utils.data.Dataset[Any]):
    """A sample is its own number, and a point."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.full((3,), index / SAMPLES)


class Saves:
    """Every step to memory with Outlast, and to disk at the end; else to disk by rank 0, as one does with torchrun."""

    def __init__(self, folder: Path, parts: dict[str, Any]) -> None:
        self.parts = parts
        self.file = folder / "state.pt"
        self.ours = outlast.Checkpointer(folder / "checkpoints") if "OUTLAST_GENERATION" in os.environ else None

    def restore(self) -> None:
        if self.ours is not None:
            self.ours.restore(self.parts)
        elif self.file.exists():
            state = torch.load(self.file, weights_only=True)
            for name, part in self.parts.items():
                part.load_state_dict(state[name])

    def save(self, step: int) -> None:
        if self.ours is not None:
            self.ours.save(step, self.parts)
        elif dist.get_rank() == 0:
            draft = self.file.with_suffix(".draft")
            torch.save({name: part.state_dict() for name, part in self.parts.items()}, draft)
            draft.replace(self.file)

    def close(self) -> None:
        if self.ours is not None:
            self.ours.close()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--step-seconds", type=float, default=0.1)
    args = options.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = outlast.ElasticLoader(Points(), global_batch=BATCH, micro_batch=4, seed=3)
    accumulation = outlast.Accumulation(model, optimizer, loader.plan)
    saves = Saves(args.folder, {"model": model, "optimizer": optimizer, "loader": loader, "steps": accumulation})
    saves.restore()
    pod = os.environ.get("POD_NAME", "pod")
    life = int(os.environ.get("OUTLAST_GENERATION", os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
    with (args.folder / f"{pod}.{os.getpid()}.jsonl").open("a", buffering=1) as history:
        trained: list[int] = []
        while not (loader.epoch and _finished(args.folder, world)):
            epoch = loader.epoch
            for (numbers, points), weights in loader:
                with accumulation:
                    (model(points)[:, 0].square() * weights).sum().backward()
                trained += numbers[weights > 0].tolist()
                if not accumulation.stepped:
                    continue
                step = accumulation.steps
                entry = {"pod": pod, "life": life, "world": world, "rank": rank, "step": step, "epoch": epoch}
                print(json.dumps({**entry, "samples": trained, "at": time.time()}), file=history)
                trained = []
                outlast.step(step)
                saves.save(step)
                time.sleep(args.step_seconds)
    saves.close()
    del model, accumulation, saves  # before the process group (docs/hangs.md)
    dist.destroy_process_group()


def _finished(folder: Path, world: int) -> bool:
    """Whether to end, as rank 0 sees it: all must end after the same epoch."""
    told = torch.tensor([float((folder / "finish").exists())])
    if world > 1:
        dist.broadcast(told, 0)
    return bool(told.item())


if __name__ == "__main__":
    main()
