"""What the coordinator asks of whoever gives it nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod

from outlast.core.job.commands import NodesWanted, ReleaseNode


class NodeSource(ABC):
    """Gives a running job its nodes. Answers, if at all, by nodes that join; never holds the coordinator up."""

    @abstractmethod
    def want(self, wanted: NodesWanted) -> None:
        """The job waits for more nodes."""

    @abstractmethod
    def release(self, released: ReleaseNode) -> None:
        """The job does not use a node any more."""
