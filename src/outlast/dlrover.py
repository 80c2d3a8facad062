"""DLRover's names, for extensions that were written for it: only their import lines change.

from outlast.dlrover import AgentFailureInfo, DynamicAgentFailoverExtension, FailoverStrategy

NORMAL_FAILOVER means there what it meant in DLRover: no decision of the extension's own. New code uses
`outlast.FailoverExtension`, whose `FailureInfo` knows far more.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Final

from outlast.failover import FailoverExtension, FailureInfo
from outlast.failover import FailoverStrategy as Strategy

__all__ = ["AgentFailureInfo", "DynamicAgentFailoverExtension", "DynamicFailoverExtension", "FailoverStrategy"]


class DLRoverStrategy:
    """The four strategies, as DLRover calls them."""

    NORMAL_FAILOVER: Final = Strategy.NORMAL
    NODE_FAILOVER: Final = Strategy.NODE
    GLOBAL_FAILOVER: Final = Strategy.GLOBAL
    ABORTION_FAILOVER: Final = Strategy.ABORTION


FailoverStrategy = DLRoverStrategy


@dataclass
class AgentFailureInfo:
    """What DLRover tells of a failure; and `info`, what Outlast knows of it."""

    node_rank: int = -1
    timestamp: int = 0
    log_content: str = ""  # JSON: by local rank, what failed
    extra_info: dict[str, Any] = field(default_factory=dict)
    info: FailureInfo | None = None

    @classmethod
    def of(cls, info: FailureInfo) -> AgentFailureInfo:
        """The same failure in DLRover's words."""
        said = "\n".join(filter(None, (info.message, info.traceback, *info.log_tail)))
        failed = {"exitcode": info.exit_code, "message": said}
        return cls(info.node_rank, int(info.at), json.dumps({info.local_rank: failed}), {}, info)


class DynamicFailoverExtension(FailoverExtension):
    """An extension that is told of failures as DLRover tells of them."""

    @abstractmethod
    def get_user_failover_strategy(self, failure_info: Any) -> Strategy | None:
        """The strategy for this failure; NORMAL_FAILOVER or None: the extension does not decide."""

    def decide(self, failure_info: FailureInfo) -> Strategy | None:
        """In DLRover's words, and back."""
        said = self.get_user_failover_strategy(AgentFailureInfo.of(failure_info))
        return None if said is Strategy.NORMAL else said


class DynamicAgentFailoverExtension(DynamicFailoverExtension):
    """The extension of an agent: the only kind that there is here."""
