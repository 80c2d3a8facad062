"""How far the workers of a generation have come, for the job's ledger: a look at the board now and then.

    looks = TrainingLooks(totals=watch.totals, generation=1, ranks=range(8), every=1.0, tell=…)
    looks.look()
    looks.close()

The first step rings the bell, so it is told at once; the rest rides on reports that are sent anyway.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from outlast.board.readings import Totals
from outlast.protocol.paces import Training
from outlast.system import clock

# Sections that scripts name themselves, by how their names begin; Outlast's own Checkpointer and loader count apart.
SAVES = ("checkpoint", "ckpt", "save", "snapshot")
LOADS = ("data", "dataload", "load_batch", "next_batch", "fetch")


class SectionTime:
    """The seconds that a rank has spent in sections of some names: their totals on the board begin anew in time."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._last: Totals | None = None
        self.seconds = 0.0

    def look(self, totals: Totals) -> float:
        before = self._last if self._last is not None and self._last.pid == totals.pid else None
        for name, spent in totals.spent.items():
            if name.lower().startswith(self._names):
                self.seconds += spent.after(before.spent.get(name) if before is not None else None)[1]
        self._last = totals
        return self.seconds


class TrainingLooks:
    """The looks at the workers of one generation. Made within a running event loop."""

    def __init__(
        self,
        totals: Callable[[int], Totals | None],
        *,
        generation: int,
        ranks: Sequence[int],
        every: float,
        tell: Callable[[Training], None],
    ) -> None:
        self._totals, self._tell, self._generation, self._every = totals, tell, generation, every
        self._ranks = ranks
        self._saves = [SectionTime(SAVES) for _ in ranks]
        self._loads = [SectionTime(LOADS) for _ in ranks]
        self._told: Training | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(every, self._again)

    def close(self) -> None:
        """Look for the last time."""
        self._timer.cancel()
        self.look()

    def rung(self) -> None:
        """A worker has rung the bell: perhaps with its first step."""
        if self._told is None:
            self.look()

    def restart(self) -> None:
        """A new process takes the place of one of them: its first step is told at once, too."""
        self._told = None

    def look(self) -> None:
        """Tell how far the workers have come, once each of them has made a step."""
        seen = [self._totals(rank) for rank in self._ranks]
        known = [each for each in seen if each is not None and each.first_at]
        if len(known) < len(seen):
            return
        training = self._training(known)
        if training != self._told:
            self._told = training
            self._tell(training)

    def _again(self) -> None:
        self._timer = self._loop.call_later(self._every, self._again)
        self.look()

    def _training(self, seen: list[Totals]) -> Training:
        ahead = clock.now() - time.monotonic()  # the board counts without the time that the machine slept
        count = len(seen)
        last = max(seen, key=lambda each: (each.step, -each.step_at))
        saves = [max(each.saving, sections.look(each)) for each, sections in zip(seen, self._saves, strict=True)]
        loads = [max(each.loading, sections.look(each)) for each, sections in zip(seen, self._loads, strict=True)]
        return Training(
            self._generation,
            first=min(each.first for each in seen),
            first_at=max(each.first_at for each in seen) + ahead,
            last=last.step,
            last_at=last.step_at + ahead,
            numbered=all(each.numbered for each in seen),
            checkpoint=sum(saves) / count,
            data=sum(loads) / count,
            restore=sum(each.restoring for each in seen) / count,
        )
