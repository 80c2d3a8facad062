"""A worker that imports the modules named by its arguments, trains two steps, and waits until it is told to end.

It says first which of these modules were there before it imported anything.
"""

import sys

THERE = [name for name in sys.argv[1:] if name in sys.modules]

import importlib  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402

import torch  # noqa: E402

for name in sys.argv[1:]:
    importlib.import_module(name)
generation = os.environ["OUTLAST_GENERATION"]
torch.optim.optimizer.step()
torch.optim.optimizer.step()
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
os.write(1, f"generation {generation}: pid {os.getpid()} parent {os.getppid()} had [{' '.join(THERE)}]\n".encode())
while True:
    signal.pause()
