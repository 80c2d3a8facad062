"""All that the page shows, folded from events and views. Pure: time is passed in, and nothing is sent from here.

What is shown is a set of frames. Each has a version that grows when its content changes, so every browser can be sent
what it lacks, however slow it is, and nothing is queued for anybody.
"""

from __future__ import annotations

from typing import Any

import msgspec

from outlast.dashboard.headline import Headline, ended, headline
from outlast.dashboard.pace import PaceHistory, PaceSample, typical
from outlast.dashboard.ranks import nodes_frame, ordered, ranks_frame
from outlast.dashboard.story import EventRow, gap, row
from outlast.dashboard.text import shown
from outlast.events import events
from outlast.events.numbered import NumberedEvent
from outlast.events.sentences import diagnosed
from outlast.ledger.accountant import Accountant
from outlast.ledger.states import SECOND
from outlast.ledger.summary import FaultCost, LedgerSummary, summarize
from outlast.observe import EventGap
from outlast.protocol.views import JobView, NodeView

MOST_ROWS = 4000  # events that are kept for the page
MOST_FAULTS = 500  # the newest, with what they cost


class Contact(msgspec.Struct, frozen=True):
    """Whether somebody answers for the job, and since when that is so."""

    live: bool
    since: float
    line: str = ""


class NowFrame(msgspec.Struct, frozen=True, kw_only=True):
    """The header, and what stands beside it."""

    job: str
    run: str
    time: float
    headline: Headline
    phase: str
    generation: int
    term: int
    step: int | None
    seconds: float | None  # that a step takes the median rank
    slowest: float | None
    members: int
    here: int
    spares: int
    wanted: int
    ranks: int
    restarts: int
    allowed: int
    snapshot: tuple[int, float] | None  # step, time of day
    last_fault: str
    excluded: tuple[tuple[str, str, float | None], ...]  # place, why, seconds left
    over: bool


class FaultMark(msgspec.Struct, frozen=True):
    """What a fault cost."""

    at: float
    seconds: float
    steps_lost: int
    cause: str
    place: str
    planned: bool


