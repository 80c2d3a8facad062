"""A restartable function with a fault in each generation, given as arguments: `raise:1 kill:0 …`; then it finishes.

Each fault is of the rank behind the colon, at its third step, while the others are in a collective. Before, all ranks
say who they are.
"""

from __future__ import annotations

import atexit
import gc
import os
import socket
import sys
import threading
import time

import torch
import torch.distributed as dist

import outlast

FAULTS = sys.argv[1:]
STEPS = 5
entries: list[int] = []  # the generations that this process has entered

server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
own, _ = server.accept()


def connection_lives() -> bool:
    client.sendall(b"ping")
    return own.recv(4) == b"ping"


def clean_up() -> None:
    assert not dist.is_initialized()
    print(f"rank {os.environ['RANK']} cleans up after generation {entries[-1]}", flush=True)


def fail(fault: str) -> None:
    if fault in ("raise", "sleep", "lock", "swallow"):
        raise ValueError("a fault of the test's")
    if fault == "kill":
        os.kill(os.getpid(), 9)
    if fault == "hang":
        time.sleep(1000)
    if fault == "exit":
        sys.exit(3)


def swallow() -> None:
    while True:
        try:
            time.sleep(1000)
        except BaseException:  # noqa: BLE001, S110  (that is what it is about)
            pass


@outlast.restartable(cleanup=clean_up)
def train(greeting: str) -> str:
    entries.append(int(os.environ["OUTLAST_GENERATION"]))
    generation, rank, world = entries[-1], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    print(
        f"rank {rank} of {world} entered generation {generation}: pid {os.getpid()} entry {len(entries)}"
        f" restarts {os.environ['TORCHELASTIC_RESTART_COUNT']} connection {connection_lives()} {greeting}",
        flush=True,
    )
    dist.init_process_group("gloo")
    assert (dist.get_rank(), dist.get_world_size()) == (rank, world)
    pair = dist.new_group(sorted({0, world - 1}))
    fault, _, whose = (FAULTS[generation - 1] if generation <= len(FAULTS) else ":").partition(":")
    for step in range(STEPS):
        if step == 3 and str(rank) == whose:
            fail(fault)
        if step == 3 and rank != int(whose or -1):
            wait_for_the_fault(fault)
        total = torch.ones(1)
        dist.all_reduce(total)
        if rank in (0, world - 1):
            dist.barrier(pair)
        assert int(total) == world
        outlast.step()
    print(f"rank {rank} done in generation {generation}", flush=True)
    dist.destroy_process_group()
    return greeting


def wait_for_the_fault(fault: str) -> None:
    """Be somewhere else than in a collective when it happens."""
    if fault == "sleep":
        time.sleep(1000)
    if fault == "steps":
        print(f"rank {dist.get_rank()} of {dist.get_world_size()} makes steps in generation {entries[-1]}", flush=True)
    while fault == "steps":
        dist.all_reduce(torch.ones(1))
    if fault == "lock":
        threading.Event().wait()
    if fault == "swallow":
        swallow()


def say_goodbye() -> None:
    print(f"rank {os.environ['RANK']} says goodbye, pid {os.getpid()}", flush=True)


atexit.register(say_goodbye)
assert train("hello") == "hello"
gc.collect()
