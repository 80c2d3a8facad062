"""What Slurm says about the step that this process is a task of: SLURM_* variables, and nothing else.

Nothing is asked of Slurm itself: in a container there may be no Slurm, but the variables are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

# Below the range from which Linux takes ports for outgoing connections.
FIRST_PORT, PORTS = 20000, 12000


class Step(msgspec.Struct, frozen=True):
    """One step of a Slurm job (one `srun`), as one of its tasks sees it."""

    job: str  # the id; each element of an array has its own
    number: str
    nodes: tuple[str, ...]
    rank: int
    node: str  # the name that Slurm has for this node
    cluster: str = ""

    @property
    def name(self) -> str:
        """The job's name for its nodes."""
        return f"slurm-{self.job}.{self.number}"

    @property
    def port(self) -> int:
        """Where the nodes meet: the same on all of them, and another one for other jobs on the same machines.

        >>> Step("7", "0", ("a",), 0, "a").port, Step("7", "1", ("a",), 0, "a").port
        (20049, 20050)
        """
        return FIRST_PORT + (int(self.job) * 7 + int(self.number)) % PORTS

    @property
    def token_file(self) -> Path:
        """In the home directory, which nodes of a cluster share."""
        return Path.home() / ".outlast" / f"{self.cluster or 'slurm'}-{self.job}.token"


def step_of(environ: Mapping[str, str]) -> Step | None:
    """The step that this process is a task of; None outside of Slurm, or in a batch script.

    Raises ValueError for steps whose tasks cannot be nodes of one job.
    """
    number, job = environ.get("SLURM_STEP_ID", ""), environ.get("SLURM_JOB_ID", "")
    # Special steps (batch, extern, interactive) have numbers near 2^32.
    if not (job.isdecimal() and number.isdecimal() and int(number) < 2**31):
        return None
    nodes = tuple(hosts_of(environ.get("SLURM_STEP_NODELIST", "")))
    tasks = int(environ.get("SLURM_STEP_NUM_TASKS", "1"))
    if environ.get("SLURM_HET_SIZE"):
        raise ValueError(
            "this is a heterogeneous Slurm job, whose parts are steps of their own: submit one job of one kind of "
            "node, or give --rdzv-endpoint and --node-rank yourself"
        )
    if tasks > len(nodes):
        raise ValueError(
            f"srun starts {tasks} tasks on {len(nodes)} nodes, and Outlast starts the workers of a node itself: "
            "give srun --ntasks-per-node=1, and outlast run --nproc-per-node"
        )
    rank = environ.get("SLURM_PROCID", "0")
    return Step(
        job,
        number,
        nodes,
        int(rank) if rank.isdecimal() else 0,
        environ.get("SLURMD_NODENAME", ""),
        environ.get("SLURM_CLUSTER_NAME", ""),
    )


def outside_step(environ: Mapping[str, str]) -> bool:
    """Whether this is a process of a batch script or `salloc` shell of several nodes, and not of a step."""
    return environ.get("SLURM_JOB_NUM_NODES", "1") not in ("", "1") and step_of(environ) is None


def hosts_of(nodelist: str) -> Iterator[str]:
    """The names in a node list, in its order.

    >>> list(hosts_of("gpu[01-03,7],login,r[1-2]n[0-1]"))
    ['gpu01', 'gpu02', 'gpu03', 'gpu7', 'login', 'r1n0', 'r1n1', 'r2n0', 'r2n1']
    """
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", nodelist):
        yield from _expanded(part)


def _expanded(part: str) -> Iterator[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    ranges, _, after = rest.partition("]")
    for each in ranges.split(","):
        low, _, high = each.partition("-")
        for number in range(int(low), int(high or low) + 1):
            for tail in _expanded(after):
                yield f"{before}{number:0{len(low)}d}{tail}"
