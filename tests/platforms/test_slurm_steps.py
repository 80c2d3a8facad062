"""`srun outlast run` on a real Slurm: nodes, endpoint, ranks and token need not be given."""

from __future__ import annotations

import re
import stat

import pytest

from jobs import WAITS
from processes import Process, arguments, python
from slurm_cluster import SlurmCluster

OUTLAST = (python(), "-m", "outlast", "run")


def srun(cluster: SlurmCluster, *argv: str, nodes: int, flags: tuple[str, ...] = ()) -> Process:
    """Start a step of so many nodes; each line begins with the number of the task that wrote it."""
    steps_on = ("--no-kill", "--kill-on-bad-exit=0")
    return cluster.command("srun", "--label", f"--nodes={nodes}", *steps_on, *flags, *OUTLAST, *argv)


LATER = r"([2-9]|\d\d+)"  # of a coordinator that took over, the next generation has a higher number than the next


def line_up(step: Process, generation: int | str, size: int) -> dict[int, int]:
    """Await all ranks of a generation: by rank, the number of the task that has it."""
    found = {}
    for rank in range(size):
        started = rf"^(\d+): rank {rank} of {size} started in generation {generation}:"
        found[rank] = int(step.wait_for(started, anywhere=True)[1])
    return found


def test_all_nodes_of_a_step_are_one_job_with_the_ranks_of_slurm(cluster: SlurmCluster) -> None:
    with srun(cluster, str(WAITS), nodes=3) as step:
        assert line_up(step, 1, 3) == {0: 0, 1: 1, 2: 2}
        (token,) = (cluster.home / ".outlast").iterdir()
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert stat.S_IMODE(token.parent.stat().st_mode) == 0o700
        cluster.ask("scancel", "--user=root")
        assert step.wait() != 0
    cluster.clean()
    assert [node.leftovers() for node in cluster.nodes] == [[], [], [], []]
    assert not [pid for node in cluster.nodes for pid in node.processes() if str(WAITS).encode() in arguments(pid)]
    assert not list((cluster.home / ".outlast").iterdir())


@pytest.mark.parametrize("how", ["kill", "cut"])
def test_a_spare_takes_the_place_of_a_lost_node_and_ranks_stay_in_slurms_order(cluster: SlurmCluster, how: str) -> None:
    with srun(cluster, "--nnodes=3", str(WAITS), nodes=4) as step:
        before = line_up(step, 1, 3)
        assert [*before.values()] == sorted(before.values())
        step.wait_for("spare", anywhere=True)
        getattr(cluster.nodes[before[0]], how)()
        assert [*line_up(step, LATER, 3).values()] == sorted({0, 1, 2, 3} - {before[0]})


@pytest.mark.parametrize(
    ("flags", "argv", "said"),
    [
        ((), ("--nnodes=4",), r"--nnodes=4, but this Slurm step has 2: ask for more with srun -N"),
        (("--ntasks-per-node=2",), (), r"srun starts 4 tasks on 2 nodes, .*--ntasks-per-node=1"),
    ],
)
def test_a_step_that_cannot_be_a_job_is_refused_in_one_line(
    cluster: SlurmCluster, flags: tuple[str, ...], argv: tuple[str, ...], said: str
) -> None:
    with srun(cluster, *argv, str(WAITS), nodes=2, flags=flags) as step:
        step.wait_for(rf"outlast run: error: {said}")
        assert step.wait() == 1


def test_a_batch_script_without_srun_is_told_so(cluster: SlurmCluster) -> None:
    job = cluster.sbatch("--nodes=2", "--wrap", f"{' '.join(OUTLAST)} --nnodes=2 {WAITS}")
    assert job.wait() == "FAILED"
    assert re.search("start one per node with srun", job.output)


def test_a_step_of_one_node_is_a_job_of_its_own(cluster: SlurmCluster) -> None:
    tokens = sorted(cluster.home.glob(".outlast/*"))
    with srun(cluster, str(WAITS), nodes=1) as step:
        assert line_up(step, 1, 1) == {0: 0}
        assert sorted(cluster.home.glob(".outlast/*")) == tokens
