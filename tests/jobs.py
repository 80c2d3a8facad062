"""Jobs for tests: `outlast run` on the worker scripts of the integration tests, and what those workers say."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from processes import Process, outlast

SCRIPTS = Path(__file__).parent / "integration" / "scripts"
WAITS = SCRIPTS / "waits.py"
HANGS = SCRIPTS / "hangs.py"
# Nodes that are well are not to be lost because this machine is busy; those that a test ends are noticed at once.
PATIENT = "--node-timeout=30"


class Worker(NamedTuple):
    """A worker of scripts/waits.py, as it introduced itself."""

    rank: int
    world: int
    generation: int
    pid: int
    restart: int
    port: int


def job(*flags: str, script: Path = WAITS, args: Sequence[str | Path] = (), **options: Any) -> Process:
    """Start a job of one node on this machine."""
    return outlast("run", *flags, script, *args, **options)


def node(
    name: str, port: int, *flags: str, script: Path = WAITS, args: Sequence[str | Path] = (), **options: Any
) -> Process:
    """Start one node of an elastic job that meets on this port of this machine."""
    meeting = ("--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint=127.0.0.1:{port}", f"--ft-node-name={name}")
    return outlast("run", *meeting, PATIENT, *flags, script, *args, title=f"node {name}", **options)


@contextmanager
def two_nodes(
    *flags: str, args: list[str], script: Path = HANGS, least: int = 2, **options: Any
) -> Iterator[tuple[Process, Process]]:
    """Nodes a and b, with ranks 0 and 1, 2 and 3. Node a hosts the coordinator, and tells the story."""
    port = free_port()
    common = (f"--nnodes={least}:2", "--nproc-per-node=2", "--ft-use-infra-group-rank=false", *flags)
    with ExitStack() as stack:
        first = stack.enter_context(node("a", port, *common, script=script, args=args, **options))
        first.wait_for("joined the job")
        second = stack.enter_context(node("b", port, *common, script=script, args=args, **options))
        yield first, second


def finished(*nodes: Process) -> None:
    """Await the success of all of these."""
    for each in nodes:
        assert each.wait() == 0, each.output


def workers(process: Process, generation: int, *ranks: int) -> list[Worker]:
    """Await the start of these ranks of a generation, in any order."""
    found = []
    for rank in ranks:
        match = process.wait_for(
            rf"rank ({rank}) of (\d+) started in generation ({generation}): pid (\d+) restart (\d+) port (\d+)",
            anywhere=True,
        )
        found.append(Worker(*map(int, match.groups())))
    return found


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def errors(process: Process) -> list[str]:
    """The lines that tell a person what went wrong."""
    return [line for line in process.lines if line.startswith("outlast run: error: ")]
