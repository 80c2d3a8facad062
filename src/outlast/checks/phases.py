"""What is tried on one device of one node, by itself. Each returns figures; what is wrong is raised as `UnfitNode`."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from outlast.checks.accelerator import Accelerator

LEAST_REPEATS, MOST_REPEATS = 4, 50
ENOUGH = 0.12  # seconds of repeats
FILES = 4096  # that a process should be able to open
SHARED = 1 << 30  # bytes of /dev/shm that data loaders and snapshots need at least
DISK = 64 << 20  # bytes that are written
FREE = 0.05  # of a disk


class UnfitNode(Exception):
    """This node fails by itself; the message says how. `certain`: once is enough."""

    def __init__(self, text: str, *, certain: bool = False) -> None:
        super().__init__(text)
        self.certain = certain


def compute(accelerator: Accelerator, number: int) -> float:
    """GFLOP/s of a matrix product, whose result is right to the last bit: small whole numbers leave no room."""
    torch, size = accelerator.torch, accelerator.size
    dtype = getattr(torch, accelerator.dtype)
    u, p, q, v = (_small(torch, size, accelerator.device, number + salt) for salt in range(4))
    left, right = torch.outer(u, p).to(dtype), torch.outer(q, v).to(dtype)
    # In whole numbers, on the CPU: not by the device that is in question.
    weight = int((p.cpu().long() * q.cpu().long()).sum())
    expected = torch.outer(u * weight, v).to(dtype)
    results: list[Any] = []

    def once() -> None:
        results[:] = [accelerator.product(left, right)]

    seconds = fastest(accelerator, once)
    if not torch.equal(results[0], expected):
        wrong = int((results[0] != expected).sum())
        raise UnfitNode(f"the matrix product is wrong in {wrong} of {size * size} places", certain=True)
    return float(2 * size**3 / seconds / 1e9)


def memory(accelerator: Accelerator) -> float:
    """GB/s of a copy within the device's memory, and what was written is read back."""
    torch = accelerator.torch
    count = accelerator.memory // 8
    try:
        source = torch.arange(count, dtype=torch.int64, device=accelerator.device)
        target = torch.empty_like(source)
    except RuntimeError as error:
        raise UnfitNode(f"{2 * accelerator.memory >> 20} MiB of memory cannot be had: {first_line(error)}") from error
    # A copy by the CPU either fits into the time that a scheduler gives, or is many times slower: on a busy machine a
    # figure by the clock would be luck. That others want the CPU shows in the product.
    clock = time.thread_time if accelerator.device == "cpu" else time.perf_counter
    seconds = fastest(accelerator, lambda: target.copy_(source), clock)
    if not torch.equal(target, torch.arange(count, dtype=torch.int64, device=accelerator.device)):
        raise UnfitNode("memory does not hold what was written into it", certain=True)
    return float(2 * accelerator.memory / seconds / 1e9)


def disk(path: str) -> tuple[float, list[str]]:
    """MB/s of writing to the disk of this directory, and what there is to say about it."""
    warnings = []
    try:
        space = shutil.disk_usage(path)
        if space.free < max(2 * DISK, FREE * space.total):
            warnings.append(f"{path}: only {space.free / 1e9:.1f} of {space.total / 1e9:.0f} GB are free")
        if space.free < 2 * DISK:
            return 0.0, warnings
        block = os.urandom(1 << 20)
        with tempfile.TemporaryFile(dir=path, prefix=".outlast-check-") as file:
            began = time.perf_counter()
            for _ in range(DISK >> 20):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            return DISK / (time.perf_counter() - began) / 1e6, warnings
    except OSError as error:
        raise UnfitNode(f"{path} cannot be written to: {error.strerror}") from error


def system() -> Iterator[str]:
    """What of this machine's settings is going to be in the way, sooner or later."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < FILES:
        yield f"a process may open {most} files: raise ulimit -n to {FILES} or more"
    elif files != resource.RLIM_INFINITY and files < FILES // 4:
        yield f"a process may open {files} files: raise ulimit -n"
    shared = Path("/dev/shm")
    if not shared.is_dir():
        yield "there is no /dev/shm"
    elif (size := shutil.disk_usage(shared).total) < SHARED:
        yield f"/dev/shm has {size >> 20} MiB: containers need --shm-size or --ipc=host"


def versions(accelerator: Accelerator) -> dict[str, str]:
    """What should be the same on all nodes."""
    found = {"python": platform.python_version(), "torch": str(accelerator.torch.__version__)}
    return {**found, **accelerator.versions(), "accelerator": accelerator.device}


def fastest(
    accelerator: Accelerator, once: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds that it takes when nothing is in its way: the best of a few."""
    once()  # what is done the first time is not measured
    accelerator.synchronize()
    best, began = float("inf"), time.perf_counter()
    for repeat in range(MOST_REPEATS):
        start = clock()
        once()
        accelerator.synchronize()
        best = min(best, clock() - start)
        if repeat + 1 >= LEAST_REPEATS and time.perf_counter() - began >= ENOUGH:
            break
    return best


def first_line(error: BaseException) -> str:
    """An error in one line of reasonable length.

    >>> first_line(RuntimeError("no memory\\n  at line 1"))
    'no memory'
    """
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:300]


def _small(torch: Any, size: int, device: str, salt: int) -> Any:
    """Whole numbers from -2 to 2, others for each salt, that any device makes the same."""
    index = torch.arange(size, dtype=torch.int64, device=device)
    return ((index * (2 * salt + 7) + (index * index) % (salt + 11)) % 5 - 2).to(torch.float32)
