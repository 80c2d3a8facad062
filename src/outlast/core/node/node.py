"""The node: what an agent does with its workers. The other half of the job's rules.

It starts a generation only when told, only once, only with nothing else alive, and only while it holds a lease.
It stops its workers when told, when one of them fails, and when its lease runs out: whoever cannot reach
the coordinator must assume that the others go on without it.

It obeys one coordinator at a time, and never one of an older term than it has obeyed before. For a while after each
answer it joins no other; when that time has passed and none can be reached, it may have to host the next one.

Its parts: `LocalGeneration` (the workers of the newest one), `Conversation` and `Allegiance` (with whom it talks, and
whom it obeys), `NodeCourse` (start, stop, leave), `Orders` (what it is told), `NodeReports` (what it tells).
"""

from __future__ import annotations

from outlast.core.node import inputs
from outlast.core.node.allegiance import Allegiance
from outlast.core.node.commands import Command, Show
from outlast.core.node.course import NodeCourse
from outlast.core.node.generation import LocalGeneration
from outlast.core.node.inputs import Cleared, Connected, Event, Exited
from outlast.core.node.orders import Orders
from outlast.core.node.reports import NodeReports
from outlast.core.node.state import NodeState
from outlast.core.tick import Tick
from outlast.protocol.hangs import Seen
from outlast.protocol.membership import Leaving
from outlast.protocol.paces import Paces
from outlast.protocol.shards import Hands


class Node:
    """The decisions of one life of one agent.

    >>> from outlast.protocol.succession import Standing, Term
    >>> node = Node("a")
    >>> node.handle(Connected(Standing(Term(1, "a"), True)), now=0.0)[0].first
    True
    """

    _reports_class, _course_class, _orders_class = NodeReports, NodeCourse, Orders  # tests break each of them

    def __init__(self, me: str, store_port: int = 0, *, ranks: int = 1) -> None:
        self.state = NodeState(me, store_port, ranks)
        self._reports = self._reports_class(self.state)
        self._course = self._course_class(self.state, self._reports)
        self._orders = self._orders_class(self.state, self._reports, self._course)

    @property
    def allegiance(self) -> Allegiance:
        return self.state.allegiance

    @property
    def current(self) -> LocalGeneration:
        """The newest generation that was started here."""
        return self.state.current

    @property
    def leaving(self) -> Leaving:
        return self.state.leaving

    @property
    def hands(self) -> Hands | None:
        """The shards that its ranks have and have done, for `Join`."""
        return self.state.shards.memo.statement()

    def deadline(self) -> float | None:
        """When `Tick` is due, if nothing else happens before."""
        return self._course.deadline()

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event in; what comes out is to be done in this order."""
        s = self.state
        s.out = []
        well = isinstance(event, Cleared) or (isinstance(event, Exited) and event.failure is None)
        if self._course.is_leased() and now >= s.conversation.lease_end and not well:
            # An agent that was held up itself finds its workers killed for that, and it is no failure of theirs.
            self._course.cut_off(now)
        if isinstance(event, inputs.Received):
            self._orders.received(event.message, now)
        elif isinstance(event, Connected):
            s.conversation.open(now)
            s.allegiance.meet(event.standing)
            s.hangs.look, s.shards.asked = 0, False
            self._reports.connected(event.held, now)
        elif isinstance(event, inputs.Disconnected):
            self._course.disconnected(now)
        elif isinstance(event, Exited):
            self._course.exited(event, now)
        elif isinstance(event, Cleared):
            self._course.cleared(event.generation, event.kept, now)
        elif isinstance(event, inputs.Leave):
            self._course.leave(event.how, now)
        elif isinstance(event, inputs.Wished):
            self._course.wished(event.wish, now)
        elif isinstance(event, inputs.NotHosted):
            s.allegiance.not_hosted(now)
        elif isinstance(event, inputs.Inquired):
            s.out += s.shards.inquire(event, s.conversation.connected)
        elif isinstance(event, Tick):
            self._course.tick(now)
        else:
            self._noticed(event, now)
        return s.out

    def _noticed(self, event: inputs.Noticed, now: float) -> None:
        """Something was seen, measured or found here: the coordinator is told what it did not know."""
        s, current = self.state, self.state.current
        news = False
        if isinstance(event, inputs.Holds):
            self._reports.holds(event.held, now)
        elif isinstance(event, inputs.Kept):
            news = self._course.kept(event.count, now)
        elif isinstance(event, inputs.KeepsUp):
            self._reports.keeps_up(event.stride, now)
        elif isinstance(event, inputs.Measured):
            news = s.hangs.measured(event.longest, event.round)
        elif isinstance(event, inputs.Examined):
            if s.conversation.connected:
                self._reports.tell(now)  # first: the port of the next round's store is in it
                s.out.append(Show(event.findings))
        elif isinstance(event, inputs.Decided):
            news = event.generation == current.number and current.decide(event.failure)
        elif isinstance(event, inputs.TasksChanged):
            if event.generation == current.number and any(each.trains for each in event.relaunches):
                current.training = None  # its next step is news
            self._reports.tasks(event.tasks, event.relaunches, now)
        elif isinstance(event, inputs.Trained):  # also by workers that were told to end
            news = event.training.generation == current.number and current.train(event.training)
        elif not current.runs(event.generation):
            return
        elif isinstance(event, inputs.Late):
            s.hangs.late(event.ending, now)
            news = True
        elif isinstance(event, inputs.Halting):
            news = current.halt(event.halted)
        elif isinstance(event, inputs.Observed):
            if event.number == s.hangs.look:
                s.out.append(Show(Seen(event.generation, event.number, event.observations)))
        elif s.conversation.connected:
            s.out.append(Show(Paces(event.generation, event.paces)))
        if news:
            self._reports.tell(now)
