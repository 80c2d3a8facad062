"""Tasks of a job with roles: who restarts when one of them ends, how often, and when the job is done."""

from __future__ import annotations

import random

import pytest

from outlast.core.tasks.tasks import TaskAction, TaskTable
from outlast.protocol.roles import RestartScope, TaskRole

GIB = 1 << 30
CHIEF = TaskRole(name="chief", count=1, ends=True)
WORKERS = TaskRole(name="worker", count=2, restarts=2)
SERVERS = TaskRole(name="ps", count=2, restart=RestartScope.JOB)


def begun(*roles: TaskRole) -> TaskTable:
    table = TaskTable(roles)
    table.begin()
    return table


def states(table: TaskTable) -> dict[str, tuple[str, int]]:
    return {task.name: (task.state, task.life) for task in table.reports}


def test_a_worker_that_fails_restarts_alone_in_its_slot() -> None:
    table = begun(CHIEF, WORKERS, SERVERS)
    decision = table.ended(2, succeeded=False)
    assert (decision.action, decision.tasks, decision.used, decision.allowed) == (TaskAction.RELAUNCH, (2,), 1, 2)
    assert states(table)["worker-1"] == ("restarting", 1)
    table.relaunched(2)
    assert states(table) == {
        "chief-0": ("running", 1),
        "worker-0": ("running", 1),
        "worker-1": ("running", 2),
        "ps-0": ("running", 1),
        "ps-1": ("running", 1),
    }


def test_a_parameter_server_that_fails_is_the_end_of_the_generation() -> None:
    table = begun(CHIEF, WORKERS, SERVERS)
    assert table.ended(3, succeeded=False).action is TaskAction.FAIL
    table.begin()
    assert {life for _, life in states(table).values()} == {2}


def test_another_failure_during_a_restart_is_a_restart_of_its_own() -> None:
    table = begun(CHIEF, WORKERS)
    assert table.ended(1, succeeded=False).tasks == (1,)
    assert table.ended(2, succeeded=False).tasks == (2,)
    table.relaunched(1)
    assert table.ended(0, succeeded=False).tasks == (0,)
    table.relaunched(2)
    table.relaunched(0)
    assert {state for state, _ in states(table).values()} == {"running"}


def test_a_role_that_has_used_its_restarts_fails_the_generation_and_the_next_one_has_them_again() -> None:
    table = begun(CHIEF, WORKERS)
    for at in (1, 2):
        assert table.ended(at, succeeded=False).action is TaskAction.RELAUNCH
        table.relaunched(at)
    assert table.ended(1, succeeded=False).action is TaskAction.FAIL
    assert table.ended(0, succeeded=False).action is TaskAction.RELAUNCH  # the chief's restarts are its own
    table.begin()
    assert table.ended(1, succeeded=False).action is TaskAction.RELAUNCH


def test_a_role_that_restarts_as_a_whole_starts_when_its_last_task_has_gone() -> None:
    table = begun(CHIEF, TaskRole(name="reward", count=3, restart=RestartScope.ROLE))
    decision = table.ended(2, succeeded=False)
    assert (decision.action, decision.tasks) == (TaskAction.STOP, (1, 3))
    assert table.ended(3, succeeded=False).action is TaskAction.NOTHING  # it was told to: no failure of its own
    decision = table.ended(1, succeeded=True)
    assert (decision.action, decision.tasks, decision.used) == (TaskAction.RELAUNCH, (1, 2, 3), 1)


def test_the_job_is_done_when_the_tasks_that_end_it_have_finished() -> None:
    table = begun(TaskRole(name="chief", count=2, ends=True), WORKERS)
    assert table.ended(2, succeeded=True).action is TaskAction.NOTHING
    assert table.ended(0, succeeded=True).action is TaskAction.NOTHING
    decision = table.ended(1, succeeded=True)
    assert (decision.action, decision.tasks) == (TaskAction.FINISH, (3,))


def test_where_no_role_ends_the_job_all_tasks_have_to_finish() -> None:
    table = begun(WORKERS)
    assert table.ended(0, succeeded=True).action is TaskAction.NOTHING
    assert table.ended(1, succeeded=False).action is TaskAction.RELAUNCH
    table.relaunched(1)
    assert table.ended(1, succeeded=True) == table.ended(1, succeeded=True)
    assert table.ended(1, succeeded=True).tasks == ()


def test_the_steps_of_a_job_are_those_of_the_tasks_that_end_it() -> None:
    assert begun(WORKERS, CHIEF).trainers == (2,)
    assert begun(WORKERS).trainers == (0, 1)


def test_a_task_killed_at_its_limit_gets_twice_the_memory_up_to_its_bound() -> None:
    table = begun(TaskRole(name="chief", count=1, memory=4 * GIB, max_memory=10 * GIB, ends=True))
    seen = []
    for _ in range(3):
        decision = table.ended(0, succeeded=False, out_of_memory=True)
        table.relaunched(0)
        seen.append((table.reports[0].memory // GIB, decision.more_memory))
    assert seen == [(8, True), (10, True), (10, False)]
    table.begin()
    assert table.reports[0].memory == 10 * GIB  # what was learned is kept


def test_a_task_without_a_limit_has_none_after_the_machine_ran_out_of_memory() -> None:
    table = begun(CHIEF)
    assert table.ended(0, succeeded=False, out_of_memory=True).more_memory is False
    assert table.reports[0].memory == 0


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_lives_grow_restarts_are_bounded_and_nobody_is_forgotten(seed: int) -> None:
    """Ends in any order, also during restarts; afterwards each task runs, has finished, or the generation is over."""
    choose = random.Random(seed)
    roles = [
        TaskRole(
            name=f"role{number}",
            count=choose.randint(1, 3),
            restart=choose.choice(list(RestartScope)),
            restarts=choose.randint(0, 3),
            ends=choose.random() < 0.3,
        )
        for number in range(choose.randint(1, 4))
    ]
    table = begun(*roles)
    pending: set[int] = set()  # processes that are being started
    relaunches = 0
    for _ in range(40):
        alive = [at for at, task in enumerate(table.reports) if task.state in ("running", "stopping")]
        if pending and choose.random() < 0.5:
            at = choose.choice(sorted(pending))
            pending.remove(at)
            before = table.reports[at].life
            table.relaunched(at)
            assert table.reports[at].life == before + 1
            continue
        if not alive:
            break
        decision = table.ended(choose.choice(alive), succeeded=choose.random() < 0.2)
        if decision.action in (TaskAction.FAIL, TaskAction.FINISH):
            return
        if decision.action is TaskAction.RELAUNCH:
            assert not pending & set(decision.tasks)
            pending |= set(decision.tasks)
            relaunches += 1
    assert relaunches <= sum(role.restarts for role in roles)
    waiting = {at for at, task in enumerate(table.reports) if task.state == "restarting"}
    stopping = any(task.state == "stopping" for task in table.reports)
    assert waiting == pending
    assert not any(task.state == "stopped" for task in table.reports) or stopping
