"""What a coordinator says to a node, and what the node does about it."""

from __future__ import annotations

from outlast.core.node.commands import (
    Agree,
    Announce,
    Blame,
    Examine,
    HaltWorkers,
    Lease,
    Observe,
    Retire,
    SetStride,
    TakeMeasures,
)
from outlast.core.node.course import NodeCourse
from outlast.core.node.reports import NodeReports
from outlast.core.node.state import NodeState
from outlast.protocol.checks import Probe
from outlast.protocol.generations import Halt, Start, Stop
from outlast.protocol.hangs import Agreed, Look, Measure, Named
from outlast.protocol.membership import Ack, Leaving, Notice, Over, Refuse, Welcome
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.requests import DrainRequest
from outlast.protocol.shards import Told
from outlast.protocol.snapshots import Stride
from outlast.protocol.succession import Charter, Resign


class Orders:
    """The messages of coordinators to one node."""

    def __init__(self, state: NodeState, reports: NodeReports, course: NodeCourse) -> None:
        self._state = state
        self._reports = reports
        self._course = course

    def received(self, message: FromCoordinator, now: float) -> None:
        s = self._state
        if not s.shards.asked or isinstance(message, Welcome):
            s.out += s.shards.repeat()
        if isinstance(message, Ack | Start | Stop | Over) and message.term:
            if not s.allegiance.heed(message.term, now):
                return
            s.conversation.hear(now)
        if isinstance(message, Ack):
            self._answered(message.seq, message.leased, now)
        elif isinstance(message, Welcome):
            s.allegiance.welcome = message
            s.conversation.beat_at = now + message.heartbeat
        elif isinstance(message, Start):
            s.allegiance.adopt(message.charter)
            self._answered(message.ack, True, now)
            self._course.start(message.assignment, message.keeping, now)
        elif isinstance(message, Stop):
            self._course.stop_up_to(message.generation, message.graceful, now)
        elif isinstance(message, Over):
            self._course.finish(message)
        elif isinstance(message, DrainRequest):
            if s.leaving is not Leaving.DRAIN:  # it may be said again, before our report has come
                s.out.append(Announce(f"{message.who} asks this node to drain"))
            self._course.leave(Leaving.DRAIN, now)
        elif isinstance(message, Refuse):
            self._course.finish(Over(False, message.reason))
        elif isinstance(message, Charter):
            s.allegiance.adopt(message)
        elif isinstance(message, Resign):
            s.allegiance.release(message.term, now)
        else:
            self._passed_on(message)

    def _answered(self, seq: int, leased: bool, now: float) -> None:
        s, conversation = self._state, self._state.conversation
        conversation.acked = max(conversation.acked, seq)
        self._reports.heard(conversation.acked)
        if not leased:
            # It needs this node's support before it may act, and sees it in the next report.
            if not conversation.echoed:
                conversation.echoed = True
                self._reports.tell(now)
            return
        conversation.echoed = False
        if s.allegiance.retires():
            s.out.append(Retire())
        if conversation.renew(seq):
            s.out.append(Lease(conversation.lease_end))

    def _passed_on(self, message: FromCoordinator) -> None:
        """What is for the workers here, or for those who look after them."""
        s, current = self._state, self._state.current
        if isinstance(message, Told):
            s.out += s.shards.hear(message)
        elif isinstance(message, Notice):
            s.out.append(Announce(message.text))
        elif isinstance(message, Stride):
            s.out.append(SetStride(message.stride))
        elif isinstance(message, Measure):
            if message.round > s.hangs.measures.round:
                s.out.append(TakeMeasures(message.round))
        elif isinstance(message, Agreed):
            s.hangs.agreed = max(s.hangs.agreed, message.measures.round)
            s.out.append(Agree(message.measures.longest))
        elif isinstance(message, Probe):
            if current.clear and s.stays:
                s.out.append(Examine(message))
        elif isinstance(message, Look | Named | Halt) and current.runs(message.generation):
            if isinstance(message, Look):
                s.hangs.look = message.number
                s.out.append(Observe(message.number, message.interrupt))
            elif isinstance(message, Halt):
                known = current.halted.at if current.halted is not None else 0
                s.out.append(HaltWorkers(max(message.at, known), message.durable))
            elif message.number == s.hangs.look:
                s.out.append(Blame(message))
