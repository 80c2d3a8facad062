"""`@outlast.restartable`: a training function that is entered again, in the same process, when others have failed.

model = torch.compile(Model())              # built once

@outlast.restartable
def train():                                # entered once for every generation
    dist.init_process_group("gloo")
    ...

train()
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar, overload

from outlast.worker import imports
from outlast.worker.group_sockets import group_sockets
from outlast.worker.in_place import InPlaceWorker

DISTRIBUTED = "torch.distributed.distributed_c10d"
GENERATION = "OUTLAST_GENERATION"

Function = TypeVar("Function", bound=Callable[..., Any])
Hook = Callable[[], Any]


@overload
def restartable(function: Function, /) -> Function: ...
@overload
def restartable(
    *,
    cleanup: Hook | None = None,
    health_check: Hook | None = None,
    timeout: float | None = None,
    nccl: bool = False,
) -> Callable[[Function], Function]: ...
def restartable(
    function: Function | None = None,
    /,
    *,
    cleanup: Hook | None = None,
    health_check: Hook | None = None,
    timeout: float | None = None,
    nccl: bool = False,
) -> Any:
    """Enter this function again, with the same arguments, in each new generation, and keep the process.

    When a generation of the job ends, ranks that are well leave the function by `outlast.GenerationOver`, and so does
    a rank on which it raises an exception. Their process groups are destroyed, `cleanup` is called, then
    `health_check`; a rank on which either raises is replaced by a new process. So is one that has not left within
    `timeout` seconds (by default `--ft-in-place-timeout`). All others enter the function again, with the RANK,
    WORLD_SIZE and MASTER_PORT of the new generation in their environment.

    What is built outside of the function stays: models, compiled code, data sets. Process groups, and what holds one
    (DDP, FSDP, device meshes, `outlast.Checkpointer`), are to be made inside. A collective that was cut off leaves its
    tensors in doubt, so the function has to restore its state when it is entered.

    `nccl`: process groups of NCCL are aborted. Without it, a rank that has one is replaced by a new process.

    Without Outlast it is called once, and nothing else happens.
    """
    if timeout is not None and timeout <= 0:
        raise ValueError(f"timeout must be a number of seconds above 0, not {timeout!r}")

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def enter(*args: Any, **options: Any) -> Any:
            call = functools.partial(function, *args, **options)
            if GENERATION not in os.environ or group_sockets.active:  # without Outlast, or within another such function
                return call()
            group_sockets.aborts_nccl = nccl
            return _enter(call, cleanup, health_check, timeout)

        return enter  # type: ignore[return-value]

    return decorate if function is None else decorate(function)


def _enter(call: Callable[[], Any], cleanup: Hook | None, health_check: Hook | None, timeout: float | None) -> Any:
    # Also where this rank is not restarted in place: others may be, and ranks that make a group tell each other more.
    group_sockets.active = True
    try:
        imports.after(DISTRIBUTED, group_sockets.watch)
        worker = InPlaceWorker.of_agent(timeout)
        if worker is None:
            return call()
        try:
            worker.stand_by()
            while True:
                done, result = worker.attempt(call)
                if done:
                    return result
                worker.park(cleanup, health_check)
                worker.go_on()
        finally:
            worker.close()
    finally:
        group_sockets.active = False
