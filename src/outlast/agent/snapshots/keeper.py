"""The agent's side of the keeper: starts it with the first snapshot, tells it what happens, and sees it off.

The socket on which other nodes reach it is the agent's, so that its port is known before there is a keeper, and stays
the same when one is replaced.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from outlast.agent.processes.place import Place
from outlast.agent.snapshots import keeper_process, memory
from outlast.agent.snapshots.keeper_process import COMPLETE, ENDED, LOOK, NETWORK, OVER, PARTNER, Complete, Network
from outlast.checkpoint.memory import arena as arenas
from outlast.checkpoint.memory import shards
from outlast.checkpoint.memory.channel import key_of
from outlast.checkpoint.memory.shards import AgreedSnapshot
from outlast.checkpoint.memory.slot import Mark
from outlast.checkpoint.storage.persist import Outcome
from outlast.checkpoint.trainer.background import tell
from outlast.protocol.snapshots import Held, Keeping, Snapshot
from outlast.system import own_process, private
from outlast.system.pidfd import pidfd_open
from outlast.transport.commission import Tls

log = logging.getLogger("agent")

SHARED_MEMORY = Path("/dev/shm")
BRIEF = 1.0  # seconds: a keeper that lived no longer cannot live here
ATTEMPTS = 3  # in a row with such a brief life


def arena_of(place: Place) -> Path:
    """Where the snapshots of this place are: what the agent before this one has left, else a new name.

    The name cannot be guessed, so nobody can make the directory first. What another user has made is never ours.

    Nothing is made here: a job that takes no snapshots leaves no trace, even if its agent is killed.
    """
    prefix = f"outlast-{os.getuid()}-{place.key[:16] or secrets.token_hex(8)}-"
    left = [each for each in SHARED_MEMORY.glob(prefix + "[0-9a-f]" * 16) if private.is_directory(each)]
    return max(left, key=_changed, default=SHARED_MEMORY / f"{prefix}{secrets.token_hex(8)}")


def _changed(path: Path) -> float:
    with suppress(FileNotFoundError):  # the keeper before this one has just removed it
        return path.lstat().st_mtime
    return 0.0


@dataclass(frozen=True)
class Line:
    """How other nodes reach this one's keeper, and it them."""

    listener: socket.socket
    token: Callable[[], str | None]
    tls: Tls | None = None
    replicas: int = 1  # whether copies of this node's snapshots are sent to another

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port

    @property
    def key(self) -> str:
        return key_of(self.token() or "")


def listen(*, loopback: bool) -> socket.socket | None:
    """A socket for a keeper, on any free port; None where there cannot be one, and then no memory is shared."""
    try:
        if loopback:
            return socket.create_server(("127.0.0.1", 0))
        if socket.has_dualstack_ipv6():
            with suppress(OSError):
                return socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", 0))
    except OSError as error:
        log.warning("no other node can read this one's snapshots: %s", error)
        return None


