"""What a person asks of a running job, and the answer."""

from __future__ import annotations

import msgspec

from outlast.protocol.fields import Name


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A person wants something of the job: the only message of a connection that joins nothing."""

    what: Name  # "restart"
    who: Name  # for the log
    job: Name = ""  # empty: whichever is served there


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """What became of it."""

    done: bool
    text: str
