"""The clock that leases are counted on."""

from __future__ import annotations

import time


def now() -> float:
    """Seconds since this machine was booted, with the time that it slept.

    A machine that is suspended gets no time from the others: its lease ends, and they go on without it. CLOCK_MONOTONIC
    (`time.monotonic()`, asyncio's `loop.time()`) stands still meanwhile: after an hour of sleep, workers would run on
    for the rest of their lease beside the next generation, and an answer that lay in the socket would renew it.
    CLOCK_BOOTTIME goes on, and is never set. So whoever holds or grants something until a time asks this clock
    for `now`, and asyncio only to be woken: `loop.call_later(deadline - now(), …)`.

    What no clock of a guest shows is a hypervisor that stops the whole machine with its clocks.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)
