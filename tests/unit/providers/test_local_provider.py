"""What `outlast submit --on local` starts."""

from outlast.jobs.spec import JobSpec
from outlast.providers.local import LocalProvider

SPEC = JobSpec(name="j", run="train.py", args=("a b",), directory="/where", env={"A": "x y"})


def test_one_node_is_one_command_and_needs_no_endpoint() -> None:
    request = LocalProvider(29400).plan(SPEC)
    assert request.text().splitlines() == [
        "cd /where",
        "export A='x y'",
        "outlast run --nnodes=1 --nproc-per-node=1 --max-restarts=3 --standalone train.py 'a b'",
    ]


def test_several_nodes_and_spares_meet_on_this_machine() -> None:
    request = LocalProvider(29400).plan(JobSpec(name="j", run="train.py", nodes="1:2", spares=1))
    assert len(request.commands) == 3
    for index, command in enumerate(request.commands):
        assert {"--nnodes=1:2", "--rdzv-endpoint=127.0.0.1:29400", f"--ft-node-name=node-{index}"} <= set(command)
    assert request.text().endswith("&\nwait")
