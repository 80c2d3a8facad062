"""A training loop that hangs in the step after next, in the way and on the rank that it is told.

    python train.py KIND RANK [KIND RANK …]

Each rank says `hangs` when it comes to the place; what the rank does there is the function named after the kind. Under
Outlast each generation hangs in the next way; when none is left, all ranks end well after some steps.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from outlast.worker import dump, session

GENERATION = int(os.environ.get("OUTLAST_GENERATION", "1"))
HANGS = dict(enumerate(zip(sys.argv[1::2], map(int, sys.argv[2::2]), strict=True), 1))
KIND, CULPRIT = HANGS.get(GENERATION, ("ends", 0))
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PEER = (CULPRIT + 1) % SIZE
HANG_AT = 2
FOREVER = 3600.0
MINE = RANK == CULPRIT

gradient = torch.ones(64)


def say_so() -> None:
    """Tell whoever waits for the hang that this rank has come to it."""
    os.write(1, f"hangs {RANK} {KIND}\n".encode())  # at once: workers may share the stream


def sleep() -> None:
    """One rank sleeps before the collective."""
    if MINE:
        time.sleep(FOREVER)
    dist.all_reduce(gradient)


def loop() -> None:
    """One rank never comes out of a loop of Python."""
    while MINE:
        pass
    dist.all_reduce(gradient)


def holds_the_gil() -> None:
    """One rank is in a call of C that keeps the interpreter to itself."""
    while MINE:  # a signal ends the sleep, as that of whoever looks where it is
        ctypes.PyDLL(None).sleep(int(FOREVER))
    dist.all_reduce(gradient)


def computes_in_c() -> None:
    """One rank is in a long computation of C that keeps the interpreter to itself."""
    if MINE:
        sum(range(10**13))
    dist.all_reduce(gradient)


def crossed_receives() -> None:
    """Two ranks each wait for the other's message, and never come to the collective."""
    if RANK in (CULPRIT, PEER):
        dist.recv(gradient, src=PEER if MINE else CULPRIT)
    dist.all_reduce(gradient)


def mismatch() -> None:
    """One rank calls another collective than the others."""
    if MINE:
        dist.broadcast(torch.ones(7), src=PEER)
    else:
        dist.all_reduce(gradient)
    dist.barrier()


def skips() -> None:
    """One rank leaves a collective out, and waits in the next one."""
    if not MINE:
        dist.all_reduce(gradient)
    dist.barrier()


class Slow(Dataset[int]):
    """A dataset with an item that never comes."""

    def __init__(self, obstacle: Callable[[], None]) -> None:
        self.obstacle = obstacle

    def __len__(self) -> int:
        return 8

    def __getitem__(self, item: int) -> int:
        if item == 5 and MINE:
            self.obstacle()
        return item


def sleeps_for_ever() -> None:
    time.sleep(FOREVER)


def stops_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def loads(obstacle: Callable[[], None], workers: int) -> None:
    for _batch in DataLoader(Slow(obstacle), batch_size=2, num_workers=workers):
        dist.all_reduce(gradient)


def data_loader() -> None:
    """One rank's DataLoader waits for its worker, which sleeps."""
    loads(sleeps_for_ever, workers=1)


def data_loader_within() -> None:
    """One rank's DataLoader has no workers, and its dataset sleeps."""
    loads(sleeps_for_ever, workers=0)


def data_loader_worker_stopped() -> None:
    """One rank's DataLoader waits for its worker, which is stopped."""
    loads(stops_itself, workers=1)


def dies(_item: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def pool_worker_dead() -> None:
    """One rank waits for a result that a process of its pool took to the grave."""
    if MINE:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            pool.map(dies, [1])
    dist.all_reduce(gradient)


def stopped() -> None:
    """One rank's process is stopped."""
    if MINE:
        stops_itself()
    dist.all_reduce(gradient)


def uninterruptible() -> None:
    """One rank is in uninterruptible sleep: the kernel lets it wait for a child that never becomes a program."""
    if MINE:
        with tempfile.TemporaryDirectory() as directory:
            fifo = str(Path(directory, "fifo"))
            os.mkfifo(fifo)
            os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, fifo, os.O_RDONLY, 0)])
    dist.all_reduce(gradient)


