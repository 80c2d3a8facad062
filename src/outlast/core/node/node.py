"""The node: what an agent does with its workers. The other half of the job's rules.

It starts a generation only when told, only once, only with nothing else alive, and only while it holds a lease.
It stops its workers when told, when one of them fails, and when its lease runs out: whoever cannot reach
the coordinator must assume that the others go on without it.

It obeys one coordinator at a time, and never one of an older term than it has obeyed before. For a while after each
answer it joins no other; when that time has passed and none can be reached, it may have to host the next one.
"""

from __future__ import annotations

from outlast.core.data_shards.holdings import Memo
from outlast.core.node.allegiance import Allegiance
from outlast.core.node.commands import (
    Agree,
    Announce,
    Blame,
    Command,
    Examine,
    Exit,
    HaltWorkers,
    Hangup,
    Host,
    Lease,
    Observe,
    Respond,
    Retire,
    SetStride,
    Show,
    StartWorkers,
    StopWorkers,
    TakeMeasures,
    Tell,
)
from outlast.core.node.inputs import (
    Cleared,
    Connected,
    Decided,
    Disconnected,
    Event,
    Examined,
    Exited,
    Halting,
    Holds,
    Inquired,
    KeepsUp,
    Late,
    Leave,
    Measured,
    NotHosted,
    Observed,
    Paced,
    Received,
    Wished,
)
from outlast.core.recovery.failures import worth_telling
from outlast.protocol.checks import Probe
from outlast.protocol.failures import Failure
from outlast.protocol.generations import Assignment, Halt, Halted, Start, Stop
from outlast.protocol.hangs import Agreed, Look, Measure, Measures, Named, Overdue, Seen
from outlast.protocol.membership import Ack, Leaving, Notice, Over, Refuse, Report, State, Wanted, Welcome, Wish
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.paces import Paces
from outlast.protocol.shards import Gone, Hands, Query, Told, Unanswerable
from outlast.protocol.snapshots import Held, Keeping, Stride
from outlast.protocol.succession import Charter

REPEATED = 5.0  # seconds for which a node says again that ranks are late: to a coordinator that has just come


