"""The job: which generation runs, on which nodes, and when there is a new one.

One state machine. Events go in with the time, commands come out, and every change of course is published as an event
that says why. The rules, in the order in which they are applied:

- RUNNING: a worker that failed, a member that was lost or leaves, or nodes that wait to join end the generation.
  Where that can wait for a moment, all ranks save first (planned_change.py).
- STOPPING: nobody goes on until no worker of the old generation can be alive any more. Only then is it known
  why it ended: a worker that failed because another node was lost is that node's victim, and costs no restart.
- FORMING: with MAX nodes at once, with MIN after a last call; below MIN it waits, and gives up at last.
- GATHERING: a coordinator that comes to a running job, or has heard of another one, decides nothing before more than
  half of the newest generation are with it. If all of them come, nobody is restarted.

Its parts: `Generation` (the one that runs), `Succession` (this coordinator among others), `Recovery` (failures and
what they cost), `Admissions` (who may take part). Work per event is constant but for the forming and stopping of a
generation, which are linear in its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from msgspec.structs import replace

from outlast.core.data_shards.dealer import Dealer
from outlast.core.hangs.calibration import CalibrationRounds
from outlast.core.job.commands import Command, Remember, Reply
from outlast.core.job.generation import Generation
from outlast.core.job.inputs import Asked, Event, Found, Joined, Lost, Queried, Reported, Saw, Straggled
from outlast.core.job.outbox import Outbox
from outlast.core.job.planned_change import belongs_on_disk
from outlast.core.job.snapshots import Snapshots
from outlast.core.membership.admission import unanswerable
from outlast.core.membership.admissions import Admissions
from outlast.core.membership.attendance import Attendance
from outlast.core.membership.liveness import BEATS, ORPHANS, lease_of
from outlast.core.membership.member import Member, is_news
from outlast.core.membership.roster import assign, last_ranks, line_up
from outlast.core.node_checks.checks import Fitness
from outlast.core.node_checks.table import notice, summary
from outlast.core.recovery.failures import facts_of, root_first, shortened
from outlast.core.recovery.recovery import Recovery
from outlast.core.succession.authority import Authority, Memory
from outlast.core.succession.succession import FIRST, Succession
from outlast.core.tick import Tick
from outlast.diagnosis.observation import Observation
from outlast.events.events import (
    Calibrated,
    CoordinatorTookOver,
    Ending,
    GenerationEnding,
    GenerationFormed,
    HangNamed,
    JobOver,
    NodeExcluded,
    NodeJoined,
    NodeKept,
    NodeLeft,
    NodeLetBack,
    NodeLost,
    NodeRefused,
    PlannedChange,
    QuorumMissing,
    SpareReady,
    StragglerChanged,
    WorkerFailed,
)
from outlast.events.reasons import (
    ChangeReason,
    DepartedNode,
    DrainingNode,
    EndReason,
    ExcludedStraggler,
    FencedNode,
    InheritedChange,
    JoinedNodes,
    LostNode,
    MissingNodes,
    NodesAhead,
    RankRequest,
    RestartRequested,
    StoppedWorkers,
    ToldToStop,
)
from outlast.events.sentences import lacking, needed
from outlast.protocol.failures import Failure
from outlast.protocol.fields import LONGEST_REASON
from outlast.protocol.generations import Assignment, Halted, Start, Stop
from outlast.protocol.hangs import Agreed
from outlast.protocol.membership import (
    Ack,
    Join,
    Leaving,
    Notice,
    Over,
    Refuse,
    Report,
    State,
    Wanted,
    Welcome,
    Wish,
)
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.requests import Answer, Ask
from outlast.protocol.rules import Rules
from outlast.protocol.snapshots import Stride
from outlast.protocol.succession import Charter, Standing, Term

FIRST_NODE = 30.0  # seconds in which the first node has to come


class Phase(str, Enum):
    GATHERING = "gathering"
    FORMING = "forming"
    RUNNING = "running"
    STOPPING = "stopping"
    OVER = "over"


class Job:
    """The decisions of one job.

    >>> job = Job(Rules(job="j", entrypoint="train.py", min_nodes=1, max_nodes=1), now=0.0)
    >>> job.phase.value, job.deadline()
    ('forming', 30.0)
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
    ) -> None:
        self.rules = rules
        self.phase = Phase.FORMING
        self.outcome: Over | None = None
        self.idle = False  # the last event changed nothing that decisions depend on
        self._began = now
        self._formed = 0  # how many generations there were
        self._empty: float | None = now + max(rules.empty_timeout, FIRST_NODE)
        self._nodes = Attendance()
        self._out = Outbox(self._nodes)
        self._current = Generation(rules)
        self._succession = Succession(rules, now, term=term, run=run)
        self._recovery = Recovery(rules)
        self._admissions = Admissions(rules, self._nodes, self._recovery.evictions, self._out)
        self._calibration = CalibrationRounds(rules.safety_factor)
        self._dealer = Dealer()  # of shards, to whoever asks for them
        self._snapshots = Snapshots()  # in the memory of the nodes
        if memory is not None:
            self._recall(memory, now)
        if charter is not None and self._authority.is_news(charter):
            self._regather(FIRST, charter, now)
            self._succession.term = term
        if term.number > FIRST.number and self.phase is Phase.FORMING:
            # Nobody has told yet what the life before this one has started.
            self._succession.free = now + rules.node_timeout

    def _recall(self, memory: Memory, now: float) -> None:
        """Go on where a coordinator was killed. Whoever is connected will say so."""
        self._formed, self.outcome = memory.formed, memory.outcome
        self._succession.recall(memory, now)
        self._recovery.recall(memory, now)
        self._admissions.excluded = dict(memory.excluded)
        current = self._current
        current.closed, current.hearsay = memory.closed, memory.hearsay
        current.failures, current.reasons = list(memory.failures), list(memory.departed)
        if memory.electorates:
            current.number = memory.electorates[0].generation
            self.phase = Phase.GATHERING
        if memory.outcome is not None:
            self.phase = Phase.OVER

    def memory(self) -> Memory:
        """What this coordinator would need if it were killed now."""
        current, succession, gathering = self._current, self._succession, self._succession.gathering
        return Memory(
            run=succession.run,
            term=succession.term.number,
            restarts=self._recovery.restarts,
            charged=self._recovery.charged,
            formed=self._formed,
            closed=current.closed,
            roster={**gathering.places, **current.roster},
            names={**gathering.names, **{name: self._nodes[name].name for name in current.roster}},
            electorates=tuple(self._authority.electorates),
            successors=succession.successors,
            before=succession.before,
            failures=tuple(current.failures),
            departed=tuple(current.reasons),
            hearsay=current.hearsay if self.phase is Phase.GATHERING else self.phase is Phase.RUNNING,
            outcome=self.outcome,
            excluded=dict(self._admissions.excluded),
            ledger=self._recovery.ledger(),
        )

    # -- what others may know

    @property
    def _authority(self) -> Authority:
        return self._succession.authority

    @property
    def term(self) -> Term:
        return self._succession.term

    @property
    def run(self) -> str:
        return self._succession.run

    @property
    def generation(self) -> int:
        """The number of the newest generation; 0: there was none."""
        return self._current.number

    @property
    def restarts(self) -> int:
        """How many restarts failures have cost."""
        return self._recovery.restarts

    @property
    def roster(self) -> dict[str, Assignment]:
        """The members of the newest generation, with their ranks."""
        return dict(self._current.roster)

    @property
    def spares(self) -> int:
        """How many nodes are here and ready without a place in the running generation."""
        return len(self._nodes.ready)

    @property
    def answers(self) -> str:
        """What the authority answered during the last event, for its replay."""
        return self._succession.answers

    def foretell(self, answers: str) -> None:
        """In a replay: what the authority is going to answer during the next event."""
        self._succession.foretell(answers)

    def standing(self, now: float) -> Standing:
        """What this coordinator says to anybody who knocks."""
        return self._succession.standing(now)

    def deadline(self) -> float | None:
        """When `Tick` is due, if nothing else happens before."""
        if self.phase is Phase.OVER:
            return None
        door, free = self._admissions, self._succession.free
        back = self._recovery.evictions.deadline()
        times: list[float | None]
        if self._succession.powerless:
            times = [self._succession.powerless.deadline(), self._empty]
        elif self.phase is Phase.STOPPING:
            times = [free, *self._nodes.ghosts.values()]
        elif self.phase is Phase.FORMING:
            last_call = None if door.gate.busy else door.last_call  # a check is waited for, however long it takes
            times = [free, last_call, door.pend, self._empty, back, *self._nodes.ghosts.values()]
        elif self.phase is Phase.GATHERING:
            times = [free, self._empty]
        else:
            times = [door.last_call, door.pend, self._empty, back]
            times += [self._current.inquiry.deadline(), self._current.change.deadline()]
        if not self._succession.powerless:
            times.append(door.gate.deadline())
        return min((t for t in times if t is not None), default=None)

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event in; what comes out is to be done in this order."""
        self._out.open()
        self.idle = False
        self._authority.answers.clear()
        if isinstance(event, Reported):
            self._reported(event.node, event.report, now)
        elif isinstance(event, Joined):
            self._joined(event.join, now)
        elif isinstance(event, Saw):
            self.idle = not self._current.inquiry.take(event.node, event.seen)
        elif isinstance(event, Queried):
            self._dealer.ask(event.node, event.query)
            self.idle = True
        elif isinstance(event, Straggled):
            self._straggled(event, now)
        elif isinstance(event, Found):
            self.idle = not self._admissions.gate.take(event.node, event.findings, now)
        elif isinstance(event, Lost):
            self._lost(event, now)
        elif isinstance(event, Asked):
            self._asked(event.ask, now)
        if isinstance(event, Tick | Saw | Found) and not self.idle:
            self._settle(now)
        self._dealer.hurry(self._current.change.planned)
        if self._dealer.waits and self.phase is Phase.RUNNING and self._authority.leads(now):
            for node, told in self._dealer.answers(self.generation, self._current.world_size):
                self._out.send(node, told)
        return self._out.commands

    # -- events

    def _joined(self, join: Join, now: float) -> None:
        if why := self._admissions.refusal(join, self.run if self.generation else None):
            self._out.publish(NodeRefused(generation=self.generation, node=join.name, why=why))
            self._out.send(join.node, Refuse(why))
            self._out.drop(join.node)
            return
        if self._nodes.is_of_the_past(join):
            self._out.drop(join.node)
            return
        node = self._nodes.get(join.node)
        if self.outcome is not None and self._succession.is_overtaken(join, node):
            if not self.outcome.success:
                self._out.drop(join.node)  # others went on without this coordinator: its end is not theirs
                return
            # What is done is done, whoever it has obeyed since.
            self._succession.term = self._succession.above(join.term)
        if node is not None and join.connection <= node.join.connection:
            # The agent left this connection before it made the one that this has just replaced, and its end will
            # not mean that the agent has ended. It must come back on a third.
            self._out.drop(join.node)
            self._lost(Lost(join.node, "an old connection of it came late", now + self.rules.node_timeout), now)
            return
        if node is None:
            self._out.publish(NodeJoined(generation=self.generation, node=join.name, workers=join.nproc))
        self._take_in(join, now)

    def _take_in(self, join: Join, now: float) -> None:
        node = self._nodes.come(join)
        self._empty = None
        if join.key:
            self._supersede(join, now)
        self._learn(join, node, now)
        self._dealer.hear(join.node, join.hands)
        r, successors = self.rules, self._succession.successors
        self._out.send(join.node, Welcome(r.node_timeout / BEATS, lease_of(r), r.restart_grace, successors))
        self._reported(join.node, join.report, now, again=True)
        if self._snapshots.stride > 1:
            self._out.send(join.node, Stride(self._snapshots.stride))  # it may have missed that
        self._bind(now)
        if self.phase is Phase.RUNNING and join.node in self._nodes.ready and self._admissions.last_call is None:
            self._out.publish(SpareReady(generation=self.generation, node=join.name))

    def _supersede(self, join: Join, now: float) -> None:
        """A place is held by one agent at a time: whoever held it before has ended, however its connection looks."""
        before = self._nodes.hold(join)
        if before is None:
            return
        node = self._nodes[before]
        if node.connected:
            self._out.drop(before)
            self._lost(Lost(before, "a new life of it has come", now + ORPHANS, ended=True), now)
            return
        if self._authority.acts(now):
            self._authority.ended(before)
        if node.until is not None:
            node.until = min(node.until, now + ORPHANS)
            self._admissions.place(before)

    def _learn(self, join: Join, node: Member, now: float) -> None:
        """What a node knows of terms and generations that this coordinator may have missed."""
        charter = join.charter
        if self.phase is not Phase.OVER:
            if charter is not None and self._authority.is_news(charter):
                self._regather(join.term, charter, now)
            elif self._succession.is_overtaken(join, node):
                self._regather(join.term, None, now)
            elif charter is not None:
                self._authority.compare(charter)
        self._authority.came(join.node, charter)
        if self.phase is Phase.GATHERING:
            self._take_back(join)

    def _regather(self, term: Term, charter: Charter | None, now: float) -> None:
        """Somebody else has coordinated, or tried to: begin a new term, and take the newest generation from them."""
        self._succession.begin_term(term, now)
        self._admissions.gate.abandon()
        if charter is not None:
            self._adopt(charter, now)
        if self._authority.newest is None or self.phase is Phase.OVER:
            return
        self.phase = Phase.GATHERING
        self._succession.gathering.renew()
        self._succession.free = self._admissions.last_call = None
        for name in [name for name in self._current.roster if not self._nodes[name].connected]:
            self._misses(name)
        for node in self._nodes.values():
            if node.connected and charter is not None:
                self._authority.came(node.join.node, node.join.charter)
                self._take_back(node.join)

    def _adopt(self, charter: Charter, now: float) -> None:
        """A node knows of a newer generation, and of what happened up to it."""
        self._succession.adopt(charter)
        self._recovery.adopt(charter, now)
        self._admissions.excluded |= charter.excluded
        if charter.ledger is not None:
            self._let_back(now)
        unfinished = self._current.unfinished
        self._current = Generation(self.rules, charter.ballots[0].generation, before=self._current)
        self._current.unfinished, self._current.hearsay = unfinished, True

    def _misses(self, name: str) -> None:
        """A member is not here, and may come back."""
        self._succession.gathering.misses(name, self._nodes[name].name, self._current.roster.pop(name))

    def _take_back(self, join: Join) -> None:
        """A member of the generation that is being gathered has come."""
        place = self._succession.gathering.take_back(join, self.generation)
        if place is not None:
            self._current.roster[join.node] = place
            self._nodes[join.node].sent = max(self._nodes[join.node].sent, self.generation)

    def _bind(self, now: float) -> None:
        """Once those who are here are enough, ask all of them for their promise."""
        gathering = self._succession.gathering
        if gathering.bound or self.phase is not Phase.GATHERING or not self._authority.could_act(now):
            return
        gathering.bound = True
        for name, node in self._nodes.here():
            self._ack(name, node, now)

    def _ack(self, name: str, node: Member, now: float) -> None:
        """Answer a node's newest report, with a lease if this coordinator may act, and not at all if it never could."""
        leased = self._authority.acts(now)
        if leased or self._authority.could_act(now):
            node.acked(node.report.seq, now)
            self._out.send(name, Ack(node.report.seq, self.term.number, leased))

    def _charter(self, name: str, now: float) -> Charter:
        recovery = self._recovery
        return self._succession.charter(
            name,
            restarts=recovery.charged,
            excluded=self._admissions.excluded,
            ledger=lambda: recovery.tell(now),
        )

    def _reported(self, name: str, report: Report, now: float, *, again: bool = False) -> None:
        node = self._nodes.get(name)
        if node is None or not node.connected:
            return
        known = node.report
        if report.seq < known.seq or (report.seq == known.seq and not again):
            self.idle = True
            return  # late or doubled: what it says is no longer true
        node.report = report
        news = node.heard(report.sent, now)
        changed = self._snapshots.told(name, report.held) or is_news(known, report)
        busy = self._is_busy
        repeated = node.repeated(report.acked)
        if repeated is not None:
            self._authority.supported(name, repeated)
        if report.known[:2] == self._authority.known[:2]:
            self._authority.knows(name)
        self._authority.settle(now)
        # A node that has become clear may be about to hear a `Start`, which says it as well.
        late = changed and not again and self.phase is Phase.STOPPING and node.clear
        if not late:
            self._ack(name, node, now)
        if again or changed:
            self._digest(name, node, now)
            ends = report.generation == self.generation and node.stopped(self.generation)
            if ends and name in self._current.roster and self.phase is Phase.RUNNING:
                self._depart(StoppedWorkers((node.name,), late=True))  # by another coordinator, long ago
        if again or changed or busy:
            self._settle(now)
        if late and (self.phase is not Phase.RUNNING or name not in self._current.roster):
            self._ack(name, node, now)
        if again or not changed or node.leaving:
            self._remind(name, node, now)
        decisive = again or changed or news or busy or self._is_busy
        self.idle = not decisive and self._out.is_only_acks

    @property
    def _is_busy(self) -> bool:
        """Whether even a heartbeat may change what is decided, for it may bring the authority to do so."""
        return bool(self._succession.powerless) or self.phase is Phase.GATHERING or not self._authority.settled

    def _remind(self, name: str, node: Member, now: float) -> None:
        """Say again what the node does not seem to have heard."""
        report = node.report
        member = self.phase is Phase.RUNNING and name in self._current.roster
        if self.outcome is not None:
            self._out.send(name, replace(self.outcome, term=self.term.number))
        elif not self._authority.acts(now) or self.phase is Phase.GATHERING:
            return
        elif not member and not node.clear:
            self._out.send(name, Stop(node.sent, self.term.number, graceful=node.leaving))
        elif node.leaving and node.clear:
            excluded = self._admissions.excluded.get(node.place)
            drained = f"node {node.name} is not used again: {excluded}" if excluded else f"node {node.name} was drained"
            self._out.send(name, Over(False, drained, left=True, term=self.term.number))
        elif member and report.generation < self.generation and report.floor < self.generation:
            self._start(name, node, now)
        elif member and (halt := self._current.change.lacks(report.halted)) is not None:
            self._out.send(name, halt)
        elif report.known != self._authority.known:
            self._out.send(name, self._charter(name, now))
        elif member and (lacking := self._calibration.lacks(report)) is not None:
            self._out.send(name, lacking)
        elif (probe := self._admissions.gate.owed(name, self._nodes)) is not None:
            self._out.send(name, probe)

    def _start(self, name: str, node: Member, now: float) -> None:
        node.acked(node.report.seq, now)
        roster = self._current.roster
        keeping = self._snapshots.keeping(name, self.generation, roster, self._nodes)
        self._out.send(name, Start(roster[name], self.term.number, self._charter(name, now), node.report.seq, keeping))

    def _digest(self, name: str, node: Member, now: float) -> None:
        """Take a changed report to heart."""
        report, current = node.report, self._current
        if report.leaving is Leaving.INTERRUPT:
            self._end(False, Ending.INTERRUPTED, f"interrupted on node {node.name}", now)
        if report.wish is not None:
            self._grant(name, node, report.wish, now)
        if self.phase is Phase.OVER:
            return
        self._admissions.place(name)
        if name not in current.roster:
            return
        leaves = report.leaving is Leaving.DRAIN and node.place not in self._admissions.excluded
        if leaves and name in current.unfinished and self.phase is not Phase.STOPPING:
            # Its workers run on until they are told to stop: what failed before is not a consequence.
            self._plan(ToldToStop() if self.rules.max_nodes == 1 else DrainingNode(node.name), now)
        if report.generation != self.generation:
            return
        if self.phase is Phase.RUNNING:
            self._follow(name, node, now)
        if report.state is State.CUT_OFF:
            self._depart(FencedNode(node.name))
        elif report.state is State.FAILED:
            self._failed(node.aligned(report.failures))
        elif report.state is State.FINISHED:
            current.finish(name)

    def _follow(self, name: str, node: Member, now: float) -> None:
        """What a member says of the ranks that it runs."""
        report, current = node.report, self._current
        self._calibrate(name, node)
        if self._snapshots.keeps_up(name, report.stride, current.roster):
            for each in current.roster:
                self._out.send(each, Stride(self._snapshots.stride))
        if report.overdue is not None:
            current.inquiry.hear(name, report.overdue)
        if report.halted is not None:
            self._halted(name, report.halted, now)

    def _grant(self, name: str, node: Member, wish: Wish, now: float) -> None:
        """Do what a rank asks for. Its node says it again and again, perhaps to a coordinator that comes after us."""
        current, request = self._current, RankRequest(node.name, wish.rank, wish.wanted.value, wish.reason)
        who = f"rank {wish.rank} on node {node.name}"
        running = self.phase in (Phase.RUNNING, Phase.GATHERING) and wish.generation == self.generation
        if wish.wanted is Wanted.STOP:
            self._end(False, Ending.STOPPED, f"{wish.reason} (stop, asked for by {who})", now)
        elif wish.wanted is Wanted.EXCLUDE_NODE:
            if node.place not in self._admissions.excluded:
                why = f"{wish.reason} (exclude_node, asked for by {who})"
                self._admissions.excluded[node.place] = why
                self._out.publish(NodeExcluded(generation=self.generation, node=node.name, why=why, seconds=None))
            if name in current.roster and name in current.unfinished:
                self._depart(request)
        elif running and name in current.roster and name in current.unfinished:
            # One that ends already, because a rank has failed, does not become free of charge.
            self._depart(request)

    def _calibrate(self, name: str, node: Member) -> None:
        news = self._calibration.told(name, node.report.measures, self._current.roster)
        if isinstance(news, Agreed) and (summary := self._calibration.summary()):
            longest = dict(news.measures.longest)
            self._out.publish(Calibrated(generation=self.generation, longest=longest, sentence=summary))
        if news is not None:
            self._tell_all(news)

    def _inquire(self, now: float) -> None:
        """Ranks are late: ask where all of them are, and name the one that the others wait for."""
        inquiry = self._current.inquiry
        if inquiry.is_over(now) and (finding := inquiry.conclude()) is not None:
            verdict = finding.verdict
            named = HangNamed(
                generation=self.generation,
                ranks=verdict.culprits,
                nodes=verdict.nodes,
                kind=verdict.kind.value,
                where=verdict.where,
                sentence=verdict.sentence,
            )
            self._out.publish(named)
            if finding.named is not None:
                self._tell_all(finding.named)
        if inquiry.is_wanted(now):
            members = self._nodes.here(self._current.roster)
            asked = {name: self._unseen(name, node) for name, node in members if not node.clear}
            look = inquiry.begin(asked, now)
            for name in asked:
                self._out.send(name, look)

    def _unseen(self, name: str, node: Member) -> Observation:
        """What is known of the ranks of a member that says nothing."""
        first = self._current.roster[name].first_rank
        return Observation(rank=first, node=node.name, also=tuple(range(first + 1, first + node.join.nproc)))

    def _lost(self, event: Lost, now: float) -> None:
        node, name = self._nodes.get(event.node), event.node
        if node is None or not node.connected:
            return
        self._nodes.go(name, event.until)
        self._snapshots.forget(name)
        if event.ended and self._authority.acts(now):
            self._authority.ended(name)  # by one that acts alone: two that leave out others could both act
        else:
            self._authority.went(name)
        if self.phase is Phase.OVER:
            return
        self._admissions.lose(name, now)
        if not self._nodes.connected:
            self._empty = now if node.leaving else now + self.rules.empty_timeout
        current = self._current
        if self.phase is Phase.GATHERING:
            gathering = self._succession.gathering
            gathering.bound = gathering.bound and self._authority.could_act(now)
            if not event.ended and name in current.roster:
                self._misses(name)
        active = self.phase in (Phase.STOPPING, Phase.GATHERING) or (
            self.phase is Phase.RUNNING and name in current.unfinished
        )
        ends = name in current.roster and active
        reason: EndReason = DepartedNode(node.name) if node.leaving else LostNode(node.name, event.why)
        if node.leaving:
            self._out.publish(NodeLeft(generation=self.generation, node=node.name, told=ends))
        else:
            self._out.publish(NodeLost(generation=self.generation, node=node.name, how=event.why, told=ends))
        if ends:
            self._depart(reason)
        self._settle(now)

    def _asked(self, ask: Ask, now: float) -> None:
        if why := unanswerable(self.rules, ask):
            answer = Answer(False, why)
        elif self.phase is not Phase.RUNNING:
            answer = Answer(False, f"nothing to restart: the job is {self.phase.value}")
        else:
            answer = Answer(True, f"job {self.rules.job}: generation {self.generation} ends, and starts anew")
            self._plan(RestartRequested(ask.who), now)
            self._settle(now)
        self._out.add(Reply(answer))

    # -- rules

    def _settle(self, now: float) -> None:
        """Apply the rules until nothing changes."""
        if self.phase is Phase.OVER or not self._may_decide(now):
            return
        if self._succession.free is not None and now >= self._succession.free:
            self._succession.free = None
        if (back := self._recovery.evictions.deadline()) is not None and now >= back:
            self._let_back(now)
        self._admissions.settle(now)
        self._examine(now)
        phase = None
        while phase is not self.phase:
            phase = self.phase
            if phase is Phase.RUNNING:
                self._while_running(now)
            elif phase is Phase.STOPPING:
                self._while_stopping(now)
            elif phase is Phase.FORMING:
                self._while_forming(now)
            elif phase is Phase.GATHERING:
                self._while_gathering(now)

    def _may_decide(self, now: float) -> bool:
        powerless = self._succession.powerless
        if self._authority.acts(now):
            powerless.end()
            return True
        if self._is_deserted(now):
            return False
        roster = self._current.roster
        here = len(roster if self.phase is Phase.GATHERING else self._nodes.here(roster))
        newest = self._authority.newest
        missing = QuorumMissing(generation=self.generation, here=here, size=newest.size if newest is not None else 0)
        todo = powerless.wait(now)
        if missing.here == missing.size:
            if todo:  # all are connected, and say nothing: the only one is waited for, however long it is stopped
                powerless.begin(now)
        elif todo == "say" and self._nodes.connected:
            self._out.publish(missing)
        elif todo == "give up":
            waited = f"for {self.rules.pend_timeout:g} s (pend_timeout)"
            self._end(False, Ending.NO_QUORUM, f"{lacking(missing)}, {waited}", now)
        return False

    def _is_deserted(self, now: float) -> bool:
        """Whether nobody has been here for too long: then the job is over."""
        if self._empty is None or now < self._empty:
            return False
        if self.rules.max_nodes == 1 and any(node.leaving for node in self._nodes.values()):
            self._end(False, Ending.STOPPED, "it was told to stop", now)
        else:
            self._end(False, Ending.NO_NODES, "no node is left", now)
        return True

    def _while_gathering(self, now: float) -> None:
        newest, current = self._authority.newest, self._current
        assert newest is not None
        if self._is_deserted(now):
            return
        if not self._succession.gathering.took_over:
            self._take_over(now)
        missing = newest.size - len(current.roster)
        if missing and self._succession.free is not None:
            return
        absent = self._succession.gathering.close()
        if current.is_closed:
            self.phase = Phase.FORMING
            return
        current.run()
        self.phase = Phase.RUNNING
        reasons, current.reasons = current.reasons, []
        for reason in reasons:
            self._depart(reason)
        if missing:
            current.unfinished.add("")  # nobody knows whether those who are missing had finished
            self._depart(MissingNodes(missing, newest.size, absent))
        else:
            taken = CoordinatorTookOver(generation=current.number, term=self.term.number, nodes=newest.size)
            self._out.publish(taken)
        self._catch_up(now)

    def _catch_up(self, now: float) -> None:
        """What members of a generation that was taken over have been told meanwhile, by whoever coordinated them."""
        current = self._current
        members = [self._nodes[name] for name in current.roster]
        stopped = StoppedWorkers(_names(node for node in members if node.stopped(current.number)))
        if stopped.nodes and current.hearsay:
            self._depart(stopped)
        later = _names(node for node in members if node.report.generation > current.number)
        if later:
            # Somebody has judged its end before, and formed another on it that those who count never heard of.
            self._depart(NodesAhead(later))
        for name in current.roster:
            self._digest(name, self._nodes[name], now)
        if stopped.nodes and self.phase is Phase.RUNNING:
            self._depart(stopped)
        current.hearsay = False

    def _take_over(self, now: float) -> None:
        """From here on no other coordinator acts."""
        self._succession.take_over(now)
        self._out.add(Remember(self.memory()))
        for name, node in self._nodes.here():
            self._ack(name, node, now)
            self._out.send(name, self._charter(name, now))

    def _while_running(self, now: float) -> None:
        self._inquire(now)
        current, door = self._current, self._admissions
        if current.has_finished:
            self._end(True, Ending.FINISHED, "every worker finished", now)
        elif current.change.planned:
            if ends := current.change.outcome(now):
                self._depart(ends)
        elif self._nodes.ready and len(current.unfinished) == len(current.roster):
            # Nobody has finished yet: more nodes are worth the interruption.
            ready = self._admitted(now)
            size = door.world(len(current.roster) + len(ready))
            if size <= len(current.roster):
                door.last_call = None
            elif size == door.world(self.rules.max_nodes) or door.is_due(now):
                self._plan(JoinedNodes(_names(ready.values())), now)
        else:
            door.last_call = None

    def _while_stopping(self, now: float) -> None:
        current = self._current
        if self._nodes.waiting:
            return
        if current.has_finished:
            self._end(True, Ending.FINISHED, "every worker finished", now)
            return
        if self._succession.free is not None:
            return
        if current.failures and not current.reasons:
            if any(failure.pending for failure in current.failures):
                return  # what to do about it is being asked; a node that does not answer is lost in the end
            current.close()
            if not self._try_again(now):
                return
        current.close()
        self.phase = Phase.FORMING
        size = self._admissions.world(len(self._nodes.ready))
        if size and self._authority.settled:
            self._let_in(now, at_once=True)

    def _try_again(self, now: float) -> bool:
        """Workers have failed, and nobody else is to blame: do what the root's strategy says, or end the job."""
        current, recovery = self._current, self._recovery
        failures = current.failures = root_first(current.failures)
        failed = facts_of(failures[0])
        self._out.publish(WorkerFailed(generation=current.number, failure=failed, followers=len(failures) - 1))
        if spent := recovery.spent(failures):
            self._end(False, Ending.FAILED, spent, now)
            return False
        home = current.home_of(failures[0].rank, {name: self._nodes[name].join.nproc for name in current.roster})
        node = self._nodes[home] if home is not None else None
        others = len(self._nodes.ready) - (home in self._nodes.ready)
        decided = recovery.restart(failures, node, others=others, generation=current.number, now=now)
        if home is not None and (decided.excluded or decided.kept):
            self._admissions.gate.doubt(home)
        if home is not None and decided.excluded is not None:
            self._admissions.place(home)
            self._out.publish(decided.excluded)
        self._out.publish(decided)
        return True

    def _let_back(self, now: float) -> None:
        """Places that were left out for a while may be used again, on probation."""
        back, out = self._recovery.evictions.settle(now)
        for name, node in self._nodes.items():
            if node.place in back:
                self._admissions.gate.doubt(name)
                self._out.publish(NodeLetBack(generation=self.generation, node=node.name))
            if node.place in back | out:
                self._admissions.place(name)

    def _straggled(self, event: Straggled, now: float) -> None:
        """Ranks are slower than the others, or are so no longer: say so, and do what was asked for about it."""
        home, recovery, current = self._nodes.get(event.node), self._recovery, self._current
        if home is None or self.phase is Phase.OVER:
            return
        found, slower = event.straggler, event.straggler.sentence(home.name)
        if not found.lasts:
            self._out.publish(
                StragglerChanged(
                    generation=found.generation,
                    node=home.name,
                    ranks=found.ranks,
                    section=found.section,
                    factor=found.factor,
                    since=found.since,
                    over=found.over,
                    sentence=slower,
                )
            )
            return
        runs = self.phase is Phase.RUNNING and found.generation == current.number and event.node in current.unfinished
        goes = self.rules.straggler == "exclude" and runs and not recovery.evictions.is_out(home.place)
        if not goes or not self._authority.acts(now):
            return
        if stays := recovery.evictions.stays(home.name, len(current.roster) + len(self._nodes.ready) - 1, now):
            self._out.publish(NodeKept(generation=current.number, node=home.name, because=stays, why=slower))
            return
        excluded = recovery.exclude(home, slower, current.number, now)
        self._admissions.place(event.node)
        self._out.publish(excluded)
        self._plan(ExcludedStraggler(home.name, excluded.seconds or 0.0, slower), now)
        self._settle(now)

    def _while_forming(self, now: float) -> None:
        door = self._admissions
        size = door.world(len(self._nodes.ready))
        if not size:
            door.lift()
            size = door.world(len(self._nodes.ready))
        if self._is_deserted(now):
            return
        if not size:
            self._wait_for_more(now)
        elif not self._authority.settled or self._nodes.waiting or self._succession.free is not None:
            # The last generation is still being told of, or workers of another may be alive.
            door.last_call = door.pend = None
        else:
            door.pend = None
            if door.is_full or door.is_due(now):
                self._let_in(now)

    def _wait_for_more(self, now: float) -> None:
        """Fewer than MIN nodes are ready."""
        door = self._admissions
        door.last_call = None
        waiting = door.waiting(self.generation)
        if door.pend is None:
            door.pend = now + self.rules.pend_timeout
            if any(node.connected and not node.leaving for node in self._nodes.values()):
                self._out.publish(waiting)
        elif now >= door.pend:
            waited = f"{self.rules.pend_timeout:g} s (pend_timeout)"
            self._end(False, Ending.TOO_FEW_NODES, f"waited {waited} for {needed(waiting)}", now)

    def _form(self, size: int, now: float) -> None:
        nodes, before, door, recovery = self._nodes, self._current, self._admissions, self._recovery
        ready = [node.candidate() for node in door.admitted(before.roster).values()]
        names = {name: nodes[name].name for name in before.roster}
        last = last_ranks(before.roster, names, {name: node.name for name, node in nodes.ready.items()})
        members = line_up(ready, size, last=last, infra=self.rules.infra_ranks)
        number = self._authority.next_generation(self.term.number)
        self._formed += 1
        recovery.charged = recovery.restarts
        roster = assign(members, generation=number, restart_count=recovery.restarts, fresh=recovery.fresh)
        recovery.fresh = False
        door.last_call = door.pend = None
        nodes.waiting = set(roster)
        door.gate.withdraw(roster, now)
        self._calibration.regroup(roster)
        self._current = Generation(self.rules, number, roster, before=before)
        self._current.run()
        self.phase = Phase.RUNNING
        self._succession.form({name: nodes[name].join for name in roster}, number, now)
        self._out.add(Remember(self.memory()))
        for name in roster:
            node = nodes[name]
            node.sent = number
            del nodes.ready[name]
            self._start(name, node, now)
        self._out.publish(
            GenerationFormed(
                generation=number,
                nodes=tuple(member.name for member in members),
                ranks=self._current.world_size,
                spares=len(nodes.ready),
                restarts=recovery.restarts,
                restore_step=self._snapshots.newest_step,
            )
        )

    def _failed(self, failures: tuple[Failure, ...]) -> None:
        self._current.fail(failures)
        if self.phase is Phase.RUNNING and failures:
            self._stop(facts_of(failures[0]))

    def _plan(self, why: ChangeReason, now: float) -> None:
        """The generation is to end, and nobody has failed: first let all ranks save, if it runs and they can."""
        if not self.rules.planned_change_timeout or self.phase not in (Phase.RUNNING, Phase.GATHERING):
            self._depart(why)
            return
        if self.phase is Phase.GATHERING:
            return  # it is planned when all are here: whoever wants it says so then
        self._admissions.last_call = None
        current = self._current
        durable = belongs_on_disk(self.rules, (self._nodes[name] for name in current.roster))
        if halt := current.change.plan(why, current.unfinished, durable=durable, now=now):
            self._tell_all(halt)

    def _halted(self, name: str, halted: Halted, now: float) -> None:
        """A member's ranks are about to halt, or have; perhaps for a change that a coordinator before us planned."""
        change = self._current.change
        if not change.planned:
            self._plan(InheritedChange(), now)
        named = change.named
        if halt := change.hear(name, halted):
            self._tell_all(halt)
            if not named and change.able:
                self._out.publish(PlannedChange(generation=self.generation, changes=change.why))

    def _tell_all(self, message: FromCoordinator) -> None:
        for name, _ in self._nodes.here(self._current.roster):
            self._out.send(name, message)

    def _tell_elsewhere(self, text: str) -> None:
        """Say it in the logs of nodes that do not have ours."""
        for name, _ in self._nodes.here():
            if name != self.term.by:
                self._out.send(name, Notice(text[:LONGEST_REASON]))

    def _depart(self, why: EndReason) -> None:
        """The generation ends, and not because a worker failed: whatever fails now fails because of that."""
        if not self._current.depart(why):
            return
        if self.phase is Phase.RUNNING:
            self._stop(why)
        elif self.phase is Phase.STOPPING:
            self._out.publish(GenerationEnding(generation=self.generation, reason=why, also=True))

    def _stop(self, why: EndReason) -> None:
        self.phase = Phase.STOPPING
        self._admissions.last_call = None
        self._out.publish(GenerationEnding(generation=self.generation, reason=why))
        self._out.add(Remember(self.memory()))
        for name, node in self._nodes.here(self._current.roster):
            self._out.send(name, Stop(self.generation, self.term.number, graceful=node.leaving))

    def _end(self, success: bool, ending: Ending, reason: str, now: float) -> None:
        """The job is over, unless it is already."""
        if self.phase is Phase.OVER:
            return
        self.phase = Phase.OVER
        failures = () if success else shortened(self._current.failures)
        self._out.publish(
            JobOver(
                generation=self.generation,
                success=success,
                ending=ending,
                reason=reason,
                seconds=now - self._began,
                generations=self._formed,
                restarts=self.restarts,
                failure=facts_of(failures[0]) if failures and ending is Ending.FAILED else None,
            )
        )
        tried = () if success else tuple(self._recovery.budget.tried)
        shown = self.rules.check_only or not (success or self._formed)
        table = self._admissions.gate.table if shown else ""
        self.outcome = Over(success, reason, failures, term=self.term.number, tried=tried, table=table)
        self._out.add(Remember(self.memory()))
        for name, _ in self._nodes.here():
            self._out.send(name, self.outcome)

    # -- checks of nodes

    def _let_in(self, now: float, *, at_once: bool = False) -> None:
        """Form a generation of those that may be let in; unless `at_once`, a check of others is waited for."""
        gate = self._admissions.gate
        if gate.busy and not at_once:
            return
        size = self._admissions.world(len(self._admitted(now, check=not at_once)))
        if size and (at_once or not gate.busy):
            self._form(size, now)

    def _admitted(self, now: float, *, check: bool = True) -> Mapping[str, Member]:
        """Those of the ready nodes that may be let in; the others are checked, if no check is under way."""
        admitted = self._admissions.admitted(self._current.roster)
        if check and self._admissions.begin_check(admitted, self.generation, self.term.number):
            self._examine(now)
        return admitted

    def _examine(self, now: float) -> None:
        """Go on with the check that is under way, and do what it comes to."""
        self._admissions.probe(now)
        result = self._admissions.conclude(self.generation, now)
        if result is None:
            return
        ready = self._nodes.ready
        if self.rules.check_only:
            passed = all(row.standing is Fitness.GOOD for row in result.rows.values())
            self._end(passed, Ending.CHECKED, summary(result), now)
            return
        if line := notice(result, ready, self._host()):
            enough = self._admissions.world(len(ready))
            self._tell_elsewhere(line if enough else f"{line}; waiting for at least {self.rules.min_nodes}")
        if not (self._formed or ready) and result.of(Fitness.FAULTY):
            self._end(False, Ending.UNFIT, f"no node is fit: {summary(result)}", now)

    def _host(self) -> str:
        """The name of the node in whose log ours is."""
        return self._nodes[self.term.by].name if self.term.by in self._nodes else ""


def _names(nodes: Iterable[Member]) -> tuple[str, ...]:
    return tuple(node.name for node in nodes)
