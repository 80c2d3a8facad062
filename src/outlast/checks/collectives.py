"""Collectives among the processes of one node, and of a group of nodes: right results, and how fast they come."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import combinations
from typing import Any

from outlast.checks.accelerator import Accelerator
from outlast.checks.phases import first_line
from outlast.checks.plan import NETWORK, START, CheckPlan

SHARE = 0.8  # of a phase's time, after which torch is to say itself what it waits for
ANSWER = 4.0  # seconds in which a host accepts or refuses a connection: the kernel asks three times
PAUSE = 0.05  # seconds between two tries
VARIED = 1024  # elements by which sizes differ from round to round
SMALL = 4096  # elements
REPEATS = 6
PERF = (1 << 20, 4 << 20, 16 << 20, 64 << 20)  # bytes, of --comm-perf-test
HERE, SIZE, LAST = "outlast-check-here", "outlast-check-size", "outlast-check-done"
THREE = 3  # nodes, whose pairs are measured


class Failed(Exception):
    """A collective did not do what it should; the message says how."""


def gather(plan: CheckPlan) -> None:
    """Wait until all processes of this node have imported torch: no phase's time is spent on that."""
    from torch.distributed import FileStore

    store = FileStore(f"{plan.meeting}-start", plan.local_size)
    store.set(f"{HERE}-{plan.local_rank}", "")
    store.wait([f"{HERE}-{rank}" for rank in range(plan.local_size)], timedelta(seconds=START))


def local(accelerator: Accelerator, plan: CheckPlan, device: str) -> float:
    """GB/s among the processes of this node."""
    from torch.distributed import FileStore

    with _group(accelerator, plan, "local", device, FileStore(plan.meeting, plan.local_size)):
        _try(accelerator, plan, device, SMALL)
        return _all_reduce(accelerator, plan.local_size, device, accelerator.message)