class Node:
    """The decisions of one life of one agent.

    >>> from outlast.protocol.succession import Standing, Term
    >>> node = Node("a")
    >>> node.handle(Connected(Standing(Term(1, "a"), True)), now=0.0)[0].first
    True
    """

    def __init__(self, me: str, store_port: int = 0, *, ranks: int = 1) -> None:
        self.me = me
        self._ranks = ranks  # how many of them each generation has here
        self.store_port = store_port
        self.allegiance = Allegiance(me)
        self.assignment: Assignment | None = None
        self.connection = 0
        self.generation = 0
        self.state = State.IDLE
        self.clear = True
        self._floor = 0
        self._stopping = False
        self._shortest_grace = float("inf")  # that the workers were given to end
        self._failures: list[Failure] = []
        self._patience_with_workers = 0.0
        self._wish: Wish | None = None
        self._measures = Measures(0)
        self._agreed = 0
        self._overdue = Overdue(0, False)
        self._overdue_until = float("-inf")
        self._halted: Halted | None = None
        self._look = 0  # the newest inquiry that this connection has brought
        self._memo = Memo()  # what workers asked, and were told
        self._asked = False  # on this connection
        self._visitors: dict[int, int] = {}  # who waits for an answer, by ticket
        self._keeping = Keeping()
        self._stride = 1
        self._held: tuple[Held, ...] = ()
        self._held_since = 0  # the first report that says so, to the coordinator that this node is connected to
        self._leaving = Leaving.NO
        self._over: Over | None = None
        self._exited = False
        self._connected = False
        self._acked = 0
        self._echoed = False
        self._seq = 0
        self._sent_at: dict[int, float] = {}  # reports on this connection that wait for their Ack
        self._heard_at = 0.0
        self._lease_end = float("-inf")
        self._beat_at: float | None = None
        self._out: list[Command] = []

    @property
    def leaving(self) -> Leaving:
        return self._leaving

    @property
    def hands(self) -> Hands | None:
        """The shards that its ranks have and have done, for `Join`."""
        return self._memo.statement()

    @property
    def connected(self) -> bool:
        """Whether a coordinator can be told anything."""
        return self._connected

    @property
    def failed(self) -> bool:
        """Whether a worker of the newest generation has failed."""
        return self.state is State.FAILED

    @property
    def told_to_stop(self) -> bool:
        """Whether its workers are being ended for no failure of theirs: then none of their ends is one."""
        return self._stopping and not self._failures

    def deadline(self) -> float | None:
        """When `Tick` is due, if nothing else happens before."""
        times = []
        if self._connected:
            times += [self._patience()] if self.clear else []
            times += [self._beat_at] if self._beat_at is not None else []
        elif (host_at := self._host_at()) is not None:
            times.append(host_at)
        if self._is_leased():
            times.append(self._lease_end)
        return min(times, default=None)

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event in; what comes out is to be done in this order."""
        self._out = []
        well = isinstance(event, Cleared) or (isinstance(event, Exited) and event.failure is None)
        if self._is_leased() and now >= self._lease_end and not well:
            # An agent that was held up itself finds its workers killed for that, and it is no failure of theirs.
            self._cut_off(now)
        if isinstance(event, Received):
            self._received(event.message, now)
        elif isinstance(event, Connected):
            # Reports of an earlier connection may have been heard by a coordinator that has since given
            # this node up: only an answer on this connection renews the lease.
            self._connected = True
            self.connection += 1
            self.allegiance.meet(event.standing)
            self._acked, self._echoed, self._look, self._asked = 0, False, 0, False
            self._heard_at = now
            self._sent_at.clear()
            if self.clear and event.held is not None:
                self._held = event.held
            self._held_since = self._seq + 1 if self._held else 0
            self._tell(now, first=True)
        elif isinstance(event, Disconnected):
            self._connected = False
            self.allegiance.part(now)
            self._beat_at = None
            if self._leaving is not Leaving.NO:
                self._leave_alone()
        elif isinstance(event, Exited):
            self._worker_exited(event, now)
        elif isinstance(event, Decided):
            self._decided(event, now)
        elif isinstance(event, Cleared):
            self._cleared(event.generation, now)
        elif isinstance(event, Leave):
            self._leave(event.how, now)
        elif isinstance(event, Wished):
            self._wished(event.wish, now)
        elif isinstance(event, Measured):
            self._measured(event, now)
        elif isinstance(event, Late):
            self._late(event, now)
        elif isinstance(event, Observed):
            if event.number == self._look and self._runs(event.generation):
                self._out.append(Show(Seen(event.generation, event.number, event.observations)))
        elif isinstance(event, Inquired):
            self._inquired(event)
        elif isinstance(event, Paced):
            if self._connected and self._runs(event.generation):
                self._out.append(Show(Paces(event.generation, event.paces)))
        elif isinstance(event, Halting):
            if self._runs(event.generation) and event.halted != self._halted:
                self._halted = event.halted
                self._tell(now)
        elif isinstance(event, Holds):
            self._holds(event.held, now)
        elif isinstance(event, KeepsUp):
            if event.stride != self._stride:
                self._stride = event.stride
                self._tell(now)
        elif isinstance(event, Examined):
            if self._connected:
                self._tell(now)  # first: the port of the next round's store is in it
                self._out.append(Show(event.findings))
        elif isinstance(event, NotHosted):
            self.allegiance.not_hosted(now)
        else:
            self._tick(now)
        return self._out

    def _received(self, message: FromCoordinator, now: float) -> None:
        if not self._asked or isinstance(message, Welcome):
            # It has taken this node in, and has not been asked what workers wait to be told, or not on this connection.
            self._asked = True
            self._out += [Show(query) for query in self._memo.waiting]
        if isinstance(message, Ack | Start | Stop | Over) and message.term:
            if not self.allegiance.heed(message.term, now):
                return
            self._heard_at = now
        if isinstance(message, Ack):
            self._answered(message.seq, message.leased, now)
        elif isinstance(message, Welcome):
            self.allegiance.welcome = message
            self._beat_at = now + message.heartbeat
        elif isinstance(message, Told):
            self._told(message)
        elif isinstance(message, Notice):
            self._out.append(Announce(message.text))
        elif isinstance(message, Charter):
            self.allegiance.adopt(message)
        elif isinstance(message, Start):
            self.allegiance.adopt(message.charter)
            self._answered(message.ack, True, now)
            self._keeping = message.keeping
            self._start(message.assignment, now)
        elif isinstance(message, Measure):
            if message.round > self._measures.round:
                self._out.append(TakeMeasures(message.round))
        elif isinstance(message, Agreed):
            self._agreed = max(self._agreed, message.measures.round)
            self._out.append(Agree(message.measures.longest))
        elif isinstance(message, Stride):
            self._out.append(SetStride(message.stride))
        elif isinstance(message, Probe):
            if self.clear and self._leaving is Leaving.NO and self._over is None:
                self._out.append(Examine(message))
        elif isinstance(message, Look):
            if self._runs(message.generation):
                self._look = message.number
                self._out.append(Observe(message.number, message.interrupt))
        elif isinstance(message, Named):
            if message.number == self._look and self._runs(message.generation):
                self._out.append(Blame(message))
        elif isinstance(message, Halt):
            if self._runs(message.generation):
                known = self._halted.at if self._halted is not None else 0
                self._out.append(HaltWorkers(max(message.at, known), message.durable))
        elif isinstance(message, Stop):
            self._stop_up_to(message.generation, message.graceful, now)
        elif isinstance(message, Over):
            self._finish(message)
        elif isinstance(message, Refuse):
            self._finish(Over(False, message.reason))

    def _answered(self, seq: int, leased: bool, now: float) -> None:
        self._acked = max(self._acked, seq)
        if not leased:
            # It needs this node's support before it may act, and sees it in the next report.
            if not self._echoed:
                self._echoed = True
                self._tell(now)
            return
        self._echoed = False
        if self.allegiance.retires():
            self._out.append(Retire())
        sent = self._sent_at.pop(seq, None)
        if (
            sent is not None
            and self.allegiance.welcome is not None
            and sent + self.allegiance.welcome.lease > self._lease_end
        ):
            self._lease_end = sent + self.allegiance.welcome.lease
            self._out.append(Lease(self._lease_end))

    def _start(self, assignment: Assignment, now: float) -> None:
        generation = assignment.generation
        stale = generation <= self._floor or generation <= self.generation
        if stale or not self.clear or self._over is not None or self._leaving is not Leaving.NO:
            return
        if now >= self._lease_end:
            return  # an order that was under way for so long may have been withdrawn since
        self.generation = generation
        self.assignment = assignment
        self._floor = generation - 1
        self.state, self.clear = State.RUNNING, False
        self._stopping, self._shortest_grace = False, float("inf")
        self._failures, self._patience_with_workers = [], 0.0
        self._overdue_until = float("-inf")
        self._halted = None
        self._memo.begin(generation, assignment.first_rank, self._ranks)
        self._visitors.clear()
        self._out.append(StartWorkers(assignment, self._keeping))
        self._tell(now)

    def _stop_up_to(self, generation: int, graceful: bool, now: float) -> None:
        repeated = generation <= self._floor
        self._floor = max(self._floor, generation)
        if not self.clear and self.generation <= generation:
            self._stop(None if graceful else self._grace())
        if not repeated:  # the coordinator repeats it in answer to a report: another report would have no end
            self._tell(now)

    def _inquired(self, event: Inquired) -> None:
        memo, asked = self._memo, event.question
        if asked.generation != memo.generation or asked.rank not in memo.ranks:
            unknown = Unanswerable(f"this is no rank of generation {memo.generation}")
            self._out.append(Respond(event.visitor, unknown))
            return
        query = memo.ask(asked.rank, asked.question)
        self._visitors[query.ticket] = event.visitor
        self._ask(query)

    def _ask(self, query: Query) -> None:
        if self._connected:
            self._out.append(Show(query))

    def _told(self, told: Told) -> None:
        finding = self._memo.hear(told)
        if finding is not None and told.ticket in self._visitors:
            self._out.append(Respond(self._visitors.pop(told.ticket), finding))

    def _worker_exited(self, event: Exited, now: float) -> None:
        if event.finished is not None and event.generation == self._memo.generation and self._memo.asked:
            self._ask(self._memo.ask(event.finished, Gone()))  # the others may go on without it
        if event.generation != self.generation or self.clear:
            return
        if self.told_to_stop:
            return  # it was told to: whatever its exit code is, it is no failure
        if event.failure is not None:
            self._failures.append(event.failure)
            if self.state is not State.FAILED:
                self.state = State.FAILED
                self._patience_with_workers = event.patience
                self._tell(now)
                self._stop(self._grace())

    def _decided(self, event: Decided, now: float) -> None:
        told = [(each.rank, each.pid) for each in self._failures]
        this = (event.failure.rank, event.failure.pid)
        if event.generation == self.generation and this in told:
            self._failures[told.index(this)] = event.failure
            self._tell(now)

    def _cleared(self, generation: int, now: float) -> None:
        if generation != self.generation or self.clear:
            return
        self.clear = True
        if self._stopping:
            self._floor = max(self._floor, self.generation)
            if self.state is State.RUNNING:
                self.state = State.IDLE
        elif self.state is State.RUNNING:
            self.state = State.FINISHED
        self._tell(now)
        if self._over is not None or (self._leaving is not Leaving.NO and not self._connected):
            self._leave_alone()

    def _leave(self, how: Leaving, now: float) -> None:
        if self._leaving is Leaving.INTERRUPT or how is self._leaving:
            return
        self._leaving = how
        if self._connected:
            self._tell(now)
        if how is Leaving.INTERRUPT and not self.clear:
            self._stop(None)
        if not self._connected:
            self._leave_alone()

    def _wished(self, wish: Wish, now: float) -> None:
        if self._wish is not None and self._wish.wanted is Wanted.STOP:
            return  # there is nothing to wish for any more
        self._wish = wish
        excluded = wish.wanted is Wanted.EXCLUDE_NODE
        if excluded and self._leaving is Leaving.NO:
            self._leaving = Leaving.DRAIN
        self._tell(now)
        if excluded and not self.clear:
            self._stop(self._grace())  # what this node could still do is not wanted
        if excluded and not self._connected:
            self._leave_alone()

    def _measured(self, event: Measured, now: float) -> None:
        number = event.round
        if number is None:  # another rank may have asked before, and not been answered yet
            number = max(self._measures.round, self._agreed + 1)
        if number >= self._measures.round:
            self._measures = Measures(number, event.longest)
            self._tell(now)

    def _late(self, event: Late, now: float) -> None:
        if self._runs(event.generation):
            self._overdue = Overdue(self._overdue.number + 1, event.ending)
            self._overdue_until = now + REPEATED
            self._tell(now)

    def _holds(self, held: tuple[Held, ...], now: float) -> None:
        if held == self._held:
            return
        self._held, self._held_since = held, self._seq + 1
        if self.clear:
            self._tell(now)

    def _runs(self, generation: int) -> bool:
        """Whether workers of this generation live here, and have not been told to end."""
        return generation == self.generation and not self.clear and not self._stopping

    def _leave_alone(self) -> None:
        """There is no coordinator to wait for: stop what runs, and go."""
        if not self.clear:
            self._stop(None)
        elif not self._exited:
            self._exited = True
            reason = "interrupted" if self._leaving is Leaving.INTERRUPT else "drained"
            self._out.append(Exit(self._over or Over(False, reason, left=True)))

    def _finish(self, over: Over) -> None:
        if self._over is None:
            self._over = over
            self._leave_alone()

    def _tick(self, now: float) -> None:
        if self._connected and self.clear and now >= self._patience():
            self._heard_at = now
            self._out.append(Hangup())
        elif self._beat_at is not None and now >= self._beat_at:
            self._tell(now)
        host_at = self._host_at()
        if not self._connected and host_at is not None and now >= host_at:
            self._out.append(Host(self.allegiance.mandate()))

    def _is_leased(self) -> bool:
        """Whether workers live that must end with the lease: also those that stop, whose grace may be longer."""
        return not self.clear and self._shortest_grace > 0 and self._over is None

    def _cut_off(self, now: float) -> None:
        """The others may be about to go on without this node: no worker may live on."""
        self._floor = max(self._floor, self.generation)
        if not self._stopping:
            self.state = State.CUT_OFF
            self._tell(now)
        self._stop(0.0)

    def _host_at(self) -> float | None:
        """When it is this node's turn to host the coordinator, should none be reached before."""
        if self._over is not None or self._leaving is not Leaving.NO:
            return None
        return self.allegiance.host_at()

    def _patience(self) -> float:
        if self.allegiance.welcome is not None and self.allegiance.welcome.lease == float("inf"):
            return float("inf")  # there is no other coordinator to look for, and ours would take a hang-up for our end
        return self._heard_at + self.allegiance.node_timeout

    def _stop(self, grace: float | None) -> None:
        """Stop the workers, unless they are already stopping within that time."""
        seconds = float("inf") if grace is None else grace
        if self._stopping and seconds >= self._shortest_grace:
            return
        self._stopping, self._shortest_grace = True, seconds
        self._out.append(StopWorkers(self.generation, grace))

    def _grace(self) -> float:
        return max(
            self.allegiance.welcome.restart_grace if self.allegiance.welcome is not None else 0.0,
            self._patience_with_workers,
        )

    def _tell(self, now: float, *, first: bool = False) -> None:
        if not self._connected:
            return
        self._seq += 1
        self._sent_at[self._seq] = now
        if self.allegiance.welcome is not None:
            self._beat_at = now + self.allegiance.welcome.heartbeat
            oldest = now - self.allegiance.welcome.lease
            for seq in [s for s, at in self._sent_at.items() if at < oldest]:
                del self._sent_at[seq]  # its Ack would renew nothing
        report = Report(
            seq=self._seq,
            floor=self._floor,
            generation=self.generation,
            state=self.state,
            clear=self.clear,
            store_port=self.store_port,
            leaving=self._leaving,
            failures=worth_telling(self._failures),
            acked=self._acked,
            known=self.allegiance.known,
            wish=self._wish,
            measures=self._measures,
            agreed=self._agreed,
            overdue=self._overdue if now < self._overdue_until and self._runs(self.generation) else None,
            halted=self._halted if self._runs(self.generation) else None,
            sent=now,
            held=self._held if self._acked < self._held_since else None,
            stride=self._stride,
        )
        self._out.append(Tell(report, first))
