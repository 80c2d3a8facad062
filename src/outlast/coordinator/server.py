"""The socket around the core: connections become events, commands become messages.

One event loop, no thread, no lock. A connection that closes is a node that has ended; one that breaks or falls
silent may still have workers, and the core is told until when.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import ssl

import msgspec

from outlast.coordinator.event_stream import EventStream
from outlast.core.job.commands import Command, Cordon, Drop, Note, NoteKind, Raise, Remember, Reply, Send
from outlast.core.job.inputs import Asked, Event, Found, Joined, Lost, Queried, Reported, Saw, Straggled
from outlast.core.job.job import FIRST, Job
from outlast.core.membership.liveness import ORPHANS, Liveness
from outlast.core.stragglers.stragglers import Stragglers
from outlast.core.succession.authority import Memory
from outlast.core.tick import Tick
from outlast.journal import Began, Journal
from outlast.platforms.plugins import Alarm, Faulty, Plugins
from outlast.protocol.checks import Findings
from outlast.protocol.hangs import Seen
from outlast.protocol.membership import Join, Over, Report
from outlast.protocol.messages import FromAgent, FromCoordinator
from outlast.protocol.paces import Paces
from outlast.protocol.requests import Ask
from outlast.protocol.rules import Rules
from outlast.protocol.shards import Query
from outlast.protocol.succession import Charter, Standing, Term
from outlast.system import clock
from outlast.transport.wire import Wire, WireError

HANDSHAKE_TIMEOUT = 10.0
JOURNALLED = 0.02  # seconds within which what happened is written
READ = 1 << 16
ACCEPTED_AT_ONCE = 128  # out of descriptors, asyncio says so once for each of these
PROBES = 3  # that a host leaves unanswered, a second apart, before its connection counts as broken
BACKLOG = 4096  # the whole of a large job may knock at the same moment

LEVELS = {NoteKind.HANG: logging.ERROR, NoteKind.STRAGGLER: logging.WARNING}

log = logging.getLogger("coordinator")
_decoder = msgspec.msgpack.Decoder(FromAgent)
_encoder = msgspec.msgpack.Encoder()


class Peer(asyncio.BufferedProtocol):
    """One connection. It knows its node once that has joined."""

    def __init__(self, server: Server) -> None:
        self.node: str | None = None
        self.address = "?"
        self._server = server
        self._wire = Wire(server.token, agent=False, binding=server.binding)
        self._transport: asyncio.Transport | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._heard = False  # anything at all
        self._refused = False
        self._receiving = False
        self._introduced = False
        self._unsent: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.probe(transport.get_extra_info("socket"))
        host = transport.get_extra_info("peername")
        self.address = f"{host[0]}:{host[1]}" if host else "?"
        self._patience = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT, self._refuse, "it said nothing")
        self._server.peers.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = True
        # All that these bytes are answered with goes out at once: the system call is most of what a message costs.
        self._receiving = True
        try:
            payloads = self._wire.feed(bytes(self._server.buffer[:nbytes]))
            self._unsent.append(self._wire.take())
            if self._wire.ready and not self._introduced:
                self._introduced = True
                self.send(self._server.standing())
            for payload in payloads:
                self._received(_decoder.decode(payload))
        except (WireError, msgspec.DecodeError, RecursionError) as error:
            self._refuse(str(error))
        finally:
            self._receiving = False
            self._flush()

    def _received(self, message: FromAgent) -> None:
        if isinstance(message, Join):
            if self.node is not None:
                raise WireError("it joined twice on one connection")
            self.node = message.node
            if self._patience is not None:
                self._patience.cancel()
            self._server.joined(self, message)
        elif isinstance(message, Ask):
            self._server.asked(self, message)
        elif self.node is None:
            raise WireError("it reported before it joined")
        else:
            self._server.reported(self, self.node, message)

    def _refuse(self, why: str) -> None:
        self._refused = True
        log.warning("closed the connection from %s: %s", self.address, why)
        self.abort()

    def send(self, message: FromCoordinator) -> None:
        self._unsent.append(self._wire.pack(_encoder.encode(message)))
        if not self._receiving:
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self._unsent)
        self._unsent.clear()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        if self._heard and not self._wire.ready and not self._refused:
            # An agent with another token sees that in our proof, and goes without a word.
            log.warning("%s went before it had joined: it may not know this job's token", self.address)
        # An agent that we closed the door on may live, and its workers with it.
        self._server.gone(self, ConnectionAbortedError("refused") if self._refused and error is None else error)


class Server:
    """One job's coordinator. Made within a running event loop.

    over = await Server(rules, token="…").serve(listener)
    """

    def __init__(
        self,
        rules: Rules,
        token: str,
        *,
        binding: bytes = b"",
        term: Term = FIRST,
        run: str = "",
        memory: Memory | None = None,
        charter: Charter | None = None,
        journal: Journal | None = None,
        events: EventStream | None = None,
    ) -> None:
        self.token = token
        self.binding = binding
        self.peers: set[Peer] = set()
        # Every peer reads into this, one at a time. By itself asyncio takes 256 KiB from the system for every read and
        # gives them back: with thousands of nodes that is half of a coordinator's work.
        self.buffer = memoryview(bytearray(READ))
        self._rules = rules
        self._journal = journal
        self._events = events
        self._of: dict[str, Peer] = {}
        self._liveness = Liveness(rules.node_timeout)
        self._stragglers = Stragglers(rules.straggler_factor)
        self._loop = asyncio.get_running_loop()
        self._job = Job(rules, clock.now(), term=term, run=run, memory=memory, charter=charter)
        if journal is not None:
            journal.began(Began(clock.now(), rules, term, run, memory, charter=charter))
        self._timer: asyncio.TimerHandle | None = None
        self._due = float("-inf")  # when it wakes
        self._over: asyncio.Future[Over] = self._loop.create_future()
        self._empty = asyncio.Event()
        self._plugins = Plugins()

    def standing(self) -> Standing:
        return self._job.standing(self._now())

    async def serve(self, listener: socket.socket, *, tls: ssl.SSLContext | None = None, linger: float = 30.0) -> Over:
        """Coordinate until the job is over and every agent has gone, or `linger` seconds later."""
        self._arm()
        self._loop.add_signal_handler(signal.SIGHUP, self.asked, None, Ask("restart", "SIGHUP"))
        listening = await self._loop.create_server(lambda: Peer(self), sock=listener, backlog=ACCEPTED_AT_ONCE, ssl=tls)
        listener.listen(BACKLOG)
        async with listening:
            over = await self._over
            try:
                await asyncio.wait_for(self._all_gone(), linger)
            except asyncio.TimeoutError:
                log.warning("%d nodes did not say goodbye", len(self._of))
            for peer in list(self.peers):
                peer.abort()
        if self._timer is not None:
            self._timer.cancel()
        self._plugins.close()
        return over

    async def _all_gone(self) -> None:
        while self._of:
            self._empty.clear()
            await self._empty.wait()

    def probe(self, connection: socket.socket) -> None:
        """Let the kernel ask whether the peer's host is still there, once its agent has been silent for too long.

        That tells an agent that is stopped from one whose machine is gone: the only node of a job is not given up
        for its silence (`Liveness`).
        """
        silence = max(1, math.ceil(self._rules.node_timeout))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, silence)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
        # Where something unanswered is under way, the kernel does not probe, and would try for a quarter of an hour.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * (silence + PROBES))

    # -- what connections tell

    def joined(self, peer: Peer, join: Join) -> None:
        older = self._of.get(join.node)
        self._of[join.node] = peer
        if older is not None:
            older.abort()
        self._liveness.heard(join.node, self._now())
        self._feed(Joined(join))

    def reported(self, peer: Peer, node: str, message: FromAgent) -> None:
        if self._of.get(node) is not peer:
            return
        if isinstance(message, Report):
            self._liveness.heard(node, self._now())
            self._feed(Reported(node, message))
        elif isinstance(message, Seen):
            self._feed(Saw(node, message))
        elif isinstance(message, Query):
            self._feed(Queried(node, message))
        elif isinstance(message, Paces):
            # Beside the job's decisions, as silence is: of all the figures, they and the journal need the outcome only.
            for who, found in self._stragglers.hear(node, message):
                self._feed(Straggled(who, found))
        elif isinstance(message, Findings):
            self._feed(Found(node, message))

    def asked(self, peer: Peer | None, ask: Ask) -> None:
        """Somebody with the token, or (without a connection) a signal to this process, asks for something."""
        log.debug("asked to %s by %s", ask.what, ask.who)
        for command in self._feed(Asked(ask)):
            if isinstance(command, Reply) and peer is not None:
                peer.send(command.answer)
                peer.close()
            elif isinstance(command, Reply):
                log.info("%s", command.answer.text)

    def gone(self, peer: Peer, error: Exception | None) -> None:
        self.peers.discard(peer)
        node = peer.node
        if node is None or self._of.get(node) is not peer:
            return
        if error is None:
            self._lose(node, Lost(node, "its connection closed", self._now() + ORPHANS, ended=True))
        else:
            # Nobody closed it, it broke: the agent may live on, and its workers until their lease ends.
            until = self._liveness.heard_at(node, self._now()) + self._rules.node_timeout
            self._lose(node, Lost(node, f"its connection broke ({error})", until))

    def _lose(self, node: str, event: Lost) -> None:
        self._forget(node)
        self._feed(event)

    def _forget(self, node: str) -> Peer | None:
        self._liveness.forget(node)
        peer = self._of.pop(node, None)
        if not self._of:
            self._empty.set()
        return peer

    # -- the core

    def _now(self) -> float:
        return clock.now()

    def _feed(self, event: Event) -> list[Command]:
        now = self._now()
        commands = self._job.handle(event, now)
        if self._journal is not None and not self._job.idle:
            if not self._journal.waits:
                self._loop.call_later(JOURNALLED, self._journal.flush)
            self._journal.happened(now, event, self._job.answers, commands)
        for command in commands:
            self._carry_out(command)
        if self._job.outcome is not None and not self._over.done():
            self._over.set_result(self._job.outcome)
        self._arm()
        return commands

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Send):
            peer = self._of.get(command.node)
            if peer is not None:
                peer.send(command.message)
        elif isinstance(command, Note):
            log.log(LEVELS.get(command.kind, logging.INFO), "%s", command.text)
            if self._events is not None:
                self._events.append(command, run=self._job.run, term=self._job.term)
        elif isinstance(command, Remember) and self._journal is not None:
            self._journal.remember(command.memory)
        elif isinstance(command, Cordon):
            self._plugins.tell(Faulty(self._rules.job, command.node, command.reason, command.seconds))
        elif isinstance(command, Raise):
            self._plugins.tell(Alarm(self._rules.job, command.node, command.rank, command.cause, command.text))
        elif isinstance(command, Drop):
            peer = self._forget(command.node)
            if peer is not None:
                peer.close()

    def _arm(self) -> None:
        """Wake up at the next deadline. A timer that fires too early costs nothing; one is never late."""
        due, silent = self._job.deadline(), self._liveness.deadline()
        if due is None or (silent is not None and silent < due):
            due = silent
        if due is None:
            return
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_later(due - self._now(), self._tick)

    def _tick(self) -> None:
        # This process may have been held up: what nodes said in the meantime is read before they are called silent.
        # (A timer that is due runs after the sockets that are ready.)
        self._due = float("-inf")
        self._timer = self._loop.call_later(0, self._judge, self._now())

    def _judge(self, now: float) -> None:
        self._timer = None
        for node in self._liveness.silent(now):
            peer = self._of.get(node)
            if peer is not None:
                peer.abort()
                self._lose(node, Lost(node, f"nothing heard for {self._rules.node_timeout:g} s"))
        deadline = self._job.deadline()
        if deadline is not None and deadline <= self._now():
            self._feed(Tick())
        self._arm()