class LedgerFrame(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time went."""

    wall: float
    time: dict[str, float]  # seconds by state
    goodput: float
    steps_lost: int
    mtbf: float | None
    faults: tuple[FaultMark, ...]


class PageState:
    """One job as the page shows it."""

    def __init__(self) -> None:
        self.run = ""
        self.rows: list[EventRow] = []
        self.last = 0  # number of the newest event
        self.pace = PaceHistory()
        self.frames: dict[str, tuple[int, bytes]] = {}  # name: version, JSON
        self._nodes: dict[str, NodeView] = {}
        self._view: JobView | None = None
        self._contact = Contact(True, 0.0)
        self._over: events.JobOver | None = None
        self._accountant = Accountant()
        self._sums: LedgerSummary | None = None
        self._sums_of = 0  # the number of the last event in it
        self._progress: tuple[int, int, float] | None = None  # generation, step, time

    # -- what comes in

    def told(self, told: NumberedEvent | EventGap, now: float) -> None:
        """The next event."""
        if isinstance(told, EventGap):
            self._append(gap(told, now))
            return
        if told.number <= self.last:
            return
        self.last = told.number
        event = told.event
        self._accountant.read(told)
        if isinstance(event, events.TrainingProgress):
            self._progressed(event, told.time)
            return
        self._append(row(told))
        if isinstance(event, events.GenerationEnding | events.JobOver):
            self.pace.pause(told.time)
        if isinstance(event, events.JobOver):
            self._over = event
            if self._view is not None:  # nobody may be left to ask for another one
                self._put("now", self._now(self._view, None))
            self._account(told.time)

    def seen(self, view: JobView) -> None:
        """What is going on. A view without nodes says nothing about them: what was known of them stays."""
        if self.run and view.run != self.run:
            self._begin_again()
        self.run, self._view = view.run, view
        nodes = ordered(view)
        if nodes:
            self._nodes = {node.node: node for node in nodes}
            self._put("nodes", nodes_frame(nodes))
            self._put("ranks", ranks_frame(view.generation, nodes))
        sample = _sample(view)
        if sample is not None and view.phase == "running" and view.event <= self.last:
            self.pace.add(sample)  # not before all that was told earlier: samples are in the order of time
        self._put("now", self._now(view, sample))
        self._account(view.time)

    def contact(self, live: bool, now: float, line: str = "") -> None:
        """Whether somebody answers for the job."""
        if live != self._contact.live or line != self._contact.line:
            since = self._contact.since if live == self._contact.live else now
            self._contact = Contact(live, since, line)
        self._put("contact", self._contact)

    # -- what goes out

    def rows_after(self, run: str, number: int) -> tuple[bool, list[EventRow]]:
        """What a browser lacks that has the rows of this run up to a number; and whether it has to start anew."""
        if run != self.run or number > self.last or (self.rows and number < self.rows[0].n):
            return True, self.rows
        at = next((at for at, each in enumerate(reversed(self.rows)) if each.n <= number), len(self.rows))
        return False, self.rows[len(self.rows) - at :]

    def node_of(self, rank: int) -> str | None:
        """The node that a rank is on, by the name that is its own for one life of its agent."""
        nodes = (each for each in self._nodes.values() if each.first_rank is not None)
        return next((each.node for each in nodes if 0 <= rank - (each.first_rank or 0) < each.workers), None)

    def rank(self, number: int) -> dict[str, Any] | None:
        """All that is known of one rank."""
        for node in self._nodes.values():
            if node.first_rank is not None and 0 <= number - node.first_rank < node.workers:
                pace = next((each for each in node.paces if each.rank == number), None)
                return {
                    "rank": number,
                    "local_rank": number - node.first_rank,
                    "node": shown(node.name),
                    "state": node.state,
                    "connected": node.connected,
                    "step": pace.last if pace else None,
                    "seconds": pace.step if pace else None,
                    "sections": {shown(name): seconds for name, seconds in pace.sections.items()} if pace else {},
                    "busy": pace.busy if pace else None,
                    "waited": shown(pace.waited) if pace else "",
                }
        return None

    @property
    def job(self) -> str:
        """Its name, as the page shows it."""
        return shown(self._view.job) if self._view is not None else ""

    @property
    def ranks(self) -> int:
        """How many there are, with those of spares."""
        return sum(node.workers for node in self._nodes.values())

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self._over is not None or (self._view is not None and self._view.outcome is not None)

    # -- parts

    def _begin_again(self) -> None:
        self.rows, self.last, self._over = [], 0, None
        self.pace = PaceHistory()
        self._accountant, self._sums = Accountant(), None
        self._progress = None

    def _progressed(self, event: events.TrainingProgress, time: float) -> None:
        """Steps that were made before anybody looked: their pace on average."""
        made, before = (event.generation, event.step, time - event.ago), self._progress
        self._progress = made
        if before is not None and before[0] == made[0] and made[1] > before[1]:
            seconds = (made[2] - before[2]) / (made[1] - before[1])
            self.pace.add(PaceSample(round(made[2], 2), made[1], round(seconds, 6)))

    def _append(self, new: EventRow) -> None:
        self.rows.append(new)
        if len(self.rows) > MOST_ROWS:
            del self.rows[: MOST_ROWS // 10]

    def _put(self, name: str, frame: msgspec.Struct) -> None:
        version, before = self.frames.get(name, (0, b""))
        if (data := msgspec.json.encode(frame)) != before:
            self.frames[name] = (version + 1, data)

    def _account(self, now: float) -> None:
        """The ledger up to now. The book itself is kept by events alone: later ones may yet say what this time was."""
        books = self._accountant
        if books.began is None:
            return
        if self._sums is None or self._sums_of != self.last:
            self._sums, self._sums_of = summarize(books), self.last
        sums = self._sums
        since = 0.0 if sums.over else max(0.0, now - sums.until)
        time = {**sums.time, sums.state: sums.time.get(sums.state, 0.0) + since}
        wall = sums.wall + since
        frame = LedgerFrame(
            wall=round(wall, 3),
            time={state: round(seconds, 3) for state, seconds in time.items()},
            goodput=time.get("productive", 0.0) / wall if wall else 0.0,
            steps_lost=sums.steps_lost,
            mtbf=wall / sums.failures if sums.failures else None,
            faults=tuple(_mark(each) for each in sums.faults[-MOST_FAULTS:]),
        )
        self._put("ledger", frame)

    def _now(self, view: JobView, sample: PaceSample | None) -> NowFrame:
        snapshot = view.snapshot
        return NowFrame(
            job=self.job,
            run=view.run,
            time=round(view.time, 1),
            headline=headline(view, trains=sample is not None) if self._over is None else ended(self._over),
            phase=view.phase,
            generation=view.generation,
            term=view.term,
            step=sample.step if sample else None,
            seconds=sample.seconds if sample else None,
            slowest=sample.slowest if sample else None,
            members=view.members,
            here=view.here,
            spares=view.spares,
            wanted=view.wanted,
            ranks=view.ranks,
            restarts=view.restarts,
            allowed=view.allowed,
            snapshot=(snapshot.step, snapshot.saved_at) if snapshot else None,
            last_fault=shown(diagnosed(view.last_fault)) if view.last_fault else "",
            excluded=tuple((shown(each), shown(ban.why), ban.seconds) for each, ban in view.excluded.items()),
            over=self.over,
        )


def _sample(view: JobView) -> PaceSample | None:
    ranks = [pace for node in view.nodes if node.member for pace in node.paces]
    told = ranks or ([view.progress] if view.progress is not None else [])
    median = typical([pace.step for pace in told])
    if median is None:
        return None
    slowest = max(pace.step for pace in told) if view.nodes else None
    step = max(pace.last for pace in told)
    return PaceSample(round(view.time, 2), step, round(median, 6), None if slowest is None else round(slowest, 6))


def _mark(cost: FaultCost) -> FaultMark:
    fault = cost.fault
    return FaultMark(
        at=round(fault.at / SECOND, 2),
        seconds=round(cost.seconds, 3),
        steps_lost=fault.steps_lost,
        cause=shown(fault.cause),
        place=shown(fault.place),
        planned=fault.planned,
    )
