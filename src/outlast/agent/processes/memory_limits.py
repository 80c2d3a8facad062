"""Memory limits of this node's workers: how much each may use, and which of them the kernel has killed for it."""

from __future__ import annotations

import logging
import os

from outlast.system.cgroups import MemoryCgroups

log = logging.getLogger("agent")


class MemoryLimits:
    """Of one agent, over all generations. Cgroups are made when the first limit is asked for."""

    def __init__(self) -> None:
        self._cgroups: MemoryCgroups | None = None
        self._kills: dict[str, int] = {}  # before the worker that has the name now was started

    def put(self, name: str, pid: int, amount: int) -> None:
        """A worker has just been started: let it use so many bytes; 0: no limit. Raises OSError in one line."""
        if not amount:
            return
        if self._cgroups is None:
            self._cgroups = MemoryCgroups.here(str(os.getpid()))
        self._cgroups.limit(name, amount)
        self._kills[name] = self._cgroups.kills(name)
        self._cgroups.put(name, pid)

    def kills(self, name: str) -> int:
        """How many processes of a worker the kernel has killed at its limit, since it was started."""
        if self._cgroups is None or name not in self._kills:
            return 0
        return self._cgroups.kills(name) - self._kills[name]

    def close(self) -> None:
        """The workers have ended."""
        if self._cgroups is not None:
            try:
                self._cgroups.close()
            except OSError as error:
                log.warning("a memory cgroup is left behind: %s", error)
