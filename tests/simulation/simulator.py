"""The real job and real nodes in a modelled world: virtual time, a faulty network, workers that come and go.

One seed is one schedule. The heap holds (time, number, what, arguments); every event runs one step of the real
`Job`, `Liveness` or `Node`, as their shells would, and the witness looks at the whole after each. The world:

- A connection carries messages late, and, where the schedule says so, reordered, doubled, or not at all. What is
  sent into a partition is lost, or comes when it heals. What comes on a connection that its receiver no longer
  regards as the current one is dropped.
- An agent that is killed takes its workers with it, and its connection closes; a host without power says nothing;
  a connection that breaks is noticed by each side when it is.
- Workers are started with a delay, stop within their grace, fail by themselves, or because others of their
  generation are gone, and finish once all members have run together for long enough.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

import msgspec
from invariants import Violation, Witness
from schedule import CLOCK_DRIFT, KILL_SHARE, Schedule, draw

from outlast.core import node as agent
from outlast.core.events import Command, Drop, Event, Joined, Lost, Note, Reported, Rules, Send, Tick
from outlast.core.job import Job, Phase
from outlast.core.liveness import Liveness
from outlast.core.node import FIRST_PATIENCE, Node
from outlast.core.roster import world_of
from outlast.messages import Assignment, Failure, FromCoordinator, Join, Leaving, Over, Report, Start

MOST_EVENTS = 100_000  # a schedule with more is a busy loop
MOST_AGENTS = 9
FIN = None  # the last message of a connection in one direction
NEVER = float("inf")


class Connection:
    __slots__ = ("agent", "broken", "down_last", "up_last")

    def __init__(self, of: Agent) -> None:
        self.agent = of
        self.broken = False
        self.up_last = self.down_last = 0.0  # when the latest message so far arrives


class Group:
    """The workers of one generation on one node."""

    __slots__ = ("agent", "alive", "place", "processes", "running", "stop_at")

    def __init__(self, of: Agent, place: Assignment) -> None:
        self.agent = of
        self.place = place
        self.alive = True
        self.running = False
        self.processes = of.nproc
        self.stop_at = NEVER


class Agent:
    """One life of one agent, and its host as far as it matters."""

    __slots__ = (
        "alive", "connection", "down_cut", "group", "held", "host", "id", "infra_rank", "node", "nproc", "offset",
        "rate", "timer", "up_cut",
    )  # fmt: skip

    def __init__(self, number: int, host: int, random: Random, node: Node) -> None:
        self.id = f"n{number}"
        self.host = host
        self.node = node
        self.nproc = random.choice((1, 1, 2))
        self.infra_rank = random.choice((None, random.randint(0, 3), host))
        self.offset = random.uniform(-1000, 1000)
        self.rate = random.uniform(1 - CLOCK_DRIFT, 1 + CLOCK_DRIFT)
        self.alive = True
        self.connection: Connection | None = None
        self.group: Group | None = None
        self.up_cut = self.down_cut = False
        self.held: list[tuple[bool, Connection, Any]] = []
        self.timer = NEVER

    def join(self, rules: Rules, report: Report) -> Join:
        return Join(
            node=self.id,
            name=f"host{self.host}",
            nproc=self.nproc,
            role="default",
            addr=f"host{self.host}",
            job=rules.job,
            entrypoint=rules.entrypoint,
            nnodes=(rules.min_nodes, rules.max_nodes),
            report=report,
            infra_rank=self.infra_rank,
        )


class Simulation:
    """One schedule. `run` returns when the world has settled, and raises `Violation` if an invariant breaks."""

    def __init__(self, seed: int, *, trace: bool = False, job: type[Job] = Job, node: type[Node] = Node) -> None:
        self.random = random = Random(seed)
        self.schedule: Schedule = draw(random)
        self.rules = rules = self.schedule.rules
        self.t = 0.0
        self.events = 0
        self.story: list[str] | None = [] if trace else None
        self.job = job(rules, 0.0)
        self.journal: list[tuple[Event, float, list[Command]]] = []
        self._node = node
        self._liveness = Liveness(rules.node_timeout)
        self._witness = Witness(rules, self.job)
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._pushed = 0
        self._timer = NEVER
        self._connections: dict[str, Connection] = {}  # those that the coordinator regards as current
        self._agents: dict[str, Agent] = {}  # the living
        self._infra: dict[str, int | None] = {}
        self._born = 0
        self._hosts = 0
        self._port = 1000
        self._groups: list[Group] = []  # of the newest generation that was started
        self._newest = 0
        self._broken = False  # that generation has lost workers
        self._together: float | None = None  # since when all of its members run
        self._work = self.schedule.work
        self._chaos = True
        self._settled = False

    def run(self) -> None:
        schedule, heap = self.schedule, self._heap
        for at in schedule.arrivals:
            self._after(at, self._arrive, None)
        for at, kind in schedule.faults:
            self._after(at, self._fault, kind)
        self._after(schedule.quiet, self._calm)
        self._arm()
        while heap and not self._settled:
            self.t, _, step, arguments = heappop(heap)
            self.events += 1
            if self.events > MOST_EVENTS:
                raise Violation("no busy loop", f"{MOST_EVENTS} events in {self.t:.1f} s")
            step(*arguments)
        if not self._settled:
            self._look(NEVER)

    def replay(self, fresh: Job) -> None:
        """The journal, written and read again, gives the same commands."""
        encode = msgspec.msgpack.encode
        events = msgspec.msgpack.Decoder(list[tuple[Event, float]]).decode(
            encode([(e, at) for e, at, _ in self.journal])
        )
        for (event, at), (_, _, commands) in zip(events, self.journal, strict=True):
            again = fresh.handle(event, at)
            if encode(again) != encode(commands):
                raise Violation("replay gives the same decisions", f"{event}: {again}, not {commands}")

    # -- time

    def _after(self, delay: float, step: Callable[..., None], *arguments: Any) -> None:
        self._pushed += 1
        heappush(self._heap, (self.t + delay, self._pushed, step, arguments))

    def _tell(self, text: str) -> None:
        if self.story is not None:
            self.story.append(f"{self.t:9.4f}  {text}")

    # -- the coordinator's shell

    def _feed(self, event: Event, now: float | None = None) -> None:
        at = self.t if now is None else now
        job = self.job
        if self.story is not None and not isinstance(event, Tick):
            self._tell(f"job  <- {event}")
        commands = job.handle(event, at)
        self.journal.append((event, at, commands))
        self._witness.decided(len(self._connections), self._infra)
        for command in commands:
            if isinstance(command, Send):
                message = command.message
                if isinstance(message, Start):
                    self._witness.start_sent(command.node, message)
                connection = self._connections.get(command.node)
                if connection is not None:
                    self._send_down(connection, message)
            elif isinstance(command, Note):
                self._tell(f"job  == {command.text}")
            else:
                assert isinstance(command, Drop)
                connection = self._forget(command.node)
                if connection is not None:
                    self._send_down(connection, FIN)
        self._arm()

    def _arm(self) -> None:
        due = min(self.job.deadline() or NEVER, self._liveness.deadline() or NEVER)
        if due < self._timer:
            self._timer = max(due, self.t)
            self._after(self._timer - self.t, self._coordinator_tick, self._timer)

    def _coordinator_tick(self, armed: float) -> None:
        if armed != self._timer:
            return
        self._timer = NEVER
        now = max(armed, self.t)
        for name in self._liveness.silent(now):
            connection = self._forget(name)
            assert connection is not None
            self._send_down(connection, FIN)
            self._lost(name, "silence", None)
        deadline = self.job.deadline()
        if deadline is not None and deadline <= now:
            self._feed(Tick(), now)
            after = self.job.deadline()
            if after is not None and after <= now:
                raise Violation("no busy loop", f"the job's deadline stays at {after} in phase {self.job.phase.value}")
        self._arm()

    def _lost(self, name: str, why: str, until: float | None) -> None:
        self._witness.excused = self._witness.lost = True
        self._feed(Lost(name, why, until))

    def _forget(self, name: str) -> Connection | None:
        self._liveness.forget(name)
        return self._connections.pop(name, None)

    def _at_coordinator(self, connection: Connection, message: Report | Join | None) -> None:
        if connection.broken:
            return
        name = connection.agent.id
        current = self._connections.get(name)
        if isinstance(message, Join):
            if current is not None:
                self._send_down(current, FIN)
            self._connections[name] = connection
            self._liveness.heard(name, self.t)
            self._witness.excused = True
            self._feed(Joined(message))
        elif current is not connection:
            self._send_down(connection, FIN)
        elif message is FIN:
            self._forget(name)
            self._lost(name, "closed", None)
        else:
            self._liveness.heard(name, self.t)
            self._feed(Reported(name, message))

    def _coordinator_notices(self, connection: Connection) -> None:
        name = connection.agent.id
        if self._connections.get(name) is connection:
            until = self._liveness.heard_at(name, self.t) + self.rules.node_timeout
            self._forget(name)
            self._lost(name, "reset", until)

    # -- the network

    def _delay(self) -> float:
        random, schedule = self.random, self.schedule
        if self._chaos and schedule.slow and random.random() < schedule.slow:
            return random.random() * 1.5 * self.rules.node_timeout
        return schedule.latency * (0.2 + random.random())

    def _send_up(self, connection: Connection, message: Report | Join | None) -> None:
        if connection.agent.up_cut:
            if self.random.random() < 0.6:
                connection.agent.held.append((True, connection, message))
        elif message is FIN or not self._is_lost():
            at = self.t + self._delay()
            if message is FIN or not (self._chaos and self.schedule.reorder):
                at = max(at, connection.up_last)
            connection.up_last = max(at, connection.up_last)
            self._after(at - self.t, self._at_coordinator, connection, message)
            if self._is_doubled() and message is not FIN and not isinstance(message, Join):
                self._after(at - self.t + self._delay(), self._at_coordinator, connection, message)

    def _send_down(self, connection: Connection, message: FromCoordinator | None) -> None:
        if connection.agent.down_cut:
            if self.random.random() < 0.6:
                connection.agent.held.append((False, connection, message))
        elif message is FIN or not self._is_lost():
            at = self.t + self._delay()
            if message is FIN or not (self._chaos and self.schedule.reorder):
                at = max(at, connection.down_last)
            connection.down_last = max(at, connection.down_last)
            self._after(at - self.t, self._at_agent, connection, message)
            if self._is_doubled() and message is not FIN:
                self._after(at - self.t + self._delay(), self._at_agent, connection, message)

    def _is_lost(self) -> bool:
        return self._chaos and self.schedule.loss > 0 and self.random.random() < self.schedule.loss

    def _is_doubled(self) -> bool:
        return self._chaos and self.schedule.double > 0 and self.random.random() < self.schedule.double

    def _heal(self, one: Agent) -> None:
        one.up_cut = one.down_cut = False
        held, one.held = one.held, []
        self._tell(f"{one.id} heals")
        # Each connection's retransmission has its own back-off.
        waits: dict[Connection, float] = {}
        for up, connection, message in held:
            wait = waits.setdefault(connection, self.random.random() * self.rules.node_timeout)
            self._after(wait, self._send_up if up else self._send_down, connection, message)

    # -- the agent's shell

    def _arrive(self, host: int | None) -> None:
        if len(self._agents) >= MOST_AGENTS:
            return
        if host is None:
            self._hosts += 1
            host = self._hosts
        self._born += 1
        one = Agent(self._born, host, self.random, self._node(self._next_port()))
        self._agents[one.id] = one
        self._infra[one.id] = one.infra_rank
        self._tell(f"{one.id} arrives on host{host}, {one.nproc} workers, infra rank {one.infra_rank}")
        self._connect(one)

    def _next_port(self) -> int:
        self._port += 1
        return self._port

    def _connect(self, one: Agent) -> None:
        if not one.alive or one.connection is not None:
            return
        if one.up_cut or one.down_cut:
            self._after(self._backoff() + self.schedule.backoff, self._connect, one)
        else:
            self._after(self._delay() + self._delay(), self._connected, one)

    def _connected(self, one: Agent) -> None:
        if not one.alive or one.connection is not None:
            return
        one.connection = Connection(one)
        self._to_node(one, agent.Connected())

    def _backoff(self) -> float:
        return self.random.random() * self.schedule.backoff

    def _to_node(self, one: Agent, event: agent.Event, now: float | None = None) -> None:
        at = one.offset + self.t * one.rate if now is None else now
        hang_up = False
        for command in one.node.handle(event, at):
            if isinstance(command, agent.Tell):
                connection = one.connection
                if connection is not None:
                    report = command.report
                    self._send_up(connection, one.join(self.rules, report) if command.first else report)
            elif isinstance(command, agent.StartWorkers):
                self._start_workers(one, command.assignment)
            elif isinstance(command, agent.StopWorkers):
                if isinstance(event, agent.Tick):
                    self._witness.excused = True  # its lease has run out
                self._stop_workers(one, command.generation, command.grace)
            elif isinstance(command, agent.Hangup):
                hang_up = True
            else:
                self._tell(f"{one.id} exits: {command.over.reason}")
                if one.group is not None and one.group.alive:
                    raise Violation("an agent exits last", f"{one.id} leaves workers behind")
                self._end_agent(one, fin=True)
                return
        if hang_up:
            self._tell(f"{one.id} hangs up")
            assert one.connection is not None
            self._send_up(one.connection, FIN)
            self._agent_notices(one.connection)
        else:
            self._arm_agent(one)

    def _arm_agent(self, one: Agent) -> None:
        deadline = one.node.deadline()
        if deadline is not None:
            due = max((deadline - one.offset) / one.rate, self.t)
            if due < one.timer:
                one.timer = due
                self._after(due - self.t, self._agent_tick, one, due)

    def _agent_tick(self, one: Agent, armed: float) -> None:
        if not one.alive or armed != one.timer:
            return
        one.timer = NEVER
        deadline = one.node.deadline()
        if deadline is None:
            return
        if (deadline - one.offset) / one.rate <= self.t:
            now = max(deadline, one.offset + self.t * one.rate)
            self._to_node(one, agent.Tick(), now)
            after = one.node.deadline()
            if one.alive and after is not None and after <= now:
                raise Violation("no busy loop", f"the deadline of {one.id} stays at {after}")
        self._arm_agent(one)

    def _at_agent(self, connection: Connection, message: FromCoordinator | None) -> None:
        one = connection.agent
        if not one.alive or one.connection is not connection or connection.broken:
            return
        if message is FIN:
            self._agent_notices(connection)
            return
        if self.story is not None and not isinstance(message, Over):
            self._tell(f"{one.id:4} <- {message}")
        self._to_node(one, agent.Received(message))
        if isinstance(message, Over):
            self._tell(f"{one.id:4} <- over: {message.reason}")
            self._witness.node_heard_over(one.id)

    def _agent_notices(self, connection: Connection) -> None:
        one = connection.agent
        if one.alive and one.connection is connection:
            one.connection = None
            self._tell(f"{one.id:4} disconnected")
            self._to_node(one, agent.Disconnected())
            self._after(self._backoff(), self._connect, one)

    def _end_agent(self, one: Agent, *, fin: bool) -> None:
        one.alive = False
        del self._agents[one.id]
        if one.group is not None and one.group.alive:
            self._gone(one.group)
        if fin and one.connection is not None:
            self._send_up(one.connection, FIN)
        if self._chaos and self.random.random() < self.schedule.comeback:
            delay = self.random.random() * 4 * self.rules.node_timeout
            if self.t + delay < self.schedule.quiet:
                self._after(delay, self._arrive, one.host)

    # -- workers

    def _start_workers(self, one: Agent, place: Assignment) -> None:
        self._tell(f"{one.id} starts generation {place.generation}, group rank {place.group_rank}")
        self._witness.workers_start(one.id, place, one.node.store_port)
        one.node.store_port = self._next_port()
        one.group = group = Group(one, place)
        if place.generation != self._newest:
            self._newest, self._groups = place.generation, []
            self._broken, self._together = False, None
        self._groups.append(group)
        self._after(self.random.random() * 0.5 * self.rules.node_timeout, self._running, group)

    def _running(self, group: Group) -> None:
        if not group.alive or group.stop_at != NEVER:
            return
        group.running = True
        random, timeout = self.random, self.rules.node_timeout
        if self._chaos and random.random() < self.schedule.failing:
            self._after(random.random() * 3 * timeout, self._fail, group, True)
        if self._broken:
            self._cascade(group)
        elif len(self._groups) == group.place.group_world_size and all(g.running for g in self._groups):
            self._together = self.t
            if self._work < NEVER:
                self._after(self._work, self._work_done, group.place.generation)

    def _work_done(self, generation: int) -> None:
        if generation == self._newest and not self._broken:
            for group in self._groups:
                self._after(self.random.random() * self.schedule.spread, self._finish, group)

    def _finish(self, group: Group) -> None:
        if not group.alive:
            return
        one, generation = group.agent, group.place.generation
        while group.processes:
            group.processes -= 1
            self._to_node(one, agent.Exited(generation))
        if group.stop_at == NEVER:
            self._tell(f"{one.id} finished generation {generation}")
            if generation == self._witness.generation:
                self._witness.succeeded.add(one.id)
        self._gone(group, whole=True)
        self._to_node(one, agent.Cleared(generation))

    def _fail(self, group: Group, by_itself: bool) -> None:
        if not group.alive or not group.processes or (by_itself and not self._chaos):
            return
        one, place = group.agent, group.place
        if group.stop_at == NEVER and by_itself and place.generation == self._witness.generation:
            self._witness.failed_by_itself = True
        group.processes -= 1
        self._tell(f"{one.id} worker of {place.generation} fails{'' if by_itself else ', a victim of others'}")
        self._break()
        rank = place.first_rank + group.processes
        self._to_node(one, agent.Exited(place.generation, self._failure(one, rank, group.processes, 1)))
        if not group.processes:
            self._cleared(group)

    def _failure(self, one: Agent, rank: int, local_rank: int, code: int) -> Failure:
        return Failure(f"host{one.host}", f"host{one.host}", rank, local_rank, self._next_port(), code, self.t, "")

    def _stop_workers(self, one: Agent, generation: int, grace: float | None) -> None:
        group = one.group
        if group is None or not group.alive or group.place.generation != generation:
            return
        allowed = self.schedule.shutdown if grace is None else grace
        needed = self.random.random() * 1.2 * self.schedule.shutdown
        at = self.t + min(needed, allowed)
        if needed >= allowed:
            at += self.random.random() * KILL_SHARE * self.rules.node_timeout
        self._tell(f"{one.id} stops generation {generation} with grace {grace}")
        if at < group.stop_at:
            group.stop_at = at
            self._after(at - self.t, self._stopped, group, at)

    def _stopped(self, group: Group, at: float) -> None:
        if not group.alive or group.stop_at != at:
            return
        one, place = group.agent, group.place
        while group.processes:
            group.processes -= 1
            ended_well = self.random.random() < 0.3
            failure = None if ended_well else self._failure(one, place.first_rank + group.processes, 0, -15)
            self._to_node(one, agent.Exited(place.generation, failure))
        self._cleared(group)

    def _cleared(self, group: Group) -> None:
        self._tell(f"{group.agent.id} is clear of generation {group.place.generation}")
        self._gone(group)
        self._to_node(group.agent, agent.Cleared(group.place.generation))

    def _gone(self, group: Group, *, whole: bool = False) -> None:
        group.alive = group.running = False
        self._witness.workers_gone()
        if group.place.generation == self._newest and not whole:
            self._break()

    def _break(self) -> None:
        """The newest generation has lost a worker: what it has done since is saved, and the others may fail of it."""
        if self._broken:
            return
        self._broken = True
        if self._together is not None:
            self._work = max(self._work - (self.t - self._together), 0.01)
        for group in self._groups:
            if group.running:
                self._cascade(group)

    def _cascade(self, group: Group) -> None:
        if self.random.random() < self.schedule.cascade:
            self._after(self.random.random() ** 2 * 2 * self.rules.node_timeout, self._fail, group, False)

    # -- faults

    def _fault(self, kind: str) -> None:
        if kind == "join":
            self._arrive(None)
            return
        if not self._agents:
            return
        random, timeout = self.random, self.rules.node_timeout
        one = random.choice(list(self._agents.values()))
        self._tell(f"FAULT {kind} {one.id}")
        if kind == "crash":
            self._end_agent(one, fin=True)
        elif kind == "power":
            self._end_agent(one, fin=False)
        elif kind == "cut":
            one.up_cut, one.down_cut = random.choice(((True, True), (True, False), (False, True)))
            self._tell(f"{one.id} is cut off: up {one.up_cut}, down {one.down_cut}")
            self._after(random.random() * 4 * timeout, self._heal, one)
        elif kind == "reset":
            if one.connection is not None:
                connection = one.connection
                connection.broken = True
                self._after(random.random() * timeout, self._agent_notices, connection)
                self._after(random.random() * timeout, self._coordinator_notices, connection)
        else:
            self._witness.excused = True
            how = Leaving.DRAIN if kind == "drain" else Leaving.INTERRUPT
            self._to_node(one, agent.Leave(how))

    def _calm(self) -> None:
        self._tell("CALM")
        self._chaos = False
        for one in list(self._agents.values()):
            self._heal(one)
        rules, schedule = self.rules, self.schedule
        patience = (
            2 * (rules.pend_timeout + rules.empty_timeout)
            + 5 * (rules.last_call + schedule.shutdown + rules.restart_grace)
            + 25 * rules.node_timeout
            + FIRST_PATIENCE
            + (3 * (self._work + schedule.spread) if self._work < NEVER else 0)
        )
        self._look(self.t + patience)

    def _look(self, latest: float) -> None:
        """Whether the world has come to rest; by then it must have."""
        open_point = self._open_point()
        if not open_point:
            self._settled = True
        elif self.t >= latest or latest == NEVER:
            raise Violation("nobody is stuck", open_point)
        else:
            self._after(self.rules.node_timeout / 2, self._look, latest)

    def _open_point(self) -> str:
        """What is not yet as it should be; empty: everything is."""
        job, agents = self.job, self._agents
        if job.phase is Phase.OVER:
            return f"the job is over, and {', '.join(agents)} did not exit" if agents else ""
        size = world_of(len(agents), least=self.rules.min_nodes, most=self.rules.max_nodes, unit=self.rules.node_unit)
        if not size or self._work < NEVER:
            return f"{len(agents)} agents live, and the job goes on, {job.phase.value}"
        if job.phase is not Phase.RUNNING or len(job.roster) != size:
            return f"{len(agents)} agents live, and the job is {job.phase.value} with {len(job.roster)}"
        for one in agents.values():
            if one.node.leaving is not Leaving.NO:
                return f"{one.id} wants to leave, and is still there"
            if one.id not in self._connections or one.connection is not self._connections[one.id]:
                return f"{one.id} is not connected"
        for name in job.roster:
            group = agents[name].group if name in agents else None
            if group is None or not group.running or group.place.generation != job.generation:
                return f"{name} does not run generation {job.generation}"
        return (
            "" if job.spares == len(agents) - size else f"{len(agents) - size} spares, and the job knows {job.spares}"
        )