class Keeper:
    """Has this node's snapshots written to disk, and copied to another node. Made within a running loop.

    keeper = Keeper(place, linger=60.0, level="info")
    environment["OUTLAST_ARENA"] = f"{keeper.arena}:{local_rank}"
    keeper.begin(2, "10.0.0.1", keeping)  # when the workers of a generation are about to be started
    keeper.look()            # when a worker rings
    keeper.ended()           # when the workers are gone, and not because they were done
    await keeper.close()     # when this node is done: all that is to be on disk is, and the memory is given back
    """

    def __init__(
        self,
        place: Place,
        *,
        linger: float,
        level: str,
        line: Line | None = None,
        keeps_up: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.arena = arena_of(place)
        self._command = [
            *own_process.command(f"{keeper_process.__name__}:run", str(self.arena)),
            *(place.key, str(linger), level),
        ]
        self._line = line
        self._keeps_up = keeps_up  # called with the stride that it can keep
        self._said = b""
        self._partner: tuple[str, int] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._gone = asyncio.Event()
        self._closing = False
        self._born = 0.0
        self._brief_lives = 0
        self._missed: dict[Mark, int] = {}  # durable snapshots that nobody is there to write, with their steps

    @property
    def port(self) -> int:
        """Where other nodes reach it; 0: nowhere."""
        return self._line.port if self._line is not None else 0

    @property
    def unwritten(self) -> str:
        """Which snapshot should be on disk and is not, after `close`; "" if all are."""
        if not self._missed:
            return ""
        return f"step {max(self._missed.values())}, a durable save, is not on disk: no keeper lived on this node"

    def held(self) -> tuple[Held, ...]:
        """What is in memory here. To be asked when no worker changes it."""
        return memory.held(self.arena)

    def begin(self, generation: int, address: str, keeping: Keeping) -> str:
        """A generation starts: have its workers find what they can restore from memory, and its snapshots be copied.

        `address` is this node's own. Returns the host of the node that gets the copies; "" if none does.
        """
        self.set_stride(keeping.stride)
        line, partner = self._line, keeping.partner
        self._partner = (partner.addr, partner.port) if partner is not None and line is not None else None
        if line is None or not line.replicas:
            self._partner = None
        if self._process is not None:
            self._tell(PARTNER + msgspec.json.encode(self._partner))
        if keeping.snapshots:
            key, tls = (line.key, line.tls is not None) if line is not None else ("", False)
            with suppress(OSError):  # they then restore from disk
                self._hand_out(AgreedSnapshot(generation, key, tls, keeping.snapshots))
            self.look()
            self._complete(keeping.snapshots[0], (address, self.port))
        return self._partner[0] if self._partner is not None else ""

    def set_stride(self, stride: int) -> None:
        """Only one in so many snapshots is copied from now on: told to the workers, who keep those, and the keeper."""
        if private.is_directory(self.arena) and stride != arenas.stride(self.arena):
            with suppress(OSError):
                private.write(self.arena / arenas.STRIDE_FILE, b"%d" % stride)

    def _hand_out(self, agreed: AgreedSnapshot) -> None:
        private.make_directory(self.arena)
        private.write(self.arena / shards.FILE, msgspec.json.encode(agreed))

    def _complete(self, snapshot: Snapshot, me: tuple[str, int]) -> None:
        """If a node is lost, what all go on from is written to disk: its shards by the first who has a copy of each."""
        lost = set(range(snapshot.world)).difference(*(holder.ranks for holder in snapshot.holders))
        mine: set[int] = set()
        for holder in snapshot.holders if lost else ():
            here = (holder.addr, holder.port) == me
            mine |= {*holder.ranks, *lost.intersection(holder.replicas)} if here else set()
            lost -= set(holder.replicas)
        if mine:
            task = Complete((snapshot.run, snapshot.sequence), tuple(sorted(mine)))
            self._tell(COMPLETE + msgspec.json.encode(task))

    def look(self) -> None:
        """Snapshots may be there that are to be on disk."""
        if private.is_directory(self.arena):
            self._tell(LOOK)

    def ended(self) -> None:
        """The workers have ended before their work was done: what is in memory only should be on disk as well."""
        if self._process is not None or private.is_directory(self.arena):
            self._tell(ENDED)

    async def close(self, hurry: asyncio.Future[None] | None = None) -> None:
        """Await what is to be on disk, and remove the arena; at once, when `hurry` is done."""
        self._closing = True
        if self._process is not None:
            self._tell(OVER)
        while self._process is not None:  # one that is killed meanwhile is replaced
            gone = asyncio.ensure_future(self._gone.wait())
            events: set[asyncio.Future[Any]] = {gone} if hurry is None else {gone, hurry}
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            if hurry is not None and hurry.done():
                self._end()
        keeper_process.remove(self.arena)  # that of an agent, and a keeper, that were killed before us
        if self._line is not None:
            self._line.listener.close()

    def _tell(self, word: bytes) -> None:
        if self._process is None and not self._start():
            return
        assert self._process is not None
        assert self._process.stdin is not None
        # A keeper that is just gone looks for itself when it is started again; one that is far behind has heard enough.
        with suppress(BrokenPipeError, BlockingIOError):
            os.write(self._process.stdin.fileno(), word + b"\n")

    def _start(self) -> bool:
        self._born = self._loop.time()
        self._gone.clear()
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
                pass_fds=[self._line.listener.fileno()] if self._line is not None else [],
            )
            self._pidfd = pidfd_open(self._process.pid)
            self._introduce()
        except OSError as error:
            log.error("no keeper: snapshots will not be written to disk (%s)", error)
            self._end()
            self._give_up(str(error))
            return False
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        os.set_blocking(self._process.stdout.fileno(), False)
        self._said = b""
        self._loop.add_reader(self._process.stdout.fileno(), self._hear, self._process.stdout.fileno())
        self._loop.add_reader(self._pidfd, self._exited)
        return True

    def _introduce(self) -> None:
        """Tell a new keeper what it needs for other nodes. Not on its command line, which all can read."""
        if self._line is not None:
            network = Network(self._line.listener.fileno(), self._line.key, self._line.tls)
            self._tell(NETWORK + msgspec.json.encode(network))
            self._tell(PARTNER + msgspec.json.encode(self._partner))

    def _hear(self, stream: int) -> None:
        """The keeper says what it can keep up with."""
        with suppress(BlockingIOError):
            chunk = os.read(stream, 4096)
            if not chunk:
                self._loop.remove_reader(stream)
            *lines, self._said = (self._said + chunk).split(b"\n")
            for line in lines:
                self._keeps_up(int(line))

    def _exited(self) -> None:
        assert self._process is not None
        how, brief = self._process.wait(), self._loop.time() - self._born < BRIEF
        self._end()
        self._gone.set()
        if self._closing and how == 0:
            self._missed.clear()  # a keeper writes all that it finds
            return
        self._brief_lives = self._brief_lives + 1 if brief else 0
        if self._brief_lives >= ATTEMPTS:  # the next word to it is the next attempt
            if self._brief_lives == ATTEMPTS:
                log.error("no keeper lives here (the last one ended with %d): snapshots are not written to disk", how)
            self._give_up(f"it ended with {how}")
        elif self._start():
            log.warning("the keeper ended with %d: started another", how)
            if self._closing:
                self._tell(OVER)

    def _give_up(self, why: str) -> None:
        """Let nobody wait for what will not be written."""
        for each in memory.snapshots(self.arena):
            if each.ticket.durable:
                step = each.ticket.save.step
                problem = f"step {step} is not on disk: no keeper lives on this node ({why})"
                tell(self.arena, Outcome(each.mark, step, problem))
                if each.mark not in self._missed:  # also for a worker that saves and does not wait
                    self._missed[each.mark] = step
                    log.error("%s", problem)

    def _end(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._loop.remove_reader(self._process.stdout.fileno())
            self._process.stdout.close()
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._process.stdin.close()
            self._process = None