def together(accelerator: Accelerator, plan: CheckPlan, device: str) -> dict[str, float]:
    """GB/s among the processes of the whole group, all of them together."""
    from torch.distributed import TCPStore

    patience = plan.limit_of(NETWORK) * SHARE  # also with partners that begin later
    if plan.rank:
        reach(plan.address, plan.port, patience)
    try:
        store = TCPStore(
            plan.address,
            plan.port,
            plan.size,
            is_master=plan.rank == 0,
            timeout=timedelta(seconds=patience),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        raise Failed(f"{plan.address}:{plan.port} cannot be reached: {first_line(error)}") from error
    with _group(accelerator, plan, NETWORK, device, store):
        _try(accelerator, plan, device, SMALL)
        _try(accelerator, plan, device, accelerator.message // 16)
        figures = {NETWORK: _network(accelerator, plan, device, store)}
        for size in PERF if plan.perf else ():
            figures[f"all-reduce {size >> 20} MiB"] = _all_reduce(accelerator, plan.size, device, size)
            figures[f"all-gather {size >> 20} MiB"] = _all_gather(accelerator, plan.size, device, size)
        _part(store, plan)
    return figures


def reach(host: str, port: int, patience: float) -> None:
    """Wait until somebody listens there, who may begin later. Raises `Failed` where the host does not even refuse.

    Whoever is cut off says so at once then, and no round has to wait until a collective gives up.
    """
    began = answered = time.monotonic()
    while (now := time.monotonic()) - began < patience:
        try:
            socket.create_connection((host, port), timeout=max(ANSWER - (now - answered), 0.1)).close()
        except ConnectionRefusedError:
            answered = time.monotonic()
            time.sleep(PAUSE)
        except socket.gaierror:
            return  # torch says it better
        except OSError as error:
            if time.monotonic() - answered >= ANSWER:
                raise Failed(f"{host}:{port} cannot be reached: {first_line(error)}") from error
            time.sleep(PAUSE)
        else:
            return


def _network(accelerator: Accelerator, plan: CheckPlan, device: str, store: Any) -> float:
    """GB/s with the other nodes; of three, with the better one of the two: a slow one would slow all of them down."""
    import torch.distributed as dist

    nodes = _nodes(plan, store)
    if len(nodes) != THREE:
        return _all_reduce(accelerator, plan.size, device, accelerator.message)
    best = 0.0
    for one, other in combinations(nodes, 2):  # in this order no two pairs are at it at the same time
        ranks = [*one, *other]
        pair = dist.new_group(ranks, timeout=timedelta(seconds=plan.limit_of(NETWORK) * SHARE))
        if plan.rank in ranks:
            best = max(best, _all_reduce(accelerator, len(ranks), device, accelerator.message, pair))
    return best


def _nodes(plan: CheckPlan, store: Any) -> list[range]:
    """The ranks of each node of the group."""
    store.set(f"{SIZE}-{plan.rank}", str(plan.local_size))
    nodes: list[range] = []
    first = 0
    while first < plan.size:
        nodes.append(range(first, first + int(store.get(f"{SIZE}-{first}"))))
        first = nodes[-1].stop
    return nodes


@contextmanager
def _group(accelerator: Accelerator, plan: CheckPlan, phase: str, device: str, store: Any) -> Iterator[None]:
    import torch.distributed as dist

    of = (plan.local_rank, plan.local_size) if phase == "local" else (plan.rank, plan.size)
    backend = accelerator.backend if device != "cpu" else "gloo"
    try:
        dist.init_process_group(
            backend,
            store=store,
            rank=of[0],
            world_size=of[1],
            timeout=timedelta(seconds=plan.limit_of(phase) * SHARE),
        )
        yield
    except RuntimeError as error:  # torch's own errors are among them
        raise Failed(f"a collective of {of[1]} failed: {first_line(error)}") from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _try(accelerator: Accelerator, plan: CheckPlan, device: str, count: int) -> None:
    """All-gather and all-reduce, with results that are known."""
    import torch.distributed as dist

    torch, rank, size = accelerator.torch, dist.get_rank(), dist.get_world_size()
    count += plan.number % 8 * VARIED
    mine = torch.arange(count, dtype=torch.float32, device=device) % 97 + rank
    gathered = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(gathered, mine)
    plain = torch.arange(count, dtype=torch.float32, device=device) % 97
    if not all(torch.equal(each, plain + other) for other, each in enumerate(gathered)):
        raise Failed(f"an all-gather of {count} numbers gave wrong ones")
    total = mine.clone()
    dist.all_reduce(total)
    if not torch.equal(total, plain * size + size * (size - 1) / 2):
        raise Failed(f"an all-reduce of {count} numbers gave wrong ones")


def _all_reduce(accelerator: Accelerator, size: int, device: str, message: int, group: Any = None) -> float:
    """What NCCL's own tests call bus bandwidth: it does not depend on how many take part."""
    import torch.distributed as dist

    torch = accelerator.torch
    tensor = torch.zeros(message // 4, dtype=torch.float32, device=device)
    seconds = _timed(accelerator, device, lambda: dist.all_reduce(tensor, group=group))
    return float(message * 2 * (size - 1) / size / seconds / 1e9)


def _all_gather(accelerator: Accelerator, size: int, device: str, message: int) -> float:
    import torch.distributed as dist

    torch = accelerator.torch
    mine = torch.zeros(message // 4 // size, dtype=torch.float32, device=device)
    all_of_them = [torch.empty_like(mine) for _ in range(size)]
    seconds = _timed(accelerator, device, lambda: dist.all_gather(all_of_them, mine))
    return float(message * (size - 1) / size / seconds / 1e9)


def _timed(accelerator: Accelerator, device: str, once: Callable[[], object]) -> float:
    """Seconds, the best of a few: as many on every rank, for each is waited for by all."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        once()
        if device != "cpu":
            accelerator.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def _part(store: Any, plan: CheckPlan) -> None:
    """Leave together: the one that has the store goes last."""
    store.set(f"{LAST}-{plan.rank}", "")
    if plan.rank == 0:
        store.wait([f"{LAST}-{rank}" for rank in range(plan.size)])
