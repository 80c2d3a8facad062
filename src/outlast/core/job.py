"""The job: which generation runs, on which nodes, and when there is a new one.

One state machine. Events go in with the time, commands come out, and every change of course leaves a note
that says why. The rules, in the order in which they are applied:

- RUNNING: a worker that failed, a member that was lost or leaves, or nodes that wait to join end the generation.
  Where that can wait for a moment, all ranks save first (core/changes.py).
- STOPPING: nobody goes on until no worker of the old generation can be alive any more. Only then is it known
  why it ended: a worker that failed because another node was lost is that node's victim, and costs no restart.
- FORMING: with MAX nodes at once, with MIN after a last call; below MIN it waits, and gives up at last.
- GATHERING: a coordinator that comes to a running job, or has heard of another one, decides nothing before more than
  half of the newest generation are with it. If all of them come, nobody is restarted.

Work per event is constant but for the forming and stopping of a generation, which are linear in its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from msgspec.structs import replace

from outlast.core.authority import Authority, Memory
from outlast.core.budget import Budget, root_first
from outlast.core.calibration import Calibration
from outlast.core.changes import Change, belongs_on_disk
from outlast.core.check_table import notice, summary
from outlast.core.checks import Row
from outlast.core.checks import Standing as Fitness
from outlast.core.dealer import Dealer
from outlast.core.events import (
    Asked,
    Command,
    Cordon,
    Drop,
    Event,
    Found,
    Joined,
    Kind,
    Lost,
    Note,
    Queried,
    Raise,
    Remember,
    Reply,
    Reported,
    Saw,
    Send,
    Straggled,
)
from outlast.core.gate import Gate
from outlast.core.inquiry import Inquiry
from outlast.core.liveness import BEATS, ORPHANS, lease_of
from outlast.core.member import Member
from outlast.core.roster import assign, choose, rank, world_of
from outlast.core.snapshots import Snapshots
from outlast.diagnosis.culprit import Verdict
from outlast.diagnosis.observation import Observation
from outlast.messages import (
    LONGEST_REASON,
    MOST_CULPRITS,
    PROTOCOL,
    Ack,
    Agreed,
    Answer,
    Ask,
    Assignment,
    Charter,
    FailoverStrategy,
    Failure,
    FromCoordinator,
    Halted,
    Join,
    Leaving,
    Named,
    Notice,
    Over,
    Refuse,
    Report,
    Rules,
    Seen,
    Standing,
    Start,
    State,
    Stop,
    Stride,
    Successor,
    Term,
    Wanted,
    Welcome,
    Wish,
)

FIRST_NODE = 30.0  # seconds in which the first node has to come
NAMES_SHOWN = 8  # of nodes, in one line
BRIEF = 200  # characters of why a node is left out
SHORT = 2000  # characters of a failure that followed another
FAILURES_KEPT = 16  # of one generation, the first ones
FIRST = Term(1)
SUCCESSORS = 8  # nodes that know that they may have to host the coordinator
ELECTORS = 12_000  # members that are named to each of them: as many as fit into a message


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
        self._nodes: dict[str, Member] = {}
        self._holders: dict[str, str] = {}  # of places: the newest node with each key
        self._connected = 0
        self._ready: dict[str, Member] = {}
        self._roster: dict[str, Assignment] = {}
        self._absent: dict[str, str] = {}  # names of members that have not come to this coordinator yet, where known
        self._places: dict[str, Assignment] = {}  # theirs, where known
        self._bound = False  # those who gather have been asked for their promise
        self._took_over = False  # this coordinator has begun to act in its term
        self._free: float | None = None  # until then workers may be alive that only another coordinator knows of
        self._powerless: float | None = None  # since when this coordinator may not act
        self._said_powerless = False
        self._waiting: set[str] = set()  # nodes whose workers may be alive
        self._ghosts: dict[str, float] = {}  # those of them that cannot be asked, and until when
        self._unfinished: set[str] = set()  # members whose workers have not all exited with 0
        self._failures: list[Failure] = []  # of this generation
        self._departed: list[str] = []  # why this generation ends, other than by a worker's failure
        self._hearsay = False  # nobody here knows why this generation was stopped, if it was: the nodes do not
        self._excluded: dict[str, str] = {}  # places that are not used again, and why
        self._budget = Budget(rules)
        self._left_out: set[str] = set()  # places, for a while
        self._back: float | None = None  # when the next place that is left out for a while may come back
        self._gate = Gate(rules)
        self._fresh = False  # the next generation uses nothing that is kept between restarts
        self._calibration = Calibration()
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
        if charter is not None and self._is_news(charter):
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
        self._budget = Budget(self.rules, memory.ledger)
        self._let_back(now)
        self._authority = Authority(self.rules, now, memory.electorates)
        self._successors, self._excluded = memory.successors, dict(memory.excluded)
        self._places, self._absent = dict(memory.roster), dict(memory.names)
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
            roster={**self._places, **self._roster},
            names={**self._absent, **{name: self._nodes[name].name for name in self._roster}},
            electorates=tuple(self._authority.electorates),
            successors=self._successors,
            failures=tuple(self._failures),
            departed=tuple(self._departed),
            hearsay=self._hearsay if self.phase is Phase.GATHERING else self.phase is Phase.RUNNING,
            outcome=self.outcome,
            excluded=dict(self._excluded),
            ledger=self._budget.ledger(),
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
        return Standing(self.term, self._authority.acts(now))

    @property
    def roster(self) -> dict[str, Assignment]:
        """The members of the newest generation, with their ranks."""
        return dict(self._roster)

    @property
    def spares(self) -> int:
        """How many nodes are here and ready without a place in the running generation."""
        return len(self._ready)

    def deadline(self) -> float | None:
        """When `Tick` is due, if nothing else happens before."""
        if self.phase is Phase.OVER:
            return None
        times: list[float | None]
        if self._powerless is not None:
            patience = self.rules.pend_timeout if self._said_powerless else self.rules.node_timeout
            times = [self._powerless + patience, self._empty]
        elif self.phase is Phase.STOPPING:
            times = [self._free, *self._ghosts.values()]
        elif self.phase is Phase.FORMING:
            last_call = None if self._gate.busy else self._last_call  # a check is waited for, however long it takes
            times = [self._free, last_call, self._pend, self._empty, self._back, *self._ghosts.values()]
        elif self.phase is Phase.GATHERING:
            times = [self._free, self._empty]
        else:
            times = [self._last_call, self._pend, self._empty, self._back]
            times += [self._inquiry.deadline(), self._change.deadline()]
        if self._powerless is None:
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
            self._saw(event.node, event.seen, now)
        elif isinstance(event, Queried):
            self._dealer.ask(event.node, event.query)
            self.idle = True
        elif isinstance(event, Straggled):
            self._straggled(event, now)
        elif isinstance(event, Found):
            self.idle = not self._gate.take(event.node, event.findings, now)
            if not self.idle:
                self._settle(now)
        elif isinstance(event, Lost):
            self._lost(event, now)
        elif isinstance(event, Asked):
            self._asked(event.ask, now)
        else:
            self._settle(now)
        self._dealer.hurry(self._change.planned)
        if self._dealer.waits and self.phase is Phase.RUNNING and self._authority.leads(now):
            world = next(iter(self._roster.values())).world_size
            self._out += [Send(node, told) for node, told in self._dealer.answers(self.generation, world)]
        return self._out

    # -- events

    def _joined(self, join: Join, now: float) -> None:
        refusal = self._refusal(join)
        if refusal:
            self._note(f"refused node {join.name}: {refusal}", Kind.NODE)
            self._send(join.node, Refuse(refusal))
            self._out.append(Drop(join.node))
            return
        if self._is_of_the_past(join):
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
        if node is None:
            node = self._nodes[join.node] = Member(join)
            self._connected += 1
        else:
            self._connected += not node.connected
            node.join, node.connected, node.until = join, True, None
            node.sent = max(node.sent, join.report.generation)
            node.acks.clear()
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
        if self.phase is Phase.RUNNING and join.node in self._ready and self._last_call is None:
            self._note(f"node {join.name} waits as a spare", Kind.NODE)

    def _is_of_the_past(self, join: Join) -> bool:
        """Whether this agent has ended, and only its message is late: a later one has its place, and has come."""
        holder = self._nodes.get(self._holders.get(join.key, "")) if join.key else None
        return holder is not None and holder.join.node != join.node and join.since < holder.join.since

    def _supersede(self, join: Join, now: float) -> None:
        """A place is held by one agent at a time: whoever held it before has ended, however its connection looks."""
        before = self._holders.get(join.key)
        self._holders[join.key] = join.node
        if before is None or before == join.node or before not in self._nodes:
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

    def _refusal(self, join: Join) -> str:
        r = self.rules
        mine = f"{r.min_nodes}:{r.max_nodes}"
        theirs = f"{join.nnodes[0]}:{join.nnodes[1]}"
        if join.protocol != PROTOCOL:
            return (
                f"it speaks protocol {join.protocol}, this coordinator {PROTOCOL}: "
                "install the same version of outlast on all nodes"
            )
        if join.job != r.job:
            return f"this endpoint serves job {r.job!r}, not {join.job!r}: choose another port or the same --rdzv-id"
        if join.entrypoint.rpartition("/")[2] != r.entrypoint.rpartition("/")[2]:  # it may lie elsewhere on that node
            return (
                f"this endpoint serves a job that runs {r.entrypoint!r}, not {join.entrypoint!r}: "
                "another job needs another port"
            )
        if join.charter is not None and self.generation and join.charter.run != self.run:
            return "it took part in an earlier run of this job, and this is another one: start it anew"
        excluded = self._excluded.get(_place_of(join))
        if excluded and join.node not in self._nodes:
            return f"this node is not used again in this job: {excluded}"
        if theirs != mine:
            return f"this job runs with --nnodes={mine}, not {theirs}: start all of its nodes with the same --nnodes"
        return ""

    def _learn(self, join: Join, node: Member, now: float) -> None:
        """What a node knows of terms and generations that this coordinator may have missed."""
        charter, newest = join.charter, self._authority.newest
        if self.phase is not Phase.OVER:
            if charter is not None and self._is_news(charter):
                self._regather(join.term, charter, now)
            elif self._is_overtaken(join, node):
                self._regather(join.term, None, now)
            elif charter is not None and newest is not None and len(charter.ballots) == 1:
                told = charter.ballots[0]
                if not self._authority.settled and (told.generation, told.formed) == (newest.generation, newest.formed):
                    self._authority.forget_older()
        self._authority.came(join.node, charter)
        if self.phase is Phase.GATHERING:
            self._take_back(join)

    def _is_news(self, charter: Charter) -> bool:
        newest = self._authority.newest
        return bool(charter.ballots) and (newest is None or charter.ballots[0].age > newest.age)

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
            self._successors = charter.successors
            self._excluded |= charter.excluded
            if charter.ledger is not None:
                self._budget.hear(charter.ledger, now)
                self._let_back(now)
            self._roster, self._places = {}, {}
            self._absent = {s.node: s.name for s in charter.successors}
            self._failures, self._departed, self._hearsay = [], [], True
        if self._authority.newest is not None and self.phase is not Phase.OVER:
            self.phase = Phase.GATHERING
            self._bound, self._took_over, self._free, self._last_call = False, False, None, None
            for name in [name for name in self._roster if not self._nodes[name].connected]:
                self._misses(name)
            for node in self._nodes.values():
                if node.connected and charter is not None:
                    self._authority.came(node.join.node, node.join.charter)
                    self._take_back(node.join)

    def _misses(self, name: str) -> None:
        """A member is not here, and may come back."""
        self._places[name] = self._roster.pop(name)
        self._absent[name] = self._nodes[name].name

    def _take_back(self, join: Join) -> None:
        """A member of the generation that is being gathered has come."""
        place = join.assignment
        if place is None or place.generation != self.generation:
            place = self._places.get(join.node)
        self._absent.pop(join.node, None)
        if place is not None:
            self._places.pop(join.node, None)
            self._roster[join.node] = place
            self._nodes[join.node].sent = max(self._nodes[join.node].sent, self.generation)

    def _bind(self, now: float) -> None:
        """Once those who are here are enough, ask all of them for their promise."""
        if self._bound or self.phase is not Phase.GATHERING or not self._authority.could_act(now):
            return
        self._bound = True
        for name, node in self._nodes.items():
            if node.connected:
                self._ack(name, node, now)

    def _ack(self, name: str, node: Member, now: float) -> None:
        """Answer a node's newest report, with a lease if this coordinator may act, and not at all if it never could."""
        leased = self._authority.acts(now)
        if leased or self._authority.could_act(now):
            node.acked(node.report.seq, now)
            self._send(name, Ack(node.report.seq, self.term.number, leased))

    def _charter(self, name: str, now: float) -> Charter:
        succeeds = any(name == successor.node for successor in self._successors)
        return Charter(
            run=self.run,
            rules=self.rules,
            ballots=tuple(e.ballot(name) for e in self._authority.electorates),
            successors=self._successors,
            restarts=self._charged,
            excluded=dict(self._excluded),
            members=self._electors() if succeeds else (),
            ledger=self._budget.tell(now) if succeeds else None,
        )

    def _electors(self) -> tuple[str, ...]:
        """Whom a successor must know, beyond the other successors: those that nobody could tell of their votes."""
        newest = self._authority.newest
        if newest is None or newest.size <= len(self._successors) or newest.size > ELECTORS:
            return ()
        return tuple(newest.votes)

    @property
    def _known(self) -> tuple[int, int, int]:
        newest = self._authority.newest
        return (newest.affirmed, newest.generation, len(self._authority.electorates)) if newest else (0, 0, 0)

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
        changed = self._snapshots.told(name, report.held) or _changed(known, report)
        busy = self._is_busy
        repeated = node.repeated(report.acked)
        if repeated is not None:
            self._authority.supported(name, repeated)
        if report.known[:2] == self._known[:2]:
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
        return self._powerless is not None or self.phase is Phase.GATHERING or not self._authority.settled

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
            excluded = self._excluded.get(_place_of(node.join))
            drained = f"node {node.name} is not used again: {excluded}" if excluded else f"node {node.name} was drained"
            self._send(name, Over(False, drained, left=True, term=self.term.number))
        elif member and report.generation < self.generation and report.floor < self.generation:
            self._start(name, node, now)
        elif member and (halt := self._change.lacks(report.halted)) is not None:
            self._send(name, halt)
        elif report.known != self._known:
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
        leaves = report.leaving is Leaving.DRAIN and _place_of(node.join) not in self._excluded
        if leaves and name in self._unfinished and self.phase is not Phase.STOPPING:
            # Its workers run on until they are told to stop: what failed before is not a consequence.
            self._plan(f"node {node.name} is draining", now)
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
            self._excluded.setdefault(_place_of(node.join), f"{wish.reason} (exclude_node, asked for by {who})")
            if name in self._roster and name in self._unfinished:
                self._depart(f"{who} excludes its node: {wish.reason}")
        elif running and name in self._roster and name in self._unfinished:
            # One that ends already, because a rank has failed, does not become free of charge.
            self._depart(f"{who} asked for a restart: {wish.reason}")

    def _calibrate(self, name: str, node: Member) -> None:
        news = self._calibration.told(name, node.report.measures, self._roster)
        if isinstance(news, Agreed) and (summary := self._calibration.summary()):
            self._note(summary, Kind.CALIBRATION)
        if news is not None:
            self._tell_all(news)

    def _saw(self, name: str, seen: Seen, now: float) -> None:
        self.idle = not self._inquiry.take(name, seen)
        if not self.idle:
            self._settle(now)

    def _inquire(self, now: float) -> None:
        """Ranks are late: ask where all of them are, and name the one that the others wait for."""
        inquiry = self._inquiry
        if inquiry.is_over(now) and (finding := inquiry.conclude()) is not None:
            verdict = finding.verdict
            self._note(f"generation {self.generation}: {verdict.sentence}", Kind.HANG, verdict)
            if finding.ending:
                culprits = verdict.culprits[:MOST_CULPRITS] if verdict.certain else ()
                named = Named(self.generation, finding.number, culprits, verdict.sentence[:LONGEST_REASON])
                self._tell_all(named)
        if inquiry.is_wanted(now):
            members = {name: self._nodes[name] for name in self._roster if self._nodes[name].connected}
            asked = {name: self._unseen(name, node) for name, node in members.items() if not node.clear}
            look = inquiry.begin(asked, now)
            for name in asked:
                self._send(name, look)

    def _unseen(self, name: str, node: Member) -> Observation:
        """What is known of the ranks of a member that says nothing."""
        first = self._roster[name].first_rank
        return Observation(rank=first, node=node.name, also=tuple(range(first + 1, first + node.join.nproc)))

    def _place(self, name: str, node: Member) -> None:
        """Keep the sets true: who is ready for the next generation, and whom the old one still waits for."""
        usable = _place_of(node.join) not in self._left_out and not self._gate.is_aside(name)
        if node.connected and node.clear and not node.leaving and usable:
            self._ready[name] = node
        else:
            self._ready.pop(name, None)
        gone = node.clear if node.connected else node.until is None
        (self._waiting.discard if gone else self._waiting.add)(name)
        if node.until is None:
            self._ghosts.pop(name, None)
        else:
            self._ghosts[name] = node.until

    def _lost(self, event: Lost, now: float) -> None:
        node = self._nodes.get(event.node)
        if node is None or not node.connected:
            return
        node.connected = False
        self._snapshots.forget(event.node)
        node.until = None if node.clear else event.until
        self._connected -= 1
        if event.ended and self._authority.acts(now):
            self._authority.ended(event.node)  # by one that acts alone: two that leave out others could both act
        else:
            self._authority.went(event.node)
        if self.phase is Phase.OVER:
            return
        self._place(event.node, node)
        for name in self._gate.lose(event.node, now):
            self._place(name, self._nodes[name])
        if not self._connected:
            self._empty = now if node.leaving else now + self.rules.empty_timeout
        why = f"node {node.name} left" if node.leaving else f"node {node.name} was lost: {event.why}"
        if self.phase is Phase.GATHERING:
            self._bound = self._bound and self._authority.could_act(now)
            if not event.ended and event.node in self._roster:
                self._misses(event.node)
        active = self.phase in (Phase.STOPPING, Phase.GATHERING) or (
            self.phase is Phase.RUNNING and event.node in self._unfinished
        )
        if event.node in self._roster and active:
            self._depart(why)
        else:
            self._note(why, Kind.NODE)
        self._settle(now)

    def _asked(self, ask: Ask, now: float) -> None:
        if ask.job not in ("", self.rules.job):
            answer = Answer(False, f"this endpoint serves job {self.rules.job!r}, not {ask.job!r}")
        elif ask.what != "restart":
            answer = Answer(False, f"nobody here knows how to {ask.what!r}: install the same version of outlast")
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
        if self._back is not None and now >= self._back:
            self._let_back(now)
        for name in [name for name, until in self._ghosts.items() if now >= until]:
            self._nodes[name].until = None
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
            self._powerless = None
            return True
        if self._empty is not None and now >= self._empty:
            self._end(False, "no node is left", now)
            return False
        here = len(self._roster) if self.phase is Phase.GATHERING else self._connected_members()
        newest = self._authority.newest
        size = newest.size if newest is not None else 0
        lacking = f"only {here} of the {size} nodes of generation {self.generation} are here"
        if self._powerless is None:
            self._powerless, self._said_powerless = now, False
        elif not self._said_powerless and now >= self._powerless + self.rules.node_timeout:
            self._said_powerless = True
            if self._connected:
                others = "and the others may go on without them: nothing is decided before more come"
                self._note(f"{lacking}, {others}", Kind.WAIT)
        elif now >= self._powerless + self.rules.pend_timeout:
            self._end(False, f"{lacking}, for {self.rules.pend_timeout:g} s (pend_timeout)", now)
        return False

    def _connected_members(self) -> int:
        return sum(self._nodes[name].connected for name in self._roster)

    def _while_gathering(self, now: float) -> None:
        newest = self._authority.newest
        assert newest is not None
        if self._empty is not None and now >= self._empty:
            self._end(False, "no node is left", now)
            return
        if not self._took_over:
            # From here on no other coordinator acts, so the leases that one gave end within the node time-out.
            self._took_over = True
            self._free = now + self.rules.node_timeout
            self._authority.affirm(self.term.number)
            self._out.append(Remember(self.memory()))
            for name, node in self._nodes.items():
                if node.connected:
                    self._ack(name, node, now)
                    self._send(name, self._charter(name, now))
        missing = newest.size - len(self._roster)
        if missing and self._free is not None:
            return
        absent, self._absent, self._places = self._absent, {}, {}
        if self._closed == self.generation:
            self.phase = Phase.FORMING
            return
        self._unfinished = set(self._roster)
        self._inquiry = self._inquiry.anew(self.generation)
        self._change = Change(self.rules, self.generation)
        self.phase = Phase.RUNNING
        departed, self._departed = self._departed, []
        for why in departed:
            self._depart(why)
        if missing:
            self._unfinished.add("")  # nobody knows whether those who are missing had finished
            named = f" ({', '.join(list(absent.values())[:NAMES_SHOWN])})" if absent else ""
            self._depart(f"{_count(missing, 'node')} of {newest.size} did not come back{named}")
        else:
            size = _count(newest.size, "node")
            self._note(f"term {self.term.number}: took over generation {self.generation}, {size}", Kind.GENERATION)
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

    def _while_running(self, now: float) -> None:
        r = self.rules
        self._inquire(now)
        if not self._unfinished:
            self._end(True, "every worker finished", now)
        elif self._change.planned:
            if why := self._change.outcome(now):
                self._depart(why)
        elif self._ready and len(self._unfinished) == len(self._roster):
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
        if self._waiting:
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
        size = self._world(len(self._ready))
        if size and self._authority.settled:
            self._let_in(now, at_once=True)

    def _try_again(self, now: float) -> bool:
        """Workers have failed, and nobody else is to blame: do what the root's strategy says, or end the job."""
        self._failures = root_first(self._failures)
        root, r = self._failures[0], self.rules
        what, by = _what(root), f" ({root.decided})" if root.decided else ""
        told = root.cause is not None and root.cause.name not in ("unknown", "hang")  # what says no more than `what`
        cause = f": {root.cause.title} ({root.cause.name})" if root.cause is not None and told else ""
        spent = self._budget.spent(self._failures)
        before = len(self._out)
        if r.failover and root.strategy is FailoverStrategy.ABORTION:
            self._end(False, f"{what}{cause}; no restart, for it could not help{by}", now)
        elif self.restarts >= r.max_restarts:
            allowed = r.max_restarts
            tries = f"and {_count(allowed, 'restart')} did not help" if allowed else "and no restart is allowed"
            self._end(False, f"{what}, {tries} (--max-restarts={allowed})", now)
        elif spent:
            self._end(False, f"{what}; {spent}", now)
        else:
            self.restarts += 1
            did = f"restart {self.restarts} of {r.max_restarts}"
            done = self._carry_out(root, now) if r.failover else ""
            self._budget.note(self._failures, self.generation, f"{did}{done}{by}")
            self._note(f"{did}: {what}{cause if r.failover else ''}{done}{by}", Kind.RESTART)
        text = next(command.text for command in self._out[before:] if isinstance(command, Note))
        self._out.append(Raise(root.node, root.rank, root.cause.name if root.cause is not None else "unknown", text))
        return self.phase is not Phase.OVER

    def _carry_out(self, root: Failure, now: float) -> str:
        """Make the strategy's changes for the next generation. Returns what was done, for people."""
        if root.strategy is FailoverStrategy.GLOBAL:
            self._fresh = True
            return ", everything anew"
        home = self._home(root)
        if home is None:
            return ""
        place = _place_of(home.join)
        blamed = root.cause.title if root.cause is not None else "its failure"
        if root.strategy is not FailoverStrategy.NODE:
            blamed = self._budget.blamed(self._failures, place, now)
        if not blamed:
            return ""
        self._gate.doubt(home.join.node)
        stays = self._must_stay(home, len(self._ready) - (home.join.node in self._ready), now)
        if stays:
            return f"; {stays}: {blamed}"
        return f", without node {home.name} for {self._leave_out(home, blamed, now):g} s: {blamed}"

    def _must_stay(self, node: Member, others: int, now: float) -> str:
        """Why a node cannot be left out: the others are not enough, or too many are out; nothing, if it can."""
        if not self._world(others):
            return f"node {node.name} stays, for without it there are fewer than {self.rules.min_nodes}"
        if not self._budget.may_evict(now):
            return f"node {node.name} stays, for enough have gone within an hour (eviction_limit)"
        return ""

    def _leave_out(self, node: Member, why: str, now: float) -> float:
        """Do not use a node's place for a while. Returns for how long."""
        place = _place_of(node.join)
        seconds = self._budget.exclude(place, why, now)
        self._left_out.add(place)
        self._back = self._budget.due(now)
        self._place(node.join.node, node)
        self._out.append(Cordon(node.name, why, seconds))
        return seconds

    def _straggled(self, event: Straggled, now: float) -> None:
        """Ranks are slower than the others, or are so no longer: say so, and do what was asked for about it."""
        home = self._nodes.get(event.node)
        if home is None or self.phase is Phase.OVER:
            return
        found, what = event.straggler, event.straggler.sentence(home.name)
        if not found.lasts:
            told = f"generation {found.generation}: {what}"
            self._out.append(Note(told, Kind.STRAGGLER, found.generation, straggler=replace(event, node=home.name)))
            return
        runs = self.phase is Phase.RUNNING and found.generation == self.generation and event.node in self._unfinished
        goes = self.rules.straggler == "exclude" and runs and _place_of(home.join) not in self._left_out
        if not goes or not self._authority.acts(now):
            return
        if stays := self._must_stay(home, len(self._roster) + len(self._ready) - 1, now):
            self._note(f"generation {self.generation}: {stays}: {what}", Kind.NODE)
            return
        seconds = self._leave_out(home, what, now)
        self._plan(f"it goes on without node {home.name} for {seconds:g} s: {what}", now)
        self._settle(now)

    # -- checks of nodes

    def _let_in(self, now: float, *, at_once: bool = False) -> None:
        """Form a generation of those that may be let in; unless `at_once`, a check of others is waited for."""
        if self._gate.busy and not at_once:
            return
        size = self._world(len(self._admitted(now, check=not at_once)))
        if size and (at_once or not self._gate.busy):
            self._form(size, now)

    def _admitted(self, now: float, *, check: bool = True) -> dict[str, Member]:
        """Those of the ready nodes that may be let in; the others are checked, if no check is under way."""
        if not self.rules.network_check:
            return self._ready
        admitted = {name: node for name, node in self._ready.items() if self._gate.admits(name, self._roster)}
        if check and len(admitted) < len(self._ready) and not self._gate.busy:
            new = [name for name in self._ready if name not in admitted]
            self._note(f"checking {_names(self._nodes[name] for name in new)}", Kind.CHECK)
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
            self._note(line, Kind.CHECK)
        here = {name: row for name, row in result.rows.items() if self._nodes[name].connected}
        for name, row in here.items():
            if row.standing is Fitness.FAULTY:
                self._gate.doubt(name)
                self._leave_out(self._nodes[name], row.why, now)
        self._last_call = now  # it took long enough
        for name, row in here.items():
            if row.standing is Fitness.ASIDE or (row.standing is Fitness.SLOW and self.rules.exclude_straggler):
                self._do_without(self._nodes[name], row, now)
        if not self.rules.check_only and (line := notice(result, self._ready, self._host())):
            waits = "" if self._world(len(self._ready)) else f"; waiting for at least {self.rules.min_nodes}"
            self._tell_elsewhere(f"{line}{waits}")
        if self.rules.check_only:
            self._end(all(row.standing is Fitness.GOOD for row in result.rows.values()), summary(result), now)
        elif not (self._formed or self._ready) and result.of(Fitness.FAULTY):
            self._end(False, f"no node is fit: {summary(result)}", now)

    def _do_without(self, node: Member, row: Row, now: float) -> None:
        """Leave out one that is slow, or works badly with another, as long as there are enough without it."""
        name = node.join.node
        if not self._world(len(self._ready) - (name in self._ready)):
            few = f"without it there are fewer than {self.rules.min_nodes}"
            self._note(f"node {node.name} stays, for {few}: {row.why}", Kind.CHECK)
            self._gate.pass_(name)
        elif row.standing is Fitness.SLOW and not self._budget.may_evict(now):
            self._note(f"node {node.name} stays, for enough have gone within an hour (eviction_limit)", Kind.CHECK)
        elif row.standing is Fitness.SLOW:
            self._leave_out(node, row.why, now)
        else:
            self._gate.set_aside(name, row.instead)
            self._place(name, node)

    def _home(self, failure: Failure) -> Member | None:
        """The member whose worker failed."""
        for name, place in self._roster.items():
            if place.first_rank <= failure.rank < place.first_rank + self._nodes[name].join.nproc:
                return self._nodes[name]
        return None

    def _let_back(self, now: float) -> None:
        """Places that were left out for a while may be used again, on probation."""
        out = {place for place in self._budget.bans if self._budget.is_out(place, now)}
        before, self._left_out = self._left_out, out
        self._back = self._budget.due(now)
        for name, node in self._nodes.items():
            place = _place_of(node.join)
            if place in before - out:
                self._gate.doubt(name)
                self._note(f"node {node.name} may be used again, on probation", Kind.NODE)
            if place in before ^ out:
                self._place(name, node)

    def _while_forming(self, now: float) -> None:
        size = self._world(len(self._ready))
        if not size:
            for name in self._gate.lift():
                self._place(name, self._nodes[name])
            size = self._world(len(self._ready))
        if self._empty is not None and now >= self._empty:
            self._end(False, "no node is left", now)
        elif not size:
            self._last_call = None
            if self._pend is None:
                self._pend = now + self.rules.pend_timeout
                if any(n.connected and not n.leaving for n in self._nodes.values()):
                    self._note(f"waiting for {self._needed()}", Kind.WAIT)
            elif now >= self._pend:
                waited = f"{self.rules.pend_timeout:g} s (pend_timeout)"
                self._end(False, f"waited {waited} for {self._needed()}", now)
        elif not self._authority.settled or self._waiting or self._free is not None:
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
        r = self.rules
        ready = [node.candidate() for name, node in self._ready.items() if self._gate.admits(name, self._roster)]
        last = self._last_ranks()
        members = rank(choose(ready, size, last=last, infra=r.infra_ranks), last=last, infra=r.infra_ranks)
        base = self._authority.newest
        # Coordinators of other terms may each have numbered a generation after the same one, and none knows of it.
        skipped = self.term.number - (base.formed if base is not None else FIRST.number)
        self.generation = (base.generation if base is not None else 0) + skipped + 1
        self._formed += 1
        self._charged = self.restarts
        self._roster = assign(members, generation=self.generation, restart_count=self.restarts, fresh=self._fresh)
        self._fresh = False
        self._last_call = self._pend = None
        self._waiting = set(self._roster)
        self._unfinished = set(self._roster)
        self._failures, self._departed = [], []
        self._gate.withdraw(self._roster, now)
        self._calibration.regroup(self._roster)
        self._inquiry = self._inquiry.anew(self.generation)
        self._change = Change(self.rules, self.generation)
        self.phase = Phase.RUNNING
        head = self.term.by if self.term.by in self._roster else members[0].node
        self._authority.form(self._roster, head, generation=self.generation, term=self.term.number, now=now)
        self._successors = tuple(
            Successor(j.node, j.name, j.addr, j.port) for j in (self._nodes[m.node].join for m in members) if j.port
        )[:SUCCESSORS]
        self._out.append(Remember(self.memory()))
        for name in self._roster:
            node = self._nodes[name]
            node.sent = self.generation
            del self._ready[name]
            self._start(name, node, now)
        world = self._roster[members[0].node].world_size
        spare = f", {len(self._ready)} spare" if self._ready else ""
        shown = _names(self._nodes[m.node] for m in members)
        what = f"{_count(size, 'node')}, {_count(world, 'rank')}{spare} ({shown})"
        self._note(f"generation {self.generation}: {what}", Kind.GENERATION)

    def _last_ranks(self) -> dict[str, int]:
        """Who had which rank. A new life of a node that was lost takes its place: its memory is there."""
        last = {name: place.group_rank for name, place in self._roster.items()}
        free = {self._nodes[name].name: place for name, place in last.items() if name not in self._ready}
        for name, node in self._ready.items():
            if name not in last and node.name in free:
                last[name] = free.pop(node.name)
        return last

    def _failed(self, failures: tuple[Failure, ...]) -> None:
        known = {(f.rank, f.pid): f for f in self._failures}
        for failure in failures:
            before = known.get((failure.rank, failure.pid))
            if before is None or before.pending:
                known[failure.rank, failure.pid] = failure
        self._failures = list(known.values())
        if self._failures and self._failures[0].hung:
            self._failures.sort(key=lambda failure: not failure.culprit)  # it must not be the one that is cut off
        del self._failures[FAILURES_KEPT:]
        if self.phase is Phase.RUNNING and failures:
            self._stop(_what(failures[0]))

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
            if not named:
                which = f"generation {self.generation}"
                self._note(f"{which}: all ranks save before it ends ({self._change.why})", Kind.WAIT)

    def _tell_all(self, message: FromCoordinator) -> None:
        for name in self._roster:
            if self._nodes[name].connected:
                self._send(name, message)

    def _tell_elsewhere(self, text: str) -> None:
        """Say it in the logs of nodes that do not have ours."""
        for name, node in self._nodes.items():
            if node.connected and name != self.term.by:
                self._send(name, Notice(text[:LONGEST_REASON]))

    def _depart(self, why: str) -> None:
        """The generation ends, and not because a worker failed: whatever fails now fails because of that."""
        if why in self._departed:
            return
        self._departed.append(why)
        if self.phase is Phase.RUNNING:
            self._stop(why)
        elif self.phase is Phase.STOPPING:
            self._note(why, Kind.NODE)

    def _stop(self, why: str) -> None:
        self.phase = Phase.STOPPING
        self._last_call = None
        self._note(f"generation {self.generation} ends: {why}", Kind.END)
        self._out.append(Remember(self.memory()))
        for name in self._roster:
            node = self._nodes[name]
            if node.connected:
                self._send(name, Stop(self.generation, self.term.number, graceful=node.leaving))

    def _end(self, success: bool, reason: str, now: float) -> None:
        if self.phase is Phase.OVER:
            return
        r = self.rules
        self.phase = Phase.OVER
        took = f"{now - self._began:.1f} s, {_count(self._formed, 'generation')}, {_count(self.restarts, 'restart')}"
        self._note(f"job {'succeeded' if success else 'failed'}: {reason} ({took})", Kind.JOB)
        # The root with all that it said, its followers in short: this goes to every node.
        short = (replace(f, message=f.message[:SHORT], error="") for f in self._failures[1:])
        failures = () if success else (*self._failures[:1], *short)
        tried = () if success else tuple(self._budget.tried)
        table = self._gate.table if r.check_only or not (success or self._formed) else ""
        self.outcome = Over(success, reason, failures, term=self.term.number, tried=tried, table=table)
        self._out.append(Remember(self.memory()))
        for name, node in self._nodes.items():
            if node.connected:
                self._send(name, self.outcome)

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
        here = f"{len(self._ready)} here" + (f": {_names(self._ready.values())}" if self._ready else "")
        return f"at least {_count(r.min_nodes, 'node')}{unit}; {here}{self._to_replace()}"

    def _to_replace(self) -> str:
        """Who is here and left out, and what to do about it."""
        here = [node for node in self._nodes.values() if node.connected and not node.leaving]
        out = [node for node in here if _place_of(node.join) in self._left_out]
        why = {node.name: self._budget.bans[_place_of(node.join)].reason for node in out[:NAMES_SHOWN]}
        named = [f"{name} ({reason[:BRIEF]})" for name, reason in why.items()]
        if not named:
            return ""
        return f"; left out: {'; '.join(named)}; to replace them, start the same command on other nodes"

    def _send(self, node: str, message: FromCoordinator) -> None:
        if isinstance(message, Ack | Start | Stop | Over) and node in self._nodes:
            self._nodes[node].told = message.term
        self._out.append(Send(node, message))

    def _note(self, text: str, kind: Kind, verdict: Verdict | None = None) -> None:
        self._out.append(Note(text, kind, self.generation, verdict))


def _changed(old: Report, new: Report) -> bool:
    return (
        old.state is not new.state
        or old.clear != new.clear
        or old.floor != new.floor
        or old.generation != new.generation
        or old.store_port != new.store_port
        or old.leaving is not new.leaving
        or old.failures != new.failures
        or old.known != new.known
        or old.wish != new.wish
        or old.measures != new.measures
        or old.stride != new.stride
        or old.overdue != new.overdue
        or old.halted != new.halted
    )


def _is_ack(command: Command) -> bool:
    return isinstance(command, Send) and isinstance(command.message, Ack)


def _what(failure: Failure) -> str:
    who, code = f"rank {failure.rank} on node {failure.node}", failure.exit_code
    if failure.hung:
        return f"{who} hung: {failure.hung}"
    return f"{who} failed ({f'exit code {code}' if code >= 0 else f'signal {-code}'})"


def _place_of(join: Join) -> str:
    return join.key or join.name


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _names(nodes: Iterable[Member]) -> str:
    names = [n.name for n in nodes]
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
