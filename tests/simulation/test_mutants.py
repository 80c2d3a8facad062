"""The simulator has teeth: each of these broken cores is caught. Several are bugs that the real one once had."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pytest
from invariants import Violation
from simulator import Simulation

from outlast.core.hangs.calibration import CalibrationRounds
from outlast.core.job.commands import Command
from outlast.core.job.course import JobCourse
from outlast.core.job.inputs import Event, Lost
from outlast.core.job.job import Job
from outlast.core.job.phase import Phase
from outlast.core.job.replies import Replies
from outlast.core.job.reports import Reports
from outlast.core.membership.admissions import Admissions
from outlast.core.membership.member import Member
from outlast.core.membership.roster import Candidate
from outlast.core.node.allegiance import Allegiance
from outlast.core.node.course import NodeCourse
from outlast.core.node.node import Node
from outlast.core.node.orders import Orders
from outlast.core.node.reports import NodeReports
from outlast.core.succession import succession as succession_module
from outlast.core.succession.authority import Authority, Electorate
from outlast.events.events import NodeLeft
from outlast.events.reasons import FencedNode, InheritedChange, JoinedNodes
from outlast.protocol.generations import Assignment
from outlast.protocol.membership import Ack, Join, Leaving, Report, State, Welcome
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.snapshots import Keeping
from outlast.protocol.succession import Charter, Standing, Term

MOST_SEEDS = 3000
FIRST = {  # where to begin: nobody wants to wait for what few seeds show
    "AsksOnce": 600,
    "calibration": 895,
    "LeasesWithoutAuthority": 8512,
    "ActsAtOnce": 13,
    "BeginsAnew": 314,
    "Guesses": 3256,
    "StartsWithoutALease": 977,
    "StartsAgain": 175,
    "StopsAtLeisure": 1798,
    "LeasesFromTheAnswer": 389,
    "HidesTheCut": 300,
    "NoPromise": 1831,
    "ForgetsTheOld": 1401,
    "DropsTheNewest": 243,
    "HearingCounts": 157,
    "floor": 225,
    "BelievesLateReports": 255,
}


class NoBarrier(JobCourse):
    """Forms the next generation without waiting for the workers of the old one."""

    def while_stopping(self, now: float) -> None:
        self._state.nodes.waiting.clear()
        super().while_stopping(now)


class NobodyIsAGhost(Job):
    """Takes every lost node's workers for dead at once."""

    def _lost(self, event: Lost, now: float) -> None:
        super()._lost(msgspec.structs.replace(event, until=None), now)


class BelievesLateReports(Reports):
    """Takes every report for the newest.

    By itself this breaks nothing that the witness sees: a node counts as clear only with a floor that no late
    report can have. So it is tried together with a job that ignores the floor.
    """

    def reported(self, name: str, report: Report, now: float, *, again: bool = False) -> None:
        if name in self._state.nodes:
            node = self._state.nodes[name]
            node.report = msgspec.structs.replace(node.report, seq=-1)
        super().reported(name, report, now, again=again)


class ChargesLosses(JobCourse):
    """Charges a restart for failures that come from a lost node."""

    def while_stopping(self, now: float) -> None:
        self._state.current.reasons = []
        super().while_stopping(now)


class ChargesJoins(JobCourse):
    """Charges a restart for failures that come from stopping for a newcomer."""

    def while_stopping(self, now: float) -> None:
        self._state.current.reasons = [why for why in self._state.current.reasons if not isinstance(why, JoinedNodes)]
        super().while_stopping(now)


class ChargesTheCutOff(JobCourse):
    """Charges a restart for failures that come from a node that was cut off, and stopped its workers."""

    def while_stopping(self, now: float) -> None:
        self._state.current.reasons = [why for why in self._state.current.reasons if not isinstance(why, FencedNode)]
        super().while_stopping(now)


class ForgivesEverything(JobCourse):
    """Never charges a restart."""

    def while_stopping(self, now: float) -> None:
        self._state.current.reasons.append(InheritedChange())
        super().while_stopping(now)


class NeverGivesUp(JobCourse):
    """Forgets when it wanted to stop waiting for nodes."""

    def deadline(self) -> float | None:
        pend, self._state.admissions.pend = self._state.admissions.pend, None
        due = super().deadline()
        self._state.admissions.pend = pend
        return due


class ForgetsGhosts(JobCourse):
    """Forgets when the workers of a lost node are dead."""

    def deadline(self) -> float | None:
        return None if self._state.phase is Phase.STOPPING else super().deadline()


class WakesForNothing(JobCourse):
    """Has a deadline, while it stops, that only forming a generation moves."""

    def deadline(self) -> float | None:
        due = super().deadline()
        return self._state.empty if self._state.phase is Phase.STOPPING and self._state.empty is not None else due


