"""Watches the workers of one generation through their board: who is late, who asks for something.

    watch = Watch(nproc, limits, late=…, asked=…, calibrate=…)
    environment["OUTLAST_BOARD"] = watch.address(local_rank)
    watch.begin()          # once the workers live
    watch.exited(3)        # what a dying worker has written last is read then
    watch.close()

Nothing is polled: it wakes when the first clock of a rank can have run out, and when a worker rings the bell. Times are
those of `time.monotonic()`, which is the event loop's clock as well.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from outlast.board.board import Board
from outlast.board.layout import NAME_SIZE
from outlast.board.readings import LastWords, Reading, Request, Totals
from outlast.board.slot import cut
from outlast.core.hangs.rank_clocks import (
    SECTION,
    SUSPICIOUS_AFTER,
    Clock,
    RankClock,
    Timeouts,
    calibrated,
    late,
    look_again,
    merged,
    suspicion,
)
from outlast.protocol.generations import Halted
from outlast.settings.settings import Settings
from outlast.settings.values import section_timeouts

HELD_UP = 1.0  # seconds that this process is late itself, when it must have been stopped


@dataclass(frozen=True)
class Limits:
    """What the user has set about hangs."""

    detection: str  # "on", "report" or "off"
    timeouts: Timeouts
    factor: float

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """From the settings, where 0 is none.

        >>> Limits.of(Settings(rank_section_timeouts="step:30")).timeouts.sections
        {'step': 30.0}
        """
        sections = section_timeouts(settings.rank_section_timeouts)
        timeouts = Timeouts(
            startup=settings.initial_rank_heartbeat_timeout or None,
            heartbeat=settings.rank_heartbeat_timeout or None,
            sections={cut(name, NAME_SIZE): seconds for name, seconds in sections.items()},
            outside=settings.rank_out_of_section_timeout or None,
        )
        return cls(settings.hang_detection, timeouts, settings.safety_factor)


@dataclass(frozen=True)
class Hang:
    """A rank that is late, and what the board says of it. `verdict`: by a timeout that is there to end it."""

    local_rank: int
    late: RankClock
    reading: Reading
    verdict: bool

    def __str__(self) -> str:
        """Where and for how long: "it has been in section 'step' for 30 s; 17 steps, the last 31 s ago"."""
        reading, now = self.reading, self.reading.read_at
        facts = []
        if len(reading.sections) > 1 or (reading.sections and not self.late.section):
            facts.append("in " + " > ".join(section.name for section in reading.sections))
        if reading.step is not None and reading.step_at is not None:
            facts.append(f"step {reading.step} was {now - reading.step_at:.1f} s ago")
        elif reading.beat_at is not None:
            facts.append(f"its last heartbeat was {now - reading.beat_at:.1f} s ago")
        return "; ".join([str(self.late), *facts])


class Watch:
    """The board of one generation, and the look at it. Made within a running event loop, just before the workers.

    `late` is called with those who are newly late, `asked` with what a rank asks for, `calibrate` when one wants that,
    `rung` whenever a worker has rung the bell, for whatever else it may have left somewhere.
    """

    def __init__(
        self,
        nproc: int,
        limits: Limits,
        *,
        late: Callable[[list[Hang]], None],
        asked: Callable[[int, Request], None],
        calibrate: Callable[[], None],
        rung: Callable[[], None] = lambda: None,
        longest: Mapping[str, float] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._board = Board(nproc, tuple(limits.timeouts.sections))
        self._limits = limits
        self._tell_late, self._asked, self._calibrate, self._heard = late, asked, calibrate, rung
        self._judged = set(range(nproc)) if limits.detection != "off" else set()
        self._numbers = [0] * nproc  # of the newest request of each
        self._calibrations = [0] * nproc
        self._told: dict[int, tuple[Clock, str, float]] = {}
        self._awake_since = 0.0
        self._halt: int | None = None  # the boundary at which the workers are to halt
        self._timer: asyncio.TimerHandle | None = None
        self._timeouts = limits.timeouts
        self._loop.add_reader(self._board.bell, self._rung)
        if longest:
            self.agree(longest)

    @property
    def timeouts(self) -> Timeouts:
        """Those in force: as set, and as calibrated where something was measured."""
        return self._timeouts

    @property
    def late(self) -> frozenset[int]:
        """The local ranks that were late when the board was last looked at."""
        return frozenset(self._told)

    def address(self, local_rank: int) -> str:
        """What this worker finds its place on the board by."""
        return self._board.address(local_rank)

    def begin(self) -> None:
        """The workers live: from now on they can be late."""
        self._look()

    def measures(self) -> dict[str, float]:
        """How long things took at most, on any of the workers here."""
        return merged(reading.longest for reading in self._readings())

    def agree(self, longest: Mapping[str, float]) -> None:
        """This is what all ranks of the job have measured: make timeouts of it, and let the workers know."""
        self._timeouts = calibrated(self._limits.timeouts, longest, factor=self._limits.factor)
        self._board.agree(json.dumps(longest))
        self._look()

    def halt(self, at: int, durable: bool) -> None:
        """Let the workers save at this boundary between their steps, and wait there; 0: it is not named yet."""
        self._halt = at
        self._board.halt(at, durable)

    def halted(self) -> Halted | None:
        """How far they have come; None: they are not to halt."""
        if self._halt is None:
            return None
        all_of_them = self._board.progress()
        sealed = min(each.sealed for each in all_of_them)
        steps = {each.step for each in all_of_them} if sealed else {None}
        return Halted(
            at=self._halt,
            able=all(each.able for each in all_of_them),
            passed=max(each.passed for each in all_of_them),
            sealed=sealed,
            step=steps.pop() if len(steps) == 1 else None,
        )

    def awoke(self) -> None:
        """This process was held up, and the workers may have been with it: they get their time again."""
        self._awake_since = time.monotonic()

    def reading(self, local_rank: int) -> Reading:
        """What a worker has written, as it is now."""
        return self._board.read(local_rank)

    def sections(self) -> set[str]:
        """The names of all sections that a worker here has been in."""
        readings = self._readings()
        closed = {what.removeprefix(SECTION) for each in readings for what in each.longest if what.startswith(SECTION)}
        return closed | {section.name for each in readings for section in each.sections}

    def totals(self, local_rank: int) -> Totals | None:
        """How far a worker has come, and what its time went into; None: it has made no step."""
        return self._board.totals(local_rank)

    def last_words(self, local_rank: int) -> LastWords | None:
        """The exception that a worker has ended with."""
        return self._board.last_words(local_rank)

    def exited(self, local_rank: int) -> None:
        """A worker has ended: take what it has written last, and watch it no more."""
        self._hear(local_rank, self._board.read(local_rank))
        self._judged.discard(local_rank)

    def readmit(self, local_rank: int) -> None:
        """Another process takes the place of a worker that has ended: watch that one."""
        self._board.renew(local_rank)
        if self._limits.detection != "off":
            self._judged.add(local_rank)
        self._look()

    def rest(self) -> None:
        """The workers are being ended: nobody is late any more. What they ask for is still heard."""
        self._judged.clear()
        self._cancel()

    def close(self) -> None:
        """Read the board for the last time, and let go of it."""
        self.rest()
        self._loop.remove_reader(self._board.bell)
        self._hear_all(enumerate(self._readings()))
        self._board.close()

    def _rung(self) -> None:
        self._board.hush()
        self._look()
        self._heard()

    def _woken(self, due: float) -> None:
        self._timer = None
        if time.monotonic() - due > HELD_UP:
            self.awoke()
        self._look()

    def _look(self) -> None:
        """Read the board: what is asked for, who is late, and when the next one can be."""
        self._cancel()
        readings = dict(enumerate(self._readings()))
        self._hear_all(readings.items())
        verdict = self._timeouts != Timeouts()
        timeouts = self._timeouts if verdict else self._suspicion(readings.values())
        found, times = [], []
        for local_rank in sorted(self._judged):
            reading = readings[local_rank]
            overdue = late(reading, reading.read_at, timeouts, awake_since=self._awake_since)
            if overdue is None:
                self._told.pop(local_rank, None)
                times.append(look_again(reading, timeouts, awake_since=self._awake_since))
            else:
                times.append(self._next_look(reading, timeouts))
                # Not by when it is due: that changes with what others have measured.
                this = (overdue.clock, overdue.section, overdue.since)
                if self._told.get(local_rank) != this:
                    self._told[local_rank] = this
                    found.append(Hang(local_rank, overdue, reading, verdict and self._limits.detection == "on"))
            if not verdict:
                times.append(reading.read_at + SUSPICIOUS_AFTER)
        due = min((at for at in times if at is not None), default=None)
        if due is not None:
            self._timer = self._loop.call_at(due, self._woken, due)
        if found:
            self._tell_late(sorted(found, key=lambda hang: hang.late.due))

    def _suspicion(self, readings: Iterable[Reading]) -> Timeouts:
        return suspicion(merged(reading.longest for reading in readings), factor=self._limits.factor)

    def _next_look(self, reading: Reading, timeouts: Timeouts) -> float:
        """At one that is late and lives on: whether it has moved."""
        lengths = [timeouts.heartbeat, timeouts.outside, timeouts.startup, *timeouts.sections.values()]
        return reading.read_at + min(length for length in lengths if length is not None)

    def _hear_all(self, readings: Iterable[tuple[int, Reading]]) -> None:
        for local_rank, reading in readings:
            self._hear(local_rank, reading)

    def _hear(self, local_rank: int, reading: Reading) -> None:
        request = reading.request
        if request is not None and request.number > self._numbers[local_rank]:
            self._numbers[local_rank] = request.number
            self._asked(local_rank, request)
        if reading.calibrations > self._calibrations[local_rank]:
            self._calibrations[local_rank] = reading.calibrations
            self._calibrate()

    def _readings(self) -> list[Reading]:
        return [self._board.read(local_rank) for local_rank in range(len(self._numbers))]

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
