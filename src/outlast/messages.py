"""What agent and coordinator say to each other. Plain data: nothing here acts, and nothing is unpickled.

Every message after `Join` is a full statement, not a step: it may be lost, doubled, late or out of order,
and the next one of its kind repairs it. What could be late carries its generation.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

PROTOCOL = 1  # agents and coordinators of different numbers refuse each other, with a clear line


# What comes off the wire is no larger than what makes sense.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Name = Annotated[str, msgspec.Meta(max_length=255)]
Address = Annotated[str, msgspec.Meta(max_length=255, pattern=r"^[0-9A-Za-z.:%_-]*$")]
Time = Annotated[float, msgspec.Meta(ge=0, le=1e11)]


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


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """One worker's end, as evidence."""

    node: Name
    host: Name
    rank: Count
    local_rank: Count
    pid: Count
    exit_code: int  # negative: the signal, as subprocess has it
    at: Time  # wall-clock
    message: str
    error_file: str = "<N/A>"
    error: str = ""  # the error file as torch's @record wrote it


class Assignment(msgspec.Struct, frozen=True, array_like=True):
    """One node's place in a generation. Its size does not grow with the number of nodes."""

    generation: int
    group_rank: int
    group_world_size: int
    first_rank: int
    world_size: int
    role_rank: int  # of this node's first worker, among the workers of its role
    role_world_size: int
    master_addr: str
    master_port: int
    restart_count: int


class Report(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """The whole truth about a node: sent when it changes, and once per heartbeat."""

    seq: Count
    floor: Count  # no generation up to this one will ever start here again
    generation: Count  # the newest that was started here; 0: none
    state: State
    clear: bool  # no worker process is alive here
    store_port: Port  # reserved here for the next generation's store
    leaving: Leaving = Leaving.NO
    failures: tuple[Failure, ...] = ()


class Join(msgspec.Struct, frozen=True, array_like=True, tag="join"):
    """The first message of an agent on every connection."""

    node: Name  # unique to one life of one agent
    name: Name
    nproc: Annotated[int, msgspec.Meta(ge=1, le=65536)]
    role: Name
    addr: Address
    job: Name
    entrypoint: Annotated[str, msgspec.Meta(max_length=4096)]
    nnodes: tuple[int, int]
    report: Report
    infra_rank: Count | None = None
    protocol: int = PROTOCOL


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A person wants something of the job: the only message of a connection that joins nothing."""

    what: Name  # "restart"
    who: Name  # for the log
    job: Name = ""  # empty: whichever is served there


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """What became of it."""

    done: bool
    text: str


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """The coordinator takes the node in. The lease: how long workers may run on without an `Ack`."""

    heartbeat: float
    lease: float
    restart_grace: float


class Ack(msgspec.Struct, frozen=True, array_like=True, tag="ack"):
    """Report `seq` was heard, and its sender is still part of the job: the lease is renewed."""

    seq: int


class Start(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    """Start the workers of this generation. Also an `Ack` of the report that it answers."""

    assignment: Assignment
    ack: int = 0


class Stop(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """Stop every worker up to this generation, and never start one of them again."""

    generation: int
    graceful: bool = False  # the workers get the whole shutdown time-out to end by themselves


class Over(msgspec.Struct, frozen=True, array_like=True, tag="over"):
    """The job has ended, for this node (`left`) or for all."""

    success: bool
    reason: str
    failures: tuple[Failure, ...] = ()  # the root first
    left: bool = False


class Refuse(msgspec.Struct, frozen=True, array_like=True, tag="refuse"):
    """This agent cannot be part of the job; the reason says what to change."""

    reason: str


FromAgent = Join | Report | Ask
FromCoordinator = Welcome | Ack | Start | Stop | Over | Refuse | Answer
