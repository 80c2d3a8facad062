"""A worker's environment and command line: what torchrun gives, compared with torchrun itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec
import pytest

import launches
from launches import assignment
from outlast.agent.warm_start.spares import of_the_gpu
from outlast.launch import Launch
from outlast.protocol.generations import Assignment
from outlast.settings.settings import Settings
from outlast.system import own_process
from outlast.worker.fitness import OWN
from outlast.workloads.torch_job import TorchWorkload
from outlast.workloads.workload import Attachments

ASSIGNMENT = assignment(generation=3, role_rank=2, role_world_size=6, restart_count=1)
launch = partial(launches.launch, max_nodes=2, nproc=4, max_restarts=3)


def worker_environment(
    asked: Launch, assignment: Assignment, local_rank: int, base: Mapping[str, str], **offered: str
) -> dict[str, str]:
    return TorchWorkload(asked, Settings()).environment(assignment, local_rank, base, Attachments(**offered))


def test_ranks_count_from_the_first_of_the_node() -> None:
    environment = worker_environment(launch(), ASSIGNMENT, 3, {})
    assert environment["RANK"] == "7"
    assert environment["LOCAL_RANK"] == "3"
    assert environment["ROLE_RANK"] == "5"
    assert environment["GROUP_RANK"] == "1"
    assert environment["OUTLAST_GENERATION"] == "3"


def test_a_worker_sees_the_gpu_as_the_spare_that_becomes_it_has_seen_it() -> None:
    base = {"NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "0,1"}
    theirs = of_the_gpu(TorchWorkload(launch(), Settings()).shared_environment(base))
    assert theirs.items() >= base.items()
    assert of_the_gpu(worker_environment(launch(), ASSIGNMENT, 1, base)) == theirs


def test_the_token_and_the_launchers_error_file_are_not_handed_on() -> None:
    base = {"OUTLAST_TOKEN": "secret", "TORCHELASTIC_ERROR_FILE": "of-the-launcher", "HOME": "/home"}
    environment = worker_environment(launch(), ASSIGNMENT, 0, base)
    assert "secret" not in environment.values()
    assert "TORCHELASTIC_ERROR_FILE" not in environment
    assert environment["HOME"] == "/home"


def test_what_each_worker_has_of_its_own_is_not_taken_from_whoever_started_the_agent() -> None:
    """A zygote that copies its environment would have read it, and would never be forked."""
    base = {**dict.fromkeys(OWN, "7"), "HOME": "/home"}
    shared = TorchWorkload(launch(), Settings()).shared_environment(base)
    assert not OWN & set(shared)
    assert shared["HOME"] == "/home"
    assert worker_environment(launch(), ASSIGNMENT, 3, base)["RANK"] == "7"


def test_each_worker_has_a_place_of_its_own_in_the_arena_whatever_its_rank() -> None:
    asked, base = launch(virtual_local_rank=True), {"OUTLAST_ARENA": "/of/the/launcher:0"}
    arenas = [worker_environment(asked, ASSIGNMENT, r, base, arena="/dev/shm/a")["OUTLAST_ARENA"] for r in (0, 1)]
    assert arenas == ["/dev/shm/a:0", "/dev/shm/a:1"]
    assert "OUTLAST_ARENA" not in worker_environment(asked, ASSIGNMENT, 0, base)


@pytest.mark.parametrize(
    ("base", "omp_default", "threads"),
    [({}, True, "1"), ({}, False, None), ({"OMP_NUM_THREADS": "8"}, True, "8")],
)
def test_omp_threads_are_one_by_default_but_the_users_number_counts(
    base: dict[str, str], omp_default: bool, threads: str | None
) -> None:
    environment = worker_environment(launch(omp_default=omp_default), ASSIGNMENT, 0, base)
    assert environment.get("OMP_NUM_THREADS") == threads


def test_nccl_error_handling_is_on_unless_the_user_said_otherwise() -> None:
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    assert worker_environment(launch(), ASSIGNMENT, 0, {})[name] == "1"
    assert worker_environment(launch(), ASSIGNMENT, 0, {name: "0"})[name] == "0"


@pytest.mark.parametrize(("visible", "own"), [(None, "2"), ("4,5, 6,7", "6"), ("GPU-a,GPU-b,GPU-c", "GPU-c")])
def test_with_a_virtual_local_rank_each_worker_sees_its_own_device_as_the_first(visible: str | None, own: str) -> None:
    base = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    environment = worker_environment(launch(virtual_local_rank=True), ASSIGNMENT, 2, base)
    assert environment["LOCAL_RANK"] == "0"
    assert environment["RANK"] == "6"
    assert environment["CUDA_VISIBLE_DEVICES"] == own


def test_more_workers_than_visible_devices_is_refused() -> None:
    with pytest.raises(ValueError, match="local_rank 2 exceeds available GPUs in CUDA_VISIBLE_DEVICES=0,1"):
        worker_environment(launch(virtual_local_rank=True), ASSIGNMENT, 2, {"CUDA_VISIBLE_DEVICES": "0,1"})


def test_the_local_rank_is_filled_into_arguments_and_other_dollars_stay() -> None:
    command = ("./${local_rank}", "--local-rank=${local_rank}", "$local_rank", "${HOME}", "$5 off")
    assert TorchWorkload(launch(command=command), Settings()).command(3) == (
        "./${local_rank}",
        "--local-rank=3",
        "3",
        "${HOME}",
        "$5 off",
    )


def test_numa_binding_is_worked_out_in_the_workers_own_process() -> None:
    command = TorchWorkload(launch(numa_binding="node", command=("train", "${local_rank}")), Settings()).command(1)
    assert command == (*own_process.command("outlast.worker.numa:run"), "node", "1", "--", "train", "1")


FAKE_BINDING = """
from dataclasses import dataclass
from enum import Enum

