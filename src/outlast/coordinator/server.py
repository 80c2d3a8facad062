"""The sockets, files and plug-ins around `core.coordinator`, which decides everything.

One event loop, no thread, no lock.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import ssl
import time
from collections.abc import Iterable

import msgspec

from outlast.coordinator.door import Door
from outlast.coordinator.event_stream import EventStream
from outlast.core.coordinator.commands import Break, Close, Command, JournalEntry, PublishEvent, Write
from outlast.core.coordinator.coordinator import Coordinator
from outlast.core.job.commands import NodesWanted, ReleaseNode, Remember, Reply
from outlast.core.succession.authority import Memory
from outlast.core.succession.succession import FIRST
from outlast.events.events import level_of
from outlast.events.numbered import NumberedEvent
from outlast.events.sentences import sentence
from outlast.journal import Began, Journal
from outlast.log import Sparing
from outlast.notices.webhook import WebhookProcess
from outlast.platforms.plugins import Plugins, alarm_of
from outlast.protocol.fields import UNREADABLE
from outlast.protocol.logs import AskLogs
from outlast.protocol.membership import Join, Over
from outlast.protocol.messages import FromCoordinator, ToCoordinator
from outlast.protocol.observers import FollowEvents, ReadView, ToObserver
from outlast.protocol.requests import Ask
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Charter, Term
from outlast.providers.by_hand import ByHand
from outlast.providers.node_source import NodeSource
from outlast.system import clock
from outlast.transport.unproved import HANDSHAKE
from outlast.transport.wire import Wire, WireError

JOURNALLED = 0.02  # seconds within which what happened is written
READ = 1 << 16
REQUESTS = (ReadView, FollowEvents, AskLogs)
LASTING = (Join, *REQUESTS)  # messages of those who stay
PROBES = 3  # that a host leaves unanswered, a second apart, before its connection counts as broken

log = logging.getLogger("coordinator")
sparing = Sparing(log)
_decoder = msgspec.msgpack.Decoder(ToCoordinator)
_encoder = msgspec.msgpack.Encoder()


class Peer(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, server: Server) -> None:
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
        self._patience = asyncio.get_running_loop().call_later(HANDSHAKE, self.refuse, "it said nothing")
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
                self._server.proved(self)
                self.send(self._server.core.standing(clock.now()))
            for payload in payloads:
                self._received(_decoder.decode(payload))
        except (WireError, *UNREADABLE) as error:
            self.refuse(str(error))
        finally:
            self._receiving = False
            self._flush()

    def _received(self, message: ToCoordinator) -> None:
        if isinstance(message, LASTING) and self._patience is not None:
            self._patience.cancel()
        self._server.received(self, message, may_act=self._wire.may_act)

    def refuse(self, why: str) -> None:
        """Its other end does what no agent does."""
        self._refused = True
        (log if self._wire.ready else sparing).warning("closed the connection from %s: %s", self.address, why)
        self.abort()

    @property
    def unread(self) -> int:
        """Bytes that were sent and that the other end has not taken."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, message: FromCoordinator | ToObserver) -> None:
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
            sparing.warning("%s went before it had joined: it may not know this job's token", self.address)
        # An agent that we closed the door on may live, and its workers with it.
        broke = str(error) or type(error).__name__ if error is not None else "refused" * self._refused
        self._server.ended(self, broke)


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
        history: Iterable[NumberedEvent] = (),
        journal: Journal | None = None,
        events: EventStream | None = None,
        notices: WebhookProcess | None = None,
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
        self._notices = notices
        self._loop = asyncio.get_running_loop()
        now, wall = clock.now(), time.time()  # once: events are as far apart as they were, whoever sets the clock
        self.core: Coordinator[Peer] = Coordinator(
            rules, now, term=term, run=run, memory=memory, charter=charter, history=history, wall=wall - now
        )
        if journal is not None:
            journal.began(Began(now, rules, self.core.term, run, memory, charter=charter, wall=wall))
        self._timer: asyncio.TimerHandle | None = None
        self._due = float("-inf")  # when it wakes
        self._over: asyncio.Future[Over | None] = self._loop.create_future()
        self._empty = asyncio.Event()
        self._door: Door[Peer] | None = None
        self._plugins = Plugins()
        self._nodes: NodeSource = ByHand(rules.job, self._plugins.tell)

    async def serve(
        self, listener: socket.socket, *, tls: ssl.SSLContext | None = None, linger: float = 30.0
    ) -> Over | None:
        """Coordinate until the job is over and every agent has gone, or `linger` seconds later.

        None: the job goes on, with a coordinator elsewhere.
        """
        self._arm()
        self._loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        self._door = Door(listener, lambda: Peer(self), tls=tls)
        try:
            over = await self._over
            if over is None:
                log.info("another node hosts the coordinator from now on")
            else:
                await self._see_off(linger)
            for peer in list(self.peers):
                if over is None or peer in self.core.observers:
                    peer.close()  # it may not have taken the last events yet
                else:
                    peer.abort()
        finally:
            self._door.close()
        if self._timer is not None:
            self._timer.cancel()
        self._plugins.close()
        if self._notices is not None:
            self._notices.close()
        return over

    def proved(self, peer: Peer) -> None:
        """It knows the token."""
        if self._door is not None:
            self._door.proved(peer)

    async def _see_off(self, linger: float) -> None:
        try:
            await asyncio.wait_for(self._all_gone(), linger)
        except asyncio.TimeoutError:
            log.warning("%d nodes did not say goodbye", len(self.core.connections))

    async def _all_gone(self) -> None:
        while self.core.connections:
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

    # -- what happens

    def received(self, peer: Peer, message: ToCoordinator, *, may_act: bool) -> None:
        if isinstance(message, Ask):
            log.debug("asked to %s by %s", message.what, message.who)
        unread = peer.unread if isinstance(message, REQUESTS) else 0
        self._carry_out(self.core.received(peer, message, clock.now(), may_act=may_act, unread=unread))

    def ended(self, peer: Peer, broke: str) -> None:
        self.peers.discard(peer)
        if self._door is not None:
            self._door.gone(peer)
        self._carry_out(self.core.ended(peer, clock.now(), broke=broke))

    def _hang_up(self) -> None:
        self._carry_out(self.core.asked(Ask("restart", "SIGHUP"), clock.now()))

    def _arm(self) -> None:
        """Wake up at the next deadline. A timer that fires too early costs nothing; one is never late."""
        due = self.core.deadline()
        if due is None:
            return
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_later(due - clock.now(), self._wake)

    def _wake(self) -> None:
        # This process may have been held up: what nodes said in the meantime is read before they are called silent.
        # (A timer that is due runs after the sockets that are ready.)
        self._due = float("-inf")
        self._timer = self._loop.call_later(0, self._tick, clock.now())

    def _tick(self, woke: float) -> None:
        self._timer = None
        self._carry_out(self.core.tick(clock.now(), heard_until=woke))

    # -- what is done about it

    def _carry_out(self, commands: list[Command[Peer]]) -> None:
        for command in commands:
            if isinstance(command, JournalEntry):
                self._write_down(command)
            elif isinstance(command, Remember):
                self._remember(command)
            else:
                self._attempt(command)
        if not self.core.connections:
            self._empty.set()
        if (self.core.outcome is not None or self.core.resigned) and not self._over.done():
            self._over.set_result(self.core.outcome)
        self._arm()

    def _remember(self, command: Remember) -> None:
        if self._journal is not None:
            self._journal.remember(command.memory)

    def _attempt(
        self, command: Write[Peer] | Close[Peer] | Break[Peer] | PublishEvent | Reply | NodesWanted | ReleaseNode
    ) -> None:
        """Do what concerns one node, or people: where it fails, the other nodes must not go without the rest."""
        try:
            if isinstance(command, Write):
                command.connection.send(command.message)
            elif isinstance(command, Close):
                command.connection.close()
            elif isinstance(command, Break):
                if command.why:
                    command.connection.refuse(command.why)
                else:
                    command.connection.abort()
            elif isinstance(command, PublishEvent):
                self._publish(command.numbered)
            elif isinstance(command, NodesWanted):
                self._nodes.want(command)
            elif isinstance(command, ReleaseNode):
                self._nodes.release(command)
            else:
                log.info("%s", command.answer.text)
        except Exception:
            log.exception("could not carry out %s", type(command).__name__)

    def _publish(self, numbered: NumberedEvent) -> None:
        event = numbered.event
        level = logging.getLevelName(level_of(event).value.upper())
        if log.isEnabledFor(level):
            for line in sentence(event).splitlines():
                log.log(level, "%s", line)
        if self._events is not None:
            self._events.append(numbered, run=self.core.job.run)
        if self._journal is not None:
            self._flush_soon(self._journal)
            self._journal.published(numbered)
        if self._notices is not None:
            self._notices.tell(event, run=self.core.job.run)
        alarm = alarm_of(event, self._rules.job)
        if alarm is not None:
            self._plugins.tell(alarm)

    def _write_down(self, happened: JournalEntry) -> None:
        if self._journal is not None:
            self._flush_soon(self._journal)
            self._journal.happened(happened.at, happened.event, happened.answers, happened.decisions)

    def _flush_soon(self, journal: Journal) -> None:
        if not journal.waits:
            self._loop.call_later(JOURNALLED, journal.flush)
