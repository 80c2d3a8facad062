"""Saves by time, on ranks of different speed; the first generation fails in the end: `timed.py DIRECTORY EVERY`."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

import outlast

STEPS = 80

dist.init_process_group("gloo")
saver = outlast.Checkpointer(sys.argv[1], every=sys.argv[2])
state = {"x": torch.zeros(10)}
start = saver.restore(state)
assert bool((state["x"] == start).all())
saved = []
for step in range(start + 1, start + STEPS + 1):
    time.sleep(0.004 * (1 + dist.get_rank()))
    state["x"].fill_(step)
    if saver.save(step, state):
        saved.append(step)
_, failures = saver._memory.history()
print(f"rank {dist.get_rank()} from {start} after {failures} failures: {' '.join(map(str, saved))}", flush=True)
dist.barrier()
if os.environ["OUTLAST_GENERATION"] == "1":
    sys.exit(1)
saver.close()
dist.destroy_process_group()
