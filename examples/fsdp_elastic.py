"""A small language model, trained with FSDP2 by nodes that fail, leave and join. Explained in docs/fsdp-example.md.

    outlast run --nproc-per-node=2 --max-restarts=3 examples/fsdp_elastic.py

It learns to add, or a text of yours, byte by byte.
"""

import argparse
import json
import os
import random
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import Dataset

import outlast

CONTEXT = 64  # bytes that the model looks back


class Text(Dataset):
    """A text, cut into samples: pieces of it, and of each byte which one comes next."""

    def __init__(self, text: bytes) -> None:
        self.bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // CONTEXT

    def __getitem__(self, number: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        piece = self.bytes[number * CONTEXT : (number + 1) * CONTEXT + 1]
        return number, piece[:-1], piece[1:]


def sums(lines: int) -> bytes:
    """A text to learn from where none is given: additions, which a model must understand to continue them."""
    draw = random.Random(0)
    pairs = [(draw.randrange(100), draw.randrange(100)) for _ in range(lines)]
    return "".join(f"{a}+{b}={a + b}\n" for a, b in pairs).encode()


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.attention(self.before_attention(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.before_mlp(x))


class Model(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads=4) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, text: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss of each sample."""
        x = self.byte(text) + self.place(torch.arange(CONTEXT, device=text.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).transpose(1, 2)
        return functional.cross_entropy(logits, targets, reduction="none").mean(dim=1)


def main() -> None:
    options = argparse.ArgumentParser(description="Trains a small language model on a text.")
    options.add_argument("--text", type=Path, help="a file to learn from; without it, additions")
    options.add_argument("--lines", type=int, default=20_000, help="of additions")
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--global-batch", type=int, default=64, help="samples per step, on any number of ranks")
    options.add_argument("--micro-batch", type=int, default=16, help="samples that a rank takes at once, at most")
    options.add_argument("--width", type=int, default=64)
    options.add_argument("--depth", type=int, default=2)
    options.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    options.add_argument("--save-every", type=int, default=100, help="steps from one checkpoint on disk to the next")
    options.add_argument("--resume", type=Path, help="begin with this checkpoint, if --checkpoints has none yet")
    options.add_argument("--log", type=Path, help="a directory for what each rank has trained, line by line")
    args = options.parse_args()

    with outlast.section("setup"):
        gpu = torch.cuda.is_available()
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
        if gpu:
            torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        model = Model(args.width, args.depth).to(device)
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
        data = Text(args.text.read_bytes() if args.text else sums(args.lines))
        loader = outlast.ElasticLoader(data, global_batch=args.global_batch, micro_batch=args.micro_batch, seed=1)
        clip = partial(nn.utils.clip_grad_norm_, list(model.parameters()), 1.0)
        accumulation = outlast.Accumulation(model, optimizer, loader.plan, scheduler=schedule, before_step=clip)
        state = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}
        state |= {"steps": accumulation, "timeouts": outlast.calibration}
        checkpoints = outlast.Checkpointer(args.checkpoints, keep_last=3)
        if not checkpoints.restore(state) and args.resume:
            checkpoints.restore(state, source=args.resume)
    if rank == 0:
        print(f"training from step {accumulation.steps} on {world} ranks", flush=True)

    trained, loss = [], torch.zeros((), device=device)
    for epoch in range(loader.epoch, args.epochs):
        for (numbers, text, targets), weights in loader:
            with outlast.section("step"), accumulation:
                weighted = (model(text.to(device), targets.to(device)) * weights.to(device)).sum()
                weighted.backward()
            trained += numbers[weights > 0].tolist()
            loss += weighted.detach()
            if not accumulation.stepped:
                continue
            step = accumulation.steps
            outlast.step(step)
            outlast.health_check(timeout=60, every=100)
            done = {"step": step, "epoch": epoch, "loss": loss.item(), "world": world, "samples": trained}
            if args.log:
                generation = os.environ.get("OUTLAST_GENERATION", "0")
                with (args.log / f"{generation}-{rank}.jsonl").open("a") as log:
                    print(json.dumps(done), file=log)
            if rank == 0 and step % 10 == 0:
                print(f"step {step}, epoch {epoch}: loss {loss.item():.3f} on {world} ranks", flush=True)
            trained, loss = [], torch.zeros((), device=device)
            checkpoints.save(step, state, durable=step % args.save_every == 0 or loader.epoch > epoch)
    checkpoints.close()
    del model, clip, optimizer, schedule, accumulation, state  # before their process group (docs/hangs.md)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
