"""Why a generation ends: what happened, as data. `sentences.py` puts it into words."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

# Text for people. It is no part of the digest: changing a sentence changes no decision.
Prose = Annotated[str, msgspec.Meta(extra={"prose": True})]


class _Reason(msgspec.Struct, frozen=True, tag_field="reason"):
    """The base of all reasons."""


class FailedRank(_Reason, frozen=True, tag="rank failed"):
    """A worker failed. Of several, the first that was heard of, which need not be the root."""

    node: str
    rank: int
    exit_code: int  # negative: the signal
    exception: str = ""
    hung: Prose = ""  # where and for how long, if it was ended because it hung
    cause: str = ""  # its name in the catalogue
    title: Prose = ""  # of that cause
    step: int | None = None  # the last one that it made
    said: Prose = ""  # the exception's message, or its beginning
    task: str = ""  # of a job with roles: which one, as `worker-0`


class LostNode(_Reason, frozen=True, tag="node lost"):
    """A node's connection closed, broke, or fell silent."""

    node: str
    how: Prose


class DepartedNode(_Reason, frozen=True, tag="node left"):
    """A node went, as it was about to."""

    node: str


class DrainingNode(_Reason, frozen=True, tag="node draining"):
    """A node wants to leave."""

    node: str


class ToldToStop(_Reason, frozen=True, tag="told to stop"):
    """A job of one node was told to stop, by a signal."""


class FencedNode(_Reason, frozen=True, tag="node cut off"):
    """A node heard nothing for as long as its lease, and stopped its workers."""

    node: str


class StoppedWorkers(_Reason, frozen=True, tag="workers stopped"):
    """Workers were told to stop by another coordinator; `late`: this one heard of that while it ran the generation."""

    nodes: tuple[str, ...]
    late: bool = False


class NodesAhead(_Reason, frozen=True, tag="nodes ahead"):
    """Nodes have been part of a later generation, which those who count never heard of."""

    nodes: tuple[str, ...]


class MissingNodes(_Reason, frozen=True, tag="nodes missing"):
    """Members did not come to the coordinator that took over."""

    missing: int
    size: int
    nodes: tuple[str, ...] = ()  # those whose names are known


class JoinedNodes(_Reason, frozen=True, tag="nodes joined"):
    """More nodes make a larger world."""

    nodes: tuple[str, ...]


class RestartRequested(_Reason, frozen=True, tag="restart requested"):
    """A person asked for a restart."""

    who: str


class ScaleRequested(_Reason, frozen=True, tag="scale requested"):
    """A person asked for another number of nodes."""

    who: str
    nodes: int


class RankRequest(_Reason, frozen=True, tag="rank request"):
    """A rank asked for it, with `outlast.control`."""

    node: str
    rank: int
    action: str
    text: Prose


class ExcludedStraggler(_Reason, frozen=True, tag="straggler excluded"):
    """A node is slower than the others, and is excluded for a while."""

    node: str
    seconds: float
    slower: Prose


class InheritedChange(_Reason, frozen=True, tag="inherited change"):
    """A coordinator before this one had planned a change."""


class NodeLoss(str, Enum):
    """How a node was lost. After `silent` its workers are dead: their lease has ended."""

    SILENT = "silent"  # nothing was heard of it for node_timeout
    CLOSED = "closed"  # its agent has ended
    BROKEN = "broken"  # its connection broke, or came late: the agent may live
    REPLACED = "replaced"  # a new life of its agent has come


class Saved(str, Enum):
    """What the ranks did before a planned change."""

    ALL = "all"
    NONE = "none"  # they have no way to
    SOME = "some"
    LATE = "late"  # not within planned_change_timeout


ChangeReason = (
    DrainingNode
    | ToldToStop
    | JoinedNodes
    | RestartRequested
    | ScaleRequested
    | RankRequest
    | ExcludedStraggler
    | InheritedChange
)


class PlannedEnd(_Reason, frozen=True, tag="planned"):
    """A planned change, after the ranks had the chance to save."""

    changes: tuple[ChangeReason, ...]
    saved: Saved
    step: int | None = None  # that all have saved
    seconds: float = 0.0  # how long they had


EndReason = (
    FailedRank
    | LostNode
    | DepartedNode
    | FencedNode
    | StoppedWorkers
    | NodesAhead
    | MissingNodes
    | PlannedEnd
    | ChangeReason
)
