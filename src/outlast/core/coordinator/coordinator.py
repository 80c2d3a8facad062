"""A coordinator without its sockets: what comes in on connections becomes events of the job, and what the job decides
becomes commands.

The server and the simulator run this one class, so what ships is what is simulated. It owns the job and what stands
beside its decisions: which connection of a node counts, who has gone silent, who is slow, what the end of a connection
means, and which term a coordinator begins after it was killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic

from outlast.core.coordinator.chaos_relay import ChaosRelay
from outlast.core.coordinator.commands import Break, Close, Command, Connection, JournalEntry, PublishEvent, Write
from outlast.core.coordinator.copying import EventCopying
from outlast.core.coordinator.history import History
from outlast.core.coordinator.observers import Observers
from outlast.core.coordinator.suspension import Suspension
from outlast.core.job.commands import Command as Decision
from outlast.core.job.commands import Drop, Publish, Reply, Send
from outlast.core.job.inputs import Asked, Event, Found, Joined, Lost, Progressed, Queried, Reported, Saw, Straggled
from outlast.core.job.job import Job
from outlast.core.job.phase import Phase
from outlast.core.job.progress import JobProgress
from outlast.core.membership.liveness import ORPHANS, Liveness
from outlast.core.stragglers.stragglers import Stragglers
from outlast.core.succession.authority import Memory
from outlast.core.succession.succession import FIRST
from outlast.core.tick import Tick
from outlast.events.events import JobEvent, JobSuspended
from outlast.events.numbered import NumberedEvent
from outlast.events.reasons import NodeLoss
from outlast.protocol.chaos import AskChaos, ChaosBegun
from outlast.protocol.checks import Findings
from outlast.protocol.hangs import Seen
from outlast.protocol.logs import AskLogs, LogAnswer
from outlast.protocol.membership import Join, Over, Refuse, Report
from outlast.protocol.messages import FromAgent, ToCoordinator
from outlast.protocol.observers import Detail, EventBatch, FollowEvents, ReadView
from outlast.protocol.paces import Paces, Training
from outlast.protocol.requests import Answer, Ask
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Charter, Standing, Term
from outlast.protocol.views import JobView

REQUESTS = (ReadView, FollowEvents, AskLogs)
READ_ONLY = "this token may only observe: set the job's own OUTLAST_TOKEN"


class Coordinator(Generic[Connection]):
    """One life of a job's coordinator.

    >>> rules = Rules(job="j", entrypoint="train.py", min_nodes=1, max_nodes=2)
    >>> coordinator: Coordinator[str] = Coordinator(rules, now=0.0)
    >>> coordinator.standing(now=0.0)
    Standing(term=Term(number=1, by=''), acting=True, job='j')
    """

    def __init__(
        self,
        rules: Rules,
        now: float,
        *,
        term: Term = FIRST,
        run: str = "",
        memory: Memory | None = None,
        charter: Charter | None = None,
        history: Iterable[NumberedEvent] = (),
        wall: float = 0.0,
        job: type[Job] = Job,
    ) -> None:
        """`history`: the events that are known of coordinators before this one. `wall`: the time of day at time 0."""
        if memory is not None and memory.term >= term.number:
            term = Term(memory.term + 1, term.by)  # whoever started it does not know all the terms of its last life
        self.job = job(rules, now, term=term, run=run, memory=memory, charter=charter)
        self._timeout = rules.node_timeout
        self._liveness = Liveness(rules.node_timeout)
        self._stragglers = Stragglers(rules.straggler_factor)
        self._progress = JobProgress()
        self._suspension = Suspension(rules.node_timeout)
        self._current: dict[str, Connection] = {}
        self._nodes: dict[Connection, str] = {}  # who joined on it, also on those that no longer count
        self._paces: dict[str, Paces] = {}  # how the ranks of each node got on when they last told
        self._wall = wall
        self._history = History(history)
        self._copying = EventCopying(self._history)
        self.observers: Observers[Connection] = Observers(
            self._history, self.view, self._blank_batch, self._current.get, lambda: self.outcome is not None
        )
        self._chaos: ChaosRelay[Connection] = ChaosRelay(rules, self._current.get)
        self._out: list[Command[Connection]] = []

    @property
    def term(self) -> Term:
        return self.job.term

    @property
    def outcome(self) -> Over | None:
        """How the job ended, once it has."""
        return self.job.outcome

    @property
    def resigned(self) -> bool:
        """Whether it has given the job to its successors."""
        return self.job.resigned

    @property
    def connections(self) -> Mapping[str, Connection]:
        """The connection of each node that counts: its newest."""
        return self._current

    def standing(self, now: float) -> Standing:
        """The first word on every connection."""
        return self.job.standing(now)

    def view(self, detail: Detail, now: float) -> JobView:
        """What is going on, for whoever watches."""
        return self.job.view(
            now,
            self._paces,
            detail=detail,
            wall=self._wall + now,
            event=self._history.last,
            last_fault=self._history.last_fault,
        )

    def deadline(self) -> float | None:
        """When `tick` is due, if nothing else happens before."""
        due = self.job.deadline()
        for other in (self._liveness.deadline(), self.observers.deadline(), self._copying.deadline()):
            if other is not None and (due is None or other < due):
                due = other
        return due

    def received(
        self, connection: Connection, message: ToCoordinator, now: float, *, may_act: bool = True, unread: int = 0
    ) -> list[Command[Connection]]:
        """A message has come. `may_act`: its sender has proved more than that it may observe. `unread`: bytes of ours
        that it has not taken yet."""
        self._begin(now)
        if isinstance(message, REQUESTS):
            self._out += self.observers.heard(connection, message, now, unread=unread)
        elif isinstance(message, AskChaos):  # it has a right of its own, which goes with either token
            self._out += self._chaos.ask(connection, message)
        elif not may_act:
            refusal = Answer(False, READ_ONLY) if isinstance(message, Ask) else Refuse(READ_ONLY)
            self._out += [Write(connection, refusal), Close(connection)]
        elif isinstance(message, Join):
            self._join(connection, message, now)
        elif isinstance(message, Ask):
            self._ask(connection, message, now)
        elif (node := self._nodes.get(connection)) is None:
            self._out.append(Break(connection, "it reported before it joined"))
        elif self._current.get(node) == connection:
            self._hear(node, message, now)
        return self._out

    def asked(self, ask: Ask, now: float) -> list[Command[Connection]]:
        """Somebody asks for something, and not on a connection."""
        self._begin(now)
        self._ask(None, ask, now)
        return self._out

    def ended(self, connection: Connection, now: float, *, broke: str = "") -> list[Command[Connection]]:
        """The connection is no more: its other end closed it, or it broke."""
        self._begin(now)
        self.observers.ended(connection)
        self._chaos.ended(connection)
        node = self._nodes.pop(connection, None)
        if node is None or self._current.get(node) != connection:
            return self._out
        if broke:
            # Nobody closed it: the agent may live on, and its workers until their lease ends.
            heard = self._liveness.heard_at(node, now)
            why = f"its connection broke ({broke})"
            lost = Lost(node, why, heard + self._timeout, heard=heard, loss=NodeLoss.BROKEN)
        else:
            lost = Lost(node, "its connection closed", now + ORPHANS, ended=True)
        self._forget(node)
        self._feed(lost, now)
        return self._out

    def tick(self, now: float, *, heard_until: float | None = None) -> list[Command[Connection]]:
        """Time has passed. `heard_until`: what came in later has not been read, so nobody is silent since then."""
        self._begin(now)
        for node in self._liveness.silent(now if heard_until is None else heard_until):
            self._out.append(Break(self._current[node]))
            self._forget(node)
            why, heard = f"nothing heard for {self._timeout:g} s", now - self._timeout
            self._feed(Lost(node, why, heard=heard, loss=NodeLoss.SILENT), now)
        due = self.job.deadline()
        if due is not None and due <= now:
            self._feed(Tick(), now)
        for node, copies in self._copying.tick(now, self._keepers()):
            self._out.append(Write(self._current[node], copies))
        self._out += self.observers.tick(now)
        return self._out

    def _begin(self, now: float) -> None:
        self._out = []
        self._suspension.passes(now, self._current)

    def _blank_batch(self, now: float) -> EventBatch:
        places = tuple((each.addr, each.port) for each in self.job.successors)
        return EventBatch(self.job.rules.job, self.job.run, acting=self.job.leads(now), places=places)

    def _keepers(self) -> list[str]:
        """The nodes that may host the next coordinator and are here; this one's host has its journal."""
        nodes = (each.node for each in self.job.successors)
        return [node for node in nodes if node in self._current and node != self.term.by]

    def _join(self, connection: Connection, join: Join, now: float) -> None:
        if connection in self._nodes:
            self._out.append(Break(connection, "it joined twice on one connection"))
            return
        older = self._current.get(join.node)
        if older is not None:
            self._out.append(Break(older))
        self._nodes[connection] = join.node
        self._current[join.node] = connection
        self._liveness.heard(join.node, now)
        self._copying.forget(join.node, now)
        self._feed(Joined(join), now)
        self._note_suspension(join.node, join.report, now)

    def _hear(self, node: str, message: FromAgent, now: float) -> None:
        if isinstance(message, Report):
            self._liveness.heard(node, now)
            self._feed(Reported(node, message), now)
            self._note_suspension(node, message, now)
            if message.training is not None:
                self._train(node, message.training, now)
        elif isinstance(message, Seen):
            self._feed(Saw(node, message), now)
        elif isinstance(message, Paces):
            self._paces[node] = message
            # Beside the job's decisions, as silence is: of all the figures, they and the journal need the outcome only.
            if self.job.rules.straggler != "off":
                for who, found in self._stragglers.hear(node, message):
                    self._feed(Straggled(who, found), now)
        elif isinstance(message, Findings):
            self._feed(Found(node, message), now)
        elif isinstance(message, LogAnswer):
            self._out += self.observers.log_answered(node, message, now)
        elif isinstance(message, ChaosBegun):
            self._out += self._chaos.begun(node, message)
        else:
            assert not isinstance(message, Join | Ask)
            self._feed(Queried(node, message), now)

    def _note_suspension(self, node: str, report: Report, now: float) -> None:
        stood = self._suspension.heard(node, report.sent + self.job.about(node)[1])
        if stood is not None and self.outcome is None:
            begin, end = stood
            event = JobSuspended(generation=self.job.generation, seconds=end - begin, ago=now - end)
            self._feed(Progressed(event), now)

    def _train(self, node: str, training: Training, now: float) -> None:
        """Beside the job's decisions, too: what all ranks have come to is one event, and not one for each node."""
        job = self.job
        if job.phase is Phase.RUNNING and training.generation == job.generation:
            name, behind = job.about(node)
            event = self._progress.hear(node, training, name=name, behind=behind, members=job.size, now=now)
            if event is not None:
                self._feed(Progressed(event), now)

    def _ask(self, connection: Connection | None, ask: Ask, now: float) -> None:
        for decision in self._feed(Asked(ask), now):
            if isinstance(decision, Reply) and connection is not None:
                self._out += [Write(connection, decision.answer), Close(connection)]
            elif isinstance(decision, Reply):
                self._out.append(decision)

    def _feed(self, event: Event, now: float) -> list[Decision]:
        decisions = self.job.handle(event, now)
        if not self.job.idle:
            self._out.append(JournalEntry(now, event, self.job.answers, decisions))
        for decision in decisions:
            if isinstance(decision, Send):
                connection = self._current.get(decision.node)
                if connection is not None:
                    self._out.append(Write(connection, decision.message))
            elif isinstance(decision, Drop):
                dropped = self._forget(decision.node)
                if dropped is not None:
                    self._out.append(Close(dropped))
            elif isinstance(decision, Publish):
                self._publish(decision.event, now)
            elif not isinstance(decision, Reply):
                self._out.append(decision)
        return decisions

    def _publish(self, event: JobEvent, now: float) -> None:
        numbered = self._history.add(event, time=self._wall + now, term=self.term.number)
        self._out.append(PublishEvent(numbered))
        if self.job.successors:
            self._copying.news(now)
        self.observers.news(now, at_once=self.outcome is not None)
        if self.outcome is not None:  # the process may end before another tick
            self._out += self.observers.tick(now)

    def _forget(self, node: str) -> Connection | None:
        self._liveness.forget(node)
        self._paces.pop(node, None)
        gone = self._current.pop(node, None)
        self._out += self.observers.node_lost(node)
        self._out += self._chaos.node_lost(node)
        return gone