class AffinityMode(str, Enum):
    NODE = "node"

@dataclass
class NumaOptions:
    affinity_mode: AffinityMode

def maybe_wrap_command_args_with_numa_binding(command_args, *, gpu_index, numa_options):
    return ("env", f"BOUND={numa_options.affinity_mode.value}-{gpu_index}", *command_args)
"""


def numa(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    search = [*([str(path)] if path else []), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        own_process.command("outlast.worker.numa:run", *arguments),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, search))},
    )


def test_a_bound_worker_is_the_command_behind_what_torch_puts_before_it(tmp_path: Path) -> None:
    binding = tmp_path / "torch" / "numa" / "binding.py"
    binding.parent.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "numa" / "__init__.py").touch()
    binding.write_text(FAKE_BINDING)
    done = numa("node", "3", "--", "sh", "-c", "echo $BOUND", path=tmp_path)
    assert done.stdout == "node-3\n"


def test_a_torch_without_numa_binding_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    done = numa("node", "0", "--", "true", path=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("outlast: this torch cannot bind to NUMA nodes")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [("node", "x", "--", "true"), ("node", "0", "true"), ("node", "0", "--")])
def test_numa_binding_called_wrongly_says_how_to_call_it(arguments: tuple[str, ...]) -> None:
    assert numa(*arguments).stderr.startswith("usage: ")


def test_numa_binding_that_torch_refuses_is_one_line() -> None:
    done = numa("nonsense", "0", "--", "true")
    assert done.returncode == 1
    assert "outlast: --numa-binding=nonsense failed" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_workers_get_every_variable_that_torchrun_gives_with_the_same_value(tmp_path: Path) -> None:
    """The values that differ from run to run (job, store) are taken over from torchrun's own."""
    base = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "PET_", "OMP"))}
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *("--max-restarts=2", "--role=trainer", f"--log-dir={tmp_path}", "--redirects=1"),
            *("--no-python", "env", "-0"),
        ],
        env=base,
        check=True,
        capture_output=True,
    )
    for local_rank in (0, 1):
        (output,) = tmp_path.glob(f"*/attempt_0/{local_rank}/stdout.log")
        theirs = dict(line.split("=", 1) for line in output.read_text().split("\0") if line)
        asked = launch(job=theirs["TORCHELASTIC_RUN_ID"], nproc=2, max_restarts=2, omp_default=True)
        place = Assignment(
            generation=1,
            group_rank=0,
            group_world_size=1,
            first_rank=0,
            world_size=2,
            role_rank=0,
            role_world_size=2,
            master_addr=theirs["MASTER_ADDR"],
            master_port=int(theirs["MASTER_PORT"]),
            restart_count=0,
        )
        ours = worker_environment(asked, place, local_rank, base)
        # Their agent hosts the store, ours has no torch; the error file is the logs' part of it.
        assert theirs.pop("TORCHELASTIC_USE_AGENT_STORE") == "True"
        assert ours.pop("TORCHELASTIC_USE_AGENT_STORE") == "False"
        assert theirs.pop("TORCHELASTIC_ERROR_FILE") == str(output.with_name("error.json"))
        assert ours.pop("OUTLAST_GENERATION") == "1"
        assert ours == theirs


def test_every_restart_is_counted_for_the_worker() -> None:
    later = msgspec.structs.replace(ASSIGNMENT, restart_count=2)
    environment = worker_environment(launch(), later, 0, {})
    assert environment["TORCHELASTIC_RESTART_COUNT"] == "2"
    assert environment["TORCHELASTIC_MAX_RESTARTS"] == "3"
