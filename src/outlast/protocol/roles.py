"""Roles of a job whose tasks are not alike, and what an agent tells of such tasks."""

from __future__ import annotations

from enum import Enum

import msgspec

from outlast.protocol.failures import Failure
from outlast.protocol.fields import Count, Name


class RestartScope(str, Enum):
    """Who is restarted when a task fails."""

    TASK = "task"  # that task alone
    ROLE = "role"  # all tasks of its role
    JOB = "job"  # everybody: a new generation, on new addresses


class TaskRole(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of task, and how many of them there are."""

    name: str
    count: int
    command: tuple[str, ...] = ()
    restart: RestartScope = RestartScope.TASK
    restarts: int = 3  # of its tasks by themselves, in one generation
    ends: bool = False  # the job is over when all tasks of such roles have finished
    memory: int = 0  # bytes that a task may use; 0: no limit
    max_memory: int = 0  # bytes up to which that is doubled after each kill for want of memory


class TaskReport(msgspec.Struct, frozen=True, array_like=True):
    """One task, as its agent sees it."""

    name: Name  # its slot, as `worker-0`
    life: Count  # the number of its process: 1 for the first
    state: Name  # "running", "stopping", "stopped", "restarting" or "finished"
    memory: Count = 0  # bytes that it may use; 0: no limit


class Relaunch(msgspec.Struct, frozen=True, array_like=True):
    """A task has failed and was started again, while the others went on."""

    number: Count  # grows by one with each, over the life of the agent
    generation: Count
    failure: Failure
    life: Count  # of the process that takes its place
    used: Count
    allowed: Count
    memory: Count = 0  # bytes that the new process may use; 0: no limit
    more_memory: bool = False  # which is more than its predecessor had
    trains: bool = False  # no steps are made without it
