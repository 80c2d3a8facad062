"""What watching costs: the coordinator's CPU time with observers and without, and how long the commands take.

One real coordinator process with simulated agents (crowd.py). In turns, in the same job: nobody watches; ten observers
follow its events and read the job's view once a second, one of them `outlast metrics`, scraped once a second; the same
with one observer that reads every node, as the page does. Then a real job of one node, and the commands as a person
runs them, each in a process of its own.

    python benchmarks/watching.py [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from control_plane import (
    HEARTBEAT,
    JOB,
    SPAWN,
    _answers,
    _end,
    _raise_limit,
    _start_crowd,
    start_coordinator,
)
from outlast.launch import Endpoint
from outlast.observe import Observer
from outlast.protocol.observers import Detail
from processes import Run, cpu_seconds, launcher, machine, table, until

CROWD = 1000  # agents in a process
GOAL_CPU, GOAL_COMMAND = 5.0, 0.3  # %, seconds
SCRIPT = """
import os, sys, time
import outlast
rank, life = int(os.environ["RANK"]), int(os.environ["OUTLAST_GENERATION"])
for step in range(1, 1_000_000):
    time.sleep(0.01)
    outlast.step(step)
    if rank == 1 and life == 1 and step == 50:
        sys.exit(7)
    if life == 2 and step == 50:
        open(f"{sys.argv[1]}/ready-{rank}", "w").close()
"""


class Watched(NamedTuple):
    """The coordinator's CPU, in % of a core, in each round."""

    alone: list[float]
    observed: list[float]
    with_nodes: list[float]


def watched(nodes: int, *, observers: int, seconds: float, rounds: int, deadline: float) -> Watched:
    """One job of this many agents, by turns without and with observers."""
    token = secrets.token_hex(16)
    with ExitStack() as stack:
        coordinator, endpoint = start_coordinator(stack, token, nodes, deadline)
        _form(stack, endpoint, token, nodes, deadline)
        _settle(coordinator.pid, deadline)
        found = Watched([], [], [])
        for _ in range(rounds + 1):
            found.alone.append(_cpu(coordinator.pid, seconds))
            for detail, into in ((Detail.JOB, found.observed), (Detail.RANKS, found.with_nodes)):
                with ExitStack() as audience:
                    _watch(audience, endpoint, token, observers, detail, deadline)
                    into.append(_cpu(coordinator.pid, seconds))
        return Watched(*(values[1:] or values for values in found))  # in the first round, much is done once


def _form(stack: ExitStack, endpoint: tuple[str, int], token: str, nodes: int, deadline: float) -> None:
    """All agents join, a crowd at a time: on a busy machine, thousands at once do not prove themselves in time."""
    links = []
    for first in range(0, nodes, CROWD):
        link, process = _start_crowd(endpoint, token, nodes, first, min(CROWD, nodes - first))
        stack.callback(_end, process)
        links.append(stack.enter_context(link))
        _answers([link], deadline)
        link.send("join")
        time.sleep(HEARTBEAT / 2)
    _answers(links, deadline)


def _settle(pid: int, deadline: float) -> None:
    """Wait until the coordinator has worked off what came in while the job formed."""
    until, last = time.monotonic() + deadline, 0.0
    while time.monotonic() < until:
        last, before = _cpu(pid, 2 * HEARTBEAT), last
        if abs(last - before) < 0.1 * last:
            return
    raise TimeoutError(f"the coordinator is not at rest after {deadline:g} s: {last:.0f} % of a core")


def _cpu(pid: int, seconds: float) -> float:
    time.sleep(2 * HEARTBEAT)  # what came before has settled
    before = cpu_seconds(pid)
    time.sleep(seconds)
    return 100 * (cpu_seconds(pid) - before) / seconds


def _watch(
    stack: ExitStack, endpoint: tuple[str, int], token: str, observers: int, detail: Detail, deadline: float
) -> None:
    """All but one of them in a process, and `outlast metrics`, scraped, as the last. Returns when all have answers."""
    ours, theirs = SPAWN.Pipe()
    audience = SPAWN.Process(target=_audience, args=(theirs, endpoint, token, observers - 1, detail), daemon=True)
    audience.start()
    stack.callback(_end, audience)
    stack.enter_context(ours)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    flags = ["metrics", "--listen", address, "--endpoint", f"{endpoint[0]}:{endpoint[1]}"]
    metrics = subprocess.Popen(
        [sys.executable, "-m", "outlast", *flags],
        env={**os.environ, "OUTLAST_TOKEN": token},
        stdout=subprocess.DEVNULL,
    )
    stack.callback(metrics.wait)
    stack.callback(metrics.kill)
    scraper = SPAWN.Process(target=_scrape, args=(theirs, f"http://{address}/metrics"), daemon=True)
    scraper.start()
    stack.callback(_end, scraper)
    _answers([ours, ours], deadline)


def _audience(told: Connection, endpoint: tuple[str, int], token: str, observers: int, detail: Detail) -> None:
    asyncio.run(_look(told, Endpoint(*endpoint), token, observers, detail))


async def _look(told: Connection, endpoint: Endpoint, token: str, observers: int, detail: Detail) -> None:
    async def events(observer: Observer) -> None:
        async for _ in observer.events():
            pass

    async def views(observer: Observer, detail: Detail) -> None:
        while True:
            await observer.view(detail)
            await asyncio.sleep(1.0)

    all_of = [Observer([endpoint], token, job=JOB) for _ in range(observers)]
    for observer in all_of:
        await observer.view()
    told.send("ready")
    details = [detail, *[Detail.JOB] * (observers - 1)]
    following = [events(each) for each in all_of]
    reading = [views(each, which) for each, which in zip(all_of, details, strict=True)]
    await asyncio.gather(*following, *reading)


