"""The training of `in_process.py` under nvidia-resiliency-ext's Wrapper; run by the Python of its own environment.

Without RANK in the environment it starts all processes, the spares among them: one for each that is going to be killed.
A spare has done its set-up by then. All intervals are a tenth of a second instead of one, and a rank hangs after two.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from datetime import timedelta

marks, fault, faults, setup, active, total = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_all() -> None:
    ports = {"MASTER_PORT": str(free_port()), "TRAINING_PORT": str(free_port()), "MASTER_ADDR": "127.0.0.1"}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(int(total))]
    world = {"WORLD_SIZE": str(int(total)), "LOCAL_WORLD_SIZE": str(int(total))}
    argv = [sys.executable, *sys.argv]
    for process in [subprocess.Popen(argv, env={**os.environ, **ports, **world, **rank}) for rank in ranks]:
        process.wait()


def note(what: str, life: int, rank: int) -> None:
    line = f"{what} {life} {rank} {time.monotonic()} 0 0 0 {os.getpid()}\n"
    descriptor = os.open(marks, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def train_in_process() -> None:
    import nvidia_resiliency_ext.inprocess as inprocess
    import torch
    import torch.distributed as dist

    first = int(os.environ["RANK"])
    stores = dist.TCPStore("127.0.0.1", int(os.environ["TRAINING_PORT"]), is_master=not first, wait_for_workers=False)
    time.sleep(setup)

    def train(call: inprocess.CallWrapper = None) -> None:
        life, rank, world = call.iteration, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        note("entered", life, rank)
        store = dist.PrefixStore(str(life), stores)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        value = torch.ones(1000)
        for step in range(10):
            dist.all_reduce(value)
            value /= world
            call.ping()
            if step == 0:
                note("stepped", life, rank)
            if step == 5 and life < faults and rank == 1:
                note("fault", life, rank)
                if fault == "raise":
                    raise ValueError("a fault")
                if fault == "kill":
                    os.kill(os.getpid(), 9)
                time.sleep(1000)
        dist.destroy_process_group()

    train.__annotations__["call"] = inprocess.CallWrapper  # by which it is told what to pass
    soon = timedelta(seconds=0.1)
    inprocess.Wrapper(
        rank_assignment=inprocess.Compose(
            inprocess.rank_assignment.MaxActiveWorldSize(int(active)), inprocess.rank_assignment.ShiftRanks()
        ),
        monitor_thread_interval=soon,
        monitor_process_interval=soon,
        heartbeat_interval=soon,
        progress_watchdog_interval=soon,
        last_call_wait=soon,
        termination_grace_time=soon,
        soft_timeout=timedelta(seconds=2),
        hard_timeout=timedelta(seconds=4),
    )(train)()


if __name__ == "__main__":
    if "RANK" in os.environ:
        train_in_process()
    else:
        start_all()