def opens_a_fifo() -> None:
    """One rank opens a file that nobody writes."""
    if MINE:
        with tempfile.TemporaryDirectory() as directory:
            os.mkfifo(Path(directory, "fifo"))
            Path(directory, "fifo").read_bytes()
    dist.all_reduce(gradient)


def locks() -> None:
    """Two threads of one rank wait for each other's lock."""
    if MINE:
        first, second, has_it = threading.Lock(), threading.Lock(), threading.Event()

        def other_way() -> None:
            with second:
                has_it.set()
                with first:
                    pass

        with first:
            threading.Thread(target=other_way, daemon=True).start()
            has_it.wait()
            with second:
                pass
    dist.all_reduce(gradient)


def saves() -> None:
    """Rank 0, or another, saves for ever, while the others wait for it at the barrier."""
    with session.section("checkpoint"):
        if MINE:
            with tempfile.TemporaryDirectory() as directory:
                os.mkfifo(Path(directory, "checkpoint.pt"))
                torch.save({"weights": gradient}, Path(directory, "checkpoint.pt"))
        dist.barrier()


def within_ddp() -> None:
    """One rank sleeps before its backward pass; the others wait within theirs, where DDP reduces gradients."""
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    for step in range(2):
        loss = model(torch.ones(4, 8)).sum()
        if MINE and step:
            time.sleep(FOREVER)
        loss.backward()
        session.heartbeat()


