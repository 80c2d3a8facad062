"""Does the ledger tell the truth? Real jobs with real faults, timed by a stopwatch of their own.

    python benchmarks/ledger.py [FAULT …]

Each rank writes the time of every step, and whatever causes the fault writes when it did, all by CLOCK_BOOTTIME:
neither goes through Outlast. From a fault to the first step that all ranks have made after it is what it cost; the
ledger must say the same, to 0.1 s. Sums must be exact, 99.9 % of the time in named states, and the ledger that comes
out of the journal the same as that of the events file.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from outlast.ledger.accountant import Accountant
from outlast.ledger.states import SECOND, LedgerState
from outlast.ledger.summary import LedgerSummary, ledger, summarize
from outlast.reports.sources import recorded

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
import outlast

folder, last, fault = sys.argv[1], int(sys.argv[2]), sys.argv[3]
rank, first_life = int(os.environ["RANK"]), os.environ["OUTLAST_GENERATION"] == "1"

def stamp(what, **more):
    with open(f"{folder}/{what}-{rank}.log", "a") as file:
        file.write(f"{time.clock_gettime(time.CLOCK_BOOTTIME)} {more.get('step', 0)} {os.getpid()}\\n")

dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
checkpoints = outlast.Checkpointer(f"{folder}/checkpoints", every=5)
state = {"model": model, "optimizer": optimizer}
for step in range(checkpoints.restore(state) + 1, last + 1):
    time.sleep(0.05)
    model(torch.randn(4, 8)).sum().backward()
    dist.all_reduce(model.weight.grad)
    if first_life and step == 33 and rank == 1 and fault in ("exception", "hang"):
        stamp("fault")
        if fault == "exception":
            raise RuntimeError("as planned")
        time.sleep(3600)
    optimizer.step()
    optimizer.zero_grad()
    stamp("steps", step=step)
    checkpoints.save(step, state)
checkpoints.wait()
"""
STEPS = 150
WITHIN = 0.1  # seconds
NAMED = 0.999


class Outcome(NamedTuple):
    """What one experiment came to."""

    fault: str
    wall: float
    named: float
    exact: bool
    stopwatch: float | None
    told: float | None
    replayed: bool
    phases: dict[str, float]

    @property
    def good(self) -> bool:
        close = self.stopwatch is None or (self.told is not None and abs(self.told - self.stopwatch) <= WITHIN)
        return self.exact and self.named >= NAMED and self.replayed and close

    def __str__(self) -> str:
        watch = "-" if self.stopwatch is None else f"{self.stopwatch:.3f}"
        told = "-" if self.told is None else f"{self.told:.3f}"
        off = "-" if self.stopwatch is None or self.told is None else f"{self.told - self.stopwatch:+.3f}"
        phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.phases.items())
        verdict = "ok" if self.good else "BAD"
        return (
            f"{self.fault:18} wall {self.wall:6.2f} s  named {100 * self.named:.3f} %  sum exact {self.exact}  "
            f"stopwatch {watch} s  ledger {told} s  off {off} s  replay same {self.replayed}  {verdict}  ({phases})"
        )


class Nodes:
    """A job of two nodes on this machine, in a folder of its own."""

    def __init__(self, folder: Path, fault: str, stack: ExitStack) -> None:
        self.folder, self.fault = folder, fault
        script = folder / "train.py"
        script.write_text(SCRIPT)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.endpoint = f"127.0.0.1:{port}"
        self._flags = [
            "--nnodes=1:2" if fault in ("drain", "node lost") else "--nnodes=2",
            "--nproc-per-node=1",
            "--max-restarts=3",
            "--rdzv-backend=c10d",
            "--rdzv-id=ledger",
            f"--rdzv-endpoint={self.endpoint}",
            "--ft-use-infra-group-rank=false",
            "--ft-last-call=2",
            "--ft-rank-heartbeat-timeout=8",
            f"--ft-events={folder}/events.jsonl",
            f"--ft-journal={folder}/journal",
            str(script),
            str(folder),
            str(STEPS),
            fault,
        ]
        self._stack = stack
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("a", "b"):
            self.start(name)

    def start(self, name: str) -> None:
        log = self._stack.enter_context((self.folder / f"{name}.log").open("ab"))
        process = subprocess.Popen(
            [sys.executable, "-m", "outlast", "run", f"--ft-node-name={name}", *self._flags], stdout=log, stderr=log
        )
        self._stack.callback(_end, process)
        self.processes[name] = process

    def stamps(self, what: str) -> list[tuple[float, int, int]]:
        lines = [line.split() for file in self.folder.glob(f"{what}-*.log") for line in file.read_text().splitlines()]
        return sorted((float(at), int(step), int(pid)) for at, step, pid in lines)

    def await_step(self, step: int, after: float = 0.0) -> list[tuple[float, int, int]]:
        """Until both ranks have made it."""
        return _await(
            lambda: [s for s in self.stamps("steps") if s[1] == step and s[0] > after], lambda found: len(found) >= 2
        )

    def await_training(self, after: float) -> None:
        """Until the generation after a fault has made a step on every node, and the coordinator has heard of it."""
        _await(
            lambda: [(each["time"], 0, 0) for each in self.events() if each["event"] == "training began"],  # type: ignore[misc]
            lambda found: len(found) >= 2,
        )
        assert [each for each in self.stamps("steps") if each[0] > after]

    def events(self) -> list[dict[str, object]]:
        path = self.folder / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def coordinator(self) -> int:
        """The pid of the one that lives: a child of an agent."""
        found: list[int] = []
        for process in self.processes.values():
            for line in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                command = Path(f"/proc/{line}/cmdline").read_bytes()
                if b"outlast.coordinator" in command:
                    found.append(int(line))
        return found[0]


