"""Real jobs and real nodes in a modelled world: virtual time, faulty hosts and networks, workers that come and go.

One seed is one schedule. The heap holds (time, number, what, arguments); every event runs one step of a real
`Coordinator` or `Node`, as their shells would, and the witness looks at the whole after each. The world:

- Hosts, each with a clock of its own, an agent, its workers, a guard that ends them with their lease, and perhaps a
  coordinator. A host without power says nothing. A coordinator outlives its agent, and is started again by it.
- A connection carries messages late, and, where the schedule says so, reordered, doubled, or not at all. What is
  sent into a partition is lost, or comes when it heals. What workers ask is never lost, for it is not repeated on the
  same connection. What comes on a connection that its receiver no longer regards as the current one is dropped.
  Partitions are between hosts, and may be one-way.
- An agent that is killed takes its workers with it, and its connection closes; a connection that breaks is noticed
  by each side when it is. Agents and coordinators may stand still for a while, with their sockets open.
- A coordinator that is started again has what it last wrote down, or less of it, or only what its agent knows.
- Workers are started with a delay, stop within their grace, fail by themselves, or because others of their
  generation are gone, and finish once all members have run together for long enough.
- If changes are `planned`, workers halt at a boundary between their steps before one: none gets there unless all do.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

import msgspec
from habits import Habits
from invariants import Violation, Witness
from msgspec.structs import replace
from schedule import CLOCK_DRIFT, KILL_SHARE, ORPHAN_SHARE, Schedule, draw

from outlast.core.coordinator.commands import Break, Close, Command, JournalEntry, PublishEvent, Write
from outlast.core.coordinator.coordinator import Coordinator
from outlast.core.coordinator.history import History
from outlast.core.job.commands import Command as Decision
from outlast.core.job.commands import NodesWanted, ReleaseNode, Remember, Reply, Send
from outlast.core.job.decisions import digest_of
from outlast.core.job.inputs import Event, Joined, Lost
from outlast.core.job.job import Job
from outlast.core.job.phase import Phase
from outlast.core.job.state import FIRST_NODE
from outlast.core.membership.liveness import BEATS, ORPHANS
from outlast.core.membership.roster import world_of
from outlast.core.node import commands as node_commands
from outlast.core.node import inputs as node_inputs
from outlast.core.node.allegiance import FIRST_PATIENCE
from outlast.core.node.node import Node
from outlast.core.succession.authority import Memory
from outlast.core.tick import Tick
from outlast.events.events import GenerationEnding, NodeExcluded
from outlast.events.numbered import NumberedEvent
from outlast.events.reasons import PlannedEnd, Saved
from outlast.events.sentences import sentence
from outlast.protocol.checks import Findings, Probe
from outlast.protocol.failures import FailoverStrategy, Failure
from outlast.protocol.generations import Assignment, Halted, Start
from outlast.protocol.membership import Ack, Join, Leaving, Over, Report
from outlast.protocol.messages import FromAgent, FromCoordinator
from outlast.protocol.observers import EventCopies
from outlast.protocol.paces import Paces
from outlast.protocol.requests import Ask
from outlast.protocol.rules import Rules
from outlast.protocol.shards import Query, Told
from outlast.protocol.succession import Charter, Standing, Term

MOST_EVENTS = 400_000  # a schedule with more is a busy loop
MOST_AGENTS = 9
MOST_SAID = 25  # messages on one connection, in one direction, in one heartbeat
PORT = 29400
STEPS = 20  # boundaries in a node timeout
FIN = None  # the last message of a connection in one direction
UNFIT = "it is not fit"  # what a check says of some
RESET = "reset"  # the same, of a process that may live on
NEVER = float("inf")

_encode = msgspec.msgpack.encode
_memory = msgspec.msgpack.Decoder(Memory)
_began = msgspec.msgpack.Decoder(tuple[Rules, float, Term, str, Memory | None, Charter | None])
_events = msgspec.msgpack.Decoder(list[tuple[Event, float, str]])


class Host:
    """A machine: its clock, and the processes on it."""

    __slots__ = ("agent", "coordinator", "journal", "number", "offset", "rate")

    def __init__(self, number: int, random: Random) -> None:
        self.number = number
        self.agent: Agent | None = None
        self.coordinator: Life | None = None
        self.journal: list[bytes] = []  # what coordinators of the present agent wrote down
        self.boot(random)

    def boot(self, random: Random) -> None:
        self.offset = random.uniform(0, 2000)
        self.rate = random.uniform(1 - CLOCK_DRIFT, 1 + CLOCK_DRIFT)

    def clock(self, t: float) -> float:
        return self.offset + t * self.rate

    def real(self, clock: float) -> float:
        return (clock - self.offset) / self.rate


class Connection:
    __slots__ = ("agent", "broken", "closed", "coordinator", "down_last", "said", "since", "up_last")

    def __init__(self, of: Agent, to: Life) -> None:
        self.agent = of
        self.coordinator = to
        self.broken = False
        self.closed = False  # by the coordinator
        self.said = {True: 0, False: 0}  # messages up and down since the present heartbeat began
        self.since = -NEVER
        self.up_last = self.down_last = 0.0  # when the latest message so far arrives


class Group:
    """The workers of one generation on one node."""

    __slots__ = (
        "agent", "alive", "halt", "hung", "late", "pace", "passed", "place", "processes", "running", "sealed",
        "stop_at",
    )  # fmt: skip

    def __init__(self, of: Agent, place: Assignment) -> None:
        self.agent = of
        self.place = place
        self.alive = True
        self.running = False
        self.processes = of.nproc
        self.stop_at = NEVER
        self.halt: int | None = None  # the boundary at which its workers are to halt; 0: not named yet
        self.passed = self.sealed = 0
        self.late = self.hung = False  # ranks of it; and they are about to be ended for that
        self.pace = 0.0  # seconds of a step


class Agent:
    """One life of one agent."""

    __slots__ = (
        "agreed", "alive", "backlog", "born", "connection", "copies", "findings", "fit", "group", "host", "id",
        "infra_rank", "last", "lease", "node", "nproc", "paused", "probed", "since", "stride", "timer",
    )  # fmt: skip

    def __init__(self, host: Host, random: Random, node: Node, nproc: int, t: float) -> None:
        self.id = node.allegiance.me
        self.host = host
        self.node = node
        self.nproc = nproc
        # In another order than the hosts', and never twice: two nodes of one rank are not let in.
        self.infra_rank = random.choice((None, 1000 * random.randint(0, 3) + host.number, host.number))
        self.copies = History()  # of events, for the coordinator that this agent may come to host
        self.alive = True
        self.paused = False
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.connection: Connection | None = None
        self.last: Host | None = None  # where it last found a coordinator
        self.born = t
        self.since = t  # when one last answered
        self.group: Group | None = None
        self.lease = NEVER  # on the clock of its host: what its guard knows
        self.timer = NEVER
        self.probed = (0, 0)  # the newest probe
        self.findings: Findings | None = None  # of that one
        self.fit: bool | None = None  # None: nobody has looked
        self.agreed: dict[str, float] = {}  # the longest times of all ranks
        self.stride = 1  # of the snapshots that are copied

    def join(self, rules: Rules, report: Report) -> Join:
        node = self.node
        return Join(
            node=self.id,
            name=f"host{self.host.number}",
            nproc=self.nproc,
            role="default",
            addr=f"host{self.host.number}",
            job=rules.job,
            entrypoint=rules.entrypoint,
            nnodes=(rules.min_nodes, rules.max_nodes),
            report=report,
            infra_rank=self.infra_rank,
            connection=node.state.conversation.connection,
            key=f"host{self.host.number}",
            port=PORT,
            term=node.allegiance.term,
            charter=node.allegiance.charter,
            assignment=node.current.assignment,
            since=self.born,
            hands=node.hands,
        )


class Life:
    """One life of one coordinator."""

    __slots__ = (
        "alive", "backlog", "began", "by", "core", "ending", "host", "journal", "paused", "term", "timer", "told",
    )  # fmt: skip

    def __init__(self, host: Host, by: Agent, core: Coordinator[Connection], began: bytes) -> None:
        self.host = host
        self.by = by
        self.core = core
        self.began = began  # all that it was made with
        self.alive = True
        self.paused = False
        self.ending = False
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.timer = NEVER
        self.term = core.term
        self.journal: list[tuple[Event, float, str, str]] = []
        self.told = 0  # the number of the last event

    @property
    def job(self) -> Job:
        return self.core.job


class Simulation:
    """One schedule. `run` returns when the world has settled, and raises `Violation` if an invariant breaks."""

    def __init__(
        self,
        seed: int,
        *,
        trace: bool = False,
        planned: bool = False,  # workers save before planned changes
        job: type[Job] = Job,
        node: type[Node] = Node,
        checks: bool = False,  # nodes are checked, and some are not fit
        resigns: bool = False,  # a node that has left asks the coordinator that it hosts to resign
        whole: bool = False,  # the settings that people run, and all that workers and agents do
    ) -> None:
        self.random = random = Random(seed)
        self.schedule: Schedule = draw(random, Random(f"settings {seed}") if whole else None)
        self.saves = planned and random.random() < 0.9  # else workers come to no boundary
        if planned and self.schedule.kind != "kills":
            timeout = self.schedule.rules.node_timeout * random.choice((0.3, 2, 6))
            self.schedule.rules = replace(self.schedule.rules, planned_change_timeout=timeout)
        self.rules = rules = self.schedule.rules
        self.most_said = 0  # messages on one connection, in one direction, in one heartbeat
        self.done: set[str] = set()  # the kinds of commands that nodes gave
        self.saved = 0  # changes before which all ranks had saved
        if checks:
            self.rules = rules = replace(rules, network_check=True, node_check_timeout=max(1.0, rules.node_timeout))
        if whole:
            self.saves = Random(f"saves {seed}").random() < 0.5
        self._luck = Random(seed)  # of checks alone: whatever else a seed means stays
        self.t = 0.0
        self.events = 0
        self.story: list[str] | None = [] if trace else None
        self.lives: list[Life] = []
        self.endings: list[Over] = []
        self.generations = 0
        self._job = job
        self._node = node
        self._witness = Witness(rules)
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._pushed = 0
        self._agents: dict[str, Agent] = {}  # the living
        self._hosts: list[Host] = []
        self._cuts: dict[tuple[int, int], int] = {}  # from one host to another: how many faults cut it
        self._held: dict[tuple[int, int], list[tuple[bool, Connection, Any]]] = {}
        self._infra: dict[str, int | None] = {}
        self._born = 0
        self._port = 1000
        self._groups: list[Group] = []  # of the newest generation that was started
        self._newest = 0
        self._broken = False  # that generation has lost workers
        self._together: float | None = None  # since when all of its members run
        self._work = self.schedule.work
        self._chaos = True
        self._resigns = resigns
        if resigns and self.schedule.kind != "kills":  # those kill coordinators, and nothing else
            drains = [(random.uniform(0, self.schedule.quiet), "drain") for _ in range(3)]
            self.schedule.faults = sorted([*self.schedule.faults, *drains])
        self.resigned = 0  # coordinators that have left the job to others
        self._settled = False
        self._more_patience = 0.0  # seconds, with what else has to be waited for
        self._struck = False
        self._quiet_since = NEVER
        self._habits = Habits(self, seed) if whole else None

    def run(self) -> None:
        schedule, heap = self.schedule, self._heap
        for at in schedule.arrivals:
            self._after(at, self._arrive, None)
        for at, kind in schedule.faults:
            self._after(at, self._fault, kind)
        self._after(schedule.quiet, self._calm)
        while heap and not self._settled:
            self.t, _, step, arguments = heappop(heap)
            self.events += 1
            if self.events > MOST_EVENTS:
                raise Violation("no busy loop", f"{MOST_EVENTS} events in {self.t:.1f} s")
            step(*arguments)
        if not self._settled:
            self._look(NEVER)

    def replay(self) -> None:
        """The journal of every life of a coordinator, written and read again, gives the same decisions."""
        for life in self.lives:
            rules, at, term, run, memory, charter = _began.decode(life.began)
            fresh = self._core(rules, at, term, run, memory, charter).job
            events = _events.decode(_encode([entry[:3] for entry in life.journal]))
            for (event, at, answers), (_, _, _, made) in zip(events, life.journal, strict=True):
                fresh.foretell(answers)
                again = digest_of(fresh.handle(event, at))
                if again != made:
                    raise Violation("replay gives the same decisions", f"{term} {event}: {again}, not {made}")

    # -- time

    def _after(self, delay: float, step: Callable[..., None], *arguments: Any) -> None:
        self._pushed += 1
        heappush(self._heap, (self.t + delay, self._pushed, step, arguments))

    def _tell(self, text: str) -> None:
        if self.story is not None:
            self.story.append(f"{self.t:9.4f}  {text}")

    # -- the coordinator's shell

    def _coordinate(
        self,
        host: Host,
        by: Agent,
        rules: Rules,
        term: Term,
        run: str,
        memory: Memory | None,
        charter: Charter | None,
        history: tuple[NumberedEvent, ...] = (),
    ) -> None:
        now = host.clock(self.t)
        began = _encode((rules, now, term, run, memory, charter))
        core = self._core(rules, now, term, run, memory, charter)
        for numbered in history:
            core._history.put(numbered)
        c = Life(host, by, core, began)
        c.told = core._history.last
        self._watch(c)
        host.coordinator = c
        self.lives.append(c)
        self._tell(f"host{host.number} COORDINATES, {core.term}, {memory}, {charter}")
        for number in self._witness.generations:
            self._witness.excuse(number, blurred=True)
        self._check_over(c)
        self._arm(c)

    def _core(
        self, rules: Rules, now: float, term: Term, run: str, memory: Memory | None, charter: Charter | None
    ) -> Coordinator[Connection]:
        return Coordinator(rules, now, term=term, run=run, memory=memory, charter=charter, job=self._job)

    def _watch(self, c: Life) -> None:
        """Let the witness see every event of the job, and what was decided, before anything is done about it."""
        job, handle = c.job, c.job.handle

        def watched(event: Event, now: float) -> list[Decision]:
            if isinstance(event, Lost):
                self._witness.excuse(job.generation, lost=True)
            elif isinstance(event, Joined):
                name, node = event.join.name, event.join.node
                members = (job._state.nodes[other].name for other in job.roster if other != node)
                self._witness.excuse(job.generation, lost=name in members)  # a new life: the old one is lost
            if self.story is not None and not isinstance(event, Tick):
                self._tell(f"job{job.term.number},{job.term.by} <- {event}")
            base = job.generation
            made = handle(event, now)
            self._decided(c, base, made)
            return made

        job.handle = watched  # type: ignore[method-assign]

    def _decided(self, c: Life, base: int, made: list[Decision]) -> None:
        job = c.job
        if job.term != c.term:
            self._tell(f"job{c.term.number},{c.term.by} becomes {job.term.number}, {job.phase.value}")
            c.term = job.term
            self._witness.excuse(job.generation, blurred=True)
        self._witness.decided(job)
        starts = [(m.node, m.message) for m in made if isinstance(m, Send) and isinstance(m.message, Start)]
        if starts and job.generation != base and job.generation not in self._witness.generations:
            self.generations += 1
            if self._struck and self.schedule.kind == "kills":
                raise Violation("a killed coordinator restarts nobody", f"generation {job.generation} is formed")
            self._witness.formed(job, base, len(c.core.connections), self._infra)
        elif starts and job.generation != base and self.rules.tie_break == "survivor":
            # Each of two may have gone on alone, one after the other, and neither knows the other's number: the price
            # of the tie-break. What follows is two histories, and nothing here can judge it.
            self._settled = True
            return
        elif starts and job.generation != base:
            raise Violation("one roster per generation", f"{job.generation} is formed twice")
        if starts or any(isinstance(m, Send) and isinstance(m.message, Ack) and m.message.leased for m in made):
            self._check_acting()
        for node, start in starts:
            self._witness.start_sent(job, node, start)

    def _carry_out(self, c: Life, commands: list[Command[Connection]]) -> None:
        if self._settled:
            return
        for command in commands:
            if isinstance(command, Write) and isinstance(command.message, EventCopies):
                for numbered in command.message.events:  # nothing is decided by them: they need no faulty network
                    command.connection.agent.copies.put(numbered)
            elif isinstance(command, Write):
                self._send_down(command.connection, command.message)
            elif isinstance(command, JournalEntry):
                c.journal.append((command.event, command.at, command.answers, digest_of(command.decisions)))
            elif isinstance(command, PublishEvent):
                self._published(c, command.numbered)
            elif isinstance(command, Remember):
                c.host.journal.append(_encode(command.memory))
            elif isinstance(command, Close | Break):
                command.connection.closed = True
                self._send_down(command.connection, FIN if isinstance(command, Close) else RESET)
            elif isinstance(command, NodesWanted | ReleaseNode | Reply):
                continue  # nodes come and go by the schedule alone
            else:
                raise AssertionError(f"nobody carries out {command}")
        self._check_over(c)
        self._arm(c)

    def _check_acting(self) -> None:
        terms = []
        for host in self._hosts:
            c = host.coordinator
            if c is not None and c.job.generation and c.job.standing(host.clock(self.t)).acting:
                terms.append(f"{c.job.term} of host{host.number} ({c.job.phase.value})")
        self._witness.acting(terms)

    def _check_over(self, c: Life) -> None:
        if c.job.phase is Phase.OVER and not c.ending:
            c.ending = True
            assert c.job.outcome is not None
            self._tell(f"job{c.term.number},{c.term.by} is over: {c.job.outcome.reason}")
            self.endings.append(c.job.outcome)
            if self.schedule.kind == "kills" and not c.job.outcome.success:
                raise Violation("a killed coordinator restarts nobody", c.job.outcome.reason)
            self._check_quorum(c)
            self._after(self.schedule.shutdown + 2 * self.rules.node_timeout, self._end_coordinator, c)
        if c.ending and not c.core.connections:
            self._after(0.0, self._end_coordinator, c)

    def _check_quorum(self, c: Life) -> None:
        """No coordinator gives up for want of a quorum that has had all the time to come."""
        assert c.job.outcome is not None
        waited = self.t - self._quiet_since
        if (
            "are here, for" not in c.job.outcome.reason
            or waited < self.rules.pend_timeout + 8 * self.rules.node_timeout
        ):
            return
        if not all("are here, for" in over.reason or "no node is left" in over.reason for over in self.endings):
            return  # for others the job has ended, and not all have heard it
        others = [h.coordinator for h in self._hosts if h.coordinator is not None and h.coordinator is not c]
        if any(o.job.standing(o.host.clock(self.t)).acting for o in others):
            return
        found = c.host.number <= self.schedule.endpoints  # else only those find it that were told where it may be
        agents = [a for a in self._agents.values() if found or a.node.allegiance.charter is not None]
        living = [a.id for a in agents if a.node.leaving is Leaving.NO]
        newest = c.job._state.authority.newest
        ages = [
            a.node.allegiance.charter.ballots[0].age
            for a in agents
            if a.node.allegiance.charter is not None and a.node.allegiance.charter.ballots
        ]
        if newest is not None and any(age > newest.age for age in ages):
            return  # it has not heard of a generation whose quorum is the one that counts
        if all(e.is_quorum(living) for e in c.job._state.authority.electorates):
            raise Violation("a quorum goes on", c.job.outcome.reason)

    def _end_coordinator(self, c: Life) -> None:
        """It ends by itself."""
        if not c.alive:
            return
        self._tell(f"the coordinator of host{c.host.number} ends")
        self._kill_coordinator(c)
        if c.by.alive and c.by.node.allegiance.hosting:
            self._to_node(c.by, node_inputs.NotHosted())

    def _kill_coordinator(self, c: Life) -> None:
        c.alive = False
        c.host.coordinator = None
        for connection in list(c.core.connections.values()):
            self._send_down(connection, FIN)

    def _revive(self, one: Agent, amnesia: bool) -> None:
        """An agent starts its coordinator again."""
        if not one.alive or not one.node.allegiance.hosting or one.host.coordinator is not None:
            return
        if one.paused:
            one.backlog.append((self._revive, (one, amnesia)))
            return
        written = one.host.journal
        # What is lost before the agent itself has heard of a generation cannot be made up for.
        amnesia = amnesia and one.node.allegiance.charter is not None
        if amnesia and written and self.random.random() < 0.5:
            del written[self.random.randrange(len(written)) :]
        elif amnesia:
            written.clear()
        memory = _memory.decode(written[-1]) if written else None
        mandate = one.node.allegiance.mandate()
        charter = mandate.charter
        run = charter.run if charter is not None else "run"
        self._coordinate(one.host, one, self.rules, mandate.term, run, memory, charter)

    def _host(self, one: Agent, mandate: node_commands.Mandate) -> None:
        host, charter = one.host, mandate.charter
        assert charter is not None
        if host.coordinator is not None:
            self._to_node(one, node_inputs.NotHosted())
            return
        host.journal = []
        self._coordinate(host, one, charter.rules, mandate.term, charter.run, None, charter, one.copies.all())

    def _ask_to_resign(self, c: Life, tries: int = 40) -> None:
        if not c.alive or not tries:
            return
        if not c.paused:
            self._carry_out(c, c.core.asked(Ask("resign", "its host"), c.host.clock(self.t)))
        if c.core.resigned:
            self._tell(f"the coordinator of host{c.host.number} resigns")
            self.resigned += 1
            self._kill_coordinator(c)
        else:
            self._after(self.rules.node_timeout / 8, self._ask_to_resign, c, tries - 1)

    def _retire(self, one: Agent) -> None:
        c = one.host.coordinator
        if c is not None and c.by is one:
            self._tell(f"{one.id} retires its coordinator")
            self._kill_coordinator(c)

    def _arm(self, c: Life) -> None:
        if not c.alive or c.paused:
            return
        due = c.core.deadline()
        if due is not None and due < c.timer:
            now = c.host.clock(self.t)
            c.timer = max(due, now)
            self._after(max(c.host.real(c.timer) - self.t, 0.0), self._coordinator_tick, c, c.timer)

    def _coordinator_tick(self, c: Life, armed: float) -> None:
        if not c.alive or c.paused or armed != c.timer:
            return
        c.timer = NEVER
        now = max(armed, c.host.clock(self.t))
        self._carry_out(c, c.core.tick(now))
        after = c.core.deadline()
        if after is not None and after <= now:
            raise Violation("no busy loop", f"the coordinator's deadline stays at {after} in phase {c.job.phase.value}")
        self._arm(c)

    def _at_coordinator(self, connection: Connection, message: FromAgent | str | None) -> None:
        c = connection.coordinator
        if connection.broken:
            return
        if not c.alive:
            self._send_down(connection, RESET)
            return
        if c.paused:
            c.backlog.append((self._at_coordinator, (connection, message)))
            return
        now = c.host.clock(self.t)
        if isinstance(message, Join):
            connection.closed = False
        if connection.closed:
            self._send_down(connection, RESET)
        elif message is FIN:
            self._carry_out(c, c.core.ended(connection, now))
        elif isinstance(message, str):
            self._coordinator_notices(connection)
        else:
            self._carry_out(c, c.core.received(connection, message, now))

    def _coordinator_notices(self, connection: Connection) -> None:
        c = connection.coordinator
        if not c.alive:
            return
        if c.paused:
            c.backlog.append((self._coordinator_notices, (connection,)))
        else:
            self._carry_out(c, c.core.ended(connection, c.host.clock(self.t), broke="reset"))

    # -- the network

    def _delay(self) -> float:
        random, schedule = self.random, self.schedule
        if self._chaos and schedule.slow and random.random() < schedule.slow:
            return random.random() * 1.5 * self.rules.node_timeout
        return schedule.latency * (0.2 + random.random())

    def _is_cut(self, source: Host, target: Host) -> bool:
        return (source.number, target.number) in self._cuts

    def _send_up(self, connection: Connection, message: FromAgent | str | None) -> None:
        source, target = connection.agent.host, connection.coordinator.host
        self._send(True, connection, message, source, target)

    def _send_down(self, connection: Connection, message: FromCoordinator | str | None) -> None:
        source, target = connection.coordinator.host, connection.agent.host
        self._send(False, connection, message, source, target)

    def _count(self, up: bool, connection: Connection, message: Any) -> None:
        """No state of the job makes its nodes and coordinators talk without pause: an answer asks for no answer."""
        if isinstance(message, Query | Told | Paces | str | None):
            return  # as many as workers ask, and as time passes
        if self.t >= connection.since + self.rules.node_timeout / BEATS:
            connection.since, connection.said = self.t, {True: 0, False: 0}
        connection.said[up] += 1
        self.most_said = max(self.most_said, connection.said[up])
        if connection.said[up] > MOST_SAID:
            said = f"{connection.said} between {connection.agent.id} and its coordinator, the last: {message}"
            raise Violation("few messages in a heartbeat", said)

    def _send(self, up: bool, connection: Connection, message: Any, source: Host, target: Host) -> None:
        self._count(up, connection, message)
        asks = isinstance(message, Query | Told)  # not repeated on the same connection: TCP has to bring them
        if self._is_cut(source, target):
            if self.random.random() < 0.6 or asks:
                self._held.setdefault((source.number, target.number), []).append((up, connection, message))
            return
        last = message is FIN or message == RESET
        if not last and self._is_lost() and not asks:
            return
        at = self.t + self._delay()
        before = connection.up_last if up else connection.down_last
        if last or not (self._chaos and self.schedule.reorder):
            at = max(at, before)
        if up:
            connection.up_last = max(at, before)
        else:
            connection.down_last = max(at, before)
        arrive = self._at_coordinator if up else self._at_agent
        self._after(at - self.t, arrive, connection, message)
        if self._is_doubled() and not last and not isinstance(message, Join):
            self._after(at - self.t + self._delay(), arrive, connection, message)

    def _is_lost(self) -> bool:
        return self._chaos and self.schedule.loss > 0 and self.random.random() < self.schedule.loss

    def _is_doubled(self) -> bool:
        return self._chaos and self.schedule.double > 0 and self.random.random() < self.schedule.double

    def _cut(self, pairs: list[tuple[int, int]], seconds: float) -> None:
        if not self._chaos:
            return
        self._tell(f"cut for {seconds:.2f} s: {pairs}")
        for pair in pairs:
            self._cuts[pair] = self._cuts.get(pair, 0) + 1
        self._after(seconds, self._heal, pairs)

    def _heal(self, pairs: list[tuple[int, int]]) -> None:
        self._tell(f"heals: {pairs}")
        for pair in pairs:
            left = self._cuts.pop(pair, 1) - 1
            if left:
                self._cuts[pair] = left
                continue
            # Each connection's retransmission has its own back-off.
            waits: dict[Connection, float] = {}
            for up, connection, message in self._held.pop(pair, ()):
                wait = waits.setdefault(connection, self.random.random() * self.rules.node_timeout)
                self._after(wait, self._send_up if up else self._send_down, connection, message)

    # -- the agent's shell

    def _arrive(self, host: Host | None) -> None:
        if len(self._agents) >= MOST_AGENTS or (host is not None and host.agent is not None):
            return
        if host is None:
            host = Host(len(self._hosts) + 1, self.random)
            self._hosts.append(host)
        self._born += 1
        nproc = self.random.choice((1, 1, 2))
        node = self._node(f"n{self._born}", self._next_port(), ranks=nproc)
        one = host.agent = Agent(host, self.random, node, nproc, self.t)
        self._agents[one.id] = one
        self._infra[one.id] = one.infra_rank
        self._tell(f"{one.id} arrives on host{host.number}, {one.nproc} workers, infra rank {one.infra_rank}")
        host.journal = []
        if self._born == 1:
            self._coordinate(host, one, self.rules, node.allegiance.mandate().term, "run", None, None)
        self._dial(one)

    def _next_port(self) -> int:
        self._port += 1
        return self._port

    def _dial(self, one: Agent) -> None:
        if not one.alive or one.connection is not None:
            return
        if one.paused:
            one.backlog.append((self._dial, (one,)))
            return
        timeout = self.rules.node_timeout
        if self.t - one.since > 3 * self.rules.pend_timeout + 20 * timeout:
            self._tell(f"{one.id} reaches nobody, and gives up")
            self._check_reach(one)
            self._end_agent(one, fin=True)
            return
        known = set(range(1, self.schedule.endpoints + 1))
        if one.last is not None:
            known.add(one.last.number)
        known |= {int(s.addr[4:]) for s in one.node.allegiance.successors}
        answers: list[tuple[Life, Standing]] = []
        longest = 0.0
        for number in sorted(known):
            if number > len(self._hosts):
                continue
            host = self._hosts[number - 1]
            if self._is_cut(one.host, host) or self._is_cut(host, one.host) or host.coordinator is None:
                continue
            there, back = self._delay() + self._delay(), self._delay()
            if there + back < timeout:
                longest = max(longest, there + back)
                self._after(there, self._introduce, host, answers)
        self._after(longest, self._pick, one, answers)

    def _check_reach(self, one: Agent) -> None:
        """Nobody gives up looking for a coordinator while those who could make one are there, and could for long."""
        charter = one.node.allegiance.charter
        if charter is None or self.t - self._quiet_since < self.rules.pend_timeout + 8 * self.rules.node_timeout:
            return
        if not all("are here, for" in over.reason or "no node is left" in over.reason for over in self.endings):
            return
        there = [a.node.allegiance.charter for a in self._agents.values() if a.node.leaving is Leaving.NO]
        # Others may know of a later generation, of which this node has never heard: that one needs its quorum, too.
        newest = max((charter, *(each for each in there if each is not None)), key=lambda each: each.known[:2])
        ballots = (*charter.ballots, *newest.ballots)
        votes = [
            sum(b.votes for c in there if c is not None for b in c.ballots if b.generation == ballot.generation)
            for ballot in ballots
        ]
        if all(2 * some > ballot.total for some, ballot in zip(votes, ballots, strict=True)):
            raise Violation("a quorum goes on", f"{one.id} gives up, of {charter.ballots}")

    def _introduce(self, host: Host, answers: list[tuple[Life, Standing]]) -> None:
        c = host.coordinator
        if c is not None and not c.paused:
            answers.append((c, c.job.standing(host.clock(self.t))))

    def _pick(self, one: Agent, answers: list[tuple[Life, Standing]]) -> None:
        if not one.alive or one.connection is not None:
            return
        if one.paused:
            one.backlog.append((self._pick, (one, answers)))
            return
        chosen = one.node.allegiance.choose([standing for _, standing in answers], one.host.clock(self.t))
        if chosen is None:
            self._after(self._backoff() + self.schedule.backoff, self._dial, one)
            return
        c, standing = answers[chosen]
        one.connection, one.last = Connection(one, c), c.host
        self._tell(f"{one.id} connects to {standing} of host{c.host.number}")
        self._to_node(one, node_inputs.Connected(standing))

    def _backoff(self) -> float:
        return self.random.random() * self.schedule.backoff

    def _to_node(self, one: Agent, event: node_inputs.Event, now: float | None = None) -> None:
        if one.paused:
            one.backlog.append((self._to_node, (one, event)))
            return
        if not one.alive:
            return
        at = one.host.clock(self.t) if now is None else now
        if at >= one.lease and one.group is not None:
            self._witness.excuse(one.group.place.generation, lost=True)  # it has been cut off, or is now
        hang_up = False
        if isinstance(event, node_inputs.Received) and isinstance(event.message, Ack | Start):
            one.since = self.t
        for command in one.node.handle(event, at):
            self.done.add(type(command).__name__)
            if isinstance(command, node_commands.Tell):
                connection = one.connection
                if connection is not None:
                    report = command.report
                    self._send_up(connection, one.join(self.rules, report) if command.first else report)
            elif isinstance(command, node_commands.StartWorkers):
                self._start_workers(one, command.assignment)
            elif isinstance(command, node_commands.StopWorkers):
                self._stop_workers(one, command.generation, command.grace)
            elif isinstance(command, node_commands.HaltWorkers):
                self._halt(one, command.at)
            elif isinstance(command, node_commands.RefillWorkers):
                self._refill(one)
            elif isinstance(command, node_commands.Lease):
                one.lease = command.until
            elif isinstance(command, node_commands.Hangup):
                hang_up = True
            elif isinstance(command, node_commands.Host):
                self._after(self.random.random() * self.schedule.revive, self._host, one, command.mandate)
            elif isinstance(command, node_commands.Retire):
                self._retire(one)
            elif isinstance(command, node_commands.Examine):
                self._examine(one, command.probe)
            elif isinstance(command, node_commands.Show):
                if one.connection is not None:
                    self._send_up(one.connection, command.seen)
            elif isinstance(command, node_commands.Announce):
                self._tell(f"{one.id} is told: {command.text}")
            elif self._habits is not None and self._habits.carry_out(one, command):
                pass
            else:
                if not isinstance(command, node_commands.Exit):
                    raise Violation("every command is carried out", f"{one.id}: {command}")
                self._tell(f"{one.id} exits: {command.over.reason}")
                if one.group is not None and one.group.alive:
                    raise Violation("an agent exits last", f"{one.id} leaves workers behind")
                self._end_agent(one, fin=True)
                if self._resigns and command.over.left and (c := one.host.coordinator) is not None and c.by is one:
                    self._ask_to_resign(c)
                return
        if hang_up:
            self._tell(f"{one.id} hangs up")
            assert one.connection is not None
            self._send_up(one.connection, RESET)
            self._agent_notices(one.connection)
        else:
            self._arm_agent(one)

    def _examine(self, one: Agent, probe: Probe) -> None:
        """As the agent's checker: an older probe is dropped for a newer one, and an answer is said again when asked."""
        this = (probe.term, probe.number)
        if one.fit is None:
            one.fit = self.schedule.kind == "kills" or self._luck.random() < 0.8
        if this > one.probed:
            one.probed, one.findings = this, None
            self._after(self._luck.random() * self.rules.node_timeout, self._examined, one, this)
        elif this == one.probed and one.findings is not None:
            self._after(0.0, self._to_node, one, node_inputs.Examined(one.findings))

    def _examined(self, one: Agent, this: tuple[int, int]) -> None:
        if one.probed == this:
            one.findings = Findings(*this, alone="" if one.fit else UNFIT)
            self._to_node(one, node_inputs.Examined(one.findings))

    def _arm_agent(self, one: Agent) -> None:
        deadline = one.node.deadline()
        if deadline is not None:
            due = max(one.host.real(deadline), self.t)
            if due < one.timer:
                one.timer = due
                self._after(due - self.t, self._agent_tick, one, due)

    def _agent_tick(self, one: Agent, armed: float) -> None:
        if not one.alive or armed != one.timer:
            return
        if one.paused:
            one.backlog.append((self._agent_tick, (one, armed)))
            return
        one.timer = NEVER
        deadline = one.node.deadline()
        if deadline is None:
            return
        if one.host.real(deadline) <= self.t:
            now = max(deadline, one.host.clock(self.t))
            before = one.connection
            self._to_node(one, Tick(), now)
            after = one.node.deadline()
            if one.alive and one.connection is before and after is not None and after <= now:
                raise Violation("no busy loop", f"the deadline of {one.id} stays at {after}")
        self._arm_agent(one)

    def _at_agent(self, connection: Connection, message: FromCoordinator | str | None) -> None:
        one = connection.agent
        if not one.alive or one.connection is not connection or connection.broken:
            return
        if one.paused:
            one.backlog.append((self._at_agent, (connection, message)))
            return
        if message is FIN or isinstance(message, str):
            self._agent_notices(connection)
            return
        if self.story is not None and not isinstance(message, Over):
            self._tell(f"{one.id:4} <- {message}")
        self._to_node(one, node_inputs.Received(message))
        if isinstance(message, Over):
            self._tell(f"{one.id:4} <- over: {message.reason}")
            if not one.alive or one.node.state.over is not None:
                self._witness.node_heard_over(one.id)

    def _agent_notices(self, connection: Connection) -> None:
        one = connection.agent
        if one.paused:
            one.backlog.append((self._agent_notices, (connection,)))
        elif one.alive and one.connection is connection:
            one.connection = None
            self._tell(f"{one.id:4} disconnected")
            self._to_node(one, node_inputs.Disconnected())
            self._after(self._backoff(), self._dial, one)

    def _end_agent(self, one: Agent, *, fin: bool) -> None:
        one.alive = False
        del self._agents[one.id]
        one.host.agent = None
        group = one.group
        if group is not None and group.alive:
            if fin:
                longest = min(ORPHAN_SHARE * self.rules.node_timeout, 0.95 * ORPHANS)
                self._after(self.random.random() * longest, self._orphaned, group)
            else:
                self._gone(group)
        if fin and one.connection is not None:
            self._send_up(one.connection, FIN)
        if self._chaos and self.random.random() < self.schedule.comeback:
            delay = self.random.random() ** 3 * 4 * self.rules.node_timeout
            if self.t + delay < self.schedule.quiet:
                self._after(delay, self._arrive, one.host)

    def _orphaned(self, group: Group) -> None:
        if group.alive:
            self._gone(group)

    # -- workers

    def _start_workers(self, one: Agent, place: Assignment) -> None:
        self._tell(f"{one.id} starts generation {place.generation}, group rank {place.group_rank}")
        self._witness.workers_start(one.id, place, one.node.state.store_port)
        if self.rules.network_check and not one.fit:
            raise Violation("only the fit are let in", f"{one.id} starts, and fit is {one.fit}")
        one.node.state.store_port = self._next_port()
        one.group = group = Group(one, place)
        if place.generation != self._newest:
            self._newest, self._groups = place.generation, []
            self._broken, self._together = False, None
        self._groups.append(group)
        self._after(self.random.random() * 0.5 * self.rules.node_timeout, self._running, group)
        if self._habits is not None:
            self._habits.started(group)

    def _running(self, group: Group) -> None:
        if not group.alive or group.stop_at != NEVER:
            return
        group.running = True
        random, timeout = self.random, self.rules.node_timeout
        if self._chaos and random.random() < self.schedule.failing:
            self._after(random.random() * 3 * timeout, self._fail, group, True)
        if self._habits is not None:
            self._habits.running(group)
        if self._broken:
            self._cascade(group)
        elif len(self._groups) == group.place.group_world_size and all(g.running for g in self._groups):
            self._together = self.t
            if self._work < NEVER:
                self._after(self._work, self._work_done, group.place.generation)

    def _halt(self, one: Agent, at: int) -> None:
        """A change is planned. Its ranks may be a boundary ahead of others that halt already, and no more."""
        group = one.group
        if group is None or not group.alive:
            return
        if group.halt is None:
            others = [each.passed for each in self._groups if each.halt is not None]
            ran = int((self.t - self._together) / self.rules.node_timeout * STEPS) if self._together is not None else 0
            group.passed = max(0, min([ran + self.random.randint(-1, 1), *(passed + 1 for passed in others)]))
        if at > (group.halt or 0):
            self._after(self.random.random() ** 3 * self.rules.node_timeout, self._seal, group, at)
        group.halt = at
        self._say_halted(group)

    def _seal(self, group: Group, at: int) -> None:
        if not group.alive or not group.running or group.halt != at:
            return
        whole = len(self._groups) == group.place.group_world_size
        if whole and all(each.alive and each.halt == at for each in self._groups):
            group.passed, group.sealed = at - 1, at
            self._say_halted(group)
        else:  # a step that not all make
            self._after(0.1 * self.rules.node_timeout, self._seal, group, at)

    def _say_halted(self, group: Group) -> None:
        step = group.sealed or None
        halted = Halted(at=group.halt or 0, able=self.saves, passed=group.passed, sealed=group.sealed, step=step)
        self._to_node(group.agent, node_inputs.Halting(group.place.generation, halted))

    def _published(self, c: Life, numbered: NumberedEvent) -> None:
        event = numbered.event
        if numbered.number <= c.told:
            raise Violation("numbers of events grow", f"{numbered.number} comes after {c.told}")
        c.told = numbered.number
        if self.story is not None:
            self._tell(f"job{c.term.number},{c.term.by} == {sentence(event)}")
        if isinstance(event, GenerationEnding) and isinstance(event.reason, PlannedEnd):
            self._check_saved(event.reason)
        elif isinstance(event, NodeExcluded) and event.why in (UNFIT, "nothing was heard of its check"):
            blamed = [one for one in self._agents.values() if f"host{one.host.number}" == event.node]
            if any(one.fit for one in blamed):
                raise Violation("nobody fit is blamed", f"{event.node}: {event.why}")

    def _check_saved(self, planned: PlannedEnd) -> None:
        if planned.saved is not Saved.ALL:
            return
        self.saved += 1
        if {(group.halt, group.sealed) for group in self._groups} != {(self._groups[0].halt, self._groups[0].halt)}:
            raise Violation("all ranks save at the same boundary", f"{planned}")

    def _work_done(self, generation: int) -> None:
        if any(group.halt is not None for group in self._groups) and self.saves:
            return  # they wait for their end
        if generation == self._newest and not self._broken:
            for group in self._groups:
                self._after(self.random.random() * self.schedule.spread, self._finish, group)

    def _finish(self, group: Group) -> None:
        if not group.alive:
            return
        one, generation = group.agent, group.place.generation
        if group.stop_at == NEVER and one.alive:
            self._tell(f"{one.id} finished generation {generation}")
            self._witness.generations[generation].succeeded.add(one.id)
        self._gone(group, whole=True)
        while group.processes:
            group.processes -= 1
            rank = group.place.first_rank + group.processes
            self._to_node(one, node_inputs.Exited(generation, finished=rank))
        self._to_node(one, node_inputs.Cleared(generation))

    def _fail(self, group: Group, by_itself: bool) -> None:
        if not group.alive or not group.processes or (by_itself and not self._chaos):
            return
        one, place = group.agent, group.place
        if group.stop_at == NEVER and by_itself:
            self._witness.generations[place.generation].failed_by_itself = True
        group.processes -= 1
        self._tell(f"{one.id} worker of {place.generation} fails{'' if by_itself else ', a victim of others'}")
        self._break(place.generation)
        rank = place.first_rank + group.processes
        if not group.processes:
            self._gone(group)
        self._to_node(one, node_inputs.Exited(place.generation, self._failure(one, rank, group.processes, 1)))
        if not group.alive:
            self._cleared(group)

    def _failure(self, one: Agent, rank: int, local_rank: int, code: int) -> Failure:
        name, pid = f"host{one.host.number}", self._next_port()
        strategy = (FailoverStrategy.NORMAL, FailoverStrategy.NODE, FailoverStrategy.GLOBAL)[pid % 3]
        return Failure(name, name, rank, local_rank, pid, code, self.t, "", clock=self.t, strategy=strategy)

    def _stop_workers(self, one: Agent, generation: int, grace: float | None) -> None:
        group = one.group
        if group is None or not group.alive or group.place.generation != generation:
            return
        allowed = self.schedule.shutdown if grace is None else grace
        needed = self.random.random() * 1.2 * self.schedule.shutdown
        self._tell(f"{one.id} stops generation {generation} with grace {grace}")
        self._stop_group(group, min(needed, allowed), killed=needed >= allowed)

    def _stop_group(self, group: Group, seconds: float, *, killed: bool) -> None:
        at = self.t + seconds
        if killed:
            at += self.random.random() * KILL_SHARE * self.rules.node_timeout
        if at < group.stop_at:
            group.stop_at = at
            self._after(at - self.t, self._stopped, group, at)

    def _guard(self, one: Agent) -> None:
        """An agent stands still: its guard ends its workers with the lease that it was last told."""
        group = one.group
        if not one.alive or group is None or not group.alive:
            return
        end = one.host.real(one.lease)
        if end > self.t:
            if one.paused:
                self._after(end - self.t, self._guard, one)
            return
        self._tell(f"the guard of {one.id} ends its workers")
        self._witness.excuse(group.place.generation)
        self._stop_group(group, 0.0, killed=True)

    def _stopped(self, group: Group, at: float) -> None:
        if not group.alive or group.stop_at != at:
            return
        one, place = group.agent, group.place
        left, group.processes = group.processes, 0
        self._gone(group)
        while left:
            left -= 1
            ended_well, rank = self.random.random() < 0.3, place.first_rank + left
            failure = None if ended_well else self._failure(one, rank, 0, -15)
            self._to_node(one, node_inputs.Exited(place.generation, failure, finished=rank if ended_well else None))
        self._cleared(group)

    def _cleared(self, group: Group) -> None:
        self._tell(f"{group.agent.id} is clear of generation {group.place.generation}")
        self._to_node(group.agent, node_inputs.Cleared(group.place.generation))

    def _refill(self, one: Agent) -> None:
        raise Violation("every command is carried out", f"{one.id} has nothing that could be refilled")

    def _gone(self, group: Group, *, whole: bool = False) -> None:
        group.alive = group.running = False
        self._witness.workers_gone(group.place.generation)
        if not whole:
            self._break(group.place.generation)

    def _break(self, generation: int) -> None:
        """The newest generation has lost a worker: what it has done since is saved, and the others may fail of it."""
        if self._broken or generation != self._newest:
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
        random, timeout = self.random, self.rules.node_timeout
        if kind == "join":
            self._arrive(None)
        elif kind in ("kill", "amnesia", "pause coordinator"):
            living = [h.coordinator for h in self._hosts if h.coordinator is not None]
            if living:
                self._strike(kind, random.choice(living))
        elif kind in ("cut", "split", "flap"):
            self._divide(kind)
        elif self._agents:
            one = random.choice(list(self._agents.values()))
            if kind == "drain" and self._resigns:
                hosting = [each for each in self._agents.values() if each.host.coordinator is not None]
                one = hosting[0] if hosting else one
            self._tell(f"FAULT {kind} {one.id}")
            if kind == "crash":
                self._end_agent(one, fin=True)
            elif kind == "power":
                self._power_off(one.host)
            elif kind == "pause agent":
                self._pause_agent(one, random.random() * random.choice((0.5, 2, 5)) * timeout)
            elif kind == "reset":
                if one.connection is not None:
                    connection = one.connection
                    connection.broken = True
                    self._after(random.random() * timeout, self._agent_notices, connection)
                    self._after(random.random() * timeout, self._coordinator_notices, connection)
            else:
                if one.group is not None:
                    self._witness.excuse(one.group.place.generation)
                how = Leaving.DRAIN if kind == "drain" else Leaving.INTERRUPT
                self._to_node(one, node_inputs.Leave(how))

    def _strike(self, kind: str, c: Life) -> None:
        random, timeout = self.random, self.rules.node_timeout
        self._tell(f"FAULT {kind} {c.job.term} on host{c.host.number}")
        if kind == "pause coordinator":
            if not c.paused:
                c.paused = True
                self._after(random.random() * random.choice((0.5, 2, 5)) * timeout, self._resume_coordinator, c)
            return
        self._struck = True
        self._kill_coordinator(c)
        self._after(random.random() * self.schedule.revive, self._revive, c.by, kind == "amnesia")

    def _resume_coordinator(self, c: Life) -> None:
        if c.alive and c.paused:
            self._tell(f"the coordinator of host{c.host.number} goes on")
            c.paused, c.timer = False, NEVER
            backlog, c.backlog = c.backlog, []
            self._catch_up(backlog)
            self._arm(c)

    def _catch_up(self, backlog: list[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
        """What came over a while is answered in one go: each message has its own answers, as if it had just come."""
        for step, arguments in backlog:
            if isinstance(arguments[0], Connection):
                arguments[0].since = float("-inf")
            step(*arguments)

    def _pause_agent(self, one: Agent, seconds: float) -> None:
        if not one.paused:
            one.paused = True
            self._guard(one)
            self._after(seconds, self._resume_agent, one)

    def _resume_agent(self, one: Agent) -> None:
        if one.alive and one.paused:
            self._tell(f"{one.id} goes on")
            one.paused = False
            backlog, one.backlog = one.backlog, []
            if self.random.random() < 0.5:
                self._agent_tick(one, one.timer)
            self._catch_up(backlog)

    def _power_off(self, host: Host) -> None:
        peers = []
        c, one = host.coordinator, host.agent
        if c is not None:
            c.alive = False
            host.coordinator = None
            peers = list(c.core.connections.values())
        if one is not None:
            self._end_agent(one, fin=False)
        host.boot(self.random)
        for connection in peers:
            if self.random.random() < 0.3:  # somebody says that the host is gone
                self._after(self.random.random() * 2 * self.rules.node_timeout, self._agent_notices, connection)

    def _divide(self, kind: str) -> None:
        random, timeout = self.random, self.rules.node_timeout
        hosts = [h.number for h in self._hosts]
        if len(hosts) < 2:
            return
        some = [random.choice(hosts)] if kind != "split" else random.sample(hosts, random.randint(1, len(hosts) - 1))
        if kind == "cut" and random.random() < 0.3:  # one link, not all of a host's
            others = [random.choice([h for h in hosts if h not in some])]
        else:
            others = [h for h in hosts if h not in some]
        out = [(a, b) for a in some for b in others]
        back = [(b, a) for a, b in out]
        pairs = out + back if kind == "split" else random.choice((out + back, out, back))
        if kind == "flap":
            for _ in range(random.randint(2, 5)):
                self._after(random.random() * 3 * timeout, self._cut, pairs, random.random() * timeout)
        else:
            self._cut(pairs, random.random() * random.choice((1, 4, 8)) * timeout)

    def _calm(self) -> None:
        self._tell("CALM")
        self._chaos = False
        self._quiet_since = self.t
        self._cuts = dict.fromkeys(self._cuts, 1)
        self._heal(list(self._cuts))
        for host in self._hosts:
            if host.coordinator is not None:
                self._resume_coordinator(host.coordinator)
        for one in list(self._agents.values()):
            self._resume_agent(one)
        rules, schedule = self.rules, self.schedule
        patience = (
            6 * (rules.pend_timeout + rules.empty_timeout)
            + 5 * (rules.last_call + schedule.shutdown + rules.restart_grace)
            + 60 * rules.node_timeout
            + 5 * rules.planned_change_timeout
            + 10 * rules.node_check_timeout * rules.network_check
            + FIRST_PATIENCE
            + FIRST_NODE
            + self._more_patience
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
        agents = self._agents
        if not agents:
            return ""
        acting = [
            h.coordinator
            for h in self._hosts
            if h.coordinator is not None and h.coordinator.job.generation
            and h.coordinator.job.standing(h.clock(self.t)).acting
        ]  # fmt: skip
        if not acting:
            return f"{', '.join(agents)} live, and no coordinator acts"
        c = acting[0]
        job = c.job
        if job.phase is Phase.OVER:
            return f"the job is over, and {', '.join(agents)} did not exit"
        out = {one.id for one in agents.values() if job._state.recovery.evictions.is_out(f"host{one.host.number}")}
        fit = sum(one.fit is not False and one.id not in out for one in agents.values())
        size = world_of(fit, least=self.rules.min_nodes, most=self.rules.max_nodes, unit=self.rules.node_unit)
        if not size or self._work < NEVER:
            return f"{len(agents)} agents live, and the job goes on, {job.phase.value}"
        if job.phase is not Phase.RUNNING or len(job.roster) != size:
            return f"{len(agents)} agents live, and the job is {job.phase.value} with {len(job.roster)}"
        for one in agents.values():
            if one.node.leaving is not Leaving.NO:
                return f"{one.id} wants to leave, and is still there"
            if one.connection is None or one.connection is not c.core.connections.get(one.id):
                return f"{one.id} is not connected"
        for name in job.roster:
            group = agents[name].group if name in agents else None
            if group is None or not group.running or group.place.generation != job.generation:
                return f"{name} does not run generation {job.generation}"
        # Of those that are not fit, some may just be checked once more.
        if not fit - size <= job.spares <= len(agents) - size:
            return f"{fit - size} spares, and the job knows {job.spares}"
        return self._habits.open_point(job) if self._habits is not None else ""
