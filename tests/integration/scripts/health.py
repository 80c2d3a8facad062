"""Three steps with a health check every second one; rank 2 leaves before the last. Says what came of it."""

from __future__ import annotations

import sys

import torch.distributed as dist

from outlast.worker.health import RanksMissing, health_check

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(1, 5):
    if step == 4 and rank == 2:
        print("rank 2 hangs", flush=True)
        sys.stdin.read()  # until it is killed
    try:
        health_check(timeout=60 if step < 4 else 5, every=2)
    except RanksMissing as error:
        print(f"rank {rank}, step {step}: {error}", flush=True)
        sys.exit(3)
    print(f"rank {rank}, step {step}: all there", flush=True)
