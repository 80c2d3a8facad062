"""What an agent has to know of the tasks that it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import msgspec

from outlast.protocol.generations import Assignment


class Attachments(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent offers to one task: paths and addresses, empty where there is none."""

    board: str = ""  # where it says how it is (`outlast.board`)
    arena: str = ""  # where its snapshots go
    partner: str = ""  # the host that gets copies of them
    in_place: str = ""  # where it says that it can be restarted in place (`agent/processes/in_place.py`)
    chaos: str = ""  # where faults that a task has to do itself are left for it (`worker/chaos.py`)
    requests: str = ""  # where it asks for shards (`agent/processes/worker_requests.py`)
    addresses: tuple[str, ...] = ()  # of a job with roles: where each task listens, HOST:PORT, by local rank
    life: int = 1  # likewise: the number of its process


class Preload(msgspec.Struct, frozen=True):
    """What a process should have done already when a task is forked from it."""

    command: tuple[str, ...]
    environment: dict[str, str]
    modules: list[str]
    early: bool  # as soon as the agent starts, not only when the first task has shown what it imports


class Workload(ABC):
    """One kind of task, with all that was asked for about it."""

    @abstractmethod
    def command(self, local_rank: int) -> tuple[str, ...]:
        """The argv of one task."""

    @abstractmethod
    def environment(
        self, assignment: Assignment, local_rank: int, base: Mapping[str, str], attachments: Attachments
    ) -> dict[str, str]:
        """The whole environment of one task: `base`, the agent's own, and what the workload adds. Raises ValueError."""

    @abstractmethod
    def preload(self, base: Mapping[str, str]) -> Preload | None:
        """What to import before tasks are forked; None: they are always started anew."""

    @property
    @abstractmethod
    def hooked(self) -> bool:
        """Whether its steps are counted by a hook in the interpreter."""

    def succeeded(self, exit_code: int) -> bool:
        """Whether a task that ended like this has done what it should."""
        return exit_code == 0
