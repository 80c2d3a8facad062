"""torch's workload: what a worker finds in its environment and on its command line is to the letter torchrun's."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template

from outlast.launch import Launch
from outlast.protocol.generations import Assignment
from outlast.settings.settings import Settings
from outlast.system import own_process
from outlast.workloads.workload import Attachments, Preload, Workload

# Ours alone: the token would let any code that a worker runs steer the job, and the launcher's own error file and
# board belong to whoever started the launcher. A worker's error file is named when its logs are opened.
WITHHELD = (
    *(
        "OUTLAST_ARENA",
        "OUTLAST_BOARD",
        "OUTLAST_CHAOS",
        "OUTLAST_DESK",
        "OUTLAST_IN_PLACE",
        "OUTLAST_PARTNER",
        "OUTLAST_STANDBY",
        "OUTLAST_STEP_HOOK",
    ),
    *("OUTLAST_TOKEN", "TORCHELASTIC_ERROR_FILE"),
)
# Every worker gets its own. Those of whoever started the agent (Kubernetes, Slurm: each node has a rank) would make the
# zygote unfit as soon as anything copies its environment.
_OF_ONE_WORKER = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "OUTLAST_GENERATION"),
)
_TORCH_USERS = re.compile(
    r"^(import|from) (torch|lightning|pytorch_lightning|transformers|accelerate|deepspeed|megatron)\b", re.MULTILINE
)


def is_our_python(command: tuple[str, ...]) -> bool:
    """Whether it runs a script under the interpreter that we run in ourselves."""
    return command[:2] == (sys.executable, "-u")


class TorchWorkload(Workload):
    """The workers of `outlast run`."""

    def __init__(self, launch: Launch, settings: Settings) -> None:
        self._launch = launch
        self._settings = settings

    def command(self, local_rank: int) -> tuple[str, ...]:
        """The argv of one worker, with `${local_rank}` filled in and NUMA binding before it where asked for."""
        launch = self._launch
        program, *arguments = launch.command
        filled = (Template(argument).safe_substitute(local_rank=str(local_rank)) for argument in arguments)
        command = (program, *filled)
        if launch.numa_binding is None:
            return command
        # torch alone knows which CPUs are near a GPU, so that is worked out in the worker's own process.
        return (*own_process.command("outlast.worker.numa:run", launch.numa_binding, str(local_rank), "--"), *command)

    def environment(
        self, assignment: Assignment, local_rank: int, base: Mapping[str, str], attachments: Attachments
    ) -> dict[str, str]:
        """The whole environment of one worker: `base`, the agent's own, and what torchrun adds to it.

        `TORCHELASTIC_ERROR_FILE` is not in it yet: `JobLogs.open` knows where it lies and adds it.
        Raises ValueError when `--virtual-local-rank` has no device for this worker.
        """
        launch = self._launch
        environment = self.shared_environment(base) | {
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
        offered = {
            "OUTLAST_BOARD": attachments.board,
            "OUTLAST_ARENA": f"{attachments.arena}:{local_rank}" if attachments.arena else "",
            "OUTLAST_CHAOS": f"{attachments.chaos}/{local_rank}" if attachments.chaos else "",
            "OUTLAST_PARTNER": attachments.partner,
            "OUTLAST_SHM_RESERVE": str(self._settings.shm_reserve or ""),
            "OUTLAST_DESK": attachments.requests,
            "OUTLAST_IN_PLACE": attachments.in_place,
            "OUTLAST_STEP_HOOK": "" if self._settings.step_hook else "false",
        }
        environment |= {name: value for name, value in offered.items() if value}
        if launch.virtual_local_rank:
            environment["CUDA_VISIBLE_DEVICES"] = _own_device(local_rank, base.get("CUDA_VISIBLE_DEVICES"))
        return environment

    def shared_environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """What all workers have in common: much of it is read by libraries just once, in the zygote."""
        left_out = (*WITHHELD, *_OF_ONE_WORKER)
        environment = {name: value for name, value in base.items() if name not in left_out}
        environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
        if self._launch.omp_default:
            environment.setdefault("OMP_NUM_THREADS", "1")
        return environment

    def preload(self, base: Mapping[str, str]) -> Preload | None:
        """For workers that are Python scripts under the interpreter that we run in ourselves."""
        launch, settings = self._launch, self._settings
        plain = is_our_python(launch.command) and launch.numa_binding is None
        if not settings.warm_start or not plain:
            return None
        modules = [name.strip() for name in settings.warm_preload.split(",") if name.strip()]
        early = bool(modules) or _uses_torch(Path(launch.entrypoint))
        return Preload(self.command(0), self.shared_environment(base), modules, early)

    @property
    def hooked(self) -> bool:
        """Whether its interpreter is ours, and the optimizer's steps are to be counted."""
        return self._settings.step_hook and is_our_python(self._launch.command)


def _uses_torch(script: Path) -> bool:
    """Whether a script says at its beginning that it needs torch: then a spare, too, can be warm beforehand."""
    try:
        text = script.read_text(errors="replace")
    except OSError:
        return False  # a module, or a program: the first worker will tell
    return _TORCH_USERS.search(text) is not None


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
