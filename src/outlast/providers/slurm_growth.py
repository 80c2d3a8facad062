"""More nodes for a running Slurm job, and fewer: each is a Slurm job of its own, of one node, that joins.

So Slurm can give and take back every one of them alone. They are found by their comment, and nothing else is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from outlast.platforms.slurm import hosts_of
from outlast.providers.slurm_queue import slurm_command

LISTED = "%i|%T|%D|%N|%k"  # of squeue: id, state, how many nodes, which, comment
GONE = ("COMPLETING", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL")


def comment_of(job: str) -> str:
    """By which the jobs are known whose nodes join this one."""
    return f"outlast-joins-{job}"


class AddedNodes(msgspec.Struct, frozen=True):
    """A Slurm job whose nodes join another, or will."""

    job: str
    count: int
    nodes: tuple[str, ...] = ()  # none: it waits in the queue


class Growth(msgspec.Struct, frozen=True):
    """What to do so that a job has as many nodes as are wanted."""

    submit: int = 0  # nodes
    cancel: tuple[str, ...] = ()  # jobs that are no longer waited for
    drain: tuple[str, ...] = ()  # nodes to give back


def growth(wanted: int, here: Sequence[str], added: Sequence[AddedNodes]) -> Growth:
    """Nodes to ask for, or to give back: first what still waits in the queue, then what came last.

    The nodes that the job was submitted with are its own, and stay as spares.

    >>> growth(4, ["a", "b"], [AddedNodes("7", 1)])
    Growth(submit=1, cancel=(), drain=())
    >>> growth(2, ["a", "b", "c"], [AddedNodes("7", 1, ("c",)), AddedNodes("8", 1)])
    Growth(submit=0, cancel=('8',), drain=('c',))
    """
    joined = {node for each in added for node in each.nodes}
    expected = len([node for node in here if node not in joined]) + sum(each.count for each in added)
    surplus = expected - wanted
    cancel: list[str] = []
    drain: list[str] = []
    for each in sorted(added, key=lambda each: (bool(each.nodes), -int(each.job.partition("_")[0]))):
        if each.count <= surplus:
            surplus -= each.count
            cancel += [] if each.nodes else [each.job]
            drain += each.nodes
    return Growth(max(0, -surplus), tuple(cancel), tuple(drain))


def added_nodes(job: str) -> list[AddedNodes]:
    """The jobs of this user that joined this one, or will. Raises ValueError."""
    said = slurm_command("squeue", "--noheader", "--me", f"--format={LISTED}")
    return parse(said, job)


def parse(listed: str, job: str) -> list[AddedNodes]:
    """What `squeue` says of the jobs that join this one.

    >>> parse("8|RUNNING|1|gpu3|outlast-joins-7\\n9|PENDING|1||(null)\\n", "7")
    [AddedNodes(job='8', count=1, nodes=('gpu3',))]
    """
    rows = [line.split("|") for line in listed.splitlines() if line.count("|") == LISTED.count("|")]
    return [
        AddedNodes(number, int(count), tuple(hosts_of(nodes)))
        for number, state, count, nodes, comment in rows
        if comment == comment_of(job) and state not in GONE
    ]


def submit_nodes(job: str, state: Path, count: int) -> list[str]:
    """Ask for so many nodes, one job each, by the script that the job left in its state. Returns their ids."""
    options = ["--parsable", "--nodes=1", "--no-requeue", "--exclusive", f"--comment={comment_of(job)}"]
    script = [str(state / "script"), job, "join"]
    return [slurm_command("sbatch", *options, *script).strip().partition(";")[0] for _ in range(count)]


def cancel_jobs(jobs: Sequence[str]) -> None:
    """Take them out of the queue."""
    if jobs:
        slurm_command("scancel", *jobs)
