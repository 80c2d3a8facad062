"""What people ask of a running job, and what becomes of it: restart, drain, scale, stop."""

from __future__ import annotations

from outlast.core.job.commands import Remember
from outlast.core.job.course import JobCourse
from outlast.core.job.phase import Phase
from outlast.core.job.replies import Replies
from outlast.core.job.state import JobState
from outlast.core.membership.admission import unanswerable
from outlast.events.events import Ending
from outlast.events.phrases import count, listed
from outlast.events.reasons import RestartRequested, ScaleRequested
from outlast.protocol.requests import Answer, Ask, DrainRequest
from outlast.protocol.succession import Resign


class Asks:
    """Answers those who may ask."""

    def __init__(self, state: JobState, replies: Replies, course: JobCourse) -> None:
        self._state = state
        self._replies = replies
        self._course = course

    def answer(self, ask: Ask, now: float) -> Answer:
        """Do what is asked for, if it can be done."""
        s = self._state
        s.idle = ask.what == "resign"  # it is asked again and again: what changes nothing is not written down
        if why := unanswerable(s.rules, ask):
            return Answer(False, why)
        if s.phase is Phase.OVER:
            return Answer(False, f"nothing to {ask.what}: the job is over")
        if not s.authority.acts(now):
            why = "this coordinator may not decide now: too few nodes are with it; try again"
            return Answer(False, why, later=True)
        does = {
            "restart": self._restart,
            "drain": self._drain,
            "scale": self._scale,
            "stop": self._stop,
            "resign": self._resign,
        }
        return does[ask.what](ask, now)

    def _restart(self, ask: Ask, now: float) -> Answer:
        s = self._state
        if s.phase is not Phase.RUNNING:
            return Answer(False, f"nothing to restart: the job is {s.phase.value}")
        self._course.plan(RestartRequested(ask.who), now)
        self._course.settle(now)
        return Answer(True, f"job {s.rules.job}: generation {s.generation} ends, and the next one starts")

    def _drain(self, ask: Ask, now: float) -> Answer:  # noqa: ARG002
        s = self._state
        here = {name: node for name, node in s.nodes.here() if ask.subject in (name, node.name)}
        if not here:
            names = sorted({node.name for _, node in s.nodes.here()})
            return Answer(False, f"no node {ask.subject!r} is here, only: {listed(names) or 'none'}")
        if len(here) > 1:
            return Answer(False, f"several nodes have that name: give one of {listed(sorted(here))}")
        [(name, node)] = here.items()
        if node.leaving:
            return Answer(True, f"node {node.name} drains already")
        node.drained_by = ask.who
        s.out.send(name, DrainRequest(ask.who))
        left = s.admissions.world(len(s.nodes.here()) - 1)
        waits = "" if left else f"; the job then waits for more nodes, it needs {s.rules.min_nodes}"
        return Answer(True, f"job {s.rules.job}: node {node.name} drains{waits}")

    def _scale(self, ask: Ask, now: float) -> Answer:
        s = self._state
        r = s.rules
        wanted = int(ask.subject) if ask.subject.isdecimal() else 0
        if not r.min_nodes <= wanted <= r.max_nodes or wanted % r.node_unit:
            unit = f", in steps of {r.node_unit}" if r.node_unit > 1 else ""
            return Answer(False, f"cannot scale to {ask.subject!r}: --nnodes={r.min_nodes}:{r.max_nodes}{unit}")
        if wanted == s.admissions.most:
            return Answer(True, f"job {r.job}: {count(wanted, 'node')} are wanted already")
        s.admissions.most = wanted
        s.out.add(Remember(s.memory()))
        for heir in s.succession.successors:
            if heir.node in s.nodes and s.nodes[heir.node].connected:
                s.out.send(heir.node, self._replies.charter(heir.node, now))
        if s.phase is Phase.RUNNING and len(s.current.roster) > wanted:
            self._course.plan(ScaleRequested(ask.who, wanted), now)
        self._course.settle(now)
        members = len(s.current.roster)
        return Answer(True, f"job {r.job}: {count(wanted, 'node')} wanted, {members} in generation {s.generation}")

    def _resign(self, ask: Ask, now: float) -> Answer:  # noqa: ARG002
        """The host of this coordinator has left: the first member hosts the next one, and no worker ends for that."""
        s = self._state
        host = s.nodes.get(s.term.by)
        if host is None or not host.leaving or s.term.by in s.current.roster:
            return Answer(False, "the coordinator's node has not left the job")
        # Who does not know yet that only the newest generation has a say could not make another coordinator.
        informed = [node for _, node in s.nodes.here(s.current.roster) if node.report.known == s.authority.known]
        steady = s.phase is Phase.RUNNING and s.authority.settled and not s.current.change.planned
        if not steady or len(informed) < len(s.current.roster) or s.rules.alone:
            return Answer(False, "no generation runs undisturbed: not now")
        s.idle, s.resigned = False, True
        s.authority.resign()
        for name, _ in s.nodes.here():
            s.out.send(name, Resign(s.term.number))
        return Answer(True, f"job {s.rules.job}: another node hosts the coordinator")

    def _stop(self, ask: Ask, now: float) -> Answer:
        s = self._state
        self._course.end(False, Ending.STOPPED, f"stopped by {ask.who}", now)
        return Answer(True, f"job {s.rules.job} stops")
