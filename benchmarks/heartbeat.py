"""What a heartbeat, a section and a step cost the training loop: Outlast against nvidia-resiliency-ext.

Each contender is a process of its own in its own environment, with somebody who listens: Outlast's board is read by
this process all the while, as an agent would; nvidia-resiliency-ext has its rank monitor. They take turns. Nanoseconds
are the median over batches of the mean within a batch (the best batch in brackets).

A training step of about a millisecond (torch on one CPU) is measured with and without, alternating step by step: the
fifth of the steps that nobody else on the machine delayed. "One call" is a step, or a heartbeat where there is none;
"all" is three sections, a heartbeat and a step. After a millisecond of torch nothing of Python's is in a cache, so both
cost more than above: "all, empty" is as many calls of empty functions. "Nothing" compares the plain step with itself,
and says what such a difference is worth.

    python benchmarks/heartbeat.py [--quick] [--place DIRECTORY]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

OURS, OFF, PEER = "outlast", "outlast, started without it", "nvidia-resiliency-ext"
WAYS = {"one": "one call", "all": "all", "empty": "all, empty", "nothing": "nothing"}
SECTIONS = ("forward", "backward", "optimizer")
GOAL = 50  # times cheaper than the peer

Way = Callable[[], None]


class Calls:
    """What a contender offers to a training loop."""

    heartbeat: Callable[[], object]
    section: Callable[[str], AbstractContextManager[object]]
    step: Callable[[], object] | None


def outlast_calls() -> Calls:
    from outlast.worker import session

    calls = Calls()
    calls.heartbeat, calls.section, calls.step = session.heartbeat, session.section, session.step
    return calls


def peer_calls() -> Calls:
    """nvidia-resiliency-ext's client, and its monitor in a process beside it."""
    import logging

    from nvidia_resiliency_ext.fault_tolerance import FaultToleranceConfig, RankMonitorClient
    from nvidia_resiliency_ext.fault_tolerance.rank_monitor_server import RankMonitorServer

    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    config = FaultToleranceConfig(
        rank_section_timeouts=dict.fromkeys(SECTIONS, 600.0), log_level=logging.ERROR, enable_nic_monitor=False
    )
    path = os.path.join(tempfile.gettempdir(), f"monitor-{os.getpid()}.socket")  # noqa: PTH118
    RankMonitorServer.run_in_subprocess(config, path)
    os.environ["FT_RANK_MONITOR_IPC_SOCKET"] = path
    client = RankMonitorClient()
    client.init_workload_monitoring()

    class Section:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            client.start_section(self.name)

        def __exit__(self, *_: object) -> None:
            client.end_section(self.name)

    calls = Calls()
    calls.heartbeat, calls.section, calls.step = client.send_heartbeat, Section, None
    return calls


def nanoseconds(call: Callable[[], object], batches: int, size: int) -> list[float]:
    """The mean of each batch, less what an empty call costs."""

    def batch(what: Callable[[], object]) -> float:
        began = time.perf_counter_ns()
        for _ in range(size):
            what()
        return (time.perf_counter_ns() - began) / size

    empty = min(batch(lambda: None) for _ in range(batches))
    return [batch(call) - empty for _ in range(batches)]


