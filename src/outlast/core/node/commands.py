"""What comes out of a node's decisions, to be done in order. Plain data."""

from __future__ import annotations

import msgspec

from outlast.protocol.checks import Findings, Probe
from outlast.protocol.generations import Assignment
from outlast.protocol.hangs import Named, Seen
from outlast.protocol.membership import Over, Report
from outlast.protocol.paces import Paces
from outlast.protocol.shards import Finding, Query
from outlast.protocol.snapshots import Keeping
from outlast.protocol.succession import Charter, Term


class Tell(msgspec.Struct, frozen=True):
    """Send this report, as the first of a connection within a `Join`."""

    report: Report
    first: bool = False


class StartWorkers(msgspec.Struct, frozen=True):
    assignment: Assignment
    keeping: Keeping = Keeping()


class StopWorkers(msgspec.Struct, frozen=True):
    """Stop the workers: with the whole shutdown timeout, or with this many seconds between TERM and KILL.

    Another one for the same generation has a shorter grace, and sends no second TERM.
    """

    generation: int
    grace: float | None


class RefillWorkers(msgspec.Struct, frozen=True):
    """Start a process for each worker that died. They wait, in their restartable function, for the next generation."""


class Lease(msgspec.Struct, frozen=True):
    """Workers may live until then, and no longer."""

    until: float


class TakeMeasures(msgspec.Struct, frozen=True):
    """Read off what the workers have measured, for this round."""

    round: int


class Agree(msgspec.Struct, frozen=True):
    """This is what all ranks of the job have measured."""

    longest: dict[str, float]


class Observe(msgspec.Struct, frozen=True):
    """See where the workers are, for this inquiry; they may be interrupted for it, or not."""

    number: int
    interrupt: bool


class Examine(msgspec.Struct, frozen=True):
    """Check this node."""

    probe: Probe


class Show(msgspec.Struct, frozen=True):
    """Send what was seen, found or asked here."""

    seen: Seen | Paces | Findings | Query


class Respond(msgspec.Struct, frozen=True):
    """Tell a worker the answer to what it asked, if it still waits for it."""

    visitor: int
    finding: Finding


class Announce(msgspec.Struct, frozen=True):
    """Say this in this node's log."""

    text: str


class Blame(msgspec.Struct, frozen=True):
    """It is known who makes the job hang: end whom this node was about to end, and those of its ranks who did it."""

    named: Named


class HaltWorkers(msgspec.Struct, frozen=True):
    """Let the workers save at this boundary, and wait there; 0: at the next one, until it is named."""

    at: int
    durable: bool


class SetStride(msgspec.Struct, frozen=True):
    """Copy one in so many snapshots."""

    stride: int


class Mandate(msgspec.Struct, frozen=True):
    """What a coordinator that a node hosts begins with: its term, and all that the node knows of the job."""

    term: Term
    charter: Charter | None


class Host(msgspec.Struct, frozen=True):
    """No coordinator can be reached, and it is this node's turn: start one, with this mandate."""

    mandate: Mandate


class Retire(msgspec.Struct, frozen=True):
    """Another coordinator leads the job: end the one that is hosted here."""


class Hangup(msgspec.Struct, frozen=True):
    """The coordinator has been silent for too long: close this connection and try another."""


class Exit(msgspec.Struct, frozen=True):
    """Nothing is left to do here."""

    over: Over


ForCoordinator = Tell | Show | Host | Retire | Hangup
ForMonitor = TakeMeasures | Agree | Observe | Blame | HaltWorkers
ForWorkers = StartWorkers | StopWorkers | RefillWorkers | Lease | Respond
Command = ForCoordinator | ForMonitor | ForWorkers | Examine | SetStride | Announce | Exit
