"""Who dies with whom, and who inherits orphans. No other module calls prctl."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

# Resolved now, because between fork and exec nothing may be looked up.
_prctl = ctypes.CDLL(None, use_errno=True).prctl
_prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; if it has died already, end at once."""
    _set(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above could take effect
        os._exit(1)


def inherit_orphans(on: bool = True) -> None:
    """Make this process the parent of those of its descendants whose parent dies. This stays over exec."""
    _set(_PR_SET_CHILD_SUBREAPER, int(on))


def _set(option: int, value: int) -> None:
    if _prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
