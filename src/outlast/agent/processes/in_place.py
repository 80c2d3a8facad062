"""Workers that outlive their generation: inside a restartable function they leave it, wait, and go on in the next.

    worker ── connects when it enters the function ── agent      the words: `protocol/in_place.py`

A worker that has left is parked: it has cut all connections to its generation, and counts as gone for it. What does not
leave in time is ended as any worker is, and a process that cannot get going in place is replaced by a new one.

The socket has no file, its name cannot be guessed, and only the workers of the present generation are let in.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress

from outlast.agent.processes.worker import Streams, Worker
from outlast.agent.processes.workers import WorkerGroup
from outlast.protocol.in_place import BECOME, DECLINED, ENTERED, FAILED, LEAVE, LONGEST, PARKED, RETURNED

log = logging.getLogger("agent")

Failed = Callable[[int, int], None]

FRUITLESS = 2  # lives in a row in which a process failed before its first step: then a new one is started
TO_END = 5.0  # seconds for parked processes to end by themselves when the job is over


class InPlace:
    """The agent's side. Made within a running event loop.

    `stepped(local_rank)` says whether that worker has made a step in this generation. `counted()` is called when
    another number of processes is parked while no generation runs here.
    """

    def __init__(self, timeout: float, *, stepped: Callable[[int], bool], counted: Callable[[], None]) -> None:
        self.timeout = timeout
        self.stepped = stepped
        self.counted = counted
        self.failed: Failed = lambda _rank, _pid: None
        self.group: WorkerGroup | None = None  # whose workers may enter
        self.standby: list[WorkerGroup] = []  # processes that replace those that died, and have been in no generation
        self._entered = False  # a worker of the last generation was in a restartable function
        self.address = f"outlast-{secrets.token_hex(16)}" if timeout > 0 else ""
        self._parked: list[Worker] = []
        self._links: set[RestartLink] = set()
        self._loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = None
        if self.address:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            self._listener.bind(f"\0{self.address}")
            self._listener.listen(128)
            self._loop.add_reader(self._listener, self._accept, self._listener)

    def begin(self, group: WorkerGroup, failed: Failed) -> None:
        """The workers of this group may enter; `failed(local_rank, pid)` is called when a worker's function raises."""
        self.group, self.failed = group, failed
        self._entered = bool(group.restartable)

    def keep(self, group: WorkerGroup) -> None:
        """Its generation is over here: those of its workers that are parked stay for the next one."""
        self.group = None
        self._parked += group.parked
        group.parked_died = self.counted

    @property
    def waiting(self) -> int | None:
        """How many processes are parked; None: nobody was in a restartable function."""
        return len(self.parked) if self._entered else None

    @property
    def parked(self) -> list[Worker]:
        """Those that wait for the next generation."""
        waiting = [*self._parked, *(worker for group in self.standby for worker in group.parked)]
        return [each for each in waiting if each.exit_code is None]

    def stand_by(self, group: WorkerGroup) -> None:
        """These replace workers that died, and park as soon as they come to their restartable function."""
        self.standby.append(group)
        group.parked_died = self.counted

    def take(self, *, fresh: bool) -> list[Worker]:
        """The workers that wait for the next generation; none if it is to begin with nothing that was kept."""
        waiting, self._parked, self.standby = self.parked, [], []
        if not fresh:
            return waiting
        for each in waiting:
            each.signal(signal.SIGKILL)
        return []

    async def close(self) -> None:
        """There is no next generation: end those that wait for one."""
        waiting, self._parked, self.standby = self.parked, [], []
        for link in list(self._links):
            self.drop(link)
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
        if waiting:
            await WorkerGroup.of_parked(waiting).stop(0, TO_END)

    def drop(self, link: RestartLink) -> None:
        """Hang up, which ends a process that is parked."""
        self._links.discard(link)
        self._loop.remove_reader(link.socket)
        link.socket.close()

    def find(self, pid: int) -> tuple[Worker | None, WorkerGroup | None]:
        """The worker that is this process, and runs; and its group."""
        for group in (self.group, *self.standby):
            if group is not None and (worker := group.running(pid)) is not None:
                return worker, group
        return None, None

    def _accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):
            connection, _ = listener.accept()
            connection.setblocking(False)
            pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            worker, _ = self.find(pid) if user == os.getuid() else (None, None)
            if worker is None:
                connection.close()
                return
            self._entered = True
            worker.link = link = RestartLink(self, connection, pid)
            self._links.add(link)
            self._loop.add_reader(connection, link.hear)


class RestartLink:
    """The connection to one worker, over all generations of its process."""

    def __init__(self, in_place: InPlace, connection: socket.socket, pid: int) -> None:
        self.socket = connection
        self.timeout = in_place.timeout
        self._pid = pid
        self._in_place = in_place
        self._fruitless = 0

    def leave(self) -> bool:
        """Tell it that its generation is over; whether it could be told."""
        try:
            self.socket.send(LEAVE)
        except OSError:
            return False
        return True

    def become(self, before: Mapping[str, str], environment: Mapping[str, str], streams: Streams) -> bool:
        """Tell it to go on as the worker with this environment; whether it could be told."""
        changes = {
            "set": {name: value for name, value in environment.items() if before.get(name) != value},
            "unset": [name for name in before if name not in environment],
        }
        outputs = [1 if streams.stdout is None else streams.stdout, 2 if streams.stderr is None else streams.stderr]
        try:
            with os.fdopen(os.memfd_create("outlast"), "wb") as file:
                file.write(json.dumps(changes).encode())
                file.flush()
                os.lseek(file.fileno(), 0, os.SEEK_SET)
                socket.send_fds(self.socket, [BECOME], [file.fileno(), *outputs])
        except OSError as error:
            log.warning("a worker that waited for the next generation is replaced: %s", error)
            return False
        return True

    def hear(self) -> None:
        """It says something, or has hung up."""
        try:
            word, _, argument = self.socket.recv(LONGEST).partition(b" ")
        except BlockingIOError:
            return
        except OSError:
            word, argument = b"", b""
        worker, group = self._in_place.find(self._pid)
        if word == ENTERED:
            with suppress(ValueError):
                self.timeout = float(argument)
        elif word == FAILED and worker is not None:
            self._failed(worker)
        elif word == PARKED and worker is not None and group is not None:
            group.park(worker)
            if group in self._in_place.standby:
                self._in_place.counted()
        elif word in (DECLINED, RETURNED, b""):
            if word != DECLINED:
                self._in_place.drop(self)
            if worker is not None and group is not None:
                group.give_up_on(worker)

    def _failed(self, worker: Worker) -> None:
        """The function has raised on this rank, which counts as its exit; it parks, unless that has got it nowhere."""
        worker.failed = True
        self._fruitless = 0 if self._in_place.stepped(worker.local_rank) else self._fruitless + 1
        self._in_place.failed(worker.local_rank, worker.pid)
        if self._fruitless >= FRUITLESS:
            log.info(
                "local rank %d failed %d times in place before its first step: a new process is started for it",
                worker.local_rank,
                self._fruitless,
            )
            worker.signal(signal.SIGKILL)
