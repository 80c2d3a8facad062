"""Forks, for every line on its standard input, a process that saves for ever: `saves.py DIRECTORY ARENA`.

The state of step N is full of Ns, so that half of another one would show. The fork saves the time to import torch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from outlast.checkpoint.trainer.checkpointer import Checkpointer

PIECES, SIZE = 8, 1 << 16


def state(step: int) -> dict[str, Any]:
    return {"w": {f"piece{number}": torch.full((SIZE,), float(step)) for number in range(PIECES)}, "step": step}


def checkpointer(directory: Path, arena: Path) -> Checkpointer:
    """As under a launcher, but that nobody writes to disk: all that counts is what is in memory."""
    made = Checkpointer(directory)
    made._memory.place = arena
    return made


def save_for_ever(directory: Path, arena: Path) -> None:
    saver = checkpointer(directory, arena)
    now = state(0)
    start = saver.restore(now)
    for step in range(start + 1, 1 << 30):
        for piece in now["w"].values():
            piece.fill_(step)
        now["step"] = step
        saver.save(step, now)
        print(f"saved {step} by {os.getpid()}", flush=True)


def main() -> None:
    directory, arena = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    print("ready", flush=True)
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            save_for_ever(directory, arena)
        os.waitpid(child, 0)
        print("gone", flush=True)


if __name__ == "__main__":
    main()
