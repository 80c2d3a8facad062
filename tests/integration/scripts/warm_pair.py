"""A worker of two: it says what it drew at random, trains a step with the other, and waits in the first generation."""

import sys

WARM = "torch" in sys.modules

import os  # noqa: E402
import random  # noqa: E402
import signal  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

rank, generation = os.environ["RANK"], os.environ["OUTLAST_GENERATION"]
drawn = [random.random(), np.random.random()]
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
model(torch.full((1, 1), float(rank))).sum().backward()
gradient = model.module.weight.grad.item()
os.write(
    1,
    f"rank {rank} of generation {generation}: pid {os.getpid()} warm {WARM} drew {drawn[0]} {drawn[1]}"
    f" seed {torch.initial_seed()} threads {torch.get_num_threads()} gradient {gradient}\n".encode(),
)
if generation == "1":
    signal.pause()
del model  # before its process group, see examples/train.py
dist.destroy_process_group()
