"""A training whose state can be foretold, for tests of checkpoints: `train.py DIR --kind ddp --steps 5 …`.

The numbers are the same on any number of ranks, so that `digest` of a state tells whether it is the right one.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import signal
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import outlast


class Sampler:
    """Knows nothing at first of what it will have to remember."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.seen)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = dict(state)


def make(kind: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 5))
    if kind == "fsdp":
        fully_shard(model)
    elif kind == "ddp":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    return {"model": model, "optim": optimizer, "schedule": schedule, "sampler": Sampler(), "epoch": 0}


def train(state: dict[str, Any], step: int) -> None:
    torch.manual_seed(step)
    state["model"](torch.randn(16, 7)).square().mean().backward()
    state["optim"].step()
    state["optim"].zero_grad()
    state["schedule"].step()
    state["sampler"].seen[f"of step {step}"] = step * 10
    state["epoch"] = step // 2


def digest(state: dict[str, Any]) -> str:
    """The whole state in one word, the same for each kind and on each rank."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    model, optimizer = get_state_dict(state["model"], state["optim"], options=options)
    if dist.is_initialized() and dist.get_rank():
        return ""
    total = hashlib.sha256()
    for name, value in sorted(model.items()):
        # Sums over ranks differ in the last bits.
        total.update(name.encode() + str([round(each, 4) for each in value.flatten().tolist()]).encode())
    steps = sorted(str(float(each["step"])) for each in optimizer["state"].values())
    rest = [steps, state["schedule"].state_dict()["_step_count"], sorted(state["sampler"].seen), state["epoch"]]
    total.update(repr(rest).encode())
    return total.hexdigest()[:12]


def agreed(enough: bool) -> bool:
    """What rank 0 says."""
    word = torch.tensor([int(enough)])
    dist.broadcast(word, 0)
    return bool(word.item())


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("directory")
    options.add_argument("--kind", default="plain")
    options.add_argument("--steps", type=int, default=4)
    options.add_argument("--durable", type=int, default=0, help="every so many steps; 0: never")
    options.add_argument("--every", type=int, default=None)
    options.add_argument("--until", type=Path, default=None, help="train until this file is there, whatever --steps is")
    options.add_argument("--kill-at", type=int, default=0, help="this process ends itself (rank 0, first generation)")
    options.add_argument("--gate", type=Path, default=None, help="after step N wait for GATE/N (first generation)")
    options.add_argument("--wait", action="store_true", help="for ever, after the last step")
    args = options.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # from where it is restored
    state = make(args.kind)
    checkpointer = outlast.Checkpointer(args.directory, keep_last=2, every=args.every)
    start = checkpointer.restore(state)
    where = "" if start == 0 else f" {digest(state)}"
    if rank == 0:
        print(f"restored {start}{where}", flush=True)
    for step in count(start + 1) if args.until else range(start + 1, args.steps + 1):
        train(state, step)
        if rank == 0:
            print(f"trained {step} on {dist.get_world_size() if dist.is_initialized() else 1}", flush=True)
        checkpointer.save(step, state, durable=bool(args.durable) and step % args.durable == 0)
        after = digest(state)
        if dist.is_initialized():
            dist.barrier()  # now all ranks have saved it, and the tests may count on it
        if rank == 0:
            print(f"step {step} {after}", flush=True)
            if step == args.kill_at and os.environ.get("OUTLAST_GENERATION") == "1":
                os.kill(os.getpid(), signal.SIGKILL)
        while args.gate and os.environ.get("OUTLAST_GENERATION") == "1" and not (args.gate / str(step)).exists():
            time.sleep(0.02)
        if args.until and agreed(args.until.exists()):
            break
    if args.durable:
        checkpointer.wait()
    if rank == 0:
        print("done", flush=True)
    if args.wait:
        signal.pause()
    checkpointer.close()
    del state
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
