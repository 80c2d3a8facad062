"""Jobs on a real Ray cluster of three nodes: what is killed, removed, drained and scaled, and what is left of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from processes import TEST_ID, describe, marked, python
from ray_cluster import RayCluster, RayRun, actor_of, agent_of, gone, node_of, until


def processes_of_this_test() -> list[int]:
    """All that the job has started on any node; without the driver."""
    mark = os.environ[TEST_ID] + "/ray"
    return marked(lambda found: found == mark)


def test_a_job_trains_on_two_nodes_its_logs_and_events_reach_the_driver_and_nothing_is_left(ray: RayCluster) -> None:
    run = ray.job(nnodes=2)
    pids = run.started(run.next_generation(2), 2)
    assert len({node_of(pid) for pid in pids.values()}) == 2
    actors = [actor_of(pid) for pid in pids.values()]
    assert not [pid for pid in actors if "libtorch" in Path(f"/proc/{pid}/maps").read_text()]
    run.finish(pids)
    events = re.findall(r"^event \d+ (\w+)", run.output, re.MULTILINE)
    assert events[0] == "JobBegan"
    assert events[-1] == "JobOver"
    until(lambda: not processes_of_this_test())


def test_a_killed_worker_is_restarted_on_the_same_nodes(ray: RayCluster) -> None:
    run = ray.job(nnodes=2)
    before = run.started(run.next_generation(2), 2)
    actors = {actor_of(pid) for pid in before.values()}
    os.kill(before[1], signal.SIGKILL)
    after = run.started(run.next_generation(2), 2)
    assert {actor_of(pid) for pid in after.values()} == actors
    run.finish(after)


def test_a_node_removed_without_grace_is_replaced_when_ray_has_another(ray: RayCluster) -> None:
    run = ray.job(nnodes=[2, 3], settings={"node_timeout": 5})
    before = run.started(run.next_generation(3), 3)
    # Not the coordinator's: that its host is lost is tested elsewhere, and takes longer.
    victim = next(rank for rank in before if not hosts_coordinator(run, before[rank]))
    agent = agent_of(before[victim])
    ray.ask("remove", node_of(before[victim]))
    smaller = run.next_generation(2)
    run.started(smaller, 2)
    until(lambda: gone(agent) and gone(before[victim]))
    ray.ask("add")
    run.finish(run.started(run.next_generation(3), 3))


def test_the_coordinators_node_removed_without_grace_costs_the_job_nothing_but_time(ray: RayCluster) -> None:
    run = ray.job(nnodes=[2, 3], settings={"node_timeout": 5})
    before = run.started(run.next_generation(3), 3)
    victim = next(rank for rank in before if hosts_coordinator(run, before[rank]))
    ray.ask("remove", node_of(before[victim]))
    for pid in coordinators():  # a real machine takes the coordinator along
        os.kill(pid, signal.SIGKILL)
    run.started(run.next_generation(2), 2)
    ray.ask("add")
    run.finish(run.started(run.next_generation(3), 3))


def test_a_drained_node_is_left_before_its_deadline_without_a_failure(ray: RayCluster) -> None:
    run = ray.job(nnodes=[2, 3])
    before = run.started(run.next_generation(3), 3)
    agent = agent_of(before[0])
    assert ray.ask("drain", node_of(before[0]), 600.0) == ""
    run.wait_for("leaves: Ray drains its node")
    smaller = run.next_generation(2)
    pids = run.started(smaller, 2)
    until(lambda: gone(agent))
    ray.ask("remove", next(iter(set(ray.ask("alive")) - {node_of(pid) for pid in pids.values()})))
    ray.ask("add")
    run.finish(run.started(run.next_generation(3), 3))
    assert "WorkerFailed" not in run.output


def test_a_killed_actor_takes_its_agent_and_workers_along_and_is_replaced(ray: RayCluster) -> None:
    run = ray.job(nnodes=[1, 2])
    pids = run.started(run.next_generation(2), 2)
    for _ in range(3):
        doomed = pids[1]
        below = [doomed, agent_of(doomed)]
        os.kill(actor_of(doomed), signal.SIGKILL)
        until(lambda below=below: all(map(gone, below)))
        pids = run.started(run.next_generation(2), 2)
    run.finish(pids)
    until(lambda: not processes_of_this_test())


def test_scale_down_gives_nodes_back_to_ray_and_scale_up_asks_for_them(ray: RayCluster) -> None:
    run = ray.job(nnodes=[1, 3])
    before = run.started(run.next_generation(3), 3)
    agents = {agent_of(pid) for pid in before.values()}
    run.say("scale 1")
    run.started(run.next_generation(1), 1)
    until(lambda: sum(map(gone, agents)) == 2)
    run.say("scale 3")
    run.finish(run.started(run.next_generation(3), 3))


def test_a_second_failure_during_recovery_is_survived(ray: RayCluster) -> None:
    run = ray.job("--ignore", "SIGTERM", nnodes=[1, 3], settings={"restart_grace": 5})
    before = run.started(run.next_generation(3), 3)
    os.kill(before[0], signal.SIGKILL)
    run.wait_for("GenerationEnding")  # the others ignore SIGTERM: recovery takes its time
    os.kill(actor_of(before[1]), signal.SIGKILL)
    run.finish(run.started(run.next_generation(3), 3))
    until(lambda: not processes_of_this_test())


def test_a_driver_that_is_killed_takes_its_job_along(ray: RayCluster) -> None:
    run = ray.job(nnodes=2)
    run.started(run.next_generation(2), 2)
    run.signal(signal.SIGKILL)
    until(lambda: not processes_of_this_test())


def test_a_detached_job_outlives_its_driver_and_its_overseer(ray: RayCluster, tmp_path: Path) -> None:
    run = ray.job("--journal", tmp_path, nnodes=2, detached=True)
    pids = run.started(run.next_generation(2), 2)
    run.signal(signal.SIGKILL)
    overseers = [pid for pid in psutil.pids() if is_overseer(pid)]
    assert len(overseers) == 1
    os.kill(overseers[0], signal.SIGKILL)
    again = ray.job(attach=run.job_name)
    again.wait_for("event 1 JobBegan")  # heard by the overseer that Ray has started anew
    try:
        again.next_generation(2)
        os.kill(pids[0], signal.SIGKILL)
        generation = again.next_generation(2)
        until(lambda: len(noted(tmp_path, generation)) == 2)
        for pid in noted(tmp_path, generation):
            os.kill(pid, signal.SIGUSR1)
        again.wait_for("driver: success")
    finally:
        if again.running:
            again.say("stop")
    assert again.wait() == 0
    until(lambda: not processes_of_this_test())


def test_submit_on_ray_runs_a_job_file(ray: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(
        "import os\nprint('hello of rank', os.environ['RANK'], os.environ['OUTLAST_SHM_RESERVE'], flush=True)\n"
    )
    file = tmp_path / "job.yaml"
    job = {"name": "file", "run": "hello.py", "nodes": 2, "on": "ray", "env": {TEST_ID: os.environ[TEST_ID] + "/ray"}}
    file.write_text(json.dumps({**job, "ray": {"address": ray.ask("address")}}))
    done = subprocess.run([python(), "-m", "outlast", "submit", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "job succeeded" in done.stdout
    assert f"hello of rank 1 {80 << 20}" in done.stdout + done.stderr  # what the object store may yet take


def test_a_script_that_fails_for_good_raises_job_failed_with_its_cause(ray: RayCluster, tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import a_package_that_is_not_there\n")
    run = ray.job(script=script, nnodes=2)
    run.wait_for(r"driver: JobFailed: .*; cause [a-z-]+; final True")
    assert run.wait() == 0


def test_a_directory_that_a_node_does_not_have_is_said_in_one_line(ray: RayCluster) -> None:
    run = ray.job(nnodes=2, directory="/there/is/none")
    run.wait_for("driver: JobFailed: there is no directory /there/is/none on ")
    assert run.wait() == 0


def noted(journal: Path, generation: int) -> set[int]:
    """The workers of a generation, by their own notes: what they print goes to the driver that is dead."""
    return {int(note.name.partition("-")[2]) for note in journal.glob(f"{generation}-*")}


def coordinators() -> list[int]:
    return [pid for pid in processes_of_this_test() if "outlast.coordinator" in describe(pid)]


def hosts_coordinator(run: RayRun, worker: int) -> bool:
    """Whether the agent of this worker has said so."""
    agent = actor_of(worker)
    return re.search(rf"\(AgentActor pid={agent}[^)]*\).*hosting the coordinator", run.output) is not None


def is_overseer(pid: int) -> bool:
    try:
        return b"OverseerActor" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def ray(ray_of_three: RayCluster) -> RayCluster:
    """The shared cluster, with all of its nodes."""
    ray_of_three.restore()
    return ray_of_three
