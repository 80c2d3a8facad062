"""The tasks of a job with roles on this node: their decisions, their addresses, and what is told of them."""

from __future__ import annotations

from msgspec.structs import replace

from outlast.agent.processes.ports import StorePort
from outlast.core.node.inputs import TasksChanged
from outlast.core.tasks.tasks import TaskDecision, TaskTable
from outlast.launch import Launch
from outlast.protocol.failures import Failure
from outlast.protocol.roles import Relaunch
from outlast.workloads.workload import Attachments

HERE = "127.0.0.1"  # all tasks are on one machine


class RoleTasks:
    """Over all generations of one agent. Addresses are new for each generation, and the same for all lives in it."""

    def __init__(self, launch: Launch) -> None:
        self.table = TaskTable(launch.roles)
        self._store_ports = ""
        self._ports: list[StorePort] = []
        self._relaunches = 0

    def begin(self) -> None:
        """A generation starts. Raises OSError where no port is left."""
        self.close()
        for _ in self.table.slots:
            self._ports.append(StorePort(self._store_ports))
        self.table.begin()

    def close(self) -> None:
        """Let go of the addresses."""
        for port in self._ports:
            port.release()
        self._ports = []

    def offered(self, local_rank: int, offered: Attachments) -> Attachments:
        """What this task gets on top."""
        addresses = tuple(f"{HERE}:{port.port}" for port in self._ports)
        return replace(offered, addresses=addresses, life=self.table.slots[local_rank].life)

    @property
    def names(self) -> list[str]:
        """Of all tasks, by local rank."""
        return [slot.name for slot in self.table.slots]

    def life(self, local_rank: int) -> tuple[str, int]:
        """A task's name, and the number of its process."""
        slot = self.table.slots[local_rank]
        return slot.name, slot.life

    def news(self, generation: int) -> TasksChanged:
        """How the tasks are."""
        return TasksChanged(generation, self.table.reports)

    def relaunch(self, generation: int, failure: Failure, decision: TaskDecision) -> TasksChanged:
        """The same, and that one of them has failed and is being started again."""
        self._relaunches += 1
        slot = self.table.slots[failure.local_rank]
        told = Relaunch(
            self._relaunches,
            generation,
            failure,
            life=slot.life + 1,
            used=decision.used,
            allowed=decision.allowed,
            memory=slot.memory,
            more_memory=decision.more_memory,
            trains=failure.local_rank in self.table.trainers,
        )
        return TasksChanged(generation, self.table.reports, (told,))
