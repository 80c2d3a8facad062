"""What a worker finds in its environment and on its command line: to the letter what torchrun gives it."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from outlast.launch import Launch
from outlast.protocol.generations import Assignment
from outlast.system import own_process

# Ours alone: the token would let any code that a worker runs steer the job, and the launcher's own error file and
# board belong to whoever started the launcher. A worker's error file is named when its logs are opened.
_WITHHELD = (
    *("OUTLAST_ARENA", "OUTLAST_BOARD", "OUTLAST_DESK", "OUTLAST_PARTNER", "OUTLAST_STEP_HOOK", "OUTLAST_TOKEN"),
    "TORCHELASTIC_ERROR_FILE",
)


def worker_environment(
    launch: Launch,
    assignment: Assignment,
    local_rank: int,
    base: Mapping[str, str],
    *,
    board: str = "",
    arena: str = "",
    partner: str = "",
    desk: str = "",
    step_hook: bool = True,
) -> dict[str, str]:
    """The whole environment of one worker: `base`, the agent's own, and what torchrun adds to it.

    `board`: where this worker says how it is (see `outlast.board`). `arena`: where its snapshots go; `partner`:
    the host that gets copies of them. `desk`: where it asks for shards (see `outlast.agent.processes.worker_requests`).

    `TORCHELASTIC_ERROR_FILE` is not in it yet: `JobLogs.open` knows where it lies and adds it.
    Raises ValueError when `--virtual-local-rank` has no device for this worker.
    """
    environment = zygote_environment(launch, base) | {
        "RANK": str(assignment.first_rank + local_rank),
        "LOCAL_RANK": "0" if launch.virtual_local_rank else str(local_rank),
        "GROUP_RANK": str(assignment.group_rank),
        "ROLE_RANK": str(assignment.role_rank + local_rank),
        "ROLE_NAME": launch.role,
        "LOCAL_WORLD_SIZE": str(launch.nproc),
        "WORLD_SIZE": str(assignment.world_size),
        "GROUP_WORLD_SIZE": str(assignment.group_world_size),
        "ROLE_WORLD_SIZE": str(assignment.role_world_size),
        "MASTER_ADDR": assignment.master_addr,
        "MASTER_PORT": str(assignment.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(assignment.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(launch.max_restarts),
        "TORCHELASTIC_RUN_ID": launch.job,
        # The agent has no torch, so it cannot host the store: rank 0 does.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(launch.signals),
        "OUTLAST_GENERATION": str(assignment.generation),
    }
    if board:
        environment["OUTLAST_BOARD"] = board
    if arena:
        environment["OUTLAST_ARENA"] = f"{arena}:{local_rank}"
    if partner:
        environment["OUTLAST_PARTNER"] = partner
    if desk:
        environment["OUTLAST_DESK"] = desk
    if not step_hook:
        environment["OUTLAST_STEP_HOOK"] = "false"
    if launch.virtual_local_rank:
        environment["CUDA_VISIBLE_DEVICES"] = _own_device(local_rank, base.get("CUDA_VISIBLE_DEVICES"))
    return environment


def zygote_environment(launch: Launch, base: Mapping[str, str]) -> dict[str, str]:
    """What a zygote imports under: what all workers have in common, for much of it is read by libraries just once."""
    environment = {name: value for name, value in base.items() if name not in _WITHHELD}
    environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if launch.omp_default:
        environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


def worker_command(launch: Launch, local_rank: int) -> tuple[str, ...]:
    """The argv of one worker, with `${local_rank}` filled in and NUMA binding before it where asked for."""
    program, *arguments = launch.command
    filled = (Template(argument).safe_substitute(local_rank=str(local_rank)) for argument in arguments)
    command = (program, *filled)
    if launch.numa_binding is None:
        return command
    # torch alone knows which CPUs are near a GPU, so that is worked out in the worker's own process.
    return (*own_process.command("outlast.worker.numa:run", launch.numa_binding, str(local_rank), "--"), *command)


def _own_device(local_rank: int, visible: str | None) -> str:
    if visible is None:
        return str(local_rank)
    devices = visible.split(",")
    if local_rank >= len(devices):
        raise ValueError(
            f"local_rank {local_rank} exceeds available GPUs in CUDA_VISIBLE_DEVICES={visible}: "
            "lower --nproc-per-node, or leave --virtual-local-rank out"
        )
    return devices[local_rank].strip()
