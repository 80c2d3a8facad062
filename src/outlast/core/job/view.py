"""From the job's state to its read model. Reading changes nothing."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from outlast.core.job.state import JobState
from outlast.core.membership.member import Member
from outlast.protocol.observers import Detail
from outlast.protocol.paces import Pace, Paces
from outlast.protocol.views import ExclusionView, JobView, NodeView, SnapshotView


def view_of(
    state: JobState, now: float, paces: Mapping[str, Paces], *, detail: Detail, wall: float, event: int
) -> JobView:
    """What is going on. `paces`: how the ranks of each node got on when they last told. Linear in the nodes."""
    rules, current, newest = state.rules, state.current, state.snapshots.newest
    nodes = state.nodes.values() if detail is not Detail.JOB else ()
    shown = paces if detail is Detail.RANKS else {}
    return JobView(
        job=rules.job,
        run=state.run,
        term=state.term.number,
        phase=state.phase.value,
        generation=state.generation,
        acting=state.authority.leads(now),
        seconds=now - state.began,
        least=rules.min_nodes,
        most=rules.max_nodes,
        nodes=tuple(_node(state, node, shown) for node in nodes if _matters(state, node)),
        spares=len(state.nodes.ready),
        restarts=state.recovery.restarts,
        allowed=rules.max_restarts,
        generations=state.formed,
        excluded=_excluded(state, now),
        checking=state.admissions.gate.busy,
        changes=current.change.why,
        ending=tuple(current.reasons),
        snapshot=SnapshotView(newest.step, newest.saved_at) if newest is not None else None,
        last_fault=state.last_fault,
        outcome=state.ending,
        time=wall,
        event=event,
        wanted=state.admissions.most,
        members=len(current.roster),
        here=sum(state.nodes[name].connected for name in current.roster),
        ranks=current.world_size if current.roster else 0,
        hosted_by=state.nodes[state.term.by].name if state.term.by in state.nodes else "",
        progress=_progress(state, paces),
        tasks=tuple(task for name in current.roster for task in state.nodes[name].tasks),
    )


def _progress(state: JobState, paces: Mapping[str, Paces]) -> Pace | None:
    """How rank 0 gets on: ranks that train together make the same steps."""
    for name, place in state.current.roster.items():
        if place.first_rank == 0:
            told = paces.get(name)
            same = told is not None and told.generation == state.generation
            return next((pace for pace in told.paces if pace.rank == 0), None) if told is not None and same else None
    return None


def _matters(state: JobState, node: Member) -> bool:
    return node.connected or node.join.node in state.current.roster


def _node(state: JobState, node: Member, paces: Mapping[str, Paces]) -> NodeView:
    name = node.join.node
    place = state.current.roster.get(name)
    told = paces.get(name)
    return NodeView(
        node=name,
        name=node.name,
        state=node.report.state.value,
        workers=node.join.nproc,
        connected=node.connected,
        member=place is not None,
        ready=name in state.nodes.ready,
        leaving=node.leaving,
        group_rank=place.group_rank if place is not None else None,
        first_rank=place.first_rank if place is not None else None,
        paces=told.paces if told is not None and told.generation == state.generation else (),
    )


def _excluded(state: JobState, now: float) -> dict[str, ExclusionView]:
    bans = {place: ban for place, ban in state.recovery.evictions.bans.items() if now < ban.until}
    found = {place: ExclusionView(ban.reason, ban.until - now) for place, ban in bans.items()}
    found |= {place: ExclusionView(why, None) for place, why in state.admissions.excluded.items()}
    names = {node.place: node.name for node in state.nodes.values()} if found else {}
    return {place: replace(each, node=names.get(place, "")) for place, each in found.items()}
