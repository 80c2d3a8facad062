"""From the kill of a task to training again, for each role of a parameter-server job; and how long the others pause.

    ./scripts/install-tensorflow && python benchmarks/roles.py --rounds 3

The job is examples/parameter_server.py with a chief, two workers and a parameter server. Training counts as going on
with the next checkpoint (every 5 shards) after the kill, or for chief and ps after the restore. The pause is the
longest time from one checkpoint to the next around the kill, less the usual one.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv" / "tensorflow" / "bin" / "python"
EXAMPLE = ROOT / "examples" / "parameter_server.py"
BEFORE, AFTER, GIVE_UP = 20, 20, 120.0  # checkpoints before and after the kill; seconds


class Watched:
    """A job, and when it wrote each of its lines."""

    def __init__(self, directory: str) -> None:
        roles = [word for role in ("chief=1", "worker=2", "ps=1") for word in ("--role", role)]
        args = ["--epochs=1000", "--save-every=5", "--checkpoints", directory]
        command = [PYTHON, "-m", "outlast", "run", "--max-restarts=9", *roles, EXAMPLE, *args]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "ROLES_BENCHMARK": directory}
        self.directory = directory
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[tuple[float, str]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line))

    def times(self, words: str, after: float = 0.0) -> list[float]:
        return [at for at, line in list(self.lines) if words in line and at > after]

    def wait(self, words: str, count: int, after: float = 0.0) -> list[float]:
        until = time.monotonic() + GIVE_UP
        while len(found := self.times(words, after)) < count:
            if time.monotonic() > until or self.process.poll() is not None:
                raise SystemExit(f"no {words!r} after {GIVE_UP:g} s:\n" + "".join(line for _, line in self.lines[-30:]))
            time.sleep(0.005)
        return found

    def pid(self, task: str) -> int:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            marks = (f"ROLES_BENCHMARK={self.directory}".encode(), f"OUTLAST_TASK={task}".encode())
            if all(mark in environment for mark in marks):
                return int(entry.name)
        raise SystemExit(f"there is no {task}")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait()


def measure(task: str) -> tuple[float, float, float]:
    """Seconds from the kill to training again, the longest pause, and the usual time between two checkpoints."""
    with tempfile.TemporaryDirectory() as directory:
        job = Watched(directory)
        try:
            before = job.wait("saved", BEFORE)[-BEFORE + 5 :]
            usual = statistics.median(b - a for a, b in itertools.pairwise(before))
            pid = job.pid(task)
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            begins = job.wait("restored", 1, killed)[0] if task in ("chief-0", "ps-0") else killed
            again = job.wait("saved", 1, begins)[0]
            if task == "worker-0":
                job.wait("started worker-0 again", 1, killed)
            after = job.wait("saved", AFTER, again)
            saves = [killed, *job.times("saved", killed)[: AFTER + 1]]
            pause = max(b - a for a, b in itertools.pairwise(saves)) - usual
            assert after
            return again - killed, max(0.0, pause), usual
        finally:
            job.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", default=["worker-0", "chief-0", "ps-0"])
    args = parser.parse_args()
    rounds = args.rounds
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {rounds} rounds")
    print("| killed | to training again, s | longest pause of training, s | usual time between checkpoints, s |")
    print("|---|---:|---:|---:|")
    for task in args.tasks:
        found = [measure(task) for _ in range(rounds)]
        columns = [
            f"{statistics.median(column):.2f} ({min(column):.2f} to {max(column):.2f})"
            for column in zip(*found, strict=True)
        ]
        print(f"| {task} | {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    main()
