"""When a rank is late. Pure: what the board says of it and the time go in, which clock has run out comes out.

Four clocks, each watched only if it has a timeout, and none while the rank asked for a pause:

- **startup**: from the start of the process to its first heartbeat or step, or to the end of its first section. While a
  section is open that has a timeout of its own, that one counts.
- **heartbeat**: since the last heartbeat or step. A rank that never gave one has sections, and is watched by them.
- **section**: for each open section, the outer ones as well, since it was opened.
- **outside**: while no section is open, since the last one was closed. Before the first one it is still starting up.

There are two kinds of timeouts, and they mean different things:

- What the user has set, or asked for with `outlast.calibrate()`: `late` is a **verdict**, and the rank is ended.
- What nobody asked for (`suspicion`, from what the ranks themselves have measured): `late` is a **suspicion**. It makes
  the agents look, compare and report, and never ends a rank by itself. For time alone cannot tell a hang from the first
  long checkpoint, an hour of evaluation without an optimizer step, or a compilation: whatever was measured before, the
  next one may take a hundred times as long. Zero false alarms needs evidence that nothing moves, not another number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from outlast.board.readings import Reading

SAFETY_FACTOR = 5.0
# However short a section is, the machine itself stops for seconds now and then: a file server, swapping, a CPU quota.
AT_LEAST = 30.0
# The next start may find nothing in any cache: neither files, nor compiled kernels, nor a zygote.
STARTUP_AT_LEAST = 600.0
SUSPICIOUS_AFTER = 60.0
SECTION = "section:"
MOST_NAMES = 64  # more than one rank can have; what is agreed on has to find room on the board


class Clock(str, Enum):
    """What a rank can be late with."""

    STARTUP = "startup"
    HEARTBEAT = "heartbeat"
    SECTION = "section"
    OUTSIDE = "outside"


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds; None: not watched. A section that has no timeout of its own is not watched."""

    startup: float | None = None
    heartbeat: float | None = None
    sections: Mapping[str, float] = {}
    outside: float | None = None


class RankClock(msgspec.Struct, frozen=True):
    """One clock of a rank: since when it runs, and when it has run out."""

    clock: Clock
    since: float
    due: float
    section: str = ""

    def __str__(self) -> str:
        timeout = f"{self.due - self.since:g} s"
        return {
            Clock.STARTUP: f"it gave no sign of life within {timeout} of its start",
            Clock.HEARTBEAT: f"it had no heartbeat or step for {timeout}",
            Clock.SECTION: f"it has been in section {self.section!r} for {timeout}",
            Clock.OUTSIDE: f"it has been outside any section for {timeout}",
        }[self.clock]


def late(reading: Reading, now: float, timeouts: Timeouts, *, awake_since: float = 0.0) -> RankClock | None:
    """The clock that ran out first, if one has.

    `now` is the time before the board was read (`reading.read_at`), or the rank may have gone on since.
    `awake_since`: no clock has run before this. For a watcher that was stopped itself, together with the ranks (Ctrl-Z,
    a frozen container): it finds everybody late, and must give them their time again.
    """
    first = min(_clocks(reading, timeouts, awake_since), key=_due, default=None)
    return first if first is not None and first.due <= now else None


def deadline(reading: Reading, timeouts: Timeouts, *, awake_since: float = 0.0) -> float | None:
    """When this rank is late if nothing happens until then; None: never."""
    return min(map(_due, _clocks(reading, timeouts, awake_since)), default=None)


def look_again(reading: Reading, timeouts: Timeouts, *, awake_since: float = 0.0) -> float | None:
    """When to look next, so that nobody is found late too late; None: never.

    Not only when a clock that runs now runs out: one that is started right after this look is due no sooner than the
    shortest timeout later.
    """
    due = deadline(reading, timeouts, awake_since=awake_since)
    shortest = min((t for t in (timeouts.heartbeat, timeouts.outside, *timeouts.sections.values()) if t), default=None)
    times = [due, reading.read_at + shortest if shortest is not None else None]
    if due is None and timeouts.startup is not None:
        times.append(reading.read_at + timeouts.startup)  # a pause may end
    return min((t for t in times if t is not None), default=None)


def merged(measured: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The longest times of all ranks together: nobody is late who takes as long as another one did.

    Of a script that has other sections on every rank, those that took longest: it all goes over the wire, and to all.
    """
    longest: dict[str, float] = {}
    for each in measured:
        for what, seconds in each.items():
            longest[what] = max(seconds, longest.get(what, 0.0))
    if len(longest) > MOST_NAMES:
        longest = dict(sorted(longest.items(), key=lambda item: (-item[1], item[0]))[:MOST_NAMES])
    return longest


def aged(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """What to carry on: never shorter than what is measured now, half way down from what was measured before.

    So one bad day of a file server is forgotten in time, and what does not occur any more is kept.
    """
    return {
        what: max(now[what], (now[what] + before.get(what, 0.0)) / 2) if what in now else before[what]
        for what in {**before, **now}
    }


def calibrated(
    timeouts: Timeouts, longest: Mapping[str, float], *, factor: float = SAFETY_FACTOR, at_least: float = AT_LEAST
) -> Timeouts:
    """The timeouts, with those that were measured made from that: the longest so far, times a factor.

    >>> calibrated(Timeouts(outside=30), {"heartbeat": 4.0, "section:save": 90.0}).sections
    {'save': 450.0}
    """

    def limit(what: str, otherwise: float | None) -> float | None:
        return max(at_least, factor * longest[what]) if what in longest else otherwise

    startup = limit("startup", timeouts.startup)
    return Timeouts(
        startup=max(startup, STARTUP_AT_LEAST) if startup is not None and "startup" in longest else startup,
        heartbeat=limit("heartbeat", timeouts.heartbeat),
        outside=limit("outside", timeouts.outside),
        sections={
            **timeouts.sections,
            **{
                what[len(SECTION) :]: max(at_least, factor * seconds)
                for what, seconds in longest.items()
                if what.startswith(SECTION)
            },
        },
    )


def suspicion(longest: Mapping[str, float], *, factor: float = SAFETY_FACTOR) -> Timeouts:
    """When to take a look, if nobody has set or calibrated anything. Not at start-up: there is no measure for it."""
    known = {what: seconds for what, seconds in longest.items() if what != Clock.STARTUP.value}
    return calibrated(Timeouts(), known, factor=factor, at_least=SUSPICIOUS_AFTER)


def _clocks(reading: Reading, timeouts: Timeouts, awake_since: float) -> Iterator[RankClock]:
    """The clocks that run for this rank, and have a timeout."""
    if reading.paused:
        return
    floor = max(awake_since, reading.resumed_at or 0.0)
    outside = not reading.sections and reading.closed_at is not None
    begun = reading.beat_at is not None or reading.closed_at is not None
    silent = not begun and not any(each.name in timeouts.sections for each in reading.sections)
    running = [
        (Clock.STARTUP, reading.born_at if silent else None, timeouts.startup, ""),
        (Clock.HEARTBEAT, reading.beat_at, timeouts.heartbeat, ""),
        (Clock.OUTSIDE, reading.closed_at if outside else None, timeouts.outside, ""),
        *((Clock.SECTION, each.since, timeouts.sections.get(each.name), each.name) for each in reading.sections),
    ]
    for clock, began, timeout, section in running:
        if began is not None and timeout is not None:
            since = max(began, floor)
            yield RankClock(clock, since, since + timeout, section)


def _due(clock: RankClock) -> float:
    return clock.due
