"""Whether workers are forked from a zygote, and how early it is warm."""

from __future__ import annotations

import logging
import os

from outlast.agent.warm_start.zygote import Zygote
from outlast.launch import Launch
from outlast.settings.settings import Settings
from outlast.workloads.workload import Workload

log = logging.getLogger("agent")

MOST_PATIENCE = 1.0  # seconds with a zygote that does not answer; the lease has to be renewed meanwhile


def warm(workload: Workload, launch: Launch, settings: Settings) -> Zygote | None:
    """A zygote, for a workload whose tasks can be forked."""
    preload = workload.preload(os.environ)
    if preload is None:
        return None
    if settings.warm_cuda and launch.virtual_local_rank:
        log.warning("no spare workers (--warm-cuda) with --virtual-local-rank: each has to see another GPU first")
    zygote = Zygote(
        preload.command,
        preload.environment,
        preload=preload.modules,
        patience=min(MOST_PATIENCE, settings.node_timeout / 4),
        spares=launch.nproc if settings.warm_cuda and not launch.virtual_local_rank else 0,
    )
    if preload.early:
        zygote.wake()
    return zygote
