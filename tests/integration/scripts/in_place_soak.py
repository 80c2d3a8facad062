"""One step per generation, then an exception on one of the ranks, so many times; then it finishes.

    in_place_soak.py FOLDER STEPS FAULTS

Every entry leaves behind what careless code does: a file that is open, a timer, a loader with a worker process. Writes
to FOLDER what each entry finds open (`marks`), and in the end which samples were trained with which loss (`history`).
The last generation waits until FOLDER/measured exists, so that the agent can be measured before it ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import outlast

FOLDER, STEPS, FAULTS = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
BATCH = 6
LOADER_EVERY = 10  # generations: a worker process takes longer to start than all the rest

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
timers: list[threading.Timer] = []


class Points(Dataset[Any]):
    """Points in space; one batch of them for each step."""

    inputs = torch.randn(BATCH * STEPS, 3)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, self.inputs[index]


def mark(generation: int, rank: int) -> None:
    """Append one line: what this process has open, and how large it is."""
    descriptors, threads = (len(list(Path("/proc/self", each).iterdir())) for each in ("fd", "task"))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    words = (generation, rank, os.getpid(), descriptors, threads, pages * 4096, time.monotonic())
    with (FOLDER / "marks").open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


def be_careless(generation: int) -> list[Any]:
    """What the function's frame holds when it is left."""
    timers.append(threading.Timer(3600, print))
    timers[-1].start()
    held: list[Any] = [(FOLDER / "marks").open()]
    if generation % LOADER_EVERY == 0:
        held.append(iter(DataLoader(Points(), num_workers=1)))
        next(held[-1])
    return held


def clean_up() -> None:
    while timers:
        timer = timers.pop()
        timer.cancel()
        timer.join()


@outlast.restartable(cleanup=clean_up)
def train() -> None:
    generation, rank = int(os.environ["OUTLAST_GENERATION"]), int(os.environ["RANK"])
    mark(generation, rank)
    dist.init_process_group("gloo")
    model.load_state_dict(initial)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
    loader = outlast.ElasticLoader(Points(), global_batch=BATCH, micro_batch=BATCH, seed=3)
    checkpointer = outlast.Checkpointer(FOLDER / "checkpoints")
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader, "history": []}
    start = checkpointer.restore(state)
    held = be_careless(generation)
    for step, ((numbers, inputs), weights) in enumerate(loader, start + 1):
        optimizer.zero_grad()
        loss = (ddp(inputs)[:, 0].square() * weights).sum()
        loss.backward()
        optimizer.step()
        shares: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(shares, (numbers[weights > 0].tolist(), loss.item()))
        state["history"].append(shares)
        loader.commit()
        checkpointer.save(step, state)
        dist.barrier()  # the fault finds that all have saved
        if generation <= FAULTS and rank == generation % dist.get_world_size():
            raise ValueError("a fault of the soak's")
    del held
    clean_up()
    while rank == 0 and not (FOLDER / "measured").exists():
        time.sleep(0.01)
    if rank == 0:
        draft = FOLDER / "draft"
        draft.write_text(json.dumps(state["history"]))
        draft.replace(FOLDER / "history")
    checkpointer.close()
    del ddp  # destroying the group under a living DDP model can hang (docs/hangs.md)
    dist.destroy_process_group()


train()
