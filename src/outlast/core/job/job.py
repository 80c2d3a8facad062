"""The job: which generation runs, on which nodes, and when there is a new one.

One state machine. Events go in with the time, commands come out, and every change of course leaves a note
that says why. The rules, in the order in which they are applied:

- RUNNING: a worker that failed, a member that was lost or leaves, or nodes that wait to join end the generation.
  Where that can wait for a moment, all ranks save first (core/job/planned_change.py).
- STOPPING: nobody goes on until no worker of the old generation can be alive any more. Only then is it known
  why it ended: a worker that failed because another node was lost is that node's victim, and costs no restart.
- FORMING: with MAX nodes at once, with MIN after a last call; below MIN it waits, and gives up at last.
- GATHERING: a coordinator that comes to a running job, or has heard of another one, decides nothing before more than
  half of the newest generation are with it. If all of them come, nobody is restarted.

Work per event is constant but for the forming and stopping of a generation, which are linear in its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from msgspec.structs import replace

from outlast.core.data_shards.dealer import Dealer
from outlast.core.hangs.calibration import CalibrationRounds
from outlast.core.hangs.inquiry import Inquiry
from outlast.core.job.commands import Command, Cordon, Drop, Note, NoteKind, Raise, Remember, Reply, Send
from outlast.core.job.inputs import Asked, Event, Found, Joined, Lost, Queried, Reported, Saw, Straggled
from outlast.core.job.planned_change import Change, belongs_on_disk
from outlast.core.job.snapshots import Snapshots
from outlast.core.membership.admission import refusal, unanswerable
from outlast.core.membership.attendance import Attendance
from outlast.core.membership.liveness import BEATS, ORPHANS, lease_of
from outlast.core.membership.member import Member, is_news
from outlast.core.membership.roster import assign, last_ranks, line_up, world_of
from outlast.core.node_checks.checks import Fitness
from outlast.core.node_checks.gate import Gate
from outlast.core.node_checks.table import notice, summary
from outlast.core.phrases import NAMES_SHOWN, count, listed
from outlast.core.recovery.budget import Budget
from outlast.core.recovery.evictions import Evictions
from outlast.core.recovery.failures import by_whom, diagnosed, merged, root_first, shortened, what
from outlast.core.succession.authority import Authority, Memory
from outlast.core.succession.gathering import Gathering, Powerless
from outlast.core.tick import Tick
from outlast.diagnosis.culprit import HangVerdict
from outlast.diagnosis.observation import Observation
from outlast.protocol.failures import FailoverStrategy, Failure, Ledger
from outlast.protocol.fields import LONGEST_REASON
from outlast.protocol.generations import Assignment, Halted, Start, Stop
from outlast.protocol.hangs import Agreed
from outlast.protocol.membership import Ack, Join, Leaving, Notice, Over, Refuse, Report, State, Wanted, Welcome, Wish
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.requests import Answer, Ask
from outlast.protocol.rules import Rules
from outlast.protocol.snapshots import Stride
from outlast.protocol.succession import Charter, Standing, Successor, Term

FIRST_NODE = 30.0  # seconds in which the first node has to come
BRIEF = 200  # characters of why a node is left out
FIRST = Term(1)
SUCCESSORS = 8  # nodes that know that they may have to host the coordinator


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
        self.term = term
        self.run = run
        self.phase = Phase.FORMING
        self.generation = 0
        self.restarts = 0
        self._charged = 0  # of them, before the newest generation was formed
        self.outcome: Over | None = None
        self.idle = False  # the last event changed nothing that decisions depend on
        self._began = now
        self._formed = 0  # how many generations there were
        self._closed = 0  # the newest one whose end has been judged
        self._authority = Authority(rules, now)
        self._successors: tuple[Successor, ...] = ()
        self._before: tuple[Successor, ...] = ()  # those of the generation before, which has a say until it is settled
        self._nodes = Attendance()
        self._roster: dict[str, Assignment] = {}
        self._gathering = Gathering()
        self._free: float | None = None  # until then workers may be alive that only another coordinator knows of
        self._powerless = Powerless(rules)
        self._unfinished: set[str] = set()  # members whose workers have not all exited with 0
        self._failures: list[Failure] = []  # of this generation
        self._departed: list[str] = []  # why this generation ends, other than by a worker's failure
        self._hearsay = False  # nobody here knows why this generation was stopped, if it was: the nodes do not
        self._excluded: dict[str, str] = {}  # places that are not used again, and why
        self._budget = Budget(rules)
        self._evictions = Evictions(rules)
        self._gate = Gate(rules)
        self._fresh = False  # the next generation uses nothing that is kept between restarts
        self._calibration = CalibrationRounds(rules.safety_factor)
        self._change = Change(rules)  # that is planned, in this generation
        self._dealer = Dealer()  # of shards, to whoever asks for them
        self._inquiry = Inquiry(0)  # about ranks that are late, in this generation
        self._snapshots = Snapshots()  # in the memory of the nodes
        self._last_call: float | None = None
        self._pend: float | None = None
        self._empty: float | None = now + max(rules.empty_timeout, FIRST_NODE)
        self._out: list[Command] = []
        if memory is not None:
            self._recall(memory, now)
        if charter is not None and self._authority.is_news(charter):
            self._regather(FIRST, charter, now)
            self.term = term
        if term.number > FIRST.number and self.phase is Phase.FORMING:
            self._free = now + rules.node_timeout  # nobody has told yet what the life before this one has started

    def _recall(self, memory: Memory, now: float) -> None:
        """Go on where a coordinator was killed. Whoever is connected will say so."""
        self.run, self.restarts, self.outcome = memory.run, memory.restarts, memory.outcome
        self._formed, self._closed, self._charged = memory.formed, memory.closed, memory.charged
        self._failures, self._departed = list(memory.failures), list(memory.departed)
        self._hearsay = memory.hearsay
        self._budget = Budget(self.rules, memory.ledger.tried)
        self._evictions = Evictions(self.rules, memory.ledger.bans)
        self._evictions.settle(now)
        self._authority = Authority(self.rules, now, memory.electorates)
        self._successors, self._before, self._excluded = memory.successors, memory.before, dict(memory.excluded)
        self._gathering = Gathering(memory.roster, memory.names)
        if memory.electorates:
            self.generation = memory.electorates[0].generation
            self.phase = Phase.GATHERING
            self._authority.renew(now)
        if memory.outcome is not None:
            self.phase = Phase.OVER

    def memory(self) -> Memory:
        """What this coordinator would need if it were killed now."""
        return Memory(
            run=self.run,
            term=self.term.number,
            restarts=self.restarts,
            charged=self._charged,
            formed=self._formed,
            closed=self._closed,
            roster={**self._gathering.places, **self._roster},
            names={**self._gathering.names, **{name: self._nodes[name].name for name in self._roster}},
            electorates=tuple(self._authority.electorates),
            successors=self._successors,
            before=self._before,
            failures=tuple(self._failures),
            departed=tuple(self._departed),
            hearsay=self._hearsay if self.phase is Phase.GATHERING else self.phase is Phase.RUNNING,
            outcome=self.outcome,
            excluded=dict(self._excluded),
            ledger=Ledger(tuple(self._budget.tried), dict(self._evictions.bans)),
        )

    @property
    def answers(self) -> str:
        """What the authority answered during the last event, for its replay; nothing where it was always yes."""
        given = self._authority.answers
        return "" if all(given) else "".join("01"[answer] for answer in given)

    def foretell(self, answers: str) -> None:
        """In a replay: what the authority is going to answer during the next event."""
        self._authority.foretold = [answer == "1" for answer in answers] or [True]

    def standing(self, now: float) -> Standing:
        """What this coordinator says to anybody who knocks."""
        return Standing(self.term, self._authority.acts(now), self.rules.job)

    @property
    def roster(self) -> dict[str, Assignment]:
        """The members of the newest generation, with their ranks."""
        return dict(self._roster)

    @property
    def spares(self) -> int:
        """How many nodes are here and ready without a place in the running generation."""
        return len(self._nodes.ready)

    def deadline(self) -> float | None:
        """When `Tick` is due, if nothing else happens before."""
        if self.phase is Phase.OVER:
            return None
        times: list[float | None]
        if self._powerless:
            times = [self._powerless.deadline(), self._empty]
        elif self.phase is Phase.STOPPING:
            times = [self._free, *self._nodes.ghosts.values()]
        elif self.phase is Phase.FORMING:
            last_call = None if self._gate.busy else self._last_call  # a check is waited for, however long it takes
            times = [self._free, last_call, self._pend, self._empty, self._evictions.deadline()]
            times += self._nodes.ghosts.values()
        elif self.phase is Phase.GATHERING:
            times = [self._free, self._empty]
        else:
            times = [self._last_call, self._pend, self._empty, self._evictions.deadline()]
            times += [self._inquiry.deadline(), self._change.deadline()]
        if not self._powerless:
            times.append(self._gate.deadline())
        return min((t for t in times if t is not None), default=None)

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event in; what comes out is to be done in this order."""
        self._out = []
        self.idle = False
        self._authority.answers.clear()
        if isinstance(event, Reported):
            self._reported(event.node, event.report, now)
        elif isinstance(event, Joined):
            self._joined(event.join, now)
        elif isinstance(event, Saw):
            self.idle = not self._inquiry.take(event.node, event.seen)
        elif isinstance(event, Queried):
            self._dealer.ask(event.node, event.query)
            self.idle = True
        elif isinstance(event, Straggled):
            self._straggled(event, now)
        elif isinstance(event, Found):
            self.idle = not self._gate.take(event.node, event.findings, now)
        elif isinstance(event, Lost):
            self._lost(event, now)
        elif isinstance(event, Asked):
            self._asked(event.ask, now)
        if isinstance(event, Tick | Saw | Found) and not self.idle:
            self._settle(now)
        self._dealer.hurry(self._change.planned)
        if self._dealer.waits and self.phase is Phase.RUNNING and self._authority.leads(now):
            world = next(iter(self._roster.values())).world_size
            self._out += [Send(node, told) for node, told in self._dealer.answers(self.generation, world)]
        return self._out

    # -- events

    def _joined(self, join: Join, now: float) -> None:
        run = self.run if self.generation else None
        excluded = "" if join.node in self._nodes else self._excluded.get(join.place, "")
        if why := refusal(self.rules, join, run=run, excluded=excluded):
            self._note(f"refused node {join.name}: {why}", NoteKind.NODE)
            self._send(join.node, Refuse(why))
            self._out.append(Drop(join.node))
            return
        if self._nodes.is_of_the_past(join):
            self._out.append(Drop(join.node))
            return
        node = self._nodes.get(join.node)
        if self.outcome is not None and self._is_overtaken(join, node):
            if not self.outcome.success:
                self._out.append(Drop(join.node))  # others went on without this coordinator: its end is not theirs
                return
            self.term = self._above(join.term)  # what is done is done, whoever it has obeyed since
        if node is not None and join.connection <= node.join.connection:
            # The agent left this connection before it made the one that this has just replaced, and its end will
            # not mean that the agent has ended. It must come back on a third.
            self._out.append(Drop(join.node))
            self._lost(Lost(join.node, "an old connection of it came late", now + self.rules.node_timeout), now)
            return
        node = self._nodes.come(join)
        self._empty = None
        if join.key:
            self._supersede(join, now)
        self._learn(join, node, now)
        self._dealer.hear(join.node, join.hands)
        r = self.rules
        self._send(join.node, Welcome(r.node_timeout / BEATS, lease_of(r), r.restart_grace, self._successors))
        self._reported(join.node, join.report, now, again=True)
        if self._snapshots.stride > 1:
            self._send(join.node, Stride(self._snapshots.stride))  # it may have missed that
        self._bind(now)
        if self.phase is Phase.RUNNING and join.node in self._nodes.ready and self._last_call is None:
            self._note(f"node {join.name} waits as a spare", NoteKind.NODE)

    def _supersede(self, join: Join, now: float) -> None:
        """A place is held by one agent at a time: whoever held it before has ended, however its connection looks."""
        before = self._nodes.hold(join)
        if before is None:
            return
        node = self._nodes[before]
        if node.connected:
            self._out.append(Drop(before))
            self._lost(Lost(before, "a new life of it has come", now + ORPHANS, ended=True), now)
            return
        if self._authority.acts(now):
            self._authority.ended(before)
        if node.until is not None:
            node.until = min(node.until, now + ORPHANS)
            self._place(before, node)

    def _learn(self, join: Join, node: Member, now: float) -> None:
        """What a node knows of terms and generations that this coordinator may have missed."""
        charter = join.charter
        if self.phase is not Phase.OVER:
            if charter is not None and self._authority.is_news(charter):
                self._regather(join.term, charter, now)
            elif self._is_overtaken(join, node):
                self._regather(join.term, None, now)
            elif charter is not None:
                self._authority.compare(charter)
        self._authority.came(join.node, charter)
        if self.phase is Phase.GATHERING:
            self._take_back(join)

    def _is_overtaken(self, join: Join, node: Member | None) -> bool:
        """Whether the node has obeyed a term that is as new as this coordinator's, and not this coordinator's.

        The same number can be another's, also of the same agent's: of a life whose journal was lost.
        """
        told = node.told if node is not None and join.term.by == self.term.by else 0
        return join.term.number >= self.term.number and join.term.number > told

    def _above(self, term: Term) -> Term:
        return Term(max(self.term.number, term.number) + 1, self.term.by)

    def _regather(self, term: Term, charter: Charter | None, now: float) -> None:
        """Somebody else has coordinated, or tried to: begin a new term, and take the newest generation from them."""
        self.term = self._above(term)
        self._gate.abandon()
        self._authority.renew(now)
        if charter is not None:
            self.run, self.generation = charter.run, charter.ballots[0].generation
            self.restarts = self._charged = charter.restarts
            self._authority.adopt(charter)
            self._successors, self._before = charter.successors, charter.before
            self._excluded |= charter.excluded
            if charter.ledger is not None:
                self._budget.hear(charter.ledger.tried)
                self._evictions.hear(charter.ledger.bans, now)
                self._let_back(now)
            self._roster = {}
            self._gathering = Gathering(names={s.node: s.name for s in charter.successors})
            self._failures, self._departed, self._hearsay = [], [], True
        if self._authority.newest is not None and self.phase is not Phase.OVER:
            self.phase = Phase.GATHERING
            self._gathering.renew()
            self._free = self._last_call = None
            for name in [name for name in self._roster if not self._nodes[name].connected]:
                self._misses(name)
            for node in self._nodes.values():
                if node.connected and charter is not None:
                    self._authority.came(node.join.node, node.join.charter)
                    self._take_back(node.join)

    def _misses(self, name: str) -> None:
        """A member is not here, and may come back."""
        self._gathering.misses(name, self._nodes[name].name, self._roster.pop(name))

    def _take_back(self, join: Join) -> None:
        """A member of the generation that is being gathered has come."""
        place = self._gathering.take_back(join, self.generation)
        if place is not None:
            self._roster[join.node] = place
            self._nodes[join.node].sent = max(self._nodes[join.node].sent, self.generation)

    def _bind(self, now: float) -> None:
        """Once those who are here are enough, ask all of them for their promise."""
        if self._gathering.bound or self.phase is not Phase.GATHERING or not self._authority.could_act(now):
            return
        self._gathering.bound = True
        for name, node in self._nodes.here():
            self._ack(name, node, now)

    def _ack(self, name: str, node: Member, now: float) -> None:
        """Answer a node's newest report, with a lease if this coordinator may act, and not at all if it never could."""
        leased = self._authority.acts(now)
        if leased or self._authority.could_act(now):
            node.acked(node.report.seq, now)
            self._send(name, Ack(node.report.seq, self.term.number, leased))

    def _charter(self, name: str, now: float) -> Charter:
        before = () if self._authority.settled else self._before
        succeeds = any(name == successor.node for successor in (*self._successors, *before))
        return Charter(
            run=self.run,
            rules=self.rules,
            ballots=tuple(e.ballot(name) for e in self._authority.electorates),
            successors=self._successors,
            restarts=self._charged,
            excluded=dict(self._excluded),
            members=self._authority.electors(len(self._successors)) if succeeds else (),
            ledger=Ledger(self._budget.tell(), self._evictions.tell(now)) if succeeds else None,
            before=before,
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
            if ends and name in self._roster and self.phase is Phase.RUNNING:
                self._depart(f"the workers of node {node.name} were told to stop")  # by another coordinator, long ago
        if again or changed or busy:
            self._settle(now)
        if late and (self.phase is not Phase.RUNNING or name not in self._roster):
            self._ack(name, node, now)
        if again or not changed or node.leaving:
            self._remind(name, node, now)
        decisive = again or changed or news or busy or self._is_busy
        self.idle = not decisive and all(_is_ack(command) for command in self._out)

    @property
    def _is_busy(self) -> bool:
        """Whether even a heartbeat may change what is decided, for it may bring the authority to do so."""
        return bool(self._powerless) or self.phase is Phase.GATHERING or not self._authority.settled

    def _remind(self, name: str, node: Member, now: float) -> None:
        """Say again what the node does not seem to have heard."""
        report = node.report
        member = self.phase is Phase.RUNNING and name in self._roster
        if self.outcome is not None:
            self._send(name, replace(self.outcome, term=self.term.number))
        elif not self._authority.acts(now) or self.phase is Phase.GATHERING:
            return
        elif not member and not node.clear:
            self._send(name, Stop(node.sent, self.term.number, graceful=node.leaving))
        elif node.leaving and node.clear:
            excluded = self._excluded.get(node.place)
            drained = f"node {node.name} is not used again: {excluded}" if excluded else f"node {node.name} was drained"
            self._send(name, Over(False, drained, left=True, term=self.term.number))
        elif member and report.generation < self.generation and report.floor < self.generation:
            self._start(name, node, now)
        elif member and (halt := self._change.lacks(report.halted)) is not None:
            self._send(name, halt)
        elif report.known != self._authority.known:
            self._send(name, self._charter(name, now))
        elif member and (lacking := self._calibration.lacks(report)) is not None:
            self._send(name, lacking)
        elif (probe := self._gate.owed(name, self._nodes)) is not None:
            self._send(name, probe)

    def _start(self, name: str, node: Member, now: float) -> None:
        node.acked(node.report.seq, now)
        keeping = self._snapshots.keeping(name, self.generation, self._roster, self._nodes)
        charter = self._charter(name, now)
        self._send(name, Start(self._roster[name], self.term.number, charter, node.report.seq, keeping))

    def _digest(self, name: str, node: Member, now: float) -> None:
        """Take a changed report to heart."""
        report = node.report
        if report.leaving is Leaving.INTERRUPT:
            self._end(False, f"interrupted on node {node.name}", now)
        if report.wish is not None:
            self._grant(name, node, report.wish, now)
        if self.phase is Phase.OVER:
            return
        self._place(name, node)
        if name not in self._roster:
            return
        leaves = report.leaving is Leaving.DRAIN and node.place not in self._excluded
        if leaves and name in self._unfinished and self.phase is not Phase.STOPPING:
            # Its workers run on until they are told to stop: what failed before is not a consequence.
            alone = self.rules.max_nodes == 1
            self._plan("the job was told to stop" if alone else f"node {node.name} is draining", now)
        if report.generation != self.generation:
            return
        if self.phase is Phase.RUNNING:
            self._calibrate(name, node)
            if self._snapshots.keeps_up(name, report.stride, self._roster):
                for each in self._roster:
                    self._send(each, Stride(self._snapshots.stride))
            if report.overdue is not None:
                self._inquiry.hear(name, report.overdue)
            if report.halted is not None:
                self._halted(name, report.halted, now)
        if report.state is State.CUT_OFF:
            self._depart(f"node {node.name} was cut off and stopped its workers")
        elif report.state is State.FAILED:
            self._failed(node.aligned(report.failures))
        elif report.state is State.FINISHED:
            self._unfinished.discard(name)
            self._change.finished(name)

    def _grant(self, name: str, node: Member, wish: Wish, now: float) -> None:
        """Do what a rank asks for. Its node says it again and again, perhaps to a coordinator that comes after us."""
        who = f"rank {wish.rank} on node {node.name}"
        running = self.phase in (Phase.RUNNING, Phase.GATHERING) and wish.generation == self.generation
        if wish.wanted is Wanted.STOP:
            self._end(False, f"{wish.reason} (stop, asked for by {who})", now)
        elif wish.wanted is Wanted.EXCLUDE_NODE:
            self._excluded.setdefault(node.place, f"{wish.reason} (exclude_node, asked for by {who})")
            if name in self._roster and name in self._unfinished:
                self._depart(f"{who} excludes its node: {wish.reason}")
        elif running and name in self._roster and name in self._unfinished:
            # One that ends already, because a rank has failed, does not become free of charge.
            self._depart(f"{who} asked for a restart: {wish.reason}")

    def _calibrate(self, name: str, node: Member) -> None:
        news = self._calibration.told(name, node.report.measures, self._roster)
        if isinstance(news, Agreed) and (summary := self._calibration.summary()):
            self._note(summary, NoteKind.CALIBRATION)
        if news is not None:
            self._tell_all(news)

    def _inquire(self, now: float) -> None:
        """Ranks are late: ask where all of them are, and name the one that the others wait for."""
        inquiry = self._inquiry
        if inquiry.is_over(now) and (finding := inquiry.conclude()) is not None:
            verdict = finding.verdict
            self._note(f"generation {self.generation}: {verdict.sentence}", NoteKind.HANG, verdict)
            if finding.named is not None:
                self._tell_all(finding.named)
        if inquiry.is_wanted(now):
            members = self._nodes.here(self._roster)
            asked = {name: self._unseen(name, node) for name, node in members if not node.clear}
            look = inquiry.begin(asked, now)
            for name in asked:
                self._send(name, look)

    def _unseen(self, name: str, node: Member) -> Observation:
        """What is known of the ranks of a member that says nothing."""
        first = self._roster[name].first_rank
        return Observation(rank=first, node=node.name, also=tuple(range(first + 1, first + node.join.nproc)))

    def _place(self, name: str, node: Member) -> None:
        usable = not self._evictions.is_out(node.place) and not self._gate.is_aside(name)
        self._nodes.place(name, usable=usable)

    def _lost(self, event: Lost, now: float) -> None:
        node = self._nodes.get(event.node)
        if node is None or not node.connected:
            return
        self._nodes.go(event.node, event.until)
        self._snapshots.forget(event.node)
        if event.ended and self._authority.acts(now):
            self._authority.ended(event.node)  # by one that acts alone: two that leave out others could both act
        else:
            self._authority.went(event.node)
        if self.phase is Phase.OVER:
            return
        self._place(event.node, node)
        for name in self._gate.lose(event.node, now):
            self._place(name, self._nodes[name])
        if not self._nodes.connected:
            self._empty = now if node.leaving else now + self.rules.empty_timeout
        why = f"node {node.name} left" if node.leaving else f"node {node.name} was lost: {event.why}"
        if self.phase is Phase.GATHERING:
            self._gathering.bound = self._gathering.bound and self._authority.could_act(now)
            if not event.ended and event.node in self._roster:
                self._misses(event.node)
        active = self.phase in (Phase.STOPPING, Phase.GATHERING) or (
            self.phase is Phase.RUNNING and event.node in self._unfinished
        )
        if event.node in self._roster and active:
            self._depart(why)
        else:
            self._note(why, NoteKind.NODE)
        self._settle(now)

    def _asked(self, ask: Ask, now: float) -> None:
        if why := unanswerable(self.rules, ask):
            answer = Answer(False, why)
        elif self.phase is not Phase.RUNNING:
            answer = Answer(False, f"nothing to restart: the job is {self.phase.value}")
        else:
            answer = Answer(True, f"job {self.rules.job}: generation {self.generation} ends, and starts anew")
            self._plan(f"a restart was asked for by {ask.who}", now)
            self._settle(now)
        self._out.append(Reply(answer))

    # -- rules

    def _settle(self, now: float) -> None:
        """Apply the rules until nothing changes."""
        if self.phase is Phase.OVER or not self._may_decide(now):
            return
        if self._free is not None and now >= self._free:
            self._free = None
        if (back := self._evictions.deadline()) is not None and now >= back:
            self._let_back(now)
        for name in self._nodes.laid(now):
            self._place(name, self._nodes[name])
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
        if self._authority.acts(now):
            self._powerless.end()
            return True
        if self._is_deserted(now):
            return False
        here = len(self._roster if self.phase is Phase.GATHERING else self._nodes.here(self._roster))
        newest = self._authority.newest
        size = newest.size if newest is not None else 0
        lacking = f"only {here} of the {size} nodes of generation {self.generation} are here"
        todo = self._powerless.wait(now)
        if here == size:
            if (
                todo
            ):  # all members are connected, and say nothing: the only one is waited for, however long it is stopped
                self._powerless.begin(now)
        elif todo == "say" and self._nodes.connected:
            others = "and the others may go on without them: nothing is decided before more come"
            self._note(f"{lacking}, {others}", NoteKind.WAIT)
        elif todo == "give up":
            self._end(False, f"{lacking}, for {self.rules.pend_timeout:g} s (pend_timeout)", now)
        return False

    def _is_deserted(self, now: float) -> bool:
        """Whether nobody has been here for too long: then the job is over."""
        if self._empty is None or now < self._empty:
            return False
        stopped = self.rules.max_nodes == 1 and any(node.leaving for node in self._nodes.values())
        self._end(False, "it was told to stop" if stopped else "no node is left", now)
        return True

    def _while_gathering(self, now: float) -> None:
        newest = self._authority.newest
        assert newest is not None
        if self._is_deserted(now):
            return
        if not self._gathering.took_over:
            self._take_over(now)
        missing = newest.size - len(self._roster)
        if missing and self._free is not None:
            return
        absent = self._gathering.close()
        if self._closed == self.generation:
            self.phase = Phase.FORMING
            return
        self._begin()
        departed, self._departed = self._departed, []
        for why in departed:
            self._depart(why)
        if missing:
            self._unfinished.add("")  # nobody knows whether those who are missing had finished
            self._depart(f"{count(missing, 'node')} of {newest.size} did not come back{absent}")
        else:
            size = count(newest.size, "node")
            self._note(f"term {self.term.number}: took over generation {self.generation}, {size}", NoteKind.GENERATION)
        stopped = [self._nodes[name] for name in self._roster if self._nodes[name].stopped(self.generation)]
        why = f"the workers of {_names(stopped)} had been stopped"
        if stopped and self._hearsay:
            self._depart(why)
        members = [self._nodes[name] for name in self._roster]
        later = [node for node in members if node.report.generation > self.generation]
        if later:
            # Somebody has judged its end before, and formed another on it that those who count never heard of.
            self._depart(f"{_names(later)} had gone on from it")
        for name in self._roster:
            self._digest(name, self._nodes[name], now)
        if stopped and self.phase is Phase.RUNNING:
            self._depart(why)
        self._hearsay = False

    def _take_over(self, now: float) -> None:
        """From here on no other coordinator acts, so the leases that one gave end within the node time-out."""
        self._gathering.took_over = True
        self._free = now + self.rules.node_timeout
        self._authority.affirm(self.term.number)
        self._out.append(Remember(self.memory()))
        for name, node in self._nodes.here():
            self._ack(name, node, now)
            self._send(name, self._charter(name, now))

    def _while_running(self, now: float) -> None:
        r = self.rules
        self._inquire(now)
        if not self._unfinished:
            self._end(True, "every worker finished", now)
        elif self._change.planned:
            if why := self._change.outcome(now):
                self._depart(why)
        elif self._nodes.ready and len(self._unfinished) == len(self._roster):
            # Nobody has finished yet: more nodes are worth the interruption.
            ready = self._admitted(now)
            size = self._world(len(self._roster) + len(ready))
            if size <= len(self._roster):
                self._last_call = None
            elif size == self._world(r.max_nodes) or self._is_due(now):
                self._plan(f"{_names(ready.values())} joined", now)
        else:
            self._last_call = None

    def _while_stopping(self, now: float) -> None:
        if self._nodes.waiting:
            return
        if not self._unfinished:
            self._end(True, "every worker finished", now)
            return
        if self._free is not None:
            return
        if self._failures and not self._departed:
            if any(failure.pending for failure in self._failures):
                return  # what to do about it is being asked; a node that does not answer is lost in the end
            self._closed = self.generation
            if not self._try_again(now):
                return
        self._closed = self.generation
        self.phase = Phase.FORMING
        size = self._world(len(self._nodes.ready))
        if size and self._authority.settled:
            self._let_in(now, at_once=True)

    def _try_again(self, now: float) -> bool:
        """Workers have failed, and nobody else is to blame: do what the root's strategy says, or end the job."""
        self._failures = root_first(self._failures)
        root, r = self._failures[0], self.rules
        spent = self._budget.spent(self._failures, self.restarts)
        if spent:
            text = self._end(False, spent, now)
        else:
            self.restarts += 1
            did = f"restart {self.restarts} of {r.max_restarts}"
            done = (self._carry_out(root, now) if r.failover else "") + by_whom(root)
            self._budget.note(self._failures, self.generation, f"{did}{done}")
            text = f"{did}: {diagnosed(root) if r.failover else what(root)}{done}"
            self._note(text, NoteKind.RESTART)
        self._out.append(Raise(root.node, root.rank, root.cause.name if root.cause is not None else "unknown", text))
        return not spent

    def _carry_out(self, root: Failure, now: float) -> str:
        """Make the strategy's changes for the next generation. Returns what was done, for people."""
        if root.strategy is FailoverStrategy.GLOBAL:
            self._fresh = True
            return ", everything anew"
        home = self._home(root)
        if home is None:
            return ""
        blamed = root.cause.title if root.cause is not None else "its failure"
        if root.strategy is not FailoverStrategy.NODE:
            blamed = self._budget.blamed(self._failures, self._evictions.probation(home.place, now))
        if not blamed:
            return ""
        self._gate.doubt(home.join.node)
        others = len(self._nodes.ready) - (home.join.node in self._nodes.ready)
        if stays := self._evictions.stays(home.name, others, now):
            return f"; {stays}: {blamed}"
        return f", without node {home.name} for {self._leave_out(home, blamed, now):g} s: {blamed}"

    def _leave_out(self, node: Member, why: str, now: float) -> float:
        """Do not use a node's place for a while. Returns for how long."""
        seconds = self._evictions.leave_out(node.place, why, now)
        self._place(node.join.node, node)
        self._out.append(Cordon(node.name, why, seconds))
        return seconds

    def _home(self, failure: Failure) -> Member | None:
        """The member whose worker failed."""
        for name, place in self._roster.items():
            if place.first_rank <= failure.rank < place.first_rank + self._nodes[name].join.nproc:
                return self._nodes[name]
        return None

    def _let_back(self, now: float) -> None:
        """Places that were left out for a while may be used again, on probation."""
        back, out = self._evictions.settle(now)
        for name, node in self._nodes.items():
            if node.place in back:
                self._gate.doubt(name)
                self._note(f"node {node.name} may be used again, on probation", NoteKind.NODE)
            if node.place in back | out:
                self._place(name, node)

    def _straggled(self, event: Straggled, now: float) -> None:
        """Ranks are slower than the others, or are so no longer: say so, and do what was asked for about it."""
        home = self._nodes.get(event.node)
        if home is None or self.phase is Phase.OVER:
            return
        found, slower = event.straggler, event.straggler.sentence(home.name)
        if not found.lasts:
            told = f"generation {found.generation}: {slower}"
            self._out.append(Note(told, NoteKind.STRAGGLER, found.generation, straggler=replace(event, node=home.name)))
            return
        runs = self.phase is Phase.RUNNING and found.generation == self.generation and event.node in self._unfinished
        goes = self.rules.straggler == "exclude" and runs and not self._evictions.is_out(home.place)
        if not goes or not self._authority.acts(now):
            return
        if stays := self._evictions.stays(home.name, len(self._roster) + len(self._nodes.ready) - 1, now):
            self._note(f"generation {self.generation}: {stays}: {slower}", NoteKind.NODE)
            return
        seconds = self._leave_out(home, slower, now)
        self._plan(f"it goes on without node {home.name} for {seconds:g} s: {slower}", now)
        self._settle(now)

    def _while_forming(self, now: float) -> None:
        size = self._world(len(self._nodes.ready))
        if not size:
            for name in self._gate.lift():
                self._place(name, self._nodes[name])
            size = self._world(len(self._nodes.ready))
        if self._is_deserted(now):
            return
        if not size:
            self._last_call = None
            if self._pend is None:
                self._pend = now + self.rules.pend_timeout
                if any(n.connected and not n.leaving for n in self._nodes.values()):
                    self._note(f"waiting for {self._needed()}", NoteKind.WAIT)
            elif now >= self._pend:
                waited = f"{self.rules.pend_timeout:g} s (pend_timeout)"
                self._end(False, f"waited {waited} for {self._needed()}", now)
        elif not self._authority.settled or self._nodes.waiting or self._free is not None:
            # The last generation is still being told of, or workers of another may be alive.
            self._last_call = self._pend = None
        else:
            self._pend = None
            if size == self._world(self.rules.max_nodes) or self._is_due(now):
                self._let_in(now)

    def _is_due(self, now: float) -> bool:
        """Whether the last call is over; the first question starts it."""
        if self._last_call is None:
            self._last_call = now + self.rules.last_call
        return now >= self._last_call

    def _form(self, size: int, now: float) -> None:
        ready = [node.candidate() for node in self._gate.admitted(self._nodes.ready, self._roster).values()]
        names = {name: self._nodes[name].name for name in self._roster}
        last = last_ranks(self._roster, names, {name: node.name for name, node in self._nodes.ready.items()})
        members = line_up(ready, size, last=last, infra=self.rules.infra_ranks)
        self.generation = self._authority.next_generation(self.term.number)
        self._formed += 1
        self._charged = self.restarts
        self._roster = assign(members, generation=self.generation, restart_count=self.restarts, fresh=self._fresh)
        self._fresh = False
        self._last_call = self._pend = None
        self._nodes.waiting = set(self._roster)
        self._failures, self._departed = [], []
        self._gate.withdraw(self._roster, now)
        self._calibration.regroup(self._roster)
        self._begin()
        head = self.term.by if self.term.by in self._roster else members[0].node
        self._authority.form(self._roster, head, generation=self.generation, term=self.term.number, now=now)
        self._before = self._successors
        self._successors = tuple(
            Successor(j.node, j.name, j.addr, j.port) for j in (self._nodes[m.node].join for m in members) if j.port
        )[:SUCCESSORS]
        self._out.append(Remember(self.memory()))
        for name in self._roster:
            node = self._nodes[name]
            node.sent = self.generation
            del self._nodes.ready[name]
            self._start(name, node, now)
        world = self._roster[members[0].node].world_size
        spare = f", {len(self._nodes.ready)} spare" if self._nodes.ready else ""
        shown = _names(self._nodes[m.node] for m in members)
        size_of_it = f"{count(size, 'node')}, {count(world, 'rank')}{spare}"
        self._note(f"generation {self.generation}: {size_of_it} ({shown})", NoteKind.GENERATION)

    def _begin(self) -> None:
        """The roster's workers run from here on, as far as anybody knows."""
        self._unfinished = set(self._roster)
        self._inquiry = self._inquiry.anew(self.generation)
        self._change = Change(self.rules, self.generation)
        self.phase = Phase.RUNNING

    def _failed(self, failures: tuple[Failure, ...]) -> None:
        self._failures = merged(self._failures, failures)
        if self.phase is Phase.RUNNING and failures:
            self._stop(what(failures[0]))

    def _plan(self, why: str, now: float) -> None:
        """The generation is to end, and nobody has failed: first let all ranks save, if it runs and they can."""
        if not self.rules.planned_change_timeout or self.phase not in (Phase.RUNNING, Phase.GATHERING):
            self._depart(why)
            return
        if self.phase is Phase.GATHERING:
            return  # it is planned when all are here: whoever wants it says so then
        self._last_call = None
        durable = belongs_on_disk(self.rules, (self._nodes[name] for name in self._roster))
        if halt := self._change.plan(why, self._unfinished, durable=durable, now=now):
            self._tell_all(halt)

    def _halted(self, name: str, halted: Halted, now: float) -> None:
        """A member's ranks are about to halt, or have; perhaps for a change that a coordinator before us planned."""
        if not self._change.planned:
            self._plan("a change was planned", now)
        named = self._change.named
        if halt := self._change.hear(name, halted):
            self._tell_all(halt)
            if not named and self._change.able:
                which = f"generation {self.generation}"
                self._note(f"{which}: all ranks save before it ends ({self._change.why})", NoteKind.WAIT)

    def _tell_all(self, message: FromCoordinator) -> None:
        for name, _ in self._nodes.here(self._roster):
            self._send(name, message)

    def _tell_elsewhere(self, text: str) -> None:
        """Say it in the logs of nodes that do not have ours."""
        for name, _ in self._nodes.here():
            if name != self.term.by:
                self._send(name, Notice(text[:LONGEST_REASON]))

    def _depart(self, why: str) -> None:
        """The generation ends, and not because a worker failed: whatever fails now fails because of that."""
        if why in self._departed:
            return
        self._departed.append(why)
        if self.phase is Phase.RUNNING:
            self._stop(why)
        elif self.phase is Phase.STOPPING:
            self._note(why, NoteKind.NODE)

    def _stop(self, why: str) -> None:
        self.phase = Phase.STOPPING
        self._last_call = None
        self._note(f"generation {self.generation} ends: {why}", NoteKind.END)
        self._out.append(Remember(self.memory()))
        for name, node in self._nodes.here(self._roster):
            self._send(name, Stop(self.generation, self.term.number, graceful=node.leaving))

    def _end(self, success: bool, reason: str, now: float) -> str:
        """The job is over, unless it is already. Returns what people are told."""
        if self.phase is Phase.OVER:
            return ""
        r = self.rules
        self.phase = Phase.OVER
        took = f"{now - self._began:.1f} s, {count(self._formed, 'generation')}, {count(self.restarts, 'restart')}"
        text = f"job {'succeeded' if success else 'failed'}: {reason} ({took})"
        self._note(text, NoteKind.JOB)
        failures = () if success else shortened(self._failures)
        tried = () if success else tuple(self._budget.tried)
        table = self._gate.table if r.check_only or not (success or self._formed) else ""
        self.outcome = Over(success, reason, failures, term=self.term.number, tried=tried, table=table)
        self._out.append(Remember(self.memory()))
        for name, _ in self._nodes.here():
            self._send(name, self.outcome)
        return text

    # -- checks of nodes

    def _let_in(self, now: float, *, at_once: bool = False) -> None:
        """Form a generation of those that may be let in; unless `at_once`, a check of others is waited for."""
        if self._gate.busy and not at_once:
            return
        size = self._world(len(self._admitted(now, check=not at_once)))
        if size and (at_once or not self._gate.busy):
            self._form(size, now)

    def _admitted(self, now: float, *, check: bool = True) -> Mapping[str, Member]:
        """Those of the ready nodes that may be let in; the others are checked, if no check is under way."""
        admitted = self._gate.admitted(self._nodes.ready, self._roster)
        if check and len(admitted) < len(self._nodes.ready) and not self._gate.busy:
            new = [name for name in self._nodes.ready if name not in admitted]
            self._note(f"checking {_names(self._nodes[name] for name in new)}", NoteKind.CHECK)
            self._gate.begin(new, self._nodes, list(admitted), self.term.number)
            self._examine(now)
        return admitted

    def _examine(self, now: float) -> None:
        """Go on with the check that is under way, and do what it comes to."""
        for name, probe in self._gate.advance(self._nodes, now):
            self._send(name, probe)
        result = self._gate.conclude(now)
        if result is None:
            return
        for line in () if self.rules.check_only else self._gate.table.splitlines():
            self._note(line, NoteKind.CHECK)
        for sentence in self._gate.judge(result, self._nodes, self._nodes.ready, self._evictions, now):
            node = self._nodes[sentence.node]
            if sentence.stays:
                self._note(f"{sentence.stays}: {sentence.why}", NoteKind.CHECK)
                continue
            if sentence.seconds is not None:
                self._out.append(Cordon(node.name, sentence.why, sentence.seconds))
            self._place(sentence.node, node)
        self._last_call = now  # it took long enough
        if not self.rules.check_only and (line := notice(result, self._nodes.ready, self._host())):
            waits = "" if self._world(len(self._nodes.ready)) else f"; waiting for at least {self.rules.min_nodes}"
            self._tell_elsewhere(f"{line}{waits}")
        if self.rules.check_only:
            self._end(all(row.standing is Fitness.GOOD for row in result.rows.values()), summary(result), now)
        elif not (self._formed or self._nodes.ready) and result.of(Fitness.FAULTY):
            self._end(False, f"no node is fit: {summary(result)}", now)

    # -- small things

    def _world(self, available: int) -> int:
        r = self.rules
        return world_of(available, least=r.min_nodes, most=r.max_nodes, unit=r.node_unit)

    def _host(self) -> str:
        """The name of the node in whose log ours is."""
        return self._nodes[self.term.by].name if self.term.by in self._nodes else ""

    def _needed(self) -> str:
        r = self.rules
        unit = f" (in units of {r.node_unit})" if r.node_unit > 1 else ""
        ready = self._nodes.ready
        here = f": {_names(ready.values())}" if ready else ""
        return f"at least {count(r.min_nodes, 'node')}{unit}; {len(ready)} here{here}{self._to_replace()}"

    def _to_replace(self) -> str:
        """Who is here and left out, and what to do about it."""
        out = [node for _, node in self._nodes.here() if not node.leaving and self._evictions.is_out(node.place)]
        why = {node.name: self._evictions.bans[node.place].reason for node in out[:NAMES_SHOWN]}
        named = [f"{name} ({reason[:BRIEF]})" for name, reason in why.items()]
        if not named:
            return ""
        return f"; left out: {'; '.join(named)}; to replace them, start the same command on other nodes"

    def _send(self, node: str, message: FromCoordinator) -> None:
        if isinstance(message, Ack | Start | Stop | Over) and node in self._nodes:
            self._nodes[node].told = message.term
        self._out.append(Send(node, message))

    def _note(self, text: str, kind: NoteKind, verdict: HangVerdict | None = None) -> None:
        self._out.append(Note(text, kind, self.generation, verdict))


def _is_ack(command: Command) -> bool:
    return isinstance(command, Send) and isinstance(command.message, Ack)


def _names(nodes: Iterable[Member]) -> str:
    return listed([node.name for node in nodes])
