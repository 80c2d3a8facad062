"""For those who want to decide themselves what is done about a failure.

class Mine(outlast.FailoverExtension):
    def get_user_failover_strategy(self, failure_info):
        if "licence" in failure_info.message:
            return outlast.FailoverStrategy.ABORTION
        return None  # as Outlast would have it

outlast run --dynamic_failover_extension my_package.failover::Mine train.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec

from outlast.protocol.failures import FailoverStrategy, Failure

__all__ = ["FailoverExtension", "FailoverStrategy", "FailureInfo"]


class FailureInfo(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a worker that failed first on its node. What could not be seen is empty, or None."""

    job: str
    node: str
    host: str
    rank: int
    local_rank: int
    generation: int
    restarts: int  # so far
    exit_code: int  # negative: the signal
    exception: str  # its type
    message: str
    traceback: str
    log_file: str
    log_tail: tuple[str, ...]
    kernel: tuple[str, ...]  # what the kernel said: OOM kills, Xids
    hung: str  # where and for how long, if it was ended for that
    ran: float | None  # seconds
    step: int | None
    cause: str  # the name of its signature
    title: str
    role: str  # root, confirmation, cascade
    domain: str
    outlook: str  # of a retry
    default: FailoverStrategy  # what is done if the extension does not decide
    node_rank: int = -1  # of its node in this generation
    at: float = 0.0  # wall-clock

    @classmethod
    def of(cls, failure: Failure, *, job: str, generation: int, restarts: int, node_rank: int = -1) -> FailureInfo:
        """As the agent knows it."""
        account, cause = failure.account, failure.cause
        return cls(
            job=job,
            node=failure.node,
            host=failure.host,
            rank=failure.rank,
            local_rank=failure.local_rank,
            generation=generation,
            restarts=restarts,
            exit_code=failure.exit_code,
            exception=account.exception,
            message=account.said or failure.message,
            traceback=account.traceback,
            log_file=account.log,
            log_tail=account.tail,
            kernel=account.kernel,
            hung=failure.hung,
            ran=account.ran,
            step=account.step,
            cause=cause.name if cause is not None else "unknown",
            title=cause.title if cause is not None else "unknown",
            role=cause.role if cause is not None else "root",
            domain=cause.domain if cause is not None else "user code",
            outlook=cause.outlook if cause is not None else "unknown",
            default=failure.strategy,
            node_rank=node_rank,
            at=failure.at,
        )


class FailoverExtension(ABC):
    """Decides what is done about a failure. It lives in a process of its own, beside the agent of each node.

    It may take its time (`--ft-extension-timeout`) to ask whomever it likes. If it raises, is too slow or returns
    something else, that is said in the log, and what Outlast would have done is done.
    """

    @abstractmethod
    def get_user_failover_strategy(self, failure_info: FailureInfo) -> FailoverStrategy | None:
        """The strategy for this failure; None: it does not decide."""

    def decide(self, failure_info: FailureInfo) -> FailoverStrategy | None:
        """What the agent calls. Extensions of another interface translate here (`outlast.dlrover`)."""
        return self.get_user_failover_strategy(failure_info)
