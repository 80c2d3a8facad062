"""A node's course: when its workers start and end, when it leaves, and when it looks for another coordinator."""

from __future__ import annotations

from outlast.core.node.commands import Exit, Hangup, Host, RefillWorkers, StartWorkers, StopWorkers
from outlast.core.node.generation import LocalGeneration
from outlast.core.node.inputs import Exited
from outlast.core.node.reports import NodeReports
from outlast.core.node.state import NodeState
from outlast.protocol.generations import Assignment
from outlast.protocol.membership import Leaving, Over, State, Wanted, Wish
from outlast.protocol.snapshots import Keeping

NOT_NEEDED = 1.0  # seconds: a node that is not told to start by then is not part of the next generation
REFILL_AGAIN = 60.0  # seconds, if processes do not come to their restartable function


class NodeCourse:
    """The workers of one node, and its own life."""

    def __init__(self, state: NodeState, reports: NodeReports) -> None:
        self._state = state
        self._reports = reports
        self._exited = False

    def deadline(self) -> float | None:
        """When `Tick` is due, if nothing else happens before."""
        s = self._state
        times = []
        if s.conversation.connected:
            times += [s.conversation.patience()] if s.current.clear else []
            times += [s.conversation.beat_at] if s.conversation.beat_at is not None else []
        elif (host_at := self.host_at()) is not None:
            times.append(host_at)
        if self.is_leased():
            times.append(s.conversation.lease_end)
        if s.refill_at is not None:
            times.append(s.refill_at)
        return min(times, default=None)

    def tick(self, now: float) -> None:
        s, conversation = self._state, self._state.conversation
        if conversation.connected and s.current.clear and now >= conversation.patience():
            conversation.hear(now)
            s.out.append(Hangup())
        elif conversation.beat_at is not None and now >= conversation.beat_at:
            self._reports.tell(now)
        host_at = self.host_at()
        if not conversation.connected and host_at is not None and now >= host_at:
            s.out.append(Host(s.allegiance.mandate()))
        if s.refill_at is not None and now >= s.refill_at:
            self._refill(now)

    def is_leased(self) -> bool:
        """Whether workers live that must end with the lease: also those that stop, whose grace may be longer."""
        s = self._state
        return not s.current.clear and s.current.shortest_grace > 0 and s.over is None

    def cut_off(self, now: float) -> None:
        """The others may be about to go on without this node: no worker may live on."""
        s = self._state
        s.floor = max(s.floor, s.current.number)
        if not s.current.stopping:
            s.current.state = State.CUT_OFF
            self._reports.tell(now)
        self._stop(0.0)

    def host_at(self) -> float | None:
        """When it is this node's turn to host the coordinator, should none be reached before."""
        return self._state.allegiance.host_at() if self._state.stays else None

    def start(self, assignment: Assignment, keeping: Keeping, now: float) -> None:
        s, number = self._state, assignment.generation
        if number <= s.floor or number <= s.current.number or not s.current.clear or not s.stays:
            return
        if now >= s.conversation.lease_end:
            return  # an order that was under way for so long may have been withdrawn since
        s.current = LocalGeneration(assignment)
        s.floor = number - 1
        s.kept = s.refill_at = None
        s.hangs.begin()
        s.shards.begin(number, assignment.first_rank, s.ranks)
        s.out.append(StartWorkers(assignment, keeping))
        self._reports.tell(now)

    def stop_up_to(self, generation: int, graceful: bool, now: float) -> None:
        s = self._state
        repeated = generation <= s.floor
        s.floor = max(s.floor, generation)
        if not s.current.clear and s.current.number <= generation:
            self._stop(None if graceful else self._grace())
        if not repeated:  # the coordinator repeats it in answer to a report: another report would have no end
            self._reports.tell(now)

    def exited(self, event: Exited, now: float) -> None:
        s = self._state
        if event.finished is not None:
            s.out += s.shards.finish(event.generation, event.finished, s.conversation.connected)
        current = s.current
        if event.generation != current.number or current.clear:
            return
        if current.told_to_stop or event.failure is None:
            return  # if it was told to stop: whatever its exit code is, it is no failure
        if current.fail(event.failure, event.patience):
            self._reports.tell(now)
            self._stop(self._grace())

    def cleared(self, generation: int, kept: int | None, now: float) -> None:
        s = self._state
        if generation != s.current.number or s.current.clear:
            return
        s.current.end()
        self._keep(kept, now)
        if s.current.stopping:
            s.floor = max(s.floor, generation)
        self._reports.tell(now)
        if s.over is not None or (s.leaving is not Leaving.NO and not s.conversation.connected):
            self._leave_alone()

    def kept(self, count: int, now: float) -> bool:
        """So many processes are parked. Returns whether that is news."""
        s = self._state
        if not s.current.clear or s.kept is None or count == s.kept:
            return False
        self._keep(count, now)
        return True

    def _keep(self, count: int | None, now: float) -> None:
        s = self._state
        welcome = s.allegiance.welcome
        s.kept = count
        if count is None or count >= s.ranks:
            s.refill_at = None
        elif s.refill_at is None and welcome is not None and welcome.refills:
            s.refill_at = now + NOT_NEEDED

    def _refill(self, now: float) -> None:
        """This node is not needed as it is: replace what died, so that it is whole when it is needed."""
        s = self._state
        s.refill_at = now + REFILL_AGAIN if s.stays else None
        if s.stays:
            s.out.append(RefillWorkers())

    def disconnected(self, now: float) -> None:
        s = self._state
        s.conversation.close()
        s.allegiance.part(now)
        if s.leaving is not Leaving.NO:
            self._leave_alone()

    def leave(self, how: Leaving, now: float) -> None:
        s = self._state
        if s.leaving is Leaving.INTERRUPT or how is s.leaving:
            return
        s.leaving = how
        self._reports.tell(now)
        if how is Leaving.INTERRUPT and not s.current.clear:
            self._stop(None)
        if not s.conversation.connected:
            self._leave_alone()

    def wished(self, wish: Wish, now: float) -> None:
        s = self._state
        if s.wish is not None and s.wish.wanted is Wanted.STOP:
            return  # there is nothing to wish for any more
        s.wish = wish
        excluded = wish.wanted is Wanted.EXCLUDE_NODE
        if excluded and s.leaving is Leaving.NO:
            s.leaving = Leaving.DRAIN
        self._reports.tell(now)
        if excluded and not s.current.clear:
            self._stop(self._grace())  # what this node could still do is not wanted
        if excluded and not s.conversation.connected:
            self._leave_alone()

    def finish(self, over: Over) -> None:
        """The job is over, or wants nothing of this node."""
        if self._state.over is None:
            self._state.over = over
            self._leave_alone()

    def _leave_alone(self) -> None:
        """There is no coordinator to wait for: stop what runs, and go."""
        s = self._state
        if not s.current.clear:
            self._stop(None)
        elif not self._exited:
            self._exited = True
            reason = "interrupted" if s.leaving is Leaving.INTERRUPT else "drained"
            s.out.append(Exit(s.over or Over(False, reason, left=True)))

    def _stop(self, grace: float | None) -> None:
        """Stop the workers, unless they are already stopping within that time."""
        s = self._state
        if s.current.stop(grace):
            s.out.append(StopWorkers(s.current.number, grace))

    def _grace(self) -> float:
        welcome = self._state.allegiance.welcome
        return max(welcome.restart_grace if welcome is not None else 0.0, self._state.current.patience)
