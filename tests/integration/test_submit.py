"""`outlast submit` on this machine: the job file's job really runs."""

import json
from pathlib import Path

import pytest

from jobs import SCRIPTS
from processes import outlast

WRITES = """
import os, pathlib, sys
here = pathlib.Path(sys.argv[1], os.environ["RANK"])
here.write_text(f'{os.environ["WORLD_SIZE"]} {os.environ["COLOUR"]} {os.getcwd()}')
"""


def write(path: Path, **job: object) -> Path:
    path.write_text(json.dumps({"name": "j", "run": "writes.py", **job}))  # JSON is YAML
    return path


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    path = tmp_path / "writes.py"
    path.write_text(WRITES)
    return path


def test_a_job_of_two_nodes_runs_beside_its_file(script: Path) -> None:
    here = script.parent
    file = write(here / "job.yaml", nodes=2, processes=2, args=["out"], env={"COLOUR": "blue"})
    with outlast("submit", file, cwd="/") as submitted:
        assert submitted.wait() == 0, submitted.output
    said = {path.name: path.read_text() for path in (here / "out").iterdir()}
    assert said == dict.fromkeys("0123", f"4 blue {here}")


def test_the_dry_run_prints_what_would_run_and_runs_nothing(script: Path) -> None:
    file = write(script.parent / "job.yaml", args=["out"])
    with outlast("submit", file, "--dry-run") as submitted:
        assert submitted.wait() == 0
    assert submitted.lines[-1].startswith("outlast run --nnodes=1 ")
    assert not list((script.parent / "out").iterdir())


def test_a_job_that_a_retry_cannot_cure_ends_with_the_code_that_says_so(script: Path) -> None:
    script.write_text("import a_package_that_is_not_there")
    with outlast("submit", write(script.parent / "job.yaml"), "--on=local") as submitted:
        assert submitted.wait() == 93, submitted.output


def test_a_signal_reaches_the_agents_and_nothing_is_left(script: Path) -> None:
    file = write(script.parent / "job.yaml", run=str(SCRIPTS / "waits.py"), nodes=2)
    with outlast("submit", file) as submitted:
        for rank in (0, 1):
            submitted.wait_for(rf"rank {rank} of 2 started", anywhere=True)
        submitted.signal(2)
        assert submitted.wait() == 1
        assert not submitted.tree()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--on=kubernetes"], "on Kubernetes a job is an ElasticJob: outlast k8s submit (docs/kubernetes.md)"),
        (["--on=slrm"], "--on=slrm: no such platform; did you mean slurm?"),
    ],
)
def test_where_it_cannot_run_is_said_in_one_line(script: Path, flags: list[str], said: str) -> None:
    with outlast("submit", write(script.parent / "job.yaml"), *flags) as submitted:
        assert submitted.wait() == 1
    assert submitted.lines == [f"outlast submit: error: {said}"]


def test_every_mistake_of_a_file_is_a_line(script: Path) -> None:
    file = write(script.parent / "job.yaml", nods=2, spares="many")
    with outlast("submit", file) as submitted:
        assert submitted.wait() == 1
    assert submitted.lines == [
        f"outlast submit: error: {file}: unknown name nods; did you mean nodes?",
        f"outlast submit: error: {file}: spares must be a whole number, 0 or more, not 'many'",
    ]
