"""What a script of `real_scripts.py` notes for the benchmark: which step is done, by which process, when."""

from __future__ import annotations

import os
import signal
import sys
import time

FAULTS: list[int] = []


def note(step: int) -> None:
    """This process has done this step. Raises, if the benchmark has asked for an exception."""
    line = f"{os.environ['TORCHELASTIC_RESTART_COUNT']} {step} {time.monotonic()} {os.getpid()}\n"
    descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)
    if FAULTS:
        FAULTS.clear()
        raise RuntimeError("the benchmark asked for a fault")


signal.signal(signal.SIGUSR1, lambda *_: FAULTS.append(1))
