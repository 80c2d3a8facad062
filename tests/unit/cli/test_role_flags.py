"""`--role NAME=COUNT,…`: what it asks for, and what a mistake is answered with."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from outlast.cli.request import parse
from outlast.launch import Launch
from outlast.protocol.roles import RestartScope

GIB = 1 << 30


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.touch()
    return str(path)


def asked(script: str, *flags: str) -> Launch:
    return parse([*flags, script, "--own"], {})[0]


def test_names_that_tensorflow_knows_have_what_it_needs(script: str) -> None:
    launch = asked(script, "--role=chief=1", "--role", "worker=2", "--role=ps=1", "--role=evaluator=1")
    told = [(role.name, role.count, role.restart.value, role.ends) for role in launch.roles]
    assert told == [
        ("chief", 1, "task", True),
        ("worker", 2, "task", False),
        ("ps", 1, "job", False),
        ("evaluator", 1, "task", False),
    ]
    assert launch.nproc == 5


def test_options_are_read_and_run_takes_the_rest(script: str) -> None:
    options = f"reward=2,restart=role,restarts=9,ends=yes,memory=1GiB,max-memory=3GiB,run={script} --a 1,2 'b c'"
    (role,) = asked(script, "--role", options).roles
    assert (role.restart, role.restarts, role.ends) == (RestartScope.ROLE, 9, True)
    assert (role.memory, role.max_memory) == (GIB, 3 * GIB)
    assert role.command == (sys.executable, "-u", script, "--a", "1,2", "b c")


def test_memory_may_grow_to_four_times_unless_that_is_said(script: str) -> None:
    (role,) = asked(script, "--role=worker=1,memory=2GiB").roles
    assert role.max_memory == 8 * GIB


def test_torchruns_role_is_a_name_as_ever(script: str) -> None:
    launch = asked(script, "--role=trainer")
    assert (launch.role, launch.roles) == ("trainer", ())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--role=worker="], "--role must be NAME=COUNT, as worker=2, not 'worker='"),
        (["--role=Worker=1"], "--role must be NAME=COUNT, as worker=2, not 'Worker=1'"),
        (["--role=worker=0"], "--role must be NAME=COUNT, as worker=2, not 'worker=0'"),
        (["--role=worker=1,restrat=task"], "--role worker: unknown option 'restrat'; did you mean restart?"),
        (["--role=worker=1,restart=all"], "--role worker: restart must be task, role or job, not 'all'"),
        (["--role=worker=1,restarts=-1"], "--role worker: restarts must be a whole number, 0 or more, not '-1'"),
        (["--role=worker=1,memory=4G"], "--role worker: memory must be an amount such as 4GiB or 500MiB, not '4G'"),
        (["--role=worker=1,max-memory=4GiB"], "--role worker: max-memory is the most that memory may grow to"),
        (["--role=worker=1,memory=1GiB,memory=2GiB"], "--role worker: memory is given twice; drop one"),
        (["--role=ps=1,restarts=2"], "--role ps: restarts counts restarts of this role alone"),
        (["--role=worker=1,ends=often"], "--role worker: ends must be yes or no, not 'often'"),
        (["--role=worker=1,run="], "--role worker: run must name a script"),
        (["--role=worker=1,run='a"], "cannot be read"),
        (["--role=worker=1,run=nowhere.py"], "no script"),
        (["--role=worker=1", "--role=worker=2"], "--role: there are two roles 'worker'"),
        (["--role=worker=4096", "--role=ps=1"], "4097 tasks are more than 4096"),
        (["--role=worker=2", "--nnodes=2"], "--role NAME=COUNT runs all tasks on one node; drop --nnodes=2"),
        (["--role=worker=2", "--nproc-per-node=2"], "drop --nproc-per-node"),
        (["--role=worker=2", "--virtual-local-rank"], "--virtual-local-rank is for workers that are alike"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(script: str, flags: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as wrong:
        asked(script, *flags, "--rdzv-endpoint=h:1")
    assert "\n" not in str(wrong.value)
