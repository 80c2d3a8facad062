"""A job on several hosts, as the tests of membership see it."""

from __future__ import annotations

import json
import os
import signal
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from hosts import Host
from processes import PATIENCE, Process, python

HERE = Path(__file__).parent
PORT = 29400

# The first generation has all of MAX nodes, however long they take to start, and no node is lost because this machine
# is busy. Nodes that end are noticed at once all the same, but for those whose connection is reset thereby.
STEADY = ("--ft-last-call=60", "--node-timeout=10", "--ft-restart-grace=0.2")
# As well, but silence is noticed soon: as soon as by default.
QUICK = ("--ft-last-call=60", "--node-timeout=3", "--ft-restart-grace=0.2")


# The kernel closes a killed agent's connection first and kills its workers then; on a busy machine that is not
# the same moment. Within a second they have to be gone.
ORPHANS = 1.0


class Place(NamedTuple):
    """What one worker found in its environment."""

    host: str
    generation: int
    rank: int
    world_size: int
    group_rank: int
    group_world_size: int
    master_addr: str
    master_port: int
    restarts: int


class LineUp(NamedTuple):
    """One generation, as its workers see it."""

    generation: int
    restarts: int
    master: tuple[str, int]
    ranks: dict[str, list[int]]  # of each host's workers

    @property
    def order(self) -> list[str]:
        """The hosts, by their ranks."""
        return sorted(self.ranks, key=lambda host: self.ranks[host])


class Life(NamedTuple):
    """One worker's life, on the clock that all hosts share."""

    host: str
    birth: float
    last_beat: float


class Node(NamedTuple):
    """An agent on a host."""

    host: Host
    agent: Process


