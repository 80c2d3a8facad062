"""The batch script that a job file becomes. That it works is for tests/platforms."""

import subprocess

import pytest

from outlast.jobs.spec import JobSpec, Resources, SlurmOptions
from outlast.providers.slurm import SlurmProvider

SPEC = JobSpec(
    name="j",
    run="train.py",
    args=("--word", "it's"),
    nodes="2:4",
    spares=1,
    directory="/where",
    env={"A": "x y"},
    resources=Resources(gpus=8, memory="64GiB", time="1:00:00"),
    slurm=SlurmOptions(partition="gpu", options=("--qos=high",), srun=("--mpi=none",), setup=("module load x",)),
)


def test_what_the_file_asks_for_is_in_the_script() -> None:
    lines = SlurmProvider("outlast").plan(SPEC).text().splitlines()
    options = {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")}
    assert {"--nodes=5", "--gpus-per-node=8", "--mem=64G", "--time=1:00:00", "--partition=gpu", "--qos=high"} <= options
    assert {"--no-kill", "--requeue", "--open-mode=append", "--signal=B:USR1@180", "--chdir=/where"} <= options
    assert {
        "export A='x y'",
        "module load x",
        "srun_options=(--mpi=none)",
        """after=(train.py --word 'it'"'"'s')""",
    } <= {*lines}


def test_nodes_that_join_ask_for_no_more_than_themselves() -> None:
    lines = SlurmProvider("outlast", join="12", more=2).plan(SPEC).text().splitlines()
    assert {"#SBATCH --nodes=2", "#SBATCH --no-requeue", "#SBATCH --exclusive", "set -- 12 join"} <= set(lines)


def test_a_relay_of_a_job_of_one_node_is_refused() -> None:
    spec = JobSpec(name="j", run="r", slurm=SlurmOptions(relay=True))
    with pytest.raises(ValueError, match="a relay needs nodes: 2 or more"):
        SlurmProvider("outlast").plan(spec)


def test_the_script_is_valid_shell() -> None:
    script = SlurmProvider("outlast").plan(SPEC).text()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_an_option_cannot_smuggle_in_lines() -> None:
    with pytest.raises(ValueError, match="one line each"):
        SlurmProvider("outlast").plan(JobSpec(name="j", run="r", slurm=SlurmOptions(options=("--qos=a\nrm -rf /",))))


def test_without_slurm_it_says_where_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    provider = SlurmProvider("outlast")
    with pytest.raises(ValueError, match="no sbatch on this machine: run this on a login node"):
        provider.submit(provider.plan(SPEC))
