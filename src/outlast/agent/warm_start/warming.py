"""Where workers come from: forked from a zygote, if the workload allows that, or started as new processes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence

from outlast.agent.processes.worker import Streams, Worker
from outlast.agent.processes.workers import WorkerGroup
from outlast.agent.warm_start.zygote import Zygote
from outlast.agent.warm_start.zygote_process import startup
from outlast.launch import Launch
from outlast.protocol.generations import Assignment
from outlast.settings.settings import Settings
from outlast.workloads.role_job import RoleWorkload
from outlast.workloads.torch_job import TorchWorkload
from outlast.workloads.workload import Attachments, Workload

log = logging.getLogger("agent")

MOST_PATIENCE = 1.0  # seconds with a zygote that does not answer; the lease has to be renewed meanwhile


class Spawner:
    """Makes the workers of one node, for one generation after the other."""

    def __init__(self, launch: Launch, settings: Settings) -> None:
        kind = RoleWorkload if launch.roles else TorchWorkload
        self.workload: Workload = kind(launch, settings)
        self.launch = launch
        self._settings = settings
        self._early = False  # whether it is known before the first start what there is to import
        self.zygote = self._warm()

    def _warm(self) -> Zygote | None:
        """A zygote, for a workload whose tasks can be forked."""
        launch, settings = self.launch, self._settings
        preload = self.workload.preload(os.environ)
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
        self._early = preload.early
        if preload.early:
            zygote.wake()
        return zygote

    async def warmed(self) -> None:
        """Wait until workers can be forked, or cannot be; at most as long as `warm_join` says."""
        limit = self._settings.warm_join
        if self.zygote is None or not self._early or not limit:
            return
        try:
            await asyncio.wait_for(self.zygote.ready(), limit)
        except asyncio.TimeoutError:
            log.warning("joining after %g s (--ft-warm-join), before the zygote is ready", limit)

    def refresh(self) -> None:
        """What was imported before is not used again."""
        if self.zygote is not None:
            self.zygote.close()
            self.zygote = self._warm()

    def environment(self, assignment: Assignment, local_rank: int, offered: Attachments) -> dict[str, str]:
        """The environment of one worker. Raises ValueError."""
        return self.workload.environment(assignment, local_rank, os.environ, offered)

    def start(
        self,
        environments: Sequence[dict[str, str]],
        streams: Sequence[Streams],
        on_exit: Callable[[int, int, int], None],
        parked: Sequence[Worker] = (),
        only: Collection[int] | None = None,
    ) -> WorkerGroup:
        """The workers of a generation; those that are parked go on, others are made: all, or `only` these."""
        commands = [self.workload.command(r) for r in range(self.launch.nproc)]
        zygote = self.zygote
        if zygote is None:
            return WorkerGroup.start(
                commands, environments, streams, on_exit, cold=self._cold, parked=parked, only=only
            )
        return WorkerGroup.start(
            commands,
            environments,
            streams,
            on_exit,
            fork=zygote.fork,
            cold=zygote.cold,
            pass_fds=[zygote.news],
            parked=parked,
            only=only,
        )

    def restart(self, group: WorkerGroup, local_rank: int, environment: Mapping[str, str], streams: Streams) -> None:
        """Start another process in the place of one of the group. Raises `WorkersNotStarted`."""
        group.replace(local_rank, self.workload.command(local_rank), environment, streams, self._cold)

    def _cold(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        """The environment of a worker that is not forked."""
        return startup(environment, purpose="hook -1") if self.workload.hooked else environment

    def close(self) -> None:
        if self.zygote is not None:
            self.zygote.close()
