"""`outlast submit --on slurm` on a real Slurm: what happens to a job, and what is left of it."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

from jobs import SCRIPTS, WAITS
from processes import arguments, python
from slurm_cluster import BatchJob, SlurmCluster

TRAIN = SCRIPTS.parent / "checkpoints" / "train.py"


def submit(
    cluster: SlurmCluster, place: Path, *flags: str, slurm: dict[str, Any] | None = None, **job: Any
) -> BatchJob:
    """Submit a job; its output goes to a file that all of its starts share."""
    out = place / f"out{len(list(place.glob('out*')))}.log"
    out.touch()
    options = {"options": [f"--output={out}", "--exclusive"], **(slurm or {})}
    file = place / "job.yaml"
    file.write_text(json.dumps({"name": "j", "directory": str(place), **job, "slurm": options}))
    said = cluster.ask(python(), "-m", "outlast", "submit", file, "--on=slurm", *flags)
    found = re.search(r"submitted Slurm job (\d+)", said)
    assert found, said
    return BatchJob(cluster, found[1], out)


def started(job: BatchJob, generation: int, size: int) -> None:
    for rank in range(size):
        job.wait_for(rf"rank {rank} of {size} started in generation {generation}:", anywhere=True)


def agents(cluster: SlurmCluster, node: int) -> list[int]:
    """The agents on a node."""
    pids = cluster.nodes[node].processes()
    return [pid for pid in pids if b"run" in arguments(pid) and b"--rdzv-backend=static" in arguments(pid)]


def state_of(cluster: SlurmCluster, job: BatchJob) -> Path:
    return cluster.home / ".outlast" / "slurm" / job.number


def test_a_job_runs_to_its_end_and_leaves_nothing(cluster: SlurmCluster, tmp_path: Path) -> None:
    """Its script may start steps of its own: ours ask for --overlap, and so do not keep them waiting."""
    script = tmp_path / "hello.py"
    script.write_text(
        "import os, subprocess\n"
        "subprocess.run(['srun', '--nodes=1', '--ntasks=1', 'true'], check=True)\n"
        "print('rank', os.environ['RANK'], 'says', os.environ['WORD'], flush=True)\n"
    )
    job = submit(cluster, tmp_path, run="hello.py", nodes=2, spares=1, env={"WORD": "it's fine"})
    assert job.wait() == "COMPLETED", job.output
    assert {line for line in job.output.splitlines() if "says" in line} == {
        "rank 0 says it's fine",
        "rank 1 says it's fine",
    }
    assert not state_of(cluster, job).exists()


def test_a_job_that_would_fail_again_is_not_requeued(cluster: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import a_package_that_is_not_there\n")
    job = submit(cluster, tmp_path, run="broken.py", nodes=2)
    assert job.wait() == "FAILED", job.output
    facts = job.facts()
    assert (facts["Restarts"], facts["ExitCode"]) == ("0", "93:0")
    job.wait_for("not requeued: a retry would fail again")
    login = (python(), "-m", "outlast")
    assert "a_package_that_is_not_there" in cluster.ask(*login, "why", f"--slurm={job.number}")
    over = cluster.command(*login, "status", f"--slurm={job.number}")
    assert over.wait() == 4, over.output
    over.wait_for("over \\(failed\\)", anywhere=True)


def test_an_agent_that_was_killed_is_started_again_and_taken_in(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, run=str(WAITS), nodes="1:2", settings={"last_call": 1})
    started(job, 1, 2)
    for pid in agents(cluster, 1):
        os.kill(pid, signal.SIGKILL)
    job.wait_for(r"the step on host-2 ended with \d+: starting it again")
    job.wait_for(r"rank 1 of 2 started in generation [23]:", anywhere=True)


def test_a_job_is_watched_on_the_login_node_and_scancel_leaves_nothing(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, run=str(WAITS), nodes=3, log_dir=str(tmp_path / "logs"))
    started(job, 1, 3)
    which = f"--slurm={job.number}"
    login = (python(), "-m", "outlast")
    assert "3 here of 3" in cluster.ask(*login, "status", which)
    assert "nothing has failed" in cluster.ask(*login, "why", which)
    assert "[rank2] rank 2 of 3 started in generation 1" in cluster.ask(*login, "logs", which)
    waits = submit(cluster, tmp_path, run=str(WAITS), nodes=3)
    asked = cluster.command(*login, "status", f"--slurm={waits.number}")
    assert asked.wait() == 1, asked.output
    asked.wait_for(rf"error: Slurm job {waits.number} does not run: it is PENDING \(", anywhere=True)
    cluster.ask("scancel", waits.number)
    cluster.ask("scancel", job.number)
    assert job.wait() == "CANCELLED"
    cluster.clean()
    assert [node.leftovers() for node in cluster.nodes] == [[], [], [], []]
    assert not [agents(cluster, node) for node in range(4) if agents(cluster, node)]
    assert not state_of(cluster, job).exists()
    assert job.facts()["Restarts"] == "0"


def test_at_the_notice_all_ranks_save_and_the_requeued_job_goes_on_from_that_step(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    """Nothing is saved but for that: without it the job would begin at step 1 again."""
    enough = tmp_path / "enough"
    args = [str(tmp_path / "checkpoints"), "--kind=fsdp", "--every=1000000", "--until", str(enough)]
    job = submit(cluster, tmp_path, run=str(TRAIN), args=args, nodes=2)
    job.wait_for("trained 3 on 2")
    cluster.ask("scancel", "--signal=USR1", "--batch", job.number)  # as Slurm does before the time limit
    job.wait_for("the time limit is near")
    step = int(job.wait_for(r"all ranks have saved step (\d+)")[1])
    job.wait_for("requeued: told to leave in time")
    job.wait_for(rf"step {step} is restored from")
    job.wait_for(rf"trained {step + 1} on 2")
    told = [json.loads(line) for line in (state_of(cluster, job) / "events.jsonl").read_text().splitlines()]
    first, second = (each["queued"] for each in told if each["event"] == "job began")
    assert 0 <= first < 60
    assert second > 2  # seconds in which Slurm had it in its queue again
    enough.touch()
    assert job.wait() == "COMPLETED", job.output
    assert job.facts()["Restarts"] == "1"
    steps = sorted(int(number) for number in re.findall(r"trained (\d+) on \d", job.output))
    assert steps == list(range(1, steps[-1] + 1))


def test_nodes_of_a_second_job_join_and_no_step_is_lost(cluster: SlurmCluster, tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    args = [str(tmp_path / "checkpoints"), "--kind=fsdp", "--every=1000000", "--until", str(enough)]
    spec = {"run": str(TRAIN), "args": args, "nodes": "1:2", "settings": {"last_call": 0}}
    job = submit(cluster, tmp_path, **spec, slurm={"nodes": 1})
    job.wait_for("trained 3 on 1")
    more = submit(cluster, tmp_path, f"--join={job.number}", **spec)
    step = int(job.wait_for(r"all ranks have saved step (\d+)")[1])
    job.wait_for(rf"trained {step + 1} on 2")
    enough.touch()
    assert job.wait() == "COMPLETED", job.output
    assert more.wait() == "COMPLETED", more.output
    steps = sorted(int(number) for number in re.findall(r"trained (\d+) on \d", job.output))
    assert steps == list(range(1, steps[-1] + 1))


def test_a_successor_takes_over_before_the_time_limit_and_no_step_is_lost(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    enough = tmp_path / "enough"
    args = [str(tmp_path / "checkpoints"), "--kind=fsdp", "--every=1000000", "--until", str(enough)]
    job = submit(
        cluster,
        tmp_path,
        "--relay",
        run=str(TRAIN),
        args=args,
        nodes=2,
        settings={"node_timeout": 15},  # so that a busy machine is no lost node
        resources={"time": "1:00:00"},
        slurm={"relay_lead": 600, "relay_warm": 1},
    )
    number = job.wait_for(r"job (\d+) takes over from")[1]
    job.wait_for("trained 3 on 2")
    successor = BatchJob(cluster, number, job.out)
    assert successor.facts()["JobState"] == "PENDING"
    cluster.ask("scontrol", "update", f"jobid={number}", "starttime=now")  # instead of 50 minutes
    step = int(job.wait_for(r"all ranks have saved step (\d+)")[1])
    job.wait_for(rf"trained {step + 1} on 2")  # on the nodes of the successor
    job.wait_for(f"job {number} goes on", anywhere=True)
    job.wait_for(f"takes over from job {job.number}", anywhere=True)
    assert job.wait() == "COMPLETED", job.output
    job.wait_for(r"term 2: took over generation \d+, 2 nodes", anywhere=True)  # and nobody was restarted
    assert "2 here of 2" in cluster.ask(python(), "-m", "outlast", "status", f"--slurm={number}")
    enough.touch()
    assert successor.wait() == "COMPLETED", job.output
    steps = sorted(int(number) for number in re.findall(r"trained (\d+) on \d", job.output))
    assert steps == list(range(1, steps[-1] + 1))
    assert not any((cluster.home / ".outlast" / "slurm" / each).exists() for each in (job.number, number))
    assert not cluster.ask("squeue", "-h", "-o", "%i").strip()  # and no successor of the successor


def test_scale_submits_nodes_that_join_and_gives_them_back(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, run=str(WAITS), nodes="1:3", settings={"last_call": 0}, slurm={"nodes": 1})
    started(job, 1, 1)
    scale = (python(), "-m", "outlast", "scale", f"--slurm={job.number}")
    said = cluster.ask(*scale, "2")
    (number,) = re.findall(r"submitted Slurm job (\d+)", said)
    assert "submitted" not in cluster.ask(*scale, "2")  # it is on its way
    job.wait_for(r"rank 1 of 2 started in generation \d+:", anywhere=True)
    assert "drains" in cluster.ask(*scale, "1")
    job.wait_for(r"rank 0 of 1 started in generation [3-9]:", anywhere=True)
    assert BatchJob(cluster, number, job.out).wait() == "COMPLETED", job.output
    assert job.facts()["JobState"] == "RUNNING"


def test_slurm_gives_notice_and_a_node_that_was_excluded_is_left_out_of_the_next_start(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    script = tmp_path / "blames.py"
    script.write_text(BLAMES)
    job = submit(
        cluster,
        tmp_path,
        run="blames.py",
        args=[str(tmp_path)],
        nodes="1:2",
        settings={"last_call": 1},
        resources={"time": "0:01:00"},
        slurm={"notice": 20, "drain_bad_nodes": True},
    )
    job.wait_for("excluded|not used again", anywhere=True)
    job.wait_for("the time limit is near")
    job.wait_for("requeued: told to leave in time")
    job.wait_for("rank 1 of 2 waits")
    assert job.facts()["ExcNodeList"] == "host-2"
    places = (state_of(cluster, job) / "places").read_text()
    assert "host-2" not in places  # the nodes are others now, and so are the places where they meet
    node = cluster.ask("scontrol", "-o", "show", "node", "host-2")
    assert re.search(rf"State=\S*DRAIN.* Reason=outlast: excluded from job {job.number} ", node), node


def test_a_node_that_slurm_drains_is_left_and_a_spare_takes_its_place(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, run=str(WAITS), nodes=2, spares=1, slurm={"poll": 1})
    started(job, 1, 2)
    trains = re.search(r"generation 1: 2 nodes, 2 ranks \(([\w-]+), ([\w-]+)\)", job.output)
    assert trains
    cluster.ask("scontrol", "update", f"nodename={trains[2]}", "state=drain", "reason=test")
    job.wait_for(f"Slurm drains {trains[2]}: the job goes on without it")
    started(job, 2, 2)
    job.wait_for(f"node {trains[2]} was drained", anywhere=True)


def test_a_job_that_cannot_begin_is_not_requeued(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, run="missing.py", nodes=2)
    assert job.wait() == "FAILED", job.output
    assert "no script" in job.output
    assert job.facts()["Restarts"] == "0"


def test_a_job_that_failed_is_requeued_only_if_it_has_made_progress(cluster: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(FAILS)
    job = submit(cluster, tmp_path, run="fails.py", args=[str(tmp_path / "saved")], max_restarts=0)
    job.wait_for("requeued: it failed, but got from step 0 to 3")
    job.wait_for("not requeued: it failed, and made no progress since its start")
    assert job.wait() == "FAILED", job.output
    assert job.facts()["Restarts"] == "1"


FAILS = """
import sys
import torch, outlast
checkpointer, state = outlast.Checkpointer(sys.argv[1]), {"weights": torch.zeros(1)}
for step in range(checkpointer.restore(state) + 1, 4):
    outlast.step(step)
    checkpointer.save(step, state, durable=True)
