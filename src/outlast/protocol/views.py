"""The read model: what is going on in a job, as plain data for whoever watches."""

from __future__ import annotations

import msgspec

from outlast.events.events import Ending
from outlast.events.reasons import ChangeReason, EndReason, FailedRank
from outlast.protocol.paces import Pace
from outlast.protocol.roles import TaskReport


class NodeView(msgspec.Struct, frozen=True):
    """One node: a member of the newest generation, a spare, or one that is here and not used."""

    node: str  # unique to one life of its agent
    name: str
    state: str  # of its workers, as its agent last told
    workers: int
    connected: bool
    member: bool
    ready: bool  # for the next generation
    leaving: bool = False
    group_rank: int | None = None
    first_rank: int | None = None
    paces: tuple[Pace, ...] = ()  # how its ranks got on, as they last told in this generation


class ExclusionView(msgspec.Struct, frozen=True):
    """A place that is not used."""

    why: str
    seconds: float | None  # that are left; None: for the rest of the job
    node: str = ""  # the name of the node there; empty: it has left


class SnapshotView(msgspec.Struct, frozen=True):
    """The newest snapshot that was whole in the memory of the nodes when the newest generation was formed."""

    step: int
    saved_at: float  # wall-clock


class JobView(msgspec.Struct, frozen=True):
    """A job at one moment."""

    job: str
    run: str
    term: int
    phase: str
    generation: int
    acting: bool  # whether this coordinator may decide now
    seconds: float  # since this coordinator began
    least: int
    most: int
    nodes: tuple[NodeView, ...]
    spares: int
    restarts: int
    allowed: int
    generations: int
    excluded: dict[str, ExclusionView] = {}
    checking: bool = False
    changes: tuple[ChangeReason, ...] = ()  # that are planned
    ending: tuple[EndReason, ...] = ()  # why the generation ends, other than by a failure
    snapshot: SnapshotView | None = None
    last_fault: FailedRank | None = None
    outcome: Ending | None = None
    time: float = 0.0  # of day, when this view was made
    event: int = 0  # the number of the last event
    wanted: int = 0  # how many nodes a generation has at most now: MAX, or as `outlast scale` said
    members: int = 0  # nodes of the newest generation
    here: int = 0  # of them, those that are connected
    ranks: int = 0
    hosted_by: str = ""  # the node that hosts the coordinator; empty: one that has left
    progress: Pace | None = None  # of rank 0, as it last told in this generation
    tasks: tuple[TaskReport, ...] = ()  # of a job with roles
