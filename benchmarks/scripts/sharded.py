"""A transformer sharded by FSDP2, each layer compiled: `sharded.py MARKS`."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from marks import note
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import outlast

cuda = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
width, layers = (1024, 12) if cuda else (64, 4)
dist.init_process_group("nccl" if cuda else "gloo")
mesh = init_device_mesh(device.type, (dist.get_world_size(),))
blocks = [
    torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True).to(device)
    for _ in range(layers)
]
for block in blocks:
    block.compile()
    fully_shard(block, mesh=mesh)
model = torch.nn.Sequential(*blocks)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(100_000):
    optimizer.zero_grad()
    model(torch.randn(8, 128, width, device=device)).square().mean().backward()
    optimizer.step()
    if cuda:
        torch.cuda.synchronize()
    outlast.step(step)
    note(step)
    time.sleep(0.02)
