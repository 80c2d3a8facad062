"""What goes into the job's decisions, and what comes out of them. Plain data."""

from __future__ import annotations

from enum import Enum

import msgspec

from outlast.core.authority import Memory
from outlast.core.stragglers import Straggler
from outlast.diagnosis.culprit import Verdict
from outlast.messages import Answer, Ask, FromCoordinator, Join, Report, Seen
from outlast.messages.checks import Findings
from outlast.messages.shards import Query


class Joined(msgspec.Struct, frozen=True, tag="joined"):
    """An agent has come, on a connection that takes the place of any earlier one of the same node."""

    join: Join


class Reported(msgspec.Struct, frozen=True, tag="reported"):
    """A node that has joined says how it is."""

    node: str
    report: Report


class Saw(msgspec.Struct, frozen=True, tag="saw"):
    """A node says where its ranks are."""

    node: str
    seen: Seen


class Queried(msgspec.Struct, frozen=True, tag="queried"):
    """A node passes on what one of its workers asks."""

    node: str
    query: Query


class Straggled(msgspec.Struct, frozen=True, tag="straggled"):
    """Ranks of a node are slower than the others, or are so no longer."""

    node: str
    straggler: Straggler


class Found(msgspec.Struct, frozen=True, tag="found"):
    """A node has been checked."""

    node: str
    findings: Findings


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """A node's connection is gone.

    `until`: the time up to which its workers may still be alive; None: they cannot be, for its agent has
    ended, or has been silent for longer than its lease.
    """

    node: str
    why: str
    until: float | None = None
    ended: bool = False  # its agent is known to be no more


class Asked(msgspec.Struct, frozen=True, tag="asked"):
    """Somebody who may do so asks for something."""

    ask: Ask


class Tick(msgspec.Struct, frozen=True, tag="tick"):
    """Time has passed: a deadline may be due."""


Event = Joined | Reported | Saw | Queried | Straggled | Found | Lost | Asked | Tick


class Send(msgspec.Struct, frozen=True):
    """Tell a node something."""

    node: str
    message: FromCoordinator


class Drop(msgspec.Struct, frozen=True):
    """Close a node's connection, once what was sent before has been written."""

    node: str


class Reply(msgspec.Struct, frozen=True):
    """Tell whoever asked what became of it."""

    answer: Answer


class Remember(msgspec.Struct, frozen=True):
    """Write this down before anything that follows is done: should this coordinator be killed, it is needed."""

    memory: Memory


class Kind(str, Enum):
    """What a note is about."""

    GENERATION = "generation"  # one was formed, or taken over
    END = "end"  # of a generation
    RESTART = "restart"
    HANG = "hang"
    STRAGGLER = "straggler"
    NODE = "node"  # one came, went, or was refused
    WAIT = "wait"  # for nodes, or for ranks to save
    CALIBRATION = "calibration"
    CHECK = "check"  # of nodes
    JOB = "job"  # it is over


class Note(msgspec.Struct, frozen=True):
    """A decision and its reason, for people."""

    text: str
    kind: Kind
    generation: int
    verdict: Verdict | None = None  # of a hang
    straggler: Straggled | None = None


class Cordon(msgspec.Struct, frozen=True):
    """A node is left out because it seems to be faulty: whoever gives us nodes should know."""

    node: str
    reason: str
    seconds: float


class Raise(msgspec.Struct, frozen=True):
    """A generation failed: whoever wants to hear of it should."""

    node: str
    rank: int
    cause: str
    text: str


Command = Send | Drop | Reply | Remember | Note | Cordon | Raise
