"""A small training that can be interrupted at any time: start it with `outlast run` (or torchrun).

    outlast run --nproc-per-node=2 --max-restarts=3 examples/train.py --steps 400

It learns to tell the arms of three intertwined spirals apart, from points that it makes itself. Every rank draws
its share of each batch, so the batch stays the same on any number of ranks. Rank 0 saves the state every few
steps; whoever starts next, on however many ranks, goes on from there.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ARMS, BATCH = 3, 512


def spirals(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points on three arms with a little noise, and which arm each belongs to."""
    random = torch.Generator().manual_seed(seed)
    arm = torch.randint(ARMS, (count,), generator=random)
    along = torch.rand(count, generator=random)
    angle = 2 * torch.pi * (arm / ARMS + along) + 0.15 * torch.randn(count, generator=random)
    radius = 0.1 + 0.9 * along
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), arm


def save(path: Path, state: dict[str, object]) -> None:
    """All or nothing: a reader finds the old state or the new one, whenever we are killed."""
    draft = path.with_suffix(".draft")
    torch.save(state, draft)
    draft.replace(path)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=400)
    options.add_argument("--save-every", type=int, default=10)
    options.add_argument("--checkpoint", type=Path, default=Path("spirals.pt"))
    args = options.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(2, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, ARMS))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    step = 0
    if args.checkpoint.exists():
        state = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    if rank == 0:
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        print(f"training from step {step} on {world} ranks (restarts so far: {restarts})", flush=True)

    points, arms = spirals(2048, seed=-1)
    while step < args.steps:
        batch, labels = spirals(BATCH, seed=step)
        batch, labels = batch[rank::world], labels[rank::world]
        loss = nn.functional.cross_entropy(model(batch), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0 and (step % args.save_every == 0 or step == args.steps):
            with torch.no_grad():
                accuracy = (model.module(points).argmax(1) == arms).float().mean().item()
            print(f"step {step}: loss {loss.item():.3f}, {accuracy:.0%} of the arms told apart", flush=True)
            save(args.checkpoint, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step})
    del model  # before its process group: torch may wait for itself for ever if the group goes first (docs/hangs.md)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
