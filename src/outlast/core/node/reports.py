"""What a node tells its coordinator: all that it knows, in every report."""

from __future__ import annotations

from outlast.core.node.commands import Tell
from outlast.core.node.state import NodeState
from outlast.core.recovery.failures import worth_telling
from outlast.protocol.membership import MOST_RELAUNCHES, Report
from outlast.protocol.roles import Relaunch, TaskReport
from outlast.protocol.snapshots import Held


class NodeReports:
    """The reports of one node."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._stride = 1
        self._held: tuple[Held, ...] = ()
        self._held_since = 0  # the first report that says so, to the coordinator that this node is connected to
        self._tasks: tuple[TaskReport, ...] = ()
        self._tasks_since = 0  # likewise
        self._relaunches: list[tuple[Relaunch, int]] = []  # that no coordinator has heard of yet

    def connected(self, held: tuple[Held, ...] | None, now: float) -> None:
        """A coordinator hears from this node for the first time on this connection."""
        s = self._state
        if s.current.clear and held is not None:
            self._held = held
        self._held_since = s.conversation.seq + 1 if self._held else 0
        self._tasks_since = s.conversation.seq + 1 if self._tasks else 0
        self.tell(now, first=True)

    def holds(self, held: tuple[Held, ...], now: float) -> None:
        """These snapshots are in memory."""
        if held == self._held:
            return
        self._held, self._held_since = held, self._state.conversation.seq + 1
        if self._state.current.clear:
            self.tell(now)

    def tasks(self, tasks: tuple[TaskReport, ...], relaunches: tuple[Relaunch, ...], now: float) -> None:
        """How the tasks are, and which of them were started again."""
        since = self._state.conversation.seq + 1
        self._relaunches += [(each, since) for each in relaunches]
        if tasks != self._tasks or relaunches:
            self._tasks, self._tasks_since = tasks, since
            self.tell(now)

    def heard(self, acked: int) -> None:
        """A coordinator has heard this report, and published what was new in it."""
        self._relaunches = [(each, since) for each, since in self._relaunches if since > acked]

    def keeps_up(self, stride: int, now: float) -> None:
        """One in so many snapshots can be copied."""
        if stride != self._stride:
            self._stride = stride
            self.tell(now)

    def tell(self, now: float, *, first: bool = False) -> None:
        """Report, if anybody can be told."""
        s = self._state
        conversation, current = s.conversation, s.current
        if not conversation.connected:
            return
        runs = current.runs(current.number)
        report = Report(
            seq=conversation.report(now),
            floor=s.floor,
            generation=current.number,
            state=current.state,
            clear=current.clear,
            store_port=s.store_port,
            leaving=s.leaving,
            failures=worth_telling(current.failures),
            acked=conversation.acked,
            known=s.allegiance.known,
            wish=s.wish,
            measures=s.hangs.measures,
            agreed=s.hangs.agreed,
            overdue=s.hangs.overdue(now) if runs else None,
            halted=current.halted if runs else None,
            sent=now,
            held=self._held if conversation.acked < self._held_since else None,
            stride=self._stride,
            training=current.training,
            tasks=self._tasks if conversation.acked < self._tasks_since else None,
            relaunched=tuple(each for each, _ in self._relaunches[:MOST_RELAUNCHES]),
            kept=s.kept,
        )
        s.out.append(Tell(report, first))