def _await(read: Callable[[], list[tuple[float, int, int]]], enough: Callable[[list], bool]) -> list:  # type: ignore[type-arg]
    until = time.monotonic() + 120
    while time.monotonic() < until:
        found = read()
        if enough(found):
            return found
        time.sleep(0.01)
    raise TimeoutError("the job does not get on")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def cause(nodes: Nodes) -> float | None:
    """Make the fault happen. When that was; None: nothing should be interrupted by it."""
    fault = nodes.fault
    if fault == "none":
        return None
    if fault in ("exception", "hang"):
        return _await(lambda: nodes.stamps("fault"), bool)[0][0]
    made = nodes.await_step(33)
    if fault == "kill -9":
        # It is dead when the kernel says so: to take the memory of a large process apart takes a while.
        handle = os.pidfd_open(made[-1][2])
        os.kill(made[-1][2], signal.SIGKILL)
        select.select([handle], [], [])
        os.close(handle)
    elif fault == "node lost":
        nodes.processes["b"].kill()
        nodes.processes["b"].wait()
    elif fault == "drain":
        nodes.processes["b"].send_signal(signal.SIGTERM)
    else:
        for step in (33, 60, 90):
            nodes.await_step(step)
            os.kill(nodes.coordinator(), signal.SIGKILL)
        return None
    return _now()


def stopwatch(nodes: Nodes, since: float, told: LedgerSummary) -> float:
    """From the fault to the first step after it that both, or all who are left, have made."""
    ranks = 1 if nodes.fault in ("drain", "node lost") else 2
    old = {pid for at, _, pid in nodes.stamps("steps") if at < since}
    fresh: dict[int, float] = {}
    for at, _, pid in nodes.stamps("steps"):
        if pid not in old:
            fresh.setdefault(pid, at)
    assert told is not None
    return sorted(fresh.values())[ranks - 1] - since


def cost(told: LedgerSummary) -> tuple[float | None, dict[str, float]]:
    """What the ledger says that the fault cost until training went on; steps that were lost stand apart."""
    if not told.faults:
        return None, {}
    states = {name: seconds for name, seconds in told.faults[0].states.items() if name != LedgerState.REDONE.value}
    return sum(states.values()), told.faults[0].states


def experiment(fault: str) -> Outcome:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ledger-")))
        nodes = Nodes(folder, fault, stack)
        since = cause(nodes)
        for name, process in nodes.processes.items():
            code = process.wait(180)
            assert code == 0 or (name == "b" and fault in ("drain", "node lost")), (folder / f"{name}.log").read_text()
        recording, _ = recorded([folder / "events.jsonl"])
        books = ledger(recording.events)
        told = summarize(books)
        watch = stopwatch(nodes, since, told) if since is not None else None
        again = ledger(recorded([folder / "journal"])[0].events)
        spent, phases = cost(told) if since is not None else (None, told.time)
        return Outcome(fault, told.wall, told.known, _exact(books), watch, spent, _same(books, again), phases)


def _exact(books: Accountant) -> bool:
    assert books.began is not None
    return sum(books.book.time().values()) == books.now - books.began


def _same(books: Accountant, again: Accountant) -> bool:
    """The replayed ledger: the same faults and states. A time is written as a float, which is good to a microsecond."""
    mine, theirs = books.book.time(), again.book.time()
    close = all(abs(mine.get(state, 0) - theirs.get(state, 0)) < SECOND // 1000 for state in LedgerState)
    return close and [each.kind for each in books.faults] == [each.kind for each in again.faults]


FAULTS = ("none", "kill -9", "exception", "hang", "node lost", "drain", "coordinator ×3")


def outcomes(faults: list[str]) -> Iterator[Outcome]:
    for fault in faults:
        yield experiment(fault)


def main() -> int:
    found = []
    for outcome in outcomes(sys.argv[1:] or list(FAULTS)):
        print(outcome, flush=True)
        found.append(outcome)
    off = [abs(each.told - each.stopwatch) for each in found if each.told is not None and each.stopwatch is not None]
    if off:
        print(f"off by {statistics.median(off):.3f} s in the middle, {max(off):.3f} s at most, over {len(off)} faults")
    return 0 if all(each.good for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
