"""Ranks for tests: forks of this process that are one gloo group, so that torch is imported once.

This process itself must never have been in a group: its forks would hang in their collectives. One rank will do.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

LONG = 120.0


def on_ranks(world: int, body: Callable[[int], Any], tmp_path: Path) -> list[Any]:
    """What `body(rank)` returns on each rank; of one that raises, the exception."""
    store = tmp_path / f"store-{time.monotonic_ns()}"
    children, pipes = [], []
    for rank in range(world):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _live(rank, world, store, body, writing)
        os.close(writing)
        children.append(child)
        pipes.append(reading)
    try:
        return [_hear(pipe) for pipe in pipes]
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _live(rank: int, world: int, store: Path, body: Callable[[int], Any], pipe: int) -> None:
    """Never returns: the test goes on in the parent alone."""
    try:
        torch.set_num_threads(1)
        timeout = timedelta(seconds=LONG)
        dist.init_process_group(
            "gloo", store=dist.FileStore(str(store), world), rank=rank, world_size=world, timeout=timeout
        )
        try:
            result = body(rank)
        except Exception as error:  # noqa: BLE001  (the test is told)
            traceback.print_exc()
            result = error
        os.write(pipe, pickle.dumps(result))
        os.close(pipe)
        signal.pause()  # the others may still need its end of the group
    finally:
        os._exit(1)


def _hear(pipe: int) -> Any:
    said, deadline = b"", time.monotonic() + LONG
    while select.select([pipe], [], [], max(deadline - time.monotonic(), 0))[0]:
        chunk = os.read(pipe, 65536)
        if not chunk:
            os.close(pipe)
            return pickle.loads(said)  # noqa: S301  (of our own fork)
        said += chunk
    raise TimeoutError("a rank has not ended")
