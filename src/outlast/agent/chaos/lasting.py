"""Faults that last: a process of its own for each, which takes back what it did when its time is over or it is ended.

Started as `AGENT NAME SECONDS VALUE TEXT PEER…`. What it takes is freed by the kernel if it is killed: memory and files
without a name; rules of the network are taken back by itself, also when the agent has died.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

from outlast.system import prctl

CHUNK = 64 << 20  # bytes


class TimeIsOver(BaseException):
    """Somebody wants it to end."""


def main() -> int:
    """Do it, wait, take it back."""
    agent, name, seconds, value, text, *peers = sys.argv[1:]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    kinds: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "overload-cpu": lambda: busy(float(value)),
        "fill-disk": lambda: filled(text),
        "fill-shm": lambda: filled(text),
        "cut-network": lambda: cut(peers, text, float(value)),
        "slow-network": lambda: slowed(peers[0], float(value)),
        "clock-jump": lambda: shifted(float(value)),
    }
    if name in ("overload-cpu", "fill-disk", "fill-shm"):
        prctl.die_with(int(agent))
    try:
        with kinds[name]():
            time.sleep(float(seconds))
    except TimeIsOver:
        return 0
    return 0


def _end(_number: int, _frame: FrameType | None) -> None:
    raise TimeIsOver


@contextmanager
def busy(share: float) -> Iterator[None]:
    """As many processes as there are CPUs, each busy for this share of the time."""
    context = multiprocessing.get_context("fork")
    burners = [
        context.Process(target=_burn, args=(share, os.getpid()), daemon=True) for _ in range(os.cpu_count() or 1)
    ]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


def _burn(share: float, parent: int) -> None:
    prctl.die_with(parent)
    while True:
        until = time.perf_counter() + 0.1 * share
        while time.perf_counter() < until:
            pass
        time.sleep(0.1 * (1 - share))


@contextmanager
def filled(directory: str) -> Iterator[None]:
    """All free space, in a file without a name."""
    with tempfile.TemporaryFile(dir=directory) as file:
        size, step = 0, CHUNK
        while step >= 4096:
            try:
                os.posix_fallocate(file.fileno(), size, step)
                size += step
            except OSError:
                step //= 2
        yield


@contextmanager
def cut(peers: list[str], direction: str, loss: float) -> Iterator[None]:
    """Packets from (`in`), to (`out`) or between (`both`) these and this node are lost: this share of them."""
    chance = [] if loss >= 1 else ["-m", "statistic", "--mode", "random", "--probability", f"{loss:g}"]
    rules = [["INPUT", "-s", peer, *chance, "-j", "DROP"] for peer in peers if direction in ("in", "both")]
    rules += [["OUTPUT", "-d", peer, *chance, "-j", "DROP"] for peer in peers if direction in ("out", "both")]
    done: list[list[str]] = []
    try:
        for rule in rules:
            subprocess.run(["iptables", "-w", "-I", *rule], check=True)
            done.append(rule)
        yield
    finally:
        for rule in done:
            subprocess.run(["iptables", "-w", "-D", *rule], check=False)


@contextmanager
def slowed(peer: str, delay: float) -> Iterator[None]:
    """Every packet towards the others takes so many seconds longer."""
    route = subprocess.run(
        ["ip", "-o", "route", "get", peer], check=True, capture_output=True, text=True
    ).stdout.split()
    device = route[route.index("dev") + 1]
    rule = ["dev", device, "root", "netem", "delay", f"{round(delay * 1000)}ms"]
    subprocess.run(["tc", "qdisc", "add", *rule], check=True)
    try:
        yield
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", device, "root"], check=False)


@contextmanager
def shifted(seconds: float) -> Iterator[None]:
    """The clock of this machine is wrong by so many seconds."""
    time.clock_settime(time.CLOCK_REALTIME, time.time() + seconds)
    try:
        yield
    finally:
        time.clock_settime(time.CLOCK_REALTIME, time.time() - seconds)
