"""What follows from the end of a task: its own restart, its role's, the job's, or the end of the job."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from outlast.core.tasks.memory import doubled
from outlast.protocol.roles import RestartScope, TaskReport, TaskRole


class TaskAction(str, Enum):
    """What to do now."""

    NOTHING = "nothing"
    STOP = "stop"  # these tasks: their role is restarted as a whole
    RELAUNCH = "relaunch"  # these tasks
    FAIL = "fail"  # the generation has failed
    FINISH = "finish"  # the job is done: what still runs is stopped


class TaskDecision(msgspec.Struct, frozen=True):
    """What follows from the end of a task."""

    action: TaskAction
    tasks: tuple[int, ...] = ()
    used: int = 0
    allowed: int = 0
    more_memory: bool = False  # the one that ended gets more than it had


NOTHING = TaskDecision(TaskAction.NOTHING)


class TaskSlot:
    """A place in the job that one process after the other fills."""

    def __init__(self, role: TaskRole, index: int) -> None:
        self.role = role
        self.name = f"{role.name}-{index}"
        self.index = index
        self.life = 0
        self.state = "finished"
        self.memory = role.memory

    def report(self) -> TaskReport:
        return TaskReport(self.name, self.life, self.state, self.memory)


class TaskTable:
    """The tasks of one node, over all generations.

    >>> table = TaskTable([TaskRole(name="chief", count=1, ends=True), TaskRole(name="worker", count=2)])
    >>> table.begin()
    >>> table.ended(1, succeeded=False).action.value, [task.name for task in table.slots]
    ('relaunch', ['chief-0', 'worker-0', 'worker-1'])
    """

    def __init__(self, roles: Sequence[TaskRole]) -> None:
        self.slots = [TaskSlot(role, index) for role in roles for index in range(role.count)]
        self._deciding = any(role.ends for role in roles)
        self._used: dict[str, int] = {}

    @property
    def reports(self) -> tuple[TaskReport, ...]:
        """All tasks, as they are now."""
        return tuple(slot.report() for slot in self.slots)

    @property
    def trainers(self) -> tuple[int, ...]:
        """The tasks whose steps count as those of the job; all, where no role ends it."""
        return tuple(at for at, slot in enumerate(self.slots) if slot.role.ends or not self._deciding)

    def begin(self) -> None:
        """A generation starts: every task with a new life, every role with all of its restarts."""
        self._used = {}
        for slot in self.slots:
            slot.life += 1
            slot.state = "running"

    def relaunched(self, at: int) -> None:
        """A new process has taken its place."""
        self.slots[at].life += 1
        self.slots[at].state = "running"

    def ended(self, at: int, *, succeeded: bool, out_of_memory: bool = False) -> TaskDecision:
        """A task's process has ended. `out_of_memory`: killed at its own limit; it gets twice as much."""
        slot = self.slots[at]
        stopped, slot.state = slot.state == "stopping", "stopped"
        grown = out_of_memory and self._grow(slot)
        if stopped:
            return self._when_stopped(slot)
        if succeeded:
            slot.state = "finished"
            return self._when_finished()
        used, allowed = self._used.get(slot.role.name, 0), slot.role.restarts
        if slot.role.restart is RestartScope.JOB or used >= allowed:
            return TaskDecision(TaskAction.FAIL, (at,), used, allowed, grown)
        self._used[slot.role.name] = used + 1
        if slot.role.restart is RestartScope.TASK:
            slot.state = "restarting"
            return TaskDecision(TaskAction.RELAUNCH, (at,), used + 1, allowed, grown)
        others = [each for each in self._of(slot.role) if self.slots[each].state == "running"]
        for each in others:
            self.slots[each].state = "stopping"
        if others:
            return TaskDecision(TaskAction.STOP, tuple(others), used + 1, allowed, grown)
        return msgspec.structs.replace(self._when_stopped(slot), more_memory=grown)

    def _when_stopped(self, slot: TaskSlot) -> TaskDecision:
        """Those of a role that restarts as a whole start together, when the last has gone."""
        role = self._of(slot.role)
        if any(self.slots[each].state == "stopping" for each in role):
            return NOTHING
        # Those that are being started again already need no other start.
        tasks = tuple(each for each in role if self.slots[each].state in ("stopped", "finished"))
        for each in tasks:
            self.slots[each].state = "restarting"
        return TaskDecision(TaskAction.RELAUNCH, tasks, self._used.get(slot.role.name, 0), slot.role.restarts)

    def _when_finished(self) -> TaskDecision:
        if any(self.slots[at].state != "finished" for at in self.trainers):
            return NOTHING
        running = [at for at, slot in enumerate(self.slots) if slot.state != "finished"]
        return TaskDecision(TaskAction.FINISH, tuple(running))

    def _of(self, role: TaskRole) -> tuple[int, ...]:
        return tuple(at for at, slot in enumerate(self.slots) if slot.role is role)

    def _grow(self, slot: TaskSlot) -> bool:
        """Give it twice the memory, as far as it may have that. Returns whether it has more now."""
        before, slot.memory = slot.memory, doubled(slot.memory, slot.role.max_memory)
        return slot.memory > before
