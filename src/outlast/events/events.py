"""Every event of a job. docs/events.md documents the fields, and a test freezes them: a change needs a new VERSION.

An event says what was decided or found, never how that is put: texts for people are marked as `Prose`, and come from
`sentences.py` wherever the fields say it all.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from outlast.events.reasons import ChangeReason, EndReason, FailedRank, NodeLoss, Prose

VERSION = 2  # of these fields


class Level(str, Enum):
    """How loudly an event is logged. Quiet ones are for programs: people are told by the event that follows."""

    QUIET = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class _JobEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    generation: int  # the newest at that time; 0: none


class JobBegan(_JobEvent, frozen=True, tag="job began"):
    """The first node has come."""

    least: int  # nodes that it needs
    most: int  # nodes that it wants
    ago: float = 0.0  # seconds before this event: when that node was started
    queued: float = 0.0  # seconds from the job's submission to that; 0: not known


class JobSuspended(_JobEvent, frozen=True, tag="job suspended"):
    """The whole job stood still: every node, and the coordinator with them."""

    seconds: float
    ago: float = 0.0  # seconds before this event: when it went on


class GenerationFormed(_JobEvent, frozen=True, tag="generation formed"):
    """Nodes start their workers."""

    nodes: tuple[str, ...]  # in the order of their ranks
    ranks: int
    spares: int
    restarts: int
    restore_step: int | None = None  # the newest snapshot that is whole in the memory of the nodes


class GenerationEnding(_JobEvent, frozen=True, tag="generation ending"):
    """Workers are being stopped. `also`: it was ending already, and this has come to it."""

    reason: EndReason
    also: bool = False
    ago: float = 0.0  # seconds before this event: when it happened, or when the rank that hung last moved


class TrainingBegan(_JobEvent, frozen=True, tag="training began"):
    """Every rank of the generation has made a step."""

    step: int | None = None  # the first one; null: the script counts from 1 in every generation
    ago: float = 0.0  # seconds before this event: when the last rank made it
    restore: float = 0.0  # seconds that ranks spent restoring a checkpoint, on average
    slowest: str = ""  # the node whose ranks came last


class TrainingProgress(_JobEvent, frozen=True, tag="progress"):
    """How far training has come: once a minute. Seconds are averages over ranks, since the generation began."""

    step: int
    ago: float = 0.0  # seconds before this event: when that step was made
    checkpoint: float = 0.0  # seconds that training waited for saves
    data: float = 0.0  # seconds that it waited for data


class WorkersGone(_JobEvent, frozen=True, tag="workers gone"):
    """No worker of the generation is alive. Seconds as in `progress`; of nodes that were lost nothing is known."""

    step: int | None = None  # the last one that was made; null: none was
    ago: float = 0.0  # seconds before this event: when that step was made
    checkpoint: float = 0.0
    data: float = 0.0


class PlannedChange(_JobEvent, frozen=True, tag="planned change"):
    """All ranks save at one step, before the generation ends."""

    changes: tuple[ChangeReason, ...]


class CoordinatorTookOver(_JobEvent, frozen=True, tag="coordinator took over"):
    """A coordinator that was started again, or on another node, goes on with the generation as it runs."""

    term: int
    nodes: int


class QuorumMissing(_JobEvent, frozen=True, tag="quorum missing"):
    """Too few of the newest generation's nodes are here: the others may go on without them."""

    here: int
    size: int


class WaitingForNodes(_JobEvent, frozen=True, tag="waiting for nodes"):
    """There are fewer than MIN."""

    least: int
    unit: int
    ready: tuple[str, ...]
    excluded: dict[str, Prose] = {}  # nodes that are here and not used, and why


class NodeJoined(_JobEvent, frozen=True, tag="node joined"):
    """A node has come."""

    node: str
    workers: int


class SpareReady(_JobEvent, frozen=True, tag="spare ready"):
    """A node that is ready waits while others run."""

    node: str


class NodeRefused(_JobEvent, frozen=True, tag="node refused"):
    """A node cannot be part of this job."""

    node: str
    why: Prose


class NodeLost(_JobEvent, frozen=True, tag="node lost"):
    """A node is gone that nobody expected to go."""

    node: str
    how: Prose
    told: bool = False  # people are told by the event that follows
    loss: NodeLoss = NodeLoss.CLOSED


class NodeLeft(_JobEvent, frozen=True, tag="node left"):
    """A node is gone, as it was about to."""

    node: str
    told: bool = False  # people are told by the event that follows


class NodeExcluded(_JobEvent, frozen=True, tag="node excluded"):
    """A node is not used for a while, or (`seconds` None) for the rest of the job."""

    node: str
    why: Prose
    seconds: float | None


class NodeHeldBack(_JobEvent, frozen=True, tag="node held back"):
    """Processes of a node died, and the healthy nodes go on without it (`--ft-restart-policy=min-healthy`)."""

    node: str
    lost: int  # of its processes
    workers: int


class NodeKept(_JobEvent, frozen=True, tag="node kept"):
    """A node is to blame, and is used all the same: without it there were too few, or too many are excluded."""

    node: str
    because: Prose
    why: Prose
    told: bool = False  # people are told by the event that follows


class NodeLetBack(_JobEvent, frozen=True, tag="node let back"):
    """A node that was excluded may be used again, on probation."""

    node: str


