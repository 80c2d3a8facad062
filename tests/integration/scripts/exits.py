"""A worker that prints on both streams and exits: `exits.py CODE…` gives a code, a signal or `wait` for each rank."""

import os
import signal
import sys

rank = int(os.environ["RANK"])
os.write(1, f"out of {rank}\n".encode())
os.write(2, f"err of {rank}\n".encode())
how = sys.argv[1:][rank]
if how == "wait":
    signal.pause()
if how.startswith("SIG"):
    os.kill(os.getpid(), signal.Signals[how])
    signal.pause()
sys.exit(int(how))
