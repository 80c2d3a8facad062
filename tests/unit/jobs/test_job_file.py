"""The job file: what it may say, and what a mistake is answered with."""

from pathlib import Path
from typing import Any

import pytest

from outlast.jobs.command import run_arguments
from outlast.jobs.loading import BadJobFile, parse, read
from outlast.jobs.spec import JobSpec

ROOT = Path(__file__).parents[3]
LEAST = {"name": "j", "run": "train.py"}


def mistakes(**more: Any) -> list[str]:
    with pytest.raises(BadJobFile) as bad:
        parse({**LEAST, **more})
    return bad.value.mistakes


def test_two_lines_are_a_job() -> None:
    assert parse(LEAST) == JobSpec(name="j", run="train.py")


def test_numbers_stand_for_texts_where_texts_are_meant() -> None:
    spec = parse({**LEAST, "nodes": 2, "processes": 8, "args": ["--steps", 400, True], "env": {"A": 1, "B": True}})
    assert (spec.nodes, spec.processes, spec.args, spec.env) == (
        "2",
        "8",
        ("--steps", "400", "true"),
        {"A": "1", "B": "true"},
    )


def test_the_example_can_be_read_and_runs_beside_itself() -> None:
    spec = read(ROOT / "examples" / "job.yaml")
    assert spec.directory == str(ROOT / "examples")
    assert spec.most_nodes == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nods": 2}, "unknown name nods; did you mean nodes?"),
        ({"nodes": 0}, "nodes must be a number of nodes or MIN:MAX, not 0"),
        ({"nodes": "4:2"}, "nodes must have the lower number first, not 4:2"),
        ({"spares": "many"}, "spares must be a whole number, 0 or more, not 'many'"),
        ({"run": ""}, "run must be text, not ''"),
        ({"as": "scrpt"}, "as must be one of script, module, program, not 'scrpt'"),
        ({"name": "a b"}, "name must be 1 to 63 letters, digits, dots, dashes, not 'a b'"),
        ({"resources": 3}, "resources must be names with values, not 3"),
        ({"resources": {"gpu": 8}}, "unknown name resources.gpu; did you mean gpus?"),
        (
            {"resources": {"time": 60}},
            "resources.time must be a time such as 12:00:00 or 2-00:00:00, in quotes, not 60",
        ),
        ({"slurm": {"partion": "a"}}, "unknown name slurm.partion; did you mean partition?"),
        ({"roles": {"worker": {"cuont": 2}}}, "unknown name roles.worker.cuont; did you mean count?"),
        ({"roles": {"worker": {"restart": "all"}}}, "roles.worker.restart must be one of task, role, job, not 'all'"),
        ({"roles": {"worker": 2}}, "roles.worker must be names with values, as `count: 2`, not 2"),
        (
            {"roles": {"Worker": {}}},
            "roles: 'Worker' cannot be the name of a role: use small letters, digits and dashes, at most 32",
        ),
        ({"roles": ["worker"]}, "roles must be names with their options, not ['worker']"),
        (
            {"roles": {"worker": {}}, "nodes": 2},
            "roles say how many tasks there are, all on one node: drop nodes, spares and processes",
        ),
        ({"settings": {"node_timout": 3}}, "settings: unknown setting 'node_timout'; did you mean node_timeout?"),
        ({"settings": {"tls": "perhaps"}}, "settings.tls must be true or false, not 'perhaps'"),
        ({"settings": {"token": "x" * 20}}, "settings.token: leave it out: each job gets one of its own"),
        ({"env": {"OUTLAST_TOKEN": "x"}}, "env.OUTLAST_TOKEN: leave it out: each job gets one of its own"),
        ({"env": {"A B": "x"}}, "env: 'A B' cannot be the name of a variable"),
        ({"env": {"A": "x\ny"}}, "env.A must be one line of text"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_place(given: dict[str, Any], said: str) -> None:
    assert mistakes(**given) == [said]


def test_all_mistakes_are_told_at_once() -> None:
    assert len(mistakes(nods=2, spares=-1, settings={"node_timout": 3})) == 3


def test_a_file_without_a_job_says_what_is_missing() -> None:
    with pytest.raises(BadJobFile, match=r"^run is missing"):
        parse({"name": "j"})
    with pytest.raises(BadJobFile, match="at least `name` and `run`"):
        parse(["j"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("name: [", r"is not valid YAML in line 2"),
        ("name: a\nname: b", "'name' is there twice"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_yaml_is_named(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "job.yaml"
    if content is not None:
        path.write_text(content + "\n")
    with pytest.raises(BadJobFile, match=said):
        read(path)


def test_settings_become_flags_of_the_run() -> None:
    spec = parse({**LEAST, "as": "module", "settings": {"node_timeout": 5, "tls": "on"}, "log_dir": "logs"})
    flags = run_arguments(spec)
    assert {"--ft-node-timeout=5.0", "--ft-tls=true", "--log-dir=logs", "--module"} <= set(flags)
    assert flags[-1] == "train.py"


def test_roles_become_flags_with_what_is_given_and_nothing_else() -> None:
    roles = {
        "chief": {"memory": "4GiB", "max_memory": "8GiB"},
        "worker": {"count": 2, "restarts": 0},
        "reward": {"run": "reward.py", "args": ["--batch", 4], "restart": "role", "ends": False},
    }
    spec = parse({**LEAST, "roles": roles, "max_restarts": 5})
    assert run_arguments(spec) == [
        "run",
        "--max-restarts=5",
        *("--role", "chief=1,memory=4GiB,max-memory=8GiB"),
        *("--role", "worker=2,restarts=0"),
        *("--role", "reward=1,restart=role,ends=no,run=reward.py --batch 4"),
        "train.py",
    ]
