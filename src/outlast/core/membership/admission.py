"""Whether an agent may be part of this job at all, and whether a person may ask for this here."""

from __future__ import annotations

from outlast.protocol.membership import PROTOCOL, Join
from outlast.protocol.requests import Ask
from outlast.protocol.rules import Rules


def refusal(rules: Rules, join: Join, *, run: str | None, excluded: str = "", namesake: str = "") -> str:
    """Why not, and what to change; nothing, if it may. `run`: which one this is; None: no generation was formed.

    `excluded`: why its place is not used again, if so. `namesake`: a node that is here with the same rank.
    """
    mine = f"{rules.min_nodes}:{rules.max_nodes}"
    theirs = f"{join.nnodes[0]}:{join.nnodes[1]}"
    if join.protocol != PROTOCOL:
        return (
            f"it speaks protocol {join.protocol}, this coordinator {PROTOCOL}: "
            "install the same version of outlast on all nodes"
        )
    if join.job != rules.job:
        return f"this endpoint serves job {rules.job!r}, not {join.job!r}: choose another port or the same --rdzv-id"
    if join.entrypoint.rpartition("/")[2] != rules.entrypoint.rpartition("/")[2]:  # it may lie elsewhere on that node
        return (
            f"this endpoint serves a job that runs {rules.entrypoint!r}, not {join.entrypoint!r}: "
            "another job needs another port"
        )
    if join.charter is not None and run is not None and join.charter.run != run:
        return "it took part in an earlier run of this job, and this is another one: start it again"
    if excluded:
        return f"this node is not used again in this job: {excluded}"
    if theirs != mine:
        return f"this job runs with --nnodes={mine}, not {theirs}: start all of its nodes with the same --nnodes"
    if namesake:
        return (
            f"node {namesake} has the same rank {join.infra_rank}: give each node its own "
            "(--node-rank, SLURM_PROCID, GROUP_RANK), or --ft-use-infra-group-rank=false"
        )
    return ""


def unanswerable(rules: Rules, ask: Ask) -> str:
    """Why nobody here can do what was asked for; nothing, if somebody can.

    >>> unanswerable(Rules(job="j", entrypoint="e", min_nodes=1, max_nodes=1), Ask("restart", "me", job="k"))
    "this endpoint serves job 'j', not 'k'"
    """
    if ask.job not in ("", rules.job):
        return f"this endpoint serves job {rules.job!r}, not {ask.job!r}"
    if ask.what not in ("restart", "drain", "scale", "stop", "resign"):
        return f"{ask.what!r} is unknown here: install the same version of outlast"
    return ""