class WorkerFailed(_JobEvent, frozen=True, tag="worker failed"):
    """The root of a generation's failures."""

    failure: FailedRank
    followers: int  # failures of other ranks that followed from it
    ago: float = 0.0  # seconds before this event: when it happened, or when the rank that hung last moved


class TaskRelaunched(_JobEvent, frozen=True, tag="task relaunched"):
    """A task of a job with roles failed and was started again; tasks of other roles went on."""

    task: str  # its slot, as `worker-0`
    life: int  # of the new process
    failure: FailedRank
    used: int  # restarts of its role, in this generation
    allowed: int
    memory: int = 0  # bytes that the new process may use; 0: no limit
    more_memory: bool = False  # which is more than the one before had
    trains: bool = False  # no steps are made without it
    ago: float = 0.0  # seconds before this event: when it failed


class Restarting(_JobEvent, frozen=True, tag="restarting"):
    """The job is tried again after a failure."""

    number: int
    allowed: int
    failure: FailedRank
    decided: Prose = ""  # by what, if not by default
    anew: bool = False  # nothing that is kept between restarts is used
    excluded: NodeExcluded | None = None
    kept: NodeKept | None = None
    diagnose: bool = True  # causes decide, not the count of restarts alone


class RankStack(msgspec.Struct, frozen=True):
    """Where ranks stood in a hang: those that stood at the same place, once."""

    count: int  # of ranks
    ranks: tuple[int, ...]  # the first of them
    nodes: tuple[str, ...]  # their nodes, the first of them
    culprit: bool  # whether the others waited for these
    state: str  # the kernel's letter for their processes; empty: not known
    frames: tuple[str, ...]  # `function (file:line)`, the innermost first; empty: nobody could tell


class HangNamed(_JobEvent, frozen=True, tag="hang"):
    """Who makes the job hang, by what was seen of all ranks."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    kind: str
    where: str
    sentence: Prose
    ago: float = 0.0  # seconds before this event: when ranks last moved, to a power of two
    stacks: tuple[RankStack, ...] = ()  # at most 8, the culprits first, each of at most 16 frames


class StragglerChanged(_JobEvent, frozen=True, tag="straggler"):
    """Ranks of a node are slower than the others (`over` None), or are so no longer."""

    node: str
    ranks: tuple[int, ...]
    section: str
    factor: float
    since: int  # the step
    over: int | None
    sentence: Prose
    excess: float = 0.0  # seconds that a step takes longer for it


class Calibrated(_JobEvent, frozen=True, tag="calibrated"):
    """Timeouts were agreed on, from what all ranks have measured."""

    longest: dict[str, float]
    sentence: Prose


class CheckBegan(_JobEvent, frozen=True, tag="check began"):
    """Nodes are checked before they are let in."""

    nodes: tuple[str, ...]


class CheckedNode(msgspec.Struct, frozen=True):
    """What a check says of one node."""

    node: str
    verdict: str
    why: Prose = ""


class CheckDone(_JobEvent, frozen=True, tag="check done"):
    """A check is over. `table`: as people see it, unless they see it elsewhere."""

    nodes: tuple[CheckedNode, ...]
    table: Prose = ""


class Ending(str, Enum):
    """How a job can end."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"  # a rank or a signal asked for it
    FAILED = "failed"  # no restart is left, or none would help
    TOO_FEW_NODES = "too few nodes"
    NO_NODES = "no nodes"
    NO_QUORUM = "no quorum"
    CHECKED = "checked"  # only a check was asked for
    UNFIT = "unfit"  # no node passed its check


class JobOver(_JobEvent, frozen=True, tag="job over"):
    """The job has ended."""

    success: bool
    ending: Ending
    reason: Prose
    seconds: float
    generations: int
    restarts: int
    failure: FailedRank | None = None  # the one that could not be cured


JobEvent = (
    JobBegan
    | JobSuspended
    | GenerationFormed
    | TrainingBegan
    | TrainingProgress
    | GenerationEnding
    | WorkersGone
    | PlannedChange
    | CoordinatorTookOver
    | QuorumMissing
    | WaitingForNodes
    | NodeJoined
    | SpareReady
    | NodeRefused
    | NodeLost
    | NodeLeft
    | NodeExcluded
    | NodeHeldBack
    | NodeKept
    | NodeLetBack
    | WorkerFailed
    | TaskRelaunched
    | Restarting
    | HangNamed
    | StragglerChanged
    | Calibrated
    | CheckBegan
    | CheckDone
    | JobOver
)
_LEVELS = {
    HangNamed: Level.ERROR,
    StragglerChanged: Level.WARNING,
    NodeJoined: Level.QUIET,
    NodeExcluded: Level.QUIET,
    WorkerFailed: Level.QUIET,
    JobBegan: Level.QUIET,
    TrainingBegan: Level.QUIET,
    TrainingProgress: Level.QUIET,
    WorkersGone: Level.QUIET,
}


def level_of(event: JobEvent) -> Level:
    """How loudly to log an event.

    >>> level_of(NodeLeft(generation=1, node="a")).value, level_of(NodeLeft(generation=1, node="a", told=True)).value
    ('info', 'debug')
    """
    told = isinstance(event, NodeLost | NodeLeft | NodeKept) and event.told
    return Level.QUIET if told else _LEVELS.get(type(event), Level.INFO)
