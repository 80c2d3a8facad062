"""Whether workers are forked from a zygote, and how early it is warm."""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path

from outlast.agent.processes.environment import worker_command, zygote_environment
from outlast.agent.warm_start.zygote import Zygote
from outlast.launch import Launch
from outlast.settings.settings import Settings

log = logging.getLogger("agent")

MOST_PATIENCE = 1.0  # seconds with a zygote that does not answer; the lease has to be renewed meanwhile
TORCH_USERS = re.compile(
    r"^(import|from) (torch|lightning|pytorch_lightning|transformers|accelerate|deepspeed|megatron)\b", re.MULTILINE
)


def warm(launch: Launch, settings: Settings) -> Zygote | None:
    """A zygote, for workers that are Python scripts under the interpreter that we run in ourselves."""
    plain = launch.command[:2] == (sys.executable, "-u") and launch.numa_binding is None
    if not settings.warm_start or not plain:
        return None
    if settings.warm_cuda and launch.virtual_local_rank:
        log.warning("no spare workers (--warm-cuda) with --virtual-local-rank: each has to see another GPU first")
    preload = [name.strip() for name in settings.warm_preload.split(",") if name.strip()]
    zygote = Zygote(
        worker_command(launch, 0),
        zygote_environment(launch, os.environ),
        preload=preload,
        patience=min(MOST_PATIENCE, settings.node_timeout / 4),
        spares=launch.nproc if settings.warm_cuda and not launch.virtual_local_rank else 0,
    )
    if preload or _uses_torch(Path(launch.entrypoint)):
        zygote.wake()
    return zygote


def _uses_torch(script: Path) -> bool:
    """Whether a script says at its beginning that it needs torch: then a spare, too, can be warm beforehand."""
    try:
        text = script.read_text(errors="replace")
    except OSError:
        return False  # a module, or a program: the first worker will tell
    return TORCH_USERS.search(text) is not None
