"""What goes into a node's decisions. Plain data."""

from __future__ import annotations

import msgspec

from outlast.core.tick import Tick
from outlast.diagnosis.observation import Observation
from outlast.protocol.checks import Findings
from outlast.protocol.failures import Failure
from outlast.protocol.generations import Halted
from outlast.protocol.membership import Leaving, Wish
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.paces import Pace, Training
from outlast.protocol.roles import Relaunch, TaskReport
from outlast.protocol.shards import ShardQuestion
from outlast.protocol.snapshots import Held
from outlast.protocol.succession import Standing


class Connected(msgspec.Struct, frozen=True):
    """A new connection stands, to the coordinator that said this; what comes on an older one no longer counts."""

    standing: Standing
    held: tuple[Held, ...] | None = None  # the snapshots in this node's memory; None: nobody has looked


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
    finished: int | None = None  # its rank, if it exited with 0 and not because of a hang


class Decided(msgspec.Struct, frozen=True):
    """What to do about a failure that was told before is known now."""

    generation: int
    failure: Failure


class Cleared(msgspec.Struct, frozen=True):
    """No process here can reach this generation any more: each has ended, or has left it and is parked."""

    generation: int
    kept: int | None = None  # processes that are parked; None: none of them was in a restartable function


class Kept(msgspec.Struct, frozen=True):
    """So many processes are parked: another one is, or one of them has died."""

    count: int


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
    """Ranks here are newly late: by a timeout that ends them, or only suspected."""

    generation: int
    ending: bool


class Observed(msgspec.Struct, frozen=True):
    """Where the ranks here are, as `Observe` asked."""

    generation: int
    number: int
    observations: tuple[Observation, ...]


class Inquired(msgspec.Struct, frozen=True):
    """A worker asks something that only the coordinator knows. `visitor`: whom to tell the answer."""

    visitor: int
    question: ShardQuestion


class Paced(msgspec.Struct, frozen=True):
    """How the ranks here got on since the last time."""

    generation: int
    paces: tuple[Pace, ...]


class Trained(msgspec.Struct, frozen=True):
    """How far the workers here have come."""

    training: Training


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


class TasksChanged(msgspec.Struct, frozen=True):
    """How the tasks of a job with roles are; those that were started again while the others went on."""

    generation: int
    tasks: tuple[TaskReport, ...]
    relaunches: tuple[Relaunch, ...] = ()


class NotHosted(msgspec.Struct, frozen=True):
    """The coordinator that was to be hosted here is not."""


Noticed = (
    Decided | Measured | Late | Observed | Paced | Trained | Halting | Holds | Kept | KeepsUp | Examined | TasksChanged
)
Event = Noticed | Connected | Disconnected | Received | Exited | Cleared | Leave | Wished | Inquired | NotHosted | Tick
