"""How many GPUs there are, found out by a child, so that this process can tell without opening them.

Many modules ask `torch.cuda.is_available()` when they are imported. The answer costs a process the right to be forked:
CUDA's driver is initialised for it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 30.0  # seconds; a driver that takes longer is not waited for


@contextmanager
def foretold() -> Iterator[None]:
    """While this lasts, torch knows how many CUDA devices there are, and need not look."""
    cuda: Any = sys.modules.get("torch.cuda")
    count = _counted(cuda) if cuda is not None and cuda._is_compiled() and not cuda.is_initialized() else None
    if cuda is None or count is None:
        yield
        return
    binding: Any = sys.modules["torch._C"]
    before = binding._cuda_getDeviceCount, cuda._device_count_nvml
    binding._cuda_getDeviceCount, cuda._device_count_nvml = (lambda: count), (lambda: -1)  # -1: ask the other
    try:
        yield
    finally:
        binding._cuda_getDeviceCount, cuda._device_count_nvml = before


def _counted(cuda: Any) -> int | None:
    """As a child of ours sees it; None if it does not say."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(cuda.device_count()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        if not select.select([pipe], [], [], PATIENCE)[0]:
            os.kill(child, signal.SIGKILL)
        said = pipe.read()
    os.waitpid(child, 0)
    return int(said) if said.isdigit() else None
