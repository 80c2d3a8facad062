"""What SLURM_* says about a step, and what `outlast run` makes of it."""

import stat
from pathlib import Path

import pytest

from outlast.cli.request import parse
from outlast.launch import Endpoint
from outlast.platforms.slurm import hosts_of, step_of

SCRIPT = str(Path(__file__))
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[01-03]",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_PROCID": "1",
    "SLURMD_NODENAME": "gpu02",
    "PATH": "/usr/bin:/bin",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_step_says_where_its_nodes_meet(home: Path) -> None:
    launch, loaded = parse([SCRIPT], STEP)
    assert (launch.min_nodes, launch.max_nodes) == (3, 3)
    assert launch.endpoint == Endpoint("gpu01", 20049)
    assert launch.others == (Endpoint("gpu02", 20049), Endpoint("gpu03", 20049))
    assert (launch.host, launch.job, launch.own_token) == (False, "slurm-7.0", "")
    assert loaded.settings.node_name == "gpu02"
    file = home / ".outlast" / "slurm-7.token"
    assert file.read_text() == loaded.settings.token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_all_tasks_of_a_step_have_the_same_token_and_the_first_removes_it() -> None:
    first, one = parse([SCRIPT], {**STEP, "SLURM_PROCID": "0"})
    _, other = parse([SCRIPT], STEP)
    assert one.settings.token == other.settings.token
    assert first.host is True
    assert first.own_token.endswith("slurm-7.token")


def test_fewer_nodes_than_the_step_has_leave_spares() -> None:
    launch, _ = parse(["--nnodes=2", SCRIPT], STEP)
    assert (launch.min_nodes, launch.max_nodes, len(launch.others)) == (2, 2, 2)


@pytest.mark.parametrize("flags", [["--standalone"], ["--rdzv-endpoint=other:1"], ["--master-port=5"]])
def test_what_the_user_says_counts(flags: list[str], home: Path) -> None:
    launch, _ = parse(["--ft-auth=false", *flags, SCRIPT], STEP)
    assert launch.max_nodes == 1
    assert launch.endpoint.host != "gpu01"
    assert not (home / ".outlast").exists()


def test_a_batch_script_is_no_step() -> None:
    assert step_of({key: value for key, value in STEP.items() if key != "SLURM_STEP_ID"}) is None
    assert step_of({**STEP, "SLURM_STEP_ID": "4294967291"}) is None
    assert step_of({}) is None


@pytest.mark.parametrize(
    ("changes", "flags", "said"),
    [
        ({"SLURM_STEP_NUM_TASKS": "6"}, [], "6 tasks on 3 nodes"),
        ({"SLURM_HET_SIZE": "2"}, [], "heterogeneous"),
        ({}, ["--nnodes=4"], "this Slurm step has 3: ask for more"),
        ({"SLURM_STEP_ID": ""}, ["--nnodes=2"], "start one per node with srun"),
    ],
)
def test_what_cannot_be_one_job_is_refused(changes: dict[str, str], flags: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse([*flags, SCRIPT], {**STEP, **changes})


def test_a_token_that_others_can_read_is_refused(home: Path) -> None:
    (home / ".outlast").mkdir(mode=0o755)
    with pytest.raises(ValueError, match="keep it in a directory of mode 0700"):
        parse([SCRIPT], STEP)


@pytest.mark.parametrize(
    ("text", "names"),
    [("", []), ("a", ["a"]), ("a[1-2]b,c[08-10]", ["a1b", "a2b", "c08", "c09", "c10"]), ("x,y-1", ["x", "y-1"])],
)
def test_node_lists(text: str, names: list[str]) -> None:
    assert list(hosts_of(text)) == names
