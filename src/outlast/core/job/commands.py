"""What comes out of the job's decisions, to be done in order. Plain data."""

from __future__ import annotations

import msgspec

from outlast.core.succession.authority import Memory
from outlast.events.events import JobEvent
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


class Publish(msgspec.Struct, frozen=True):
    """Something was decided or found: tell people, programs and plug-ins."""

    event: JobEvent


class NodesWanted(msgspec.Struct, frozen=True):
    """Ask whoever gives us nodes for at least so many more. The job waits for them."""

    count: int
    because: str


class ReleaseNode(msgspec.Struct, frozen=True):
    """Give a node back: the job does not use it for so many seconds, or (None) never again."""

    node: str
    because: str
    seconds: float | None


Command = Send | Drop | Reply | Remember | Publish | NodesWanted | ReleaseNode
