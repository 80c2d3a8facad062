"""What comes out of the job's decisions, to be done in order. Plain data."""

from __future__ import annotations

from enum import Enum

import msgspec

from outlast.core.job.inputs import Straggled
from outlast.core.succession.authority import Memory
from outlast.diagnosis.culprit import HangVerdict
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.requests import Answer


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


class NoteKind(str, Enum):
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
    kind: NoteKind
    generation: int
    verdict: HangVerdict | None = None  # of a hang
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
