"""From timed events to the book. Pure: the same events make the same book, whoever reads them, and whenever."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatchmethod
from typing import Protocol

from msgspec.structs import replace

from outlast.events import events
from outlast.events.events import JobEvent
from outlast.events.reasons import EndReason
from outlast.events.sentences import whys
from outlast.ledger.book import Book, Span
from outlast.ledger.faults import RELAUNCHED, Fault, explains, fault_of, is_planned, named
from outlast.ledger.states import RUNNING, SECOND, LedgerState
from outlast.ledger.steps import StepHistory

_ALL = frozenset(LedgerState)
_TRAINED = frozenset({LedgerState.PRODUCTIVE})


class TimedEvent(Protocol):
    """An event with its time in seconds since 1970: `outlast.events.numbered.NumberedEvent`."""

    @property
    def time(self) -> float: ...
    @property
    def event(self) -> JobEvent: ...


class Accountant:
    """Reads the events of one job, one after the other.

    >>> from types import SimpleNamespace as At
    >>> books = Accountant()
    >>> books.read(At(time=1.0, event=events.JobBegan(generation=0, least=1, most=1)))
    >>> formed = events.GenerationFormed(generation=1, nodes=("a",), ranks=1, spares=0, restarts=0)
    >>> books.read(At(time=3.0, event=formed))
    >>> books.read(At(time=7.0, event=events.TrainingBegan(generation=1, step=1)))
    >>> books.until(10.0)
    >>> {state.value: ns // SECOND for state, ns in books.book.time().items()}
    {'provisioning': 2, 'starting': 4, 'productive': 3}
    """

    def __init__(self) -> None:
        self.book = Book()
        self.faults: list[Fault] = []
        self.over: events.JobOver | None = None
        self.generation = 0
        self.generations = 0
        self.restarts = 0
        self.slow: events.StragglerChanged | None = None  # the worst that there is now
        self.began: int | None = None
        self.now = 0  # up to which the book is kept
        self._state = LedgerState.PROVISIONING
        self._resume = LedgerState.PRODUCTIVE  # what a hang that was only a pause goes back to
        self._fault = 0
        self._counted = False  # a step was ever made
        self._here: set[str] = set()
        self._members: frozenset[str] = frozenset()
        self._least, self._most = 1, 0
        self._trains = False  # the newest generation has made a step
        self._trained_since = 0
        self._waited = {LedgerState.CHECKPOINT: 0, LedgerState.DATA_WAIT: 0}  # ns in this generation, in the book
        self._slow: dict[tuple[str, tuple[int, ...]], tuple[events.StragglerChanged, int]] = {}
        self._slowed_to = 0  # the step up to which stragglers stand in the book
        self._history = StepHistory()

    @property
    def step(self) -> int | None:
        """The last step that counts."""
        return self._history.last

    @property
    def state(self) -> LedgerState:
        """What the job is in now."""
        return self._state

    @property
    def here(self) -> int:
        """How many nodes are here."""
        return len(self._here)

    @property
    def active(self) -> int:
        """How many of them are in the generation."""
        return len(self._members & self._here)

    @property
    def wanted(self) -> int:
        return self._most

    def read(self, timed: TimedEvent) -> None:
        """The next event. One that says that it is older than the one before, by a clock that was set, is as old."""
        if self.over is not None:
            return
        at = round(timed.time * SECOND)
        if self.began is None:
            self._open(at, timed.event)
        self._keep_until(max(at, self.now))
        self._on(timed.event)

    def read_all(self, timed: Iterable[TimedEvent]) -> Accountant:
        for each in timed:
            self.read(each)
        return self

    def until(self, time: float) -> None:
        """Nothing has happened up to this time: keep the book up to it."""
        if self.began is not None and self.over is None:
            self._keep_until(max(round(time * SECOND), self.now))

    # -- the book

    def _open(self, at: int, event: JobEvent) -> None:
        if not isinstance(event, events.JobBegan):
            self.began = self.now = at
            self._state = LedgerState.UNKNOWN  # its beginning is not recorded
            return
        started = at - _ns(event.ago)
        self.began = self.now = started - _ns(event.queued)
        self._state = LedgerState.QUEUED
        self._keep_until(started)
        self._state = LedgerState.PROVISIONING

    def _keep_until(self, at: int) -> None:
        running = self._state in RUNNING
        nodes = self.active if running and self._members else self.here
        span = Span(
            self.now,
            at,
            self._state,
            self._fault,
            nodes=nodes,
            spares=self.here - nodes,
            missing=max(0, self._most - self.here),
        )
        self.book.add(span)
        self.now = at

    def _go(self, state: LedgerState, fault: int | None = None) -> None:
        self._state = state
        if fault is not None:
            self._fault = fault

    def _since(self, ago: float, state: LedgerState, fault: int, source: Iterable[LedgerState] = RUNNING) -> int:
        """It has been so for a while already: move that time. Returns since when."""
        assert self.began is not None
        begin = max(self.began, self.now - _ns(ago))
        self.book.move(begin, self.now, state, fault=fault, source=frozenset(source))
        return begin

    # -- faults

    def _new_fault(self, fault: Fault) -> int:
        self._close_fault(recovered=False, at=fault.at)
        self.faults.append(fault)
        return fault.number

    def _close_fault(self, *, recovered: bool, at: int) -> None:
        if self._fault and self.faults[self._fault - 1].ended is None:
            fault = self.faults[self._fault - 1]
            self.faults[self._fault - 1] = replace(fault, ended=max(at, fault.at), recovered=recovered)

    # -- events

    @singledispatchmethod
    def _on(self, event: object) -> None:
        """What says nothing about where time goes."""

    @_on.register
    def _(self, event: events.JobBegan) -> None:
        self._least, self._most = event.least, event.most

    @_on.register
    def _(self, event: events.JobSuspended) -> None:
        """Whatever the job was at, it stood still. What was noticed only because of that is no fault's time."""
        assert self.began is not None
        end = self.now - _ns(event.ago)
        self.book.move(max(self.began, end - _ns(event.seconds)), end, LedgerState.SUSPENDED, fault=0, source=_ALL)

    @_on.register
    def _(self, event: events.NodeJoined) -> None:
        self._here.add(event.node)
        if self._state is LedgerState.PROVISIONING and len(self._here) >= self._least:
            self._go(LedgerState.FORMING)

    @_on.register
    def _(self, event: events.NodeLost) -> None:
        self._here.discard(event.node)

    @_on.register
    def _(self, event: events.NodeLeft) -> None:
        self._here.discard(event.node)

    @_on.register
    def _(self, event: events.WaitingForNodes) -> None:
        self._least = event.least
        if self._state not in RUNNING:
            self._go(LedgerState.PROVISIONING)

    @_on.register
    def _(self, _: events.CheckBegan) -> None:
        if self._state in (LedgerState.FORMING, LedgerState.PROVISIONING):
            self._go(LedgerState.CHECKING)

    @_on.register
    def _(self, _: events.CheckDone) -> None:
        if self._state is LedgerState.CHECKING:
            self._go(LedgerState.FORMING)

    @_on.register
    def _(self, event: events.GenerationFormed) -> None:
        self.generation, self.restarts = event.generation, event.restarts
        self.generations += 1
        self._members = frozenset(event.nodes)
        self._here |= self._members
        self._trains = False
        self._waited = dict.fromkeys(self._waited, 0)
        self._slow.clear()
        self.slow = None
        self._go(LedgerState.STARTING)

    @_on.register
    def _(self, event: events.CoordinatorTookOver) -> None:
        if event.generation != self.generation:  # nobody recorded how it was formed
            self.generation, self._trains = event.generation, False
            if self._state not in RUNNING:
                self._go(LedgerState.STARTING)

    @_on.register
    def _(self, event: events.TrainingBegan) -> None:
        if self._trains or event.generation != self.generation or self._state not in RUNNING:
            return  # said again by a coordinator that took over
        began = max(self._formed_at(), self.now - _ns(event.ago))
        restored = _ns(event.restore)
        source = frozenset({LedgerState.STARTING})
        self.book.move(began - restored, began, LedgerState.RESTORING, fault=self._fault, source=source)
        self._roll_back(event.step)
        self._close_fault(recovered=True, at=began)
        self._fault = 0
        self._trains, self._trained_since, self._counted = True, began, True
        self.book.move(began, self.now, LedgerState.PRODUCTIVE, fault=0, source=source | {LedgerState.UNKNOWN})
        if self._state is not LedgerState.DRAINING:
            self._go(LedgerState.PRODUCTIVE)
        if event.step is not None:
            self._history.made(event.step, began)
        self._slowed_to = event.step or 0

    def _formed_at(self) -> int:
        """The beginning of the stretch of time in which the generation starts."""
        for span in reversed(self.book.spans):
            if span.state not in (LedgerState.STARTING, LedgerState.HUNG, LedgerState.UNKNOWN):
                return span.end
        return self.began or 0

    def _roll_back(self, first: int | None) -> None:
        """Steps from this one on are made again: what was trained of them before counts no more."""
        if first is None:
            self._history = StepHistory()  # the script counts anew, and nobody knows from where
            return
        lost, since = self._history.roll_back(first - 1, self.now)
        if lost:
            fault = self._fault or len(self.faults)
            self.book.move(since, self.now, LedgerState.REDONE, fault=fault, source=_TRAINED)
            if fault:
                self.faults[fault - 1] = replace(self.faults[fault - 1], steps_lost=lost)

    @_on.register
    def _(self, event: events.TrainingProgress) -> None:
        moves = self._history.last is None or event.step > self._history.last
        if event.generation != self.generation or self._state not in RUNNING:
            return
        if self._state is LedgerState.HUNG and moves:
            self._close_fault(recovered=True, at=self.now)
            self._go(self._resume, fault=0)
        self._account(event.step, event.ago, event.checkpoint, event.data)

    @_on.register
    def _(self, event: events.WorkersGone) -> None:
        if event.generation != self.generation:
            return
        if event.step is not None:
            self._account(event.step, event.ago, event.checkpoint, event.data)
        if self._state is LedgerState.STOPPING:
            self._go(LedgerState.FORMING)

    def _account(self, step: int, ago: float, checkpoint: float, data: float) -> None:
        """What the ranks measured themselves, up to this step."""
        if not self._trains:
            return
        at = max(self._trained_since, self.now - _ns(ago))
        for state, seconds in ((LedgerState.CHECKPOINT, checkpoint), (LedgerState.DATA_WAIT, data)):
            more = _ns(seconds) - self._waited[state]
            if more > 0:
                self._waited[state] += more
                self.book.move(self._trained_since, self.now, state, amount=more, fault=0, source=_TRAINED)
        self._count_stragglers(step)
        self._history.made(step, at)

    @_on.register
    def _(self, event: events.StragglerChanged) -> None:
        self._count_stragglers(event.over if event.over is not None else event.since)
        if event.over is None:
            number = len(self.faults) + 1
            self.faults.append(_slow_fault(number, event, self.now))
            self._slow[event.node, event.ranks] = event, number
        else:
            for node, ranks in [each for each in self._slow if each[0] == event.node]:
                if not set(ranks) - set(event.ranks):  # else some of them are slow still
                    _, number = self._slow.pop((node, ranks))
                    self.faults[number - 1] = replace(self.faults[number - 1], ended=self.now, recovered=True)
        self.slow = max((each for each, _ in self._slow.values()), key=lambda each: each.excess, default=None)

    def _count_stragglers(self, step: int) -> None:
        """All wait for the slowest: of several at once, only that one costs anything."""
        if self._slow:
            worst, number = max(self._slow.values(), key=lambda each: each[0].excess)
            steps = step - max(self._slowed_to, worst.since)
            if steps > 0:
                more, slowed = _ns(worst.excess) * steps, LedgerState.SLOWED
                self.book.move(self._trained_since, self.now, slowed, amount=more, fault=number, source=_TRAINED)
        self._slowed_to = max(self._slowed_to, step)

    @_on.register
    def _(self, event: events.HangNamed) -> None:
        if event.generation != self.generation or self._state not in RUNNING or self._state is LedgerState.HUNG:
            return
        self._resume = self._state
        number = len(self.faults) + 1
        at = self._since(event.ago, LedgerState.HUNG, number)
        ranks = ", ".join(map(str, event.ranks[:4]))
        place = f"rank {ranks} on {', '.join(event.nodes[:4])}" if event.ranks else ", ".join(event.nodes[:4])
        fault = Fault(
            number=number,
            at=at,
            generation=event.generation,
            kind="hang",
            cause=event.kind,
            place=place,
            text=event.sentence,
            noticed=self.now,
        )
        self._new_fault(fault)
        self._go(LedgerState.HUNG, number)

    @_on.register
    def _(self, event: events.PlannedChange) -> None:
        if self._state not in RUNNING or not event.changes:
            return
        number = len(self.faults) + 1
        fault = fault_of(number, event.generation, event.changes[0], at=self.now, noticed=self.now)
        self._new_fault(replace(fault, text=whys(event.changes)))
        self._go(LedgerState.DRAINING, number)

    @_on.register
    def _(self, event: events.GenerationEnding) -> None:
        if event.also:
            self._explain(event)
            return
        if self._state not in RUNNING:
            return
        planned = is_planned(event.reason)
        known = self.faults[self._fault - 1] if self._fault else None
        hung = named(event.reason)[0] == "hang"
        expected = {LedgerState.HUNG: hung, LedgerState.DRAINING: planned}.get(self._state, False)
        if expected and known is not None and known.ended is None:
            number = self._fault  # what was named or planned now ends the generation
            if hung:
                self._since(event.ago, LedgerState.HUNG, number)
        else:
            number = len(self.faults) + 1
            at = self._since(event.ago, LedgerState.HUNG if hung else LedgerState.DETECTING, number)
            self._new_fault(fault_of(number, event.generation, event.reason, at=at, noticed=self.now))
        self._go(LedgerState.STOPPING, number)

    def _explain(self, event: events.GenerationEnding) -> None:
        """Another reason has come to it: it may be the root of the first."""
        if self._fault and explains(event.reason) and self.faults[self._fault - 1].kind in ("rank failed", "hang"):
            self._name_root(event.reason, event.ago)

    def _name_root(self, reason: EndReason, ago: float) -> None:
        """It was this that happened, and that may have been before what was heard of first."""
        kind, cause, place = named(reason)
        at = self._since(ago, LedgerState.HUNG if kind == "hang" else LedgerState.DETECTING, self._fault)
        fault = self.faults[self._fault - 1]
        self.faults[self._fault - 1] = replace(
            fault, kind=kind, cause=cause, place=place, text=whys([reason]), at=min(at, fault.at)
        )

    @_on.register
    def _(self, event: events.WorkerFailed) -> None:
        if self._fault:
            self._name_root(event.failure, event.ago)

    @_on.register
    def _(self, event: events.TaskRelaunched) -> None:
        """Where the task trains, the job waits for it; else the others go on, and it costs nothing."""
        if event.generation != self.generation or self._state not in RUNNING:
            return
        number = len(self.faults) + 1
        at = max(self.began or 0, self.now - _ns(event.ago))
        fault = fault_of(number, event.generation, event.failure, at=at, noticed=self.now)
        fault = replace(fault, kind=RELAUNCHED)
        if not event.trains:
            self.faults.append(replace(fault, ended=self.now, recovered=True))
            return
        self._since(event.ago, LedgerState.DETECTING, number)
        self._new_fault(fault)
        self._trains = False
        self._go(LedgerState.STARTING, number)

    @_on.register
    def _(self, event: events.JobOver) -> None:
        self.over = event
        if event.success and not self._counted:
            # The script made no step that anybody knows of, and yet it was not starting up all the time.
            source = frozenset({LedgerState.STARTING})
            self.book.move(self.began or 0, self.now, LedgerState.UNKNOWN, fault=0, source=source)
        self._close_fault(recovered=False, at=self.now)


def _slow_fault(number: int, event: events.StragglerChanged, now: int) -> Fault:
    ranks = ", ".join(map(str, event.ranks[:4]))
    return Fault(
        number=number,
        at=now,
        generation=event.generation,
        kind="straggler",
        cause="straggler",
        place=f"rank {ranks} on {event.node}",
        text=event.sentence,
        noticed=now,
    )


def _ns(seconds: float) -> int:
    """Never negative: no clock makes time that is still to come."""
    return max(0, round(seconds * SECOND))
