"""The worker's side of a planned change: the boundaries between its steps, and the halt at one of them.

    boundaries.expect()                      # there will be some
    if (halt := boundaries.reach()) is not None:
        …                                    # save, for this is the last one before the change
        boundaries.seal(step)                # and wait for the end

While no change is planned a boundary is a store and a load. Why all ranks halt at the same one:
see core/job/planned_change.py.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from outlast.board.layout import BOUNDARIES, HALT, HELD, SAVED, SEALED
from outlast.board.slot import BoardSlot
from outlast.worker.session import Session, session

GLANCE = 0.002  # seconds from one look at the board to the next, for one who waits: no word of memory wakes anybody


@dataclass(frozen=True)
class LastBoundary:
    """This boundary is the last one before a planned change."""

    durable: bool  # what is saved there has to be on disk


class Boundaries:
    """Those of one process, counted from the start of its generation, whose ranks all come to the same ones."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._number = 0  # of the last one that was reached

    def begin_anew(self) -> None:
        """Count from 0, as new processes do, with which this one goes on."""
        self._number = 0

    def expect(self) -> None:
        """Say that this process will come to boundaries, and may be asked to halt at one."""
        self._session.slot.words[BOUNDARIES] = self._number + 1

    def reach(self) -> LastBoundary | None:
        """The next boundary is here. While a change is planned, waits to hear whether to halt; None: go on."""
        self._number += 1
        slot = self._session.slot
        slot.words[BOUNDARIES] = self._number + 1
        return self._wait(slot, self._number) if slot.words[HALT] else None

    def seal(self, step: int | None) -> None:
        """All that is to be saved at this boundary is, as this step (None: it could not be): wait for the end.

        Returns only if all ranks are to halt at a later one after all.
        """
        slot = self._session.slot
        slot.words[SAVED] = 0 if step is None else step + 1
        slot.words[SEALED] = self._number
        slot.ring()
        self._wait(slot, self._number + 1)

    def _wait(self, slot: BoardSlot, least: int) -> LastBoundary | None:
        """Until a boundary is named that is not before this one."""
        with self._session.pause_monitoring():
            slot.words[HELD] = self._number
            slot.ring()
            while (halt := slot.halting()) is not None and halt[0] < least:
                time.sleep(GLANCE)
        if halt is not None and halt[0] == self._number:
            return LastBoundary(durable=halt[1])
        slot.words[HELD] = 0
        return None


boundaries = Boundaries(session)
