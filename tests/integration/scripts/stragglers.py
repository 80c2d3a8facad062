"""Trains together with others over gloo: `stragglers.py EVENTS RANK FROM UNTIL`.

From step FROM on, RANK takes ten times as long in section "forward", until the job's events contain UNTIL; all go on
until they say that it is over.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import outlast

EVENTS, SLOW, FROM, UNTIL = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
WORK = 0.03  # seconds: asleep, so that a busy machine changes little about it

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
over = torch.zeros(1)
step = 0
while not over.item():
    said = EVENTS.read_text() if EVENTS.exists() else ""
    optimizer.zero_grad()
    with outlast.section("forward"):
        time.sleep(WORK)
        if rank == SLOW and step >= FROM and UNTIL not in said:
            time.sleep(9 * WORK)
        loss = model(torch.ones(4, 64)).square().mean()
    with outlast.section("backward"):
        loss.backward()
    with outlast.section("optimizer"):
        optimizer.step()
        over[0] = " no longer " in said  # what the event says when it is over
    dist.all_reduce(over)
    step += 1
    outlast.step(step)
os.write(1, f"rank {rank}: done after {step} steps\n".encode())
os._exit(0)  # torch's own end of gloo and DDP aborts now and then, also when the model is freed first (docs/hangs.md)
