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

from collections.abc import Mapping

from msgspec.structs import replace

from outlast.core.job.asks import Asks
from outlast.core.job.commands import Command, Reply
from outlast.core.job.course import JobCourse
from outlast.core.job.generation import Generation
from outlast.core.job.inputs import Asked, Event, Found, Joined, Lost, Progressed, Queried, Reported, Saw, Straggled
from outlast.core.job.phase import Phase
from outlast.core.job.replies import Replies
from outlast.core.job.reports import Reports
from outlast.core.job.state import JobState
from outlast.core.job.view import view_of
from outlast.core.membership.liveness import BEATS, ORPHANS, lease_of
from outlast.core.membership.member import Member
from outlast.core.succession.authority import Memory
from outlast.core.succession.succession import FIRST
from outlast.core.tick import Tick
from outlast.events.events import (
    JobBegan,
    NodeJoined,
    NodeKept,
    NodeLeft,
    NodeLost,
    NodeRefused,
    SpareReady,
    StragglerChanged,
)
from outlast.events.reasons import (
    DepartedNode,
    EndReason,
    ExcludedStraggler,
    FailedRank,
    LostNode,
    NodeLoss,
)
from outlast.protocol.generations import Assignment
from outlast.protocol.membership import (
    Join,
    Over,
    Refuse,
    Welcome,
)
from outlast.protocol.observers import Detail
from outlast.protocol.paces import Paces
from outlast.protocol.rules import Rules
from outlast.protocol.snapshots import Stride
from outlast.protocol.succession import Charter, Standing, Successor, Term
from outlast.protocol.views import JobView


