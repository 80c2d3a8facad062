"""Failures as evidence, their causes, and the history that decisions about them are made from."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

from outlast.protocol.fields import Count, Finite, Name, Reason, Time


class Tried(msgspec.Struct, frozen=True, array_like=True):
    """A generation that failed, and what was done about it."""

    generation: Count
    node: Name
    rank: Count
    at: Time
    cause: Name
    title: Reason
    seen: Reason
    did: Reason
    step: int | None = None
    key: Name = ""  # the same for the same failure
    progressed: bool = False  # the job had got further than ever before


class Ban(msgspec.Struct, frozen=True, array_like=True):
    """A place that is left out for a while, or was."""

    since: Finite
    until: Finite
    times: Count
    reason: Reason


class Ledger(msgspec.Struct, frozen=True, array_like=True):
    """The history that decisions about failures are made from: whoever coordinates next has to know it."""

    tried: tuple[Tried, ...] = ()
    bans: dict[Name, Ban] = {}


class Account(msgspec.Struct, frozen=True, array_like=True):
    """What was seen of a worker's end, as far as it is worth a message. What was not seen is left empty."""

    exception: Name = ""  # the type, as Python names it
    said: Annotated[str, msgspec.Meta(max_length=4096)] = ""  # the exception's message
    traceback: Annotated[str, msgspec.Meta(max_length=16384)] = ""
    log: Annotated[str, msgspec.Meta(max_length=4096)] = ""  # the path of its log on its node
    tail: tuple[Reason, ...] = ()  # of that log
    kernel: tuple[Reason, ...] = ()  # what the kernel says
    gpus: tuple[Reason, ...] = ()  # how those of its node were
    ran: Finite | None = None  # seconds
    step: int | None = None  # the last one


class ReportedCause(msgspec.Struct, frozen=True, array_like=True):
    """What it was, in the words of the catalogue (`outlast.diagnosis`)."""

    name: Name
    title: Reason
    role: Name = "root"
    domain: Name = "user code"
    outlook: Name = "unknown"
    explain: Reason = ""
    advice: Reason = ""
    seen: Reason = ""  # the line that gave it away


class FailoverStrategy(str, Enum):
    """What is done about a failure."""

    NORMAL = "normal"  # the workers are started again where they were
    NODE = "node"  # without this node: a spare takes its place, if there is one
    GLOBAL = "global"  # everything is started anew, also what is kept between restarts
    ABORTION = "abortion"  # nothing can help: the job ends


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
    hung: Reason = ""  # where and for how long, if it was ended because it hung
    culprit: bool = False  # the others waited for this one: what became of them is its doing
    account: Account = Account()
    cause: ReportedCause | None = None
    clock: Time = 0.0  # when, on the clock of its agent
    strategy: FailoverStrategy = FailoverStrategy.NORMAL
    decided: Reason = ""  # by what, if not by default
    pending: bool = False  # the user's extension has not answered yet
    idle: Time = 0.0  # seconds that it had not moved, if it was ended because it hung
    task: Name = ""  # of a job with roles: which one, as `worker-0`
