"""Nodes of the cluster that a job avoids: for how long, how many, and which ones are kept off everybody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outlast.k8s.observed import NodeFacts
from outlast.k8s.plan import Action, JobObservation, MarkNode, UnmarkNode
from outlast.k8s.quantities import seconds_of, stamp, time_of
from outlast.k8s.rendering import JobIdentity
from outlast.k8s.resource import ElasticJobSpec, ExcludedNode

HOUR = 3600.0
REMEMBERED = 24 * HOUR  # after its end, so that a node that is faulty again is avoided for longer
MOST_REMEMBERED = 100
LONGEST = 7 * 24 * HOUR


def mark_of(job: JobIdentity) -> str:
    """How a node says which job has marked it."""
    return f"{job.namespace}/{job.name}/{job.uid}"


def active(excluded: Sequence[ExcludedNode], now: float) -> tuple[ExcludedNode, ...]:
    """Those that are avoided now."""
    return tuple(each for each in excluded if (time_of(each.until) or 0) > now)


def exclude(
    spec: ElasticJobSpec,
    excluded: Sequence[ExcludedNode],
    nodes: Sequence[NodeFacts] | None,
    *,
    node: str,
    cause: str,
    now: float,
) -> tuple[ExcludedNode, ...] | None:
    """The list with this node in it; None if it may not be excluded, for too few would be left or too many are."""
    policy = spec.faulty_nodes
    current = active(excluded, now)
    if not node or any(each.name == node for each in current):
        return tuple(excluded) if node else None
    recent = [each for each in excluded if now - (time_of(each.since) or 0) < HOUR]
    if len(recent) >= policy.limit or _too_few_left(spec, current, nodes, node):
        return None
    before = next((each for each in excluded if each.name == node), None)
    times = before.times + 1 if before else 1
    span = min(seconds_of(policy.exclude_for) * 2 ** min(times - 1, 20), LONGEST)
    entry = ExcludedNode(name=node, cause=cause, until=stamp(now + span), times=times, since=stamp(now))
    return (*(each for each in excluded if each.name != node), entry)


def _too_few_left(
    spec: ElasticJobSpec, current: Sequence[ExcludedNode], nodes: Sequence[NodeFacts] | None, node: str
) -> bool:
    if nodes is None:
        return False
    avoided = {each.name for each in current}
    usable = {each.name for each in nodes if each.ready and not each.unschedulable and each.name not in avoided}
    return len(usable - {node}) < min(spec.least, len(usable | {node}))


def forget(excluded: Sequence[ExcludedNode], now: float) -> tuple[ExcludedNode, ...]:
    """Without those whose time was over long ago."""
    kept = [each for each in excluded if now - (time_of(each.until) or 0) < REMEMBERED]
    return tuple(sorted(kept, key=lambda each: each.until)[-MOST_REMEMBERED:])


def marks(seen: JobObservation, excluded: Sequence[ExcludedNode], now: float) -> Iterator[Action]:
    """Taints and cordons that are missing, and those whose time is over. Other people's are left alone."""
    mine = mark_of(seen.job)
    avoided = {each.name for each in active(excluded, now)}
    how = seen.spec.faulty_nodes.action if seen.spec is not None else "Exclude"
    for node in seen.nodes or ():
        if node.marked_by == mine and (node.name not in avoided or how == "Exclude"):
            yield _unmark(node)
        elif how != "Exclude" and node.name in avoided and not node.marked_by and not node.unschedulable:
            yield MarkNode(node.name, how)


def orphaned_marks(nodes: Sequence[NodeFacts], jobs: Sequence[JobIdentity]) -> Iterator[UnmarkNode]:
    """Nodes that are marked by a job that is gone. (No finalizer: a job can be deleted while no operator runs.)"""
    known = {mark_of(job) for job in jobs}
    for node in nodes:
        if node.marked_by and node.marked_by not in known:
            yield _unmark(node)


def _unmark(node: NodeFacts) -> UnmarkNode:
    """Only what we did: a cordon on a node that we have tainted is somebody else's."""
    return UnmarkNode(node.name, "Taint" if node.tainted else "Cordon")
