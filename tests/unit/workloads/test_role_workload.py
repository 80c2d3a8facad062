"""What a task of a job with roles finds in its environment."""

from __future__ import annotations

import json

from launches import assignment, launch
from outlast.protocol.roles import TaskRole
from outlast.settings.settings import Settings
from outlast.workloads.role_job import RoleWorkload
from outlast.workloads.workload import Attachments

ROLES = (
    TaskRole(name="chief", count=1),
    TaskRole(name="worker", count=2),
    TaskRole(name="evaluator", count=1, command=("eval",)),
)
ADDRESSES = ("h:1", "h:2", "h:3", "h:4")


def environment(local_rank: int) -> dict[str, str]:
    workload = RoleWorkload(launch(roles=ROLES, nproc=4), Settings())
    offered = Attachments(board="b", addresses=ADDRESSES, life=3)
    base = {"HOME": "/h", "OUTLAST_TOKEN": "secret"}
    return workload.environment(assignment(generation=5), local_rank, base, offered)


def test_a_task_knows_its_slot_its_life_and_where_everybody_is() -> None:
    found = environment(2)
    assert (found["OUTLAST_TASK"], found["OUTLAST_ROLE"], found["OUTLAST_LIFE"]) == ("worker-1", "worker", "3")
    assert (found["OUTLAST_GENERATION"], found["HOME"]) == ("5", "/h")
    assert "OUTLAST_TOKEN" not in found
    assert json.loads(found["OUTLAST_CLUSTER"]) == {
        "cluster": {"chief": ["h:1"], "worker": ["h:2", "h:3"], "evaluator": ["h:4"]},
        "task": {"type": "worker", "index": 1},
    }


def test_tensorflow_finds_no_evaluator_in_its_cluster() -> None:
    found = json.loads(environment(3)["TF_CONFIG"])
    assert found == {
        "cluster": {"chief": ["h:1"], "worker": ["h:2", "h:3"]},
        "task": {"type": "evaluator", "index": 0},
    }


def test_a_role_has_its_own_command_or_the_jobs() -> None:
    workload = RoleWorkload(launch(roles=ROLES, nproc=4), Settings())
    assert workload.command(3) == ("eval",)
    assert workload.command(0) == launch().command
