"""How the workers of a generation get on: a look at the board now and then, and what lies between two of them.

    pacing = Pacing(totals=watch.totals, first_rank=8, nproc=8, nodes=2, tell=…); pacing.close()

A look costs some microseconds for each worker, and the workers nothing. Nothing is told while no step is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from outlast.board.readings import Totals
from outlast.core.stragglers.pace import Strides, interval
from outlast.protocol.paces import Pace
from outlast.system import proc


class Pacing:
    """The looks at the workers of one generation. Made within a running event loop."""

    def __init__(
        self,
        totals: Callable[[int], Totals | None],
        *,
        first_rank: int,
        nproc: int,
        nodes: int,
        tell: Callable[[tuple[Pace, ...]], None],
    ) -> None:
        self._totals, self._tell = totals, tell
        self._strides = Strides(first_rank)
        self._ranks = range(nproc)
        self._every = interval(nodes)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._every, self._look)

    def close(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(self._every, self._look)
        seen = {rank: totals for rank in self._ranks if (totals := self._totals(rank)) is not None}
        paces = self._strides.look({rank: (each, busy_seconds(each.pid)) for rank, each in seen.items()})
        if paces:
            self._tell(paces)


def busy_seconds(pid: int) -> float | None:
    """How long the main thread of a process has run, or waited for a processor; None: the kernel does not say."""
    try:
        ran, waited, _ = proc.read(pid, "schedstat").split()
    except (OSError, ValueError):
        return None
    return (int(ran) + int(waited)) / 1e9
