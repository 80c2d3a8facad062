"""Failover strategies on a real Ray, by an extension that was written for DLRover; and snapshots beside Ray's store."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from jobs import SCRIPTS, WAITS
from ray_cluster import RayCluster, RayRun, actor_of, agent_of, gone, node_of, until

TRAIN = SCRIPTS.parent / "checkpoints" / "train.py"
EXTENSION = """
from outlast.dlrover import AgentFailureInfo, DynamicAgentFailoverExtension, FailoverStrategy


class Mine(DynamicAgentFailoverExtension):
    def get_user_failover_strategy(self, failure_info: AgentFailureInfo) -> FailoverStrategy:
        return FailoverStrategy.{strategy}
"""


def decided(ray: RayCluster, place: Path, strategy: str, nnodes: int = 2) -> RayRun:
    """A job whose extension always decides like this."""
    (place / "user_failover.py").write_text(EXTENSION.format(strategy=strategy))
    script = place / "waits.py"
    script.write_text(WAITS.read_text())
    return ray.job(script=script, nnodes=nnodes, extension="user_failover::Mine")


def test_normal_restarts_the_workers_where_they_were(ray: RayCluster, tmp_path: Path) -> None:
    run = decided(ray, tmp_path, "NORMAL_FAILOVER")
    before = run.started(run.next_generation(2), 2)
    actors = {actor_of(pid) for pid in before.values()}
    os.kill(before[1], signal.SIGUSR2)
    after = run.started(run.next_generation(2), 2)
    assert {actor_of(pid) for pid in after.values()} == actors
    run.finish(after)


def test_node_moves_to_another_ray_node_and_the_old_one_is_not_used_again(ray: RayCluster, tmp_path: Path) -> None:
    run = decided(ray, tmp_path, "NODE_FAILOVER")
    before = run.started(run.next_generation(2), 2)
    agent, node = agent_of(before[1]), node_of(before[1])
    os.kill(before[1], signal.SIGUSR2)
    run.wait_for("leaves: the job wants another node in its place")
    after = run.started(run.next_generation(2), 2)
    until(lambda: gone(agent))
    assert node not in {node_of(pid) for pid in after.values()}
    run.finish(after)


def test_global_starts_everything_anew(ray: RayCluster, tmp_path: Path) -> None:
    run = decided(ray, tmp_path, "GLOBAL_FAILOVER")
    before = run.started(run.next_generation(2), 2)
    os.kill(before[0], signal.SIGUSR2)
    run.wait_for(r"Restarting\(.*decided='decided by user_failover::Mine'.*anew=True")
    after = run.started(run.next_generation(2), 2)
    assert not set(before.values()) & set(after.values())
    run.finish(after)


def test_abortion_raises_job_failed_in_the_driver(ray: RayCluster, tmp_path: Path) -> None:
    run = decided(ray, tmp_path, "ABORTION_FAILOVER")
    os.kill(run.started(run.next_generation(2), 2)[0], signal.SIGUSR2)
    run.wait_for(r"driver: JobFailed: .*; cause [\w-]+; final True")
    assert "Restarting" not in run.output
    assert run.wait() == 0


def test_a_strategy_that_does_not_exist_is_said_at_the_start(ray: RayCluster, tmp_path: Path) -> None:
    run = decided(ray, tmp_path, "NODE_FAILVER")
    run.wait_for(
        r"driver: JobFailed: dynamic_failover_extension user_failover::Mine: .*no FailoverStrategy.NODE_FAILVER"
    )
    assert run.wait() == 0
    assert "GenerationFormed" not in run.output


def test_snapshots_that_would_take_the_object_stores_memory_are_refused_in_one_line(
    ray: RayCluster, tmp_path: Path
) -> None:
    """The reserve stands for a store that is as large as all of the shared memory."""
    args = [tmp_path / "checkpoints", "--steps=2"]
    run = ray.job(*args, script=TRAIN, nnodes=1, max_restarts=0, env={"OUTLAST_SHM_RESERVE": str(1 << 40)})
    run.wait_for(r"snapshots of .* need .* of shared memory .* kept for others \(shm_reserve\)")
    run.wait_for("driver: JobFailed")
    assert run.wait() == 0


@pytest.fixture
def ray(ray_of_three: RayCluster) -> RayCluster:
    """The shared cluster, with all of its nodes."""
    ray_of_three.restore()
    return ray_of_three
