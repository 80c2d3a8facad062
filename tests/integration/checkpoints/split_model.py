"""A training of a model that is split over ranks by hand, for tests of `outlast.PerRank`: `split_model.py DIR`.

Each rank has its own half of a layer, and an optimizer for that, under the same names as the others. A count beside
them is the same on all ranks.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import outlast


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("directory")
    options.add_argument("--steps", type=int, default=6)
    options.add_argument("--kill-at", type=int, default=0, help="rank 1 ends itself after this step, the first time")
    args = options.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    half = nn.Linear(6, 4 // world)
    optimizer = torch.optim.Adam(half.parameters(), lr=0.05)
    state: dict[str, Any] = {"model": outlast.PerRank(half), "optim": outlast.PerRank(optimizer), "count": 0}
    checkpointer = outlast.Checkpointer(args.directory)
    start = checkpointer.restore(state)
    print(f"rank {rank} restored {start} count {state['count']}", flush=True)
    for step in range(start + 1, args.steps + 1):
        torch.manual_seed(step)
        total = half(torch.randn(8, 6)).square().sum()
        whole = total.detach().clone()
        dist.all_reduce(whole)
        (total * whole).backward()
        optimizer.step()
        optimizer.zero_grad()
        state["count"] = step * 10
        checkpointer.save(step, state, durable=step == args.steps)
        dist.barrier()  # now all ranks have saved it
        print(f"step {step} rank {rank} loss {whole.item().hex()} own {total.item().hex()}", flush=True)
        if step == args.kill_at and rank == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    checkpointer.wait()
    checkpointer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
