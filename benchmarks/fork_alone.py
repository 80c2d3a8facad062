"""The least that a restart can cost: a process that has imported torch forks the workers, and does nothing else.

`python benchmarks/fork_alone.py NPROC SCRIPT [ARGUMENT…]`. When a worker ends, the others are killed and all are forked
again. No coordinator, no logs, no second node, nothing that a launcher is for: it is what recovery.py measures
Outlast's distance from.
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import sys

import numpy as np  # noqa: F401  (this and what follows is imported for the children)
import torch._dynamo
import torch.distributed
import torch.nn.parallel
import torch.utils.data  # noqa: F401


def main(nproc: int, argv: list[str]) -> None:
    """Keep this many workers going for ever."""
    life = 0
    while True:
        port = free_port()
        workers = [fork(rank, nproc, life, port, argv) for rank in range(nproc)]
        ended, _ = os.wait()
        for worker in workers:
            if worker != ended:
                os.kill(worker, signal.SIGKILL)
                os.waitpid(worker, 0)
        life += 1


def fork(rank: int, nproc: int, life: int, port: int, argv: list[str]) -> int:
    """A new worker's pid; in the worker itself it does not return."""
    pid = os.fork()
    if pid:
        return pid
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(nproc), "LOCAL_WORLD_SIZE": str(nproc)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RESTART_COUNT": str(life)}
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")
    os._exit(0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
