"""A training that keeps a compiled model, its data and a loader outside of its restartable function, and is disturbed.

In generation 1 rank 1 raises in the middle of a backward pass, in generation 2 rank 0 is killed. In the end the
parameters must be those of a training that nothing happened to.
"""

from __future__ import annotations

import copy
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import outlast

STEPS, BATCH = 8, 4
FAULTS = {(1, 1, 3): "raise", (2, 0, 5): "kill"}  # (generation, rank, step)

torch.manual_seed(0)
torch.set_num_threads(1)
plain = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
initial = copy.deepcopy(plain.state_dict())
compiled = torch.compile(plain, backend="aot_eager")
data = TensorDataset(torch.randn(2 * BATCH * STEPS, 8))
loader = DataLoader(data, batch_size=2 * BATCH, num_workers=1, persistent_workers=True)
kept: list[outlast.Checkpointer] = []


def disturb(rank: int, step: int) -> None:
    fault = FAULTS.get((int(os.environ["OUTLAST_GENERATION"]), rank, step))
    if fault == "raise":
        raise ValueError("in the middle of a backward pass")
    if fault == "kill":
        os.kill(os.getpid(), 9)


def train_sharded() -> None:
    """FSDP2 changes the modules that it is given: it gets a copy."""
    model = copy.deepcopy(plain)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()


def refuses(checkpointer: outlast.Checkpointer) -> bool:
    try:
        checkpointer.save(1, {"model": plain})
    except RuntimeError as error:
        return "make it inside the restartable function" in str(error)
    return False


@outlast.restartable
def train() -> None:
    rank = int(os.environ["RANK"])
    if kept:
        print(f"rank {rank} is refused by an older Checkpointer: {refuses(kept[-1])}", flush=True)
    dist.init_process_group("gloo")
    plain.load_state_dict(initial)
    model = DistributedDataParallel(compiled)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpointer = outlast.Checkpointer(sys.argv[1])
    kept.append(checkpointer)
    state = {"model": plain, "optimizer": optimizer}
    start = checkpointer.restore(state)
    print(f"rank {rank} pid {os.getpid()} starts after step {start}, entry {len(kept)}", flush=True)
    for step, (batch,) in enumerate(loader, 1):
        if step <= start:
            continue
        mine = batch[rank * BATCH : (rank + 1) * BATCH].clone().requires_grad_()
        mine.register_hook(lambda _gradient, step=step: disturb(rank, step))
        optimizer.zero_grad()
        model(mine).square().mean().backward()
        optimizer.step()
        checkpointer.save(step, state)
        dist.barrier()  # a fault in the next step finds that all have saved this one
    train_sharded()
    checkpointer.close()
    del model  # destroying the group under a living DDP model can hang (docs/hangs.md)
    dist.destroy_process_group()


def train_undisturbed() -> torch.nn.Module:
    model = copy.deepcopy(plain)
    model.load_state_dict(initial)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return model


train()
same = all(
    torch.allclose(a, b, atol=1e-6) for a, b in zip(plain.parameters(), train_undisturbed().parameters(), strict=True)
)
print(f"rank {os.environ['RANK']} ends as if nothing had happened: {same}", flush=True)
