"""A real Ray for tests, and jobs on it: each has a driver of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

from jobs import WAITS
from processes import PATIENCE, TEST_ID, Process, python

HERE = Path(__file__).parent


class RayCluster:
    """Three nodes and a head."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def ask(self, *words: Any) -> Any:
        with Client(str(self._socket), "AF_UNIX") as server:
            server.send(words)
            return server.recv()

    def restore(self, size: int = 3) -> None:
        """As many nodes as at first, none of them draining."""
        for _ in range(size - len(self.ask("alive"))):
            self.ask("add")

    def job(self, *args: str | Path, script: Path = WAITS, **options: Any) -> RayRun:
        """Start a job; its processes carry the mark of the test."""
        mark = {TEST_ID: os.environ[TEST_ID] + "/ray", "PYTHONUNBUFFERED": "1"}
        given = {
            "address": self.ask("address"),
            "script": str(script),
            "args": [str(arg) for arg in args],
            "name": f"j{os.getpid()}-{time.monotonic_ns()}",
            **options,
            "settings": {"last_call": 1, "node_timeout": 15, **options.get("settings", {})},
            "env": {**mark, **options.get("env", {})},
        }
        if "attach" in options:
            given = {"address": given["address"], "attach": options["attach"]}
        return RayRun(given)


class RayRun(Process):
    """A job, by the output of its driver."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.job_name = options.get("name", "")
        env = {"RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_COLOR_PREFIX": "0"}
        super().__init__(
            [python(), HERE / "ray_driver.py", json.dumps(options)], env=env, title="driver", stdin=subprocess.PIPE
        )

    def say(self, line: str) -> None:
        assert self.stdin is not None
        self.stdin.write(f"{line}\n".encode())
        self.stdin.flush()

    def started(self, generation: int, size: int) -> dict[int, int]:
        """Await all ranks of a generation: their pids."""
        found = {}
        for rank in range(size):
            line = rf"rank {rank} of {size} started in generation {generation}: pid (\d+)"
            found[rank] = int(self.wait_for(line, anywhere=True)[1])
        return found

    def next_generation(self, size: int) -> int:
        """Await the next generation of so many ranks: its number."""
        return int(self.wait_for(rf"GenerationFormed\(.*ranks={size}\b.*generation=(\d+)\)")[1])

    def finish(self, pids: dict[int, int]) -> None:
        """Let the workers end, and the job with them."""
        for pid in pids.values():
            os.kill(pid, signal.SIGUSR1)
        self.wait_for("driver: success")
        assert self.wait() == 0, self.output


def ancestors(pid: int) -> Iterator[int]:
    """The processes above a worker: its agent, its actor, its raylet."""
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


def title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def actor_of(worker: int) -> int:
    """The actor's process above a worker."""
    return next(pid for pid in ancestors(worker) if "AgentActor" in title(pid))


def agent_of(worker: int) -> int:
    """The agent above a worker."""
    return next(pid for pid in ancestors(worker) if "outlast.cli.run" in title(pid))


def node_of(worker: int) -> str:
    """The Ray node that a worker is on."""
    raylet = next(pid for pid in ancestors(worker) if re.search(r"raylet/raylet\b", title(pid)))
    return next(word.partition("=")[2] for word in title(raylet).split() if word.startswith("--node_id="))


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.1)


@contextmanager
def ray_cluster(place: Path, size: int) -> Iterator[RayCluster]:
    """A cluster of so many nodes."""
    socket, output = place / "nodes", place / "nodes.log"
    output.touch()
    temp = {"RAY_TMPDIR": str(place), "TMPDIR": str(place)}
    command = f"{python()} {HERE / 'ray_nodes.py'} {socket} >>{output} 2>&1 </dev/null &"
    subprocess.run(["sh", "-c", command], check=True, env={**os.environ, **temp}, start_new_session=True)
    until(lambda: socket.exists() or bool(re.search("Traceback", output.read_text())))
    cluster = RayCluster(socket)
    try:
        cluster.restore(size)
        yield cluster
    finally:
        cluster.ask("close")
        until(lambda: not socket.exists())  # its process removes it last
