"""Real hangs: ranks that train over gloo, until one of them does something that stops all (`hangs/train.py`)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from hosts import Cluster, Host
from outlast.agent.monitoring.stacks import collect, look
from outlast.board.board import Board
from outlast.diagnosis.culprit import HangKind, HangVerdict, name
from outlast.diagnosis.observation import Observation
from outlast.diagnosis.stack import Stack
from processes import Process, python

SCRIPT = Path(__file__).parent / "integration" / "hangs" / "train.py"
RANKS = 4
PAUSE, LOOKS = 0.3, 4  # seconds between two looks, to see whether anything moves, and how many have to agree
PATIENCE = 180.0
LONG_LOOK = 20.0  # seconds for all stacks: an agent has less, and says what it has seen by then
PORT = 29400
# Seconds, of heartbeats and of nodes: on a busy machine, torch takes long to import, and agents wait for their turn.
TIMEOUT, FIRST_TIMEOUT, NODE_TIMEOUT = 6.0, 40.0, 30.0


def one(culprit: int, _ranks: int) -> set[int]:
    return {culprit}


def two(culprit: int, ranks: int) -> set[int]:
    return {culprit, (culprit + 1) % ranks}


def none(_culprit: int, _ranks: int) -> set[int]:
    return set()


# By what `train.py` calls it: whom to name, and as what; of two culprits, the verdict has the kind of one.
KINDS: Mapping[str, tuple[Callable[[int, int], set[int]], set[HangKind]]] = {
    "sleep": (one, {HangKind.USER_CODE}),
    "loop": (one, {HangKind.USER_CODE}),
    "holds_the_gil": (one, {HangKind.USER_CODE}),
    "computes_in_c": (one, {HangKind.USER_CODE}),
    "crossed_receives": (two, {HangKind.PAIR}),
    "mismatch": (one, {HangKind.MISMATCH}),
    "skips": (one, {HangKind.MISMATCH}),
    "data_loader": (one, {HangKind.DATA_LOADER}),
    "data_loader_within": (one, {HangKind.DATA_LOADER}),
    "data_loader_worker_stopped": (one, {HangKind.DATA_LOADER}),
    "pool_worker_dead": (one, {HangKind.USER_CODE}),
    "stopped": (one, {HangKind.STOPPED}),
    "uninterruptible": (one, {HangKind.UNINTERRUPTIBLE}),
    "opens_a_fifo": (one, {HangKind.FILE}),
    "locks": (one, {HangKind.USER_CODE}),
    "saves": (one, {HangKind.CHECKPOINT}),
    "within_ddp": (one, {HangKind.USER_CODE}),
    "in_backward": (one, {HangKind.USER_CODE}),
    "waits_async": (one, {HangKind.USER_CODE}),
    "gathers_objects": (one, {HangKind.USER_CODE}),
    "monitored": (one, {HangKind.USER_CODE}),
    "in_store": (one, {HangKind.USER_CODE}),
    "in_init": (one, {HangKind.START}),
    "saves_together": (one, {HangKind.CHECKPOINT}),
    "two_asleep": (two, {HangKind.USER_CODE, HangKind.FILE}),
    "awaits_an_event": (one, {HangKind.USER_CODE}),
    "gets_from_a_queue": (one, {HangKind.USER_CODE}),
    "runs_a_program": (one, {HangKind.USER_CODE}),
    "receives_from_a_socket": (one, {HangKind.USER_CODE}),
    "in_a_thread": (one, {HangKind.USER_CODE}),
    "subgroups": (one, {HangKind.USER_CODE}),
    "extra_collective": (one, {HangKind.MISMATCH}),
    "holds_an_import_lock": (one, {HangKind.USER_CODE}),
    "fully_sharded": (one, {HangKind.USER_CODE}),
    "sends_without_receiver": (one, {HangKind.PAIR}),
    "everybody": (none, {HangKind.EVERYBODY}),
}


def right(kind: str, culprit: int, named: Iterable[int], named_as: str, ranks: int = RANKS) -> bool:
    """Whether those are named who did it, and as what."""
    whom, kinds = KINDS[kind]
    return set(named) == whom(culprit, ranks) and HangKind(named_as) in kinds


class HungJob:
    """A job with agents on two hosts, each generation of which hangs in the next of the given ways.

    The first host hosts the coordinator. As a context manager it leaves nothing behind.
    """

    def __init__(
        self, hosts: Sequence[Host], directory: Path, hangs: Sequence[tuple[str, int]], *flags: str, ranks: int = RANKS
    ) -> None:
        self.events = directory / "events.jsonl"
        self.hangs = hangs
        self._hosts = hosts
        endpoint = f"--rdzv-endpoint={hosts[0].name}:{PORT}"
        timeouts = [f"--ft-rank-heartbeat-timeout={TIMEOUT}", f"--ft-initial-rank-heartbeat-timeout={FIRST_TIMEOUT}"]
        timeouts.append(f"--node-timeout={NODE_TIMEOUT}")
        common = ("--nnodes=2", f"--nproc-per-node={ranks // 2}", endpoint, "--rdzv-id=job")
        restarts = f"--max-restarts={len(hangs)}"
        words = [word for kind, culprit in hangs for word in (kind, str(culprit))]
        argv = [python(), "-m", "outlast", "run", *common, *timeouts, restarts, *flags, SCRIPT, *words]
        env = {"OUTLAST_TOKEN": "a token of these tests", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        env |= {"OUTLAST_EVENTS": str(self.events), "OUTLAST_USE_INFRA_GROUP_RANK": "false"}
        first = hosts[0].start(argv, env=env)
        first.wait_for("joined the job")
        self.nodes = [first, hosts[1].start(argv, env=env)]  # so that the ranks of the first host come first

    def __enter__(self) -> HungJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in self._hosts:
            host.end_processes()

    def told(self, kind: str) -> list[dict[str, Any]]:
        """The events of this kind so far."""
        lines = self.events.read_text().splitlines() if self.events.exists() else []
        return [event for line in lines if (event := json.loads(line))["event"] == kind]

    def cut_training(self) -> None:
        """The network between the ranks goes, but not that between agents and coordinator."""
        for host, other in (self._hosts, self._hosts[::-1]):
            host.cut_all_but(PORT, other)

    def mend_training(self) -> None:
        """It comes back."""
        for host in self._hosts:
            host.mend()


class Hang:
    """One hang of four ranks on two nodes. As a context manager it leaves nothing behind."""

    def __init__(self, kind: str, culprit: int) -> None:
        self.kind, self.culprit = kind, culprit
        self._stack = ExitStack()
        self._board = Board(RANKS)
        self._stack.callback(self._board.close)
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Hang:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def pids(self) -> dict[int, int]:
        return {rank: process.pid for rank, process in enumerate(self.ranks)}

    def right(self, verdict: HangVerdict) -> bool:
        """Whether the verdict names those who did it, and as what."""
        return right(self.kind, self.culprit, verdict.culprits, verdict.kind)

    async def settle(self) -> None:
        """Wait until nobody moves any more: what a timeout would have waited for. Nobody is disturbed by it."""
        deadline = time.monotonic() + PATIENCE
        for process in self.ranks:
            await asyncio.to_thread(process.wait_for, "^hangs", PATIENCE, anywhere=True)
        seen: list[object] = []
        while time.monotonic() < deadline:
            looks = {rank: look(pid) for rank, pid in self.pids.items()}
            beats = [self._board.read(rank).beats for rank in range(RANKS)]
            seen.append(([(each.state, each.wchan) for each in looks.values()], beats))
            if len(seen) >= LOOKS and all(each == seen[-1] for each in seen[-LOOKS:]):
                return
            await asyncio.sleep(PAUSE)
        raise AssertionError(f"{self.kind} does not come to rest: {seen[-LOOKS:]}")

    async def stacks(self) -> dict[int, Stack]:
        return await collect(self.pids, timeout=LONG_LOOK)

    async def observe(self) -> list[Observation]:
        """What the agents of both nodes would say."""
        stacks = await self.stacks()
        return [
            Observation.of(rank, f"node-{rank // 2}", self._board.read(rank), stacks[rank]) for rank in range(RANKS)
        ]

    async def judge(self) -> HangVerdict:
        return name(await self.observe())

    def _start(self) -> None:
        # Killed, the ranks leave their temporary files behind.
        files = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="hang-"))
        environment = {"WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1", "MASTER_PORT": str(_free_port())}
        environment["TMPDIR"] = files
        command = [python(), SCRIPT, self.kind, str(self.culprit)]
        self.ranks: list[Process] = []
        cluster = self._stack.enter_context(Cluster(2)) if self.kind == "everybody" else None
        for rank in range(RANKS):
            env = {**environment, "RANK": str(rank), "OUTLAST_BOARD": self._board.address(rank)}
            if cluster is None:
                process = Process(command, env={**env, "MASTER_ADDR": "127.0.0.1"})
            else:
                env |= {"MASTER_ADDR": cluster.hosts[0].address, "GLOO_SOCKET_IFNAME": "eth0"}
                process = cluster.hosts[rank // 2].start(command, env=env)
            self.ranks.append(process)
            self._stack.callback(_end, process)
        if cluster is not None:
            for process in self.ranks:
                process.wait_for("^hangs", anywhere=True)
            cluster.hosts[0].cut_from(cluster.hosts[1])


def _end(process: Process) -> None:
    """Kill a rank and its children, which are in its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
