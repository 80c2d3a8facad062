"""What comes out of a coordinator's decisions, to be done in order. Plain data."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

from outlast.core.job.commands import Command as Decision
from outlast.core.job.commands import NodesWanted, ReleaseNode, Remember, Reply
from outlast.core.job.inputs import Event
from outlast.events.numbered import NumberedEvent
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.observers import ToObserver

Connection = TypeVar("Connection", bound=Hashable)  # whatever the shell has: nothing is asked of it here


class Write(msgspec.Struct, Generic[Connection], frozen=True):
    """Send this message."""

    connection: Connection
    message: FromCoordinator | ToObserver


class Close(msgspec.Struct, Generic[Connection], frozen=True):
    """Close the connection, once what was written before has been sent."""

    connection: Connection


class Break(msgspec.Struct, Generic[Connection], frozen=True):
    """Reset the connection. `why`: its other end did what no agent does."""

    connection: Connection
    why: str = ""


class JournalEntry(msgspec.Struct, frozen=True):
    """For the journal: an event that changed something, and what came of it. It comes before what came of it."""

    at: float
    event: Event
    answers: str
    decisions: list[Decision]


class PublishEvent(msgspec.Struct, frozen=True):
    """Something was decided or found: tell people, programs and plug-ins, and keep it in the journal."""

    numbered: NumberedEvent


Command = (
    Write[Connection]
    | Close[Connection]
    | Break[Connection]
    | JournalEntry
    | Reply
    | PublishEvent
    | Remember
    | NodesWanted
    | ReleaseNode
)