checkpointer.wait()
raise RuntimeError("as ever after step 3")
"""


def test_of_an_array_one_element_alone_is_requeued(cluster: SlurmCluster, tmp_path: Path) -> None:
    out = tmp_path / "array-%a.log"
    options = {"options": [f"--output={out}", "--exclusive", "--array=0-1"]}
    number = submit(cluster, tmp_path, run=str(WAITS), slurm=options).number
    one, other = (BatchJob(cluster, f"{number}_{each}", tmp_path / f"array-{each}.log") for each in (0, 1))
    started(one, 1, 1)
    started(other, 1, 1)
    cluster.ask("scancel", "--signal=USR1", "--batch", one.number)
    one.wait_for("requeued: told to leave in time")
    one.wait_for("rank 0 of 1 started in generation 1:")
    assert (one.facts()["Restarts"], other.facts()["Restarts"]) == ("1", "0")


def test_of_an_array_one_element_alone_is_preempted_and_comes_back(cluster: SlurmCluster, tmp_path: Path) -> None:
    out = tmp_path / "array-%a.log"
    options = {"options": [f"--output={out}", "--exclusive", "--array=0-1"]}
    number = submit(cluster, tmp_path, run=str(WAITS), slurm=options).number
    elements = [BatchJob(cluster, f"{number}_{each}", tmp_path / f"array-{each}.log") for each in (0, 1)]
    for each in elements:
        started(each, 1, 1)
    urgent = cluster.sbatch("--partition=urgent", "--nodes=3", "--exclusive", "--wrap", "srun sleep 1000")
    urgent.wait("RUNNING")
    victims = [each for each in elements if each.facts()["JobState"] != "RUNNING"]
    assert len(victims) == 1
    (victim,) = victims
    (other,) = set(elements) - {victim}
    victim.wait_for("told to end: all ranks save")
    cluster.ask("scancel", urgent.number)
    victim.wait_for("rank 0 of 1 started in generation 1:")
    assert (victim.facts()["Restarts"], other.facts()["Restarts"]) == ("1", "0")
    assert other.output.count("started in generation") == 1  # it never stopped


def test_without_munge_submit_says_so_in_one_line(cluster: SlurmCluster, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps({"name": "j", "run": str(WAITS), "directory": str(tmp_path)}))
    conf = tmp_path / "slurm.conf"
    conf.write_text(cluster.conf.read_text().replace(f"{cluster.place}/munge.socket", f"{tmp_path}/none"))
    env = {"SLURM_CONF": str(conf)}
    submitting = cluster.command(python(), "-m", "outlast", "submit", file, "--on=slurm", env=env)
    assert submitting.wait() == 1, submitting.output
    (line,) = submitting.lines
    assert re.match("outlast submit: error: sbatch refused: .*[Mm]unge", line)


def test_a_heterogeneous_job_is_refused_in_one_line(cluster: SlurmCluster, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps({"name": "j", "run": str(WAITS), "directory": str(tmp_path)}))
    script = tmp_path / "job.sh"
    script.write_text(cluster.ask(python(), "-m", "outlast", "submit", file, "--on=slurm", "--dry-run"))
    job = cluster.sbatch("--nodes=1", ":", "--nodes=1", script)
    job.wait_for("heterogeneous jobs are not supported: submit one job of one kind of node")


BLAMES = """
import os, pathlib, sys, time
import outlast
rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
print(f"rank {rank} of {world} waits", flush=True)
first = pathlib.Path(sys.argv[1], "blamed")
if os.environ["SLURMD_NODENAME"] == "host-2" and not first.exists():
    first.touch()
    outlast.control("exclude_node", "its network is slow")
while True:
    time.sleep(0.1)
"""
