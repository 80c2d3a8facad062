"""Nodes that a person starts and stops: what the job wants is in its log; plug-ins may cordon what it gives back."""

from __future__ import annotations

import logging
from collections.abc import Callable

from outlast.core.job.commands import NodesWanted, ReleaseNode
from outlast.platforms.plugins import Faulty
from outlast.providers.node_source import NodeSource

log = logging.getLogger("coordinator")


class ByHand(NodeSource):
    """The source of nodes of a job that no platform looks after. `tell`: plug-ins that hear of faulty nodes."""

    def __init__(self, job: str, tell: Callable[[Faulty], None]) -> None:
        self._job = job
        self._tell = tell

    def want(self, wanted: NodesWanted) -> None:
        """Somebody has to start them; the log says that they are waited for."""
        log.debug("nodes wanted: %d more (%s)", wanted.count, wanted.because)

    def release(self, released: ReleaseNode) -> None:
        """A faulty node is left to plug-ins. One that a rank sent away is not faulty."""
        if released.seconds is not None:
            self._tell(Faulty(self._job, released.node, released.because, released.seconds))