class Empty:
    """A section of which nobody is told."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def empty_calls() -> Calls:
    calls, section = Calls(), Empty()
    calls.heartbeat, calls.section, calls.step = (lambda: None), (lambda _: section), (lambda: None)
    return calls


def training() -> tuple[Way, Callable[[Calls], Way], Callable[[Calls], Way]]:
    """A step of about a millisecond: plain, with one call, with all of them."""
    import torch

    torch.set_num_threads(1)
    width = 256
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(32, width)

    def plain() -> None:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()

    def with_one(calls: Calls) -> Way:
        call = calls.step or calls.heartbeat

        def step() -> None:
            plain()
            call()

        return step

    def with_all(calls: Calls) -> Way:
        def step() -> None:
            optimizer.zero_grad()
            with calls.section("forward"):
                loss = model(batch).square().mean()
            with calls.section("backward"):
                loss.backward()
            with calls.section("optimizer"):
                optimizer.step()
            calls.heartbeat()
            if calls.step is not None:
                calls.step()

        return step

    return plain, with_one, with_all


def compared(first: Way, second: Way, count: int) -> list[float]:
    """Microseconds by which the second way is slower than the first, and how long the first one takes."""
    pairs = []
    for turn in range(count):
        took = [0.0, 0.0]
        for which in (0, 1) if turn % 2 else (1, 0):
            began = time.perf_counter_ns()
            (first, second)[which]()
            took[which] = (time.perf_counter_ns() - began) / 1e3
        pairs.append(took)
    before, after = (statistics.quantiles(column, n=5)[0] for column in zip(*pairs, strict=True))
    return [after - before, before]


def serve(name: str) -> None:
    """Be a contender: measure when asked to, on one line each."""
    calls = peer_calls() if name == PEER else outlast_calls()
    plain, with_one, with_all = training()
    ways = {"one": with_one(calls), "all": with_all(calls), "empty": with_all(empty_calls()), "nothing": plain}

    def enter_and_exit() -> None:
        with calls.section("forward"):
            pass

    for line in sys.stdin:
        order = json.loads(line)
        size = max(1, order["size"] // (20 if name == PEER else 1))
        found: dict[str, list[float]] = {}
        for what, call in (("heartbeat", calls.heartbeat), ("section", enter_and_exit), ("step", calls.step)):
            if call is not None:
                found[what] = nanoseconds(call, order["batches"], size)
        for name_of, way in ways.items():
            found[name_of] = compared(plain, way, order["steps"])
        print(json.dumps(found), flush=True)


class Contender:
    """A process that measures, and its results so far."""

    def __init__(self, name: str, python: Path | str, environ: dict[str, str], stack: ExitStack) -> None:
        self.name = name
        self.found: dict[str, list[float]] = {}
        self.lengths: list[float] = []
        self._process = subprocess.Popen(
            [str(python), __file__, "--serve", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
            start_new_session=True,  # with its monitor, if it has one
        )
        stack.callback(self._end)

    def measure(self, order: dict[str, int]) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} has ended; its last words are above")
        for what, numbers in json.loads(line).items():
            if what in WAYS:
                self.lengths.append(numbers[1])
                numbers = numbers[:1]
            self.found.setdefault(what, []).extend(numbers)

    def cell(self, what: str) -> str:
        if what not in self.found:
            return "–"
        return f"{statistics.median(self.found[what]):,.0f} ({min(self.found[what]):,.0f})"

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def reading(board: Any, over: threading.Event) -> int:
    """Read the board ten times a second, as often as any agent would; how often it was."""
    count = 0
    while not over.wait(0.1):
        board.read(0)
        count += 1
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="in which the contenders take turns")
    parser.add_argument("--place", type=Path, help="where the peer's environment is, or is made")
    parser.add_argument("--quick", action="store_true", help="one short round: does it work?")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return

    import peers
    from outlast.board.board import Board
    from processes import machine, table

    order = {"batches": 100, "size": 2000, "steps": 1000}
    if args.quick:
        args.rounds, order = 1, {"batches": 10, "size": 500, "steps": 100}
    home = peers.environment(PEER, args.place or peers.DEFAULT_PLACE)
    print(f"{machine()}; {args.rounds} rounds\n", flush=True)
    with ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory())
        board = Board(1)
        stack.callback(board.close)
        contenders = [
            Contender(OURS, sys.executable, {"OUTLAST_BOARD": board.address(0)}, stack),
            Contender(OFF, sys.executable, {}, stack),
        ]
        if home is not None:
            contenders.append(Contender(PEER, home / "bin" / "python", {"TMPDIR": temporary}, stack))
        over = threading.Event()
        reader = threading.Thread(target=reading, args=(board, over))
        reader.start()
        try:
            for _ in range(args.rounds):
                for contender in contenders:
                    contender.measure(order)
        finally:
            over.set()
            reader.join()
    report(contenders, table, None if home is None else peers.version(PEER, home))


def report(contenders: list[Contender], table: Callable[..., str], version: str | None) -> None:
    """The tables, and whether the goals are met."""
    header = ["ns, median (best)", "heartbeat", "section, in and out", "step"]
    print(table(header, [[one.name, *map(one.cell, ("heartbeat", "section", "step"))] for one in contenders]))
    print()
    rows = []
    for one in contenders:
        length = statistics.median(one.lengths)
        added = [statistics.median(one.found[way]) for way in WAYS]
        rows.append([one.name, f"{length:,.0f}", *(f"{more:+.1f} ({more / length:+.1%})" for more in added)])
    print(table(["training step, µs", "plain", *WAYS.values()], rows))
    ours = contenders[0]
    if version is None:
        return
    theirs = contenders[-1]
    ratios = {
        what: statistics.median(theirs.found[what]) / statistics.median(ours.found[what])
        for what in ("heartbeat", "section")
    }
    print(
        f"\n{PEER} {version}: " + ", ".join(f"a {what} costs {ratio:,.0f} times ours" for what, ratio in ratios.items())
    )
    print(f"goal, {GOAL} times cheaper: {'met' if min(ratios.values()) >= GOAL else 'MISSED'}")


if __name__ == "__main__":
    main()
