"""What a coordinator is born with: handed over by the agent that starts it, on its standard input."""

from __future__ import annotations

import msgspec

from outlast.events.numbered import NumberedEvent
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Charter, Term


class Tls(msgspec.Struct, frozen=True):
    """Certificate files. Without them the coordinator makes a certificate of its own, for its own life."""

    cert: str = ""
    key: str = ""
    ca: str = ""


class Commission(msgspec.Struct, frozen=True):
    rules: Rules
    token: str
    listener: int  # the file descriptor of a socket that listens already
    shutdown_timeout: float
    term: Term
    run: str
    charter: Charter | None = None  # what the agent that starts it knows of the job; None: the job begins
    tls: Tls | None = None
    # The file that tells this user's other processes of the job. Removed when the coordinator ends, which may be
    # after the agent that left it there.
    record: str = ""
    log_level: str = "info"
    journal: str = ""
    recall: bool = False  # it takes the place of one that was killed, and whose journal that is
    keep: bool = False  # the journal, when the job has ended
    events: str = ""  # the file for its decisions
    history: tuple[NumberedEvent, ...] = ()  # the events of coordinators before it, as far as its agent knows them
    webhook: str = ""  # where notices to people go
