"""What goes into the job's decisions. Plain data."""

from __future__ import annotations

import msgspec

from outlast.core.stragglers.stragglers import Straggler
from outlast.core.tick import Tick
from outlast.events.events import JobSuspended, TrainingBegan, TrainingProgress
from outlast.events.reasons import NodeLoss
from outlast.protocol.checks import Findings
from outlast.protocol.hangs import Seen
from outlast.protocol.membership import Join, Report
from outlast.protocol.requests import Ask
from outlast.protocol.shards import Query


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


class Progressed(msgspec.Struct, frozen=True, tag="progressed"):
    """All ranks train, have got further, or stood still."""

    event: TrainingBegan | TrainingProgress | JobSuspended


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
    heard: float | None = None  # when it was last heard of, if that was before its end was noticed
    loss: NodeLoss = NodeLoss.CLOSED


class Asked(msgspec.Struct, frozen=True, tag="asked"):
    """Somebody who may do so asks for something."""

    ask: Ask


Event = Joined | Reported | Saw | Queried | Straggled | Progressed | Found | Lost | Asked | Tick