class ReadyForEver(Admissions):
    """Goes on counting on nodes that were ready once."""

    def place(self, name: str) -> None:
        before = self._nodes.ready.get(name)
        super().place(name)
        if before is not None:
            self._nodes.ready[name] = before


class KeepsTheReady(Job):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._state.admissions.__class__ = ReadyForEver


class SaysThingsOnce(Replies):
    """Never repeats what a node may not have heard."""

    def remind(self, name: str, node: Member, now: float) -> None:
        pass


class OneIsEnough(JobCourse):
    """Takes the first node that finishes for all."""

    def while_running(self, now: float) -> None:
        if len(self._state.current.unfinished) < len(self._state.current.roster):
            self._state.current.unfinished.clear()
        super().while_running(now)


class Remembers(Job):
    """Decides by something that is in no event."""

    lives = 0

    def _joined(self, join: Join, now: float) -> None:
        Remembers.lives += 1
        super()._joined(join, now)
        if Remembers.lives % 2:
            self._state.out.publish(NodeLeft(generation=0, node="an odd one"))


class StartsWithoutALease(NodeCourse):
    def start(self, assignment: Assignment, keeping: Keeping, now: float) -> None:
        conversation = self._state.conversation
        lease, conversation.lease_end = conversation.lease_end, float("inf")
        super().start(assignment, keeping, now)
        conversation.lease_end = lease


class StartsAgain(NodeCourse):
    """Forgets what it has started, and what it was told never to start."""

    def start(self, assignment: Assignment, keeping: Keeping, now: float) -> None:
        if self._state.current.clear:
            self._state.current.number = self._state.floor = 0
        super().start(assignment, keeping, now)


class OutlivesItsLease(Orders):
    """Does not care whether anybody still hears it."""

    def received(self, message: FromCoordinator, now: float) -> None:
        super().received(message, now)
        if isinstance(message, Ack):
            self._state.conversation.lease_end = float("inf")


class StopsAtLeisure(NodeCourse):
    """Once told to stop, takes its whole grace, also beyond its lease."""

    def is_leased(self) -> bool:
        return super().is_leased() and not self._state.current.stopping


class LeasesFromTheAnswer(Orders):
    """Counts its lease from the answer, not from the question."""

    def received(self, message: FromCoordinator, now: float) -> None:
        super().received(message, now)
        welcome = self._state.allegiance.welcome
        if isinstance(message, Ack) and message.leased and welcome is not None:
            self._state.conversation.lease_end = now + welcome.lease


class WaitsForever(NodeCourse):
    """Never hangs up on a silent coordinator, and reports only what changes."""

    def deadline(self) -> float | None:
        return self._state.conversation.lease_end if self.is_leased() else None


class HidesTheCut(NodeReports):
    """Stops its workers when it is cut off, and does not say so."""

    def tell(self, now: float, *, first: bool = False) -> None:
        if self._state.current.state is State.CUT_OFF:
            self._state.current.state = State.RUNNING
        super().tell(now, first=first)


class CannotLeave(NodeReports):
    """Tells nobody that it wants to leave."""

    def tell(self, now: float, *, first: bool = False) -> None:
        leaving, self._state.leaving = self._state.leaving, Leaving.NO
        super().tell(now, first=first)
        self._state.leaving = leaving


# -- succession


class LeasesWithoutAuthority(Replies):
    """Renews the lease of everybody who comes."""

    def ack(self, name: str, node: Member, now: float) -> None:
        node.acked(node.report.seq, now)
        self._state.out.send(name, Ack(node.report.seq, self._state.term.number, True))


class ActsAtOnce(JobCourse):
    """Does not wait until the leases of those who are absent have ended."""

    def while_gathering(self, now: float) -> None:
        super().while_gathering(now)
        if self._state.succession.gathering.took_over:
            self._state.succession.free = None
            super().while_gathering(now) if self._state.phase is Phase.GATHERING else None


class PlainNumbers(JobCourse):
    """Numbers a generation as if no other coordinator could have done so."""

    def form(self, size: int, now: float) -> None:
        number, newest = self._state.term, self._state.authority.newest
        self._state.succession.term = Term(newest.formed if newest is not None else 1, number.by)
        super().form(size, now)
        self._state.succession.term = number


