"""What the job knows about one life of one agent."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from outlast.core.membership.roster import Candidate
from outlast.protocol.failures import Failure
from outlast.protocol.membership import Join, Leaving, Report, State
from outlast.protocol.roles import TaskReport

ACKS_KEPT = 8  # of one node, that it has not repeated yet
CLOSER = 0.001  # seconds: what is worth to be remembered of how clocks differ, and written down for a replay


class Member:
    """A node, from its first connection on: also a spare, and one that was lost."""

    __slots__ = (
        *("acks", "behind", "connected", "drained_by", "echoed", "join", "relaunches", "report", "sent"),
        *("tasks", "told", "until"),
    )

    def __init__(self, join: Join) -> None:
        self.join = join
        self.connected = True
        self.report = join.report
        self.sent = join.report.generation  # the newest generation that it may have been told to start
        self.told = 0  # the newest term of this coordinator that it may have heard of
        self.until: float | None = None
        self.drained_by = ""  # who asked it to leave
        self.acks: dict[int, float] = {}  # when each was sent
        self.echoed = 0  # the newest that it has repeated
        self.tasks: tuple[TaskReport, ...] = ()  # of a job with roles
        self.relaunches = 0  # the newest of them that was published
        self.behind: float | None = None  # the coordinator's clock less the node's, as the fastest report shows it

    def come_back(self, join: Join) -> None:
        """The same agent, on another connection."""
        self.join, self.connected, self.until = join, True, None
        self.sent = max(self.sent, join.report.generation)
        self.acks.clear()

    @property
    def name(self) -> str:
        return self.join.name

    @property
    def place(self) -> str:
        return self.join.place

    @property
    def leaving(self) -> bool:
        return self.report.leaving is not Leaving.NO

    @property
    def clear(self) -> bool:
        """No worker runs there, and none of a generation that it was ever told to start can start any more."""
        return self.report.clear and (self.leaving or self.report.floor >= self.sent)

    def stopped(self, generation: int) -> bool:
        """Its workers of this generation were told to end, for a reason that was not theirs, or never to begin."""
        report = self.report
        if report.generation < generation:
            return self.clear
        return report.state is State.IDLE or (report.state is State.RUNNING and report.floor >= generation)

    @property
    def is_here(self) -> bool:
        """Whether it could take part in the next generation."""
        return self.connected and self.clear and not self.leaving

    @property
    def whole(self) -> bool:
        """Whether all of its processes wait in a restartable function: they need no start."""
        return self.report.kept is not None and self.report.kept >= self.join.nproc

    @property
    def impaired(self) -> bool:
        """Whether some of its processes died, while others of them, or of other nodes, can be restarted in place."""
        return self.report.kept is not None and self.report.kept < self.join.nproc

    def heard(self, sent: float, now: float) -> bool:
        """A report that was sent at this time of the node's clock has come; whether that tells anything new."""
        if not sent or (self.behind is not None and now - sent > self.behind - CLOSER):
            return False
        self.behind = now - sent
        return True

    def aligned(self, failures: tuple[Failure, ...]) -> tuple[Failure, ...]:
        """These failures by the coordinator's clock."""
        behind = self.behind or 0.0
        return tuple(replace(failure, clock=max(0.0, failure.clock + behind)) for failure in failures)

    def clock(self, at: float) -> float:
        """A time of its agent's clock by the coordinator's."""
        return at + (self.behind or 0.0)

    def candidate(self) -> Candidate:
        j = self.join
        port = self.report.store_port
        return Candidate(
            node=j.node, name=j.name, nproc=j.nproc, role=j.role, addr=j.addr, store_port=port, infra_rank=j.infra_rank
        )

    def acked(self, seq: int, now: float) -> None:
        """An `Ack` of this report is being sent. Of two, it may be the first that is repeated: that one counts."""
        if seq in self.acks or seq <= self.echoed:
            return
        if len(self.acks) >= ACKS_KEPT:
            del self.acks[next(iter(self.acks))]
        self.acks[seq] = now

    def repeated(self, seq: int) -> float | None:
        """When the `Ack` was sent that it has just shown to have."""
        sent = self.acks.pop(seq, None)
        if sent is not None:
            self.echoed = seq
            for older in [s for s in self.acks if s < seq]:
                del self.acks[older]
        return sent


def names_of(nodes: Iterable[Member]) -> tuple[str, ...]:
    return tuple(node.name for node in nodes)


def is_news(known: Report, report: Report) -> bool:
    """Whether a report says what the one before it did not, as far as decisions depend on it."""
    return any(getattr(known, name) != getattr(report, name) for name in _DECISIVE)


# What changes with every report, and what is heard of in another way: everything else counts.
_PASSING = {"seq", "sent", "acked", "agreed", "held", "training", "tasks"}
_DECISIVE = tuple(field for field in Report.__struct_fields__ if field not in _PASSING)
