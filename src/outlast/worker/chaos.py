"""Faults on purpose that a worker has to do itself, right before its next step: `outlast chaos`.

Only there when OUTLAST_CHAOS names a path, which the agent of a job with --allow-chaos gives to its workers. Loaded
before the script, so nothing is imported here that Python has not imported by itself.
"""

from __future__ import annotations

import os

from outlast.worker import imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, NoReturn

VARIABLE = "OUTLAST_CHAOS"
OPTIMIZER = "torch.optim.optimizer"
ROOM = 64 << 20  # bytes that are left before memory is exhausted


def install() -> None:
    """Look for a fault before each step of an optimizer, if this job may be hurt."""
    path = os.environ.get(VARIABLE)
    if path:
        imports.after(OPTIMIZER, lambda module: _hook(module, path))


def _hook(module: ModuleType, path: str) -> None:
    def before_step(optimizer: Any, _args: object, _options: object) -> None:
        try:
            os.stat(path)  # noqa: PTH116  (pathlib may be the user's)
        except FileNotFoundError:
            return
        with open(path) as file:
            content = file.read()
        os.unlink(path)  # noqa: PTH108
        import json

        act(optimizer, **json.loads(content))

    module.register_optimizer_step_pre_hook(before_step)


def act(optimizer: Any, what: str, kind: str, value: float) -> None:
    """Do it."""
    print(f"outlast chaos: {what} {kind}".rstrip(), flush=True)
    if what == "hang":
        hang(kind)
    elif what == "exit-code":
        os._exit(int(value))
    elif what == "oom":
        exhaust(kind)
    elif what == "nan-gradient":
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.fill_(float("nan"))


def hang(kind: str) -> NoReturn:
    """Never come back: asleep, at a lock that nobody lets go of, or in a collective that the others leave out."""
    import threading
    import time

    if kind == "collective":
        import torch.distributed

        torch.distributed.barrier()
    if kind == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    while True:
        time.sleep(60)


def exhaust(kind: str) -> None:
    """Run out of memory: of the GPU's, or of what this process may have."""
    if kind == "gpu":
        import torch

        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 TiB (outlast chaos)")
    import resource

    from outlast.system import proc

    size = int(proc.read(proc.SELF, "statm").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
    held = []
    while True:
        held.append(bytearray(ROOM // 4))