class Stuck(torch.autograd.Function):
    """A gradient that never comes."""

    @staticmethod
    def forward(_ctx: object, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(_ctx: object, gradients: torch.Tensor) -> torch.Tensor:
        time.sleep(FOREVER)
        return gradients


def in_backward() -> None:
    """One rank is stuck in a gradient function of its own, the others wait where DDP reduces."""
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    for step in range(2):
        session.heartbeat()
        inputs = torch.ones(4, 8, requires_grad=True)
        outputs = model(inputs)
        loss = (Stuck.apply(outputs) if MINE and step else outputs).sum()
        loss.backward()


def waits_async() -> None:
    """One rank sleeps; the others wait for the handle of what they have begun."""
    if MINE:
        time.sleep(FOREVER)
    dist.all_reduce(gradient, async_op=True).wait()


def gathers_objects() -> None:
    """One rank sleeps; the others gather objects."""
    if MINE:
        time.sleep(FOREVER)
    dist.all_gather_object([None] * SIZE, {"rank": RANK})


def monitored() -> None:
    """One rank sleeps; the others are in a monitored barrier."""
    if MINE:
        time.sleep(FOREVER)
    dist.monitored_barrier(timeout=timedelta(seconds=FOREVER))


def everybody() -> None:
    """All ranks are in the same collective, and the network has gone."""
    say_so()
    while True:
        dist.all_reduce(gradient)


def in_store() -> None:
    """One rank sleeps; the others wait for a key that it would write."""
    store = dist.distributed_c10d._get_default_store()
    if MINE:
        time.sleep(FOREVER)
        store.set("go", "on")
    store.wait(["go"], timedelta(seconds=FOREVER))


def saves_together() -> None:
    """One rank cannot write its part of a distributed checkpoint; the others wait for it within that."""
    import torch.distributed.checkpoint as checkpoint

    class Full(checkpoint.FileSystemWriter):
        def write_data(self, plan: Any, planner: Any) -> Any:
            if MINE:
                time.sleep(FOREVER)
            return super().write_data(plan, planner)

    checkpoint.save({f"weights-{RANK}": gradient}, storage_writer=Full(Path(tempfile.gettempdir(), "checkpoint")))


def two_asleep() -> None:
    """Two ranks sleep, in different places."""
    if MINE:
        time.sleep(FOREVER)
    if RANK == PEER:
        os.read(os.pipe()[0], 1)
    dist.all_reduce(gradient)


def awaits_an_event() -> None:
    """One rank waits for a thread of its own; the others for the handle of what they have begun."""
    if MINE:
        threading.Event().wait()
    dist.all_reduce(gradient, async_op=True).wait()


def gets_from_a_queue() -> None:
    """One rank waits for a queue that nobody fills; the others are in a collective."""
    if MINE:
        queue.Queue().get()
    dist.all_reduce(gradient)


def runs_a_program() -> None:
    """One rank waits for a program that it has started."""
    if MINE:
        subprocess.run(["sleep", str(FOREVER)], check=True)
    dist.all_reduce(gradient)


def receives_from_a_socket() -> None:
    """One rank waits for a server that says nothing."""
    if MINE:
        ends = socket.socketpair()
        ends[0].recv(1)
    dist.all_reduce(gradient)


def in_a_thread() -> None:
    """The collective is in a thread of each rank, for which the main thread waits; one rank sleeps."""
    if MINE:
        time.sleep(FOREVER)
    thread = threading.Thread(target=dist.all_reduce, args=(gradient,), daemon=True)
    thread.start()
    thread.join()


def subgroups() -> None:
    """One rank sleeps; its partner waits for it in their own group, the other pairs for all."""
    pairs = [dist.new_group([first, first + 1]) for first in range(0, SIZE, 2)]
    if MINE:
        time.sleep(FOREVER)
    dist.all_reduce(gradient, group=pairs[RANK // 2])
    dist.barrier()


def extra_collective() -> None:
    """One rank calls a collective that nobody else calls."""
    if MINE:
        dist.all_gather_object([None] * SIZE, RANK)
    dist.barrier()


def holds_an_import_lock() -> None:
    """One rank is stuck while it imports a module."""
    if MINE:
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "never_there.py").write_text("import time\ntime.sleep(3600)\n")
            sys.path.insert(0, directory)
            importlib.import_module("never_there")
    dist.all_reduce(gradient)


def fully_sharded() -> None:
    """One rank sleeps before its forward pass; the others wait in FSDP for its part of the weights."""
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(torch.nn.Linear(8, 8))
    for step in range(2):
        session.heartbeat()
        if MINE and step:
            time.sleep(FOREVER)
        model(torch.ones(4, 8)).sum().backward()


def sends_without_receiver() -> None:
    """One rank sends to a peer that is in the collective and never receives."""
    if MINE:
        for _ in range(100):
            dist.send(torch.ones(1 << 20), dst=PEER)
    dist.all_reduce(gradient)


def ends() -> None:
    """Nobody hangs. (Without PyTorch's own way out, which may: see docs/hangs.md.)"""
    dist.barrier()
    os._exit(0)


def in_init() -> None:
    """One rank does not come to init_process_group."""


def main() -> None:
    dump.install()
    if KIND == "in_init":
        say_so()
        if MINE:
            time.sleep(FOREVER)
    dist.init_process_group("gloo", timeout=timedelta(seconds=FOREVER))
    if KIND in ("within_ddp", "in_backward", "fully_sharded", "saves_together"):
        DistributedDataParallel(torch.nn.Linear(8, 8))  # the first one imports for seconds, as do these
        Stuck.apply(torch.ones(1))
        importlib.import_module("torch.distributed.checkpoint")
        importlib.import_module("torch.distributed.fsdp")
    step = 0
    while True:
        session.step(step)
        with session.section("forward"):
            dist.all_reduce(gradient)
        gradient.fill_(1)
        step += 1
        if step == HANG_AT:
            session.step(step)
            say_so()
            globals()[KIND]()


if __name__ == "__main__":
    main()
