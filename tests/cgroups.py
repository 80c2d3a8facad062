"""Whether this machine lets the tests limit memory."""

from __future__ import annotations

import functools
import os

from outlast.system.cgroups import MemoryCgroups


@functools.cache
def can_limit_memory() -> bool:
    """By cgroups of version 1 or 2 that this user may make."""
    try:
        made = MemoryCgroups.here(f"probe-{os.getpid()}")
    except OSError:
        return False
    made.close()
    return True
