"""A transformer under `torch.compile`: `compiled.py MARKS [--in-place] [--setup SECONDS] [--ddp]`."""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from marks import note
from torch.nn.parallel import DistributedDataParallel

import outlast

options = argparse.ArgumentParser()
options.add_argument("marks")
options.add_argument("--in-place", action="store_true", help="keep the process, the model and its compiled code")
options.add_argument("--setup", type=float, default=0.0, help="seconds that this script takes for something else")
options.add_argument("--ddp", action="store_true", help="also if there is but one rank")
options.add_argument("--layers", type=int, default=12)
options.add_argument("--steps", type=int, default=100_000)
args = options.parse_args()

cuda = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
width = 1024 if cuda else 64
time.sleep(args.setup)

layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
model = torch.nn.TransformerEncoder(layer, args.layers, enable_nested_tensor=False).to(device)
compiled = torch.compile(model)


def train() -> None:
    dist.init_process_group("nccl" if cuda else "gloo")
    parallel = compiled
    if args.ddp or dist.get_world_size() > 1:
        parallel = DistributedDataParallel(compiled, device_ids=[device.index] if cuda else None)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-4)
    for step in range(args.steps):
        batch = torch.randn(8, 128, width, device=device)
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            loss = parallel(batch).square().mean()
        loss.backward()
        optimizer.step()
        if cuda:
            torch.cuda.synchronize()
        outlast.step(step)
        note(step)
        time.sleep(0.02)
    del loss, parallel, optimizer
    dist.destroy_process_group()


(outlast.restartable(nccl=True)(train) if args.in_place else train)()
