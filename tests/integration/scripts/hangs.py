"""A worker that works, and then does what it is told: `hangs.py HOW [RANK [GENERATIONS]]`.

A step takes a moment; after the third one, this rank of the first GENERATIONS generations (1) does HOW. In later ones
it ends well after five steps, as all others do when nobody keeps them.
"""

import ctypes
import os
import signal
import sys
import time

import outlast

HOW = sys.argv[1]
CULPRIT = int(sys.argv[2]) if len(sys.argv) > 2 else 1
GENERATIONS = int(sys.argv[3]) if len(sys.argv) > 3 else 1
GENERATION, RANK = int(os.environ["OUTLAST_GENERATION"]), int(os.environ["RANK"])


def say(text: str) -> None:
    """One write for one line: workers share the console."""
    os.write(1, f"rank {RANK} of generation {GENERATION}: {text}\n".encode())


def for_ever() -> None:
    while True:
        time.sleep(3600)


def act() -> None:
    what, _, rest = HOW.partition(":")
    say(f"now {what}")
    if what == "sleep":
        for_ever()
    elif what == "section":
        with outlast.section("epoch"), outlast.section("step"):
            for_ever()
    elif what == "outside":
        with outlast.section("step"):
            pass
        for_ever()
    elif what == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
        for_ever()
    elif what == "holding":
        while True:  # a signal ends the sleep, as that of whoever looks where it is
            ctypes.PyDLL(None).sleep(3600)  # with the interpreter's lock held
    elif what == "deaf":
        signal.signal(signal.SIGTERM, lambda *_: say("got SIGTERM"))
        while True:
            time.sleep(3600)
    elif what == "pause":
        with outlast.pause_monitoring():
            time.sleep(float(rest))
    elif what == "late":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        signal.sigtimedwait([signal.SIGUSR1], float(rest))
    elif what == "control":
        action, _, ending = rest.partition(":")
        outlast.control(action, f"because of {action}\nand more")
        if ending == "dies":
            os._exit(3)
        for_ever()


say(f"pid {os.getpid()}")
if HOW == "silent" and RANK == CULPRIT and GENERATION <= GENERATIONS:
    for_ever()
for step in range(1, 6):
    with outlast.section("step"):
        outlast.step(step)
        time.sleep(0.02)
    if step == 3 and RANK == CULPRIT and GENERATION <= GENERATIONS:
        act()
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append("enough"))
if GENERATION <= GENERATIONS and RANK != CULPRIT and HOW not in ("pause:3.5", "late:3.5", "late:600"):
    with outlast.section("wait"):
        while not told:  # the others wait for it, as in a collective, and are alive
            outlast.heartbeat()
            time.sleep(0.05)
say("done")
os._exit(0)  # the interpreter's own end is watched as well, and may take longer than the tests' timeouts
