"""A worker whose signal handler takes a while, as one that saves does; it says how many signals it got meanwhile.

Rank 1 exits with 7 on SIGUSR2. In later generations than the first all exit with 0 at once.
"""

import os
import signal
import sys
import time
from types import FrameType

SAVING = 2.5  # seconds, in which several heartbeats pass

rank, generation = os.environ["RANK"], os.environ["OUTLAST_GENERATION"]
signals: list[str] = []


def say(text: str) -> None:
    """One write for one line: workers share the console."""
    os.write(1, f"rank {rank} {text} in generation {generation}\n".encode())


def save(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    signals.append(signal.Signals(number).name)
    if len(signals) > 1:
        return
    end = time.monotonic() + SAVING
    while time.monotonic() < end:
        time.sleep(0.01)
    say(f"saved after {' '.join(signals[:10])}")
    sys.exit(0)


signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(7))
say(f"waits, pid {os.getpid()},")
while generation == "1":
    signal.pause()
