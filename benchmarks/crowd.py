"""Thousands of agents in one process, as the coordinator sees them: real sockets, real proofs, real messages.

What an agent has besides that, workers and a machine of its own, is left out: a crowd answers at once. It is an epoll
loop by hand, because the coordinator is measured, and the crowd must not be what it waits for.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from contextlib import suppress
from multiprocessing.connection import Connection

import msgspec

from outlast.protocol.generations import Start, Stop
from outlast.protocol.logs import (
    FindStreams,
    FoundStream,
    LogAnswer,
    LogLine,
    LogQuestion,
    LogStream,
    ReadStreams,
    StreamPart,
    StreamPlace,
    StreamsFound,
    StreamsRead,
)
from outlast.protocol.membership import Ack, Join, Over, Refuse, Report, State, Welcome
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.succession import Charter
from outlast.transport.wire import Wire

ENTRYPOINT = "train.py"
READ = 1 << 12

_decoder = msgspec.msgpack.Decoder(FromCoordinator)
_encoder = msgspec.msgpack.Encoder()
_question = msgspec.msgpack.Decoder(FindStreams | ReadStreams)


class Agent:
    """One agent: it starts what it is told to start, and its workers end the moment that they are told to."""

    __slots__ = ("acked", "clear", "due", "floor", "generation", "known", "number", "seq", "shaken", "socket", "wire")

    def __init__(self, number: int, token: str) -> None:
        self.number = number
        self.wire = Wire(token, agent=True)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.shaken = False
        self.seq = self.floor = self.generation = 0
        self.clear = True
        self.acked = 0
        self.known = (0, 0, 0)
        self.due = 0.0  # when its next heartbeat is

    def report(self) -> Report:
        self.seq += 1
        state = State.IDLE if self.clear else State.RUNNING
        return Report(
            seq=self.seq,
            floor=self.floor,
            generation=self.generation,
            state=state,
            clear=self.clear,
            store_port=29500,
            acked=self.acked,
            known=self.known,
        )

    def join(self, job: str, nnodes: tuple[int, int]) -> Join:
        name = f"node-{self.number:05d}"
        return Join(
            node=name,
            name=name,
            nproc=8,
            role="default",
            addr="127.0.0.1",
            job=job,
            entrypoint=ENTRYPOINT,
            nnodes=nnodes,
            report=self.report(),
            connection=1,
            port=29400,
        )

    def say(self, message: Report | Join | LogAnswer) -> None:
        self.socket.send(self.wire.pack(_encoder.encode(message)))


def _log_answer(agent: Agent, question: bytes) -> bytes:
    """Every rank has printed 20 lines, and prints no more."""
    asked = _question.decode(question)
    if isinstance(asked, FindStreams):
        streams = [LogStream(agent.generation, rank, error) for rank in range(8) for error in (False, True)]
        found = [FoundStream(StreamPlace(each, 0), 8 * agent.number + each.local_rank) for each in streams]
        return _encoder.encode(StreamsFound(tuple(found), agent.generation))
    parts = []
    for place in asked.places:
        lines = [LogLine(float(number), b"x" * 80) for number in range(20)] if not place.offset else []
        parts.append(StreamPart(StreamPlace(place.stream, 1620), tuple(lines), float("inf"), end=True, closed=False))
    return _encoder.encode(StreamsRead(tuple(parts), agent.generation))


class Crowd:
    """Agents `first` to `first + count - 1` of a job, driven by its owner's orders: see `run`."""

    def __init__(
        self,
        orders: Connection,
        endpoint: tuple[str, int],
        token: str,
        *,
        job: str,
        nnodes: tuple[int, int],
        heartbeat: float,
    ) -> None:
        self._orders = orders
        self._endpoint = endpoint
        self._token = token
        self._job = job
        self._nnodes = nnodes
        self._heartbeat = heartbeat
        self._epoll = select.epoll()
        self._agents: dict[int, Agent] = {}
        self._beats: deque[tuple[float, Agent]] = deque()
        self._awaited = 0  # agents that do not have the assignment yet that the owner waits for
        self._target = 0  # its generation, at least

    def run(self, first: int, count: int) -> None:
        """Follow orders until the owner hangs up.

        "join" → (when the first agent connected, when the last one held its assignment); "lose": close one agent's
        connection → when that was; "await" (on every crowd, before "lose"): → when the last one held the next one.
        """
        self._epoll.register(self._orders.fileno(), select.EPOLLIN)
        waiting = [Agent(first + i, self._token) for i in range(count)]
        started = 0.0
        self._orders.send("ready")
        while True:
            timeout = max(0.0, self._beats[0][0] - time.monotonic()) if self._beats else 10.0
            for number, events in self._epoll.poll(timeout):
                if number == self._orders.fileno():
                    try:
                        order = self._orders.recv()
                    except EOFError:
                        return
                    if order == "join":
                        self._awaited, self._target = count, 1
                        started = time.monotonic()
                        self._connect(waiting)
                    elif order == "await":
                        self._awaited, self._target = len(self._agents), self._target + 1
                        started = 0.0
                        self._orders.send("ready")
                    elif order == "lose":
                        self._awaited -= 1
                        self._orders.send(self._lose())
                elif self._event(self._agents[number], events):
                    self._awaited -= 1
                    if not self._awaited:
                        self._orders.send((started, time.monotonic()))
            self._beat()

    def _connect(self, waiting: list[Agent]) -> None:
        for agent in waiting:
            agent.socket.connect_ex(self._endpoint)
            self._agents[agent.socket.fileno()] = agent
            self._epoll.register(agent.socket.fileno(), select.EPOLLOUT)

    def _lose(self) -> float:
        number, agent = self._agents.popitem()
        self._epoll.unregister(number)
        agent.due = float("inf")
        # A socket that is closed with bytes unread resets its connection; that a process which dies has read all but
        # the last moment's is the usual case, and the one that is measured.
        with suppress(BlockingIOError):
            while agent.socket.recv(READ):
                pass
        at = time.monotonic()
        agent.socket.close()
        return at

    def _event(self, agent: Agent, events: int) -> bool:
        """Whether this gave the agent the assignment that is waited for."""
        if events & select.EPOLLOUT:
            agent.socket.send(agent.wire.hello)
            self._epoll.modify(agent.socket.fileno(), select.EPOLLIN)
            return False
        data = agent.socket.recv(READ)
        if not data:
            raise RuntimeError(f"the coordinator closed the connection of agent {agent.number}")
        payloads = agent.wire.feed(data)
        if not agent.shaken and agent.wire.ready:
            agent.shaken = True
            proof = agent.wire.take()
            agent.socket.send(proof + agent.wire.pack(_encoder.encode(agent.join(self._job, self._nnodes))))
            self._schedule(agent)
        assigned = [self._received(agent, _decoder.decode(payload)) for payload in payloads]
        return any(assigned)

    def _received(self, agent: Agent, message: FromCoordinator) -> bool:
        if isinstance(message, Ack):
            agent.acked = message.seq
            return False
        if isinstance(message, Charter):
            agent.known = message.known
            return False
        if isinstance(message, Start):
            agent.acked, agent.known = message.ack, message.charter.known
            if message.assignment.generation <= agent.generation:
                return False
            agent.generation = message.assignment.generation
            agent.floor, agent.clear = agent.generation - 1, False
            agent.say(agent.report())
            self._schedule(agent)
            return agent.generation >= self._target
        if isinstance(message, LogQuestion):
            agent.say(LogAnswer(message.number, _log_answer(agent, message.data)))
            return False
        if isinstance(message, Stop):
            # Heard, and then done: two reports, as a real agent sends them.
            agent.floor = max(agent.floor, message.generation)
            agent.say(agent.report())
            agent.clear = True
            agent.say(agent.report())
            self._schedule(agent)
        elif isinstance(message, Refuse | Over):
            raise RuntimeError(f"the coordinator ended it: {message.reason}")
        else:
            assert not isinstance(message, Welcome) or message.heartbeat == self._heartbeat
        return False

    def _schedule(self, agent: Agent) -> None:
        agent.due = time.monotonic() + self._heartbeat
        self._beats.append((agent.due, agent))

    def _beat(self) -> None:
        now = time.monotonic()
        while self._beats and self._beats[0][0] <= now:
            due, agent = self._beats.popleft()
            if agent.due == due:  # otherwise it has said something since, and its heartbeat comes later
                agent.say(agent.report())
                self._schedule(agent)
