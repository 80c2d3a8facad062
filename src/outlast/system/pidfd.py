"""A process's end, told by the kernel: no polling."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys

_PIDFD_OPEN = 434  # the same number on every architecture that torch runs on
_libc = ctypes.CDLL(None, use_errno=True)


def pidfd_open(pid: int) -> int:
    """A descriptor that becomes readable when the process has exited. Raises ProcessLookupError."""
    if sys.version_info >= (3, 9) and hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    # Pythons that were built on an old system lack the call even where the kernel has it.
    descriptor = int(_libc.syscall(_PIDFD_OPEN, pid, 0))
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    os.set_inheritable(descriptor, False)
    return descriptor


async def exited(pid: int) -> None:
    """Wait until the process has exited; at once if there is none."""
    try:
        descriptor = pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(descriptor, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