class ElasticJob:
    """One job, of workers that stand in for training. The first host is its endpoint and hosts the coordinator.

    As a context manager it checks at the end what always holds: at most one generation ran at any time.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        directory: Path,
        *flags: str,
        nproc: int = 1,
        worker: Sequence[str] = (),
        script: Path = HERE / "worker.py",
        static: bool = False,
    ) -> None:
        self.hosts = list(hosts)
        self._directory = directory / "job"
        self._directory.mkdir()
        self._nproc = nproc
        endpoint = [f"--rdzv-endpoint={hosts[0].name}:{PORT}"]
        if static:
            endpoint = [f"--master-addr={hosts[0].name}", f"--master-port={PORT}"]
        self._flags = [f"--nproc-per-node={nproc}", *endpoint, *flags]
        self._worker = [script, self._directory, *worker]
        self._ports: set[tuple[str, int]] = set()
        self._killed: set[str] = set()

    def __enter__(self) -> ElasticJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.at_most_one_generation_ran()

    def start(self, host: Host, *flags: str, env: Mapping[str, str] | None = None) -> Node:
        """Start a node of the job on the host."""
        argv = [python(), "-m", "outlast", "run", *self._flags, *flags, *self._worker]
        secret = {"OUTLAST_TOKEN": "a token of these tests", "OMP_NUM_THREADS": "1"}
        return Node(host, host.start(argv, env={**secret, **(env or {})}))

    def start_all(self, *flags: str) -> list[Node]:
        """Start a node on every host."""
        return [self.start(host, *flags) for host in self.hosts]

    def start_all_at_once(self) -> list[Node]:
        """Start a node on every host; the first, which hosts the coordinator, when the others only wait for that."""
        others = [self.start(host) for host in self.hosts[1:]]
        for node in others:
            node.agent.wait_for("waiting for the coordinator")
        return [self.start(self.hosts[0]), *others]

    def start_spare(self, host: Host) -> Node:
        """Start a node for which there is no place yet; returns when the coordinator knows it."""
        node = self.start(host)
        node.agent.wait_for(f"joined the job as node {host.name}")
        return node

    def line_up(self, *nodes: Node, timeout: float = PATIENCE) -> LineUp:
        """Await the next generation that has these nodes and no others, and check that its workers agree."""
        places = [place for node in nodes for place in self._places(node, len(nodes), timeout)]
        world = len(places)
        assert len({place.generation for place in places}) == 1, places
        assert len({place.restarts for place in places}) == 1, places
        assert {place.world_size for place in places} == {world}, places
        assert sorted(place.rank for place in places) == list(range(world)), places
        assert all(place.group_rank == place.rank // self._nproc for place in places), places
        # The store is on the host of rank 0, on a port that no generation before it had.
        masters = {(place.master_addr, place.master_port) for place in places}
        first = next(place for place in places if place.rank == 0)
        address = next(node.host.address for node in nodes if node.host.name == first.host)
        assert {master[0] for master in masters} == {address}, places
        assert len(masters) == 1, places
        assert not masters & self._ports, f"{masters} served an older generation too"
        self._ports |= masters
        ranks: dict[str, list[int]] = {}
        for place in sorted(places, key=lambda place: place.rank):
            ranks.setdefault(place.host, []).append(place.rank)
        return LineUp(first.generation, first.restarts, masters.pop(), ranks)

    def _places(self, node: Node, size: int, timeout: float) -> Iterator[Place]:
        for _ in range(self._nproc):
            words = rf'^worker (\{{.*"group_world_size": {size},.*\}})$'
            yield Place(**json.loads(node.agent.wait_for(words, timeout)[1]))

    def end_worker(self, host: Host, code: int) -> None:
        """Let the worker of the host exit with the code, once; 0: it has finished."""
        # Renamed into place: the worker must not find it half written.
        written = self._directory / f"{host.name}.written"
        written.write_text(str(code))
        written.rename(self._directory / f"{host.name}.exit")

    def finish(self) -> None:
        """Let every worker finish."""
        (self._directory / "finish").touch()

    def succeeds(self, *nodes: Node) -> None:
        """Let every worker finish, and check that every agent exits with 0 then."""
        self.finish()
        for node in nodes:
            assert node.agent.wait() == 0, node.agent.output
        for node in nodes:
            assert_empty(node.host)

    def kill_agent(self, node: Node) -> None:
        """SIGKILL the agent alone; its workers are for the kernel to end."""
        self._killed.add(node.host.name)
        node.agent.signal(signal.SIGKILL)

    def kill_coordinator(self) -> None:
        """SIGKILL the coordinator alone, which runs on the first host."""
        self.signal_coordinator(signal.SIGKILL)

    def signal_coordinator(self, number: signal.Signals, host: Host | None = None) -> None:
        """Send the coordinator on the host, by default the first, a signal."""
        found = [pid for pid in (host or self.hosts[0]).processes() if _is_coordinator(pid)]
        assert len(found) == 1, found
        os.kill(found[0], number)

    def stop_agent_that_hosts(self, node: Node) -> None:
        """SIGSTOP the agent once a coordinator has all that it needs from it, and before that can be joined."""
        node.agent.wait_for("hosting one at")
        pid, end = node.agent.pid, time.monotonic() + PATIENCE
        while not any(_is_coordinator(child) and _has_its_input(child, pid) for child in _children(pid)):
            assert time.monotonic() < end, "it started no coordinator"
        node.agent.signal(signal.SIGSTOP)

    def workers_of(self, host: Host) -> list[int]:
        """The pids of the workers on the host."""
        return [pid for pid in host.processes() if _is_worker(pid)]

    def steps(self) -> list[int]:
        """The steps that were taken, by the script that counts them."""
        return [int(line) for line in (self._directory / "steps").read_text().splitlines()]

    def generations(self) -> dict[int, list[Life]]:
        """The lives of the workers of each generation."""
        lives: dict[int, list[Life]] = {}
        for path in self._directory.glob("*.*.host-*"):
            generation, _, host = path.name.split(".")
            lives.setdefault(int(generation), []).append(Life(host, *struct.unpack("dd", path.read_bytes())))
        return dict(sorted(lives.items()))

    def at_most_one_generation_ran(self) -> None:
        """Check that the last beat of every generation comes before the first birth in the next."""
        for (older, before), (newer, after) in pairwise(self.generations().items()):
            first = min(life.birth for life in after)
            for life in before:
                allowed = ORPHANS if life.host in self._killed else 0.0
                late = life.last_beat - first
                assert late < allowed, f"{life} of generation {older} beat {late:.3f} s into generation {newer}"


def assert_empty(host: Host) -> None:
    """Check that nothing of a job that has ended runs on the host, but for a coordinator about to end."""
    left = [pid for pid in host.processes() if _is_worker(pid)]
    assert not left, f"workers {left} are left on {host.name}"


def _is_coordinator(pid: int) -> bool:
    return b"outlast.coordinator" in b" ".join(_read(pid, "cmdline"))


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _has_its_input(pid: int, parent: int) -> bool:
    """Whether the parent has closed its end of the pipe that is the standard input of its child."""
    pipe = Path(f"/proc/{pid}/fd/0").readlink()
    for path in Path(f"/proc/{parent}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if path.readlink() == pipe:
                return False
    return True


def _is_worker(pid: int) -> bool:
    return any(entry.startswith(b"OUTLAST_GENERATION=") for entry in _read(pid, "environ"))


def _read(pid: int, what: str) -> list[bytes]:
    """The words of a process's `cmdline` or `environ`; none if it has just ended."""
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def reason(node: Node) -> str:
    """The one line with which an agent ended."""
    lines = [line for line in node.agent.lines if line.startswith("outlast run: error: ")]
    assert len(lines) == 1, node.agent.output
    return lines[0].removeprefix("outlast run: error: ")
