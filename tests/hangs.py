"""Real hangs: four ranks that train over gloo, until one of them does something that stops all (`hangs/train.py`)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from hosts import Cluster
from outlast.agent.stacks import collect, look
from outlast.board import Board
from outlast.diagnosis.culprit import Kind, Observation, Verdict, name
from outlast.diagnosis.stack import Stack
from processes import Process, python

SCRIPT = Path(__file__).parent / "integration" / "hangs" / "train.py"
RANKS = 4
PAUSE, LOOKS = 0.3, 4  # seconds between two looks, to see whether anything moves, and how many have to agree
PATIENCE = 60.0


def one(culprit: int) -> set[int]:
    return {culprit}


def two(culprit: int) -> set[int]:
    return {culprit, (culprit + 1) % RANKS}


def none(_culprit: int) -> set[int]:
    return set()


# By what `train.py` calls it: whom to name, and as what; of two culprits, the verdict has the kind of one.
KINDS: Mapping[str, tuple[Callable[[int], set[int]], set[Kind]]] = {
    "sleep": (one, {Kind.USER_CODE}),
    "loop": (one, {Kind.USER_CODE}),
    "holds_the_gil": (one, {Kind.USER_CODE}),
    "computes_in_c": (one, {Kind.USER_CODE}),
    "crossed_receives": (two, {Kind.PAIR}),
    "mismatch": (one, {Kind.MISMATCH}),
    "skips": (one, {Kind.MISMATCH}),
    "data_loader": (one, {Kind.DATA_LOADER}),
    "data_loader_within": (one, {Kind.DATA_LOADER}),
    "data_loader_worker_stopped": (one, {Kind.DATA_LOADER}),
    "pool_worker_dead": (one, {Kind.USER_CODE}),
    "stopped": (one, {Kind.STOPPED}),
    "uninterruptible": (one, {Kind.UNINTERRUPTIBLE}),
    "opens_a_fifo": (one, {Kind.FILE}),
    "locks": (one, {Kind.USER_CODE}),
    "saves": (one, {Kind.CHECKPOINT}),
    "within_ddp": (one, {Kind.USER_CODE}),
    "in_backward": (one, {Kind.USER_CODE}),
    "waits_async": (one, {Kind.USER_CODE}),
    "gathers_objects": (one, {Kind.USER_CODE}),
    "monitored": (one, {Kind.USER_CODE}),
    "in_store": (one, {Kind.USER_CODE}),
    "in_init": (one, {Kind.START}),
    "saves_together": (one, {Kind.CHECKPOINT}),
    "two_asleep": (two, {Kind.USER_CODE, Kind.FILE}),
    "awaits_an_event": (one, {Kind.USER_CODE}),
    "gets_from_a_queue": (one, {Kind.USER_CODE}),
    "runs_a_program": (one, {Kind.USER_CODE}),
    "receives_from_a_socket": (one, {Kind.USER_CODE}),
    "in_a_thread": (one, {Kind.USER_CODE}),
    "subgroups": (one, {Kind.USER_CODE}),
    "extra_collective": (one, {Kind.MISMATCH}),
    "holds_an_import_lock": (one, {Kind.USER_CODE}),
    "fully_sharded": (one, {Kind.USER_CODE}),
    "sends_without_receiver": (one, {Kind.PAIR}),
    "everybody": (none, {Kind.EVERYBODY}),
}


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

    def right(self, verdict: Verdict) -> bool:
        """Whether the verdict names those who did it, and as what."""
        whom, kinds = KINDS[self.kind]
        return set(verdict.culprits) == whom(self.culprit) and verdict.kind in kinds

    async def settle(self) -> None:
        """Wait until nobody moves any more: what a time-out would have waited for. Nobody is disturbed by it."""
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
        return await collect(self.pids, timeout=1.0)

    async def observe(self) -> list[Observation]:
        """What the agents of both nodes would say."""
        stacks = await self.stacks()
        return [
            Observation.of(rank, f"node-{rank // 2}", self._board.read(rank), stacks[rank]) for rank in range(RANKS)
        ]

    async def judge(self) -> Verdict:
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
