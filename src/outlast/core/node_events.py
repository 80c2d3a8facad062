"""What goes into a node's decisions, and what comes out of them. Plain data."""

from __future__ import annotations

import msgspec

from outlast.diagnosis.observation import Observation
from outlast.messages import (
    Assignment,
    Failure,
    FromCoordinator,
    Halted,
    Leaving,
    Named,
    Over,
    Pace,
    Paces,
    Report,
    Seen,
    Standing,
    Term,
    Wish,
)
from outlast.messages.checks import Findings, Probe
from outlast.messages.snapshots import Held, Keeping


class Connected(msgspec.Struct, frozen=True):
    """A new connection stands, to the coordinator that said this; what comes on an older one no longer counts."""

    standing: Standing


class Disconnected(msgspec.Struct, frozen=True):
    """The connection is gone."""


class Received(msgspec.Struct, frozen=True):
    """The coordinator said something, on the present connection."""

    message: FromCoordinator


class Exited(msgspec.Struct, frozen=True):
    """A worker exited: with 0 (`failure` None), or not. Or it hangs, and is being ended: as good as exited."""

    generation: int
    failure: Failure | None = None
    patience: float = 0.0  # seconds that the workers are given to end, if that is more than usual


class Decided(msgspec.Struct, frozen=True):
    """What to do about a failure that was told before is known now."""

    generation: int
    failure: Failure


class Cleared(msgspec.Struct, frozen=True):
    """No process of this generation is alive any more."""

    generation: int


class Leave(msgspec.Struct, frozen=True):
    """Somebody wants this node out (a signal to the agent)."""

    how: Leaving


class Wished(msgspec.Struct, frozen=True):
    """A rank asks for something."""

    wish: Wish


class Measured(msgspec.Struct, frozen=True):
    """What the workers here have measured: for this round, or because one of them asks for a new one."""

    longest: dict[str, float]
    round: int | None = None


class Late(msgspec.Struct, frozen=True):
    """Ranks here are newly late: by a time-out that ends them, or only suspected."""

    generation: int
    ending: bool


class Observed(msgspec.Struct, frozen=True):
    """Where the ranks here are, as `Observe` asked."""

    generation: int
    number: int
    observations: tuple[Observation, ...]


class Paced(msgspec.Struct, frozen=True):
    """How the ranks here got on since the last time."""

    generation: int
    paces: tuple[Pace, ...]


class Halting(msgspec.Struct, frozen=True):
    """How far the workers have come, which are to halt for a planned change."""

    generation: int
    halted: Halted


class Holds(msgspec.Struct, frozen=True):
    """Which snapshots are in this node's memory. Told when no worker changes that."""

    held: tuple[Held, ...]


class KeepsUp(msgspec.Struct, frozen=True):
    """How many snapshots have to be left out for one that is copied, so that this node keeps up."""

    stride: int


class Examined(msgspec.Struct, frozen=True):
    """What a check has found here."""

    findings: Findings


class NotHosted(msgspec.Struct, frozen=True):
    """The coordinator that was to be hosted here is not."""


class Tick(msgspec.Struct, frozen=True):
    """Time has passed: a deadline may be due."""


Event = (
    Connected
    | Disconnected
    | Received
    | Exited
    | Decided
    | Cleared
    | Leave
    | Wished
    | Measured
    | Late
    | Observed
    | Paced
    | Halting
    | Holds
    | KeepsUp
    | Examined
    | NotHosted
    | Tick
)


class Tell(msgspec.Struct, frozen=True):
    """Send this report, as the first of a connection within a `Join`."""

    report: Report
    first: bool = False


class StartWorkers(msgspec.Struct, frozen=True):
    assignment: Assignment
    keeping: Keeping = Keeping()


class StopWorkers(msgspec.Struct, frozen=True):
    """Stop the workers: with the whole shutdown time-out, or with this many seconds between TERM and KILL."""

    generation: int
    grace: float | None


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
    """Send what was seen."""

    seen: Seen | Paces | Findings


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


class Host(msgspec.Struct, frozen=True):
    """No coordinator can be reached, and it is this node's turn: start one, of this term."""

    term: Term


class Retire(msgspec.Struct, frozen=True):
    """Another coordinator leads the job: end the one that is hosted here."""


class Hangup(msgspec.Struct, frozen=True):
    """The coordinator has been silent for too long: close this connection and try another."""


class Exit(msgspec.Struct, frozen=True):
    """Nothing is left to do here."""

    over: Over


Command = (
    Tell
    | StartWorkers
    | StopWorkers
    | Lease
    | TakeMeasures
    | Agree
    | Observe
    | Examine
    | Show
    | Blame
    | HaltWorkers
    | SetStride
    | Host
    | Retire
    | Hangup
    | Exit
)