class Job:
    """The decisions of one job.

    >>> job = Job(Rules(job="j", entrypoint="train.py", min_nodes=1, max_nodes=1), now=0.0)
    >>> job.phase.value, job.deadline()
    ('forming', 30.0)
    """

    _replies_class, _course_class, _reports_class = Replies, JobCourse, Reports  # tests break each of them

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
        state = self._state = JobState(rules, now, term=term, run=run)
        self._replies = self._replies_class(state)
        self._course = self._course_class(state, self._replies, lambda now: self._reports.catch_up(now))
        self._reports = self._reports_class(state, self._replies, self._course)
        self._asks = Asks(state, self._replies, self._course)
        if memory is not None:
            state.recall(memory, now)
        if charter is not None and state.authority.is_news(charter):
            self._regather(FIRST, charter, now)
            state.succession.term = term
        if term.number > FIRST.number and state.phase is Phase.FORMING:
            # Nobody has told yet what the life before this one has started.
            state.succession.free = now + rules.node_timeout

    @property
    def rules(self) -> Rules:
        return self._state.rules

    @property
    def phase(self) -> Phase:
        return self._state.phase

    @property
    def outcome(self) -> Over | None:
        """How the job ended, once it has."""
        return self._state.outcome

    @property
    def resigned(self) -> bool:
        """Whether this coordinator has given the job to its successors: it decides nothing any more."""
        return self._state.resigned

    @property
    def idle(self) -> bool:
        """Whether the last event changed nothing that decisions depend on."""
        return self._state.idle

    def memory(self) -> Memory:
        """What this coordinator would need if it were killed now."""
        return self._state.memory()

    @property
    def term(self) -> Term:
        return self._state.succession.term

    @property
    def run(self) -> str:
        return self._state.succession.run

    @property
    def generation(self) -> int:
        """The number of the newest generation; 0: there was none."""
        return self._state.current.number

    @property
    def restarts(self) -> int:
        """How many restarts failures have cost."""
        return self._state.recovery.restarts

    @property
    def roster(self) -> dict[str, Assignment]:
        """The members of the newest generation, with their ranks."""
        return dict(self._state.current.roster)

    @property
    def size(self) -> int:
        """How many members the newest generation has."""
        return len(self._state.current.roster)

    def about(self, node: str) -> tuple[str, float]:
        """A node's name, and the coordinator's clock less its own."""
        member = self._state.nodes.get(node)
        return (member.name, member.clock(0.0)) if member is not None else (node, 0.0)

    @property
    def spares(self) -> int:
        """How many nodes are here and ready without a place in the running generation."""
        return len(self._state.nodes.ready)

    @property
    def answers(self) -> str:
        """What the authority answered during the last event, for its replay."""
        return self._state.succession.answers

    def foretell(self, answers: str) -> None:
        """In a replay: what the authority is going to answer during the next event."""
        self._state.succession.foretell(answers)

    def standing(self, now: float) -> Standing:
        """What this coordinator says to anybody who knocks."""
        return self._state.succession.standing(now)

    @property
    def successors(self) -> tuple[Successor, ...]:
        """The nodes that may host the next coordinator, in order."""
        return self._state.succession.successors

    def leads(self, now: float) -> bool:
        """Whether this coordinator may act now; asking leaves no trace in the journal."""
        return self._state.authority.leads(now)

    def view(
        self,
        now: float,
        paces: Mapping[str, Paces] | None = None,
        *,
        detail: Detail = Detail.RANKS,
        wall: float = 0.0,
        event: int = 0,
        last_fault: FailedRank | None = None,
    ) -> JobView:
        """What is going on, for whoever watches. `paces`: how the ranks of each node got on when they last told.

        `wall`: the time of day. `event`: the number of the last event. `last_fault`: of a coordinator before this one.
        """
        view = view_of(self._state, now, paces or {}, detail=detail, wall=wall, event=event)
        return view if view.last_fault is not None else replace(view, last_fault=last_fault)

    def deadline(self) -> float | None:
        """When `Tick` is due, if nothing else happens before."""
        return self._course.deadline()

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event in; what comes out is to be done in this order."""
        s = self._state
        s.out.open()
        s.idle = False
        s.authority.answers.clear()
        if s.resigned:
            s.idle = True
            return s.out.commands
        if isinstance(event, Reported):
            self._reports.reported(event.node, event.report, now)
        elif isinstance(event, Joined):
            self._joined(event.join, now)
        elif isinstance(event, Saw):
            s.idle = not s.current.inquiry.take(event.node, event.seen)
        elif isinstance(event, Queried):
            s.dealer.ask(event.node, event.query)
            s.idle = True
        elif isinstance(event, Straggled):
            self._straggled(event, now)
        elif isinstance(event, Progressed):
            s.out.publish(event.event)
        elif isinstance(event, Found):
            s.idle = not s.admissions.gate.take(event.node, event.findings, now)
        elif isinstance(event, Lost):
            self._lost(event, now)
        elif isinstance(event, Asked):
            s.out.add(Reply(self._asks.answer(event.ask, now)))
        if isinstance(event, Tick | Saw | Found) and not s.idle:
            self._course.settle(now)
        s.dealer.hurry(s.current.change.planned)
        if s.dealer.waits and s.phase is Phase.RUNNING and s.authority.leads(now):
            for node, told in s.dealer.answers(s.generation, s.current.world_size):
                s.out.send(node, told)
        return s.out.commands

    def _joined(self, join: Join, now: float) -> None:
        s = self._state
        if why := s.admissions.refusal(join, s.run if s.generation else None):
            s.out.publish(NodeRefused(generation=s.generation, node=join.name, why=why))
            s.out.send(join.node, Refuse(why))
            s.out.drop(join.node)
            return
        if s.nodes.is_of_the_past(join):
            s.out.drop(join.node)
            return
        node = s.nodes.get(join.node)
        if s.outcome is not None and s.succession.is_overtaken(join, node):
            if not s.outcome.success:
                s.out.drop(join.node)  # others went on without this coordinator: its end is not theirs
                return
            # What is done is done, whoever it has obeyed since.
            s.succession.term = s.succession.above(join.term)
        if node is not None and join.connection <= node.join.connection:
            # The agent left this connection before it made the one that this has just replaced, and its end will
            # not mean that the agent has ended. It must come back on a third.
            s.out.drop(join.node)
            why, until = "an old connection of it came late", now + s.rules.node_timeout
            self._lost(Lost(join.node, why, until, loss=NodeLoss.BROKEN), now)
            return
        if node is None:
            if not s.generation and not s.nodes.connected:
                self._began(join, now)
            s.out.publish(NodeJoined(generation=s.generation, node=join.name, workers=join.nproc))
        self._take_in(join, now)

    def _began(self, join: Join, now: float) -> None:
        """The first node has come: the job began when that was started."""
        s = self._state
        started = now - (join.report.sent - join.since) if join.since and join.report.sent else now
        ago = max(0.0, now - started, now - s.began)
        s.out.publish(
            JobBegan(generation=0, least=s.rules.min_nodes, most=s.rules.max_nodes, ago=ago, queued=join.queued)
        )

    def _take_in(self, join: Join, now: float) -> None:
        s = self._state
        s.nodes.forget(s.current.roster)
        node = s.nodes.come(join)
        s.empty = None
        if join.key:
            self._supersede(join, now)
        self._learn(join, node, now)
        s.dealer.hear(join.node, join.hands)
        r, successors = s.rules, s.succession.successors
        refills = r.restart_policy == "min-healthy"
        s.out.send(join.node, Welcome(r.node_timeout / BEATS, lease_of(r), r.restart_grace, successors, refills))
        self._reports.reported(join.node, join.report, now, again=True)
        if s.snapshots.stride > 1:
            s.out.send(join.node, Stride(s.snapshots.stride))  # it may have missed that
        self._replies.bind(now)
        if s.phase is Phase.RUNNING and join.node in s.nodes.ready and s.admissions.last_call is None:
            s.out.publish(SpareReady(generation=s.generation, node=join.name))

    def _supersede(self, join: Join, now: float) -> None:
        """A place is held by one agent at a time: whoever held it before has ended, however its connection looks."""
        s = self._state
        before = s.nodes.hold(join)
        if before is None:
            return
        node = s.nodes[before]
        if node.connected:
            s.out.drop(before)
            why = "a new life of it has come"
            self._lost(Lost(before, why, now + ORPHANS, ended=True, loss=NodeLoss.REPLACED), now)
            return
        if s.authority.acts(now):
            s.authority.ended(before)
        if node.until is not None:
            node.until = min(node.until, now + ORPHANS)
            s.admissions.place(before)

    def _learn(self, join: Join, node: Member, now: float) -> None:
        """What a node knows of terms and generations that this coordinator may have missed."""
        s = self._state
        charter = join.charter
        if s.phase is not Phase.OVER:
            if charter is not None and s.authority.is_news(charter):
                self._regather(join.term, charter, now)
            elif s.succession.is_overtaken(join, node):
                self._regather(join.term, None, now)
            elif charter is not None:
                s.authority.compare(charter)
        s.authority.came(join.node, charter)
        if s.phase is Phase.GATHERING:
            self._take_back(join)

    def _regather(self, term: Term, charter: Charter | None, now: float) -> None:
        """Somebody else has coordinated, or tried to: begin a new term, and take the newest generation from them."""
        s = self._state
        s.succession.begin_term(term, now)
        s.admissions.gate.abandon()
        if charter is not None:
            self._adopt(charter, now)
        if s.authority.newest is None or s.phase is Phase.OVER:
            return
        s.phase = Phase.GATHERING
        s.succession.gathering.renew()
        s.succession.free = s.admissions.last_call = None
        for name in [name for name in s.current.roster if not s.nodes[name].connected]:
            self._misses(name)
        for node in s.nodes.values():
            if node.connected and charter is not None:
                s.authority.came(node.join.node, node.join.charter)
                self._take_back(node.join)

    def _adopt(self, charter: Charter, now: float) -> None:
        """A node knows of a newer generation, and of what happened up to it."""
        s = self._state
        s.succession.adopt(charter)
        s.recovery.adopt(charter, now)
        s.admissions.excluded |= charter.excluded
        s.admissions.most = charter.wanted or s.rules.max_nodes
        if charter.ledger is not None:
            self._course.let_back(now)
        unfinished = s.current.unfinished
        s.current = Generation(s.rules, charter.ballots[0].generation, before=s.current)
        s.current.unfinished, s.current.hearsay = unfinished, True

    def _misses(self, name: str) -> None:
        """A member is not here, and may come back."""
        s = self._state
        s.succession.gathering.misses(name, s.nodes[name].name, s.current.roster.pop(name))

    def _take_back(self, join: Join) -> None:
        """A member of the generation that is being gathered has come."""
        s = self._state
        place = s.succession.gathering.take_back(join, s.generation)
        if place is not None:
            s.current.roster[join.node] = place
            s.nodes[join.node].sent = max(s.nodes[join.node].sent, s.generation)

    def _lost(self, event: Lost, now: float) -> None:
        s = self._state
        node, name = s.nodes.get(event.node), event.node
        if node is None or not node.connected:
            return
        s.nodes.go(name, event.until)
        s.snapshots.forget(name)
        if event.ended and s.authority.acts(now):
            s.authority.ended(name)  # by one that acts alone: two that leave out others could both act
        else:
            s.authority.went(name)
        if s.phase is Phase.OVER:
            return
        s.admissions.lose(name, now)
        if not s.nodes.connected:
            s.empty = now if node.leaving else now + s.rules.empty_timeout
        current = s.current
        if s.phase is Phase.GATHERING:
            gathering = s.succession.gathering
            gathering.bound = gathering.bound and s.authority.could_act(now)
            if not event.ended and name in current.roster:
                self._misses(name)
        active = s.phase in (Phase.STOPPING, Phase.GATHERING) or (
            s.phase is Phase.RUNNING and name in current.unfinished
        )
        ends = name in current.roster and active
        reason: EndReason = DepartedNode(node.name) if node.leaving else LostNode(node.name, event.why)
        if node.leaving:
            s.out.publish(NodeLeft(generation=s.generation, node=node.name, told=ends))
        else:
            lost = NodeLost(generation=s.generation, node=node.name, how=event.why, told=ends, loss=event.loss)
            s.out.publish(lost)
        if ends:
            self._course.depart(reason, ago=now - event.heard if event.heard is not None else 0.0)
        self._course.settle(now)

    def _straggled(self, event: Straggled, now: float) -> None:
        """Ranks are slower than the others, or are so no longer: say so, and do what was asked for about it."""
        s = self._state
        home, recovery, current = s.nodes.get(event.node), s.recovery, s.current
        if home is None or s.phase is Phase.OVER:
            return
        found, slower = event.straggler, event.straggler.sentence(home.name)
        if not found.lasts:
            s.out.publish(
                StragglerChanged(
                    generation=found.generation,
                    node=home.name,
                    ranks=found.ranks,
                    section=found.section,
                    factor=found.factor,
                    since=found.since,
                    over=found.over,
                    sentence=slower,
                    excess=found.excess,
                )
            )
            return
        runs = s.phase is Phase.RUNNING and found.generation == current.number and event.node in current.unfinished
        goes = s.rules.straggler == "exclude" and runs and not recovery.evictions.is_out(home.place)
        if not goes or not s.authority.acts(now):
            return
        spares = s.admissions.gate.admitted(s.nodes.ready, current.roster)  # one that is to be checked may not pass
        if stays := recovery.evictions.stays(home.name, len(current.roster) + len(spares) - 1, now):
            s.out.publish(NodeKept(generation=current.number, node=home.name, because=stays, why=slower))
            return
        excluded = recovery.exclude(home, slower, current.number, now)
        s.admissions.place(event.node)
        s.out.release(excluded)
        self._course.plan(ExcludedStraggler(home.name, excluded.seconds or 0.0, slower), now)
        self._course.settle(now)
