"""What a person asks of a running job, and the answer."""

from __future__ import annotations

import msgspec

from outlast.protocol.fields import Name


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A person wants something of the job: the only message of a connection that joins nothing."""

    what: Name  # "restart", "drain", "scale", "stop"; and "resign", of the coordinator's own host
    who: Name  # for the log
    job: Name = ""  # empty: whichever is served there
    subject: Name = ""  # the node to drain, or how many nodes are wanted


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """What became of it."""

    done: bool
    text: str
    later: bool = False  # the same may be done soon: ask again


class DrainRequest(msgspec.Struct, frozen=True, array_like=True, tag="drain"):
    """A person wants this node out of the job: the same as SIGTERM to its agent."""

    who: Name