class BeginsAnew(Job):
    """Knows neither its journal nor what its agent knows."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **{**kwargs, "memory": None, "charter": None})  # type: ignore[arg-type]


class Guesses(JobCourse):
    """Takes every failure that it finds for the reason why a generation was stopped."""

    def while_gathering(self, now: float) -> None:
        self._state.current.hearsay = False
        super().while_gathering(now)


class StartsAfresh(JobCourse):
    """Restarts everybody when it takes a job over."""

    def while_gathering(self, now: float) -> None:
        super().while_gathering(now)
        if self._state.phase is Phase.RUNNING:
            self.depart(InheritedChange())


class Faithless(Allegiance):
    """Joins any coordinator at any time."""

    def choose(self, standings: Sequence[Standing], now: float) -> int | None:
        self._promised = now
        return super().choose(standings, now)


class NoPromise(Node):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.allegiance.__class__ = Faithless


class KeepsItToItself(NodeReports):
    """Never says that it has heard an answer."""

    def tell(self, now: float, *, first: bool = False) -> None:
        self._state.conversation.acked = 0
        super().tell(now, first=first)


class NeverHosts(NodeCourse):
    def host_at(self) -> float | None:
        return None


class HearingCounts(Authority):
    """Counts support from when it is heard of."""

    clock = 0.0

    def supported(self, node: str, since: float) -> None:
        super().supported(node, max(since, HearingCounts.clock))


class Listens(Job):
    def handle(self, event: Event, now: float) -> list[Command]:
        HearingCounts.clock = now
        return super().handle(event, now)


class HalfIsEnough(Authority):
    def _enough(self, electorate: Electorate, votes: int) -> bool:
        return super()._enough(electorate, votes + 1 if votes else 0)


class NobodyComesBack(Authority):
    """Takes all who are gone for dead."""

    def went(self, node: str) -> None:
        self.ended(node)


class KeepsPresuming(Authority):
    """Takes the members of a new generation for supporters for ever."""

    def form(self, members: Iterable[str], head: str, *, generation: int, term: int, now: float) -> None:
        super().form(members, head, generation=generation, term=term, now=now)
        self.electorates[0].presumed = float("inf")


class ForgetsTheOld(Authority):
    """Asks only the newest electorate, of which the one before may not have heard."""

    def form(self, members: Iterable[str], head: str, *, generation: int, term: int, now: float) -> None:
        super().form(members, head, generation=generation, term=term, now=now)
        del self.electorates[1:]
        self._changed()


class DropsTheNewest(Authority):
    """Does not adopt what nodes know of a newer generation."""

    def adopt(self, charter: Charter) -> None:
        if not self.electorates:
            super().adopt(charter)


# -- what workers ask, and how much is said


class AnswersEveryStop(NodeCourse):
    """Reports at once when it is told to stop, also what it has been told before: the answer to that is a reminder."""

    def stop_up_to(self, generation: int, graceful: bool, now: float) -> None:
        super().stop_up_to(generation, graceful, now)
        self._reports.tell(now)


class AsksOnce(Orders):
    """Does not ask a coordinator that has just come what the one before has not answered."""

    def received(self, message: FromCoordinator, now: float) -> None:
        if not isinstance(message, Welcome):
            super().received(message, now)
            return
        memo = self._state.shards.memo
        waiting, memo._waiting = memo._waiting, {}
        super().received(message, now)
        memo._waiting = waiting


class HidesItsHands(Node):
    """Does not say which shards its ranks have."""

    @property
    def hands(self) -> None:
        return None


JOB_PARTS = {JobCourse: "_course_class", Replies: "_replies_class", Reports: "_reports_class"}
NODE_PARTS = {NodeCourse: "_course_class", NodeReports: "_reports_class", Orders: "_orders_class"}


def broken(whole: type[Any], parts: dict[type[Any], str], mutant: type[Any]) -> type[Any]:
    """A job or node of which this part is broken; or the mutant, if it is broken as a whole."""
    names = [name for part, name in parts.items() if issubclass(mutant, part)]
    return type(mutant.__name__, (whole,), {names[0]: mutant}) if names else mutant


def job_of(mutant: type[Any]) -> type[Job]:
    return broken(Job, JOB_PARTS, mutant)


def node_of(mutant: type[Any]) -> type[Node]:
    return broken(Node, NODE_PARTS, mutant)


def caught(job: type[Job] = Job, node: type[Node] = Node, *, mutant: str = "", whole: bool = False) -> tuple[int, str]:
    """The first seed that breaks an invariant, and which one."""
    first = FIRST.get(mutant or (node.__name__ if job is Job else job.__name__), 0)
    for seed in range(first, first + MOST_SEEDS):
        simulation = Simulation(seed, job=job, node=node, whole=whole)
        try:
            simulation.run()
            if job is Remembers:
                simulation.replay()
        except Violation as violation:
            return seed, violation.invariant
    return first + MOST_SEEDS, ""


@pytest.mark.parametrize(
    ("mutant", "invariant"),
    [
        (NoBarrier, "one generation"),
        (NobodyIsAGhost, "one generation"),
        (ChargesLosses, "only failures cost restarts"),
        pytest.param(ChargesJoins, "only failures cost restarts", marks=pytest.mark.thorough),
        (ChargesTheCutOff, "only failures cost restarts"),
        (ForgivesEverything, "failures cost restarts"),
        (NeverGivesUp, "nobody is stuck"),
        (ForgetsGhosts, "nobody is stuck"),
        pytest.param(WakesForNothing, "no busy loop", marks=pytest.mark.thorough),
        (KeepsTheReady, "nobody is stuck"),
        (SaysThingsOnce, "nobody is stuck"),
        (OneIsEnough, "success is earned"),
        (Remembers, "replay gives the same decisions"),
        (LeasesWithoutAuthority, "one coordinator acts"),
        (ActsAtOnce, "one generation"),
        (PlainNumbers, "one roster per generation"),
        (BeginsAnew, "one roster per generation"),
        (Guesses, "only failures cost restarts"),
        (StartsAfresh, "a killed coordinator restarts nobody"),
    ],
)
def test_a_broken_job_is_caught(mutant: type[Any], invariant: str) -> None:
    assert caught(job=job_of(mutant))[1] == invariant


@pytest.mark.parametrize(
    ("mutant", "invariant"),
    [
        (StartsWithoutALease, "one generation"),
        (StartsAgain, "generations only grow"),
        (OutlivesItsLease, "one generation"),
        (StopsAtLeisure, "one generation"),
        (LeasesFromTheAnswer, "one generation"),
        (WaitsForever, "nobody is stuck"),
        (HidesTheCut, "only failures cost restarts"),
        (CannotLeave, "nobody is stuck"),
        (NoPromise, "a quorum goes on"),
        (KeepsItToItself, "nobody is stuck"),
        (NeverHosts, "a quorum goes on"),
    ],
)
def test_a_broken_node_is_caught(mutant: type[Any], invariant: str) -> None:
    assert caught(node=node_of(mutant))[1] == invariant


@pytest.mark.parametrize(
    ("mutant", "job", "invariant"),
    [
        (HearingCounts, Listens, "one coordinator acts"),
        (HalfIsEnough, Job, "one coordinator acts"),
        (NobodyComesBack, Job, "one coordinator acts"),
        (KeepsPresuming, Job, "one coordinator acts"),
        (ForgetsTheOld, Job, "one coordinator acts"),
        (DropsTheNewest, Job, "a killed coordinator restarts nobody"),
    ],
)
def test_a_broken_authority_is_caught(
    mutant: type[Authority], job: type[Job], invariant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(succession_module, "Authority", mutant)
    assert caught(job, mutant=mutant.__name__)[1] == invariant


@pytest.mark.parametrize(
    ("mutant", "invariant"),
    [
        (AnswersEveryStop, "few messages in a heartbeat"),
        (AsksOnce, "nobody is stuck"),
        (HidesItsHands, "whoever asks is answered"),
    ],
)
def test_a_node_that_is_broken_beyond_generations_is_caught(mutant: type[Any], invariant: str) -> None:
    assert caught(node=node_of(mutant), whole=True)[1] == invariant


def test_a_calibration_that_is_said_once_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CalibrationRounds, "lacks", lambda *_: None)
    assert caught(mutant="calibration", whole=True)[1] == "nobody is stuck"


def without_unit(available: int, *, least: int, most: int, unit: int) -> int:
    return min(available, most) if available >= least and unit else 0


def by_name(members: list[Candidate], **_: object) -> list[Candidate]:
    return sorted(members, key=lambda m: m.name, reverse=True)


@pytest.mark.parametrize(
    ("name", "broken_rule", "invariant"),
    [
        ("job.job.lease_of", lambda rules: 1.5 * rules.node_timeout, "one generation"),
        ("membership.roster.rank", by_name, "infrastructure ranks"),
        ("membership.admissions.world_of", without_unit, "the world's size"),
    ],
)
def test_a_broken_rule_is_caught(
    name: str, broken_rule: Callable[..., object], invariant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"outlast.core.{name}", broken_rule)
    assert caught(mutant=name)[1] == invariant


@pytest.mark.thorough
def test_a_floor_that_is_ignored_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Member, "clear", property(lambda node: node.report.clear))
    assert caught(mutant="floor")[1]


def test_late_reports_that_are_believed_are_caught_once_the_floor_does_not_protect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Member, "clear", property(lambda node: node.report.clear))
    assert caught(job=job_of(BelievesLateReports))[1] == "one generation"
