"""A job with roles: what a task finds in its environment. TensorFlow finds `TF_CONFIG`, others the same by our name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from outlast.launch import Launch
from outlast.protocol.generations import Assignment
from outlast.protocol.roles import TaskRole
from outlast.settings.settings import Settings
from outlast.workloads.torch_job import WITHHELD, is_our_python
from outlast.workloads.workload import Attachments, Preload, Workload

BESIDE = "evaluator"  # TensorFlow wants it to be no part of the cluster


class RoleWorkload(Workload):
    """The tasks of `outlast run --role NAME=COUNT`."""

    def __init__(self, launch: Launch, settings: Settings) -> None:
        self._launch = launch
        self._settings = settings
        self._tasks = [(role, index) for role in launch.roles for index in range(role.count)]

    def command(self, local_rank: int) -> tuple[str, ...]:
        """The argv of one task: its role's own command, or the job's."""
        return self._tasks[local_rank][0].command or self._launch.command

    def environment(
        self, assignment: Assignment, local_rank: int, base: Mapping[str, str], attachments: Attachments
    ) -> dict[str, str]:
        """The agent's own environment, and where this task and all others are."""
        role, index = self._tasks[local_rank]
        cluster = cluster_of(self._launch.roles, attachments.addresses)
        task = {"type": role.name, "index": index}
        within = {name: at for name, at in cluster.items() if name != BESIDE}
        return {
            **{name: value for name, value in base.items() if name not in WITHHELD},
            "OUTLAST_BOARD": attachments.board,
            "OUTLAST_GENERATION": str(assignment.generation),
            "OUTLAST_ROLE": role.name,
            "OUTLAST_TASK": f"{role.name}-{index}",
            "OUTLAST_LIFE": str(attachments.life),
            "OUTLAST_CLUSTER": json.dumps({"cluster": cluster, "task": task}),
            "TF_CONFIG": json.dumps({"cluster": within, "task": task}),
            "TORCHELASTIC_RUN_ID": self._launch.job,
            "TORCHELASTIC_RESTART_COUNT": str(assignment.restart_count),
        }

    def preload(self, base: Mapping[str, str]) -> Preload | None:  # noqa: ARG002
        """None: tasks of different roles import different things."""
        return None

    @property
    def hooked(self) -> bool:
        """Whether its interpreter is ours: then the exception that a task ends with is known."""
        return self._settings.step_hook and all(is_our_python(self.command(at)) for at in range(len(self._tasks)))


def cluster_of(roles: Sequence[TaskRole], addresses: Sequence[str]) -> dict[str, Any]:
    """The addresses of all tasks, by role.

    >>> cluster_of([TaskRole(name="chief", count=1), TaskRole(name="worker", count=2)], ["h:1", "h:2", "h:3"])
    {'chief': ['h:1'], 'worker': ['h:2', 'h:3']}
    """
    left = iter(addresses)
    return {role.name: [next(left) for _ in range(role.count)] for role in roles}
