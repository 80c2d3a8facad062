"""Snapshots for tests, without torch: slots that are full of one byte, which tells which save they are."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from random import Random
from typing import Any

from outlast.checkpoint.memory.arena import Arena
from outlast.checkpoint.memory.slot import Mark, Slot, Ticket
from outlast.checkpoint.storage.format import Save

SIZE = 1 << 20


def ticket(sequence: int, *, run: str = "ab", rank: int = 0, **more: Any) -> Ticket:
    """What would be in the slot of this save."""
    save = Save(run=run, sequence=sequence, step=sequence, generation=1, world=1)
    common = {"here": 1, "saved_at": float(sequence), "origin": "o", "directory": "/x", "keep_last": 3}
    sizes = {"layout": "l", "length": SIZE, "table": 0, "contents": 0, "blanks": 0, "durable": False}
    return Ticket(**{"save": save, "rank": rank, **common, **sizes, **more})


def mark(sequence: int) -> Mark:
    return "ab", sequence


def fill(arena: Arena, sequence: int, keep: Mark | None, **more: Any) -> Slot:
    """Take a snapshot."""
    with arena.take(SIZE, {keep}) as slot:
        slot.begin()
        slot.data[:SIZE] = bytes([sequence % 256]) * SIZE
        slot.seal(ticket(sequence, **more))
    return slot


def kill_within(seconds: float, chance: Random, script: str, *args: Path) -> None:
    """Run a script until some time after it has said that it is ready, and kill it."""
    with subprocess.Popen(
        [sys.executable, "-c", script, Path(__file__).parent, *args], stdout=subprocess.PIPE
    ) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"ready\n"
        threading.Event().wait(chance.random() * seconds)
        assert victim.poll() is None, "it ended by itself"
        victim.send_signal(signal.SIGKILL)
