"""What nodes report, and what the job makes of it."""

from __future__ import annotations

from outlast.core.job.course import JobCourse
from outlast.core.job.phase import Phase
from outlast.core.job.replies import Replies
from outlast.core.job.state import JobState
from outlast.core.membership.member import Member, is_news, names_of
from outlast.core.recovery.failures import facts_of, seconds_ago
from outlast.events.events import (
    Calibrated,
    Ending,
    NodeExcluded,
    PlannedChange,
    TaskRelaunched,
)
from outlast.events.reasons import (
    DrainingNode,
    FencedNode,
    InheritedChange,
    NodesAhead,
    RankRequest,
    StoppedWorkers,
    ToldToStop,
)
from outlast.protocol.fields import LONGEST_REASON
from outlast.protocol.generations import Halted
from outlast.protocol.hangs import Agreed
from outlast.protocol.membership import (
    Leaving,
    Report,
    State,
    Wanted,
    Wish,
)
from outlast.protocol.snapshots import Stride


class Reports:
    """Reads the reports of all nodes."""

    def __init__(self, state: JobState, replies: Replies, course: JobCourse) -> None:
        self._state = state
        self._replies = replies
        self._course = course

    def reported(self, name: str, report: Report, now: float, *, again: bool = False) -> None:
        s = self._state
        node = s.nodes.get(name)
        if node is None or not node.connected:
            return
        known = node.report
        if report.seq < known.seq or (report.seq == known.seq and not again):
            s.idle = True
            return  # late or doubled: what it says is no longer true
        node.report = report
        news = node.heard(report.sent, now)
        changed = s.snapshots.told(name, report.held) or is_news(known, report)
        busy = self.is_busy
        repeated = node.repeated(report.acked)
        if repeated is not None:
            s.authority.supported(name, repeated)
        if report.known[:2] == s.authority.known[:2]:
            s.authority.knows(name)
        s.authority.settle(now)
        self.note_tasks(node, now)
        # A node that has become clear may be about to hear a `Start`, which says it as well.
        late = changed and not again and s.phase is Phase.STOPPING and node.clear
        if not late:
            self._replies.ack(name, node, now)
        if again or changed:
            self.digest(name, node, now)
            ends = report.generation == s.generation and node.stopped(s.generation)
            if ends and name in s.current.roster and s.phase is Phase.RUNNING:
                self._course.depart(StoppedWorkers((node.name,), late=True))  # by another coordinator, long ago
        if again or changed or busy:
            self._course.settle(now)
        if late and (s.phase is not Phase.RUNNING or name not in s.current.roster):
            self._replies.ack(name, node, now)
        if again or not changed or node.leaving:
            self._replies.remind(name, node, now)
        decisive = again or changed or news or busy or self.is_busy
        s.idle = not decisive and s.out.is_only_acks

    def note_tasks(self, node: Member, now: float) -> None:
        """How the tasks of a job with roles are there, and which were started again."""
        s, report = self._state, node.report
        if report.tasks is not None:
            node.tasks = report.tasks
        for each in report.relaunched:
            if each.number <= node.relaunches:
                continue
            node.relaunches = each.number
            (failure,) = node.aligned((each.failure,))
            s.last_fault = facts_of(failure)
            event = TaskRelaunched(
                generation=each.generation,
                task=failure.task,
                life=each.life,
                failure=s.last_fault,
                used=each.used,
                allowed=each.allowed,
                memory=each.memory,
                more_memory=each.more_memory,
                trains=each.trains,
                ago=seconds_ago(failure, now),
            )
            s.out.publish(event)

    @property
    def is_busy(self) -> bool:
        """Whether even a heartbeat may change what is decided, for it may bring the authority to do so."""
        s = self._state
        return bool(s.succession.powerless) or s.phase is Phase.GATHERING or not s.authority.settled

    def digest(self, name: str, node: Member, now: float) -> None:
        """Take a changed report to heart."""
        s = self._state
        report, current = node.report, s.current
        if report.leaving is Leaving.INTERRUPT:
            self._course.end(False, Ending.INTERRUPTED, f"interrupted on node {node.name}", now)
        if report.wish is not None:
            self.grant(name, node, report.wish, now)
        if s.phase is Phase.OVER:
            return
        s.admissions.place(name)
        if name not in current.roster:
            return
        leaves = report.leaving is Leaving.DRAIN and node.place not in s.admissions.excluded
        if leaves and name in current.unfinished and s.phase is not Phase.STOPPING:
            # Its workers run on until they are told to stop: what failed before is not a consequence.
            self._course.plan(ToldToStop() if s.rules.max_nodes == 1 else DrainingNode(node.name), now)
        if report.generation != s.generation:
            return
        if s.phase is Phase.RUNNING:
            self.follow(name, node, now)
        if report.state is State.CUT_OFF:
            self._course.depart(FencedNode(node.name))
        elif report.state is State.FAILED:
            self._course.failed(node.aligned(report.failures), now)
        elif report.state is State.FINISHED:
            current.finish(name)

    def follow(self, name: str, node: Member, now: float) -> None:
        """What a member says of the ranks that it runs."""
        s = self._state
        report, current = node.report, s.current
        self.calibrate(name, node)
        if s.snapshots.keeps_up(name, report.stride, current.roster):
            for each in current.roster:
                s.out.send(each, Stride(s.snapshots.stride))
        if report.overdue is not None:
            current.inquiry.hear(name, report.overdue)
        if report.halted is not None:
            self.halted(name, report.halted, now)

    def grant(self, name: str, node: Member, wish: Wish, now: float) -> None:
        """Do what a rank asks for. Its node says it again and again, perhaps to a coordinator that comes after us."""
        s = self._state
        current, request = s.current, RankRequest(node.name, wish.rank, wish.wanted.value, wish.reason)
        who = f"rank {wish.rank} on node {node.name}"
        running = s.phase in (Phase.RUNNING, Phase.GATHERING) and wish.generation == s.generation
        if wish.wanted is Wanted.STOP:
            self._course.end(False, Ending.STOPPED, f"{wish.reason} (stop, asked for by {who})", now)
        elif wish.wanted is Wanted.EXCLUDE_NODE:
            if node.place not in s.admissions.excluded:
                why = f"{wish.reason} (exclude_node, asked for by {who})"[:LONGEST_REASON]
                s.admissions.excluded[node.place] = why
                s.out.release(NodeExcluded(generation=s.generation, node=node.name, why=why, seconds=None))
            if name in current.roster and name in current.unfinished:
                self._course.depart(request)
        elif running and name in current.roster and name in current.unfinished:
            # One that ends already, because a rank has failed, does not become free of charge.
            self._course.depart(request)

    def calibrate(self, name: str, node: Member) -> None:
        s = self._state
        news = s.calibration.told(name, node.report.measures, s.current.roster)
        if isinstance(news, Agreed) and (summary := s.calibration.summary()):
            longest = dict(news.measures.longest)
            s.out.publish(Calibrated(generation=s.generation, longest=longest, sentence=summary))
        if news is not None:
            self._replies.tell_all(news)

    def halted(self, name: str, halted: Halted, now: float) -> None:
        """A member's ranks are about to halt, or have; perhaps for a change that a coordinator before us planned."""
        s = self._state
        change = s.current.change
        if not change.planned:
            self._course.plan(InheritedChange(), now)
        named = change.named
        if halt := change.hear(name, halted):
            self._replies.tell_all(halt)
            if not named and change.able:
                s.out.publish(PlannedChange(generation=s.generation, changes=change.why))

    def catch_up(self, now: float) -> None:
        """What members of a generation that was taken over have been told meanwhile, by whoever coordinated them."""
        s = self._state
        current = s.current
        members = [s.nodes[name] for name in current.roster]
        stopped = StoppedWorkers(names_of(node for node in members if node.stopped(current.number)))
        if stopped.nodes and current.hearsay:
            self._course.depart(stopped)
        later = names_of(node for node in members if node.report.generation > current.number)
        if later:
            # Somebody has judged its end before, and formed another on it that those who count never heard of.
            self._course.depart(NodesAhead(later))
        for name in current.roster:
            self.digest(name, s.nodes[name], now)
        if stopped.nodes and s.phase is Phase.RUNNING:
            self._course.depart(stopped)
        current.hearsay = False
