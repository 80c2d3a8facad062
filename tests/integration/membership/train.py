"""Training in its smallest form: steps that every rank takes part in, counted in a file that outlives the workers."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    shared = Path(sys.argv[1])
    counted, finish = shared / "steps", shared / "finish"
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    done = counted.read_text().splitlines() if counted.exists() else []
    state = torch.tensor([int(done[-1]) if done else 0, 0])
    dist.broadcast(state, src=0)
    while not state[1]:
        # Every rank adds its share of the step, and rank 0 its wish to end.
        share = torch.tensor([1, int(rank == 0 and finish.exists())])
        dist.all_reduce(share)
        assert share[0] == world, f"{share[0]} of {world} ranks took the step"
        state += torch.tensor([1, share[1]])
        if rank == 0:
            with counted.open("a") as file:
                file.write(f"{state[0]}\n")
            os.write(1, f"step {state[0]} of {world} rank{'s' * (world > 1)}\n".encode())
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
