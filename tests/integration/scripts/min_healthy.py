"""A restartable function that makes steps until there is a file `end` in the directory that is given.

With `--plain` the function is not restartable.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import outlast

END, PLAIN = Path(sys.argv[1], "end"), "--plain" in sys.argv
print(f"local rank {os.environ['LOCAL_RANK']} is pid {os.getpid()}, and sets itself up now", flush=True)


def train() -> None:
    rank, world, generation = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "OUTLAST_GENERATION"))
    print(f"rank {rank} of {world} is pid {os.getpid()}, and entered generation {generation} now", flush=True)
    dist.init_process_group("gloo")
    for step in range(10**9):
        total = torch.tensor([1, END.exists()])
        dist.all_reduce(total)
        assert int(total[0]) == int(world)
        outlast.step()
        time.sleep(0.02)  # a step takes a while: gloo may lose a wake-up if it is cut in the middle of a message
        if step == 2:
            print(f"rank {rank} of {world} makes steps in generation {generation} now", flush=True)
        if total[1]:
            break
    dist.destroy_process_group()
    print(f"rank {rank} of {world} is done", flush=True)


(train if PLAIN else outlast.restartable(train))()
