"""How a node joins, reports, is answered and leaves."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

from outlast.protocol.failures import Failure, Tried
from outlast.protocol.fields import LONGEST_PATH, Address, Count, Finite, Name, Port, Reason, Time
from outlast.protocol.generations import Assignment, Halted
from outlast.protocol.hangs import Measures, Overdue
from outlast.protocol.paces import Training
from outlast.protocol.roles import Relaunch, TaskReport
from outlast.protocol.shards import Hands
from outlast.protocol.snapshots import Held
from outlast.protocol.succession import Charter, Successor, Term

PROTOCOL = 7  # agents and coordinators of different numbers refuse each other, with a clear line

MOST_RELAUNCHES = 16  # in one report


class State(str, Enum):
    """What a node's workers do, as its agent last saw it."""

    IDLE = "idle"
    RUNNING = "running"
    FINISHED = "finished"  # every worker of the generation exited with 0
    FAILED = "failed"  # at least one did not
    CUT_OFF = "cut off"  # the lease ran out, and the agent ended its workers


class Leaving(str, Enum):
    """Why a node wants out."""

    NO = ""
    DRAIN = "drain"  # SIGTERM: this node goes, the job goes on
    INTERRUPT = "interrupt"  # Ctrl-C: the whole job ends


class Wanted(str, Enum):
    """What a rank may ask of the whole job. (A drain is its agent's own matter.)"""

    STOP = "stop"
    EXCLUDE_NODE = "exclude_node"
    RESTART = "restart"


class Wish(msgspec.Struct, frozen=True, array_like=True):
    """What a rank asked for with `outlast.control`. Repeated in every report, and done once: it names a generation."""

    wanted: Wanted
    generation: Count
    rank: Count
    reason: Reason


class Report(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """The whole truth about a node: sent when it changes, and once per heartbeat."""

    seq: Count
    floor: Count  # no generation up to this one will ever start here again
    generation: Count  # the newest that was started here; 0: none
    state: State
    clear: bool  # no process here can reach a generation: each has ended, or is parked
    store_port: Port  # reserved here for the next generation's store
    leaving: Leaving = Leaving.NO
    failures: tuple[Failure, ...] = ()
    acked: Count = 0  # the newest of its reports that an `Ack` has come for, from the coordinator that this goes to
    known: tuple[Count, Count, Count] = (0, 0, 0)  # the charter that it has
    wish: Wish | None = None  # of one of its ranks
    measures: Measures = Measures(0)  # the newest that it was asked for, by one of its ranks or by the coordinator
    agreed: Count = 0  # the newest round of calibration that it knows the result of
    overdue: Overdue | None = None
    halted: Halted | None = None  # while a change is planned
    sent: Time = 0.0  # by the clock of the agent
    held: Annotated[tuple[Held, ...], msgspec.Meta(max_length=64)] | None = None  # None: as it said before
    stride: Count = 1  # that this node can keep up with
    training: Training | None = None  # in the newest generation that was started here; None: no step was made
    tasks: Annotated[tuple[TaskReport, ...], msgspec.Meta(max_length=4096)] | None = None  # None: as it said before
    relaunched: Annotated[tuple[Relaunch, ...], msgspec.Meta(max_length=MOST_RELAUNCHES)] = ()  # that are news
    kept: Count | None = None  # processes that wait in a restartable function for the next generation; None: not asked


class Join(msgspec.Struct, frozen=True, array_like=True, tag="join"):
    """The first message of an agent on every connection."""

    node: Name  # unique to one life of one agent
    name: Name
    nproc: Annotated[int, msgspec.Meta(ge=1, le=65536)]
    role: Name
    addr: Address
    job: Name
    entrypoint: Annotated[str, msgspec.Meta(max_length=LONGEST_PATH)]
    nnodes: tuple[int, int]
    report: Report
    infra_rank: Count | None = None
    protocol: int = PROTOCOL
    connection: Count = 0  # grows with every one that this life of the agent makes
    key: Name = ""  # of its place: no two agents that live hold the same one
    port: Port = 0  # where this node would host a coordinator; 0: it cannot
    term: Term = Term()  # the newest that it has obeyed
    charter: Charter | None = None
    assignment: Assignment | None = None  # of the newest generation that was started here
    since: Finite = 0.0  # when it took its place, by the clock of its machine: of two with the same key, who came later
    keeper: Port = 0  # where its keeper listens; 0: nowhere
    hands: Hands | None = None  # the shards that its ranks have and have done
    queued: Time = 0.0  # seconds from the job's submission to the start of this node

    @property
    def place(self) -> str:
        """What an agent has in common with those before and after it in the same place."""
        return self.key or self.name


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """The coordinator takes the node in. The lease: how long workers may run on without an `Ack`."""

    heartbeat: float
    lease: float
    restart_grace: float
    successors: Annotated[tuple[Successor, ...], msgspec.Meta(max_length=64)] = ()  # where else to look for others
    refills: bool = False  # a node that is not needed replaces its processes that died (--ft-restart-policy)


class Ack(msgspec.Struct, frozen=True, array_like=True, tag="ack"):
    """Report `seq` was heard by the coordinator of this term.

    Its receiver promises not to join another one for a while. `leased`: that coordinator may act, its sender is
    still part of the job, and its workers' lease is renewed.
    """

    seq: int
    term: int
    leased: bool = True


class Notice(msgspec.Struct, frozen=True, array_like=True, tag="notice"):
    """For whoever reads this node's log: the coordinator's own may lie on another host."""

    text: Reason


class Over(msgspec.Struct, frozen=True, array_like=True, tag="over"):
    """The job has ended, for this node (`left`) or for all."""

    success: bool
    reason: str
    failures: tuple[Failure, ...] = ()  # the root first
    left: bool = False
    term: int = 0
    tried: tuple[Tried, ...] = ()  # the oldest first
    table: str = ""  # of the node checks, where they decided
    final: bool = False  # to try the job again cannot help


class Refuse(msgspec.Struct, frozen=True, array_like=True, tag="refuse"):
    """This agent cannot be part of the job; the reason says what to change."""

    reason: str