def _scrape(told: Connection, url: str) -> None:
    ready = False
    while True:
        with suppress(OSError):
            with urllib.request.urlopen(url, timeout=5) as answer:
                answer.read()
            if not ready:
                told.send("ready")
                ready = True
        time.sleep(1.0)


def logs(nodes: int, *, seconds: float, rounds: int, deadline: float) -> tuple[list[float], list[float], list[float]]:
    """The coordinator's CPU with nobody and with `outlast logs -f`, by turns; seconds that `outlast logs` takes."""
    token, alone, followed, took = secrets.token_hex(16), [], [], []
    with ExitStack() as stack:
        coordinator, endpoint = start_coordinator(stack, token, nodes, deadline)
        _form(stack, endpoint, token, nodes, deadline)
        _settle(coordinator.pid, deadline)
        argv = [sys.executable, "-m", "outlast", "logs", "--endpoint", f"{endpoint[0]}:{endpoint[1]}"]
        env = {**os.environ, "OUTLAST_TOKEN": token}
        for _ in range(rounds):
            alone.append(_cpu(coordinator.pid, seconds))
            following = subprocess.Popen([*argv, "-f"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            followed.append(_cpu(coordinator.pid, seconds))
            following.kill()
            following.wait()
            began = time.monotonic()
            subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL)
            took.append(time.monotonic() - began)
    return alone, followed, took


def _print_logs(alone: list[float], followed: list[float], took: list[float]) -> bool:
    rows = [["nobody", _spread(alone, 1), ""], ["outlast logs -f", _spread(followed, 1), _spread(took, 1)]]
    print("\n" + table(["who reads logs", "coordinator, % of a core", "once, without -f: s"], rows), flush=True)
    return True


class Command(NamedTuple):
    """Seconds by the clock and of CPU, in each run."""

    name: str
    wall: list[float]
    cpu: list[float]


def commands(rounds: int) -> list[Command]:
    """`outlast status` and `outlast why`, on a job that runs and has had a fault, beside a bare Python."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "train.py").write_text(SCRIPT)
        name = f"watching-{os.getpid()}"
        meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", f"--rdzv-id={name}"]
        flags = [*meeting, "--nproc-per-node=2", "--max-restarts=3", str(folder / "train.py"), str(folder)]
        run = stack.enter_context(Run(launcher("outlast", *flags), log=folder / "log"))
        until(lambda: len([*folder.glob("ready-*")]) == 2, timeout=60, runs=[run], what="second generation")
        # As installed: compiled once, which a source tree need not be.
        env = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        outlast = [sys.executable, "-m", "outlast"]
        argvs = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "outlast status": [*outlast, "status", "--job", name],
            "outlast why": [*outlast, "why", "--job", name],
        }
        return [Command(each, *_timed(argv, env, rounds)) for each, argv in argvs.items()]


def _timed(argv: list[str], env: dict[str, str], rounds: int) -> tuple[list[float], list[float]]:
    wall, cpu = [], []
    for _ in range(rounds + 1):
        began, used = time.monotonic(), _children_cpu()
        subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL)
        wall.append(time.monotonic() - began)
        cpu.append(_children_cpu() - used)
    return wall[1:], cpu[1:]  # the first one compiles


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _print_watched(found: Watched) -> bool:
    rows, good = [], True
    names = ("nobody", "10 observers, metrics scraped", "the same, one reads all nodes")
    for name, values in zip(names, found, strict=True):
        more = [100 * (value / alone - 1) for value, alone in zip(values, found.alone, strict=True)]
        rows.append([name, _spread(values, 1), "-" if values is found.alone else _spread(more, 1)])
        good &= statistics.median(more) <= GOAL_CPU
    print(table(["who watches", "coordinator, % of a core", "more than alone, %"], rows), flush=True)
    return good


def _print_commands(found: Sequence[Command]) -> bool:
    rows = [[each.name, _spread(each.wall, 2), _spread(each.cpu, 2)] for each in found]
    print("\n" + table(["command", "wall, s", "CPU, s"], rows))
    return all(statistics.median(each.wall) <= GOAL_COMMAND for each in found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--observers", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20, help="in which CPU time is counted, in each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--commands", type=int, default=10, help="runs of each command")
    parser.add_argument("--only", choices=["watched", "logs", "commands"], help="one part of it")
    parser.add_argument("--deadline", type=float, default=60)
    parser.add_argument("--quick", action="store_true", help="small and once: does it work?")
    args = parser.parse_args()
    if args.quick:
        args.nodes, args.seconds, args.rounds, args.commands = 500, 3, 1, 3
    if args.nodes + 200 > _raise_limit():
        parser.error("more nodes than this user may have open files: raise the hard limit (ulimit -Hn)")
    print(f"{machine()}; {args.nodes:,} agents\n")
    parts: dict[str, Callable[[], bool]] = {
        "watched": lambda: _print_watched(
            watched(
                args.nodes,
                observers=args.observers,
                seconds=args.seconds,
                rounds=args.rounds,
                deadline=args.deadline,
            )
        ),
        "logs": lambda: _print_logs(
            *logs(args.nodes, seconds=args.seconds, rounds=args.rounds, deadline=args.deadline)
        ),
        "commands": lambda: _print_commands(commands(args.commands)),
    }
    met = [part() for name, part in parts.items() if args.only in (None, name)]
    print(f"\nthe goals ({GOAL_CPU:g} % more, {GOAL_COMMAND:g} s) are {'met' if all(met) else 'MISSED'}")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
