"""The map of nodes and ranks: one letter for each rank, so that ten thousand of them are a small message. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeVar

import msgspec

from outlast.dashboard.pace import typical
from outlast.dashboard.text import shown
from outlast.protocol.views import JobView, NodeView

# How much slower than the median rank, and its letter. Coarse, so that noise does not change the map each second.
SLOWER = ((1.1, "0"), (1.25, "1"), (1.5, "2"), (float("inf"), "3"))
STARTING, SPARE, LEAVING, LOST, FAILED, CUT_OFF, FINISHED, IDLE = "srdlxcfi"
Value = TypeVar("Value", str, int)
_STATES = {"failed": FAILED, "cut off": CUT_OFF, "finished": FINISHED, "idle": IDLE}


class NodesFrame(msgspec.Struct, frozen=True):
    """Which nodes there are, in the order of the map. Sent when that changes."""

    names: tuple[str, ...]
    ids: tuple[str, ...]  # what an action is told; empty: all are the names themselves
    workers: tuple[int, ...]  # runs: count, how often, count, how often, …
    first: tuple[int, ...]  # the first rank of each; -1: it has none. Empty: one node follows the other


class RanksFrame(msgspec.Struct, frozen=True):
    """How each rank gets on, in the order of the map: runs of letter and count. Sent when a letter changes."""

    generation: int
    letters: str
    counts: tuple[int, ...]


def ordered(view: JobView) -> list[NodeView]:
    """Members by rank, then spares, then the others."""
    most = len(view.nodes)
    return sorted(view.nodes, key=lambda n: (most if n.group_rank is None else n.group_rank, not n.ready, n.name))


def nodes_frame(nodes: Sequence[NodeView]) -> NodesFrame:
    """Names and sizes of all nodes."""
    workers = _runs([node.workers for node in nodes])
    first = tuple(-1 if node.first_rank is None else node.first_rank for node in nodes)
    names = tuple(shown(node.name) for node in nodes)
    ids = tuple(node.node for node in nodes)
    return NodesFrame(
        names=names,
        ids=() if ids == names else ids,
        workers=tuple(number for run in workers for number in run),
        first=() if first == _in_a_row(nodes) else first,
    )


def ranks_frame(generation: int, nodes: Sequence[NodeView]) -> RanksFrame:
    """One letter for each rank."""
    median = typical([pace.step for node in nodes for pace in node.paces])
    letters = [letter for node in nodes for letter in _letters(node, median)]
    runs = _runs(letters)
    return RanksFrame(generation, "".join(letter for letter, _ in runs), tuple(count for _, count in runs))


def _letters(node: NodeView, median: float | None) -> list[str]:
    if (letter := _whole(node)) is not None:
        return [letter] * node.workers
    if not node.paces or not median or node.first_rank is None:
        return [STARTING] * node.workers
    letters = [STARTING] * node.workers
    for pace in node.paces:
        if 0 <= (at := pace.rank - node.first_rank) < node.workers:
            letters[at] = next(letter for most, letter in SLOWER if pace.step <= most * median)
    return letters


def _whole(node: NodeView) -> str | None:
    """What is the same for all ranks of a node; None: each gets on as it does."""
    if not node.connected:
        return LOST
    if node.leaving:
        return LEAVING
    if not node.member:
        return SPARE if node.ready else IDLE
    return _STATES.get(node.state)


def _runs(values: Sequence[Value]) -> list[tuple[Value, int]]:
    return [(value, len(list(run))) for value, run in groupby(values)]


def _in_a_row(nodes: Iterable[NodeView]) -> tuple[int, ...]:
    first, rank = [], 0
    for node in nodes:
        first.append(rank)
        rank += node.workers
    return tuple(first)
